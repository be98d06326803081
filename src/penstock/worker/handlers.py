"""Handlers: functions that process jobs, registered by name and called with typed arguments.

    handlers = Handlers()

    @handlers.handler
    def welcome(user_id: int, lang: str = "en") -> None: ...

    welcome.enqueue(queue, 7, lang="de")
    welcome.options(delay=30).enqueue(queue, 7)

The header `handler` of a job names its handler (protocol/core.md, Jobs with a name). A job without
that header goes to the handler registered with `handler(None)`, which gets the job itself. The
default handler gets every job that no other handler takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    overload,
)
from urllib.parse import unquote

from penstock.core.enqueuing.options import EnqueueOptions, NamedHandler
from penstock.core.enqueuing.schedules import Spec, check_spec
from penstock.core.jobs.job import Delivery, data_of
from penstock.core.jobs.record import escaped
from penstock.core.values.annotations import Unpack
from penstock.core.values.checks import (
    BATCH,
    MAX_HANDLER_NAME_BYTES,
    Duration,
    Missed,
    check_count,
    check_flag,
    check_handler_name,
    check_party,
    duration_ms,
)
from penstock.core.values.near import did_you_mean
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument
from penstock.wire.keys import check_queue_name
from penstock.worker.arguments import Converter
from penstock.worker.calling import Handler
from penstock.worker.failures import Backoff
from penstock.worker.functions import qualified
from penstock.worker.registered import DEFAULT_KEY, AnyHandler, RegisteredHandler, title_of
from penstock.worker.step_run import BaseSteps

if TYPE_CHECKING:
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base

__all__ = ["UNNAMED", "HandlerOptions", "Handlers", "Policies"]

_FIELD = b";h.handler="
"""Field of a record with the name of the handler."""
OWN_QUEUES_HINT = "give each of the two a queue of its own"

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=Delivery)
F = TypeVar("F", bound="Delivery | BaseSteps")
"""The first parameter of a handler, if it receives the job or the steps."""
H = TypeVar("H", bound=AnyHandler)
T = TypeVar("T", bound=AnyHandler)


class _Unnamed:
    """The name of a handler that is named after its function."""

    def __repr__(self) -> str:
        return "<the function's name>"


UNNAMED: Final[Any] = _Unnamed()


class Policies(TypedDict, total=False):
    """Options for failures; see `Handlers.handler`."""

    retry: RetryPolicy | None
    wait: wait_base | None
    stop: stop_base | None


class _DefaultOptions(Policies, total=False):
    queue: str | None
    time_limit: Duration | None


class ScheduleOptions(TypedDict, total=False):
    """Options for the schedule of a handler; see `Handlers.handler`."""

    cron: str | None
    every: float | timedelta | str | None
    tz: str | None
    overlap: bool
    missed: Missed


SCHEDULE_OPTIONS = tuple(ScheduleOptions.__annotations__)


class _CommonOptions(TypedDict, total=False):
    lease: Duration | None
    result_ttl: Duration | None
    time_limit: Duration | None
    on_dead: NamedHandler | str | None


class _OnDeadOptions(Policies, total=False):
    time_limit: Duration | None


class HandlerOptions(Policies, ScheduleOptions, _CommonOptions, total=False):
    """Options of a handler with or without a name; see `Handlers.handler`."""


class BoundOptions(HandlerOptions, total=False):
    """Options of a handler of one queue; see `Queue.handler`."""

    convert: Converter | None


class _FreeOptions(BoundOptions, total=False):
    queue: str | None


class _ChunkOptions(_CommonOptions, total=False):
    queue: str | None
    retry: RetryPolicy | None


class _WholeDecorator(Protocol):
    """A decorator that makes a handler of a function that gets the job."""

    def __call__(self, function: Callable[[J], R], /) -> Handler[[J], [object], R]: ...


class _ChunkDecorator(Protocol):
    """A decorator that makes a handler of a function that gets a list of jobs."""

    def __call__(self, function: Callable[[list[J]], R], /) -> Handler[[list[J]], [object], R]: ...


class _NamedDecorator(Protocol):
    """A decorator that makes a handler of a function with arguments."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[F, P], R], /
    ) -> Handler[Concatenate[F, P], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, P, R]: ...


class Handlers:
    """A set of handlers, each under its name, for a `Worker`.

    >>> handlers = Handlers()
    >>> @handlers.handler
    ... def welcome(user_id: int, lang: str = "en") -> None:
    ...     print("welcome", user_id, lang)
    >>> welcome.enqueue(q, 7, lang="de").state
    'ready'
    >>> Worker(ps, "q", handlers, burst=True).run()  # burst: it ends when the queue is empty
    welcome 7 de

    Args:
        convert: converts between JSON and arguments of other types; see
            `penstock.integrations.pydantic.converter`.
        queue: the name of the queue of all handlers that are registered here; None = each may
            name one.
        strict: a job fails if its handler makes a result, such as `Done(then=...)` or `Retry()`,
            and neither returns nor raises it; by default a RuntimeWarning tells of it.
        app: the app to which these handlers belong: a worker of it pauses the schedules that its
            code has no more. None = the top-level package of each function.

    Raises:
        BadArgument: a queue or an app can't have this name, or `strict` is no flag.
    """

    def __init__(
        self,
        *,
        convert: Converter | None = None,
        queue: str | None = None,
        strict: bool = False,
        app: str | None = None,
    ) -> None:
        if queue is not None:
            check_queue_name(queue)
        self._convert = convert
        self._queue = queue
        self._is_strict = check_flag("strict", strict)
        self._app = app if app is None else check_party("app", app)
        self._registered: list[AnyHandler] = []
        self._first: dict[str | None, AnyHandler] = {}  # by its key
        self._shared: dict[str | None, dict[str | None, AnyHandler]] = {}
        """Handlers by their queues, of the keys whose handler depends on the queue of the job."""
        self._follower: AnyHandler | None = None
        """The handler that `on_dead` has registered."""
        self._nameless: AnyHandler | None = None
        self._routes: dict[bytes, AnyHandler] = {}

    @overload
    def handler(self, name: H, /) -> H: ...  # type: ignore[overload-overlap]  # a handler can be called too
    @overload
    def handler(self, name: None, /, **options: Unpack[_FreeOptions]) -> _WholeDecorator: ...
    @overload
    def handler(self, name: str = ..., /, **options: Unpack[_FreeOptions]) -> _NamedDecorator: ...
    @overload
    def handler(
        self, name: Callable[Concatenate[F, P], R], /
    ) -> Handler[Concatenate[F, P], P, R]: ...
    @overload
    def handler(self, name: Callable[P, R], /) -> Handler[P, P, R]: ...
    def handler(self, name: Any = UNNAMED, /, **options: Unpack[_FreeOptions]) -> Any:
        """Register a function, as a decorator with or without parentheses.

        Args:
            name: the function gets arguments, from jobs whose header `handler` has this name; by
                default the function's own name. None = it gets whole jobs: those without a name.
                A `Handler` of another set is added as it is.
            queue: name of the queue of its jobs, for workers that are made without queues. Calls
                such as `welcome.enqueue(queue, ...)` name theirs all the same. Handlers of
                different queues may have one name: each gets the jobs of its queue.
            retry: the policy for failures. The parts that can be stored are stored with each job,
                so that every client applies them.
            wait, stop: objects of tenacity that are asked after each failure. `stop` makes the job
                a dead letter. They see a first attempt that began when the job was enqueued, and an
                `idle_for` of 0, as the worker does not sleep.
            convert: converts its arguments; None = as the other handlers of this set.
            lease: the lease of its jobs, in seconds.
            time_limit: seconds that a call may take; then it fails with `TimeLimit`.
            result_ttl: seconds for which the results of its jobs are kept; 0 = not at all;
                None = the queue's setting, which is 0 by default.
            on_dead: a handler, or its name: the death of a job adds a job of it, with the same
                body, in one step (docs/dead-letters.md). Its `job.death` tells of the dead one.
                It is in the queue of the dead one, and has no lease, `result_ttl` or stored policy
                of its handler. None = no handler, also if `on_dead` has registered one for this
                set.
            cron, every, tz, overlap, missed: a schedule of the handler's name, as in
                `queue.schedules.add`: a worker stores it when it starts, and adds a job without
                arguments at each tick. The handler needs a `queue` and a name.

        Raises:
            BadArgument: an argument can't be used, there is a handler with that name for the same
                queue or any queue, the function can't be a handler, or has no name that can be used
                (a lambda).

        Examples:
            >>> handlers = Handlers()
            >>> @handlers.handler("mail.welcome", time_limit=60, result_ttl=3600)
            ... def welcome(to: str) -> str:
            ...     return f"sent to {to}"
            >>> welcome.name
            'mail.welcome'
        """
        if isinstance(name, RegisteredHandler):
            return self._add(name)
        return self.make_decorator(Handler, name, options)

    def make_bound_decorator(
        self, make: Callable[..., AnyHandler], name: Any = UNNAMED, /, **options: Any
    ) -> Any:
        """Register a function as a handler of one queue: see `Queue.handler`."""
        return self.make_decorator(make, name, options, known=BoundOptions)

    def make_decorator(
        self,
        make: Callable[..., AnyHandler],
        name: Any,
        options: Mapping[str, Any],
        *,
        known: type = _FreeOptions,
        own: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Return a decorator that registers a function; or what it makes of `name`.

        Args:
            make: makes the handler.
            name: of the handler, or the function.
            options: as in `handler`.
            known: declares the options that there may be.
            own: other arguments of `make`.
        """
        _check_options(options, known)
        registration = {
            **{one: options[one] for one in _CommonOptions.__annotations__ if one in options},
            "queue": self._queue_of(options.get("queue")),
            "schedule": _schedule_of(options),
            "backoff": Backoff(options.get("retry"), options.get("wait"), options.get("stop")),
            "convert": options.get("convert") or self._convert,
            "strict": self._is_strict,
            "app": self._app,
            **own,
        }

        def decorate(function: Any, name: Any = name) -> AnyHandler:
            return self._add(make(function, _name_of(function, name), **registration))

        if callable(name) or isinstance(name, classmethod):  # which is refused
            return decorate(name, UNNAMED)
        _check_name(name)
        return decorate

    @overload
    def default(self, function: Callable[[J], R], /) -> Handler[[J], [object], R]: ...
    @overload
    def default(
        self, function: None = None, /, **options: Unpack[_DefaultOptions]
    ) -> _WholeDecorator: ...
    def default(self, function: Any = None, /, **options: Unpack[_DefaultOptions]) -> Any:
        """Register the function for jobs that no other handler takes, as a decorator.

        These are jobs with an unknown name, and jobs without a name if there is no handler without
        a name. Without a default handler they are given back. The function's only argument is
        the job; `job.headers["handler"]` is the name.

        Args:
            function: the function, as a decorator without parentheses.
            queue: name of the queue whose jobs it takes; None = those of all queues.
            retry, wait, stop, time_limit: as in `handler`.

        Raises:
            BadArgument: an argument can't be used, there is a default handler for the same queue
                or any queue, or the function can't be a handler.
        """
        decorate = self.make_decorator(
            Handler, None, options, known=_DefaultOptions, own={"key": DEFAULT_KEY}
        )
        return decorate if function is None else decorate(function)

    @overload
    def on_dead(self, name: Callable[[J], R], /) -> Handler[[J], [object], R]: ...
    @overload
    def on_dead(self, name: str = ..., /, **options: Unpack[_OnDeadOptions]) -> _WholeDecorator: ...
    def on_dead(self, name: Any = UNNAMED, /, **options: Unpack[_OnDeadOptions]) -> Any:
        """Register a function for the deaths of the jobs of all other handlers, as a decorator.

        When such a job becomes a dead letter, the same step adds a job of this function, with the
        body of the dead one. The function's only argument is that job; its `death` tells the id,
        the handler, the error and the failures of the dead one. It holds for the jobs that handlers
        of this set enqueue from now on, also for included ones, unless they have an `on_dead` of
        their own. Copies that `options` has made before stay without. Its own jobs add none, nor
        do jobs with lease=0, which never die (docs/dead-letters.md).

        Args:
            name: as in `handler`; it can't be None.
            retry, wait, stop, time_limit: as in `handler`, by the worker: its jobs are in the queue
                of the dead one, with that queue's lease, and no policy or `result_ttl` of their
                own.

        Raises:
            BadArgument: as `handler`, or the set has one already.

        Examples:
            >>> from penstock import Reject
            >>> handlers = Handlers()
            >>> @handlers.on_dead
            ... def tell(job: Job) -> None:
            ...     print(job.death.handler, job.body, job.death.error)
            >>> @handlers.handler
            ... def charge(order: int) -> None:
            ...     raise Reject("the card has expired")
            >>> added = charge.enqueue(q, 7)
            >>> Worker(ps, "q", handlers, burst=True).run()
            charge {'order': 7} the card has expired
        """
        if name is None:
            raise BadArgument("name", name, "jobs without a name have their own handler: name it")
        own = {"whole": True, "on_dead": None}
        decorate: Callable[[Any], AnyHandler] = self.make_decorator(
            Handler, UNNAMED if callable(name) else name, options, known=_OnDeadOptions, own=own
        )

        def register(function: Any) -> AnyHandler:
            if self._follower is not None:
                reason = f"the set has one: {qualified(self._follower.function)}"
                raise BadArgument("function", function, reason)
            undecided = [handler for handler in self._registered if handler.is_undecided]
            for handler in undecided:
                handler.check_follower(function, self._queue)
            self._follower = follower = decorate(function)
            for handler in undecided:
                handler.set_on_dead(follower)
            return follower

        return register(name) if callable(name) else register

    def chunk(
        self,
        name: str | None = UNNAMED,
        /,
        *,
        size: int,
        wait: Duration = 0.0,
        **options: Unpack[_ChunkOptions],
    ) -> _ChunkDecorator:
        """Register a function that gets a list of jobs, as a decorator.

        It returns None if all jobs are done, or a list with one element a job: None, a `Result`, or
        an exception. An exception that it raises counts for every job.

        Args:
            name: as in `handler`; None = it gets the jobs without a name.
            size: most jobs of one call, from 1 to 1000.
            wait: seconds for which a chunk that is not full waits for more jobs.
            queue, retry, lease, time_limit, result_ttl, on_dead: as in `handler`.

        Raises:
            BadArgument: as `handler`.
        """
        check_count("size", size, high=BATCH)
        seconds = duration_ms("wait", wait) / 1000
        decorate: _ChunkDecorator = self.make_decorator(
            Handler, name, options, known=_ChunkOptions, own={"size": size, "chunk_wait": seconds}
        )
        return decorate

    def include(self, other: Handlers) -> None:
        """Add the handlers that another set has now.

        Those without an `on_dead`, of their own or of a set, get that of this one.

        Raises:
            BadArgument: two handlers have one name, or `on_dead` is for another queue; nothing was
                added.
        """
        new = [one for one in other if one not in self._registered]
        for handler in new:
            self._check_new(handler)
        for handler in new:
            self._add(handler)

    def check(self) -> None:
        """Resolve annotations whose names were not defined when their function was registered.

        A worker does so when it starts.

        Raises:
            BadArgument: a function can't be a handler.
        """
        for handler in self:
            if not handler.is_whole:
                handler.check()

    def unknown_followers(self) -> list[str]:
        """Return a text for each name given as `on_dead` that no handler here has."""
        names = [one.name for one in self if one.name is not None]
        asked = [(one.title, one.follower_name) for one in self if one.follower_name is not None]
        return [
            f"on_dead={name!r} of handler {title!r}: this worker has no such handler"
            + did_you_mean(name, names)
            for title, name in asked
            if name not in names
        ]

    def __iter__(self) -> Iterator[AnyHandler]:
        return iter([*self._registered])

    def __repr__(self) -> str:
        return f"<Handlers {', '.join(map(title_of, self._first)) or 'without a handler'}>"

    def find(self, job: Delivery) -> AnyHandler | None:
        """Return the handler for a job without parsing its record; None if there is none."""
        data = data_of(job)
        if data.find(_FIELD, 0, data.find(b"\n")) < 0:
            return self._of_queue(None, job.queue_name) if self._shared else self._nameless
        written = _encoded_name(data) or b""
        if self._shared:
            return self._of_queue(_read(written), job.queue_name)
        found = self._routes.get(written) or self._first.get(_read(written))
        return found or self._first.get(DEFAULT_KEY)

    def _of_queue(self, key: str | None, queue: str) -> AnyHandler | None:
        """Return the handler of a key for jobs of a queue, or else the default handler."""
        for one in (key, DEFAULT_KEY):
            found = self._first.get(one)
            if one in self._shared:
                found = self._shared[one].get(queue)
            if found is not None:
                return found
        return None

    def missing(self, job: Delivery) -> str:
        """Return the reason for the return of a job for which `find` found no handler."""
        written = _encoded_name(data_of(job))
        if written is None:
            return "no handler for jobs without a name"
        return f'no handler "{_read(written)[:MAX_HANDLER_NAME_BYTES]}"'

    def _add(self, handler: T) -> T:
        self._check_new(handler)
        self._registered.append(handler)
        if self._follower is not None and handler.is_undecided:
            handler.set_on_dead(self._follower)
        first = self._first.setdefault(handler.key, handler)
        if first is not handler or (handler.name is None and handler.queue is not None):
            self._shared.setdefault(handler.key, {first.queue: first})[handler.queue] = handler
        if handler.name is not None:
            self._routes[escaped(handler.name).encode()] = first
        self._nameless = self._first.get(None) or self._first.get(DEFAULT_KEY)
        return handler

    def _check_new(self, handler: AnyHandler) -> None:
        if self._follower is not None and handler.is_undecided:
            handler.check_follower(self._follower, self._follower.queue)
        key, queue = handler.key, handler.queue
        for one in self._registered:
            if one.key == key and (one.queue == queue or None in (one.queue, queue)):
                kinds = {None: "a handler without a name", DEFAULT_KEY: "a default handler"}
                kind = kinds.get(key, "a handler with this name")
                other = "" if key == DEFAULT_KEY else "choose another name, or "
                reason = f"there is {kind}: {qualified(one.function)}; {other}{OWN_QUEUES_HINT}"
                raise BadArgument("name", key or None, reason)

    def _queue_of(self, queue: str | None) -> str | None:
        """Return the queue of a handler that is registered here.

        Raises:
            BadArgument: all handlers of this set have another queue.
        """
        if self._queue is None or queue in (None, self._queue):
            return self._queue if queue is None else queue
        raise BadArgument(
            "queue", queue, f"all handlers here are for queue {self._queue!r}: omit the queue"
        )


def _name_of(function: Any, name: Any) -> str | None:
    if name is not UNNAMED:
        return name  # type: ignore[no-any-return]  # it was checked
    found = getattr(function, "__name__", None)
    if isinstance(function, RegisteredHandler) or not callable(function):
        return None  # it is refused
    if not isinstance(found, str) or not found.isidentifier():
        reason = 'has no name: name the handler, @handlers.handler("name")'
        raise BadArgument("function", function, reason)
    _check_name(found)
    return found


def _check_name(name: Any) -> None:
    if name is None or name is UNNAMED:
        return
    check_handler_name("name", name)


def _check_options(given: Mapping[str, Any], known: type) -> None:
    names = sorted(known.__annotations__)
    for option in given:
        if option in names:
            continue
        if option in EnqueueOptions.__annotations__.keys() - _CommonOptions.__annotations__.keys():
            reason = f"is an option of jobs: use the handler's options({option}=...).enqueue(...)"
        else:
            hint = did_you_mean(option, names, 0.5)
            reason = f"no such option{hint}: the options are {', '.join(names)}"
        raise BadArgument(option, given[option], reason)


def _schedule_of(given: Mapping[str, Any]) -> Spec | None:
    options = {
        option: given[option] for option in SCHEDULE_OPTIONS if given.get(option) is not None
    }
    return check_spec(**options) if options else None


def _encoded_name(data: bytes) -> bytes | None:
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
