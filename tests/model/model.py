"""A model of a queue in plain Python: written from the rules, with lists where Redis has keys.

One `Model` stands for one queue of one server. Times are whole milliseconds. `now` is the queue's
clock; the test sets it before each call. Random choices of the queue (receipt tags, the jitter of a
backoff) are given to the model, or copied within their bounds.

`jobs.py` has the jobs, `state.py` the state, `adding.py` and `delivering.py` these two kinds of
calls; reports, moves and removals are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from penstock import Outcome
from tests.model.delivering import ModelDelivering
from tests.model.jobs import (
    NEVER,
    STEP,
    DedupId,
    ModelJob,
    Name,
    Number,
)
from tests.model.keys import script


class Model(ModelDelivering):
    """A modelled queue."""

    # -- settling ------------------------------------------------------------------------

    def _held(self, name: Name) -> tuple[Outcome, ModelJob]:
        """Return the outcome of a call with this id or receipt, and the job."""
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
        """End deliveries of leased jobs; naming one by id makes its receipt stale.

        All names are judged by the state before the call; a job is ended once.

        Args:
            names: of the jobs.
            change: the effect on each.
            may_wait: by id alone also to jobs that have no holder.
        """
        outcomes = []
        died = self.totals["died"]
        ended: set[Number] = set()
        for name, (outcome, job) in [(name, self._held(name)) for name in names]:
            if outcome is Outcome.DONE and job.place == "once" and job.number not in ended:
                outcome = Outcome.REFUSED
            waits = job.place in ("ready", "scheduled", "parked")
            if outcome is Outcome.REFUSED and may_wait and (waits or job.number in ended):
                outcome = Outcome.DONE
            if outcome is Outcome.DONE and job.number in ended:
                outcome = Outcome.ENDED
            elif outcome is Outcome.DONE:
                ended.add(job.number)
                job.void |= name[1] is None and job.place == "active"
                change(job)
                if job.number not in self.jobs:
                    outcome = Outcome.CANCELLED
                elif job.place == "dead" and not may_wait:
                    outcome = Outcome.DEAD
            outcomes.append(outcome)
        self._trim_after(died, STEP + 2 * (self.totals["died"] - died))
        return outcomes

    @script
    def ack(self, names: Iterable[Name], window: int | None = None) -> list[Outcome]:
        """Finish jobs; by id waiting ones too. A given window overrides their own."""
        outcomes = []
        done: dict[Number, None] = {}  # in the order of the call
        for outcome, job in [self._held(name) for name in names]:
            if outcome is Outcome.REFUSED and job.place in ("ready", "scheduled", "parked"):
                outcome = Outcome.DONE
            if outcome is Outcome.DONE:
                done[job.number] = None
            outcomes.append(outcome)
        for number in done:
            self._drop(self.jobs[number], done=True, window=window)
        self.totals["acked"] += len(done)
        return outcomes

    @script
    def hand_over(
        self, name: Name, bodies: Sequence[bytes], keys: Mapping[bytes, str], delay: int
    ) -> tuple[list[Outcome], list[ModelJob]]:
        """Finish a job and add those that follow it; return the outcome, and the new jobs."""
        outcomes = self.ack([name])
        if outcomes != [Outcome.DONE]:
            return outcomes, []
        jobs = [ModelJob((0, 0), body, None, None, "ready", 0) for body in bodies]
        for job in jobs:
            job.key = keys.get(job.body, "")
            self._added(job, self.now + delay if delay else 0)
        return outcomes, jobs

    @script
    def settle(
        self, names: Sequence[Name], n: int, tag: int
    ) -> tuple[list[Outcome], list[ModelJob], bool]:
        """Finish jobs and reserve others; return if more could be reserved now."""
        before = dict(self.jobs)
        self._successors = []
        outcomes = self.ack(names)
        finished = [before[number] for number in before if number not in self.jobs]
        return outcomes, *self.reserve(n, tag, finished, len(names))

    @script
    def nack(self, names: Iterable[Name], delay: int | None, error: str) -> list[Outcome]:
        """Count failures: back off (None = by the policy), or bury."""

        def fail(job: ModelJob) -> None:
            if job.marked:
                self._end_marked(job)
                return
            job.nacks += 1
            job.error = error or job.error
            if error:
                job.note(error)
            self.totals["nacked"] += 1
            if job.nacks + job.crashes >= self.attempts(job):
                self._die(job, "")
            else:
                self._put_back(job, delay)
                self.line_up(job)

        return self._each(names, fail)

    @script
    def release(self, names: Iterable[Name], delay: int) -> list[Outcome]:
        """Release jobs; without a delay a bounded number of times."""

        def give_back(job: ModelJob) -> None:
            if job.marked:
                self._end_marked(job)
                return
            job.releases += delay == 0
            job.snoozes += delay > 0
            job.others += 1
            self.totals["released"] += 1
            if delay == 0 and job.releases >= self.limit("max_releases"):
                self._die(job, f"released {job.releases} times")
            elif delay and job.snoozes >= self.limit("max_snoozes"):
                self._die(job, f"snoozed {job.snoozes} times")
            else:
                self._put_back(job, delay)
                self.line_up(job)

        return self._each(names, give_back)

    def _put_back(self, job: ModelJob, delay: int | None) -> None:
        job.place, job.raised = "scheduled", False
        if delay is None:
            _, base, cap, _ = job.retry or (None, None, None, None)
            most = (base or self.setting("backoff_base")) * 2 ** (job.nacks - 1)
            most = max(1, min(cap or self.setting("backoff_cap"), most))
            if job.ends is None or job.ends > self.now:
                job.drawn = range(job.capped(self.now + 1), job.capped(self.now + most) + 1)
            else:
                job.at = job.ends
        elif delay:
            job.at = job.capped(self.now + delay)
        else:
            job.at = job.capped(min(job.number[0], self.now))
        if job.drawn is None:
            job.place_by(self.now)
        job.is_late |= job.drawn is None and job.at > self.now
        if job.drawn is None:
            self.postpone(job)
        elif job.drawn[0] > self.now and not self.is_ordered:
            self.give_back(job)

    @script
    def bury(self, names: Sequence[Name], reason: str) -> list[Outcome]:
        """Bury jobs; by id waiting ones too."""

        def give_up(job: ModelJob) -> None:
            job.others += job.place == "active"
            if reason and job.place == "active":
                job.note(reason)
            self._die(job, "")
            job.error = reason

        return self._each(names, give_up, may_wait=True)

    @script
    def extend(
        self, names: Iterable[Name], lease: int | None, late: bool = False
    ) -> list[Outcome | int]:
        """Extend leases, and return the ms from now for each."""
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

    # -- moving --------------------------------------------------------------------------

    def _move(
        self, numbers: Iterable[Number], move: Callable[[ModelJob], Outcome]
    ) -> list[Outcome]:
        """Return an outcome for each; a job named twice is moved once, with equal outcomes."""
        answers: dict[Number, Outcome] = {}
        outcomes = []
        for number in numbers:
            job = self.jobs.get(number)
            if number not in answers:
                answers[number] = Outcome.GONE if job is None else move(job)
            outcomes.append(answers[number])
        return outcomes

    @script
    def promote(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Make jobs ready at the place of their creation; a delivery ends."""

        def forward(job: ModelJob) -> Outcome:
            if self.has_expired(job) and job.place != "once":
                return Outcome.EXPIRED
            if job.place not in ("scheduled", "active") or self.waits(job):
                return Outcome.REFUSED
            place = self.now if job.has_ticket else min(self.now, job.number[0])
            if job.place == "scheduled" and job.at <= place:
                return Outcome.REFUSED  # it is at its place
            self._end_unsaid(job)
            self._put_back(job, 0)
            self.totals["promoted"] += 1
            return Outcome.DONE

        return self._move(numbers, forward)

    @script
    def dequeue(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Move ready jobs out for the time of their lease."""

        def out(job: ModelJob) -> Outcome:
            if self.has_expired(job) and job.place != "once":
                return Outcome.EXPIRED
            if self.state(job) != "ready" or job.lease == 0:
                return Outcome.REFUSED
            self._end_unsaid(job)
            self._put_back(job, self.span(job))
            self.totals["postponed"] += 1
            return Outcome.DONE

        return self._move(numbers, out)

    def _end_unsaid(self, job: ModelJob) -> None:
        """End a delivery without its holder, whose receipt becomes stale."""
        if job.place == "active":
            job.void = True
            job.others += 1

    @script
    def withdraw(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Remove jobs that were never delivered."""

        def take_back(job: ModelJob) -> Outcome:
            if job.place not in ("ready", "scheduled", "parked") or job.delivered is not None:
                return Outcome.REFUSED
            self._drop(job)
            self.totals["withdrawn"] += 1
            return Outcome.DONE

        return self._move(numbers, take_back)

    @script
    def evict(self, n: int, dead: bool) -> int:
        """Remove jobs that are not delivered again: delivered at most once, then dead letters."""
        gone = (self.at("once") + (self.at("dead") if dead else []))[:n]
        for job in gone:
            self._drop(job)
        self.totals["evicted"] += len(gone)
        return len(gone)

    # -- removing, redriving -------------------------------------------------------------

    @script
    def redrive(self, limit: int | None = None, *, step: bool = False) -> int:
        """Redrive the oldest dead letters; their attempts start again.

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

    @script
    def redrive_these(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Redrive dead letters by number; a repeated number is refused."""
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
        """Return True if another job or a window has the job's dedup id."""
        if job.dedup_id is None or job.until:
            return False
        one = self.ids.get(job.dedup_id, DedupId())
        return self.holders(job.dedup_id) != (None, None, 0) or one.successor is not None

    def _bring_back(self, job: ModelJob) -> None:
        if job.dedup_id is not None and not job.until:
            self.ids[job.dedup_id] = DedupId(job.number)
        job.ends = job.ends_by(self.now)
        job.place, job.at = "scheduled", min(job.number[0], self.now)
        job.place_by(self.now)
        job.nacks = job.crashes = job.releases = job.snoozes = 0
        job.marked = False
        job.others = job.deliveries
        job.error = ""
        self.totals["redriven"] += 1

    @script
    def delete(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Remove jobs in any state."""

        def remove(job: ModelJob) -> Outcome:
            self._drop(job)
            self.totals["deleted"] += 1
            return Outcome.DONE

        return self._move(numbers, remove)

    @script
    def cancel(self, numbers: Iterable[Number]) -> list[Outcome]:
        """Remove waiting jobs, and mark active ones."""

        def end(job: ModelJob) -> Outcome:
            if job.place == "active" and job.at > self.now:
                job.marked = True
                return Outcome.CANCELLED
            if job.place in ("once", "dead"):
                return Outcome.REFUSED
            self._end_marked(job)
            return Outcome.DONE

        return self._move(numbers, end)

    def purge(self, states: Sequence[str], step: int | None = None) -> int:
        """Remove the jobs of some states, also those among them that have expired.

        Args:
            states: as a reader sees them.
            step: one step alone, of those that these states take.
        """
        steps = [("ready", "ready", 0), ("parked", "parked", 0)]
        steps += [("scheduled", "scheduled", 1), ("dependent", "scheduled", 2)]
        steps += [("active", "active", 1)]
        steps += [("active", "once", 1), ("ready", "scheduled", 0), ("ready", "active", 0)]
        steps += [("dead", "dead", 0)]
        wanted = [(place, later) for state, place, later in steps if state in states]
        chosen = wanted if step is None else [wanted[step]]
        count = 0
        for place, later in chosen:
            count += self._purge_part(place, later)
        self.totals["purged"] += count
        return count

    @script
    def purge_admitted(self, present: Collection[Number]) -> int:
        """Remove jobs that this purge has admitted, and that one of its later steps has removed."""
        gone = [self.jobs[one] for one in self.freed if one in self.jobs and one not in present]
        for job in gone:
            self._drop(job)
        self.totals["purged"] += len(gone)
        return len(gone)

    def _purge_rank(self, job: ModelJob) -> int:
        """Return 0 for a job that is due, 1 for a later one, 2 for a successor."""
        return int(self._is_later(job)) + (job.at == NEVER)

    @script
    def _purge_part(self, place: str, later: int) -> int:
        jobs = self.jobs.values()
        gone = [job for job in jobs if (job.place, self._purge_rank(job)) == (place, later)]
        for job in sorted(gone, key=lambda job: job.order):
            self._drop(job)
        return len(gone)
