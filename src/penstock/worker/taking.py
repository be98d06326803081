"""Taking jobs of one queue, and reading its size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from penstock.core.calls.failures import about_server
from penstock.core.flows.effects import CountFlow, Flow
from penstock.core.jobs.logs import get_logger
from penstock.errors import QueueInUse
from penstock.worker.concerns import guard_queue, run_call
from penstock.worker.deliveries import drop_unconfirmed, take_reply
from penstock.worker.polls import QueuePoll
from penstock.worker.state import WorkerState

__all__ = ["hand_on", "measure_trip", "note_history", "read_sizes", "reserve_now"]

logger = get_logger("penstock")
HISTORY_INTERVAL = 60.0
"""Seconds until the history is written again, if the queue's clock is not known."""
FIRST_HISTORY_PAUSE = 1.0
"""Seconds from the first look at a queue until its history is written."""


def measure_trip(state: WorkerState, poll: QueuePoll, wanted: int) -> CountFlow:
    """Learn a queue's lease and the time of a round trip before reserving its first job.

    Returns `wanted`, or less if its settings leave no room; 0 if the round trip is too long.
    """
    taken = yield from run_call(state, poll, poll.ops.reserve(0, lease_ms=poll.lease_ms))
    poll.lease = taken.lease_ms / 1000
    yield from _read_size(state, poll)
    state.judge_trip(poll)
    return 0 if poll.is_slow else min(wanted, max(0, state.room()))


def reserve_now(state: WorkerState, poll: QueuePoll, wanted: int) -> CountFlow:
    """Reserve on a queue without a wait; return the number of jobs."""
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


def read_sizes(state: WorkerState, *, busy: bool) -> Flow:
    """Read the sizes of the queues. This also shows that a full worker is alive.

    A queue that has failed is left out, except one whose round trips were too long: no reserve will
    show that it can be used again.
    """
    state.sampled_at = state.clock()
    state.sample_at = state.sampled_at + state.sample_pause(busy=busy)
    for poll in state.polls:
        if not poll.failures or (poll.is_slow and poll.barred <= state.clock()):
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
    poll.size = stats.ready
    is_held = stats.held is not None
    state.learn_settings(poll, stats.settings, is_held=is_held or stats.held_keys > 0)
    if stats.settings.paused in ("out", "all") or is_held:
        state.give_back(poll)
    poll.ticker.learn(has_schedules=stats.has_schedules)
    state.tick_at = 0.0
    state.statistics.add_size(poll.ops.name, state.sizes[poll.ops.name])
    totals = (stats.enqueued, stats.acked, stats.nacked, stats.crashed, stats.died)
    if poll.times.look(state.clock(), totals, has_ready=bool(stats.ready)):
        yield from note_history(state, poll, totals)


def note_history(state: WorkerState, poll: QueuePoll, totals: Sequence[int] | None = None) -> Flow:
    """Write the history of a queue once a minute, and at the end of the worker.

    It is only for people: an error of the queue changes nothing.

    Args:
        state: the worker's state.
        poll: the queue.
        totals: those that change with it; None = the worker ends.
    """
    times, now = poll.times, state.clock()
    if poll.settings is not None and poll.settings.history is False:
        times.clear()
        return
    if totals is not None and times.seen is None:  # a worker that ends at once writes once
        times.seen, times.due_at = (), now + FIRST_HISTORY_PAUSE
    if totals is not None and now < times.due_at:
        return
    times.due_at = now + HISTORY_INTERVAL
    try:
        reply = yield from run_call(state, poll, poll.ops.measure(times.take()))
        while times:
            yield from run_call(state, poll, poll.ops.measure(times.take()))
    except Exception as error:
        if about_server(error):
            raise
        logger.debug("the history of queue %r can't be written: %s", poll.ops.name, error)
        return
    if reply.code == 1:
        times.due_at = now + (60_000 - reply.now % 60_000) / 1000
    times.seen = totals


def hand_on(state: WorkerState, poll: QueuePoll) -> Flow:
    """Put a token back for another consumer, if there is a job to take."""
    poll.woken = False
    with guard_queue(state, poll), suppress(QueueInUse):  # the script has put it back all the same
        yield from run_call(state, poll, poll.ops.reserve(0, idle=True, lease_ms=poll.lease_ms))
