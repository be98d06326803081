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
        later: is given each job that has to wait until another one is done with.
        clock: monotonic seconds.

    Attributes:
        size: most jobs of one call of a handler.
        aside: how many jobs are to be given back before a suspect may begin.
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
        self.aside = 0
        self._opened = math.inf
        self._handlers = handlers
        self._runners = runners
        self._unknown = unknown
        self._later = later
        self._suspect: Any = None
        self._next: tuple[Handler[..., Any], Sequence[Any]] | None = None
        self._clock = clock
        self._open: dict[tuple[Handler[..., Any], str, str], tuple[float, list[Any]]] = {}

    @property
    def flush_at(self) -> float:
        """When there is something to give out that has had to wait."""
        is_alone = self._next is not None and self.aside == 0
        return -math.inf if is_alone else self._opened

    def hand(self, jobs: Sequence[Any]) -> None:
        """Give out what one reserve has brought."""
        find, put = self._handlers.find, self._runners.put
        for job in jobs:
            handler = find(job)
            if handler is None:
                self._unknown(job)
            elif job._counts and job.crashes >= SUSPECT:
                self._hand_suspect(handler, job)
            elif handler.size is None:
                put((handler, (job,)))
            else:
                self._gather(handler, job)
        if self._open:
            self.flush()

    def _hand_suspect(self, handler: Handler[..., Any], job: Any) -> None:
        """A job that may have killed its workers runs without others of its kind.

        Those that merely ran beside it come back together with it each time: run together again,
        all of them would have their last crash. So they are given back before it begins.
        """
        if self._suspect is not None and not self._suspect.settled and not self._suspect.lost:
            self.aside += 1
            self._later(job)
            return
        if self._next is not None:  # lost before it began: a runner lets go of it
            self._runners.put(self._next)
        self._suspect = job
        self._next = (handler, (job,) if handler.size is None else [job])

    def tend(self) -> None:
        """Give out what has had to wait: batches whose time has come, a suspect that is alone."""
        if self._next is not None and self.aside == 0:
            item, self._next = self._next, None
            self._runners.put(item)
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
        items += [] if self._next is None else [self._next]
        self._open.clear()
        self._next = None
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
