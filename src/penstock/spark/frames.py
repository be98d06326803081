"""Writes a DataFrame as an action that returns counts, which `save()` can't."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from penstock.spark.errors import OptionError
from penstock.spark.writer import BatchWriter

__all__ = ["name_checkpoint", "write"]

R = TypeVar("R")
PICKLED_SCHEMA = pa.schema([("pickled", pa.binary())])
PICKLED_DDL = "pickled binary"


def write(frame: Any, **options: Any) -> dict[str, int]:
    """Write a DataFrame into a queue as `frame.write.format("penstock")` does, and return counts.

    It runs at once. A repeat adds what a repeat of `save()` adds.

    Args:
        frame: the rows; classic or Connect.
        options: the sink's: `queue`, `urlEnv`, `idColumn`, `writeId`, …

    Returns:
        How many `rows` there were, how many were `added`, and how many `duplicates`: rows whose ids
        were taken, also by an earlier attempt of their task, or of a write that was committed
        before. Of another operation than enqueue, the number of each outcome.

    Raises:
        OptionError, BadArgument, Unreachable: as `save()`; in a Spark error if a task raises it.
    """
    if not hasattr(frame, "mapInArrow"):
        raise TypeError(f"frame must be a DataFrame, not {type(frame).__name__}")
    given = {name: str(value) for name, value in options.items() if value is not None}
    make = partial(BatchWriter, given, frame.schema, False)
    writer = _run_on_driver(frame.sparkSession, make)
    made = frame.mapInArrow(partial(_write_partition, writer), PICKLED_DDL)
    try:
        reports = [pickle.loads(row.pickled) for row in made.collect()]  # our own
    except Exception:
        _run_on_driver(frame.sparkSession, partial(writer.abort, []))
        raise
    return _run_on_driver(frame.sparkSession, partial(writer.finish, reports))


def name_checkpoint(spark: Any, location: str) -> str:
    """Return a name that is made once for a checkpoint, and kept in its directory.

    A `writeId` that begins with it belongs to this checkpoint: a new one, whose batches are
    numbered from 0 again, gets other names, even in a directory that was deleted.

    Args:
        spark: a SparkSession, classic or Connect.
        location: the `checkpointLocation` of the query.

    Returns:
        36 characters.
    """
    place = f"{location.rstrip('/')}/penstock-name"
    spark.sql("SELECT uuid() AS name").write.mode("ignore").parquet(place)
    found = spark.read.schema("name string").parquet(place).head()
    if found is None:
        reason = "holds an unfinished directory penstock-name: delete that"
        raise OptionError("checkpointLocation", location, reason)
    return str(found.name)


def _write_partition(
    writer: BatchWriter, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    yield _pickled([writer.write(iter(batches))])


def _run_on_driver(spark: Any, do: Callable[[], R]) -> R:
    """Run a function on the driver; with Connect, where this is another process, in a task."""
    if "connect" not in type(spark).__module__:
        return do()
    made = spark.range(0, 1, 1, 1).mapInArrow(partial(_run_in_task, do), PICKLED_DDL)
    result: R = pickle.loads(made.collect()[0].pickled)  # our own
    return result


def _run_in_task(
    do: Callable[[], Any], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    list(batches)  # Spark uses the process again only if it has read its input
    yield _pickled([do()])


def _pickled(values: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"pickled": [pickle.dumps(one) for one in values]}, schema=PICKLED_SCHEMA
    )
