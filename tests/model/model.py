"""What a queue does, in plain Python: written from the rules, with lists where Redis has keys.

One `Model` stands for one queue of one server. Times are whole milliseconds. `now` is the queue's
clock and is set before each call by whoever drives the model; random choices of the queue (receipt
tags, the jitter of a backoff) are told to it or taken over within their bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock import Outcome
from tests.model.clock import REACH

__all__ = [
    "DEFAULTS",
    "MONTH",
    "NEVER",
    "OWNER",
    "Answer",
    "DedupId",
    "Model",
    "ModelJob",
    "Name",
    "Number",
    "Policy",
]

Number: TypeAlias = tuple[int, int]
"""Creation ms and place within it."""
Receipt: TypeAlias = tuple[int, int]
"""Number of the delivery and its tag."""
Name: TypeAlias = tuple[Number, Receipt | None]
"""A job as a caller names it: with the receipt of a delivery, or by id alone."""
Policy: TypeAlias = tuple[int | None, int | None, int | None]
"""Attempts, base and cap in ms; None leaves a part to the queue."""
Place = Literal["ready", "scheduled", "active", "once", "dead"]

FIRST_SEQ = 1_000_000_000
MONTH = 30 * 86_400_000  # a number further ahead of the time was made at a wrong time
STEP = 100  # expired jobs, and dead letters, that a script of no job removes
SWEPT = 1000  # that one sweep removes
IDLE_MS = 60_000
OWNER = "tester"  # who takes all jobs
NEVER = (1 << 53) - 1  # due time of a job that waits for the end of another one
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


def reach(size: int) -> int:
    """How many expired jobs, and dead letters, a script lists that is about so many jobs."""
    return REACH + 0 * size


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
    provisional: bool = False  # the end of its lease is no crash
    void: bool = False  # the next delivery's number is set aside: no receipt is of the last one
    others: int = 0  # deliveries that ended, or were made again, otherwise than by a nack
    nacks: int = 0
    crashes: int = 0
    releases: int = 0
    error: str = ""
    delivered: int | None = None
    drawn: range | None = field(default=None, repr=False)  # `at` is anywhere in here
    dedup_id: str | None = None
    window: int | None = None  # ms for which the dedup id stays taken after an ack
    retry: Policy | None = None  # its own
    ends: int | None = None  # when its ttl ends
    until: str = ""  # s: the id is free from the first delivery on; e: the job never has it

    @property
    def expires(self) -> int | None:
        """When its ttl ends."""
        return None if self.ttl is None else self.number[0] + self.ttl

    def ends_by(self, now: int) -> int | None:
        """The end of its ttl by its number; one that lies ahead of the time counts from now."""
        return None if self.ttl is None else min(now, self.number[0]) + self.ttl

    def capped(self, at: int) -> int:
        """A time, or the end of its ttl if that is earlier."""
        return at if self.ends is None else min(at, self.ends)

    @property
    def may_expire(self) -> bool:
        """Whether the end of its ttl ends it: not a dead letter, nor one delivered at most once."""
        return self.ttl is not None and self.place in ("ready", "scheduled", "active")

    @property
    def order(self) -> tuple[int, int, Number]:
        """Its place among those of its kind."""
        return (self.at, self.tag if self.place in ("active", "once") else 0, self.number)


@dataclass
class DedupId:
    """Who has a dedup id: a job, and one that waits for its end; or a window that ends at `end`.

    The one that waits is not due before `due`, its own delay.
    """

    owner: Number | None = None
    heir: Number | None = None
    end: int = 0
    due: int = 0


@dataclass(frozen=True)
class Answer:
    """What became of one job with a dedup id; the number is None where there is only a window."""

    number: Number | None
    state: str
    action: str


class Model:
    """One queue.

    Attributes:
        now: the queue's clock.
        exists: whether there is anything of it on the server.
        jobs: every job that is not done, by number.
        last: the youngest job's number.
        settings: those that were set.
        paused: the side, or ''.
        closed: whether no jobs are added any more.
        totals: enqueued, deliveries, acked, nacked, released, crashed, died, redriven, trimmed,
            swept, deleted, purged, promoted, dequeued, withdrawn, evicted.
        made: when the queue was made.
        ids: dedup ids that somebody has, or had until a ttl or a window ended.
        freed: jobs that waited for the end of another one, and have become due by the last call.
    """

    def __init__(self) -> None:
        self.now = 0
        self.freed: list[Number] = []
        self._forget()

    def _forget(self) -> None:
        self.exists = False
        self.made = 0
        self.jobs: dict[Number, ModelJob] = {}
        self.last: Number | None = None
        self.settings: dict[str, int] = {}
        self.paused = ""
        self.closed = False
        self.totals: Counter[str] = Counter()
        self.ids: dict[str, DedupId] = {}
        self._heirs: list[tuple[Number, int]] | None = None  # whose turn comes when the call ends

    def setting(self, name: str) -> int:
        """What applies: the stored setting or the default."""
        return self.settings.get(name, DEFAULTS[name])

    def span(self, job: ModelJob) -> int:
        """Its own lease, or the queue's; with a ttl that is at most a tenth of it, or 1 s."""
        if job.lease is not None:
            return job.lease
        usual = self.setting("lease")
        return usual if job.ttl is None else min(usual, max(1_000, job.ttl // 10))

    def limit(self, name: str) -> float:
        """The same for a limit: 0 is none."""
        return self.setting(name) or math.inf

    def attempts(self, job: ModelJob) -> float:
        """How many failures and crashes a job may have: its own number, or the queue's."""
        own = job.retry[0] if job.retry else None
        return self.limit("max_attempts") if own is None else own or math.inf

    def _begin(self) -> None:
        if not self.exists:
            self.exists, self.made = True, self.now

    # -- the jobs of a state ----------------------------------------------------------------

    def has_expired(self, job: ModelJob) -> bool:
        """Whether its ttl has ended and it has not been swept."""
        if job.place == "once":
            return job.at <= self.now
        return job.may_expire and (job.ends or 0) <= self.now

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
        retry: Policy | None = None,
    ) -> list[ModelJob] | Literal["closed", "paused", "full"]:
        """Add jobs, all of them or none; expired ones make room first."""
        refused = self._admitted(len(bodies), bound, len(bodies))
        if refused:
            return refused
        due = self.now + delay if delay > 0 else 0
        jobs = [ModelJob((0, 0), body, lease, ttl, "ready", 0, retry=retry) for body in bodies]
        return [self._added(job, due) for job in jobs]

    def _admitted(
        self, count: int, bound: int | None, asked: int
    ) -> Literal["", "closed", "paused", "full"]:
        """Whether there is room for so many; expired jobs are removed, by the size of the call."""
        if self.closed:
            return "closed"
        if self.paused in ("in", "all"):
            return "paused"
        limits = [x for x in (bound, self.settings.get("max_length")) if x is not None]
        while count and limits and self.waiting + count > min(limits):
            if not self.expire(reach(asked))[0]:
                return "full"
        self._begin()
        self.expire(reach(asked))
        return ""

    def _added(self, job: ModelJob, due: int) -> ModelJob:
        """Number a job and add it; due = 0: it is ready."""
        job.number = self._next_number()
        job.at = job.number[0]
        if job.ttl is not None:
            ahead = job.number[0] - self.now > MONTH
            job.ends = (self.now if ahead else job.number[0]) + job.ttl
        if due:
            job.place, job.at = "scheduled", job.capped(due)
        self.jobs[job.number] = job
        self.totals["enqueued"] += 1
        return job

    def _next_number(self) -> Number:
        if self.last is None or self.last[0] < self.now:
            self.last = (self.now, FIRST_SEQ)
        else:
            self.last = (self.last[0], self.last[1] + 1)
        return self.last

    # -- dedup ids --------------------------------------------------------------------------

    def claim(
        self,
        jobs: Sequence[tuple[str, bytes]],
        mode: str,
        *,
        delay: int = 0,
        lease: int | None = None,
        ttl: int | None = None,
        window: int | None = None,
        bound: int | None = None,
        retry: Policy | None = None,
    ) -> list[Answer] | Literal["closed", "paused", "full"]:
        """Add jobs with dedup ids, one after the other as if each came alone.

        Args:
            jobs: id and body of each.
            mode: what becomes of duplicates (u, d, q), and until when the ids are taken (s, e).
            delay, lease, ttl, window, bound, retry: of all of them.
        """
        adding = ("added", "requeued")
        count = sum(self._verdict(name, mode)[0] in adding for name in {name for name, _ in jobs})
        refused = self._admitted(count, bound, len(jobs))
        if refused:
            return refused
        answers = []
        new: set[Number] = set()
        until = "s" if "s" in mode else "e" if "e" in mode else ""
        for name, body in jobs:
            self._pass_on(name)
            owner = self.holders(name)[0]
            if owner and owner.place == "active" and self.state(owner) == "ready":
                owner.void = True  # its lease has ended, and the producer is told that it is ready
            action, about = self._verdict(name, mode)
            one = self.ids.get(name, DedupId())
            if action not in adding:
                answers.append(
                    self._duplicate(
                        action, about, body, new, begins="d" in mode, delay=delay, lease=lease,
                        window=window, retry=retry, until=until, name=name, mode=mode,
                    )
                )  # fmt: skip
                continue
            job = ModelJob((0, 0), body, lease, ttl, "ready", 0, retry=retry)
            job.dedup_id, job.window, job.until = name, window, until
            due = self.now + delay if delay > 0 else 0
            if action == "added":
                self._added(job, due)
                self.ids[name] = DedupId(job.number)
                if until == "e":
                    self.ids[name] = DedupId(end=self.now + (window or 0))
            elif about is None:
                self._added(job, max(one.end, self.now + delay))
                self.ids[name] = DedupId(job.number, end=one.end)
            else:
                self._added(job, NEVER)
                self.ids[name] = DedupId(about.number, job.number, due=due)
            new.add(job.number)
            state = "scheduled" if due or action == "requeued" else "ready"
            answers.append(Answer(job.number, state, action))
        return answers

    def living(self, number: Number | None) -> ModelJob | None:
        """A job, unless it has gone or its ttl has ended."""
        job = self.jobs.get(number) if number else None
        return None if job is None or self.has_expired(job) else job

    def holders(self, name: str) -> tuple[ModelJob | None, ModelJob | None, int]:
        """Who has an id, who waits for its end, and the end of the window, 0 = none is open."""
        one = self.ids.get(name, DedupId())
        owner, heir = self.living(one.owner), self.living(one.heir)
        end = one.end if one.end > self.now else 0
        return (owner, heir, end) if owner else (heir, None, end)

    def _verdict(self, name: str, mode: str) -> tuple[str, ModelJob | None]:
        """What becomes of a job, and the job that has the id or is updated."""
        owner, heir, end = self.holders(name)
        busy = owner is not None and self.state(owner) == "active"
        if heir and "u" in mode and ("q" in mode or not busy):
            return "updated", heir
        if owner and busy:
            return ("requeued" if "q" in mode and not heir else "refused"), owner
        if owner:
            return ("updated" if "u" in mode and ("q" in mode or not end) else "refused"), owner
        if end:
            return ("requeued" if "q" in mode else "refused"), None
        return "added", None

    def _duplicate(
        self,
        action: str,
        about: ModelJob | None,
        body: bytes,
        new: set[Number],
        *,
        begins: bool,
        delay: int,
        lease: int | None,
        window: int | None,
        retry: Policy | None,
        until: str,
        name: str,
        mode: str,
    ) -> Answer:
        """The answer to a duplicate, whose content may replace that of the job that is there."""
        if about is None:
            return Answer(None, "window", "refused")
        if action == "refused":
            waits = self.holders(name)[2] and "q" not in mode
            return Answer(about.number, "window" if waits else self.state(about), action)
        if about.number in new:
            about.body = body
            return Answer(about.number, self.state(about), action)
        if lease is not None and (lease == 0) is not (about.lease == 0):
            return Answer(about.number, self.state(about), "refused")
        about.body = body
        about.lease = about.lease if lease is None else lease
        about.window = about.window if window is None else window
        about.retry = about.retry if retry is None else retry
        about.until = until or about.until
        one = self.ids[name]
        due = self.now + delay if begins and delay > 0 else 0
        if one.heir == about.number:
            one.due = due if begins else one.due
        elif about.place == "ready" or (about.place == "scheduled" and begins):
            about.place = "scheduled"
            end = one.end if one.end > self.now else 0
            about.at = about.capped(max(end, due or min(self.now, about.number[0])))
        return Answer(about.number, self.state(about), action)

    def _pass_on(self, name: str) -> None:
        """An owner whose ttl has ended, and which nobody has removed yet, leaves the id."""
        one = self.ids.get(name)
        if one and one.heir and not self.living(one.owner) and self.living(one.heir):
            self._turn(one.heir, one.due)
            one.owner, one.heir, one.due = one.heir, None, 0

    def _drop(self, job: ModelJob, *, done: bool = False, window: int | None = None) -> None:
        """A job goes; done: it was acknowledged, perhaps with a window instead of its own."""
        del self.jobs[job.number]
        span = job.window if window is None else window
        if job.place != "dead":
            self._release(job, (span or 0) if done else 0)

    def _release(self, job: ModelJob, span: int = 0) -> None:
        """A job leaves its dedup id: free, taken by a window, or that of the one that waited."""
        one = self.ids.get(job.dedup_id or "")
        if one is None:
            return
        end = self.now + span if span else 0
        if one.heir == job.number:
            one.heir, one.due = None, 0
        elif one.owner == job.number and one.heir:
            self._turn(one.heir, max(end, one.due))
            one.owner, one.heir, one.end, one.due = one.heir, None, end, 0
        elif one.owner == job.number:
            one.owner, one.end = None, end or one.end
        if one.owner is None and one.end <= self.now:
            del self.ids[job.dedup_id or ""]

    def _turn(self, number: Number, at: int) -> None:
        """The turn of one that waited comes: at a time, or at once, where it was created."""
        if self._heirs is not None:
            self._heirs.append((number, at))
            return
        job = self.jobs.get(number)
        if job is not None and job.place == "scheduled":
            job.at = job.capped(max(at, min(self.now, number[0])))
            self.freed.append(number)

    def _turns(self) -> None:
        """What a call has kept back: whoever waited is not delivered by the call that frees it."""
        kept, self._heirs = self._heirs or [], None
        for number, at in kept:
            self._turn(number, at)

    # -- delivering -------------------------------------------------------------------------

    def reserve(
        self,
        n: int,
        tag: int,
        finished: Sequence[ModelJob] = (),
        asked: int = 0,
        provisional: bool = False,
    ) -> tuple[list[ModelJob], bool]:
        """One run of the script: what is delivered, and whether there is more to reserve now.

        Args:
            n, tag: of the call.
            finished: what the same call acknowledged.
            asked: how many were named to be acknowledged.
            provisional: whether the lease of a suspect ends without a crash.
        """
        self._heirs = self._heirs or []
        step = reach(max(n, asked))
        ended = [job for job in self.at("active", finished) if job.at <= self.now]
        self.expire(step, finished)
        if self.paused in ("out", "all"):
            self._turns()
            return [], False
        held = self.paused != "in"
        taken = self._take_ended(ended if held and n else [], n, step)
        kinds: tuple[Place, ...] = ("ready", "scheduled") if held else ("ready",)
        due = [job for kind in kinds for job in self.at(kind) if self._may_go(job)]
        for job in sorted(due, key=lambda job: (job.at, job.number))[: n - len(taken)]:
            taken.append(job)
        for job in taken:
            self._deliver(job, tag, provisional)
        if len(taken) < n:  # it has met every job that could be in its way
            self._pass_over(("active", *kinds) if held else kinds)
        self._turns()
        return taken, self.has_more

    @property
    def has_more(self) -> bool:
        """Whether there is more to reserve now, be it expired."""
        if self.paused in ("out", "all"):
            return False
        kinds: tuple[Place, ...] = ("ready",) if self.paused else ("ready", "scheduled", "active")
        return any(self._is_due(job) for kind in kinds for job in self.at(kind))

    def _pass_over(self, kinds: Sequence[Place]) -> None:
        self._remove_expired(
            [job for kind in kinds for job in self.at(kind) if self.has_expired(job)]
        )

    def _remove_expired(self, gone: Sequence[ModelJob]) -> None:
        self.totals["swept"] += len(gone)
        self.totals["expired_active"] += sum(job.place == "active" for job in gone)
        for job in gone:
            self._drop(job)

    def found(self, there: Collection[Number]) -> None:
        """Drop the expired jobs that a call has met and removed beside those that it listed."""
        self._heirs = self._heirs or []
        met = [job for job in self.jobs.values() if job.number not in there]
        self._remove_expired([job for job in met if self.has_expired(job)])
        self._turns()

    def _may_go(self, job: ModelJob) -> bool:
        return self._is_due(job) and not self.has_expired(job)

    def _is_due(self, job: ModelJob) -> bool:
        return job.place == "ready" or job.at <= self.now

    def _take_ended(self, ended: Iterable[ModelJob], n: int, step: int) -> list[ModelJob]:
        taken: list[ModelJob] = []
        died = self.totals["died"]
        for job in ended:
            if len(taken) == n:
                break
            if job.number not in self.jobs or self.has_expired(job):
                continue
            if self._crash(job):
                taken.append(job)
        self._trim_after(died, step)
        return taken

    def _crash(self, job: ModelJob) -> bool:
        """Its holder never spoke; whether it may be delivered again."""
        job.others += 1
        if job.provisional:
            job.releases += 1
            return True
        job.crashes += 1
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
            and not job.void
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
            self._trim_after(died, reach(len(part)))
            taken += [] if lost else alive
            lost = False
        return taken

    def _deliver(self, job: ModelJob, tag: int, provisional: bool = False) -> None:
        if job.until == "s":  # mostly it has left it before
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

    def _die(self, job: ModelJob, why: str) -> None:
        job.place, job.at, job.error = "dead", self.now, why or job.error
        self._release(job)
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
            same = receipt == (job.deliveries, job.tag) and not job.void
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
        self._trim_after(died, reach(self.totals["died"] - died))
        return outcomes

    def ack(self, names: Iterable[Name], window: int | None = None) -> list[Outcome]:
        """Finish jobs; by id alone waiting ones too. A window stands instead of their own."""
        outcomes = []
        done: set[Number] = set()
        for outcome, job in [self._held(name) for name in names]:
            if outcome is Outcome.REFUSED and job.place in ("ready", "scheduled"):
                outcome = Outcome.DONE
            if outcome is Outcome.DONE:
                done.add(job.number)
            outcomes.append(outcome)
        for number in done:
            self._drop(self.jobs[number], done=True, window=window)
        self.totals["acked"] += len(done)
        return outcomes

    def settle(
        self, names: Sequence[Name], n: int, tag: int
    ) -> tuple[list[Outcome], list[ModelJob], bool]:
        """Finish jobs and take others; whether there is more to reserve now."""
        before = dict(self.jobs)
        self._heirs = []
        outcomes = self.ack(names)
        finished = [before[number] for number in before if number not in self.jobs]
        return outcomes, *self.reserve(n, tag, finished, len(names))

    def nack(self, names: Iterable[Name], delay: int | None, error: str) -> list[Outcome]:
        """Report failures: back off (None = by the policy), or die."""

        def fail(job: ModelJob) -> None:
            job.nacks += 1
            job.error = error or job.error
            self.totals["nacked"] += 1
            if job.nacks + job.crashes >= self.attempts(job):
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
            _, base, cap = job.retry or (None, None, None)
            most = (base or self.setting("backoff_base")) * 2 ** (job.nacks - 1)
            most = max(1, min(cap or self.setting("backoff_cap"), most))
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
            if outcome is Outcome.DONE and (job.place == "once" or job.void):
                outcome = Outcome.REFUSED
            if outcome is Outcome.DONE and job.number in seen:
                outcome = Outcome.ENDED
            elif outcome is Outcome.DONE:
                seen.add(job.number)
                till = job.capped(self.now + (lease or self.span(job)))
                if till <= self.now:
                    outcome = Outcome.GONE
                elif job.ttl and not late and (self.now - job.number[0]) * 2 > job.ttl:
                    outcome = Outcome.TOO_LATE
                else:
                    job.at, job.provisional = till, False
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
            if job.place not in ("scheduled", "active") or self.waits(job):
                return Outcome.REFUSED
            if job.place == "scheduled" and job.at <= min(self.now, job.number[0]):
                return Outcome.REFUSED  # it stands at its place
            self._end_unsaid(job)
            self._put_back(job, 0)
            self.totals["promoted"] += 1
            return Outcome.DONE

        return self._move(numbers, forward)

    def waits(self, job: ModelJob) -> bool:
        """Whether it waits for the end of the job that has its dedup id, or of the window."""
        one = self.ids.get(job.dedup_id or "", DedupId())
        window = one.owner == job.number and one.end > self.now
        return job.place == "scheduled" and (one.heir == job.number or window)

    def dequeue(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Take out what could be reserved, for the time of its own lease."""

        def out(job: ModelJob) -> Outcome:
            if self.has_expired(job) and job.place != "once":
                return Outcome.EXPIRED
            if self.state(job) != "ready" or job.lease == 0:
                return Outcome.REFUSED
            self._end_unsaid(job)
            self._put_back(job, self.span(job))
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
            self._drop(job)
            self.totals["withdrawn"] += 1
            return Outcome.DONE

        return self._move(numbers, take_back)

    def evict(self, n: int, dead: bool) -> int:
        """Remove what nobody will be given again: delivered at most once, then dead letters."""
        gone = (self.at("once") + (self.at("dead") if dead else []))[:n]
        for job in gone:
            self._drop(job)
        self.totals["evicted"] += len(gone)
        return len(gone)

    # -- removing, bringing back ------------------------------------------------------------

    def redrive(self, limit: int | None = None, *, step: bool = False) -> int:
        """Bring so many of the oldest dead letters back; their attempts start anew.

        Args:
            limit: None = all.
            step: one run of the script, which looks at no more of them than it may bring back.
        """
        done = 0
        letters = self.at("dead")
        for job in letters[:limit] if step else letters:
            if done == limit:
                break
            if not self._is_over(job) and not self._is_taken(job):
                self._bring_back(job)
                done += 1
        return done

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
            elif self._is_taken(job):
                outcomes.append(Outcome.TAKEN)
            else:
                self._bring_back(job)
                outcomes.append(Outcome.DONE)
            seen.add(number)
        return outcomes

    def _is_over(self, job: ModelJob) -> bool:
        ends = job.ends_by(self.now)
        return ends is not None and ends <= self.now

    def _is_taken(self, job: ModelJob) -> bool:
        """Whether somebody else has its dedup id by now."""
        if job.dedup_id is None or job.until:
            return False
        one = self.ids.get(job.dedup_id, DedupId())
        return self.holders(job.dedup_id) != (None, None, 0) or one.heir is not None

    def _bring_back(self, job: ModelJob) -> None:
        if job.dedup_id is not None and not job.until:
            self.ids[job.dedup_id] = DedupId(job.number)
        job.ends = job.ends_by(self.now)
        job.place, job.at = "scheduled", min(job.number[0], self.now)
        job.nacks = job.crashes = job.releases = 0
        job.others = job.deliveries
        job.error = ""
        self.totals["redriven"] += 1

    def delete(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Remove jobs, whatever state they are in."""

        def remove(job: ModelJob) -> Outcome:
            self._drop(job)
            self.totals["deleted"] += 1
            return Outcome.DONE

        return self._move(numbers, remove)

    def purge(self, states: Sequence[str], step: int | None = None) -> int:
        """Remove the jobs of some states, also those among them that have expired.

        Args:
            states: as a reader sees them.
            step: one step alone, of those that these states take.
        """
        steps = [("ready", "ready", 0), ("scheduled", "scheduled", 1), ("active", "active", 1)]
        steps += [("active", "once", 1), ("ready", "scheduled", 0), ("ready", "active", 0)]
        steps += [("dead", "dead", 0)]
        wanted = [(place, later) for state, place, later in steps if state in states]
        chosen = wanted if step is None else [wanted[step]]
        count = 0
        for part in chosen:
            jobs = self.jobs.values()
            gone = [job for job in jobs if (job.place, int(self._is_later(job))) == part]
            for job in sorted(gone, key=lambda job: job.order):
                self._drop(job)
            count += len(gone)
        self.totals["purged"] += count
        return count

    def clear(self) -> int:
        """Remove everything: how many jobs."""
        count = len(self.jobs)
        self._forget()
        return count

    def _is_later(self, job: ModelJob) -> bool:
        return job.place not in ("ready", "dead") and job.at > self.now

    def expire(self, step: int = STEP, finished: Sequence[ModelJob] = ()) -> tuple[int, int]:
        """One step of removing jobs whose ttl has ended: how many, and of those at most once.

        Args:
            step: at most so many of each kind.
            finished: jobs that the same call has ended; they take part of the step.
        """
        over = [job for job in (*self.jobs.values(), *finished) if self.has_expired(job)]
        counts = []
        for once in (False, True):
            kind = [job for job in over if (job.place == "once") is once]
            ends = {job.number: (job.at, job.tag) if once else (job.ends or 0, 0) for job in kind}
            gone = sorted(kind, key=lambda job: (ends[job.number], job.number))[:step]
            gone = [job for job in gone if job.number in self.jobs]
            self._remove_expired(gone)
            counts.append(len(gone))
        return counts[0], counts[1]

    def _trim_after(self, died: int, step: int) -> None:
        if self.totals["died"] > died:
            self._trim(step)

    def _trim(self, step: int) -> int:
        """One step of bounding the dead letters, by age and number."""
        dead = self.at("dead")
        old = sum(job.at <= self.now - self.setting("dead_age") for job in dead)
        gone = dead[: min(step, max(old, len(dead) - self.setting("dead_max")))]
        for job in gone:
            self._drop(job)
        self.totals["trimmed"] += len(gone)
        return len(gone)

    def sweep(self, quiet: int, *, compacts: bool = False) -> tuple[int, bool]:
        """One run of the script: how many were removed, and whether to call again.

        Args:
            quiet: ms since something was written last.
            compacts: whether the stream of ready jobs is a sparse one.
        """
        windows = self._shut()
        steps = (*self.expire(SWEPT), self._trim(SWEPT))
        removed = sum(steps)
        for job in self.at("ready") if compacts and not self.paused else ():
            job.place, job.at = "scheduled", min(self.now, job.number[0])
        kept = self.ids or self.jobs or self.settings or self.paused or self.closed
        idle = not (removed or windows or kept)
        if self.exists and idle and quiet >= IDLE_MS:
            self._forget()
        return removed, SWEPT in steps

    def _shut(self) -> bool:
        """Windows that have ended are forgotten."""
        over = [name for name, one in self.ids.items() if one.end and one.end <= self.now]
        for name in over:
            self.ids[name].end = 0
            if self.ids[name].owner is None:
                del self.ids[name]
        return bool(over)

    def configure(self, values: dict[str, int | None]) -> None:
        """Set settings, or drop them (None)."""
        self._begin()
        for name, value in values.items():
            if value is None:
                self.settings.pop(name, None)
            else:
                self.settings[name] = value

    def close(self, closed: bool) -> None:
        """Take no more jobs, or take jobs again."""
        self._begin()
        self.closed = closed

    @property
    def drained(self) -> bool:
        """Whether it is closed, and nothing is left that could be delivered."""
        places = {job.place for job in self.jobs.values()}
        return self.closed and not places & {"ready", "scheduled", "active"}

    def pause(self, side: str) -> None:
        """Pause a side; '' = none."""
        self._begin()
        self.paused = side
