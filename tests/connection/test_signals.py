"""The events that end a wait in asyncio: a signal, a reply, or a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from penstock.client._acompat import PENDING, AsyncLoopLock, AsyncReader, AsyncWakeup, Wakeup


class Connection:
    """A connection that answers on command."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.is_closed = False

    async def read_response(self, *, disable_decoding: bool, disconnect_on_error: bool) -> Any:
        """Return the reply."""
        assert disable_decoding
        assert not disconnect_on_error
        return await self.reply

    async def disconnect(self, *, nowait: bool) -> None:
        """Note that the reader has closed the connection."""
        assert nowait
        self.is_closed = True


async def test_a_signal_ends_this_wait_or_the_next() -> None:
    """A signal set before or during a wait ends that wait and no other."""
    signal = AsyncWakeup()
    signal.set()
    await signal.wait(math.inf)
    asyncio.get_running_loop().call_soon(signal.set)
    await signal.wait(math.inf)
    assert not signal.take()
    await signal.wait(0)


async def test_a_wait_whose_time_is_over_ends_at_once() -> None:
    """A deadline that passes just before the wait is no error."""
    await AsyncWakeup().wait(-0.001)
    Wakeup().wait(-0.001)


async def test_a_signal_outlives_a_cancelled_wait() -> None:
    """After a cancelled wait a signal still works."""
    signal = AsyncWakeup()
    waiting = asyncio.create_task(signal.wait(math.inf))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    signal.set()
    await signal.wait(math.inf)
    assert not signal.take()
    asyncio.get_running_loop().call_soon(signal.set)
    await signal.wait(math.inf)


@pytest.mark.parametrize("told", [True, False], ids=["with a signal", "without"])
async def test_a_reply_ends_the_wait(told: bool) -> None:
    """The reply is read on arrival; a reply between two waits is kept."""
    conn = Connection()
    reader, signal = AsyncReader(conn), AsyncWakeup() if told else None
    assert await reader.read(0, signal) is PENDING
    asyncio.get_running_loop().call_soon(conn.reply.set_result, b"reply")
    assert await reader.read(math.inf, signal) == b"reply"
    assert signal is None or not signal.take()
    other = AsyncReader(conn)
    await asyncio.sleep(0)
    assert await other.read(0, signal) == b"reply"


async def test_a_signal_leaves_the_reply_for_the_next_read() -> None:
    """A read ended by a signal loses no data; a reply without a read sets no signal."""
    conn, signal = Connection(), AsyncWakeup()
    reader = AsyncReader(conn)
    asyncio.get_running_loop().call_soon(signal.set)
    assert await reader.read(math.inf, signal) is PENDING
    conn.reply.set_result(b"reply")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not signal.take()
    assert await reader.read(0, signal) == b"reply"


async def test_a_failure_is_raised_where_the_reply_is_read() -> None:
    """A failed connection ends the wait, and the reader raises the error."""
    conn = Connection()
    reader, signal = AsyncReader(conn), AsyncWakeup()
    asyncio.get_running_loop().call_soon(conn.reply.set_exception, ConnectionError("closed"))
    with pytest.raises(ConnectionError, match="closed"):
        await reader.read(math.inf, signal)
    assert conn.is_closed


def test_two_event_loops_hold_locks_of_their_own() -> None:
    """While one event loop holds its lock, another takes and releases its own."""
    lock = AsyncLoopLock()

    async def held(release: asyncio.Future[None]) -> bool:
        async with lock.current():
            await release
            return True

    with contextlib.ExitStack() as stack:
        loops = [stack.enter_context(contextlib.closing(asyncio.new_event_loop())) for _ in "ab"]
        releases = [loop.create_future() for loop in loops]
        tasks = [
            loop.create_task(held(release)) for loop, release in zip(loops, releases, strict=True)
        ]
        for loop in loops:  # both hold their lock from here on
            loop.run_until_complete(asyncio.sleep(0))
        for loop, release, task in zip(loops, releases, tasks, strict=True):
            release.set_result(None)
            assert loop.run_until_complete(task)
