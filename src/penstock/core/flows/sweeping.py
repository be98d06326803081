"""The schedule of sweeps of a waiting client: its own queues, and a few of the registry's."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["IDLE_MS", "SweepSchedule"]

IDLE_MS = 600_000
"""ms without a write after which an empty queue without settings is removed: the notes of its
producers go with it, and none is needed any longer."""
SHORTEST_SWEEP_PAUSE, LONGEST_SWEEP_PAUSE = 30.0, 90.0
"""Seconds between two sweeps of one queue, drawn anew each time: clients spread by themselves."""
LISTED_PER_SWEEP, LISTED_PER_BUSY_SWEEP = 2, 16
"""Number of listed queues swept at a time; the second one after a sweep that removed one."""
BUSY_SWEEP_PAUSE = 4.0
"""Seconds until the next time, after one that removed a queue."""
QUEUES_PER_SWEEP = 8
"""A client that makes queues sweeps listed ones whenever it has made so many."""
MAX_SWEEP_TURNS = 10_000
"""Most queues whose turns are kept."""


class SweepSchedule:
    """The schedule of a client's sweeps.

    Args:
        draw: gives the seconds until the next sweep of a queue.
    """

    def __init__(self, draw: Callable[[], float] | None = None) -> None:
        self._draw = draw or (lambda: random.uniform(SHORTEST_SWEEP_PAUSE, LONGEST_SWEEP_PAUSE))
        self._at: dict[str, float] = {}
        self._listed_at: float | None = None
        self._count = LISTED_PER_SWEEP
        self._made = 0

    def is_due(self, name: str, now: float) -> bool:
        """Return True to sweep a queue that the client waits for; then its next turn is drawn."""
        at = self._at.get(name)
        if at is not None and now < at:
            return False
        if at is None and len(self._at) >= MAX_SWEEP_TURNS:
            self._at.clear()
        self._at[name] = now + self._draw()
        return at is not None

    def again(self, name: str, now: float) -> None:
        """Sweep a queue again soon: it had more to remove than one sweep may."""
        self._at[name] = now + BUSY_SWEEP_PAUSE

    def listed(self, now: float) -> int:
        """Return the number of listed queues to sweep now; 0 = not yet."""
        at, self._listed_at = self._listed_at, self._listed_at or now + self._draw()
        if at is None or now < at:
            return 0
        self._listed_at = now + self._draw()
        return self._count

    def found(self, removed: int, now: float) -> None:
        """Note the number of removed queues: if there are any, more are swept soon."""
        self._count = LISTED_PER_BUSY_SWEEP if removed else LISTED_PER_SWEEP
        if removed:
            self._listed_at = now + BUSY_SWEEP_PAUSE

    def made(self) -> int:
        """Note that a queue was made; return the number of listed queues to sweep for that."""
        self._made = (self._made + 1) % QUEUES_PER_SWEEP
        return 0 if self._made else 2 * QUEUES_PER_SWEEP
