"""The effects of flows: calls, waits, changes of the registry. The driver runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.core.calls import Call
from penstock.core.operations import QueueOps

__all__ = [
    "LOST",
    "Cancelled",
    "Cede",
    "Drop",
    "Effect",
    "Hurry",
    "Pop",
    "Quit",
    "Register",
    "ReserveJobs",
    "Rest",
    "Run",
    "Tidy",
    "Unregister",
]


@dataclass(frozen=True, slots=True)
class Run:
    """Run a script; the answer is its result.

    A `brief` one is tried twice at most: the client has other things to do.
    """

    call: Call[Any]
    brief: bool = False


@dataclass(frozen=True, slots=True)
class ReserveJobs:
    """Reserve up to n jobs of a queue; the answer is a `Taken`. `brief` is that of `Run`."""

    ops: QueueOps
    n: int
    idle: bool
    brief: bool = False


@dataclass(frozen=True, slots=True)
class Register:
    """Write the queue into the registry with this epoch."""

    ops: QueueOps
    epoch: str


@dataclass(frozen=True, slots=True)
class Unregister:
    """Remove the queue's entry with this epoch from the registry: no queue has that epoch."""

    ops: QueueOps
    epoch: str


@dataclass(frozen=True, slots=True)
class Tidy:
    """Sweep what is due: these queues, about once a minute each, and a few listed ones.

    A client that waits does so; most of the time nothing is due, and nothing is sent.

    Attributes:
        made: whether one of these was made just now: a client that makes queues sweeps others.
    """

    sources: tuple[QueueOps, ...]
    made: bool = False


class Cancelled(BaseException):
    """Thrown into a flow whose wait was cancelled, so that it can leave in order."""


LOST = object()
"""The answer to a Pop whose connection failed."""


@dataclass(frozen=True, slots=True)
class Pop:
    """Wait for a token on one of the keys until a point of the clock; the answer: its key or None.

    The blocking call stays pending after a None, so that no token is missed between two waits; None
    also comes early when the flow's owner has something to tell. Where keys lie apart (Cluster)
    there are several calls, and the others stay pending after a key. LOST says that a connection
    failed: a token may have gone with it, so look everywhere.
    """

    keys: tuple[bytes, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Quit:
    """End the pending wait, if there is one; the answer: the keys of the tokens that it took."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Do nothing until a point of the clock, or until the flow's owner has something to tell."""

    until: float


@dataclass(frozen=True, slots=True)
class Cede:
    """Let runners start their jobs."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connections: the server at their other end has changed."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """Give up calls after a second or two from now on: the flow's owner is about to end."""


Effect = Run | ReserveJobs | Register | Unregister | Tidy | Pop | Quit | Rest | Cede | Drop | Hurry
