"""Statistics of a worker: kept in memory, bounded, cheap to record.

Recording appends a number. Everything else is computed when it is read.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from typing import Any

__all__ = ["MOST_SAMPLES", "Statistics", "Summary", "WorkerStats", "summary"]

MOST_SAMPLES = 1000
"""Most samples of a summary: the last ones."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of the last samples of one measure, up to 1,000. All zeros = no samples.

    Attributes:
        count: the number of samples.
        last: the youngest sample.
        min, mean, max: smallest, mean and largest sample.
        mad: mean absolute deviation from the mean (not the median), as in Carmine.
        variance: mean squared deviation from the mean: that of a population.
        p50, p90, p99: percentiles, by the inclusive method of `statistics.quantiles`.
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
        counts: jobs by outcome since the worker began: done, retried, dead (all attempts of the job
            or the queue used up), snoozed, suspended (by a sleep of its steps), unknown (given
            back, as there is no handler), cancelled, rejected (given up by the handler or its
            policy), settled (by the handler itself), failed (at most once), unconfirmed (at most
            once, not run: `at_most_once`), handed back (at a stop, or suspects beside other jobs),
            lost (with the lease).
        queue_size: jobs that could be reserved, in all queues of the worker together.
        queue_sizes: jobs that could be reserved, by queue.
        queueing: seconds from enqueue to delivery, of first attempts; jobs that are reported
            together count once.
        handling: seconds that handlers took; a chunk counts once.
        backoffs: failed attempts whose handler asked for a delay: `Retry(after=...)`.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    queue_size: Summary = NO_SAMPLES
    queue_sizes: Mapping[str, Summary] = field(default_factory=dict)
    queueing: Summary = NO_SAMPLES
    handling: Summary = NO_SAMPLES
    backoffs: int = 0

    @property
    def jobs(self) -> int:
        """Number of jobs with any outcome since the worker began."""
        return sum(self.counts.values())

    def as_dict(self) -> dict[str, Any]:
        """Return dicts, texts and numbers for JSON."""
        return asdict(self)


class Statistics:
    """Collects the figures of a worker. Any thread may call it."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may read the figures while its own thread adds to them.
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._backoffs = 0
        self._handling: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._queueing: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._total: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._sizes: dict[str, deque[float]] = {}

    def add_outcome(
        self,
        outcome: str,
        count: int,
        handling: float | None = None,
        queueing: float | None = None,
        *,
        is_asked: bool = False,
        spans: Sequence[float] = (),
    ) -> None:
        """Add the outcome of jobs.

        Args:
            outcome: their outcome.
            count: the number of jobs; a chunk is one call.
            handling: seconds that the handler took; None = it did not run, or is counted elsewhere.
            queueing: seconds from enqueue to delivery; None = not a first attempt.
            is_asked: whether the handler has asked for the delay of the next attempt.
            spans: seconds that the handler took for each of jobs that are reported together.
        """
        with self._lock:
            self._counts[outcome] = self._counts.get(outcome, 0) + count
            if handling is not None:
                self._handling.append(handling)
            self._handling.extend(spans)
            if queueing is not None:
                self._queueing.append(queueing)
            if is_asked:
                self._backoffs += count

    def add_size(self, queue: str, size: int) -> None:
        """Add the number of jobs of a queue that could be reserved."""
        with self._lock:
            self._sizes.setdefault(queue, deque(maxlen=MOST_SAMPLES)).append(size)
            self._total.append(sum(each[-1] for each in self._sizes.values()))

    def snapshot(self) -> WorkerStats:
        """Return the figures now."""
        with self._lock:  # copies only: other threads must not wait for the arithmetic
            counts, backoffs = dict(self._counts), self._backoffs
            total, queueing, handling = map(list, (self._total, self._queueing, self._handling))
            sizes = {queue: list(samples) for queue, samples in self._sizes.items()}
        return WorkerStats(
            counts=counts,
            queue_size=summary(total),
            queue_sizes={queue: summary(samples) for queue, samples in sizes.items()},
            queueing=summary(queueing),
            handling=summary(handling),
            backoffs=backoffs,
        )


def summary(samples: Sequence[float]) -> Summary:
    """Return the summary of samples, the youngest last."""
    if not samples:
        return NO_SAMPLES
    mean = math.fsum(samples) / len(samples)
    several = [*samples, *samples] if len(samples) == 1 else samples
    centiles = quantiles(several, n=100, method="inclusive")
    return Summary(
        count=len(samples),
        last=samples[-1],
        min=min(samples),
        mean=mean,
        max=max(samples),
        mad=math.fsum(abs(sample - mean) for sample in samples) / len(samples),
        variance=math.fsum((sample - mean) ** 2 for sample in samples) / len(samples),
        p50=centiles[49],
        p90=centiles[89],
        p99=centiles[98],
    )
