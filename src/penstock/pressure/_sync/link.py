# From src/penstock/pressure/_async/link.py by tools/unasync.py; do not edit.
"""Connections of a pressure queue: calls that are not sent twice, and waits that take nothing.

The protocol has no place where a server could note that a call has run, so what must not run twice
is never repeated (protocol/pressure.md, What a lost reply leaves).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._acompat import PENDING, Reader, send, sleep, sliced
from penstock.client._sync.transport.blocking import FAKE_SLICE
from penstock.client._sync.transport.connection import ProducerConnection, monotonic, pack
from penstock.client._sync.transport.failures import passing, raise_typed, transient
from penstock.client._sync.transport.node import forget_after_fork
from penstock.client._sync.transport.server import Server
from penstock.client._sync.transport.settings import SOCKET_TIMEOUT, connection_factory
from penstock.core.calls import Call
from penstock.errors import OutcomeUnknown, OutOfMemory, ProtocolError

SLICE = 0.5
"""Seconds of one blocking command; between two of them a waiting call looks at the queue."""
HOPS = 9
"""How often a call is sent on from one node of a cluster to the next, in 2 s at most."""
AT_ONCE = 1024
"""Most bytes of a packet that no network and no server takes in two parts."""
FRESH = 0.25
"""Seconds after which a connection is asked whether it lives, before a call is sent on it."""


class WatchedConnection:
    """The connection of one waiting call.

    It watches the queue's `bound`, which lives exactly as long as the queue: what is sent by
    `guarded` runs in that life of the queue or not at all (protocol/pressure.md, A queue made
    anew).

    Args:
        conn: with a socket time-out longer than a slice.

    Attributes:
        conn: the same.
        lane: for plain commands on it.
    """

    def __init__(self, conn: Any) -> None:
        self.conn = conn
        self.lane = ProducerConnection(conn)
        self._watch: tuple[bytes, ...] = ()
        self._reader: Reader | None = None

    def watch(self, key: bytes) -> None:
        """Begin to watch, whatever was seen before."""
        self._watch = (b"WATCH", key)
        send(self.conn, pack((b"UNWATCH",)) + pack(self._watch))
        self.conn.read_response(disable_decoding=True)
        self.conn.read_response(disable_decoding=True)

    def look(self, call: Call[Any]) -> Any:
        """Run a script whatever has become of the watched key: one that only reads."""
        self.lane.calls += 1
        return call.parse(self.lane.exchange(call, self.lane))

    def glimpse(self, call: Call[Any]) -> Any:
        """Run a script that only reads; None = the watched key is not as it was.

        fakeredis lets others in between any two commands, and what they change between EXEC and
        WATCH is missed: there nothing is said of the key.
        """
        if sliced(self.conn):
            return self.look(call)
        return self.guarded(call)[0]

    def guarded(self, call: Call[Any], *looks: tuple[bytes, ...]) -> tuple[Any, list[Any]]:
        """Run a script if the watched key is as it was; None = it is not, and nothing ran.

        The key is watched again after the script, with no call in between: EXEC and what follows it
        are in one packet, which is so short that a server reads it at once. fakeredis lets others
        in even there: `looks` are commands that come last, and show what is watched now.

        Returns:
            What the script says, and the replies to `looks`, or none where no key is watched.

        Raises:
            OutOfMemory, QueueDamaged: what the server refused, typed.
            ProtocolError: the reply is that of another call.
        """
        try:
            return self._transaction(call, looks)
        except NoScriptError:
            self.lane.command("SCRIPT", "LOAD", call.script.source)
            return self._transaction(call, looks)
        except ResponseError as error:
            with suppress(OutOfMemory):
                raise_typed(error)
        try:  # a full server takes no transaction; no client can make a queue on it either
            return self.look(call), []
        except ResponseError as error:
            raise_typed(error)

    def _transaction(
        self, call: Call[Any], looks: tuple[tuple[bytes, ...], ...]
    ) -> tuple[Any, list[Any]]:
        self.lane.calls += 1
        nonce = b"%d" % self.lane.calls
        evalsha = (b"EVALSHA", call.script.sha, *call.head, nonce, *call.args)
        begin, end = ((b"MULTI",), evalsha), ((b"EXEC",), self._watch, *looks)
        first, last = (b"".join(map(pack, steps)) for steps in (begin, end))
        if len(first) + len(last) <= AT_ONCE:
            first, last = first + last, b""
        send(self.conn, first)
        _, queued = [self._reply() for _ in begin]
        if last:
            send(self.conn, last)
        done, _, *seen = [self._reply() for _ in end]
        if isinstance(done, list):
            (done,) = done
        for reply in (queued, done, *seen):
            if isinstance(reply, ResponseError):
                raise reply
        if done is not None and done[1] != nonce:
            raise ProtocolError(f"{call.script.name}: not the reply to call {self.lane.calls}")
        return None if done is None else call.parse(done), seen

    def _reply(self) -> Any:
        try:
            return self.conn.read_response(disable_decoding=True)
        except ResponseError as error:
            return error

    def turned(self, key: bytes, *, end: bytes, timeout: float) -> bool:
        """Wait up to `timeout` seconds, at most a slice, until a list has an element.

        The element is put back as it is taken, in one command: nothing is lost with a connection,
        and the next waiting call is served.

        Args:
            key: the list.
            end: LEFT or RIGHT, where the element that is taken on the right is put.
            timeout: in seconds.
        """
        limit = max(min(timeout, SLICE), 0.001)
        if sliced(self.conn):  # fakeredis, whose BLMOVE does not block
            sleep(min(limit, FAKE_SLICE))
            return bool(self.lane.command("LLEN", key))
        try:
            blocked = (b"BLMOVE", key, key, b"RIGHT", end, b"%.3f" % limit)
            return self.lane.command(*blocked) is not None
        except ResponseError as error:
            if passing(error):  # it is not the one any more
                raise RedisConnectionError(str(error)) from error
            with suppress(OutOfMemory):
                raise_typed(error)
        sleep(limit)  # a full server refuses to block
        return bool(self.lane.command("LLEN", key))

    def pop(self, key: bytes, *, timeout: float) -> None:
        """Begin to wait for the element of a list, as long as in `turned`, to take it."""
        limit = max(min(timeout, SLICE), 0.001)
        send(self.conn, pack((b"BRPOP", key, b"%.3f" % limit)))
        self._reader = Reader(self.conn)

    def popped(self) -> bool:
        """Whether it was taken; who is interrupted asks again, and has to give it back."""
        if self._reader is None:
            return False
        reply = self._reader.read(SLICE + SOCKET_TIMEOUT)
        if reply is PENDING:
            raise RedisTimeoutError("no reply to BRPOP in time")
        self._reader = None
        return reply is not None

    def close(self) -> None:
        """Close the connection, whatever is pending on it."""
        if self._reader is not None:
            self._reader.drop()
            self._reader = None
        self.lane.close()


class Link(Server):
    """One server as a pressure queue sees it.

    Under Sentinel, whichever is the primary; of a cluster, the node that has the queue's slot.

    Args:
        source: URL or redis-py client.

    Attributes:
        owed: calls that give back the roles of waits that have ended without a server.
    """

    def __init__(self, source: object) -> None:
        self._lines: list[WatchedConnection] = []
        self.owed: list[Call[Any]] = []
        super().__init__(*connection_factory(source), 0)
        forget_after_fork(self)

    def repeatable(self, call: Call[Any]) -> Any:
        """Run a script that may run twice, once more if the connection fails."""
        return call.parse(self._routed(self.run, call))

    def settle(self) -> None:
        """Run what is owed: else a party that lives would keep itself out. A refusal ends it."""
        while self.owed:
            try:
                call = self.owed.pop()
            except IndexError:  # another thread has it
                return
            try:
                self.repeatable(call)
            except BaseException as error:
                if passing(error) or not isinstance(error, Exception):
                    self.owed.append(call)
                    raise

    def once(self, call: Call[Any]) -> Any:
        """Run a script, at most once.

        Raises:
            redis.exceptions.ConnectionError: the server can't be reached; it has not run.
            OutcomeUnknown: the connection failed after that.
            OutOfMemory, QueueDamaged: what the server refused, typed.
        """
        return call.parse(self._routed(self._once, call))

    def _routed(self, run: Callable[[Call[Any]], list[Any]], call: Call[Any]) -> list[Any]:
        """Run it where a cluster says that it belongs: MOVED is an answer, nothing has run.

        Raises:
            redis.exceptions.ConnectionError: one node sends it to the next one for ever.
        """
        hop = 0
        while True:
            try:
                return run(call)
            except MovedError as moved:
                if hop == HOPS:
                    raise RedisConnectionError(f"the nodes do not agree: {moved}") from moved
                self._follow(moved, hop)
            hop += 1

    def _follow(self, moved: MovedError, hop: int) -> None:
        """From now on connections lead to the node that a cluster names.

        A node may be told late of what has changed, so later hops give it a moment.
        """
        self.adjust(port=moved.port, **({"host": moved.host} if moved.host else {}))
        self.close()
        sleep(min(0.01 * (2.0**hop - 1), 0.5))

    def _once(self, call: Call[Any]) -> list[Any]:
        lane = self.take() if self._primary is None else self._led(self._primary)
        lane.calls += 1
        try:
            if monotonic() > lane.used + FRESH:
                self._revive(lane)
            reply = self._sent(lane, call)
        except BaseException as error:
            self._failed(lane, error)
            raise
        lane.used = monotonic()
        self._lanes.append(lane)
        return reply

    def _revive(self, lane: ProducerConnection) -> None:
        """Make sure of the connection: a server that was restarted has closed it."""
        try:
            lane.command("PING")
        except (RedisConnectionError, RedisTimeoutError):
            lane.close()
            lane.command("PING")

    def _sent(self, lane: ProducerConnection, call: Call[Any]) -> list[Any]:
        try:
            return lane.exchange(call, lane)
        except Exception as error:
            if isinstance(error, ResponseError) or not transient(error):
                raise  # an answer
            unknown = f"{call.script.name}: the reply was lost, so whether it has run is not known"
            raise OutcomeUnknown(unknown) from error

    def line(self) -> WatchedConnection:
        """A connection for one wait; give it back with `keep`, or close it."""
        self._bind()
        try:
            line = self._lines.pop()
        except IndexError:
            line = WatchedConnection(self.factory(socket_timeout=SLICE + SOCKET_TIMEOUT))
        try:
            if self.has_moved(line.conn):
                line.close()
            if monotonic() > line.lane.used + FRESH:
                self._revive(line.lane)
        except BaseException:
            line.close()
            raise
        return line

    def keep(self, line: WatchedConnection) -> None:
        """Keep a connection with nothing pending for the next wait."""
        line.lane.used = monotonic()
        self._lines.append(line)

    def forget(self) -> None:
        """Forget all connections without closing them: another process or loop has them."""
        super().forget()
        self._lines = []

    def close(self) -> None:
        """Close all connections that are not in use."""
        lines, self._lines = self._lines, []
        for line in lines:
            line.close()
        super().close()
