"""How many jobs a worker holds beyond those that its handlers can begin, so that no handler waits.

Short jobs cost more trips to the server than work: holding some of them ahead saves the trips. A
long job must not keep others from an idle worker. So the number follows the time that the last jobs
took, and what has not begun soon after it came is given back.
"""

from __future__ import annotations

import math
from collections import deque

from penstock.core.jobs.queue_stats import Settings

__all__ = ["HOLDING_SECONDS", "SHORTEST_LEASE_AHEAD", "Prefetch", "allows_prefetch"]

MOST_HELD = 300
"""Most jobs that are held, together with those that run."""
SHORT_TRAIN_SECONDS = 0.010
"""If as many jobs as are held ahead took less than this, twice as many are held."""
LONG_TRAIN_SECONDS = 0.020
"""If they took more than this, half as many are held."""
HOLDING_SECONDS = 0.030
"""A job that was not begun so long after it came is given back, with all others like it."""
SHORTEST_LEASE_AHEAD = 1.0
"""Seconds: jobs with shorter leases are not held ahead."""


def allows_prefetch(settings: Settings | None) -> bool:
    """Return whether jobs of a queue with these settings may be held ahead.

    A limit would count a job that is only held as one that runs, and an order would stop behind it.
    A lease may be too short.
    """
    return settings is not None and not (
        settings.rate
        or settings.ordered
        or settings.per_key
        or settings.share
        or settings.key_rate
        or settings.max_active
        or settings.paused
        or (settings.lease is not None and settings.lease < SHORTEST_LEASE_AHEAD)
    )


class Prefetch:
    """The number of jobs that a worker holds ahead. Points in time are by its monotonic clock.

    Args:
        concurrency: how many handlers run at once.

    Attributes:
        extra: most jobs to hold that no handler has begun.
        is_allowed: whether the settings of the queues allow it.
    """

    def __init__(self, concurrency: int) -> None:
        self.extra = 0
        self.is_allowed = False
        self._concurrency = concurrency
        self._most = max(0, MOST_HELD - concurrency)
        self._since = -math.inf
        self._ended = 0
        self._came = 0
        self._arrivals = deque[tuple[float, int]]()

    def note_came(self, count: int, now: float, *, held: int) -> None:
        """Note that so many jobs came, if some of the `held` ones may have to wait for a handler.

        They may although `extra` is 0 by now: they were asked for before.
        """
        if held > self._concurrency or self._arrivals:
            self._came += count
            self._arrivals.append((now, self._came))

    def forget_came(self) -> None:
        """Forget the jobs that came: those that wait all the same can't be given back."""
        self._arrivals.clear()

    def due_at(self, waiting: int) -> float:
        """Return when jobs have waited for too long, if so many wait now; inf = they may wait."""
        if not self._arrivals:
            return math.inf
        while self._arrivals and self._arrivals[0][1] <= self._came - waiting:
            self._arrivals.popleft()
        return self._arrivals[0][0] + HOLDING_SECONDS if self._arrivals else math.inf

    def note_ended(self, count: int, seconds: float, now: float) -> bool:
        """Learn from jobs that have just ended; return whether `extra` has changed.

        Args:
            count: the number of jobs of one run, or of runs one after the other.
            seconds: the time that they took.
            now: the present.
        """
        if now - seconds < self._since or not self.is_allowed:
            return False  # it began before the last change
        self._ended += count
        if self._ended < max(1, self.extra):
            return False
        before, took = self.extra, now - self._since
        if took < SHORT_TRAIN_SECONDS:
            self.extra = min(max(1, 2 * before), self._most)
        elif took > LONG_TRAIN_SECONDS:
            self.extra = before // 2
        self._since, self._ended = now, 0
        return self.extra != before

    def reset(self, now: float, since: float) -> None:
        """Hold nothing ahead, until jobs that begin after `since` were short again."""
        self.extra, self._ended = 0, 0
        self._since = max(now, since, self._since)
