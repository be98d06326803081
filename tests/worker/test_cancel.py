"""Cancelling jobs under a worker, progress, and failures that are kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from penstock import (
    AsyncWorker,
    Handlers,
    JobView,
    Outcome,
    Penstock,
    Queue,
    Reject,
    Retry,
    StaleReceipt,
    Worker,
)
from penstock.embedded import EmbeddedServer
from penstock.worker import CancelledRun, TimeLimit
from penstock.worker._sync import heartbeat
from tests.support.twins import await_for
from tests.support.workers import until


@pytest.fixture
def queue(worker_server: EmbeddedServer) -> Iterator[Queue]:
    """An empty queue for the worker."""
    with Penstock(worker_server.url) as client:
        client.topology.executor.command("FLUSHALL")
        yield client.queue("work")


class Working:
    """A worker in a thread of this process.

    Args:
        url: of the server.
        handler: its handler.
        kind: Worker or AsyncWorker.
    """

    def __init__(self, url: str, handler: Any, kind: Any, **options: Any) -> None:
        self.begun = threading.Event()
        self.worker = kind(url, "work", handler, **options)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        run = self.worker.run(signals=False)
        if asyncio.iscoroutine(run):
            asyncio.run(run)

    def __enter__(self) -> Any:
        self._thread.start()
        return self.worker

    def __exit__(self, *exc: object) -> None:
        self.worker.stop(0)
        self._thread.join()


def shown(queue: Queue, job_id: str) -> JobView:
    """Return a job that is there."""
    view = queue.show(job_id)
    assert view is not None
    return view


@pytest.mark.parametrize("heartbeat", ["thread", "process"])
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_a_running_job_ends_soon(
    kind: Any, heartbeat: str, worker_server: EmbeddedServer, queue: Queue
) -> None:
    """A thread gets an exception, a coroutine is cancelled; the job is gone, its dedup id free."""
    begun, ended = threading.Event(), list[str]()

    def in_thread(job: Any) -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.01)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    async def in_task(job: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    handler = in_thread if kind is Worker else in_task
    job = queue.enqueue("x", dedup_id="one")
    with Working(worker_server.url, handler, kind, heartbeat=heartbeat) as worker:
        assert begun.wait(30)
        assert list(queue.cancel([job.id])) == [Outcome.CANCELLED]
        asked = time.monotonic()
        assert shown(queue, job.id).cancelled
        assert queue.enqueue("y", dedup_id="one").duplicate  # it runs still
        until(lambda: queue.show(job.id) is None)
        took = time.monotonic() - asked
        until(lambda: worker.status().stats.counts.get("cancelled") == 1)
        assert not queue.enqueue("y", dedup_id="one").duplicate
    assert ended[0] == ("CancelledRun" if kind is Worker else "CancelledError")
    assert queue.stats().cancelled == 1
    assert took < 10, "about a second on a machine that is not busy"


def test_a_plain_function_under_asyncio_ends(worker_server: EmbeddedServer, queue: Queue) -> None:
    """Its thread gets the exception."""
    begun, ended = threading.Event(), list[BaseException]()

    def handler(job: Any) -> None:
        begun.set()
        try:
            while True:
                time.sleep(0.01)
        except CancelledRun as error:
            ended.append(error)
            raise

    job = queue.enqueue("x")
    with Working(worker_server.url, handler, AsyncWorker):
        assert begun.wait(30)
        queue.cancel([job.id])
        until(lambda: queue.show(job.id) is None)
    assert len(ended) == 1


@pytest.mark.parametrize("outcome", ["ack", "failure", "retry"])
def test_a_handler_that_goes_on(outcome: str, worker_server: EmbeddedServer, queue: Queue) -> None:
    """An ack that comes first wins; after a failure the job is not tried again."""
    begun, free, runs = threading.Event(), threading.Event(), list[int]()

    def handler(job: Any) -> None:
        runs.append(job.attempt)
        begun.set()
        while True:
            try:
                free.wait()
                break
            except CancelledRun:
                assert job.cancelled
        if outcome == "retry":
            raise Retry(0)
        assert outcome == "ack"

    job = queue.enqueue("x")
    with Working(worker_server.url, handler, Worker):
        assert begun.wait(30)
        queue.cancel([job.id])
        free.set()
        until(lambda: queue.show(job.id) is None)
    stats = queue.stats()
    assert (stats.acked, stats.cancelled) == ((1, 0) if outcome == "ack" else (0, 1))
    assert (runs, stats.dead) == ([1], 0)


def test_jobs_that_wait_in_the_worker(worker_server: EmbeddedServer, queue: Queue) -> None:
    """A job that was prefetched is not begun any more; a batch is told, and goes on."""
    begun, free, seen = threading.Event(), threading.Event(), list[Any]()

    def handler(job: Any) -> None:
        seen.append(job.body)
        begun.set()
        free.wait(60)

    first, second = queue.enqueue_many(["first", "second"])
    with Working(worker_server.url, handler, Worker, concurrency=1, prefetch=1) as worker:
        assert begun.wait(30)
        until(lambda: shown(queue, second.id).state == "active")
        assert list(queue.cancel([second.id])) == [Outcome.CANCELLED]
        until(lambda: any(job.cancelled for job in worker._life.state.held))
        free.set()
        until(lambda: queue.show(first.id) is None and queue.show(second.id) is None)
    assert seen == ["first"]


@pytest.mark.parametrize(
    "ending, counts",
    [
        ("return", {"done": 2, "cancelled": 1}),
        ("values", {"done": 1, "rejected": 1, "cancelled": 1}),
        ("ack", {"done": 2, "settled": 1}),
        ("raise", {"dead": 2, "cancelled": 1}),
    ],
)
def test_one_job_of_a_batch(
    ending: str, counts: dict[str, int], worker_server: EmbeddedServer, queue: Queue
) -> None:
    """The handler is told and goes on. The job ends as cancelled, unless the handler acks it."""
    handlers, told = Handlers(), list[list[bool]]()

    @handlers.chunk(None, size=3, wait=30, result_ttl=60)
    def batch(jobs: list[Any]) -> Any:
        queue.cancel([jobs[0].id])
        until(lambda: jobs[0].cancelled)
        told.append([job.cancelled for job in jobs])
        if ending == "ack":
            jobs[0].ack()
        if ending == "raise":
            raise ValueError
        return ["a", Reject("no"), "c"] if ending == "values" else None

    queue.configure(max_attempts=1)
    queue.enqueue_many(["a", "b", "c"], result_ttl=60)
    with Working(worker_server.url, handlers, Worker) as worker:
        until(lambda: sum(worker.status().stats.counts.values()) == 3)
        assert worker.status().stats.counts == counts
    assert told == [[True, False, False]]
    assert queue.stats().cancelled == counts.get("cancelled", 0)


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_all_jobs_of_a_batch(kind: Any, worker_server: EmbeddedServer, queue: Queue) -> None:
    """The handler of a batch is interrupted when the last of its jobs is cancelled."""
    handlers, ended = Handlers(), list[list[bool]]()

    def in_thread(jobs: list[Any]) -> None:
        queue.cancel([jobs[0].id])
        try:
            while True:
                if jobs[0].cancelled and not jobs[1].cancelled:
                    queue.cancel([jobs[1].id])
                time.sleep(0.01)
        finally:
            ended.append([job.cancelled for job in jobs])

    async def in_task(jobs: list[Any]) -> None:
        queue.cancel([jobs[0].id])
        try:
            await await_for(lambda: jobs[0].cancelled)
            queue.cancel([jobs[1].id])
            await asyncio.sleep(600)
        finally:
            ended.append([job.cancelled for job in jobs])

    handlers.chunk(None, size=2, wait=30)(in_thread if kind is Worker else in_task)
    queue.enqueue_many(["a", "b"])
    with Working(worker_server.url, handlers, kind) as worker:
        until(lambda: worker.status().stats.counts.get("cancelled") == 2)
    assert ended == [[True, True]]
    assert queue.stats().cancelled == 2


def test_a_limit_after_a_cancellation(worker_server: EmbeddedServer, queue: Queue) -> None:
    """A handler that goes on after `CancelledRun` still gets `TimeLimit`, and no worker ends."""
    seen = list[type[BaseException]]()

    def endless() -> None:
        while True:
            time.sleep(0.01)

    def handler(job: Any) -> None:
        for kind in (CancelledRun, TimeLimit):
            with pytest.raises(kind):
                endless()
            seen.append(kind)
        raise TimeLimit

    job = queue.enqueue("x")
    with Working(worker_server.url, handler, Worker, time_limit=4) as worker:
        until(lambda: worker.status().running)
        queue.cancel([job.id])
        until(lambda: queue.show(job.id) is None)
        assert worker.state == "running"
    assert seen == [CancelledRun, TimeLimit]


def test_looks_for_cancelled_jobs(
    worker_server: EmbeddedServer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call each 0.7 s is about all jobs that are 50 ms old, also those that have just begun."""
    looks, beaten = list[tuple[float, int]](), heartbeat.send_progress

    def counted(node: Any, jobs: Any) -> Any:
        looks.append((time.monotonic(), len(jobs)))
        return beaten(node, jobs)

    monkeypatch.setattr(heartbeat, "send_progress", counted)
    free = threading.Event()
    queue.enqueue_many(range(4), lease=2)
    with Working(worker_server.url, lambda _: free.wait(60), Worker):
        until(lambda: len(looks) >= 4)
        free.set()
    assert {count for _, count in looks} == {4}
    gaps = [b[0] - a[0] for a, b in pairwise(looks)]
    assert 0.65 < min(gaps) < 2, "0.7 s on a machine that is not busy"


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_progress_is_shown(kind: Any, worker_server: EmbeddedServer, queue: Queue) -> None:
    """The heartbeat sends the last one; it goes with the job."""
    free = threading.Event()

    def handler(job: Any) -> None:
        job.progress(1, 10)
        job.progress(3, 10, "three\nof  ten")
        free.wait(60)

    job = queue.enqueue("x")
    with Working(worker_server.url, handler, kind):
        until(lambda: shown(queue, job.id).progress is not None)
        progress = shown(queue, job.id).progress
        assert progress is not None
        assert (progress.done, progress.total, progress.part) == (3, 10, 0.3)
        assert (progress.note, str(progress)) == ("three of ten", "3 of 10 (30%), three of ten")
        assert progress.at >= shown(queue, job.id).delivered  # type: ignore[operator]  # it is active
        free.set()
        until(lambda: queue.show(job.id) is None)
    assert not queue.route.node.executor.command("EXISTS", queue.ops.keys["tally"])


def test_failures_are_kept(worker_server: EmbeddedServer, queue: Queue) -> None:
    """Type, message, the user's frames of the traceback, and a line for each attempt."""
    queue.configure(max_attempts=3, backoff_base=0.001)

    def broken() -> None:
        raise ValueError("no\tway\nout")

    def handler(job: Any) -> None:
        try:
            broken()
        except ValueError as error:
            raise RuntimeError(f"attempt {job.attempt}") from error

    job = queue.enqueue("x")
    with Working(worker_server.url, handler, Worker, name="ada") as worker:
        until(lambda: shown(queue, job.id).state == "dead")
        owner = worker.name
    view = shown(queue, job.id)
    assert [failure.text for failure in view.failures] == [
        f"RuntimeError: attempt {n}" for n in (1, 2, 3)
    ]
    assert {failure.owner for failure in view.failures} == {view.owner}
    assert owner in view.owner
    assert all(failure.seconds is not None for failure in view.failures)
    assert "in broken" in view.trace
    assert "ValueError: no\tway\nout" in view.trace
    assert view.trace.endswith("RuntimeError: attempt 3")
    assert "penstock/worker" not in view.trace
    queue.redrive([job.id])
    assert len(shown(queue, job.id).failures) == 3


def test_snoozes_are_counted_and_limited(worker_server: EmbeddedServer, queue: Queue) -> None:
    """By default a job may be snoozed for ever; with a limit it dies."""
    queue.configure(max_snoozes=2)
    job = queue.enqueue("x")
    for _ in range(2):
        [taken] = queue.reserve(1, block=30)
        taken.release(delay=0.001)
    view = shown(queue, job.id)
    assert (view.state, view.snoozes, view.error) == ("dead", 2, "snoozed 2 times")


def test_a_consumer_without_a_worker(queue: Queue) -> None:
    """`send_progress` sends it, and tells if the job is cancelled."""
    one, other = queue.enqueue_many(["x", "y"])
    jobs = queue.reserve(2)
    jobs[1].progress(5, note="five")
    queue.cancel([one.id])
    assert [job.send_progress() for job in jobs] == [False, True]
    assert [job.cancelled for job in jobs] == [True, False]
    assert str(shown(queue, other.id).progress) == "5, five"
    assert list(queue.release(jobs)) == [Outcome.CANCELLED, Outcome.DONE]
    with pytest.raises(StaleReceipt):
        jobs[1].send_progress()
    assert list(queue.cancel([one.id, other.id])) == [Outcome.GONE, Outcome.DONE]
