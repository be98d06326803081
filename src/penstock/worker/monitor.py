"""What a worker tells its monitor after each loop, and a monitor that warns of long queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from penstock.core.logs import get_logger
from penstock.core.options import Duration, check_count, duration_ms

__all__ = ["LoopEvent", "Monitor", "size_monitor"]

logger = get_logger("penstock")


@dataclass(frozen=True, slots=True)
class LoopEvent:
    """One loop of a worker: it asked its queues for jobs.

    Attributes:
        sizes: by queue, the jobs that could be reserved; queues that were seen in this loop.
        idle_rounds: how many loops in a row have brought no job, this one included.
        reply: how many jobs this one brought.
    """

    sizes: Mapping[str, int]
    idle_rounds: int
    reply: int


Monitor: TypeAlias = Callable[[LoopEvent], None]


def size_monitor(limit: int = 1000, every: Duration = timedelta(hours=6)) -> Monitor:
    """A monitor that warns, through the logger "penstock", of queues that grow long.

    It may be shared by several workers of a process, which are one to it.

    Args:
        limit: how many jobs may wait in a queue without a warning.
        every: seconds for which a queue that was warned of is not warned of again, however its size
            goes up and down.

    Raises:
        BadArgument: an argument can't be used.
    """
    check_count("limit", limit, low=0)
    pause = duration_ms("every", every) / 1000
    warned: dict[str, float] = {}
    lock = threading.Lock()

    def is_due(queue: str) -> bool:
        now = time.monotonic()
        with lock:
            last = warned.get(queue)
            if last is not None and now - last < pause:
                return False
            warned[queue] = now
            return True

    def monitor(event: LoopEvent) -> None:
        for queue, size in event.sizes.items():
            if size > limit and is_due(queue):
                logger.warning(
                    "queue %r holds %d jobs, more than %d",
                    queue,
                    size,
                    limit,
                    extra={"queue": queue, "size": size, "limit": limit},
                )

    return monitor
