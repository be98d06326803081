"""The state of a modelled queue: its settings and jobs, and their removal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from penstock.core.flows import POLL_INTERVAL
from penstock.core.flows.sweeping import IDLE_MS
from tests.model.jobs import DEFAULTS, NEVER, STEP, SWEPT, DedupId, ModelJob, Number, Place
from tests.model.keys import ModelKeys, script

WAITING: tuple[Place, ...] = ("ready", "scheduled")
"""Places of the jobs that a reserve considers."""


class ModelState(ModelKeys):
    """The state of one queue.

    Attributes:
        now: the queue's clock.
        exists: the server has data of it.
        jobs: every job that is not done, by number.
        last: the youngest job's number.
        settings: those that were set.
        paused: the side, or ''.
        closed: whether no jobs are added any more.
        totals: enqueued, deliveries, acked, nacked, released, crashed, died, redriven, trimmed,
            expired, deleted, cancelled, purged, promoted, postponed, withdrawn, evicted.
        made: creation time of the queue.
        ids: dedup ids that a job has, or had until a ttl or a window ended.
        freed: successors and parked jobs that the last call made due.
    """

    def __init__(self) -> None:
        self.now = 0
        self.freed: list[Number] = []
        self._forget()
        self.begin_script()

    def _forget(self) -> None:
        self.exists = False
        self.made = 0
        self.jobs: dict[Number, ModelJob] = {}
        self.last: Number | None = None
        self.settings: dict[str, int] = {}
        self.turns: dict[str, int] = {}
        self.paces: dict[str, int] = {}
        self.held_until = 0
        self.paused = ""
        self.closed = False
        self.totals: Counter[str] = Counter()
        self.ids: dict[str, DedupId] = {}
        self.tat = 0  # of the rate
        self._successors: list[tuple[Number, int]] | None = None  # to free at the end

    def setting(self, name: str) -> int:
        """Return the stored setting, or the default."""
        return self.settings.get(name, DEFAULTS[name])

    def span(self, job: ModelJob) -> int:
        """Return its own lease, or the queue's; with a ttl at most a tenth of it,
        but at least 1 s.
        """
        if job.lease is not None:
            return job.lease
        usual = self.setting("lease")
        return usual if job.ttl is None else min(usual, max(1_000, job.ttl // 10))

    def limit(self, name: str) -> float:
        """Return a setting that is a limit; 0 = no limit."""
        return self.setting(name) or math.inf

    def attempts(self, job: ModelJob) -> float:
        """Return how many failures and crashes a job may have: its own number, or the queue's."""
        own = job.retry[0] if job.retry else None
        return self.limit("max_attempts") if own is None else own or math.inf

    def _begin(self) -> None:
        if not self.exists:
            self.exists, self.made = True, self.now

    # -- the jobs of a state -------------------------------------------------------------

    def has_expired(self, job: ModelJob) -> bool:
        """Return True if the job's ttl has ended and it has not been removed."""
        if job.place == "once":
            return job.at <= self.now
        return job.may_expire and (job.ends or 0) <= self.now

    def state(self, job: ModelJob) -> str:
        """Return the state as readers see it."""
        if self.has_expired(job):
            return "expired"
        if job.place in ("scheduled", "active") and self._is_due(job):
            return "ready"
        return "active" if job.place == "once" else job.place

    def listed(self, state: str) -> list[ModelJob]:
        """Return the jobs of a state, in order."""
        found = [job for job in self.jobs.values() if self.state(job) == state]
        if state == "ready":
            return sorted(found, key=lambda job: (job.place != "active", *job.order))
        return sorted(found, key=lambda job: (job.place == "once", *job.order))

    @property
    def waiting(self) -> int:
        """Return the jobs that count for the bound."""
        places = ("ready", "scheduled", "parked")
        return sum(job.place in places and job.at != NEVER for job in self.jobs.values())

    @property
    def oldest(self) -> int | None:
        """Return for how long the oldest waiting job could have been reserved."""
        ages = [self.now - job.at for job in self.listed("ready")]
        return max(0, *ages) if ages else None

    def at(self, place: Place, besides: Iterable[ModelJob] = ()) -> list[ModelJob]:
        """Return the jobs of a place, in order."""
        found = [job for job in (*self.jobs.values(), *besides) if job.place == place]
        return sorted(found, key=lambda job: job.order)

    # -- dedup ids -----------------------------------------------------------------------

    def living(self, number: Number | None) -> ModelJob | None:
        """Return a job, unless it is gone or its ttl has ended."""
        job = self.jobs.get(number) if number else None
        return None if job is None or self.has_expired(job) else job

    def holders(self, name: str) -> tuple[ModelJob | None, ModelJob | None, int]:
        """Return an id's owner, its successor, and the end of its window, 0 = none is open."""
        one = self.ids.get(name, DedupId())
        owner, successor = self.living(one.owner), self.living(one.successor)
        end = one.end if one.end > self.now else 0
        return (owner, successor, end) if owner else (successor, None, end)

    def _pass_on(self, name: str) -> None:
        """Free the id of an owner whose ttl has ended but that is not removed yet."""
        one = self.ids.get(name)
        if one and one.successor and not self.living(one.owner) and self.living(one.successor):
            self._turn(one.successor, one.due)
            one.owner, one.successor, one.due = one.successor, None, 0

    def _drop(self, job: ModelJob, *, done: bool = False, window: int | None = None) -> None:
        """Remove a job; done means acknowledged, perhaps with a window that overrides its own."""
        del self.jobs[job.number]
        self.give_back(job)
        span = job.window if window is None else window
        if job.place != "dead":
            self._release(job, (span or 0) if done else 0)

    def _release(self, job: ModelJob, span: int = 0) -> None:
        """Free the dedup id of a job, open its window, or give the id to the successor."""
        one = self.ids.get(job.dedup_id or "")
        if one is None:
            return
        end = self.now + span if span else 0
        if one.successor == job.number:
            one.successor, one.due = None, 0
        elif one.owner == job.number and one.successor:
            self._turn(one.successor, max(end, one.due))
            one.owner, one.successor, one.end, one.due = one.successor, None, end, 0
        elif one.owner == job.number:
            one.owner, one.end = None, end or one.end
        if one.owner is None and one.end <= self.now:
            del self.ids[job.dedup_id or ""]

    def _turn(self, number: Number, at: int) -> None:
        """Make a successor due: at a time, or at once at the place of its creation."""
        if self._successors is not None:
            self._successors.append((number, at))
            return
        job = self.jobs.get(number)
        if job is not None and job.place == "scheduled":
            job.at = job.capped(max(at, min(self.now, number[0])))
            job.place_by(self.now)
            self.freed.append(number)

    def _turns(self) -> None:
        """Free the successors that a call held back, as it does not deliver them itself."""
        kept, self._successors = self._successors or [], None
        for number, at in kept:
            self._turn(number, at)

    @property
    def has_more(self) -> bool:
        """Return True if a reserve would find another job now, expired ones included."""
        return self.has_due and self.allowed_at <= self.now

    @property
    def has_due(self) -> bool:
        """Return True if a job is due, perhaps held back by the rate."""
        if self.paused in ("out", "all"):
            return False
        jobs = [] if self.paused else self.at("active")
        turns = False
        if self.free_slots > 0:
            jobs, turns = [*self.candidates, *jobs], self._turn_is_due
        return turns or any(self._is_due(job) for job in jobs)

    @property
    def _turn_is_due(self) -> bool:
        return not self.paused and self.first_turn is not None and self.first_turn <= self.now

    @property
    def free_slots(self) -> float:
        """Return how many more jobs may be delivered at once; below 0 under a lowered limit."""
        live = sum(job.at > self.now for job in self.jobs.values() if job.place == "once")
        return self.settings.get("max_active", math.inf) - len(self.at("active")) - live

    @property
    def burst_ms(self) -> int:
        """Return the time that a burst takes up."""
        return self.settings.get("rate", 0) * (self.settings.get("burst") or 1)

    @property
    def allowed_at(self) -> int:
        """Return when the rate allows the next job."""
        tat = min(max(self.tat, self.now), self.now + self.burst_ms)
        held = self.held_until if self.is_held else 0
        return max(self.now, held, tat + self.settings.get("rate", 0) - self.burst_ms)

    @property
    def is_held(self) -> bool:
        """Return True if nothing is delivered for a time."""
        return self.now < self.held_until <= self.now + 90_000_000

    @property
    def is_held_for_long(self) -> bool:
        """Return True if consumers learn by a poll that a job is allowed: none wakes them."""
        return self.allowed_at > self.now + POLL_INTERVAL * 1000

    def hold(self, span: int) -> bool:
        """Deliver nothing for so many ms; 0 = end the hold."""
        if not self.exists:
            return False
        self._begin()
        held = self.held_until if self.is_held else 0
        self.held_until = max(held, self.now + span) if span else 0
        return True

    def allowed(self, n: int) -> int:
        """Return how many of n jobs the rate allows now."""
        interval = self.settings.get("rate")
        if self.is_held:
            n = 0
        if not interval:
            return n
        self.tat = min(self.tat, self.now + self.burst_ms)
        left = self.now + self.burst_ms - max(self.tat, self.now)
        return min(n, left // interval)

    def spend(self, count: int) -> None:
        """Note deliveries."""
        interval = self.settings.get("rate")
        if interval and count:
            self.tat = max(self.tat, self.now) + count * interval

    @property
    def candidates(self) -> list[ModelJob]:
        """Return the waiting jobs that a reserve considers: paused for producers, no due ones."""
        jobs = [job for kind in WAITING for job in self.at(kind)]
        return [job for job in jobs if not self.paused or job.place == "ready" or job.raised]

    def _remove_expired(self, gone: Sequence[ModelJob]) -> None:
        self.totals["expired"] += len(gone)
        self.totals["expired_active"] += sum(job.place == "active" for job in gone)
        for job in gone:
            self._drop(job)

    @script
    def found(self, there: Collection[Number]) -> None:
        """Remove the expired jobs that a call found in addition to the listed ones."""
        self._successors = self._successors or []
        met = [job for job in self.jobs.values() if job.number not in there]
        self._remove_expired([job for job in met if self.has_expired(job)])
        self._turns()

    def _may_go(self, job: ModelJob) -> bool:
        return self._is_due(job) and not self.has_expired(job)

    def _is_due(self, job: ModelJob) -> bool:
        raised = job.raised and job.place == "scheduled"
        return job.place == "ready" or raised or job.at <= self.now

    def _die(self, job: ModelJob, why: str) -> None:
        job.place, job.at, job.error = "dead", self.now, why or job.error
        job.is_late = True
        self.give_back(job)
        self._release(job)
        self.totals["died"] += 1

    def waits(self, job: ModelJob) -> bool:
        """Return True if the job waits for the end of its dedup id's owner or window."""
        one = self.ids.get(job.dedup_id or "", DedupId())
        window = one.owner == job.number and one.end > self.now
        return job.place == "scheduled" and (one.successor == job.number or window)

    def clear(self) -> int:
        """Remove everything, and return the number of jobs."""
        count = len(self.jobs)
        self._forget()
        return count

    def _is_later(self, job: ModelJob) -> bool:
        return job.place not in ("dead", "parked") and not self._is_due(job)

    @script
    def expire(self, step: int = STEP, finished: Sequence[ModelJob] = ()) -> tuple[int, int]:
        """Run one step of removing expired jobs; return how many, and how many of them with lease
        0.

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
        """Run one step of bounding the dead letters by age and number."""
        dead = self.at("dead")
        old = sum(job.at <= self.now - self.setting("dead_age") for job in dead)
        gone = dead[: min(step, max(old, len(dead) - self.setting("dead_max")))]
        for job in gone:
            self._drop(job)
        self.totals["trimmed"] += len(gone)
        return len(gone)

    @script
    def sweep(self, quiet: int, *, compacts: bool = False, closed: int = 0) -> tuple[int, bool]:
        """Run the script once; return how many were removed, and whether to call again.

        Args:
            quiet: ms since something was written last.
            compacts: whether the stream of ready jobs is a sparse one.
            closed: how many ended windows it forgets. When one goes is up to the scripts.
        """
        self._shut()
        steps = (*self.expire(SWEPT), self._trim(SWEPT))
        removed = sum(steps)
        for job in self.at("parked"):
            self.free(job.key)
        self.turns = {key: min(at, self.now + self.interval) for key, at in self.turns.items()}
        self.paces = {key: min(at, self.now + self.key_span) for key, at in self.paces.items()}
        self.drop_paces(SWEPT)
        for job in self.at("ready") if compacts and not self.paused else ():
            job.place, job.at = "scheduled", min(self.now, job.number[0])
        kept = self.ids or self.jobs or self.settings or self.paused or self.closed
        kept = kept or self.is_held
        idle = not (removed or closed or kept)
        if self.exists and idle and quiet >= IDLE_MS:
            self._forget()
        return removed, SWEPT in steps

    def _shut(self) -> None:
        """Remove ended windows."""
        over = [name for name, one in self.ids.items() if one.end and one.end <= self.now]
        for name in over:
            self.ids[name].end = 0
            if self.ids[name].owner is None:
                del self.ids[name]

    # -- settings ------------------------------------------------------------------------

    def configure(self, values: dict[str, int | None]) -> None:
        """Set settings, or drop them (None)."""
        self._begin()
        limits, pace = self.limits, self.pace
        if values.get("ordered") and not self.settings.get("ordered"):
            for job in self.jobs.values():  # those of earlier limits keep their tickets
                job.is_late |= job.has_ticket
        for name, value in values.items():
            if value is None:
                self.settings.pop(name, None)
                self.tat = 0 if name == "rate" else self.tat
            else:
                self.settings[name] = value
        self.loosen(limits, pace)

    def close(self, closed: bool) -> None:
        """Close or reopen the queue."""
        self._begin()
        self.closed = closed

    @property
    def drained(self) -> bool:
        """Return True if the queue is closed and no job is left that could be delivered."""
        places = {job.place for job in self.jobs.values()}
        return self.closed and not places & {"ready", "scheduled", "parked", "active"}

    def pause(self, side: str) -> None:
        """Pause a side; '' = none."""
        self._begin()
        self.paused = side
