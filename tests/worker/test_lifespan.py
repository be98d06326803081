"""The life of a worker: its lifespan, hooks at the start and end, and values for handlers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AsyncPenstock,
    AsyncWorker,
    BadArgument,
    Handlers,
    Job,
    Middleware,
    Penstock,
    RunEvent,
    Worker,
)
from penstock.embedded import EmbeddedServer
from penstock.testing import PenstockKit
from penstock.worker import STATE, LifespanError, State
from tests.support.backends import Backend
from tests.worker.conftest import app, told, worker
from tests.worker.programs import APP, Program, Told

__all__ = ["app", "told", "worker"]

Start = Callable[..., Program]

LIFE = """
import contextlib
opened = []

@worker.on_start
def begin():
    tell("begin")

@worker.on_stop
def end():
    tell("end")

@worker.lifespan
@contextlib.contextmanager
def pool(own):
    assert own is worker
    opened.append("pool")
    tell("open")
    yield opened
    tell(f"close after {own.status().taken}")

"""


class Pool:
    """A resource of the handlers."""


@contextlib.contextmanager
def pool_of(events: list[Any]) -> Iterator[Pool]:
    """Open a pool, and note what happens."""
    events.append("open")
    yield Pool()
    events.append("close")


@pytest.fixture
def ps(brief_backend: Backend) -> Iterator[Penstock]:
    """A client with three jobs in the queue `q`."""
    with Penstock(brief_backend.sync_client()) as client:
        client.queue("q").enqueue_many(["a", "b", "c"])
        yield client


def test_the_lifespan_is_around_all_jobs(ps: Penstock) -> None:
    """Hooks at the start, the lifespan, the jobs, the end of the lifespan, hooks at the end; each
    job receives what the lifespan yields. A second run of the worker enters it again.
    """
    events: list[Any] = []
    worker = Worker(ps, "q", lambda job: events.append(type(job.state)), burst=True)
    worker.lifespan(lambda: pool_of(events))
    worker.on_start(lambda: events.append("first"))
    worker.on_start(lambda own: events.append(own is worker))
    worker.on_stop(lambda: events.append("last but one"))
    worker.on_stop(lambda: events.append("last"))
    whole = ["first", True, "open", Pool, Pool, Pool, "close", "last but one", "last"]
    worker.run()
    assert events == whole
    ps.queue("q").enqueue_many(["a", "b", "c"])
    worker.start()
    worker.join()
    assert events == whole * 2


async def test_an_asyncio_worker_takes_both_kinds(brief_backend: Backend) -> None:
    """Hooks and lifespans may be coroutine functions and asynchronous generators, or plain ones.
    The end of the lifespan sees the task of its start.
    """
    events: list[Any] = []
    async with AsyncPenstock(brief_backend.async_client()) as client:
        for decorate in (lambda plain: plain, contextlib.asynccontextmanager):
            await client.queue("q").enqueue_many(["a", "b"])

            async def pool(own: AsyncWorker) -> AsyncIterator[Pool]:
                task = asyncio.current_task()
                events.append(own.name)
                yield Pool()
                assert asyncio.current_task() is task
                events.append("close")

            async def handle(job: Any) -> None:
                events.append(type(job.state))

            async def wake() -> None:
                await asyncio.sleep(0)
                events.append("awake")

            worker = AsyncWorker(client, "q", handle, burst=True, name="w")
            worker.lifespan(decorate(pool))
            worker.on_start(wake)
            worker.on_stop(lambda: events.append("last"))
            await worker.run()
            assert events == ["awake", "w", Pool, Pool, "close", "last"]
            events.clear()
        await client.queue("q").enqueue("a")
        worker = AsyncWorker(client, "q", handle, burst=True)
        worker.lifespan(lambda: pool_of(events))
        await worker.run()
        assert events == ["open", Pool, "close"]


@pytest.mark.parametrize("kind", ["threads", "tasks", "threads beside tasks"])
def test_context_variables(kind: str, brief_backend: Backend, ps: Penstock) -> None:
    """Each job sees the variables of the lifespan and of its own hooks, and none of another job."""
    life, own = ContextVar("life", default=""), ContextVar("own", default="")
    seen: list[tuple[str, str]] = []

    class Naming(Middleware):
        @contextlib.contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            handle("hook")
            yield
            handle("")

    @contextlib.contextmanager
    def enter() -> Iterator[None]:
        token = life.set("open")
        yield
        life.reset(token)

    def handle(value: Any) -> None:
        seen.append((life.get(), own.get()))
        own.set(getattr(value, "body", value))

    async def handle_async(job: Any) -> None:
        handle(job)

    async def main() -> None:
        async with AsyncPenstock(brief_backend.async_client(), middleware=[Naming()]) as client:
            function = handle_async if kind == "tasks" else handle
            worker = AsyncWorker(client, "q", function, burst=True, concurrency=1)
            worker.lifespan(enter)
            await worker.run()

    if kind == "threads":
        with Penstock(brief_backend.sync_client(), middleware=[Naming()]) as client:
            worker = Worker(client, "q", handle, burst=True, concurrency=1)
            worker.lifespan(enter)
            worker.run()
    else:
        asyncio.run(main())
    left = ["hook"] * 3 if kind == "threads beside tasks" else ["a", "b", "c"]
    assert seen == [("open", value) for after in left for value in ("", "hook", after)]


@pytest.mark.parametrize("kind", ["itself", "mapping", "object"])
def test_parameters_receive_the_state(ps: Penstock, kind: str) -> None:
    """A `State` parameter gets the yielded value if it has the annotated type, else its item or
    attribute with the parameter's name. It is no argument of the job.
    """
    pool, events, handlers = Pool(), list[Any](), Handlers()

    class Resources:
        def __init__(self) -> None:
            self.pool = pool

    @handlers.handler("welcome")
    def welcome(name: str, pool: State[Pool] = STATE, *, lang: str = "en") -> None:
        events.append((name, pool, lang))

    @handlers.handler("last")
    def last(job: Job, pool: State[Pool], *names: str) -> None:
        events.append((job.state is not None, pool, names))

    yielded = {"itself": pool, "mapping": {"pool": pool}, "object": Resources()}[kind]
    ps.queue("r").enqueue_many([["a", "b"]], headers={"handler": "last"})
    welcome.enqueue(ps.queue("r"), "ada", lang="de")
    worker = Worker(ps, "r", handlers, burst=True, concurrency=1)
    worker.lifespan(lambda: contextlib.nullcontext(yielded))
    worker.run()
    assert events == [(True, pool, ("a", "b")), ("ada", pool, "de")]
    with pytest.raises(BadArgument, match="pool"):
        welcome.enqueue(ps.queue("r"), "ada", pool=1)
    ps.queue("r").enqueue({"name": "eve", "pool": 1}, headers={"handler": "welcome"})
    worker.run()
    assert [view.error for view in ps.queue("r").peek(state="dead")] == [
        "arguments don't fit welcome: pool=1: unexpected"
    ]


def test_a_state_that_does_not_fit_ends_the_worker(ps: Penstock) -> None:
    """A `State` parameter without a value is found before the first job."""
    handlers = Handlers()

    @handlers.handler("welcome")
    def welcome(pool: State[Pool]) -> None: ...

    @handlers.handler("cursor")
    def cursor(cursor: State[list[int]] = STATE) -> None: ...

    worker = Worker(ps, "q", handlers)
    with pytest.raises(BadArgument, match=r"pool=None: .* no Pool .* there is no lifespan"):
        worker.run()
    worker.lifespan(lambda: contextlib.nullcontext({"pool": Pool()}))
    with pytest.raises(BadArgument, match=r"cursor=.* it yields a dict"):
        worker.run()
    assert ps.queue("q").stats().ready == 3


def test_an_error_at_the_start_ends_the_worker(ps: Penstock) -> None:
    """No job is taken; the error names the function. What had begun is ended."""
    events: list[Any] = []

    def pool() -> Iterator[None]:
        raise ConnectionError("no database")
        yield

    worker = Worker(ps, "q", events.append)
    worker.on_stop(lambda: events.append("last"))
    worker.lifespan(pool)
    text = r"test_lifespan.*pool failed at the start of the worker: ConnectionError: no database"
    with pytest.raises(LifespanError, match=text) as raised:
        worker.run()
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert (events, worker.state) == (["last"], "stopped")
    assert ps.queue("q").stats().ready == 3


def test_an_error_of_a_hook_at_the_start(ps: Penstock) -> None:
    """The lifespan is not entered then, and no hook is called at the end."""
    events: list[Any] = []
    worker = Worker(ps, "q", events.append)
    worker.on_start(lambda: 1 // 0)
    worker.on_stop(lambda: events.append("last"))
    worker.lifespan(lambda: pool_of(events))
    with pytest.raises(LifespanError, match="ZeroDivisionError"):
        worker.run()
    assert events == []


def test_an_error_at_the_end_comes_after_the_jobs(ps: Penstock) -> None:
    """All jobs are reported, and the hooks are called all the same."""
    events: list[Any] = []

    def pool() -> Iterator[None]:
        yield
        raise ConnectionError("no database")

    worker = Worker(ps, "q", lambda job: events.append(job.body), burst=True, concurrency=1)
    worker.lifespan(pool)
    worker.on_stop(lambda: events.append("last"))
    with pytest.raises(LifespanError, match="failed at the end of the worker") as raised:
        worker.run()
    assert raised.value.phase == "end"
    assert events == ["a", "b", "c", "last"]
    assert ps.queue("q").stats().active == 0


async def test_errors_in_an_event_loop(brief_backend: Backend) -> None:
    """They are raised by `run` here too."""

    async def pool(phase: str) -> AsyncIterator[None]:
        if phase == "start":
            raise ConnectionError("no database")
        yield
        raise ConnectionError("no database")

    async with AsyncPenstock(brief_backend.async_client()) as client:
        for phase in ("start", "end"):
            worker = AsyncWorker(client, "q", print, burst=True)

            async def own(phase: str = phase) -> AsyncIterator[None]:
                async with contextlib.asynccontextmanager(pool)(phase):
                    yield

            worker.lifespan(own)
            with pytest.raises(LifespanError, match="no database") as raised:
                await worker.run()
            assert raised.value.phase == phase

        def plain() -> Iterator[None]:
            yield
            raise ConnectionError("no database")

        worker = AsyncWorker(client, "q", print, burst=True)
        worker.lifespan(plain)
        with pytest.raises(LifespanError, match="plain failed at the end"):
            await worker.run()


def test_functions_that_can_not_be_hooks(ps: Penstock) -> None:
    """They are refused where they are set, or when they return no context manager."""

    async def coroutine() -> None: ...

    async def generator() -> AsyncIterator[None]:
        yield

    def plain() -> Iterator[None]:
        yield

    worker = Worker(ps, "q", print)
    for function in (coroutine, generator, contextlib.asynccontextmanager(generator)):
        with pytest.raises(BadArgument, match="needs an AsyncWorker"):
            worker.lifespan(function)
    with pytest.raises(BadArgument, match="make it the lifespan"):
        worker.on_start(plain)
    with pytest.raises(BadArgument, match="on_stop=3"):
        worker.on_stop(3)  # type: ignore[type-var]  # bad input is the case
    worker.lifespan(lambda: 3)
    with pytest.raises(BadArgument, match="has one"):
        worker.lifespan(plain)
    with pytest.raises(LifespanError, match="returned a int, not a context manager"):
        worker.run()


def test_the_kit_gives_a_state(penstock: PenstockKit) -> None:
    """`penstock.work(handlers, state=...)` stands in for the lifespan."""
    events: list[Any] = []
    penstock.queue("q").enqueue("a")
    penstock.work(lambda job: events.append(job.state), state={"pool": 1})
    assert events == [{"pool": 1}]


# Processes


def app_with_life(path: Path, more: str = "") -> None:
    """Write an app whose worker has hooks and a lifespan."""
    body = APP.replace("    tell(job.body)\n", '    tell(f"{job.body} {len(job.state)}")\n', 1)
    path.write_text(body + LIFE + more)


def test_each_process_has_its_own(worker: Start, told: Told, app: Path) -> None:
    """Each process of a supervisor enters the lifespan before its first job and leaves it after its
    last one; SIGTERM does not wait for jobs that are not there.
    """
    app_with_life(app)
    program = worker("--processes", "2")
    seen: dict[str, list[str]] = {"1": [], "2": []}
    while not all("open" in events for events in seen.values()):
        number, _, _, what = told.next()
        seen[number].append(what)
    told.do("one")
    number = told.until("one 1")[0]
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    while not all("down" in events for events in seen.values()):
        process, _, _, what = told.next()
        seen[process].append(what)
    for process, events in seen.items():
        taken = int(process == number)
        assert [one for one in events if one != "up"] == [
            *("begin", "open", f"close after {taken}", "end", "down"),
        ]


def test_an_error_at_the_start_is_an_exit_code(worker: Start, app: Path) -> None:
    """The worker ends with one message, the app's lines, and 3."""
    app_with_life(app, "\n@worker.on_start\ndef fails():\n    raise OSError('no database')\n")
    program = worker()
    program.line("app.fails failed at the start of the worker: OSError: no database")
    program.line("raise OSError")
    assert program.wait() == 3
    assert "_guarded" not in program.seen


@pytest.mark.slow
def test_a_supervisor_waits_longer_each_time(worker: Start, told: Told, app: Path) -> None:
    """A process whose lifespan fails is replaced after a pause that grows, however long its start
    has taken.
    """
    slow = "import penstock.worker.supervisor as s; s.EARLY_END_SECONDS = 0"
    app_with_life(app, "\n@worker.on_start\ndef fails():\n    raise OSError('no database')\n")
    program = worker("--processes", "1", before=slow)
    for pause in ("0.1", "0.2", "0.4"):
        program.line(f"process 1, pid [0-9]+, ended with 3, .* it is replaced in {pause} s")
    program.send(signal.SIGTERM)
    assert program.wait() == 0


@pytest.mark.slow
def test_the_process_of_suspects_has_its_own(
    worker: Start, told: Told, app: Path, server: EmbeddedServer
) -> None:
    """A suspect runs in a process that has entered the lifespan too."""
    app_with_life(app)
    crashing = 'if job.body == "crash":\n        os._exit(9)\n    if job.body == "options"'
    app.write_text(app.read_text().replace('if job.body == "options"', crashing, 1))
    with Penstock(server.url) as client:
        client.queue("jobs").configure(lease=1)
        told.do("crash")
        program = worker("--processes", "1")
        opened, crashed = set[int](), list[str]()
        while len(crashed) < 3:
            _, pid, name, what = told.next()
            if what == "open":
                opened.add(pid)
            elif what == "crash 1":
                assert pid in opened
                crashed.append(name)
        assert crashed == ["app-1", "app-1", "app-1-isolated"]
        program.send(signal.SIGTERM)
        assert program.wait() == 0
