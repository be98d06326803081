"""The batch source: a snapshot, read in parts by tasks (protocol/maintenance.md, Snapshots).

Reading takes and changes nothing. The driver cuts each structure by values, so that a job that does
not move is in one part, even if others come and go.
"""

from __future__ import annotations

import itertools
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow.compute
from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.core.ids import MAX_SEQ, SEQ_BASE
from penstock.core.logs import get_logger
from penstock.errors import NodesUnavailable, WrongEpoch
from penstock.spark.calls import show_numbers, survey
from penstock.spark.columns import COLUMNS, Origin, Page, Shape, pages
from penstock.spark.options import Read
from penstock.spark.shards import OpenShard, ShardAddress, open_listed, open_shards
from penstock.wire.keys import score_of
from penstock.wire.replies import Survey

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["SnapshotRange", "SnapshotReader"]

logger = get_logger("penstock")

ROWS_A_PART = 100_000
"""Jobs of a Spark partition, unless `numPartitions` is given."""
MOST_PARTS = 64
LEAVES = 8
"""Pieces into which the stream is divided, for each part."""
SHOWN = 100
"""Most jobs of a call of `show`."""
SHOWN_BYTES = 1 << 20
HIGHEST = "9999999999999-9999999999"
"""Higher than every job number."""
MOST_MS = 10**13 - 1
FINE = MAX_SEQ + 1 - SEQ_BASE
"""Places in the stream within a ms."""


@dataclass(frozen=True)
class SnapshotRange(InputPartition):
    """A part of a snapshot: the jobs that one task reads.

    Attributes:
        address: where.
        epoch: of the queue.
        place: the structure; '' = the jobs in `numbers`, in any structure.
        start, end: arguments of `survey`: after `start`, up to `end`.
        asof: the queue's time at which states are reported.
        numbers: of jobs that were active when the snapshot began.
        others: numbers that other parts read, compressed by `listed`.
    """

    address: ShardAddress
    epoch: str
    place: str
    asof: int
    start: str = ""
    end: str = ""
    numbers: tuple[bytes, ...] = ()
    others: bytes = b""


def bounds(options: Read) -> tuple[str, str]:
    """Return the number below all wanted ones, and the highest wanted one; '' = any."""
    times = (options.enqueued_after, options.enqueued_before)
    low, high = ("" if ms is None else _last_before(ms) for ms in times)
    return low, high


def _last_before(ms: int) -> str:
    """Return the highest job number of the previous millisecond. Numbers are compared as text."""
    return f"{min(max(ms - 1, 0), MOST_MS):013d}-{HIGHEST[14:]}"


# -- the plan ------------------------------------------------------------------------------


class SnapshotPlan:
    """Divides one shard into parts."""

    def __init__(self, found: OpenShard, options: Read, share: int = 1) -> None:
        self._shard = found
        self._options = options
        self._parts = -(-options.num_partitions // share) if options.num_partitions else None
        self._most = max(1, MOST_PARTS // share)
        reply = found.run(survey(found.ops, "", "ready", "", "", 1, 0))
        self.now = reply.now
        self._epoch = reply.epoch.decode()

    def parts(self) -> list[SnapshotRange]:
        """Return the parts; none if the queue does not exist."""
        if not self._epoch:
            return []
        states = self._options.states
        leased = self._leased() if {"ready", "active"}.intersection(states) else ()
        found = []
        if "ready" in states:
            found += self._stream()
            found += self._sorted("scheduled", end=f"{self.now} {HIGHEST}")
        if "scheduled" in states:
            found += self._sorted("scheduled", start=f"{self.now} {HIGHEST}")
        if "dead" in states:
            found += self._sorted("dead", end=f"{self.now} {HIGHEST}")
        others = listed(leased) if leased else b""
        found = [replace(part, others=others) if part.place != "ready" else part for part in found]
        size = max(1, -(-len(leased) // self._count(len(leased))))
        for first in range(0, len(leased), size):
            found.append(self._part("", numbers=tuple(leased[first : first + size])))
        return found

    def _part(self, place: str, **given: Any) -> SnapshotRange:
        return SnapshotRange(self._shard.address, self._epoch, place, self.now, **given)

    def _count(self, jobs: int) -> int:
        wanted = self._parts or min(-(-jobs // ROWS_A_PART), self._most)
        return max(1, min(wanted, jobs))

    def _leased(self) -> tuple[bytes, ...]:
        """Return the numbers of all held jobs, each once: an extension moves a job to the end."""
        found: dict[bytes, None] = {}
        for place in ("active", "once"):
            for reply in surveyed(self._shard, self._part(place), count=1000, full=0):
                found.update(dict.fromkeys(reply.jobs[::4]))
        return tuple(found)

    def _key(self, kind: str) -> bytes:
        return self._shard.ops.keys[kind]

    # -- sorted sets: cut by rank, kept by value

    def _sorted(self, place: str, start: str = "", end: str = "") -> list[SnapshotRange]:
        key, command = self._key(place), self._shard.command
        low = command("ZCOUNT", key, "-inf", start.split(" ", maxsplit=1)[0]) if start else 0
        high = command("ZCOUNT", key, "-inf", end.split(" ", maxsplit=1)[0] if end else "+inf")
        if high <= low:
            return []
        parts, cuts = self._count(high - low), list[str]()
        for number in range(1, parts):
            rank = low + (high - low) * number // parts - 1
            pair = command("ZRANGE", key, rank, rank, "WITHSCORES")
            if pair:
                cuts.append(f"{int(float(pair[1]))} {pair[0].decode()}")
        edges = [start, *dict.fromkeys(cuts), end]
        return [self._part(place, start=a, end=b) for a, b in itertools.pairwise(edges)]

    # -- the stream: cut where there is something

    def _stream(self) -> list[SnapshotRange]:
        last = self._shard.command("HGET", self._key("meta"), "last")
        low, high = bounds(self._options)
        high = min(filter(None, (high, last.decode() if last else HIGHEST)))
        jobs = self._shard.command("XLEN", self._key("ready"))
        if not jobs or (low and low >= high):
            return []
        edges = [low, *self._cuts(low, high, self._count(jobs)), high]
        return [self._part("ready", start=a, end=b) for a, b in itertools.pairwise(edges)]

    def _cuts(self, low: str, high: str, parts: int) -> list[str]:
        """Return where to cut the stream into parts of about the same size.

        A stream has no ranks. So the widest piece is halved repeatedly, and its empty ends are cut
        off: the remaining pieces show where the jobs are.
        """
        whole = self._piece(place_of(low) + 1 if low else 0, place_of(high))
        if parts == 1 or whole is None:
            return []
        pieces = [whole]
        while len(pieces) < parts * LEAVES:
            first, end = widest = max(pieces, key=lambda piece: piece[1] - piece[0])
            if first == end:
                break
            middle = (first + end) // 2
            at = pieces.index(widest)
            halves = (self._piece(first, middle), self._piece(middle + 1, end))
            pieces[at : at + 1] = [half for half in halves if half is not None]
        return _shared(pieces, parts)

    def _piece(self, first: int, end: int) -> tuple[int, int] | None:
        """Return the range between two places without its empty ends; None = no job is there."""
        key, command = self._key("ready"), self._shard.command
        low, high = number_at(first), number_at(end)
        found = command("XRANGE", key, low, high, "COUNT", 1)
        back = command("XREVRANGE", key, high, low, "COUNT", 1)
        if not found or not back:
            return None
        return place_of(found[0][0].decode()), place_of(back[0][0].decode())


def surveyed(found: OpenShard, part: SnapshotRange, *, count: int, full: int) -> Iterator[Survey]:
    """Yield the pages of a part of a structure."""
    cursor, is_last = part.start, False
    while not is_last:
        call = survey(found.ops, part.epoch, part.place, cursor, part.end, count, full)
        reply = found.run(call)
        yield reply
        cursor = reply.cursor.decode()
        is_last = not cursor


def listed(numbers: Iterable[bytes]) -> bytes:
    """Compress numbers: those that were created together are similar."""
    return zlib.compress(b" ".join(sorted(numbers)))


@lru_cache(maxsize=4)  # of a few queries; all parts of a query have the same
def unlisted(numbers: bytes) -> frozenset[bytes]:
    """Decompress numbers of `listed`."""
    return frozenset(zlib.decompress(numbers).split()) if numbers else frozenset()


def place_of(number: str) -> int:
    """Return the place of a number in the stream."""
    ms, _, seq = number.partition("-")
    return int(ms) * FINE + min(max(int(seq) - SEQ_BASE, 0), FINE - 1)


def number_at(place: int) -> str:
    """Return the number at a place in the stream."""
    ms, seq = divmod(place, FINE)
    return f"{ms}-{SEQ_BASE + seq}"


def _shared(pieces: Sequence[tuple[int, int]], parts: int) -> list[str]:
    """Return the ends of all parts but the last; all have about the same width."""
    passed = list(itertools.accumulate(end - first + 1 for first, end in pieces))
    ends = {bisect_left(passed, passed[-1] * part / parts) for part in range(1, parts)}
    return [number_at(pieces[at][1]) for at in sorted(ends) if at < len(pieces) - 1]


# -- the reader ----------------------------------------------------------------------------


class SnapshotReader(DataSourceReader):
    """The reader of the batch source."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = Read.parse(options)
        self.shape = Shape(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of a snapshot that begins now."""
        found = open_shards(self.options)
        if found.unreached and not self.options.skip_unreachable:
            raise NodesUnavailable(
                f"queue {self.options.queue!r}: {found.unreached} of {len(self.options.nodes)} "
                "nodes can't be reached, and their jobs would be missing "
                "(skipUnreachable=true reads the others)"
            )
        found.check(self.options, whole=False)
        plans = [SnapshotPlan(one, self.options, len(found)) for one in found]
        return [part for plan in plans for part in plan.parts()]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the jobs of a part."""
        if not isinstance(partition, SnapshotRange):  # without parts Spark passes one of its own
            return
        (found,) = open_listed(self.options, [partition.address])
        try:
            for page in pages(self._replies(found, partition)):
                kept = self._kept(page, partition)
                if kept.count:
                    yield self.shape.batch(kept)
        except WrongEpoch as error:
            logger.info("%s: the queue was deleted while it was read", error)

    def _replies(
        self, found: OpenShard, part: SnapshotRange
    ) -> Iterator[tuple[Origin, list[bytes]]]:
        if not part.place:
            yield from self._shown(found, part)
            return
        origin = _origin(found, part, part.place)
        # Notes show which jobs have moved; ids need the records.
        full = max(self.shape.full, 1 if self.options.id_prefix or part.place != "ready" else 0)
        for reply in surveyed(found, part, count=self.options.fetch_size, full=full):
            yield origin, reply.jobs

    def _shown(self, found: OpenShard, part: SnapshotRange) -> Iterator[tuple[Origin, list[bytes]]]:
        """Yield the jobs that were active when the snapshot began, wherever they are now."""
        ops, at, step = found.ops, 0, 1
        while at < len(part.numbers):
            named = part.numbers[at : at + step]
            shown = found.run(show_numbers(ops, part.epoch, named)).jobs
            at += len(shown)  # fewer than named when their bodies are large
            sorted_out: dict[str, list[bytes]] = {}
            for job in filter(None, shown):
                place = _place(job)
                if place:
                    sorted_out.setdefault(place, []).extend(_row(job, place))
            for place, parts in sorted_out.items():
                yield _origin(found, part, place), parts
            size = sum(len(job[6]) for job in filter(None, shown)) // len(shown)
            step = max(1, min(SHOWN, SHOWN_BYTES // (size + 1)))

    def _kept(self, page: Page, part: SnapshotRange) -> Page:
        if page.count and part.place != "ready":
            page = page.keep(self._settled(page, part) if part.place else self._between(page))
        if page.count and not part.place:
            states = COLUMNS["state"](page).to_pylist()
            page = page.keep([state in self.options.states for state in states])
        if page.count and self.options.id_prefix:
            ids = COLUMNS["id"](page)
            begins = pyarrow.compute.starts_with(ids, self.options.id_prefix)
            page = page.keep(begins.to_pylist())
        return page

    def _between(self, page: Page) -> list[bool]:
        low, high = (text.encode() for text in bounds(self.options))
        return [low < number <= (high or HIGHEST.encode()) for number in page.numbers]

    def _settled(self, page: Page, part: SnapshotRange) -> list[bool]:
        """Return for each job True if it was in this structure when the snapshot began."""
        last, others = b"%d-%b" % (part.asof, HIGHEST[14:].encode()), unlisted(part.others)
        notes = page.split.notes
        shown = [b""] * page.count if notes is None else notes.to_pylist()
        rows = zip(page.numbers, self._between(page), shown, strict=True)
        return [
            is_wanted
            and number not in others
            and number <= last
            and not _was_moved(note, part.asof)
            for number, is_wanted, note in rows
        ]


def _origin(found: OpenShard, part: SnapshotRange, place: str) -> Origin:
    packed = found.ops.place(part.epoch.encode()).packed
    return Origin(found.name, found.node, packed, place, part.asof)


def _was_moved(note: bytes, asof: int) -> bool:
    """Return True if a job was delivered after `asof`: before, it was in another structure."""
    return bool(note) and int(note[1 : note.index(b" ")].rstrip(b"?")) > asof


def _place(job: Sequence[bytes]) -> str:
    state = job[1].decode()
    if state in ("expired", "dangling", "done", "cancelled"):
        return ""
    if job[11]:
        return "once" if state == "once" else "active"
    return "scheduled" if state == "ready" else state


def _row(job: Sequence[bytes], place: str) -> tuple[bytes, ...]:
    number, _, score, delivered, owner, counters, record = job[:7]
    if place in ("active", "once"):
        score = b"%d" % score_of(int(score), int(job[11][-3:], 16))
    note = b"@%b %b\n" % (delivered, owner) if delivered != b"0" else b""
    return number, score, counters, note + record
