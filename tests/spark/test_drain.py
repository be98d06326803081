"""Groups 2, 5 and 9: executors as workers."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from pyarrow import parquet

from penstock import BadArgument, Penstock, RetryPolicy
from penstock.spark import drain
from penstock.worker.handlers import Handlers
from penstock.worker.results import Retry
from tests.spark.support import wait_for


def nothing(job: Any) -> None:
    """Do nothing."""


def half(job: Any) -> float:
    """Return half of an even number; fail for others."""
    if job.body % 2:
        raise Retry(3600, "odd")
    return job.body / 2  # type: ignore[no-any-return]


def half_and_time(job: Any) -> tuple[float, datetime]:
    """Return two columns; fail as `half`."""
    return half(job), datetime(2026, 1, 1, tzinfo=timezone.utc)


def in_lists(jobs: list[Any]) -> list[Any]:
    """Return a result for each job."""
    return [f"{len(jobs) <= 10}" for _ in jobs]


def leave_a_mark(job: Any) -> None:
    """Count this job on the server."""
    url, key = job.headers["url"], job.headers["key"]
    with redis.Redis.from_url(url) as client:
        client.hincrby(key, job.body, 1)


def dies_once(job: Any) -> str:
    """Kill the first Python process that runs it."""
    client = redis.Redis.from_url(job.headers["url"])
    with client:
        count = client.hincrby("handled", job.body, 1)
        if job.body == 500 and client.set("died", 1, nx=True):
            os.kill(os.getpid(), signal.SIGKILL)
    return str(count)


def slow(job: Any) -> str:
    """Run longer than the lease."""
    time.sleep(2.5)
    return "done"


def test_every_job_is_done_and_counted(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Any number of tasks does every job; an empty or missing queue is no error."""
    jobs = ps.queue("mail")
    assert drain(spark, queue="mail", handler=nothing, url=redis_url).taken == 0
    jobs.enqueue_many(range(3000))
    report = drain(spark, queue="mail", handler=nothing, url=redis_url, parallelism=3)
    assert (report.taken, report.done, report.runs) == (3000, 3000, ())
    stats = jobs.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 3000)


def test_a_policy_decides_when_they_die(spark: Any, ps: Penstock, redis_url: str) -> None:
    """`max_attempts=1` means a single attempt."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(10))
    once = RetryPolicy(max_attempts=1)
    report = drain(spark, queue="mail", handler=half, url=redis_url, parallelism=2, retry=once)
    assert (report.done, report.dead, jobs.stats().dead) == (5, 5, 5)


def test_named_handlers_get_their_arguments(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Named handlers work as in a worker; a job with an unknown handler is given back."""
    handlers = Handlers()

    @handlers.handler("mark")
    def mark(url: str, key: str) -> None:
        with redis.Redis.from_url(url) as client:
            client.incr(key)

    jobs = ps.queue("mail")
    for _ in range(5):
        jobs.enqueue(mark.job(redis_url, key="marks"))
    jobs.enqueue("?", headers={"handler": "unknown"})
    report = drain(spark, queue="mail", handler=handlers, url=redis_url, parallelism=2)
    assert (report.done, report.dead, report.released) == (5, 0, 1)
    with redis.Redis.from_url(redis_url) as client:
        assert client.get("marks") == b"5"


def test_a_function_may_get_lists(spark: Any, ps: Penstock, redis_url: str, tmp_path: Path) -> None:
    """A function may get up to `size` jobs at once; it returns a result for each."""
    ps.queue("mail").enqueue_many(range(100))
    report = drain(
        *(spark,), queue="mail", handler=in_lists, size=10, url=redis_url, parallelism=2,
        ack="output", path=str(tmp_path / "out"),
    )  # fmt: skip
    assert report.done == 100
    rows = spark.read.parquet(*report.runs).groupBy("result").count().collect()
    assert [(row.result, row["count"]) for row in rows] == [("True", 100)]


def test_results_are_safe_before_the_ack(
    spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """Done jobs are in the parquet once, failed ones are not."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(1000))
    path = str(tmp_path / "out")
    report = drain(
        *(spark,), queue="mail", handler=half_and_time, url=redis_url, parallelism=2,
        ack="output", path=path, schema="value double, at timestamp",
    )  # fmt: skip
    assert (report.taken, report.done, report.failed) == (1000, 500, 500)
    found = spark.read.parquet(path)
    assert found.columns == ["id", "attempt", "receipts", "value", "at", "run"]
    [at] = found.selectExpr("unix_millis(at)").distinct().collect()
    assert at[0] == 1_767_225_600_000
    written = [parquet.ParquetFile(file).metadata for file in Path(path).rglob("*.parquet")]
    for group in (one.row_group(at) for one in written for at in range(one.num_row_groups)):
        encodings = [*group.column(0).encodings, *group.column(2).encodings]  # id and receipts
        assert not any("DICTIONARY" in encoding for encoding in encodings)
    assert sorted(row.value for row in found.select("value").collect()) == [*map(float, range(500))]
    stats = jobs.stats()
    assert (stats.ready, stats.active, stats.scheduled) == (0, 0, 500)


def test_a_lease_is_renewed_while_the_handler_works(
    spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """Handlers may run longer than the lease; no job is delivered twice."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(4), lease=2)
    report = drain(
        *(spark,), queue="mail", handler=slow, url=redis_url, parallelism=2,
        ack="output", path=str(tmp_path / "out"),
    )  # fmt: skip
    assert (report.taken, report.done, report.lost) == (4, 4, 0)
    assert jobs.stats().acked == 4


def test_rounds_and_a_limit(spark: Any, ps: Penstock, redis_url: str, tmp_path: Path) -> None:
    """Results are stored after each round; `max_jobs` bounds all rounds."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(64))

    def takes_a_while(job: Any) -> None:
        time.sleep(0.05)

    report = drain(
        *(spark,), queue="mail", handler=takes_a_while, url=redis_url, parallelism=2,
        ack="output", path=str(tmp_path / "out"), round_time=0.5, batch_size=4, max_jobs=41,
    )  # fmt: skip
    assert (report.taken, report.done) == (41, 41)
    assert len(report.runs) > 1
    assert jobs.stats().ready == 23
    report = drain(spark, queue="mail", handler=nothing, url=redis_url, parallelism=2, max_jobs=11)
    assert (report.taken, jobs.stats().ready) == (11, 12)


def test_jobs_at_most_once_and_jobs_settled_by_handlers(
    spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """A job with lease 0 is done at its delivery; a job settled by its handler stays so."""
    jobs = ps.queue("mail")
    jobs.enqueue("once", lease=0)
    jobs.enqueue("own")

    def settles(job: Any) -> str:
        if job.body == "own":
            job.bury("by itself")
        return "x"

    report = drain(
        *(spark,), queue="mail", handler=settles, url=redis_url, parallelism=1,
        ack="output", path=str(tmp_path / "out"),
    )  # fmt: skip
    assert (report.taken, report.done) == (2, 2)
    assert jobs.stats().dead == 1
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1


def test_a_killed_python_loses_nothing(
    spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """A killed process's block is delivered again after its leases; each result is
    in the output.
    """
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(1000), lease=3, headers={"url": redis_url})
    path = str(tmp_path / "out")
    options: dict[str, Any] = {
        "queue": "mail", "handler": dies_once, "url": redis_url, "parallelism": 2,
        "ack": "output", "path": path, "batch_size": 50, "hold": 10, "round_time": 2,
    }  # fmt: skip

    def once_more() -> bool:
        drain(spark, **options)
        stats = jobs.stats()  # a lease may end between the two calls, and make its job ready
        return stats.ready + stats.active + stats.scheduled == 0

    wait_for(once_more)
    assert jobs.stats().acked == 1000
    assert spark.read.parquet(path).select("id").distinct().count() == 1000
    with redis.Redis.from_url(redis_url) as client:
        assert client.hlen("handled") == 1000
        assert client.get("died")


def test_a_job_that_kills_its_worker_dies_alone(spark: Any, ps: Penstock, redis_url: str) -> None:
    """After two crashes a job is run alone; its third crash affects no other job."""
    jobs = ps.queue("mail")
    jobs.configure(max_crashes=3)
    jobs.enqueue_many([0, 1, 2, "killer", 4, 5], lease=0.5)

    def kills(job: Any) -> None:
        if job.body == "killer":
            os.kill(os.getpid(), signal.SIGKILL)

    def once_more() -> bool:
        drain(spark, queue="mail", handler=kills, url=redis_url, parallelism=1)
        stats = jobs.stats()
        return stats.ready + stats.active + stats.scheduled == 0

    wait_for(once_more)
    stats = jobs.stats()
    assert (stats.acked, stats.dead) == (5, 1)


@pytest.mark.parametrize(
    "schema, words",
    [
        ("x nonsense(", r"must be columns as DDL: \[[A-Z_.]+\] "),  # Spark's reason
        ("id int", "has the column 'id' twice"),
        ("x int, x int", "has the column 'x' twice"),
        ("Receipts int", "has the column 'Receipts' twice"),
    ],
)
def test_a_bad_schema_is_named(spark: Any, redis_url: str, schema: str, words: str) -> None:
    """An error before the first task has the argument, and the reason in one line."""
    with pytest.raises(BadArgument, match=words) as caught:
        drain(
            *(spark,), queue="mail", handler=nothing, url=redis_url, ack="output", path="out",
            schema=schema,
        )  # fmt: skip
    assert caught.value.argument == "schema"


@pytest.mark.parametrize("place", ["file", "link"])
def test_a_path_that_cannot_be_written(
    spark: Any, ps: Penstock, redis_url: str, tmp_path: Path, place: str
) -> None:
    """A file in place of a directory is found before jobs are reserved, other faults by tasks."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(10))
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "link").symlink_to(tmp_path / "nothing" / "here")
    path = str(tmp_path / place)
    with pytest.raises(BadArgument) as caught:
        drain(
            *(spark,), queue="mail", handler=nothing, url=redis_url, parallelism=2,
            ack="output", path=path,
        )  # fmt: skip
    assert (caught.value.argument, len(str(caught.value).splitlines())) == ("path", 1)
    assert f"{path}/run=" in str(caught.value)
    assert place == "link" or jobs.stats().ready == 10


def test_a_failed_task_is_not_blamed_on_the_path(
    spark: Any, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of the task, and no file says that the run has succeeded."""
    monkeypatch.setenv("ONLY_ON_THE_DRIVER", redis_url)
    with pytest.raises(Exception, match="ONLY_ON_THE_DRIVER") as caught:
        drain(
            *(spark,), queue="mail", handler=nothing, urlEnv="ONLY_ON_THE_DRIVER", parallelism=1,
            ack="output", path=str(tmp_path),
        )  # fmt: skip
    assert not isinstance(caught.value, BadArgument)
    assert not list(tmp_path.rglob("_SUCCESS"))
