"""A client for tests: it runs handlers in the test's own thread or task, and moves the clock."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from penstock.client._async.client import AsyncPenstock
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call
from penstock.core.flows.effects import Run
from penstock.core.jobs.job import Delivery, ops_of
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.outcomes import Outcome
from penstock.core.jobs.results import results_of
from penstock.core.jobs.views import JobView
from penstock.core.values.checks import Duration, StateName, duration_ms
from penstock.errors import QueueClosed
from penstock.worker._async.handler_runner import AsyncHandlerRunner
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.handlers import Handlers
from penstock.worker.options import check_handlers

# sync only: from penstock.worker.options import refuse_coroutines
from penstock.worker.polls import Finished, FinishedJobs, verdict_call
from penstock.worker.registered import AnyHandler
from penstock.worker.results import OUTCOME_OF_KIND, Result
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
            chosen, inline, reject_unknown=runner.reject_unknown, clock=lambda: math.inf
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
                    parts=[ops],
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
            results = results_of(jobs, done.times) if kind == "ack" else None
            call = verdict_call(ops_of(jobs[0]), jobs, done.verdict, results=results)
            outcomes = await self.topology.executor.run(call)
        names = {Outcome.DONE: OUTCOME_OF_KIND[kind]} | UNUSUAL_OUTCOMES
        for outcome in outcomes:
            name = names.get(outcome, "lost")
            counts[name] = counts.get(name, 0) + 1

    async def assert_enqueued(self, handler: AnyHandler, /, *args: Any, **kwargs: Any) -> JobView:
        """Check that a job of this handler waits, in any queue; return the first one.

        Args:
            handler: the handler.
            *args, **kwargs: as of `handler.enqueue`; none = with any arguments.

        Raises:
            AssertionError: there is none.
            BadArgument: the handler could not be called with these arguments.

        Examples:
            >>> @Handlers().handler
            ... def welcome(to: str) -> None: ...
            >>> job = await welcome.enqueue(ps.queue("emails"), "ada")
            >>> await ps.assert_enqueued(welcome, "ada")  # doctest: +ELLIPSIS
            <JobView ... ready in 'emails', attempt 1>
        """
        waiting = [view for name in await self.queues() for view in await self._peek_waiting(name)]
        matching = [view for view in waiting if view.headers.get(HANDLER) == handler.name]
        if args or kwargs:
            wanted = _plain(handler.job(*args, **kwargs).body)
            matching = [view for view in matching if _plain(view.body) == wanted]
        if matching:
            return matching[0]
        there = [f"{view.headers.get(HANDLER)}: {view.body!r}" for view in waiting[:10]]
        called = f"{handler.title} with {args or ''}{kwargs or ''}".removesuffix(" with ")
        raise AssertionError(f"no job of {called} waits; there are {there or 'no jobs'}")

    async def _peek_waiting(self, name: str) -> list[JobView]:
        queue = await self.open(name)
        return [
            view
            for state in WAITING_STATES
            for view in await queue.peek(MOST_ASSERTED_JOBS, state=state)
        ]


class _AsyncInline:
    """Stands in for the runners of a worker: handlers are called at once.

    Args:
        put: keeps an item until its turn.
    """

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
        if handler.is_async:  # async only
            return await handler.function(*args, **kwargs)  # async only
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
