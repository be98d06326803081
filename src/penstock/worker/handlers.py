"""Handlers: functions that process jobs, registered by name and called with typed arguments.

    handlers = Handlers()

    @handlers.handler("welcome")
    def welcome(user_id: int, lang: str = "en") -> None: ...

    welcome.enqueue(queue, 7, lang="de")
    queue.enqueue(**welcome.job(7, lang="de"), delay=30)

The header `handler` of a job names its handler (protocol/core.md, Jobs with a name). A job without
that header goes to the handler without a name, which gets the job itself. The default handler gets
every job that no other handler takes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    overload,
)
from urllib.parse import unquote

from penstock.core.bulk import Prepared, prepared
from penstock.core.codec import Codec
from penstock.core.job import Delivery, Enqueued, data_of
from penstock.core.middleware import HANDLER
from penstock.core.options import (
    BATCH,
    Duration,
    check_count,
    check_text,
    duration_ms,
    lease_ms,
)
from penstock.core.policy import RetryPolicy
from penstock.core.record import escaped
from penstock.errors import BadArgument, UndecodableBody
from penstock.worker.arguments import Converter, Parameters, Unfit, decoded
from penstock.worker.failures import Backoff
from penstock.worker.functions import check_function, is_async, qualified
from penstock.worker.results import ACK, MAX_TEXT, Result, Retry, Verdict, described

if TYPE_CHECKING:
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base
    from typing_extensions import Unpack

    from penstock.client._async.queue import AsyncQueue
    from penstock.client._sync.queue import Queue

__all__ = ["Handler", "Handlers", "JobArgs", "NamedHandler"]

DEFAULT = ""
"""The key of the default handler in its set. No name is empty."""
MAX_NAME = 200
_BARE = (b"1\n", b"1;c=json\n")
_FIELD = b";h.handler="

C = ParamSpec("C")
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
J = TypeVar("J", bound=Delivery)
H = TypeVar("H", bound="Handler[..., Any]")


class _StoredOptions(TypedDict, total=False):
    retry: RetryPolicy
    lease: Duration
    result_ttl: Duration


class JobArgs(_StoredOptions):
    """Arguments of `enqueue` for a job of a handler; not every one has all of them."""

    body: Any
    headers: dict[str, str]


class _Policies(TypedDict, total=False):
    retry: RetryPolicy | None
    wait: wait_base | None
    stop: stop_base | None


class _HandlerOptions(_Policies, total=False):
    lease: Duration | None
    result_ttl: Duration | None
    time_limit: Duration | None


class Handler(Generic[P, R_co]):
    """A registered function. It can be called like the function, in tests for example.

    The function gets whole jobs: the handler without a name, the default handler, and every batch
    handler. A `NamedHandler` gets arguments.

    Attributes:
        name: the name in the header of its jobs; None = it has none.
        key: the key in its set: the name or None; `DEFAULT` = it is the default handler.
        function: the decorated function.
        is_async: whether a call returns a coroutine.
        size: most jobs of one call of a batch handler; None = it gets one job a call.
        wait: seconds for which a batch that is not full waits for more jobs.
        takes_job: whether a job is its only argument.
        lease: the lease of jobs that `job` describes; None = the queue's.
        result_ttl: seconds for which their results are kept; None = not at all.
        time_limit: seconds that a call may take; None = the worker's limit.
        headers: the headers of its jobs: `enqueue_many(..., headers=handler.headers)`.

    Raises:
        BadArgument: the function can't be a handler.
    """

    _takes_jobs = True
    """Whether the function gets whole jobs."""

    def __init__(
        self,
        function: Callable[..., R_co],
        name: str | None = None,
        *,
        size: int | None = None,
        wait: float = 0.0,
        backoff: Backoff | None = None,
        lease: Duration | None = None,
        time_limit: Duration | None = None,
        result_ttl: Duration | None = None,
    ) -> None:
        if isinstance(function, Handler):
            reason = (
                "is a handler already: add it with include() of its set, or decorate the function"
            )
            raise BadArgument("function", function, reason)
        check_function(function, whole=self._takes_jobs)
        functools.update_wrapper(self, function, updated=())
        self.name = self.key = name
        self.function = function
        self.is_async = is_async(function)
        self.size = size
        self.takes_job = self._takes_jobs and size is None
        self.wait = wait
        self.lease = lease
        self.time_limit = seconds_of("time_limit", time_limit)
        self.result_ttl = result_ttl
        self.headers: dict[str, str] = {} if name is None else {HANDLER: name}
        self._backoff = backoff or Backoff()
        self._prepared: dict[Codec | None, Prepared] = {}

    def __call__(self, /, *args: Any, **kwargs: Any) -> R_co:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def is_default(self) -> bool:
        """True if it gets the jobs that no other handler takes."""
        return self.key == DEFAULT

    @property
    def retry(self) -> RetryPolicy | None:
        """Policy for failures, or None."""
        return self._backoff.retry

    @property
    def title(self) -> str:
        """Name for people."""
        return _shown(self.key)

    def __repr__(self) -> str:
        named = repr(self.name) if self.name else self.title
        return f"<{type(self).__name__} {named}: {qualified(self.function)}>"

    @overload
    def enqueue(self, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...
    @overload
    def enqueue(
        self, queue: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Enqueued]: ...
    def enqueue(self, queue: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Add a job to a queue; to be awaited if that is an `AsyncQueue`.

        Args:
            queue: the queue.
            *args, **kwargs: as `job`.

        Returns:
            As `Queue.enqueue`.

        Raises:
            As `job` and `Queue.enqueue`; nothing was added.
        """
        if queue.backend.terms.middleware:
            return queue.enqueue(**self.job(*args, **kwargs))
        codec = queue.ops.codec
        options = self._prepared.get(codec)
        if options is None:
            options = self._prepared[codec] = prepared(
                headers=self.headers, lease=self.lease, retry=self._backoff.stored, codec=codec,
                result_ttl=self.result_ttl,
            )  # fmt: skip
        return queue._add(options.record(self.body(*args, **kwargs)), options)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobArgs:
        """Return the arguments of `enqueue` for a job: `enqueue(**handler.job(...), delay=5)`.

        Args:
            *args, **kwargs: those of the function, without the parameter that receives the job. For
                a handler that gets whole jobs there is one: the body.

        Raises:
            BadArgument: the handler could not be called with them, or JSON can't express them.
        """
        wanted = JobArgs(body=self.body(*args, **kwargs), headers=dict(self.headers))
        if self._backoff.stored is not None:
            wanted["retry"] = self._backoff.stored
        if self.lease is not None:
            wanted["lease"] = self.lease
        if self.result_ttl is not None:
            wanted["result_ttl"] = self.result_ttl
        return wanted

    def body(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return a job's body: `enqueue_many(map(handler.body, ids), headers=handler.headers)`.

        Args, raises: as `job`.
        """
        if kwargs or len(args) != 1:
            raise BadArgument("body", args, "one argument: the body of the job")
        return args[0]

    def arguments(self, job: Delivery) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the function for a job.

        Raises:
            Unfit: the body does not fit the function; the job has to become a dead letter.
        """
        return (job,), {}

    def returned(self, job: Delivery, value: Any) -> Verdict:
        """Return the verdict on a job whose handler returned a value.

        A `Result` brings its own verdict. An exception counts as if it had been raised. A generator
        or awaitable is a failure, as its work was not done. Anything else is success.
        """
        if value is None:
            return ACK
        if isinstance(value, type) and issubclass(value, Result):
            try:
                value = value()
            except TypeError as error:
                value = error
        if isinstance(value, BaseException):
            return self.failed(job, value)
        kinds = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
        if not any(is_kind(value) for is_kind in kinds):
            return ACK
        if inspect.iscoroutine(value):
            with contextlib.suppress(Exception):
                value.close()  # otherwise Python warns that it was never awaited
        return self.failed(job, TypeError(f"the handler returned a {type(value).__name__}"))

    def returned_batch(self, jobs: Sequence[Delivery], value: Any) -> list[Verdict] | None:
        """Return the verdicts on the jobs of a batch; None = all are acknowledged.

        Args:
            jobs: the argument of the function.
            value: its return value. Each element of a list or tuple concerns one job, as in
                `returned`; any other value concerns all jobs. A list of another length that holds
                results is a failure of all jobs.
        """
        if value is None:
            return None
        each: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value] * len(jobs)
        if len(each) != len(jobs):
            if not any(isinstance(one, BaseException) for one in each):
                return None
            each = [ValueError(f"{len(each)} results for {len(jobs)} jobs")] * len(jobs)
        verdicts = [self.returned(job, one) for job, one in zip(jobs, each, strict=True)]
        return None if all(verdict is ACK for verdict in verdicts) else verdicts

    def failed(self, job: Delivery, error: BaseException) -> Verdict:
        """Return the verdict on a job whose handler raised. Never raises.

        A `Result` brings its own verdict. For other exceptions the first policy that applies
        decides: the rule of the handler's policy for this exception, its tenacity objects, the
        policy stored with the job, the handler's policy, the queue's policy.

        If the exception shows that the job's body can't be decoded, the job becomes a dead letter.
        No rule exceeds the limits of the job and of the queue.
        """
        if isinstance(error, UndecodableBody) and _undecodable(job):
            return Verdict(
                "bury", text=check_text("error", f"body can't be decoded: {error}", limit=MAX_TEXT)
            )
        if not isinstance(error, Result):
            return self._backoff.verdict(job, error, described(error))
        if not isinstance(error, Retry):
            return error.verdict
        own = error.verdict
        cause = error.__cause__ or error
        text = own.text or ("" if cause is error else described(cause))
        verdict = self._backoff.verdict(job, cause, text)
        if verdict.kind == "nack" and own.delay_ms >= 0:
            return verdict._replace(delay_ms=own.delay_ms, is_asked=True)
        return verdict


class NamedHandler(Handler[P, R_co], Generic[C, P, R_co]):
    """A handler that gets arguments from the body of its jobs.

    A parameter that is annotated as a `Job`, or named `job` without an annotation of a JSON type,
    receives the job. It is not an argument of `job()`. Type checkers know this if it is the first
    parameter; give it a default otherwise.
    """

    _takes_jobs = False

    def __init__(
        self,
        function: Callable[..., R_co],
        name: str,
        *,
        convert: Converter | None,
        **options: Any,
    ) -> None:
        super().__init__(function, name, **options)
        self._convert = convert
        self._parameters: Parameters | None = None
        with contextlib.suppress(NameError):  # an annotation names something that is defined later
            self._parameters = Parameters(function, convert, strict=True)

    if TYPE_CHECKING:

        def __call__(self, /, *args: C.args, **kwargs: C.kwargs) -> R_co:
            """Call the function."""
            ...

    def check(self) -> Parameters:
        """Return the parameters, with the annotations that can be resolved now.

        Raises:
            BadArgument: the function can't be a handler.
        """
        if self._parameters is None:
            self._parameters = Parameters(self.function, self._convert)
        return self._parameters

    def body(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return a job's body: `enqueue_many(map(handler.body, ids), headers=handler.headers)`.

        Args, raises: as `job`.
        """
        return (self._parameters or self.check()).body(args, kwargs)

    def arguments(self, job: Delivery) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the function for a job.

        Raises:
            Unfit: the body is not JSON, or does not fit the function.
        """
        try:
            return (self._parameters or self.check()).bind(decoded(job), job)
        except BadArgument as error:
            raise Unfit(f"arguments don't fit {self.name}: {error}") from error


class _Bare(Protocol):
    """A decorator that makes a handler of a function that gets the job."""

    def __call__(self, function: Callable[[J], R], /) -> Handler[[Any], R]: ...


class _BatchDecorator(Protocol):
    """A decorator that makes a handler of a function that gets a list of jobs."""

    def __call__(self, function: Callable[[list[J]], R], /) -> Handler[[Any], R]: ...


class _Named(Protocol):
    """A decorator that makes a handler of a function with arguments."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[J, P], R], /
    ) -> NamedHandler[Concatenate[J, P], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> NamedHandler[P, P, R]: ...


class Handlers:
    """A set of handlers, each under its name, for a `Worker`.

        handlers = Handlers()

        @handlers.handler("welcome")
        def welcome(user_id: int, lang: str = "en") -> None: ...

        welcome.enqueue(queue, 7, lang="de")
        Worker("redis://localhost:6379/0", "emails", handlers).run()

    Args:
        convert: converts between JSON and arguments of other types; see
            `penstock.integrations.pydantic.converter`.
    """

    def __init__(self, *, convert: Converter | None = None) -> None:
        self._convert = convert
        self._all: dict[str | None, Handler[..., Any]] = {}
        self._nameless: Handler[..., Any] | None = None
        self._routes: dict[bytes, Handler[..., Any]] = {}

    @overload
    def handler(self, name: H, /) -> H: ...
    @overload
    def handler(self, name: Callable[[J], R], /) -> Handler[[Any], R]: ...
    @overload
    def handler(self, name: None = None, /, **options: Unpack[_HandlerOptions]) -> _Bare: ...
    @overload
    def handler(self, name: str, /, **options: Unpack[_HandlerOptions]) -> _Named: ...
    def handler(
        self,
        name: Any = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        wait: wait_base | None = None,
        stop: stop_base | None = None,
        lease: Duration | None = None,
        time_limit: Duration | None = None,
        result_ttl: Duration | None = None,
    ) -> Any:
        """Register a function, as a decorator with or without parentheses.

        Args:
            name: the function gets arguments, from jobs whose header `handler` has this name.
                None = it gets jobs without a name, each as its only argument. A `Handler` of
                another set is added as it is.
            retry: the policy for failures. `Handler.job` stores with each job the parts that can be
                stored, so that every client applies them.
            wait, stop: objects of tenacity that are asked after each failure. `stop` makes the job
                a dead letter. They see a first attempt that began when the job was enqueued, and an
                `idle_for` of 0, as the worker does not sleep.
            lease: the lease of jobs that `Handler.job` describes, in seconds.
            time_limit: seconds that a call may take; then it fails with `TimeLimit`.
            result_ttl: seconds for which the results of these jobs are kept; None or 0 = not.

        Raises:
            BadArgument: an argument can't be used, there is a handler with that name, or the
                function can't be a handler.
        """
        if isinstance(name, Handler):
            return self._add(name)
        if name is not None and not isinstance(name, str) and callable(name):
            return self._add(Handler(name))
        self._check(name, lease, result_ttl)
        own: Any = {"backoff": Backoff(retry, wait, stop), "lease": lease, "result_ttl": result_ttl}
        own["time_limit"] = seconds_of("time_limit", time_limit)

        def decorate(function: Callable[..., Any]) -> Handler[..., Any]:
            if name is None:
                return self._add(Handler(function, **own))
            return self._add(NamedHandler(function, name, convert=self._convert, **own))

        return decorate

    @overload
    def default(self, function: Callable[[J], R], /) -> Handler[[Any], R]: ...
    @overload
    def default(self, function: None = None, /, **policies: Unpack[_Policies]) -> _Bare: ...
    def default(
        self,
        function: Any = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        wait: wait_base | None = None,
        stop: stop_base | None = None,
    ) -> Any:
        """Register the function for jobs that no other handler takes, as a decorator.

        These have an unknown name, or none if there is no handler without a name. Without a default
        handler they become dead letters. Its only argument is the job; `job.headers["handler"]` is
        the name.

        Args:
            function: the function, as a decorator without parentheses.
            retry, wait, stop: as in `handler`.

        Raises:
            BadArgument: an argument can't be used, there is a default handler, or the function
                can't be a handler.
        """
        backoff = Backoff(retry, wait, stop)

        def decorate(function: Callable[..., Any]) -> Handler[..., Any]:
            made: Handler[..., Any] = Handler(function, backoff=backoff)
            made.key = DEFAULT
            return self._add(made)

        return decorate if function is None else decorate(function)

    def batch(
        self,
        name: str | None = None,
        /,
        *,
        size: int,
        wait: Duration = 0.0,
        retry: RetryPolicy | None = None,
        lease: Duration | None = None,
        time_limit: Duration | None = None,
        result_ttl: Duration | None = None,
    ) -> _BatchDecorator:
        """Register a function that gets a list of jobs, as a decorator.

        It returns None if all jobs are done, or a list with one element a job: None, a `Result`, or
        an exception. An exception that it raises counts for every job.

        Args:
            name: as in `handler`.
            size: most jobs of one call, from 1 to 1000.
            wait: seconds for which a batch that is not full waits for more jobs.
            retry, lease, time_limit, result_ttl: as in `handler`.

        Raises:
            BadArgument: as `handler`.
        """
        self._check(name, lease, result_ttl)
        check_count("size", size, high=BATCH)
        seconds = duration_ms("wait", wait) / 1000
        own: Any = {"backoff": Backoff(retry), "lease": lease, "result_ttl": result_ttl}
        own["time_limit"] = seconds_of("time_limit", time_limit)

        def decorate(function: Callable[..., Any]) -> Handler[..., Any]:
            return self._add(Handler(function, name, size=size, wait=seconds, **own))

        return decorate

    def include(self, other: Handlers) -> None:
        """Add the handlers that another set has now.

        Raises:
            BadArgument: a name is in both sets; nothing was added.
        """
        for handler in other:
            self._check_free(handler.key)
        for handler in other:
            self._add(handler)

    def check(self) -> None:
        """Resolve annotations whose names were not defined when their function was registered.

        A worker does so when it starts.

        Raises:
            BadArgument: a function can't be a handler.
        """
        for handler in self:
            if isinstance(handler, NamedHandler):
                handler.check()

    def __iter__(self) -> Iterator[Handler[..., Any]]:
        return iter([*self._all.values()])

    def __repr__(self) -> str:
        return f"<Handlers {', '.join(map(_shown, self._all))}>"

    def find(self, job: Delivery) -> Handler[..., Any] | None:
        """Return the handler for a job without parsing its record; None if there is none."""
        data = data_of(job)
        if data.startswith(_BARE) or data.find(_FIELD, 0, data.find(b"\n")) < 0:
            return self._nameless
        written = _written(data) or b""
        found = self._routes.get(written) or self._all.get(_read(written))
        return found or self._all.get(DEFAULT)

    def missing(self, job: Delivery) -> str:
        """Return the reason for a dead letter for which `find` found no handler."""
        written = _written(data_of(job))
        if written is None:
            return "no handler for jobs without a name"
        return f'no handler "{_read(written)[:MAX_NAME]}"'

    def _add(self, handler: Handler[P, R]) -> Handler[P, R]:
        self._check_free(handler.key)
        self._all[handler.key] = handler
        if handler.name is not None:
            self._routes[escaped(handler.name).encode()] = handler
        self._nameless = self._all.get(None) or self._all.get(DEFAULT)
        return handler

    def _check(self, name: Any, lease: Duration | None, result_ttl: Duration | None) -> None:
        if name is not None:
            if not isinstance(name, str) or not name or not name.isprintable():
                raise BadArgument("name", name, "a printable text that is not empty")
            if len(name.encode()) > MAX_NAME:
                raise BadArgument("name", name, f"at most {MAX_NAME} bytes")
        if lease is not None:
            lease_ms("lease", lease)
        duration_ms("result_ttl", 0 if result_ttl is None else result_ttl)
        self._check_free(name)

    def _check_free(self, key: str | None) -> None:
        there = self._all.get(key)
        if there is not None:
            kinds = {None: "a handler without a name", DEFAULT: "a default handler"}
            kind = kinds.get(key, "a handler with this name")
            raise BadArgument("name", key or None, f"there is {kind}: {qualified(there.function)}")


def seconds_of(name: str, value: Duration | None) -> float | None:
    """Return a duration in seconds; None stays None.

    Raises:
        BadArgument: not a duration above 0.
    """
    return None if value is None else duration_ms(name, value, zero=False) / 1000


def _shown(key: str | None) -> str:
    return "without a name" if key is None else key or "default"


def _written(data: bytes) -> bytes | None:
    """Return the handler's name in a record, or None (protocol/core.md, Record)."""
    end = data.find(b"\n")
    start = data.find(_FIELD, 0, end)
    if start < 0:
        return None
    start += len(_FIELD)
    stop = data.find(b";", start, end)
    return data[start : end if stop < 0 else stop]


def _read(written: bytes) -> str:
    return unquote(written.decode("utf-8", "replace"))


def _undecodable(job: Delivery) -> bool:
    try:
        job.body  # noqa: B018  # another job's may be the one that could not be decoded
    except UndecodableBody:
        return True
    return False
