# From src/penstock/worker/_async/handler_runner.py by tools/unasync.py; do not edit.
"""Runs handlers, one call at a time on each runner, and notes what is to become of the jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.client._sync.transport.connection import monotonic
from penstock.core.logs import Fields, get_logger
from penstock.core.middleware import Middleware, RunEvent, running
from penstock.worker.arguments import Unfit
from penstock.worker.handlers import Handler, Handlers
from penstock.worker.polls import Finished
from penstock.worker.results import ACK, Result, Verdict
from penstock.worker.runners import Item, Runners
from penstock.worker.running import arguments_of, concluded, failed, unfit
from penstock.worker.state import KEPT, OUTCOMES
from penstock.worker.status import RunningJob

__all__ = ["HandlerRunner"]

logger = get_logger("penstock")


class HandlerRunner:
    """What the runners of a worker do.

    Args:
        handlers: to say why there is none.
        middleware: hooks around each run.
        wake: tells the worker's loop that something is finished.

    Attributes:
        runners: who calls `execute`.
        finished: where finished jobs are put for the worker's loop.
    """

    runners: Runners
    finished: deque[Finished]

    def __init__(
        self, handlers: Handlers, middleware: Sequence[Middleware], wake: Callable[[], None]
    ) -> None:
        self._handlers = handlers
        self._middleware = middleware
        self._wake = wake
        self._at_work: dict[int, tuple[Item, float]] = {}

    def at_work(self) -> tuple[RunningJob, ...]:
        """The jobs that handlers are at, the oldest first."""
        now, jobs = monotonic(), list[RunningJob]()
        for (handler, part), began in list(self._at_work.values()):
            for job in part:
                seconds = now - began
                view = RunningJob(job.id, job.queue_name, handler.name, job.attempt, seconds)
                jobs.append(view)
        return tuple(sorted(jobs, key=lambda job: -job.seconds))

    def unknown(self, job: Any) -> None:
        """There is no handler for a job: it becomes a dead letter."""
        self._finish((job,), unfit(job, self._handlers.missing(job)), 0.0)

    def execute(self, item: Item) -> None:
        """Run a handler; what becomes of its jobs goes to the loop. Never raises."""
        handler, jobs = item
        if jobs[0].lost or (len(jobs) > 1 and any(job.lost for job in jobs)):
            self._finish([job for job in jobs if job.lost], KEPT, 0.0)  # before its turn came
            jobs = [job for job in jobs if not job.lost]
            if not jobs:
                self._wake()
                return
        began = monotonic()
        run = _HandlerRun()
        self._at_work[id(item)] = (item, began)
        verdicts: list[Verdict] | None
        try:
            run_it = self._hooked if self._middleware else self._call
            verdicts = run_it(handler, jobs, run)
        except BaseException as error:  # noqa: BLE001  # a runner outlives every handler
            verdicts = self._broken(handler, jobs, error, run)
        del self._at_work[id(item)]
        seconds = monotonic() - began
        if verdicts is None:
            if len(jobs) == 1 and not (jobs[0].settled or jobs[0].lost):
                jobs[0].settled = True
                self.finished.append(Finished(jobs, ACK, seconds))
            else:
                self._finish(jobs, ACK, seconds)
        else:
            alike: dict[Verdict, list[Any]] = {}
            for job, verdict in zip(jobs, verdicts, strict=True):
                alike.setdefault(verdict, []).append(job)
            for verdict, part in alike.items():
                self._finish(part, verdict, seconds, run.error)
        run.error = None  # its traceback leads back here
        self._wake()

    def _broken(
        self,
        handler: Handler[..., Any],
        jobs: Sequence[Any],
        error: BaseException,
        run: _HandlerRun,
    ) -> list[Verdict]:
        """Return the verdicts on a run that was cancelled, or raised more than an Exception."""
        try:
            if self.runners.has_ended(jobs, error):
                return [KEPT if job.lost else LATER for job in jobs]
            return run.failed(handler, jobs, error)
        except BaseException:  # noqa: BLE001  # a __str__ that fails must not keep the jobs
            with suppress(Exception):
                logger.warning("%r: %s", jobs[0], UNCLEAR.text, extra=Fields(jobs[0]))
            return [UNCLEAR] * len(jobs)

    def _finish(
        self,
        jobs: Sequence[Any],
        verdict: Verdict,
        seconds: float,
        error: BaseException | None = None,
    ) -> None:
        """Put jobs where the loop finds them.

        What a handler has settled itself is done with. One that was told that it has lost its job
        may have stopped half way: it returns, and the lease may last a moment longer.
        """
        parts: dict[str, list[Any]] = {}
        for job in jobs:
            kind = "own" if job.settled else "lost" if job.lost else "told"
            parts.setdefault(kind, []).append(job)
            job.settled = True
        for kind, part in parts.items():
            told = verdict if kind == "told" else KEPT
            self.finished.append(Finished(part, told, seconds, error))

    def _hooked(
        self, handler: Handler[..., Any], jobs: Sequence[Any], run: _HandlerRun
    ) -> list[Verdict] | None:
        """Call a handler within the hooks of the middleware; None = every job is done."""
        event = RunEvent(jobs[0].queue_name, tuple(jobs), handler.name)
        found: list[Verdict] | None = None

        def judge(error: BaseException) -> str:
            """The outcome of what a hook raises, which is a failure of its handler."""
            nonlocal found
            if not isinstance(error, Exception):
                return "lost" if any(job.lost for job in jobs) else "failed"
            found = run.failed(handler, jobs, error)
            _note(event, jobs, found)
            return event.outcome

        with suppress(Exception), running(self._middleware, event, judge):
            found = self._call(handler, jobs, run, event)
            if event.error is not None:
                raise event.error
        return found

    def _call(
        self,
        handler: Handler[..., Any],
        jobs: Sequence[Any],
        run: _HandlerRun,
        event: RunEvent | None = None,
    ) -> list[Verdict] | None:
        verdicts: list[Verdict] | None
        try:
            args, kwargs = (jobs, {}) if handler.takes_job else arguments_of(handler, jobs)
            value = self.runners.call(handler, jobs, args, kwargs)
            verdicts = None if value is None else concluded(handler, jobs, value)
        except Unfit as error:
            verdicts = [unfit(jobs[0], str(error))]
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is its failure
            verdicts = run.failed(handler, jobs, error)
            if event is not None:
                event.error = error
        if event is not None:
            _note(event, jobs, verdicts)
        return verdicts


@dataclass(slots=True)
class _HandlerRun:
    """One run of a handler, with what it raised, unless that was a `Result`."""

    error: BaseException | None = None

    def failed(
        self, handler: Handler[..., Any], jobs: Sequence[Any], error: BaseException
    ) -> list[Verdict]:
        """Return the verdicts on the jobs, and keep the error."""
        verdicts = failed(handler, jobs, error)
        if not isinstance(error, Result):
            self.error = error
        return verdicts


LATER = Verdict("release", 0)
"""For the other jobs of a batch when one has lost its lease, and for all when the loop ends."""
UNCLEAR = Verdict("nack", text="it failed in a way that could not be told")
"""What was to judge a failure has failed itself."""


def _note(event: RunEvent, jobs: Sequence[Any], verdicts: list[Verdict] | None) -> None:
    """Tell the hooks what becomes of the jobs."""
    if verdicts is None:
        verdicts = [ACK] * len(jobs)
    kinds = [
        "lost" if job.lost else OUTCOMES[verdict.kind]
        for job, verdict in zip(jobs, verdicts, strict=True)
    ]
    counts = {kind: kinds.count(kind) for kind in kinds}
    event.outcome, event.outcomes = (kinds[0], {}) if len(counts) == 1 else ("mixed", counts)
