"""Figures of all queues: read at most every two seconds, and only while pages are requested."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from glob import escape
from itertools import pairwise
from typing import NamedTuple

from penstock.client._async.client import AsyncPenstock
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.nodes.problems import Problem
from penstock.errors import NotPermitted

__all__ = ["Point", "Rates", "Sample", "Sampler", "Series"]

SAMPLE_INTERVAL = 2.0
"""Seconds between two samples, at least."""
SAMPLE_INTERVAL_PER_QUEUE = 0.01
"""Seconds between two samples for each queue: reading one takes the server about 70 µs."""
POINTS_PER_QUEUE = 90
"""Length of the memory of each queue."""
LONGEST_MEMORY_SECONDS = 300.0
"""Age of the oldest figure that is remembered: a line over an idle hour shows nothing."""
RATE_SECONDS = 10.0
"""Seconds over which a rate is taken."""
MAX_SAMPLED_QUEUES = 2_000
"""The most queues that are read."""
QUEUES_PER_STEP = 200
"""Queues that one step of a sample looks at."""
KEPT_SEARCHES = 8
"""Searches by name whose figures are remembered."""


class Point(NamedTuple):
    """Figures of a queue, or of all, at one time.

    Attributes:
        at: time of the clock.
        ready: jobs that can be reserved.
        enqueued, done, failed: totals.
    """

    at: float
    ready: int
    enqueued: int
    done: int
    failed: int


class Rates(NamedTuple):
    """Jobs per second: added, finished, failed (nacks and crashes); None = not known yet."""

    enqueued: float | None
    done: float | None
    failed: float | None


NO_RATES = Rates(None, None, None)


@dataclass
class Series:
    """The last figures of a queue.

    Attributes:
        epoch: of the queue; another one begins a new series.
        points: the figures, the oldest first.
    """

    epoch: str | None
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_PER_QUEUE))

    def rates(self) -> Rates:
        """Return the rates over the last ten seconds, or since the point before the last one."""
        if len(self.points) < 2:
            return NO_RATES
        *earlier, last = self.points
        recent = (point for point in earlier if last.at - point.at <= RATE_SECONDS)
        return _between(next(recent, earlier[-1]), last)

    def done(self) -> list[tuple[float, float]]:
        """Return the jobs finished per second between each two figures, and the time of each."""
        points = list(self.points)
        return [
            (last.at, max(0, last.done - first.done) / _span(first, last))
            for first, last in pairwise(points)
        ]

    def seconds(self) -> float:
        """Return the time that the series covers."""
        return self.points[-1].at - self.points[0].at if self.points else 0.0


def _span(first: Point, last: Point) -> float:
    return max(last.at - first.at, 0.001)


def _between(first: Point, last: Point) -> Rates:
    span = _span(first, last)
    return Rates(
        max(0, last.enqueued - first.enqueued) / span,
        max(0, last.done - first.done) / span,
        max(0, last.failed - first.failed) / span,
    )


def _point(at: float, found: Iterable[QueueStats]) -> Point:
    ready = enqueued = done = failed = 0
    for one in found:
        ready += one.ready
        enqueued += one.enqueued
        done += one.acked
        failed += one.nacked + one.crashed
    return Point(at, ready, enqueued, done, failed)


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of all queues at one moment.

    Attributes:
        queues: by name.
        unreachable: addresses of nodes that did not answer.
        is_whole: False if there are more queues than are read.
        problems: what is wrong with them, their workers and the nodes; None = the client may not
            read all that it takes to know.
    """

    queues: dict[str, QueueStats]
    unreachable: tuple[str, ...]
    is_whole: bool
    problems: Sequence[Problem] | None


class Sampler:
    """Reads the figures of all queues when a page needs them, and remembers the last ones.

    Args:
        client: reads the figures.
        clock: seconds.
        pattern: only queues whose names match.

    Attributes:
        series: by name of the queue; "" = all queues together.
    """

    def __init__(
        self,
        client: AsyncPenstock,
        clock: Callable[[], float] = time.monotonic,
        pattern: str = "*",
    ) -> None:
        self._client = client
        self._clock = clock
        self._pattern = pattern
        self._lock = asyncio.Lock()
        self._last: Sample | None = None
        self._due = self._read_at = 0.0
        self._is_stale = False
        self._searches: dict[str, Sampler] = {}
        self.series: dict[str, Series] = {}

    async def sample(self) -> Sample:
        """Return figures that are at most two seconds old, or older if there are many queues."""
        async with self._lock:
            if self._last is None or self._is_stale or self._clock() >= self._due:
                self._is_stale, self._due = False, 0.0
                began = self._clock()
                self._last = await self._read()
                self._read_at = began
                self._due = self._clock() + max(
                    SAMPLE_INTERVAL, SAMPLE_INTERVAL_PER_QUEUE * len(self._last.queues)
                )
            return self._last

    @property
    def age(self) -> float:
        """Seconds since the last figures were read."""
        return self._clock() - self._read_at

    def forget(self) -> None:
        """Read the figures again at the next request: an action has changed them."""
        self._is_stale = True
        for one in self._searches.values():
            one.forget()

    def find(self, wanted: str) -> Sampler:
        """Return the sampler of the queues with this text in their names.

        That of all queues has them, unless there are more queues than it reads.
        """
        if not wanted or self._last is None or self._last.is_whole:
            return self
        found = self._searches.pop(wanted, None)
        if found is None:
            found = Sampler(self._client, self._clock, _pattern_of(wanted))
        self._searches[wanted] = found
        if len(self._searches) > KEPT_SEARCHES:
            del self._searches[next(iter(self._searches))]
        return found

    async def _read(self) -> Sample:
        queues, missed, cursor = dict[str, QueueStats](), set[str](), "0"
        while True:
            page = await self._client.scan_queues(cursor, QUEUES_PER_STEP, pattern=self._pattern)
            queues.update((one.name, one) for one in page.queues)
            missed.update(page.unreachable, *(one.unreachable for one in page.queues))
            cursor = page.cursor
            if cursor == "0" or len(queues) >= MAX_SAMPLED_QUEUES:
                break
        self._note(queues)
        problems: Sequence[Problem] | None = None
        with suppress(NotPermitted):
            problems = await self._client.find_problems(queues.values())
        return Sample(queues, tuple(sorted(missed)), cursor == "0", problems)

    def _note(self, queues: dict[str, QueueStats]) -> None:
        at = self._clock()
        for old in self.series.values():
            while old.points and old.points[0].at < at - LONGEST_MEMORY_SECONDS:
                old.points.popleft()
        self.series = {
            name: found
            for name, found in self.series.items()
            if not name or (name in queues and queues[name].epoch == found.epoch)
        }
        for name, one in queues.items():
            self.series.setdefault(name, Series(one.epoch)).points.append(_point(at, [one]))
        whole = self.series.setdefault("", Series(None))
        whole.points.append(_point(at, queues.values()))


def _pattern_of(wanted: str) -> str:
    """Return the pattern of names that contain a text, in capitals or not."""
    either = (
        f"[{one.lower()}{one.upper()}]" if one.lower() != one.upper() else escape(one)
        for one in wanted
    )
    return f"*{''.join(either)}*"
