"""Helpers that differ between asyncio and threads: `a<name>` and its plain twin `<name>`.

The other modules of the client are written once, as async; tools/unasync.py writes the twins.
"""

from __future__ import annotations

import asyncio
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_futures
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeVar, cast

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.connection import HiredisRespSerializer, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.core.values.urls import HOST_NAME_FAULT, can_be_looked_up

if sys.version_info >= (3, 11):
    from asyncio import timeout as async_timeout
else:  # what redis-py itself uses there
    from async_timeout import timeout as async_timeout

from penstock.wire.packing import pack, words

__all__ = [
    "PENDING",
    "AsyncBackgroundTask",
    "AsyncLoopLock",
    "AsyncReader",
    "AsyncRedisConnection",
    "AsyncWakeup",
    "BackgroundTask",
    "HandshakePacker",
    "LoopLock",
    "Reader",
    "RedisConnection",
    "Wakeup",
    "aclosed",
    "aconnect",
    "afirst_ready",
    "ahold_interrupts",
    "aprobe",
    "asend",
    "ashield",
    "asleep",
    "async_timeout",
    "closed",
    "connect",
    "first_ready",
    "hold_interrupts",
    "probe",
    "send",
    "shield",
    "sleep",
]

T = TypeVar("T")

PENDING = object()
"""No reply yet."""
PING = pack((b"PING",))
BYTES_PER_SEND = 65_536
"""Most bytes that are sent within one time-out: a slow line needs longer for a long command."""


class AsyncRedisConnection(Protocol):
    """A connection of redis-py, as the transports use it."""

    socket_timeout: float | None
    _reader: asyncio.StreamReader  # redis-py has no other names for these two
    _writer: asyncio.StreamWriter

    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = ...) -> None: ...
    async def send_packed_command(
        self, command: Iterable[bytes], check_health: bool = ...
    ) -> None: ...
    async def read_response(
        self, *, disable_decoding: bool = ..., disconnect_on_error: bool = ...
    ) -> Any: ...


class RedisConnection(Protocol):
    """The plain twin of `AsyncRedisConnection`."""

    socket_timeout: float | None
    _sock: socket.socket | None  # redis-py has no other name for it

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def send_packed_command(self, command: Iterable[bytes], check_health: bool = ...) -> None: ...
    def read_response(self, *, disable_decoding: bool = ...) -> Any: ...


class AsyncLoopLock:
    """Gives the tasks of one event loop a lock; another loop gets a new one."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget a task that holds the lock in another process or loop."""
        self._loop: object = None

    def current(self) -> asyncio.Lock:
        """Return the lock of this event loop."""
        running = asyncio.get_running_loop()
        if running is not self._loop:
            self._lock, self._loop = asyncio.Lock(), running
        return self._lock


class LoopLock:
    """The plain twin of `AsyncLoopLock`: gives threads a lock."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget a thread that holds the lock in another process."""
        self._lock = threading.Lock()

    def current(self) -> threading.Lock:
        """Return the lock."""
        return self._lock


asleep = asyncio.sleep
sleep = time.sleep


async def ashield(work: Coroutine[object, object, T]) -> T:
    """Await `work` to its end, also when the caller is cancelled meanwhile, once or again."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # else asyncio logs that it was never retrieved
        raise


def shield(done: T) -> T:
    """Return the result of the work, which is done by now."""
    return done


ahold_interrupts = nullcontext  # asyncio cancels a task, which `ashield` holds back


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold SIGINT back in this block: its handler runs at the end of the block."""
    held = list[tuple[Any, ...]]()
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield  # the handlers of signals run in the main thread only
        return
    signal.signal(signal.SIGINT, lambda *args: held.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


async def aconnect(conn: AsyncRedisConnection) -> None:
    """Connect within the time-outs of the connection; a cancellation gets through, see `asend`.

    Raises:
        redis.exceptions.TimeoutError: not connected in time; the connection is closed.
    """
    limit, conn.socket_timeout = conn.socket_timeout, None
    connecting = getattr(conn, "socket_connect_timeout", None) or 0
    try:
        async with async_timeout(None if limit is None else limit + connecting):
            await conn.connect()
    except asyncio.TimeoutError as error:
        await conn.disconnect(nowait=True)
        raise RedisTimeoutError("Timeout connecting to server") from error
    finally:
        conn.socket_timeout = limit


def connect(conn: RedisConnection) -> None:
    """Connect. The handshake of TLS and the first commands behind it count as time to connect.

    redis-py keeps the error of the socket in a variable of the frame that raises it.
    """
    limit, secured = conn.socket_timeout, cast("Any", conn)
    is_shorter = isinstance(secured, SSLConnection) and limit and secured.socket_connect_timeout
    if is_shorter:
        conn.socket_timeout = min(limit, secured.socket_connect_timeout)
    try:
        conn.connect()
        if is_shorter:
            secured._sock.settimeout(limit)
    except RedisConnectionError as error:
        if error.__context__ is not None:
            error.__context__.__traceback__ = None  # see `caught`
        raise
    except UnicodeError:
        if can_be_looked_up(getattr(conn, "host", "")):
            raise
        raise RedisConnectionError(HOST_NAME_FAULT) from None
    finally:
        conn.socket_timeout = limit


async def aprobe(conn: AsyncRedisConnection, seconds: float) -> bool:
    """Return True if the server answers a PING on an open connection; else close it.

    Args:
        conn: no reply is due on it.
        seconds: for which to wait.
    """
    is_answered = False
    try:
        async with async_timeout(seconds):
            await asend(conn, PING)
            await conn.read_response(disable_decoding=True)
        is_answered = True
    except ResponseError:  # such as that this user may not run PING
        is_answered = True
    except (asyncio.TimeoutError, RedisConnectionError, RedisTimeoutError):
        pass
    finally:
        if not is_answered:
            await conn.disconnect(nowait=True)
    return is_answered


def probe(conn: RedisConnection, seconds: float) -> bool:
    """Return the same as `aprobe`, its plain twin. fakeredis has no connection to lose."""
    is_answered = sliced(conn)
    if is_answered:
        return True
    try:
        send(conn, PING)
        if first_ready([Reader(conn)], seconds):
            conn.read_response(disable_decoding=True)
            is_answered = True
    except ResponseError:  # as above
        is_answered = True
    except (RedisConnectionError, RedisTimeoutError):
        pass
    finally:
        if not is_answered:
            conn.disconnect()
    return is_answered


class HandshakePacker(HiredisRespSerializer):
    """Packs the commands with which redis-py opens a plain connection; see `Packable`."""

    def pack(self, *args: Any) -> Any:
        """Return a packed command."""
        return super().pack(*words(args))  # type: ignore[arg-type]  # its annotation is wrong


async def asend(conn: AsyncRedisConnection, packed: bytes) -> None:
    """Send a packed command, each piece within the time-out; a cancellation gets through.

    redis-py wraps each write, those of its handshake too, in `asyncio.wait_for`, which before
    Python 3.12 swallows a cancellation that arrives when the write is done, and costs a task.

    Raises:
        redis.exceptions.TimeoutError: not sent in time; the connection is closed.
    """
    if not conn.is_connected:
        await aconnect(conn)
    limit, conn.socket_timeout = conn.socket_timeout, None
    try:
        is_real = isinstance(getattr(conn, "_reader", None), asyncio.StreamReader)
        for piece in _pieces(packed) if is_real and len(packed) > BYTES_PER_SEND else (packed,):
            async with async_timeout(limit):
                await conn.send_packed_command((piece,), check_health=False)
    except asyncio.TimeoutError as error:
        await conn.disconnect(nowait=True)
        raise RedisTimeoutError("Timeout writing to socket") from error
    finally:
        conn.socket_timeout = limit


def send(conn: RedisConnection, packed: bytes) -> None:
    """Send a packed command, each piece of it within the connection's time-out."""
    if not getattr(conn, "is_connected", True):  # or one under Sentinel would not ask where to
        connect(conn)
    pieces = _pieces(packed) if len(packed) > BYTES_PER_SEND and not sliced(conn) else (packed,)
    try:
        conn.send_packed_command(pieces, check_health=False)
    except RedisConnectionError as error:
        if isinstance(error.__context__, BlockingIOError):  # the kernel keeps the time-out
            raise RedisTimeoutError("Timeout writing to socket") from error
        raise


def _pieces(packed: bytes) -> Sequence[bytes]:
    """Return a packed command in pieces. fakeredis has no socket, and needs it as a whole."""
    return [packed[at : at + BYTES_PER_SEND] for at in range(0, len(packed), BYTES_PER_SEND)]


def aclosed(conn: AsyncRedisConnection) -> bool:
    """Return True if the peer has closed a connection, or it was never opened.

    The socket is asked, as the event loop may have been too busy to look at it.
    """
    reader = getattr(conn, "_reader", None)
    if not conn.is_connected or not isinstance(reader, asyncio.StreamReader):
        return not conn.is_connected
    if reader.at_eof() or reader.exception() is not None:
        return True
    return bool(_readable([conn._writer.get_extra_info("socket")], 0))


def closed(conn: RedisConnection) -> bool:
    """Return True if the peer has closed a connection, or it was never opened.

    No reply is due on it: if something can be read, the connection is of no use.
    """
    sock = conn._sock
    if sock is None or sliced(conn):
        return sock is None
    return bool(_readable([sock], 0))


class AsyncWakeup:
    """Ends the wait of one task when its signal is set.

    Bound to the event loop in which it is made.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()

    def set(self) -> None:
        """End the wait, or the next one; in the thread of the event loop."""
        if not self._future.done():
            self._future.set_result(None)

    def set_from_thread(self) -> None:
        """End the wait, or the next one; from any thread, and from a signal handler."""
        with suppress(RuntimeError):  # the loop is closed: no task waits
            self._loop.call_soon_threadsafe(self.set)

    def take(self) -> bool:
        """Return True if it was set since the last `take`."""
        if not self._future.done():
            return False
        self._future = self._loop.create_future()
        return True

    async def wait(self, timeout: float) -> None:
        """Wait until it is set, at most `timeout` seconds; the time may be over."""
        if not self.take():
            timer = self._loop.call_later(timeout, self.set)
            try:
                await self._future  # a cancellation cancels it too, which `take` takes for set
            finally:
                timer.cancel()
            self.take()

    def close(self) -> None:
        """Do nothing; the plain twin closes a socket pair."""


class Wakeup:
    """The plain twin of `AsyncWakeup`: ends the wait of one thread.

    While that thread is awake, setting it costs a flag. A thread that sleeps waits on a queue; one
    that waits for connections as well, on a socket pair.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._asleep = False
        self._beside = False
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._pair: tuple[socket.socket, socket.socket] | None = None

    def set(self) -> None:
        """End the wait, or the next one; from any thread, and from a signal handler."""
        self._is_set = True  # before the look at waits: `wait` does it in the other order
        if self._asleep:
            self._asleep = False
            self._queue.put(None)
        elif self._beside and self._pair is not None:
            self._beside = False
            with suppress(OSError):  # full: then the wait ends anyway
                self._pair[1].send(b"!")

    def set_from_thread(self) -> None:
        """End the wait, or the next one; twin of that of `AsyncWakeup`."""
        self.set()

    def take(self) -> bool:
        """Return True if it was set since the last `take`."""
        was_set, self._is_set = self._is_set, False
        return was_set

    def wait(self, timeout: float) -> None:
        """Wait until it is set, at most `timeout` seconds; the time may be over."""
        self._asleep = True
        if not self._is_set:
            with suppress(queue.Empty):
                self._queue.get(timeout=max(timeout, 0))
        self._asleep = self._is_set = False

    def wait_beside(self, socks: Sequence[socket.socket], timeout: float) -> bool:
        """Wait until it is set or a socket can be read; return True if a socket can."""
        if self._pair is None:
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
        inner = self._pair[0]
        self._beside = True
        ready = [] if self._is_set else _readable([*socks, inner], timeout)
        self._beside = self._is_set = False
        if inner in ready:
            ready.remove(inner)
            with suppress(OSError):
                inner.recv(4096)
        return bool(ready)

    def close(self) -> None:
        """Close the socket pair."""
        pair, self._pair = self._pair, None
        for end in pair or ():
            end.close()


def _readable(socks: Iterable[socket.socket], timeout: float) -> list[socket.socket]:
    """Return the sockets that can be read, waiting at most `timeout` seconds for one."""
    # Of all selectors only this one needs no file descriptor; Windows has none of it.
    kind = getattr(selectors, "PollSelector", selectors.SelectSelector)
    with kind() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ, sock)
        return [key.data for key, _ in selector.select(timeout)]


class AsyncReader:
    """Reads one reply of a connection. When a time limit passes, the reply can still be read.

    An event loop that ends cancels every task, also that of the reader. A consumer that then
    leaves reads on: the reply may bring a token or jobs.

    Args:
        conn: a connection on which a command was sent.
    """

    def __init__(self, conn: AsyncRedisConnection) -> None:
        self._told: AsyncWakeup | None = None
        self._conn = conn
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> Any:
        try:
            return await self._conn.read_response(disable_decoding=True, disconnect_on_error=False)
        except ResponseError:
            raise
        except Exception:
            await self._conn.disconnect(nowait=True)
            raise
        finally:
            # A callback of the task would run one round of the event loop later.
            if self._told is not None:
                self._told.set()

    async def read(self, timeout: float, signal: AsyncWakeup | None = None) -> Any:
        """Return the reply; PENDING = not within `timeout` seconds, or not before the signal."""
        if self._task.cancelled():
            self._task = asyncio.ensure_future(self._read())
        await afirst_ready([self], timeout, signal)
        return self._task.result() if self._task.done() else PENDING

    @property
    def is_ready(self) -> bool:
        """True if the reply is there."""
        return self._task.done()

    def drop(self) -> None:
        """Stop reading; the connection can't be used any more."""
        self._task.cancel()


class Reader:
    """The plain twin of `AsyncReader`."""

    def __init__(self, conn: RedisConnection) -> None:
        self._conn = conn

    def read(self, timeout: float, signal: Wakeup | None = None) -> Any:
        """Return the reply; PENDING = not within `timeout` seconds, or not before the signal."""
        sock = self._conn._sock
        if signal is None or sock is None:
            if not self._conn.can_read(timeout=max(timeout, 0)):
                return PENDING
        elif first_ready([self], timeout, signal) is None:
            return PENDING
        return self._conn.read_response(disable_decoding=True)

    @property
    def sock(self) -> socket.socket | None:
        """Socket of the connection; None = it is closed, so a read fails at once."""
        return self._conn._sock

    def drop(self) -> None:
        """Stop reading."""


async def afirst_ready(
    readers: Sequence[AsyncReader], timeout: float, signal: AsyncWakeup | None = None
) -> AsyncReader | None:
    """Return the first reader with a reply, within `timeout` seconds; None also at the signal."""
    if not any(reader.is_ready for reader in readers):
        woken = AsyncWakeup() if signal is None else signal
        for reader in readers:
            reader._told = woken
        try:
            await woken.wait(max(timeout, 0))
        finally:
            for reader in readers:
                reader._told = None
    return next((reader for reader in readers if reader.is_ready), None)


def first_ready(
    readers: Sequence[Reader], timeout: float, signal: Wakeup | None = None
) -> Reader | None:
    """Return the first reader with a reply, within `timeout` seconds; None also at the signal."""
    ready = _with_reply(readers, max(timeout, 0) if signal is None else 0)
    if not ready and signal is not None:
        socks = [sock for reader in readers if (sock := reader.sock) is not None]
        if signal.wait_beside(socks, max(timeout, 0)):
            ready = _with_reply(readers, 0)
    return ready[0] if ready else None


def _with_reply(readers: Sequence[Reader], timeout: float) -> list[Reader]:
    by_sock: dict[socket.socket, Reader] = {}
    for reader in readers:
        sock = reader.sock
        if sock is None or (hasattr(sock, "pending") and sock.pending()):
            return [reader]  # closed, or TLS has read more than was asked for
        by_sock[sock] = reader
    return [by_sock[sock] for sock in _readable(by_sock, timeout)]


class AsyncBackgroundTask:
    """A background task.

    Args:
        work: makes the coroutine, which must not raise.
    """

    def __init__(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self._task = asyncio.ensure_future(work())

    @property
    def is_done(self) -> bool:
        """True if it has ended, or is of another event loop, which may have been stopped."""
        return self._task.done() or self._task.get_loop() is not asyncio.get_running_loop()

    @staticmethod
    async def wait(under_way: Sequence[AsyncBackgroundTask], timeout: float) -> None:
        """Wait until another one has ended, at most so many seconds."""
        tasks = [one._task for one in under_way if not one.is_done]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancel the task."""
        if not self.is_done:
            self._task.cancel()
            await asyncio.wait({self._task})


class BackgroundTask:
    """The plain twin of `AsyncBackgroundTask`: a thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._future: Future[None] = Future()
        self._work = work
        self._thread = threading.Thread(target=self._run, name="penstock-background", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._future.set_result(None)

    @property
    def is_done(self) -> bool:
        """True if it has ended; in a forked child its thread does not exist."""
        return self._future.done() or not self._thread.is_alive()

    @staticmethod
    def wait(under_way: Sequence[BackgroundTask], timeout: float) -> None:
        """Wait until another one has ended, at most so many seconds."""
        waited = [one._future for one in under_way if not one.is_done]
        if waited:
            wait_futures(waited, timeout, FIRST_COMPLETED)

    def close(self) -> None:
        """Wait for its end; its time-outs bound that."""
        self._thread.join()


def asliced(conn: AsyncRedisConnection) -> bool:  # noqa: ARG001  # the twin needs it
    """Return False: in asyncio a blocking command never blocks while it is sent."""
    return False


def sliced(conn: RedisConnection) -> bool:
    """Return True if a blocking command blocks while it is sent, as with fakeredis."""
    return any(kind.__module__.startswith("fakeredis.") for kind in type(conn).__mro__)


apool = AsyncConnectionPool
pool = ConnectionPool

__all__ += ["RedisConnectionError", "apool", "asliced", "pool", "sliced"]
