"""Which handler runs a job, and when a batch is full."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.worker.handlers import Handler, Handlers

__all__ = ["Desk", "RunnersLike"]

SUSPECT = 2
"""Crashes after which a job is suspected of killing its workers; by default one more is its end."""


class RunnersLike(Protocol):
    """What runs handlers."""

    def put(self, item: tuple[Handler[..., Any], Sequence[Any]]) -> None:
        """Run this when there is room."""

    def drain(self) -> list[tuple[Handler[..., Any], Sequence[Any]]]:
        """What has not begun."""

    def lose(self, jobs: Sequence[Any]) -> None:
        """Tell the handlers of these jobs."""


class Desk:
    """Hands jobs to runners, alone or in batches. Only the worker's loop calls it.

    Args:
        handlers: which there are.
        runners: who runs them.
        unknown: is given each job for which there is no handler.
        later: is given each suspect that can't run now.
        clock: monotonic seconds.

    Attributes:
        size: most jobs of one call of a handler.
        aside: suspects that are being given back; nothing begins before they are.
        suspect: the last one that was given out, alone.
    """

    def __init__(
        self,
        handlers: Handlers,
        runners: RunnersLike,
        unknown: Callable[[Any], None],
        later: Callable[[Any], None],
        clock: Callable[[], float],
    ) -> None:
        self.size = max(handler.size or 1 for handler in handlers)
        self.aside: set[Any] = set()
        self.suspect: Any = None
        self._waiting: list[Any] = []
        self._opened = math.inf
        self._handlers = handlers
        self._runners = runners
        self._unknown = unknown
        self._later = later
        self._clock = clock
        self._open: dict[tuple[Handler[..., Any], str, str], tuple[float, list[Any]]] = {}

    @property
    def flush_at(self) -> float:
        """When there is something to give out that has had to wait."""
        return -math.inf if self._waiting and not self.aside else self._opened

    def hand(self, jobs: Sequence[Any], *, is_alone: bool = True) -> None:
        """Give out what one reserve has brought.

        Args:
            jobs: all of them.
            is_alone: whether the worker holds nothing else.
        """
        suspects = [job for job in jobs if job._counts and job.crashes >= SUSPECT]
        if suspects:
            jobs = self._without(suspects, jobs, is_alone)
        if self.aside or self._waiting:
            self._waiting += jobs
        else:
            self._give(jobs)

    def _without(self, suspects: list[Any], jobs: Sequence[Any], is_alone: bool) -> Sequence[Any]:
        """Put suspects aside; which jobs are left to run.

        A suspect killed or stalled its workers, or ran beside a job that did. Beside other jobs an
        innocent one would have its last crash, or cause that of others. So it runs only while the
        worker has no other job, and nothing begins before the others are given back.
        """
        suspects = [job for job in suspects if self._handlers.find(job) is not None]
        chosen = set(suspects)
        rest = [job for job in jobs if job not in chosen]
        if is_alone and not rest and suspects:
            self.suspect = suspects.pop(0)
            rest = [self.suspect]
        self.aside.update(suspects)
        for job in suspects:
            self._later(job)
        return rest

    def _give(self, jobs: Sequence[Any]) -> None:
        find, put = self._handlers.find, self._runners.put
        for job in jobs:
            handler = find(job)
            if handler is None:
                self._unknown(job)
            elif handler.size is None:
                put((handler, (job,)))
            else:
                self._gather(handler, job)
        if self._open:
            self.flush()

    def tend(self) -> None:
        """Give out what has had to wait: for suspects to be given back, or for more of a batch."""
        if self._waiting and not self.aside:
            jobs, self._waiting = self._waiting, []
            self._give(jobs)
        self.flush()

    def _gather(self, handler: Handler[..., Any], job: Any) -> None:
        """A batch has jobs of one queue, and of one life of it."""
        key = (handler, job.queue_name, job.epoch)
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = (self._clock() + handler.wait, [])
        entry[1].append(job)
        if len(entry[1]) == handler.size:
            del self._open[key]
            self._runners.put((handler, entry[1]))

    def flush(self) -> None:
        """Give out the batches whose time has come."""
        now = self._clock()
        for key, (until, jobs) in list(self._open.items()):
            if until <= now:
                del self._open[key]
                self._runners.put((key[0], jobs))
        self._opened = min((until for until, _ in self._open.values()), default=math.inf)

    def drain(self) -> list[Any]:
        """Jobs that no handler has begun with, and won't; those at most once are left to run.

        Given back such a job would be lost.
        """
        items = self._runners.drain()
        items += [(handler, jobs) for (handler, *_), (_, jobs) in self._open.items()]
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            handler = self._handlers.find(job)
            if handler is None:
                self._unknown(job)
            else:
                items.append((handler, (job,) if handler.size is None else [job]))
        self._open.clear()
        found: list[Any] = []
        for handler, jobs in items:
            once = [job for job in jobs if job.at_most_once]
            found += [job for job in jobs if not job.at_most_once]
            if once:
                self._runners.put((handler, once))
        self._opened = math.inf
        return found

    def lose(self, jobs: Sequence[Any]) -> None:
        """Tell the handlers of these jobs that they have lost them."""
        self._runners.lose(jobs)
