"""The loop of a worker, as a flow without I/O: report finished jobs, take new ones, wait.

A busy worker reports and reserves in one call. Jobs that finish during a call are reported by the
next one; no report waits longer. An idle worker waits for a wake token, as every consumer does
(protocol/core.md, Waking).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from penstock.core.calls.failures import about_server
from penstock.core.flows import (
    Cancelled,
    GiveUpSoon,
    Rest,
)
from penstock.core.flows.effects import CountFlow, Flow
from penstock.core.jobs.job import ops_of, term_of
from penstock.errors import WrongEpoch
from penstock.worker.concerns import NO_JOB_ERRORS, drop_wait, guard_queue, leave_out, run_call
from penstock.worker.deliveries import begin_suspect
from penstock.worker.idle import rest, stop_waiting
from penstock.worker.polls import QueuePoll, Reports, jobs_in
from penstock.worker.reporting import drop_expired, keep_as_hints, report, report_all
from penstock.worker.results import ACK, HANDED_BACK
from penstock.worker.schedules import TickRun
from penstock.worker.state import JOBS_PER_CALL, WorkerState
from penstock.worker.taking import hand_on, measure_trip, note_history, read_sizes, reserve_now

__all__ = ["leave", "work"]

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
                    got = yield from rest(state)
            except Exception as error:  # noqa: BLE001  # a worker outlives every failure
                yield from _pause_after_error(state, error)
                got = 0
            end_round(got)
            if state.moved:
                with suppress(Exception):  # the waiting connection is dropped in any case
                    yield from stop_waiting(state)
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
        yield from stop_waiting(state)
    if state.clock() >= min(state.sample_at, state.tick_at):
        yield from _look_around(state, busy=got > 0 or bool(state.held))
    return got


def _look_around(state: WorkerState, *, busy: bool) -> Flow:
    if state.clock() >= state.sample_at:
        yield from read_sizes(state, busy=busy)
    if state.clock() >= state.tick_at:
        yield from _run_ticks(state)


def _run_ticks(state: WorkerState) -> Flow:
    state.plan_ticks()
    for poll in list(state.polls) if state.clock() >= state.tick_at else ():
        if max(poll.ticker.due_at, poll.barred) <= state.clock():
            name = poll.ops.keys.name
            parts = [part for part in state.polls if part.ops.keys.name == name]
            ticks = TickRun(
                ticker=poll.ticker,
                ops=poll.ops,
                parts={part.ops: part.ticker for part in parts},
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
    call, sent = poll.ops.renew([job], round(held.lease * 1000)), state.clock()
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
        wanted = yield from measure_trip(state, poll, wanted)
    if wanted and (poll.woken or state.waiting) and state.free > 0:
        # This call says that the worker was idle. The call that also reports can't say so.
        got = yield from reserve_now(state, poll, min(wanted, state.free))
        wanted = 0
    while others := [verdict for verdict in reports if verdict != ACK]:
        yield from report(state, poll, reports, verdict=others[0])
    while reports and (not wanted or (len(reports[ACK]) > 1 and jobs_in(reports) > JOBS_PER_CALL)):
        yield from report(state, poll, reports, verdict=ACK)
    if wanted and reports:
        got = yield from report(state, poll, reports, verdict=ACK, wanted=wanted)
    elif wanted:
        got = yield from reserve_now(state, poll, wanted)
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
        yield from hand_on(state, poll)


def leave(state: WorkerState) -> Flow:
    """End the wait, report finished jobs and release the others; never raises.

    The first call that does not reach the server is the last one. Leases that are left then expire.
    """
    yield GiveUpSoon()
    try:
        with _unless_refused(state, "the end of the wait"):
            yield from stop_waiting(state)
        yield from _report_all(state)
        _hand_back(state)
        yield from _report_all(state)
        for poll in state.polls:
            if poll.times and poll.is_usable:
                with _unless_refused(state, "the history"):
                    yield from note_history(state, poll)
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
