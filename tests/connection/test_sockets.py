"""Sockets of connections: the time-outs of calls, and the end of a dropped client."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import hiredis
import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock import AsyncPenstock, Penstock
from penstock.client import _acompat, sockets
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
        connection = client.topology.executor.connections.take()
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
            connection = client.topology.executor.connections.take()
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


def late(command: Command) -> bytes:
    """Answer ECHO later than a short command is waited for."""
    if command[0] == b"ECHO":
        threading.Event().wait(LIMIT * 1.5)
    return b"+OK\r\n"


def test_a_long_command_has_time_for_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out counts from the end of sending; the next short command has the usual one."""
    monkeypatch.setattr(sockets, "SLOW_LINE_BYTES_PER_SECOND", 1000)
    with Stub(late) as stub, Penstock(f"{stub.url}?socket_timeout={LIMIT}") as client:
        connection = client.topology.executor.connections.take()
        for _ in range(2):  # the first one opens the connection
            assert connection.command("ECHO", b"x" * 20_000) == b"OK"
        with pytest.raises(RedisTimeoutError):
            connection.command("ECHO", b"x")


async def test_a_long_command_of_asyncio_has_time_for_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With asyncio, the time-out of a long command counts from the end of sending."""
    monkeypatch.setattr(sockets, "SLOW_LINE_BYTES_PER_SECOND", 1000)
    with Stub(late) as stub:
        async with AsyncPenstock(f"{stub.url}?socket_timeout={LIMIT}") as client:
            connection = client.topology.executor.connections.take()
            for _ in range(2):
                assert await connection.command("ECHO", b"x" * 20_000) == b"OK"
            with pytest.raises(RedisTimeoutError):
                await connection.command("ECHO", b"x")


async def test_a_long_reply_may_take_longer_than_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With each part of a reply the time-out of asyncio begins again."""
    now = [0.0]
    monkeypatch.setattr(sockets, "monotonic", lambda: now[0])
    reader = asyncio.StreamReader()
    parser = SimpleNamespace(_reader=hiredis.Reader())
    conn: Any = SimpleNamespace(
        _reader=reader, _writer=MagicMock(), _parser=parser, socket_timeout=60
    )
    own = AsyncSocket(conn)
    own._adopt(reader)
    trip = asyncio.ensure_future(own.trip(b"*1\r\n$4\r\nPING\r\n"))
    for part in (b"*3\r\n:1\r\n", b":2\r\n", b":3\r\n"):
        await asyncio.sleep(0)
        assert own._until == now[0] + 60
        now[0] += 50
        reader.feed_data(part)
        await asyncio.sleep(0)
    assert await trip == [1, 2, 3]
    own._timer.cancel()  # type: ignore[union-attr]  # it is set


def test_a_command_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece has the whole time-out."""
    monkeypatch.setattr(_acompat, "BYTES_PER_SEND", 1000)
    with socket.socket() as sock:
        conn = MagicMock(_sock=sock)
        _acompat.send(conn, b"x" * 2500)
        (sent,) = conn.send_packed_command.call_args.args
    assert [len(piece) for piece in sent] == [1000, 1000, 500]


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
        connection = client.topology.executor.connections.take()
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


@pytest.mark.parametrize("limit", [0.05, None])
async def test_redis_py_has_no_time_out_of_its_own_while_it_connects(limit: float | None) -> None:
    """Before Python 3.12 that of a write swallows a cancellation; ours ends what takes too long."""
    seen, closed = list[Any](), list[bool]()

    async def connect() -> None:
        seen.append(conn.socket_timeout)
        await asyncio.sleep(60 if limit else 0)

    async def disconnect(*, nowait: bool) -> None:
        closed.append(nowait)

    conn: Any = SimpleNamespace(socket_timeout=limit, connect=connect, disconnect=disconnect)
    with pytest.raises(RedisTimeoutError) if limit else nullcontext():
        await _acompat.aconnect(conn)
    assert (seen, conn.socket_timeout) == ([None], limit)
    assert closed == ([True] if limit else [])
