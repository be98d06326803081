"""Jobs that a heartbeat leaves alone for a while, as the renewal of their leases was refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.job import Delivery
from penstock.core.jobs.logs import RateLimit

__all__ = ["PutOff", "Renewal"]

FIRST_REFUSAL_PAUSE, LONGEST_REFUSAL_PAUSE = 0.25, 4.0
"""Seconds until a lease is renewed again: after the first refusal, and at most."""
REFUSAL_LOG_INTERVAL = 30.0
"""Fewest seconds between two lines about a queue."""


@dataclass(slots=True)
class Renewal:
    """The result of a renewal of leases of one queue.

    Attributes:
        answered: jobs whose leases were renewed or are lost.
        lost: those that are lost.
        refused: jobs whose leases can't be renewed.
        left: jobs whose leases were not renewed, as too many calls were refused.
        why: the last error, as text.
        is_reached: False if the server did not answer. The other jobs are in no list then.
    """

    answered: list[Delivery] = field(default_factory=list)
    lost: list[Delivery] = field(default_factory=list)
    refused: list[Delivery] = field(default_factory=list)
    left: list[Delivery] = field(default_factory=list)
    why: str = ""
    is_reached: bool = True


class PutOff:
    """The jobs whose leases can't be renewed now. Those of the others are renewed as usual.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[Delivery, tuple[int, float]] = {}
        self._complaints = RateLimit(REFUSAL_LOG_INTERVAL, clock)

    def note(self, ops: QueueOps, renewal: Renewal) -> bool:
        """Note a result of a queue; return whether to log why leases can't be renewed.

        A refused job waits longer each time. If no lease was renewed, those of `left` wait too.
        """
        now = self._clock()
        for job in renewal.answered:
            self._jobs.pop(job, None)
        for job in renewal.refused:
            times = self._times(job) + 1
            self._jobs[job] = (
                times,
                now + min(FIRST_REFUSAL_PAUSE * 2.0 ** min(times - 1, 8), LONGEST_REFUSAL_PAUSE),
            )
        if renewal.is_reached and not renewal.answered:
            for job in renewal.left:
                self._jobs[job] = (self._times(job), now + FIRST_REFUSAL_PAUSE)
        return bool(renewal.why) and self._complaints.allows(ops.name)

    def _times(self, job: Delivery) -> int:
        return self._jobs.get(job, (0, 0.0))[0]

    def ready(self, jobs: Iterable[Delivery]) -> list[Delivery]:
        """Return those of the jobs that are not left alone now."""
        if not self._jobs:
            return list(jobs)
        now = self._clock()
        return [job for job in jobs if self._jobs.get(job, (0, 0.0))[1] <= now]

    def ready_apart(self, jobs: Iterable[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Return the same as `ready`, apart: without a refusal, and refused before."""
        ready = self.ready(jobs)
        again = [job for job in ready if self._times(job)] if self._jobs else []
        return [job for job in ready if not self._times(job)] if again else ready, again

    def keep(self, held: Iterable[Delivery]) -> None:
        """Forget all jobs but these."""
        if self._jobs:
            self._jobs = {job: self._jobs[job] for job in held if job in self._jobs}

    def next_at(self) -> float:
        """Return when the first of the jobs is no more left alone; inf = never."""
        now = self._clock()
        return min((at for _, at in self._jobs.values() if at > now), default=math.inf)
