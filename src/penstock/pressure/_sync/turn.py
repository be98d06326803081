# From src/penstock/pressure/_async/turn.py by tools/unasync.py; do not edit.
"""A call that waits: first for its role, which it then holds, then for room or for a message."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from penstock.client._acompat import shield
from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.failures import passing, transient
from penstock.core.calls import Call
from penstock.errors import (
    OperationUnblocked,
    OutcomeUnknown,
    PenstockError,
    ProtocolError,
    QueueClosed,
    QueueMissing,
)
from penstock.pressure._sync.link import Link, WatchedConnection
from penstock.pressure.calls import PressureCalls, Seen
from penstock.pressure.keys import Role
from penstock.wire.codes import PressureCode

HELD, POPPED = 1, 2
"""How the role is held: as the keys say, or by its token alone."""
DEFEATS = 1
"""How often another party may be faster, before we stand in line for the role."""
LACK = 1.0
"""Seconds after which room without a token is one that a dead party has lost."""


class Errand(NamedTuple):
    """What a waiting call wants to do.

    Attributes:
        role: that it needs.
        party: who it is.
        act: the script, by how the role is held and whether the token of room was lost.
        is_for_open: whether a closed queue refuses it even while messages are left.
        is_unblocked: whether the wait is to end, as the caller's own program wants it.
    """

    role: Role
    party: bytes
    act: Callable[[int, int], Call[Any]]
    is_for_open: bool
    is_unblocked: Callable[[], bool]


class WaitingCall:
    """One waiting call, on a connection of its own.

    It takes its role by the script that would act, so that from then on it holds the role, or has
    acted. Blocking commands only tell when it is worth while to try; but where others are always
    faster, as they wait by popping the token of the role, it does so as well.

    Args:
        link: the server.
        calls: the operations of the queue.
        errand: what is to be done.
        timeout: in seconds; None = for ever.
    """

    def __init__(
        self, link: Link, calls: PressureCalls, errand: Errand, timeout: float | None
    ) -> None:
        self._link = link
        self._calls = calls
        self._errand = errand
        self._until = math.inf if timeout is None else monotonic() + timeout
        self._held = 0
        self._beaten = 0
        self._lacking = math.inf
        self._holder = b""

    def reply(self) -> Any:
        """What the script says when it has acted, or will not.

        Raises:
            QueueMissing, QueueClosed: the queue was deleted or closed meanwhile.
            QueueFull, QueueEmpty, QueueInUse: the time is over; the role is given back.
            OperationUnblocked: the same, before that time.
            NotReplicated: too few replicas are connected by now; the same.
            OutcomeUnknown: the connection failed while the script was under way.
            redis.exceptions.ConnectionError: it failed before, or leads to another server than the
                queue's by now.
        """
        line = self._link.line()
        is_sound = False
        try:
            line.watch(self._calls.keys["bound"])
            reply = self._acted(line)
            is_sound = True
            return reply
        except PenstockError as error:
            is_sound = not isinstance(error, (OutcomeUnknown, ProtocolError))
            raise
        except ResponseError as error:
            if passing(error):  # it is not the one any more
                raise RedisConnectionError(str(error)) from error
            raise
        finally:
            try:
                if self._held:
                    shield(self._leave())
            finally:
                if is_sound:
                    self._link.keep(line)
                else:
                    line.close()

    def _acted(self, line: WatchedConnection) -> Any:
        """Try, and wait until it is worth while to try again."""
        is_token_lost = False
        while True:
            reply = shield(self._tried(line, is_token_lost))
            if reply is None:
                raise self._deleted()
            if reply.code not in (PressureCode.HOLDING, PressureCode.IN_USE, PressureCode.LOST):
                return reply
            is_token_lost = reply.code != PressureCode.LOST and self._chance(line)

    def _tried(self, line: WatchedConnection, is_token_lost: bool) -> Any:
        """What the script says; from it we know whether we hold the role."""
        role, party, held = self._errand.role, self._errand.party, self._held
        looks = (b"GET", self._calls.keys[role]), (b"LLEN", self._calls.keys.free(role))
        call = self._errand.act(held, int(is_token_lost))
        if call.wait is not None:
            line.lane.require(call.wait, afresh=True)
        self._held = held or HELD  # for all we know, until the reply is here
        try:
            reply, seen = line.guarded(call, *looks)
            if call.wait is not None and reply is not None and reply.code == PressureCode.DONE:
                call.confirmed = line.lane.confirm(call.wait)
        except Exception as error:
            if isinstance(error, ResponseError) or not transient(error):
                raise  # an answer
            self._held = HELD
            if held == HELD and self._leave():
                raise  # had it run, or did it run now, the role would not have been ours to give
            unknown = "the reply was lost: it is not known whether the call took effect"
            raise OutcomeUnknown(unknown) from error
        if reply is None or reply.code < PressureCode.IN_USE:
            self._held = held
            return reply
        self._held = HELD if reply.code == PressureCode.HOLDING else 0
        if self._held and seen not in ([], [party, 0]):
            # What is watched now is not the queue in which the role was taken. Or it was freed at
            # that very moment, which the keys can't tell from that: to go on could be to write into
            # a later queue. Servers allow no call between (`guarded`), so it is one of fakeredis.
            return None
        if reply.code == PressureCode.IN_USE:
            self._beaten += 1
            self._holder = reply.party
        return reply

    def _leave(self) -> bool:
        """Give the role back; whether it was ours. Without a server it is owed."""
        errand, held, self._held = self._errand, self._held, 0
        call = self._calls.leave(errand.party, errand.role, held=held)
        try:
            return bool(self._link.repeatable(call).code == PressureCode.DONE)
        except (RedisError, PenstockError) as error:
            if held == HELD and passing(error):  # whose token was popped is not known later
                self._link.owed.append(call)
            return False

    def _chance(self, line: WatchedConnection) -> bool:
        """Wait until it is worth while to try; whether the token of room was lost."""
        key, end = self._awaited()
        while True:
            if self._errand.is_unblocked():
                raise OperationUnblocked(f"queue {self._calls.name!r}: unblock() ended the call")
            left = self._until - monotonic()
            if left <= 0:
                raise self._late()
            if not self._held and self._beaten > DEFEATS:
                is_woken = shield(self._popped(line, key, left))
            else:
                is_woken = line.turned(key, end=end, timeout=left)
            if is_woken:
                return False
            seen = self._seen(line)
            self._check(seen)
            if self._is_worth(seen) or not self._is_ours(line):
                return False
            if self._is_token_lost(seen):
                return True

    def _seen(self, line: WatchedConnection) -> Seen:
        """What there is; who is in line learns only from `bound` that it is another queue."""
        show = self._calls.show()
        reply = line.look(show) if self._held else line.glimpse(show)
        if reply is None:
            raise self._deleted()
        return self._calls.seen(reply)

    def _is_ours(self, line: WatchedConnection) -> bool:
        """Whether the role that we hold, if any, still has our name in it."""
        key = self._calls.keys[self._errand.role]
        return not self._held or bool(line.lane.command("GET", key) == self._errand.party)

    def _popped(self, line: WatchedConnection, key: bytes, left: float) -> bool:
        """Stand in line for the role as other clients do; whether it is ours now."""
        line.pop(key, timeout=left)
        try:
            is_ours = line.popped()
        except KeyboardInterrupt:  # the reply will come all the same
            self._held = POPPED if line.popped() else 0
            raise
        self._held = POPPED if is_ours else 0
        return is_ours

    def _awaited(self) -> tuple[bytes, bytes]:
        """The list that gets an element, and where that is put back: messages keep their order."""
        keys, role = self._calls.keys, self._errand.role
        if not self._held:
            return keys.free(role), b"LEFT"
        if role == "producer":
            return keys["not_full"], b"LEFT"
        return keys["queue"], b"RIGHT"

    def _check(self, seen: Seen) -> None:
        if seen.bound is None:
            raise self._deleted()
        if seen.is_closed and (self._errand.is_for_open or not seen.length):
            raise QueueClosed(f"queue {self._calls.name!r} is closed")

    def _is_worth(self, seen: Seen) -> bool:
        if not self._held:
            return self._errand.role in seen.free
        return seen.fits and seen.has_token if self._errand.role == "producer" else seen.length > 0

    def _is_token_lost(self, seen: Seen) -> bool:
        """True if there is room that was not announced for too long: its client has died."""
        if not (self._held and self._errand.role == "producer" and seen.fits):
            self._lacking = math.inf
            return False
        self._lacking = min(self._lacking, monotonic())
        return monotonic() >= self._lacking + LACK

    def _deleted(self) -> PenstockError:
        return QueueMissing(f"queue {self._calls.name!r} was deleted while the call waited")

    def _late(self) -> PenstockError:
        """What to say when the time is over."""
        role = self._errand.role
        if not self._held:
            return self._calls.error(PressureCode.IN_USE, role, self._holder)
        return self._calls.error(PressureCode.FULL if role == "producer" else PressureCode.EMPTY)
