"""Hooks around an enqueue and around the run of a handler.

A middleware is a pair of context managers. Those of several are nested, the first outermost; each
sees what was asked for before, and what came of it after its `yield`:

    class Timing(Middleware):
        @contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            yield
            print(event.handler, event.outcome, event.seconds)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from penstock.core.job import Delivery, Enqueued
from penstock.errors import BadArgument

__all__ = [
    "HANDLER",
    "EnqueueEvent",
    "Middleware",
    "RunEvent",
    "check_middleware",
    "enqueuing",
    "queueing",
    "running",
]

HANDLER = "handler"
"""The header that names a job's handler."""
NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True, eq=False)
class EnqueueEvent:
    """One call of `enqueue` or `enqueue_many`, however many chunks it is sent in.

    Attributes:
        queue: the queue's name.
        count: 1, or None in bulk: the bodies are read as the chunks go out.
        headers: those of every job of the call; what is put in here goes with them.
        results: the answers, when the jobs are there; of a bulk call that failed midway, those to
            the chunks before.
        error: what the call raises.
    """

    queue: str
    count: int | None
    headers: dict[str, str] = field(default_factory=dict)
    results: Sequence[Enqueued] = ()
    error: BaseException | None = None

    @property
    def handler(self) -> str | None:
        """The name of the handler the jobs are for; None = the default one."""
        return self.headers.get(HANDLER)


@dataclass(slots=True, eq=False)
class RunEvent:
    """One run of a handler: for a job, or for a batch.

    Attributes:
        queue: the queue's name.
        jobs: those it runs for; one, unless it is a batch handler.
        handler: its name; None = the default one.
        outcome: after the run: "done", "retried", "snoozed", "rejected", "released" or "lost";
            "failed" when what becomes of the job is not known yet; "mixed" if the jobs of a batch
            ended differently.
        outcomes: how many jobs of a batch that is "mixed" ended how.
        error: what the handler raised.
        seconds: how long the handler took.
    """

    queue: str
    jobs: tuple[Delivery, ...]
    handler: str | None = None
    outcome: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    seconds: float = 0.0

    @property
    def counts(self) -> Mapping[str, int]:
        """How many jobs ended how."""
        return self.outcomes or {self.outcome: len(self.jobs)}

    @property
    def queueing(self) -> float | None:
        """Seconds from enqueue to delivery; see `queueing`."""
        return queueing(self.jobs)


class Middleware:
    """Does something around enqueues, or around runs of handlers; override one method or both.

    The methods are called in the thread or the task that makes the call or runs the handler, so
    that context variables set there are seen inside. They must be quick, and not block: they are
    the same for threads and for asyncio.

    What a context raises before its `yield` stops the call: nothing is sent, the handler is not
    run, which counts as its failure. What the call or the handler raises comes out of the `yield`.
    What a context raises after it takes the place of that: the handler has failed, and of an
    enqueue the jobs may be there. An enqueue's own error can't be swallowed.
    """

    def enqueue(self, event: EnqueueEvent) -> AbstractContextManager[None]:
        """Around one call of `enqueue` or `enqueue_many`."""
        del event
        return NOTHING

    def run(self, event: RunEvent) -> AbstractContextManager[None]:
        """Around one run of a handler."""
        del event
        return NOTHING


def check_middleware(middleware: Any) -> tuple[Middleware, ...]:
    """The middleware of a client, outermost first.

    Raises:
        BadArgument: not an iterable of `Middleware` objects.
    """
    if isinstance(middleware, Iterable):
        found = tuple(middleware)
        if all(isinstance(one, Middleware) for one in found):
            return found
    raise BadArgument("middleware", middleware, "an iterable of Middleware objects")


def enqueue_event(queue: str, count: int | None, headers: Any) -> EnqueueEvent:
    """The event of a call, with headers of its own to add to.

    Raises:
        BadArgument: the headers are no mapping.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise BadArgument("headers", headers, "a mapping of str to str")
    return EnqueueEvent(queue, count, dict(headers or {}))


@contextmanager
def enqueuing(middleware: Iterable[Middleware], event: EnqueueEvent) -> Iterator[None]:
    """The hooks around an enqueue; notes its error."""
    with ExitStack() as stack:
        for one in middleware:
            stack.enter_context(one.enqueue(event))
        try:
            yield
        except BaseException as error:
            event.error = error
            event.results = getattr(error, "results", ())
            raise
    if event.error is not None:  # swallowed, and the call has no other answer
        raise event.error


def running(middleware: Sequence[Middleware], event: RunEvent) -> AbstractContextManager[None]:
    """The hooks around a run; notes how long it took, its error, and an outcome if none is set.

    To be entered where the handler is called: in its thread, or in its task.
    """
    return _running(middleware, event) if middleware else NOTHING


@contextmanager
def _running(middleware: Sequence[Middleware], event: RunEvent) -> Iterator[None]:
    with ExitStack() as stack:
        for one in middleware:
            stack.enter_context(one.run(event))
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            event.error = error
            event.outcome = event.outcome or "failed"
            raise
        else:
            event.outcome = event.outcome or "done"
        finally:
            event.seconds = time.perf_counter() - began


def queueing(jobs: Iterable[Delivery]) -> float | None:
    """Seconds from enqueue to delivery, delay included; None if no job is delivered first time.

    Of a batch, that of the oldest such job: they come in order.
    """
    for job in jobs:
        if job.first:
            return max(job.delivered - job.created, 0.0)
    return None
