"""Group 12: Spark Connect, which has no SparkContext and a client in another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock import Penstock
from tests.spark.support import Driver


def test_everything_goes_through_connect(
    driver: Callable[..., Driver], ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """Batch, SQL, stream, `foreachPartition`, `foreachBatch` and drain work without an RDD."""
    started = driver(
        "tests.spark.programs:connected",
        master="connect:local[2]",
        url=redis_url,
        directory=str(tmp_path),
    )
    assert started.result() == {
        "module": "pyspark.sql.connect.session",
        "written": 100,
        "selected": 100,
        "streamed": 100,
        "partition": 100,
        "drained": 100,
        "output": 100,
        "batches": 4,
    }
    stats = ps.queue("in").stats()
    assert (stats.ready, stats.active) == (0, 0)
