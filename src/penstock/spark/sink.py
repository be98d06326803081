"""Sends records to queues in batches of one round trip, and waits while a queue is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Generic, TypeVar

from penstock.client._sync.queue import Queue
from penstock.core.bulk import Prepared, prepared
from penstock.core.dedup import Dedup
from penstock.core.durable import Durable
from penstock.core.partitions import partition_of
from penstock.errors import NodesUnavailable, QueueFull
from penstock.spark.connect import check_queue, shares
from penstock.spark.options import Write
from penstock.spark.rows import Item, preferred

__all__ = ["Packer", "Sink"]

K = TypeVar("K")

GROUPS = 64
"""Most batches that are filled at a time: one for each shard, queue and delay."""


class Packer(Generic[K]):
    """Collects records that are sent together: those with the same key.

    Args:
        options: say how many rows and bytes a batch has.
    """

    def __init__(self, options: Write) -> None:
        self._rows = options.batch_size
        self._bytes = options.batch_bytes
        self._open: dict[K, tuple[list[bytes], list[int]]] = {}

    def add(self, key: K, record: bytes) -> list[tuple[K, list[bytes]]]:
        """Take a record; return the batches that are to be sent now."""
        found = self._open.get(key)
        size = len(record)
        full: list[tuple[K, list[bytes]]] = []
        if found is None:
            if len(self._open) >= GROUPS:
                full = self.rest()
            found = self._open[key] = ([], [0])
        records, total = found
        if records and total[0] + size > self._bytes:
            full = [(key, records)]
            records, total = self._open[key] = ([], [0])
        records.append(record)
        total[0] += size
        if len(records) >= self._rows:
            full.append((key, records))
            del self._open[key]
        return full

    def rest(self) -> list[tuple[K, list[bytes]]]:
        """Return the batches that are not full."""
        found = [(key, records) for key, (records, _) in self._open.items()]
        self._open = {}
        return found


class Sink:
    """Adds records to queues as they come; a dedup id that is taken adds nothing.

    The id chooses the node and the partition, so that every attempt uses the same ones.

    Args:
        options: of the write.
        nodes: ids of the nodes that the driver reaches.
    """

    def __init__(self, options: Write, nodes: Sequence[str]) -> None:
        self._options = options
        self._nodes = tuple(nodes)
        self._packer = Packer[tuple[tuple[str, int], str, int | str]](options)
        self._parts: dict[str, dict[tuple[str, int], Queue]] = {}
        self._counts: dict[str, int] = {}
        self._rows = self._added = 0

    def put(self, items: Iterable[Item]) -> None:
        """Add rows; those that do not fill a batch wait for more.

        Raises:
            QueueFull: there was no room within `fullTimeout`, or at once with `onFull=fail`.
            QueueMissing: a row's queue does not exist, and `requireQueue` is set.
            As `Queue.enqueue`: rows that were added stay, and a repeat does not add them again.
        """
        nodes, add, single = self._nodes, self._packer.add, self._nodes[0]
        several = len(nodes) > 1
        counts = self._counts
        for queue, delay, record, key in items:
            node = preferred(key, nodes) if several else single
            count = counts.get(queue) or self._count(queue)
            number = partition_of(key, count) if count > 1 else 0
            for (at, name, when), records in add(((node, number), queue, delay), record):
                self._send(at, name, when, records)

    def finish(self) -> dict[str, int]:
        """Send the rest; return the numbers of rows, and of those that were added or not."""
        for (at, queue, delay), records in self._packer.rest():
            self._send(at, queue, delay, records)
        duplicates = self._rows - self._added
        return {"rows": self._rows, "added": self._added, "duplicates": duplicates}

    def _count(self, name: str) -> int:
        """Return the number of partitions of a queue; 1 if it has none."""
        found = shares(self._options, name)
        if name != self._options.queue:  # the driver has checked that one
            check_queue(self._options, name, found.values())
        self._parts[name] = found
        self._counts[name] = 1 + max(number for _, number in found)
        return self._counts[name]

    def _send(
        self, place: tuple[str, int], name: str, delay: int | str, records: Sequence[bytes]
    ) -> None:
        part = self._parts[name].get(place)
        if part is None:
            raise NodesUnavailable(f"node {place[0]} has rows of this write and can't be reached")

        def put(at: int, n: int, block: float) -> int:
            chunk = records[at : at + n]
            options = terms(self._options, delay, block)
            reply, confirmed = part._enqueue_flow(chunk, options, in_parts=False)
            part._replicated(reply, confirmed, options)
            self._rows += len(chunk)
            self._added += reply.count
            return len(chunk)

        patiently(self._options, len(records), put)


def terms(options: Write, delay: int | str, block: float) -> Prepared:
    """Return the options of an enqueue of finished records."""
    durable = Durable(options.replicas, timeout=options.replication_timeout / 1000)
    made = prepared(block=block, durable=durable, dedup=Dedup("-"))
    return replace(made, delay=delay, bound="")


def patiently(options: Write, total: int, put: Callable[[int, int, float], int]) -> None:
    """Put `total` records: all at once, or in a full queue as many as there is room for.

    Args:
        put: gets how many are in, how many more to put, and seconds to wait for room; returns how
            many it has put.

    Raises:
        QueueFull: there was no room within `fullTimeout`, or at once with `onFull=fail`.
    """
    done, n, block = 0, total, 0.0
    deadline = 0.0
    while done < total:
        try:
            done += put(done, min(n, total - done), block)
            n, block, deadline = total, 0.0, 0.0
        except QueueFull as full:  # noqa: PERF203  # once a batch
            now = monotonic()
            deadline = deadline or now + options.full_timeout / 1000
            room = full.limit - full.waiting
            if 0 < room < min(n, total - done):
                n, block = room, 0.0
                continue
            if options.on_full == "fail" or now >= deadline:
                raise _stuck(options, full, done, total) from None
            n, block = max(1, min(total - done, full.limit // 8)), deadline - now


def _stuck(options: Write, full: QueueFull, done: int, total: int) -> QueueFull:
    text = f"{full}; {done} of these {total} rows were added, repeating the write adds the others"
    if options.commit_mode == "staged":
        text = f"{full}; all staged rows are committed, and some may be in the queue"
    if options.on_full == "wait":
        text += (
            f". There was no room within fullTimeout ({options.full_timeout / 1000:g} s). Check "
            f"that consumers of the queue run. Waiting tasks hold their slots, so a drain in the "
            f"same application may have none"
        )
    return QueueFull(text, full.waiting, full.limit)
