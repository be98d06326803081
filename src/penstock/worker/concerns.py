"""Runs the calls of a worker's loop, and decides what their errors concern.

An error of the server or of the connection concerns all its queues: the loop pauses, or leaves out
one of several servers. Any other error concerns one queue, and the loop goes on with the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from redis.exceptions import DataError, NoPermissionError, RedisError, ResponseError

from penstock.core.calls.call import Call
from penstock.core.calls.failures import about_server, passing
from penstock.core.flows import CloseConnections, Effect, Run
from penstock.core.flows.effects import Flow
from penstock.errors import (
    CannotSync,
    DeliveryNotReplicated,
    OutOfMemory,
    PenstockError,
    QueueDamaged,
    QueueInUse,
    QueuePartitioned,
    UnsupportedVersion,
)
from penstock.worker.polls import OUTAGE_SECONDS, QueuePoll
from penstock.worker.state import SLOW_TRIP_SHARE, WorkerState

__all__ = [
    "CHANGED_QUEUE_ERRORS",
    "NO_JOB_ERRORS",
    "drop_wait",
    "guard_queue",
    "is_answer",
    "is_certain",
    "is_damage",
    "leave_out",
    "run_call",
]

CHANGED_QUEUE_ERRORS = (QueuePartitioned, UnsupportedVersion)
"""Errors after which this worker can't use the queue any more in this form."""
NO_JOB_ERRORS = (QueueInUse, DeliveryNotReplicated, CannotSync)
"""Errors of a reserve that took no job. The queue still accepts reports."""
DAMAGE_ERRORS = (QueueDamaged, NoPermissionError, OutOfMemory)
"""Errors that last until a person repairs the queue, or the server has memory."""
LONGEST_DAMAGE_PAUSE = 4.0
"""Most seconds between two looks at a queue that is damaged."""
R = TypeVar("R")


def is_damage(error: BaseException) -> bool:
    """Return True for an error that concerns the queue as a whole."""
    return isinstance(error, DAMAGE_ERRORS)


def is_certain(error: BaseException) -> bool:
    """Return True if a repeat of the call would raise the same error.

    A script has refused its arguments, or the call could not be built.
    """
    if isinstance(error, PenstockError):
        return not (is_damage(error) or about_server(error))
    return isinstance(error, DataError) or not isinstance(error, (RedisError, OSError))


def is_answer(error: BaseException) -> bool:
    """Return True if the server has sent this error, and is ready for other calls."""
    return isinstance(error, (ResponseError, PenstockError)) and not about_server(error)


def run_call(state: WorkerState, poll: QueuePoll, call: Call[R]) -> Generator[Effect, Any, R]:
    """Run a call of a queue. Note that the server answers, and how long that took."""
    sent = state.clock()
    try:
        reply: R = yield Run(call, brief=state.is_spread)
    except Exception as error:
        if is_answer(error):
            state.note_answer()
        raise
    if state.failures:
        state.note_return()
    state.answered = state.clock()
    poll.trip = state.answered - (call.resent or sent)
    if poll.is_slow or poll.trip > poll.lease * SLOW_TRIP_SHARE:
        state.judge_trip(poll)
    if call.resent:
        yield from drop_wait(state)
    return reply


def drop_wait(state: WorkerState) -> Flow:
    """Close the waiting connection: it may be as dead as one that failed, and lose every token."""
    state.waiting = False
    state.look_everywhere()
    with suppress(Exception):
        yield CloseConnections()


@contextmanager
def guard_queue(state: WorkerState, poll: QueuePoll) -> Iterator[None]:
    """Stop using a queue, or its node, for a while after an error that concerns only it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # raised again if it concerns other queues
        leave_out(state, poll, error)
    else:
        poll.failures = 0


def leave_out(state: WorkerState, poll: QueuePoll, error: Exception) -> None:
    """Stop using a queue, or its node, for a while; a queue of a newer penstock for ever.

    Raises:
        Exception: the error, if it concerns the server of all queues.
    """
    if isinstance(error, NO_JOB_ERRORS):
        has_other_consumer = isinstance(error, QueueInUse)
        if poll.error is None and isinstance(error, DeliveryNotReplicated):
            poll.awaited_until = state.clock() + OUTAGE_SECONDS
        poll.refusals += 1
        poll.failures, poll.unsure = 0, False
        if has_other_consumer:
            poll.error, poll.woken = None, False  # the script has put the token back
        else:
            poll.fail(error, state.clock())
        level = logging.INFO if has_other_consumer else logging.ERROR
        poll.at = poll.recheck_at = _retry_at(state, poll, error, times=poll.refusals, level=level)
    elif isinstance(error, QueuePartitioned) and error.partitions is not None:
        state.learned[poll.ops.name] = error.partitions  # they will be polls of their own
        poll.failures += 1
        poll.at = poll.barred = poll.drained = math.inf
        poll.woken = False
    elif isinstance(error, UnsupportedVersion):
        poll.at = poll.barred = math.inf
        state.newer = state.newer or error
        state.stop()
    elif not about_server(error):
        lasts = is_certain(error) or isinstance(error, (QueueDamaged, NoPermissionError))
        _leave_alone(state, poll, error, outage=0.0 if lasts else OUTAGE_SECONDS)
    elif not state.is_spread:
        raise error
    else:
        poll.unsure = True
        if poll.node is None or not passing(error):
            _leave_alone(state, poll, error, level=logging.WARNING, outage=OUTAGE_SECONDS)
        else:
            poll.failures, poll.error = poll.failures + 1, None
            poll.at = poll.barred = state.clock() + min(0.1 * 2 ** min(poll.failures, 5), 1.0)
            poll.woken = False


def _leave_alone(
    state: WorkerState,
    poll: QueuePoll,
    error: Exception,
    *,
    level: int = logging.ERROR,
    outage: float = 0.0,
) -> None:
    """Stop using a queue for a while; a burst waits up to `outage` seconds for it."""
    if not poll.failures:
        poll.awaited_until = state.clock() + outage
    poll.failures += 1
    poll.woken = False
    poll.at = poll.barred = _retry_at(state, poll, error, times=poll.failures, level=level)
    poll.fail(error, state.clock())


def _retry_at(
    state: WorkerState, poll: QueuePoll, error: Exception, *, times: int, level: int
) -> float:
    """Log the first of consecutive failures; return the backoff deadline after `times`."""
    name, kind = poll.ops.name, type(error).__name__
    if times % 60 == 0 or (times == 1 and state.complaints.allows(f"{id(poll)} {kind}")):
        text = "queue %r can't be used: %s: %s; the worker goes on without it"
        is_known = isinstance(error, (PenstockError, RedisError, OSError))
        state.log.log(level, text, name, kind, error, exc_info=None if is_known else error)
    return state.clock() + min(0.25 * 2.0 ** min(times, 8), LONGEST_DAMAGE_PAUSE)
