"""Several nodes, without I/O: their states, the order of calls, answers made one.

A queue on several nodes has parts, each an ordinary queue on one node (protocol/nodes.md, Several
nodes).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from penstock.core.flows import AGAIN
from penstock.core.servers import ServerFacts
from penstock.core.views import ASIDE, COUNTS, SETTING_KINDS, TOTALS, JobView, QueueStats, number_in
from penstock.errors import BadArgument
from penstock.wire.keys import PRIORITY_SPAN

__all__ = [
    "NodeState",
    "NotTaken",
    "Partial",
    "PollOrder",
    "Sticky",
    "merged_peek",
    "merged_stats",
    "stats_of_nodes",
    "to_store",
]

T = TypeVar("T")

LOOK = 0.75
"""Seconds after which a producer reads a node's flag `leaving` again."""
REFRESH = 30.0
"""Seconds after which the list of nodes is read again."""
MEASURE = 1.0
"""Seconds after which a producer reads a node's memory again."""
COOL = 0.1
"""Seconds for which a node is not tried after its first failure; doubled each time."""
COOLEST = 2.0
"""Limit of these seconds."""
PATIENCE = 0.25
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
        self.until = now + min(COOL * 2 ** min(self.failures - 1, 10), COOLEST)
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
        return now >= self.looked + LOOK

    def is_unmeasured(self, now: float) -> bool:
        """Return True if a producer has to read the memory again."""
        return now >= self.measured + MEASURE


class NotTaken(Exception):
    """A job was not added, as its node is leaving or down.

    Args:
        reason: the cause, in words.
        passing: whether it may pass by itself.
    """

    def __init__(self, reason: str, *, passing: bool) -> None:
        super().__init__(reason)
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
    """Order in which parts are asked: those that gave jobs take turns; others are not forgotten.

    Attributes:
        eager: number of parts at the beginning of the last order that may have jobs.
    """

    def __init__(self) -> None:
        self.eager = 0
        self._fed: dict[object, None] = {}
        self._asked: dict[object, tuple[float, float]] = {}

    def order(self, parts: Sequence[T], now: float) -> list[T]:
        """Return the parts that are due, then those that gave jobs, then the others.

        A part that gives jobs moves behind the others that gave some.
        """
        fed = [part for part in tuple(self._fed) if part in parts]  # other threads write there
        rest = [part for part in parts if part not in self._fed]
        due = [part for part in rest if now >= self._asked.get(part, (0.0, 0.0))[0]]
        self.eager = len(due) + len(fed)
        return [*due, *fed, *(part for part in rest if part not in due)]  # type: ignore[list-item]  # they are parts

    def gave(self, part: object, count: int | None, now: float) -> None:
        """Note how many jobs a part gave; None = it did not answer."""
        self._fed.pop(part, None)
        if count:
            self._fed[part] = None
            self._asked.pop(part, None)
        elif count is None:
            self._asked[part] = (now + AGAIN, PATIENCE)
        else:
            pause = min(max(self._asked.get(part, (0.0, 0.0))[1] * 2, 0.01), PATIENCE)
            self._asked[part] = (now + pause, pause)


# -- answers of several nodes made one ---------------------------------------------------------


class Partial(list[T]):
    """Items from all nodes that answered.

    Attributes:
        unreachable: addresses of those that did not; their items are missing.
    """

    def __init__(self, items: Iterable[T] = (), unreachable: Iterable[str] = ()) -> None:
        super().__init__(items)
        self.unreachable = tuple(unreachable)


SUMMED = (*COUNTS, *ASIDE, *TOTALS, "kept")


def merged_stats(found: Sequence[QueueStats], unreachable: Iterable[str] = ()) -> QueueStats:
    """Return the figures of a queue with parts, and the settings that were stored last.

    Args:
        found: at least one, in the order of preference.
        unreachable: addresses of nodes that did not answer.
    """
    there = [stats for stats in found if stats.exists]
    first, is_one = max(there or found, key=_age_of_settings), len(found) == 1
    sums = {name: sum(getattr(stats, name) for stats in found) for name in SUMMED}
    return replace(
        first,
        epoch=first.epoch if is_one else None,
        producer=first.producer if is_one else None,
        consumer=first.consumer if is_one else None,
        oldest=_best(max, [stats.oldest for stats in there]),
        age=_best(max, [stats.age for stats in there]),
        idle=_best(min, [stats.idle for stats in there]),
        has_schedules=any(stats.has_schedules for stats in there),
        closed=bool(there) and all(stats.closed for stats in there),
        unreachable=tuple(unreachable),
        **sums,
    )


def stats_of_nodes(
    found: Mapping[str, Sequence[QueueStats]], unreachable: Iterable[str] = ()
) -> QueueStats:
    """Return the figures of a queue on several nodes, those of each, and where settings differ.

    Args:
        found: address of each node -> the figures of its parts there.
        unreachable: addresses of nodes that did not answer.
    """
    nodes = {address: merged_stats(parts) for address, parts in found.items()}
    every = [stats for parts in found.values() for stats in parts]
    whole, latest = merged_stats(every, unreachable), max(every, key=_age_of_settings)
    wanted = (latest.settings, latest.closed)
    differing = [
        address
        for address, parts in found.items()
        if any((stats.settings, stats.closed) != wanted for stats in parts)
    ]
    return replace(whole, nodes=nodes, differing=tuple(differing))


def _age_of_settings(stats: QueueStats) -> float:
    return stats.configured or 0


STORED = ("configured", "paused", "closed", *SETTING_KINDS)
"""Fields of `meta` that are the same on every node; the first is the time of the others."""


def to_store(found: Mapping[T, Sequence[bytes | None]]) -> dict[T, list[Any]]:
    """Return for each node the settings to store there, so that all have the latest ones.

    Args:
        found: node -> its values of `STORED`.
    """

    def age(values: Sequence[bytes | None]) -> int:
        return number_in((values[0] or b"").decode("utf-8", "replace")) or 0

    latest = max(found.values(), key=lambda values: (age(values), [one or b"" for one in values]))
    fields = [(name, value or b"") for name, value in zip(STORED, latest, strict=True)][1:]
    result: dict[T, list[Any]] = {}
    for node, values in found.items():
        if age(latest) and list(values[1:]) != list(latest[1:]):
            since = max(age(latest), age(values) + 1)  # two of one ms: one has to be newer
            result[node] = ["configured", since, *(text for pair in fields for text in pair)]
    return result


def _best(choose: Callable[..., float], values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return choose(present) if present else None


def merged_peek(
    found: Iterable[Sequence[JobView]], state: str, start: int, n: int, *, newest: bool
) -> list[JobView]:
    """Merge the answers of the parts to `peek`.

    The order within a part stays; parts are merged by the time, or key, that orders the state.

    Args:
        found: the first jobs of each part; with `newest` or a negative `start` the last ones,
            backwards.
        state, start, n, newest: as of `peek`.
    """
    key = PLACES[state]
    if not newest and start >= 0:
        return list(heapq.merge(*found, key=key))[start : start + n]
    views = list(heapq.merge(*([*reversed(part)] for part in found), key=key))
    if newest:
        return views[::-1][start : start + n]
    return views[start:][:n] if len(views) >= -start else []


PLACES: Mapping[str, Callable[[JobView], float]] = {
    "ready": lambda view: (
        (view.created if view.due is None else view.due) - view.priority * PRIORITY_SPAN / 1000
    ),
    "scheduled": lambda view: math.inf if view.due is None else view.due,
    "active": lambda view: view.lease_until or math.inf,
    "parked": lambda view: int(view.key_hash or "0", 16),
    "dead": lambda view: view.died or 0.0,
}
"""Key by which jobs of a state are sorted across nodes."""


def split_cursor(cursor: object) -> tuple[str, str]:
    """Return the part with which a scan goes on, and the cursor in it; two empty texts for "0".

    Raises:
        BadArgument: neither "0" nor the cursor of a page.
    """
    found = re.fullmatch(CURSOR, cursor) if isinstance(cursor, str) else None
    if found is None and cursor != "0":
        raise BadArgument("cursor", cursor, 'must be the cursor of a page, or "0" to begin')
    return (found.group(1), found.group(2)) if found else ("", "0")


CURSOR = r"([0-9a-f]{8}(?:-[0-9a-f]{8})?):(.+)"
"""Node, optional checksum of the part's name, and the cursor of that part."""
