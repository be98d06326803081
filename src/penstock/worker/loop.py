"""The loop of a worker, as a flow without I/O: report finished jobs, take new ones, wait.

A busy worker reports and reserves in one call. Jobs that finish during a call are reported by the
next one; no report waits longer. An idle worker waits for a wake token, as every consumer does
(protocol/core.md, Waking).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from penstock.core.calls.call import Call
from penstock.core.calls.failures import about_server
from penstock.core.calls.operations import Taken
from penstock.core.flows import (
    POLL_INTERVAL,
    Cancelled,
    Effect,
    EndWait,
    GiveUpSoon,
    LetRunnersStart,
    Listen,
    Rest,
    SweepDue,
    WaitResult,
)
from penstock.core.flows.effects import CountFlow, Flow
from penstock.core.jobs.job import ops_of, term_of
from penstock.core.jobs.logs import get_logger
from penstock.errors import QueueInUse, WrongEpoch
from penstock.worker.concerns import NO_JOB_ERRORS, drop_wait, guard_queue, leave_out, run_call
from penstock.worker.deliveries import begin_suspect, drop_unconfirmed, take_reply
from penstock.worker.polls import QueuePoll, Reports, jobs_in
from penstock.worker.reporting import drop_expired, keep_as_hints, report, report_all
from penstock.worker.results import ACK, HANDED_BACK
from penstock.worker.schedules import TickRun
from penstock.worker.state import JOBS_PER_CALL, WorkerState

__all__ = ["leave", "work"]

logger = get_logger("penstock")
FOLLOWED_WAIT_SECONDS = POLL_INTERVAL + 0.5
"""Seconds until the loop asks every queue, if no reserve behind a wait has done that before."""
FOLLOWING_SECONDS = 20.0
"""Seconds without a job for which each wait lasts one poll interval and has a reserve behind it,
which saves the next job a round trip. After them a wait is one BLPOP for a minute, which saves
calls."""
UNKNOWN_ERROR_PAUSE = 1.0
"""Seconds without a call after an error that no call of a queue explains."""


def work(state: WorkerState, end_round: Callable[[int], None]) -> Flow:
    """Take and report jobs until the worker is over, whatever the server or the network does.

    Also ends, still holding its jobs, when the worker has to go on with several nodes. The caller
    then starts another flow with the same state.

    Args:
        state: the worker's state.
        end_round: called at the end of each round with the number of jobs that came.
    """
    try:
        while not state.is_over:
            try:
                state.begin_round()
                if state.unsettled:
                    drop_expired(state)
                got = yield from _run_round(state)
                if got < 0:
                    got = yield from _rest(state)
            except Exception as error:  # noqa: BLE001  # a worker outlives every failure
                yield from _pause_after_error(state, error)
                got = 0
            end_round(got)
            if state.moved:
                with suppress(Exception):  # the waiting connection is dropped in any case
                    yield from _stop_waiting(state)
                return
        yield from leave(state)
    except Cancelled:
        state.stop(0)
        yield from leave(state)
        raise


def _pause_after_error(state: WorkerState, error: Exception) -> Flow:
    """Pause after an error that concerns all queues, and look at all of them then."""
    for poll in state.polls:
        poll.unsure = True
    pause = UNKNOWN_ERROR_PAUSE
    if about_server(error):
        state.failures += 1
        if state.failures == 1 or state.failures % 10 == 0:
            text = "worker: %s: %s; it is tried again"
            state.log.warning(text, type(error).__name__, error)
        pause = min(0.05 * 2 ** min(state.failures, 5), 1.0)
    else:
        state.complain("the worker's loop", error)
    yield from drop_wait(state)
    yield Rest(min(state.clock() + pause, state.deadline))


def _run_round(state: WorkerState) -> CountFlow:
    """Report and reserve on each queue that needs it.

    Returns the number of jobs that came, or -1 if there was nothing to do.
    """
    if state.suspects.unbegun and state.suspects.waits:
        yield from _begin_suspect(state)
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
            got += yield from _exchange(state, poll, reports, wanted=shares.get(poll, 0))
            poll.failures, poll.unsure = 0, False
        except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
            yield from _report_and_leave_out(state, poll, reports, error=error)
        if not reports:
            unsettled.pop(poll, None)
        elif poll.node is not None and not poll.node.state.is_up:
            yield from keep_as_hints(state, poll)
    if state.suspects.unbegun and state.suspects.waits:
        yield from _begin_suspect(state)
    if got and state.waiting:  # the pending BLPOP of a busy worker would take others' tokens
        yield from _stop_waiting(state)
    if state.clock() >= min(state.sample_at, state.tick_at):
        yield from _look_around(state, busy=got > 0 or bool(state.held))
    return got


def _look_around(state: WorkerState, *, busy: bool) -> Flow:
    if state.clock() >= state.sample_at:
        yield from _read_sizes(state, busy=busy)
    if state.clock() >= state.tick_at:
        yield from _run_ticks(state)


def _run_ticks(state: WorkerState) -> Flow:
    state.plan_ticks()
    for poll in list(state.polls) if state.clock() >= state.tick_at else ():
        if max(poll.ticker.due_at, poll.barred) <= state.clock():
            name = poll.ops.keys.name
            ticks = TickRun(
                ticker=poll.ticker,
                ops=poll.ops,
                parts=[part.ops for part in state.polls if part.ops.keys.name == name],
                run_call=partial(run_call, state, poll),
                clock=state.clock,
                log=state.log,
            )
            try:
                if (yield from ticks.run()):
                    poll.at = 0.0
            except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
                leave_out(state, poll, error)
    state.plan_ticks()


def _growth(state: WorkerState, shares: Mapping[QueuePoll, int], poll: QueuePoll) -> int:
    return shares.get(poll, 0) - jobs_in(state.unsettled.get(poll, {}))


def _begin_suspect(state: WorkerState) -> Flow:
    """Have the server count the chosen suspect as begun, then run it."""
    job = state.suspects.chosen
    assert job is not None
    poll = state.poll_of[ops_of(job)]
    if job.lost or poll.barred > state.clock():
        begin_suspect(state, None)
        return
    held = term_of(job)
    call, sent = poll.ops.extend([job], round(held.lease * 1000), late=True), state.clock()
    with guard_queue(state, poll):
        try:
            reply = yield from run_call(state, poll, call)
        except WrongEpoch:
            begin_suspect(state, None)
            return
        term = held.renewed(
            reply.untils[0], now_ms=reply.now, sent=call.resent or sent, heard=state.clock()
        )
        begin_suspect(state, term and (term if held.lease else held))  # a ttl ends it as before


def _exchange(state: WorkerState, poll: QueuePoll, reports: Reports, *, wanted: int) -> CountFlow:
    """Report to one queue and reserve up to `wanted` jobs of it, in as few calls as possible.

    Returns the number of jobs that came.
    """
    got = 0
    if wanted and not poll.lease:
        wanted = yield from _measure_trip(state, poll, wanted)
    if wanted and (poll.woken or state.waiting) and state.free > 0:
        # This call says that the worker was idle. The call that also reports can't say so.
        got = yield from _reserve(state, poll, min(wanted, state.free))
        wanted = 0
    while others := [verdict for verdict in reports if verdict != ACK]:
        yield from report(state, poll, reports, verdict=others[0])
    while reports and (not wanted or (len(reports[ACK]) > 1 and jobs_in(reports) > JOBS_PER_CALL)):
        yield from report(state, poll, reports, verdict=ACK)
    if wanted and reports:
        got = yield from report(state, poll, reports, verdict=ACK, wanted=wanted)
    elif wanted:
        got = yield from _reserve(state, poll, wanted)
    return got


def _report_and_leave_out(
    state: WorkerState, poll: QueuePoll, reports: Reports, error: Exception
) -> Flow:
    """Report what can be reported after an error of a queue; then stop using it for a while.

    One report may have been the reason. Then the queue goes on.
    """
    if reports and not about_server(error):
        try:
            yield from report_all(state, poll, reports)
        except Exception as failure:  # noqa: BLE001  # raised again if it concerns other queues
            leave_out(state, poll, failure)
            return
        if not isinstance(error, NO_JOB_ERRORS):  # no job was taken; reports were not refused
            return
    leave_out(state, poll, error)
    if poll.woken:
        yield from _hand_on(state, poll)


def _measure_trip(state: WorkerState, poll: QueuePoll, wanted: int) -> CountFlow:
    """Learn a queue's lease and the time of a round trip before reserving its first job.

    Returns `wanted`, or 0 if the round trip is too long.
    """
    taken = yield from run_call(state, poll, poll.ops.reserve(0, lease_ms=poll.lease_ms))
    poll.lease = taken.lease_ms / 1000
    yield from _read_size(state, poll)
    state.judge_trip(poll)
    return 0 if poll.is_slow else wanted


def _reserve(state: WorkerState, poll: QueuePoll, wanted: int) -> CountFlow:
    sent = state.clock()
    idle = poll.woken or state.waiting
    call = poll.ops.reserve(wanted, idle=idle, provisional=True, lease_ms=poll.lease_ms)
    call.wait = state.delivery_wait
    taken = yield from run_call(state, poll, call)
    if call.wait is not None:
        taken = drop_unconfirmed(state, call, taken)
    poll.woken = False
    take_reply(state, poll, taken, wanted=wanted, sent=call.resent or sent)
    return len(taken.deliveries)


def _read_sizes(state: WorkerState, *, busy: bool) -> Flow:
    """Read the sizes of the queues. This also shows that a full worker is alive."""
    state.sampled_at = state.clock()
    state.sample_at = state.sampled_at + state.sample_pause(busy=busy)
    for poll in state.polls:
        if not poll.failures:
            with guard_queue(state, poll):
                yield from _read_size(state, poll)


def _read_size(state: WorkerState, poll: QueuePoll) -> Flow:
    """Read the size and the settings of a queue.

    Errors that concern its jobs are reported when jobs are reserved.
    """
    try:
        stats = yield from run_call(state, poll, poll.ops.stats())
    except Exception as error:
        if about_server(error):
            raise
        logger.debug("the size of queue %r can't be read: %s", poll.ops.name, error)
        return
    poll.size, poll.settings = stats.ready, stats.settings
    poll.ticker.learn(has_schedules=stats.has_schedules)
    state.tick_at = 0.0
    state.statistics.add_size(poll.ops.name, state.sizes[poll.ops.name])


def _rest(state: WorkerState) -> CountFlow:
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
    queues = tuple(poll.ops for poll in listened)
    try:
        heard = yield Listen(queues, until, follow=_reserve_to_follow(state, listened))
    except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
        heard = yield from _find_damaged(state, error)
    return (yield from _reserve_where_woken(state, listened[0], heard))


def _reserve_where_woken(state: WorkerState, first: QueuePoll, heard: WaitResult) -> CountFlow:
    """Reserve where a token was taken; return the number of jobs."""
    got = 0
    if heard.taken is not None:
        state.waiting = False
        got = _take_followed(state, first, heard.taken)
        if got:
            yield LetRunnersStart()  # as in _reserve_by_token
        elif heard.told:
            state.note_no_job(first)
        return got
    for ops in heard.told:
        got += yield from _reserve_by_token(state, state.poll_of[ops])
    for ops in heard.lost:
        state.poll_of[ops].at = 0.0
    return got


def _find_damaged(state: WorkerState, error: Exception) -> Generator[Effect, Any, WaitResult]:
    """Ask each queue of a wait that the server has refused, to leave out those that are damaged.

    Returns:
        What the wait has brought: nothing.

    Raises:
        Exception: the error, if it concerns the server, or none of the queues is damaged.
    """
    if about_server(error):
        raise error
    yield from drop_wait(state)
    for poll in state.awaited:
        yield from _hand_on(state, poll)
    if all(poll.is_usable for poll in state.awaited):
        raise error
    return WaitResult()


def _reserve_to_follow(
    state: WorkerState, listened: Sequence[QueuePoll]
) -> Callable[[], Call[Taken]] | None:
    """Return what builds a reserve to send behind the wait; None = it can't be sent there.

    It is for one job: when the wait is ended, because other jobs have come, it takes one more.
    """
    ops = listened[0].ops
    is_over = state.clock() >= state.brought_at + FOLLOWING_SECONDS
    has_to_wait = state.delivery_wait is not None or ops.reply_limit.most
    if is_over or has_to_wait or len(state.polls) > 1 or ops.consuming or not listened[0].asked_at:
        return None
    return partial(ops.reserve, 1, idle=True, provisional=True)


def _take_followed(state: WorkerState, poll: QueuePoll, taken: Taken) -> int:
    """Process the reply to the reserve behind a wait, and return the number of jobs.

    It may have run long ago, if this process was stopped meanwhile. The queue's clock tells how
    long after the last answer that was, and so when the lease began at the earliest.
    """
    now = state.clock()
    began = min(now, poll.asked_at + (taken.now_ms - poll.asked_ms) / 1000)
    if state.failures:
        state.note_return()
    state.answered, poll.failures, poll.woken = now, 0, False
    state.lap = now + FOLLOWED_WAIT_SECONDS  # this reserve was the lap's question
    take_reply(state, poll, taken, wanted=1, sent=began)
    return len(taken.deliveries)


def _sweep_due(state: WorkerState) -> Flow:
    """Sweep the queues that are due: about once a minute, at random times."""
    try:
        yield SweepDue(tuple(poll.ops for poll in state.polls if poll.is_usable))
    except Exception:  # other clients sweep as well, and the next call tells of a lost server
        logger.debug("a sweep failed", exc_info=True)


def _reserve_by_token(state: WorkerState, poll: QueuePoll) -> CountFlow:
    state.waiting = state.is_spread and len(state.awaited) > 1
    poll.at, poll.woken = 0.0, True
    room = state.room()
    if room <= 0 or poll.is_slow:
        yield from _hand_on(state, poll)
        return 0
    got = 0
    with guard_queue(state, poll):
        got = yield from _reserve(state, poll, min(room, JOBS_PER_CALL))
    if poll.woken:  # it took no job, as deliveries can't be confirmed
        yield from _hand_on(state, poll)
    if got:
        yield LetRunnersStart()  # the handler begins before the next BLPOP is sent
    else:
        state.note_no_job(poll)
    return got


def _stop_waiting(state: WorkerState) -> Flow:
    """End a wait. Put its tokens back, and wake another consumer for jobs that are due soon."""
    waited, state.waiting = state.waiting, False
    try:
        heard: WaitResult = (yield EndWait()) if waited else WaitResult()
    except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
        heard = yield from _find_damaged(state, error)
    told = heard.told
    if heard.taken is not None:
        told = ()  # the reserve behind the wait has put the token back, if there is a job to take
        if state.room() > 0:
            _take_followed(state, state.polls[0], heard.taken)
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
    with guard_queue(state, poll), suppress(QueueInUse):  # the script has put it back all the same
        yield from run_call(state, poll, poll.ops.reserve(0, idle=True, lease_ms=poll.lease_ms))


def leave(state: WorkerState) -> Flow:
    """End the wait, report finished jobs and release the others; never raises.

    The first call that does not reach the server is the last one. Leases that are left then expire.
    """
    yield GiveUpSoon()
    try:
        with _unless_refused(state, "the end of the wait"):
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
        with _unless_refused(state, f"reports to queue {poll.ops.name!r}"):
            yield from report_all(state, poll, reports)
        if not reports:
            del state.unsettled[poll]
        elif poll.node is not None and not poll.node.state.is_up:
            yield from keep_as_hints(state, poll)


@contextmanager
def _unless_refused(state: WorkerState, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if about_server(error) and not state.is_spread:
            raise
        if state.complaints.allows(what):
            text = "%s: %s: %s; leases are left to end"
            state.log.warning(text, what, type(error).__name__, error)
