# From src/penstock/client/_async/transport/blocking.py by tools/unasync.py; do not edit.
"""A connection that waits for tokens by BLPOP, or for entries of streams by XREAD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from penstock.client._acompat import (
    PENDING,
    Reader,
    RedisConnection,
    Wakeup,
    connect,
    probe,
    send,
    sliced,
)
from penstock.client._sync.transport.commands import IDLE_BEFORE_TEST, PROBE_TIMEOUT
from penstock.client._sync.transport.settings import SOCKET_TIMEOUT
from penstock.client.clock import monotonic
from penstock.client.sockets import SLOW_LINE_BYTES_PER_SECOND
from penstock.core.calls.call import Call
from penstock.core.calls.unavailable import UnavailableCommands
from penstock.core.flows import POLL_INTERVAL
from penstock.wire.codes import Code
from penstock.wire.packing import pack

UNBLOCK_COMMAND = "CLIENT UNBLOCK"
STOP_TIMEOUT = 2.0
"""Seconds after which the connection is closed if an ended BLPOP has not replied."""
MOST_FOLLOWING_BYTES = 1_048_576
"""About the most bytes of jobs in the reply to a call behind a BLPOP."""
FAKE_BLPOP_SECONDS = 0.02
"""Seconds of one BLPOP on a connection that blocks the caller (fakeredis)."""
READ_COMMAND = (b"XREAD", b"COUNT", b"1000")
BLPOP_RENEWAL_SECONDS = 60.0
"""Seconds after which a pending BLPOP is sent again, which detects a dead connection."""


class _Unblocking(Protocol):
    """A server, as far as a connection that waits needs it; see `Server`."""

    lost_at: float

    @property
    def unavailable(self) -> UnavailableCommands:
        """Return the commands that it refuses."""

    @property
    def is_under_sentinel(self) -> bool:
        """True if Sentinels say which server it is."""

    def has_moved(self, conn: RedisConnection) -> bool:
        """Return True if a connection leads to a former primary."""

    def note_unavailable(self, command: str, error: ResponseError) -> bool:
        """Note that a command is refused."""

    def unblock(self, waiters: Sequence[BlockingConnection]) -> None:
        """End the pending BLPOPs of these waiters."""


class BlockingConnection:
    """A connection that blocks on wake and space tokens, or on streams.

    A reserve may be sent behind the BLPOP. The server runs it when the BLPOP has ended, so a
    waiting consumer has its job one trip earlier. Such a BLPOP ends after a poll interval: if the
    consumer is stopped, or gone without a sign of it, no job is reserved for it later than that.

    Args:
        conn: a connection without a socket time-out.
        server: the server at its other end; another connection ends a pending BLPOP.

    A server or a proxy may refuse CLIENT. Then a BLPOP ends by itself after a poll interval, and no
    reserve is sent behind it. To end it earlier, the connection is closed.

    Attributes:
        id: number of the connection on the server; empty = a BLPOP on it can't be ended.
        reader: reads the reply of the pending BLPOP; None = none is pending.
    """

    def __init__(self, conn: RedisConnection, server: _Unblocking) -> None:
        self._conn = conn
        self._server = server
        self.reader: Reader | None = None
        self._since = 0.0
        self.id = b""
        self._is_open = False
        self._keys: tuple[bytes, ...] = ()
        self._call: Call[Any] | None = None
        self._calls = 0
        self._taken: Any = None

    def take(self) -> Any:
        """Return the result of the call behind the last BLPOP, once; None = there is none."""
        taken, self._taken = self._taken, None
        return taken

    def close_if_dead(self) -> None:
        """Close the connection if nothing is pending on it and it does not answer."""
        if self.reader is None and self._is_open:
            was_idle = monotonic() > self._since + IDLE_BEFORE_TEST
            if self.has_moved or (was_idle and not probe(self._conn, PROBE_TIMEOUT)):
                self.drop()

    @property
    def is_sliced(self) -> bool:
        """True if no BLPOP can stay pending: then wait by `slice`."""
        return sliced(self._conn)

    @property
    def has_moved(self) -> bool:
        """True if the connection leads to a former primary, or was dropped with others."""
        was_dropped = self._since < self._server.lost_at
        return self._is_open and (was_dropped or self._server.has_moved(self._conn))

    def begin(
        self, keys: tuple[bytes, ...], follow: Callable[[], Call[Any]] | None = None
    ) -> tuple[bytes, ...]:
        """Send the BLPOP unless one is pending; return the key of a token if an old one took it.

        Args:
            keys: the tokens.
            follow: builds the call to send behind the BLPOP; `take` returns its result. Not used
                under Sentinel: a call that is sent later finds a new primary sooner.
        """
        if self.has_moved:
            reason = "an idle connection of this client was dropped; so may this one be"
            if self._server.has_moved(self._conn):
                reason = "another server is the primary now"
            self.drop()
            raise RedisConnectionError(reason)
        if self.reader is not None and monotonic() > self._since + BLPOP_RENEWAL_SECONDS:
            self._server.unblock([self])
            taken_keys = self.read_end()
            if taken_keys or self._taken:
                return taken_keys
        if self.reader is None:
            self._open()
            self._keys = keys
            can_follow = self.id and not self._server.is_under_sentinel
            self._pend(self._packed(keys, follow if can_follow else None))
        return ()

    def read(self, timeout: float, signal: Wakeup | None = None) -> bytes | None:
        """Read the key of a token; None after `timeout` seconds, at the signal, or if refused."""
        assert self.reader is not None
        try:
            reply = self.reader.read(timeout, signal)
        except ResponseError as error:
            if not self._server.note_unavailable("BLPOP", error):
                raise
            reply = None
        if reply is PENDING:
            return None
        self.reader = None
        self._read_call()
        return _key_in(reply)

    def _read_call(self) -> None:
        """Read the reply to the call behind the BLPOP, if there is one."""
        call, self._call = self._call, None
        if call is None:
            return
        try:
            limit = STOP_TIMEOUT + MOST_FOLLOWING_BYTES / SLOW_LINE_BYTES_PER_SECOND
            reply = Reader(self._conn).read(limit)
        except ResponseError:  # the script is not loaded, for example: nothing was taken
            return
        code, answered = (0, b"") if reply is PENDING else reply[:2]
        if answered != b"%d" % self._calls:  # none in time, or that of another call
            self.drop()
        elif code in (Code.DONE, Code.LANE):
            call.note_lane(code)
            self._taken = call.parse(reply)
        elif code == Code.KEYS_MISSING:
            call.send_all_keys()  # nothing was taken; the next call is sent with all keys

    def _packed(self, keys: tuple[bytes, ...], follow: Callable[[], Call[Any]] | None) -> bytes:
        limit = b"%d" % POLL_INTERVAL
        if follow is None:
            return pack((b"BLPOP", *keys, b"0" if self.id else limit))
        self._call = call = follow()
        self._calls += 1
        nonce = b"%d" % self._calls
        return pack((b"BLPOP", *keys, limit)) + call.pack(nonce, b"")

    def _pend(self, packed: bytes) -> None:
        """Send a command that blocks; `reader` reads its reply."""
        self._since = monotonic()
        try:
            send(self._conn, packed)
            self.reader = Reader(self._conn)
        except BaseException:
            self.drop()
            raise

    def _open(self) -> None:
        if not self._is_open:
            try:
                self.id = self._introduce()
            except BaseException:
                self.drop()  # a handshake may be half done
                raise
            self._is_open = True

    def _introduce(self) -> bytes:
        """Connect and return the id of the connection, within a time-out; empty if it is refused.

        A stopped server accepts connections and is silent.
        """
        self._conn.socket_timeout = SOCKET_TIMEOUT
        try:
            connect(self._conn)
            if UNBLOCK_COMMAND in self._server.unavailable:
                return b""
            send(self._conn, pack((b"CLIENT", b"ID")))
            client_id: int = self._conn.read_response(disable_decoding=True)
        except ResponseError as error:
            if not self._server.note_unavailable(UNBLOCK_COMMAND, error):
                raise
            return b""
        finally:
            self._conn.socket_timeout = None  # waits have none
        return b"%d" % client_id

    def watch(self, places: Mapping[bytes, bytes], seconds: float) -> None:
        """Send an XREAD that waits for entries of streams; `entries` reads the reply.

        Args:
            places: for each stream the id behind which to read.
            seconds: time after which it ends without entries.
        """
        block = (b"BLOCK", b"%d" % (seconds * 1000))
        self._open()
        self._pend(pack((*READ_COMMAND, *block, b"STREAMS", *places, *places.values())))

    def entries(self, timeout: float) -> Any:
        """Return the reply to the XREAD; None = no entries, still pending, or refused."""
        assert self.reader is not None
        try:
            reply = self.reader.read(timeout)
        except ResponseError as error:
            if not self._server.note_unavailable("XREAD", error):
                raise
            reply = None
        if reply is PENDING:
            return None
        self.reader = None
        return reply

    def is_silent(self, seconds: float) -> bool:
        """Return True if the reply to the XREAD has been pending for longer than this."""
        return self.reader is not None and monotonic() > self._since + seconds

    def look(self, places: Mapping[bytes, bytes]) -> Any:
        """Return the entries that streams have now, where no XREAD can stay pending."""
        send(self._conn, pack((*READ_COMMAND, b"STREAMS", *places, *places.values())))
        return self._conn.read_response(disable_decoding=True)

    def slice(self, keys: tuple[bytes, ...], timeout: float) -> bytes | None:
        """Wait by a BLPOP that ends by itself; return the key of a token."""
        send(self._conn, pack((b"BLPOP", *keys, b"%.3f" % max(timeout, 0.001))))
        return _key_in(self._conn.read_response(disable_decoding=True))

    def read_end(self) -> tuple[bytes, ...]:
        """Read the reply of a BLPOP that was ended; return the key of a token if it took one.

        One that can't be ended, or does not reply, may have taken a token of any of its keys.
        """
        if self.reader is None:
            return ()
        key = self.read(STOP_TIMEOUT if self.id else 0.0)
        keys: tuple[bytes, ...] = () if key is None else (key,)
        if self.reader is not None:
            self.drop()
            keys = self._keys
        return keys

    def drop(self) -> None:
        """Close the connection, with a pending BLPOP or without."""
        if self.reader is not None:
            self.reader.drop()
            self.reader = None
        self._call = None
        self._is_open, self.id = False, b""
        self._conn.disconnect()


def _key_in(reply: tuple[bytes, bytes] | None) -> bytes | None:
    key, _token = reply or (None, None)
    return key
