"""The loop of a worker, as a flow without I/O: report what is done, take more, wait.

A busy worker makes one trip for both, and whatever was finished meanwhile goes with it: reports are
gathered by the trip that is under way, and never held back otherwise. An idle one waits for a token
as every consumer does (protocol/core.md, Waking).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, TypeVar

from redis.exceptions import NoPermissionError

from penstock.client._sync.transport.failures import passing
from penstock.core.calls import Call
from penstock.core.flows import (
    LOST,
    TICK,
    Cancelled,
    Cede,
    Drop,
    Effect,
    Hurry,
    Pop,
    Quit,
    Rest,
    Run,
    Tidy,
)
from penstock.core.hints import Intent
from penstock.core.job import Outcome, Settled
from penstock.core.logs import Fields, get_logger
from penstock.core.nodes import At, Effects, Heard, Keep, Listen
from penstock.core.operations import QueueOps
from penstock.core.options import BATCH
from penstock.errors import (
    QueueDamaged,
    QueueInUse,
    QueuePartitioned,
    UnsupportedVersion,
    WrongEpoch,
)
from penstock.worker.polls import Finished, QueuePoll, Todo
from penstock.worker.results import ACK, Verdict
from penstock.worker.state import FAR, HANDED_BACK, KEPT, OUTCOMES, TRIP, WorkerState
from penstock.worker.suspects import ASIDE

__all__ = ["leave", "work"]

logger = get_logger("penstock")

DAMAGES = (QueueDamaged, UnsupportedVersion, NoPermissionError)
"""What is wrong with one queue, and not with the server."""

R = TypeVar("R")
Step = Effect | Effects
Flow = Generator[Step, Any, None]
Count = Generator[Step, Any, int]


def work(state: WorkerState, looped: Callable[[int], None]) -> Flow:
    """Take and report jobs until the worker is over, whatever the server or the network does.

    Ends as well, with everything held, when the queues have moved: the caller begins it anew.

    Args:
        state: the worker's state.
        looped: called at the end of each round with the number of jobs that came.
    """
    try:
        while not state.is_over:
            try:
                state.tend()
                got = yield from _round(state)
                if got < 0:
                    got = yield from _rest(state)
            except Exception as error:  # noqa: BLE001  # a worker outlives every failure
                yield from _failed(state, error)
                got = 0
            looped(got)
            if state.moved:
                with suppress(Exception):  # the connection of the wait is dropped all the same
                    yield from _stand_up(state)
                return
    except Cancelled:
        state.stop(0)
        yield from leave(state)
        raise
    yield from leave(state)


def _failed(state: WorkerState, error: Exception) -> Flow:
    """Note a failure, let the connections go, and wait a little longer each time."""
    state.failures += 1
    state.unsure = True
    if state.failures == 1 or state.failures % 10 == 0:
        text = "worker: %s: %s; it is tried again"
        logger.warning(text, type(error).__name__, error, extra=state.fields)
    state.waiting = False
    state.look_everywhere()
    with suppress(Exception):
        yield Drop()
    yield Rest(min(state.clock() + min(0.05 * 2 ** min(state.failures, 5), 1.0), state.deadline))


def _round(state: WorkerState) -> Count:
    """Report and ask for jobs; return how many came, or -1 if there was nothing to do."""
    if state.suspects.unbegun and state.suspects.waits:
        yield from _begin(state)
    unsettled, now = state.collect(), state.clock()
    todo = {i: part for i, part in unsettled.items() if state.polls[i].barred <= now}
    shares = state.shares()
    if not todo and not shares and state.clock() < state.sample_at:
        return -1
    got, places = 0, {*todo, *shares}
    for i in places if len(places) < 2 else _order(todo, shares):
        poll = state.polls[i]
        brought: int | None
        try:
            brought = yield from _exchange(state, poll, todo.get(i), shares.get(i, 0))
            poll.failures, poll.unsure = 0, False
        except Exception as error:  # noqa: BLE001  # raised again if others are affected, too
            brought = _refused(state, poll, error)
        if brought is not None:
            got += brought
            unsettled.pop(i, None)
        elif poll.home is not None and i in unsettled:
            yield from _keep(state, i)
    state.unsure = False
    if state.suspects.unbegun and state.suspects.waits:
        yield from _begin(state)
    if got and state.waiting:  # a busy worker's BLPOP would swallow tokens that are others'
        yield from _stand_up(state)
    if state.clock() >= state.sample_at:
        yield from _sample(state, busy=got > 0 or bool(state.held))
    return got


def _order(todo: Mapping[int, Todo], shares: Mapping[int, int]) -> list[int]:
    """Return the queues to visit. The one that gets most reports for the jobs it gives comes first.

    So no more jobs are held at any time than may be.
    """
    return sorted(
        {*todo, *shares}, key=lambda i: shares.get(i, 0) - (todo[i].jobs if i in todo else 0)
    )


def _begin(state: WorkerState) -> Flow:
    """Have the server count the chosen suspect as begun, and run it."""
    job, poll = state.suspects.chosen, state.poll_of(state.suspects.chosen)
    if job.lost or poll.barred > state.clock():
        state.begin(None)
        return
    yield from _guarded(state, poll, _extended(state, poll, job))


def _extended(state: WorkerState, poll: QueuePoll, job: Any) -> Count:
    call, sent = poll.ops.extend([job], round(job.term.lease * 1000), late=True), state.clock()
    try:
        reply = yield from _call(state, poll, call)
    except WrongEpoch:
        state.begin(None)
        return 0
    term = job.term.renewed(call.resent or sent, state.clock(), reply.now, reply.untils[0])
    state.begin(term and (term if job.term.lease else job.term))  # a ttl ends it as before
    return 0


def _guarded(state: WorkerState, poll: QueuePoll, flow: Count) -> Generator[Step, Any, int | None]:
    """Run a flow about one queue; None = the queue, or its node, is left alone for a while."""
    try:
        got = yield from flow
    except Exception as error:  # noqa: BLE001  # raised again if others are affected, too
        return _refused(state, poll, error)
    poll.failures, poll.unsure = 0, False
    return got


def _refused(state: WorkerState, poll: QueuePoll, error: Exception) -> int | None:
    """Note an error about one queue or its node, and raise any other."""
    if isinstance(error, QueueInUse):
        state.found_taken(poll, error)
        poll.failures, poll.unsure = 0, False
        return 0
    if isinstance(error, QueuePartitioned):
        state.found_partitioned(poll, error)
    elif isinstance(error, DAMAGES):
        state.found_damaged(poll, error)
    elif not (state.is_spread and passing(error)):
        raise error
    else:
        poll.unsure = True
        if poll.home is None:
            state.found_damaged(poll, error, logging.WARNING)
        else:
            state.found_down(poll)
    return None


def _keep(state: WorkerState, place: int) -> Flow:
    """Have another node keep the reports to a home that is down, as far as it may."""
    poll, todo = state.polls[place], state.unsettled[place]
    for verdict, finished in [(ACK, todo.acks), *todo.others.items()]:
        kept: list[Finished] = []
        for done in finished if verdict.kind in ("ack", "bury") else ():
            intent = Intent(verdict.kind, verdict.window_ms, verdict.text)
            answer: list[bool] = yield Keep(poll.home, poll.ops.keys.name, done.jobs, intent)
            if all(answer):
                kept.append(done)
        for done in kept:
            finished.remove(done)
            state.drop(done.jobs)
            state.count(done, _usual(verdict, done.jobs[0]), len(done.jobs))
    todo.others = {verdict: finished for verdict, finished in todo.others.items() if finished}
    if not todo.jobs:
        del state.unsettled[place]


def _exchange(state: WorkerState, poll: QueuePoll, part: Todo | None, n: int) -> Count:
    """Report to one queue and ask it for up to n jobs, in as few trips as can be.

    Returns how many jobs came.
    """
    got = 0
    try:
        if n and not poll.lease:
            n = yield from _measured(state, poll, n)
        if n and (poll.woken or state.waiting) and state.free > 0:
            # It says that it was idle, for which the trip that does both has no room.
            got = yield from _reserve(state, poll, min(n, state.free))
            n = 0
        while part is not None and part.others:
            yield from _report_other(state, poll, part)
        while n and part is not None and len(part.acks) > 1 and part.jobs > TRIP:
            yield from _ack(state, poll, part)
        if n and part is not None and part.acks:
            got = yield from _settle(state, poll, part, n)
        elif n:
            got = yield from _reserve(state, poll, n)
    except QueueInUse:  # nothing was taken; what is finished is reported, which needs no role
        if part is not None:
            yield from _report(state, poll, part)
        raise
    if part is not None and (part.acks or part.others):
        yield from _report(state, poll, part)
    return got


def _report(state: WorkerState, poll: QueuePoll, part: Todo) -> Flow:
    while part.others:
        yield from _report_other(state, poll, part)
    while part.acks:
        yield from _ack(state, poll, part)


def _call(state: WorkerState, poll: QueuePoll, call: Call[R]) -> Generator[Step, Any, R]:
    """Run a script and return its result."""
    run, sent = Run(call, brief=state.apart and state.is_spread), state.clock()
    home = poll.ops.home
    reply: R = yield (run if home is None else At(home, run))
    state.answered, state.failures = state.clock(), 0
    poll.trip = state.answered - (call.resent or sent)
    if poll.is_slow or poll.trip > poll.lease * FAR:
        state.judge(poll)
    if call.resent:
        # The connection failed; the one that waits may be as dead, and swallow every token.
        state.waiting = False
        state.look_everywhere()
        with suppress(Exception):
            yield Drop()
    return reply


def _first(finished: Sequence[Finished]) -> Sequence[Finished]:
    """Return as many as one script takes, of one life of the queue, at least one."""
    count, epoch = 0, finished[0].jobs[0].epoch
    for i, done in enumerate(finished):
        count += len(done.jobs)
        if i and (count > TRIP or done.jobs[0].epoch != epoch):
            return finished[:i]
    return finished


def _named(finished: Sequence[Finished]) -> list[Any]:
    return [job for done in finished for job in done.jobs]


def _settle(state: WorkerState, poll: QueuePoll, part: Todo, n: int) -> Count:
    """Acknowledge and take more in one trip; return how many came."""
    finished = part.acks if len(part.acks) == 1 else _first(part.acks)
    names, sent = [job for done in finished for job in done.jobs], state.clock()
    call = poll.ops.settle(names, n, provisional=True)
    try:
        outcomes, taken = yield from _call(state, poll, call)
    except WrongEpoch:
        part.acks = part.acks[len(finished) :]
        _outlived(state, finished)
        return 0
    part.acks = part.acks[len(finished) :]
    _ended(state, finished, outcomes, ACK, call.resent or poll.unsure)
    state.asked(poll, taken, n, call.resent or sent)
    return len(taken.deliveries)


def _ack(state: WorkerState, poll: QueuePoll, part: Todo) -> Flow:
    finished = _first(part.acks)
    call = poll.ops.ack(_named(finished))
    try:
        outcomes = yield from _call(state, poll, call)
    except WrongEpoch:
        part.acks = part.acks[len(finished) :]
        _outlived(state, finished)
        return
    part.acks = part.acks[len(finished) :]
    _ended(state, finished, outcomes, ACK, call.resent or poll.unsure)


def _measured(state: WorkerState, poll: QueuePoll, n: int) -> Count:
    """Learn the lease of a queue and how long a trip takes, before it gives the first job.

    How many jobs to ask it for then.
    """
    taken = yield from _call(state, poll, poll.ops.reserve(0))
    poll.lease = taken.lease_ms / 1000
    state.judge(poll)
    return 0 if poll.is_slow else n


def _reserve(state: WorkerState, poll: QueuePoll, n: int) -> Count:
    sent = state.clock()
    call = poll.ops.reserve(n, idle=poll.woken or state.waiting, provisional=True)
    taken = yield from _call(state, poll, call)
    poll.woken = False
    state.asked(poll, taken, n, call.resent or sent)
    return len(taken.deliveries)


def _report_other(state: WorkerState, poll: QueuePoll, part: Todo) -> Flow:
    """Report jobs of one other verdict, as many as one script takes."""
    verdict, everything = next(iter(part.others.items()))
    finished = _first(everything)
    names = _named(finished)
    outcomes: Settled | None = Settled(names, None)
    resent = 0.0
    if verdict.kind != "none":
        try:
            outcomes, resent = yield from _told(state, poll, names, verdict)
        except WrongEpoch:
            outcomes = None
    if len(finished) == len(everything):
        del part.others[verdict]
    else:
        part.others[verdict] = everything[len(finished) :]
    if verdict is ASIDE:
        state.put_aside(poll, len(names))
    if outcomes is None:
        _outlived(state, finished)
    else:
        _ended(state, finished, outcomes, verdict, resent or poll.unsure)


def _told(
    state: WorkerState, poll: QueuePoll, names: Sequence[Any], verdict: Verdict
) -> Generator[Step, Any, tuple[Settled, float]]:
    call = _verdict_call(poll.ops, names, verdict)
    outcomes = yield from _call(state, poll, call)
    return outcomes, call.resent


def _verdict_call(ops: QueueOps, names: Sequence[Any], verdict: Verdict) -> Call[Settled]:
    if verdict.kind == "nack":
        return ops.nack(names, verdict.delay_ms, verdict.text)
    if verdict.kind == "release":
        return ops.release(names, verdict.delay_ms)
    if verdict.kind == "bury":
        return ops.bury(names, verdict.text)
    return ops.ack(names, verdict.window_ms)


def _ended(
    state: WorkerState,
    finished: Sequence[Finished],
    outcomes: Settled,
    verdict: Verdict,
    resent: float,
) -> None:
    """Drop the jobs that were reported, and count their outcomes."""
    if state.options.burst:  # handlers may have added jobs, or given some back: look once more
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
        return
    found = iter(outcomes)
    for done in finished:
        fates = Counter(
            _fate(done, job, next(found), bool(resent) or state.unsure) for job in done.jobs
        )
        for fate, count in fates.items():
            state.count(done, fate, count)


def _outlived(state: WorkerState, finished: Sequence[Finished]) -> None:
    """Drop jobs whose queue was deleted and made again since."""
    for done in finished:
        state.drop(done.jobs)
        state.count(done, "lost", len(done.jobs))
        logger.warning("%s was deleted with its queue", done.jobs[0].id, extra=Fields(done.jobs[0]))


def _usual(verdict: Verdict, job: Any) -> str:
    """Return the outcome to count if the call did what it should."""
    if verdict is HANDED_BACK or verdict is ASIDE:
        return "handed back"
    if verdict is KEPT and job.lost:
        return "lost"
    return OUTCOMES[verdict.kind]


def _fate(done: Finished, job: Any, outcome: Outcome, unsure: bool) -> str:
    """What became of a job by the answer to the call.

    Args:
        done: what was reported.
        job: one of its jobs.
        outcome: the answer for it.
        unsure: whether the call may have been run before, without an answer.
    """
    verdict = done.verdict
    repeated = outcome is Outcome.ENDED or (outcome is Outcome.GONE and verdict.kind == "ack")
    if outcome is Outcome.DONE or (unsure and repeated):
        return _usual(verdict, job)
    if outcome is Outcome.DEAD:
        text = "%s has used up its attempts: a dead letter"
        logger.error(text, job.id, exc_info=done.error, extra=Fields(job))
        return "dead"
    if outcome is Outcome.REFUSED:
        text = "%s is delivered at most once; a %s of it is not possible"
        logger.warning(text, job.id, verdict.kind, extra=Fields(job))
        return "failed"
    text = "%s: the lease was lost before the %s, which changed nothing"
    logger.warning(text, job.id, verdict.kind, extra=Fields(job))
    return "lost"


def _sample(state: WorkerState, *, busy: bool) -> Flow:
    """Read the sizes of the queues. This also shows that a worker that is full is alive."""
    state.sample_at = state.clock() + state.sample_pause(busy=busy)
    for poll in state.polls:
        if not poll.failures:
            yield from _guarded(state, poll, _sized(state, poll))


def _sized(state: WorkerState, poll: QueuePoll) -> Count:
    with suppress(QueuePartitioned, *DAMAGES):  # what is in the way of its jobs is told there
        poll.size = (yield from _call(state, poll, poll.ops.stats())).ready
        state.statistics.sized(poll.ops.name, state.sizes[poll.ops.name])
    return 0


def _rest(state: WorkerState) -> Count:
    """Wait: for a token where there is room, else for whatever the runners have to tell.

    Returns how many jobs a token brought.
    """
    if not state.held:
        yield from _tidy(state)
    until = state.until()
    if state.room() <= 0 or not state.may_wait:
        if state.waiting or [poll for poll in state.polls if poll.woken]:
            yield from _stand_up(state)
        yield Rest(until)
        return 0
    wakes = state.wakes
    if wakes.keys() != state.awaited:
        yield from _stand_up(state)
        state.awaited = wakes.keys()
    if not wakes:
        yield from _stand_up(state)
        yield Rest(until)
        return 0
    state.waiting = True
    if next(iter(wakes))[0] is not None:
        return (yield from _listen(state, wakes, until))
    key = yield Pop(tuple(key for _, key in wakes), until)
    if isinstance(key, bytes):
        return (yield from _woken(state, wakes[None, key]))
    if key is LOST:
        state.waiting = False
        state.look_everywhere()
    return 0


def _tidy(state: WorkerState) -> Flow:
    """Sweep the queues that are due: about once a minute, at times that the workers draw."""
    parts: dict[Any, list[QueueOps]] = {}
    for poll in state.polls:
        if poll.is_usable:
            parts.setdefault(poll.home, []).append(poll.ops)
    for home, own in parts.items():
        with suppress(Exception):  # it is the next client's turn as well
            effect = Tidy(tuple(own))
            yield effect if home is None else At(home, effect)


def _listen(
    state: WorkerState,
    wakes: Mapping[tuple[Any, bytes], QueuePoll],
    until: float,
) -> Count:
    """Wait on several nodes; return how many jobs their tokens brought."""
    wanted: dict[Any, tuple[bytes, ...]] = {}
    for home, key in wakes:
        wanted[home] = (*wanted.get(home, ()), key)
    heard: Heard = yield Listen(wanted, until)
    got = 0
    for token in heard.tokens:
        got += yield from _woken(state, wakes[token])
    for poll in state.polls:
        if poll.home in heard.lost:
            poll.at = 0.0
    return got


def _woken(state: WorkerState, poll: QueuePoll) -> Count:
    """Reserve from the queue of a token; if there is no room, hand the token on."""
    state.waiting = state.is_spread and len(state.awaited) > 1
    poll.at, poll.woken = 0.0, True
    room = state.room()
    if room <= 0 or poll.is_slow:
        yield from _hand_on(state, poll)
        return 0
    asked = _reserve(state, poll, min(room, TRIP))
    got = (yield from _guarded(state, poll, asked)) or 0
    if got:
        yield Cede()  # the handler begins before the next BLPOP is sent
    return got


def _stand_up(state: WorkerState) -> Flow:
    """End a wait. Tokens that were taken, and events that only this worker was told of, go on."""
    waited, state.waiting = state.waiting, False
    answer = (yield Quit()) if waited else ()
    tokens = answer.tokens if isinstance(answer, Heard) else [(None, key) for key in answer]
    for poll in state.polls:
        near = waited and 0 < poll.at <= state.clock() + TICK and poll.is_usable
        if near or poll.woken or (poll.home, poll.ops.keys["wake"]) in tokens:
            yield from _hand_on(state, poll)


def _hand_on(state: WorkerState, poll: QueuePoll) -> Flow:
    """Put the token back for another consumer, if there is anything to take."""
    yield from _guarded(state, poll, _handed(state, poll))


def _handed(state: WorkerState, poll: QueuePoll) -> Count:
    poll.woken = False
    call = poll.ops.reserve(0, idle=True)
    with suppress(QueueInUse):  # it is handed on all the same
        yield from _call(state, poll, call)
    return 0


def leave(state: WorkerState) -> Flow:
    """End the wait, report what is finished, and give back what is not; never raises.

    The first call that does not get through is the last: then the leases end by themselves.
    """
    yield Hurry()
    try:
        for step in (_stand_up, _report_all, _hand_back, _report_all):
            with _unless_refused(state):
                yield from step(state)
    except Exception as error:  # noqa: BLE001  # it ends all the same
        text = "worker: %s: %s; leases are left to end"
        logger.warning(text, type(error).__name__, error, extra=state.fields)
    state.abandoned |= state.leased()
    for poll in state.polls:
        state.abandon(poll)


def _hand_back(state: WorkerState) -> Flow:
    for poll in state.polls:
        jobs = state.abandon(poll)
        state.abandoned.update(jobs)
        jobs.sort(key=lambda job: job.epoch)
        lives = [list(life) for _, life in groupby(jobs, key=lambda job: job.epoch)]
        for chunk in (life[i : i + BATCH] for life in lives for i in range(0, len(life), BATCH)):
            with _unless_refused(state):
                yield from _call(state, poll, poll.ops.release(chunk, 0))
                state.drop(chunk)
                state.abandoned.difference_update(chunk)
                state.statistics.finished("handed back", len(chunk), None, None)
                text = "%d unfinished jobs were given back"
                logger.warning(text, len(chunk), extra=state.fields)


def _report_all(state: WorkerState) -> Flow:
    for i, part in list(state.collect().items()):
        with _unless_refused(state):
            yield from _report(state, state.polls[i], part)
            del state.unsettled[i]
        if state.polls[i].home is not None and i in state.unsettled:
            yield from _keep(state, i)


@contextmanager
def _unless_refused(state: WorkerState) -> Iterator[None]:
    """Log a failure that concerns one queue, and go on with the others."""
    try:
        yield
    except Exception as error:
        if passing(error) and not state.is_spread:
            raise
        logger.warning("worker: %s: %s", type(error).__name__, error, extra=state.fields)
