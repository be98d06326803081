"""What a worker has done, in figures: kept in memory, bounded, cheap to add to.

To record is to append a number; everything else is computed when it is read.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["WINDOW", "Statistics", "Summary", "WorkerStats", "summary"]

WINDOW = 1000
"""How many samples a summary is computed from: the last ones."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The last samples of one measure, up to 1,000; all zeros when there is none.

    Attributes:
        count: how many samples these are.
        last: the youngest of them.
        min, mean, max: of them.
        mad: their mean absolute deviation from the mean (not the median one), as in Carmine.
        variance: their mean squared deviation from the mean: that of a population.
        p50, p90, p99: percentiles, between two samples by their distance (what
            `statistics.quantiles` calls inclusive).
    """

    count: int = 0
    last: float = 0.0
    min: float = 0.0
    mean: float = 0.0
    max: float = 0.0
    mad: float = 0.0
    variance: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


NO_SAMPLES = Summary()


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The figures of a worker at one moment.

    Attributes:
        counts: jobs by outcome, since the worker began: done, retried, dead (retried too often, by
            the limit of the job or the queue), snoozed, rejected (given up by the handler, its
            policy, or as there is none), settled (by the handler itself), failed (at most once),
            handed back (at a stop, or suspects beside other jobs), lost (with the lease).
        queue_size: jobs that could be reserved, in all the worker's queues together.
        queue_sizes: the same, queue by queue.
        queueing: seconds from enqueue to delivery, of first attempts.
        handling: seconds a handler took; a batch counts once.
        backoffs: failed attempts whose handler said when the next one is due: `Retry(after=...)`.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    queue_size: Summary = NO_SAMPLES
    queue_sizes: Mapping[str, Summary] = field(default_factory=dict)
    queueing: Summary = NO_SAMPLES
    handling: Summary = NO_SAMPLES
    backoffs: int = 0

    @property
    def jobs(self) -> int:
        """How many jobs have come to an end since the worker began, whatever it was."""
        return sum(self.counts.values())

    def as_dict(self) -> dict[str, Any]:
        """Dicts, texts and numbers, as JSON takes them."""
        return asdict(self)


class Statistics:
    """Collects the figures of a worker; its threads may all call at once."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may ask for the figures while its own thread adds to them.
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._backoffs = 0
        self._handling: deque[float] = deque(maxlen=WINDOW)
        self._queueing: deque[float] = deque(maxlen=WINDOW)
        self._total: deque[float] = deque(maxlen=WINDOW)
        self._sizes: dict[str, deque[float]] = {}

    def finished(
        self, outcome: str, count: int, handling: float | None, queueing: float | None
    ) -> None:
        """Jobs have come to an end here.

        Args:
            outcome: what became of them.
            count: how many; those of one batch are one call.
            handling: seconds their handler took; None = it was not run, or is counted elsewhere.
            queueing: seconds from enqueue to delivery; None = not a first attempt.
        """
        with self._lock:
            self._counts[outcome] = self._counts.get(outcome, 0) + count
            if handling is not None:
                self._handling.append(handling)
            if queueing is not None:
                self._queueing.append(queueing)

    def backed_off(self, count: int) -> None:
        """Handlers have asked for the delay of the next attempts at so many jobs."""
        with self._lock:
            self._backoffs += count

    def sized(self, queue: str, size: int) -> None:
        """A queue was seen to hold so many jobs that could be reserved.

        Args:
            queue: its name; a worker has a few, and each has a window of its own.
            size: how many.
        """
        with self._lock:
            samples = self._sizes.get(queue)
            if samples is None:
                samples = self._sizes[queue] = deque(maxlen=WINDOW)
            samples.append(size)
            self._total.append(sum(each[-1] for each in self._sizes.values()))

    def snapshot(self) -> WorkerStats:
        """The figures now."""
        with self._lock:  # copies only: who records does not wait for the arithmetic
            counts, backoffs = dict(self._counts), self._backoffs
            total, queueing, handling = map(list, (self._total, self._queueing, self._handling))
            sizes = {queue: list(samples) for queue, samples in self._sizes.items()}
        return WorkerStats(
            counts,
            summary(total),
            {queue: summary(samples) for queue, samples in sizes.items()},
            summary(queueing),
            summary(handling),
            backoffs,
        )


def summary(samples: Sequence[float]) -> Summary:
    """The figures of some samples, the youngest last."""
    if not samples:
        return NO_SAMPLES
    count, ranked = len(samples), sorted(samples)
    mean = math.fsum(samples) / count
    return Summary(
        count=count,
        last=samples[-1],
        min=ranked[0],
        mean=mean,
        max=ranked[-1],
        mad=math.fsum(abs(sample - mean) for sample in samples) / count,
        variance=math.fsum((sample - mean) ** 2 for sample in samples) / count,
        p50=percentile(ranked, 50),
        p90=percentile(ranked, 90),
        p99=percentile(ranked, 99),
    )


def percentile(ranked: Sequence[float], percent: int) -> float:
    """The value below which `percent` of the ranked samples lie, at least one of them.

    Between two samples it is nearer to the one whose rank is nearer.
    """
    place, rest = divmod((len(ranked) - 1) * percent, 100)
    if not rest:
        return ranked[place]
    return (ranked[place] * (100 - rest) + ranked[place + 1] * rest) / 100
