"""One function an operation: it builds the `Call` of a script, and reads what the script says."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.core.calls import Call
from penstock.errors import (
    PenstockError,
    QueueClosed,
    QueueDamaged,
    QueueEmpty,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueMissing,
)
from penstock.pressure.keys import PressureKeys, Role
from penstock.pressure.options import PressureCounters
from penstock.wire.scripts import script

__all__ = ["DONE", "HOLDING", "IN_USE", "LOST", "MISSING", "UNFINISHED", "PressureCalls", "Seen"]

DONE = 1
HOLDING = 2
LOST = 0
MISSING = -1
CLOSED = -2
FULL = -3
EMPTY = -4
IN_USE = -5
EXISTS = -6
UNFINISHED = -7
DAMAGED = -8


class Seen(NamedTuple):
    """What the keys of a queue say at one moment.

    Attributes:
        bound: None = there is no queue.
        length: messages that wait.
        is_closed: whether it is.
        has_token: whether not_full has its token.
        free: which roles nobody has.
        left: without a queue, how many lists of one are there.
        counters: of messages and bytes.
    """

    bound: int | None
    length: int = 0
    is_closed: bool = False
    has_token: bool = False
    free: tuple[Role, ...] = ()
    left: int = 0
    counters: PressureCounters = PressureCounters(0, 0, 0, 0)

    @property
    def fits(self) -> bool:
        """Whether the bound has room for one more."""
        return self.bound is not None and (self.bound == 0 or self.length < self.bound)


class PressureCalls:
    """The operations of one queue.

    Args:
        name: the queue's name, for messages.
        keys: the queue's keys.
    """

    def __init__(self, name: str, keys: PressureKeys) -> None:
        self.name = name
        self.keys = keys

    def _call(self, name: str, *args: Any, role: Role | None = None) -> Call:
        found = script(f"pressure/{name}")
        return Call(found, self.keys.head(found, role), args)

    def create(self, bound: int) -> Call:
        """Make the queue."""
        return self._call("create", bound)

    def put(
        self, party: bytes, message: bytes, *, overfill: bool, held: int, wait: int, lost: int
    ) -> Call:
        """Put a message; `held`, `wait` and `lost` as in the header of the script."""
        flags = (held, wait, int(overfill), lost)
        return self._call("put", party, *flags, message, role="producer")

    def get(self, party: bytes, *, held: int, wait: int) -> Call:
        """Take a message; `held` and `wait` as in the header of the script."""
        return self._call("get", party, held, wait, role="consumer")

    def peek_reverse(self, party: bytes, *, held: int) -> Call:
        """Look at the newest message."""
        return self._call("peek_reverse", party, held, role="producer")

    def leave(self, party: bytes, role: Role, *, held: int) -> Call:
        """Give a role back, if it is still this party's."""
        return self._call("leave", party, held, role=role)

    def close(self, party: bytes, *, held: int) -> Call:
        """Close the queue."""
        return self._call("close", party, held, role="producer")

    def delete(self, step: str, mark: str) -> Call:
        """Begin or end a deletion."""
        return self._call("delete", step, mark)

    def free(self, role: Role) -> Call:
        """Free a role of a party that is gone."""
        return self._call("free", role, role=role)

    def show(self) -> Call:
        """Look."""
        return self._call("show")

    def seen(self, reply: list[Any]) -> Seen:
        """What `show` found.

        Raises:
            QueueDamaged: a bound or counter that is no number.
        """
        roles: tuple[Role, Role] = ("producer", "consumer")
        if reply[0] == MISSING:
            free = tuple(role for role, tokens in zip(roles, reply[3:5], strict=True) if tokens)
            return Seen(None, left=reply[2], free=free)
        free = tuple(role for role, tokens in zip(roles, reply[6:8], strict=True) if tokens)
        try:
            bound, *sums = (int(text) for text in (reply[2], *reply[8:12]))
        except ValueError:
            raise self.error([DAMAGED]) from None
        return Seen(
            bound, reply[3], reply[4] > 0, reply[5] > 0, free, counters=PressureCounters(*sums)
        )

    def error(self, reply: list[Any], role: Role = "producer") -> PenstockError:
        """The exception for what a script has refused."""
        code, name = reply[0], repr(self.name)
        if code == IN_USE:
            return QueueInUse(role, reply[2].decode("utf-8", "replace"))
        if code == MISSING:
            return QueueMissing(f"there is no queue {name}")
        return {
            CLOSED: QueueClosed(f"queue {name} is closed"),
            FULL: QueueFull(f"queue {name} is full"),
            EMPTY: QueueEmpty(f"queue {name} is empty"),
            EXISTS: QueueExists(f"queue {name} is there already"),
            UNFINISHED: QueueExists(
                f"keys of an earlier queue {name} are left: its deletion goes on, or was broken"
                " off; delete() ends it"
            ),
            DAMAGED: QueueDamaged(f"queue {name}: a bound or counter is no number"),
        }[code]
