"""Where the two worlds differ: each asyncio helper `a<name>` has a plain twin `<name>`.

Everything else of the client is written once, as async, and generated (tools/unasync.py).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

if sys.version_info >= (3, 11):
    from asyncio import timeout as async_timeout
else:  # what redis-py itself uses there
    from async_timeout import timeout as async_timeout

__all__ = [
    "PENDING",
    "AsyncReader",
    "Reader",
    "alock",
    "aloop",
    "asend",
    "asleep",
    "lock",
    "loop",
    "send",
    "sleep",
]

PENDING = object()
"""No reply yet."""


def alock() -> asyncio.Lock:
    """A lock for one event loop."""
    return asyncio.Lock()


def lock() -> Any:
    """A lock for threads."""
    return threading.Lock()


def aloop() -> object:
    """What connections are bound to: they can't be used from another event loop."""
    return asyncio.get_running_loop()


def loop() -> object:
    """What connections are bound to: nothing; threads may hand them on."""
    return None


asleep = asyncio.sleep
sleep = time.sleep


async def asend(conn: Any, packed: bytes) -> None:
    """Send a packed command, within the connection's time-out; a cancellation gets through.

    redis-py wraps the write in `asyncio.wait_for`, which before Python 3.12 swallows a cancellation
    that arrives when the write is done, and costs a task each time.

    Raises:
        redis.exceptions.TimeoutError: not sent in time; the connection is closed.
    """
    if not conn.is_connected:
        await conn.connect()
    limit, conn.socket_timeout = conn.socket_timeout, None
    try:
        async with async_timeout(limit):
            await conn.send_packed_command((packed,), check_health=False)
    except asyncio.TimeoutError as error:
        await conn.disconnect(nowait=True)
        raise RedisTimeoutError("Timeout writing to socket") from error
    finally:
        conn.socket_timeout = limit


def send(conn: Any, packed: bytes) -> None:
    """Send a packed command, within the connection's time-out."""
    conn.send_packed_command((packed,), check_health=False)


class AsyncReader:
    """Reads one reply of a connection with a time limit that does not give the reply up.

    Args:
        conn: a connection on which a command was sent.
    """

    slices = False

    def __init__(self, conn: Any) -> None:
        self._task = asyncio.ensure_future(conn.read_response(disable_decoding=True))

    async def read(self, timeout: float) -> Any:
        """The reply, or PENDING when it has not come within `timeout` seconds."""
        await asyncio.wait({self._task}, timeout=max(timeout, 0))
        return self._task.result() if self._task.done() else PENDING

    def drop(self) -> None:
        """Stop reading; the connection can't be used any more."""
        self._task.cancel()


class Reader:
    """The plain twin of `AsyncReader`."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def read(self, timeout: float) -> Any:
        """The reply, or PENDING when it has not come within `timeout` seconds."""
        if not self._conn.can_read(timeout=max(timeout, 0)):
            return PENDING
        return self._conn.read_response(disable_decoding=True)

    def drop(self) -> None:
        """Stop reading."""


def asliced(conn: Any) -> bool:  # noqa: ARG001  # the twin needs it
    """Whether a blocking command must be sent in slices, as sending it blocks: never in asyncio."""
    return False


def sliced(conn: Any) -> bool:
    """Whether a blocking command must be sent in slices: fakeredis runs it while it is sent."""
    return type(conn).__module__.partition(".")[0] == "fakeredis"


apool = AsyncConnectionPool
pool = ConnectionPool

__all__ += ["RedisConnectionError", "apool", "asliced", "pool", "sliced"]
