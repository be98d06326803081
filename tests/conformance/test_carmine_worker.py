"""The behaviour that users of Carmine's worker rely on: the worker's rows of its checklist.

A docstring begins with the rows that it tests; (F) marks an intended difference from Carmine. The
rows about the queue are in test_carmine.py.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    Done,
    Handlers,
    Penstock,
    Queue,
    Reject,
    Retry,
    RetryPolicy,
    Worker,
)
from penstock.worker import LoopEvent, WorkerStats
from tests.conformance.test_carmine import ID, WORKER, commands, seen
from tests.support.backends import Backend
from tests.support.keyspace import Raw
from tests.support.twins import spawn, wait_for

BESIDES = {"C-10", "C-16", "C-22", "C-24"}
"""Rows about both: test_carmine.py has the queue's part."""
SOON = 3.0
"""Maximum of seconds until a woken worker starts; without a token it looks after 4."""


@pytest.fixture
def backend(brief_backend: Backend) -> Backend:
    """Use two back ends, as other tests cover the worker's scripts."""
    return brief_backend


def run_off(ps: Penstock, handler: Any, **options: Any) -> WorkerStats:
    """Work until no job is left, and return the statistics."""
    worker = Worker(ps, "q", handler, burst=True, **options)
    worker.run()
    return worker.status().stats


def test_every_row_has_a_test() -> None:
    """Each row about the worker starts a docstring here."""
    tests = [one for name, one in globals().items() if name.startswith("test_")]
    heads = [(one.__doc__ or "").partition(":")[0] for one in tests]
    named = {f"C-{row}" for head in heads for row in re.findall(r"\bC-(\d+)\b", head)}
    assert named == WORKER | BESIDES


# -- C-10: results of a handler ----------------------------------------------------------------


def no_retry_by_handler(q: Queue, handlers: Handlers, function: Callable[[Any], Any]) -> None:
    """Set the policy at the handler."""
    handlers.handler(None, retry=RetryPolicy(max_attempts=1))(function)
    q.enqueue("bad", dedup_id=ID)


def no_retry_by_job(q: Queue, handlers: Handlers, function: Callable[[Any], Any]) -> None:
    """Set the policy with the job."""
    handlers.handler(None)(function)
    q.enqueue("bad", dedup_id=ID, retry=RetryPolicy(max_attempts=1))


def no_retry_by_queue(q: Queue, handlers: Handlers, function: Callable[[Any], Any]) -> None:
    """Set the policy of the queue."""
    handlers.handler(None)(function)
    q.configure(max_attempts=1)
    q.enqueue("bad", dedup_id=ID)


@pytest.mark.parametrize("say", [no_retry_by_handler, no_retry_by_job, no_retry_by_queue])
@pytest.mark.parametrize("ends", ["raises", "rejects", "asks for a retry"])
def test_no_retry_is_a_policy(ps: Penstock, q: Queue, say: Callable[..., None], ends: str) -> None:
    """C-10: a failed job is not retried; (F) it becomes a dead letter, and its id is free."""
    calls: list[Any] = []
    errors = {"raises": ValueError("no"), "rejects": Reject("no"), "asks for a retry": Retry()}

    def handle(job: Any) -> None:
        calls.append(job.body)
        raise errors[ends]

    handlers = Handlers()
    say(q, handlers, handle)
    run_off(ps, handlers)
    assert calls == ["bad"]
    (letter,) = q.peek(state="dead")
    assert "no" in letter.error or ends == "asks for a retry"
    assert (q.stats().scheduled, q.stats().ready, seen(q)) == (0, 0, None)


def test_without_a_policy_it_is_tried_again(ps: Penstock, q: Queue) -> None:
    """C-10 (F): by default a failed job is retried later."""
    q.enqueue("bad", dedup_id=ID)
    stats = run_off(ps, lambda _: 1 / 0)
    assert (q.stats().scheduled, q.stats().dead, stats.counts) == (1, 0, {"retried": 1})


@pytest.mark.parametrize("value", [None, True, False, "error", {"status": "odd"}, Done()], ids=repr)
def test_every_return_value_is_success(ps: Penstock, q: Queue, value: Any) -> None:
    """C-10: a handler that returns has succeeded; no value is taken for a status."""
    q.enqueue("x", dedup_id=ID)
    assert run_off(ps, lambda _: value).counts == {"done": 1}
    assert (q.stats().acked, seen(q)) == (1, None)


def test_a_handler_sets_the_window(ps: Penstock, q: Queue) -> None:
    """C-10: success with a backoff keeps the id taken for that time."""
    q.enqueue("x", dedup_id=ID)
    run_off(ps, lambda _: Done(dedup_window=60))
    answer = q.enqueue("again", dedup_id=ID)
    assert (answer.action, answer.state) == ("refused", "window")


# -- C-16: idle workers ------------------------------------------------------------------------


def test_an_idle_worker(real_backend: Backend, real_q: Queue, real_raw: Raw) -> None:
    """C-16 (F): at most two commands a second; new and due jobs start at once."""
    starts: dict[Any, float] = {}

    def handle(job: Any) -> None:
        starts[job.body] = time.monotonic()

    waits = []
    with Penstock(real_backend.sync_client()) as ps, Worker(ps, "q", handle):
        real_q.enqueue("first")
        wait_for(lambda: real_q.stats().acked == 1)
        wait_for(ps.workers)  # it writes its entry a second after its start
        wait_for(lambda: real_raw.info("clients")["blocked_clients"] == 1)
        before, began = commands(real_raw), time.monotonic()
        time.sleep(2.5)
        assert commands(real_raw) - before <= 2 * (time.monotonic() - began)
        for serial in range(5):
            wait_for(lambda: real_raw.info("clients")["blocked_clients"] == 1)
            enqueued = time.monotonic()
            real_q.enqueue(serial, dedup_id=str(serial))
            wait_for(lambda: serial in starts)  # noqa: B023
            waits.append(starts[serial] - enqueued)
        enqueued = time.monotonic()
        real_q.enqueue("due", delay=0.5)
        wait_for(lambda: "due" in starts)
        assert 0.5 <= starts["due"] - enqueued < SOON
    assert sorted(waits)[len(waits) // 2] < 0.1
    assert max(waits) < SOON


# -- C-17: throttle ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "throttle, seconds",
    [(0, 0), (0.03, 0.25), (timedelta(milliseconds=30), 0.25), (lambda _: 0.03, 0.25)],
    ids=["0", "seconds", "timedelta", "function"],
)
def test_throttle(ps: Penstock, q: Queue, throttle: Any, seconds: float) -> None:
    """C-17: this pause between two polls; (F) no pause is possible."""
    q.enqueue_many(range(10))
    times: list[float] = []
    run_off(ps, lambda _: times.append(time.monotonic()), throttle=throttle, concurrency=1)
    assert len(times) == 10
    assert seconds <= times[-1] - times[0] < (seconds or 1) * 20


def test_throttle_goes_by_the_size(ps: Penstock, q: Queue) -> None:
    """C-17: the function gets the number of waiting jobs."""
    q.enqueue_many(range(300))
    sizes: list[int] = []

    def throttle(size: int) -> float:
        sizes.append(size)
        return 0.1 if size < 128 else 0.0

    with Worker(ps, "q", lambda _: time.sleep(0.01), concurrency=1, throttle=throttle):
        wait_for(lambda: any(size > 128 for size in sizes))


# -- C-21: start and stop ----------------------------------------------------------------------


def test_stop_waits_for_running_handlers(ps: Penstock, q: Queue) -> None:
    """C-21: no more jobs are reserved, running handlers finish; a second stop changes nothing."""
    q.enqueue_many(range(10))
    begun, go = threading.Event(), threading.Event()

    def handle(job: Any) -> None:
        begun.set()
        go.wait(20)

    worker = Worker(ps, "q", handle, concurrency=2)
    worker.start()
    assert begun.wait(20)
    wait_for(lambda: len(worker.status().running) == 2)
    worker.stop()
    worker.stop()
    assert worker.stopping
    assert not worker.join(0.2)
    go.set()
    assert worker.join(20)
    worker.stop()
    assert worker.join()
    assert (q.stats().acked, q.stats().ready, q.stats().active) == (2, 8, 0)


def test_stop_waits_up_to_a_limit(ps: Penstock, q: Queue) -> None:
    """C-21 (F): a handler that takes longer loses its job, which is released."""
    q.enqueue("x")
    begun, go = threading.Event(), threading.Event()

    def handle(job: Any) -> None:
        begun.set()
        go.wait(20)

    worker = Worker(ps, "q", handle, grace=0.2)
    worker.start()
    assert begun.wait(20)
    began = time.monotonic()
    worker.stop()
    assert worker.join(20)
    assert time.monotonic() - began < 10
    go.set()
    (job,) = q.reserve(block=5)
    assert (job.body, job.attempt) == ("x", 1)


def test_a_second_start(ps: Penstock, q: Queue) -> None:
    """C-21: it changes nothing; a worker that has ended starts again."""
    worker = Worker(ps, "q", lambda _: None)
    with worker:
        worker.start()
        q.enqueue("x")
        wait_for(lambda: q.stats().acked == 1)
    with worker:
        q.enqueue("y")
        wait_for(lambda: q.stats().acked == 2)


# -- C-22, C-23: figures -----------------------------------------------------------------------


def test_statistics(ps: Penstock, q: Queue) -> None:
    """C-22: size of the queue, queueing time of first attempts, handling time, counts by result."""
    q.configure(backoff_base=0.01, backoff_cap=0.01)
    q.enqueue_many(range(6))
    waited = 0.3
    time.sleep(waited)
    again = threading.Event()

    def handle(job: Any) -> Any:
        time.sleep(0.01)
        if job.body == 1 and job.attempt == 1:
            raise ValueError("once")
        if job.body == 1:
            again.set()
        return Reject("no") if job.body == 2 else None

    with Worker(ps, "q", handle, concurrency=1) as worker:
        assert again.wait(20)
        wait_for(lambda: q.stats().acked == 5)
        wait_for(lambda: worker.status().stats.jobs == 7)
        stats = worker.status().stats
    assert stats.counts == {"done": 5, "retried": 1, "rejected": 1}
    assert (stats.queueing.count, stats.handling.count) == (6, 7)
    assert stats.queueing.min >= waited - 0.01
    assert stats.handling.min >= 0.01
    assert stats.queue_size.count >= 1
    figures = stats.handling
    assert figures.min <= figures.p50 <= figures.p90 <= figures.p99 <= figures.max
    assert figures.min <= figures.mean <= figures.max


def test_monitor(ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """C-23: called per loop with the size of the queue; its failure does not stop the worker."""
    events: list[LoopEvent] = []

    def monitor(event: LoopEvent) -> None:
        events.append(event)
        raise RuntimeError("a monitor's own trouble")

    q.enqueue_many(range(20))
    stats = run_off(ps, lambda _: None, monitor=monitor, concurrency=2)
    assert stats.counts == {"done": 20}
    assert len(events) >= 10
    assert all(set(event.sizes) == {"q"} for event in events)
    assert max(event.sizes["q"] for event in events) >= 10
    assert "a monitor's own trouble" in caplog.text


# -- C-24: all together ------------------------------------------------------------------------


def test_two_workers_of_four_threads(
    real_backend: Backend, real_q: Queue, pytestconfig: pytest.Config
) -> None:
    """C-24: 10,000 jobs are handled once each, 1,000 in a short run; no lease ends, and no id is
    left. Nothing is held ahead, so each delivery is a run.
    """
    total = 10_000 if pytestconfig.getoption("--whole") else 1000
    taken: list[int] = []
    with Penstock(real_backend.sync_client()) as ps:
        workers = [
            Worker(
                ps,
                "q",
                lambda job: taken.append(job.body),
                concurrency=4,
                prefetch=0,
                name=name,
            )
            for name in ("one", "other")
        ]
        with workers[0], workers[1]:
            producer = spawn(real_q.enqueue_many, range(total), dedup_id=str)
            producer.result(60)
            wait_for(lambda: real_q.stats().acked == total, 60)
        assert sorted(taken) == list(range(total))
        assert all(worker.status().taken for worker in workers)
        stats = real_q.stats()
        assert (stats.deliveries, stats.crashed, stats.dead) == (total, 0, 0)
        assert real_backend.sync_client().exists(real_q.ops.keys["dedup"]) == 0
