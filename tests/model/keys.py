"""Limits per key of a modelled queue: tickets, and parked jobs."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from tests.model.jobs import ModelJob, Number

__all__ = ["ModelKeys", "script"]

SPARE = 100
"""Parked jobs that a call admits in addition to those for which it freed a ticket."""
Method = TypeVar("Method", bound=Callable[..., Any])


def script(method: Method) -> Method:
    """Run a method of the model as one script: it admits parked jobs at its end."""

    @functools.wraps(method)
    def run(self: ModelKeys, *args: Any, **options: Any) -> Any:
        if self.in_script:
            return method(self, *args, **options)
        self.begin_script()
        self.in_script = True
        try:
            return method(self, *args, **options)
        finally:
            self.admit()
            self.in_script = False

    return run  # type: ignore[return-value]


class ModelKeys:
    """The decisions about keys, of one script at a time.

    Attributes:
        in_script: a script runs.
        is_loosened: parked jobs may have room, as the limit was raised or dropped.
        has_tickets: the queue has limits, or had some.
        line_end: the time from which an admitted job is due, behind all that wait.
    """

    now: int
    jobs: dict[Number, ModelJob]
    settings: dict[str, int]
    freed: list[Number]
    in_script = False
    is_loosened = False
    has_tickets = False
    line_end = 0

    @property
    def is_ordered(self) -> bool:
        """Return True if one job of a key is delivered at a time, in order."""
        return bool(self.settings.get("ordered"))

    @property
    def most(self) -> float:
        """Return the most jobs of a key that are delivered at once."""
        return 1 if self.is_ordered else self.settings.get("per_key") or math.inf

    def begin_script(self) -> None:
        """Begin a script: it compares with the state before it."""
        self._unready = {  # delivered, or waiting for a later try
            number
            for number, job in self.jobs.items()
            if job.place in ("active", "once") or (job.place == "scheduled" and job.at > self.now)
        }
        self._tickets: defaultdict[str, list[Number]] = defaultdict(list)
        for number in sorted(self.jobs):
            if self.jobs[number].has_ticket:
                self._tickets[self.jobs[number].key].append(number)
        self._crowded = {job.key for job in self.jobs.values() if job.place == "parked"}
        self._rooms: dict[str, float] = {}
        self._ends: Counter[str] = Counter()
        self._settled: set[str] = set()  # keys whose ticket stays where it is
        self._used: set[Number] = set()
        self._lost: list[Number] = []
        self._given: list[ModelJob] = []
        self._waiting: list[ModelJob] = []

    def give_back(self, job: ModelJob) -> None:
        """Take the ticket of a job that ends, or that waits for a later time."""
        if job.has_ticket:
            job.has_ticket = False
            self._ends[job.key] += 1

    def postpone(self, job: ModelJob) -> None:
        """Take the ticket of a job that waits for a later time, unless the queue is ordered."""
        if job.at > self.now and not self.is_ordered:
            self.give_back(job)

    def line_up(self, job: ModelJob) -> None:
        """Place a job that was put back at once behind those that wait, if it has a ticket."""
        if job.has_ticket and job.drawn is None and job.at < self.line_end:
            job.at = job.capped(self.line_end)

    def free(self, key: str) -> None:
        """Note that a key may have room."""
        self._ends[key] += 1

    def recheck(self) -> None:
        """Note that all keys with parked jobs may have room, if the limit was loosened."""
        for key in self._crowded if self.is_loosened else ():
            self.free(key)
        self.is_loosened = False

    def take(self, job: ModelJob) -> bool:
        """Return True if a job may be delivered; otherwise park it at the end of the script."""
        has_ticket = job.has_ticket and job.number not in self._lost
        if has_ticket or not job.key or self.most == math.inf:
            self._used.add(job.number)
            return True
        if job.key not in self._rooms:
            comes_later = job.key in self._crowded
            if comes_later:
                self.free(job.key)
            self._rooms[job.key] = 0 if comes_later else self.most - len(self._tickets[job.key])
        if self._rooms[job.key] > 0:
            self._rooms[job.key] -= 1
            self._settled.add(job.key)
            self._given.append(job)
            return True
        self._waiting.append(job)
        if self.is_ordered and job.key not in self._settled:
            self._pass_ticket(job)
        return False

    def _pass_ticket(self, job: ModelJob) -> None:
        """Take the ticket of a job with a higher number that is ready."""
        holder = next(iter(self._tickets[job.key]), None)
        if not holder or holder in self._used or holder in self._unready:
            self._settled.add(job.key)
        elif job.number < holder:
            self._settled.add(job.key)
            self._lost.append(holder)
            self.free(job.key)

    def admit(self) -> None:
        """End a script: give tickets, park jobs, and give the free tickets to parked jobs."""
        for number in self._lost:
            if number in self.jobs:
                self.jobs[number].has_ticket = False
        for job in self._given:
            job.has_ticket = True
        for job in self._waiting:
            job.place, job.raised = "parked", False
        spare = SPARE
        for key, ends in self._ends.items():
            parked = [job for job in self.jobs.values() if (job.key, job.place) == (key, "parked")]
            room = self.most - sum(job.key == key and job.has_ticket for job in self.jobs.values())
            count = min(room, ends + spare) if room > 1 else room
            chosen = sorted(parked, key=lambda job: job.number)[: int(max(0, count))]
            spare -= max(0, len(chosen) - ends) if room > 1 else 0
            for job in chosen:
                job.place, job.at, job.has_ticket = "scheduled", self.line_end, True
                job.place_by(self.now)
                self.freed.append(job.number)
        self.begin_script()

    def check_order(self, job: ModelJob) -> None:
        """Require that a first delivery of an ordered queue comes after those of lower numbers."""
        if self.is_ordered and job.key and not job.deliveries and not job.is_late:
            before = [
                one.number
                for one in self.jobs.values()
                if one.key == job.key and one.number < job.number and not one.is_late
                and not one.deliveries and one.place in ("ready", "scheduled", "parked")
                and (one.ends is None or one.ends > self.now)
            ]  # fmt: skip
            assert not before, (job.number, before)
