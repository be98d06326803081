"""The local variables of a handler are freed when its run has ended, without the garbage collector.

A job of 40 MB that fails must not keep these 40 MB until the next collection.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
from tenacity import RetryCallState
from tenacity.stop import stop_base

from penstock import (
    AsyncPenstock,
    AsyncWorker,
    BadArgument,
    Done,
    EnqueueEvent,
    Handlers,
    Middleware,
    Penstock,
    Queue,
    Reject,
    Retry,
    RunEvent,
    Snooze,
    Worker,
)
from penstock.embedded import EmbeddedServer
from penstock.testing import PenstockKit
from penstock.worker import Conversion, TimeLimit
from penstock.worker._async.handler_runner import AsyncHandlerRunner
from penstock.worker.polls import FinishedJobs
from penstock.worker.runners import AsyncRunners
from tests.support.freed import Freed, all_records, no_collector
from tests.support.twins import PATIENCE, await_for
from tests.worker.deliveries import made
from tests.worker.test_cancel import Working

FOREVER = 3600
KINDS = ["thread", "coroutine", "function under asyncio"]


@pytest.fixture
def log() -> Iterator[list[logging.Handler]]:
    """The handlers of penstock's records."""
    with all_records() as handlers:
        yield handlers


@pytest.fixture
def freed(log: list[logging.Handler]) -> Iterator[Freed]:
    """Objects to watch, without the garbage collector."""
    del log
    with no_collector():
        yield Freed()


@pytest.fixture
def queue(worker_server: EmbeddedServer) -> Iterator[Queue]:
    """An empty queue, whose failed jobs wait."""
    with Penstock(worker_server.url) as client:
        client.topology.executor.command("FLUSHALL")
        client.queue("work").configure(backoff_base=FOREVER, backoff_cap=FOREVER)
        yield client.queue("work")


# -- ends of a handler -------------------------------------------------------------------------


class Unprintable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def from_a_cause() -> None:
    """Raise an exception with a cause."""
    try:
        raises(LookupError("first"))()
    except LookupError as error:
        raise ValueError("second") from error


def in_an_except_clause() -> None:
    """Raise an exception with a context."""
    try:
        raises(LookupError("first"))()
    except LookupError:
        raise ValueError("second")  # noqa: B904  # its context counts


def retry_from_a_cause() -> None:
    """Raise `Retry` for an exception."""
    try:
        raises(LookupError("first"))()
    except LookupError as error:
        raise Retry(FOREVER) from error


def raises(error: BaseException | type[BaseException]) -> Callable[[], None]:
    """Return a function that raises."""

    def end() -> None:
        raise error() if isinstance(error, type) else type(error)(*error.args)

    return end


ENDS: dict[str, Callable[[], Any]] = {
    "an exception": raises(ValueError("no")),
    "a cause": from_a_cause,
    "a context": in_an_except_clause,
    "no text": raises(Unprintable),
    "StopIteration": raises(StopIteration),
    "a name that does not exist": lambda: missing,  # type: ignore[name-defined]  # noqa: F821
    "Retry": raises(Retry(FOREVER)),
    "Retry from": retry_from_a_cause,
    "Snooze": raises(Snooze(FOREVER)),
    "Reject": raises(Reject("no")),
    "Done": raises(Done(7)),
    "sys.exit": sys.exit,
    "KeyboardInterrupt": raises(KeyboardInterrupt),
    "CancelledError": raises(asyncio.CancelledError),
    "TimeLimit": raises(TimeLimit("no")),
    "a value": lambda: 7,
    "a returned Retry": lambda: Retry(FOREVER),
    "a returned class": lambda: Snooze,
}


def handlers_of(kind: str, end: Callable[[Any], Any], **options: Any) -> Handlers:
    """Return a handler of this kind whose runs end like that."""
    handlers = Handlers()
    register: Any = handlers.chunk if "size" in options else handlers.handler
    if kind == "coroutine":

        async def coroutine(job: Any) -> Any:
            return await awaited(end(job))

        register(None, **options)(coroutine)
    else:
        register(None, **options)(end)
    return handlers


async def awaited(value: Any) -> Any:
    """Return a value, or the result of a coroutine."""
    return await value if asyncio.iscoroutine(value) else value


def worked(kind: str, source: Any, handlers: Handlers, **options: Any) -> Working:
    """Return a worker for handlers of this kind."""
    of_kind: Any = Worker if kind == "thread" else AsyncWorker
    return Working(source, handlers, of_kind, concurrency=1, **options)


def client_of(kind: str, url: str, *hooks: Middleware) -> Penstock | AsyncPenstock:
    """Return a client with middleware for a worker of this kind."""
    return (Penstock if kind == "thread" else AsyncPenstock)(url, middleware=hooks)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_end(kind: str, end: str, freed: Freed, queue: Queue, worker_url: str) -> None:
    """While the worker goes on, nothing keeps the locals of a handler that has ended."""

    def handler(_: Any) -> Any:
        local = freed.make()
        assert local is not None
        return ENDS[end]()

    queue.enqueue(1)
    with worked(kind, worker_url, handlers_of(kind, handler)):
        freed.check()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk(kind: str, end: str, freed: Freed, queue: Queue, worker_url: str) -> None:
    """Nothing keeps the locals of a chunk handler that has ended."""

    def handler(jobs: Any) -> Any:
        local = freed.make()
        assert local is not None
        value = ENDS[end]()
        return None if value is None else [value] * len(jobs)

    queue.enqueue_many([1, 2])
    with worked(kind, worker_url, handlers_of(kind, handler, size=2)):
        freed.check()


def raised(job: Any, freed: Freed) -> BaseException:
    """Return an exception that was raised, with an object in the frame that raised it."""
    local = freed.make()
    try:
        raise ValueError(job.body)
    except ValueError as error:
        assert local is not None
        return error


@pytest.mark.parametrize("size", [None, 2], ids=["job", "chunk"])
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "with middleware"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_returned_exception(
    kind: str, hooked: bool, size: int | None, freed: Freed, queue: Queue, worker_url: str
) -> None:
    """A caught exception that is returned, alone or in a list, counts as raised."""

    def handler(jobs: Any) -> Any:
        if size is None:
            return raised(jobs, freed)
        return [*map(raised, jobs, [freed] * 2)]

    queue.enqueue_many([1, 2])
    options = {} if size is None else {"size": size}
    source = client_of(kind, worker_url, Keeping()) if hooked else worker_url
    with worked(kind, source, handlers_of(kind, handler, **options)):
        freed.check(2)


# -- ends by others ----------------------------------------------------------------------------


def waiting(kind: str, freed: Freed, began: threading.Event) -> Callable[[Any], Any]:
    """Return a handler that does not end by itself."""

    def in_thread(_: Any) -> None:
        local = freed.make()
        began.set()
        while local is not None:
            time.sleep(0.001)

    async def in_task() -> None:
        local = freed.make()
        began.set()
        await asyncio.Event().wait()
        assert local is not None

    return (lambda _: in_task()) if kind == "coroutine" else in_thread


@pytest.mark.parametrize("size", [None, 1], ids=["job", "chunk"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_time_limit(
    kind: str, size: int | None, freed: Freed, queue: Queue, worker_url: str
) -> None:
    """The handler is ended by its time limit."""
    options = {} if size is None else {"size": size}
    handler = waiting(kind, freed, threading.Event())
    queue.enqueue(1)
    with worked(kind, worker_url, handlers_of(kind, handler, time_limit=0.1, **options)):
        freed.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_is_cancelled(kind: str, freed: Freed, queue: Queue, worker_url: str) -> None:
    """The handler is ended as its job is cancelled."""
    began = threading.Event()
    job = queue.enqueue(1)
    with worked(kind, worker_url, handlers_of(kind, waiting(kind, freed, began))):
        assert began.wait(PATIENCE)
        queue.cancel([job.id])
        freed.check()


@pytest.mark.parametrize("kind", ["coroutine", "function under asyncio"])
@pytest.mark.parametrize("function_ends", ["before", "after"])
def test_a_job_that_is_lost(kind: str, function_ends: str, freed: Freed) -> None:
    """The task is cancelled. A function in a thread may end before its task sees that, or after."""

    async def main() -> None:
        began, go_on = threading.Event(), threading.Event()

        def in_thread(_: Any) -> None:
            local = freed.make()
            began.set()
            assert go_on.wait(PATIENCE)
            raise ValueError(type(local))

        in_task = waiting(kind, freed, began)
        handlers = handlers_of(kind, in_task if kind == "coroutine" else in_thread)
        handler_runner = AsyncHandlerRunner(handlers, (), lambda: None)
        runners = handler_runner.runners = AsyncRunners(1, "w", handler_runner.execute)
        handler_runner.finished = FinishedJobs(time.monotonic)
        runners.start()
        job = made(1)
        runners.put((next(iter(handlers)), (job,)))
        await await_for(began.is_set)
        if function_ends == "before":
            go_on.set()
            runners._threads.end()
            for thread in runners._threads._threads:
                thread.join(PATIENCE)  # it has told the loop, which has not run since
        runners.lose([job])
        await await_for(lambda: bool(handler_runner.finished))
        go_on.set()
        await asyncio.to_thread(freed.check)
        assert await runners.close(1)

    asyncio.run(main())


# -- other code of the user --------------------------------------------------------------------


class Keeping(Middleware):
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @contextmanager
    def run(self, event: RunEvent | EnqueueEvent) -> Iterator[None]:
        """Keep an event."""
        self.events.append(event)
        yield

    def enqueue(self, event: EnqueueEvent) -> AbstractContextManager[None]:
        """Do the same."""
        return self.run(event)


class Raising(Keeping):
    """Raises before or after the run, or catches what is raised.

    Args:
        where: where it raises.
        freed: makes an object for its local variable.
    """

    def __init__(self, where: str, freed: Freed) -> None:
        super().__init__()
        self._where = where
        self._freed = freed

    @contextmanager
    def run(self, event: RunEvent | EnqueueEvent) -> Iterator[None]:
        """Raise."""
        self.events.append(event)
        local = self._freed.make()
        assert local is not None
        if self._where == "before":
            raise OSError("before")
        try:
            yield
        except Exception as error:
            if self._where == "from":
                raise OSError("instead") from error
            if self._where == "Retry":
                raise Retry(FOREVER) from error
            if self._where == "passes":
                raise
        if self._where == "after":
            raise OSError("after")


PLACES = ["before", "after", "from", "Retry", "passes", "catches", "before, from"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("end", ["an exception", "Retry", "sys.exit", "a value"])
@pytest.mark.parametrize("kind", KINDS)
def test_middleware(
    kind: str, where: str, end: str, freed: Freed, queue: Queue, worker_url: str
) -> None:
    """Middleware raises, or keeps the events, which forget error and value."""

    def handler(_: Any) -> Any:
        local = freed.make()
        assert local is not None
        return ENDS[end]()

    queue.enqueue(1)
    places = where.split(", ")[::-1]
    hooks = [Keeping(), *(Raising(place, freed) for place in (*places, "passes"))]
    with worked(kind, client_of(kind, worker_url, *hooks), handlers_of(kind, handler)):
        freed.check(len(places) + (0 if "before" in places else 2))
    assert [(event.error, event.value) for event in hooks[0].events] == [(None, None)]


@pytest.mark.parametrize("kind", KINDS)
def test_taking_a_value(kind: str, freed: Freed, queue: Queue, worker_url: str) -> None:
    """Nothing keeps the locals of a handler whose value is refused by the worker's `take`."""

    def take(*_: Any) -> None:
        local = freed.make()
        raise TypeError("no", type(local))

    queue.enqueue(1)
    working = worked(kind, worker_url, handlers_of(kind, lambda _: 7))
    working.worker.take = take
    with working:
        freed.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_next_job(
    kind: str, freed: Freed, queue: Queue, worker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A next job can't be added."""

    def refuse(*_: Any) -> None:
        local = freed.make()
        raise TypeError("no", type(local))

    for twin_of in ("_async", "_sync"):
        monkeypatch.setattr(f"penstock.worker.{twin_of}.handler_runner.hand_over", refuse)
    queue.enqueue(1)
    then = Handlers().handler("next")(lambda: None).job()
    with worked(kind, worker_url, handlers_of(kind, lambda _: Done(then=[then]))):
        freed.check()


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_that_can_not_be_converted(
    kind: str, freed: Freed, queue: Queue, worker_url: str
) -> None:
    """A converter refuses the argument."""

    def load(_: Any) -> Any:
        local = freed.make()
        raise TypeError("no", type(local))

    handlers = Handlers(convert=lambda _: Conversion(load, str))

    def handler(to: complex) -> None:
        pytest.fail(str(to))

    async def coroutine(to: complex) -> None:
        pytest.fail(str(to))

    handlers.handler("x")(coroutine if kind == "coroutine" else handler)
    queue.enqueue({"to": "ada"}, headers={"handler": "x"})
    with worked(kind, worker_url, handlers):
        freed.check()


@pytest.mark.parametrize("kind", KINDS)
def test_tenacity(kind: str, freed: Freed, queue: Queue, worker_url: str) -> None:
    """A stop object of tenacity raises."""

    class Stop(stop_base):
        def __call__(self, state: RetryCallState) -> bool:
            local = freed.make()
            raise TypeError(type(local), state)

    def handler(_: Any) -> None:
        local = freed.make()
        raise ValueError(type(local))

    queue.enqueue(1)
    with worked(kind, worker_url, handlers_of(kind, handler, stop=Stop())):
        freed.check(2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_handler_that_reads_the_variables_of_each_frame(
    kind: str, freed: Freed, queue: Queue, worker_url: str, log: list[logging.Handler]
) -> None:
    """Reading them leaves a copy in the frame, on Python 3.12 and earlier."""

    class Reading(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            trace = record.exc_info[2] if record.exc_info else None
            while trace is not None:
                assert trace.tb_frame.f_locals is not None
                trace = trace.tb_next

    def handler(_: Any) -> None:
        local = freed.make()
        raise ValueError(type(local))

    log.append(Reading())
    queue.enqueue(1)
    with worked(kind, client_of(kind, worker_url, Keeping()), handlers_of(kind, handler)):
        freed.check()


# -- without a worker --------------------------------------------------------------------------


def test_a_consumer(freed: Freed, queue: Queue) -> None:
    """`with job:` reports the failure of its block, and keeps nothing."""

    def block() -> None:
        local = freed.make()
        raise ValueError(type(local))

    queue.enqueue(1)
    for job in queue.reserve():
        with job:
            block()
    freed.check()
    assert queue.stats().nacked == 1


async def test_an_asyncio_consumer(freed: Freed, queue: Queue, worker_url: str) -> None:
    """`async with job:` reports the failure of its block, and keeps nothing."""

    async def block() -> None:
        local = freed.make()
        raise ValueError(type(local))

    queue.enqueue(1)
    async with AsyncPenstock(worker_url) as ps:
        for job in await ps.queue("work").reserve():
            async with job:
                await block()
        freed.check()
    assert queue.stats().nacked == 1


@pytest.mark.parametrize("raising", [False, True], ids=["counted", "raised"])
@pytest.mark.parametrize("end", ["an exception", "a cause", "Retry", "sys.exit"])
def test_the_test_kit(raising: bool, end: str, freed: Freed, penstock: PenstockKit) -> None:
    """The kit raises the first failure, and keeps none."""

    def handler(_: Any) -> Any:
        local = freed.make()
        assert local is not None
        return ENDS[end]()

    queue = penstock.queue("q")
    queue.configure(backoff_base=FOREVER)
    queue.enqueue_many([1, 2])
    for _ in range(2):  # it raises after the first failure
        with suppress(BaseException):
            penstock.work(handler, raising=raising)
    freed.check(2)
    assert queue.stats().nacked == 2


def test_an_enqueue_that_fails(freed: Freed, worker_url: str, queue: Queue) -> None:
    """The middleware of a producer keeps no exception either."""

    def produce() -> None:
        local = freed.make()
        ps.queue("work").enqueue(1, delay=-1)
        pytest.fail(repr(local))

    with Penstock(worker_url, middleware=[Raising("passes", freed), Keeping()]) as ps:
        with suppress(BadArgument):
            produce()
        freed.check(2)
    assert queue.stats().ready == 0
