"""The options of an enqueue: their table, and their values in the form of the wire."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypedDict, TypeVar

from penstock.core.enqueuing.dedup import Dedup, with_id
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.middleware import HANDLER, Middleware, enqueue_event, enqueuing
from penstock.core.jobs.record import (
    KEY_PLACEHOLDER,
    RECORD,
    check_head,
    encode_body,
    encode_front,
    encode_headers,
    key_hash,
    with_key,
)
from penstock.core.values import stable
from penstock.core.values.checks import (
    Duration,
    Moment,
    check_block,
    check_count,
    check_label,
    duration_ms,
    lease_ms,
    moment_ms,
)
from penstock.core.values.codec import Codec
from penstock.core.values.confirmations import Wait
from penstock.core.values.durable import Durable, enqueue_wait
from penstock.core.values.ids import ttl_code
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument

__all__ = [
    "OPTIONS",
    "EnqueueManyOptions",
    "EnqueueOptions",
    "JobOptions",
    "NewJob",
    "NewJobs",
    "OptionRules",
    "Prepared",
    "headers_of",
    "prepared",
    "show_options",
]

F = TypeVar("F", bound=Callable[..., Any])
logger = get_logger("penstock")
AT_MOST_ONCE_TTL_MS = 86_400_000
CHECKED_SETS = 256
"""Sets of options whose checked form is kept."""


# -- the table -----------------------------------------------------------------------------------


class _SharedOptions(TypedDict, total=False):
    delay: Duration
    at: Moment | None
    lease: Duration | None
    ttl: Duration | None
    headers: Mapping[str, str] | None
    max_length: int | None
    block: Duration | None
    replicas: int | None
    durable: Durable | None
    dedup: Dedup | None
    retry: RetryPolicy | None
    result_ttl: Duration | None
    priority: int | None


class EnqueueOptions(_SharedOptions, total=False):
    """Options of an enqueue, as `Queue.enqueue` describes them."""

    dedup_id: str | None
    key: str | None


class EnqueueManyOptions(_SharedOptions, total=False):
    """Options of `Queue.enqueue_many`, which may compute the dedup id and the key of a body."""

    dedup_id: Callable[[Any], str] | str | None
    key: Callable[[Any], str] | str | None


class OptionRules(NamedTuple):
    """The rules of an option.

    Attributes:
        check: returns the value in the form of the wire, from the name and the value.
        field: the field of the record that holds it, or else the attribute of `Prepared`.
        is_plain: whether `enqueue_plain` takes jobs that have it; a 0 is as good as none.
        is_shared: whether many jobs have the same value: it is checked once.
        is_stored: whether a job that another call adds later can have it, such as one that a
            handler hands over.
        default: the value that stands for none; if it is not None, None is a value.
    """

    check: Callable[[str, Any], Any]
    field: str
    is_plain: bool = False
    is_shared: bool = True
    is_stored: bool = True
    default: object = None


def _check_block(argument: str, value: Any) -> float | None:
    return check_block(value, argument)


def _check_durable(argument: str, value: object) -> Durable:
    if not isinstance(value, Durable):
        raise BadArgument(argument, value, "must be a Durable; a number is passed as replicas=")
    return value


def _check_dedup(argument: str, value: object) -> Dedup:
    if not isinstance(value, Dedup):
        raise BadArgument(argument, value, "must be a Dedup; a plain id is passed as dedup_id=")
    return value


def _check_retry(argument: str, value: object) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise BadArgument(argument, value, "must be a RetryPolicy")
    if value.on:
        reason = "rules for exceptions (on=) can't be stored with a job: give them to the worker"
        raise BadArgument(argument, value, reason)
    return value


OPTIONS = {
    "delay": OptionRules(duration_ms, "delay", is_shared=False, default=0),
    "at": OptionRules(moment_ms, "delay", is_shared=False, is_stored=False),
    "lease": OptionRules(lease_ms, "l", is_plain=True),
    "ttl": OptionRules(partial(duration_ms, zero=False), "t"),
    "headers": OptionRules(encode_headers, "h", is_plain=True, is_shared=False),
    "max_length": OptionRules(check_count, "bound", is_stored=False),
    "block": OptionRules(_check_block, "block", is_stored=False, default=0),
    "replicas": OptionRules(partial(check_count, low=0, high=1000), "wait", is_stored=False),
    "durable": OptionRules(_check_durable, "wait", is_stored=False),
    "dedup_id": OptionRules(check_label, "d", is_shared=False, is_stored=False),
    "dedup": OptionRules(_check_dedup, "d", is_shared=False, is_stored=False),
    "retry": OptionRules(_check_retry, "p"),
    "key": OptionRules(check_label, "q", is_plain=True, is_shared=False),
    "result_ttl": OptionRules(duration_ms, "k", is_plain=True),
    "priority": OptionRules(partial(check_count, low=0, high=9), "p"),
}
"""Name -> rules of each option, in the order in which signatures show them."""
RIVALS = {
    "delay": "at", "at": "delay", "replicas": "durable", "durable": "replicas",
    "dedup_id": "dedup", "dedup": "dedup_id",
}  # fmt: skip
"""Option -> the other form of it."""
UNSHARED_OPTIONS = frozenset(name for name, option in OPTIONS.items() if not option.is_shared)
"""Options that usually differ from job to job."""
NOT_STORED = tuple(name for name, option in OPTIONS.items() if not option.is_stored)
"""Options that only a call that adds the job at once can have."""
COMPUTED = ("dedup_id", "key")
"""Options for which `enqueue_many` takes a function that computes them from a body."""


def show_options(types: type) -> Callable[[F], F]:
    """Return a decorator that names each option in the signature of a function.

    `help()`, `inspect` and interactive shells show them instead of `**options`.

    Args:
        types: the TypedDict of the options.
    """
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=types.__annotations__[name].__forward_arg__,
        )
        for name, option in OPTIONS.items()
    ]

    def decorate(function: F) -> F:
        shown = inspect.signature(function)
        others = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
        described: Any = function
        described.__signature__ = shown.replace(parameters=[*others, *parameters])
        return function

    return decorate


def _check_each(options: Mapping[str, Any], *, many: bool) -> tuple[dict[str, Any], bool]:
    """Return the checked values by name, and whether `enqueue_plain` takes jobs that have them.

    Raises:
        BadArgument: there is no such option, or one of them can't be used.
    """
    checked: dict[str, Any] = {}
    is_plain = True
    for name, value in options.items():
        option = OPTIONS.get(name)
        if option is None:
            raise _unknown(name, value)
        if value is None and option.default is None:
            continue
        if name in COMPUTED and callable(value):
            if not many:
                raise BadArgument(name, value, "must be text; enqueue_many takes a function")
            checked[name] = value
        else:
            checked[name] = option.check(name, value)
        if not option.is_plain and checked[name] != 0:
            is_plain = False
    return checked, is_plain


def _unknown(name: str, value: object) -> BadArgument:
    close = get_close_matches(name, OPTIONS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return BadArgument(name, value, f"no such option{hint} Options: {', '.join(OPTIONS)}")


# -- the form of the wire ------------------------------------------------------------------------


@dataclass(slots=True)
class Prepared:
    """The checked options of an enqueue, as they go on the wire.

    Treat it as frozen: calls share it. Python takes three times as long to make a frozen one.

    Attributes:
        head, coded_head: the fields of a record before its stable id, for a body of bytes, and for
            a body encoded by JSON or `codec`. A placeholder stands for what is computed from each
            body.
        delay: ms, or `@` and an absolute time.
        bound: '' or the most jobs that may wait.
        block: seconds to wait for room, None = for ever.
        ttl_code: the last four digits of the ids.
        ttl_ms: the ttl, or None.
        wait: the confirmations to wait for; None = none, even if the queue has a setting.
        dedup: the dedup id, or None.
        key: the key of the jobs, or a function that computes it; it also chooses the partition.
            None = no key; the dedup id chooses.
        codec: the codec of the client; None = JSON.
        is_plain: whether `enqueue_plain` takes such jobs.
        arguments: the options as they were given.
    """

    head: bytes
    coded_head: bytes
    delay: str | int
    bound: int | str
    block: float | None
    ttl_code: str
    ttl_ms: int | None
    wait: Wait | None
    dedup: Dedup | None
    key: str | Callable[[Any], Any] | None
    codec: Codec | None
    is_plain: bool = field(compare=False)
    arguments: Mapping[str, Any] = field(compare=False, repr=False)

    def goes_with(self, other: Prepared, *, parted: bool) -> bool:
        """Return True if jobs with these and with other options can share a chunk.

        Args:
            other: the options of the other jobs.
            parted: whether the queue has partitions. Then a chunk has one key.
        """
        mine, theirs = self.dedup, other.dedup
        return (
            (self.delay, self.bound, self.block) == (other.delay, other.bound, other.block)
            and (self.ttl_code, self.wait) == (other.ttl_code, other.wait)
            and (mine and mine.mode) == (theirs and theirs.mode)
            and not (parted and (self.key, mine) != (other.key, theirs))
        )

    def for_job(self, options: JobOptions) -> Prepared:
        """Return the options of a handler's job; those given to this call win."""
        given = {
            name: value
            for name, value in self.arguments.items()
            if value is not None or OPTIONS[name].default is not None
        }
        if not given:
            return options.prepared(self.codec)
        return prepared(self.codec, True, **_merged(options.given, given))

    @property
    def is_head_whole(self) -> bool:
        """Return True if no part of the heads is computed from a body."""
        return not callable(self.key) and not (self.dedup and callable(self.dedup.id))

    @property
    def is_keyed(self) -> bool:
        """Return True if a key or dedup id fixes the partition of each job."""
        return self.key is not None or self.dedup is not None

    def chooser(self, body: Any) -> str:
        """Return the key or dedup id that fixes the partition of a body; one of them is set.

        Raises:
            BadArgument: the key or id can't be used.
        """
        if isinstance(self.key, str):
            return self.key
        if self.key is not None:
            return check_label("key", self.key(body))
        assert self.dedup is not None
        return self.dedup.id_of(body)

    def record(self, body: Any, dedup_id: str | None = None) -> bytes:
        """Return the record of a body.

        Args:
            body: the body.
            dedup_id: its dedup id, if already computed.

        Raises:
            BadArgument: the body or its dedup id can't be used.
        """
        if type(body) is bytes:
            raw, head = body, self.head
        else:
            raw, is_coded = encode_body(body, self.codec)
            head = self.coded_head if is_coded else self.head
        if callable(self.key):
            head = with_key(head, check_label("key", self.key(body)))
        if self.dedup is not None and callable(self.dedup.id):
            head = with_id(head, dedup_id or self.dedup.id_of(body))
        return RECORD % (head, stable.next_id(), raw)


def prepared(codec: Codec | None = None, many: bool = False, /, **options: Any) -> Prepared:
    """Check the options of an enqueue and return them in the form of the wire.

    Args:
        codec: the codec of the client.
        many: whether the dedup id, and the key, may be computed from each body.
        **options: the options, by name.

    Raises:
        BadArgument: an option can't be used; the error names it and the reason.
    """
    if not options:
        return _shared(codec, False)
    own: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for name, value in options.items():
        (own if name in UNSHARED_OPTIONS else shared)[name] = value
    is_dedup = own.get("dedup") is not None or own.get("dedup_id") is not None
    try:
        found = _shared(codec, is_dedup, **shared)
    except TypeError:  # a value has no hash
        found = _shared.__wrapped__(codec, is_dedup, **shared)
    return _with_own(found, own, options, many=many) if own else found


@lru_cache(maxsize=CHECKED_SETS, typed=True)  # True is not the priority 1
def _shared(codec: Codec | None, is_dedup: bool, /, **options: Any) -> Prepared:
    """Return the form of options that many jobs share.

    Args:
        codec: the codec of the client.
        is_dedup: whether the jobs have dedup ids. Then a priority of 0 is stored, as it replaces
            that of an existing job.
        **options: none of `UNSHARED_OPTIONS`.

    Raises:
        BadArgument: an option can't be used.
    """
    checked, is_plain = _check_each(options, many=False)
    lease, ttl, priority = checked.get("lease"), checked.get("ttl"), checked.get("priority")
    is_once = lease == 0
    if is_once and ttl is None:
        ttl = AT_MOST_ONCE_TTL_MS
    if lease and ttl is not None and lease >= ttl:
        _warn_of_lease(lease, ttl)
    wait = enqueue_wait(checked.get("replicas"), checked.get("durable"), once=is_once)
    head = encode_front(
        lease_ms=lease,
        ttl_ms=ttl,
        retry=checked.get("retry"),
        result_ms=checked.get("result_ttl"),
        priority=priority if priority or is_dedup else None,
    )
    return Prepared(
        head=head,
        coded_head=b"%b;c=%b" % (head, b"json" if codec is None else codec.name.encode()),
        delay=0,
        bound=checked.get("max_length", ""),
        block=checked.get("block", 0.0),
        ttl_code=ttl_code(ttl, at_most_once=is_once),
        ttl_ms=ttl,
        wait=wait,
        dedup=None,
        key=None,
        codec=codec,
        is_plain=is_plain and wait is not None,  # it waits as the queue's setting says
        arguments=options,
    )


def _with_own(
    shared: Prepared, own: Mapping[str, Any], arguments: Mapping[str, Any], *, many: bool
) -> Prepared:
    """Return options with those that differ from job to job.

    Args:
        shared: the other options.
        own: some of `UNSHARED_OPTIONS`.
        arguments: all options as they were given.
        many: as in `prepared`.

    Raises:
        BadArgument: an option can't be used.
    """
    checked, is_plain = _check_each(own, many=many)
    key, dedup, front = checked.get("key"), checked.get("dedup"), shared.head
    if "dedup_id" in checked:
        if dedup is not None:
            reason = "not together with dedup=: pass one of them"
            raise BadArgument("dedup_id", own["dedup_id"], reason)
        dedup = Dedup(checked["dedup_id"])
    if key is not None:
        front += b";q=%b" % (KEY_PLACEHOLDER if callable(key) else key_hash(key)).encode()
    if dedup is not None:
        if callable(dedup.id) and not many:
            raise BadArgument("dedup", dedup.id, "must be text; enqueue_many takes a function")
        front += dedup.encoded_fields()
    delay, at = checked.get("delay", 0), checked.get("at")
    if at is not None:
        if delay:
            raise BadArgument("at", own["at"], "not together with delay: pass one of them")
        delay = f"@{at}"
    elif shared.ttl_ms is not None and shared.ttl_ms <= delay:
        reason = f"must be longer than the delay ({delay / 1000} s)"
        raise BadArgument("ttl", arguments.get("ttl"), reason)
    headers = checked.get("headers", b"")
    coded_head = b"%b%b%b" % (front, shared.coded_head[len(shared.head) :], headers)
    if headers or dedup is not None:  # the other fields are short
        check_head(len(coded_head) + 1)
    return Prepared(
        head=front + headers,
        coded_head=coded_head,
        delay=delay,
        bound=shared.bound,
        block=shared.block,
        ttl_code=shared.ttl_code,
        ttl_ms=shared.ttl_ms,
        wait=shared.wait,
        dedup=dedup,
        key=key,
        codec=shared.codec,
        is_plain=is_plain and shared.is_plain,
        arguments=arguments,
    )


USUAL = prepared()
"""The options of an enqueue without any, by a client without a codec."""


# -- jobs of handlers ---------------------------------------------------------------------------


def _merged(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options together: later ones win, and headers are added to earlier ones by name."""
    dropped = {RIVALS.get(name) for name, value in given.items() if value is not None}
    found = {name: value for name, value in before.items() if name not in dropped}
    found.update(given)
    old, new = before.get("headers") or {}, given.get("headers")
    if isinstance(new, Mapping):
        if HANDLER in old and new.get(HANDLER, old[HANDLER]) != old[HANDLER]:
            reason = f"the header {HANDLER!r} names the job's handler, {old[HANDLER]!r}: omit it"
            raise BadArgument("headers", new, reason)
        found["headers"] = {**old, **new}
    elif new is None and old:
        found["headers"] = old
    return found


class JobOptions:
    """The options of a handler's jobs: checked, and prepared once for each codec.

    Args:
        given: options, by name.

    Attributes:
        by_codec: codec -> the prepared options.

    Raises:
        BadArgument: one of them can't be used.
    """

    __slots__ = ("by_codec", "given")

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.by_codec: dict[Codec | None, Prepared] = {}
        self.prepared(None)

    def __repr__(self) -> str:
        return f"JobOptions({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    @property
    def headers(self) -> dict[str, str]:
        """A copy of the headers."""
        return dict(self.given.get("headers") or {})

    def prepared(self, codec: Codec | None) -> Prepared:
        """Return the options in the form of the wire."""
        found = self.by_codec.get(codec)
        if found is None:
            found = self.by_codec[codec] = prepared(codec, **self.given)
        return found

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Refuse the options with these names.

        Raises:
            BadArgument: one of them is given; with this reason.
        """
        for name in names:
            if self.given.get(name) is not None:
                raise BadArgument(name, self.given[name], reason)

    def updated(self, given: Mapping[str, Any]) -> JobOptions:
        """Return these options with others, which win.

        Raises:
            BadArgument: there is no such option, or one of them can't be used.
        """
        for name, value in given.items():
            if name not in OPTIONS:
                raise _unknown(name, value)
        return JobOptions(_merged(self.given, given))


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job of a handler that is not added yet: the body of an `enqueue` or `enqueue_many`.

    `Handler.job` makes it.

    Attributes:
        body: the body, with the arguments of the function.
        options: the options of the handler.
        queue: name of the queue to which `Done(then=[...])` hands it over; None = the queue of the
            job that it follows. An `enqueue` has a queue of its own.
    """

    body: Any
    options: JobOptions
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class NewJobs(Iterable[NewJob]):
    """Jobs of one handler that are not added yet, made as they are read. `Handler.jobs` makes it.

    Attributes:
        bodies: returns the bodies.
        options: the options of the handler.
        encoded: returns the bodies as JSON; None = the bodies may be bytes.
        queue: as of a `NewJob`.
    """

    bodies: Callable[[], Iterable[Any]]
    options: JobOptions
    encoded: Callable[[], Iterable[bytes]] | None = None
    queue: str | None = None

    def __iter__(self) -> Iterator[NewJob]:
        return (NewJob(body, self.options, self.queue) for body in self.bodies())


def headers_of(bodies: Any, headers: Any) -> Any:
    """Return the headers of an enqueue, with those of the handler whose jobs it adds."""
    if type(bodies) not in (NewJob, NewJobs):
        return headers
    return _merged(bodies.options.given, {"headers": headers})["headers"]


def hooked(
    job: NewJob, queue: str, middleware: Iterable[Middleware], clock: Callable[[], float]
) -> NewJob:
    """Return a job with the headers that middleware adds, for a job that another call adds later.

    Args:
        job: the job.
        queue: the name of its queue.
        middleware: of the client; none = the job stays as it is.
        clock: returns monotonic seconds.

    Raises:
        BadArgument: the headers can't be used.
        Any exception of the middleware.
    """
    if not middleware:
        return job
    event = enqueue_event(queue, 1, job.options.headers)
    with enqueuing(middleware, event, clock):
        pass
    return replace(job, options=job.options.updated({"headers": event.headers}))


@cache
def _warn_of_lease(lease: int, ttl: int) -> None:
    """Warn, once per lease and ttl, that a job is not delivered again if its consumer dies."""
    logger.warning(
        "lease=%s s is not shorter than ttl=%s s: a job whose consumer dies expires and is not"
        " delivered again. Leave lease out (then it is a tenth of the ttl, at least 1 s),"
        " or pass lease=0 for at most one delivery",
        lease / 1000,
        ttl / 1000,
    )
