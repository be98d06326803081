"""The task in which code runs, and the records of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.spark.options import Write
from penstock.spark.rows import Encoder, Item, columns_of, lists, name_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Task", "batches", "encoded", "task", "type_name"]

ROWS = 1000
"""Rows that are converted at a time, unless they come in Arrow batches."""


class Task(NamedTuple):
    """The task in which code runs.

    Attributes:
        partition: its number.
        query, batch: of the streaming query it belongs to, also inside `foreachBatch`; else ''.
    """

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


def type_name(kind: DataType) -> str:
    """Return the name of a type in options and messages."""
    from pyspark.sql.types import MapType

    if isinstance(kind, MapType):
        return f"map<{type_name(kind.keyType)},{type_name(kind.valueType)}>"
    return "day-time interval" if kind.typeName() == "daytimeinterval" else kind.typeName()
