"""How many jobs a worker holds ahead: workers of one queue in virtual time, and real ones."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

import pytest

from penstock.worker.prefetch import Prefetch

CALL_SECONDS, JOB_SECONDS = 0.0004, 0.00001
"""What a call to the server takes, and each job that it brings."""


@dataclass(eq=False)
class Job:
    """A job: how long its handler takes, and what happened to it."""

    seconds: float
    returns: int = 0
    came: float = 0.0
    was_idle: float = 0.0
    waited: float = 0.0


class Fleet:
    """Workers of one queue. A clock counts the time in which one is idle and no job waits."""

    def __init__(self, workers: int, runners: int) -> None:
        self.now = self.idle_clock = 0.0
        self.queue = deque[Job]()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = count()
        self.workers = [SimulatedWorker(self, runners) for _ in range(workers)]
        self.done = list[Job]()

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self.events, (when, next(self.serial), act))

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs, and wake the workers."""
        self.queue.extend(jobs)
        for worker in self.workers:
            worker.wake()

    def run(self) -> None:
        """Let everything happen."""
        for worker in self.workers:
            worker.wake()
        while self.events:
            when, _, act = heapq.heappop(self.events)
            if not self.queue and any(worker.is_idle for worker in self.workers):
                self.idle_clock += when - self.now
            self.now = when
            act()


class SimulatedWorker:
    """A worker that asks and gives back by the rule, with one loop and some runners."""

    def __init__(self, fleet: Fleet, runners: int) -> None:
        self.fleet, self.runners = fleet, runners
        self.ahead = Prefetch(runners)
        self.ahead.is_allowed = True
        self.running = 0
        self.inbox, self.ended = deque[Job](), list[Job]()
        self.is_calling = self.is_awake = False

    @property
    def is_idle(self) -> bool:
        """True if it has no job at all."""
        return not (self.running or self.inbox or self.ended or self.is_calling)

    def wake(self) -> None:
        """Run the loop, unless it is in a call."""
        if not self.is_awake and not self.is_calling:
            self.is_awake = True
            self.fleet.at(self.fleet.now, self._look)

    def _look(self) -> None:
        self.is_awake, now, ahead = False, self.fleet.now, self.ahead
        if self.is_calling:
            return
        if ahead.due_at(len(self.inbox)) <= now:
            for job in self.inbox:
                job.returns += 1
                job.waited = max(job.waited, self.fleet.idle_clock - job.was_idle)
            self.fleet.queue.extendleft(reversed(self.inbox))
            self.inbox.clear()
            ahead.reset(now, now)
            self._call(CALL_SECONDS, [])
            for other in self.fleet.workers:
                other.wake()
            return
        ended, self.ended = self.ended, []
        for job in ended:
            ahead.note_ended(1, job.seconds, now)
        held = self.running + len(self.inbox)
        room = self.runners + ahead.extra - held
        if room < ahead.extra // 2 and held:
            room = 0
        taken = [self.fleet.queue.popleft() for _ in range(min(room, 300, len(self.fleet.queue)))]
        if taken or ended:
            self._call(CALL_SECONDS + JOB_SECONDS * len(taken), taken)
            return
        if room > 0:
            ahead.reset(now, now)
        due = ahead.due_at(len(self.inbox))
        if due < 1e9:
            self.fleet.at(due, self.wake)

    def _call(self, seconds: float, taken: list[Job]) -> None:
        self.is_calling = True
        self.fleet.at(self.fleet.now + seconds, lambda: self._answer(taken))

    def _answer(self, taken: list[Job]) -> None:
        self.is_calling, now = False, self.fleet.now
        held = self.running + len(self.inbox) + len(taken)
        self.ahead.note_came(len(taken), now, held=held)
        for job in taken:
            job.came, job.was_idle = now, self.fleet.idle_clock
        self.inbox.extend(taken)
        self._begin()
        self.wake()

    def _begin(self) -> None:
        while self.inbox and self.running < self.runners:
            job = self.inbox.popleft()
            job.waited = max(job.waited, self.fleet.idle_clock - job.was_idle)
            self.running += 1
            self.fleet.at(self.fleet.now + job.seconds, lambda job=job: self._end(job))

    def _end(self, job: Job) -> None:
        self.running -= 1
        self.ended.append(job)
        self.fleet.done.append(job)
        self._begin()
        self.wake()


def jobs(number: int, seconds: float, *, slow: float = 0.0) -> list[Job]:
    """Return so many jobs of that length; with `slow`, each hundredth takes that long."""
    return [Job(slow if slow and at % 100 == 57 else seconds) for at in range(number)]


NO_OP = 0.00002
LOADS: dict[str, list[tuple[float, list[Job]]]] = {
    "no-ops": [(0, jobs(6000, NO_OP))],
    "20 ms": [(0, jobs(600, 0.02))],
    "1 of 100 takes 0.3 s": [(0, jobs(6000, NO_OP, slow=0.3))],
    "1 of 100 takes 10 s": [(0, jobs(3000, NO_OP, slow=10))],
    "1 s after no-ops": [(0, jobs(3000, NO_OP) + jobs(40, 1))],
    "20 ms after no-ops": [(0, jobs(3000, NO_OP) + jobs(300, 0.02))],
    "bursts after pauses": [(at * 0.7, jobs(400, NO_OP) + jobs(40, 0.02)) for at in range(6)],
}


@pytest.mark.parametrize("runners", [1, 8])
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("load", LOADS)
def test_no_job_waits_long_beside_an_idle_worker(load: str, workers: int, runners: int) -> None:
    """Held while another worker is idle: 99 of 100 for 50 ms at most, the longest for 100 ms."""
    fleet = Fleet(workers, runners)
    for when, added in LOADS[load]:
        fleet.at(when, lambda added=added: fleet.add([Job(job.seconds) for job in added]))
    fleet.run()
    total = sum(len(added) for _, added in LOADS[load])
    assert len(fleet.done) == total
    waits = sorted(job.waited for job in fleet.done)
    assert waits[int(0.99 * total)] <= 0.05
    assert waits[-1] <= 0.1
    assert max(job.returns for job in fleet.done) <= 10
