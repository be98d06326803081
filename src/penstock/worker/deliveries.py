"""Jobs that come to a worker: it holds them, puts suspects aside, and hands the others to runners.

Only the worker's loop calls these functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock.core.calls.call import Call
from penstock.core.calls.deliveries import check_deliveries
from penstock.core.calls.operations import Taken
from penstock.core.jobs.job import (
    OWN_TERMS,
    Delivery,
    counts_of,
    data_of,
    reservation_of,
    set_term,
    term_of,
)
from penstock.core.jobs.logs import Fields, get_logger
from penstock.core.jobs.record import FIRST_FIELDS_BYTES
from penstock.core.values.checks import duration_ms
from penstock.worker.polls import QueuePoll
from penstock.worker.prefetch import SHORTEST_LEASE_AHEAD, Prefetch
from penstock.worker.results import HELD_AHEAD, NO_REPORT
from penstock.worker.state import SIZE_INTERVAL, WorkerState
from penstock.worker.suspects import PUT_ASIDE, suspects_among
from penstock.worker.terms import LONG_TRIP_SHARE, Term, begin, lengthened

__all__ = ["begin_suspect", "drop_unconfirmed", "take_over", "take_reply"]

logger = get_logger("penstock")

PRIORITY_FIELD = b";p="
"""The field of a record that has the priority, and more."""
LONGEST_BUSY_PAUSE = 0.25
"""Most seconds for which a busy worker does not ask a queue that was empty."""


def take_reply(
    state: WorkerState, poll: QueuePoll, taken: Taken, *, wanted: int, sent: float
) -> None:
    """Process the reply of a queue to a request for `wanted` jobs, which was sent at that time."""
    now, poll.refusals, poll.error, poll.awaited_until = state.clock(), 0, None, 0.0
    poll.asked_at, poll.asked_ms = sent, taken.now_ms
    if taken.next_ms == 0:
        poll.at, poll.pause = 0.0, 0.01
    else:
        poll.at = math.inf if taken.next_ms < 0 else now + taken.next_ms / 1000
        poll.pause = min(poll.pause * 2, LONGEST_BUSY_PAUSE)
    is_over = not taken.deliveries and taken.is_over
    if is_over or poll.drained > -math.inf:
        state.note_drained(poll, now if is_over else -math.inf)
    poll.recheck_at = now + poll.pause if len(state.polls) > 1 else math.inf
    if taken.deliveries:
        state.brought_at, state.sample_at = now, min(state.sample_at, now + SIZE_INTERVAL)
        _hold(state, poll, taken.deliveries, sent=sent, now=now)
    if wanted > 0:
        throttle = state.options.throttle
        pause = throttle if isinstance(throttle, float) else _call_throttle(state)
        state.next_ask = now + pause
        if state.sample_at > now + SIZE_INTERVAL:
            state.sample_at = min(state.sample_at, now + state.sample_pause(busy=False))


def _call_throttle(state: WorkerState) -> float:
    """Call the user's `throttle`; return the seconds until the queues are asked again."""
    throttle: Any = state.options.throttle
    try:
        seconds = throttle(sum(poll.size for poll in state.polls))
        return duration_ms("throttle", 0 if seconds is None else seconds) / 1000
    except Exception as error:  # noqa: BLE001  # whatever a user's function raises
        state.complain("throttle", error)
        return 1.0


def drop_unconfirmed(state: WorkerState, call: Call[Any], taken: Taken) -> Taken:
    """Leave out and count the jobs delivered at most once that were not confirmed."""
    error = check_deliveries(call, taken)
    if error is None:
        return taken
    state.taken += len(error.given_up)
    state.note_outcome(error.given_up, "unconfirmed")
    text = "%s is not run, as a failover could deliver it again (%s of %s replicas confirmed)%s"
    disk = ", its delivery is not on disk" if error.fsynced is False else ""
    for job in error.given_up:
        state.log.error(text, job.id, error.got, error.wanted, disk, extra=Fields(job))
    return taken._replace(deliveries=error.jobs)


def _hold(
    state: WorkerState, poll: QueuePoll, jobs: Sequence[Delivery], *, sent: float, now: float
) -> None:
    trip = now - sent
    is_alone = not state.held
    poll.lease, renewal = begin(jobs, sent, now)
    is_long = poll.is_slow or trip > poll.lease * LONG_TRIP_SHARE
    if is_long:
        state.judge_trip(poll)
    if [job for job in jobs if term_of(job).until < now]:
        jobs = _drop_late(state, jobs, now)
        if not jobs:
            return
    if is_long:
        _warn_of_trip(state, poll, trip)
    if state.ahead is not None:
        _note_arrival(state, state.ahead, poll, jobs, now)
    state.held.update(dict.fromkeys(jobs, now))
    state.taken += len(jobs)
    reservation_of(jobs[0]).on_emit = state.note_told
    if renewal < state.beat_at:
        state.poke()
    crashed = [job for job in jobs if counts_of(job)]
    if crashed and (suspects := suspects_among(crashed)):
        jobs = _put_suspects_aside(state, jobs, suspects, is_alone=is_alone)
    if state.is_hold_due:
        jobs = _keep_from_hold(state, jobs)
    if state.helper is not None or state.held_file is not None:
        state.note_held(jobs)
    state.dispatcher.hand(jobs)


def _note_arrival(
    state: WorkerState, ahead: Prefetch, poll: QueuePoll, jobs: Sequence[Delivery], now: float
) -> None:
    ahead.note_came(len(jobs), now, held=len(state.held) + len(jobs))
    if ahead.is_allowed and _bar_prefetch(poll, jobs):
        state.hold_nothing_ahead(SIZE_INTERVAL)


def _keep_from_hold(state: WorkerState, jobs: Sequence[Delivery]) -> Sequence[Delivery]:
    """Give back jobs that may not begin, see `give_back_ahead`; return those that can't go back."""
    for job in jobs:
        if not job.at_most_once:
            state.put_back(job, HELD_AHEAD)
    return [job for job in jobs if job.at_most_once]


def _bar_prefetch(poll: QueuePoll, jobs: Sequence[Delivery]) -> bool:
    """Return whether no more jobs like these may be held ahead.

    Jobs with a priority would wait for others, and come first in a reply. Leases may be too short,
    and a job without one is lost with its worker.
    """
    first = jobs[0]
    return (
        poll.lease < SHORTEST_LEASE_AHEAD
        or (PRIORITY_FIELD in data_of(first)[:FIRST_FIELDS_BYTES] and first.priority > 0)
        or any(job.at_most_once for job in jobs if data_of(job)[1:3] in OWN_TERMS)
    )


def _drop_late(state: WorkerState, jobs: Sequence[Delivery], now: float) -> Sequence[Delivery]:
    in_time = [job for job in jobs if not term_of(job).is_over(now)]
    late = [job for job in jobs if term_of(job).is_over(now)]
    state.note_outcome(late, "lost")
    text = "the leases of %d jobs ended before the jobs arrived; they are not run"
    state.log.warning(text, len(late))
    return in_time


def _warn_of_trip(state: WorkerState, poll: QueuePoll, trip: float) -> None:
    longer = lengthened(poll.lease, trip)
    if longer > poll.lease and state.complaints.allows(f"trips to {poll.ops.name}"):
        text = (
            "queue %r: a round trip took %.2f s, long for leases of %.2f s: they are "
            "lengthened to %.2f s, after which jobs of a dead worker come back"
        )
        state.log.warning(text, poll.ops.name, trip, poll.lease, longer)


def _put_suspects_aside(
    state: WorkerState, jobs: Sequence[Delivery], suspects: Sequence[Delivery], *, is_alone: bool
) -> Sequence[Delivery]:
    """Return the jobs that are not suspects. Choose one suspect to run alone, if it can."""
    suspects = [job for job in suspects if state.dispatcher.find(job)]
    ordinary = [job for job in jobs if job not in suspects]
    state.suspects.unbegun.update(suspects)
    isolator = state.usable_isolator
    if isolator is not None:
        if suspects and isolator.take(suspects[0]):
            state.drop([suspects.pop(0)])
            state.suspects.note_room()
    elif is_alone and not ordinary:
        state.suspects.choose(suspects.pop(0))
    for job in suspects:
        state.put_back(job, PUT_ASIDE)
    return ordinary


def take_over(state: WorkerState, job: Delivery) -> None:
    """Hold a suspect that another process has taken, and run it next."""
    state.held[job] = state.clock()
    state.taken += 1
    reservation_of(job).on_emit = state.note_told
    state.suspects.choose(job)


def begin_suspect(state: WorkerState, term: Term | None) -> None:
    """Run the chosen suspect, which the server counts as begun; None = it is lost."""
    job = state.suspects.chosen
    assert job is not None
    state.suspects.unbegun.discard(job)
    if term is None:
        state.dispatcher.runners.lose([job])
        state.put_back(job, NO_REPORT)
    else:
        set_term(job, term)
        state.note_held([job])
        state.poke()
        state.dispatcher.hand([job])
