"""Calls of handlers: describe jobs with typed arguments and options, and add them to queues."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from copy import copy
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from penstock.core import stable
from penstock.core.bulk import EnqueueOptions, JobOptions, NewJob, NewJobs, Prepared
from penstock.core.job import BulkEnqueued, Enqueued
from penstock.core.middleware import HANDLER
from penstock.core.options import Duration
from penstock.errors import BadArgument
from penstock.worker.failures import Backoff
from penstock.worker.registered import RegisteredHandler

if TYPE_CHECKING:
    from typing_extensions import Self, TypeIs, Unpack

    from penstock.client._async.queue import AsyncQueue
    from penstock.client._sync.queue import Queue

__all__ = ["CallableHandler", "Handler"]

C = ParamSpec("C")
P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class CallableHandler(RegisteredHandler, Generic[C, P, R_co]):
    """A handler that describes jobs. It can be called like its function, in tests for example.

    The function of a handler with a name gets the arguments. A parameter that is annotated as a
    `Job`, or named `job` without an annotation of a JSON type, receives the job, and is not an
    argument of `job` and `enqueue`. Type checkers know this if it is the first parameter; give it a
    default otherwise. The functions of chunk handlers, of the default handler and of the handler
    for jobs without a name get whole jobs. Their only argument is the body.

    Args:
        function, name: as of a `RegisteredHandler`.
        lease: the lease of its jobs; None = the queue's.
        result_ttl: seconds for which the results of its jobs are kept; None = the queue's setting.
        backoff: the policies for failures.
        **registration: other arguments of a `RegisteredHandler`.
    """

    usage = "enqueue(queue, ...)"

    def __init__(
        self,
        function: Callable[..., R_co],
        name: str | None = None,
        *,
        lease: Duration | None = None,
        result_ttl: Duration | None = None,
        backoff: Backoff | None = None,
        **registration: Any,
    ) -> None:
        super().__init__(function, name, backoff=backoff, **registration)
        given = {"lease": lease, "retry": self._backoff.stored, "result_ttl": result_ttl}
        headers = None if name is None else {HANDLER: name}
        known = {name: value for name, value in given.items() if value is not None}
        self._options = JobOptions(known | ({"headers": headers} if headers else {}))
        self._body: Callable[[tuple[Any, ...], dict[str, Any]], Any] = self._late_body
        if self.is_whole:
            self._body = _only
        elif self._parameters is not None:
            self._body = self._parameters.body
            if self.schedule is not None:
                self.scheduled_job()

    def __call__(self, /, *args: C.args, **kwargs: C.kwargs) -> R_co:
        """Call the function."""
        result: R_co = self.function(*args, **kwargs)
        return result

    @property
    def not_a_body(self) -> str:
        """Reason why `queue.enqueue` refuses the handler itself."""
        name = getattr(self, "__name__", "handler")
        return f"a handler is not a body: use queue.enqueue({name}.job(...)) or {name}.{self.usage}"

    @property
    def lease(self) -> Duration | None:
        """Lease of its jobs in seconds; None = the queue's."""
        lease: Duration | None = self._options.given.get("lease")
        return lease

    @property
    def result_ttl(self) -> Duration | None:
        """Seconds for which the results of its jobs are kept; None = not at all."""
        result_ttl: Duration | None = self._options.given.get("result_ttl")
        return result_ttl

    @property
    def headers(self) -> dict[str, str]:
        """Headers of its jobs."""
        return self._options.headers

    def options(self, **options: Unpack[EnqueueOptions]) -> Self:
        """Return a copy of the handler whose jobs have these options; the handler stays as it is.

            later = welcome.options(delay=60, ttl=3600)
            later.enqueue(queue, "ada")

        The copy may be kept and used again. Its `options` adds to these; later values win, and
        headers are added by name.

        Args:
            **options: as of `Queue.enqueue`: delay, at, lease, ttl, headers, max_length, block,
                replicas, durable, dedup_id, dedup, retry, key, result_ttl, priority. A `lease`,
                `retry` or `ttl` of None is the queue's.

        Raises:
            BadArgument: there is no such option, or one can't be used.
        """
        made = copy(self)
        made._options = self._options.updated(options)
        return made

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Describe a job, for `queue.enqueue(welcome.job("ada"), delay=5)`. Nothing is sent.

        Args:
            *args, **kwargs: the arguments of the function, without the parameter that receives the
                job. For a handler that gets whole jobs there is one argument: the body.

        Raises:
            BadArgument: the handler could not be called with them, or JSON can't express them.
        """
        return NewJob(self._body(args, kwargs), self._options, self.queue)

    def scheduled_job(self) -> NewJob:
        """Return the job that its schedule adds: one without arguments.

        Raises:
            BadArgument: the function needs arguments.
        """
        try:
            return NewJob(self._body((), {}), self._options)
        except BadArgument as error:
            reason = (
                f"its schedule calls it without arguments, and {error}: give the parameter a"
                " default, or create the schedule with queue.schedule(name, job=...)"
            )
            raise BadArgument("handler", self.name, reason) from error

    def jobs(self, /, *iterables: Iterable[Any], **constants: Any) -> NewJobs:
        """Describe many jobs, for `queue.enqueue_many(welcome.jobs(["ada", "eve"]))`.

        As with `map`, each job takes one element of each iterable, in order, as its positional
        arguments. The shortest iterable ends the jobs. Iterables are read as the jobs go out, so
        they may be generators of any length. Each job is checked as in `job` when it is read.

        Args:
            *iterables: at least one.
            **constants: keyword arguments, the same for every job. If they differ from job to job,
                describe each one: `enqueue_many(resize.job(p, width=w) for p, w in sizes)`.

        Raises:
            BadArgument: one of them is no iterable, or is a text or a mapping.
        """
        for one in iterables:
            if isinstance(one, (str, bytes, bytearray, Mapping)) or not isinstance(one, Iterable):
                raise BadArgument("iterables", one, "pass a list or generator for each argument")
        if not iterables:
            raise BadArgument("iterables", iterables, "pass at least one list or generator")

        def each(make: Callable[[Any, Any], T]) -> Iterable[T]:
            return map(make, zip(*iterables, strict=False), repeat(constants))

        known = self._parameters
        encoded = None if known is None else partial(each, known.encoded)
        return NewJobs(partial(each, self._body), self._options, encoded, self.queue)

    def _record(self, options: Prepared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the record of a job."""
        known = self._parameters
        if known is None or options.codec is not None or options.dedup is not None:
            return options.record(self._body(args, kwargs))
        raw = known.encoded(args, kwargs)
        return b"%b;i=%b\n%b" % (options.coded_head, stable.next_id(), raw)

    def _late_body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._body = self.check().body
        return self._body(args, kwargs)


class Handler(CallableHandler[C, P, R_co]):
    """A registered function that can be enqueued in any queue.

    welcome.enqueue(queue, "ada", lang="de")
    welcome.options(delay=60).enqueue(queue, "bob")
    welcome.enqueue_many(queue, ["ada", "eve"], lang="de")
    """

    @overload
    def enqueue(self, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...
    @overload
    def enqueue(
        self, queue: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs
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
        """
        try:
            codec, has_hooks = queue.ops.codec, queue.backend.terms.middleware
        except AttributeError:
            raise self._no_queue(queue) from None
        if has_hooks:
            return queue.enqueue(self.job(*args, **kwargs))
        own = self._options
        options = own.by_codec.get(codec) or own.prepared(codec)
        return queue._add(self._record(options, args, kwargs), options)

    @overload
    def enqueue_many(
        self, queue: Queue, /, *iterables: Iterable[Any], **constants: Any
    ) -> BulkEnqueued: ...
    @overload
    def enqueue_many(
        self, queue: AsyncQueue, /, *iterables: Iterable[Any], **constants: Any
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


def is_queue(value: object) -> TypeIs[Queue | AsyncQueue]:
    """Return True for a `Queue` or `AsyncQueue`."""
    return hasattr(value, "ops") and hasattr(value, "enqueue_many")


def _only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the body of a job whose handler gets whole jobs."""
    if kwargs or len(args) != 1:
        raise BadArgument("body", kwargs or args, "one argument: the body of the job")
    return args[0]
