"""Reports of finished jobs, as flows without I/O.

A report that a queue refuses concerns its job only. If a call about several jobs is refused, it is
repeated with fewer of them until the refused ones are found; the others are reported. A job whose
report stays refused fails with that error, as if its handler had raised it. If the queue refuses
that too, the job is left to its lease.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import chain
from typing import Any

from penstock.core.calls.failures import about_server
from penstock.core.flows import Effect, StoreHint
from penstock.core.flows.effects import CountFlow, Flow
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import (
    Delivery,
    counts_of,
    data_of,
    number_of,
    ops_of,
    reservation_of,
    take_unsent,
    term_of,
)
from penstock.core.jobs.logs import TRACE_FIELD, Fields, get_logger, span
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.record import FIRST_FIELDS_BYTES, KEPT_FIELD, parse_record
from penstock.core.jobs.results import count_fitting, results_of
from penstock.errors import WrongEpoch
from penstock.worker.concerns import (
    CHANGED_QUEUE_ERRORS,
    guard_queue,
    is_certain,
    is_damage,
    run_call,
)
from penstock.worker.deliveries import drop_unconfirmed, take_reply
from penstock.worker.emitting import send_rest
from penstock.worker.messages import FAILED_OUTCOMES
from penstock.worker.polls import Finished, QueuePoll, Reports, first_of, verdict_call
from penstock.worker.results import ACK, HANDED_BACK, HELD_AHEAD, NO_REPORT, Verdict, outcome_of
from penstock.worker.state import JOBS_PER_CALL, WorkerState
from penstock.worker.suspects import PUT_ASIDE

__all__ = ["drop_expired", "keep_as_hints", "report", "report_all"]

logger = get_logger("penstock")
MOST_UNSORTED_RUNS = 1000
"""Runs that are kept before their times are counted by bucket."""

MOST_REPORT_TRIES = 3
"""Rounds in which a report is tried while its error may pass."""
MOST_DAMAGE_REFUSALS = 3
"""Refused calls about one job in a row after which a damaged queue gets no more of that kind."""
MOST_REFUSED_PARTS = 16
"""Most refused calls in a row that name several jobs. Half by half, 9 find one job of 300."""


def report_all(state: WorkerState, poll: QueuePoll, reports: Reports) -> Flow:
    """Report all of these jobs. Those whose reports are to be tried again stay in `reports`.

    Raises:
        Exception: an error that concerns the server or the queue, or that of a report that stays.
    """
    most, left, damages = JOBS_PER_CALL, MOST_REFUSED_PARTS, 0
    kept, errors = list[Finished](), list[Exception]()
    try:
        while reports and left:
            verdict = next(iter(reports))
            try:
                yield from report(state, poll, reports, verdict=verdict, most=most)
            except Exception as error:
                if about_server(error) or isinstance(error, CHANGED_QUEUE_ERRORS):
                    raise
                part = _split_first(reports, verdict, most)
                jobs = sum(len(done.jobs) for done in part)
                if jobs > 1:
                    most, left = min(jobs // 2, JOBS_PER_CALL - 1), left - 1
                    errors[:] = [error]
                    continue
                damages = damages + 1 if is_damage(error) else 0
                part = reports[verdict] if damages == MOST_DAMAGE_REFUSALS else part
                again = _sort_refused(state, part, error, reports=reports)
                reports[verdict] = reports[verdict][len(part) :]
                if not reports[verdict]:
                    del reports[verdict]
                    damages = 0
                # Those that had no call of their own come first next time.
                kept = [*again[1:], *kept, *again[:1]]
                errors[:] = [error] if again else errors
                most, left = 1, MOST_REFUSED_PARTS
            else:
                most, left, damages = min(2 * most, JOBS_PER_CALL), MOST_REFUSED_PARTS, 0
        if errors and (kept or reports):
            raise errors.pop()
    finally:
        errors.clear()  # see `caught`
        for done in kept:
            reports.setdefault(done.verdict, []).append(done)


def _sort_refused(
    state: WorkerState, refused: Sequence[Finished], error: Exception, *, reports: Reports
) -> list[Finished]:
    """Decide what follows refused reports, in their order; return those to try again.

    Reports of failures take the places of the others in `reports`.
    """
    again = list[Finished]()
    for done in refused:
        tries = done.tries + 1
        may_pass = not done.stands_in and tries < MOST_REPORT_TRIES
        if not is_certain(error) and (may_pass or (is_damage(error) and state.is_patient)):
            again.append(done._replace(tries=tries))
        elif done.stands_in or (
            done.verdict.kind in ("release", "suspend") and done.verdict.calls is None
        ):
            _leave_to_lease(state, done, error)
        else:
            is_counted = done.is_counted
            for job, seconds in zip(done.jobs, done.times, strict=True):
                verdict = state.fail_refused(job, error)
                failed = Finished((job,), verdict, seconds, stands_in=True, is_counted=is_counted)
                reports.setdefault(verdict, []).append(failed)
                is_counted = not done.spans
    return again


def _leave_to_lease(state: WorkerState, done: Finished, error: Exception) -> None:
    """Give up a report; the jobs come back when their leases end."""
    state.drop(done.jobs)
    state.report_error = error.with_traceback(None)
    _uncount(state, done.verdict, done.jobs)
    if done.verdict is PUT_ASIDE:
        state.suspects.put_aside()
    if state.stopping:
        state.abandoned.update(job for job in done.jobs if not job.at_most_once)
    count(state, done, "lost")
    for job in done.jobs:
        text = "%s could not be reported, its lease is left to end: %s: %s"
        logger.error(text, job.id, type(error).__name__, error, extra=Fields(job))


def _uncount(state: WorkerState, verdict: Verdict, jobs: Sequence[Delivery]) -> None:
    """Count jobs that were held for a moment no longer as taken."""
    if verdict in (PUT_ASIDE, HELD_AHEAD):
        state.taken -= len(jobs)


def _split_first(reports: Reports, verdict: Verdict, most: int) -> Sequence[Finished]:
    """Return the reports of the next call. Divide a chunk if `most` is below `JOBS_PER_CALL`."""
    part = reports[verdict]
    if most < JOBS_PER_CALL and len(part[0].jobs) > most:
        first = part[0]
        rest = first._replace(jobs=first.jobs[most:], spans=first.spans[most:])
        part[:1] = [
            first._replace(jobs=first.jobs[:most], spans=first.spans[:most]),
            rest if first.spans else rest._replace(is_counted=True),
        ]
    return part if len(part) == 1 else first_of(part, most)


def report(
    state: WorkerState,
    poll: QueuePoll,
    reports: Reports,
    *,
    verdict: Verdict,
    wanted: int = 0,
    most: int = JOBS_PER_CALL,
) -> CountFlow:
    """Report jobs of one verdict, as many as one script takes; return the number of new jobs.

    Results of many bytes go out in several calls. The last one reserves.

    Args:
        state: the worker's state.
        poll: the queue.
        reports: those of this queue; what was reported is removed.
        verdict: one of the keys of `reports`.
        wanted: maximum number of jobs to reserve in the same call; only with `ACK`.
        most: maximum number of jobs to report. A chunk of more jobs is divided if it is below
            `JOBS_PER_CALL`; otherwise its jobs go out in one call, however many they are.
    """
    is_one = len(reports[verdict]) == 1 and most == JOBS_PER_CALL
    finished = reports[verdict] if is_one else _split_first(reports, verdict, most)
    jobs, results = [job for done in finished for job in done.jobs], None
    if verdict.kind == "ack" and any(
        KEPT_FIELD in data_of(job)[:FIRST_FIELDS_BYTES] for job in jobs
    ):
        finished = yield from _report_until_rest_fits(
            state, poll, reports, verdict=verdict, finished=finished, most=most
        )
        jobs = [job for done in finished for job in done.jobs]
        results = results_of(jobs, [*chain.from_iterable(done.times for done in finished)])
    if state.has_told or verdict.kind not in ("ack", "none"):
        yield from _prepare(state, poll, jobs, verdict)
    outcomes: Settled | None = None
    taken, sent, resent = None, state.clock(), 0.0
    try:
        if verdict.kind == "none":
            outcomes = Settled(jobs)
        elif wanted:
            both = poll.ops.settle(jobs, wanted, provisional=True, results=results)
            both.wait = state.delivery_wait
            outcomes, taken = yield from run_call(state, poll, both)
            taken = taken if both.wait is None else drop_unconfirmed(state, both, taken)
            resent = both.resent
        else:
            call = verdict_call(poll.ops, jobs, verdict, results=results)
            outcomes = yield from run_call(state, poll, call)
            resent = call.resent
    except WrongEpoch:
        pass
    if finished is reports[verdict]:
        del reports[verdict]
    else:
        reports[verdict] = reports[verdict][len(finished) :]
    if verdict.kind == "release":
        _note_release(state, poll, verdict, jobs)
    if outcomes is None:
        _drop_deleted(state, finished)
    else:
        is_repeated = bool(resent) or poll.unsure
        _drop_reported(state, finished, outcomes, verdict=verdict, is_repeated=is_repeated)
    if taken is None:
        return 0
    take_reply(state, poll, taken, wanted=wanted, sent=resent or sent)
    return len(taken.deliveries)


def _note_release(
    state: WorkerState, poll: QueuePoll, verdict: Verdict, jobs: Sequence[Delivery]
) -> None:
    _uncount(state, verdict, jobs)
    if verdict is PUT_ASIDE:
        poll.at = min(poll.at, state.suspects.put_aside())


def _prepare(
    state: WorkerState, poll: QueuePoll, jobs: Sequence[Delivery], verdict: Verdict
) -> Flow:
    """Do what comes before a report: hold the queue, and send what the handlers have told last.

    Lines of a log that can't be sent are lost: they are no reason to keep the report back.
    """
    if verdict.hold:
        yield from _hold(state, poll, jobs, verdict)
    if verdict.kind not in ("ack", "none"):
        told = {job: unsent for job in jobs if (unsent := take_unsent(job))}
        if told:
            with guard_queue(state, poll):
                yield from run_call(state, poll, poll.ops.beat([*told], [*told.values()]))
    if verdict.kind != "none":
        yield from send_rest(state, poll, jobs)


def _hold(state: WorkerState, poll: QueuePoll, jobs: Sequence[Delivery], verdict: Verdict) -> Flow:
    """Hold the queue of these jobs, or their keys, first in this part of it.

    All jobs of a key are in one partition. Another part that can't be reached is not held.
    """
    of_keys = verdict.hold == "key"
    keys = {parse_record(data_of(job)).key_hash for job in jobs} if of_keys else {""}
    yield from _hold_part(state, poll, keys, verdict.hold_ms)
    if of_keys and poll.ops.keys.partition is not None:
        return
    for other in list(state.polls):
        if other is not poll and other.ops.name == poll.ops.name:
            with guard_queue(state, other):
                yield from _hold_part(state, other, keys, verdict.hold_ms)


def _hold_part(state: WorkerState, poll: QueuePoll, keys: set[str], span_ms: int) -> Flow:
    for key in sorted(keys):
        yield from run_call(state, poll, poll.ops.hold(span_ms, key))
    state.give_back(poll)


def _report_until_rest_fits(
    state: WorkerState,
    poll: QueuePoll,
    reports: Reports,
    *,
    verdict: Verdict,
    finished: Sequence[Finished],
    most: int,
) -> Generator[Effect, Any, Sequence[Finished]]:
    """Report the first of these jobs until one call has room for the results of the others."""
    while True:
        jobs = [job for done in finished for job in done.jobs]
        fitting = count_fitting(jobs)
        if fitting >= len(jobs):
            return finished
        yield from report(
            state, poll, reports, verdict=verdict, most=min(fitting, JOBS_PER_CALL - 1)
        )
        finished = _split_first(reports, verdict, most)


def keep_as_hints(state: WorkerState, poll: QueuePoll) -> Flow:
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
                count(state, done, _usual(verdict, done.jobs[0]))
        if not finished:
            del reports[verdict]
    if not reports:
        del state.unsettled[poll]


def drop_expired(state: WorkerState) -> None:
    """Drop the reports of queues that can't be used when the leases of their jobs have ended.

    Those about jobs delivered at most once, which have no lease, are dropped after some refusals,
    and at once if the node is down.
    """
    now = state.clock()
    for poll in [poll for poll in state.unsettled if poll.failures]:
        reports = state.unsettled[poll]
        tries = MOST_REPORT_TRIES if poll.error is not None and not about_server(poll.error) else 0
        for verdict, finished in list(reports.items()):
            for done in [done for done in finished if _has_expired(done, now, tries)]:
                finished.remove(done)
                state.drop(done.jobs)
                count(state, done, "lost")
                for job in done.jobs:
                    text = "%s could not be reported, as its queue can't be used: it is lost"
                    logger.warning(text, job.id, extra=Fields(job))
            if not finished:
                del reports[verdict]
        if not reports:
            del state.unsettled[poll]


def _has_expired(done: Finished, now: float, tries: int) -> bool:
    return all(
        done.tries >= tries if job.at_most_once else term_of(job).is_over(now) for job in done.jobs
    )


def count(state: WorkerState, done: Finished, outcome: str, jobs: Sequence[Delivery] = ()) -> None:
    """Count the outcome of these jobs; by default of all. One that was only held does not count."""
    if done.verdict is HELD_AHEAD and outcome == "handed back":
        return
    job = done.jobs[0]
    waited = None
    if not counts_of(job):  # its first delivery
        waited = (reservation_of(job).now - int(number_of(job)[:-11])) / 1000
    is_asked = done.verdict.is_asked and outcome in ("retried", "dead")
    jobs = jobs or done.jobs
    figures: dict[str, Any] = {
        "handling": None if done.is_counted else done.seconds or None,  # 0 = none has run
        "queueing": waited,
        "is_asked": is_asked,
        "spans": () if done.is_counted else done.spans,
    }
    state.statistics.add_outcome(outcome, len(jobs), **figures)
    poll = state.poll_of.get(ops_of(job))
    if poll is not None:
        spans = () if done.is_counted else done.spans or ((done.seconds,) if done.seconds else ())
        runs: Iterable[tuple[Delivery, Sequence[float]]] = [(job, spans)]
        if spans and done.spans and state.dispatcher.has_several:
            runs = zip(done.jobs, ([seconds] for seconds in spans), strict=True)
        for one, own in runs:
            handler = state.dispatcher.find(one)
            if handler is not None:
                poll.times.runs.append((handler.name, waited, own))
            waited = None
        if len(poll.times.runs) >= MOST_UNSORTED_RUNS:
            poll.times.sort()
    if state.hooks or state.isolated is not None:
        state.tell_outcome(jobs, outcome, **figures)


def _drop_reported(
    state: WorkerState,
    finished: Sequence[Finished],
    outcomes: Settled,
    *,
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
            usual = "done" if verdict is ACK else _usual(verdict, done.jobs[0])
            count(state, done, usual)
            if state.options.log_jobs:
                _log_jobs(state, done, [usual] * len(done.jobs))
        return
    answers = iter(outcomes)
    for done in finished:
        fates = [_fate(done, job, next(answers), is_repeated=is_repeated) for job in done.jobs]
        _log_jobs(state, done, fates)
        for fate in dict.fromkeys(fates):
            alike = [job for job, own in zip(done.jobs, fates, strict=True) if own == fate]
            count(state, done, fate, alike)
            done = done._replace(is_counted=True)


def _log_jobs(state: WorkerState, done: Finished, fates: Sequence[str]) -> None:
    for job, fate, seconds in zip(done.jobs, fates, done.times, strict=True):
        if state.options.log_jobs and fate not in FAILED_OUTCOMES:
            name = job.headers.get(HANDLER) or "job"
            more = Fields(job, outcome=fate, seconds=round(seconds, 6))
            logger.info("%s %s: %s after %s", name, job.id, fate, span(seconds), extra=more)


def _drop_deleted(state: WorkerState, finished: Sequence[Finished]) -> None:
    for done in finished:
        state.drop(done.jobs)
        count(state, done, "lost")
        logger.warning("%s was deleted with its queue", done.jobs[0].id, extra=Fields(done.jobs[0]))


def _usual(verdict: Verdict, job: Delivery) -> str:
    if verdict in (HANDED_BACK, HELD_AHEAD, PUT_ASIDE):
        return "handed back"
    if verdict is NO_REPORT and job.lost:
        return "lost"
    return outcome_of(verdict)


def _fate(done: Finished, job: Delivery, outcome: Outcome, *, is_repeated: bool) -> str:
    """Return the outcome to count for a job, by the server's answer; log what is unusual.

    Args:
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
        if verdict.logged != "last":
            text = "%s has used up its attempts: %s: a dead letter"
            if outcome_of(verdict) == "unknown":
                text = "%s is given back no more: %s: a dead letter"
            trace = {TRACE_FIELD: verdict.trace} if verdict.logged else {}
            logger.error(text, job.id, verdict.text, extra=Fields(job, **trace))
        return "dead"
    if outcome is Outcome.REFUSED:
        if not verdict.logged:  # otherwise it was logged with its failure
            text = "%s is delivered at most once; a %s of it is not possible"
            logger.warning(text, job.id, verdict.kind, extra=Fields(job))
        return "failed"
    text = "%s: the lease was lost before the %s, which changed nothing"
    logger.warning(text, job.id, verdict.kind, extra=Fields(job))
    return "lost"
