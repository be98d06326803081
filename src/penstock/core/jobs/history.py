"""The history of a queue: its figures by minute, and how long jobs of each handler took.

Workers write it (protocol/history.md). A `TimesNote` is what a worker has not written yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

__all__ = [
    "TIME_BOUNDS_SECONDS",
    "HandlerHistory",
    "HistoryPoint",
    "JobTimes",
    "QueueHistory",
    "TimesNote",
    "TimesPoint",
    "base36",
    "read_history",
]

TIME_BOUNDS_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 3600)
"""The upper bounds of the buckets, in seconds. A last one has what took longer."""
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MINUTE_SECONDS, TEN_MINUTES_SECONDS = 60.0, 600.0
"""Seconds of the two kinds of points."""
MOST_MINUTES, MOST_TEN_MINUTES = 120, 288
"""Most points of each kind: two hours, and two days."""
HANDLERS_PER_CALL = 20
"""Most handlers of one call."""
StoredHistory: TypeAlias = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class JobTimes:
    """How many jobs took how long: a histogram.

    Attributes:
        counts: the number of jobs by bucket: up to 1, 5, 10, 50, 100 and 500 ms, 1, 5 and 10 s, 1,
            5 and 30 minutes, an hour, and longer.
    """

    counts: tuple[int, ...] = (0,) * (len(TIME_BOUNDS_SECONDS) + 1)

    @property
    def count(self) -> int:
        """Number of jobs."""
        return sum(self.counts)

    @property
    def p50(self) -> float | None:
        """Seconds that half of the jobs took at most, see `quantile`."""
        return self.quantile(0.5)

    @property
    def p95(self) -> float | None:
        """Seconds that 95 of 100 jobs took at most, see `quantile`."""
        return self.quantile(0.95)

    def quantile(self, share: float) -> float | None:
        """Return the seconds that this share of the jobs took at most; None = there are no jobs.

        It is computed from buckets: within a bucket, times are taken as evenly spread. For more
        than an hour it is an hour.

        Args:
            share: from 0 to 1.
        """
        rank = share * self.count
        for bucket, total in enumerate(accumulate(self.counts)):
            inside = self.counts[bucket]
            if inside and total >= rank:
                if bucket == len(TIME_BOUNDS_SECONDS):
                    break
                low = TIME_BOUNDS_SECONDS[bucket - 1] if bucket else 0.0
                part = (rank - (total - inside)) / inside
                return low + (TIME_BOUNDS_SECONDS[bucket] - low) * part
        return float(TIME_BOUNDS_SECONDS[-1]) if self.count else None

    def __add__(self, other: JobTimes) -> JobTimes:
        """Return the histogram of the jobs of both."""
        return JobTimes(tuple(map(sum, zip(self.counts, other.counts, strict=True))))


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The figures of a queue for one minute, or for ten minutes.

    Attributes:
        at: beginning of the period, in seconds since 1970 by the queue's clock.
        seconds: length of the period: 60 or 600.
        enqueued, done, failed, died: jobs added, jobs finished, failed attempts (reported, or
            leases that ended without a report), and jobs that became dead letters. What happened
            while no worker ran is in the first period of the next one.
        waiting: jobs that could be reserved at its end.
    """

    at: float
    seconds: float
    enqueued: int
    done: int
    failed: int
    died: int
    waiting: int


@dataclass(frozen=True, slots=True)
class TimesPoint:
    """How long jobs of a handler took in a period of ten minutes, or longer if it is long ago.

    Attributes:
        at: beginning of the period, in seconds since 1970.
        waiting: time from enqueue to the first delivery, delays included.
        running: time of the handler; a chunk counts once.
    """

    at: float
    waiting: JobTimes
    running: JobTimes


@dataclass(frozen=True, slots=True)
class HandlerHistory:
    """How long jobs of a handler took.

    Attributes:
        name: of the handler; "" = the default handler; None = other handlers: the queue had more
            than 32 of them.
        points: by period, the oldest first, up to two days back.
    """

    name: str | None
    points: Sequence[TimesPoint] = ()

    @property
    def waiting(self) -> JobTimes:
        """The waiting times of all periods."""
        return sum((one.waiting for one in self.points), JobTimes())

    @property
    def running(self) -> JobTimes:
        """The running times of all periods."""
        return sum((one.running for one in self.points), JobTimes())

    def since(self, at: float) -> HandlerHistory:
        """Return the periods that begin at this time (seconds since 1970) or later."""
        return HandlerHistory(self.name, [one for one in self.points if one.at >= at])


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """The history of a queue. Its workers write it once a minute, while there is something to tell.

    Attributes:
        now: seconds since 1970 by the clock of the queue.
        minutes: the last two hours by minute, the oldest first. A minute in which nothing has
            changed may be missing.
        ten_minutes: the last two days, likewise, without the current ten minutes.
        handlers: by the name of each handler; that of other handlers comes last.
    """

    now: float
    minutes: Sequence[HistoryPoint] = ()
    ten_minutes: Sequence[HistoryPoint] = ()
    handlers: Sequence[HandlerHistory] = field(default_factory=tuple)


def read_history(parts: Iterable[StoredHistory], now: float) -> QueueHistory:
    """Return the history of a queue from the stored fields of its parts.

    Args:
        parts: of each part of the queue.
        now: seconds since 1970 by the clock of the server.
    """
    stored = [{name.decode("utf-8", "replace"): part[name] for name in part} for part in parts]
    names = {name[1:] for part in stored for name in part if name[0] in "nh"}
    minutes = _periods(stored, "m", MINUTE_SECONDS, now)
    now = max(now, minutes[-1].at + MINUTE_SECONDS if minutes else 0)
    points = {name: _points(stored, name, now) for name in names}
    handlers = [
        HandlerHistory(name[1:] if name else None, points[name]) for name in names if points[name]
    ]
    return QueueHistory(
        now=now,
        minutes=minutes,
        ten_minutes=[
            point
            for point in _periods(stored, "d", TEN_MINUTES_SECONDS, now)
            if point.at + TEN_MINUTES_SECONDS <= now  # the current ones are not over
        ],
        handlers=sorted(handlers, key=lambda one: (one.name is None, one.name or "")),
    )


def _rows(text: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the other parts of each row; what is damaged is left out."""
    for row in text.decode("ascii", "replace").split():
        number, *rest = row.split(",")
        try:
            yield int(number, 36), rest
        except ValueError:
            continue


def _periods(
    stored: Sequence[Mapping[str, bytes]], kind: str, seconds: float, now: float
) -> list[HistoryPoint]:
    most = MOST_MINUTES if kind == "m" else MOST_TEN_MINUTES
    figures = dict[int, list[int]]()
    for part in stored:
        for number, rest in _rows(part.get(kind, b"")):
            if now / seconds - most - 1 <= number and len(rest) == 5:
                known = figures.setdefault(number, [0] * 5)
                figures[number] = [a + _number(b) for a, b in zip(known, rest, strict=True)]
    return [HistoryPoint(number * seconds, seconds, *figures[number]) for number in sorted(figures)]


def _number(text: str) -> int:
    return int(text, 36) if text.isascii() and text.isalnum() else 0


def _points(stored: Sequence[Mapping[str, bytes]], name: str, now: float) -> list[TimesPoint]:
    points, oldest = dict[int, TimesPoint](), now / TEN_MINUTES_SECONDS - MOST_TEN_MINUTES - 1
    for part in stored:
        for number, rest in _rows(part.get(f"h{name}", b"") + b" " + part.get(f"n{name}", b"")):
            if oldest <= number and len(rest) == 2:
                at, waiting, running = number * TEN_MINUTES_SECONDS, *map(_read_counts, rest)
                known = points.get(number, TimesPoint(at, JobTimes(), JobTimes()))
                points[number] = TimesPoint(at, known.waiting + waiting, known.running + running)
    return [points[number] for number in sorted(points)]


def _read_counts(text: str) -> JobTimes:
    first, *counts = text.split(".")
    size = len(TIME_BOUNDS_SECONDS) + 1
    read = [0] * _number(first) + [_number(one) for one in counts]
    return JobTimes(tuple((read + [0] * size)[:size]))


def _counts_text(counts: Sequence[int]) -> str:
    """Return counts as the script `measure` takes them."""
    used = [bucket for bucket, count in enumerate(counts) if count]
    if not used:
        return ""
    shown = [base36(count) for count in counts[used[0] : used[-1] + 1]]
    return ".".join([base36(used[0]), *shown])


def base36(number: int) -> str:
    """Return a number in base 36."""
    text = DIGITS[number % 36]
    while number := number // 36:
        text = DIGITS[number % 36] + text
    return text


class TimesNote:
    """The times of jobs of one queue that a worker has run and not written yet.

    Attributes:
        due_at: when to write them, by the worker's clock.
        seen: totals of the queue when they were written last; None = they were not.
        was_idle: whether the last look at the queue found nothing to write.
        runs: of each run the name of the handler, the seconds from enqueue to the first delivery
            (None = not a first attempt), and the seconds of each call of the handler.
    """

    def __init__(self) -> None:
        self.due_at = 0.0
        self.seen: Sequence[int] | None = None
        self.was_idle = False
        self.runs: list[tuple[str | None, float | None, Sequence[float]]] = []
        self._counts = dict[str, tuple[list[int], list[int]]]()

    def __bool__(self) -> bool:
        return bool(self.runs or self._counts)

    def look(self, now: float, totals: Sequence[int], *, has_ready: bool) -> bool:
        """Return if there is something to write, now or later.

        The first look that finds something after one that found nothing moves `due_at` to the end
        of this minute: it has just happened, and belongs to this minute.

        Args:
            now: by the worker's clock.
            totals: of the queue.
            has_ready: whether jobs are ready.
        """
        is_idle = not (self or totals != self.seen or has_ready)
        if self.was_idle and not is_idle and now >= self.due_at:
            self.due_at += MINUTE_SECONDS * ((now - self.due_at) // MINUTE_SECONDS + 1)
        self.was_idle = is_idle
        return not is_idle

    def sort(self) -> None:
        """Count the times of all runs by bucket."""
        runs, self.runs = self.runs, []
        for handler, waited, spans in runs:
            name, size = handler or "", len(TIME_BOUNDS_SECONDS) + 1
            counts = self._counts.setdefault(name, ([0] * size, [0] * size))
            if waited is not None:
                counts[0][bisect_left(TIME_BOUNDS_SECONDS, waited)] += 1
            for span in spans:
                counts[1][bisect_left(TIME_BOUNDS_SECONDS, span)] += 1

    def clear(self) -> None:
        """Forget all times."""
        self.runs.clear()
        self._counts.clear()

    def take(self) -> list[str]:
        """Remove the times of up to 20 handlers, and return them as arguments of the script."""
        self.sort()
        names = list(self._counts)[:HANDLERS_PER_CALL]
        taken = [(name, *map(_counts_text, self._counts.pop(name))) for name in names]
        return [text for one in taken for text in one]
