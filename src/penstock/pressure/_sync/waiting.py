# From src/penstock/pressure/_async/waiting.py by tools/unasync.py; do not edit.
"""A waiting call: it waits for its role and takes it, then waits for room or for a message."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from penstock.client._acompat import hold_interrupts, shield
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call
from penstock.core.calls.failures import passing, transient
from penstock.core.values.confirmations import Confirmed, Wait
from penstock.errors import (
    OutcomeUnknown,
    PenstockError,
    ProtocolError,
    QueueClosed,
    QueueMissing,
    ServerError,
)
from penstock.pressure._sync.connections import PressureServer, WatchedConnection
from penstock.pressure.calls import PressureCalls, PressureState
from penstock.pressure.errors import OperationUnblocked
from penstock.pressure.keys import Role
from penstock.wire.codes import PressureCode

ROLE_HELD, TOKEN_POPPED = 1, 2
"""Values of `held`: the keys name this client as the holder; it popped the role's token."""
MOST_LOST_RACES = 1
"""Number of times that another client may be faster, before the role's token is popped."""
TOKEN_LOST_SECONDS = 1.0
"""Seconds after which room without a token counts as lost by a dead client."""


class Operation(NamedTuple):
    """The task of a call that may wait.

    Attributes:
        script: its name.
        role: that it needs.
        values: its arguments; `id` is the client.
        is_unblocked: tells whether the wait is to end.
        wait: for replicas.
    """

    script: Literal["put", "get", "close", "peek_reverse"]
    role: Role
    values: Mapping[str, bytes | int]
    is_unblocked: Callable[[], bool]
    wait: Wait | None = None


class WaitingCall:
    """One waiting call, on a connection of its own.

    The script that acts takes the role, so that afterwards the call holds the role or has acted.
    Blocking commands tell when to try again. Other clients wait by popping the token of the role,
    which is faster; when they were faster more than once, this call pops the token as well.

    Args:
        server: the server.
        calls: of the queue's scripts.
        operation: the task.
        timeout: in seconds; None = without an end.
    """

    def __init__(
        self,
        server: PressureServer,
        calls: PressureCalls,
        operation: Operation,
        *,
        timeout: float | None,
    ) -> None:
        self._server = server
        self._calls = calls
        self._operation = operation
        self._role = operation.role
        self._id = operation.values["id"]
        self._until = math.inf if timeout is None else monotonic() + timeout
        self._held = 0
        self._lost_races = 0
        self._without_token_since = math.inf
        self._holder = b""

    def _call(self, *, wait: int, lost: bool = False) -> Call[Any]:
        operation = self._operation
        state = {"held": self._held, "wait": wait, "lost": int(lost)}
        call = self._calls.call(operation.script, operation.role, **operation.values, **state)
        call.wait = operation.wait
        self._last = call
        return call

    @property
    def confirmed(self) -> Confirmed:
        """Confirmation of the last run of the script by replicas."""
        return self._last.confirmed

    def run_now(self) -> Any:
        """Run the script once; return its reply."""
        return self._server.run_once(self._call(wait=0))

    def wait_and_run(self) -> Any:
        """Wait, and run the script until it has acted or refuses to; return its reply.

        Raises:
            QueueMissing, QueueClosed: the queue was deleted or closed meanwhile.
            QueueFull, QueueEmpty, QueueInUse: the time is over.
            OperationUnblocked: `unblock` was called.
            NotReplicated: too few replicas are connected by now.
            OutcomeUnknown: the connection failed while the script ran.
            redis.exceptions.ConnectionError: it failed before, or the queue is on another server
                by now.
        """
        watched = self._server.open_watched()
        is_sound = False
        try:
            watched.watch(self._calls.keys["bound"])
            reply = self._run_until_acted(watched)
            is_sound = True
            return reply
        except PenstockError as error:
            is_sound = not isinstance(error, (OutcomeUnknown, ProtocolError, ServerError))
            raise
        except ResponseError as error:
            if passing(error):  # the server is not the primary any more
                raise RedisConnectionError(str(error)) from error
            raise
        finally:
            try:
                with hold_interrupts():  # a second one must not lose the role
                    if self._held:
                        shield(self._leave())
            finally:
                if is_sound:
                    self._server.keep(watched)
                else:
                    watched.close()

    def _run_until_acted(self, watched: WatchedConnection) -> Any:
        is_token_lost = False
        while True:
            reply = shield(self._run(watched, self._call(wait=1, lost=is_token_lost)))
            if reply is None:
                raise self._deletion_error()
            if reply.code not in (PressureCode.HOLDING, PressureCode.IN_USE, PressureCode.LOST):
                return reply
            is_token_lost = reply.code != PressureCode.LOST and self._wait(watched)

    def _run(self, watched: WatchedConnection, call: Call[Any]) -> Any:
        """Run the script, and note if this client holds the role; None = the queue was deleted."""
        held, keys = self._held, self._calls.keys
        looks = (b"GET", keys[self._role]), (b"LLEN", keys.free(self._role))
        if call.wait is not None:
            watched.connection.require(call.wait, afresh=True)
        self._held = held or ROLE_HELD  # possibly, until the reply is here
        try:
            reply, seen = watched.run_unchanged(call, *looks)
            if call.wait is not None and reply is not None and reply.code == PressureCode.DONE:
                call.confirmed = watched.connection.confirm(call.wait)
        except Exception as error:
            if isinstance(error, ResponseError) or not transient(error):
                raise  # an answer
            self._held = ROLE_HELD
            if held == ROLE_HELD and self._leave():
                raise  # had it run, or did it run now, the role would not have been ours to give
            unknown = "the reply was lost: it is not known whether the call took effect"
            raise OutcomeUnknown(unknown) from error
        if reply is None or reply.code < PressureCode.IN_USE:
            self._held = held
            return reply
        self._held = ROLE_HELD if reply.code == PressureCode.HOLDING else 0
        if self._held and seen not in ([], [self._id, 0]):
            # The key that is watched now may be of a later queue, into which the script must not
            # write; or the role was freed at that moment. Only fakeredis lets that happen
            # (`run_unchanged`).
            return None
        if reply.code == PressureCode.IN_USE:
            self._lost_races += 1
            self._holder = reply.party
        return reply

    def _leave(self) -> bool:
        """Give the role back; return True if it was ours. If the connection fails, do it later."""
        held, self._held = self._held, 0
        call = self._calls.call("leave", self._role, id=self._id, held=held)
        try:
            return bool(self._server.run_repeatable(call).code == PressureCode.DONE)
        except (RedisError, PenstockError) as error:
            if held == ROLE_HELD and passing(error):  # a popped token can't be returned later
                self._server.unsent.append(call)
            return False

    def _wait(self, watched: WatchedConnection) -> bool:
        """Wait until the next try; return True if the token of room was lost."""
        key, end = self._awaited_list()
        while True:
            if self._operation.is_unblocked():
                raise OperationUnblocked(f"queue {self._calls.name!r}: unblock() ended the call")
            left = self._until - monotonic()
            if left <= 0:
                raise self._timeout_error()
            if not self._held and self._lost_races > MOST_LOST_RACES:
                is_woken = shield(self._pop_token(watched, key, left))
            else:
                is_woken = watched.wait_for_element(key, end=end, timeout=left)
            if is_woken:
                return False
            seen = self._read_state(watched)
            self._check(seen)
            if self._may_act(seen) or not self._still_holds(watched):
                return False
            if self._is_token_lost(seen):
                return True

    def _read_state(self, watched: WatchedConnection) -> PressureState:
        show = self._calls.call("show")
        reply = watched.read(show) if self._held else watched.read_unchanged(show)
        if reply is None:
            raise self._deletion_error()
        return self._calls.parse_state(reply)

    def _still_holds(self, watched: WatchedConnection) -> bool:
        """Return True if this client holds no role, or if the keys still name it as the holder."""
        if not self._held:
            return True
        return bool(watched.connection.command("GET", self._calls.keys[self._role]) == self._id)

    def _pop_token(self, watched: WatchedConnection, key: bytes, left: float) -> bool:
        try:
            watched.pop(key, timeout=left)
            watched.wait_for_reply()
            self._note_token(watched)
        except KeyboardInterrupt:  # the command goes on
            with suppress(RedisError):
                self._note_token(watched)
            raise
        return self._held == TOKEN_POPPED

    def _note_token(self, watched: WatchedConnection) -> None:
        with hold_interrupts():  # none between the reply and the note
            if watched.take_popped():
                self._held = TOKEN_POPPED

    def _awaited_list(self) -> tuple[bytes, bytes]:
        """Return the list whose element the call waits for, and the end where it is put back."""
        keys = self._calls.keys
        if not self._held:
            return keys.free(self._role), b"LEFT"
        if self._role == "producer":
            return keys["not_full"], b"LEFT"
        return keys["queue"], b"RIGHT"

    def _check(self, seen: PressureState) -> None:
        if seen.bound is None:
            raise self._deletion_error()
        if seen.is_closed and (self._operation.script in ("put", "close") or not seen.length):
            raise QueueClosed(f"queue {self._calls.name!r} is closed")

    def _may_act(self, seen: PressureState) -> bool:
        if not self._held:
            return self._role in seen.free
        return seen.fits and seen.has_token if self._role == "producer" else seen.length > 0

    def _is_token_lost(self, seen: PressureState) -> bool:
        if not (self._held and self._role == "producer" and seen.fits):
            self._without_token_since = math.inf
            return False
        self._without_token_since = min(self._without_token_since, monotonic())
        return monotonic() >= self._without_token_since + TOKEN_LOST_SECONDS

    def _deletion_error(self) -> PenstockError:
        return QueueMissing(f"queue {self._calls.name!r} was deleted while the call waited")

    def _timeout_error(self) -> PenstockError:
        if not self._held:
            return self._calls.error(PressureCode.IN_USE, self._role, self._holder)
        is_producer = self._role == "producer"
        return self._calls.error(PressureCode.FULL if is_producer else PressureCode.EMPTY)
