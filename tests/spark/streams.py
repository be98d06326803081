"""Streaming queries in a driver of their own, which stop at a point each, to be killed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.spark.source import PenstockDataSource
from penstock.spark.stream import StreamReader
from tests.spark.support import say

__all__ = ["POINTS", "QuietReader", "consume"]

HALT = "PENSTOCK_TEST_HALT"
"""Set in the driver whose queries stop."""
POINTS = ("reserved", "written", "committed")
"""The points where queries stop. Each is the name of the queue whose query stops there."""
BATCH = 2
"""The batch of that point, counted from 0."""


def halt(queue: str, point: str, number: int) -> None:
    """Report and stop there, if that is the point where the query of this queue stops."""
    if HALT in os.environ and queue == point and number == BATCH:
        say(point)
        time.sleep(3600)


class QuietReader(StreamReader):
    """A reader that does not renew leases by itself."""

    beat = 3600

    def latest(self, start: dict[str, Any] | None, most: int | None) -> dict[str, Any]:
        """Return the latest offset, with at most so many more jobs; None = no limit."""
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        return self.latestOffset(start, limit)


class HaltingReader(StreamReader):
    """The reader, which stops after a reserve, or when the previous batch is noted."""

    queue = ""

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the latest offset, with two points to stop."""
        assert start is not None
        batch = sum(start["nodes"].values())  # of the only shard
        halt(self.queue, "committed", batch - 1)
        found = super().latestOffset(start, limit)
        if sum(found["nodes"].values()) > batch:
            halt(self.queue, "reserved", batch)
        return found


class HaltingSource(PenstockDataSource):
    """The source with that reader."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "halting"

    def streamReader(self, schema: Any) -> Any:  # noqa: N802  # Spark's name
        """Return the stopping reader."""
        made = HaltingReader(self.options, schema)
        made.queue = self.options["queue"]
        return made


def consume(spark: Any, url: str, directory: str) -> None:
    """Process all jobs of the queues in batches of 100, and note each batch with its bodies.

    The notes of a queue are the lines of the file `<queue>.notes` in the directory.
    """
    spark.dataSource.register(HaltingSource)
    queries = [_started(spark, url, queue, Path(directory)) for queue in POINTS]
    for query in queries:
        query.awaitTermination()


def _started(spark: Any, url: str, queue: str, directory: Path) -> Any:
    stream = (
        spark.readStream.format("halting")
        .schema("payload string, id string")
        .options(queue=queue, url=url, maxJobsPerTrigger=100, leaseDuration="10m")
        .load()
    )

    def write(frame: Any, number: int) -> None:
        bodies = [row.payload for row in frame.collect()]
        with (directory / f"{queue}.notes").open("a", encoding="utf-8") as file:
            file.write(json.dumps([number, bodies]) + "\n")
        halt(queue, "written", number)

    return (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory / queue))
        .trigger(availableNow=True)
        .start()
    )
