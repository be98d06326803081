"""What a queue does, in plain Python: written from the rules, with lists where Redis has keys.

One `Model` stands for one queue of one server. Times are whole milliseconds. `now` is the queue's
clock and is set before each call by whoever drives the model; random choices of the queue (receipt
tags, the jitter of a backoff) are told to it or taken over within their bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock import Outcome

__all__ = ["DEFAULTS", "Model", "ModelJob", "Name", "Number"]

Number: TypeAlias = tuple[int, int]
"""Creation ms and place within it."""
Receipt: TypeAlias = tuple[int, int]
"""Number of the delivery and its tag."""
Name: TypeAlias = tuple[Number, Receipt | None]
"""A job as a caller names it: with the receipt of a delivery, or by id alone."""
Place = Literal["ready", "scheduled", "active", "once", "dead"]

FIRST_SEQ = 1_000_000_000
STEP = 100  # expired jobs, and dead letters, that one script removes
FURTHER = 16  # ended leases beyond n that a reserve looks at, as some of them make dead letters
IDLE_MS = 900_000
DEFAULTS = {
    "lease": 30_000,
    "max_attempts": 20,
    "max_crashes": 3,
    "max_releases": 1000,
    "replicas": 0,
    "backoff_base": 5_000,
    "backoff_cap": 21_600_000,
    "dead_max": 100_000,
    "dead_age": 14 * 86_400_000,
}


@dataclass
class ModelJob:
    """A job: where it is, and since or until when (`at`)."""

    number: Number
    body: bytes
    lease: int | None
    ttl: int | None
    place: Place
    at: int  # ready: created; scheduled: due; active: end of lease; once: end of ttl; dead: death
    tag: int = 0
    deliveries: int = 0
    void: bool = False  # the next delivery's number is set aside: no receipt is of the last one
    others: int = 0  # deliveries that ended, or were made again, otherwise than by a nack
    nacks: int = 0
    crashes: int = 0
    releases: int = 0
    error: str = ""
    delivered: int | None = None
    drawn: range | None = field(default=None, repr=False)  # `at` is anywhere in here

    @property
    def expires(self) -> int | None:
        """When its ttl ends."""
        return None if self.ttl is None else self.number[0] + self.ttl

    def capped(self, at: int) -> int:
        """A time, or the end of its ttl if that is earlier."""
        return at if self.expires is None else min(at, self.expires)

    @property
    def may_expire(self) -> bool:
        """Whether the end of its ttl ends it: not a dead letter, nor one delivered at most once."""
        return self.ttl is not None and self.place in ("ready", "scheduled", "active")

    @property
    def order(self) -> tuple[int, int, Number]:
        """Its place among those of its kind."""
        return (self.at, self.tag if self.place in ("active", "once") else 0, self.number)


class Model:
    """One queue.

    Attributes:
        now: the queue's clock.
        exists: whether there is anything of it on the server.
        jobs: every job that is not done, by number.
        last: the youngest job's number.
        settings: those that were set.
        paused: the side, or ''.
        totals: enqueued, deliveries, acked, nacked, released, crashed, died, redriven, trimmed,
            swept, deleted, purged, promoted, dequeued, withdrawn, evicted.
        made: when the queue was made.
    """

    def __init__(self) -> None:
        self.now = 0
        self._forget()

    def _forget(self) -> None:
        self.exists = False
        self.made = 0
        self.jobs: dict[Number, ModelJob] = {}
        self.last: Number | None = None
        self.settings: dict[str, int] = {}
        self.paused = ""
        self.totals: Counter[str] = Counter()

    def setting(self, name: str) -> int:
        """What applies: the stored setting or the default."""
        return self.settings.get(name, DEFAULTS[name])

    def limit(self, name: str) -> float:
        """The same for a limit: 0 is none."""
        return self.setting(name) or math.inf

    def _begin(self) -> None:
        if not self.exists:
            self.exists, self.made = True, self.now

    # -- the jobs of a state ----------------------------------------------------------------

    def has_expired(self, job: ModelJob) -> bool:
        """Whether its ttl has ended and it has not been swept."""
        if job.place == "once":
            return job.at <= self.now
        return job.may_expire and (job.expires or 0) <= self.now

    def state(self, job: ModelJob) -> str:
        """The state as a reader sees it."""
        if self.has_expired(job):
            return "expired"
        if job.place in ("scheduled", "active") and job.at <= self.now:
            return "ready"
        return "active" if job.place == "once" else job.place

    def listed(self, state: str) -> list[ModelJob]:
        """The jobs of a state, in order."""
        found = [job for job in self.jobs.values() if self.state(job) == state]
        if state == "ready":
            return sorted(found, key=lambda job: (job.place != "active", *job.order))
        return sorted(found, key=lambda job: (job.place == "once", *job.order))

    @property
    def waiting(self) -> int:
        """The jobs that a bound counts."""
        return sum(job.place in ("ready", "scheduled") for job in self.jobs.values())

    @property
    def oldest(self) -> int | None:
        """For how long the one that has waited longest could have been reserved."""
        ages = [self.now - job.at for job in self.listed("ready")]
        return max(0, *ages) if ages else None

    def at(self, place: Place, besides: Iterable[ModelJob] = ()) -> list[ModelJob]:
        """The jobs of a place, in order."""
        found = [job for job in (*self.jobs.values(), *besides) if job.place == place]
        return sorted(found, key=lambda job: job.order)

    # -- adding -----------------------------------------------------------------------------

    def enqueue(
        self,
        bodies: Sequence[bytes],
        *,
        delay: int = 0,
        lease: int | None = None,
        ttl: int | None = None,
        bound: int | None = None,
    ) -> list[ModelJob] | Literal["paused", "full"]:
        """Add jobs, all of them or none; expired ones make room first."""
        if self.paused in ("in", "all"):
            return "paused"
        limits = [x for x in (bound, self.settings.get("max_length")) if x is not None]
        while limits and self.waiting + len(bodies) > min(limits):
            if not self.expire()[0]:
                return "full"
        self._begin()
        self.expire()
        added = []
        for body in bodies:
            job = ModelJob(self._next_number(), body, lease, ttl, "ready", 0)
            job.at = job.number[0]
            if delay > 0:
                job.place, job.at = "scheduled", job.capped(self.now + delay)
            self.jobs[job.number] = job
            added.append(job)
        self.totals["enqueued"] += len(added)
        return added

    def _next_number(self) -> Number:
        if self.last is None or self.last[0] < self.now:
            self.last = (self.now, FIRST_SEQ)
        else:
            self.last = (self.last[0], self.last[1] + 1)
        return self.last

    # -- delivering -------------------------------------------------------------------------

    def reserve(
        self, n: int, tag: int, finished: Sequence[ModelJob] = (), named: int = 0
    ) -> tuple[list[ModelJob], bool]:
        """One run of the script: what is delivered, and whether there is more to reserve now.

        Args:
            n, tag: of the call.
            finished: what the same call acknowledged.
            named: in how many words.
        """
        ended = [job for job in self.at("active", finished) if job.at <= self.now]
        gone = self.expire(finished)[0]
        if self.paused in ("out", "all"):
            return [], False
        if gone == STEP:
            return [], True
        held = self.paused != "in"
        ended = ended[: n + gone + named + FURTHER] if held and n else []
        taken = self._take_ended(ended, n, tag)
        kinds: tuple[Place, ...] = ("ready", "scheduled") if held else ("ready",)
        due = [job for kind in kinds for job in self.at(kind) if self._is_due(job)]
        for job in sorted(due, key=lambda job: (job.at, job.number))[: n - len(taken)]:
            self._deliver(job, tag)
            taken.append(job)
        left = [job for kind in kinds for job in self.at(kind)] + (
            self.at("active") if held else []
        )
        return taken, any(self._is_due(job) for job in left)

    def _is_due(self, job: ModelJob) -> bool:
        return job.place == "ready" or job.at <= self.now

    def _take_ended(self, ended: Iterable[ModelJob], n: int, tag: int) -> list[ModelJob]:
        taken: list[ModelJob] = []
        died = self.totals["died"]
        for job in ended:
            if len(taken) == n:
                break
            if job.number not in self.jobs:
                continue
            if self._crash(job):
                self._deliver(job, tag)
                taken.append(job)
        self._trim_after(died)
        return taken

    def _crash(self, job: ModelJob) -> bool:
        """Its holder never spoke; whether it may be delivered again."""
        job.crashes += 1
        job.others += 1
        self.totals["crashed"] += 1
        attempts = job.nacks + job.crashes
        if job.crashes >= self.limit("max_crashes"):
            why = f"lease ended {job.crashes} times"
        elif attempts >= self.limit("max_attempts"):
            why = f"{attempts} attempts"
        else:
            return True
        job.void = True
        self._die(job, why)
        return False

    def recover(self, n: int, idle: int, tag: int, *, lost: bool = False) -> list[ModelJob]:
        """Take deliveries over, the oldest first, whatever became of their leases.

        Args:
            n, idle, tag: of the call.
            lost: the answer of the first script that takes some is lost, and it runs once more.
        """
        if self.paused:
            return []
        old = [
            job
            for job in self.jobs.values()
            if job.place == "active"
            and self.now - (job.delivered or 0) >= idle
            and not self.has_expired(job)
        ]
        left = sorted(old, key=lambda job: (job.delivered or 0, job.number))
        taken: list[ModelJob] = []
        while left and len(taken) < n:
            part, left = left[: n - len(taken)], left[n - len(taken) :]
            died = self.totals["died"]
            alive = [job for job in part if self._crash(job)]
            for job in alive:
                self._deliver(job, tag)
            self._trim_after(died)
            taken += [] if lost else alive
            lost = False
        return taken

    def _deliver(self, job: ModelJob, tag: int) -> None:
        job.deliveries += 1
        job.delivered, job.tag, job.void = self.now, tag, False
        self.totals["deliveries"] += 1
        if job.lease == 0:
            job.place, job.at = "once", job.expires or 0
        else:
            job.place = "active"
            job.at = job.capped(self.now + (job.lease or self.setting("lease")))

    def _die(self, job: ModelJob, why: str) -> None:
        job.place, job.at, job.error = "dead", self.now, why or job.error
        self.totals["died"] += 1

    # -- settling ---------------------------------------------------------------------------

    def _held(self, name: Name) -> tuple[Outcome, ModelJob]:
        """Whether a delivery may be ended by whoever names the job so."""
        number, receipt = name
        job = self.jobs.get(number)
        if job is None:
            return Outcome.GONE, ModelJob(number, b"", None, None, "dead", 0)
        if receipt is None:
            held = job.place in ("active", "once")
            return (Outcome.DONE if held else Outcome.REFUSED), job
        if job.place in ("active", "once"):
            same = receipt == (job.deliveries, job.tag)
            return (Outcome.DONE if same else Outcome.STALE), job
        ended = not job.void and receipt[0] == job.deliveries
        return (Outcome.ENDED if ended else Outcome.STALE), job

    def _each(
        self,
        names: Iterable[Name],
        change: Callable[[ModelJob], None],
        may_wait: bool = False,
    ) -> list[Outcome]:
        """End deliveries of leased jobs; one that is named by id alone voids its receipt.

        All names are judged by what is there before the call; a job is ended once.

        Args:
            names: of the jobs.
            change: what is done to each.
            may_wait: by id alone also to jobs that nobody holds.
        """
        outcomes = []
        died = self.totals["died"]
        ended: set[Number] = set()
        for name, (outcome, job) in [(name, self._held(name)) for name in names]:
            if outcome is Outcome.DONE and job.place == "once" and job.number not in ended:
                outcome = Outcome.REFUSED
            waits = job.place in ("ready", "scheduled")
            if outcome is Outcome.REFUSED and may_wait and (waits or job.number in ended):
                outcome = Outcome.DONE
            if outcome is Outcome.DONE and job.number in ended:
                outcome = Outcome.ENDED
            elif outcome is Outcome.DONE:
                ended.add(job.number)
                job.void |= name[1] is None and job.place == "active"
                change(job)
                if job.place == "dead" and not may_wait:
                    outcome = Outcome.DEAD
            outcomes.append(outcome)
        self._trim_after(died)
        return outcomes

    def ack(self, names: Iterable[Name]) -> list[Outcome]:
        """Finish jobs; by id alone waiting ones too."""
        outcomes = []
        done: set[Number] = set()
        for outcome, job in [self._held(name) for name in names]:
            if outcome is Outcome.REFUSED and job.place in ("ready", "scheduled"):
                outcome = Outcome.DONE
            if outcome is Outcome.DONE:
                done.add(job.number)
            outcomes.append(outcome)
        for number in done:
            del self.jobs[number]
        self.totals["acked"] += len(done)
        return outcomes

    def settle(
        self, names: Sequence[Name], n: int, tag: int
    ) -> tuple[list[Outcome], list[ModelJob]]:
        """Finish jobs and take others."""
        before = dict(self.jobs)
        outcomes = self.ack(names)
        finished = [before[number] for number in before if number not in self.jobs]
        return outcomes, self.reserve(n, tag, finished, outcomes.count(Outcome.DONE))[0]

    def nack(self, names: Iterable[Name], delay: int | None, error: str) -> list[Outcome]:
        """Report failures: back off (None = by the policy), or die."""

        def fail(job: ModelJob) -> None:
            job.nacks += 1
            job.error = error or job.error
            self.totals["nacked"] += 1
            if job.nacks + job.crashes >= self.limit("max_attempts"):
                self._die(job, "")
            else:
                self._put_back(job, delay)

        return self._each(names, fail)

    def release(self, names: Iterable[Name], delay: int) -> list[Outcome]:
        """Give back; without a delay only so often."""

        def give_back(job: ModelJob) -> None:
            job.releases += delay == 0
            job.others += 1
            self.totals["released"] += 1
            if job.releases >= self.limit("max_releases"):
                self._die(job, f"released {job.releases} times")
            else:
                self._put_back(job, delay)

        return self._each(names, give_back)

    def _put_back(self, job: ModelJob, delay: int | None) -> None:
        job.place = "scheduled"
        if delay is None:
            most = self.setting("backoff_base") * 2 ** (job.nacks - 1)
            most = max(1, min(self.setting("backoff_cap"), most))
            job.drawn = range(job.capped(self.now + 1), job.capped(self.now + most) + 1)
        elif delay:
            job.at = job.capped(self.now + delay)
        else:
            job.at = job.capped(min(job.number[0], self.now))

    def bury(self, names: Sequence[Name], reason: str) -> list[Outcome]:
        """Give up; by id alone also jobs that wait."""

        def give_up(job: ModelJob) -> None:
            job.others += job.place == "active"
            self._die(job, "")
            job.error = reason

        return self._each(names, give_up, may_wait=True)

    def extend(
        self, names: Iterable[Name], lease: int | None, late: bool = False
    ) -> list[Outcome | int]:
        """Renew leases: the ms from now for which each holds."""
        results: list[Outcome | int] = []
        seen: set[Number] = set()
        for name in names:
            outcome, job = self._held(name)
            if outcome is Outcome.DONE and job.place == "once":
                outcome = Outcome.REFUSED
            if outcome is Outcome.DONE and job.number in seen:
                outcome = Outcome.ENDED
            elif outcome is Outcome.DONE:
                seen.add(job.number)
                till = job.capped(self.now + (lease or job.lease or self.setting("lease")))
                if till <= self.now:
                    outcome = Outcome.GONE
                elif job.ttl and not late and (self.now - job.number[0]) * 2 > job.ttl:
                    outcome = Outcome.TOO_LATE
                else:
                    job.at = till
                    results.append(till - self.now)
                    continue
            results.append(outcome)
        return results

    # -- moving -----------------------------------------------------------------------------

    def _move(
        self, numbers: Iterable[Number], move: Callable[[ModelJob], Outcome]
    ) -> list[Outcome]:
        """An outcome for each; a job that is named twice is moved once, and answered alike."""
        answers: dict[Number, Outcome] = {}
        outcomes = []
        for number in numbers:
            job = self.jobs.get(number)
            if number not in answers:
                answers[number] = Outcome.GONE if job is None else move(job)
            outcomes.append(answers[number])
        return outcomes

    def promote(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Bring forward to the place of their creation; a delivery ends."""

        def forward(job: ModelJob) -> Outcome:
            if self.has_expired(job) and job.place != "once":
                return Outcome.EXPIRED
            if job.place not in ("scheduled", "active"):
                return Outcome.REFUSED
            self._end_unsaid(job)
            self._put_back(job, 0)
            self.totals["promoted"] += 1
            return Outcome.DONE

        return self._move(numbers, forward)

    def dequeue(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Take out what could be reserved, for the time of its own lease."""

        def out(job: ModelJob) -> Outcome:
            if self.has_expired(job) and job.place != "once":
                return Outcome.EXPIRED
            if self.state(job) != "ready" or job.lease == 0:
                return Outcome.REFUSED
            self._end_unsaid(job)
            self._put_back(job, job.lease or self.setting("lease"))
            self.totals["dequeued"] += 1
            return Outcome.DONE

        return self._move(numbers, out)

    def _end_unsaid(self, job: ModelJob) -> None:
        """A delivery ends without its holder: what it shows later is stale."""
        if job.place == "active":
            job.void = True
            job.others += 1

    def withdraw(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Remove what nobody was ever given."""

        def take_back(job: ModelJob) -> Outcome:
            if job.place not in ("ready", "scheduled") or job.delivered is not None:
                return Outcome.REFUSED
            del self.jobs[job.number]
            self.totals["withdrawn"] += 1
            return Outcome.DONE

        return self._move(numbers, take_back)

    def evict(self, n: int, dead: bool) -> int:
        """Remove what nobody will be given again: delivered at most once, then dead letters."""
        gone = (self.at("once") + (self.at("dead") if dead else []))[:n]
        for job in gone:
            del self.jobs[job.number]
        self.totals["evicted"] += len(gone)
        return len(gone)

    # -- removing, bringing back ------------------------------------------------------------

    def redrive(self, limit: int | None = None) -> int:
        """Bring so many of the oldest dead letters back; their attempts start anew."""
        chosen = [job for job in self.at("dead") if not self._is_over(job)][:limit]
        for job in chosen:
            self._bring_back(job)
        return len(chosen)

    def redrive_these(self, numbers: Iterable[Number]) -> list[Outcome]:
        """The same for dead letters by name; whoever is named again is not dead any more."""
        outcomes = []
        seen: set[Number] = set()
        for number in numbers:
            job = self.jobs.get(number)
            if number in seen:
                outcomes.append(Outcome.REFUSED)
            elif job is None:
                outcomes.append(Outcome.GONE)
            elif job.place != "dead":
                outcomes.append(Outcome.REFUSED)
            elif self._is_over(job):
                outcomes.append(Outcome.EXPIRED)
            else:
                self._bring_back(job)
                outcomes.append(Outcome.DONE)
            seen.add(number)
        return outcomes

    def _is_over(self, job: ModelJob) -> bool:
        return job.expires is not None and job.expires <= self.now

    def _bring_back(self, job: ModelJob) -> None:
        job.place, job.at = "scheduled", min(job.number[0], self.now)
        job.nacks = job.crashes = job.releases = 0
        job.others = job.deliveries
        job.error = ""
        self.totals["redriven"] += 1

    def delete(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Remove jobs, whatever state they are in."""

        def remove(job: ModelJob) -> Outcome:
            del self.jobs[job.number]
            self.totals["deleted"] += 1
            return Outcome.DONE

        return self._move(numbers, remove)

    def purge(self, states: Sequence[str], step: int | None = None) -> int:
        """Remove the jobs of some states, also those among them that have expired.

        Args:
            states: as a reader sees them.
            step: one step alone, of those that these states take.
        """
        steps = [("scheduled", "scheduled", 1), ("active", "active", 1), ("active", "once", 1)]
        steps += [("ready", "ready", 0), ("ready", "scheduled", 0), ("ready", "active", 0)]
        steps += [("dead", "dead", 0)]
        wanted = [(place, later) for state, place, later in steps if state in states]
        chosen = wanted if step is None else [wanted[step]]
        gone = [job for job in self.jobs.values() if (job.place, self._is_later(job)) in chosen]
        for job in gone:
            del self.jobs[job.number]
        self.totals["purged"] += len(gone)
        return len(gone)

    def _is_later(self, job: ModelJob) -> bool:
        return job.place not in ("ready", "dead") and job.at > self.now

    def expire(self, finished: Sequence[ModelJob] = ()) -> tuple[int, int]:
        """One step of removing jobs whose ttl has ended: how many, and of those at most once.

        Args:
            finished: jobs that the same call has ended; they take part of the step.
        """
        over = [job for job in (*self.jobs.values(), *finished) if self.has_expired(job)]
        counts = []
        for once in (False, True):
            kind = [job for job in over if (job.place == "once") is once]
            gone = sorted(kind, key=lambda job: (job.expires, job.tag * once, job.number))[:STEP]
            gone = [job for job in gone if job.number in self.jobs]
            for job in gone:
                del self.jobs[job.number]
            counts.append(len(gone))
        self.totals["swept"] += sum(counts)
        return counts[0], counts[1]

    def _trim_after(self, died: int) -> None:
        if self.totals["died"] > died:
            self._trim()

    def _trim(self) -> int:
        """One step of bounding the dead letters, by age and number."""
        dead = self.at("dead")
        old = sum(job.at <= self.now - self.setting("dead_age") for job in dead)
        gone = dead[: min(STEP, max(old, len(dead) - self.setting("dead_max")))]
        for job in gone:
            del self.jobs[job.number]
        self.totals["trimmed"] += len(gone)
        return len(gone)

    def sweep(self, quiet: int) -> tuple[int, bool]:
        """One run of the script: how many were removed, and whether to call again.

        Args:
            quiet: ms since something was written last.
        """
        steps = (*self.expire(), self._trim())
        removed = sum(steps)
        idle = not (removed or self.jobs or self.settings or self.paused)
        if self.exists and idle and quiet >= IDLE_MS:
            self._forget()
        return removed, STEP in steps

    def configure(self, values: dict[str, int | None]) -> None:
        """Set settings, or drop them (None)."""
        self._begin()
        for name, value in values.items():
            if value is None:
                self.settings.pop(name, None)
            else:
                self.settings[name] = value

    def pause(self, side: str) -> None:
        """Pause a side; '' = none."""
        self._begin()
        self.paused = side
