"""A script call, and the durability wait that follows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from penstock.core.roles import RoleLease
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import Script

if TYPE_CHECKING:
    from penstock.core.operations.base import Operations

__all__ = ["NOTHING", "Argument", "Call", "Confirmed", "Wait", "longest_pause"]

R = TypeVar("R")
Argument: TypeAlias = str | bytes | int
"""An argument of a script."""
SOON = 0.25
"""Longest pause between two tries of a call in the first second, in seconds."""
LATER = 1.0
"""The same after that."""


class Wait(NamedTuple):
    """What an enqueue or an ack waits for, on its own connection.

    Attributes:
        replicas: how many must have it; None = as many as the queue's setting says.
        timeout_ms: for how long.
        expected: how many this client takes the setting for; its WAIT goes out with the call.
        fsynced: whether the server, and those replicas, must have it on disk.
        is_told: whether the server has told this client of the setting.
        refuses: whether the call is not sent where too few replicas are connected. An ack is, and
            a call that may have run before: it is judged by what they confirm.
    """

    replicas: int | None
    timeout_ms: int
    expected: int = 0
    fsynced: bool = False
    is_told: bool = False
    refuses: bool = True


class Confirmed(NamedTuple):
    """What became of a wait.

    Attributes:
        replicas: how many confirmed.
        fsynced: whether the server has it on disk; False also when it was not asked.
    """

    replicas: int = 0
    fsynced: bool = False

    def covers(self, wanted: int, wait: Wait) -> bool:
        """Whether this is what was asked for."""
        return self.replicas >= wanted and (self.fsynced or not wait.fsynced)


NOTHING = Confirmed()


@dataclass(slots=True)
class Call(Generic[R]):
    """One run of a script, and how it went.

    Attributes:
        script: the script.
        head: count of the keys and the keys, as EVALSHA takes them after the SHA.
        args: ARGV after the nonce.
        parse: makes the result of a reply whose code is not negative.
        queue: keys of the queue if the producer's key is to be added (enqueue), else None.
        wait: the durability wait behind the call, or None.
        bearer: the exclusive role that the call bears or takes, or None; it is told the answer.
        ops: the operations of the queue, for its errors and the repair of its meta; None = a
            negative code is the caller's to read.
        resent: when the call was sent again by our clock, 0 = it was not. Set by the executor.
        confirmed: the result of the wait. Set by the executor.
    """

    script: Script
    head: tuple[Any, ...]
    args: tuple[Argument, ...]
    parse: Callable[[Sequence[Any]], R]
    queue: QueueKeys | None = None
    wait: Wait | None = None
    bearer: RoleLease | None = None
    ops: Operations | None = None
    resent: float = 0.0
    confirmed: Confirmed = NOTHING

    def doubt(self) -> None:
        """From now on the call may have run: it is judged by the replicas that confirm it."""
        if self.wait is not None:
            self.wait = self.wait._replace(refuses=False)

    @property
    def epoch(self) -> str:
        """The epoch of the job ids that the call names, or ''."""
        return str(self.args[0]) if self.script.args[1:2] == ("wanted",) else ""


def longest_pause(tries: int, elapsed: float) -> float:
    """Seconds of which a random part passes before the next try of a call that failed.

    A few ms at first, and never more than `SOON` in the first second: most outages are short, and a
    call should not take much longer than the outage.

    Args:
        tries: how many have failed.
        elapsed: seconds since the first one failed.
    """
    return min(SOON if elapsed < 1 else LATER, 0.005 * 2.0 ** min(tries, 10))
