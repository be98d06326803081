"""Group 13: a queue as sink and source, on the Spark of this environment: write, read, stream.

    python tests/spark/smoke.py

It needs penstock, PySpark and Java, but no other test module.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from penstock import Penstock
from penstock.embedded import EmbeddedServer, find_server
from penstock.spark import drain

ROWS = 2000


def main() -> None:
    """Read and write once in each way."""
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedServer(find_server(), tcp=True) as server,
        Penstock(server.url) as ps,
    ):
        spark = session(Path(directory))
        try:
            batch(spark, ps, server.url)
            stream(spark, ps, server.url, Path(directory))
            work(spark, ps, server.url)
        finally:
            spark.stop()
    print(f"pyspark {pyspark.__version__}: write, read, stream and drain of {ROWS} jobs each")  # noqa: T201


def session(directory: Path) -> Any:
    """Return a session with two slots and no web page."""
    import os

    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def batch(spark: Any, ps: Penstock, url: str) -> None:
    """Write twice under one name: the rows exist once, in both commit modes."""
    rows = spark.range(0, ROWS, 1, 3).selectExpr(
        "CAST(id AS STRING) AS id", "CAST(id AS STRING) AS payload"
    )
    for mode in ("direct", "staged"):
        queue = f"batch.{mode}"
        for _ in range(2):
            write = rows.write.format("penstock").mode("append").option("url", url)
            write.option("queue", queue).option("writeId", "load").option("commitMode", mode).save()
        assert ps.queue(queue).stats().ready == ROWS
        found = spark.read.format("penstock").option("url", url).option("queue", queue).load()
        assert found.where("state = 'ready'").select("payload").distinct().count() == ROWS
    assert ps.queue("batch.direct").stats().ready == ROWS  # reading took no job


def stream(spark: Any, ps: Penstock, url: str, directory: Path) -> None:
    """Stream from one queue into another; leases end with the checkpoint."""
    ps.queue("in").enqueue_many(str(number) for number in range(ROWS))

    def run() -> None:
        source = spark.readStream.format("penstock").option("url", url).option("queue", "in")
        jobs = source.option("maxJobsPerTrigger", ROWS).load().select("id", "payload")
        sink = jobs.writeStream.format("penstock").option("url", url).option("queue", "out")
        sink = sink.option("checkpointLocation", str(directory / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination(120)

    run()
    run()  # on 4.0 and 4.1 the next start acknowledges the last batch
    assert ps.queue("out").stats().ready == ROWS
    stats = ps.queue("in").stats()
    assert (stats.ready, stats.active) == (0, 0), stats


def len_of(job: Any) -> int:
    """Return the length of a body."""
    return len(job.raw)


def work(spark: Any, ps: Penstock, url: str) -> None:
    """Run the jobs in the executors."""
    report = drain(spark, queue="out", handler=len_of, url=url, parallelism=2)
    assert (report.done, ps.queue("out").stats().ready) == (ROWS, 0), report


if __name__ == "__main__":
    main()
