"""The batch source: a snapshot, read in slices by tasks (protocol/maintenance.md, Snapshots).

Reading takes and changes nothing. The driver cuts each structure by values, so that a job that does
not move is in one slice, even if others come and go.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.core.ids import MAX_SEQ, SEQ_BASE
from penstock.core.logs import get_logger
from penstock.errors import WrongEpoch
from penstock.spark.columns import COLUMNS, Origin, Page, Shape, pages
from penstock.spark.options import Read
from penstock.spark.shards import OpenShard, ShardAddress, open_listed, open_shards

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SnapshotReader", "SnapshotSlice"]

logger = get_logger("penstock")

ROWS_A_SLICE = 100_000
"""Jobs of a Spark partition, unless `numPartitions` is given."""
MOST_SLICES = 64
PIECES = 8
"""Pieces into which the stream is divided, for each slice."""
HIGHEST = "9999999999999-9999999999"
"""Higher than every job number."""
MOST_MS = 10**13 - 1
PLACES = MAX_SEQ + 1 - SEQ_BASE
"""Places in the stream within a ms."""


@dataclass(frozen=True)
class SnapshotSlice(InputPartition):
    """A Spark partition of a snapshot: a structure after `start`, up to `end`, as in `survey`."""

    address: ShardAddress
    epoch: str
    place: str
    asof: int
    start: str = ""
    end: str = ""


def bounds(options: Read) -> tuple[str, str]:
    """Return the number below all wanted ones, and the highest wanted one; '' = any.

    Each is the highest number of the ms before a time. Numbers are compared as text.
    """
    times = (options.enqueued_after, options.enqueued_before)
    last = [None if ms is None else min(max(ms - 1, 0), MOST_MS) for ms in times]
    low, high = ("" if ms is None else f"{ms:013d}-{HIGHEST[14:]}" for ms in last)
    return low, high


class SnapshotPlan:
    """Divides one shard into slices."""

    def __init__(self, found: OpenShard, options: Read, share: int = 1) -> None:
        self._shard = found
        self._command, self._keys = found.command, found.ops.keys
        self._options = options
        self._wanted = -(-options.num_partitions // share) if options.num_partitions else None
        self._most = max(1, MOST_SLICES // share)
        reply = found.run(found.ops.call("survey", "", "ready", "", "", 1, 0))
        self._now, self._epoch = reply.now, reply.epoch.decode()

    def slices(self) -> list[SnapshotSlice]:
        """Return the slices; none if the queue does not exist.

        Jobs that are held come last. So a job that goes back to the queue during the read has
        probably been looked for there before, and is not read twice.
        """
        if not self._epoch:
            return []
        states, now = self._options.states, f"{self._now} {HIGHEST}"
        found = []
        if "ready" in states:
            found += self._stream()
            found += self._sorted("scheduled", end=now)
        if "scheduled" in states:
            found += self._sorted("scheduled", start=now)
        if "dead" in states:
            found += self._sorted("dead", end=now)
        if {"ready", "active"}.intersection(states):
            for place in ("active", "once"):  # not cut, as leases are extended all the time
                if self._command("ZCARD", self._keys[place]):
                    found += self._between(place, "", "")
        return found

    def _between(self, place: str, *edges: str) -> list[SnapshotSlice]:
        made = partial(SnapshotSlice, self._shard.address, self._epoch, place, self._now)
        return [made(start, end) for start, end in itertools.pairwise(edges)]

    def _count(self, jobs: int) -> int:
        wanted = self._wanted or min(-(-jobs // ROWS_A_SLICE), self._most)
        return max(1, min(wanted, jobs))

    def _sorted(self, place: str, start: str = "", end: str = "") -> list[SnapshotSlice]:
        """Return slices of a sorted set: it is cut by rank, at values that stay."""
        key, command = self._keys[place], self._command
        low = command("ZCOUNT", key, "-inf", start.partition(" ")[0]) if start else 0
        high = command("ZCOUNT", key, "-inf", end.partition(" ")[0] or "+inf")
        if high <= low:
            return []
        slices, cuts = self._count(high - low), list[str]()
        for number in range(1, slices):
            rank = low + (high - low) * number // slices - 1
            pair = command("ZRANGE", key, rank, rank, "WITHSCORES")
            if pair:
                cuts.append(f"{int(float(pair[1]))} {pair[0].decode()}")
        return self._between(place, start, *dict.fromkeys(cuts), end)

    def _stream(self) -> list[SnapshotSlice]:
        last = self._command("HGET", self._keys["meta"], "last")
        low, high = bounds(self._options)
        high = min(filter(None, (high, last.decode() if last else HIGHEST)))
        jobs = self._command("XLEN", self._keys["ready"])
        if not jobs or (low and low >= high):
            return []
        return self._between("ready", low, *self._cuts(low, high, self._count(jobs)), high)

    def _cuts(self, low: str, high: str, slices: int) -> list[str]:
        """Return where to cut the stream into slices of about the same size.

        A stream has no ranks. So the widest piece is halved repeatedly, and its empty ends are cut
        off: the remaining pieces show where the jobs are.
        """
        whole = self._piece(place_of(low) + 1 if low else 0, place_of(high))
        if slices == 1 or whole is None:
            return []
        pieces = [whole]
        while len(pieces) < slices * PIECES:
            first, end = widest = max(pieces, key=lambda piece: piece[1] - piece[0])
            if first == end:
                break
            middle = (first + end) // 2
            at = pieces.index(widest)
            halves = (self._piece(first, middle), self._piece(middle + 1, end))
            pieces[at : at + 1] = [half for half in halves if half is not None]
        return _shared(pieces, slices)

    def _piece(self, first: int, end: int) -> tuple[int, int] | None:
        """Return the range between two places without its empty ends; None = no job is there."""
        key, low, high = self._keys["ready"], number_at(first), number_at(end)
        found = self._command("XRANGE", key, low, high, "COUNT", 1)
        back = self._command("XREVRANGE", key, high, low, "COUNT", 1)
        if not found or not back:
            return None
        return place_of(found[0][0].decode()), place_of(back[0][0].decode())


def place_of(number: str) -> int:
    """Return the place of a number in the stream."""
    ms, _, seq = number.partition("-")
    return int(ms) * PLACES + min(max(int(seq) - SEQ_BASE, 0), PLACES - 1)


def number_at(place: int) -> str:
    """Return the number at a place in the stream."""
    ms, seq = divmod(place, PLACES)
    return f"{ms}-{SEQ_BASE + seq}"


def _shared(pieces: Sequence[tuple[int, int]], slices: int) -> list[str]:
    """Return the ends of all slices but the last; all have about the same width."""
    passed = list(itertools.accumulate(end - first + 1 for first, end in pieces))
    ends = {bisect_left(passed, passed[-1] * one / slices) for one in range(1, slices)}
    return [number_at(pieces[at][1]) for at in sorted(ends) if at < len(pieces) - 1]


class SnapshotReader(DataSourceReader):
    """The reader of the batch source."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = Read.parse(options)
        self.shape = Shape(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices of a snapshot that begins now."""
        found = open_shards(self.options)
        found.check(self.options, whole=not self.options.skip_unreachable)
        plans = [SnapshotPlan(one, self.options, len(found)) for one in found]
        return [one for plan in plans for one in plan.slices()]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the jobs of a slice."""
        if not isinstance(partition, SnapshotSlice):  # without slices Spark passes one of its own
            return
        (found,) = open_listed(self.options, [partition.address])
        seen = set[bytes]()
        try:
            for page in pages(self._replies(found, partition)):
                kept = self._kept(page, partition, seen)
                if kept.count:
                    yield self.shape.batch(kept)
        except WrongEpoch as error:
            logger.info("%s: the queue was deleted while it was read", error)

    def _replies(
        self, found: OpenShard, one: SnapshotSlice
    ) -> Iterator[tuple[Origin, list[bytes]]]:
        packed = found.ops.place(one.epoch.encode()).packed
        origin = Origin(found.name, found.node, packed, one.place, one.asof)
        # Notes show which jobs have moved; ids need the records.
        full = max(self.shape.full, int(one.place != "ready" or self.options.id_prefix != ""))
        cursor: bytes | str = one.start
        while True:
            args = (one.epoch, one.place, cursor, one.end, self.options.fetch_size, full)
            reply = found.run(found.ops.call("survey", *args))
            yield origin, reply.jobs
            cursor = reply.cursor
            if not cursor:
                break

    def _kept(self, page: Page, one: SnapshotSlice, seen: set[bytes]) -> Page:
        """Return the jobs that were in this structure when the snapshot began, and are wanted."""
        checks: list[Iterable[bool]] = []
        if one.place != "ready":
            checks.append(self._was_there(page, one.asof))
        if page.is_delivered:
            states = COLUMNS["state"](page).to_pylist()
            checks += [_new(page.numbers, seen), (state in self.options.states for state in states)]
        if self.options.id_prefix:
            ids = COLUMNS["id"](page)
            checks.append(pc.starts_with(ids, self.options.id_prefix).to_pylist())
        return page.keep([all(found) for found in zip(*checks, strict=True)])

    def _was_there(self, page: Page, asof: int) -> Iterator[bool]:
        """Yield for each job True if it was there, and is between the wanted times."""
        low, high = (text.encode() for text in bounds(self.options))
        last = b"%d-%b" % (asof, HIGHEST[14:].encode())
        most = min(last, high or last)
        notes = page.split.notes
        shown = [b""] * page.count if notes is None else notes.to_pylist()
        for number, note in zip(page.numbers, shown, strict=True):
            # Before a delivery after `asof`, the job was in another structure.
            was_moved = bool(note) and int(note[1 : note.index(b" ")].rstrip(b"?")) > asof
            yield low < number <= most and not was_moved


def _new(numbers: Sequence[bytes], seen: set[bytes]) -> Iterator[bool]:
    """Yield False for jobs that were seen: an extension moves a job on, and it is read again."""
    for number in numbers:
        yield number not in seen
        seen.add(number)
