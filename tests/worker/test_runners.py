"""Runners survive lost leases, cancellations, and errors while reporting errors.

There is no server: deliveries go in, verdicts come out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock import AsyncJob, AsyncWorker, ConfigurationError, Worker
from penstock.core.jobs.job import Delivery, reservation_of
from penstock.worker import Handlers
from penstock.worker._async.handler_runner import AsyncHandlerRunner
from penstock.worker._sync.handler_runner import HandlerRunner
from penstock.worker.polls import FinishedJobs
from penstock.worker.registered import AnyHandler
from penstock.worker.results import ACK, NO_REPORT
from penstock.worker.runners import AsyncRunners, Runners
from tests.support.twins import await_for, wait_for
from tests.worker.deliveries import made

logger = logging.getLogger("penstock")


class Scene:
    """A HandlerRunner with its runners and one handler.

    Args:
        function: the handler.
        size: of its batches, None = it takes single jobs.
        count: of runners.
    """

    def __init__(
        self, function: Callable[..., Any], *, size: int | None = None, count: int = 1
    ) -> None:
        handlers = Handlers()
        (handlers.handler(None) if size is None else handlers.chunk(None, size=size))(function)
        self.handler: AnyHandler = next(iter(handlers))
        is_async = self.handler.is_async
        handler_runner: Any = (AsyncHandlerRunner if is_async else HandlerRunner)(
            handlers, (), lambda: None
        )
        kind: Any = AsyncRunners if is_async else Runners
        self.runners = handler_runner.runners = kind(count, "w", handler_runner.execute)
        self._finished = handler_runner.finished = FinishedJobs(time.monotonic)

    @property
    def verdicts(self) -> dict[Any, str]:
        """Return the verdict on each job, by body."""
        return {job.body: done.verdict.kind for done in self._finished for job in done.jobs}

    def put(self, *jobs: Any) -> None:
        """Add a run of these jobs."""
        self.runners.put((self.handler, jobs))

    def put_all(self, jobs: Sequence[Any]) -> None:
        """Add a run for each of these jobs."""
        for job in jobs:
            self.put(job)


class Broken(Exception):
    """An error whose text and attributes can't be read."""

    def __str__(self) -> str:
        raise SystemExit


@pytest.fixture
def strict() -> Iterator[None]:
    """A log filter that raises."""

    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError(record.msg)

    logger.addFilter(refuse)
    yield
    logger.removeFilter(refuse)


# -- threads that are none ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
async def test_a_program_without_threads(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program patched by gevent or eventlet a worker does not start, and says why.

    There, `threading.get_ident` returns the id of a greenlet.
    """

    def get_ident() -> int:
        return id(monkeypatch)

    get_ident.__module__ = "gevent.thread"
    worker = kind("redis://127.0.0.1:1", "q", print)
    with monkeypatch.context() as patched:
        patched.setattr("threading.get_ident", get_ident)
        with pytest.raises(ConfigurationError, match="gevent has replaced the threads"):
            await worker.start()
    assert worker.state == "new"


# -- a blocked event loop ----------------------------------------------------------------------


async def test_a_handler_that_keeps_the_event_loop_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread of the heartbeat sees that the loop does not answer for a second."""
    began, ended = threading.Event(), threading.Event()

    async def slow(_job: Any) -> None:
        began.set()
        ended.wait(60)

    def look() -> None:
        began.wait(60)
        for now in (0.0, 0.9, 1.5, 2.5):
            scene.runners.warn_of_block(now)
        ended.set()

    scene = Scene(slow)
    scene.runners.start()
    scene.put(made(0))
    await asyncio.to_thread(look)
    await await_for(lambda: scene.verdicts == {0: "ack"})
    for now in (4.0, 4.5):
        scene.runners.warn_of_block(now)
        await asyncio.sleep(0)
    [record] = caplog.records
    assert "keeps the event loop for more than 1.5 s" in record.getMessage()
    assert "a job without a name" in record.getMessage()
    assert await scene.runners.close(1)


# -- leases that are lost ----------------------------------------------------------------------


async def test_a_job_lost_before_its_batch_begins() -> None:
    """A job lost while a coroutine blocks the loop is not run; its batch and others are."""
    jobs = [made(n) for n in range(6)]

    async def batch(part: list[Any]) -> None:
        if part[0].body == 0:
            scene.runners.lose([jobs[2]])  # as the heartbeat thread does
            return  # the next run begins in the same step
        await asyncio.sleep(0.01)

    scene = Scene(batch, size=2)
    scene.runners.start()
    for start in (0, 2, 4):
        scene.put(*jobs[start : start + 2])
    await await_for(lambda: len(scene.verdicts) == 6)
    assert scene.verdicts == {0: "ack", 1: "ack", 2: "none", 3: "ack", 4: "ack", 5: "ack"}
    assert await scene.runners.close(1)


async def test_a_job_lost_in_the_midst_of_its_batch() -> None:
    """The run is cancelled, the other jobs of its batch start again, and the runner continues."""
    jobs = [made(n) for n in range(3)]

    async def batch(part: list[Any]) -> None:
        if part[0].body == 0:
            scene.runners.lose(jobs[:1])
            await asyncio.sleep(60)

    scene = Scene(batch, size=2)
    scene.runners.start()
    scene.put(*jobs[:2])
    scene.put(jobs[2])
    await await_for(lambda: len(scene.verdicts) == 3)
    assert scene.verdicts == {0: "none", 1: "release", 2: "ack"}
    assert await scene.runners.close(1)


def test_a_thread_that_stops_when_its_job_is_lost() -> None:
    """A handler in a thread that returns after it lost a job does not finish that job."""
    jobs = [made(n) for n in range(4)]

    def batch(part: list[Any]) -> None:
        if part[0].body == 0:
            scene.runners.lose(part[1:])

    scene = Scene(batch, size=2)
    scene.runners.start()
    scene.put(*jobs[:2])
    scene.put(*jobs[2:])
    wait_for(lambda: len(scene.verdicts) == 4)
    assert scene.verdicts == {0: "ack", 1: "none", 2: "ack", 3: "ack"}
    assert scene.runners.close(1)


async def test_a_handler_that_swallows_its_cancellation() -> None:
    """A suppressed cancellation has no effect on the tasks of later handlers."""
    jobs = [made(n) for n in range(3)]
    left: list[int] = []

    async def handler(job: Any) -> None:
        task: Any = asyncio.current_task()
        left.append(task.cancelling() if hasattr(task, "cancelling") else 0)
        if job.body == 0:
            scene.runners.lose([job])
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return
        if job.body == 1:
            own = asyncio.ensure_future(asyncio.sleep(60))
            own.cancel()
            await own

    scene = Scene(handler)
    scene.runners.start()
    scene.put_all(jobs)
    await await_for(lambda: len(scene.verdicts) == 3)
    assert scene.verdicts == {0: "none", 1: "nack", 2: "ack"}  # a lost job is not reported
    assert left == [0, 0, 0]
    assert await scene.runners.close(1)


# -- cancellations by others -------------------------------------------------------------------


async def test_a_handler_that_is_cancelled_by_its_own_program() -> None:
    """A handler cancelled by its own program has failed; a new task replaces its task."""
    tasks: list[Any] = []

    async def handler(job: Any) -> None:
        tasks.append(asyncio.current_task())
        if job.body == 0:
            await asyncio.sleep(60)

    scene = Scene(handler)
    scene.runners.start()
    scene.put_all([made(n) for n in range(2)])
    await await_for(lambda: bool(tasks))
    tasks[0].cancel()
    await await_for(lambda: len(scene.verdicts) == 2)
    assert scene.verdicts == {0: "nack", 1: "ack"}
    assert await scene.runners.close(1)


async def test_an_idle_runner_that_is_cancelled() -> None:
    """When a handler has cancelled its runner's task, a new one replaces it."""

    async def handler(job: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if job.body == 0:
            task.cancel()

    scene = Scene(handler)
    scene.runners.start()
    scene.put(made(0))
    await await_for(lambda: len(scene.verdicts) == 1)
    await asyncio.sleep(0)
    scene.put(made(1))
    await await_for(lambda: len(scene.verdicts) == 2)
    assert scene.verdicts == {0: "ack", 1: "ack"}
    assert await scene.runners.close(1)


@pytest.mark.parametrize("is_swallowed", [False, True])
def test_the_end_of_the_event_loop(is_swallowed: bool) -> None:
    """At the end of the loop running jobs are released, nothing starts, and nothing hangs."""
    began: list[Any] = []
    scenes: list[Scene] = []

    async def handler(job: Any) -> None:
        began.append(job.body)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not is_swallowed:
                raise

    async def main() -> None:
        scenes.append(Scene(handler, count=2))
        scenes[0].runners.start()
        scenes[0].put_all([made(n) for n in range(3)])
        await await_for(lambda: len(began) == 2)

    asyncio.run(main())
    kind = "ack" if is_swallowed else "release"
    assert scenes[0].verdicts == {0: kind, 1: kind}
    assert began == [0, 1]


def test_the_end_of_the_event_loop_around_idle_runners() -> None:
    """Idle runners end with the event loop."""

    async def handler(job: Any) -> None:
        raise AssertionError(job)

    async def main() -> None:
        Scene(handler, count=2).runners.start()
        await asyncio.sleep(0)

    asyncio.run(main())


# -- errors in the error path ------------------------------------------------------------------

ERRORS = pytest.mark.parametrize("error", [ValueError, Broken, KeyboardInterrupt])


@ERRORS
def test_a_failure_that_cannot_be_logged(strict: None, error: type[BaseException]) -> None:
    """The job is retried although the log raises, and the thread continues."""

    def handler(job: Any) -> None:
        raise error

    scene = Scene(handler)
    scene.runners.start()
    scene.put_all([made(n) for n in range(2)])
    wait_for(lambda: len(scene.verdicts) == 2)
    assert scene.verdicts == {0: "nack", 1: "nack"}
    assert scene.runners.close(10)


@ERRORS
async def test_a_failure_of_a_coroutine_that_cannot_be_logged(
    strict: None, error: type[BaseException]
) -> None:
    """The job is retried although the log raises, and the task continues."""

    async def handler(job: Any) -> None:
        raise error

    scene = Scene(handler)
    scene.runners.start()
    scene.put_all([made(n) for n in range(2)])
    await await_for(lambda: len(scene.verdicts) == 2)
    assert scene.verdicts == {0: "nack", 1: "nack"}
    assert await scene.runners.close(1)


def test_a_return_that_cannot_be_logged(strict: None) -> None:
    """A job without a handler is given back although the log raises."""
    scene = Scene(lambda job: job)
    handler_runner = HandlerRunner(Handlers(), (), lambda: None)
    handler_runner.runners = scene.runners
    handler_runner.finished = FinishedJobs(time.monotonic)
    handler_runner.return_unknown(made(0, {"handler": "unknown"}))
    assert [done.verdict.kind for done in handler_runner.finished] == ["nack"]


def test_a_thread_outlives_its_handler_runner(strict: None) -> None:
    """A thread continues after any error of a run."""
    seen: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def execute(item: Any) -> None:
        seen.put(item[1])
        raise SystemExit

    runners = Runners(1, "w", execute)
    runners.start()
    handler: Any = None
    for n in range(2):
        runners.put((handler, [n]))
    assert [seen.get(timeout=30) for _ in range(2)] == [[0], [1]]
    assert runners.close(10)


async def test_a_task_outlives_its_handler_runner(strict: None) -> None:
    """A task continues after any error of a run."""
    seen: list[Any] = []

    async def execute(item: Any) -> None:
        seen.append(item[1])
        raise RuntimeError

    runners = AsyncRunners(1, "w", execute)
    runners.start()
    handler: Any = None
    for n in range(2):
        runners.put((handler, [n]))
    await await_for(lambda: len(seen) == 2)
    assert seen == [[0], [1]]
    assert await runners.close(1)


# -- children that a handler forks -------------------------------------------------------------


class Forking:
    """A handler that forks a child, which returns from it, and waits for the child's end.

    Attributes:
        codes: exit codes of the children; -9 = a child went on and had to be killed.
    """

    def __init__(self) -> None:
        self.codes: list[int] = []

    def __call__(self, job: Any) -> None:
        child = os.fork()
        if child == 0:
            if job.body == "raises":
                raise ValueError
            if job.body == "exits":
                sys.exit(3)
            return
        deadline = time.monotonic() + 20
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                found = os.waitpid(child, 0)
                break
            time.sleep(0.01)
        self.codes.append(os.waitstatus_to_exitcode(found[1]))

    async def coroutine(self, job: Any) -> None:
        """Do the same in an event loop."""
        self(job)


BODIES = ("returns", "raises", "exits")
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@forks
def test_a_forked_child_that_comes_back_to_its_thread_ends() -> None:
    """A forked child that returns to its thread ends without another job; its exit
    code is known.
    """
    handler = Forking()
    scene = Scene(handler)
    scene.runners.start()
    scene.put_all([made(body) for body in BODIES])
    wait_for(lambda: len(scene.verdicts) == 3, 90)
    assert handler.codes == [0, 1, 3]
    assert scene.verdicts == dict.fromkeys(BODIES, "ack")
    assert scene.runners.close(1)


@forks
@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
async def test_a_forked_child_that_comes_back_to_its_task_ends(is_async: bool) -> None:
    """A forked child that returns to its task ends, in an event loop and in its threads."""
    forking = Forking()
    handlers, finished = Handlers(), FinishedJobs(time.monotonic)
    made_of = handlers.handler(None)(forking.coroutine if is_async else forking)
    handler_runner = AsyncHandlerRunner(handlers, (), lambda: None)
    handler_runner.runners, handler_runner.finished = (
        AsyncRunners(1, "w", handler_runner.execute),
        finished,
    )
    handler_runner.runners.start()
    for body in BODIES:
        handler_runner.runners.put((made_of, (made(body),)))
    await await_for(lambda: len(finished) == 3, 90)
    assert forking.codes == [0, 1, 3]
    assert [done.verdict.kind for done in finished] == ["ack"] * 3
    assert await handler_runner.runners.close(1)


# -- reports -----------------------------------------------------------------------------------


def test_jobs_of_one_reserve_are_one_report() -> None:
    """A runner with more jobs at hand reports those of one reserve together, or after a while."""
    now = [0.0]
    finished = FinishedJobs(lambda: now[0])
    jobs = [made(n) for n in range(4)]
    shared = reservation_of(jobs[0])
    first = [jobs[0], *(Delivery(shared, b"%d" % n, b"", b"1\n") for n in range(2))]
    finished.is_last = lambda: False
    assert [finished.add(job, ACK, 0.1) for job in first] == [True, False, False]
    assert [*finished.take()] == []  # the runner goes on
    assert finished.add(jobs[1], ACK, 0.2)  # of another reserve
    assert finished.add(jobs[2], NO_REPORT, 0.3)  # another report
    [report] = finished.take()  # each in its own call
    assert (report.jobs, report.verdict, report.spans) == (tuple(first), ACK, (0.1,) * 3)
    assert [done.jobs for done in finished.take()] == [(jobs[1],)]
    assert [*finished.take()] == []
    now[0] = finished.due_at
    assert [(done.jobs, done.verdict) for done in finished.take()] == [((jobs[2],), NO_REPORT)]
    assert finished.due_at == math.inf
    finished.is_last = lambda: True
    assert finished.add(jobs[3], ACK, 0.4)
    assert [done.jobs for done in finished.take()] == [(jobs[3],)]


async def test_a_chunk_is_timed_once() -> None:
    """The statistics count the time of its run with one of its reports, not with each."""
    handlers, finished = Handlers(), FinishedJobs(time.monotonic)

    @handlers.chunk(None, size=3)
    async def settle_one(jobs: list[AsyncJob]) -> None:
        jobs[1].settled = True
        raise OSError("down")

    handler_runner = AsyncHandlerRunner(handlers, (), lambda: None)
    handler_runner.runners = AsyncRunners(1, "w", handler_runner.execute)
    handler_runner.finished = finished
    jobs = [made(n) for n in range(3)]
    handler = handlers.find(jobs[0])
    assert handler is not None
    await handler_runner.execute((handler, jobs))
    assert sorted((len(done.jobs), done.is_counted) for done in finished) == [(1, True), (2, False)]
