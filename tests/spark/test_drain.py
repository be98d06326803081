"""Groups 2, 5 and 9: executors as workers."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from penstock import BadArgument, Penstock, RetryPolicy
from penstock.core.ids import parse_id
from penstock.core.job import hinted_receipt, number_of, reservation_of
from penstock.embedded import EmbeddedServer
from penstock.spark import OptionError, drain, drain_task
from penstock.spark.drain_task import AckTask, DrainOutput, DrainTask, HeldJobs
from penstock.spark.errors import Unreachable
from penstock.spark.options import Connection
from penstock.worker import state
from penstock.worker.handlers import Handlers
from penstock.worker.results import Done, Reject, Retry, Snooze
from tests.spark.support import wait_for


def nothing(job: Any) -> None:
    """Do nothing."""


def half(job: Any) -> float:
    """Return half of an even number; fail for others."""
    if job.body % 2:
        raise Retry(3600, "odd")
    return job.body / 2  # type: ignore[no-any-return]


def of_each_kind(job: Any) -> Any:
    """Do what the body says."""
    word = job.body
    if word == "boom":
        raise RuntimeError("boom")
    if word == "exit":
        raise SystemExit(3)
    return {"reject": Reject("no"), "snooze": Snooze(60), "retry": Retry(60)}.get(word)


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


def test_failures_are_treated_as_a_worker_does(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Failed jobs are nacked with their text or result; the task continues."""
    jobs = ps.queue("mail")
    jobs.configure(backoff_base=6 * 3600)  # no failed job is due before the end of the test
    jobs.enqueue_many(["fine", "boom", "exit", "reject", "snooze", "retry"])
    report = drain(spark, queue="mail", handler=of_each_kind, url=redis_url, parallelism=1)
    assert (report.done, report.failed, report.dead, report.released) == (1, 3, 1, 1)
    errors = {view.body: view.error for view in jobs.scan_iter(states=["scheduled"])}
    assert errors["boom"] == "RuntimeError: boom"
    assert errors["exit"] == "SystemExit: 3"
    assert set(errors) == {"boom", "exit", "snooze", "retry"}


def test_a_policy_decides_when_they_die(spark: Any, ps: Penstock, redis_url: str) -> None:
    """`max_attempts=1` means a single attempt."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(10))
    once = RetryPolicy(max_attempts=1)
    report = drain(spark, queue="mail", handler=half, url=redis_url, parallelism=2, retry=once)
    assert (report.done, report.dead, jobs.stats().dead) == (5, 5, 5)


def test_named_handlers_get_their_arguments(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Named handlers work as in a worker; a job with an unknown handler is buried."""
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
    assert (report.done, report.dead) == (5, 1)
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
        *(spark,), queue="mail", handler=half, url=redis_url, parallelism=2,
        ack="output", path=path, schema="value double",
    )  # fmt: skip
    assert (report.taken, report.done, report.failed) == (1000, 500, 500)
    found = spark.read.parquet(path)
    assert found.columns == ["id", "attempt", "receipts", "value", "run"]
    assert sorted(row.value for row in found.select("value").collect()) == [*map(float, range(500))]
    stats = jobs.stats()
    assert (stats.ready, stats.active, stats.scheduled) == (0, 0, 500)


def test_columns_and_windows(spark: Any, ps: Penstock, redis_url: str, tmp_path: Path) -> None:
    """Tuples and dicts become columns; an unfit result, and next jobs, fail only their own job."""
    following = Handlers()

    @following.handler("next")
    def follow() -> None:
        """Never run."""

    def shaped(job: Any) -> Any:
        return {
            "tuple": (1, "a"), "dict": {"text": "b"}, "none": None,
            "window": Done((2, "c"), dedup_window=3600), "next": Done(then=[follow.job()]),
            "strange": {"other": 1}, "wrong": ("x", "y"), "short": (1,),
        }[job.body]  # fmt: skip

    jobs = ps.queue("mail")
    for word in ("tuple", "dict", "none", "window", "strange", "wrong", "short", "next"):
        jobs.enqueue(word, dedup_id=word)
    report = drain(
        *(spark,), queue="mail", handler=shaped, url=redis_url, parallelism=1,
        ack="output", path=str(tmp_path / "out"), schema="number int, text string",
    )  # fmt: skip
    assert (report.done, report.failed, report.lost) == (4, 4, 0)
    rows = spark.read.parquet(str(tmp_path / "out")).select("number", "text").collect()
    assert sorted(map(str, map(tuple, rows))) == sorted(
        ["(1, 'a')", "(None, 'b')", "(None, None)", "(2, 'c')"]
    )
    status = jobs.status("window")
    assert status is not None
    assert status.state == "window"
    assert jobs.status("tuple") is None


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
        ack="output", path=str(tmp_path / "out"), round_time=0.5, batch_size=4, max_jobs=40,
    )  # fmt: skip
    assert (report.taken, report.done) == (40, 40)
    assert len(report.runs) > 1
    assert jobs.stats().ready == 24
    report = drain(spark, queue="mail", handler=nothing, url=redis_url, parallelism=2, max_jobs=10)
    assert (report.taken, jobs.stats().ready) == (10, 14)


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


def test_an_interrupt_ends_a_task(ps: Penstock, redis_url: str) -> None:
    """An interrupt (SIGINT) ends the task and is no failure of its jobs, which are released."""
    jobs, handlers = ps.queue("mail"), Handlers()
    jobs.enqueue_many([1, 2])

    @handlers.handler(None)
    def interrupted(job: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        while not job.lost:
            time.sleep(0.01)

    connection = Connection.parse({"queue": "mail", "url": redis_url})
    with pytest.raises(KeyboardInterrupt):
        list(DrainTask(connection, (), handlers, 10).run([]))
    assert (jobs.stats().ready, jobs.stats().active, jobs.stats().nacked) == (2, 0, 0)


def test_a_failed_job_at_most_once_is_counted(ps: Penstock, redis_url: str) -> None:
    """A job that was delivered at most once and has failed counts as dead."""
    jobs, handlers = ps.queue("mail"), Handlers()
    jobs.enqueue_many([1, 2], lease=0)

    @handlers.handler(None)
    def fails(job: Any) -> None:
        raise ValueError("no")

    connection = Connection.parse({"queue": "mail", "url": redis_url})
    [figures] = DrainTask(connection, (), handlers, 10).run([])
    assert figures.to_pylist() == [{"receipts": "2 0 0 2 0 0 0"}]  # taken, done, failed, dead …


def test_failures_are_logged_as_samples(
    ps: Penstock, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of many alike failures a few are logged."""
    jobs, handlers = ps.queue("mail"), Handlers()
    jobs.configure(backoff_base=6 * 3600)  # no failed job is due again
    jobs.enqueue_many(range(300))

    @handlers.handler(None)
    def fails(job: Any) -> None:
        raise ValueError("no")

    connection = Connection.parse({"queue": "mail", "url": redis_url})
    [figures] = DrainTask(connection, (), handlers, 10).run([])
    assert figures.to_pylist() == [{"receipts": "300 0 300 0 0 0 0"}]
    found = [record for record in caplog.records if "failed" in record.getMessage()]
    assert 1 <= len(found) < 30


def test_a_server_that_is_gone_fails_the_task(
    make_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task fails when the server does not answer any more, so that Spark can try it again."""
    monkeypatch.setattr(drain_task, "SILENCE", 0.1)
    monkeypatch.setattr(state, "HEALTHY", 2.0)
    server = make_server(args=(), tcp=True)
    handlers = Handlers()
    with Penstock(server.url) as client:
        client.queue("mail").enqueue_many(range(3))

    @handlers.handler(None)
    def kills(job: Any) -> None:
        server.kill()

    connection = Connection.parse({"queue": "mail", "url": server.url, "retryFor": "0"})
    with pytest.raises(Unreachable, match="does not answer"):
        list(DrainTask(connection, (), handlers, 10).run([]))


def test_a_task_that_ends_early_stops_its_worker(ps: Penstock, redis_url: str) -> None:
    """When Spark wants no more rows, the worker ends, and jobs that have not begun are released."""
    jobs, handlers = ps.queue("mail"), Handlers()
    jobs.enqueue_many(range(100))

    @handlers.handler(None)
    def waits(job: Any) -> None:
        while job.body and not job.lost:
            time.sleep(0.01)

    output = DrainOutput([pa.field("result", pa.string())], True, 60.0, 600_000)
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    rows = DrainTask(connection, (), handlers, 10, output=output).run([])
    assert len(next(rows)) == 1
    rows.close()
    assert not [one for one in threading.enumerate() if one.name.startswith(ps.owner)]
    assert (jobs.stats().ready, jobs.stats().active) == (99, 1)


def test_the_rows_of_a_batch_come_with_the_receipts_of_their_jobs(
    ps: Penstock, redis_url: str
) -> None:
    """Only jobs whose rows are in the output are acknowledged; the others are held for `hold`."""
    jobs, handlers = ps.queue("mail"), Handlers()
    jobs.enqueue_many(range(20))
    jobs.enqueue_many(range(20, 30), lease=2000)
    jobs.nack(jobs.reserve(2), delay=0)  # their receipts differ
    jobs.enqueue(30, lease=0)  # at most once: without a receipt
    goes_on = threading.Event()

    @handlers.handler(None)
    def waits(job: Any) -> Any:
        if job.body == 7:
            goes_on.wait()
        return Done("done", dedup_window=60) if job.body == 9 else "done"

    output = DrainOutput([pa.field("result", pa.string())], True, 3600.0, 36_000_000)
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    batches, began = [], time.time()
    for batch in DrainTask(connection, (), handlers, 10, output=output).run([]):
        batches.append(batch)
        goes_on.set()
    *batches, _ = batches
    assert len(batches) > 1
    held = [view for view in jobs.scan_iter(states=["active"]) if view.lease]
    assert len(held) == 30
    assert all(view.lease_until and view.lease_until > began + 35_000 for view in held)
    for batch in batches:
        *others, text = batch.column("receipts").to_pylist()
        assert not any(others)
        numbers = [n for one in json.loads(text) for n in HeldJobs(*one).numbers.split()]
        ids = [parse_id(one) for one in batch.column("id").to_pylist()]
        leased = [one.number.decode() for one in ids if not one.at_most_once]
        assert sorted(numbers) == sorted(leased)
    kept = batches[0].num_rows - sum(
        parse_id(one).at_most_once for one in batches[0].column("id").to_pylist()
    )
    [told] = AckTask(connection, ()).run(
        [batches[0].select(["receipts"]).slice(len(batches[0]) - 1)]
    )
    assert told.to_pylist() == [{"receipts": f"0 {kept} 0 0 0 0 0"}]
    assert (jobs.stats().acked, jobs.stats().active) == (kept, 31 - kept)


def test_the_jobs_of_a_reserve_are_found_by_one_range(ps: Penstock, redis_url: str) -> None:
    """The receipts tell the server when the leases end, so it need not look up each job."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(20))
    held = jobs.reserve(20)
    place, receipt = reservation_of(held[0]).place, hinted_receipt(held[0])
    numbers = b" ".join(map(number_of, held)).decode()
    text = json.dumps([HeldJobs(place.node, place.packed.hex(), receipt, None, numbers)])
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    with redis.Redis.from_url(redis_url) as server:
        server.config_resetstat()
        list(AckTask(connection, ()).run([pa.record_batch({"receipts": [text]})]))
        assert server.info("commandstats").keys().isdisjoint({"cmdstat_zmscore", "cmdstat_zrem"})
    assert jobs.stats().acked == 20


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
    "changes, named",
    [
        ({"ack": "never"}, "ack"),
        ({"parallelism": 0}, "parallelism"),
        ({"batch_size": 1001}, "batch_size"),
        ({"max_jobs": 5}, "max_jobs"),
        ({"size": 0}, "size"),
        ({"handler": 5}, "function"),
        ({"handler": Handlers()}, "handler"),
        ({"handler": Handlers(), "size": 3}, "size"),
        ({"ack": "output"}, "path"),
        ({"path": "out"}, "path"),
        ({"schema": "x int"}, "schema"),
        ({"ack": "output", "path": "out", "schema": "x nonsense("}, "schema"),
        ({"ack": "output", "path": "out", "schema": "id int"}, "schema"),
        ({"ack": "output", "path": "out", "hold": 1}, "hold"),
        ({"maxJobsPerTrigger": 5}, "maxJobsPerTrigger"),
        ({"secret": "hidden"}, "secret"),
        ({"url": "nonsense"}, "url"),
        ({"queue": ""}, "queue"),
    ],
)
def test_bad_arguments_are_named(
    spark: Any, redis_url: str, changes: dict[str, Any], named: str
) -> None:
    """An error before the first task has the argument, but not the value of an unknown one."""
    arguments = {"queue": "mail", "handler": nothing, "url": redis_url, **changes}
    with pytest.raises(BadArgument) as caught:
        drain(spark, **arguments)
    assert caught.value.argument == named
    assert "hidden" not in str(caught.value)


def test_coroutines_are_refused(spark: Any, redis_url: str) -> None:
    """Coroutine functions are refused, as a task would not run them."""

    async def later(job: Any) -> None:
        """Never run."""

    with pytest.raises(BadArgument, match="coroutines"):
        drain(spark, queue="mail", handler=later, url=redis_url)


def test_an_unreachable_server_is_reported_by_the_driver(spark: Any) -> None:
    """An unreachable server raises before a task starts."""
    with pytest.raises(Unreachable):
        drain(spark, queue="mail", handler=nothing, url="redis://127.0.0.1:1", retryFor="0s")


def test_no_server_is_usual(spark: Any) -> None:
    """A server must be named."""
    with pytest.raises(OptionError, match="url"):
        drain(spark, queue="mail", handler=nothing)
