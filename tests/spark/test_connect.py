"""Groups 7 and 12: Spark Connect, which has no SparkContext and a client in another process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import Penstock
from tests.spark.loads import files, forget_last
from tests.spark.programs import every_kind
from tests.spark.support import Driver


def test_everything_goes_through_connect(
    driver: Callable[..., Driver], spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """Batch, SQL, stream, `foreachPartition`, `foreachBatch`, JSON and drain work without an RDD.

    Batches and streams of a classic session, with and without ids, add nothing when they are
    repeated through Connect in other partitions. A stream's last batch is repeated because its
    commit is lost.
    """
    lines = files(tmp_path / "in", 2, 300)
    single = files(tmp_path / "ids", 2, 150, equal=False)
    wanted = {"batch.ids": single, "stream.ids": single, "batch.numbered": lines}
    wanted |= {"batch.staged": lines, "stream.staged": lines}

    def check() -> None:
        for queue, expected in wanted.items():
            found = Counter(job.raw for job in ps.queue(queue).jobs(n=1000))
            assert found == expected, queue

    every_kind(spark, redis_url, str(tmp_path), 1)
    check()
    for name in ("ids", "staged"):
        forget_last(tmp_path / f"stream.{name}")
    (tmp_path / "connect").mkdir()
    started = driver(
        "tests.spark.programs:connected",
        master="connect:local[4]",
        url=redis_url,
        directory=str(tmp_path / "connect"),
        place=str(tmp_path),
    )
    assert started.result(400) == {
        "module": "pyspark.sql.connect.session",
        "written": list(range(100)),
        "selected": 100,
        "streamed": 100,
        "partition": 100,
        "counted": [
            {"rows": 100, "added": 100, "duplicates": 0},
            {"rows": 101, "added": 1, "duplicates": 100},
            {"rows": 100, "added": 100, "duplicates": 0},
            {"rows": 100, "added": 0, "duplicates": 100},
        ],
        "drained": 100,
        "output": 100,
        "batches": 8,
    }
    check()
    stats = ps.queue("in").stats()
    assert (stats.ready, stats.active) == (0, 0)
