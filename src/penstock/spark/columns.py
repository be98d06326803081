"""From replies of `fetch` and `survey` to Arrow: a column at a time, so that a row costs little.

A reply has four parts for each job: number, score, counters, value (PROTOCOL.md, fetch). Ids and
times are computed for all jobs of a page at once; records are taken apart once for each header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.ids import ORDERED, ttl_code
from penstock.core.job import parse_counters
from penstock.core.record import Record, parse_record
from penstock.spark.errors import OptionError
from penstock.spark.schema import SCHEMA

__all__ = ["Origin", "Page", "Shape"]

NEVER = 2**53 - 1
"""The due time of a job that waits for the end of another one."""
NUMBER_BYTES = 24
_ALPHABET = np.frombuffer(ORDERED, np.uint8)
_PLACES: Any = 10 ** np.arange(12, -1, -1, dtype=np.int64)
_TIME = pa.timestamp("us", tz="UTC")
_COUNTED = ("attempt", "nacks", "crashes", "receipt", "last_error")
_OF_RECORD = ("id", "headers", "dedup_id", "expires_at", "owner")


@dataclass(frozen=True)
class Origin:
    """What the jobs of a page have in common.

    Attributes:
        queue: the queue's name.
        node: 8 hex digits of the node's id.
        packed: crc32 of the name and epoch, as ids carry them.
        place: the structure in which they lie.
        asof: the queue's time of which their states are told; 0 = what is active is active.
    """

    queue: str
    node: str
    packed: bytes
    place: str
    asof: int = 0


class Shape:
    """The columns that were asked for.

    Args:
        schema: Spark's, all columns of the source or some of them.

    Attributes:
        names: of the columns.
        full: how much of the values scripts have to answer: 2 with bodies, 1 without, 0 nothing.

    Raises:
        OptionError: the source has no such column, or it is of another type.
    """

    def __init__(self, schema: Any) -> None:
        known = dict(column.split(" ", 1) for column in SCHEMA.split(", "))
        for field in schema.fields:
            wanted = known.get(field.name)
            if wanted is None:
                names = ", ".join(known)
                raise OptionError("schema", field.name, f"no such column; there are {names}")
            found = field.dataType.simpleString()
            if found != wanted and (field.name, found) != ("payload", "string"):
                raise OptionError("schema", f"{field.name} {found}", f"the column is a {wanted}")
        if not schema.fields:
            raise OptionError("schema", None, f"one or more of {', '.join(known)}")
        self.names = tuple(schema.fieldNames())
        self.full = 2 if "payload" in self.names else int(any(n in _OF_RECORD for n in self.names))
        self.schema = schema

    def arrow(self) -> pa.Schema:
        """The same as Arrow has it."""
        from pyspark.sql.pandas.types import to_arrow_schema

        try:
            found = to_arrow_schema(self.schema, timezone="UTC")
        except TypeError:  # before 4.3
            found = to_arrow_schema(self.schema)
        return found

    def batch(self, page: Page, target: pa.Schema) -> pa.RecordBatch:
        """The jobs of a page; `target` is what `arrow` gave."""
        columns = []
        for field in target:
            made = COLUMNS[field.name](page)
            columns.append(made if made.type == field.type else made.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=target)


class Page:
    """The jobs of one reply.

    Args:
        origin: where they are from.
        parts: the reply from its first job on.
    """

    def __init__(self, origin: Origin, parts: Sequence[bytes]) -> None:
        self.origin = origin
        self.numbers = parts[::4]
        self.scores = parts[1::4]
        self.counters = parts[2::4]
        self.values = parts[3::4]
        self.count = len(self.numbers)
        self._numbers: tuple[Any, Any] | None = None
        self._split: tuple[list[bytes], list[bytes], list[bytes]] | None = None
        self._times: Any = None
        self._records: list[Record] | None = None
        self._usual: Record | bool | None = False
        self._counts: list[Any] | None = None

    def keep(self, wanted: Sequence[bool]) -> Page:
        """The page with those of its jobs alone."""
        kept = [i for i, is_wanted in enumerate(wanted) if is_wanted]
        if len(kept) == self.count:
            return self
        every = (self.numbers, self.scores, self.counters, self.values)
        return Page(self.origin, [part[i] for i in kept for part in every])

    @property
    def made(self) -> tuple[Any, Any]:
        """Time and sequence of each number, as integers."""
        if self._numbers is None:
            joined = b"".join(self.numbers)
            if len(joined) == NUMBER_BYTES * self.count:
                digits = np.frombuffer(joined, np.uint8).reshape(-1, NUMBER_BYTES) - 48
                ms = digits[:, :13].astype(np.int64) @ _PLACES
                seq = digits[:, 14:].astype(np.int64) @ _PLACES[3:]
            else:
                pairs = [number.split(b"-") for number in self.numbers]
                ms = np.array([int(pair[0]) for pair in pairs], np.int64)
                seq = np.array([int(pair[1]) for pair in pairs], np.int64)
            self._numbers = ms, seq
        return self._numbers

    @property
    def times(self) -> Any:
        """The time in each score: due, end of the lease, death; of ready that of the creation."""
        if self._times is None:
            if self.origin.place == "ready":
                self._times = self.made[0]
            else:
                scores = np.array(self.scores, dtype="S32").astype(np.int64)
                leased = self.origin.place in ("active", "once")
                self._times = scores // 4096 if leased else scores
        return self._times

    @property
    def split(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Notes, headers and bodies."""
        if self._split is None:
            if not any(value[:1] == b"@" for value in self.values):
                plain = [value.partition(b"\n") for value in self.values]
                self._split = [b""] * self.count, [p[0] for p in plain], [p[2] for p in plain]
            else:
                parts = [
                    value.split(b"\n", 2) if value[:1] == b"@" else [b"", *value.split(b"\n", 1)]
                    for value in self.values
                ]
                self._split = ([p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts])
        return self._split

    @property
    def records(self) -> list[Record]:
        """What the headers say; jobs with the same one share it."""
        if self._records is None:
            heads = self.split[1]
            known = {head: parse_record(head + b"\n") for head in set(heads)}
            self._records = [known[head] for head in heads]
        return self._records

    @property
    def usual(self) -> Record | None:
        """The record of all of them, if they are alike but for their bodies."""
        if self._usual is False:
            heads = self.split[1]
            alike = heads.count(heads[0]) == self.count if heads else False
            self._usual = parse_record(heads[0] + b"\n") if alike else None
        return self._usual  # type: ignore[return-value]  # it is known by now

    @property
    def counts(self) -> list[Any]:
        """The counters."""
        if self._counts is None:
            known = {text: parse_counters(text) for text in set(self.counters)}
            self._counts = [known[text] for text in self.counters]
        return self._counts

    @property
    def is_delivered(self) -> bool:
        """Whether a delivery of them lasts."""
        return self.origin.place in ("active", "once")

    @property
    def is_first(self) -> bool:
        """Whether none of them was delivered before, or put back."""
        return not any(self.counters)


# -- columns -------------------------------------------------------------------------------


def _same(value: Any, page: Page, kind: Any) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), page.count)


def _texts(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.string())


def _instants(ms: Any, known: Any = None) -> pa.Array:
    made = pa.array(ms * 1000, pa.int64(), mask=None if known is None else ~known)
    return made.view(_TIME)


def _ids(page: Page) -> pa.Array:
    """`D-<node>-<24 characters>-<ttl>`, as `encode_id` makes them."""
    n = page.count
    if n == 0:
        return _texts([])
    usual = page.usual
    codes = [_code(usual)] if usual else [_code(record) for record in page.records]
    ms, seq = page.made
    packed: Any = np.empty((n, 18), np.uint8)
    for place, shift in enumerate((40, 32, 24, 16, 8, 0)):
        packed[:, place] = (ms >> shift) & 255
    for place, shift in enumerate((24, 16, 8, 0)):
        packed[:, 6 + place] = (seq >> shift) & 255
    packed[:, 10:] = np.frombuffer(page.origin.packed, np.uint8)
    a, b, c = (packed[:, i::3] for i in range(3))
    six = np.stack((a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63), axis=2)
    text: Any = np.empty((n, 40), np.uint8)
    text[:, :11] = np.frombuffer(f"D-{page.origin.node}-".encode(), np.uint8)
    text[:, 11:35] = _ALPHABET[six.reshape(n, 24)]
    text[:, 35] = ord("-")
    text[:, 36:] = np.frombuffer("".join(codes).encode(), np.uint8).reshape(-1, 4)
    ends: Any = np.arange(0, 40 * (n + 1), 40, dtype=np.int32)
    return pa.StringArray.from_buffers(n, pa.py_buffer(ends), pa.py_buffer(text))


def _code(record: Record) -> str:
    return ttl_code(record.ttl_ms, at_most_once=record.lease_ms == 0)


def _states(page: Page) -> pa.Array:
    place, asof = page.origin.place, page.origin.asof
    if place in ("scheduled", "active") and asof:
        came = page.times <= asof
        if came.any():
            return _texts(np.where(came, "ready", place).tolist())
    return _same("active" if place == "once" else place, page, pa.string())


def _payloads(page: Page) -> pa.Array:
    return pa.array(page.split[2], pa.binary())


def _headers(page: Page) -> pa.Array:
    kind = pa.map_(pa.string(), pa.string())
    usual = page.usual
    if usual is not None and not usual.headers:
        ends = pa.py_buffer(np.zeros(page.count + 1, np.int32))
        inner = pa.array([], pa.struct([kind.key_field, kind.item_field]))
        return pa.Array.from_buffers(kind, page.count, [None, ends], children=[inner])
    return pa.array([list(record.headers.items()) for record in page.records], kind)


def _counted(read: Callable[[Any], int]) -> Callable[[Page], pa.Array]:
    def column(page: Page) -> pa.Array:
        if page.is_first:
            return _same(read(parse_counters(b"")), page, pa.int32())
        return pa.array([read(counts) for counts in page.counts], pa.int32())

    return column


def _receipts(page: Page) -> pa.Array:
    """Of those who hold a delivery; the tag is in the score (PROTOCOL.md, Receipt)."""
    if not page.is_delivered:
        return pa.nulls(page.count, pa.string())
    known = {score: f"-{int(score) % 4096:03x}" for score in set(page.scores)}
    marks = [known[score] for score in page.scores]
    if page.is_first:
        return _texts(["1" + mark for mark in marks])
    pairs = zip(page.counts, marks, strict=True)
    return _texts([f"{counts.deliveries}{mark}" for counts, mark in pairs])


def _dedup_ids(page: Page) -> pa.Array:
    usual = page.usual
    if usual is not None:
        return _same(usual.dedup_id or None, page, pa.string())
    return _texts([record.dedup_id or None for record in page.records])


def _ready(page: Page) -> pa.Array:
    """When a waiting job may be delivered; null for one that is delivered, dead, or waits for
    another one.
    """
    if page.origin.place not in ("ready", "scheduled"):
        return pa.nulls(page.count, _TIME)
    return _instants(page.times, page.times < NEVER)


def _leased(page: Page) -> pa.Array:
    if page.origin.place != "active":
        return pa.nulls(page.count, _TIME)
    return _instants(page.times)


def _expires(page: Page) -> pa.Array:
    usual = page.usual
    if usual is not None and usual.ttl_ms is None:
        return pa.nulls(page.count, _TIME)
    ttls = [record.ttl_ms for record in page.records]
    known = np.array([ttl is not None for ttl in ttls], bool)
    return _instants(page.made[0] + np.array([ttl or 0 for ttl in ttls], np.int64), known)


def _owners(page: Page) -> pa.Array:
    notes = page.split[0]
    known = {note: _owner(note) for note in set(notes)}
    return _texts([known[note] for note in notes])


def _owner(note: bytes) -> str | None:
    return note.partition(b" ")[2].decode("utf-8", "replace") if note else None


def _errors(page: Page) -> pa.Array:
    if page.is_first:
        return pa.nulls(page.count, pa.string())
    return _texts([counts.error or None for counts in page.counts])


COLUMNS: dict[str, Callable[[Page], pa.Array]] = {
    "id": _ids,
    "queue": lambda page: _same(page.origin.queue, page, pa.string()),
    "state": _states,
    "payload": _payloads,
    "headers": _headers,
    "attempt": _counted(lambda counts: 1 + counts.nacks + counts.crashes),
    "nacks": _counted(lambda counts: counts.nacks),
    "crashes": _counted(lambda counts: counts.crashes),
    "receipt": _receipts,
    "dedup_id": _dedup_ids,
    "enqueued_at": lambda page: _instants(page.made[0]),
    "ready_at": _ready,
    "lease_until": _leased,
    "expires_at": _expires,
    "owner": _owners,
    "last_error": _errors,
    "node": lambda page: _same(page.origin.node, page, pa.string()),
}
