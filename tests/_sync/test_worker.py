# From tests/_async/test_worker.py by tools/unasync.py; do not edit.
"""Workers: every way in which a handler can end, and the options."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    BadArgument,
    Dedup,
    Done,
    Handlers,
    Job,
    Middleware,
    Penstock,
    Queue,
    Reject,
    Retry,
    RetryPolicy,
    RunEvent,
    Snooze,
    Worker,
)
from penstock.client._acompat import sleep
from penstock.client._sync.client import twin_of
from penstock.worker import Result
from penstock.worker.log import JsonFormatter, LogFormatter
from penstock.worker.state import WorkerState
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance
from tests.support.twins import coroutine_function, wait_for


@pytest.fixture
def backend(brief_backend: Backend) -> Backend:
    """A worker runs scripts that other tests know: two back ends."""
    return brief_backend


def run(ps: Penstock, handlers: Any, queues: Any = "q", **options: Any) -> Worker:
    """Work until no job is left."""
    worker = Worker(ps, queues, handlers, burst=True, **options)
    worker.run()
    return worker


def reach(q: Queue, **figures: int) -> None:
    """Return when the queue has these figures."""
    end = time.monotonic() + 20
    while True:
        stats = q.stats()
        found = {name: getattr(stats, name) for name in figures}
        if found == figures:
            return
        assert time.monotonic() < end, found
        sleep(0.005)


def test_a_handler_that_returns_finishes_its_job(ps: Penstock, q: Queue) -> None:
    """Each job is handled once, with all its attributes, and leaves no data."""
    added = q.enqueue_many(range(25))
    seen: list[Job] = []

    def handler(job: Job) -> str:
        assert job.attempt == 1
        seen.append(job)
        return "any value will do"

    worker = run(ps, handler)
    assert sorted(job.body for job in seen) == list(range(25))
    assert {job.id for job in seen} == {one.id for one in added}
    stats = q.stats()
    assert (stats.acked, stats.active, stats.ready) == (25, 0, 0)
    assert worker.status().stats.counts == {"done": 25}
    assert worker.state == "stopped"
    assert not worker.healthy()


def test_a_handler_does_not_shorten_its_lease(ps: Penstock, q: Queue) -> None:
    """The worker counts on the lease that it knows: another one would get the job unnoticed."""
    q.enqueue("x", lease=30)
    seconds: list[float] = []

    def handler(job: Job) -> None:
        seconds.append(job.extend(0.001))
        seconds.append(job.extend(90))
        seconds.append(job.extend(1))

    run(ps, handler)
    assert seconds[0] > 20
    assert all(left > 80 for left in seconds[1:])


def test_a_handler_that_raises_has_failed(
    ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is stored and logged; the job is retried by the queue's policy."""
    q.configure(backoff_base=3600)
    job_id = q.enqueue("x").id

    def handler(job: Job) -> None:
        raise ValueError(f"no {job.body}")

    with caplog.at_level(logging.DEBUG, "penstock"):
        worker = run(ps, handler)
    view = q.show(job_id)
    assert view is not None
    assert (view.state, view.nacks, view.error) == ("scheduled", 1, "ValueError: no x")
    assert worker.status().stats.counts == {"retried": 1}
    told = failures(caplog)
    assert [(level, has_trace) for level, _, has_trace in told] == [
        (logging.WARNING, False),
        (logging.DEBUG, True),
    ]
    assert told[0][1].endswith(
        "failed: ValueError: no x; attempt 1 of 20, next try within 60.0 min"
    )


def failures(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, bool]]:
    """Return level, text and presence of a traceback for the records about jobs of the queue q."""
    return [
        (record.levelno, record.getMessage(), record.exc_info is not None)
        for record in caplog.records
        if getattr(record, "queue", None) == "q"
    ]


@pytest.mark.parametrize(
    "options, handler_options, outcome",
    [
        ({"retry": RetryPolicy(max_attempts=1)}, {}, "dead"),
        ({}, {"retry": RetryPolicy(max_attempts=1)}, "rejected"),
        ({"lease": 0}, {}, "failed"),
    ],
    ids=["limit of the job", "policy of the handler", "at most once"],
)
def test_a_failure_that_is_the_last_is_an_error_with_its_traceback(
    ps: Penstock,
    q: Queue,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    handler_options: dict[str, Any],
    outcome: str,
) -> None:
    """The last failure is one ERROR record with a traceback to the handler's line."""
    q.enqueue("x", **options)
    handlers = Handlers()

    @handlers.handler(None, **handler_options)
    def handler(job: Job) -> None:
        raise ValueError(f"no {job.body}")

    with caplog.at_level(logging.INFO, "penstock"):
        worker = run(ps, handlers)
    assert worker.status().stats.counts == {outcome: 1}
    assert [has for level, _, has in failures(caplog) if level == logging.ERROR] == [True]
    assert caplog.text.count('raise ValueError(f"no {job.body}")') == 1


def test_a_failure_that_the_server_finds_to_be_the_last(
    ps: Penstock,
    q: Queue,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that did not know the queue's limit logs the traceback with the answer, also if it
    knows the limit by then.
    """
    q.enqueue("x")
    known: list[None] = [None, None]  # of two looks: when the failure is judged, and for its text
    settings_of = WorkerState.settings_of
    monkeypatch.setattr(
        WorkerState,
        "settings_of",
        lambda state, job: known.pop() if known else settings_of(state, job),
    )

    def handler(job: Job) -> None:
        q.configure(max_attempts=1)
        raise ValueError(f"no {job.body}")

    with caplog.at_level(logging.INFO, "penstock"):
        worker = run(ps, handler)
    assert worker.status().stats.counts == {"dead": 1}
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().endswith("used up its attempts: ValueError: no x: a dead letter")
    line = 'raise ValueError(f"no {job.body}")'
    assert caplog.text.count(line) == 1
    assert LogFormatter().format(record).splitlines()[-2:] == [
        f"      {line}",
        "  ValueError: no x",
    ]
    assert line in json.loads(JsonFormatter().format(record))["traceback"]


@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
def test_results(ps: Penstock, q: Queue, raised: bool) -> None:
    """Retry, Snooze, Reject and Done work both returned and raised."""
    q.enqueue_many([0, 1, 2, 3])
    results = [Retry(after=3600, error="busy"), Snooze(3600), Reject("bad"), Done()]

    def handler(job: Job) -> Any:
        if raised:
            raise results[job.body]
        return results[job.body]

    worker = run(ps, handler)
    assert worker.status().stats.counts == {
        "retried": 1,
        "snoozed": 1,
        "rejected": 1,
        "done": 1,
    }
    found = {view.body: view for view in q.jobs().page().jobs}
    assert set(found) == {0, 1, 2}
    assert (found[0].state, found[0].nacks, found[0].error) == ("scheduled", 1, "busy")
    assert (found[1].state, found[1].nacks, found[1].releases) == ("scheduled", 0, 0)
    assert (found[2].state, found[2].error) == ("dead", "bad")


def test_a_window_from_the_handler(ps: Penstock, q: Queue) -> None:
    """Done(dedup_window=) sets or ends the window, whatever the job's own setting."""
    q.enqueue(3600, dedup_id="a")
    q.enqueue(0, dedup=Dedup("b", window=3600))

    def handler(job: Job) -> Done:
        return Done(dedup_window=job.body)

    run(ps, handler)
    status = q.dedup_status("a")
    assert status is not None
    assert status.state == "window"
    assert q.dedup_status("b") is None


class Mute(BaseException):
    """An exception that ends the process if its text is asked for."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_a_policy_of_the_handler(ps: Penstock, q: Queue) -> None:
    """A handler may have attempts and rules for exceptions; a rule may forbid retries."""
    q.enqueue_many([0, 1, 2])
    handlers = Handlers()
    once = RetryPolicy(max_attempts=1)

    @handlers.handler(None, retry=RetryPolicy(max_attempts=2, base=0.001, on={KeyError: once}))
    def handler(job: Job) -> None:
        if job.body == 0:
            raise KeyError("gone")
        raise Mute if job.body == 2 else OSError("down")

    with Worker(ps, "q", handlers):
        reach(q, dead=3)
    views = {view.body: view for view in q.peek(state="dead")}
    assert [views[body].nacks for body in range(3)] == [0, 1, 1]
    assert "KeyError" in views[0].error
    assert "OSError: down" in views[1].error
    assert views[2].error == "Mute"


def test_names_and_arguments(ps: Penstock, q: Queue) -> None:
    """A job goes to the handler of its name, with its arguments; others go to the default one."""
    handlers = Handlers()
    seen: list[Any] = []

    @handlers.handler("greet")
    def greet(job: Job, name: str, times: int = 1) -> None:
        seen.append((name, times, job.attempt))

    @handlers.handler(None)
    def anything(job: Job) -> None:
        seen.append(job.body)

    q.enqueue(greet.job("ada", times=2))
    q.enqueue({"name": "bob"}, headers=greet.headers)
    q.enqueue(b"raw")
    run(ps, handlers)
    assert sorted(seen, key=repr) == [("ada", 2, 1), ("bob", 1, 1), b"raw"]


def test_jobs_that_no_handler_can_run(
    ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Wrong arguments and unreadable bodies make dead letters; unknown names are given back."""
    handlers = Handlers()
    ran: list[int] = []

    @handlers.handler("add")
    def add(number: int) -> None:
        ran.append(number)

    q.enqueue({}, headers={"handler": "sub"})
    q.enqueue("no name")
    q.enqueue({"number": "x"}, headers=add.headers)
    q.enqueue({"other": 1}, headers=add.headers)
    q.enqueue(b"\xff", headers=add.headers)
    q.enqueue(add.job(1))
    worker = run(ps, handlers)
    assert ran == [1]
    errors = [view.error for view in q.peek(10, state="dead")]
    assert len(errors) == 3
    for part in ("number='x'", "other", "decoded"):
        assert any(part in error for error in errors), (part, errors)
    back = q.peek(10, state="scheduled")
    assert {view.error for view in back} == {
        'no handler "sub"',
        "no handler for jobs without a name",
    }
    assert [(view.attempts, view.snoozes, view.unknowns) for view in back] == [(0, 0, 1)] * 2
    counts = worker.status().stats.counts
    assert counts == {"rejected": 3, "unknown": 2, "done": 1}
    assert caplog.text.count("becomes a dead letter") == 3
    assert caplog.text.count("this worker has add") == 2


def test_a_rolling_deploy(ps: Penstock, q: Queue) -> None:
    """Old workers give the jobs of a new handler back, as often as it takes; a new one has them."""
    old, new, ran = Handlers(), Handlers(), list[int]()

    @old.handler("old")
    def kept() -> None: ...

    @new.handler
    def added(number: int) -> None:
        ran.append(number)

    q.configure(max_attempts=1, max_snoozes=1, max_releases=1)
    jobs = [added.enqueue(q, number) for number in range(10)]
    for times in (1, 2, 3):
        run(ps, old)
        view = q.show(jobs[0].id)
        assert view is not None
        assert (view.state, view.unknowns, view.attempts) == ("scheduled", times, 0)
        q.promote([job.id for job in jobs])
    run(ps, new)
    assert (sorted(ran), q.stats().dead) == ([*range(10)], 0)


def test_a_handler_that_no_worker_has(ps: Penstock, q: Queue, raw: Raw) -> None:
    """Its jobs are dead after the time that the queue allows, a day by default."""
    q.enqueue({}, headers={"handler": "gone"})
    run(ps, print)  # a function gets all jobs
    assert q.stats().acked == 1
    handlers = Handlers()
    handlers.handler("other")(print)
    job = q.enqueue({}, headers={"handler": "gone"})
    run(ps, handlers)
    advance(raw, q.ops, 86_300)
    run(ps, handlers)
    assert (q.stats().dead, q.stats().scheduled) == (0, 1)
    advance(raw, q.ops, 100)
    worker = run(ps, handlers)
    view = q.show(job.id)
    assert view is not None
    assert (view.state, view.error, view.attempts) == ("dead", 'no handler "gone"', 0)
    assert worker.status().stats.counts == {"dead": 1}


FORGOTTEN: dict[str, tuple[type[Result], Any]] = {
    "Done": (Done, 1),
    "Retry": (Retry, 60),
    "Snooze": (Snooze, 60),
    "Reject": (Reject, "no"),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", FORGOTTEN)
def test_a_forgotten_return(kind: str, strict: bool, ps: Penstock, q: Queue) -> None:
    """A warning tells of it, or the job fails: its next step would be lost."""
    handlers = Handlers(strict=strict)

    @handlers.handler
    def forgetful(number: int) -> None:
        made, argument = FORGOTTEN[kind]
        made(argument)

    forgetful.enqueue(q, 1)
    text = f"{kind}(...) was made in handler 'forgetful', and neither returned nor raised"
    if strict:
        worker = run(ps, handlers)
        [view] = q.peek(state="scheduled")
        assert view.error.startswith(f"TypeError: {text}")
        assert worker.status().stats.counts == {"retried": 1}
        return
    with pytest.warns(RuntimeWarning, match=re.escape(text)) as caught:
        worker = run(ps, handlers)
    assert [one.filename for one in caught] == [__file__]
    assert worker.status().stats.counts == {"done": 1}


def test_a_forgotten_result_of_an_own_class(ps: Penstock, q: Queue) -> None:
    """A class with an `__init__` of its own counts as made by the handler that calls it."""
    handlers = Handlers(strict=True)

    class Later(Retry):
        def __init__(self, minutes: int) -> None:
            super().__init__(after=60 * minutes)

    @handlers.handler
    def forgetful() -> None:
        Later(1)

    forgetful.enqueue(q)
    worker = run(ps, handlers)
    assert worker.status().stats.counts == {"retried": 1}


def test_results_that_are_used(ps: Penstock, q: Queue) -> None:
    """Those that are returned, raised or caught are not forgotten, nor those of another place."""
    handlers = Handlers(strict=True)

    @handlers.handler
    def returned() -> Any:
        return Done(1)

    @handlers.handler
    def raised() -> None:
        raise Reject("no")

    @handlers.handler
    def caught() -> None:
        with suppress(Retry):
            raise Retry

    @handlers.handler
    def chosen(name: str) -> Any:
        return {"snooze": Snooze(60), "retry": Retry(60)}.get(name)

    @handlers.chunk("both", size=2, wait=0)
    def both(jobs: list[Any]) -> list[Any]:
        return [Done(), Snooze(60)][: len(jobs)]

    for handler in (returned, raised, caught):
        handler.enqueue(q)
    chosen.enqueue_many(q, ["snooze", "neither"])
    both.enqueue_many(q, [1, 2])
    worker = run(ps, handlers)
    assert worker.status().stats.counts == {"done": 4, "rejected": 1, "snoozed": 2}
    Done()  # in no handler


def test_results_for_later_and_those_of_other_functions(ps: Penstock, q: Queue) -> None:
    """A result that something refers to may be used later; other functions may drop theirs."""
    handlers = Handlers(strict=True)
    kept = [Done(0)]

    @handlers.handler
    def stored() -> None:
        kept.append(Done(1))

    @handlers.handler
    def returns_stored() -> Any:
        return kept[0]

    def probe() -> bool:
        return Reject("not so") == Reject("so")

    @handlers.handler
    def compared() -> bool:
        return probe()

    for handler in (stored, returns_stored, compared):
        handler.enqueue(q)
    worker = run(ps, handlers)
    counts = worker.status().stats.counts
    assert counts == {"done": 3}


def test_a_handler_that_settles_its_job(ps: Penstock, q: Queue) -> None:
    """When a handler settles its job, the worker does not settle it again."""
    q.enqueue_many(["ack", "bury", "release"])

    def handler(job: Job) -> None:
        if job.body == "ack":
            job.ack()
        elif job.body == "bury":
            job.bury("by hand")
        else:
            job.release(delay=3600)

    worker = run(ps, handler)
    stats = q.stats()
    assert (stats.acked, stats.dead, stats.scheduled, stats.active) == (1, 1, 1, 0)
    assert worker.status().stats.counts == {"settled": 3}


def test_at_most_once(ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """With lease 0 success removes the job; a failed job stays visible and is not retried."""
    q.enqueue_many([0, 1], lease=0, ttl=3600)

    def handler(job: Job) -> None:
        if job.body:
            raise ValueError("once")

    run(ps, handler)
    views = q.peek(state="active")
    assert [view.body for view in views] == [1]
    assert "at most once" in caplog.text


def test_batches(ps: Penstock, q: Queue) -> None:
    """A chunk handler gets up to `size` jobs, and may return a result for each."""
    handlers = Handlers()
    sizes: list[int] = []

    @handlers.chunk(None, size=10)
    def store(jobs: list[Job]) -> list[Any]:
        sizes.append(len(jobs))
        return [Reject("odd") if job.body % 2 else None for job in jobs]

    q.enqueue_many(range(25))
    worker = run(ps, handlers, concurrency=1)
    assert sizes == [10, 10, 5]
    stats = q.stats()
    assert (stats.acked, stats.dead) == (13, 12)
    assert worker.status().stats.counts == {"done": 13, "rejected": 12}


def test_a_batch_waits_to_be_filled(ps: Penstock, q: Queue) -> None:
    """A batch waits up to `wait` seconds after its first job for more."""
    handlers = Handlers()
    batches: list[list[Any]] = []

    @handlers.chunk(None, size=3, wait=30)
    def full(jobs: list[Job]) -> None:
        batches.append([job.body for job in jobs])

    @handlers.chunk("hurry", size=3, wait=0.05)
    def hurry(jobs: list[Job]) -> None:
        batches.append([job.body for job in jobs])

    with Worker(ps, "q", handlers):
        q.enqueue(1)
        q.enqueue("alone", headers=hurry.headers)
        reach(q, acked=1)
        q.enqueue(2)
        assert batches == [["alone"]]
        q.enqueue(3)
        reach(q, acked=4)
    assert batches == [["alone"], [1, 2, 3]]


def test_a_batch_that_raises(ps: Penstock, q: Queue) -> None:
    """When a chunk handler raises, all its jobs have failed."""
    q.configure(backoff_base=3600)
    handlers = Handlers()

    @handlers.chunk(None, size=3)
    def store(jobs: list[Job]) -> None:
        raise OSError("down")

    q.enqueue_many(range(3))
    run(ps, handlers)
    stats = q.stats()
    assert (stats.nacked, stats.scheduled, stats.active) == (3, 3, 0)


def test_a_batch_of_large_jobs(ps: Penstock, q: Queue) -> None:
    """Failed jobs of 12 MB with their own policies are reported in one call."""
    handlers = Handlers()

    @handlers.chunk(None, size=4, wait=30)
    def store(jobs: list[Job]) -> None:
        raise OSError("down")

    q.configure(lease=60)
    for _ in range(4):
        q.enqueue(b"x" * 3_000_000, retry=RetryPolicy(max_attempts=1))
    with Worker(ps, "q", handlers):
        reach(q, dead=4, active=0)


def test_hooks_around_a_run(ps: Penstock, q: Queue) -> None:
    """The client's middleware sees each run with jobs, handler, error and outcome; it may fail."""
    events: list[tuple[Any, ...]] = []

    class Watch(Middleware):
        @contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            if event.jobs[0].body == "forbidden":
                raise PermissionError("not this one")
            try:
                yield
            finally:
                kind = type(event.error).__name__
                events.append((event.handler, event.jobs[0].body, event.outcome, kind))

    handlers = Handlers()

    @handlers.handler(None)
    def handler(job: Job) -> Any:
        if job.body == "bad":
            raise ValueError("no")
        return Snooze(3600) if job.body == "late" else None

    q.configure(backoff_base=3600)
    q.enqueue_many(["good", "bad", "late", "forbidden"])
    watched = twin_of(ps)
    watched.middleware = (Watch(),)
    run(watched, handlers, concurrency=1)
    assert events == [
        (None, "good", "done", "NoneType"),
        (None, "bad", "failed", "ValueError"),
        (None, "late", "snoozed", "NoneType"),
    ]
    errors = {view.body: view.error for view in q.jobs().page().jobs}
    assert errors["forbidden"] == "PermissionError: not this one"
    stats = q.stats()
    assert (stats.acked, stats.nacked, stats.active) == (1, 2, 0)


def test_a_job_that_is_removed_while_its_handler_runs(ps: Penstock, q: Queue) -> None:
    """A handler is told that its job was removed; its result changes nothing."""
    q.configure(lease=0.3)
    job_id = q.enqueue("long").id
    began: list[Job] = []
    told: list[bool] = []

    def handler(job: Job) -> None:
        if job.body != "long":
            return
        began.append(job)
        wait_for(lambda: job.lost)
        told.append(job.lost)

    with Worker(ps, "q", handler, concurrency=1) as worker:
        wait_for(lambda: bool(began))
        assert q.delete([job_id]).done == 1
        wait_for(lambda: bool(told))
        q.enqueue("short")
        reach(q, acked=1)
        wait_for(lambda: worker.status().held == 0)
    assert told == [True]


def test_a_job_of_several_leases(ps: Penstock, q: Queue) -> None:
    """The lease is renewed while the handler runs, so the job is not delivered again."""
    q.enqueue("x", lease=4)
    runs: list[Job] = []
    gate: list[bool] = []

    def handler(job: Job) -> None:
        runs.append(job)
        while not gate:
            sleep(0.005)

    with Worker(ps, "q", handler):
        wait_for(lambda: bool(runs))
        assert q.reserve(block=6) == []
        gate.append(True)
        reach(q, acked=1)
    assert len(runs) == 1
    assert not runs[0].lost
    assert q.stats().crashed == 0


def test_prefetch_is_bounded(ps: Penstock, q: Queue) -> None:
    """A worker holds the running jobs and `prefetch` more; stopping releases those not started."""
    q.enqueue_many(range(20))
    began: list[Job] = []
    gate: list[bool] = []

    def handler(job: Job) -> None:
        began.append(job)
        while not gate:
            sleep(0.005)

    worker = Worker(ps, "q", handler, concurrency=2, prefetch=3)
    worker.start()
    reach(q, active=5, ready=15)
    wait_for(lambda: len(began) == 2)
    status = worker.status()
    assert (status.held, status.state, status.concurrency) == (5, "running", 2)
    assert sorted(job.id for job in status.running) == sorted(job.id for job in began)
    worker.stop()
    reach(q, active=2, ready=18)
    gate.append(True)
    assert worker.join(20)
    stats = q.stats()
    assert (stats.acked, stats.ready, stats.active, stats.nacked) == (2, 18, 0, 0)
    assert worker.status().stats.counts == {"done": 2, "handed back": 3}


def test_unfinished_jobs_are_released_after_the_grace(ps: Penstock, q: Queue) -> None:
    """After the grace unfinished jobs are released without an attempt: coroutines are cancelled,
    and a job in a thread says that it is lost.
    """
    q.enqueue("x")
    began: list[Job] = []
    told: list[bool] = []

    def handler(job: Job) -> None:
        began.append(job)
        wait_for(lambda: job.lost)
        told.append(job.lost)

    worker = Worker(ps, "q", handler, grace=0.05)
    worker.start()
    wait_for(lambda: bool(began))
    worker.stop()
    worker.stop()
    assert worker.join(20)
    wait_for(lambda: told == [True])
    job = q.reserve(block=0)[0]
    assert (job.attempt, job.deliveries) == (1, 2)
    assert worker.status().stats.counts["handed back"] == 1


def test_stop_before_the_start_and_again(ps: Penstock, q: Queue) -> None:
    """Stopped before its start a worker runs nothing; further stops and joins are harmless."""
    q.enqueue(1)
    ran: list[Job] = []

    def handler(job: Job) -> None:
        ran.append(job)

    worker = Worker(ps, "q", handler)
    assert worker.join() is True
    worker.stop()
    worker.run()
    worker.stop()
    assert worker.join(1)
    assert (ran, worker.state, worker.stopping) == ([], "stopped", True)


def test_max_jobs(ps: Penstock, q: Queue) -> None:
    """A worker takes exactly `max_jobs` jobs, in several calls, and ends when they are finished."""
    q.enqueue_many(range(30))

    def handler(job: Job) -> None:
        """Do nothing."""

    worker = Worker(ps, "q", handler, max_jobs=11, concurrency=4, prefetch=4)
    worker.run()
    stats = q.stats()
    assert (stats.acked, stats.ready, stats.active) == (11, 19, 0)
    assert worker.status().taken == 11


def test_weights(ps: Penstock) -> None:
    """While all queues have jobs, each gets its share."""
    weights = {"a": 8, "b": 2}
    for name in weights:
        ps.queue(name).enqueue_many([name] * 300)
    order: list[str] = []

    def handler(job: Job) -> None:
        order.append(job.body)

    run(ps, handler, weights, concurrency=3)
    assert len(order) == 600
    assert 75 <= order[:300].count("a") / 3 <= 85


def test_one_queue_waits_while_another_is_busy(ps: Penstock) -> None:
    """A queue that was empty is checked again while another one is always busy."""
    busy, quiet = ps.queue("busy"), ps.queue("quiet")
    busy.enqueue_many([0] * 3000)
    seen: list[str] = []

    def handler(job: Job) -> None:
        seen.append(job.queue_name)
        sleep(0.001)

    with Worker(ps, ["busy", "quiet"], handler, concurrency=2):
        wait_for(lambda: len(seen) > 20)
        quiet.enqueue(1)
        wait_for(lambda: "quiet" in seen)
    assert busy.stats().ready > 0


def test_monitor_and_throttle(ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """The monitor is called in every loop; the worker survives errors of it and of the throttle."""
    q.enqueue_many(range(5))
    events: list[Any] = []

    def handler(job: Job) -> None:
        """Do nothing."""

    def monitor(event: Any) -> None:
        events.append(event)
        raise RuntimeError("monitor is broken")

    def throttle(size: int) -> float:
        if not sizes:
            sizes.append(size)
            raise RuntimeError("throttle is broken")
        sizes.append(size)
        return 0

    sizes: list[int] = []
    with Worker(ps, "q", handler, monitor=monitor, throttle=throttle, concurrency=1):
        reach(q, acked=5)
    assert sum(event.jobs for event in events) == 5
    assert events[0].sizes.keys() == {"q"}
    assert len(sizes) > 1
    assert "monitor failed" in caplog.text
    assert "throttle failed" in caplog.text


def test_options(ps: Penstock, q: Queue) -> None:
    """Options can be changed while the worker is stopped; `status` has them all."""

    def handler(job: Job) -> None:
        """Do nothing."""

    worker = Worker(ps, {"q": 2}, handler, name="first")
    worker.change(queues={"q": 1, "r": 3}, concurrency=None, name="second", burst=True)
    assert (worker.name, worker.state) == ("second", "new")
    assert worker.options.queues == {"q": 1, "r": 3}
    assert worker.options.concurrency == 8
    worker.change()
    for name, value in (("unknown", 1), ("concurrency", 0), ("queues", {})):
        with pytest.raises(BadArgument, match=rf"^{name}="):
            worker.change(**{name: value})
    worker.run()
    worker.change(grace=timedelta(minutes=1), throttle=len, burst=False)
    status = worker.status().as_dict()
    assert status["queues"] == {"q": 0, "r": 0}
    assert json.loads(json.dumps(status))["options"] == {
        "queues": {"q": 1, "r": 3},
        "concurrency": 8,
        "prefetch": None,
        "grace": 60.0,
        "burst": False,
        "max_jobs": None,
        "throttle": "builtins.len",
        "monitor": None,
        "heartbeat": "thread",
        "name": "second",
        "isolate": None,
        "log_jobs": False,
        "order": "weighted",
        "time_limit": None,
        "at_most_once": None,
    }
    worker.change(throttle=0)
    worker.start()
    with pytest.raises(BadArgument, match="the worker runs"):
        worker.change(grace=1)
    worker.stop()
    assert worker.join(20)


def test_a_worker_starts_again_after_a_stop(ps: Penstock, q: Queue) -> None:
    """A worker may be started again after it ended, or during its grace, with new statistics."""
    gate, begun = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        if job.body == "slow":
            begun.set()
            gate.wait()

    worker = Worker(ps, "q", handler)
    for body in (1, 2):
        q.enqueue(body)
        worker.start()
        reach(q, acked=body)
        worker.stop()
        assert worker.join(20)
        assert (worker.state, worker.status().taken) == ("stopped", 1)
        assert worker.status().stats.counts == {"done": 1}
    q.enqueue("slow")
    worker.start()
    begun.wait()
    worker.stop()
    assert worker.state == "stopping"
    q.enqueue(4)
    gate.set()
    worker.start()
    reach(q, acked=4)
    assert worker.state == "running"
    worker.stop()
    assert worker.join(20)


def test_backoffs_chosen_by_handlers(ps: Penstock, q: Queue) -> None:
    """Statistics count retries whose delay the handler chose, not those of a policy."""
    q.configure(backoff_base=3600)
    q.enqueue_many(range(6))

    def handler(job: Job) -> Any:
        if job.body < 2:
            raise Retry(after=3600)
        if job.body == 2:
            return Retry(after=3600, error="busy")
        if job.body == 3:
            raise Retry
        if job.body == 4:
            raise ValueError
        return Snooze(3600)

    stats = run(ps, handler).status().stats
    assert (stats.backoffs, stats.counts) == (3, {"retried": 5, "snoozed": 1})


def test_a_default_handler(ps: Penstock, q: Queue) -> None:
    """The default handler gets jobs without a name or with an unknown one."""
    handlers = Handlers()
    seen: list[tuple[str, Any]] = []

    @handlers.handler("add")
    def add(number: int) -> None:
        seen.append(("add", number))

    @handlers.default(retry=RetryPolicy(max_attempts=1))
    def rest(job: Job) -> None:
        seen.append((job.headers.get("handler", ""), job.body))
        if job.body == "bad":
            raise ValueError

    q.enqueue(add.job(1))
    q.enqueue({"to": "ada"}, headers={"handler": "fax"})
    q.enqueue("plain")
    q.enqueue("bad")
    worker = run(ps, handlers, concurrency=1)
    assert seen == [("add", 1), ("fax", {"to": "ada"}), ("", "plain"), ("", "bad")]
    assert worker.status().stats.counts == {"done": 3, "rejected": 1}


def test_a_function_alone_gets_every_job(ps: Penstock, q: Queue) -> None:
    """A single function gets every job, whatever its name."""
    q.enqueue(1, headers={"handler": "fax"})
    q.enqueue(2)
    seen: list[Any] = []

    def handler(job: Job) -> None:
        seen.append(job.body)

    run(ps, handler, concurrency=1)
    assert seen == [1, 2]


def test_an_idle_worker_sweeps_its_queues(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle worker removes old dead letters of its queues."""
    monkeypatch.setattr("penstock.core.flows.sweeping.SHORTEST_SWEEP_PAUSE", 0.0)
    monkeypatch.setattr("penstock.core.flows.sweeping.LONGEST_SWEEP_PAUSE", 0.0)
    q.configure(dead_age=0.05)

    def handler(job: Job) -> None:
        raise Reject("no")

    with Worker(ps, "q", handler) as worker:
        q.enqueue(1)
        wait_for(lambda: worker.status().stats.counts == {"rejected": 1})
        raw = ps.topology.executor
        end = time.monotonic() + 60
        while raw.command("ZCARD", q.ops.keys["dead"]):
            assert time.monotonic() < end
            sleep(0.05)


def test_bad_worker_arguments(ps: Penstock) -> None:
    """Bad arguments are refused before connecting; the error has name and value."""

    def handler(job: Job) -> None:
        """Do nothing."""

    for queues in ("", (), {}, ["a", "a"], {"a": 0}, {"a": "x"}, 5, b"q", [5]):
        with pytest.raises(BadArgument):
            Worker(ps, queues, handler)  # type: ignore[arg-type]  # on purpose
    for handlers in (None, 5, Handlers()):
        with pytest.raises(BadArgument, match=r"^handlers="):
            Worker(ps, "q", handlers)  # type: ignore[arg-type]  # same
    wrong: dict[str, Any] = {
        "concurrency": 0,
        "prefetch": -1,
        "grace": -1,
        "max_jobs": 0,
        "throttle": -1,
        "monitor": 5,
        "heartbeat": "none",
        "name": "",
        "burst": "no",
        "log_jobs": 1,
    }
    for name, value in wrong.items():
        with pytest.raises(BadArgument):
            Worker(ps, "q", handler, **{name: value})
    with pytest.raises(BadArgument, match="a coroutine function needs"):
        Worker(ps, "q", coroutine_function)
