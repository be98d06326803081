"""Writers driven by hand without a JVM: a schema, batches, and pretended tasks."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock import Penstock
from penstock.spark import shards, sink, writer
from penstock.spark.encoding import Task
from penstock.spark.writer import BatchWriter

__all__ = ["PLAIN", "ROWS", "arrow", "bodies", "close_all", "running", "schema", "write"]

PLAIN = "payload binary"
ROWS = [[b"a", b"b", b"a", b"a"], [b"a", b"c"], []]


def schema(text: str) -> Any:
    """Return a schema from a text such as `id string, payload binary`."""
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        DataType,
        DayTimeIntervalType,
        DoubleType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        TimestampType,
    )

    kinds: dict[str, DataType] = {
        "string": StringType(),
        "binary": BinaryType(),
        "int": IntegerType(),
        "long": LongType(),
        "double": DoubleType(),
        "boolean": BooleanType(),
        "timestamp": TimestampType(),
        "interval": DayTimeIntervalType(),
        "map": MapType(StringType(), StringType()),
    }
    made = StructType()
    for part in text.split(", "):
        name, kind = part.split(" ")
        made = made.add(name, kinds[kind])
    return made


def arrow(columns: dict[str, Sequence[Any]], **types: Any) -> list[Any]:
    """Return one Arrow batch, as Spark passes it to a writer."""
    made = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    return [pa.RecordBatch.from_pydict(made)]


@contextmanager
def running(number: int = 0, query: str = "", batch: object = "") -> Iterator[None]:
    """Run the block as if in this task."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (writer, sink):
            patch.setattr(module, "task", lambda: Task(number, query, str(batch)))
        yield


def close_all() -> None:
    """Close the connections of this process, as if the next task ran in another one."""
    while shards.clients:
        shards.clients.popitem()[1].close()


def bodies(ps: Penstock, queue: str = "mail") -> list[bytes]:
    """Return the bodies of waiting jobs, sorted."""
    return sorted(job.raw for job in ps.queue(queue).jobs())


def write(
    writer: BatchWriter, parts: list[list[bytes]], *, tries: int = 1, turn: bool = False
) -> list[Any]:
    """Write every partition this many times, and return the last messages. The id is the body."""
    messages: list[Any] = []
    for number, rows in enumerate(parts):
        for attempt in range(tries):
            with running(number):
                copy = pickle.loads(pickle.dumps(writer))
                order = list(reversed(rows)) if turn and attempt else rows
                columns: dict[str, Sequence[Any]] = {"payload": order}
                if writer.has_ids:
                    columns["id"] = [body.decode() for body in order]
                message = copy.write(iter(arrow(columns)))
        messages.append(message)
    return messages
