"""The state that the parts of a worker share.

Three parties use it. The loop (`loop.py`, one thread or task) takes jobs and reports them. Runners
(threads or tasks) run handlers. The heartbeat (a thread of its own) extends leases. Each attribute
is written by one of them, or by operations that the interpreter makes atomic.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.calls.failures import about_server
from penstock.core.flows import POLL_INTERVAL
from penstock.core.jobs.job import Delivery, ops_of, term_of
from penstock.core.jobs.logs import RateLimit, get_logger, span
from penstock.core.jobs.middleware import Middleware, SettleEvent
from penstock.core.jobs.queue_stats import Settings
from penstock.core.values.durable import delivery_wait
from penstock.errors import UnsupportedVersion
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.held_file import HeldFile
from penstock.worker.helpers import LeaseHelper, SuspectProcess, SuspectRun
from penstock.worker.options import WorkerOptions
from penstock.worker.polls import Finished, FinishedJobs, QueuePoll, Reports, share_room
from penstock.worker.prefetch import Prefetch, allows_prefetch
from penstock.worker.results import HANDED_BACK, HELD_AHEAD, Verdict, described
from penstock.worker.statistics import Statistics
from penstock.worker.suspects import Suspects
from penstock.worker.terms import LONG_TRIP_SHARE, OVER

if TYPE_CHECKING:
    from penstock.worker.process_end import ProcessEnd

__all__ = ["WorkerState"]

logger = get_logger("penstock")

JOBS_PER_CALL = 300
"""Most jobs that one call takes, and most that it reports unless one chunk has more."""
SIZE_INTERVAL = 1.0
"""Seconds between two looks at the sizes of the queues, while there is work."""
IDLE_SIZE_INTERVAL = 60.0
"""Seconds between two looks at the sizes of the queues, while there is no work."""
HEALTHY_SECONDS = 15.0
"""Seconds without an answer of the server, or without a usable queue, after which a worker is not
healthy."""
SLOW_TRIP_SHARE = 1 / 2
"""The largest part of a lease that a round trip may take; otherwise no jobs are reserved."""


class WorkerState:
    """The shared state of one worker.

    Args:
        polls: its queues.
        dispatcher: gives jobs to the runners.
        wake: ends the loop's wait; callable from runners, other threads and signal handlers.
        clock: returns monotonic seconds.
        options: the options of the worker.
        name: its name, a field of log records about the worker; empty = it has none.

    Attributes:
        log: logs about the worker.
        statistics: its figures.
        poll_of: its queues by their operations.
        held: jobs that this worker holds according to the server, finished or not, with the time
            at which they came.
        finished: reports of the runners, youngest last.
        unsettled: reports by queue. The loop takes them from `finished`, and removes them when the
            server has answered.
        stopping: whether no more jobs are taken.
        waiting: whether a BLPOP is pending.
        moved: whether more nodes were found, so that the loop has to start anew.
        has_several_servers: whether the queues lie on several. Each server then has a BLPOP of its
            own. When one of them brings a token, the others stay pending.
        is_spread: `has_several_servers`, and the worker has several queues.
        awaited: the queues whose tokens it waits for.
        ahead: how many jobs it holds beyond the running ones; None = a number that is set.
        is_hold_due: whether a handler holds a queue, by a report that the loop has not seen yet.
        taken: the number of jobs that it has taken.
        idle_rounds: the number of rounds in a row that brought no job.
        answered: the time of the server's last answer.
        failures: the number of failed calls since then.
        next_ask: when the throttle lets it take jobs again.
        lap: when to ask every queue, whatever is known of it.
        sample_at: when to read the sizes of the queues.
        sampled_at: when they were read last.
        tick_at: when the schedules of a queue need the loop, at the earliest.
        brought_at: when a call brought jobs last; at first when it started.
        suspects: the suspects that it holds or makes room for.
        beat_at: when the heartbeat will look at the leases again.
        poke: makes the heartbeat look now; callable from signal handlers.
        telling: the jobs whose handlers have told something that is to be sent.
        has_told: whether there were such jobs.
        helper: the helper process that renews leases, if there is one.
        held_file: tells the supervisor which jobs run here, if there is one.
        isolator: runs suspects in a process of their own, if the worker has that option.
        isolated: the line to the worker whose suspects this one runs. Such a worker asks for no
            jobs.
        complaints: limits the records about one subject.
        refused: returns the verdict on a job whose report its queue has refused with an error.
        abandoned: jobs that could be neither reported nor released at the end.
        process_end: ends the process if handlers that were given up keep it; None = they may.
        report_error: why a job could be reported neither as done nor as failed.
        newer: the error of a queue that a newer penstock has written to.
        learned: the number of partitions of queues that turned out to have some.
        hooks: take note of outcomes.
        delivery_wait: the confirmations of deliveries at most once; None = they are not waited for.
    """

    def __init__(
        self,
        polls: list[QueuePoll],
        dispatcher: Dispatcher,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float],
        options: WorkerOptions,
        name: str = "",
    ) -> None:
        self.log = logging.LoggerAdapter(logger, {"worker": name} if name else {})
        self.polls = polls
        self.poll_of = {poll.ops: poll for poll in polls}
        self.dispatcher = dispatcher
        self.wake = wake
        self.clock = clock
        self.options = options
        self.delivery_wait = delivery_wait(options.at_most_once)
        is_free = options.prefetch is None and not options.throttle and self.delivery_wait is None
        is_free = is_free and dispatcher.size == 1
        self.ahead = Prefetch(options.concurrency) if is_free else None
        self.is_hold_due = False
        self.set_capacity(options.prefetch or 0)
        self.statistics = Statistics()
        self.held: dict[Delivery, float] = {}
        self.finished = FinishedJobs(clock)
        self.unsettled: dict[QueuePoll, Reports] = {}
        self.stopping = False
        self._deadlines: list[float] = []
        self.waiting = False
        self.moved = False
        self.has_several_servers = self.is_spread = False
        self.awaited: list[QueuePoll] = []
        self.taken = 0
        self.idle_rounds = 0
        self.answered = clock()
        self.failures = 0
        self.next_ask = 0.0
        self.lap = clock() + POLL_INTERVAL
        self.sample_at = self.sampled_at = self.tick_at = 0.0
        self.brought_at = clock()
        self.suspects = Suspects(clock)
        self.beat_at = math.inf
        self.poke: Callable[[], None] = lambda: None
        self.telling: set[Delivery] = set()
        self.has_told = False
        self.helper: LeaseHelper | None = None
        self.held_file: HeldFile | None = None
        self.isolator: SuspectProcess | None = None
        self.isolated: SuspectRun | None = None
        self.fail_refused: Callable[[Delivery, Exception], Verdict] = _verdict_on_refusal
        self.abandoned: set[Delivery] = set()
        self.process_end: ProcessEnd | None = None
        self.learned: dict[str, int] = {}
        self.hooks: Sequence[Middleware] = ()
        self.report_error: Exception | None = None
        self.newer: UnsupportedVersion | None = None
        self._rank = {name: at for at, name in enumerate(options.queues)}
        self._has_put_back = False
        self._confirmed = math.inf
        self.complaints = RateLimit(60, clock)

    def set_capacity(self, prefetch: int) -> None:
        """Set how many jobs to hold: those that run, and so many more."""
        size = self.dispatcher.size
        self.capacity = self.options.concurrency * size + prefetch
        self._step = self.capacity // 2 if self.options.concurrency == size == 1 else 0
        self._least = self._step or (prefetch // 2 if self.ahead else 0)

    def learn_settings(self, poll: QueuePoll, settings: Settings, *, is_held: bool) -> None:
        """Note the settings of a queue. A job that waits in a worker would take a slot of it.

        Args:
            poll: the queue.
            settings: its settings.
            is_held: whether the queue, or a key of it, is held.
        """
        poll.settings = settings
        if self.ahead is None:
            has_slots = any(one.settings and one.settings.max_active for one in self.polls)
            self.set_capacity(0 if has_slots else self.options.prefetch or 0)
            return
        poll.allows_prefetch = not is_held and allows_prefetch(settings)
        self.ahead.is_allowed = all(one.allows_prefetch for one in self.polls)
        if not self.ahead.is_allowed:
            self.hold_nothing_ahead()

    def hold_nothing_ahead(self, seconds: float = 0.0) -> None:
        """Hold only jobs that can begin, at least for so long, until jobs are short again."""
        if self.ahead is not None:
            now = self.clock()
            self.ahead.reset(now, now + seconds)
            self.set_capacity(0)

    def _learn_time(self, ahead: Prefetch, done: Finished) -> None:
        """Adapt the number of jobs that are held ahead to the time that these took."""
        seconds = done.seconds or sum(done.spans)
        if seconds and ahead.note_ended(len(done.jobs), seconds, self.clock()):
            self.set_capacity(ahead.extra)

    # -- its queues ------------------------------------------------------------------------

    def add(self, poll: QueuePoll) -> None:
        """Add a queue of a new node, or a partition, unless it is there."""
        if poll.ops not in self.poll_of:
            self.poll_of[poll.ops] = poll
            self.polls.append(poll)
            self.tick_at = 0.0

    @property
    def sizes(self) -> dict[str, int]:
        """Number of jobs that could be taken at the last look, by queue."""
        sizes = Counter[str]()
        for poll in self.polls:
            sizes[poll.ops.name] += poll.size
        return dict(sizes)

    # -- stopping --------------------------------------------------------------------------

    def stop(self, grace: float | None = None) -> None:
        """Take no more jobs; release those that are not finished after `grace` seconds.

        Another call can only shorten the grace.
        """
        until = self.clock() + (self.options.grace if grace is None else grace)
        self._deadlines.append(until)  # atomic: a signal handler may call this right here
        self.stopping = True
        self.wake()
        self.poke()  # the heartbeat ends the worker if its loop does not move

    @property
    def deadline(self) -> float:
        """When unfinished jobs are released, by the clock."""
        return min(self._deadlines, default=math.inf)

    @property
    def is_over(self) -> bool:
        """True if the loop has nothing more to do."""
        if self.held or (self.isolator is not None and self.isolator.job is not None):
            return self.stopping and (self.clock() >= self.deadline or self._has_only_refused)
        return self.stopping or self._is_exhausted()

    @property
    def _has_only_refused(self) -> bool:
        """True if it holds only jobs whose reports a queue refuses: waiting does not help."""
        if self.finished or (self.isolator is not None and self.isolator.job is not None):
            return False
        refused = set[Delivery]()
        for poll, reports in list(self.unsettled.items()):  # another thread may ask
            everything = [done for finished in list(reports.values()) for done in list(finished)]
            if not self._is_left_out(poll) and not all(
                done.tries or done.stands_in for done in everything
            ):
                return False
            refused.update(job for done in everything for job in done.jobs)
        return refused.issuperset(list(self.held))

    def _is_left_out(self, poll: QueuePoll) -> bool:
        is_refused = poll.error is not None and not about_server(poll.error)
        return poll.barred == math.inf or (poll.barred > self.clock() and is_refused)

    def _is_exhausted(self) -> bool:
        if self.is_drained or self._has_enough:
            return True
        now = self.clock()
        if not self.options.burst or self.suspects.are_expected:
            return False
        return all(poll.is_exhausted(now) for poll in self.polls)

    @property
    def _has_enough(self) -> bool:
        most = self.options.max_jobs
        return most is not None and self.taken >= most

    @property
    def is_drained(self) -> bool:
        """True if all queues are closed and drained, and the last round has confirmed that."""
        return all(poll.drained >= self._confirmed for poll in self.polls)

    @property
    def is_healthy(self) -> bool:
        """True if the server has answered lately, and a queue could be used lately."""
        since = self.clock() - HEALTHY_SECONDS
        is_usable = any(poll.error is None or poll.failed_at > since for poll in list(self.polls))
        return self.answered > since and is_usable

    # -- asking for jobs -------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Number of jobs that may be held in addition."""
        return self._most() - len(self.held)

    def _most(self) -> int:
        """Return how many jobs may be held: one while the worker makes room for a suspect."""
        return 1 if self.suspects.are_expected and self.usable_isolator is None else self.capacity

    def room(self) -> int:
        """Return how many jobs may be taken by a call that also reports the finished ones."""
        if self.stopping or self.isolated is not None:
            return 0
        chosen = self.suspects.chosen
        if chosen is not None and chosen in self.held and not chosen.lost:
            return 0  # a suspect runs alone
        free = self._most() if self.suspects.expected_until else self.capacity
        free -= len(self.held)
        if self.unsettled:
            reports = (done for part in self.unsettled.values() for done in part.values())
            free += sum(len(done.jobs) for finished in reports for done in finished)
        if free < self._least and self.held:
            return 0  # there is enough at hand: take more together
        most = self.options.max_jobs
        return free if most is None else min(free, most - self.taken)

    @property
    def usable_isolator(self) -> SuspectProcess | None:
        """The isolator, if it can run suspects now."""
        isolator = self.isolator
        return None if isolator is None or isolator.is_broken else isolator

    def shares(self) -> dict[QueuePoll, int]:
        """Return how many jobs to ask each queue for now; only queues that may have some."""
        now, room = self.clock(), min(self.room(), self._step or JOBS_PER_CALL, JOBS_PER_CALL)
        if room <= 0 or now < self.next_ask:
            return {}
        asked = [
            poll
            for poll in self.polls
            if poll.barred <= now
            and not poll.is_slow
            and (poll.at <= now or (not self.waiting and poll.recheck_at <= now))
        ]
        if self.options.order == "strict" and asked:
            first = min((poll.ops.name for poll in asked), key=self._rank.__getitem__)
            asked = [poll for poll in asked if poll.ops.name == first]
        if len(asked) <= 1:
            return dict.fromkeys(asked, room)
        if self.ahead is not None and len({poll.ops.name for poll in asked}) > 1:
            self.hold_nothing_ahead()  # jobs of one queue would keep those of another from running
        return share_room(asked, room)

    def until(self) -> float:
        """Return when the loop has to act next, if nothing happens before."""
        earliest = min(self.lap, self.sample_at, self.dispatcher.flush_at, self.finished.due_at)
        if self.ahead is not None:
            earliest = min(earliest, self.ahead.due_at(self.dispatcher.runners.waiting()))
        for poll in self.unsettled:
            earliest = min(earliest, poll.barred)
        if self.stopping:
            return min(earliest, self.deadline)
        earliest = min(earliest, self.tick_at)
        if self.suspects.expected_until and self.suspects.are_expected:
            earliest = min(earliest, self.suspects.expected_until)
        if self.room() > 0:
            earliest = min(earliest, max(self.next_ask, min(map(self._next, self.polls))))
        return earliest

    def _next(self, poll: QueuePoll) -> float:
        if poll.is_slow:
            return math.inf  # the next look at its size measures the round trip
        at = poll.at if self.may_wait else min(poll.at, poll.recheck_at)
        return max(at, poll.barred)

    @property
    def may_wait(self) -> bool:
        """True if the worker may wait for a token when it has room: it may take a job now."""
        return not self.options.burst and self.clock() >= self.next_ask

    @property
    def listened(self) -> list[QueuePoll]:
        """The usable queues, whose tokens to wait for. A drained queue always has one."""
        return [poll for poll in self.polls if poll.is_usable and poll.drained == -math.inf]

    # -- schedules -------------------------------------------------------------------------

    def plan_ticks(self) -> None:
        """Find out when the schedules of a queue need the worker next."""
        ends = self.stopping or self.isolated is not None
        due = [max(poll.ticker.due_at, poll.barred) for poll in self.polls]
        self.tick_at = math.inf if ends else min(due)

    def note_no_job(self, poll: QueuePoll) -> None:
        """Look at the queue soon: the token that brought no job may tell of a schedule."""
        poll.ticker.look_now()
        self.tick_at = 0.0
        self.sample_at = min(self.sample_at, max(self.clock(), self.sampled_at + SIZE_INTERVAL))

    # -- reports and answers ---------------------------------------------------------------

    def collect(self, *, everything: bool = False) -> dict[QueuePoll, Reports]:
        """Return the reports that are due, by queue. Of those for a whole reserve take only one."""
        self.is_hold_due = False
        if not self.finished and self.finished.due_at == math.inf:
            return self.unsettled
        is_usual = len(self.finished) == 1 and self.finished.due_at == math.inf
        usual: Iterable[Finished] = [self.finished.popleft()] if is_usual else ()
        for done in usual or self.finished.take(everything=everything):
            if self.ahead is not None:
                self._learn_time(self.ahead, done)
            reports = self.unsettled.setdefault(self.poll_of[ops_of(done.jobs[0])], {})
            reports.setdefault(done.verdict, []).append(done)
        return self.unsettled

    def begin_round(self) -> None:
        """Do what is due before a round: chunks, messages, jobs to release after a stop."""
        self.is_spread = self.has_several_servers and len(self.polls) > 1
        if self.clock() >= self.lap:
            self.look_everywhere()
        if self.isolator is not None:
            self.isolator.check()
        if self.isolated is not None:
            self.isolated.take_jobs(self)
        if self.stopping and not self._has_put_back:
            self._has_put_back = True
            chosen = self.suspects.chosen
            waiting = [chosen] if chosen is not None and self.suspects.waits else []
            for job in [*waiting, *self.dispatcher.drain()]:
                self.put_back(job, HANDED_BACK)
        elif self.dispatcher.flush_at <= self.clock():
            self.dispatcher.flush()
        ahead = self.ahead
        if ahead is not None and ahead.due_at(self.dispatcher.runners.waiting()) <= self.clock():
            for job in self.dispatcher.drain():
                self.put_back(job, HELD_AHEAD)
            ahead.forget_came()
            self.hold_nothing_ahead()

    def put_back(self, job: Delivery, verdict: Verdict) -> None:
        """Report a job that has not begun."""
        if not job.settled:
            job.settled = True
            self.finished.append(Finished((job,), verdict, 0.0))

    def give_back(self, poll: QueuePoll) -> None:
        """Give back the jobs of a paused queue that have not begun."""
        for job in self.dispatcher.drain(poll.ops):
            self.put_back(job, HANDED_BACK if self.ahead is None else HELD_AHEAD)
        self.hold_nothing_ahead()

    def give_back_ahead(self) -> None:
        """Let none of the jobs begin that are held ahead: a handler holds the queue; in any thread.

        Its report makes the hold, and a call under way may bring jobs before. They go back, too.
        """
        if self.ahead is None or self.stopping:
            return
        self.is_hold_due = True
        for item in self.dispatcher.runners.drain():
            if item[1][0].at_most_once:
                self.dispatcher.runners.put(item)
            else:
                self.put_back(item[1][0], HELD_AHEAD)

    def look_everywhere(self) -> None:
        """Ask every queue in the next round, and again after a poll interval."""
        self.lap = self.clock() + POLL_INTERVAL
        for poll in self.polls:
            poll.at = 0.0

    def sample_pause(self, *, busy: bool) -> float:
        """Return the seconds until the sizes are read again, which also shows a sign of life."""
        if any(poll.is_slow for poll in self.polls):
            return SIZE_INTERVAL
        if self.next_ask > self.clock() + HEALTHY_SECONDS / 3:
            return HEALTHY_SECONDS / 3
        return SIZE_INTERVAL if busy else IDLE_SIZE_INTERVAL

    def judge_trip(self, poll: QueuePoll) -> None:
        """Stop asking a queue for jobs whose leases would end on the way, or ask it again."""
        was_slow = poll.is_slow
        poll.is_slow = (
            poll.trip > poll.lease * (LONG_TRIP_SHARE if was_slow else SLOW_TRIP_SHARE) > 0
        )
        name, trip, lease = poll.ops.name, poll.trip, poll.lease
        if poll.is_slow and not was_slow:
            text = (
                "queue %r: a round trip takes %.2f s, too long for leases of %.2f s; no jobs are "
                "reserved until it is shorter. Set a longer lease with configure(lease=...)"
            )
            self.log.warning(text, name, trip, lease)
            self.sample_at = min(self.sample_at, self.clock() + SIZE_INTERVAL)
        elif was_slow and not poll.is_slow:
            text = "queue %r: a round trip takes %.2f s; jobs are reserved again"
            self.log.warning(text, name, trip)
            poll.at = 0.0

    @property
    def refusal(self) -> Exception | None:
        """Error that ends the worker: of a newer protocol, or of what a burst could not do."""
        if self.newer is not None or not self.options.burst or self.stopping or self._has_enough:
            return self.newer
        return next((poll.error for poll in self.polls if poll.error), self.report_error)

    def note_drained(self, poll: QueuePoll, now: float) -> None:
        """Note when a queue was found drained. When all are drained, ask each once more."""
        poll.drained = now
        if now == -math.inf:
            self._confirmed = math.inf
        elif self._confirmed == math.inf and all(s.drained > -math.inf for s in self.polls):
            self._confirmed = now
            self.look_everywhere()

    def note_answer(self) -> None:
        """Note that the server answers."""
        if self.failures:
            self.note_return()
        self.answered = self.clock()

    def note_return(self) -> None:
        """Note that the server answers again."""
        self.failures = 0
        text = "the server is back after %s"
        self.log.warning(text, span(self.clock() - self.answered))

    @property
    def is_patient(self) -> bool:
        """True if reports may wait for the repair of their queue, as long as their leases last."""
        return not self.options.burst and self.isolated is None

    def settings_of(self, job: Delivery) -> Settings | None:
        """Return the settings of a job's queue; None = they are not known yet."""
        return self.poll_of[ops_of(job)].settings

    def complain(self, what: str, error: Exception) -> None:
        """Log, at most once a minute, that something has failed, such as the user's monitor."""
        if self.complaints.allows(what):
            self.log.error("%s failed; the worker goes on", what, exc_info=error)

    def note_outcome(self, jobs: Sequence[Delivery], outcome: str, **figures: Any) -> None:
        """Count the outcome of jobs of one queue, and tell it to those that take note.

        Args:
            jobs: the jobs.
            outcome: of each of them.
            **figures: more arguments of `Statistics.add_outcome`.
        """
        self.statistics.add_outcome(outcome, len(jobs), **figures)
        self.tell_outcome(jobs, outcome, **figures)

    def tell_outcome(self, jobs: Sequence[Delivery], outcome: str, **figures: Any) -> None:
        """Tell an outcome that was counted: a process for suspects its worker, a worker the hooks.

        Arguments as for `note_outcome`.
        """
        if self.isolated is not None:
            self.isolated.report_outcome(outcome=outcome, **figures)
        elif self.hooks:
            self._tell_hooks(jobs, outcome)

    def _tell_hooks(self, jobs: Sequence[Delivery], outcome: str) -> None:
        alike: dict[tuple[str | None, str], list[Delivery]] = {}
        for job in jobs:
            handler = self.dispatcher.find(job)
            alike.setdefault((handler.name if handler else None, outcome), []).append(job)
        for (name, end), part in alike.items():
            event = SettleEvent(jobs[0].queue_name, tuple(part), name, end)
            for hook in self.hooks:
                try:
                    hook.settle(event)
                except Exception as error:  # noqa: BLE001, PERF203  # whatever a user's hook raises
                    self.complain(f"{type(hook).__name__}.settle", error)

    def note_told(self, job: Delivery) -> None:
        """Have the heartbeat send what a handler has told; in any thread."""
        self.has_told = True
        if job not in self.telling:
            self.telling.add(job)
            self.poke()

    def note_held(self, jobs: Sequence[Delivery]) -> None:
        """Tell the helper process and the supervisor, if any, that these jobs may run now."""
        if self.held_file is not None:
            self.held_file.hold(jobs)
        if self.helper is not None:
            self.helper.hold(jobs)
            if self.helper.pid is None:
                self.poke()

    def abandon(self) -> list[Delivery]:
        """Return the unfinished jobs, to be released; tell their handlers."""
        held = list(self.held)
        if self.process_end is not None:
            self.process_end.note_calls(self.dispatcher.runners)  # a cancelled one is not found
        jobs = [job for job in held if not job.settled and not job.at_most_once]
        self.dispatcher.runners.lose(jobs)
        return jobs

    def leased(self) -> set[Delivery]:
        """Return the jobs that it holds under a lease, as far as is known."""
        held = list(self.held)
        return {job for job in held if term_of(job) is not OVER and not job.at_most_once}

    def drop(self, jobs: Sequence[Delivery]) -> None:
        """Remove jobs from those that are held."""
        for job in jobs:
            self.held.pop(job, None)
        if self.suspects.unbegun:
            self.suspects.unbegun.difference_update(jobs)
        if self.held_file is not None:
            self.held_file.drop(jobs)
        if self.helper is not None:
            self.helper.drop(jobs)


def _verdict_on_refusal(job: Delivery, error: Exception) -> Verdict:  # noqa: ARG001  # its form
    return Verdict("nack", text=described(error))
