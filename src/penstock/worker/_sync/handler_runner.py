# From src/penstock/worker/_async/handler_runner.py by tools/unasync.py; do not edit.
"""Runs of handlers, one at a time on each runner, and the verdicts on their jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.client.clock import monotonic
from penstock.core.enqueuing.chains import next_jobs_of
from penstock.core.jobs.job import Delivery, data_of, record_of, reservation_of, set_result
from penstock.core.jobs.logs import AT_MOST_ONCE_NOTE, Fields, get_logger, log_failure
from penstock.core.jobs.marks import trace_of
from penstock.core.jobs.middleware import Middleware, RunEvent, running
from penstock.core.jobs.queue_stats import Settings
from penstock.core.jobs.record import FIRST_FIELDS_BYTES, KEPT_FIELD
from penstock.core.jobs.results import (
    CHAIN_FIELD,
    NEXT_LINK,
    encoded_value,
    links_of,
    value_to_pass,
)
from penstock.core.values.caught import caught
from penstock.errors import BadArgument
from penstock.worker._sync.hand_over import hand_over, records_of_calls
from penstock.worker._sync.steps import (
    Steps,
)
from penstock.worker.arguments import Unfit
from penstock.worker.failures import UnclearError
from penstock.worker.forgotten import check_used
from penstock.worker.handlers import Handlers
from penstock.worker.limits import TimeLimit
from penstock.worker.messages import is_last, prospect
from penstock.worker.missing import MissingHandlers, NoHandler
from penstock.worker.polls import Finished, FinishedJobs
from penstock.worker.registered import AnyHandler
from penstock.worker.results import (
    ACK,
    CANCELLED,
    NO_REPORT,
    RESULTS_OF_RUN,
    Done,
    Result,
    RunResults,
    Suspension,
    Verdict,
    described,
    outcome_of,
    unknown,
)
from penstock.worker.runners import Item, Runners
from penstock.worker.running import RunningJob
from penstock.worker.step_run import BaseSteps, RunEnded, StepRun

__all__ = ["HandlerRunner", "Take"]

logger = get_logger("penstock")

Verdicts = list[Verdict] | None
"""The verdicts on the jobs of a run; None = all are acknowledged."""
Take = Callable[[AnyHandler, Sequence[Delivery], Any], None]
"""Takes what a handler has returned for jobs."""
RELEASED = Verdict("release", 0)
"""For the other jobs of a chunk when one has lost its lease, and for all when the loop ends."""
SUCCESS_TYPES = frozenset({type(None), bool, int, float, str, bytes, dict})
"""Types of return values that mean success."""
NO_KEYWORDS: Mapping[str, Any] = {}
"""No arguments by name."""
DEFAULT_RESULT_BYTES = 65536
"""Most bytes of a value that is kept, unless the queue has another setting."""


class HandlerRunner:
    """Runs handlers for the runners of a worker, and passes the verdicts to its loop.

    Args:
        handlers: the handlers of the worker.
        middleware: hooks around each run.
        wake: ends the wait of the worker's loop.

    Attributes:
        runners: the runners, which call `execute`.
        finished: reports for the worker's loop.
        settings_of: returns the settings of a job's queue; None = they are not known.
        note_hold: called when a report that holds a queue was passed to the loop.
        state: `job.state` of each job, unless it is None.
        client: adds the jobs of other queues that follow a job.
        take: takes what a handler returned, and settles the jobs whose values it keeps: they are
            not acknowledged. Its exception is the handler's failure. None = nothing is taken.
        watch: called with each exception that is judged. That of a hook comes after that of the
            handler. None = nothing is called.
        missing: the handlers that jobs have asked for and the worker does not have.
    """

    runners: Runners
    finished: FinishedJobs
    settings_of: Callable[[Delivery], Settings | None] = staticmethod(lambda _: None)
    note_hold: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self, handlers: Handlers, middleware: Sequence[Middleware], wake: Callable[[], None]
    ) -> None:
        self._handlers = handlers
        self._middleware = middleware
        self._wake = wake
        self.missing = MissingHandlers(handlers, monotonic)
        self._running: dict[int, tuple[Item, float]] = {}
        self.state: Any = None
        self.client: Any = None
        self.take: Take | None = None
        self.watch: Callable[[BaseException], None] | None = None

    def running_jobs(self) -> tuple[RunningJob, ...]:
        """Return the jobs that handlers are processing, the oldest first."""
        now, jobs = monotonic(), list[RunningJob]()
        for (handler, part), began in list(self._running.values()):
            for job in part:
                seconds = now - began
                view = RunningJob(
                    id=job.id,
                    queue=job.queue_name,
                    handler=handler.name,
                    attempt=job.attempt,
                    seconds=seconds,
                )
                jobs.append(view)
        return tuple(sorted(jobs, key=lambda job: -job.seconds))

    def give_up(self, item: Item) -> None:
        """Report jobs as failed whose handler has ignored its time limit."""
        handler, jobs = item
        verdicts = self._judge_failure(handler, jobs, TimeLimit("it was ignored"))
        for job, verdict in zip(jobs, verdicts, strict=True):
            self._finish((job,), verdict, 0.0)
        self._wake()

    def return_unknown(self, job: Delivery) -> None:
        """Give back a job for which there is no handler: another worker may have it."""
        self._finish((job,), unknown(self.missing.note(job)), 0.0)

    def fail_refused(self, job: Delivery, error: Exception) -> Verdict:
        """Judge a job whose report was refused, as if its handler had raised this error."""
        handler = self._handlers.find(job)
        if handler is None:
            return Verdict("nack", text=described(error))
        return self._judge_failure(handler, [job], error)[0]

    def execute(self, item: Item) -> None:
        """Run a handler and pass the verdicts on its jobs to the loop. Never raises."""
        handler, jobs = item
        first = jobs[0]
        if first.lost or first.cancelled or (len(jobs) > 1 and any(map(_is_void, jobs))):
            jobs = self._without_void(jobs)
            if not jobs:
                return
        for job in jobs if self.state is not None else ():
            reservation_of(job).state = self.state
        began = monotonic()
        self._running[id(item)] = (item, began)
        verdicts: Verdicts
        try:
            run_it = self._call_with_hooks if self._middleware else self._call
            verdicts = run_it(handler, jobs)
        except BaseException:  # noqa: BLE001  # a runner outlives every handler
            verdicts = self._judge_interruption(handler, jobs, caught())
        del self._running[id(item)]
        seconds = monotonic() - began
        if verdicts is None and len(jobs) == 1 and not first.lost:
            verdict = NO_REPORT if first.settled else ACK
            first.settled = True
            finished = self.finished
            if finished.due_at == math.inf and finished.is_last():  # no job waits to be reported
                finished.append(Finished(jobs, verdict, seconds))
                self._wake()
            elif finished.add(first, verdict, seconds):
                self._wake()
            return
        alike: dict[Verdict, list[Delivery]] = {}
        for job, verdict in zip(jobs, verdicts or [ACK] * len(jobs), strict=True):
            alike.setdefault(verdict, []).append(job)
        is_counted = False
        for verdict, part in alike.items():
            self._finish(part, verdict, seconds, is_counted=is_counted)
            is_counted = True
        self._wake()

    def _without_void(self, jobs: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the jobs that shall run; report those that were lost or cancelled before."""
        self._finish([job for job in jobs if job.lost], NO_REPORT, 0.0)
        self._finish([job for job in jobs if not job.lost and job.cancelled], CANCELLED, 0.0)
        self._wake()
        return [job for job in jobs if not _is_void(job)]

    def _judge_interruption(
        self, handler: AnyHandler, jobs: Sequence[Delivery], error: BaseException
    ) -> list[Verdict]:
        """Judge a run that was cancelled, or raised a BaseException that is not an Exception."""
        try:
            has_run_ended = isinstance(error, RunEnded) and any(map(_is_void, jobs))
            if has_run_ended or self.runners.has_ended(jobs, error):
                return [_verdict_on_stopped(job) for job in jobs]
            return self._judge_failure(handler, jobs, error)
        except BaseException:  # noqa: BLE001  # an exception that fails must not keep the jobs
            unclear = UnclearError()
            _say(logging.WARNING, jobs[0], "%r has failed: %s", jobs[0], unclear)
            return [handler.verdict_on_error(job, unclear) for job in jobs]

    def _finish(
        self,
        jobs: Sequence[Delivery],
        verdict: Verdict,
        seconds: float,
        *,
        is_counted: bool = False,
    ) -> None:
        """Pass a verdict on jobs of a run to the loop. See `Finished` for the arguments.

        A job that the handler has settled itself, or that was lost, is not reported. The handler of
        a lost job may have stopped half-way, even if the lease lasts a moment longer.
        """
        parts: dict[str, list[Delivery]] = {}
        for job in jobs:
            kind = "own" if job.settled else "lost" if job.lost else "told"
            parts.setdefault(kind, []).append(job)
            job.settled = True
        for kind, part in parts.items():
            report = verdict if kind == "told" else NO_REPORT
            self.finished.append(Finished(part, report, seconds, is_counted=is_counted))
            if report.hold:
                self.note_hold()
            is_counted = True

    def _call_with_hooks(self, handler: AnyHandler, jobs: Sequence[Delivery]) -> Verdicts:
        event = RunEvent(jobs[0].queue_name, tuple(jobs), handler.name)
        verdicts: Verdicts = None

        def judge(error: BaseException) -> str:
            """Return the outcome after a hook has raised, which counts as the handler's failure."""
            nonlocal verdicts
            if not isinstance(error, Exception):
                ended = [*(job.lost for job in jobs), jobs[0].cancelled]
                return ("cancelled" if ended[-1] else "lost") if any(ended) else "failed"
            verdicts = self._judge_failure(handler, jobs, error)
            _note(event, jobs, verdicts)
            return event.outcome

        with suppress(Exception), running(self._middleware, event, judge, monotonic):
            verdicts = self._call(handler, jobs, event)
            _note(event, jobs, verdicts)
            if event.error is not None:
                raise event.error
        return verdicts

    def _call(
        self, handler: AnyHandler, jobs: Sequence[Delivery], event: RunEvent | None = None
    ) -> Verdicts:
        verdicts: Verdicts
        value: Any = None
        results = RunResults()
        results.made = []
        RESULTS_OF_RUN.set(results)
        try:
            steps = None if handler.steps_type is None else self._make_steps(handler, jobs[0])
            args, kwargs = (
                (jobs, NO_KEYWORDS) if handler.takes_job else _arguments(handler, jobs, steps)
            )
            call = self.runners.call if steps is None else partial(self._call_with_steps, steps)
            value = call(handler, jobs, args, kwargs)
            if results.made and not isinstance(value, Suspension):
                check_used(handler, results.made)
            if event is not None:
                event.value = value
            if self.take is not None:
                self.take(handler, jobs, value)
            data = data_of(jobs[0])
            keeps = handler.size or data.find(KEPT_FIELD, 0, FIRST_FIELDS_BYTES) > 0
            keeps = keeps or data.find(CHAIN_FIELD, 0, data.find(b"\n")) > 0
            is_link = bool(keeps) and self._keep(handler, jobs, value)
            if type(value) in SUCCESS_TYPES and not handler.size and not is_link:
                return None
            verdicts = _judge_value(handler, jobs, value)
            if verdicts is not None:
                self._log_failures(jobs, verdicts)
            verdicts = verdicts or [ACK] * len(jobs) * is_link or None
        except Unfit:
            verdicts = [_reject_unfit(jobs[0], str(caught()))]
        except Exception:  # noqa: BLE001  # whatever a handler raises is its failure
            if event is not None:
                event.error = caught()
            verdicts = self._judge_failure(handler, jobs, caught())
        finally:
            RESULTS_OF_RUN.set(None)
            value = None  # it may be or contain an exception: see `caught`
            results.made = None
        return verdicts and self._prepare_next_jobs(handler, jobs, verdicts)

    def _call_with_steps(
        self,
        steps: BaseSteps,
        handler: AnyHandler,
        jobs: Sequence[Delivery],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a handler with steps. What has ended its run decides, not what it made of that."""
        try:
            value = self.runners.call(handler, jobs, args, kwargs)
        except BaseException:
            steps.raise_failure()
            if steps.suspension is None:
                raise
            return steps.suspension
        steps.raise_failure()
        return value if steps.suspension is None else steps.suspension

    def _make_steps(self, handler: AnyHandler, job: Delivery) -> BaseSteps:
        run = StepRun(job)
        assert not handler.is_async
        return Steps(run, shield=self.runners.limits.shield)

    def _prepare_next_jobs(
        self, handler: AnyHandler, jobs: Sequence[Delivery], verdicts: Sequence[Verdict]
    ) -> list[Verdict]:
        """Prepare the jobs that follow. Those of other queues are added now, before the ack.

        If that fails, the job has failed. One `Done` for all jobs of a chunk has its next jobs
        follow the first one. A link of a chain also hands over to the next one.
        """
        prepared, known = list[Verdict](), set[int]()
        for job, verdict in zip(jobs, verdicts, strict=True):
            then = verdict.then
            links = links_of(job) if verdict.kind == "ack" else []
            if then is not None and id(then) in known:
                then, verdict = None, verdict._replace(then=None)
            if verdict.calls is not None:
                prepared.append(self._prepare_calls(handler, job, verdict))
            elif links and job.cancelled:  # else its value would be the result of the chain
                prepared.append(CANCELLED)
            elif (then is None and not links) or job.lost or job.cancelled or job.settled:
                prepared.append(verdict)
            else:
                known.add(id(then))
                try:
                    if links:
                        then = next_jobs_of(links, partial(value_to_pass, job), then)
                    assert then is not None
                    records = hand_over(self.client, job, then)
                    if links:
                        set_result(job, (b"", NEXT_LINK))
                    prepared.append(verdict._replace(then=replace(then, records=records)))
                except Exception:  # noqa: BLE001  # as if the handler had raised it
                    if links and isinstance(caught(), BadArgument):  # again after each retry
                        prepared.append(_reject_unfit(job, described(caught())))
                    else:
                        prepared += self._judge_failure(handler, [job], caught())
        return prepared

    def _prepare_calls(self, handler: AnyHandler, job: Delivery, verdict: Verdict) -> Verdict:
        """Prepare the jobs that a step calls."""
        assert verdict.calls is not None
        try:
            records = records_of_calls(self.client, job, verdict.calls.jobs)
        except Exception:  # noqa: BLE001  # that of middleware: as if the handler had raised it
            return self._judge_failure(handler, [job], caught())[0]
        return verdict._replace(calls=replace(verdict.calls, records=records))

    def _keep(self, handler: AnyHandler, jobs: Sequence[Delivery], value: Any) -> bool:
        """Pass the values of jobs whose results are kept on to their acks, or to next links.

        A value that is not JSON, or too large, does not fail the job: its work is done.

        Returns:
            Whether a job is a link of a chain that another one follows.
        """
        each = [value]
        if handler.size:
            fits = type(value) in (list, tuple) and len(value) == len(jobs)
            each = value if fits else [None] * len(jobs)
        for job, result in zip(jobs, each, strict=True):
            if isinstance(result, Done):
                result = result.value  # its value is the result
            is_read = record_of(job).result_ms or links_of(job)
            if is_read and not isinstance(result, BaseException):
                set_result(job, self._encode_result(job, result))
        return any(map(links_of, jobs))

    def _encode_result(self, job: Delivery, value: Any) -> tuple[bytes, str]:
        """Return a value as JSON and ""; or nothing, and the reason why it is not kept."""
        settings = self.settings_of(job)
        most = None if settings is None else settings.result_size
        most = DEFAULT_RESULT_BYTES if most is None else most
        try:
            raw = encoded_value(value)
        except Exception as error:  # noqa: BLE001  # whatever the value's classes raise
            text = "%s is done, but its result is not kept: %s"
            _say(logging.ERROR, job, text, job.id, described(error))
            return b"", "json"
        if len(raw) <= most:
            return raw, ""
        text = "%s is done, but its result of %d bytes is not kept: result_size is %d"
        _say(logging.WARNING, job, text, job.id, len(raw), most)
        return b"", "large"

    def _judge_failure(
        self, handler: AnyHandler, jobs: Sequence[Delivery], error: BaseException
    ) -> list[Verdict]:
        """Judge a run that has raised. One failure is logged once for all jobs."""
        if isinstance(error, NoHandler):
            return [unknown(self.missing.note(job, str(error))) for job in jobs]
        if self.watch is not None:
            self.watch(error)
        trace = trace_of(error.__cause__ if isinstance(error, Result) else error)
        verdicts = [handler.verdict_on_error(job, error)._replace(trace=trace) for job in jobs]
        if isinstance(error, Result):
            self._log_failures(jobs, verdicts)
            return verdicts
        pairs = list(zip(jobs, verdicts, strict=True))
        final = [pair for pair in pairs if is_last(*pair, self.settings_of(pair[0]))]
        job, verdict = (final or pairs)[0]
        ending = "" if not final else AT_MOST_ONCE_NOTE if job.at_most_once else "a dead letter"
        outlook = prospect(job, verdict, self.settings_of(job))
        if len(jobs) > 1:
            outlook += f", a chunk of {len(jobs)} jobs"
        with suppress(Exception):  # as in _say
            log_failure(job, described(error), error, prospect=outlook, ending=ending)
        return [
            one._replace(logged="last" if (job, one) in final else "failure") for job, one in pairs
        ]

    def _log_failures(self, jobs: Sequence[Delivery], verdicts: Sequence[Verdict]) -> None:
        """Log the failures that a handler has asked for, such as `Retry`."""
        for job, verdict in zip(jobs, verdicts, strict=True):
            settings = self.settings_of(job)
            if verdict.kind == "bury":
                text = "%s is rejected: %s; %s: a dead letter"
            elif verdict.kind == "nack" and not is_last(job, verdict, settings):
                text = "%s has failed: %s; %s"
            else:  # no failure, or its last one, which the loop logs
                continue
            outlook = prospect(job, verdict, settings)
            _say(logging.INFO, job, text, job.id, verdict.text or "Retry", outlook)


def _say(level: int, job: Delivery, text: str, *args: object) -> None:
    """Log about a job. A filter of the user's log that fails must not end the runner."""
    with suppress(Exception):
        logger.log(level, text, *args, extra=Fields(job))


def _is_void(job: Delivery) -> bool:
    return job.lost or job.cancelled


def _arguments(
    handler: AnyHandler, jobs: Sequence[Delivery], steps: BaseSteps | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return (([*jobs],), NO_KEYWORDS) if handler.size else handler.arguments(jobs[0], steps)


def _judge_value(handler: AnyHandler, jobs: Sequence[Delivery], value: Any) -> Verdicts:
    """Return the verdicts on jobs whose handler returned a value; None = all are acknowledged.

    A chunk handler was not interrupted for a part of its jobs, so those that are cancelled end as
    cancelled here.
    """
    if not handler.size:
        verdict = handler.verdict_on_value(jobs[0], value)
        return None if verdict is ACK else [verdict]
    verdicts = handler.verdicts_on_chunk(jobs, value)
    if any(job.cancelled for job in jobs):
        pairs = zip(jobs, verdicts or [ACK] * len(jobs), strict=True)
        return [CANCELLED if job.cancelled else verdict for job, verdict in pairs]
    return verdicts


def _verdict_on_stopped(job: Delivery) -> Verdict:
    return NO_REPORT if job.lost else CANCELLED if job.cancelled else RELEASED


def _reject_unfit(job: Delivery, reason: str) -> Verdict:
    _say(logging.ERROR, job, "%s becomes a dead letter: %s", job.id, reason)
    return Verdict("bury", text=reason)


def _note(event: RunEvent, jobs: Sequence[Delivery], verdicts: Verdicts) -> None:
    if verdicts is None:
        verdicts = [ACK] * len(jobs)
    kinds = [
        "lost"
        if job.lost
        else "cancelled"
        if verdict is CANCELLED
        else "failed"
        if verdict.kind == "nack"  # the server decides whether it was the last attempt
        else outcome_of(verdict)
        for job, verdict in zip(jobs, verdicts, strict=True)
    ]
    counts = {kind: kinds.count(kind) for kind in kinds}
    event.outcome, event.outcomes = (kinds[0], {}) if len(counts) == 1 else ("mixed", counts)
