"""Handlers whose jobs go to any queue."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.errors import BadArgument
from penstock.worker.registered import RegisteredHandler

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from penstock.client._async.route.interfaces import AsyncEnqueuing
    from penstock.client._sync.route.interfaces import Enqueuing

__all__ = ["Handler", "is_queue"]

C = ParamSpec("C")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Handler(RegisteredHandler[C, P, R_co]):
    """A registered function that can be enqueued in any queue.

    welcome.enqueue(queue, "ada", lang="de")
    welcome.options(delay=60).enqueue(queue, "bob")
    welcome.enqueue_many(queue, ["ada", "eve"], lang="de")
    """

    @overload
    def enqueue(self, queue: Enqueuing, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...
    @overload
    def enqueue(
        self, queue: AsyncEnqueuing, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Enqueued]: ...
    def enqueue(self, queue: Any = None, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Add a job to a queue; to be awaited if that is an `AsyncQueue`.

        Args:
            queue: the queue.
            *args, **kwargs: as `job`.

        Returns:
            As `Queue.enqueue`.

        Raises:
            As `job` and `Queue.enqueue`; nothing was added.

        Examples:
            >>> @Handlers().handler
            ... def welcome(to: str, lang: str = "en") -> None: ...
            >>> job = welcome.enqueue(q, "ada", lang="de")
            >>> [view.body for view in q.peek()]
            [{'to': 'ada', 'lang': 'de'}]
        """
        try:
            route, has_hooks = queue.route, queue.middleware
        except AttributeError:
            raise self._no_queue(queue) from None
        if has_hooks:
            return queue.enqueue(self.job(*args, **kwargs))
        own, codec = self._options, route.ops.codec
        options = own.by_codec.get(codec) or own.prepared(codec)
        return route.add(self._record(options, args, kwargs), options)

    @overload
    def enqueue_many(
        self, queue: Enqueuing, /, *iterables: Iterable[Any], **constants: Any
    ) -> BulkEnqueued: ...
    @overload
    def enqueue_many(
        self, queue: AsyncEnqueuing, /, *iterables: Iterable[Any], **constants: Any
    ) -> Coroutine[Any, Any, BulkEnqueued]: ...
    def enqueue_many(
        self, queue: Any = None, /, *iterables: Iterable[Any], **constants: Any
    ) -> Any:
        """Add many jobs to a queue; to be awaited if that is an `AsyncQueue`.

        Args:
            queue: the queue.
            *iterables, **constants: as `jobs`.

        Returns, raises:
            As `jobs` and `Queue.enqueue_many`.
        """
        if not is_queue(queue):
            raise self._no_queue(queue)
        return queue.enqueue_many(self.jobs(*iterables, **constants))

    def _no_queue(self, given: object) -> BadArgument:
        call = f"{self.name or self.function.__name__}.{self.usage}"
        reason = f"the first argument is the queue, such as client.queue('emails'): {call}"
        return BadArgument("queue", given, reason)


def is_queue(value: object) -> TypeIs[Enqueuing | AsyncEnqueuing]:
    """Return True for a `Queue` or `AsyncQueue`."""
    return hasattr(value, "ops") and hasattr(value, "enqueue_many")
