"""The calls of the scripts of pressure, and what their replies mean."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.core.calls.call import Call, target_of
from penstock.errors import (
    PenstockError,
    QueueClosed,
    QueueDamaged,
    QueueFull,
    QueueInUse,
    QueueMissing,
)
from penstock.pressure.errors import QueueEmpty, QueueExists
from penstock.pressure.keys import PressureKeys, Role
from penstock.pressure.options import PressureCounters
from penstock.wire.codes import PressureCode
from penstock.wire.packing import words
from penstock.wire.replies import PARSERS, PressureShow, PressureShowMissing
from penstock.wire.scripts import script

__all__ = ["PressureCalls", "PressureState"]


class PressureState(NamedTuple):
    """The state of a queue at one moment.

    Attributes:
        bound: None = there is no queue.
        length: messages that wait.
        is_closed: True if it is closed.
        has_token: True if not_full has its token.
        free: the roles that are free.
        left: if there is no queue, the number of lists that are left of one.
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
        """True if there is room for one more message."""
        return self.bound is not None and (self.bound == 0 or self.length < self.bound)


class PressureCalls:
    """The calls of one queue's scripts.

    Args:
        name: the queue's name, for messages.
        keys: the queue's keys.
    """

    def __init__(self, name: str, keys: PressureKeys) -> None:
        self.name = name
        self.keys = keys

    def call(
        self, name: str, role: Role | None = None, /, **values: str | bytes | int
    ) -> Call[Any]:
        """Return the call of a script.

        Args:
            name: of the script.
            role: in which it acts, if its header speaks of a role.
            values: its arguments by the names in its header; others are ignored.
        """
        called = script(f"pressure/{name}")
        args = words(values[argument] for argument in called.args[1:])
        target = target_of(called, self.keys.of(called, role))
        return Call(called, target, args, PARSERS[called.name])

    def parse_state(self, reply: PressureShow | PressureShowMissing) -> PressureState:
        """Read the reply to `show`.

        Raises:
            QueueDamaged: a bound or counter that is no number.
        """
        free: tuple[Role, ...] = ("producer",) if reply.puts else ()
        free += ("consumer",) if reply.gets else ()
        if isinstance(reply, PressureShowMissing):
            return PressureState(None, left=reply.left, free=free)
        try:
            bound, *sums = (int(text) for text in (reply.bound, *reply.sums))
        except ValueError:
            raise self.error(PressureCode.DAMAGED) from None
        return PressureState(
            bound,
            length=reply.length,
            is_closed=reply.closed > 0,
            has_token=reply.room > 0,
            free=free,
            counters=PressureCounters(*sums),
        )

    def error(self, code: int, role: Role = "producer", party: bytes = b"") -> PenstockError:
        """Return the exception for the refusal of a script.

        Args:
            code: of the reply.
            role: the role that was needed.
            party: the client that has it.
        """
        if code == PressureCode.IN_USE:
            return QueueInUse(role, party.decode("utf-8", "replace"))
        kind, text = ERROR_OF_PRESSURE_CODE[code]
        return kind(text.format(queue=repr(self.name)))


ERROR_OF_PRESSURE_CODE: dict[int, tuple[type[PenstockError], str]] = {
    PressureCode.MISSING: (QueueMissing, "queue {queue} does not exist: create() makes it"),
    PressureCode.CLOSED: (QueueClosed, "queue {queue} is closed"),
    PressureCode.FULL: (QueueFull, "queue {queue} is full"),
    PressureCode.EMPTY: (QueueEmpty, "queue {queue} is empty"),
    PressureCode.EXISTS: (QueueExists, "queue {queue} exists already: delete() removes it"),
    PressureCode.UNFINISHED: (
        QueueExists,
        "an earlier queue {queue} is not deleted completely: wait, or call delete()",
    ),
    PressureCode.DAMAGED: (
        QueueDamaged,
        "queue {queue} is damaged, a bound or counter is not a number: delete() removes it",
    ),
}
