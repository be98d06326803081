"""Sends records to queues in batches of one round trip, and waits while a queue is full."""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from redis.exceptions import ResponseError

from penstock.client._sync.adding import add_each, add_when_room, confirm
from penstock.client._sync.route.part import Part
from penstock.core.enqueuing.chunks import CHUNK_BYTES
from penstock.core.enqueuing.dedup import Dedup
from penstock.core.enqueuing.prepared import prepared
from penstock.core.values.durable import Durable
from penstock.core.values.partitions import partition_of
from penstock.errors import (
    BadArgument,
    NotReplicated,
    OutOfMemory,
    QueueFull,
    QueuePaused,
    ServerError,
)
from penstock.spark.encoding import Encoded, Encoder, columns_of, preferred, task
from penstock.spark.errors import OptionError
from penstock.spark.options import Write
from penstock.spark.shards import OpenShards, open_shards

__all__ = ["Packer", "RecordBatch", "Sink", "enqueue_partition", "put_patiently"]

K = TypeVar("K")
PartitionPlace = tuple[str, int, str]
"""Node, number of the partition (0 if there is none), and queue."""

MAX_HELD_BYTES = 16 << 20
"""Memory of the batches that are being filled; when it is used up, all of them are sent."""
RECORD_OVERHEAD_BYTES = 150
"""Memory that a record takes besides its bytes."""
PAUSE_LOOK_INTERVAL = 0.5
"""Seconds between two looks at a paused queue."""


@dataclass(slots=True)
class RecordBatch:
    """Records that are sent together, their delays, and the memory that they take."""

    records: list[bytes] = field(default_factory=list)
    delays: list[int | str] = field(default_factory=list)
    size: int = 0

    def delay(self, at: int = 0, end: int | None = None) -> bytes:
        """Return the delay of some records as scripts read it: one, or one for each."""
        found = self.delays[at:end]
        text = str(found[0]) if len(set(found)) == 1 else ",".join(map(str, found))
        return text.encode()

    @contextmanager
    def naming_rows(self) -> Iterator[None]:
        """Name the row if its ttl is refused, as it ends before the absolute time of its job."""
        try:
            yield
        except BadArgument as error:
            raise self._with_row(error) from None

    def _with_row(self, error: BadArgument) -> BadArgument:
        if error.argument != "ttl" or not isinstance(error.value, float):
            return error
        ttl = b";t=%d" % round(error.value * 1000)
        starts: list[tuple[int, bytes]] = []
        for delay, record in zip(self.delays, self.records, strict=True):
            front, _, rest = record.partition(b";d=")
            if isinstance(delay, str) and ttl + b";" in front + b";":
                starts.append((int(delay[1:]), re.split(b"[;\n]", rest)[0]))
        if not starts:
            return error
        at, name = max(starts)  # the server compared all at one time, so it refused the latest
        start = datetime.fromtimestamp(at / 1000, timezone.utc).isoformat()
        reason = f"row {name.decode()!r} starts at {start}: the ttl {error.reason}"
        return BadArgument("ttl", error.value, reason)


class Packer(Generic[K]):
    """Collects records, and sends those with the same key in batches."""

    def __init__(self, options: Write, send: Callable[[dict[K, RecordBatch]], None]) -> None:
        self._rows = options.batch_size
        self._send = send
        self._open = defaultdict[K, RecordBatch](RecordBatch)
        self._held = 0

    def add(self, keys: Iterable[K], records: Iterable[bytes], delays: Iterable[int | str]) -> None:
        """Take records with their keys, and send batches that are full."""
        batch, last = RecordBatch(), object()
        for key, record, delay in zip(keys, records, delays, strict=True):
            size = len(record) + RECORD_OVERHEAD_BYTES
            if key is not last:
                batch, last = self._open[key], key
            if batch.records and batch.size + size > CHUNK_BYTES:
                self._flush(key)
                batch = self._open[key]
            batch.records.append(record)
            batch.delays.append(delay)
            batch.size += size
            self._held += size
            if len(batch.records) >= self._rows:
                self._flush(key)
                last = object()
            elif self._held > MAX_HELD_BYTES:
                self.finish()
                last = object()

    def _flush(self, *keys: K) -> None:
        batches = {key: self._open.pop(key) for key in keys}
        self._held -= sum(batch.size for batch in batches.values())
        self._send(batches)

    def finish(self) -> None:
        """Send the batches that are not full, together."""
        self._flush(*self._open)


class Sink:
    """Adds records to queues as they come; a dedup id that is taken adds nothing.

    The id chooses the node and the partition, so that every attempt uses the same ones.
    """

    def __init__(self, options: Write, nodes: Sequence[str], found: OpenShards) -> None:
        self._options = options
        self._nodes = tuple(nodes)
        self._packer = Packer[PartitionPlace](options, self._send)
        self._shards = {options.queue: found}
        self._whole: dict[str, PartitionPlace] = {}
        durable = Durable(options.replicas, timeout=options.replication_timeout / 1000)
        self._terms = prepared(durable=durable, dedup=Dedup("-"))  # the records are finished
        self._added = 0

    def put(self, rows: Iterable[Encoded]) -> dict[str, int]:
        """Add all rows; return their number, and the numbers of those that were added or not."""
        count = 0
        with self._naming_rest():
            for some in rows:
                count += len(some.records)
                if others := set(some.queues) - self._shards.keys():
                    self._find(*others)
                places = [
                    self._whole.get(name) or self._place(name, key)
                    for name, key in zip(some.queues, some.keys, strict=True)
                ]
                self._packer.add(places, some.records, some.delays)
            self._packer.finish()
        return {"rows": count, "added": self._added, "duplicates": count - self._added}

    def _find(self, *names: str) -> None:
        for name, found in zip(
            names, self._shards[self._options.queue].look_up(*names), strict=True
        ):
            found.check(self._options, whole=False)
            self._shards[name] = found

    def _place(self, queue: str, key: str) -> PartitionPlace:
        nodes, count = self._nodes, self._shards[queue].partitions
        node = preferred(key, nodes) if len(nodes) > 1 else nodes[0]
        place = (node, partition_of(key, count) if count > 1 else 0, queue)
        if count == len(nodes) == 1:
            self._whole[queue] = place
        return place

    def _send(self, batches: Mapping[PartitionPlace, RecordBatch]) -> None:
        """Add batches together; then those that were refused, one by one."""
        each = [
            (self._shards[name].find(node, number).part, batch)
            for (node, number, name), batch in batches.items()
        ]
        ends = add_each(
            [(part, b.records, replace(self._terms, delay=b.delay())) for part, b in each]
        )
        for (part, batch), end in zip(each, ends, strict=True):
            if isinstance(end, Exception):
                put_patiently(self._options, len(batch.records), partial(self._put, part, batch))
            else:
                self._added += end.count

    def _put(self, part: Part, batch: RecordBatch, at: int, n: int, block: float) -> int:
        chunk = batch.records[at : at + n]
        terms = replace(self._terms, delay=batch.delay(at, at + n), block=block)
        with batch.naming_rows():
            reply, confirmed = add_when_room(part, chunk, terms, in_parts=False)
        confirm(part, reply, confirmed, terms.wait)
        self._added += reply.count
        return len(chunk)

    @contextmanager
    def _naming_rest(self) -> Iterator[None]:
        """Say in an error of the server which rows are in: its text is about one batch."""
        try:
            yield
        except (OutOfMemory, NotReplicated, ServerError, ResponseError) as error:
            text = str(error).replace("nothing was written", "nothing of this batch was written")
            text += f"; {self._added} rows of this partition were added before it. "
            error.args = (f"{text}Repeat the write with the same ids: it adds the others",)
            raise


def put_patiently(options: Write, total: int, put: Callable[[int, int, float], int]) -> None:
    """Put `total` records: all at once, or in a full queue as many as there is room for.

    `put` gets how many are in, how many more to put, and seconds to wait for room. It returns how
    many it has put. Its errors QueueFull and QueuePaused are raised after `options.patience`.
    """
    done, n, block, deadline = 0, total, 0.0, 0.0
    while done < total:
        try:
            done += put(done, min(n, total - done), block)
            n, block, deadline = total, 0.0, 0.0
        except (QueueFull, QueuePaused) as refusal:  # noqa: PERF203  # once a batch
            now = monotonic()
            deadline = deadline or now + options.patience
            limit = refusal.limit if isinstance(refusal, QueueFull) else 0
            room = limit - refusal.waiting if isinstance(refusal, QueueFull) else 0
            if 0 < room < min(n, total - done):
                n, block = room, 0.0
                continue
            if now >= deadline:
                refusal.args = (_stuck(options, refusal, done, total),)
                raise
            if limit:
                n, block = max(1, min(total - done, limit // 8)), deadline - now
            else:
                sleep(min(PAUSE_LOOK_INTERVAL, deadline - now))


def _stuck(options: Write, refusal: Exception, done: int, total: int) -> str:
    is_full = isinstance(refusal, QueueFull)
    text = f"{refusal}; {done} of these {total} rows were added, repeating the write adds the rest"
    if options.commit_mode == "staged":
        text = f"{refusal}; all staged rows are committed, and some may be in the queue"
    if options.patience:
        missing = "There was no room" if is_full else "The pause did not end"
        text += f". {missing} within fullTimeout ({options.patience:g} s)"
        if is_full:
            text += ". Check that consumers run; waiting tasks hold slots that a drain may need"
    return text


def enqueue_partition(rows: Iterable[Any], **options: Any) -> dict[str, int]:
    """Enqueue the rows of a partition; a repeated attempt adds nothing twice.

    All partitions in a process share its connection. Rows must have ids: only they identify a row
    that comes again, perhaps in another partition.

    Args:
        rows: Rows or mappings, all with the same names.
        options: the sink's, as in `df.write.options(…)`: `queue`, `urlEnv`, `idColumn`, …

    Returns:
        How many `rows` there were, how many were `added`, and how many were `duplicates`.

    Raises:
        OptionError: an option can't be used; nothing was written.
        BadArgument: a column or a value can't be used; rows before it may have been added.
        Unreachable: no server can be reached, or not every one of several nodes.
        QueueMissing: there is no such queue, and `requireQueue` is set.
        As `Queue.enqueue`.
    """
    given = Write.parse(options)
    if given.operation != "enqueue":
        raise OptionError("operation", given.operation, "must be enqueue in enqueue_partition")
    if given.commit_mode == "staged":
        raise OptionError("commitMode", "staged", "must be direct in enqueue_partition")
    source = iter(rows)
    first = next(source, None)
    if first is None:
        return {"rows": 0, "added": 0, "duplicates": 0}
    names = _names(first)
    fields = [(name, "") for name in names]
    if "id" not in columns_of(fields, given):
        reason = "is required, or a column id: without ids a repeat would add rows again"
        raise OptionError("idColumn", None, reason)
    found = open_shards(given)
    found.check(given, whole=not given.skip_unreachable)
    encoder = Encoder(fields, given, task(), secrets.token_hex(8))
    values = _values_of(chain([first], source), names)
    return Sink(given, found.nodes, found).put(encoder.records(values))


def _names(row: Any) -> tuple[str, ...]:
    names = row if isinstance(row, Mapping) else getattr(row, "__fields__", None)
    if names is None:
        raise TypeError(f"rows must be Rows or mappings, not {type(row).__name__}")
    return tuple(names)


def _values_of(rows: Iterable[Any], names: tuple[str, ...]) -> Iterator[list[Any]]:
    for at, row in enumerate(rows):
        found = _names(row)
        if found != names and set(found) != set(names):
            reason = f"row {at} of its partition has other columns than the first: {names}"
            raise BadArgument("columns", found, reason)
        yield [row[name] for name in names]
