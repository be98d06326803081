"""The task in which code runs, its input, and the name of the write it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.spark.rows import lists, name_of, transposed

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["Task", "batches", "task", "type_name", "write_name"]


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


def write_name(where: Task, write_id: str, own: str = "") -> bytes:
    """Return a hash that names a write: all its attempts have the same one, other writes do not.

    Args:
        where: the task.
        write_id: the user's name of the write; may be empty.
        own: names the write then.
    """
    if where.query:
        return name_of("stream", write_id, where.query, where.batch)
    return name_of("batch", write_id or own)


def batches(source: Iterable[Any], width: int) -> Iterator[tuple[list[list[Any]], int]]:
    """Yield the values by columns, and the number of rows, of Arrow batches or of rows."""
    iterator = iter(source)
    for first in iterator:
        if hasattr(first, "num_rows"):
            yield lists(first)
        else:
            yield from transposed(chain([first], iterator), width, 1000)


def type_name(kind: DataType) -> str:
    """Return the name of a type in options and messages."""
    from pyspark.sql.types import MapType

    if isinstance(kind, MapType):
        return f"map<{type_name(kind.keyType)},{type_name(kind.valueType)}>"
    return "day-time interval" if kind.typeName() == "daytimeinterval" else kind.typeName()
