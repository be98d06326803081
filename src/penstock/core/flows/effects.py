"""The effects of flows: calls, waits and how long they last, changes of the registry. The driver
runs them.

They are not frozen, as that would double the time to define and to make them; nothing changes one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps, Taken
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import Delivery
from penstock.core.values.confirmations import Wait

__all__ = [
    "POLL_INTERVAL",
    "Cancelled",
    "Clock",
    "CloseConnections",
    "CountFlow",
    "Effect",
    "EndWait",
    "Flow",
    "GiveUpSoon",
    "LetRunnersStart",
    "Listen",
    "Register",
    "ReserveJobs",
    "Rest",
    "Run",
    "StoreHint",
    "SweepDue",
    "Unregister",
    "WaitResult",
    "poll_interval",
]

Clock: TypeAlias = Callable[[], float]
"""Returns monotonic seconds."""
POLL_INTERVAL = 4.0
"""Seconds after which an idle consumer or producer calls again, without a token."""


def poll_interval(queues: Sequence[QueueOps], role: str) -> float:
    """Return the seconds until a waiting client calls again, few enough to keep its roles."""
    thirds = [ops.role_leases[role].lease_ms / 3000 for ops in queues if role in ops.role_leases]
    return min([POLL_INTERVAL, *thirds])


class Effect:
    """A step that a flow asks for; it is sent the answer."""

    __slots__ = ()


Flow: TypeAlias = Generator[Effect, Any, None]
CountFlow: TypeAlias = Generator[Effect, Any, int]
"""A flow that returns a number."""


@dataclass(slots=True)
class Run(Effect):
    """Run a script; the answer is its result.

    A `brief` one is tried twice at most: the client has other things to do.
    """

    call: Call[Any]
    brief: bool = False

    @property
    def ops(self) -> Any:
        """Operations of the queue."""
        return self.call.ops


@dataclass(slots=True)
class ReserveJobs(Effect):
    """Reserve up to n jobs of a queue; the answer is a `Taken`. `brief` is that of `Run`.

    `wait` is for the deliveries at most once; if they are not confirmed, `DeliveryNotReplicated`
    has all jobs that were taken.
    """

    ops: QueueOps
    n: int
    idle: bool
    brief: bool = False
    wait: Wait | None = None


@dataclass(slots=True)
class Register(Effect):
    """Write the queue into the registry with this epoch."""

    ops: QueueOps
    epoch: str


@dataclass(slots=True)
class Unregister(Effect):
    """Remove the queue's entry with this epoch from the registry: no queue has that epoch."""

    ops: QueueOps
    epoch: str


@dataclass(slots=True)
class SweepDue(Effect):
    """Sweep what is due: these queues, about once a minute each, and a few listed ones.

    A client that waits does so; most of the time nothing is due, and nothing is sent.

    Attributes:
        is_new: whether one of these was made just now: a client that makes queues sweeps others.
    """

    queues: tuple[QueueOps, ...]
    is_new: bool = False


class Cancelled(BaseException):
    """Thrown into a flow whose wait was cancelled, so that it can leave in order."""


@dataclass(slots=True)
class Listen(Effect):
    """Wait for tokens of queues until a point of the clock; the answer is a `WaitResult`.

    The blocking calls stay pending after it, so that no token is missed between two waits. An early
    empty answer means that the flow's owner has set its signal.

    Attributes:
        queues: the queues.
        until: point of the clock.
        kind: kind of the tokens, as a name of a key: `wake` or `space`.
        follow: builds a reserve of the only queue, which the server runs as soon as the wait has
            ended: a token costs no further trip. It may not be possible; then it is left out.
    """

    queues: tuple[QueueOps, ...]
    until: float
    kind: str = "wake"
    follow: Callable[[], Call[Taken]] | None = None


@dataclass(slots=True)
class WaitResult:
    """The answer to `Listen` and to `EndWait`.

    Attributes:
        woken: queues of which a token was taken.
        lost: queues whose connection failed: a token may be lost with it, so look there.
        taken: what the reserve behind the wait has taken; None = there was none.
    """

    woken: tuple[QueueOps, ...] = ()
    lost: tuple[QueueOps, ...] = ()
    taken: Taken | None = None


@dataclass(slots=True)
class EndWait(Effect):
    """End the pending wait, if there is one; the answer: a `WaitResult` with the tokens it took."""


@dataclass(slots=True)
class StoreHint(Effect):
    """Keep a call about jobs of a node that is down on another one; the answer: a bool per job."""

    ops: QueueOps
    jobs: Sequence[Delivery]
    intent: Intent


@dataclass(slots=True)
class Rest(Effect):
    """Do nothing until a point of the clock, or until the flow's owner has something to tell."""

    until: float


@dataclass(slots=True)
class LetRunnersStart(Effect):
    """Let runners start their jobs."""


@dataclass(slots=True)
class CloseConnections(Effect):
    """Close the connections: the server at their other end has changed."""


@dataclass(slots=True)
class GiveUpSoon(Effect):
    """Give up calls after a second or two from now on: the flow's owner is about to end."""
