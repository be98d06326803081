"""Hooks around an enqueue and around the run of a handler, and a hook of settled jobs.

A middleware has two context managers and a method. Those of several middlewares are nested, the
first outermost. Before its `yield` a context manager sees the request, after it the result:

    class Timing(Middleware):
        @contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            yield
            print(event.handler, event.outcome, event.seconds)

The method `settle` is called later, when the server has decided what becomes of the jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from penstock.core.jobs.enqueued import Enqueued
from penstock.core.jobs.job import Delivery, counts_of
from penstock.errors import BadArgument

__all__ = [
    "HANDLER",
    "EnqueueEvent",
    "Middleware",
    "RunEvent",
    "SettleEvent",
    "check_middleware",
    "enqueuing",
    "running",
    "with_settle",
]

HANDLER = "handler"
"""The header that names a job's handler."""
NO_CONTEXT: AbstractContextManager[None] = nullcontext()
NO_ERROR = (None, None, None)
"""The arguments of `__exit__` after a block that has not raised."""


@dataclass(slots=True, eq=False)
class EnqueueEvent:
    """One call of `enqueue` or `enqueue_many`, however many chunks it is sent in.

    Or a next job or the callback of a batch, which a later call adds: then there are no results.

    Attributes:
        queue: the queue's name.
        count: 1, or None in bulk: the bodies are read as the chunks go out.
        headers: those of every job of the call; what is put in here goes with them.
        results: the answers, when the jobs are there; of a bulk call that failed midway, those to
            the chunks before.
        error: what the call raises, until the outermost hook has ended; then None.
        seconds: how long the call took, hooks apart.
    """

    queue: str
    count: int | None
    headers: dict[str, str] = field(default_factory=dict)
    results: Sequence[Enqueued] = ()
    error: BaseException | None = None
    seconds: float = 0.0

    def forget(self) -> None:
        """Forget the exception, which would keep the variables of its frames."""
        self.error = None

    @property
    def handler(self) -> str | None:
        """Name of the handler; None = the default one, or jobs that are described one by one."""
        return self.headers.get(HANDLER)


@dataclass(slots=True, eq=False)
class RunEvent:
    """One run of a handler: for a job, or for a chunk.

    Attributes:
        queue: the queue's name.
        jobs: those it runs for; one, unless it is a chunk handler.
        handler: its name; None = the default one.
        outcome: after the run: "done", "failed", "snoozed", "suspended", "rejected" or
            "cancelled"; "settled" if the handler has reported it itself; "lost" with its lease;
            "mixed" if the jobs of a chunk ended differently. The server decides later what becomes
            of the jobs, such as whether one that has failed is dead: see `SettleEvent`.
        outcomes: how many jobs of a chunk that is "mixed" ended how.
        error: what the handler raised, or a hook in its place, until the outermost hook has ended;
            then None.
        seconds: how long the handler took, hooks apart.
        value: what the handler returned, until the outermost hook has ended; None if it raised.
    """

    queue: str
    jobs: tuple[Delivery, ...]
    handler: str | None = None
    outcome: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    seconds: float = 0.0
    value: Any = None

    def forget(self) -> None:
        """Forget the exception, which would keep the variables of its frames, and the value."""
        self.error = self.value = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of jobs for each outcome."""
        return self.outcomes or {self.outcome: len(self.jobs)}

    @property
    def queueing(self) -> float | None:
        """Seconds from enqueue to delivery, delay included; None if no job is delivered first time.

        Of a chunk, that of the oldest such job: they come in order.
        """
        for job in self.jobs:
            if not counts_of(job):
                return max(job.delivered - job.created, 0.0)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class SettleEvent:
    """The outcome of jobs that a worker took.

    Attributes:
        queue: the queue's name.
        jobs: the jobs; several if they were reported together.
        handler: name of their handler; None = the default one, or there is none.
        outcome: an outcome of `WorkerStats.counts`, such as "done", "retried" or "dead". Jobs that
            are dead or rejected are dead letters now.
    """

    queue: str
    jobs: tuple[Delivery, ...]
    handler: str | None
    outcome: str


class Middleware:
    """A hook around enqueues, around runs of handlers, and of settled jobs; override any of them.

    The context managers run in the thread or the task of the call or the handler, which therefore
    sees the context variables that they set. They must not block: they are the same for threads and
    asyncio.

    An exception before the `yield` stops the call. Nothing is sent; a handler is not run, and that
    counts as its failure. An exception of the call or the handler is raised at the `yield`. An
    exception after the `yield` takes its place, also for outer contexts. So a handler whose
    transaction could not be committed has failed.

    Catching an exception does not change the outcome. Raise `Done`, `Retry`, `Snooze` or `Reject`
    instead. If a context raises after an enqueue that succeeded, the jobs have been added.

    An exception keeps the local variables of the code that raised it. Take what you need of it,
    such as its text, and keep neither the exception nor its traceback.
    """

    def enqueue(self, event: EnqueueEvent) -> AbstractContextManager[None]:
        """Return the context of one call of `enqueue` or `enqueue_many`."""
        del event
        return NO_CONTEXT

    def run(self, event: RunEvent) -> AbstractContextManager[None]:
        """Return the context of one run of a handler."""
        del event
        return NO_CONTEXT

    def settle(self, event: SettleEvent) -> None:
        """Take note of the outcome of jobs, when the server has answered.

        The worker's loop calls it, in its thread or task, so it must not block. An exception is
        logged and changes nothing. Jobs whose lease has ended elsewhere are not seen here, such as
        those of a process that was killed.
        """


def with_settle(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Return those that take note of outcomes."""
    return tuple(one for one in middleware if type(one).settle is not Middleware.settle)


def check_middleware(middleware: object) -> tuple[Middleware, ...]:
    """Return the middleware of a client, outermost first.

    Raises:
        BadArgument: not an iterable of `Middleware` objects.
    """
    if isinstance(middleware, Iterable):
        hooks = tuple(middleware)
        if all(isinstance(one, Middleware) for one in hooks):
            return hooks
    raise BadArgument("middleware", middleware, "must be an iterable of Middleware objects")


def enqueue_event(queue: str, count: int | None, headers: object) -> EnqueueEvent:
    """Return the event of a call, with a copy of its headers.

    Raises:
        BadArgument: the headers are not a mapping.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise BadArgument("headers", headers, "must be a mapping of str to str")
    return EnqueueEvent(queue, count, dict(headers or {}))


def no_clock() -> float:
    """Return 0: a call that is not timed takes 0 seconds in its event."""
    return 0.0


def enqueuing(
    middleware: Iterable[Middleware], event: EnqueueEvent, clock: Callable[[], float] = no_clock
) -> AbstractContextManager[None]:
    """Return the hooks around an enqueue; each of them sees its error in the event.

    Args:
        middleware: outermost first.
        event: of the call.
        clock: returns monotonic seconds.
    """
    return _Nested((one.enqueue(event) for one in middleware), event, clock)


def running(
    middleware: Sequence[Middleware],
    event: RunEvent,
    judge: Callable[[BaseException], str] = lambda _: "failed",
    clock: Callable[[], float] = no_clock,
) -> AbstractContextManager[None]:
    """Return the hooks around a run; each of them sees its error and outcome in the event.

    Enter them where the handler is called: in its thread, or in its task. The caller of
    the handler may set `error` and `outcome` inside; by default they are the raised error and its
    outcome, or "done".

    Args:
        middleware: outermost first.
        event: of the run.
        judge: the outcome of an error: of the handler, or of a hook.
        clock: returns monotonic seconds.
    """
    if not middleware:
        return NO_CONTEXT
    return _Nested((one.run(event) for one in middleware), event, clock, judge)


class _Nested:
    """Contexts, one in the other, with an update of the event between any two.

    An error that one of them swallows is raised all the same. At the end the event forgets the
    error, as the frames in its traceback refer to the event: see `caught`. An ExitStack would keep
    an error that one of them raises.

    Args:
        contexts: outermost first; each is made when the one before is entered.
        event: of the call.
        clock: returns monotonic seconds.
        judge: returns the outcome of a run with an error.
    """

    def __init__(
        self,
        contexts: Iterator[AbstractContextManager[None]],
        event: EnqueueEvent | RunEvent,
        clock: Callable[[], float],
        judge: Callable[[BaseException], str] = str,
    ) -> None:
        self._contexts = contexts
        self._event = event
        self._clock = clock
        self._judge = judge
        self._entered: list[AbstractContextManager[None]] = []
        self._began = 0.0

    def __enter__(self) -> None:
        try:
            for context in self._contexts:
                context.__enter__()
                self._entered.append(context)
        except BaseException:
            try:
                self._leave(*sys.exc_info())
            finally:
                self._event.forget()
            raise
        self._began = self._clock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        event = self._event
        event.seconds = self._clock() - self._began
        if error is None and isinstance(event, RunEvent):
            event.outcome = event.outcome or "done"
        try:
            self._leave(kind, error, trace)
        finally:
            event.forget()

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the contexts, the innermost first; raise what one of them raises."""
        self._note(error)
        if not self._entered:
            return
        try:
            is_swallowed = self._entered.pop().__exit__(kind, error, trace)
        except BaseException:
            self._leave(*sys.exc_info())  # the outer ones see this error
            raise
        finally:
            if error is not None:  # its traceback has the frame of a generator, which refers to it
                error.__traceback__ = trace
        self._leave(*(NO_ERROR if is_swallowed else (kind, error, trace)))

    def _note(self, error: BaseException | None) -> None:
        event = self._event
        if error is None or error is event.error:
            return
        event.error = error
        if isinstance(event, RunEvent):
            event.outcome = self._judge(error)
        else:
            event.results = getattr(error, "results", event.results)
