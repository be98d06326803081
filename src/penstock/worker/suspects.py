"""Jobs that have crashed twice, by default once less than a job may.

A suspect killed or stalled its workers, or ran beside a job that did. Beside other jobs an innocent
one would have its last crash, or cause that of others. So it runs only while the worker has no
other job. The server delivers it provisionally (protocol/core.md, Suspects): until the worker
begins with it, the end of its lease is no crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.worker.results import Verdict

__all__ = ["ASIDE", "Suspects", "suspects_among"]

SUSPECT = 2
"""Crashes after which a job is a suspect."""
ASIDE_S = 1.0
"""Seconds for which a suspect is given back that can't run alone now."""
ASIDE = Verdict("release", round(ASIDE_S * 1000), "it runs apart from other jobs")
FORGET = 60.0
"""Seconds without a suspect after which it counts for nothing how long the last one waited."""


def suspects_among(jobs: Sequence[Any]) -> list[Any]:
    """The suspects of some jobs that were just delivered."""
    return [job for job in jobs if job.counts and job.crashes >= SUSPECT]


class Suspects:
    """The suspects that a worker holds, and when it makes room for one.

    Args:
        clock: monotonic seconds.

    Attributes:
        unbegun: those it has not begun with. Their leases are not renewed.
        chosen: the last one that runs alone, or is to.
        expected_until: until when suspects that were given back are expected: the worker holds one
            job at a time, so that it can take one of them alone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.unbegun: set[Any] = set()
        self.chosen: Any = None
        self.expected_until = 0.0
        self._clock = clock
        self._patience = 2 * ASIDE_S

    @property
    def waits(self) -> bool:
        """Whether the chosen one has not begun."""
        return self.chosen in self.unbegun and not self.chosen.settled

    @property
    def are_expected(self) -> bool:
        """Whether one that was given back may come again soon."""
        return self._clock() < self.expected_until

    def choose(self, job: Any) -> None:
        """Run this one next."""
        self.chosen = job
        self.unbegun.add(job)
        self.found_room()

    def found_room(self) -> None:
        """Note that one runs now."""
        self._patience = 2 * ASIDE_S
        self.expected_until = min(self.expected_until, self._clock() + self._patience)

    def put_aside(self) -> float:
        """Note that some were given back; when they can be taken again.

        If the worker could not be alone in the time for which they are expected, as its handlers
        take long, it waits twice as long the next time.
        """
        now = self._clock()
        if self.expected_until <= now < self.expected_until + FORGET:
            self._patience *= 2
        elif now >= self.expected_until:
            self._patience = 2 * ASIDE_S
        self.expected_until = max(self.expected_until, now + self._patience)
        return now + ASIDE_S
