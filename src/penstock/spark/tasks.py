"""Where a task runs, what it is given, and what its rows are told apart by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from penstock.spark.rows import lists, name_of, transposed

__all__ = ["Task", "batches", "task", "type_name", "write_name"]


class Task(NamedTuple):
    """Where a piece of work runs.

    Attributes:
        partition: its number.
        query, batch: of the streaming query it belongs to, also inside `foreachBatch`; else ''.
    """

    partition: int
    query: str = ""
    batch: str = ""


def task() -> Task:
    """The task that runs in this process."""
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
    """What stands for a write in ids: the same in all its attempts, another for other writes.

    Args:
        where: the task.
        write_id: as the user names the write; empty = not at all.
        own: its name then.
    """
    if where.query:
        return name_of("stream", write_id, where.query, where.batch)
    return name_of("batch", write_id or own)


def batches(source: Iterable[Any], width: int) -> Iterator[tuple[list[list[Any]], int]]:
    """What Spark hands out, as columns: Arrow batches, or rows."""
    iterator = iter(source)
    for first in iterator:
        if hasattr(first, "num_rows"):
            yield lists(first)
            continue

        def rows(first: Any = first) -> Iterator[Any]:
            yield first
            yield from iterator

        yield from transposed(rows(), width, 1000)


def type_name(kind: Any) -> str:
    """A type as messages have it."""
    if kind.typeName() == "map":
        return f"map<{type_name(kind.keyType)},{type_name(kind.valueType)}>"
    return "day-time interval" if kind.typeName() == "daytimeinterval" else str(kind.typeName())
