"""The batch source: a snapshot, read in slices by tasks (protocol/maintenance.md, Snapshots).

Reading takes and changes nothing. The driver cuts each structure by values, so that a job that does
not move is in one slice, even if others come and go.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc
from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.core.jobs.logs import get_logger
from penstock.errors import WrongEpoch
from penstock.spark.decoding import COLUMN_BUILDERS, Origin, Page, Replies, Shape, pages
from penstock.spark.options import Read
from penstock.spark.shards import OpenShard, ShardAddress, open_listed, open_shards

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SnapshotRange", "SnapshotReader"]

logger = get_logger("penstock")

ROWS_A_SLICE = 100_000
"""Jobs of a Spark partition, unless `numPartitions` is given."""
MAX_SLICES = 64
SPAN_SLACK = 0.1
"""No shard is cut for less than this part of a slice."""
PIECES_PER_SLICE = 8
"""Pieces into which the stream is divided, for each slice."""
HIGHEST_NUMBER = "9999999999999-9999999999"
"""Higher than every job number."""
END_OF_SET = f"{2**53 - 1} {HIGHEST_NUMBER}"
"""The end of a sorted set."""
FIRST_NUMBER_MS, LAST_NUMBER_MS = 10**12, 10**13 - 1
"""The times that a number can have: from 2001 on, with 13 digits."""
NUMBERS_PER_MS = 10**10
"""Places in the stream within a ms: a sequence has ten digits."""


class SnapshotRange(NamedTuple):
    """Jobs of a structure that follow one another: after `start`, up to `end`, as in `survey`."""

    address: ShardAddress
    epoch: str
    asof: int
    place: str
    start: str
    end: str


def bounds(options: Read) -> tuple[str, str]:
    """Return the number below all wanted ones ('' = any), and the highest wanted one.

    Each is the highest number of the ms before a time. Numbers are compared as text.
    """
    times = (options.enqueued_after, options.enqueued_before)
    last = [
        None if ms is None else min(max(ms - 1, FIRST_NUMBER_MS), LAST_NUMBER_MS) for ms in times
    ]
    low, high = ("" if ms is None else f"{ms}-{HIGHEST_NUMBER[14:]}" for ms in last)
    return low, high or HIGHEST_NUMBER


class ShardPlan:
    """Divides the jobs of one shard.

    Attributes:
        jobs: about how many there are; 0 if the queue does not exist.
    """

    def __init__(self, found: OpenShard, options: Read) -> None:
        self._command, self._keys = found.part.executor.command, found.ops.keys
        reply = found.run(found.ops.call("survey", "", "ready", "", "", 1, 0))
        self._origin = (found.address, reply.epoch.decode(), reply.now)
        self._structures = list(self._read_structures(options)) if reply.epoch else []
        self.jobs = sum(len(ranks) for _, ranks in self._structures)

    def _read_structures(self, options: Read) -> Iterator[tuple[SnapshotRange, range]]:
        """Yield each structure that has jobs, with their ranks.

        Parked and held jobs come last. So a job that goes to `scheduled` during the read has
        probably been looked for there before, and is not read twice.
        """
        now = f"{self._origin[-1]} {HIGHEST_NUMBER}"
        last = self._command("HGET", self._keys["meta"], "last")
        low, high = bounds(options)
        for states, place, start, end in (
            ({"scheduled"}, "scheduled", now, END_OF_SET),
            ({"ready"}, "scheduled", "", now),
            ({"ready"}, "ready", low, min(high, last.decode() if last else "")),
            ({"parked"}, "parked", "", END_OF_SET),
            ({"dead"}, "dead", "", now),
            ({"ready", "active"}, "active", "", END_OF_SET),
            ({"active"}, "once", "", END_OF_SET),
        ):
            if states.intersection(options.states) and (
                ranks := self._read_ranks(place, start, end)
            ):
                yield SnapshotRange(*self._origin, place, start, end), ranks

    def _read_ranks(self, place: str, start: str, end: str) -> range:
        """Return the ranks of jobs in a sorted set. Of the stream, only their number counts."""
        key = self._keys[place]
        if place == "ready":
            return range(self._command("XLEN", key) if start < end else 0)
        scores = [edge.partition(" ")[0] for edge in (start, end)]
        return range(*(self._command("ZCOUNT", key, "-inf", one) if one else 0 for one in scores))

    def divide(self, shares: Sequence[float]) -> list[list[SnapshotRange]]:
        """Return the ranges of each part. The parts end at these shares of each structure."""
        parts: list[list[SnapshotRange]] = [[] for _ in range(len(shares) + 1)]
        for whole, ranks in self._structures:
            edges = [whole.start, *self._find_cuts(whole, ranks, shares), whole.end]
            for part, (start, end) in zip(parts, itertools.pairwise(edges), strict=True):
                if start != end:
                    part.append(whole._replace(start=start, end=end))
        return parts

    def _find_cuts(self, whole: SnapshotRange, ranks: range, shares: Sequence[float]) -> list[str]:
        if whole.place in ("active", "once"):  # not cut, as leases are extended all the time
            return [whole.start] * len(shares)
        if whole.place == "ready":
            return self._find_stream_cuts(whole, shares) if shares else []
        cuts = [whole.start]
        for share in shares:
            rank = ranks[int(share * (len(ranks) - 1))]
            pair = self._command("ZRANGE", self._keys[whole.place], rank, rank, "WITHSCORES")
            cut = f"{int(float(pair[1]))} {pair[0].decode()}" if pair else whole.end
            # Jobs may have come and gone since the ranks were read, and moved the others.
            cuts.append(min(max(cut, cuts[-1], key=_order), whole.end, key=_order))
        return cuts[1:]

    def _find_stream_cuts(self, whole: SnapshotRange, shares: Sequence[float]) -> list[str]:
        """Return where to cut the stream.

        A stream has no ranks. So the widest piece is halved repeatedly, and the gap in its middle
        is left out: the remaining pieces show where the jobs are.
        """
        first = self._find_job("XRANGE", whole.start or "-", whole.end)
        last = self._find_job("XREVRANGE", whole.end, number_at(first))
        pieces = [(first - last, first, last)]
        while len(pieces) < PIECES_PER_SLICE * (len(shares) + 1) and pieces[0][0] < 0:
            _, first, last = heapq.heappop(pieces)
            middle = (first + last) // 2
            before = self._find_job("XREVRANGE", number_at(middle), number_at(first))
            after = self._find_job("XRANGE", number_at(middle + 1), number_at(last))
            heapq.heappush(pieces, (first - before, first, before))
            heapq.heappush(pieces, (after - last, after, last))
        ends = sorted(
            (last, last // NUMBERS_PER_MS - first // NUMBERS_PER_MS + 1)
            for _, first, last in pieces
        )
        passed = list(itertools.accumulate(ms for _, ms in ends))
        return [number_at(ends[bisect_left(passed, share * passed[-1])][0]) for share in shares]

    def _find_job(self, command: str, start: str, end: str) -> int:
        """Return the place of the first job from `start` to `end` in the stream, or of `end`."""
        found = self._command(command, self._keys["ready"], start, end, "COUNT", 1)
        return int((found[0][0].decode() if found else end).replace("-", ""))


def number_at(place: int) -> str:
    """Return the number at a place in the stream."""
    return "{}-{}".format(*divmod(place, NUMBERS_PER_MS))


def _order(place: str) -> tuple[float, str]:
    score, _, number = place.partition(" ")
    return float(score or "-inf"), number


def share_out(plans: Sequence[ShardPlan], wanted: int | None) -> list[InputPartition]:
    """Return slices with about the same number of jobs, at most as many as wanted.

    A slice is a list of ranges, perhaps of several structures and shards.
    """
    jobs, end = sum(plan.jobs for plan in plans), 0.0
    most = min(jobs, wanted or min(-(-jobs // ROWS_A_SLICE), MAX_SLICES))
    slices: list[list[SnapshotRange]] = [[] for _ in range(most)]
    for plan in plans:
        start, end = end, end + plan.jobs * most / jobs  # in slices
        first = min(int(start + SPAN_SLACK), most - 1)
        inner = range(first + 1, int(end - SPAN_SLACK) + 1)
        parts = plan.divide([(edge - start) / (end - start) for edge in inner])
        for number, part in enumerate(parts, first):
            slices[number] += part
    return [InputPartition(found) for found in slices if found]


class SnapshotReader(DataSourceReader):
    """The reader of the batch source."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = Read.parse(options)
        self.shape = Shape(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices of a snapshot that begins now."""
        found = open_shards(self.options)
        found.check(self.options, whole=not self.options.skip_unreachable)
        plans = [plan for one in found if (plan := ShardPlan(one, self.options)).jobs]
        return share_out(plans, self.options.num_partitions)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the jobs of a slice."""
        ranges = getattr(partition, "value", None) or []  # without slices Spark passes None
        shards = open_listed(self.options, [one.address for one in ranges])
        for found, one in zip(shards, ranges, strict=True):
            yield from self._read_batches(found, one)

    def _read_batches(self, found: OpenShard, one: SnapshotRange) -> Iterator[RecordBatch]:
        seen = set[bytes]()
        try:
            for page in pages(self._read_replies(found, one)):
                kept = self._kept_jobs(page, one, seen)
                if kept.count:
                    yield self.shape.batch(kept)
        except WrongEpoch as error:
            logger.info("%s: the queue was deleted while it was read", error)

    def _read_replies(self, found: OpenShard, one: SnapshotRange) -> Replies:
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

    def _kept_jobs(self, page: Page, one: SnapshotRange, seen: set[bytes]) -> Page:
        """Return the jobs that were in this structure when the snapshot began, and are wanted."""
        checks: list[Iterable[bool]] = []
        if one.place != "ready":
            checks.append(self._was_there(page, one.asof))
        if page.is_delivered:
            states = COLUMN_BUILDERS["state"](page).to_pylist()
            checks += [_new(page.numbers, seen), (state in self.options.states for state in states)]
        if self.options.id_prefix:
            ids = COLUMN_BUILDERS["id"](page)
            checks.append(pc.starts_with(ids, self.options.id_prefix).to_pylist())
        return page.keep([all(found) for found in zip(*checks, strict=True)])

    def _was_there(self, page: Page, asof: int) -> Iterator[bool]:
        """Yield for each job True if it was there, and is between the wanted times."""
        low, high = bounds(self.options)
        below, most = low.encode(), min(high, f"{asof}-{HIGHEST_NUMBER[14:]}").encode()
        notes = page.split.notes
        shown = [b""] * page.count if notes is None else notes.to_pylist()
        for number, note in zip(page.numbers, shown, strict=True):
            # Before a delivery after `asof`, the job was in another structure.
            was_moved = bool(note) and int(note[1 : note.index(b" ")].rstrip(b"?")) > asof
            yield below < number <= most and not was_moved


def _new(numbers: Sequence[bytes], seen: set[bytes]) -> Iterator[bool]:
    """Yield False for jobs that were seen: an extension moves a job on, and it is read again."""
    for number in numbers:
        yield number not in seen
        seen.add(number)
