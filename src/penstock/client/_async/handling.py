"""Handlers of a queue: functions whose jobs it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from penstock.client._async.looking import AsyncQueueLooking
from penstock.core.jobs.job import Delivery
from penstock.core.values.annotations import Unpack

if TYPE_CHECKING:
    from penstock.worker._async.bound import AsyncBoundHandler
    from penstock.worker.handlers import BoundOptions, Handlers
    from penstock.worker.step_run import BaseSteps

__all__ = ["AsyncQueueHandlers"]

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=Delivery)
F = TypeVar("F", bound="Delivery | BaseSteps")
"""The first parameter of a handler, if it receives the job or the steps."""


class _AsyncBoundWhole(Protocol):
    """A decorator that makes a handler of a function that gets the job."""

    def __call__(self, function: Callable[[J], R], /) -> AsyncBoundHandler[[J], [object], R]: ...


class _AsyncBoundNamed(Protocol):
    """A decorator that makes a handler of a function with arguments."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[F, P], R], /
    ) -> AsyncBoundHandler[Concatenate[F, P], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncBoundHandler[P, P, R]: ...


class AsyncQueueHandlers(AsyncQueueLooking):
    """The part of a queue that registers handlers.

    The worker is imported when a handler is registered: other programs do not need it.
    """

    _handlers: Handlers | None = None

    @property
    def handlers(self) -> Handlers:
        """The handlers of this queue object. A worker of the queue runs them."""
        handlers = self._handlers
        if handlers is None:
            handlers_type = import_module("penstock.worker.handlers").Handlers
            handlers = self._handlers = handlers_type(queue=self.name)
        return handlers

    @overload
    def handler(self, name: None, /, **options: Unpack[BoundOptions]) -> _AsyncBoundWhole: ...
    @overload
    def handler(self, name: str = ..., /, **options: Unpack[BoundOptions]) -> _AsyncBoundNamed: ...
    @overload
    def handler(
        self, name: Callable[Concatenate[F, P], R], /
    ) -> AsyncBoundHandler[Concatenate[F, P], P, R]: ...
    @overload
    def handler(self, name: Callable[P, R], /) -> AsyncBoundHandler[P, P, R]: ...
    def handler(self, name: Any = ..., /, **options: Unpack[BoundOptions]) -> Any:
        """Register a function for jobs of this queue, as a decorator with or without parentheses.

            @emails.handler
            def welcome(to: str, lang: str = "en") -> None: ...

            welcome.enqueue("ada", lang="de")
            Worker(client, emails).run()

        Args:
            name: as in `Handlers.handler`; by default the function's name.
            convert: converts arguments, as in `Handlers`.
            retry, wait, stop, lease, result_ttl, on_dead, time_limit: as in `Handlers.handler`.

        Raises:
            BadArgument: as `Handlers.handler`.
        """
        handler_type = import_module("penstock.worker._async.bound").AsyncBoundHandler
        named = () if name is ... else (name,)
        return self.handlers.make_bound_decorator(partial(handler_type, self), *named, **options)


def handlers_of(queue: object) -> Handlers | None:
    """Return the handlers that were registered with a queue, if any."""
    return getattr(queue, "_handlers", None)
