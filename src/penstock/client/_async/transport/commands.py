"""A connection for plain commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from penstock.client._acompat import (
    AsyncRedisConnection,
    aclosed,
    aconnect,
    aprobe,
)
from penstock.client.clock import monotonic
from penstock.client.sockets import asocket_of
from penstock.core.calls.call import RawReply
from penstock.core.values.producer import Producer
from penstock.wire.packing import Argument, pack, words

__all__ = ["IDLE_BEFORE_TEST", "PROBE_TIMEOUT", "AsyncCommandConnection"]

IDLE_BEFORE_TEST = 1.0
"""Seconds without use after which a connection is tested before a call is sent on it: a load
balancer or a NAT may have dropped it, and informs neither side."""
PROBE_TIMEOUT = 1.0
"""Seconds that a server has to answer this test; then another connection is opened."""


class AsyncCommandConnection(Producer):
    """A connection with a producer's id and counter, as it is opened, tested and closed.

    Attributes:
        has_opened: whether `open` has connected it before.
        used: when it was last used, or tested, by the clock.
    """

    __slots__ = ("_conn", "_socket", "has_opened", "used")

    def __init__(self, conn: AsyncRedisConnection) -> None:
        super().__init__()
        self._conn = conn
        self._socket = asocket_of(conn)
        self.has_opened = False
        self.used = 0.0

    async def command(self, *args: Argument) -> Any:
        """Run a plain command; its reply is undecoded."""
        return await self._socket.trip(pack(words(args)))

    async def replies(self, packed: bytes, count: int) -> list[Any]:
        """Send packed commands and return the next replies; an error reply is not raised."""
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append(await self._socket.trip(packed))
            except ResponseError as error:  # each is a read
                replies.append(error)
            packed = b""
        return replies

    async def together(self, commands: Sequence[tuple[Argument, ...]]) -> RawReply:
        """Run plain commands, none of which may be refused, in one trip; return their replies."""
        first = await self._socket.trip(b"".join(map(pack, map(words, commands))))
        return [first, *[await self._socket.trip() for _ in commands[1:]]]

    @property
    def turn(self) -> int:
        """Number of the primary it leads to, counted by `AsyncPrimary`; 0 = without Sentinel."""
        return int(getattr(self._conn, "turn", 0))

    @property
    def uses_tls(self) -> bool:
        """True if the connection is encrypted."""
        return "SSL" in type(self._conn).__name__

    async def close_if_dead(self, idle_limit: float = IDLE_BEFORE_TEST) -> bool:
        """Close the connection if it was idle for more than `idle_limit` seconds and is dead.

        Returns:
            True if it was open and did not answer.
        """
        was_idle = monotonic() > self.used + idle_limit
        self.used = monotonic()
        if not was_idle:
            return False
        limit = min(self._conn.socket_timeout or PROBE_TIMEOUT, PROBE_TIMEOUT)
        was_dead = not aclosed(self._conn)
        if was_dead and await aprobe(self._conn, limit):
            return False
        await self.close()
        return was_dead

    async def open(self, idle_limit: float = IDLE_BEFORE_TEST) -> bool:
        """Connect unless there is an open connection; return True if it connected.

        Args:
            idle_limit: seconds without use after which the connection is tested.
        """
        await self.close_if_dead(idle_limit)
        if not aclosed(self._conn):
            return False
        await self.close()
        await aconnect(self._conn)
        self.has_opened = True
        return True

    async def close(self) -> None:
        """Close the connection; the next call opens it again."""
        await self._conn.disconnect()
