# From src/penstock/worker/_async/bound.py by tools/unasync.py; do not edit.
"""Handlers that belong to one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from penstock.client._sync.route.interfaces import Enqueuing
from penstock.core.enqueuing.new_jobs import NewJob, NewJobs
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.errors import BadArgument
from penstock.worker.calling import is_queue
from penstock.worker.registered import RegisteredHandler

__all__ = ["BoundHandler"]

C = ParamSpec("C")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class BoundHandler(RegisteredHandler[C, P, R_co]):
    """A registered function whose jobs go to one queue. `Queue.handler` makes it.

        welcome.enqueue("ada", lang="de")
        welcome.options(delay=60).enqueue("bob")
        welcome.enqueue_many(["ada", "eve"], lang="de")

    Args:
        bound: the queue.
        function, **registration: as of a `RegisteredHandler`.
    """

    usage = "enqueue(...)"

    def __init__(
        self, bound: Enqueuing, function: Callable[..., R_co], *args: Any, **registration: Any
    ) -> None:
        super().__init__(function, *args, **registration)
        self._bound = bound

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Add a job to the queue of the handler.

        Args:
            *args, **kwargs: as `job`.

        Returns:
            As `Queue.enqueue`.

        Raises:
            As `job` and `Queue.enqueue`; nothing was added.
        """
        queue, own = self._bound, self._options
        if queue.middleware:
            return queue.enqueue(self.job(*args, **kwargs))
        route = queue.route
        codec = route.ops.codec
        options = own.by_codec.get(codec) or own.prepared(codec)
        try:
            record = self._record(options, args, kwargs)
        except BadArgument:
            self._refuse_queue(args)
            raise
        return route.add(record, options)

    def enqueue_many(self, /, *iterables: Iterable[Any], **constants: Any) -> BulkEnqueued:
        """Add many jobs to the queue of the handler.

        Args:
            *iterables, **constants: as `jobs`.

        Returns, raises:
            As `jobs` and `Queue.enqueue_many`.
        """
        return self._bound.enqueue_many(self.jobs(*iterables, **constants))

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Describe a job. Args, returns, raises: as `Handler.job`."""
        try:
            return super().job(*args, **kwargs)
        except BadArgument:
            self._refuse_queue(args)
            raise

    def jobs(self, /, *iterables: Iterable[Any], **constants: Any) -> NewJobs:
        """Describe many jobs. Args, returns, raises: as `Handler.jobs`."""
        self._refuse_queue(iterables)
        return super().jobs(*iterables, **constants)

    def _refuse_queue(self, args: tuple[Any, ...]) -> None:
        if args and is_queue(args[0]):
            reason = f"the handler adds to queue {self.queue!r}: omit the queue"
            raise BadArgument("queue", args[0], reason)
