"""Several nodes, without I/O: their states, and the order of calls.

A queue on several nodes has parts, each an ordinary queue on one node (protocol/nodes.md, Several
nodes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.core.flows import SILENT_QUEUE_PAUSE
from penstock.core.nodes.servers import ServerFacts
from penstock.errors import NodesUnavailable

__all__ = [
    "NodeState",
    "NotTaken",
    "PollOrder",
    "Sticky",
]

T = TypeVar("T")

FLAG_MAX_AGE = 0.75
"""Seconds after which a producer reads a node's flag `leaving` again."""
NODE_LIST_MAX_AGE = 30.0
"""Seconds after which the list of nodes is read again."""
MEMORY_MAX_AGE = 1.0
"""Seconds after which a producer reads a node's memory again."""
FIRST_FAILURE_PAUSE = 0.1
"""Seconds for which a node is not tried after its first failure; doubled each time."""
LONGEST_FAILURE_PAUSE = 2.0
"""Limit of these seconds."""
LONGEST_EMPTY_PAUSE = 0.25
"""Limit of the seconds for which a busy consumer does not ask a node that had nothing."""


@dataclass(slots=True)
class NodeState:
    """State of a node, as a client knows it.

    Attributes:
        failures: number of failures in a row.
        until: time of the clock when to try it again, after a failure.
        reason: the last failure, in words.
        leaving: whether it takes no new jobs.
        crowded: whether more than three quarters of its memory are in use.
        looked: time when its flag was read.
        measured: time when its memory was read.
        met: whether it has ever answered.
    """

    failures: int = 0
    until: float = 0.0
    reason: str = ""
    leaving: bool = False
    crowded: bool = False
    looked: float = -math.inf
    measured: float = -math.inf
    met: bool = False

    @property
    def is_up(self) -> bool:
        """True if the last call was answered."""
        return self.met and self.failures == 0

    def failed(self, now: float, error: BaseException) -> None:
        """Note that it could not be reached, and do not try it for a while."""
        self.failures += 1
        self.until = now + min(
            FIRST_FAILURE_PAUSE * 2 ** min(self.failures - 1, 10), LONGEST_FAILURE_PAUSE
        )
        self.reason = f"{type(error).__name__}: {error}"
        self.looked = self.measured = -math.inf

    def note_answer(self, now: float, *, leaving: bool, facts: ServerFacts | None = None) -> None:
        """Note that it has answered.

        Args:
            now: time of the call.
            leaving: its flag.
            facts: has its memory; None = that was not read.
        """
        self.failures, self.met, self.reason = 0, True, ""
        self.looked, self.leaving = now, leaving
        if facts is not None:
            self.measured, self.crowded = now, facts.is_crowded

    def is_stale(self, now: float) -> bool:
        """Return True if a producer has to read the flag again."""
        return now >= self.looked + FLAG_MAX_AGE

    def is_unmeasured(self, now: float) -> bool:
        """Return True if a producer has to read the memory again."""
        return now >= self.measured + MEMORY_MAX_AGE


class NotTaken(NodesUnavailable):
    """A job was not added, as its node is leaving or down; another node may take it.

    Args:
        address: of the node.
        reason: the cause, in words.
        passing: whether it may pass by itself.
    """

    def __init__(self, address: str, reason: str, *, passing: bool) -> None:
        super().__init__("the node takes no jobs", {address: reason})
        self.reason = reason
        self.passing = passing


class Sticky:
    """Prefers one node for new jobs, and changes only when it has to.

    Args:
        first: index of the first choice; a random number spreads the producers.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._chosen: object = None

    def order(self, nodes: Sequence[T]) -> list[T]:
        """Return the nodes in the order of tries: the chosen one, then those behind it."""
        if not nodes:
            return []
        if self._chosen in nodes:
            self._first = nodes.index(self._chosen)
        at = self._first % len(nodes)
        return [*nodes[at:], *nodes[:at]]

    def chose(self, node: object) -> None:
        """Note that a node has taken a job."""
        self._chosen = node


class PollOrder:
    """Order in which parts are asked: those that gave jobs take turns; others are not forgotten."""

    def __init__(self) -> None:
        self._fed: dict[object, None] = {}
        self._asked: dict[object, tuple[float, float]] = {}

    def order(self, parts: Sequence[T], now: float) -> tuple[list[T], int]:
        """Return the parts that are due, then those that gave jobs, then the others.

        A part that gives jobs moves behind the others that gave some.

        Returns:
            The parts, and how many at the beginning may have jobs.
        """
        fed = [part for part in tuple(self._fed) if part in parts]  # other threads write there
        rest = [part for part in parts if part not in self._fed]
        due = [part for part in rest if now >= self._asked.get(part, (0.0, 0.0))[0]]
        order = [*due, *fed, *(part for part in rest if part not in due)]
        return order, len(due) + len(fed)  # type: ignore[return-value]  # they are parts

    def gave(self, part: object, count: int | None, now: float) -> None:
        """Note how many jobs a part gave; None = it did not answer."""
        self._fed.pop(part, None)
        if count:
            self._fed[part] = None
            self._asked.pop(part, None)
        elif count is None:
            self._asked[part] = (now + SILENT_QUEUE_PAUSE, LONGEST_EMPTY_PAUSE)
        else:
            pause = min(max(self._asked.get(part, (0.0, 0.0))[1] * 2, 0.01), LONGEST_EMPTY_PAUSE)
            self._asked[part] = (now + pause, pause)
