"""How long jobs took, as counters that only grow, from histories that forget old periods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from penstock.core.jobs.history import TIME_BOUNDS_SECONDS, JobTimes, QueueHistory, TimesPoint

__all__ = ["TimedHandler", "TimesCounter", "TimesOfHandler", "buckets_of"]

OTHER_HANDLERS = "(others)"
"""The label of the handlers of a queue that has more of them than its history tells apart."""
MOST_TIMED_HANDLERS = 200
"""Most handlers, of all queues together, whose times are counted: 28 series each."""
WINDOW_SECONDS = 3600.0
"""Age of the oldest period that may still grow. Periods of the last two hours are not merged."""
TimedHandler: TypeAlias = tuple[str, str]


class TimesOfHandler(NamedTuple):
    """The waiting and running times of a handler's jobs since the first look."""

    waiting: JobTimes
    running: JobTimes


@dataclass
class TimesCounter:
    """Counts by bucket of the queues that were looked at, from the first look on.

    So a rate is right also when a period is forgotten, and when the process starts again.

    Attributes:
        by_handler: by queue and handler.
        omitted: handlers that are not counted, as there are too many.
        due: when to look again, by the clock of the reader; 0 = there was no look yet.
    """

    by_handler: dict[TimedHandler, TimesOfHandler] = field(default_factory=dict)
    omitted: set[TimedHandler] = field(default_factory=set)
    due: float = 0.0
    _seen: dict[TimedHandler, dict[float, TimesPoint]] = field(default_factory=dict)

    def note(self, queue: str, history: QueueHistory, *, is_first: bool) -> None:
        """Add what has grown in the history of a queue since the last look.

        Args:
            queue: its name.
            history: of the queue.
            is_first: the first look at all queues: what is there was not seen to happen.
        """
        for handler in history.handlers:
            timed = queue, OTHER_HANDLERS if handler.name is None else handler.name
            if timed not in self.by_handler and len(self.by_handler) >= MOST_TIMED_HANDLERS:
                self.omitted.add(timed)
                continue
            points = handler.since(history.now - WINDOW_SECONDS).points
            before = self._seen.get(timed, {})
            waiting, running = self.by_handler.get(timed, TimesOfHandler(JobTimes(), JobTimes()))
            for point in () if is_first else points:
                known = before.get(point.at, TimesPoint(point.at, JobTimes(), JobTimes()))
                waiting += _growth(known.waiting, point.waiting)
                running += _growth(known.running, point.running)
            self.by_handler[timed] = TimesOfHandler(waiting, running)
            self._seen[timed] = {point.at: point for point in points}


def _growth(before: JobTimes, now: JobTimes) -> JobTimes:
    """Return what was added; if something is gone, the history has begun again."""
    grown = tuple(b - a for a, b in zip(before.counts, now.counts, strict=True))
    return now if min(grown) < 0 else JobTimes(grown)


def buckets_of(times: JobTimes) -> Iterator[tuple[str, int]]:
    """Yield the bounds of the buckets as labels, and how many jobs took at most so long."""
    total = 0
    labels = [*map(str, map(float, TIME_BOUNDS_SECONDS)), "+Inf"]
    for label, count in zip(labels, times.counts, strict=True):
        total += count
        yield label, total
