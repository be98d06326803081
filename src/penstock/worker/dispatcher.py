"""The dispatcher: chooses the handler of each job, and fills chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.job import Delivery, epoch_of, ops_of
from penstock.worker.handlers import Handlers
from penstock.worker.registered import AnyHandler
from penstock.worker.runners import AsyncRunners, Runners

__all__ = ["Dispatcher"]


class Dispatcher:
    """Gives jobs to runners, alone or in chunks. Only the worker's loop calls it.

    Args:
        handlers: the handlers.
        runners: the runners.
        return_unknown: called with each job for which there is no handler.
        clock: returns monotonic seconds.

    Attributes:
        runners: the runners.
        size: most jobs of one call of a handler.
        has_several: whether there are several handlers.
        find: returns the handler of a job; None = there is none.
        flush_at: when to run the next chunk that is not full.
    """

    def __init__(
        self,
        handlers: Handlers,
        runners: Runners | AsyncRunners,
        *,
        return_unknown: Callable[[Delivery], None],
        clock: Callable[[], float],
    ) -> None:
        self.size = max(handler.size or 1 for handler in handlers)
        self.has_several = len(list(handlers)) > 1
        self.flush_at = math.inf
        self.find = handlers.find
        self.runners = runners
        self._return_unknown = return_unknown
        self._clock = clock
        self._open: dict[tuple[AnyHandler, str, str], tuple[float, list[Delivery]]] = {}

    def hand(self, jobs: Sequence[Delivery]) -> None:
        """Give jobs to the runners."""
        find, put = self.find, self.runners.put
        for job in jobs:
            handler = find(job)
            if handler is None:
                self._return_unknown(job)
            elif handler.size is None:
                put((handler, (job,)))
            else:
                self._gather(handler, job)
        if self._open:
            self.flush()

    def _gather(self, handler: AnyHandler, job: Delivery) -> None:
        key = (handler, job.queue_name, epoch_of(job))
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = (self._clock() + handler.wait, [])
        entry[1].append(job)
        if len(entry[1]) == handler.size:
            del self._open[key]
            self.runners.put((handler, entry[1]))

    def flush(self) -> None:
        """Give the chunks that are due to the runners."""
        now = self._clock()
        for key, (until, jobs) in list(self._open.items()):
            if until <= now:
                del self._open[key]
                self.runners.put((key[0], jobs))
        self.flush_at = min((until for until, _ in self._open.values()), default=math.inf)

    def drain(self, ops: QueueOps | None = None) -> list[Delivery]:
        """Remove and return the jobs that have not begun. Those delivered at most once still run.

        Released, such a job would be lost.

        Args:
            ops: only jobs of this queue; None = of all.
        """
        items = self.runners.drain()
        items += [(handler, jobs) for (handler, *_), (_, jobs) in self._open.items()]
        self._open.clear()
        unbegun: list[Delivery] = []
        for handler, jobs in items:
            kept = [job for job in jobs if job.at_most_once or ops not in (None, ops_of(job))]
            unbegun += [job for job in jobs if job not in kept]
            if kept:
                self.runners.put((handler, kept))
        self.flush_at = math.inf
        return unbegun
