"""Records on their way into queues: in batches of one trip each, with patience for full queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from penstock.client._sync.queue import Queue
from penstock.core.bulk import Prepared, prepared
from penstock.core.dedup import Dedup
from penstock.core.durable import Durable
from penstock.core.partitions import partition_of
from penstock.errors import NodesUnavailable, QueueFull
from penstock.spark.connect import check_queue, shares
from penstock.spark.options import Write
from penstock.spark.rows import Item, preferred

__all__ = ["Counts", "Packer", "Sink"]

GROUPS = 64
"""Batches that are filled at a time: one for each queue and delay."""


@dataclass
class Counts:
    """What became of rows.

    Attributes:
        rows: how many there were.
        added: how many are jobs now that were none before.
    """

    rows: int = 0
    added: int = 0

    @property
    def duplicates(self) -> int:
        """How many were there already."""
        return self.rows - self.added


class Packer:
    """Gathers records that go out together: of one place, one queue, one delay.

    Args:
        options: how many rows, how many bytes.
    """

    def __init__(self, options: Write) -> None:
        self._rows = options.batch_size
        self._bytes = options.batch_bytes
        self._open: dict[tuple[Any, ...], tuple[list[bytes], list[int]]] = {}

    def add(self, key: tuple[Any, ...], record: bytes) -> Iterable[tuple[Any, list[bytes]]]:
        """Take one more; gives what has to go out before or with it."""
        found = self._open.get(key)
        size = len(record)
        full: list[tuple[Any, list[bytes]]] = []
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

    def rest(self) -> list[tuple[Any, list[bytes]]]:
        """What is left."""
        found = [(key, records) for key, (records, _) in self._open.items()]
        self._open = {}
        return found


class Sink:
    """Puts records into queues as they come; a dedup id that is taken adds nothing.

    On several nodes, and in a queue of several partitions, the id says which one has the job: the
    same in every attempt.

    Args:
        options: of the write.
        nodes: ids of the nodes, as the driver sees them.
    """

    def __init__(self, options: Write, nodes: Sequence[str]) -> None:
        self._options = options
        self._nodes = tuple(nodes)
        self._packer = Packer(options)
        self._parts: dict[str, dict[tuple[str, int], Queue]] = {}
        self._counts: dict[str, int] = {}
        self.counts = Counts()

    def put(self, items: Iterable[Item]) -> None:
        """Add rows; what does not fill a batch waits for more.

        Raises:
            QueueFull: there was no room in time, or none and `onFull=fail`.
            QueueMissing: a row's queue is not there, and `requireQueue` is set.
            As `Queue.enqueue`: what is in stays in, and adds nothing when it comes again.
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

    def finish(self) -> Counts:
        """Send what is left."""
        for (at, queue, delay), records in self._packer.rest():
            self._send(at, queue, delay, records)
        return self.counts

    def _count(self, name: str) -> int:
        """How many partitions a queue has; 1 = none."""
        found = shares(self._options, name)
        if name != self._options.queue:  # that one was looked for when the write was planned
            check_queue(self._options, name, found.values())
        self._parts[name] = found
        self._counts[name] = 1 + max(number for _, number in found)
        return self._counts[name]

    def _part(self, at: tuple[str, int], name: str) -> Queue:
        found = self._parts[name].get(at)
        if found is None:
            raise NodesUnavailable(f"node {at[0]} has rows of this write and can't be reached")
        return found

    def _send(
        self, place: tuple[str, int], name: str, delay: int | str, records: Sequence[bytes]
    ) -> None:
        part = self._part(place, name)

        def put(at: int, n: int, block: float) -> int:
            chunk = records[at : at + n]
            options = terms(self._options, delay, block)
            reply, confirmed = part._enqueue_flow(chunk, options, partial=False)
            part._replicated(reply, confirmed, options)
            self.counts.rows += len(chunk)
            self.counts.added += reply.count
            return len(chunk)

        patiently(self._options, len(records), put)


def terms(options: Write, delay: int | str, block: float) -> Prepared:
    """What an enqueue of records says besides them."""
    durable = Durable(options.replicas, timeout=options.replication_timeout / 1000)
    made = prepared(block=block, durable=durable, dedup=Dedup("-"))
    return replace(made, delay=delay, bound="")


def patiently(options: Write, total: int, put: Any) -> None:
    """Do so many, all at once or, where a queue is full, as many as there is room for.

    Args:
        put: does some: how many are done, how many more to do, seconds to wait for room; gives how
            many it did.

    Raises:
        QueueFull: there was no room in time, or none and `onFull=fail`.
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
    text = f"{full}; {done} of these {total} rows are in, repeating the write adds the others"
    if options.commit_mode == "staged":
        text = f"{full}; all staged rows are promised, and some may be in"
    if options.on_full == "wait":
        text += (
            f". There was no room within fullTimeout ({options.full_timeout / 1000:g} s): does "
            f"anybody work on the queue? Tasks that wait here hold their slots, so a consumer in "
            f"the same application may have none"
        )
    return QueueFull(text, full.waiting, full.limit)
