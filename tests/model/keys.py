"""Limits per key of a modelled queue: tickets, and parked jobs."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.core.jobs.record import key_hash
from tests.model.jobs import ModelJob, Number

__all__ = ["ModelKeys", "key_score", "script"]

SPARE = 100
"""Parked jobs that a call admits in addition to those for which it freed a ticket."""


def key_score(key: str) -> str:
    """Return the hash of a key as `turns` has it."""
    return str(int(key_hash(key), 16))


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
        turns: keys with parked jobs that may get tickets above their share, and since when; or
            from when, by the rate of each key.
        paces: the theoretical arrival time of the next job of keys.
        line_end: the time from which an admitted job is due, behind all that wait.
    """

    now: int
    jobs: dict[Number, ModelJob]
    settings: dict[str, int]
    turns: dict[str, int]
    paces: dict[str, int]
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
    def limits(self) -> tuple[float, int | None]:
        """Return the most jobs of a key that are delivered at once, and those without a turn."""
        hard = 1 if self.is_ordered else self.settings.get("per_key") or math.inf
        if self.interval:
            return hard, 0
        return hard, None if self.is_ordered else self.settings.get("share")

    @property
    def interval(self) -> int:
        """Return the ms between two jobs of a key; 0 = keys have no rate."""
        return self.settings.get("key_rate", 0)

    @property
    def key_span(self) -> int:
        """Return the ms that a full burst of a key takes up."""
        return self.interval * (self.settings.get("key_burst") or 1)

    @property
    def first_turn(self) -> int | None:
        """Return when the first key in turns may have a job; None = there is none."""
        if not self.turns:
            return None
        first = min(self.turns.values())
        return min(first, self.now + self.interval) if self.interval else self.now

    def _tat(self, key: str) -> int:
        if key not in self._tats:
            tat = self.paces.get(key, 0)
            self._tats[key] = min(max(tat, self.now), self.now + self.key_span)
            if tat > self.now + self.key_span:
                self._changed.add(key)
        return self._tats[key]

    def key_allows(self, key: str) -> int:
        """Return how many jobs the rate of a key allows now."""
        return (self.now + self.key_span - self._tat(key)) // self.interval

    def spend_for(self, key: str) -> None:
        """Note a delivery of a key."""
        self._tats[key] = self._tat(key) + self.interval
        self._changed.add(key)

    def free_at(self, key: str) -> int:
        """Return from when the rate of a key allows its next job."""
        return self._tat(key) + self.interval - self.key_span

    def drop_paces(self, count: int) -> None:
        """Drop times that are past, the earliest first."""
        past = [key for key, at in self.paces.items() if at <= self.line_end]
        for key in sorted(past, key=lambda key: (self.paces[key], key_score(key)))[:count]:
            del self.paces[key]

    def tickets_of(self, key: str) -> int:
        """Return how many jobs of a key have tickets."""
        return sum(job.key == key and job.has_ticket for job in self.jobs.values())

    @property
    def most(self) -> float:
        """Return the most tickets of a key that are given without a turn."""
        hard, share = self.limits
        return hard if share is None else min(hard, share)

    def loosen(self, before: tuple[float, int | None], pace: tuple[int | None, int | None]) -> None:
        """Note that the limits, and the rate of each key, were others before."""
        hard, share = self.limits
        most_before = math.inf if before[1] is None else before[1]
        wider = hard > before[0] or (math.inf if share is None else share) > most_before
        self.is_loosened |= wider or (share is not None and before[1] is None)
        self.is_loosened |= bool(self.interval) and self.pace != pace
        if share is None:
            self.turns.clear()
        if not self.interval:
            self.paces.clear()

    @property
    def pace(self) -> tuple[int | None, int | None]:
        """Return rate and burst of each key."""
        return self.settings.get("key_rate"), self.settings.get("key_burst")

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
        self._parked = self._parked_by_key()
        self._crowded = set(self._parked)
        self._served: set[str] = set()
        self._joins: set[str] = set()
        self._looked = 0
        self._tats: dict[str, int] = {}
        self._changed: set[str] = set()
        self.drops = 0  # past times of paces that the script may drop
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
        """Note that a key may have room, and may be missing in turns."""
        self._ends[key] += 1
        self._joins.add(key)

    def recheck(self) -> None:
        """Note that all keys with parked jobs may have room, if the limit was loosened."""
        for key in self._crowded if self.is_loosened else ():
            self.free(key)
        self.is_loosened = False

    def take(self, job: ModelJob, source: str = "") -> bool:
        """Return True if a job may be delivered; otherwise park it at the end of the script.

        Args:
            job: a candidate, or a new job.
            source: "ended" = its lease has ended, "waiting" = another candidate, "" = it is new.
        """
        has_ticket = job.has_ticket and job.number not in self._lost
        keeps = has_ticket and not (self.interval and source == "waiting")
        if keeps or not job.key or self.most == math.inf:
            self._used.add(job.number)
            return True
        if self.interval:
            return self._take_paced(job, source, has_ticket)
        if job.key not in self._rooms:
            comes_later = job.key in self._crowded
            if comes_later:
                self._ends[job.key] += 1
            self._rooms[job.key] = 0 if comes_later else self.most - len(self._tickets[job.key])
        if self._rooms[job.key] > 0:
            self._rooms[job.key] -= 1
            self._settled.add(job.key)
            self._given.append(job)
            return True
        self._waiting.append(job)
        self._ends[job.key] += 0
        if self.is_ordered and job.key not in self._settled:
            self._pass_ticket(job)
        return False

    def _take_paced(self, job: ModelJob, source: str, has_ticket: bool) -> bool:
        if job.key not in self._rooms:
            room = self.limits[0] - len(self._tickets[job.key])
            self._rooms[job.key] = 0 if job.key in self._crowded else room
        has_room = has_ticket or self._rooms[job.key] > 0
        if source and has_room and self.key_allows(job.key):
            self.spend_for(job.key)
            self._used.add(job.number)
            self._settled.add(job.key)
            if not has_ticket:
                self._rooms[job.key] -= 1
                self._given.append(job)
            return True
        self._rooms[job.key] = 0
        self._waiting.append(job)
        self._ends[job.key] += 0
        self._joins.add(job.key)
        if has_ticket:
            self._lost.append(job.number)
            self._settled.add(job.key)
        elif self.is_ordered and job.key not in self._settled:
            self._pass_ticket(job)
        return False

    def take_turns(self, taken: list[ModelJob], most: int) -> None:
        """Take parked jobs of the keys whose turn it is, one of each in turn, up to `most`."""
        hard, _ = self.limits
        line = sorted(self.turns, key=lambda key: (self.turns[key], key_score(key)))
        while len(taken) < most:
            wanted = most - len(taken)
            page = self._due_keys(line[self._looked : self._looked + wanted])
            self._looked += len(page)
            rounds = math.ceil(wanted / len(page)) if page else 0
            rows = []
            for key in page:
                self._ends[key] += 0
                room = min(rounds, max(0, hard - len(self._tickets[key])))
                if self.interval:
                    allowed = self.key_allows(key)
                    room = min(room, allowed)
                    self._served |= set() if allowed else {key}
                rows.append(self._parked.get(key, [])[: int(room)])
            for number in (row[i] for i in range(rounds) for row in rows if i < len(row)):
                job = self.jobs.get(number)
                if job is not None and not self.has_expired(job) and len(taken) < most:
                    self._served.add(job.key)
                    self._given.append(job)
                    taken.append(job)
                    if self.interval:
                        self.spend_for(job.key)
            if len(page) < wanted:
                break

    def _due_keys(self, line: list[str]) -> list[str]:
        if not self.interval:
            return line
        for key in line:
            if self.turns[key] > self.now + self.interval:
                self._ends[key] += 0
                self._joins.add(key)
        return [key for key in line if self.turns[key] <= self.now]

    def _parked_by_key(self) -> dict[str, list[Number]]:
        parked: dict[str, list[Number]] = {}
        for number in sorted(self.jobs):
            if self.jobs[number].place == "parked":
                parked.setdefault(self.jobs[number].key, []).append(number)
        return parked

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
        self._line_up_keys()
        self.drop_paces(self.drops)
        self.paces.update((key, self._tats[key]) for key in self._changed)
        self.begin_script()

    def _line_up_keys(self) -> None:
        hard, share = self.limits
        parked = self._parked_by_key()
        changed = {key for key, jobs in self._parked.items() if parked.get(key) != jobs}
        for key in changed | set(self._ends) if share is not None else ():
            count = sum(job.key == key and job.has_ticket for job in self.jobs.values())
            if key not in parked or count >= hard:
                self.turns.pop(key, None)
            elif not self.interval:
                at = self.turns.get(key, self.line_end)
                self.turns[key] = self.line_end if key in self._served else at
            elif key in self._served:
                self.turns[key] = max(self.line_end, self.free_at(key))
            elif key in self._joins or hard < math.inf:
                at = max(self.line_end, self.free_at(key))
                self.turns[key] = min(self.turns.get(key, at), at)

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
