"""A registered function: its jobs, its arguments for a job, and the verdict on a job."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import repeat
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

from penstock.core.enqueuing.new_jobs import JobOptions, NewJob, NewJobs
from penstock.core.enqueuing.options import (
    EnqueueOptions,
    FollowerOfSet,
    NamedHandler,
    show_options,
)
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.enqueuing.schedules import Spec
from penstock.core.jobs.job import Delivery, data_of
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.record import RECORD, parse_record
from penstock.core.values import stable
from penstock.core.values.annotations import Self, Unpack
from penstock.core.values.checks import Duration, check_text, duration_ms
from penstock.core.values.methods import ElsewhereCall, name_methods
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument, StepError, UndecodableBody
from penstock.wire.keys import check_queue_name
from penstock.worker.arguments import Converter, Parameters, Unfit, decoded
from penstock.worker.failures import Backoff
from penstock.worker.functions import app_of, check_function, hints, is_async, qualified
from penstock.worker.results import ACK, MAX_TEXT_BYTES, Result, Retry, Verdict, described
from penstock.worker.step_run import BaseSteps, steps_class

__all__ = ["DEFAULT_KEY", "AnyHandler", "RegisteredHandler", "seconds_of", "title_of"]

C = ParamSpec("C")
P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

PICKLE_PROTOCOL = 4
"""The protocol of pickle since Python 3.8."""
OF_ITS_SET: Final[Any] = object()
"""The `on_dead` of a handler that gets that of its set."""
DEFAULT_KEY = ""
"""The key of the default handler in its set. No name is empty."""


@name_methods("Handler")
class RegisteredHandler(Generic[C, P, R_co]):
    """A registered function: `Handler` and `BoundHandler` enqueue its jobs.

    It can be called like its function, in tests for example.

    The function of a handler with a name gets the arguments. A parameter that is annotated as a
    `Job`, or named `job` without an annotation of a JSON type, receives the job, and is not an
    argument of `job` and `enqueue`. So does one that is annotated as `Steps`, or `AsyncSteps` of a
    coroutine function: its steps. Type checkers know this if it is the first parameter; give it a
    default otherwise. The functions of chunk handlers, of the default handler, of `on_dead` and of
    the handler for jobs without a name get whole jobs. Their only argument is the body.

    Args:
        lease: the lease of its jobs; None = the queue's.
        result_ttl: seconds for which the results of its jobs are kept; None = the queue's setting.
        chunk_wait: the attribute `wait`.
        backoff: the policies for failures.
        on_dead: the handler of the job that the death of one of its jobs adds; None = none; by
            default that of its set.
        whole: whether the function gets whole jobs although it has a name.
        strict: the attribute `is_strict`.
        app: the attribute `app`; None = the top-level package of the function.

    Attributes:
        name: the name in the header of its jobs; None = it has none.
        key: the key in its set: the name or None; `DEFAULT_KEY` = it is the default handler.
        queue: name of the queue of its jobs; None = it names none.
        function: the decorated function.
        is_async: whether a call returns a coroutine.
        size: most jobs of one call of a chunk handler; None = it gets one job a call.
        wait: seconds for which a chunk that is not full waits for more jobs.
        is_whole: whether the function gets whole jobs, and not arguments.
        takes_job: whether a job is its only argument.
        time_limit: seconds that a call may take; None = the worker's limit.
        schedule: when jobs of it are added; None = it has no schedule.
        steps_type: the class of its steps; None = it has none.
        is_strict: whether a result that it makes and neither returns nor raises is a failure.
        app: the app to whose code it belongs.
        is_undecided: whether it has no `on_dead` of its own, and none of a set yet.

    Raises:
        BadArgument: the function can't be a handler.
    """

    usage = "enqueue(queue, ...)"

    if not TYPE_CHECKING:  # a type checker refuses them itself
        delay = ElsewhereCall("handler", "{0.usage}")
        send = ElsewhereCall("handler", "{0.usage}")
        s = ElsewhereCall("handler", "job(...)")
        si = ElsewhereCall("handler", "job(...)")
        apply_async = ElsewhereCall("handler", "options(delay=seconds).{0.usage}")
        send_with_options = ElsewhereCall("handler", "options(delay=seconds).{0.usage}")

    def __init_subclass__(cls) -> None:
        """Let process pools pass instances by name; others, such as Spark, pickle their values."""
        ForkingPickler.register(cls, _reduce)

    def __init__(
        self,
        function: Callable[..., R_co],
        name: str | None = None,
        *,
        key: str | None = None,
        queue: str | None = None,
        convert: Converter | None = None,
        size: int | None = None,
        chunk_wait: float = 0.0,
        lease: Duration | None = None,
        result_ttl: Duration | None = None,
        backoff: Backoff | None = None,
        time_limit: Duration | None = None,
        schedule: Spec | None = None,
        on_dead: NamedHandler | str | None = OF_ITS_SET,
        whole: bool = False,
        strict: bool = False,
        app: str | None = None,
    ) -> None:
        if isinstance(function, RegisteredHandler):
            reason = (
                "is a handler already: add it with include() of its set, or decorate the function"
            )
            raise BadArgument("function", function, reason)
        if queue is not None:
            check_queue_name(queue)
        self.is_whole = whole or name is None or size is not None
        check_function(function, whole=self.is_whole)
        if schedule is not None:
            _check_schedule(name, queue)
        wrapper: Any = self
        functools.update_wrapper(wrapper, function, updated=())
        self.name, self.key = name, name if key is None else key
        self.queue = queue
        self.function = function
        self.is_async = is_async(function)
        self.size = size
        self.takes_job = self.is_whole and size is None
        self.wait = chunk_wait
        self.time_limit = seconds_of("time_limit", time_limit)
        self.schedule = schedule
        self.is_strict = strict
        self.app = app_of(function) if app is None else app
        self.steps_type: type[BaseSteps] | None = None
        self._backoff = backoff or Backoff()
        self._convert = convert
        self.check_follower(on_dead, getattr(on_dead, "queue", None))
        self.is_undecided = on_dead is OF_ITS_SET
        given = {
            "lease": lease,
            "retry": self._backoff.stored,
            "result_ttl": result_ttl,
            "on_dead": None if self.is_undecided else on_dead,
        }
        known = {name: value for name, value in given.items() if value is not None}
        self._options = JobOptions(known | ({"headers": {HANDLER: name}} if name else {}))
        self._parameters: Parameters | None = None
        self._body: Callable[[tuple[Any, ...], dict[str, Any]], Any] = self._late_body
        if self.is_whole:
            self._body = _only
            if any(map(steps_class, hints(function, strict=False).values())):
                reason = "gets whole jobs, so it can't have steps: give it a name, and no size"
                raise BadArgument("function", function, reason)
            return
        with contextlib.suppress(NameError):  # an annotation names what is defined later
            self._body = self.check(strict=True).body
            self._check_arguments_of(on_dead)
            if schedule is not None:
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
        lease: Duration | None = self._options.by_name.get("lease")
        return lease

    @property
    def result_ttl(self) -> Duration | None:
        """Seconds for which the results of its jobs are kept; None = the queue's setting."""
        result_ttl: Duration | None = self._options.by_name.get("result_ttl")
        return result_ttl

    @property
    def follower_name(self) -> str | None:
        """Return the `on_dead` of its jobs if that is a name, which may be of another program."""
        follower = self._options.by_name.get("on_dead")
        return follower if isinstance(follower, str) else None

    def check_follower(self, follower: object, queue: str | None) -> None:
        """Refuse a handler of another queue as `on_dead`: its job would be in this one.

        Args:
            follower: the value of `on_dead`.
            queue: the queue that it names, or None.

        Raises:
            BadArgument: both handlers name queues, and these differ.
        """
        if None not in (queue, self.queue) and queue != self.queue:
            reason = (
                f"is for jobs of queue {queue!r}, and the job that a death adds is in"
                f" {self.queue!r}, where the dead letter is: leave out its queue"
            )
            raise BadArgument("on_dead", follower, reason)

    def _check_arguments_of(self, follower: object) -> None:
        """Refuse a handler as `on_dead` that could be called with the body of no job of this one.

        Raises:
            BadArgument: their parameters differ.
        """
        if not isinstance(follower, RegisteredHandler) or follower.is_whole or self.is_whole:
            return
        if reason := follower.check().lacks(self.check()):
            raise BadArgument("on_dead", follower, f"{reason}; {_same_arguments(self, follower)}")

    def check_takes(self, argument: str, body: Any) -> None:
        """Refuse the body of another handler's job that this one could not be called with.

        Raises:
            BadArgument: the arguments don't fit.
        """
        if self.is_whole:
            return
        try:
            self.check().bind(body)
        except BadArgument as error:
            reason = f"would be called with {body!r}, which does not fit: {error}; take the same"
            raise BadArgument(argument, self, f"{reason} arguments") from error

    def set_on_dead(self, follower: NamedHandler) -> None:
        """Let the deaths of the jobs that it adds from now on add a job of the set's handler."""
        self._options = self._options.updated({"on_dead": FollowerOfSet(follower)})
        self.is_undecided = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers of its jobs."""
        return self._options.headers

    @show_options(EnqueueOptions)
    def options(self, **options: Unpack[EnqueueOptions]) -> Self:
        """Return a copy of the handler whose jobs have these options; the handler stays as it is.

        The copy may be kept and used again. Its `options` adds to these; later values win, and
        headers are added by name.

        Args:
            **options: as of `Queue.enqueue`. A `lease`, `retry` or `ttl` of None is the queue's.

        Raises:
            BadArgument: there is no such option, or one can't be used.

        Examples:
            >>> @Handlers().handler
            ... def welcome(to: str) -> None: ...
            >>> later = welcome.options(delay=60, ttl=3600)
            >>> later.enqueue(q, "ada").state
            'scheduled'
        """
        follower = options.get("on_dead")
        self.check_follower(follower, getattr(follower, "queue", None))
        self._check_arguments_of(follower)
        made = copy(self)
        made._options = self._options.updated(options)
        return made

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob[R_co]:
        """Describe a job, for `queue.enqueue(welcome.job("ada"), delay=5)`. Nothing is sent.

        Args:
            *args, **kwargs: the arguments of the function, without the parameter that receives the
                job. For a handler that gets whole jobs there is one argument: the body.

        Raises:
            BadArgument: the handler could not be called with them, or JSON can't express them.
        """
        return NewJob(self._body(args, kwargs), self._options, self.queue)

    def link(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[NewJob, str]:
        """Return a job of a chain, and the parameter that gets the value of the job before.

        Args:
            args: the arguments behind the value.
            kwargs: those by name.

        Returns:
            An empty parameter stands for the whole body.

        Raises:
            BadArgument: the handler could not be called with them.
        """
        if self.is_whole:
            if args or kwargs:
                raise BadArgument("jobs", kwargs or args, "its body is the value: omit arguments")
            return NewJob(None, self._options, self.queue), ""
        body, parameter = self.check().body_without_first(args, kwargs)
        return NewJob(body, self._options, self.queue), parameter

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
                " default, or create the schedule with queue.schedules.add(name, job=...)"
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

        Examples:
            >>> @Handlers().handler
            ... def resize(path: str, width: int) -> None: ...
            >>> added = q.enqueue_many(resize.jobs(["a.png", "b.png"], width=100))
            >>> [view.body["path"] for view in q.peek()]
            ['a.png', 'b.png']
        """
        for one in iterables:
            if isinstance(one, (str, bytes, bytearray, Mapping)) or not isinstance(one, Iterable):
                raise BadArgument(
                    "iterables", one, "must be a list, a generator or the like for each argument"
                )
        if not iterables:
            raise BadArgument("iterables", iterables, "pass at least one list or generator")

        def each(make: Callable[[Any, Any], T]) -> Iterable[T]:
            return map(make, zip(*iterables, strict=False), repeat(constants))

        known = self._parameters
        encoded = None if known is None else partial(each, known.encoded)
        return NewJobs(partial(each, self._body), self._options, encoded, self.queue)

    def _record(self, options: Prepared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        known = self._parameters
        if known is None or options.codec is not None or options.dedup is not None:
            return options.record(self._body(args, kwargs))
        raw = known.encoded(args, kwargs)
        return RECORD % (options.coded_head, stable.next_id(), raw)

    def _late_body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._body = self.check().body
        return self._body(args, kwargs)

    @property
    def retry(self) -> RetryPolicy | None:
        """Policy for failures, or None."""
        return self._backoff.retry

    @property
    def title(self) -> str:
        """Name for people."""
        return title_of(self.key)

    def __repr__(self) -> str:
        named = repr(self.name) if self.name else self.title
        return f"<{type(self).__name__} {named}: {qualified(self.function)}>"

    def check(self, *, strict: bool = False) -> Parameters:
        """Return the parameters, with the annotations that can be resolved now.

        Args:
            strict: all annotations must be resolved.

        Raises:
            BadArgument: the function can't be a handler.
            NameError: an annotation can't be resolved.
        """
        if self._parameters is None:
            parameters = Parameters(self.function, self._convert, strict=strict)
            self._check_steps(parameters.steps_type)
            self._parameters, self.steps_type = parameters, parameters.steps_type
        return self._parameters

    def _check_steps(self, steps_type: type[BaseSteps] | None) -> None:
        if steps_type is None:
            return
        if steps_type.is_async != self.is_async:
            kind, name = ("coroutine", "AsyncSteps") if self.is_async else ("plain", "Steps")
            raise BadArgument("function", self.function, f"is a {kind} function: annotate {name}")
        if self.lease == 0:
            reason = "its steps need deliveries after the first one: a job with lease=0 has none"
            raise BadArgument("lease", self.lease, reason)

    def arguments(
        self, job: Delivery, steps: BaseSteps | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the function for a job.

        Args:
            job: the job.
            steps: those of the run, if it has some.

        Raises:
            Unfit: the body is not JSON, or does not fit the function; the job has to become a dead
                letter.
        """
        if self.is_whole:
            return (job,), {}
        try:
            return (self._parameters or self.check()).bind(decoded(job), job, steps)
        except BadArgument as error:
            raise Unfit(f"arguments don't fit {self.name}: {error}") from error
        except Unfit as error:
            if job.death is None or not job.death.left_out:
                raise
            size = job.death.left_out
            raise Unfit(f"the body of {size} bytes was left out, see job.death") from error

    def verdict_on_value(self, job: Delivery, value: Any) -> Verdict:
        """Return the verdict on a job whose handler returned a value.

        A `Result` brings its own verdict. An exception counts as if it had been raised. A generator
        or awaitable is a failure, as its work was not done. Anything else is success.
        """
        if value is None:
            return ACK
        if isinstance(value, type) and issubclass(value, Result):
            try:
                value = value()
            except TypeError as error:  # it needs arguments
                return self.verdict_on_error(job, error)
        if isinstance(value, BaseException):
            return self.verdict_on_error(job, value)
        kinds = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
        if not any(is_kind(value) for is_kind in kinds):
            return ACK
        if inspect.iscoroutine(value):
            with contextlib.suppress(Exception):
                value.close()  # otherwise Python warns that it was never awaited
        return self.verdict_on_error(
            job, TypeError(f"the handler returned a {type(value).__name__}")
        )

    def verdicts_on_chunk(self, jobs: Sequence[Delivery], value: Any) -> list[Verdict] | None:
        """Return the verdicts on the jobs of a chunk; None = all are acknowledged.

        Args:
            jobs: the argument of the function.
            value: its return value. Each element of a list or tuple concerns one job, as in
                `verdict_on_value`; any other value concerns all jobs. A list of another length that
                holds results is a failure of all jobs.
        """
        if value is None:
            return None
        each: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value] * len(jobs)
        if len(each) != len(jobs):
            if not any(isinstance(one, BaseException) for one in each):
                return None
            each = [ValueError(f"{len(each)} results for {len(jobs)} jobs")] * len(jobs)
        verdicts = [self.verdict_on_value(job, one) for job, one in zip(jobs, each, strict=True)]
        return None if all(verdict is ACK for verdict in verdicts) else verdicts

    def verdict_on_error(self, job: Delivery, error: BaseException) -> Verdict:
        """Return the verdict on a job whose handler raised. Never raises.

        A `Result` brings its own verdict. For other exceptions the first policy that applies
        decides: the rule of the handler's policy for this exception, its tenacity objects, the
        policy stored with the job, the handler's policy, the queue's policy.

        A `StepError` makes the job a dead letter, and so does an exception which shows that the
        job's body can't be decoded.
        No rule exceeds the limits of the job and of the queue.
        """
        if isinstance(error, UndecodableBody) and _undecodable(job):
            return Verdict(
                "bury",
                text=check_text("error", f"body can't be decoded: {error}", limit=MAX_TEXT_BYTES),
            )
        if isinstance(error, StepError):
            return Verdict("bury", text=described(error))
        if not isinstance(error, Result):
            return self._backoff.verdict(job, error, described(error))
        own = error.verdict
        if own.hold == "key" and not parse_record(data_of(job)).key_hash:
            reason = 'the job has no key: enqueue it with key=, or use hold="queue"'
            return self.verdict_on_error(job, BadArgument("hold", "key", reason))
        if not isinstance(error, Retry):
            return own
        cause = error.__cause__ or error
        text = own.text or ("" if cause is error else described(cause))
        verdict = self._backoff.verdict(job, cause, text)
        verdict = verdict._replace(hold=own.hold, hold_ms=own.hold_ms)
        if verdict.kind == "nack" and own.delay_ms >= 0:
            return verdict._replace(delay_ms=own.delay_ms, is_asked=True)
        return verdict


AnyHandler: TypeAlias = RegisteredHandler[..., ..., Any]


def _reduce(handler: AnyHandler) -> str | tuple[Any, ...]:
    """Return the name of a handler in its module, which refers to it and not to its function."""
    name = getattr(handler, "__qualname__", "")
    with contextlib.suppress(AttributeError):
        if attrgetter(name)(sys.modules.get(handler.__module__)) is handler:
            return name
    return handler.__reduce_ex__(PICKLE_PROTOCOL)  # a copy, or a function that is not decorated


def _only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the body of a job whose handler gets whole jobs."""
    if kwargs or len(args) != 1:
        raise BadArgument("body", kwargs or args, "must be one argument: the body of the job")
    return args[0]


def seconds_of(name: str, value: Duration | None) -> float | None:
    """Return a duration in seconds; None stays None.

    Raises:
        BadArgument: not a duration above 0.
    """
    return None if value is None else duration_ms(name, value, zero=False) / 1000


def _check_schedule(name: str | None, queue: str | None) -> None:
    if name is None:
        reason = "a handler without a name can't have a schedule: name it, or call schedules.add()"
        raise BadArgument("name", name, reason)
    if queue is None:
        reason = 'a handler with a schedule names its queue: handlers.handler(queue="reports", ...)'
        raise BadArgument("queue", queue, reason)


def title_of(key: str | None) -> str:
    """Return the name of a handler for people."""
    return "without a name" if key is None else key or "default"


def _same_arguments(handler: AnyHandler, follower: AnyHandler) -> str:
    """Return how to write a handler that gets the body of another one's job."""
    theirs = handler.check().shown()
    return (
        f"it gets the arguments of the dead job: def {follower.name}(job: Job, {theirs}), or"
        " @handlers.on_dead, whose function gets the whole job"
    )


def _undecodable(job: Delivery) -> bool:
    try:
        job.body  # noqa: B018  # another job's may be the one that could not be decoded
    except UndecodableBody:
        return True
    return False
