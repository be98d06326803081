"""Converts replies of `fetch` and `survey` to Arrow, a column at a time.

A reply has number, score, counters and value of each job, or number and value alone
(protocol/scripts.md, fetch and survey). Ids and times are computed for all jobs of a page at once.
Arrow splits the values. Headers that are equal apart from their ids are parsed once.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.jobs.job import Counters, parse_counters
from penstock.core.jobs.record import Record, parse_record
from penstock.core.jobs.views import NEVER_MS
from penstock.core.values.ids import BASE64_TO_ORDERED, ttl_code
from penstock.errors import UndecodableBody
from penstock.spark.errors import OptionError
from penstock.spark.schema import SCHEMA
from penstock.wire.keys import PRIORITY_SPAN, end_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Origin", "Page", "Replies", "Shape", "id_column", "pages", "times_and_sequences"]

T = TypeVar("T")

JOB_NUMBER_BYTES = 24
JOBS_PER_PAGE = 4000
BYTES_PER_PAGE = 4 << 20
"""Replies are joined until a page has so many jobs or bytes: a small page costs as much."""
ID_MIDDLE = np.dtype([("high", ">u2"), ("low", ">u4"), ("sequence", ">u4"), ("place", "V8")])
"""The middle of an id: the time in two parts, the sequence, crc and epoch."""
DIGIT_WORTHS: Any = np.zeros((JOB_NUMBER_BYTES, 2))
DIGIT_WORTHS[:13, 0], DIGIT_WORTHS[14:, 1] = (
    10.0 ** np.arange(12, -1, -1),
    10.0 ** np.arange(9, -1, -1),
)
"""The worth of each digit of a number for its time and its sequence: exact, as below 2 ** 53."""
Ints = Any
"""A numpy array of int64."""
Replies = Iterator[tuple["Origin", list[bytes]]]
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
HEADERS_TYPE = pa.map_(pa.string(), pa.string())
ARROW_TYPES = {
    "string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "timestamp": TIMESTAMP_TYPE,
    "map<string,string>": HEADERS_TYPE,
}  # fmt: skip
"""Spark's names of the types of columns, and Arrow's types."""
RECORD_COLUMNS = ("id", "headers", "dedup_id", "expires_at", "owner")
"""Columns that need the values of the jobs, without bodies."""


@dataclass(frozen=True)
class Origin:
    """The values that all jobs of a page share.

    Attributes:
        packed: crc32 of the name and epoch, as ids carry them.
        place: the structure in which they lie.
        asof: the queue's time at which states are reported; 0 = active jobs are active.
    """

    queue: str
    node: str
    packed: bytes
    place: str
    asof: int = 0

    @property
    def width(self) -> int:
        """Number of reply elements of a job. In ready, a job has neither score nor counters."""
        return 2 if self.place == "ready" else 4


class Shape:
    """The columns that a query reads.

    Attributes:
        full: how much of the values the scripts return: 2 with bodies, 1 without, 0 nothing.
        target: the columns as an Arrow schema.
    """

    def __init__(self, schema: StructType) -> None:
        known = dict(column.split(" ", 1) for column in SCHEMA.split(", "))
        columns: list[pa.Field] = []
        for field in schema.fields:
            name, found = field.name, field.dataType.simpleString()
            if name not in known:
                raise OptionError("schema", name, f"must be one of {', '.join(known)}")
            if found != known[name] and (name, found) != ("payload", "string"):
                raise OptionError("schema", f"{name} {found}", f"must be of type {known[name]}")
            columns.append(pa.field(name, ARROW_TYPES[found], field.nullable))
        if not columns:
            raise OptionError("schema", None, f"must have one or more of {', '.join(known)}")
        self.target = pa.schema(columns)
        names = self.target.names
        self.full = 2 if "payload" in names else int(any(n in RECORD_COLUMNS for n in names))

    def batch(self, page: Page) -> pa.RecordBatch:
        """Return the jobs of a page."""
        wanted = zip(self.target.names, self.target.types, strict=True)
        try:
            columns = [COLUMN_BUILDERS[name](page).cast(kind) for name, kind in wanted]
        except pa.ArrowInvalid:
            raise _no_text(page) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.target)


def pages(replies: Replies) -> Iterator[Page]:
    """Yield pages of jobs; replies with the same origin are joined."""
    for origin, group in groupby(replies, itemgetter(0)):
        elements, size = list[bytes](), 0
        for _, more in group:
            elements += more
            size += sum(map(len, more[origin.width - 1 :: origin.width]))
            if len(elements) >= origin.width * JOBS_PER_PAGE or size >= BYTES_PER_PAGE:
                yield Page(origin, elements)
                elements, size = [], 0
        if elements:
            yield Page(origin, elements)


class SplitValues(NamedTuple):
    """Values, split into notes of the last delivery, headers of the records, and bodies."""

    notes: pa.Array | None  # empty = none; None = no job has one
    heads: pa.Array
    bodies: pa.Array  # as they are stored


class Distinct(Generic[T]):
    """A value for each job of a page. Jobs with equal texts share their value."""

    def __init__(self, texts: pa.Array, parse: Callable[[bytes], T]) -> None:
        coded = texts.dictionary_encode()
        self.values = [parse(text) for text in coded.dictionary.to_pylist()]
        self.indices = coded.indices

    def column(self, read: Callable[[T], Any], kind: pa.DataType) -> pa.Array:
        """Return a column; `read` returns its element for a value."""
        return pa.array([read(value) for value in self.values], kind).take(self.indices)


class Page:
    """Jobs that are converted to rows together."""

    def __init__(self, origin: Origin, elements: Sequence[bytes]) -> None:
        self.origin = origin
        self._elements = elements
        width = origin.width
        self.numbers = elements[::width]
        self.values = elements[width - 1 :: width]
        self.count = len(self.numbers)
        self.scores = elements[1::4] if width == 4 else []

    def keep(self, wanted: Sequence[bool]) -> Page:
        """Return a page with the wanted jobs."""
        if all(wanted):
            return self
        is_kept: Ints = np.repeat(wanted, self.origin.width)
        return Page(self.origin, list(compress(self._elements, is_kept)))

    @cached_property
    def times_and_sequences(self) -> tuple[Ints, Ints]:
        """Time and sequence of each number."""
        return times_and_sequences(self.numbers)

    @cached_property
    def times(self) -> Ints:
        """Time in each score: due, end of the lease, or death; in ready, the creation."""
        if self.origin.place == "ready":
            return self.times_and_sequences[0]
        scores: Any = np.fromiter(map(int, self.scores), np.int64, self.count)
        if self.is_delivered:
            return end_of(scores)
        return np.where(scores < 0, scores % PRIORITY_SPAN, scores)  # of jobs with a priority

    @cached_property
    def split(self) -> SplitValues:
        """Values, split into note, header and body."""
        notes, values = None, pa.array(self.values, pa.binary())
        noted = pc.starts_with(values, b"@")
        if pc.any(noted).as_py():
            with_empty_notes = pc.binary_join_element_wise(b"", values, b"\n")
            notes, values = _cut(pc.if_else(noted, values, with_empty_notes), b"\n")
        return SplitValues(notes, *_cut(values, b"\n"))

    @cached_property
    def records(self) -> Distinct[Record]:
        """Headers, parsed without the ids that differ in each job."""
        heads = pc.replace_substring_regex(self.split.heads, rb";[di]=[^;]*", b"")
        return Distinct(heads, lambda head: parse_record(head + b"\n"))

    @cached_property
    def counters(self) -> Distinct[Counters]:
        """Counters, parsed. In ready, each job waits for its first delivery."""
        texts = self._elements[2::4] if self.origin.width == 4 else [b""] * self.count
        return Distinct(pa.array(texts, pa.binary()), parse_counters)

    @property
    def is_delivered(self) -> bool:
        """Return True if consumers hold the jobs."""
        return self.origin.place in ("active", "once")


def _no_text(page: Page) -> UndecodableBody:
    bodies = page.split.bodies.to_pylist()
    at = next(i for i, body in enumerate(bodies) if body.decode(errors="ignore").encode() != body)
    return UndecodableBody(
        f"column 'payload': the body of job {_ids(page)[at]} is not UTF-8; read it as binary"
    )


def _any_has(texts: pa.Array, mark: bytes) -> bool:
    return bool(pc.any(pc.match_substring(texts, mark)).as_py())


def _cut(texts: pa.Array, mark: bytes) -> tuple[pa.Array, pa.Array]:
    """Split each text at the first mark. Without a mark, the second part is empty."""
    found = pc.split_pattern(texts, mark, max_splits=1).values
    if len(found) != 2 * len(texts):  # some have none
        pairs = [text.partition(mark) for text in texts.to_pylist()]
        return tuple(pa.array([pair[i] for pair in pairs], pa.binary()) for i in (0, 2))
    return found[::2], found[1::2]


def _constant(value: str | None, page: Page) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), page.count)


def _instants(ms: pa.Array) -> pa.Array:
    return pc.multiply(ms, 1000).view(TIMESTAMP_TYPE)


def times_and_sequences(numbers: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Return time and sequence of each number."""
    text = np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, JOB_NUMBER_BYTES)
    found = ((text - float(ord("0"))) @ DIGIT_WORTHS).astype(np.int64)
    return found[:, 0], found[:, 1]


def id_column(origin: Origin, times: Ints, sequences: Ints, codes: pa.Array | str) -> pa.Array:
    """Return ids `D-<node>-<24 characters>-<ttl>`, as `encode_id` makes them.

    Args:
        codes: the last four digits, of each id or of all.
    """
    packed: Any = np.empty(len(times), ID_MIDDLE)
    packed["high"], packed["low"], packed["sequence"] = times >> 32, times & 0xFFFFFFFF, sequences
    packed["place"] = np.void(origin.packed)
    text = b2a_base64(packed.tobytes(), newline=False).translate(BASE64_TO_ORDERED)
    ends: Any = np.arange(0, len(text) + 1, 24, dtype=np.int32)
    middles = pa.StringArray.from_buffers(len(times), pa.py_buffer(ends), pa.py_buffer(text))
    return pc.binary_join_element_wise(f"D-{origin.node}", middles, codes, "-")


def _ids(page: Page) -> pa.Array:
    codes = page.records.column(
        lambda record: ttl_code(record.ttl_ms, at_most_once=record.lease_ms == 0), pa.string()
    )
    return id_column(page.origin, *page.times_and_sequences, codes)


def _states(page: Page) -> pa.Array:
    place = page.origin.place
    if place in ("scheduled", "active") and (is_due := page.times <= page.origin.asof).any():
        return pc.if_else(pa.array(is_due), "ready", place)
    return _constant("active" if place == "once" else place, page)


def _receipts(page: Page) -> pa.Array:
    """Return the receipts of held jobs; the tag is in the score (protocol/core.md, Receipt)."""
    if not page.is_delivered:
        return _constant(None, page)
    deliveries = page.counters.column(lambda counters: str(counters.deliveries), pa.string())
    scores = Distinct(pa.array(page.scores, pa.binary()), int)
    tags = scores.column(lambda score: f"{score % 4096:03x}", pa.string())
    return pc.binary_join_element_wise(deliveries, tags, "-")


def _dedup_ids(page: Page) -> pa.Array:
    if not _any_has(page.split.heads, b";d="):
        return _constant(None, page)
    names = pc.extract_regex(page.split.heads, rb";d=(?P<id>[^;]*)").field("id")
    if not _any_has(names, b"%"):
        try:
            texts = names.cast(pa.string())
            return pc.if_else(pc.equal(texts, ""), None, texts)
        except pa.ArrowInvalid:  # another client has written an id that is not UTF-8
            pass
    decoded = [unquote(name.decode("utf-8", "replace")) for name in names.to_pylist()]
    return pa.array([text or None for text in decoded], pa.string())


def _times_in(page: Page, *places: str) -> pa.Array:
    """Return the times in scores; null elsewhere, and if a job waits for another."""
    if page.origin.place not in places:
        return pa.nulls(page.count, TIMESTAMP_TYPE)
    return _instants(pa.array(page.times, mask=page.times >= NEVER_MS))


def _expires(page: Page) -> pa.Array:
    ttls = page.records.column(lambda record: record.ttl_ms, pa.int64())
    return _instants(pc.add(pa.array(page.times_and_sequences[0]), ttls))


def _owners(page: Page) -> pa.Array:
    if page.split.notes is None:
        return _constant(None, page)
    owners = Distinct(page.split.notes, lambda note: note.partition(b" ")[2])
    return owners.column(lambda owner: owner.decode("utf-8", "replace") or None, pa.string())


COLUMN_BUILDERS: dict[str, Callable[[Page], pa.Array]] = {
    "id": _ids,
    "queue": lambda page: _constant(page.origin.queue, page),
    "state": _states,
    "payload": lambda page: page.split.bodies,
    "headers": lambda page: page.records.column(
        lambda one: list(one.headers.items()), HEADERS_TYPE
    ),
    "attempt": lambda page: page.counters.column(lambda n: 1 + n.nacks + n.crashes, pa.int32()),
    "nacks": lambda page: page.counters.column(lambda n: n.nacks, pa.int32()),
    "crashes": lambda page: page.counters.column(lambda n: n.crashes, pa.int32()),
    "receipt": _receipts,
    "dedup_id": _dedup_ids,
    "enqueued_at": lambda page: _instants(pa.array(page.times_and_sequences[0])),
    "ready_at": lambda page: _times_in(page, "ready", "scheduled"),
    "lease_until": lambda page: _times_in(page, "active"),
    "expires_at": _expires,
    "owner": _owners,
    "last_error": lambda page: page.counters.column(lambda n: n.error or None, pa.string()),
    "node": lambda page: _constant(page.origin.node, page),
}
