# From src/penstock/pressure/_async/connections.py by tools/unasync.py; do not edit.
"""Connections of a pressure queue: calls that are sent once, and waits that take nothing.

In this protocol the server does not record calls. So a call that must not run twice is never
repeated (protocol/pressure.md, What a lost reply leaves).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._acompat import (
    PENDING,
    Reader,
    first_ready,
    hold_interrupts,
    send,
    sleep,
    sliced,
)
from penstock.client._sync.transport.blocking import FAKE_BLPOP_SECONDS
from penstock.client._sync.transport.connection import ProducerConnection
from penstock.client._sync.transport.executor import forget_after_fork
from penstock.client._sync.transport.server import Server
from penstock.client._sync.transport.settings import SOCKET_TIMEOUT, connection_factory
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call
from penstock.core.calls.failures import TOO_LARGE, is_full, passing, raise_typed, transient
from penstock.errors import OutcomeUnknown, OutOfMemory, ProtocolError
from penstock.wire.packing import pack

BLOCKING_SECONDS = 0.5
"""Seconds of one blocking command; between two of them a waiting call reads the queue's state."""
FEWEST_BLOCKING_SECONDS = 0.002
"""Fewest seconds of one: with 0.001 Redis before 7.0.8 waits for ever."""
MOST_REDIRECTIONS = 9
"""Most MOVED redirections that a call follows, within 2 s at most."""
ONE_PACKET_BYTES = 1024
"""Most bytes of a packet that every network and server takes in one part."""
UNTESTED_IDLE_SECONDS = 0.25
"""Seconds without use after which a connection is tested before a call is sent on it."""


def slice_of(timeout: float) -> float:
    """Return the seconds of one blocking command of a call that waits up to `timeout`."""
    return max(min(timeout, BLOCKING_SECONDS), FEWEST_BLOCKING_SECONDS)


class WatchedConnection:
    """The connection of one waiting call.

    It watches the queue's `bound`, which exists exactly as long as the queue. So `run_unchanged`
    runs no call in a later queue of the same name (protocol/pressure.md, A queue that was created
    again).

    Args:
        conn: with a socket time-out longer than `BLOCKING_SECONDS`.
        server: the server at its other end.

    Attributes:
        conn: the connection.
        connection: runs plain commands on it.
    """

    def __init__(self, conn: Any, server: Server) -> None:
        self.conn = conn
        self._server = server
        self.connection = ProducerConnection(conn)
        self._watch: tuple[bytes, ...] = ()
        self._reader: Reader | None = None

    def watch(self, key: bytes) -> None:
        """Begin to watch a key, and end an earlier watch."""
        self._watch = (b"WATCH", key)
        self.connection.together([(b"UNWATCH",), self._watch])

    def read(self, call: Call[Any]) -> Any:
        """Run a script that only reads, even if the watched key has changed."""
        self.connection.calls += 1
        return call.parse(self.connection.exchange(call, self.connection))

    def read_unchanged(self, call: Call[Any]) -> Any:
        """Run a script that only reads; None = the watched key has changed.

        On fakeredis the key is not compared: it runs other clients' commands between EXEC and
        WATCH, and their changes would be missed.
        """
        if sliced(self.conn):
            return self.read(call)
        return self.run_unchanged(call)[0]

    def run_unchanged(self, call: Call[Any], *looks: tuple[bytes, ...]) -> tuple[Any, list[Any]]:
        """Run a script if the watched key has not changed; None = it has, and nothing ran.

        The key is watched again right after the script: EXEC and WATCH are in one packet, which is
        so short that a server reads it at once. fakeredis runs other commands even there, so
        `looks` are commands behind them that show which key is watched now.

        Returns:
            The reply of the script, and the replies to `looks`; none if no key is watched.

        Raises:
            OutOfMemory, QueueDamaged: the server refused the call.
            ProtocolError: the reply is that of another call.
        """
        try:
            return self._transaction(call, looks)
        except NoScriptError:
            self.connection.command("SCRIPT", "LOAD", call.script.source)
            return self._transaction(call, looks)
        except ResponseError as error:
            with suppress(OutOfMemory):
                raise_typed(error)
                raise
        try:  # a full server refuses transactions; but no client can create a queue on it either
            return self.read(call), []
        except ResponseError as error:
            raise_typed(error)
            raise

    def _transaction(
        self, call: Call[Any], looks: tuple[tuple[bytes, ...], ...]
    ) -> tuple[Any, list[Any]]:
        self.connection.calls += 1
        nonce = b"%d" % self.connection.calls
        evalsha = (b"EVALSHA", call.script.sha, *call.head, nonce, *call.sent_args)
        begin, end = ((b"MULTI",), evalsha), ((b"EXEC",), self._watch, *looks)
        first, last = (b"".join(map(pack, steps)) for steps in (begin, end))
        if len(first) + len(last) <= ONE_PACKET_BYTES:
            first, last = first + last, b""
        _, queued = self.connection.replies(first, len(begin))
        done, _, *seen = self.connection.replies(last, len(end))
        if isinstance(done, list):
            (done,) = done
        for reply in (queued, done, *seen):
            if isinstance(reply, ResponseError):
                raise reply
        if done is not None and done[1] != nonce:
            raise ProtocolError(
                f"{call.script.name}: not the reply to call {self.connection.calls}"
            )
        return None if done is None else call.parse(done), seen

    def wait_for_element(self, key: bytes, *, end: bytes, timeout: float) -> bool:
        """Wait until a list has an element, for at most `BLOCKING_SECONDS`; return True if so.

        One command takes the element and puts it back. So nothing is lost with a connection, and
        the next waiting call finds it.

        Args:
            key: the list.
            end: LEFT or RIGHT, the end to which the element from the right is put.
            timeout: in seconds.
        """
        limit = slice_of(timeout)
        if sliced(self.conn):  # fakeredis, whose BLMOVE does not block
            sleep(min(limit, FAKE_BLPOP_SECONDS))
            return bool(self.connection.command("LLEN", key))
        try:
            if "BLMOVE" not in self._server.unavailable:
                blocked = (b"BLMOVE", key, key, b"RIGHT", end, b"%.3f" % limit)
                return self.connection.command(*blocked) is not None
        except ResponseError as error:
            if passing(error):  # the server is not the primary any more
                raise RedisConnectionError(str(error)) from error
            if not (is_full(error) or self._server.note_unavailable("BLMOVE", error)):
                raise_typed(error)
                raise
        sleep(limit)
        return bool(self.connection.command("LLEN", key))

    def pop(self, key: bytes, *, timeout: float) -> None:
        """Begin to wait for an element of a list, at most `BLOCKING_SECONDS`, and to take it."""
        limit = slice_of(timeout)
        with hold_interrupts():  # what was sent has a reader
            send(self.conn, pack((b"BRPOP", key, b"%.3f" % limit)))
            self._reader = Reader(self.conn)

    def wait_for_reply(self) -> None:
        """Wait for the reply, and leave it on the connection: an interrupt can't lose it."""
        if self._reader is not None and not sliced(self.conn):
            first_ready([self._reader], BLOCKING_SECONDS + SOCKET_TIMEOUT)

    def take_popped(self) -> bool:
        """Return True if it was taken; an interrupt while the reply is read may lose it."""
        if self._reader is None:
            return False
        reply = self._reader.read(BLOCKING_SECONDS + SOCKET_TIMEOUT)
        if reply is PENDING:
            raise RedisTimeoutError("no reply to BRPOP in time")
        self._reader = None
        return reply is not None

    def close(self) -> None:
        """Close the connection, even if a command is pending on it."""
        if self._reader is not None:
            self._reader.drop()
            self._reader = None
        self.connection.close()


class PressureServer(Server):
    """The server of a pressure queue.

    Under Sentinel it is the present primary; in a cluster, the node that has the queue's slot.

    Args:
        source: URL or redis-py client.

    Attributes:
        unsent: calls that give back roles, and could not be sent when their waits ended.
    """

    def __init__(self, source: object) -> None:
        self._watched: list[WatchedConnection] = []
        self.unsent: list[Call[Any]] = []
        super().__init__(*connection_factory(source), retry_for=0)
        forget_after_fork(self)

    def run_repeatable(self, call: Call[Any]) -> Any:
        """Run a script that may run twice, once more if the connection fails."""
        return call.parse(self._run_routed(self.run, call))

    def send_unsent(self) -> None:
        """Run the unsent calls, or this client would wait for itself. A refusal ends a call."""
        while self.unsent:
            try:
                call = self.unsent.pop()
            except IndexError:  # another thread has it
                return
            try:
                self.run_repeatable(call)
            except BaseException as error:
                if passing(error) or not isinstance(error, Exception):
                    self.unsent.append(call)
                    raise

    def run_once(self, call: Call[Any]) -> Any:
        """Run a script, at most once.

        Raises:
            redis.exceptions.ConnectionError: the server can't be reached; it has not run.
            OutcomeUnknown: the connection failed after the call was sent.
            OutOfMemory, QueueDamaged: the server refused the call.
        """
        return call.parse(self._run_routed(self._send_once, call))

    def _run_routed(self, run: Callable[[Call[Any]], list[Any]], call: Call[Any]) -> list[Any]:
        """Run a call, and follow MOVED. A call that gets this reply has not run.

        Raises:
            redis.exceptions.ConnectionError: too many nodes name another one.
        """
        hop = 0
        while True:
            try:
                return run(call)
            except MovedError as moved:
                if hop == MOST_REDIRECTIONS:
                    raise RedisConnectionError(f"the nodes do not agree: {moved}") from moved
                self._follow(moved, hop)
            hop += 1

    def _follow(self, moved: MovedError, hop: int) -> None:
        """Use the node that MOVED names from now on.

        Nodes learn of a change at different times, so later hops wait longer.
        """
        self.adjust(port=moved.port, **({"host": moved.host} if moved.host else {}))
        self.close()
        sleep(min(0.01 * (2.0**hop - 1), 0.5))

    def _send_once(self, call: Call[Any]) -> list[Any]:
        connection = self._take_current()
        connection.calls += 1
        try:
            if monotonic() > connection.used + UNTESTED_IDLE_SECONDS:
                connection.open(UNTESTED_IDLE_SECONDS)
            reply = self._send(connection, call)
        except BaseException as error:
            self.handle_failure(connection, error)
            raise
        connection.used = monotonic()
        self.idle.append(connection)
        return reply

    def _send(self, connection: ProducerConnection, call: Call[Any]) -> list[Any]:
        try:
            return connection.exchange(call, connection)
        except Exception as error:
            if isinstance(error, ResponseError) or not transient(error):
                raise  # an answer
            unknown = f"{call.script.name}: the reply was lost: the call may have taken effect"
            if call.is_long:
                unknown += f", or {TOO_LARGE}"
            raise OutcomeUnknown(unknown) from error

    def open_watched(self) -> WatchedConnection:
        """Return a connection for one wait; give it back with `keep`, or close it."""
        try:
            watched = self._watched.pop()
        except IndexError:
            conn = self.factory(socket_timeout=BLOCKING_SECONDS + SOCKET_TIMEOUT)
            watched = WatchedConnection(conn, self)
        try:
            if self.has_moved(watched.conn):
                watched.close()
            if monotonic() > watched.connection.used + UNTESTED_IDLE_SECONDS:
                watched.connection.open(UNTESTED_IDLE_SECONDS)
        except BaseException:
            watched.close()
            raise
        return watched

    def keep(self, watched: WatchedConnection) -> None:
        """Keep a connection with nothing pending for the next wait."""
        watched.connection.used = monotonic()
        self._watched.append(watched)

    def forget(self) -> None:
        """Forget all connections without closing them: another process or loop has them."""
        super().forget()
        self._watched = []

    def close(self) -> None:
        """Close all connections that are not in use."""
        kept, self._watched = self._watched, []
        for watched in kept:
            watched.close()
        super().close()
