"""What the parts of a worker share: who takes jobs, who runs them, and who renews their leases.

Three parties look at it. The loop (`loop.py`, one thread or task) takes jobs and reports what
became of them; runners (threads or tasks) run handlers; the heartbeat (a thread of its own) extends
leases. Every field is written by one of them, or by operations that the interpreter makes atomic.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from penstock.core.flows import TICK
from penstock.core.logs import get_logger
from penstock.core.operations import QueueOps, Taken
from penstock.core.options import duration_ms
from penstock.errors import QueueInUse, QueuePartitioned
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.heartbeat_process import HeartbeatProcess
from penstock.worker.isolation import Isolated, Isolator
from penstock.worker.options import WorkerOptions
from penstock.worker.polls import Finished, QueuePoll, Todo
from penstock.worker.results import ACK, Verdict
from penstock.worker.statistics import Statistics
from penstock.worker.suspects import ASIDE, Suspects, suspects_among
from penstock.worker.terms import NEAR, OVER, Term, begin, lengthened

__all__ = ["HANDED_BACK", "KEPT", "OUTCOMES", "WorkerState"]

logger = get_logger("penstock")

TRIP = 300
"""Most jobs that are taken in one trip, and most that are reported in it unless one batch has more.

A script is to be short, and what is finished meanwhile waits for the trip that is under way.
"""
SAMPLE = 1.0
"""Seconds between two looks at the sizes of the queues, while there is work."""
IDLE_SAMPLE = 60.0
"""The same while there is none."""
PATIENCE = 0.25
"""Most seconds for which a busy worker does not ask a queue that was empty."""
HEALTHY = 15.0
"""Seconds without an answer of the server after which a worker calls itself unwell."""
FAR = 1 / 2
"""The part of a lease that a round trip may not exceed: jobs would come with too little of it."""
RECHECK = 4.0
"""Most seconds between two looks at a queue that is damaged."""

OUTCOMES = {
    "ack": "done",
    "nack": "retried",
    "release": "snoozed",
    "bury": "rejected",
    "none": "settled",
}
"""What a job that was reported so is counted as."""
HANDED_BACK = Verdict("release", 0, "not begun with")
KEPT = Verdict("none")
"""Nothing is reported: the handler has settled the job itself, or its lease was lost."""


class WorkerState:
    """The shared state of one worker.

    Args:
        polls: its queues.
        dispatcher: gives jobs to the runners.
        wake: ends the loop's wait; callable from the runners, other threads and signal handlers.
        clock: monotonic seconds.
        options: of the worker.
        statistics: where its figures go.
        fields: of log records that are about the worker.

    Attributes:
        held: jobs that the server believes this worker to have, finished or not.
        finished: what runners have done with, youngest last.
        unsettled: the same by queue, taken up by the loop; it stays until the server has it.
        stopping: whether no more jobs are taken.
        waiting: whether a BLPOP is pending.
        moved: whether the queues lie on several nodes since the loop has begun.
        apart: whether queues lie on several servers: each has a BLPOP of its own, so that others
            stay when one is told, and one that is not there does not hold up others.
        awaited: the keys it waits for.
        taken: how many jobs it has taken.
        answered: when the server answered last.
        failures: of calls, since then.
        unsure: whether a report may have got through although it failed.
        next_ask: when jobs may be taken again, by the throttle.
        lap: when to look at every queue, whatever was heard.
        sample_at: when to look at their sizes.
        suspects: those it holds, and whether it makes room for one.
        beat_at: when the heartbeat will look at the leases again.
        poke: makes it look now; callable from signal handlers.
        helper: the helper process that renews leases, if there is one.
        isolator: runs suspects in a process of their own, if that is wanted.
        isolated: what this worker is handed if it runs in that process: it asks for no jobs.
        abandoned: jobs that could be neither reported nor given back at the end.
        learned: how many partitions those queues have that turned out to have some.
    """

    def __init__(
        self,
        polls: list[QueuePoll],
        dispatcher: Dispatcher,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float],
        options: WorkerOptions,
        statistics: Statistics,
        fields: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.fields = fields
        self.polls = polls
        self.dispatcher = dispatcher
        self.wake = wake
        self.clock = clock
        self.options = options
        self.capacity = options.concurrency * dispatcher.size + options.prefetch
        self.statistics = statistics
        self.held: dict[Any, None] = {}
        self.finished: deque[Finished] = deque()
        self.unsettled: dict[int, Todo] = {}
        self.stopping = False
        self._deadlines: list[float] = []
        self.waiting = False
        self.moved = False
        self.apart = False
        self.awaited: Collection[tuple[Any, bytes]] = ()
        self.taken = 0
        self.idle_rounds = 0
        self.answered = clock()
        self.failures = 0
        self.unsure = False
        self.next_ask = 0.0
        self.lap = clock() + TICK
        self.sample_at = 0.0
        self.suspects = Suspects(clock)
        self.beat_at = math.inf
        self.poke: Callable[[], None] = _nothing
        self.helper: HeartbeatProcess | None = None
        self.isolator: Isolator | None = None
        self.isolated: Isolated | None = None
        self.abandoned: set[Any] = set()
        self.learned: dict[str, int] = {}
        self._drained = False
        self._confirmed = math.inf
        self._complaints: dict[str, float] = {}
        self._places: dict[Any, int] = {}
        for place, poll in enumerate(polls):
            self._note(place, poll)

    # -- its queues ------------------------------------------------------------------------

    def _note(self, place: int, poll: QueuePoll) -> None:
        self._places[poll.ops] = place
        self._places.setdefault(poll.ops.name, place)

    def has(self, ops: QueueOps) -> bool:
        """Whether these are the operations of one of its queues."""
        return ops in self._places

    def found_partitioned(self, poll: QueuePoll, error: QueuePartitioned) -> None:
        """A queue has partitions, which are polls of their own; it is asked itself no more."""
        if error.partitions is not None:
            self.learned[poll.ops.name] = error.partitions
            poll.failures += 1
            poll.at = poll.barred = poll.drained = math.inf
            poll.woken = False

    def add(self, poll: QueuePoll) -> None:
        """One more: a node has been learned of, or that a queue has partitions."""
        self._note(len(self.polls), poll)
        self.polls.append(poll)

    def place_of(self, job: Any) -> int:
        """From which of its queues a job came."""
        found = self._places.get(job.batch.ops)
        return self._places[job.queue_name] if found is None else found

    def poll_of(self, job: Any) -> QueuePoll:
        """The one of its queues that a job came from."""
        return self.polls[self.place_of(job)]

    @property
    def sizes(self) -> dict[str, int]:
        """How many jobs could be taken when that was looked at, by queue."""
        found: dict[str, int] = {}
        for poll in self.polls:
            found[poll.ops.name] = found.get(poll.ops.name, 0) + poll.size
        return found

    @property
    def is_spread(self) -> bool:
        """Whether it has several queues, and they lie on several servers."""
        return self.apart and len(self.polls) > 1

    # -- stopping --------------------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """Take no more jobs; hand back what is not finished after `grace` seconds.

        Called again it can only shorten the grace.
        """
        until = self.clock() + (self.options.grace_s if grace is None else grace)
        self._deadlines.append(until)  # whole, should a signal come right here
        self.stopping = True
        self.wake()
        self.poke()  # the heartbeat sees to it that the worker ends, if its loop does not move

    @property
    def deadline(self) -> float:
        """When unfinished jobs are given back, by the clock."""
        return min(self._deadlines, default=math.inf)

    @property
    def is_over(self) -> bool:
        """Whether the loop has nothing more to do."""
        if self.held or (self.isolator is not None and self.isolator.job is not None):
            return self.stopping and self.clock() >= self.deadline
        return self.stopping or self._is_exhausted()

    def _is_exhausted(self) -> bool:
        most = self.options.max_jobs
        if self.is_drained or (most is not None and self.taken >= most):
            return True
        now = self.clock()
        if not self.options.burst or self.suspects.are_expected:
            return False
        return all(poll.at > now or poll.barred == math.inf for poll in self.polls)

    @property
    def is_drained(self) -> bool:
        """Whether all queues are closed and drained, and were found so in one look at them."""
        return all(poll.drained >= self._confirmed for poll in self.polls)

    @property
    def is_healthy(self) -> bool:
        """Whether the server has answered lately."""
        return self.clock() - self.answered < HEALTHY

    # -- what to ask for -------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many more jobs may be held now."""
        return self._most() - len(self.held)

    def _most(self) -> int:
        """Return how many jobs may be held: one while it makes room for a suspect."""
        return 1 if self.suspects.are_expected and not self._isolates() else self.capacity

    def room(self) -> int:
        """How many more jobs may be taken, when what is finished is reported in the same trip."""
        if self.stopping or self.isolated is not None:
            return 0
        if self.suspects.chosen is not None and self._has_suspect():
            return 0
        free = self._most() if self.suspects.expected_until else self.capacity
        free -= len(self.held)
        for todo in self.unsettled.values():
            free += todo.jobs
        most = self.options.max_jobs
        return free if most is None else min(free, most - self.taken)

    def _has_suspect(self) -> bool:
        """Return whether a suspect is held; it runs alone."""
        chosen = self.suspects.chosen
        return chosen in self.held and not chosen.lost

    def _isolates(self) -> bool:
        return self.isolator is not None and not self.isolator.is_broken

    def shares(self) -> dict[int, int]:
        """How many jobs to ask each queue for now; only queues that may have some."""
        now, room = self.clock(), self.room()
        if room <= 0 or now < self.next_ask:
            return {}
        asked = [
            i
            for i, poll in enumerate(self.polls)
            if poll.barred <= now
            and not poll.is_slow
            and (poll.at <= now or (not self.waiting and poll.recheck_at <= now))
        ]
        if len(asked) <= 1:
            return {i: min(room, TRIP) for i in asked}
        return self._weighed(asked, room)

    def _weighed(self, asked: list[int], room: int) -> dict[int, int]:
        """Divide the room by weight; the rest goes to the queue that is owed most."""
        polls, room = self.polls, min(room, TRIP)
        total = sum(polls[i].weight for i in asked)
        parts = {}
        for i in asked:
            poll = polls[i]
            poll.credit += room * poll.weight / total
            parts[i] = max(0, int(poll.credit))
            poll.credit -= parts[i]
        for _ in range(room - sum(parts.values())):
            most = max(asked, key=lambda i: polls[i].credit)
            parts[most] += 1
            polls[most].credit -= 1
        while sum(parts.values()) > room:  # by a fraction of credit from before
            least = min((i for i in asked if parts[i]), key=lambda i: polls[i].credit)
            parts[least] -= 1
            polls[least].credit += 1
        return {i: min(n, TRIP) for i, n in parts.items() if n > 0}

    def until(self) -> float:
        """When the loop has to look around next, if nothing happens before."""
        found = min(self.lap, self.sample_at, self.dispatcher.flush_at)
        for i in self.unsettled:
            found = min(found, self.polls[i].barred)
        if self.stopping:
            return min(found, self.deadline)
        if self.suspects.expected_until and self.suspects.are_expected:
            found = min(found, self.suspects.expected_until)
        if self.room() > 0:
            found = min(found, max(self.next_ask, min(map(self._next, self.polls))))
        return found

    def _next(self, poll: QueuePoll) -> float:
        if poll.is_slow:
            return math.inf  # a look at its size tells when its trips are shorter
        at = poll.at if self.may_wait else min(poll.at, poll.recheck_at)
        return max(at, poll.barred)

    @property
    def may_wait(self) -> bool:
        """Whether to wait for a token: there is room, and nothing forbids to take a job now."""
        return not self.options.burst and self.room() > 0 and self.clock() >= self.next_ask

    @property
    def wakes(self) -> dict[tuple[Any, bytes], QueuePoll]:
        """The tokens to wait for: of usable queues, but for those that have one always."""
        usable = [s for s in self.polls if s.is_usable and s.drained == -math.inf]
        return {(s.home, s.ops.keys["wake"]): s for s in usable}

    # -- what came back --------------------------------------------------------------------

    def collect(self) -> dict[int, Todo]:
        """What is to be reported, by queue; it stays here until `settled` takes it away."""
        while self.finished:
            done = self.finished.popleft()
            place = self._places.get(done.jobs[0].batch.ops)
            if place is None:
                place = self.place_of(done.jobs[0])
            todo = self.unsettled.get(place)
            if todo is None:
                todo = self.unsettled[place] = Todo()
            if done.verdict is ACK:
                todo.acks.append(done)
            else:
                todo.others.setdefault(done.verdict, []).append(done)
        return self.unsettled

    def tend(self) -> None:
        """What falls to the loop besides: batches whose time has come, and jobs not begun with."""
        if self.clock() >= self.lap:
            self.look_everywhere()
        for line in (self.isolator, self.isolated):
            if line is not None:
                line.tend(self)
        if self.unsettled:
            self._let_go()
        if self.stopping and not self._drained:
            self._drained = True
            waiting = [self.suspects.chosen] if self.suspects.waits else []
            for job in [*waiting, *self.dispatcher.drain()]:
                self.put_back(job, HANDED_BACK)
        elif self.dispatcher.flush_at <= self.clock():
            self.dispatcher.flush()

    def put_back(self, job: Any, verdict: Verdict) -> None:
        """Report so of a job that has not begun."""
        if not job.settled:
            job.settled = True
            self.finished.append(Finished((job,), verdict, 0.0))

    def _let_go(self) -> None:
        """Drop unreported results of a damaged queue once their leases have expired.

        Those of jobs delivered at most once, which have no lease, are dropped at once.
        """
        now = self.clock()
        for i in [i for i in self.unsettled if self.polls[i].failures]:
            todo = self.unsettled[i]
            lists = [todo.acks, *todo.others.values()]
            everything = [done for part in lists for done in part]
            jobs = [job for done in everything for job in done.jobs]
            if all(job.at_most_once or job.term.is_over(now) for job in jobs):
                del self.unsettled[i]
                for done in everything:
                    self.drop(done.jobs)
                    self.count(done, "lost", len(done.jobs))

    def look_everywhere(self) -> None:
        """Ask each queue in the next round, whatever was heard of it; and again after a tick."""
        self.lap = self.clock() + TICK
        for poll in self.polls:
            poll.at = 0.0

    def sample_pause(self, *, busy: bool) -> float:
        """Seconds until the sizes are looked at again; under a long throttle a sign of life."""
        if any(poll.is_slow for poll in self.polls):
            return SAMPLE
        if self.next_ask > self.clock() + HEALTHY / 3:
            return HEALTHY / 3
        return SAMPLE if busy else IDLE_SAMPLE

    def judge(self, poll: QueuePoll) -> None:
        """Stop asking a queue for jobs whose leases would end on the way, or ask it again."""
        was_slow = poll.is_slow
        poll.is_slow = poll.trip > poll.lease * (NEAR if was_slow else FAR) > 0
        name, trip, lease = poll.ops.name, poll.trip, poll.lease
        if poll.is_slow and not was_slow:
            text = (
                "queue %r: a round trip takes %.2f s, too long for leases of %.2f s; no jobs are "
                "reserved until it is shorter. Set a longer lease with configure(lease=...)"
            )
            logger.warning(text, name, trip, lease, extra=self.fields)
            self.sample_at = min(self.sample_at, self.clock() + SAMPLE)
        elif was_slow and not poll.is_slow:
            text = "queue %r: a round trip takes %.2f s; jobs are reserved again"
            logger.warning(text, name, trip, extra=self.fields)
            poll.at = 0.0

    def found_damaged(self, poll: QueuePoll, error: Exception, level: int = logging.ERROR) -> None:
        """A queue can't be used: it is left alone for a while, and others are not held up."""
        poll.failures += 1
        poll.at = poll.barred = self._left_alone(poll, poll.failures)
        self._tell(poll, poll.failures, error, level)

    def found_taken(self, poll: QueuePoll, error: QueueInUse) -> None:
        """Stop asking a queue for a while: another client is its only consumer."""
        poll.refusals += 1
        poll.at = poll.recheck_at = self._left_alone(poll, poll.refusals)
        self._tell(poll, poll.refusals, error, logging.INFO)

    def _left_alone(self, poll: QueuePoll, times: int) -> float:
        """Return the backoff deadline after `times` consecutive failures."""
        poll.woken = False
        return self.clock() + min(0.25 * 2.0 ** min(times, 8), RECHECK)

    def _tell(self, poll: QueuePoll, times: int, error: Exception, level: int) -> None:
        if times == 1 or times % 60 == 0:
            name, kind = poll.ops.name, type(error).__name__
            text = "queue %r can't be used: %s: %s; the worker goes on without it"
            logger.log(level, text, name, kind, error, extra=self.fields)

    def found_down(self, poll: QueuePoll) -> None:
        """The node of a queue can't be reached: others are not held up; it is looked after."""
        poll.failures += 1
        poll.at = poll.barred = self.clock() + min(0.1 * 2 ** min(poll.failures, 5), 1.0)
        poll.woken = False

    def asked(self, poll: QueuePoll, taken: Taken, wanted: int, sent: float) -> None:
        """A queue has answered a request for jobs."""
        now, poll.refusals = self.clock(), 0
        if taken.next_ms == 0:
            poll.at, poll.pause = 0.0, 0.01
        else:
            poll.at = math.inf if taken.next_ms < 0 else now + taken.next_ms / 1000
            poll.pause = min(poll.pause * 2, PATIENCE)
        is_over = not taken.deliveries and taken.is_over
        if is_over or poll.drained > -math.inf:
            self._found_drained(poll, now if is_over else -math.inf)
        several = len(self.polls) > 1
        poll.recheck_at = now + poll.pause if several else math.inf
        if taken.deliveries:
            self.sample_at = min(self.sample_at, now + SAMPLE)
            self._hold(poll, taken.deliveries, sent, now)
        if wanted > 0:
            throttle = self.options.throttle
            self.next_ask = now + (throttle if isinstance(throttle, float) else self._pause())
            if self.sample_at > now + SAMPLE:
                self.sample_at = min(self.sample_at, now + self.sample_pause(busy=False))

    def _found_drained(self, poll: QueuePoll, now: float) -> None:
        """Note whether a queue is drained. When all are, ask each once more."""
        poll.drained = now
        if now == -math.inf:
            self._confirmed = math.inf
        elif self._confirmed == math.inf and all(s.drained > -math.inf for s in self.polls):
            self._confirmed = now
            self.look_everywhere()

    def _pause(self) -> float:
        """Ask the user's function for how many seconds to leave the queues alone."""
        throttle: Any = self.options.throttle
        try:
            found = throttle(sum(poll.size for poll in self.polls))
            return duration_ms("throttle", 0 if found is None else found) / 1000
        except Exception as error:  # noqa: BLE001  # whatever a user's function raises
            self.complain("throttle", error)
            return 1.0

    def complain(self, what: str, error: Exception) -> None:
        """A function of the user's has failed; said once a minute, as it may do so all the time."""
        if self._may_complain(what):
            text = "%s failed; the worker goes on"
            logger.error(text, what, exc_info=error, extra=self.fields)

    def _may_complain(self, what: str) -> bool:
        """Return whether this was not logged in the last minute."""
        if self.clock() < self._complaints.get(what, -math.inf) + 60:
            return False
        self._complaints[what] = self.clock()
        return True

    def _hold(self, poll: QueuePoll, jobs: Sequence[Any], sent: float, now: float) -> None:
        trip = now - sent
        is_alone = not self.held
        poll.lease, renewal = begin(jobs, sent, now)
        is_long = poll.is_slow or trip > poll.lease * NEAR
        if is_long:
            self.judge(poll)
        if [job for job in jobs if job.term.until < now]:
            jobs = self._in_time(jobs, now)
            if not jobs:
                return
        if is_long:
            self._warn_of(poll, trip)
        self.held.update(dict.fromkeys(jobs))
        self.taken += len(jobs)
        if renewal < self.beat_at:
            self.poke()
        suspects = [job for job in jobs if job._counts]
        if suspects and (suspects := suspects_among(suspects)):
            jobs = self._without_suspects(jobs, suspects, is_alone)
        if self.helper is not None:
            self._keep(self.helper, jobs)
        self.dispatcher.hand(jobs)

    def _keep(self, helper: HeartbeatProcess, jobs: Sequence[Any]) -> None:
        """Have the leases of these jobs renewed by the helper process, too."""
        helper.hold(jobs)
        if helper.pid is None:
            self.poke()

    def _without_suspects(
        self, jobs: Sequence[Any], suspects: Sequence[Any], is_alone: bool
    ) -> Sequence[Any]:
        """Return the ordinary ones of these jobs. One suspect is chosen to run alone, if it can."""
        suspects = [job for job in suspects if self.dispatcher.knows(job)]
        ordinary = [job for job in jobs if job not in suspects]
        self.suspects.unbegun.update(suspects)
        if self.isolator is not None and not self.isolator.is_broken:
            if self.isolator.take(suspects[0]):
                self.drop([suspects.pop(0)])
                self.suspects.found_room()
        elif is_alone and not ordinary:
            self.suspects.choose(suspects.pop(0))
        for job in suspects:
            self.put_back(job, ASIDE)
        return ordinary

    def take_over(self, job: Any) -> None:
        """A suspect that another process has taken, and this one is to run."""
        self.held[job] = None
        self.taken += 1
        self.suspects.choose(job)

    def begin(self, term: Term | None) -> None:
        """Run the chosen suspect, which the server counts as begun; None = it is lost."""
        job = self.suspects.chosen
        self.suspects.unbegun.discard(job)
        if term is None:
            self.dispatcher.lose([job])
            self.put_back(job, KEPT)
        else:
            job.term = term
            if self.helper is not None:
                self._keep(self.helper, [job])
            self.poke()
            self.dispatcher.hand([job])

    def _in_time(self, jobs: Sequence[Any], now: float) -> Sequence[Any]:
        """Return the jobs whose lease has not ended on the way here; count the others as lost."""
        found = [job for job in jobs if not job.term.is_over(now)]
        if len(found) < len(jobs):
            late = len(jobs) - len(found)
            self.statistics.finished("lost", late, None, None)
            text = "the leases of %d jobs ended before the jobs arrived; they are not run"
            logger.warning(text, late, extra=self.fields)
        return found

    def _warn_of(self, poll: QueuePoll, trip: float) -> None:
        """Log, at most once a minute, that leases are lengthened."""
        longer = lengthened(poll.lease, trip)
        key = f"trips to {poll.ops.name}"
        if longer > poll.lease and self._may_complain(key):
            text = (
                "queue %r: a round trip took %.2f s, long for leases of %.2f s: they are "
                "lengthened to %.2f s, after which jobs of a dead worker come back"
            )
            told = (poll.ops.name, trip, poll.lease, longer)
            logger.warning(text, *told, extra=self.fields)

    def count(self, done: Finished, outcome: str, count: int) -> None:
        """A handler has done with these jobs, and the server has said what became of so many."""
        job = done.jobs[0]
        waited = (job.batch.now - int(job.number[:-11])) / 1000 if not job._counts else None
        self.statistics.finished(outcome, count, done.seconds or None, waited)  # 0 = none has run
        is_asked = done.verdict.is_asked and outcome in ("retried", "dead")
        if is_asked:
            self.statistics.backed_off(count)
        if self.isolated is not None:
            self.isolated.counted(outcome, done.seconds, waited, is_asked)

    def put_aside(self, poll: QueuePoll, count: int) -> None:
        """So many suspects were given back for a moment."""
        self.taken -= count
        poll.at = min(poll.at, self.suspects.put_aside())

    def abandon(self, poll: QueuePoll) -> list[Any]:
        """Unfinished jobs of a queue that are to be given back; their handlers are told."""
        jobs = [
            job
            for job in list(self.held)
            if self.poll_of(job) is poll and not job.settled and not job.at_most_once
        ]
        self.dispatcher.lose(jobs)
        return jobs

    def leased(self) -> set[Any]:
        """The jobs that it holds under a lease, as far as is known."""
        held = list(self.held)
        return {job for job in held if job.term is not OVER and not job.at_most_once}

    def drop(self, jobs: Sequence[Any]) -> None:
        """These jobs are not this worker's any more."""
        for job in jobs:
            self.held.pop(job, None)
        if self.suspects.unbegun:
            self.suspects.unbegun.difference_update(jobs)
        if self.helper is not None:
            self.helper.drop(jobs)


def _nothing() -> None:
    pass
