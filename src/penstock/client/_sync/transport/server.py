# From src/penstock/client/_async/transport/server.py by tools/unasync.py; do not edit.
"""One server: its connections, and the retry of calls on them.

redis-py's own retry is off: it would send a script again without a check that it runs once
(protocol/core.md, Connections).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._acompat import RedisConnection, sleep
from penstock.client._sync.transport.blocking import UNBLOCK_COMMAND, BlockingConnection
from penstock.client._sync.transport.commands import IDLE_BEFORE_TEST
from penstock.client._sync.transport.connection import ProducerConnection
from penstock.client._sync.transport.sentinel import Primary
from penstock.client._sync.transport.settings import HURRY_SECONDS
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call, RawReply, longest_pause
from penstock.core.calls.failures import raise_typed, refuses_command, refuses_size, transient
from penstock.core.calls.troubles import raise_explained, reason_of, wrong_type
from penstock.core.calls.unavailable import UnavailableCommands
from penstock.core.jobs.logs import RateLimit, get_logger, span
from penstock.core.values.producer import Producer
from penstock.errors import NotPermitted, NotReplicated, ProtocolError
from penstock.wire.packing import Argument

logger = get_logger("penstock")
T = TypeVar("T")

COMPLAINT_INTERVAL = 10.0
"""Seconds between two lines in the log about the same trouble of a server."""
SILENT_REPEAT_SECONDS = 1.0
"""Seconds of repeats after which the log says so."""
FAST_OPENING_SECONDS = 0.5
"""Most seconds for a new connection to a server that is not busy."""
EFFECT_OF_REFUSAL = {
    "BLPOP": "no token wakes waiting calls and idle workers: they look for jobs every 4 s",
    UNBLOCK_COMMAND: "a wait that ends early closes its connection",
    "XREAD": "calls that wait for a result look for it every 4 s",
    "BLMOVE": "waiting calls of pressure queues look every 0.5 s",
}
"""Effects on waits if the server refuses a command, for the log."""


class Server:
    """One server, or under Sentinel the current primary: its connections, and the retry.

    Args:
        factory: makes connections.
        address: address of the server, for people.
        primary: finds the primary under Sentinel; None = there is no Sentinel.
        retry_for: seconds for which a call is tried again when the connection fails.

    Attributes:
        idle: connections without a call under way.
        lost_at: time at which an idle connection was found to be dropped.
        unavailable: commands of waits that it refuses.
    """

    def __init__(
        self,
        factory: Callable[..., RedisConnection],
        address: str,
        primary: Primary | None = None,
        *,
        retry_for: float,
    ) -> None:
        self.factory = factory
        self.address = address
        self.idle: list[ProducerConnection] = []
        self._waiters: list[BlockingConnection] = []
        self._primary = primary
        self._turn = 0
        self._sends_once = False
        self._has_lost = False
        self.lost_at = 0.0
        self._retry_for = retry_for
        self._complaints = RateLimit(COMPLAINT_INTERVAL, monotonic)
        self.unavailable = UnavailableCommands(monotonic)

    def adjust(self, **settings: float) -> None:
        """Change settings of the connections that are made from now on."""
        self.factory = partial(self.factory, **settings)

    def send_once(self) -> None:
        """Repeat no failed call from now on: another node may run it.

        A long call whose connection was closed is an exception. It is repeated while the server
        answers PING, at most `LONG_CALL_REPEATS` times, because its size would fail on each node.
        """
        self._sends_once = True

    def give_up_soon(self) -> None:
        """Try each call twice at most from now on, with a time-out of one second."""
        self.adjust(socket_timeout=HURRY_SECONDS, socket_connect_timeout=HURRY_SECONDS)
        self._retry_for = 0.0
        self.close()

    def forget(self) -> None:
        """Forget all connections without closing them: another process or loop has them."""
        self.idle, self._waiters = [], []
        if self._primary is not None:
            self._primary.forget()

    # -- connections -----------------------------------------------------------------------------

    def take(self) -> ProducerConnection:
        """Return a connection for one call; give it back with `give`, or close it."""
        try:
            return self.idle.pop()
        except IndexError:
            return ProducerConnection(self.factory())

    def give(self, connection: ProducerConnection) -> None:
        """Keep a connection, whose call has been answered, for the next call."""
        self.idle.append(connection)

    def _take_current(self) -> ProducerConnection:
        """Take a connection; under Sentinel, one to the current primary."""
        primary = self._primary
        if primary is None:
            return self.take()
        primary.look()
        if self._turn != primary.turn:
            self._turn = primary.turn
            self._close_idle(primary.turn)
        connection = self.take()
        if connection.turn != self._turn:  # given back by a call that began before
            connection.close()
        return connection

    def _close_idle(self, turn: int | None = None) -> None:
        """Close all connections, except those for calls to the primary of this number.

        Other threads may take or give some meanwhile.
        """
        for connection in tuple(self.idle):
            if connection.turn != turn:
                with suppress(ValueError):
                    self.idle.remove(connection)
                    connection.close()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.drop()

    @property
    def is_under_sentinel(self) -> bool:
        """True if Sentinels say which server it is."""
        return self._primary is not None

    def has_moved(self, conn: RedisConnection) -> bool:
        """Return True if a connection leads to a former primary."""
        return self._primary is not None and getattr(conn, "turn", 0) != self._primary.turn

    def _connection(self) -> ProducerConnection:
        """Take a connection for one call. If a failed call is not repeated, open it first."""
        connection = self._take_current()
        if not self._sends_once:
            self.replace_if_dead(connection)
        else:
            had_opened, began = connection.has_opened, monotonic()
            if self._open(connection) and had_opened:
                self._has_lost = True
                self._note_dropped(began, began)
        return connection

    def replace_if_dead(self, connection: ProducerConnection) -> None:
        """Open a connection anew if it was idle and does not answer."""
        now = monotonic()
        if not connection.close_if_dead():
            return
        if self._complaints.allows("idle"):
            logger.info("%s does not answer on an idle connection: opening another", self.address)
        began = monotonic()
        with suppress(RedisConnectionError, RedisTimeoutError):  # the call tries it again
            connection.open()
            self._note_dropped(now, began)

    def _note_dropped(self, now: float, began: float) -> None:
        """Note that idle connections were dropped before `now`, unless the server is only busy.

        Whatever has dropped one has dropped those with pending waits, too. A busy server also
        leaves a new connection without an answer.

        Args:
            now: time before which they were dropped.
            began: when the new connection, which has an answer now, was begun.
        """
        if monotonic() <= began + FAST_OPENING_SECONDS:
            self.lost_at = now

    def _open(self, connection: ProducerConnection) -> bool:
        try:
            return connection.open()
        except BaseException as error:
            self.handle_failure(connection, error)
            raise

    def run(
        self, call: Call[object], *, brief: bool = False, earlier: Producer | None = None
    ) -> RawReply:
        """Run a script and return its reply; note in the call when it was sent again.

        Args:
            call: the script with its arguments.
            brief: whether to try it twice at most; a long one `LONG_CALL_REPEATS` times more.
            earlier: the number of the call if it was sent before; None = it gets the next one.

        Raises:
            OutOfMemory, BodyTooLarge, QueueDamaged: the server refused it.
            OutcomeUnknown: as in `ProducerConnection.exchange_again`.
            redis.exceptions.ConnectionError, TimeoutError: still failing after `retry_for` seconds.
        """
        if self._primary is not None or self._sends_once:
            connection = self._connection()
        else:
            try:
                connection = self.idle.pop()
            except IndexError:
                connection = ProducerConnection(self.factory())
            now = monotonic()
            if now > connection.used + IDLE_BEFORE_TEST:
                self.replace_if_dead(connection)
            connection.used = now
        connection.calls += 1
        caller = earlier or connection
        try:
            try:
                reply = connection.exchange(call, caller)
            except Exception as error:
                is_cut = type(error) is RedisConnectionError and call.is_long
                if (self._sends_once and not is_cut) or not transient(error):
                    raise
                logger.info("%s: %s; trying again", call.script.name, error)
                errors = [] if isinstance(error, ResponseError) else [error]
                reply = self._run_again(connection, call, caller, errors=errors, brief=brief)
        except BaseException as error:
            self.handle_failure(connection, error, call)
            raise
        self.idle.append(connection)
        return reply

    def run_each(self, calls: Sequence[Call[object]]) -> list[RawReply | Exception]:
        """Run scripts in one trip; return the reply, or the refusal, of each.

        Those that were refused, or all if the connection fails, are sent again one by one.

        Args:
            calls: as in `ProducerConnection.exchange_each`.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: still failing after `retry_for` seconds.
        """
        connection = self._connection()
        first, connection.calls = connection.calls + 1, connection.calls + len(calls)
        callers = [Producer(first + at, connection.producer) for at in range(len(calls))]
        try:
            answers: list[Any] = [*connection.exchange_each(calls, callers)]
        except Exception as error:
            connection.close()
            if self._sends_once and transient(error):
                raise
            answers = [error] * len(calls)
            for call in calls if transient(error) else ():
                call.resent = monotonic()
                call.doubt()
        else:
            self.give(connection)
        for at, answer in enumerate(answers):
            if isinstance(answer, Exception):
                try:
                    answers[at] = self.run(calls[at], earlier=callers[at])
                except Exception as error:
                    if transient(error):
                        raise
                    answers[at] = error
        return answers

    def handle_failure(
        self,
        connection: ProducerConnection,
        error: BaseException,
        call: Call[object] | None = None,
    ) -> None:
        """Raise the typed error of a failure, if it has one.

        Keep the connection after a refusal; else close it.

        After another failure a reply may still be under way and the outcome is unknown, so neither
        the connection nor its producer id is used again.
        """
        if isinstance(error, ResponseError) and not transient(error):
            is_damage = call is not None and "WRONGTYPE" in str(error)
            mistyped = self._find_mistyped(connection, call) if call and is_damage else ""
            if refuses_size(error):  # no other call can follow
                connection.close()
            self.idle.append(connection)
            raise_typed(error, self.address, mistyped)
            return
        if isinstance(error, NotReplicated):  # nothing was sent
            self.idle.append(connection)
            return
        connection.close()
        raise_explained(error, self.address, tls=connection.uses_tls)

    def _find_mistyped(self, connection: ProducerConnection, call: Call[object]) -> str:
        """Return the keys of a call that have a wrong type, with both types."""
        faults = []
        named = zip(call.script.keys, call.head[1:], strict=False)  # a lane has the first ones
        for kind, key in (one for one in named if one[0] in call.script.used):
            with suppress(ResponseError):  # this user may not ask
                actual = connection.command("TYPE", key).decode()
                faults.append(wrong_type(kind, key, actual))
        return ", ".join(filter(None, faults))

    def _repeat(self, attempt: Callable[[], T], seconds: float) -> T:
        """Repeat a call that has failed once, for so many seconds, and once at least."""
        began, tries = monotonic(), 0
        while True:
            try:
                return attempt()
            except Exception as error:
                elapsed, tries = monotonic() - began, tries + 1
                if not transient(error) or elapsed >= seconds:
                    raise
                self._say(error, elapsed)
            sleep(random.random() * longest_pause(tries, elapsed))

    def _say(self, error: Exception, elapsed: float) -> None:
        """Log that a call has been repeated for a while, for a person who waits for it."""
        if elapsed > SILENT_REPEAT_SECONDS and self._complaints.allows(""):
            text = "%s does not answer (%s); tried for %s"
            logger.warning(text, self.address, reason_of(error), span(self._retry_for))

    def _run_again(
        self,
        connection: ProducerConnection,
        call: Call[object],
        caller: Producer,
        errors: list[Exception],
        *,
        brief: bool,
    ) -> RawReply:
        """Repeat a call with the same number on a new connection, for a bounded time.

        The reply is that of the last repeat, so a lease in it counts from then.

        Args:
            connection, call, brief: as of `run`.
            caller: numbers the call.
            errors: the failure, if the call may have run all the same. It is emptied at the end:
                see `caught`.
        """

        def repeat() -> RawReply:
            connection.close()
            call.resent = monotonic()
            if errors:
                call.doubt()
            try:
                return connection.exchange_again(call, caller)
            except (RedisConnectionError, RedisTimeoutError, ProtocolError) as failure:
                errors.append(failure)
                raise

        try:
            seconds = 0.0 if brief or self._sends_once else self._retry_for
            return self._repeat(repeat, seconds)
        except ResponseError as refusal:
            if errors and transient(refusal):
                raise errors.pop(0) from refusal  # it may have run before: this does not tell
            raise
        finally:
            errors.clear()

    def reach(self) -> bool:
        """Ensure an open connection. If this raises, nothing was sent.

        Returns:
            True if it had to be opened, or if one was found closed since the last `reach`.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: at the first attempt.
        """
        connection = self._take_current()
        opened = self._open(connection) or self._has_lost
        self._has_lost = False
        self.give(connection)
        return opened

    def command(self, *args: Argument) -> Any:
        """Run a plain command, which may be repeated; its reply is undecoded."""
        connection, began = self._connection(), monotonic()

        def attempt() -> Any:
            try:
                return connection.command(*args)
            except Exception as error:
                if transient(error):
                    connection.close()
                raise

        try:
            try:
                reply: Any = attempt()
            except Exception as error:
                if self._sends_once or not transient(error):
                    raise
                left = self._retry_for - (monotonic() - began)
                reply = self._repeat(attempt, left)
        except BaseException as error:
            self.handle_failure(connection, error)
            raise
        self.idle.append(connection)
        return reply

    def commands(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run plain commands in one trip; if one fails, all of them again, one by one."""
        connection = self._connection()
        try:
            replies = connection.together(commands)
        except Exception:  # noqa: BLE001  # each is sent again, and raises its own error
            connection.close()
            return [self.command(*args) for args in commands]
        self.give(connection)
        return replies

    def everywhere(self, commands: Sequence[tuple[Argument, ...]]) -> dict[str, list[Any] | str]:
        """Return the replies to plain commands of each server, by its address: this one."""
        return {self.address: [self.command(*args) for args in commands]}

    # -- waiters ---------------------------------------------------------------------------

    def waiter(self) -> BlockingConnection:
        """Return a waiter for one wait; give it back with `rest`."""
        try:
            return self._waiters.pop()
        except IndexError:
            return BlockingConnection(self.factory(socket_timeout=None), self)

    def locate_keys(
        self, keys: tuple[bytes, ...]
    ) -> dict[tuple[Server, int | None], tuple[bytes, ...]]:
        """Return the places where to wait for tokens: this server, without a slot."""
        return {(self, None): keys}

    def note_unavailable(self, command: str, error: ResponseError) -> bool:
        """Note and log that a command of waits is refused; it is left alone for a while.

        Returns:
            False if the error has another reason; then nothing is noted.
        """
        if not refuses_command(error):
            return False
        if self.unavailable.note(command):
            raw = (isinstance(error, NotPermitted) and error.__context__) or error
            text = "%s refuses %s (%s): %s"
            logger.warning(text, self.address, command, reason_of(raw), EFFECT_OF_REFUSAL[command])
        return True

    def unblock(self, waiters: Sequence[BlockingConnection]) -> None:
        """End the pending BLPOPs of these waiters in one trip; each still has its reply.

        If the server refuses that, none can be ended: their `id` becomes empty.
        """
        pending = [conn for conn in waiters if conn.reader is not None and conn.id]
        commands = [("CLIENT", "UNBLOCK", conn.id) for conn in pending]
        try:
            if len(commands) < 2:
                for args in commands:
                    self.command(*args)
                return
            connection = self.take()
            try:
                connection.together(commands)
            except BaseException:
                connection.close()
                raise
            self.give(connection)
        except ResponseError as error:
            if not self.note_unavailable(UNBLOCK_COMMAND, error):
                raise
            for conn in pending:
                conn.id = b""

    def rest(self, waiter: BlockingConnection) -> None:
        """Keep a waiter with nothing pending for the next wait."""
        self._waiters.append(waiter)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._close_idle()
        if self._primary is not None:
            self._primary.close()
