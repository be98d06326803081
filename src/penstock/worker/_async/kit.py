"""A client for tests: it runs handlers in the test's own thread or task, and moves the clock."""

from __future__ import annotations

import asyncio  # async only
import json
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client._async.client import AsyncPenstock
from penstock.client._async.emitting import send_emission
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call
from penstock.core.flows.effects import Run
from penstock.core.jobs.job import Delivery, make_emission, ops_of
from penstock.core.jobs.logs import counted, get_logger
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.outcomes import Outcome
from penstock.core.jobs.results import results_of
from penstock.core.jobs.views import JobView
from penstock.core.values.checks import Duration, StateName, check_count, duration_ms
from penstock.errors import BadArgument, QueueClosed
from penstock.wire.keys import check_queue_name
from penstock.worker._async.handler_runner import AsyncHandlerRunner
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.handlers import Handlers
from penstock.worker.limits import NO_LIMITS
from penstock.worker.options import check_handlers

# sync only: from penstock.worker.options import refuse_coroutines
from penstock.worker.polls import Finished, FinishedJobs, verdict_call
from penstock.worker.registered import AnyHandler, RegisteredHandler
from penstock.worker.results import Result, outcome_of
from penstock.worker.runners import Item
from penstock.worker.schedules import Ticker, TickRun

__all__ = ["AsyncPenstockKit"]

logger = get_logger("penstock.worker")
MOST_ASSERTED_JOBS = 1000
"""Most waiting jobs of a queue and state that an assertion looks at."""
WAITING_STATES: tuple[StateName, ...] = ("ready", "scheduled", "parked")
UNUSUAL_OUTCOMES = {
    Outcome.DEAD: "dead", Outcome.CANCELLED: "cancelled", Outcome.REFUSED: "failed"
}  # fmt: skip
"""Names of outcomes that are not those of the verdict; all others are counted as lost."""


class AsyncPenstockKit(AsyncPenstock):
    """A client of a fake server, with helpers for tests. The fixtures of pytest provide it.

    Attributes:
        advance: moves the clock of the server by so many seconds.
    """

    advance: Callable[[float], None]

    def travel(self, seconds: Duration) -> None:
        """Move the server's clock forward: delays, leases, windows and ttls end.

        Raises:
            BadArgument: not a duration.
        """
        self.advance(duration_ms("seconds", seconds) / 1000)

    async def work(
        self,
        handlers: Handlers | Callable[..., Any],
        *queues: str,
        raising: bool = True,
        state: Any = None,
    ) -> dict[str, int]:
        """Run all jobs that can be taken now, one after the other, in this thread or task.

        Jobs that the handlers add are run too, and so are jobs that are tried again at once, and
        those of schedules that are due. The schedules of handlers are not stored.

        Args:
            handlers: as of a worker.
            *queues: names; none = all queues.
            raising: raise the first exception of a handler, after its job was reported as failed.
            state: `job.state`, in place of what the lifespan of a worker yields.

        Returns:
            The number of jobs by outcome, as in `WorkerStats.counts`.

        Examples:
            >>> handlers = Handlers()
            >>> @handlers.handler
            ... def welcome(to: str) -> None: ...
            >>> job = await welcome.enqueue(ps.queue("emails"), "ada")
            >>> await ps.work(handlers)
            {'done': 1}
        """
        chosen = check_handlers(handlers)
        # sync only: refuse_coroutines(chosen)
        chosen.check()
        items = deque[Item]()
        runner = AsyncHandlerRunner(chosen, self.middleware, lambda: None)
        runner.state, runner.client = state, self
        inline: Any = _AsyncInline(items.append)
        runner.runners, runner.finished = inline, FinishedJobs(lambda: math.inf)
        dispatcher = Dispatcher(
            chosen, inline, return_unknown=runner.return_unknown, clock=lambda: math.inf
        )
        failure = _FirstFailure()
        runner.watch = failure.watch if raising else None
        counts: dict[str, int] = {}
        while jobs := await self._take_jobs(queues, dispatcher.size):
            dispatcher.hand(jobs)
            dispatcher.flush()
            while items:
                await runner.execute(items.popleft())
                failure.end_run()
            while runner.finished:
                await self._report(runner.finished.popleft(), counts)
            failure.raise_it()
        return counts

    async def _take_jobs(self, queues: Sequence[str], n: int) -> Sequence[Delivery]:
        names = queues or await self.queues()
        for name in names:
            for ops in (await self.open(name)).route.operations:
                ticker = Ticker(look_at=0.0, is_checked=True, check_at=math.inf)
                ticks = TickRun(
                    ticker=ticker,
                    ops=ops,
                    parts={ops: ticker},
                    run_call=_run,
                    clock=monotonic,
                    log=logger,
                )
                await self.topology.driver.drive(ticks.run())
        try:
            return await self.reserve(names, n, block=0) if names else []
        except QueueClosed:
            return []

    async def _report(self, done: Finished, counts: dict[str, int]) -> None:
        jobs, kind = done.jobs, done.verdict.kind
        outcomes: Iterable[Outcome] = [Outcome.DONE] * len(jobs)
        if kind != "none":
            for job in jobs:
                if make_emission(job).must_go:
                    await send_emission(self.topology.executor, job)
            results = results_of(jobs, done.times) if kind == "ack" else None
            call = verdict_call(ops_of(jobs[0]), jobs, done.verdict, results=results)
            outcomes = await self.topology.executor.run(call)
        names = {Outcome.DONE: outcome_of(done.verdict)} | UNUSUAL_OUTCOMES
        for outcome in outcomes:
            name = names.get(outcome, "lost")
            counts[name] = counts.get(name, 0) + 1

    async def assert_enqueued(
        self,
        handler: AnyHandler,
        /,
        *args: Any,
        queue: str | None = None,
        delay: Duration | None = None,
        count: int | None = None,
        **kwargs: Any,
    ) -> JobView:
        """Check that a job of this handler waits; return the first one.

        Give an argument of the handler that is named queue, delay or count by position.

        Args:
            handler: the handler.
            *args, **kwargs: as of `handler.enqueue`; none = with any arguments.
            queue: name of the job's queue; None = any.
            delay: time between its enqueue and its start, to the second; 0 = it was ready at once;
                None = any.
            count: the number of such jobs; None = one or more.

        Raises:
            AssertionError: there is none, or another number than `count`.
            BadArgument: an argument can't be used, or the handler could not be called with these.

        Examples:
            >>> @Handlers().handler
            ... def welcome(to: str) -> None: ...
            >>> job = await welcome.enqueue(ps.queue("emails"), "ada")
            >>> await ps.assert_enqueued(welcome, "ada")  # doctest: +ELLIPSIS
            <JobView ... ready in 'emails', attempts 0>
        """
        __tracebackhide__ = True
        try:
            if count is not None:
                check_count("count", count)
            wanted = _Wanted.of(handler, args, kwargs, queue, delay)
        except BadArgument as error:  # a report of pytest then shows the line of the test
            raise error.with_traceback(None) from None
        matching, waiting = await self._find_waiting(wanted)
        if matching and count in (None, len(matching)):
            return matching[0]
        there = "; ".join(map(_shown, waiting[:10])) or "no jobs"
        if not matching:
            raise AssertionError(f"no job of {wanted.title} waits; there are {there}")
        number = counted(len(matching), "job")
        raise AssertionError(f"{number} of {wanted.title}, not {count}; there are {there}")

    async def assert_not_enqueued(
        self, handler: AnyHandler, /, *args: Any, queue: str | None = None, **kwargs: Any
    ) -> None:
        """Check that no job of this handler waits.

        Args:
            handler, *args, queue, **kwargs: as of `assert_enqueued`.

        Raises:
            AssertionError: there is one.
            BadArgument: an argument can't be used, or the handler could not be called with these.
        """
        __tracebackhide__ = True
        try:
            wanted = _Wanted.of(handler, args, kwargs, queue, None)
        except BadArgument as error:
            raise error.with_traceback(None) from None
        matching, _ = await self._find_waiting(wanted)
        if matching:
            there = "; ".join(map(_shown, matching[:10]))
            raise AssertionError(f"a job of {wanted.title} waits; there are {there}")

    async def _find_waiting(self, wanted: _Wanted) -> tuple[list[JobView], list[JobView]]:
        """Return the waiting jobs that match, and all that wait."""
        names = await self.queues()
        waiting = [view for name in names for view in await self._peek_waiting(name)]
        return [view for view in waiting if wanted.matches(view)], waiting

    async def _peek_waiting(self, name: str) -> list[JobView]:
        queue = await self.open(name)
        return [
            view
            for state in WAITING_STATES
            for view in await queue.peek(MOST_ASSERTED_JOBS, state=state)
        ]


@dataclass(frozen=True)
class _Wanted:
    """The job that an assertion is about.

    Args:
        handler: the name of its handler; None = it has none.
        title: the handler with the arguments, the queue and the delay, for the message.
        body: its body as JSON returns it; `...` = any.
        queue: the name of its queue; None = any.
        delay: seconds between its enqueue and its start; None = any.
    """

    handler: str | None
    title: str
    body: Any
    queue: str | None
    delay: float | None

    @classmethod
    def of(
        cls,
        handler: AnyHandler | object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        queue: str | None,
        delay: Duration | None,
    ) -> _Wanted:
        """Check the arguments of an assertion.

        Raises:
            BadArgument: an argument can't be used.
        """
        if not isinstance(handler, RegisteredHandler):
            name = handler if isinstance(handler, str) and handler.isidentifier() else "welcome"
            raise BadArgument("handler", handler, f"must be a handler: assert_enqueued({name})")
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        title = f"{handler.title}({', '.join(given)})" if given else handler.title
        if queue is not None:
            title += f" in {check_queue_name(queue)!r}"
        seconds = None if delay is None else duration_ms("delay", delay) / 1000
        if seconds is not None:
            title += f" with a delay of {seconds:g} s"
        body = _plain(handler.job(*args, **kwargs).body) if given else ...
        return cls(handler.name, title, body, queue, seconds)

    def matches(self, view: JobView) -> bool:
        """Return True if this is such a job."""
        return (
            view.headers.get(HANDLER) == self.handler
            and self.body in (..., _plain(view.body))
            and self.queue in (None, view.queue)
            and (self.delay is None or abs(_delay_of(view) - self.delay) < 1)
        )


def _delay_of(view: JobView) -> float:
    return 0.0 if view.due is None else view.due - view.created


def _shown(view: JobView) -> str:
    """Return a job as an assertion's message names it."""
    handler = view.headers.get(HANDLER)
    later = f" with a delay of {_delay_of(view):g} s" if view.due is not None else ""
    return f"{handler}: {view.body!r} in {view.queue!r}{later}"


class _AsyncInline:
    """Stands in for the runners of a worker: handlers are called at once.

    Args:
        put: keeps an item until its turn.
    """

    limits = NO_LIMITS

    def __init__(self, put: Callable[[Item], None]) -> None:
        self.put = put

    async def call(
        self,
        handler: AnyHandler,
        jobs: Sequence[Delivery],  # noqa: ARG002  # as the runners of a worker
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the handler."""
        # [async only
        if handler.is_async:
            return await handler.function(*args, **kwargs)
        if handler.steps_type is not None:  # they are noted in the event loop
            return await asyncio.to_thread(handler.function, *args, **kwargs)
        # async only]
        return handler.function(*args, **kwargs)

    def has_ended(self, jobs: Sequence[Delivery], error: BaseException) -> bool:  # noqa: ARG002  # same
        """Return False: nothing else ends a run."""
        return False


class _FirstFailure:
    """The first exception of a handler or a hook that is no result, until it is raised.

    It is kept in lists: see `caught`.
    """

    def __init__(self) -> None:
        self._latest: list[BaseException] = []
        self._first: list[BaseException] = []

    def watch(self, error: BaseException) -> None:
        """Note an exception of this run, in place of an earlier one."""
        self._latest[:] = [error]

    def end_run(self) -> None:
        """Keep the exception of this run if it is the first one."""
        if self._latest and not self._first and not isinstance(self._latest[0], Result):
            self._first.append(self._latest[0])
        self._latest.clear()

    def raise_it(self) -> None:
        """Raise the exception, if there is one."""
        if self._first:
            raise self._first.pop()


def _run(call: Call[Any]) -> Generator[Run, Any, Any]:
    return (yield Run(call))


def _plain(body: Any) -> Any:
    """Return a body as JSON returns it; one that is not JSON as it is."""
    try:
        return json.loads(json.dumps(body))
    except (TypeError, ValueError):
        return body
