"""Converts the rows of a task to records: the meaning of columns, and the dedup id of each row.

A row of a write has the same id in every attempt, in whatever order a repeated task reads its rows.
The id is the value of the id column, or else a hash of write, partition and content, and of the
number of equal rows before it in the partition. That hash depends on the number of partitions, so
it only identifies rows of other attempts of the same run. Rows without ids that may be written
again are staged, under ids of their attempt (`staged_commit`).
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.enqueuing.dedup import ID_PLACEHOLDER, Dedup
from penstock.core.enqueuing.options import OPTIONS
from penstock.core.enqueuing.prepared import MANY, prepared
from penstock.core.jobs.record import RECORD, escaped, key_hash, parse_json
from penstock.core.values.checks import check_label
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument
from penstock.spark.errors import OptionError, RowError
from penstock.spark.options import Write
from penstock.wire.keys import check_queue_name

__all__ = [
    "Column", "Encoded", "Encoder", "Task", "as_list", "batches", "columns_of",
    "name_of", "preferred", "task",
]  # fmt: skip

T = TypeVar("T")
Fields = Sequence[tuple[str, str]]
"""Name and type of each column; an empty type is not known."""
Types = Mapping[str, Sequence[str]]
Column = Any
"""A list, or an Arrow array."""
ROWS_PER_CHUNK = 1000
"""Rows that are converted at a time."""
DIGEST_BYTES = 15
"""Bytes of a stable id: a multiple of three, so that base64 adds no padding."""
LAST_US = 1000 << 42
"""The latest time of a job."""
ID_FIELD = b";d=" + ID_PLACEHOLDER
match_plain_id = re.compile(r"[-\w.~]{1,1024}", re.ASCII).fullmatch
"""Matches ids that are not escaped in records."""
JSON_ADVICE = "selectExpr('to_json(struct(*)) AS payload') and payloadFormat=json"
"""The way to write other columns, as errors tell it."""

STARTS = ("delay", "ready_at")
RETRY_RULES = {"max_attempts": "max_attempts", "backoff": "base", "backoff_cap": "cap"}
"""Columns of the job's retry policy, and the arguments of `RetryPolicy`."""
INTEGER_TYPES = ("byte", "short", "integer", "long")
DURATION_TYPES = (*INTEGER_TYPES, "float", "double", "decimal", "daytimeinterval")
ENQUEUE_COLUMNS = {
    "payload": ("binary", "string"), "id": ("string", *INTEGER_TYPES), "delay": DURATION_TYPES,
    "ready_at": ("timestamp",), "ttl": DURATION_TYPES, "lease": DURATION_TYPES,
    "max_attempts": INTEGER_TYPES, "backoff": DURATION_TYPES, "backoff_cap": DURATION_TYPES,
    "headers": ("map<string,string>",), "key": ("string", *INTEGER_TYPES),
    "priority": INTEGER_TYPES, "result_ttl": DURATION_TYPES,
}  # fmt: skip
RULES = {name: name for name in ENQUEUE_COLUMNS if name in OPTIONS and name != "key"} | {
    "ready_at": "at"
}
"""Columns of the job's options, and the arguments of an enqueue."""
ARGUMENTS = {argument: name for name, argument in {**RULES, **RETRY_RULES}.items()}
ID_COLUMNS = {"id": ("string",)}
RECEIPT_COLUMNS = {"id": ("string",), "receipt": ("string",)}
COLUMNS_OF_OPERATION: Mapping[str, Types] = {
    "enqueue": ENQUEUE_COLUMNS, "ack": RECEIPT_COLUMNS, "nack": RECEIPT_COLUMNS,
    "redrive": ID_COLUMNS, "delete": ID_COLUMNS,
}  # fmt: skip
"""The columns of each operation, with the types that they may have (`DataType.typeName`)."""


class RowHead(NamedTuple):
    """The header of a row's record, before and behind its dedup id, and the delay of its job.

    Attributes:
        delay: in ms, or `@` and an absolute time.
    """

    front: bytes
    tail: bytes
    delay: int | str


class Encoded(NamedTuple):
    """Converted rows, as a list of each part."""

    queues: list[str]
    delays: list[int | str]  # ms, or `@` and an absolute time
    records: list[bytes]
    keys: list[str]  # of the jobs, or else their ids: they choose node and partition


def columns_of(fields: Fields, options: Write) -> dict[str, int]:
    """Return the index of each meaning, by names and types; without types values are checked."""
    names = [name for name, _ in fields]
    types = COLUMNS_OF_OPERATION[options.operation]
    places = _named_places(names, options)
    meanings = {name.replace("_", ""): name for name in types}
    for index, name in enumerate(names):
        meaning = meanings.get(name.replace("_", "").lower(), "")  # also readyAt
        if meaning and meaning not in places and index not in places.values():
            places[meaning] = index
    _check_types(fields, places, types)
    if others := [name for index, name in enumerate(names) if index not in places.values()]:
        reason = f"operation={options.operation} takes {', '.join(types)}, not {', '.join(others)}"
        if options.operation == "enqueue":
            reason += f". Put others into the payload by {JSON_ADVICE}"
        raise BadArgument("columns", names, reason)
    return places


def _named_places(names: Sequence[str], options: Write) -> dict[str, int]:
    """Return the index of each column that an option names, by its meaning."""
    wanted = {"id": options.id_column or "id"}
    if options.operation == "enqueue":
        wanted = {"payload": options.payload_column}
        wanted |= {"id": options.id_column, "queue": options.queue_column}
    places = {}
    for meaning, name in wanted.items():
        found = [index for index, one in enumerate(names) if one.lower() == name.lower()]
        if name and len(found) != 1:
            reason = "names two columns: rename one" if found else "names no column"
            reason += f"; the columns are {', '.join(names) or 'none'}"
            if meaning == "payload" and not found:
                reason += f". Put them into the payload by {JSON_ADVICE}"
            raise OptionError(f"{meaning}Column", name, reason)
        if name:
            places[meaning] = found[0]
    return places


def _check_types(fields: Fields, places: Mapping[str, int], types: Types) -> None:
    for meaning, index in places.items():
        name, kind = fields[index]
        accepted = types.get(meaning, ("string",))
        if kind and kind not in accepted:
            reason = f"is {kind}; {meaning} must be {' or '.join(accepted)}"
            raise BadArgument("column", name, reason)
    if "delay" in places and "ready_at" in places:
        name, _ = fields[places["ready_at"]]
        raise BadArgument("column", name, "can't be used together with delay")


def name_of(*words: object) -> bytes:
    """Return a hash of the words of a write's name."""
    return blake2b(json.dumps([str(word) for word in words]).encode(), digest_size=16).digest()


def preferred(key: str, nodes: Sequence[str]) -> str:
    """Return the node that a key belongs to; every client gives the same answer."""
    return max(nodes, key=lambda node: blake2b(f"{node} {key}".encode(), digest_size=8).digest())


class Encoder:
    """Converts the rows of one partition to records, a column at a time.

    Args:
        fields: name and type of each column.
        own: names a write that has no `writeId`.
        attempt: of rows that are staged: names the attempt. Only one attempt is published, so rows
            without ids get ids of the attempt.
    """

    def __init__(
        self, fields: Fields, options: Write, where: Task, own: str, attempt: str = ""
    ) -> None:
        write = name_of("batch", options.write_id or own)
        if where.query:
            write = name_of("stream", options.write_id, where.query, where.batch)
        self._places = places = columns_of(fields, options)
        self._names = {meaning: fields[index][0] for meaning, index in places.items()}
        self._is_json = options.payload_format == "json"
        self._queue = options.queue
        self._attempt = "" if "id" in places else attempt
        place = b"" if "id" in places else where.partition.to_bytes(8, "big")
        self._hash = blake2b(write + place, digest_size=DIGEST_BYTES)
        self._seen: dict[int, int] = {}
        self._row = 0
        window = None if self._attempt else options.dedup_window / 1000
        self._dedup = Dedup(str, window=window)  # a row is no body: the id is inserted
        # Times often differ in each row. Only with a ttl they depend on another column.
        self._start = next((name for name in STARTS if name in places and "ttl" not in places), "")
        self._others = tuple(n for n in (*RULES, *RETRY_RULES) if n in places and n != self._start)

    def records(self, source: Iterable[Any]) -> Iterator[Encoded]:
        """Yield the records of rows, some at a time."""
        for columns in batches(source):
            found = self._encode(columns)
            self._row += len(found.records)
            yield found

    def _encode(self, columns: Sequence[Column]) -> Encoded:
        given = {meaning: columns[index] for meaning, index in self._places.items()}
        bodies = self._converted("payload", _json if self._is_json else _raw, given["payload"])
        count = len(bodies)
        queues = [self._queue] * count
        if "queue" in given:
            queues = self._converted("queue", check_queue_name, given["queue"])
        heads = self._heads(given, count)
        delays = [head.delay for head in heads]
        if self._start:
            delays = self._starts(given[self._start])
        own_keys: list[Any] = []
        if "key" in given:
            own_keys = as_list(self._names["key"], given["key"])
            heads = self._keyed(heads, own_keys)
        if "id" in given:
            ids = as_list(self._names["id"], given["id"])
            names = lines = self._converted("id", _name, ids)
            if "queue" in given:
                lines = [b"%b\n%b" % (n, q.encode()) for n, q in zip(names, queues, strict=True)]
            keys, stables = list(map(str, ids)), self._hashes(lines)
        else:
            stables = self._hashes(self._contents(queues, delays, heads, bodies))
            keys = [stable.decode() for stable in stables]
            if self._attempt:
                keys = [f"{self._attempt}-{row}" for row in range(self._row, self._row + count)]
            names = [key.encode() for key in keys]
        for at, key in enumerate(own_keys):
            if key is not None:
                keys[at] = str(key)
        rows = zip(heads, names, stables, bodies, strict=True)
        records = [
            RECORD % (b"%b;d=%b%b" % (front, name, tail), stable, body)
            for (front, tail, _), name, stable, body in rows
        ]
        return Encoded(queues=queues, delays=delays, records=records, keys=keys)

    def _contents(self, *columns: Sequence[Any]) -> Iterator[bytes]:
        """Yield the text of each row; a number is added to equal ones after the first."""
        for queue, delay, (front, tail, _), body in zip(*columns, strict=True):
            text = (queue.encode(), str(delay).encode(), front + tail, body)
            line = b"\n".join(text)
            key = hash(line)  # lines can be long
            before = self._seen.get(key, 0)
            self._seen[key] = before + 1
            yield b"%b\n%d" % (line, before) if before else line

    def _hashes(self, lines: Iterable[bytes]) -> list[bytes]:
        """Return the stable ids of rows, by the text that identifies each of them in the write."""
        digests = []
        for line in lines:
            state = self._hash.copy()
            state.update(line)
            digests.append(state.digest())
        texts = urlsafe_b64encode(b"".join(digests))
        size = DIGEST_BYTES // 3 * 4
        return [texts[at : at + size] for at in range(0, len(texts), size)]

    def _heads(self, given: Mapping[str, Column], count: int) -> list[RowHead]:
        head = partial(_call_cached, _head, self._dedup, self._is_json, self._others)
        if not self._others:
            return [head()] * count
        lists = (as_list(self._names[name], given[name]) for name in self._others)
        values = [map(_hashable, one) for one in lists]
        heads: list[RowHead] = []
        for row in zip(*values, strict=True):
            try:
                heads.append(head(*row))
            except BadArgument as error:  # noqa: PERF203  # the row is in the error
                name = ARGUMENTS[error.argument]
                value = dict(zip(self._others, row, strict=True)).get(name)
                column = self._names.get(name, name)
                raise RowError(column, value, error.reason, self._row + len(heads)) from None
        return heads

    def _keyed(self, heads: Sequence[RowHead], keys: list[Any]) -> list[RowHead]:
        fields = self._converted("key", partial(_call_cached, _key_field), keys)
        pairs = zip(heads, fields, strict=True)
        return [head._replace(front=head.front + field) for head, field in pairs]

    def _starts(self, column: Column) -> list[int | str]:
        """Return the delays of rows, by the column of times."""
        if isinstance(column, pa.TimestampArray):
            us = column.cast(pa.int64())
            bounds = pc.min_max(us).as_py()
            if bounds["min"] is None or 0 <= bounds["min"] <= bounds["max"] <= LAST_US:
                times = pc.divide(pc.add(us, 999), 1000).to_pylist()
                return [0 if ms is None else f"@{ms}" for ms in times]
        find = partial(_call_cached, _start_of, RULES[self._start])
        return self._converted(self._start, find, column)

    def _converted(self, meaning: str, convert: Callable[[Any], T], column: Column) -> list[T]:
        values = as_list(self._names[meaning], column)
        converted: list[T] = []
        try:
            for value in values:
                converted.append(convert(value))  # noqa: PERF401  # their number is that of the row
        except (BadArgument, ValueError, TypeError) as error:
            reason = error.reason if isinstance(error, BadArgument) else str(error)
            at = len(converted)
            raise RowError(self._names[meaning], values[at], reason, self._row + at) from None
        return converted


def _call_cached(find: Any, *args: Any) -> Any:
    """Call a function with a cache. Its own error is raised for a value that has no hash."""
    try:
        return find(*args)
    except TypeError:
        return find.__wrapped__(*args)


@lru_cache(maxsize=1024, typed=True)
def _head(dedup: Dedup, is_json: bool, columns: tuple[str, ...], *values: Any) -> RowHead:
    pairs = zip(columns, values, strict=True)
    options = {name: value for name, value in pairs if value is not None}
    policy = _arguments(RETRY_RULES, options)
    retry = RetryPolicy(**policy) if policy else None
    made = prepared(None, MANY, **_arguments(RULES, options), retry=retry, dedup=dedup)
    front, _, tail = (made.coded_head if is_json else made.head).partition(ID_FIELD)
    delay = made.delay.decode()
    return RowHead(front, tail, int(delay) if delay.isdecimal() else delay)


def _hashable(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


@lru_cache(maxsize=1 << 14, typed=True)
def _start_of(argument: str, value: Any) -> int | str:
    if value is None:
        return 0
    ms: int = OPTIONS[argument].check(argument, _argument(value))
    return f"@{ms}" if argument == "at" else ms


def _name(value: Any) -> bytes:
    if type(value) is str and match_plain_id(value):
        return value.encode()
    return escaped(_label("id", value)).encode()


@lru_cache(maxsize=1 << 14, typed=True)
def _key_field(value: Any) -> bytes:
    return b"" if value is None else f";q={key_hash(_label('key', value))}".encode()


def _label(argument: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return check_label(argument, value)


def _arguments(names: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    return {names[name]: _argument(given[name]) for name in names if name in given}


def _argument(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime) and value.tzinfo is None:  # a Row has local times
        return value.astimezone(timezone.utc)
    return dict(value) if isinstance(value, tuple) else value


def _raw(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError("must be bytes or text")


def _json(value: Any) -> bytes:
    raw = _raw(value)
    parse_json(raw)
    return raw


class Task(NamedTuple):
    """The task in which code runs; query and batch also inside `foreachBatch`, else ''.

    `attempt` is 0 if the task was not repeated.
    """

    partition: int
    query: str = ""
    batch: str = ""
    attempt: int = 0


def task() -> Task:
    """Return the task that runs in this process; outside of Spark, partition 0."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return Task(0)
    names = ("sql.streaming.queryId", "streaming.sql.batchId")
    query, batch = (context.getLocalProperty(name) or "" for name in names)
    return Task(context.partitionId(), query, batch, context.attemptNumber())


def batches(source: Iterable[Any]) -> Iterator[Sequence[Column]]:
    """Yield the columns of some rows at a time, from Arrow batches or from rows."""
    iterator = iter(source)
    for first in iterator:
        if hasattr(first, "num_rows"):
            for at in range(0, first.num_rows, ROWS_PER_CHUNK):
                yield first.slice(at, ROWS_PER_CHUNK).columns
        else:
            rows = [first, *islice(iterator, ROWS_PER_CHUNK - 1)]
            yield [list(column) for column in zip(*rows, strict=True)]


def as_list(name: str, column: Column) -> list[Any]:
    """Return a column as a list; maps become dicts."""
    if isinstance(column, list):
        return column
    try:
        found: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError) as error:
        reason = f"has a value that can't be converted: {error}"
        raise BadArgument("column", name, reason) from None
    return found
