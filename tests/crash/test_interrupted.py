"""A call interrupted by an exception leaves no reply for the next call."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import pytest
import redis

from penstock import AsyncPenstock, IncompleteEnqueue, Penstock, Queue
from penstock.client.sockets import AsyncSocket, Socket
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.crash.tasks import CHUNK, QUEUE, SCRIPTS, script_of, struck
from tests.support.keyspace import advance, check_invariant, load_scripts
from tests.support.workers import until

INTERRUPTIONS = 50
STEPS = ("before", "sent", "reading", "answered", "read")
SOON = 0.003


class Interrupted(Exception):
    """The exception raised by the signal handler."""


@pytest.fixture
def handler() -> Iterator[None]:
    """Install a raising handler for two signals: one sent at once, one by a timer."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted

    both = (signal.SIGUSR1, signal.SIGALRM)
    before = [(number, signal.signal(number, interrupt)) for number in both]
    yield
    for number, old in before:
        signal.signal(number, old)


class Interruptions:
    """Calls interrupted at a given step.

    Args:
        server: frozen while a call waits for its reply.
        patch: for one call.
    """

    def __init__(self, server: EmbeddedServer, patch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.patch = patch

    def of(self, operation: str, step: str, which: int, call: Callable[[], Any]) -> None:
        """Run a call that is interrupted."""
        waits = step in ("sent", "reading")

        def halt() -> None:
            if waits:
                self.server.pause()

        def strike() -> None:
            if step == "reading":  # the handler runs while recv blocks on the frozen server
                signal.setitimer(signal.ITIMER_REAL, SOON)
            else:
                signal.raise_signal(signal.SIGUSR1)

        with self.patch.context() as patch:
            patch.setattr(Socket, "trip", struck(operation, step, which, halt, strike))
            try:
                with pytest.raises((Interrupted, IncompleteEnqueue)) as raised:
                    call()
                if isinstance(raised.value, IncompleteEnqueue):
                    assert isinstance(raised.value.__cause__, Interrupted)
                    assert len(raised.value.results) == which * CHUNK
            finally:
                if waits:
                    self.server.resume()


@pytest.fixture
def interruptions(
    crash_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, handler: None
) -> Interruptions:
    """Interrupted calls."""
    return Interruptions(crash_server, monkeypatch)


@pytest.fixture
def queue(client: Penstock, raw: redis.Redis) -> Queue:
    """A queue whose jobs survive any number of crashes."""
    load_scripts(raw)
    found = client.queue(QUEUE)
    found.configure(max_crashes=1_000_000, max_attempts=1_000_000)
    return found


def check_own_replies(queue: Queue, serial: int) -> None:
    """Check that the next calls get their own replies."""
    body = b"probe %d" % serial
    result = queue.enqueue(body)
    view = queue.show(result.id)
    assert view is not None
    assert view.raw == body
    assert list(queue.delete([result.id])) == ["done"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("operation", ["enqueue", "enqueue_many", "reserve", "ack", "settle"])
def test_a_signal_handler_raises(
    operation: str,
    step: str,
    interruptions: Interruptions,
    queue: Queue,
    raw: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call is done or not, depending on the step; the next calls get their own replies."""
    monkeypatch.setattr("penstock.core.enqueuing.chunks.BATCH", CHUNK)
    has_run = step != "before"
    expected = 0  # the number of jobs that must exist
    if operation not in SCRIPTS:  # the clock will be ahead, and one call be struck: no lane first
        queue.ops.decline(script(operation))
    for i in range(INTERRUPTIONS):
        if operation in ("reserve", "ack", "settle"):
            queue.enqueue_many([b"1", b"2"])
            expected += 2
        name, which = script_of(operation)
        interruptions.of(name, step, which, call_of(operation, queue))
        check_own_replies(queue, i)
        added = {"enqueue": (0, 1), "enqueue_many": (CHUNK, 2 * CHUNK)}.get(operation, (0, 0))
        expected += added[has_run] - (has_run and operation in ("ack", "settle"))
        await_jobs(queue, expected)
        if operation not in SCRIPTS:
            advance(raw, queue.ops, 31)
    check_invariant(raw)
    jobs = queue.reserve(1000, block=0)
    assert len(jobs) == expected
    assert queue.ack(jobs)


def call_of(operation: str, queue: Queue) -> Callable[[], Any]:
    """Return a call that is ready to run."""
    held = queue.reserve(1, block=0) if operation in ("ack", "settle") else []
    bodies = [b"%d" % n for n in range(3 * CHUNK)]
    calls: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: queue.enqueue(b"1"),
        "enqueue_many": lambda: queue.enqueue_many(bodies),
        "reserve": lambda: queue.reserve(1, block=0),
        "ack": lambda: queue.ack(held),
        "settle": lambda: queue.ack_and_reserve(held, 1),
    }
    return calls[operation]


def await_jobs(queue: Queue, expected: int) -> None:
    """Wait for the resumed server, which may run a dead connection's call after ours."""

    def are_there() -> bool:
        stats = queue.stats()
        return stats.ready + stats.active == expected

    until(are_there)


async def test_a_task_is_cancelled(
    crash_server: EmbeddedServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task cancelled before its reply leaves no reply for the next call."""
    load_scripts(raw)
    sent = asyncio.Event()

    trip = AsyncSocket.trip

    async def watched(own: AsyncSocket, packed: bytes = b"", **how: Any) -> Any:
        asyncio.get_running_loop().call_soon(sent.set)  # runs while the reply is awaited
        return await trip(own, packed, **how)

    async with AsyncPenstock(crash_server.url) as client:
        queue = client.queue(QUEUE)
        await queue.enqueue(b"0")
        monkeypatch.setattr(AsyncSocket, "trip", watched)
        for i in range(INTERRUPTIONS):
            body = b"cancelled %d" % i
            crash_server.pause()
            try:
                sent.clear()
                task = asyncio.ensure_future(queue.enqueue(body))
                await asyncio.wait_for(sent.wait(), 30)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            finally:
                crash_server.resume()
            result = await queue.enqueue(b"next %d" % i)
            view = await queue.show(result.id)
            assert view is not None
            assert view.raw == b"next %d" % i
        stats = await queue.stats()
        assert INTERRUPTIONS < stats.enqueued <= 2 * INTERRUPTIONS + 1
        bodies = [view.raw for view in await queue.peek(1000)]
        assert len(bodies) == len(set(bodies)) == stats.enqueued
    check_invariant(raw)
