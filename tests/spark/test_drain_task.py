"""The tasks of a drain, in this process: without Spark."""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import redis

from penstock import Penstock, Queue, RetryPolicy
from penstock.core.jobs.job import number_of, receipt_with_end, reservation_of
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.values.ids import parse_id
from penstock.embedded import EmbeddedServer
from penstock.spark import drain_results, drain_task
from penstock.spark.drain_acks import AckTask
from penstock.spark.drain_results import DrainOutput, DrainResults, HeldJobs
from penstock.spark.drain_task import DrainTask
from penstock.spark.errors import Unreachable, WrongServer
from penstock.spark.operations import delivery_maker
from penstock.spark.options import Connection
from penstock.worker import Worker, state
from penstock.worker.handlers import Handlers
from penstock.worker.results import Done, Reject, Retry, Snooze

make_delivery = delivery_maker("mail", "1f2e3d4c", 1, "a1b2c3d4", "1-0ab")


def nothing(job: Any) -> None:
    """Do nothing."""


def one_column(kind: Any = None) -> tuple[Any, DrainResults]:
    """Return a handler, and the results of a task with one column; without a kind it is text."""
    handlers = Handlers()
    handlers.handler(None)(nothing)
    [handler] = handlers
    output = DrainOutput([pa.field("r", kind or pa.string())], kind is None, 3600.0, 600_000)
    return handler, DrainResults(output)


def test_failures_are_treated_as_a_worker_does(ps: Penstock, redis_url: str) -> None:
    """Failed jobs are nacked with their text or result; the task continues, and counts them."""
    jobs, handlers = ps.queue("mail"), Handlers()
    jobs.configure(backoff_base=6 * 3600)  # no failed job is due before the end of the test

    @handlers.handler(None)
    def of_each_kind(job: Any) -> Any:
        if job.body == "boom":
            raise RuntimeError("boom")
        if job.body == "exit":
            raise SystemExit(3)
        if job.body == "own":
            job.ack()
        if job.body == "lost":
            jobs.delete([job.id])
        if job.body == "cancelled":
            jobs.cancel([job.id])
            while not job.cancelled:
                time.sleep(0.01)
        results = {"reject": Reject("no"), "snooze": Snooze(60), "retry": Retry(60)}
        return results.get(job.body)

    words = ["fine", "boom", "exit", "reject", "snooze", "retry", "own", "lost", "cancelled"]
    jobs.enqueue_many(words)
    jobs.enqueue("boom", retry=RetryPolicy(max_attempts=1))
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    [figures] = DrainTask(connection, (), handlers, 10).run([])
    assert figures.to_pylist() == [{"receipts": "10 2 3 2 2 1 0"}]  # taken, done, failed, dead …
    errors = {view.body: view.error for view in jobs.jobs(state=["scheduled"])}
    assert errors["boom"] == "RuntimeError: boom"
    assert errors["exit"] == "SystemExit: 3"
    assert set(errors) == {"boom", "exit", "snooze", "retry"}


def test_columns_and_windows(ps: Penstock, redis_url: str) -> None:
    """Tuples and dicts become columns; an unfit result, and next jobs, fail only their own job."""
    jobs, handlers, following = ps.queue("mail"), Handlers(), Handlers()

    @following.handler("next")
    def follow() -> None:
        """Never run."""

    values = {
        "tuple": (1, "a"), "dict": {"text": "b"}, "none": None, "class": Done,
        "window": Done((2, "c"), dedup_window=3600), "next": Done(then=[follow.job()]),
        "strange": {"other": 1}, "wrong": ("x", "y"), "short": (1,), "retry": Retry(60),
    }  # fmt: skip
    handlers.handler(None)(lambda job: values[job.body])
    for word in values:
        jobs.enqueue(word, dedup_id=word)
    fields = [pa.field("number", pa.int32()), pa.field("text", pa.string())]
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    *found, figures = DrainTask(
        connection, (), handlers, 10, output=DrainOutput(fields, False, 3600.0, 600_000)
    ).run([])
    assert figures.column("receipts").to_pylist() == ["10 0 5 0 0 0 0"]
    batch = pa.Table.from_batches(found)
    rows = zip(*(batch[name].to_pylist() for name in ("number", "text")), strict=True)
    assert list(rows) == [(1, "a"), (None, "b"), (None, None), (None, None), (2, "c")]
    errors = {view.body: view.error for view in jobs.jobs(state=["scheduled"])}
    for word, text in {
        "next": "Done(then=...) works only with", "strange": "no column 'other'",
        "wrong": "convert 'x'", "short": "a tuple of 2, or a dict, not tuple", "retry": "",
    }.items():  # fmt: skip
        assert text in errors.pop(word)
    assert not errors
    receipts = batch.select(["receipts"]).drop_null().to_batches()
    [told] = AckTask(connection, ()).run(receipts)
    assert told.to_pylist() == [{"receipts": "0 5 0 0 0 0 0"}]
    status = jobs.dedup_status("window")
    assert status is not None
    assert status.state == "window"
    assert jobs.dedup_status("tuple") is None
    assert jobs.dedup_status("dict") is None


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


def test_only_records_about_jobs_are_samples() -> None:
    """Each other record of the log passes the filter, however often it comes."""
    is_sample = drain_task.sample_filter()
    about_job, other = (logging.makeLogRecord({"msg": "no"}) for _ in range(2))
    about_job.job_id = "D-1"
    assert [is_sample(about_job) for _ in range(3)] == [True, False, False]
    assert [is_sample(other) for _ in range(3)] == [True, True, True]


class Watched:
    """A worker as `watch` sees it: unhealthy, unless `is_healthy` is set."""

    def __init__(self) -> None:
        self.stopping, self.is_healthy, self.calls = False, False, list[Any]()

    def on_stop(self, call: Callable[[], None]) -> None:
        self.end = call

    def healthy(self) -> bool:
        return self.is_healthy

    def start(self) -> None:
        self.calls.append("start")

    def stop(self, grace: float) -> None:
        self.calls.append(grace)

    def join(self) -> None:
        self.calls.append("join")
        raise RuntimeError("the worker's own")


def test_a_worker_may_be_unhealthy_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task fails when it has been unhealthy for longer than that without a break."""
    clock, worker = [0.0], Watched()
    monkeypatch.setattr(drain_task, "monotonic", lambda: clock[0])
    monkeypatch.setattr(drain_task, "WORKER_LOOK_INTERVAL", 0.0)
    looks: Any = drain_task.watch(worker, math.inf)  # type: ignore[arg-type]  # a double
    for clock[0], worker.is_healthy in ((8, False), (9, True), (18, False), (19, False)):
        next(looks)
    worker.join = lambda: None  # type: ignore[method-assign]  # a double
    next(looks)
    clock[0] = 20
    with pytest.raises(Unreachable):
        next(looks)
    assert worker.calls == ["start", 0]


def test_the_error_of_a_worker_fails_the_task() -> None:
    """It is raised before the last look, and so before the figures."""
    worker = Watched()
    looks: Any = drain_task.watch(worker, math.inf)  # type: ignore[arg-type]  # a double
    next(looks)
    worker.end()
    with pytest.raises(RuntimeError, match="the worker's own"):
        next(looks)


def test_a_server_that_is_gone_fails_the_task(
    make_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task fails when the server does not answer any more, so that Spark can try it again."""
    monkeypatch.setattr(drain_task, "MAX_UNHEALTHY_SECONDS", 0.1)
    monkeypatch.setattr(state, "HEALTHY_SECONDS", 2.0)
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


@pytest.mark.parametrize("quick, later", [(3600.0, 9), (-1.0, 1)])
def test_a_task_takes_its_share(
    ps: Penstock, redis_url: str, monkeypatch: pytest.MonkeyPatch, quick: float, later: int
) -> None:
    """A task takes at most its share. It holds many jobs only if it does the first ones quickly."""
    jobs, handlers, told = ps.queue("mail"), Handlers(), list[Any]()
    handlers.handler(None)(nothing)

    class Recorder(Worker):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            told.append((options["prefetch"], options["max_jobs"]))

    monkeypatch.setattr(drain_task, "Worker", Recorder)
    monkeypatch.setattr(drain_task, "FIRST_HELD_JOBS", 2)
    monkeypatch.setattr(drain_task, "TRIAL_JOBS", 2)
    monkeypatch.setattr(drain_task, "QUICK_TRIAL_SECONDS", quick)
    jobs.enqueue_many(range(9))
    connection = Connection.parse({"queue": "mail", "url": redis_url})

    def run(*shares: int, size: int = 10) -> str:
        told.clear()
        [figures] = DrainTask(connection, (), handlers, size, shares).run([])
        text: str = figures.to_pylist()[0]["receipts"]
        return text

    assert run(5) == "5 5 0 0 0 0 1"
    assert told == [(1, 2), (later, 3)]
    assert run(1, size=1) == "1 1 0 0 0 0 1"
    assert told == [(0, 1)]
    assert run(0) == "0 0 0 0 0 0 1"
    assert run() == "3 3 0 0 0 0 0"
    assert told == [(1, 2), (later, None)]


def test_tasks_that_reach_another_server(ps: Penstock, redis_url: str) -> None:
    """A task that reaches none of the driver's nodes takes and acknowledges nothing."""
    ps.queue("mail").enqueue(1)
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    for task in (DrainTask(connection, ("ffffffff",), Handlers(), 10), AckTask(connection, ("f",))):
        with pytest.raises(WrongServer):
            list(task.run([]))


def test_a_round_ends_when_its_time_is_over(
    ps: Penstock, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose time is over ends, tells that it was cut, and leaves the other jobs."""
    jobs, handlers, stopped = ps.queue("mail"), Handlers(), threading.Event()
    jobs.enqueue_many(range(100))

    class Recorder(Worker):
        def stop(self, *args: Any) -> None:
            super().stop(*args)
            stopped.set()

    @handlers.handler(None)
    def waits(job: Any) -> None:
        if job.body == 7:
            stopped.wait(20)

    monkeypatch.setattr(drain_task, "Worker", Recorder)
    output = DrainOutput([pa.field("result", pa.string())], True, 0.0, 600_000)
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    *batches, figures = DrainTask(connection, (), handlers, 10, output=output).run([])
    taken = sum(map(len, batches))
    assert 1 <= taken < 100  # the worker begins jobs until it sees that it has to stop
    assert figures.column("receipts").to_pylist() == [f"{taken} 0 0 0 0 0 1"]
    assert (jobs.stats().ready, jobs.stats().active) == (100 - taken, taken)


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
    held = [view for view in jobs.jobs(state=["active"]) if view.lease]
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


def test_results_of_jobs_with_terms_of_their_own(
    ps: Penstock, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short leases are renewed; results of jobs that are lost, or not done, are dropped."""
    extended = list[Any]()
    extend = Queue.extend

    def recorded(self: Queue, names: Any, lease: Any = None, *, late: bool = False) -> Any:
        extended.append((len(names), lease, late))
        return extend(self, names, lease, late=late)

    monkeypatch.setattr(Queue, "extend", recorded)
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(3))
    jobs.nack(jobs.reserve(1), delay=0)  # body 0
    jobs.enqueue_many(range(3, 6), lease=30)
    jobs.enqueue(6, lease=0)
    jobs.enqueue(7, ttl=3600)
    jobs.enqueue_many(["settled", "lost", "cancelled", "reject", "error"])
    for body in (8, 9, 10):
        jobs.enqueue(body, dedup_id=str(body))
    by_body = {job.body: job for job in jobs.reserve(13)}
    others = jobs.reserve(10)  # with another receipt
    by_body["settled"].settled = by_body["lost"].lost = by_body["cancelled"].cancelled = True
    values: dict[Any, Any] = {"reject": Reject("no"), "error": ValueError("no")}
    values[8] = Done("8", dedup_window=60)
    handlers = Handlers()
    handlers.chunk(None, size=100)(nothing)
    [handler] = handlers
    results = DrainResults(DrainOutput([pa.field("r", pa.string())], True, 3600.0, 600_000))
    for held in (list(by_body.values()), others):
        results.take(handler, held, tuple(values.get(job.body, str(job.body)) for job in held))
    by_body.update({job.body: job for job in others})
    jobs.delete([by_body[4].id])
    batch = results.batch(jobs)
    assert batch is not None
    rows = {int(row["r"]): row for row in batch.to_pylist()}
    assert sorted(rows) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    for body, row in rows.items():
        assert (row["id"], row["attempt"]) == (by_body[body].id, by_body[body].attempt)
    assert (results.kept, results.lost) == (10, 1)
    assert sorted(extended) == [(1, 600.0, True), (3, 600.0, True)]
    leases = {view.body: view.lease_until for view in jobs.jobs(state=["active"])}
    assert all(leases[body] - time.time() > 300 for body in (3, 5, 7))
    assert results.batch(jobs) is None
    jobs.delete([by_body[2].id])
    receipts = batch.select(["receipts"]).slice(len(batch) - 1)
    [told] = AckTask(Connection.parse({"queue": "mail", "url": redis_url}), ()).run([receipts])
    assert told.to_pylist() == [{"receipts": "0 8 0 0 0 1 0"}]
    assert jobs.stats().acked == 8
    status = jobs.dedup_status("8")
    assert status is not None
    assert status.window_ends is not None
    assert status.window_ends - time.time() < 3600
    assert jobs.dedup_status("9") is None


def test_a_job_that_is_lost_before_its_row_is_written(
    ps: Penstock, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task drops its result, and counts it as lost."""
    jobs, handlers, take = ps.queue("mail"), Handlers(), DrainResults.take

    def taken(self: DrainResults, handler: Any, held: Any, value: Any) -> None:
        take(self, handler, held, value)
        if held[0].body == 1:
            jobs.delete([held[0].id])

    monkeypatch.setattr(DrainResults, "take", taken)
    monkeypatch.setattr(
        drain_task, "WORKER_LOOK_INTERVAL", 3600.0
    )  # the only look follows the last job
    handlers.handler(None)(nothing)
    jobs.enqueue_many([1, 2], lease=60)
    output = DrainOutput([pa.field("result", pa.string())], True, 3600.0, 600_000)
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    batch, figures = DrainTask(connection, (), handlers, 10, output=output).run([])
    assert len(batch) == 1
    assert figures.column("receipts").to_pylist() == ["2 0 0 0 0 1 0"]


def test_a_page_whose_jobs_are_all_lost(ps: Penstock) -> None:
    """There is no batch, and the jobs are counted."""
    jobs, (handler, results) = ps.queue("mail"), one_column()
    jobs.enqueue(1, lease=60)
    [job] = jobs.reserve(1)
    results.take(handler, [job], None)
    jobs.delete([job.id])
    assert results.batch(jobs) is None
    assert (results.kept, results.lost) == (1, 1)


def test_jobs_of_a_node_that_is_down(
    ps: Penstock, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are written, as they may be held; acks that another node keeps count as done."""
    jobs, (handler, results) = ps.queue("mail"), one_column()
    jobs.enqueue_many(range(3), lease=60)
    for job in jobs.reserve(3):
        results.take(handler, [job], str(job.body))
    told = [Outcome.UNKNOWN, Outcome.DONE, Outcome.GONE]
    monkeypatch.setattr(Queue, "extend", lambda *_, **__: told)
    batch = results.batch(jobs)
    assert batch is not None
    assert batch.column("r").to_pylist() == ["0", "1"]
    assert results.lost == 1

    def acked(_: Queue, held: Any, **__: Any) -> Settled:
        return Settled(held, [Outcome.HINTED, Outcome.UNKNOWN])

    monkeypatch.setattr(Queue, "ack", acked)
    receipts = batch.select(["receipts"]).slice(len(batch) - 1)
    [figures] = AckTask(Connection.parse({"queue": "mail", "url": redis_url}), ()).run([receipts])
    assert figures.to_pylist() == [{"receipts": "0 1 0 0 0 1 0"}]


def finished(ps: Penstock, url: str, age: float = 0.0) -> tuple[Any, Callable[[], str]]:
    """Take all jobs that can be taken, and keep their results.

    Return a function that passes the results on, and one that acknowledges what was passed on.
    """
    jobs, handlers, passed = ps.queue("mail"), Handlers(), list[pa.RecordBatch]()
    handlers.handler(None)(nothing)
    [handler] = handlers
    results = DrainResults(DrainOutput([pa.field("r", pa.string())], True, 3600.0, 600_000))
    for job in jobs.reserve(10):
        results.take(handler, [job], None)

    def pass_on() -> DrainResults:
        batch = results.batch(jobs)
        passed.extend([] if batch is None else [batch.select(["receipts"]).slice(len(batch) - 1)])
        return results

    def acknowledged() -> str:
        task = AckTask(Connection.parse({"queue": "mail", "url": url}), (), age)
        return str(next(task.run(passed)).column(0)[0])

    return pass_on, acknowledged


@pytest.mark.parametrize(
    "settings, figures",
    [
        ({}, "0 3 0 0 0 0 0"),
        ({"ordered": True}, "0 1 0 0 0 0 1"),
        ({"per_key": 2}, "0 2 0 0 0 0 1"),
        ({"rate": "1/h"}, "0 1 0 0 0 0 0"),
    ],
)
def test_acks_that_free_jobs_ask_for_another_round(
    settings: dict[str, Any], figures: str, ps: Penstock, redis_url: str
) -> None:
    """Jobs of a key are parked until then. A rate that is used up ends the drain."""
    jobs = ps.queue("mail")
    jobs.configure(**settings)
    jobs.enqueue_many(range(3), key="customer:7")
    pass_on, acknowledged = finished(ps, redis_url)
    pass_on()
    assert acknowledged() == figures


def test_jobs_that_are_added_meanwhile_ask_for_no_other_round(ps: Penstock, redis_url: str) -> None:
    """A drain of a queue in use ends: only jobs count that are older than the drain."""
    jobs = ps.queue("mail")
    with jobs.batch(then=b"all done") as batch:
        batch.enqueue(1)
        batch.enqueue(3, delay=60)  # the batch waits for it
    pass_on, acknowledged = finished(ps, redis_url, age=60)
    pass_on()
    jobs.enqueue(2)
    assert acknowledged() == "0 1 0 0 0 0 0"


def test_acks_that_free_a_callback_ask_for_another_round(ps: Penstock, redis_url: str) -> None:
    """The callback of a batch is ready when all its jobs are acknowledged."""
    with ps.queue("mail").batch(then=b"all done") as batch:
        batch.enqueue_many(range(3))
    pass_on, acknowledged = finished(ps, redis_url)
    pass_on()
    assert acknowledged() == "0 3 0 0 0 0 1"


def test_results_of_a_queue_that_was_made_anew(
    ps: Penstock, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their jobs are lost: before the output has them, while it is written, and after that."""
    jobs = ps.queue("mail")

    def make_anew() -> None:
        ps.clear(["mail"])
        jobs.enqueue(1, lease=60)

    make_anew()
    pass_on, _ = finished(ps, redis_url)
    make_anew()
    assert pass_on().lost == 1
    pass_on, acknowledged = finished(ps, redis_url)
    pass_on()
    make_anew()
    monkeypatch.setattr(drain_results, "monotonic", lambda: math.inf)  # leases are renewed
    assert pass_on().lost == 0
    assert acknowledged().startswith("0 0 0 0 0 1")
    assert jobs.stats().ready == 1


def test_leases_are_renewed_until_the_task_ends(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs whose results were passed on get a new lease in each sixth of `hold`.

    So do jobs that are past the half of their ttl.
    """
    told, extend = list[bool](), Queue.extend

    def recorded(self: Queue, names: Any, lease: Any, *, late: bool = False) -> Any:
        told.append(late)
        return extend(self, names, lease, late=late)

    clock = [0.0]
    monkeypatch.setattr(drain_results, "monotonic", lambda: clock[0])
    jobs, (handler, results) = ps.queue("mail"), one_column()
    jobs.enqueue_many(range(2))
    held = jobs.reserve(2)
    for job in held:
        results.take(handler, [job], None)
        results.batch(jobs)
    monkeypatch.setattr(Queue, "extend", recorded)
    for clock[0], is_renewed in ((99, False), (101, True), (150, False), (202, True)):
        jobs.extend(held, 30)
        results.batch(jobs)
        for view in jobs.jobs(state=["active"]):
            assert (view.lease_until - time.time() > 300) is is_renewed
    assert told.count(True) == 2


def test_handlers_wait_while_many_results_wait_for_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes all results, and the handlers go on."""
    waits = threading.Event()

    class Room(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait()

    monkeypatch.setattr(drain_results, "Event", Room)
    monkeypatch.setattr(drain_results, "MAX_WAITING_RESULTS", 1)
    handler, results = one_column()

    def handle() -> None:
        for number in range(5):
            results.take(handler, [make_delivery(b"1795000000000-%010d" % number)], None)

    runner = threading.Thread(target=handle, daemon=True)
    runner.start()
    for _ in range(2):
        assert waits.wait(20)
        waits.clear()
        batch = results.batch(mock.Mock())
        assert batch is not None
        assert len(batch) == 2
    runner.join(20)
    assert not runner.is_alive()


@pytest.mark.parametrize(
    "kind, value, told",
    [
        (None, "é", "é"),
        (None, {"é": 1}, '{"é": 1}'),
        (None, {1}, TypeError),
        (pa.string(), "\ud800", TypeError),
        (pa.string(), 5, TypeError),
        (pa.int64(), -(2**63), -(2**63)),
        (pa.int64(), 2**63, TypeError),
        (pa.list_(pa.int64()), [1, 2], [1, 2]),
        (pa.int64(), (1,), 1),
        (pa.int64(), [1], TypeError),
        (pa.int64(), (1, 2), TypeError),
    ],
)
def test_values_of_one_column(kind: Any, value: Any, told: Any) -> None:
    """The only column takes the value itself; without a schema it is text, or becomes JSON."""
    handler, results = one_column(kind)
    job = make_delivery(b"1795000000000-0000000001")
    if told is TypeError:
        with pytest.raises(TypeError, match=r"does not fit the columns of the schema: ."):
            results.take(handler, [job], value)
        assert results.batch(mock.Mock()) is None
    else:
        results.take(handler, [job], value)
        batch = results.batch(mock.Mock())
        assert batch is not None
        assert batch.column("r").to_pylist() == [told]


@pytest.mark.parametrize(
    "value, is_done",
    [
        (None, True),
        (Done, True),
        (Done(None), True),
        (Retry, False),
        (Retry(), False),
        (ValueError(), False),
    ],
    ids=repr,
)
def test_results_without_a_value(value: Any, is_done: bool) -> None:
    """A job that is done has a row of nulls, and one that is not done has none."""
    handler, results = one_column(pa.int64())
    job = make_delivery(b"1795000000000-0000000001")
    results.take(handler, [job], value)
    batch = results.batch(mock.Mock())
    rows = [] if batch is None else batch.column("r").to_pylist()
    assert (job.settled, rows) == (is_done, [None] if is_done else [])


@pytest.mark.parametrize("value", [5, "ab", (1,), [1, 2, 3], {"c": 1}])
def test_values_that_do_not_fit_two_columns(value: Any) -> None:
    """The handler has failed."""
    handler, _ = one_column()
    fields = [pa.field(name, pa.int64()) for name in "ab"]
    results = DrainResults(DrainOutput(fields, False, 3600.0, 600_000))
    job = make_delivery(b"1795000000000-0000000001")
    with pytest.raises(TypeError, match=r"does not fit the columns of the schema: ."):
        results.take(handler, [job], value)
    assert not job.settled


def test_a_list_needs_a_result_for_each_job() -> None:
    """The error says how many there are, and no result is kept."""
    handlers = Handlers()
    handlers.chunk(None, size=2)(nothing)
    [handler] = handlers
    results = DrainResults(DrainOutput([pa.field("r", pa.int64())], False, 3600.0, 600_000))
    jobs = [make_delivery(b"1795000000000-000000000%d" % at) for at in range(2)]
    with pytest.raises(TypeError, match="3 results for 2 jobs"):
        results.take(handler, jobs, [1, 2, 3])
    assert results.batch(mock.Mock()) is None


def test_the_jobs_of_a_reserve_are_found_by_one_range(ps: Penstock, redis_url: str) -> None:
    """The receipts tell the server when the leases end, so it need not look up each job."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(20))
    held = jobs.reserve(20)
    place, receipt = reservation_of(held[0]).place, receipt_with_end(held[0])
    numbers = b" ".join(map(number_of, held)).decode()
    text = json.dumps([HeldJobs(place.node, place.packed.hex(), receipt, None, numbers)])
    connection = Connection.parse({"queue": "mail", "url": redis_url})
    with redis.Redis.from_url(redis_url) as server:
        server.config_resetstat()
        list(AckTask(connection, ()).run([pa.record_batch({"receipts": [text]})]))
        assert server.info("commandstats").keys().isdisjoint({"cmdstat_zmscore", "cmdstat_zrem"})
    assert jobs.stats().acked == 20
