"""Delivering the jobs of a modelled queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.model.adding import ModelAdding
from tests.model.jobs import (
    OWNER,
    STEP,
    ModelJob,
    reach,
)
from tests.model.keys import script
from tests.model.state import WAITING


class ModelDelivering(ModelAdding):
    """A modelled queue that delivers its jobs."""

    @script
    def reserve(
        self,
        n: int,
        tag: int,
        finished: Sequence[ModelJob] = (),
        asked: int = 0,
        provisional: bool = False,
    ) -> tuple[list[ModelJob], bool]:
        """Run the script once; return the delivered jobs, and if more could be reserved now.

        Args:
            n, tag: of the call.
            finished: what the same call acknowledged.
            asked: how many were named to be acknowledged.
            provisional: whether the lease of a suspect ends without a crash.
        """
        self._successors = self._successors or []
        step = reach(max(n, asked))
        there = [*self.jobs.values(), *finished]
        waiting = [job for job in there if job.place in WAITING]
        others_wait = any(self._is_due(job) for job in waiting)
        ended = [job for job in self.at("active", finished) if job.at <= self.now]
        self.expire(step, finished)
        if self.paused in ("out", "all"):
            self._turns()
            return [], False
        self.recheck()
        held, n = self.paused != "in", self.allowed(n)
        self.drops = 2 + 2 * n
        taken, parked = self._take_ended(ended if held and n else [], n, step)
        if n and not self.paused:
            self._raise_due()
        n = int(min(n, len(taken) + max(0, self.free_slots + parked)))
        due = [job for job in self.candidates if self._may_go(job)]
        if self.interval and not self.paused:
            count = self.totals["deliveries"]
            others = (count + n) // 4 - (count + len(taken)) // 4 if others_wait else 0
            self.take_turns(taken, n - others)
        self._choose(taken, due, n)
        if self.turns and not self.paused:
            self.take_turns(taken, n)
        for job in taken:
            self.check_order(job)
            self._deliver(job, tag, provisional)
        self.spend(len(taken))
        if len(taken) < n:  # it has met every job before the live ones
            met = [*(self.at("active") if held else []), *self.candidates]
            self._remove_expired([job for job in met if self.has_expired(job)])
        self._turns()
        self.admit()
        return taken, self.has_more

    def _raise_due(self) -> None:
        """Give up to 100 due jobs with a priority their places before the usual jobs."""
        due = [job for job in self.at("scheduled") if job.priority and not job.raised]
        due = [job for job in due if job.at <= self.now]
        for job in sorted(due, key=lambda job: (job.at, job.priority, job.number))[:100]:
            job.raised = True

    def _choose(self, taken: list[ModelJob], due: Iterable[ModelJob], n: int) -> None:
        """Take waiting jobs by priority, time and number; each 16th is of a lower priority."""
        waiting = sorted(due, key=lambda job: (job.order[0], job.at, job.number))
        while waiting and len(taken) < n:
            count = self.totals["deliveries"] + len(taken)
            most = count // 16 % 9 if count % 16 == 15 else 9
            lower = [job for job in waiting if -job.order[0] <= most] or waiting
            job = self._first_by_number(lower) if count % 4 == 3 and self.has_tickets else lower[0]
            waiting.remove(job)
            if self.take(job, "waiting"):
                taken.append(job)

    def _first_by_number(self, waiting: Sequence[ModelJob]) -> ModelJob:
        """Return the first due job if its number is lower than that of the first ready one."""
        due = next((job for job in waiting if job.place == "scheduled"), waiting[0])
        ready = next((job for job in waiting if job.place == "ready"), waiting[0])
        return due if due.number < ready.number else waiting[0]

    def _take_ended(
        self, ended: Iterable[ModelJob], n: int, step: int
    ) -> tuple[list[ModelJob], int]:
        """Take ended leases; return the jobs, and how many more are parked."""
        taken: list[ModelJob] = []
        parked = 0
        died = self.totals["died"]
        for job in ended:
            if len(taken) == n:
                break
            if job.number not in self.jobs or self.has_expired(job):
                continue
            if not self._crash(job, "lease ended"):
                continue
            if self.take(job, "ended"):
                taken.append(job)
            else:
                job.void = True
                parked += 1
        self._trim_after(died, step)
        return taken, parked

    def _crash(self, job: ModelJob, text: str) -> bool:
        """Count a crash; return if the job may be delivered again. A marked job ends."""
        if job.marked:
            self._end_marked(job)
            return False
        job.others += 1
        if job.provisional:
            job.releases += 1
            return True
        job.crashes += 1
        job.note(text)
        self.totals["crashed"] += 1
        attempts = job.nacks + job.crashes
        if job.crashes >= self.limit("max_crashes"):
            why = f"lease ended {job.crashes} times"
        elif attempts >= self.attempts(job):
            why = f"{attempts} attempts"
        else:
            return True
        job.void = True
        self._die(job, f"{why}, last held by {OWNER} since {job.delivered}")
        return False

    def _end_marked(self, job: ModelJob) -> None:
        self._drop(job)
        self.totals["cancelled"] += 1

    def recover(self, n: int, idle: int, tag: int, *, lost: bool = False) -> list[ModelJob]:
        """Take deliveries over, the oldest first, whatever their leases are.

        Args:
            n, idle, tag: of the call.
            lost: the answer of the first script that takes some is lost, and it runs once more.
        """
        if self.paused or self.is_held:
            return []
        old = [
            job
            for job in self.jobs.values()
            if job.place == "active"
            and not job.void
            and self.now - (job.delivered or 0) >= idle
            and not self.has_expired(job)
        ]
        left = sorted(old, key=lambda job: (job.delivered or 0, job.number))
        taken: list[ModelJob] = []
        while left and len(taken) < n:
            part, left = left[: n - len(taken)], left[n - len(taken) :]
            alive = self._recover_part(part, tag)
            taken += [] if lost else alive
            lost = False
        return taken

    @script
    def _recover_part(self, part: Sequence[ModelJob], tag: int) -> list[ModelJob]:
        died = self.totals["died"]
        alive = [job for job in part if self._crash(job, "taken over")]
        for job in alive:
            self._deliver(job, tag)
        self._trim_after(died, STEP + 2 * len(part))
        return alive

    def _deliver(self, job: ModelJob, tag: int, provisional: bool = False) -> None:
        if job.until == "s":  # it usually has lost it already
            self._release(job)
        job.deliveries += 1
        job.delivered, job.tag, job.void = self.now, tag, False
        job.provisional = provisional and job.crashes > 1
        self.totals["deliveries"] += 1
        if job.lease == 0:
            job.place, job.at = "once", job.ends_by(self.now) or 0
        else:
            job.place = "active"
            till = self.now + self.span(job)
            job.at = min(till, job.ends_by(self.now) or till)
