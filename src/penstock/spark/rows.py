"""Converts the rows of a task to records: the meaning of columns, and the dedup id of each row.

A row of a write has the same id in every attempt, in whatever order a repeated task reads its rows.
The id is the value of the id column, or else a hash of write, partition and content, and of the
number of equal rows before it in the partition. That hash depends on the number of partitions, so
it only identifies rows of other attempts of the same run. Rows without ids that may be written
again are staged, under ids of their attempt (`staged_commit`).
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.bulk import prepared, start_of
from penstock.core.dedup import MARK, Dedup
from penstock.core.options import check_label
from penstock.core.policy import RetryPolicy
from penstock.core.record import escaped
from penstock.errors import BadArgument
from penstock.spark.errors import OptionError, RowError
from penstock.spark.options import Write
from penstock.spark.schema import COLUMNS, plain
from penstock.wire.keys import check_queue_name

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = [
    "Columns", "Encoder", "Item", "Task", "batches", "columns_of", "encoded", "lists", "name_of",
    "preferred", "task", "type_name",
]  # fmt: skip

ROWS = 1000
"""Rows that are converted at a time, unless they come in Arrow batches."""

RULES = {name: name for name in ("delay", "ttl", "lease", "headers")} | {"ready_at": "at"}
"""Columns of the job's options, and the arguments of an enqueue."""
STARTS = ("delay", "ready_at")
POLICY = {"max_attempts": "max_attempts", "backoff": "base", "backoff_cap": "cap"}
"""Columns of the job's retry policy, and the arguments of `RetryPolicy`."""
SPANS = ("byte", "short", "integer", "long", "float", "double", "decimal", "day-time interval")
WHOLE = ("byte", "short", "integer", "long")
TYPES = {
    "id": ("string", *WHOLE),
    "queue": ("string",),
    "delay": SPANS,
    "ready_at": ("timestamp",),
    "ttl": SPANS,
    "lease": SPANS,
    "max_attempts": WHOLE,
    "backoff": SPANS,
    "backoff_cap": SPANS,
    "headers": ("map<string,string>",),
}
"""The types that a column may have, by Spark's names of types (`DataType.typeName`)."""


class Item(NamedTuple):
    """One row, converted. The delay is in ms, or `@` and an absolute time; the key is its id."""

    queue: str
    delay: int | str
    record: bytes
    key: str


@dataclass(frozen=True)
class Columns:
    """Names of all columns, indices by meaning, and indices of the columns of a JSON body."""

    names: tuple[str, ...]
    places: dict[str, int]
    packed: tuple[int, ...] | None


def columns_of(fields: Sequence[tuple[str, str]], options: Write) -> Columns:
    """Return the meanings of columns by name and type; without types each value is checked."""
    names = tuple(name for name, _ in fields)
    packs = options.payload_format == "json"
    places: dict[str, int] = {}
    for meaning, option, name in (
        ("payload", "payloadColumn", "" if packs else options.payload_column),
        ("id", "idColumn", options.id_column),
        ("queue", "queueColumn", options.queue_column),
    ):
        if name:
            places[meaning] = _named(names, option, name)
    known = {plain(name): name for name in COLUMNS if name not in ("payload", "id")}
    if not packs:
        known.setdefault("id", "id")
    for index, name in enumerate(names):
        meaning = known.get(plain(name), "")
        if meaning and meaning not in places and index not in places.values():
            places[meaning] = index
    _check_types(fields, places)
    rest = [index for index in range(len(names)) if index not in places.values()]
    if packs:
        own = {places[meaning] for meaning in ("id", "queue") if meaning in places}
        packed = tuple(sorted({*rest, *own}))
        members = [names[index] for index in packed]
        for name in members:
            if members.count(name) > 1:
                reason = "is there twice: a JSON object can have it only once"
                raise BadArgument("column", name, reason)
        return Columns(names, places, packed)
    if rest:
        listed = ", ".join(repr(names[index]) for index in rest)
        raise BadArgument(
            "columns",
            names,
            f"must not have {listed}: drop it, or put all columns into the body by "
            f"payloadFormat=json. The sink knows {', '.join(COLUMNS)}",
        )
    return Columns(names, places, None)


def _named(names: Sequence[str], option: str, wanted: str) -> int:
    found = [index for index, name in enumerate(names) if name.lower() == wanted.lower()]
    if len(found) != 1:
        reason = "names two columns: rename one" if found else "names no column"
        raise OptionError(option, wanted, f"{reason}; the columns are {', '.join(names) or 'none'}")
    return found[0]


def _check_types(fields: Sequence[tuple[str, str]], places: dict[str, int]) -> None:
    for meaning, index in places.items():
        name, kind = fields[index]
        accepted = TYPES.get(meaning, ("binary", "string"))
        if kind and kind.partition("(")[0] not in accepted:
            raise BadArgument(
                "column", name, f"is {kind}; {meaning} must be {' or '.join(accepted)}"
            )
    if "delay" in places and "ready_at" in places:
        raise BadArgument(
            "column", fields[places["ready_at"]][0], "can't be used together with delay"
        )


def name_of(*words: object) -> bytes:
    """Return a hash of the words of a write's name."""
    return blake2b(json.dumps([str(word) for word in words]).encode(), digest_size=16).digest()


def preferred(key: str, nodes: Sequence[str]) -> str:
    """Return the node that a key belongs to; every client gives the same answer."""
    return max(nodes, key=lambda node: blake2b(f"{node} {key}".encode(), digest_size=8).digest())


class Encoder:
    """Converts the rows of one partition to records.

    Args:
        write: the hash of the write's name, the same in each of its attempts.
        attempt: of rows that are staged: names the attempt. Only one attempt is published, so rows
            without ids get ids of the attempt.
    """

    def __init__(
        self, columns: Columns, options: Write, write: bytes, partition: int, attempt: str = ""
    ) -> None:
        places = columns.places
        self._columns = columns
        self._options = options
        self._attempt = "" if "id" in places else attempt
        place = b"" if "id" in places else partition.to_bytes(8, "big")
        self._hash = blake2b(write + place, digest_size=15)
        self._seen: dict[bytes, int] = {}
        self._row = 0
        window = None if self._attempt else options.dedup_window / 1000
        self._dedup = Dedup("-", window=window)
        # Times often differ in each row. Only with a ttl they depend on another column.
        self._start_column = next(
            (name for name in STARTS if name in places and "ttl" not in places), ""
        )
        self._option_columns = [
            name for name in (*RULES, *POLICY) if name in places and name != self._start_column
        ]

    def encode(self, values: Sequence[list[Any]], count: int) -> Iterator[Item]:
        """Yield the records of rows."""
        places = self._columns.places
        bodies = self._bodies(values)
        ids = values[places["id"]] if "id" in places else None
        queues = values[places["queue"]] if "queue" in places else None
        starts = values[places[self._start_column]] if self._start_column else None
        options = [values[places[name]] for name in self._option_columns]
        common = self._head(()) if not options else None
        queue = self._options.queue
        delay: int | str
        for index in range(count):
            body = bodies(index)
            if common is None:
                front, tail, delay = self._options_of([column[index] for column in options])
            else:
                front, tail, delay = common
            if starts is not None:
                delay = self._checked(self._start_column, self._start, starts[index])
            if queues is not None:
                queue = self._checked("queue", check_queue_name, queues[index])
            if ids is None:
                place = b"%b\n%b\n" % (queue.encode(), str(delay).encode())
                stable = self._content(b"%b%b%b\n%b" % (place, front, tail, body))
                key = f"{self._attempt}-{self._row}" if self._attempt else stable.decode()
                written = key.encode()
            else:
                key = self._dedup_id(ids[index])
                is_usual = key.isascii() and key.isalnum()  # isalnum alone accepts é
                written = (key if is_usual else escaped(key)).encode()
                state = self._hash.copy()
                state.update(written if queues is None else b"%b\n%b" % (written, queue.encode()))
                stable = urlsafe_b64encode(state.digest())
            record = b"%b%b%b;i=%b\n%b" % (front, written, tail, stable, body)
            yield Item(queue, delay, record, key)
            self._row += 1

    # -- bodies ----------------------------------------------------------------------------

    def _bodies(self, values: Sequence[list[Any]]) -> Callable[[int], bytes]:
        packed = self._columns.packed
        if packed is not None:
            names = [self._columns.names[index] for index in packed]
            columns = [values[index] for index in packed]
            return lambda index: self._packed(names, [column[index] for column in columns])
        column = values[self._columns.places["payload"]]

        def body(index: int) -> bytes:
            value = column[index]
            if type(value) is bytes:
                return value
            raw: bytes = self._checked("payload", _raw, value)
            return raw

        return body

    def _packed(self, names: list[str], values: list[Any]) -> bytes:
        body = dict(zip(names, values, strict=True))
        try:
            return _dumps(body).encode()
        except (TypeError, ValueError, RecursionError):
            for name, value in body.items():
                if reason := _obstacle(value):
                    text = f"JSON can't express it ({reason})"
                    raise RowError(name, value, text, self._row) from None
            raise

    # -- ids -------------------------------------------------------------------------------

    def _content(self, content: bytes) -> bytes:
        state = self._hash.copy()
        state.update(content)
        digest = state.digest()
        short = digest[:8]
        before = self._seen.get(short, 0)
        self._seen[short] = before + 1
        if before:
            state.update(b"\n%d" % before)
            digest = state.digest()
        return urlsafe_b64encode(digest)

    def _dedup_id(self, value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        return str(self._checked("id", lambda found: check_label("id", found), value))

    # -- other columns of a row -------------------------------------------------------------

    def _options_of(self, values: list[Any]) -> tuple[bytes, bytes, int | str]:
        key = tuple(map(_hashable, values))
        try:
            return self._head(key)
        except TypeError:  # a value of a wrong type is unhashable: raise with its column
            return self._head.__wrapped__(self, key)

    @lru_cache(maxsize=1024)  # noqa: B019  # it lives as long as its task
    def _head(self, values: tuple[Any, ...]) -> tuple[bytes, bytes, int | str]:
        """Return the texts before and after the id, and the delay, for rows with these values."""
        columns = zip(self._option_columns, values, strict=True)
        given = {name: value for name, value in columns if value is not None}
        try:
            made = prepared(**_arguments(RULES, given), retry=_policy(given), dedup=self._dedup)
        except BadArgument as error:
            names = {argument: name for name, argument in {**RULES, **POLICY}.items()}
            name = names[error.argument]
            raise self._error(name, given.get(name), error.reason) from None
        head = made.head if self._columns.packed is None else made.coded_head
        front, _, tail = head.partition(MARK)
        return front, tail, made.delay

    def _start(self, value: Any) -> int | str:
        if value is None:
            return 0
        return start_of(**{RULES[self._start_column]: _argument(value)})

    def _checked(self, meaning: str, check: Callable[[Any], Any], value: Any) -> Any:
        try:
            return check(value)
        except (BadArgument, ValueError, TypeError) as error:
            reason = error.reason if isinstance(error, BadArgument) else str(error)
            raise self._error(meaning, value, reason) from None

    def _error(self, meaning: str, value: Any, reason: str) -> RowError:
        places = self._columns.places
        name = self._columns.names[places[meaning]] if meaning in places else meaning
        return RowError(name, value, reason, self._row)


def _hashable(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


def _policy(given: Mapping[str, Any]) -> RetryPolicy | None:
    arguments = _arguments(POLICY, given)
    return RetryPolicy(**arguments) if arguments else None


def _arguments(names: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those columns that have one, by the names of arguments."""
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


def _plain_value(value: Any) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(bytes(value)).decode()
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    raise TypeError(f"a {type(value).__name__}")


_dumps = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain_value
).encode


def _obstacle(value: Any) -> str:
    try:
        _dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return str(error) or type(error).__name__
    return ""


# -- tasks ---------------------------------------------------------------------------------


class Task(NamedTuple):
    """The task in which code runs; query and batch also inside `foreachBatch`, else ''."""

    partition: int
    query: str = ""
    batch: str = ""


def task() -> Task:
    """Return the task that runs in this process; outside of Spark, partition 0."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return Task(0)
    return Task(
        context.partitionId(),
        context.getLocalProperty("sql.streaming.queryId") or "",
        context.getLocalProperty("streaming.sql.batchId") or "",
    )


def encoded(
    source: Iterable[Any],
    fields: Sequence[tuple[str, str]],
    options: Write,
    *,
    where: Task,
    own: str,
    attempt: str = "",
) -> Iterator[Item]:
    """Yield the records of rows. `own` names a write that has no `writeId`."""
    write = name_of("batch", options.write_id or own)
    if where.query:
        write = name_of("stream", options.write_id, where.query, where.batch)
    encoder = Encoder(columns_of(fields, options), options, write, where.partition, attempt)
    for values, count in batches(source, len(fields)):
        yield from encoder.encode(values, count)


def batches(source: Iterable[Any], width: int) -> Iterator[tuple[list[list[Any]], int]]:
    """Yield the values by columns, and the number of rows, of Arrow batches or of rows."""
    iterator = iter(source)
    for first in iterator:
        if hasattr(first, "num_rows"):
            yield lists(first)
        else:
            rows = [first, *islice(iterator, ROWS - 1)]
            yield [[row[index] for row in rows] for index in range(width)], len(rows)


def lists(batch: Any) -> tuple[list[list[Any]], int]:
    """Return the columns of an Arrow batch as lists, and the number of rows; maps become dicts."""
    named = zip(batch.schema.names, batch.columns, strict=True)
    return [_listed(name, column) for name, column in named], batch.num_rows


def _listed(name: str, column: Any) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError) as error:
        text = f"has a value that can't be converted: {error}"
        raise BadArgument("column", name, text) from None
    return found


def type_name(kind: DataType) -> str:
    """Return the name of a type in options and messages."""
    from pyspark.sql.types import MapType

    if isinstance(kind, MapType):
        return f"map<{type_name(kind.keyType)},{type_name(kind.valueType)}>"
    return "day-time interval" if kind.typeName() == "daytimeinterval" else kind.typeName()
