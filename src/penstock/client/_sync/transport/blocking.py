# From src/penstock/client/_async/transport/blocking.py by tools/unasync.py; do not edit.
"""A connection that waits for tokens."""

from __future__ import annotations

from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.client._acompat import (
    PENDING,
    Reader,
    Signal,
    exchanged,
    send,
    sliced,
)
from penstock.client._sync.transport.connection import monotonic, pack
from penstock.client._sync.transport.settings import SOCKET_TIMEOUT

STOP_TIMEOUT = 2.0
"""Seconds after which a BLPOP that does not end makes the connection a dead one."""
FAKE_SLICE = 0.02
"""Seconds of one BLPOP on a connection that can't be waited on."""
RENEW = 60.0
"""Seconds after which a pending BLPOP is ended and sent anew, which tells a dead connection."""


class Commanding(Protocol):
    """A server that runs plain commands beside a blocking connection."""

    def has_moved(self, conn: Any) -> bool:
        """Return True if the connection leads to a former primary."""

    def command(self, *args: Any) -> Any:
        """Run a plain command."""


class BlockingConnection:
    """A connection that blocks on wake and space tokens, and never takes anything else.

    Args:
        conn: without a socket time-out.
        server: at the other end, to end a pending BLPOP from a lane.
    """

    def __init__(self, conn: Any, server: Commanding) -> None:
        self._conn = conn
        self._server = server
        self.reader: Reader | None = None
        self._since = 0.0
        self._id = b""

    def pop(
        self, keys: tuple[bytes, ...], timeout: float, signal: Signal | None = None
    ) -> bytes | None:
        """Wait for a token; None after `timeout` seconds or at the signal, and the BLPOP stays."""
        if self.is_sliced:
            return self._pop_slices(keys, timeout, signal)
        return self.begin(keys) or self.read(timeout, signal)

    @property
    def is_sliced(self) -> bool:
        """True if no BLPOP can stay pending: then `pop` waits in short slices."""
        return sliced(self._conn)

    @property
    def readers(self) -> list[Reader]:
        """Reply to wait for, together with those of other connections."""
        return [] if self.reader is None else [self.reader]

    def taken(self) -> list[bytes]:
        """The key of a token that the pending BLPOP has taken, if it has; else it stays."""
        key = None if self.reader is None else self.read(0)
        return [] if key is None else [key]

    def begin(self, keys: tuple[bytes, ...]) -> bytes | None:
        """Send the BLPOP unless it is pending, anew if it is old; the key of a token it took."""
        if self._id and self._server.has_moved(self._conn):
            self.drop()
            raise RedisConnectionError("another server is the primary now")
        if self.reader is not None and monotonic() > self._since + RENEW:
            for key in self.quit():
                return key
        if self.reader is None:
            try:
                self.reader = self._block(keys)
            except BaseException:
                self.drop()  # half a handshake may be under way on it
                raise
        return None

    def read(self, timeout: float, signal: Signal | None = None) -> bytes | None:
        """Read the key of a token; None in time or at the signal, and the BLPOP stays."""
        assert self.reader is not None
        reply = self.reader.read(timeout, signal)
        if reply is PENDING:
            return None
        self.reader = None
        return reply[0] if reply else None

    def _block(self, keys: tuple[bytes, ...]) -> Reader:
        """Send the BLPOP, on a connection whose id is known."""
        self._since = monotonic()
        if not self._id:
            self._introduce()
        send(self._conn, pack((b"BLPOP", *keys, b"0")))
        return Reader(self._conn)

    def _introduce(self) -> None:
        """Connect and ask for the connection's id; only what blocks may take as long as it takes.

        A server that is stopped accepts connections, and says nothing.
        """
        asked = pack((b"CLIENT", b"ID"))
        self._id = b"%d" % exchanged(self._conn, asked, SOCKET_TIMEOUT)

    def _pop_slices(
        self, keys: tuple[bytes, ...], timeout: float, signal: Signal | None
    ) -> bytes | None:
        """Wait by BLPOPs that end by themselves, short ones if a signal may come."""
        if signal is None:
            return self._pop_slice(keys, timeout)
        until = monotonic() + timeout
        while not signal.take():
            key = self._pop_slice(keys, min(FAKE_SLICE, until - monotonic()))
            if key is not None or monotonic() >= until:
                return key
        return None

    def _pop_slice(self, keys: tuple[bytes, ...], timeout: float) -> bytes | None:
        packed = pack((b"BLPOP", *keys, b"%.3f" % max(timeout, 0.001)))
        send(self._conn, packed)
        reply = self._conn.read_response(disable_decoding=True)
        return reply[0] if reply else None

    def quit(self) -> tuple[bytes, ...]:
        """End a pending BLPOP; the key of a token that it took meanwhile, if it did."""
        if self.reader is None:
            return ()
        if self._server.has_moved(self._conn):
            self.drop()
            return ()
        try:
            self._server.command(*self.unblock)
        except BaseException:
            self.drop()
            raise
        return self.ended()

    @property
    def unblock(self) -> tuple[Any, ...]:
        """The command that ends a pending BLPOP from another connection."""
        return ("CLIENT", "UNBLOCK", self._id)

    def ended(self) -> tuple[bytes, ...]:
        """Read what came of a BLPOP that was ended; the key of a token, if it took one."""
        assert self.reader is not None
        try:
            reply = self.reader.read(STOP_TIMEOUT)
        except BaseException:
            self.drop()
            raise
        if reply is PENDING:
            self.drop()
            return ()
        self.reader = None
        return (reply[0],) if reply else ()

    def drop(self) -> None:
        """Close the connection, whatever is pending on it."""
        if self.reader is not None:
            self.reader.drop()
            self.reader = None
        self._conn.disconnect()
        self._id = b""
