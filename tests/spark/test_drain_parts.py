"""Group 2: draining a queue on two nodes, without and with partitions.

One server with partitions is a Redis Cluster's case (test_redis_cluster).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.embedded import EmbeddedServer, find_server
from penstock.spark import drain
from penstock.worker.results import Retry
from tests.spark.hands import close_all

QueueIdentity = tuple[Penstock, dict[str, str]]


@pytest.fixture(params=["nodes", "both"])
def place(request: pytest.FixtureRequest, redis_url: str) -> Iterator[QueueIdentity]:
    """A client, Spark's options, and the queue `mail` with 300 jobs."""
    count = None if request.param == "nodes" else 3
    with EmbeddedServer(find_server(), tcp=True) as other:
        urls = [redis_url, other.url]
        for url in urls:
            with Penstock(url) as one:
                one.queue("mail", partitions=count).enqueue_many(range(150))
        with Penstock(urls) as ps:
            yield ps, {"nodes": ",".join(urls)}
        close_all()


def half(job: Any) -> str:
    """Return half of an even number; fail for others."""
    if job.body % 2:
        raise Retry(3600, "odd")
    return str(job.body)


def test_every_job_is_done(spark: Any, place: QueueIdentity) -> None:
    """Tasks take from all shards; failures are recorded on the job's own shard."""
    ps, where = place
    report = drain(spark, queue="mail", handler=half, parallelism=2, **where)
    assert (report.taken, report.done, report.failed, report.lost) == (300, 150, 150, 0)
    stats = ps.open("mail").stats()
    assert (stats.ready, stats.active, stats.scheduled, stats.acked) == (0, 0, 150, 150)


def test_results_are_acknowledged_where_their_jobs_are(
    spark: Any, place: QueueIdentity, tmp_path: Path
) -> None:
    """The ids in the parquet have node and partition."""
    ps, where = place
    path = str(tmp_path / "out")
    report = drain(
        spark, queue="mail", handler=half, parallelism=2, ack="output", path=path, **where
    )
    assert (report.taken, report.done, report.failed, report.lost) == (300, 150, 150, 0)
    assert spark.read.parquet(path).select("id").distinct().count() == 150
    stats = ps.open("mail").stats()
    assert (stats.ready, stats.active, stats.scheduled, stats.acked) == (0, 0, 150, 150)


@pytest.mark.parametrize("place", ["both"], indirect=True)
def test_sources(spark: Any, place: QueueIdentity, tmp_path: Path) -> None:
    """These queues work as a table, and as a stream whose checkpoint has each shard."""
    ps, where = place
    table = spark.read.format("penstock").options(queue="mail", **where).load()
    assert {row.id for row in table.select("id").collect()} == {
        view.id for view in ps.open("mail").jobs()
    }
    stream = spark.readStream.format("penstock").options(
        # The second run finds the last batch of the first one, however long it takes to start.
        queue="mail",
        maxJobsPerTrigger=100,
        leaseDuration="1h",
        **where,
    )
    got: list[str] = []

    def keep(frame: Any, _: int) -> None:
        got.extend(row.id for row in frame.select("id").collect())

    def run() -> None:
        query = stream.load().writeStream.foreachBatch(keep)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    for _ in range(2):
        run()
    assert len(got) == len(set(got)) == 300
    stats = ps.open("mail").stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 300)
