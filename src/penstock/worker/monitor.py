"""The event that a monitor gets after each round of a worker, and a monitor of queue sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from penstock.core.jobs.logs import RateLimit, get_logger
from penstock.core.values.checks import Duration, check_count, duration_ms

__all__ = ["LoopEvent", "Monitor", "size_monitor"]

logger = get_logger("penstock")


@dataclass(frozen=True, slots=True)
class LoopEvent:
    """One round of a worker, in which it asked its queues for jobs.

    Attributes:
        sizes: the number of jobs that could be reserved at the last look, by queue.
        idle_rounds: the number of rounds in a row that brought no job, with this one.
        jobs: the number of jobs that this round brought.
    """

    sizes: Mapping[str, int]
    idle_rounds: int
    jobs: int


Monitor: TypeAlias = Callable[[LoopEvent], None]


def size_monitor(limit: int = 1000, every: Duration = timedelta(hours=6)) -> Monitor:
    """Return a monitor that logs a warning ("penstock") about queues that grow long.

    Several workers of a process may share it; they then share its warnings.

    Args:
        limit: most jobs that may wait in a queue without a warning.
        every: fewest seconds between two warnings about one queue.

    Raises:
        BadArgument: an argument can't be used.
    """
    check_count("limit", limit, low=0)
    pause = duration_ms("every", every) / 1000
    warnings = RateLimit(pause, time.monotonic)

    def monitor(event: LoopEvent) -> None:
        for queue, size in event.sizes.items():
            if size > limit and warnings.allows(queue):
                logger.warning(
                    "queue %r holds %d jobs, more than %d",
                    queue,
                    size,
                    limit,
                    extra={"queue": queue, "size": size, "limit": limit},
                )

    return monitor
