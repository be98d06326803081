"""The wait of an idle worker for a token, and what it brings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from penstock.core.calls.call import Call
from penstock.core.calls.failures import about_server
from penstock.core.calls.operations import Taken
from penstock.core.flows import (
    POLL_INTERVAL,
    Effect,
    EndWait,
    LetRunnersStart,
    Listen,
    Rest,
    SweepDue,
    WaitResult,
)
from penstock.core.flows.effects import CountFlow, Flow
from penstock.core.jobs.logs import get_logger
from penstock.worker.concerns import drop_wait, guard_queue
from penstock.worker.deliveries import take_reply
from penstock.worker.polls import QueuePoll
from penstock.worker.results import HANDED_BACK
from penstock.worker.state import JOBS_PER_CALL, WorkerState
from penstock.worker.taking import hand_on, reserve_now

__all__ = ["rest", "stop_waiting"]

logger = get_logger("penstock")
FOLLOWED_WAIT_SECONDS = POLL_INTERVAL + 0.5
"""Seconds until the loop asks every queue, if no reserve behind a wait has done that before."""
FOLLOWING_SECONDS = 20.0
"""Seconds without a job for which each wait lasts one poll interval and has a reserve behind it,
which saves the next job a round trip. After them a wait is one BLPOP for a minute, which saves
calls."""


def rest(state: WorkerState) -> CountFlow:
    """Wait for a token where there is room, otherwise for the runners.

    Returns the number of jobs that a token brought.
    """
    if not state.held:
        yield from _sweep_due(state)
    if state.room() > 0:  # no queue has jobs for it
        state.hold_nothing_ahead()
    until = state.until()
    listened = state.listened if state.room() > 0 and state.may_wait else []
    if not listened:
        if state.waiting or [poll for poll in state.polls if poll.woken]:
            yield from stop_waiting(state)
        yield Rest(until)
        return 0
    if listened != state.awaited:
        yield from stop_waiting(state)
        state.awaited = listened
    state.waiting = True
    queues = tuple(poll.ops for poll in listened)
    try:
        heard = yield Listen(queues, until, follow=_reserve_to_follow(state, listened))
    except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
        heard = yield from _find_damaged(state, error)
    return (yield from _reserve_where_woken(state, listened[0], heard))


def _reserve_where_woken(state: WorkerState, first: QueuePoll, heard: WaitResult) -> CountFlow:
    got = 0
    if heard.taken is not None:
        state.waiting = False
        got = _take_followed(state, first, heard.taken)
        if got:
            yield LetRunnersStart()  # as in _reserve_by_token
        elif heard.woken:
            state.note_no_job(first)
        return got
    for ops in heard.woken:
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
        yield from hand_on(state, poll)
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
        yield from hand_on(state, poll)
        return 0
    got = 0
    with guard_queue(state, poll):
        got = yield from reserve_now(state, poll, min(room, JOBS_PER_CALL))
    if poll.woken:  # it took no job, as deliveries can't be confirmed
        yield from hand_on(state, poll)
    if got:
        yield LetRunnersStart()  # the handler begins before the next BLPOP is sent
    else:
        state.note_no_job(poll)
    return got


def stop_waiting(state: WorkerState) -> Flow:
    """End a wait. Put its tokens back, and wake another consumer for jobs that are due soon."""
    waited, state.waiting = state.waiting, False
    try:
        heard: WaitResult = (yield EndWait()) if waited else WaitResult()
    except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
        heard = yield from _find_damaged(state, error)
    woken = heard.woken
    if heard.taken is not None:
        woken = ()  # the reserve behind the wait has put the token back, if there is a job to take
        if state.room() > 0:
            _take_followed(state, state.polls[0], heard.taken)
        else:
            for job in heard.taken.deliveries:
                state.put_back(job, HANDED_BACK)
    for poll in state.polls:
        near = waited and 0 < poll.at <= state.clock() + POLL_INTERVAL and poll.is_usable
        if near or poll.woken or poll.ops in woken:
            yield from hand_on(state, poll)
