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
from penstock.wire.codes import PressureCode
from penstock.wire.replies import PARSERS, PressureShow, PressureShowMissing
from penstock.wire.scripts import script

__all__ = ["PressureCalls", "Seen"]


class Seen(NamedTuple):
    """What the keys of a queue say at one moment.

    Attributes:
        bound: None = there is no queue.
        length: messages that wait.
        is_closed: whether it is.
        has_token: whether not_full has its token.
        free: the roles that are free.
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

    def _call(self, name: str, *args: Any, role: Role | None = None) -> Call[Any]:
        found = script(f"pressure/{name}")
        return Call(found, self.keys.head(found, role), args, PARSERS[found.name])

    def create(self, bound: int) -> Call[Any]:
        """Make the queue."""
        return self._call("create", bound)

    def put(
        self, party: bytes, message: bytes, *, overfill: bool, held: int, wait: int, lost: int
    ) -> Call[Any]:
        """Put a message; `held`, `wait` and `lost` as in the header of the script."""
        flags = (held, wait, int(overfill), lost)
        return self._call("put", party, *flags, message, role="producer")

    def get(self, party: bytes, *, held: int, wait: int) -> Call[Any]:
        """Take a message; `held` and `wait` as in the header of the script."""
        return self._call("get", party, held, wait, role="consumer")

    def peek_reverse(self, party: bytes, *, held: int) -> Call[Any]:
        """Look at the newest message."""
        return self._call("peek_reverse", party, held, role="producer")

    def leave(self, party: bytes, role: Role, *, held: int) -> Call[Any]:
        """Give a role back, if it is still this party's."""
        return self._call("leave", party, held, role=role)

    def close(self, party: bytes, *, held: int) -> Call[Any]:
        """Close the queue."""
        return self._call("close", party, held, role="producer")

    def delete(self, step: str, mark: str) -> Call[Any]:
        """Begin or end a deletion."""
        return self._call("delete", step, mark)

    def free(self, role: Role) -> Call[Any]:
        """Free a role of a party that is gone."""
        return self._call("free", role, role=role)

    def show(self) -> Call[Any]:
        """Look."""
        return self._call("show")

    def seen(self, reply: PressureShow | PressureShowMissing) -> Seen:
        """What `show` found.

        Raises:
            QueueDamaged: a bound or counter that is no number.
        """
        free: tuple[Role, ...] = ("producer",) if reply.puts else ()
        free += ("consumer",) if reply.gets else ()
        if isinstance(reply, PressureShowMissing):
            return Seen(None, left=reply.left, free=free)
        try:
            bound, *sums = (int(text) for text in (reply.bound, *reply.sums))
        except ValueError:
            raise self.error(PressureCode.DAMAGED) from None
        is_closed, has_token = reply.closed > 0, reply.room > 0
        return Seen(
            bound, reply.length, is_closed, has_token, free, counters=PressureCounters(*sums)
        )

    def error(self, code: int, role: Role = "producer", party: bytes = b"") -> PenstockError:
        """The exception for what a script has refused.

        Args:
            code: of the reply.
            role: that was needed.
            party: the one that has it.
        """
        if code == PressureCode.IN_USE:
            return QueueInUse(role, party.decode("utf-8", "replace"))
        kind, text = ERRORS[code]
        return kind(text.format(queue=repr(self.name)))


ERRORS: dict[int, tuple[type[PenstockError], str]] = {
    PressureCode.MISSING: (QueueMissing, "queue {queue} does not exist: create() makes it"),
    PressureCode.CLOSED: (QueueClosed, "queue {queue} is closed"),
    PressureCode.FULL: (QueueFull, "queue {queue} is full"),
    PressureCode.EMPTY: (QueueEmpty, "queue {queue} is empty"),
    PressureCode.EXISTS: (QueueExists, "queue {queue} exists already"),
    PressureCode.UNFINISHED: (
        QueueExists,
        (
            "keys of an earlier queue {queue} are left: its deletion goes on, or was broken off;"
            " delete() ends it"
        ),
    ),
    PressureCode.DAMAGED: (
        QueueDamaged,
        "queue {queue} is damaged: a bound or counter is not a number",
    ),
}
