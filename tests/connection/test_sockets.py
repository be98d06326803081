"""Sockets of connections: the time-outs of calls, and the end of a dropped client."""

from __future__ import annotations

import gc
import socket
import time
import warnings

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock import AsyncPenstock, Penstock
from penstock.client.sockets import AsyncSocket
from penstock.embedded import EmbeddedServer
from tests.connection.stub import Command, Stub

LIMIT = 0.1
"""Time-out in seconds."""


class Silent:
    """Answers calls until it is told to be silent; then nothing, or the begin of a reply."""

    def __init__(self, begin: bytes) -> None:
        self.is_silent = False
        self._begin = begin

    def __call__(self, command: Command) -> bytes:
        """Answer a command."""
        if command[0] != b"PING":
            return b"+OK\r\n"
        return self._begin if self.is_silent else b"+PONG\r\n"


BEGINS = pytest.mark.parametrize("begin", [b"*2\r\n:1\r\n", b"$9\r\nhalf"], ids=["list", "text"])


@BEGINS
def test_the_kernel_ends_a_wait(begin: bytes) -> None:
    """The socket has no time-out of Python, and a call to a silent server ends all the same."""
    answers = Silent(begin)
    with Stub(answers) as stub, Penstock(f"{stub.url}?socket_timeout={LIMIT}") as client:
        connection = client.backend.node.link.take()
        assert connection.command("PING") == b"PONG"
        sock = connection._conn._sock
        assert isinstance(sock, socket.socket)
        assert sock.gettimeout() is None
        answers.is_silent = True
        begun = time.monotonic()
        with pytest.raises(RedisTimeoutError):
            connection.command("PING")
        assert time.monotonic() - begun >= LIMIT * 0.9  # its clock has ticks
        assert connection._conn._sock is None


@BEGINS
async def test_a_timer_ends_a_wait(begin: bytes) -> None:
    """A call has the whole time-out, also if the timer was set for an earlier call."""
    answers = Silent(begin)
    with Stub(answers) as stub:
        async with AsyncPenstock(f"{stub.url}?socket_timeout={LIMIT}") as client:
            connection = client.backend.node.link.take()
            for _ in range(3):
                assert await connection.command("PING") == b"PONG"
            answers.is_silent = True
            begun = time.monotonic()
            with pytest.raises(RedisTimeoutError):
                await connection.command("PING")
            assert time.monotonic() - begun >= LIMIT
            assert not connection._conn.is_connected
            answers.is_silent = False
            assert await connection.command("PING") == b"PONG"
            await connection.close()


async def test_one_timer_serves_many_calls(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer for each call would cost more than all else that asyncio does for it."""
    timers: list[float] = []
    set_timer = AsyncSocket._set_timer

    def noted(own: AsyncSocket, seconds: float) -> None:
        timers.append(seconds)
        set_timer(own, seconds)

    async with AsyncPenstock(f"{server.url}?socket_timeout=60") as client:
        queue = client.queue("q")
        await queue.enqueue(b"x")
        monkeypatch.setattr(AsyncSocket, "_set_timer", noted)
        for _ in range(20):
            await queue.enqueue(b"x")
    assert not timers


def test_a_connection_in_garbage_is_closed(server: EmbeddedServer) -> None:
    """A client that is dropped unclosed closes its sockets, wherever the collector begins."""
    client = Penstock(server.url)
    gc.collect()
    gc.disable()
    try:
        connection = client.backend.node.link.take()
        assert connection.command("PING") == b"PONG"
        gc.collect()  # moves the connection behind its socket, as only `connection` leads to it
        ring: list[object] = [connection]
        ring.append(ring)
        del connection, ring
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            gc.collect()
    finally:
        gc.enable()
        client.close()
    assert told == []
