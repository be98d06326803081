"""The socket of a connection: `AsyncSocket`, and its plain twin `Socket`.

redis-py opens connections. On an open one, a socket makes trips with fewer steps: redis-py calls
ten functions for a reply, in asyncio it sets two timers for a call, and in threads each call polls
twice. Connections with a parser of another kind, or with TLS in threads, are left to redis-py.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._acompat import AsyncRedisConnection, RedisConnection, asend, send, sliced
from penstock.client.clock import monotonic

__all__ = ["AsyncSocket", "Socket", "asocket_of", "extra_time_for", "socket_of"]

READ_SIZE = 16384
"""Most bytes of one read."""
SHORT_COMMAND = 16384
"""Most bytes of a short command. Its time-out begins when it is sent."""
SLOW_LINE_BYTES_PER_SECOND = 100_000
"""Bytes per second of a slow line. The buffers of a network or a proxy may hold a whole command, so
the reply to a long one has this much more time."""


class AsyncSocket:
    """Sends commands on a connection and reads their replies, within its time-out.

    One timer serves many reads: if it ends before the time of the present read, it is set again.

    Args:
        conn: a connection for one call at a time.

    Attributes:
        has_sent: False if the last attempt failed before anything was sent.
    """

    __slots__ = (
        "_conn", "_is_late", "_nothing", "_parser", "_stream", "_timer", "_until", "has_sent",
    )  # fmt: skip

    def __init__(self, conn: AsyncRedisConnection) -> None:
        self._conn = conn
        self.has_sent = False
        self._stream: asyncio.StreamReader | None = None
        self._parser: hiredis.Reader | None = None
        self._nothing: object = None
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False

    async def trip(
        self, packed: bytes = b"", *, keep: bool = False, extra_time: float = 0.0
    ) -> Any:
        """Send packed commands, if any, and return the next reply. An error reply is raised.

        If there is no connection, it is opened first. Short commands are handed to the event loop:
        the time-out of the reply is enough for both. A long reply may take longer, as long as parts
        of it arrive in time.

        Args:
            packed: the commands.
            keep: leave the connection open after a cancellation; the next trip gets the reply.
            extra_time: extra seconds to wait for the first byte of the reply.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: no reply; the connection is closed.
        """
        conn, stream, parser = self._conn, self._stream, self._parser
        is_other = conn._reader is not stream
        if stream is None or parser is None or is_other or len(packed) > SHORT_COMMAND:
            return await self._slow_trip(packed, keep=keep)
        limit = math.inf if conn.socket_timeout is None else conn.socket_timeout
        if limit < math.inf:
            self._until = monotonic() + limit + extra_time
            if self._timer is None:
                self._set_timer(limit)
        try:
            if packed:
                conn._writer.write(packed)
            reply = parser.gets(False)
            while reply is self._nothing:
                parser.feed(await stream.read(READ_SIZE) or self._missing())
                reply = parser.gets(False)
                self._until = monotonic() + limit
        except OSError as error:
            await conn.disconnect(nowait=True)
            raise typed(error) from error
        except BaseException as error:
            if not (keep and isinstance(error, asyncio.CancelledError)):
                await conn.disconnect(nowait=True)
            raise
        finally:
            self._until = math.inf
        if isinstance(reply, Exception):
            try:
                raise reply
            finally:
                reply = None  # no variable keeps an exception: see `caught`
        return reply

    async def _slow_trip(self, packed: bytes, *, keep: bool) -> Any:
        """Send by redis-py, which may connect first. Read by it, too, if need be."""
        conn, extra_time = self._conn, extra_time_for(packed)
        if packed:
            self.has_sent = False
            await asend(conn, packed)
            self.has_sent = True
        if conn._reader is not self._stream:
            self._adopt(conn._reader)
        if self._parser is not None:
            return await self.trip(keep=keep, extra_time=extra_time)
        limit = conn.socket_timeout
        conn.socket_timeout = limit and limit + extra_time
        try:
            return await conn.read_response(disable_decoding=True)
        finally:
            conn.socket_timeout = limit

    def _adopt(self, stream: asyncio.StreamReader | None) -> None:
        """Use the stream of a new connection, if it is one of asyncio."""
        self._stream = stream
        self._parser = _parser_of(self._conn) if type(stream) is asyncio.StreamReader else None
        self._nothing = self._parser and self._parser.gets(False)

    def _missing(self) -> bytes:
        """Raise the error for a connection that was closed, or has sent no reply in time."""
        is_late, self._is_late = self._is_late, False
        raise TimeoutError if is_late else _closed()

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        """Close the connection if its reply is late; else check again when it would be."""
        self._timer = None
        left = self._until - monotonic()
        if left <= 0:
            self._is_late = True
            self._conn._writer.transport.abort()  # that ends the read
        elif left < math.inf:  # the next call may end sooner than this one
            self._set_timer(min(left, self._conn.socket_timeout or left))


class Socket:
    """The plain twin of `AsyncSocket`.

    The kernel keeps the time-out: with a time-out of Python each send and each read would be a
    call of poll, too.
    """

    __slots__ = ("_buffer", "_conn", "_nothing", "_parser", "_sock", "has_sent")

    def __init__(self, conn: RedisConnection) -> None:
        self._conn = conn
        self.has_sent = False
        self._sock: socket.socket | None = None
        self._parser: hiredis.Reader | None = None
        self._nothing: object = None
        self._buffer = bytearray(READ_SIZE)

    def __del__(self) -> None:
        """Close the connection, before the garbage collector finds its socket open.

        The collector may come to the socket first, and to the connection last.
        """
        with suppress(Exception):  # as redis-py does for a dropped connection
            self._conn.disconnect()

    def trip(self, packed: bytes = b"") -> Any:
        """Send packed commands, if any, and return the next reply. An error reply is raised.

        If there is no connection, it is opened first.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: no reply; the connection is closed.
        """
        conn, sock, parser = self._conn, self._sock, self._parser
        if sock is None or parser is None or conn._sock is not sock or len(packed) > SHORT_COMMAND:
            return self._slow_trip(packed)
        try:
            if packed:
                sock.sendall(packed)
            reply = parser.gets(False)
            while reply is self._nothing:
                size = sock.recv_into(self._buffer)
                if not size:
                    raise _closed()
                parser.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # any buffer will do
                reply = parser.gets(False)
        except OSError as error:
            conn.disconnect()
            raise typed(error) from error
        except BaseException:
            conn.disconnect()
            raise
        if isinstance(reply, Exception):
            try:
                raise reply
            finally:
                reply = None  # no variable keeps an exception: see `caught`
        return reply

    def _slow_trip(self, packed: bytes) -> Any:
        """Send by redis-py, which may connect first. Read by it, too, if need be."""
        conn, extra_time = self._conn, extra_time_for(packed)
        if packed:
            self.has_sent = False
            send(conn, packed)
            self.has_sent = True
        if conn._sock is not self._sock:
            self._adopt(conn._sock)
        sock, limit = self._sock, conn.socket_timeout
        if sock is None or limit is None or not extra_time:
            return self._read()
        self._limit(sock, limit + extra_time)
        try:
            return self._read()
        finally:
            if conn._sock is sock:
                self._limit(sock, limit)

    def _read(self) -> Any:
        return self.trip() if self._parser else self._conn.read_response(disable_decoding=True)

    def _limit(self, sock: socket.socket, seconds: float) -> None:
        if self._parser is None:
            sock.settimeout(seconds)
        else:
            _limit_by_kernel(sock, seconds)

    def _adopt(self, sock: socket.socket | None) -> None:
        """Use the socket of a new connection, if the kernel can keep its time-out."""
        self._sock = sock
        is_kept = sock is not None and _keeps(sock, self._conn.socket_timeout)
        self._parser = _parser_of(self._conn) if is_kept else None
        self._nothing = self._parser and self._parser.gets(False)


class FakeSocket:
    """The plain twin of `AsyncSocket` for fakeredis, which has no socket."""

    __slots__ = ("_conn",)
    has_sent = True

    def __init__(self, conn: RedisConnection) -> None:
        self._conn = conn

    def trip(self, packed: bytes = b"") -> Any:
        """Send packed commands, if any, and return the next reply. An error reply is raised."""
        if packed:
            self._conn.send_packed_command((packed,), check_health=False)
        return self._conn.read_response(disable_decoding=True)


def asocket_of(conn: AsyncRedisConnection) -> AsyncSocket:
    """Return the socket of a connection, open or not."""
    return AsyncSocket(conn)


def socket_of(conn: RedisConnection) -> Socket | FakeSocket:
    """Return the socket of a connection, open or not."""
    return FakeSocket(conn) if sliced(conn) else Socket(conn)


def _parser_of(conn: Any) -> hiredis.Reader | None:
    """Return the parser of an open connection on which no reply is due; None = not of hiredis."""
    parser = getattr(conn._parser, "_reader", None)
    return parser if type(parser) is hiredis.Reader else None


def _keeps(sock: socket.socket, limit: float | None) -> bool:
    """Let the kernel keep the time-out of a socket; return True if it does."""
    if type(sock) is not socket.socket or sys.platform == "win32":
        return False
    if limit is None:
        return True
    with suppress(OSError):
        _limit_by_kernel(sock, limit)
        sock.settimeout(None)
        if os.get_blocking(sock.fileno()):  # with gevent it is not
            return True
    sock.settimeout(limit)
    return False


def _limit_by_kernel(sock: socket.socket, seconds: float) -> None:
    spec = struct.pack("@ll", int(seconds), max(1000, int(seconds % 1 * 1e6)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, spec)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, spec)


def extra_time_for(packed: bytes) -> float:
    """Return the extra seconds to wait for the first byte of the reply to a long command."""
    return len(packed) / SLOW_LINE_BYTES_PER_SECOND if len(packed) > SHORT_COMMAND else 0.0


def typed(error: OSError) -> Exception:
    """Return the error of redis-py for that of a socket."""
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return RedisTimeoutError("Timeout reading from socket")
    return RedisConnectionError(f"Error while reading from socket: {error}")


def _closed() -> Exception:
    return RedisConnectionError("Connection closed by server.")
