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
from typing import Any

from redis.exceptions import NoPermissionError

from penstock.client._sync.transport.connection import passing
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
from penstock.worker.crew import HANDED_BACK, KEPT, OUTCOMES, TRIP, Crew
from penstock.worker.results import ACK, Verdict
from penstock.worker.sources import Finished, Source, Todo
from penstock.worker.suspects import ASIDE

__all__ = ["leave", "work"]

logger = get_logger("penstock")

DAMAGES = (QueueDamaged, UnsupportedVersion, NoPermissionError)
"""What is wrong with one queue, and not with the server."""

Step = Effect | Effects
Flow = Generator[Step, Any, None]
Count = Generator[Step, Any, int]


def work(crew: Crew, node: Callable[[], str], looped: Callable[[int], None]) -> Flow:
    """Take and report jobs until the crew is over, whatever the server or the network does.

    Ends as well, with everything held, when the queues have moved: the caller begins it anew.

    Args:
        crew: the worker's state.
        node: the id of the node, known once it has answered.
        looped: called at the end of each round with the number of jobs that came.
    """
    try:
        while not crew.is_over:
            looped((yield from _lap(crew, node)))
            if crew.moved:
                with suppress(Exception):  # the connection of the wait is dropped all the same
                    yield from _stand_up(crew)
                return
    except Cancelled:
        crew.stop(0)
        yield from leave(crew)
        raise
    yield from leave(crew)


def _lap(crew: Crew, node: Callable[[], str]) -> Count:
    """One round, or a rest if there is nothing to do; how many jobs came."""
    try:
        crew.tend()
        got = yield from _round(crew, node)
        if got < 0:
            got = yield from _rest(crew, node)
    except Exception as error:  # noqa: BLE001  # a worker outlives every failure
        yield from _failed(crew, error)
        return 0
    return got


def _failed(crew: Crew, error: Exception) -> Flow:
    """Note a failure, let the connections go, and wait a little longer each time."""
    crew.failures += 1
    crew.unsure = True
    if crew.failures == 1 or crew.failures % 10 == 0:
        text = "worker: %s: %s; going on"
        logger.warning(text, type(error).__name__, error, extra=crew.fields)
    crew.waiting = False
    crew.look_everywhere()
    with suppress(Exception):
        yield Drop()
    yield Rest(min(crew.clock() + min(0.05 * 2 ** min(crew.failures, 5), 1.0), crew.deadline))


def _round(crew: Crew, node: Callable[[], str]) -> Count:
    """Report and ask; how many jobs came, or -1 if there was nothing to do."""
    if crew.suspects.waits:
        yield from _begin(crew)
    unsettled, now = crew.collect(), crew.clock()
    todo = {i: part for i, part in unsettled.items() if crew.sources[i].barred <= now}
    shares = crew.shares()
    if not todo and not shares and crew.clock() < crew.sample_at:
        return -1
    got = 0
    # Who gives back more than it gets comes first, so that no more is held than may be.
    for i in sorted({*todo, *shares}, key=lambda i: shares.get(i, 0) - _ending(todo.get(i))):
        source = crew.sources[i]
        visit = _visit(crew, source, todo.get(i), shares.get(i, 0), node)
        brought = yield from _reached(crew, source, _spared(crew, source, visit))
        if brought is not None:
            got += brought
            unsettled.pop(i, None)
        elif source.home is not None and i in unsettled:
            yield from _keep(crew, i)
    crew.unsure = False
    if crew.suspects.waits:
        yield from _begin(crew)
    if got and crew.waiting:  # a busy worker's BLPOP would swallow tokens that are others'
        yield from _stand_up(crew)
    if crew.clock() >= crew.sample_at:
        yield from _sample(crew, busy=got > 0 or bool(crew.held))
    return got


def _begin(crew: Crew) -> Flow:
    """Have the server count the chosen suspect as begun, and run it."""
    job, source = crew.suspects.chosen, crew.source_of(crew.suspects.chosen)
    if job.lost or source.barred > crew.clock():
        crew.begin(None)
        return
    yield from _reached(crew, source, _spared(crew, source, _extended(crew, source, job)))


def _extended(crew: Crew, source: Source, job: Any) -> Count:
    call, sent = source.ops.extend([job], round(job.term.lease * 1000), late=True), crew.clock()
    try:
        reply, resent = yield from _call(crew, source.ops, call)
    except WrongEpoch:
        crew.begin(None)
        return 0
    term = job.term.renewed(resent or sent, crew.clock(), reply[2], reply[3])
    crew.begin(term and (term if job.term.lease else job.term))  # a ttl ends it as before
    return 0


def _ending(part: Todo | None) -> int:
    return 0 if part is None else part.jobs


def _spared(crew: Crew, source: Source, flow: Count) -> Generator[Step, Any, int | None]:
    """What something with one queue gives; None = it, or its node, will be left alone a while."""
    try:
        got = yield from flow
    except QueuePartitioned as error:
        crew.found_partitioned(source, error)
        return None
    except DAMAGES as error:
        crew.found_damaged(source, error)
        return None
    except QueueInUse as error:
        crew.found_taken(source, error)
        return 0
    return got


def _reached(
    crew: Crew, source: Source, flow: Generator[Step, Any, int | None]
) -> Generator[Step, Any, int | None]:
    """The same where queues lie on several servers or nodes, and its own is not there."""
    try:
        got = yield from flow
    except Exception as error:
        if not (crew.is_spread and passing(error)):
            raise
        source.unsure = True
        if source.home is None:
            crew.found_damaged(source, error, logging.WARNING)
        else:
            crew.found_down(source)
        return None
    if got is not None:
        source.failures, source.unsure = 0, False
    return got


def _keep(crew: Crew, place: int) -> Flow:
    """Let another node keep what can't be reported because a home is down, as far as it may be."""
    source, todo = crew.sources[place], crew.unsettled[place]
    for verdict, finished in [(ACK, todo.acks), *todo.others.items()]:
        kept: list[Finished] = []
        for done in finished if verdict.kind in ("ack", "bury") else ():
            intent = Intent(verdict.kind, verdict.window_ms, verdict.text)
            answer: list[bool] = yield Keep(source.home, source.ops.keys.name, done.jobs, intent)
            if all(answer):
                kept.append(done)
        for done in kept:
            finished.remove(done)
            crew.drop(done.jobs)
            crew.count(done, _usual(verdict, done.jobs[0]), len(done.jobs))
    todo.others = {verdict: finished for verdict, finished in todo.others.items() if finished}
    if not todo.jobs:
        del crew.unsettled[place]


def _visit(crew: Crew, source: Source, part: Todo | None, n: int, node: Callable[[], str]) -> Count:
    """Report to one queue and ask it for up to n jobs; how many came."""
    try:
        return (yield from _exchange(crew, source, part, n, node))
    except QueueInUse:  # nothing was taken; what is finished is reported, which needs no role
        if part is not None:
            yield from _report(crew, source, part)
        raise


def _exchange(
    crew: Crew, source: Source, part: Todo | None, n: int, node: Callable[[], str]
) -> Count:
    """The same, in as few trips as can be."""
    got = 0
    if n and not source.lease:
        n = yield from _measured(crew, source, n)
    from_wait = source.woken or crew.waiting
    if from_wait and n and crew.free > 0:
        # It says so, for which the trip that does both has no room.
        got = yield from _reserve(crew, source, min(n, crew.free), node)
        n = 0
    while part is not None and part.others:
        yield from _report_other(crew, source, part)
    while n and part is not None and sum(len(done.jobs) for done in part.acks) > TRIP:
        yield from _ack(crew, source, part)
    if n and part is not None and part.acks:
        got = yield from _settle(crew, source, part, n, node)
    elif n:
        got = yield from _reserve(crew, source, n, node)
    if part is not None:
        yield from _report(crew, source, part)
    return got


def _report(crew: Crew, source: Source, part: Todo) -> Flow:
    """Report everything to one queue."""
    while part.others:
        yield from _report_other(crew, source, part)
    while part.acks:
        yield from _ack(crew, source, part)


def _call(crew: Crew, ops: QueueOps, call: Call) -> Generator[Step, Any, tuple[list[Any], float]]:
    """Run a script; its reply, and when it was sent again, or 0."""
    run, sent = Run(call, told=True, brief=crew.is_spread), crew.clock()
    reply, resent = yield (run if ops.home is None else At(ops.home, run))
    ops.check(reply)
    crew.heard(ops, resent or sent)
    if resent:
        # The connection failed; the one that waits may be as dead, and swallow every token.
        crew.waiting = False
        crew.look_everywhere()
        with suppress(Exception):
            yield Drop()
    return reply, resent


def _id_of(source: Source, node: Callable[[], str]) -> str:
    """The id of the node of a queue."""
    return node() if source.home is None else str(source.home.id)


def _first(finished: Sequence[Finished]) -> list[Finished]:
    """The first of them: as much as one script takes, of one life of the queue, at least one."""
    count, epoch = 0, finished[0].jobs[0].epoch
    for i, done in enumerate(finished):
        count += len(done.jobs)
        if i and (count > TRIP or done.jobs[0].epoch != epoch):
            return list(finished[:i])
    return list(finished)


def _named(finished: Sequence[Finished]) -> list[Any]:
    return [job for done in finished for job in done.jobs]


def _settle(crew: Crew, source: Source, part: Todo, n: int, node: Callable[[], str]) -> Count:
    """Acknowledge and take more in one trip; how many came."""
    finished = _first(part.acks)
    names, sent = _named(finished), crew.clock()
    call, tag = source.ops.settle(names, n, provisional=True)
    try:
        reply, resent = yield from _call(crew, source.ops, call)
    except WrongEpoch:
        part.acks = part.acks[len(finished) :]
        _outlived(crew, finished)
        return 0
    taken = source.ops.taken(reply, tag, _id_of(source, node), 8)
    part.acks = part.acks[len(finished) :]
    _ended(crew, finished, source.ops.settled(names, reply), ACK, resent or source.unsure)
    crew.asked(source, taken, n, resent or sent)
    return len(taken.deliveries)


def _ack(crew: Crew, source: Source, part: Todo) -> Flow:
    """Acknowledge."""
    finished = _first(part.acks)
    names = _named(finished)
    try:
        reply, resent = yield from _call(crew, source.ops, source.ops.ack(names))
    except WrongEpoch:
        part.acks = part.acks[len(finished) :]
        _outlived(crew, finished)
        return
    part.acks = part.acks[len(finished) :]
    _ended(crew, finished, source.ops.codes(names, reply), ACK, resent or source.unsure)


def _measured(crew: Crew, source: Source, n: int) -> Count:
    """Learn the lease of a queue and how long a trip takes, before it gives the first job.

    How many jobs to ask it for then.
    """
    call, _ = source.ops.reserve(0, idle=False)
    reply, _ = yield from _call(crew, source.ops, call)
    source.lease = reply[4] / 1000
    crew.judge(source)
    return 0 if source.is_slow else n


def _reserve(crew: Crew, source: Source, n: int, node: Callable[[], str]) -> Count:
    """Take up to n jobs; how many came."""
    sent = crew.clock()
    call, tag = source.ops.reserve(n, idle=source.woken or crew.waiting, provisional=True)
    reply, resent = yield from _call(crew, source.ops, call)
    source.woken = False
    taken = source.ops.taken(reply, tag, _id_of(source, node))
    crew.asked(source, taken, n, resent or sent)
    return len(taken.deliveries)


def _report_other(crew: Crew, source: Source, part: Todo) -> Flow:
    """Report jobs of one kind that were not simply done, as many as one script takes."""
    verdict, everything = next(iter(part.others.items()))
    finished = _first(everything)
    names = _named(finished)
    outcomes: Settled | None = Settled(names, None)
    resent = 0.0
    if verdict.kind != "none":
        try:
            outcomes, resent = yield from _told(crew, source.ops, names, verdict)
        except WrongEpoch:
            outcomes = None
    if len(finished) == len(everything):
        del part.others[verdict]
    else:
        part.others[verdict] = everything[len(finished) :]
    if verdict is ASIDE:
        crew.put_aside(source, len(names))
    if outcomes is None:
        _outlived(crew, finished)
    else:
        _ended(crew, finished, outcomes, verdict, resent or source.unsure)


def _told(
    crew: Crew, ops: QueueOps, names: Sequence[Any], verdict: Verdict
) -> Generator[Step, Any, tuple[Settled, float]]:
    """Report jobs."""
    reply, resent = yield from _call(crew, ops, _verdict_call(ops, names, verdict))
    return ops.codes(names, reply), resent


def _verdict_call(ops: QueueOps, names: Sequence[Any], verdict: Verdict) -> Call:
    if verdict.kind == "nack":
        return ops.nack(names, verdict.delay_ms, verdict.text)
    if verdict.kind == "release":
        return ops.release(names, verdict.delay_ms)
    if verdict.kind == "bury":
        return ops.bury(names, verdict.text)
    return ops.ack(names, verdict.window_ms)


def _ended(
    crew: Crew, finished: Sequence[Finished], outcomes: Settled, verdict: Verdict, resent: float
) -> None:
    """What was reported is not held any more; it is counted as what became of it."""
    if crew.options.burst:  # handlers may have added jobs, or given some back: look once more
        for source in crew.sources:
            source.at = 0.0
    for done in finished:
        crew.drop(done.jobs)
        if verdict.kind != "none":
            crew.abandoned.difference_update(done.jobs)
    if outcomes.all_done:
        for done in finished:
            crew.count(done, _usual(verdict, done.jobs[0]), len(done.jobs))
        return
    found = iter(outcomes)
    for done in finished:
        fates = Counter(
            _fate(done, job, next(found), bool(resent) or crew.unsure) for job in done.jobs
        )
        for fate, count in fates.items():
            crew.count(done, fate, count)


def _outlived(crew: Crew, finished: Sequence[Finished]) -> None:
    """The queue of these jobs was removed, and has been made anew since: they are gone with it."""
    for done in finished:
        crew.drop(done.jobs)
        crew.count(done, "lost", len(done.jobs))
        logger.warning("%s is gone with its queue", done.jobs[0].id, extra=Fields(done.jobs[0]))


def _usual(verdict: Verdict, job: Any) -> str:
    """What a job is counted as if the call did what it should."""
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
        text = "%s is delivered at most once, so %s is not possible"
        logger.warning(text, job.id, verdict.kind, extra=Fields(job))
        return "failed"
    text = "%s was not this worker's any more, so %s changed nothing"
    logger.warning(text, job.id, verdict.kind, extra=Fields(job))
    return "lost"


def _sample(crew: Crew, *, busy: bool) -> Flow:
    """Look how long the queues are; also the sign of life of a worker that is full."""
    crew.sample_at = crew.clock() + crew.sample_pause(busy=busy)
    for source in crew.sources:
        if not source.failures:
            yield from _reached(crew, source, _sized(crew, source))


def _sized(crew: Crew, source: Source) -> Count:
    with suppress(QueuePartitioned, *DAMAGES):  # what is in the way of its jobs is told there
        reply, _ = yield from _call(crew, source.ops, source.ops.stats())
        source.size = source.ops.stats_of(reply).ready
        crew.statistics.sized(source.ops.name, crew.sizes[source.ops.name])
    return 0


def _rest(crew: Crew, node: Callable[[], str]) -> Count:
    """Wait: for a token where there is room, else for whatever the runners have to tell.

    Returns how many jobs a token brought.
    """
    if not crew.held:
        yield from _tidy(crew)
    until, wakes = crew.until(), crew.wakes
    if wakes.keys() != crew.awaited:
        yield from _stand_up(crew)
        crew.awaited = wakes.keys()
    if not crew.may_wait or not wakes:
        yield from _stand_up(crew)
        yield Rest(until)
        return 0
    crew.waiting = True
    if next(iter(wakes))[0] is not None:
        return (yield from _listen(crew, wakes, until, node))
    key = yield Pop(tuple(key for _, key in wakes), until)
    if isinstance(key, bytes):
        return (yield from _woken(crew, wakes[None, key], node))
    if key is LOST:
        crew.waiting = False
        crew.look_everywhere()
    return 0


def _tidy(crew: Crew) -> Flow:
    """Sweep the queues whose turn it is: about once a minute, at times that workers draw."""
    parts: dict[Any, list[QueueOps]] = {}
    for source in crew.sources:
        if source.is_usable:
            parts.setdefault(source.home, []).append(source.ops)
    for home, own in parts.items():
        with suppress(Exception):  # it is the next client's turn as well
            effect = Tidy(tuple(own))
            yield effect if home is None else At(home, effect)


def _listen(
    crew: Crew,
    wakes: Mapping[tuple[Any, bytes], Source],
    until: float,
    node: Callable[[], str],
) -> Count:
    """Wait on several nodes; how many jobs their tokens brought."""
    wanted: dict[Any, tuple[bytes, ...]] = {}
    for home, key in wakes:
        wanted[home] = (*wanted.get(home, ()), key)
    heard: Heard = yield Listen(wanted, until)
    got = 0
    for token in heard.tokens:
        got += yield from _woken(crew, wakes[token], node)
    for source in crew.sources:
        if source.home in heard.lost:
            source.at = 0.0
    return got


def _woken(crew: Crew, source: Source, node: Callable[[], str]) -> Count:
    """A token: its queue is asked before anything else, or somebody else is told to."""
    crew.waiting = crew.is_spread and len(crew.awaited) > 1
    source.at, source.woken = 0.0, True
    room = crew.room()
    if room <= 0 or source.is_slow:
        yield from _hand_on(crew, source)
        return 0
    asked = _reserve(crew, source, min(room, TRIP), node)
    got = (yield from _reached(crew, source, _spared(crew, source, asked))) or 0
    if got:
        yield Cede()  # the handler begins before the next BLPOP is sent
    return got


def _stand_up(crew: Crew) -> Flow:
    """End a wait: tokens taken meanwhile, and events only this worker was told of, go on."""
    waited, crew.waiting = crew.waiting, False
    answer = (yield Quit()) if waited else ()
    tokens = answer.tokens if isinstance(answer, Heard) else [(None, key) for key in answer]
    for source in crew.sources:
        near = waited and 0 < source.at <= crew.clock() + TICK and source.is_usable
        if near or source.woken or (source.home, source.ops.keys["wake"]) in tokens:
            yield from _hand_on(crew, source)


def _hand_on(crew: Crew, source: Source) -> Flow:
    """Put the token back for another consumer, if there is anything to take."""
    yield from _reached(crew, source, _handed(crew, source))


def _handed(crew: Crew, source: Source) -> Count:
    source.woken = False
    call, _ = source.ops.reserve(0, idle=True)
    with suppress(QueueInUse):  # it is handed on all the same
        yield from _call(crew, source.ops, call)
    return 0


def leave(crew: Crew) -> Flow:
    """End the wait, report what is finished, and give back what is not; never raises.

    The first call that does not get through is the last: then the leases end by themselves.
    """
    yield Hurry()
    try:
        for step in (_stand_up, _report_all, _hand_back, _report_all):
            with _unless_refused(crew):
                yield from step(crew)
    except Exception as error:  # noqa: BLE001  # it ends all the same
        text = "worker: %s: %s; leases are left to end"
        logger.warning(text, type(error).__name__, error, extra=crew.fields)
    crew.abandoned |= crew.leased()
    for source in crew.sources:
        crew.abandon(source)


def _hand_back(crew: Crew) -> Flow:
    for source in crew.sources:
        jobs = crew.abandon(source)
        crew.abandoned.update(jobs)
        jobs.sort(key=lambda job: job.epoch)
        lives = [list(life) for _, life in groupby(jobs, key=lambda job: job.epoch)]
        for chunk in (life[i : i + BATCH] for life in lives for i in range(0, len(life), BATCH)):
            with _unless_refused(crew):
                yield from _call(crew, source.ops, source.ops.release(chunk, 0))
                crew.drop(chunk)
                crew.abandoned.difference_update(chunk)
                crew.statistics.finished("handed back", len(chunk), None, None)
                text = "%d unfinished jobs were given back"
                logger.warning(text, len(chunk), extra=crew.fields)


def _report_all(crew: Crew) -> Flow:
    for i, part in list(crew.collect().items()):
        with _unless_refused(crew):
            yield from _report(crew, crew.sources[i], part)
            del crew.unsettled[i]
        if crew.sources[i].home is not None and i in crew.unsettled:
            yield from _keep(crew, i)


@contextmanager
def _unless_refused(crew: Crew) -> Iterator[None]:
    """What is refused in one place, or not there, is no reason to leave the rest."""
    try:
        yield
    except Exception as error:
        if passing(error) and not crew.is_spread:
            raise
        logger.warning("worker: %s: %s", type(error).__name__, error, extra=crew.fields)
