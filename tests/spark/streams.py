"""Streaming queries in their own drivers, which stop at a given point to be killed."""

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

__all__ = ["QuietReader", "consume"]

HALT = "PENSTOCK_TEST_HALT"
"""The point where a driver stops: `reserved`, `written` or `committed`."""
BATCH = 2
"""The batch of that point, counted from 0."""


def halt(point: str, number: int) -> None:
    """Report and stop there, if that is the driver's point to stop."""
    if os.environ.get(HALT) == point and number == BATCH:
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

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the latest offset, with two points to stop."""
        assert start is not None
        batch = sum(start["nodes"].values())  # of the only shard
        if os.environ.get(HALT) == "committed":
            halt("committed", batch - 1)
        found = super().latestOffset(start, limit)
        if sum(found["nodes"].values()) > batch:
            halt("reserved", batch)
        return found


class HaltingSource(PenstockDataSource):
    """The source with that reader."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "halting"

    def streamReader(self, schema: Any) -> Any:  # noqa: N802  # Spark's name
        """Return the stopping reader."""
        return HaltingReader(self.options, schema)


def consume(spark: Any, url: str, checkpoint: str, results: str) -> list[Any]:
    """Process all available jobs in batches of 100, and record each batch with its bodies.

    Returns:
        The offsets of the last progress.
    """
    spark.dataSource.register(HaltingSource)
    stream = (
        spark.readStream.format("halting")
        .schema("payload string, id string")
        .options(queue="mail", url=url, maxJobsPerTrigger=100, leaseDuration="10m")
        .load()
    )

    def write(frame: Any, number: int) -> None:
        bodies = [row.payload for row in frame.collect()]
        with Path(results).open("a", encoding="utf-8") as file:
            file.write(json.dumps([number, bodies]) + "\n")
        halt("written", number)

    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [source["endOffset"] for source in query.lastProgress["sources"]]
