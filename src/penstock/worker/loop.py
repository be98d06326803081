"""The loop of a worker, as a flow without I/O: report finished jobs, take new ones, wait.

A busy worker reports and reserves in one call. Jobs that finish during a call are reported by the
next one; no report waits longer. An idle worker waits for a wake token, as every consumer does
(protocol/core.md, Waking).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from redis.exceptions import NoPermissionError

from penstock.client._sync.transport.failures import passing
from penstock.core.calls import Call
from penstock.core.flows import (
    POLL_INTERVAL,
    Cancelled,
    CloseConnections,
    Effect,
    EndWait,
    GiveUpSoon,
    LetRunnersStart,
    Listen,
    Rest,
    Run,
    StoreHint,
    SweepDue,
    WaitResult,
)
from penstock.core.hints import Intent
from penstock.core.job import Delivery, data_of, ops_of, term_of
from penstock.core.logs import Fields, get_logger, span
from penstock.core.middleware import HANDLER
from penstock.core.operations import Taken
from penstock.core.outcomes import Outcome, Settled
from penstock.core.record import FIRST_FIELDS, KEPT_FIELD
from penstock.core.results import results_of
from penstock.errors import (
    QueueDamaged,
    QueueInUse,
    QueuePartitioned,
    UnsupportedVersion,
    WrongEpoch,
)
from penstock.worker.messages import FAILED, is_last
from penstock.worker.polls import OUTAGE, Finished, QueuePoll, Reports, first_of, verdict_call
from penstock.worker.results import ACK, Verdict
from penstock.worker.schedules import run_ticks
from penstock.worker.state import FAR, HANDED_BACK, KEPT, OUTCOMES, TRIP, WorkerState
from penstock.worker.suspects import ASIDE

__all__ = ["leave", "work"]

logger = get_logger("penstock")
DAMAGES = (QueueDamaged, NoPermissionError)
"""Errors that concern one queue, and not the server."""
LATE = POLL_INTERVAL + 0.5
"""Seconds until the loop asks every queue, if no reserve behind a wait has done that before."""
FOLLOWING = 20.0
"""Seconds without a job for which each wait lasts one poll interval and has a reserve behind it,
which saves the next job a round trip. After them a wait is one BLPOP for a minute, which saves
calls."""
R = TypeVar("R")
Flow = Generator[Effect, Any, None]
Count = Generator[Effect, Any, int]


def work(state: WorkerState, looped: Callable[[int], None]) -> Flow:
    """Take and report jobs until the worker is over, whatever the server or the network does.

    Also ends, still holding its jobs, when the worker has to go on with several nodes. The caller
    then starts another flow with the same state.

    Args:
        state: the worker's state.
        looped: called at the end of each round with the number of jobs that came.
    """
    try:
        while not state.is_over:
            try:
                state.begin_round()
                got = yield from _round(state)
                if got < 0:
                    got = yield from _rest(state)
            except Exception as error:  # noqa: BLE001  # a worker outlives every failure
                yield from _failed(state, error)
                got = 0
            looped(got)
            if state.moved:
                with suppress(Exception):  # the waiting connection is dropped in any case
                    yield from _stop_waiting(state)
                return
    except Cancelled:
        state.stop(0)
        yield from leave(state)
        raise
    yield from leave(state)


def _failed(state: WorkerState, error: Exception) -> Flow:
    state.failures += 1
    for poll in state.polls:
        poll.unsure = True
    if state.failures == 1 or state.failures % 10 == 0:
        text = "worker: %s: %s; it is tried again"
        state.log.warning(text, type(error).__name__, error)
    yield from _drop_wait(state)
    yield Rest(min(state.clock() + min(0.05 * 2 ** min(state.failures, 5), 1.0), state.deadline))


def _drop_wait(state: WorkerState) -> Flow:
    """Close the waiting connection: it may be as dead as one that failed, and lose every token."""
    state.waiting = False
    state.look_everywhere()
    with suppress(Exception):
        yield CloseConnections()


def _round(state: WorkerState) -> Count:
    """Report and reserve on each queue that needs it.

    Returns the number of jobs that came, or -1 if there was nothing to do.
    """
    if state.suspects.unbegun and state.suspects.waits:
        yield from _begin(state)
    unsettled, now = state.collect(), state.clock()
    shares = state.shares()
    polls = dict.fromkeys([*(poll for poll in unsettled if poll.barred <= now), *shares])
    if not polls and now < min(state.sample_at, state.tick_at):
        return -1
    got = 0
    # The queue with most reports for the jobs it gives comes first, so that no more jobs are held
    # at any time than may be.
    growth = partial(_growth, state, shares)
    for poll in polls if len(polls) < 2 else sorted(polls, key=growth):
        reports = unsettled.get(poll, {})
        try:
            got += yield from _exchange(state, poll, reports, shares.get(poll, 0))
            poll.failures, poll.unsure = 0, False
        except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
            _refused(state, poll, error)
        if not reports:
            unsettled.pop(poll, None)
        elif poll.home is not None:
            yield from _keep(state, poll)
    if state.suspects.unbegun and state.suspects.waits:
        yield from _begin(state)
    if got and state.waiting:  # the pending BLPOP of a busy worker would take others' tokens
        yield from _stop_waiting(state)
    if state.clock() >= min(state.sample_at, state.tick_at):
        yield from _look_around(state, busy=got > 0 or bool(state.held))
    return got


def _look_around(state: WorkerState, *, busy: bool) -> Flow:
    """Read the sizes of the queues if that is due, and run the ticks of their schedules."""
    if state.clock() >= state.sample_at:
        yield from _sample(state, busy=busy)
    if state.clock() >= state.tick_at:
        yield from _run_ticks(state)


def _run_ticks(state: WorkerState) -> Flow:
    """Run the ticks of schedules that are due."""
    state.plan_ticks()
    for poll in list(state.polls) if state.clock() >= state.tick_at else ():
        if max(poll.ticker.due_at, poll.barred) <= state.clock():
            run: Callable[[Call[Any]], Flow] = partial(_call, state, poll)
            parts = [one.ops for one in state.polls if one.ops.keys.name == poll.ops.keys.name]
            with _guarded(state, poll):
                ticks = run_ticks(poll.ticker, poll.ops, parts, run, state.clock, state.log)
                if (yield from ticks):
                    poll.at = 0.0
    state.plan_ticks()


def _growth(state: WorkerState, shares: Mapping[QueuePoll, int], poll: QueuePoll) -> int:
    return shares.get(poll, 0) - _jobs_in(state.unsettled.get(poll, {}))


def _jobs_in(reports: Reports) -> int:
    return sum(len(done.jobs) for finished in reports.values() for done in finished)


def _begin(state: WorkerState) -> Flow:
    """Have the server count the chosen suspect as begun, then run it."""
    job = state.suspects.chosen
    assert job is not None
    poll = state.poll_of[ops_of(job)]
    if job.lost or poll.barred > state.clock():
        state.begin(None)
        return
    held = term_of(job)
    call, sent = poll.ops.extend([job], round(held.lease * 1000), late=True), state.clock()
    with _guarded(state, poll):
        try:
            reply = yield from _call(state, poll, call)
        except WrongEpoch:
            state.begin(None)
            return
        term = held.renewed(call.resent or sent, state.clock(), reply.now, reply.untils[0])
        state.begin(term and (term if held.lease else held))  # a ttl ends it as before


@contextmanager
def _guarded(state: WorkerState, poll: QueuePoll) -> Iterator[None]:
    """Stop using a queue, or its node, for a while after an error that concerns only it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
        _refused(state, poll, error)
    else:
        poll.failures = 0


def _refused(state: WorkerState, poll: QueuePoll, error: Exception) -> None:
    if isinstance(error, QueueInUse):
        state.found_taken(poll, error)
        poll.failures, poll.unsure = 0, False
    elif isinstance(error, QueuePartitioned):
        state.found_partitioned(poll, error)
    elif isinstance(error, UnsupportedVersion):
        state.found_newer(poll, error)
    elif isinstance(error, DAMAGES):
        state.found_damaged(poll, error)
    elif not (state.is_spread and passing(error)):
        raise error
    else:
        poll.unsure = True
        if poll.home is None:
            state.found_damaged(poll, error, logging.WARNING, OUTAGE)
        else:
            state.found_down(poll)


def _keep(state: WorkerState, poll: QueuePoll) -> Flow:
    """Store reports for a node that is down as hints on another node, as far as it accepts them.

    A hint has no next jobs: such an ack waits for the node.
    """
    reports = state.unsettled[poll]
    for verdict, finished in list(reports.items()):
        is_short = verdict.then is None or not verdict.then.records
        for done in list(finished) if verdict.kind in ("ack", "bury") and is_short else ():
            intent = Intent(verdict.kind, verdict.window_ms, verdict.text)
            answer: list[bool] = yield StoreHint(poll.ops, done.jobs, intent)
            if all(answer):
                finished.remove(done)
                state.drop(done.jobs)
                state.count(done, _usual(verdict, done.jobs[0]), len(done.jobs))
        if not finished:
            del reports[verdict]
    if not reports:
        del state.unsettled[poll]


def _exchange(state: WorkerState, poll: QueuePoll, reports: Reports, n: int) -> Count:
    """Report to one queue and reserve up to n jobs of it, in as few calls as possible.

    Returns the number of jobs that came.
    """
    got = 0
    try:
        if n and not poll.lease:
            n = yield from _measured(state, poll, n)
        if n and (poll.woken or state.waiting) and state.free > 0:
            # This call says that the worker was idle. The call that also reports can't say so.
            got = yield from _reserve(state, poll, min(n, state.free))
            n = 0
        while others := [verdict for verdict in reports if verdict != ACK]:
            yield from _report(state, poll, reports, others[0])
        while n and len(reports.get(ACK, ())) > 1 and _jobs_in(reports) > TRIP:
            yield from _report(state, poll, reports, ACK)
        if n and reports:
            got = yield from _report(state, poll, reports, ACK, n)
        elif n:
            got = yield from _reserve(state, poll, n)
    except QueueInUse:  # no job was taken; reports need no role
        yield from _report_rest(state, poll, reports)
        raise
    if reports:
        yield from _report_rest(state, poll, reports)
    return got


def _report_rest(state: WorkerState, poll: QueuePoll, reports: Reports) -> Flow:
    while reports:
        yield from _report(state, poll, reports, next(iter(reports)))


def _report(
    state: WorkerState, poll: QueuePoll, reports: Reports, verdict: Verdict, n: int = 0
) -> Count:
    """Report jobs of one verdict, as many as one script takes; return the number of new jobs.

    Args:
        state: the worker's state.
        poll: the queue.
        reports: those of this queue; what was reported is removed.
        verdict: one of the keys of `reports`.
        n: maximum number of jobs to reserve in the same call; only with `ACK`.
    """
    finished = reports[verdict] if len(reports[verdict]) == 1 else first_of(reports[verdict], TRIP)
    jobs, sent, resent = [job for done in finished for job in done.jobs], state.clock(), 0.0
    results = None
    if verdict.kind == "ack" and any(KEPT_FIELD in data_of(job)[:FIRST_FIELDS] for job in jobs):
        spans = [done.spans or [done.seconds] * len(done.jobs) for done in finished]
        results = results_of(jobs, [*chain.from_iterable(spans)])
    outcomes: Settled | None = None
    taken = None
    try:
        if verdict.kind == "none":
            outcomes = Settled(jobs)
        elif n:
            both = poll.ops.settle(jobs, n, provisional=True, results=results)
            outcomes, taken = yield from _call(state, poll, both)
            resent = both.resent
        else:
            call = verdict_call(poll.ops, jobs, verdict, results)
            outcomes = yield from _call(state, poll, call)
            resent = call.resent
    except WrongEpoch:
        pass
    if finished is reports[verdict]:
        del reports[verdict]
    else:
        reports[verdict] = reports[verdict][len(finished) :]
    if verdict is ASIDE:
        state.taken -= len(jobs)
        poll.at = min(poll.at, state.suspects.put_aside())
    if outcomes is None:
        _deleted_with_queue(state, finished)
    else:
        _ended(state, finished, outcomes, verdict, bool(resent) or poll.unsure)
    if taken is None:
        return 0
    state.received(poll, taken, n, resent or sent)
    return len(taken.deliveries)


def _call(state: WorkerState, poll: QueuePoll, call: Call[R]) -> Generator[Effect, Any, R]:
    sent = state.clock()
    reply: R = yield Run(call, brief=state.is_spread)
    if state.failures:
        state.found_back()
    state.answered = state.clock()
    poll.trip = state.answered - (call.resent or sent)
    if poll.is_slow or poll.trip > poll.lease * FAR:
        state.judge(poll)
    if call.resent:
        yield from _drop_wait(state)
    return reply


def _measured(state: WorkerState, poll: QueuePoll, n: int) -> Count:
    """Learn a queue's lease and the time of a round trip before reserving its first job.

    Returns n, or 0 if the round trip is too long.
    """
    taken = yield from _call(state, poll, poll.ops.reserve(0, lease_ms=poll.lease_ms))
    poll.lease = taken.lease_ms / 1000
    yield from _look(state, poll)
    state.judge(poll)
    return 0 if poll.is_slow else n


def _reserve(state: WorkerState, poll: QueuePoll, n: int) -> Count:
    sent = state.clock()
    idle = poll.woken or state.waiting
    call = poll.ops.reserve(n, idle=idle, provisional=True, lease_ms=poll.lease_ms)
    taken = yield from _call(state, poll, call)
    poll.woken = False
    state.received(poll, taken, n, call.resent or sent)
    return len(taken.deliveries)


def _ended(
    state: WorkerState,
    finished: Sequence[Finished],
    outcomes: Settled,
    verdict: Verdict,
    is_repeated: bool,
) -> None:
    if state.options.burst:  # handlers may have added jobs or given some back: look once more
        for poll in state.polls:
            poll.at = 0.0
    for done in finished:
        state.drop(done.jobs)
        if state.abandoned and verdict.kind != "none":
            state.abandoned.difference_update(done.jobs)
    if outcomes.all_done:
        for done in finished:
            usual = OUTCOMES["ack"] if verdict is ACK else _usual(verdict, done.jobs[0])
            state.count(done, usual, len(done.jobs))
            if state.options.log_jobs:
                _log_jobs(state, done, [usual] * len(done.jobs))
        return
    found = iter(outcomes)
    for done in finished:
        fates = [_fate(state, done, job, next(found), is_repeated) for job in done.jobs]
        for fate, count in Counter(fates).items():
            state.count(done, fate, count)
        _log_jobs(state, done, fates)


def _log_jobs(state: WorkerState, done: Finished, fates: Sequence[str]) -> None:
    """Log a line for each job if that is wanted, unless there is one about its failure."""
    for job, fate in zip(done.jobs, fates, strict=True):
        if state.options.log_jobs and fate not in FAILED:
            name = job.headers.get(HANDLER) or "job"
            more = Fields(job, outcome=fate, seconds=round(done.seconds, 6))
            logger.info("%s %s: %s after %s", name, job.id, fate, span(done.seconds), extra=more)


def _deleted_with_queue(state: WorkerState, finished: Sequence[Finished]) -> None:
    for done in finished:
        state.drop(done.jobs)
        state.count(done, "lost", len(done.jobs))
        logger.warning("%s was deleted with its queue", done.jobs[0].id, extra=Fields(done.jobs[0]))


def _usual(verdict: Verdict, job: Delivery) -> str:
    if verdict is HANDED_BACK or verdict is ASIDE:
        return "handed back"
    if verdict is KEPT and job.lost:
        return "lost"
    return OUTCOMES[verdict.kind]


def _fate(
    state: WorkerState, done: Finished, job: Delivery, outcome: Outcome, is_repeated: bool
) -> str:
    """Return the outcome to count for a job, by the server's answer; log what is unusual.

    Args:
        state: the worker's state.
        done: the report.
        job: one of its jobs.
        outcome: the answer for the job.
        is_repeated: True if an earlier run of the call may have succeeded without an answer.
    """
    verdict = done.verdict
    may_be_own = outcome is Outcome.ENDED or (outcome is Outcome.GONE and verdict.kind == "ack")
    if outcome is Outcome.DONE or (is_repeated and may_be_own):
        return _usual(verdict, job)
    if outcome is Outcome.CANCELLED:
        return "cancelled"
    if outcome is Outcome.DEAD:
        if done.error is None or not is_last(job, verdict, state.settings_of(job)):
            # Otherwise its failure was logged as the last one.
            text = "%s has used up its attempts: %s: a dead letter"
            logger.error(text, job.id, verdict.text, exc_info=done.error, extra=Fields(job))
        return "dead"
    if outcome is Outcome.REFUSED:
        if done.error is None:  # otherwise it was logged with its failure
            text = "%s is delivered at most once; a %s of it is not possible"
            logger.warning(text, job.id, verdict.kind, extra=Fields(job))
        return "failed"
    text = "%s: the lease was lost before the %s, which changed nothing"
    logger.warning(text, job.id, verdict.kind, extra=Fields(job))
    return "lost"


def _sample(state: WorkerState, *, busy: bool) -> Flow:
    """Read the sizes of the queues. This also shows that a full worker is alive."""
    state.sampled_at = state.clock()
    state.sample_at = state.sampled_at + state.sample_pause(busy=busy)
    for poll in state.polls:
        if not poll.failures:
            # Errors that concern its jobs are reported when jobs are reserved.
            with _guarded(state, poll), suppress(QueuePartitioned, *DAMAGES):
                yield from _look(state, poll)
                state.statistics.sized(poll.ops.name, state.sizes[poll.ops.name])


def _look(state: WorkerState, poll: QueuePoll) -> Flow:
    """Read the size and the settings of a queue."""
    stats = yield from _call(state, poll, poll.ops.stats())
    poll.size, poll.settings = stats.ready, stats.settings
    poll.ticker.found(has_schedules=stats.has_schedules)
    state.tick_at = 0.0


def _rest(state: WorkerState) -> Count:
    """Wait for a token where there is room, otherwise for the runners.

    Returns the number of jobs that a token brought.
    """
    if not state.held:
        yield from _sweep_due(state)
    until = state.until()
    listened = state.listened if state.room() > 0 and state.may_wait else []
    if not listened:
        if state.waiting or [poll for poll in state.polls if poll.woken]:
            yield from _stop_waiting(state)
        yield Rest(until)
        return 0
    if listened != state.awaited:
        yield from _stop_waiting(state)
        state.awaited = listened
    state.waiting = True
    follow = _follow(state, listened)
    heard: WaitResult = yield Listen(tuple(poll.ops for poll in listened), until, follow=follow)
    got = 0
    if heard.taken is not None:
        state.waiting = False
        got = _followed(state, listened[0], heard.taken)
        if got:
            yield LetRunnersStart()  # as in _woken
        elif heard.told:
            state.found_no_job(listened[0])
        return got
    for ops in heard.told:
        got += yield from _woken(state, state.poll_of[ops])
    for ops in heard.lost:
        state.poll_of[ops].at = 0.0
    return got


def _follow(state: WorkerState, listened: Sequence[QueuePoll]) -> Callable[[], Call[Taken]] | None:
    """Return what builds a reserve to send behind the wait; None = it can't be sent there.

    It is for one job: when the wait is ended, because other jobs have come, it takes one more.
    """
    ops = listened[0].ops
    is_over = state.clock() >= state.brought_at + FOLLOWING
    if is_over or len(state.polls) > 1 or ops.consuming or not listened[0].asked_at:
        return None
    return partial(ops.reserve, 1, idle=True, provisional=True)


def _followed(state: WorkerState, poll: QueuePoll, taken: Taken) -> int:
    """Process the reply to the reserve behind a wait, and return the number of jobs.

    It may have run long ago, if this process was stopped meanwhile. The queue's clock tells how
    long after the last answer that was, and so when the lease began at the earliest.
    """
    now = state.clock()
    began = min(now, poll.asked_at + (taken.now_ms - poll.asked_ms) / 1000)
    if state.failures:
        state.found_back()
    state.answered, poll.failures, poll.woken = now, 0, False
    state.lap = now + LATE  # this reserve was the lap's question
    state.received(poll, taken, 1, began)
    return len(taken.deliveries)


def _sweep_due(state: WorkerState) -> Flow:
    """Sweep the queues that are due: about once a minute, at random times."""
    try:
        yield SweepDue(tuple(poll.ops for poll in state.polls if poll.is_usable))
    except Exception:  # other clients sweep as well, and the next call tells of a lost server
        logger.debug("a sweep failed", exc_info=True)


def _woken(state: WorkerState, poll: QueuePoll) -> Count:
    state.waiting = state.is_spread and len(state.awaited) > 1
    poll.at, poll.woken = 0.0, True
    room = state.room()
    if room <= 0 or poll.is_slow:
        yield from _hand_on(state, poll)
        return 0
    got = 0
    with _guarded(state, poll):
        got = yield from _reserve(state, poll, min(room, TRIP))
    if got:
        yield LetRunnersStart()  # the handler begins before the next BLPOP is sent
    else:
        state.found_no_job(poll)
    return got


def _stop_waiting(state: WorkerState) -> Flow:
    """End a wait. Put its tokens back, and wake another consumer for jobs that are due soon."""
    waited, state.waiting = state.waiting, False
    heard: WaitResult = (yield EndWait()) if waited else WaitResult()
    told = heard.told
    if heard.taken is not None:
        told = ()  # the reserve behind the wait has put the token back, if there is a job to take
        if state.room() > 0:
            _followed(state, state.polls[0], heard.taken)
        else:
            for job in heard.taken.deliveries:
                state.put_back(job, HANDED_BACK)
    for poll in state.polls:
        near = waited and 0 < poll.at <= state.clock() + POLL_INTERVAL and poll.is_usable
        if near or poll.woken or poll.ops in told:
            yield from _hand_on(state, poll)


def _hand_on(state: WorkerState, poll: QueuePoll) -> Flow:
    """Put a token back for another consumer, if there is a job to take."""
    poll.woken = False
    with _guarded(state, poll), suppress(QueueInUse):  # the script has put it back all the same
        yield from _call(state, poll, poll.ops.reserve(0, idle=True, lease_ms=poll.lease_ms))


def leave(state: WorkerState) -> Flow:
    """End the wait, report finished jobs and release the others; never raises.

    The first call that does not reach the server is the last one. Leases that are left then expire.
    """
    yield GiveUpSoon()
    try:
        with _unless_refused(state):
            yield from _stop_waiting(state)
        yield from _report_all(state)
        _hand_back(state)
        yield from _report_all(state)
    except Exception as error:  # noqa: BLE001  # the worker ends all the same
        text = "worker: %s: %s; leases are left to end"
        state.log.warning(text, type(error).__name__, error)
    state.abandoned |= state.leased()
    state.abandon()


def _hand_back(state: WorkerState) -> None:
    jobs = state.abandon()
    state.abandoned.update(jobs)
    for job in jobs:
        state.put_back(job, HANDED_BACK)
    if jobs:
        state.log.warning("%d unfinished jobs are given back", len(jobs))


def _report_all(state: WorkerState) -> Flow:
    for poll, reports in list(state.collect(everything=True).items()):
        with _unless_refused(state):
            yield from _report_rest(state, poll, reports)
            del state.unsettled[poll]
        if reports and poll.home is not None:
            yield from _keep(state, poll)


@contextmanager
def _unless_refused(state: WorkerState) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if passing(error) and not state.is_spread:
            raise
        state.log.warning("worker: %s: %s", type(error).__name__, error)
