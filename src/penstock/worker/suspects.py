"""Suspects: jobs that have crashed twice. By default a third crash makes a job a dead letter.

A suspect has killed or stalled its workers, or ran beside a job that did. Beside other jobs it
could crash them, or they could crash it, once too often. So it runs only while the worker has no
other job. The server delivers it provisionally (protocol/core.md,
Suspects): until the worker begins it, the end of its lease is no crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.jobs.job import Delivery, counts_of
from penstock.worker.results import Verdict

__all__ = ["PUT_ASIDE", "Suspects", "suspects_among"]

SUSPECT_CRASHES = 2
"""Crashes after which a job is a suspect."""
ASIDE_SECONDS = 1.0
"""Seconds for which a suspect that can't run alone now is released."""
PUT_ASIDE = Verdict("release", round(ASIDE_SECONDS * 1000), "it runs apart from other jobs")
FORGET_SUSPECT_SECONDS = 60.0
"""Seconds without a suspect after which the waiting time of the last one is forgotten."""


def suspects_among(jobs: Sequence[Delivery]) -> list[Delivery]:
    """Return the suspects among jobs that were just delivered."""
    return [job for job in jobs if counts_of(job) and job.crashes >= SUSPECT_CRASHES]


class Suspects:
    """The suspects that a worker holds, and when it makes room for one.

    Args:
        clock: returns monotonic seconds.

    Attributes:
        unbegun: suspects that have not begun. Their leases are not renewed.
        chosen: the last one that was chosen to run alone.
        expected_until: until when released suspects are expected. Meanwhile the worker holds one
            job at a time, so that it can take a suspect alone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.unbegun: set[Delivery] = set()
        self.chosen: Delivery | None = None
        self.expected_until = 0.0
        self._clock = clock
        self._patience = 2 * ASIDE_SECONDS

    @property
    def waits(self) -> bool:
        """True if the chosen suspect has not begun."""
        chosen = self.chosen
        return chosen is not None and chosen in self.unbegun and not chosen.settled

    @property
    def are_expected(self) -> bool:
        """True if a released suspect may come again soon."""
        return self._clock() < self.expected_until

    def choose(self, job: Delivery) -> None:
        """Run this suspect next."""
        self.chosen = job
        self.unbegun.add(job)
        self.note_room()

    def note_room(self) -> None:
        """Note that a suspect runs now."""
        self._patience = 2 * ASIDE_SECONDS
        self.expected_until = min(self.expected_until, self._clock() + self._patience)

    def put_aside(self) -> float:
        """Note that suspects were released; return when they can be taken again.

        If long handlers kept the worker from being empty while suspects were expected, they are
        expected twice as long the next time.
        """
        now = self._clock()
        if self.expected_until <= now < self.expected_until + FORGET_SUSPECT_SECONDS:
            self._patience *= 2
        elif now >= self.expected_until:
            self._patience = 2 * ASIDE_SECONDS
        self.expected_until = max(self.expected_until, now + self._patience)
        return now + ASIDE_SECONDS
