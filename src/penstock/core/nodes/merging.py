"""Answers of several nodes or partitions, made one."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from penstock.core.jobs.queue_stats import (
    SETTING_KINDS,
    SIDE_COUNTS,
    STATE_COUNTS,
    TOTALS,
    QueueStats,
    number_in,
)
from penstock.core.jobs.views import JobView
from penstock.errors import BadArgument
from penstock.wire.keys import PRIORITY_SPAN

__all__ = [
    "NODE_CURSOR",
    "STORED_SETTINGS",
    "SUMMED_STATS",
    "Partial",
    "merged_peek",
    "merged_stats",
    "split_cursor",
    "stats_of_nodes",
    "to_store",
]

T = TypeVar("T")
PEEK_ORDER: Mapping[str, Callable[[JobView], float]] = {
    "ready": lambda view: (
        (view.created if view.due is None else view.due) - view.priority * PRIORITY_SPAN / 1000
    ),
    "scheduled": lambda view: math.inf if view.due is None else view.due,
    "active": lambda view: view.lease_until or math.inf,
    "parked": lambda view: int(view.key_hash or "0", 16),
    "dead": lambda view: view.died or 0.0,
}
"""Key by which jobs of a state are sorted across nodes."""


class Partial(list[T]):
    """Items from all nodes that answered.

    Attributes:
        unreachable: addresses of those that did not; their items are missing.
    """

    def __init__(self, items: Iterable[T] = (), unreachable: Iterable[str] = ()) -> None:
        super().__init__(items)
        self.unreachable = tuple(unreachable)


SUMMED_STATS = (*STATE_COUNTS, *SIDE_COUNTS, *TOTALS, "kept", "held_keys")


def merged_stats(parts: Sequence[QueueStats], unreachable: Iterable[str] = ()) -> QueueStats:
    """Return the figures of a queue with parts, and the settings that were stored last.

    Args:
        parts: at least one, in the order of preference.
        unreachable: addresses of nodes that did not answer.
    """
    there = [stats for stats in parts if stats.exists]
    first, is_one = max(there or parts, key=_age_of_settings), len(parts) == 1
    sums = {name: sum(getattr(stats, name) for stats in parts) for name in SUMMED_STATS}
    return replace(
        first,
        epoch=first.epoch if is_one else None,
        producer=first.producer if is_one else None,
        consumer=first.consumer if is_one else None,
        oldest=_best(max, [stats.oldest for stats in there]),
        age=_best(max, [stats.age for stats in there]),
        idle=_best(min, [stats.idle for stats in there]),
        last_death=_best(min, [stats.last_death for stats in there]),
        held=_best(max, [stats.held for stats in there]),
        slots=_total([stats.slots for stats in there]),
        has_schedules=any(stats.has_schedules for stats in there),
        closed=bool(there) and all(stats.closed for stats in there),
        unreachable=tuple(unreachable),
        **sums,
    )


def _total(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def stats_of_nodes(
    parts_of: Mapping[str, Sequence[QueueStats]], unreachable: Iterable[str] = ()
) -> QueueStats:
    """Return the figures of a queue on several nodes, those of each, and where settings differ.

    Args:
        parts_of: address of each node -> the figures of its parts there.
        unreachable: addresses of nodes that did not answer.
    """
    nodes = {address: merged_stats(parts) for address, parts in parts_of.items()}
    every = [stats for parts in parts_of.values() for stats in parts]
    whole, latest = merged_stats(every, unreachable), max(every, key=_age_of_settings)
    wanted = (latest.settings, latest.closed)
    differing = [
        address
        for address, parts in parts_of.items()
        if any((stats.settings, stats.closed) != wanted for stats in parts)
    ]
    return replace(whole, nodes=nodes, differing=tuple(differing))


def _age_of_settings(stats: QueueStats) -> float:
    return stats.configured or 0


STORED_SETTINGS = ("configured", "paused", "closed", *SETTING_KINDS)
"""Fields of `meta` that are the same on every node; the first is the time of the others."""


def to_store(values_of: Mapping[T, Sequence[bytes | None]]) -> dict[T, list[Any]]:
    """Return for each node the settings to store there, so that all have the latest ones.

    Args:
        values_of: node -> its values of `STORED_SETTINGS`.
    """

    def age(values: Sequence[bytes | None]) -> int:
        return number_in((values[0] or b"").decode("utf-8", "replace")) or 0

    latest = max(
        values_of.values(), key=lambda values: (age(values), [one or b"" for one in values])
    )
    fields = [(name, value or b"") for name, value in zip(STORED_SETTINGS, latest, strict=True)][1:]
    result: dict[T, list[Any]] = {}
    for node, values in values_of.items():
        if age(latest) and list(values[1:]) != list(latest[1:]):
            since = max(age(latest), age(values) + 1)  # two of one ms: one has to be newer
            result[node] = ["configured", since, *(text for pair in fields for text in pair)]
    return result


def _best(choose: Callable[..., float], values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return choose(present) if present else None


def merged_peek(
    pages: Iterable[Sequence[JobView]], state: str, start: int, n: int, *, newest: bool
) -> list[JobView]:
    """Merge the answers of the parts to `peek`.

    The order within a part stays; parts are merged by the time, or key, that orders the state.

    Args:
        pages: the first jobs of each part; with `newest` or a negative `start` the last ones,
            backwards.
        state, start, n, newest: as of `peek`.
    """
    key = PEEK_ORDER[state]
    if not newest and start >= 0:
        return list(heapq.merge(*pages, key=key))[start : start + n]
    views = list(heapq.merge(*([*reversed(part)] for part in pages), key=key))
    if newest:
        return views[::-1][start : start + n]
    return views[start:][:n] if len(views) >= -start else []


NODE_CURSOR = r"([0-9a-f]{8}(?:-[0-9a-f]{8})?):(.+)"
"""Node, optional checksum of the part's name, and the cursor of that part."""


def split_cursor(cursor: object) -> tuple[str, str]:
    """Return the part with which a scan goes on, and the cursor in it; two empty texts for "0".

    Raises:
        BadArgument: neither "0" nor the cursor of a page.
    """
    match = re.fullmatch(NODE_CURSOR, cursor) if isinstance(cursor, str) else None
    if match is None and cursor != "0":
        raise BadArgument("cursor", cursor, 'must be the cursor of a page, or "0" to begin')
    return (match.group(1), match.group(2)) if match else ("", "0")
