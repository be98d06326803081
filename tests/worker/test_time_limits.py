"""Time limits of handlers: coroutines, threads, and threads that ignore them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import AsyncWorker, BadArgument, Handlers, Penstock, Worker
from penstock.embedded import EmbeddedServer
from penstock.worker import TimeLimit
from penstock.worker.limits import Limits
from tests.support.backends import Backend
from tests.support.twins import wait_for
from tests.worker.conftest import app, told, worker
from tests.worker.programs import APP, STARTED, Told

__all__ = ["app", "told", "worker"]

LIMIT = 0.2
SLEEPS = """
from penstock import Handlers
handlers = Handlers()
handlers.handler(None)(handle)

@handlers.handler("sleeps", time_limit=0.2)
def sleeps():
    tell("sleeps")
    time.sleep(600)

worker = Told"""


@pytest.fixture
def ps(brief_backend: Backend) -> Iterator[Penstock]:
    """A client whose failed jobs wait for an hour."""
    with Penstock(brief_backend.sync_client()) as client:
        client.queue("q").configure(backoff_base=3600)
        client.queue("q").enqueue("x")
        yield client


def computes() -> None:
    """Keep the interpreter busy, in pure Python."""
    while True:
        sum(range(100))


def swallows() -> None:
    """Go on after every `Exception`."""
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.001)


HANDLERS = {"pure Python": computes, "except Exception": swallows}


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("of_worker", [False, True], ids=["handler", "worker"])
def test_a_thread(name: str, of_worker: bool, ps: Penstock) -> None:
    """`TimeLimit` is raised in it; the attempt has failed, and the thread runs other jobs."""
    handlers = Handlers()

    @handlers.handler(None, time_limit=None if of_worker else LIMIT)
    def handle(job: Any) -> None:
        if job.body == "x":
            HANDLERS[name]()

    ps.queue("q").enqueue("y")
    options: Any = {"time_limit": LIMIT} if of_worker else {}
    runner = Worker(ps, "q", handlers, burst=True, concurrency=1, **options)
    runner.run()
    assert runner.status().stats.counts == {"retried": 1, "done": 1}
    [view] = ps.queue("q").peek(state="scheduled")
    assert view.error == "TimeLimit: longer than 0.2 s"


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain function"])
async def test_asyncio(plain: bool, brief_backend: Backend) -> None:
    """A coroutine is cancelled; a plain function gets the exception in its thread."""
    seen: list[str] = []
    handlers = Handlers()
    if plain:
        handlers.handler(None, time_limit=LIMIT)(lambda _: computes())
    else:

        @handlers.handler(None, time_limit=LIMIT)
        async def handle(job: Any) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    async with brief_backend.async_client() as redis:
        runner = AsyncWorker(redis, "q", handlers, burst=True)
        queue = runner._origin.queue("q")
        await queue.configure(backoff_base=3600)
        await queue.enqueue("x")
        await runner.run()
        [view] = await queue.peek(state="scheduled")
        await runner._origin.close()
    assert view.error == "TimeLimit: longer than 0.2 s"
    assert seen == ([] if plain else ["cancelled"])


def test_a_limit_that_is_not_reached(ps: Penstock) -> None:
    """Nothing happens to a handler that ends in time."""
    runner = Worker(ps, "q", lambda _: None, burst=True, time_limit=60)
    runner.run()
    assert runner.status().stats.counts == {"done": 1}
    assert runner.status().options["time_limit"] == 60.0


@pytest.mark.parametrize("value", [0, -1, "5"])
def test_a_wrong_limit(value: Any) -> None:
    """It is a duration above 0."""
    with pytest.raises(BadArgument, match="time_limit"):
        Handlers().handler("x", time_limit=value)(computes)
    with pytest.raises(BadArgument, match="time_limit"):
        Worker("redis://127.0.0.1:1", "q", print, time_limit=value)


def test_the_thread_ends_when_it_has_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was started often leaves no threads; the next run with a limit starts one."""
    monkeypatch.setattr("penstock.worker.limits.IDLE_THREAD_SECONDS", 0.01)
    limits: Any = Limits(None, 60, print)
    for _ in range(2):
        assert limits.run(60, (SimpleNamespace(function=lambda: 7), ()), (), {}) == 7
        wait_for(lambda: limits._thread is None)


def test_a_run_with_a_limit_needs_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the thread can't be started, runs with a limit fail; the next one starts it."""
    limits: Any = Limits(None, 60, print)
    runs: list[float] = []

    def handle() -> None:
        runs.append(time.monotonic())
        while time.monotonic() < runs[-1] + 10:
            time.sleep(0.001)

    item = (SimpleNamespace(function=handle), ())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            limits.run(0.01, item, (), {})
    assert runs == []
    with pytest.raises(TimeLimit):
        limits.run(0.01, item, (), {})


def refuse_thread(thread: threading.Thread) -> None:
    """Fail as the interpreter does when the system refuses another thread."""
    raise RuntimeError("can't start new thread")


def test_the_exception_is_never_raised_outside() -> None:
    """Runs that end at the moment of their limit: the exception comes in the run, or never."""
    limits: Any = Limits(None, 60, print)
    outside: list[BaseException] = []
    ends: list[str] = []

    def hammer(seed: int) -> None:
        try:
            for turn in range(400):
                until = time.perf_counter() + 0.002 * (0.9 + (turn * seed % 20) / 100)

                def spin(until: float = until) -> int:
                    while time.perf_counter() < until:
                        pass
                    return 7

                try:
                    assert limits.run(0.002, (SimpleNamespace(function=spin), ()), (), {}) == 7
                    ends.append("returned")
                except TimeLimit:
                    ends.append("limited")
                for _ in range(100):
                    sum([1, 2, 3])
        except BaseException as error:  # noqa: BLE001  # what must not come
            outside.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=hammer, args=(seed,)) for seed in (3, 7, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert outside == []
    assert len(ends) == 1200
    assert set(ends) == {"returned", "limited"}


def test_an_exception_that_cannot_be_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the interpreter does not know the thread, the log says so; the handler counts as stuck."""
    stuck: queue.SimpleQueue[Any] = queue.SimpleQueue()
    limits: Any = Limits(None, 0.01, stuck.put)
    monkeypatch.setattr("penstock.worker.limits._set_async_exc", lambda *_: 0)
    item = (SimpleNamespace(function=lambda: stuck.get(timeout=30)), ())
    assert limits.run(0.01, item, (), {}) is item
    [line] = [record.getMessage() for record in caplog.records]
    ident = threading.get_ident()
    assert line.startswith("TimeLimit can't be raised in a handler: ")
    assert line.endswith(f"no thread with the id {ident}")


@pytest.mark.slow
def test_a_thread_that_ignores_the_limit(
    worker: Any, told: Told, server: EmbeddedServer, app: Path
) -> None:
    """It costs its process, which is replaced. The jobs of the other threads are given back: they
    count no crash, and run again at once. Its own job counts one failure.
    """
    app.write_text(APP.replace("worker = Told", SLEEPS).replace("handle, conc", "handlers, conc"))
    with Penstock(server.url) as client:
        queue = client.queue("jobs")
        queue.configure(backoff_base=3600)
        program = worker("--processes", "1", "--concurrency", "12", "--grace", "1")
        first = program.line(STARTED)[2]
        told.do(*["long"] * 11)
        for _ in range(11):
            told.until("long")
        queue.enqueue({}, headers={"handler": "sleeps"})
        told.until("sleeps")
        program.line("stops: a handler has ignored its time limit")
        assert program.line(STARTED)[2] != first
        pids = {str(told.until("long")[1]) for _ in range(11)}
        assert len(pids) == 1
        assert first not in pids
        stats = queue.stats()
        assert (stats.crashed, stats.nacked, stats.released, stats.active) == (0, 1, 11, 11)
        assert {(view.crashes, view.nacks) for view in queue.peek(state="active")} == {(0, 0)}
        [view] = queue.peek(state="scheduled")
        assert (view.error, view.nacks) == ("TimeLimit: it was ignored", 1)


def test_the_limit_of_the_default_handler(ps: Penstock) -> None:
    """`Handlers.default` takes a time limit too."""
    handlers = Handlers()

    @handlers.default(time_limit=LIMIT)
    def anything(job: Any) -> None:
        computes()

    Worker(ps, "q", handlers, burst=True).run()
    [view] = ps.queue("q").peek(state="scheduled")
    assert view.error == "TimeLimit: longer than 0.2 s"
    with pytest.raises(BadArgument, match="time_limit=0"):
        Handlers().default(time_limit=0)(anything.function)


def test_the_limit_of_a_worker_process(
    worker: Any, told: Told, server: EmbeddedServer, app: Path
) -> None:
    """`--time-limit` is the limit of handlers without one of their own."""
    app.write_text(APP)
    with Penstock(server.url) as client:
        client.queue("jobs").configure(backoff_base=3600)
        told.do("long")
        program = worker("--time-limit", "0.2")
        program.line("failed: TimeLimit: longer than 0.2 s")
        told.do("options")
        options = told.next()
        while "options" not in options[3]:
            options = told.next()
        assert "time_limit=0.2" in told.next()[3]
