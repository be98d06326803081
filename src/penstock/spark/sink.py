"""Sends records to queues in batches of one round trip, and waits while a queue is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Generic, TypeVar

from penstock.client._sync.adding import add_when_room, confirm
from penstock.core.bulk import Prepared, prepared
from penstock.core.dedup import Dedup
from penstock.core.durable import Durable
from penstock.core.partitions import partition_of
from penstock.errors import NodesUnavailable, QueueFull
from penstock.spark.options import Write
from penstock.spark.rows import Item, preferred
from penstock.spark.shards import OpenShards, open_shards

__all__ = ["Packer", "Sink"]

K = TypeVar("K")

GROUPS = 64
"""Most batches that are filled at a time: one for each shard, queue and delay."""


@dataclass(slots=True)
class RecordBatch:
    """Records that are sent together, and their size in bytes."""

    records: list[bytes] = field(default_factory=list)
    size: int = 0


class Packer(Generic[K]):
    """Collects records, and sends those with the same key in batches."""

    def __init__(self, options: Write, send: Callable[[K, Sequence[bytes]], None]) -> None:
        self._rows = options.batch_size
        self._bytes = options.batch_bytes
        self._send = send
        self._open: dict[K, RecordBatch] = {}

    def add(self, key: K, record: bytes) -> None:
        """Take a record, and send its batch if that is full."""
        batch = self._open.get(key)
        if batch is not None and batch.size + len(record) > self._bytes:
            self._send(key, self._open.pop(key).records)
            batch = None
        if batch is None:
            if len(self._open) >= GROUPS:
                self.finish()
            batch = self._open[key] = RecordBatch()
        batch.records.append(record)
        batch.size += len(record)
        if len(batch.records) >= self._rows:
            self._send(key, self._open.pop(key).records)

    def finish(self) -> None:
        """Send the batches that are not full."""
        left, self._open = self._open, {}
        for key, batch in left.items():
            self._send(key, batch.records)


class Sink:
    """Adds records to queues as they come; a dedup id that is taken adds nothing.

    The id chooses the node and the partition, so that every attempt uses the same ones.
    """

    def __init__(self, options: Write, nodes: Sequence[str], found: OpenShards) -> None:
        self._options = options
        self._nodes = tuple(nodes)
        self._packer = Packer[tuple[str, int, str, int | str]](options, self._send)
        self._shards = {options.queue: found}
        self._rows = self._added = 0

    def put(self, items: Iterable[Item]) -> None:
        """Add rows; those that do not fill a batch wait for more."""
        nodes, add, shards = self._nodes, self._packer.add, self._shards
        for queue, delay, record, key in items:
            if queue not in shards:
                shards[queue] = open_shards(self._options, queue)
                shards[queue].check(self._options, whole=False)
            count = shards[queue].partitions
            node = preferred(key, nodes) if len(nodes) > 1 else nodes[0]
            number = partition_of(key, count) if count > 1 else 0
            add((node, number, queue, delay), record)

    def finish(self) -> dict[str, int]:
        """Send the rest; return the numbers of rows, and of those that were added or not."""
        self._packer.finish()
        duplicates = self._rows - self._added
        return {"rows": self._rows, "added": self._added, "duplicates": duplicates}

    def _send(self, key: tuple[str, int, str, int | str], records: Sequence[bytes]) -> None:
        node, number, name, delay = key
        shard = self._shards[name].find(node, number)
        if shard is None:
            raise NodesUnavailable(f"node {node} has rows of this write and can't be reached")

        def put(at: int, n: int, block: float) -> int:
            chunk = records[at : at + n]
            options = terms(self._options, delay, block)
            reply, confirmed = add_when_room(shard, chunk, options, in_parts=False)
            confirm(shard, reply, confirmed, options.wait)
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
