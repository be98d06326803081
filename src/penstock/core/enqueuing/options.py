"""The options of an enqueue, checked once for all its jobs, and bodies cut into chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, TypedDict

from penstock.core.enqueuing.dedup import Dedup, dedup_of, with_id
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.middleware import HANDLER, Middleware, enqueue_event, enqueuing
from penstock.core.jobs.record import KEY_PLACEHOLDER, encode_body, encode_head, key_hash, with_key
from penstock.core.values import stable
from penstock.core.values.checks import (
    UNSET,
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
    "EnqueueOptions",
    "JobOptions",
    "NewJob",
    "NewJobs",
    "Prepared",
    "headers_of",
    "prepared",
    "start_of",
]

logger = get_logger("penstock")
AT_MOST_ONCE_TTL_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """The checked options of an enqueue, as they go on the wire.

    Attributes:
        head, coded_head: the fields of a record before its stable id, for a body of bytes, and for
            a body encoded by JSON or `codec`. A placeholder stands for the dedup id.
        delay: ms, or `@` and an absolute time.
        bound: '' or the most jobs that may wait.
        block: seconds to wait for room, None = for ever.
        ttl_code: the last four digits of the ids.
        wait: the confirmations to wait for; None = none, even if the queue has a setting.
        dedup: the dedup id, or None.
        key: the key of the jobs, or a function that computes it; it also chooses the partition.
            None = no key; the dedup id chooses.
        codec: the codec of the client; None = JSON.
        is_plain: whether there are no options but headers, a key, and a lease above 0.
        given: the arguments of the enqueue, in the order of `OPTIONS`; those after its end have
            their defaults.
    """

    head: bytes
    coded_head: bytes
    delay: str | int
    bound: int | str
    block: float | None
    ttl_code: str
    wait: Wait | None
    dedup: Dedup | None = None
    key: str | Callable[[Any], Any] | None = None
    codec: Codec | None = None
    is_plain: bool = False
    given: tuple[Any, ...] = field(default=(), compare=False, repr=False)

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

    def over(self, options: JobOptions) -> Prepared:
        """Return the options of a handler's job; those given to this call win."""
        if not self.given:
            return options.prepared(self.codec)
        given = {
            name: value
            for name, value in zip(OPTIONS, self.given, strict=False)
            if value is not (UNSET if name in ("delay", "block") else None)
        }
        return prepared(**_merged(options.given, given), codec=self.codec, many=True)

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
        raw, is_coded = encode_body(body, self.codec)
        head = self.coded_head if is_coded else self.head
        if callable(self.key):
            head = with_key(head, check_label("key", self.key(body)))
        if self.dedup is not None:
            head = with_id(head, dedup_id or self.dedup.id_of(body))
        return b"%b;i=%b\n%b" % (head, stable.next_id(), raw)


@lru_cache(maxsize=64)
def _usual(codec: Codec | None, given: tuple[Any, ...] = ()) -> Prepared:
    """Return the options of an enqueue without any; empty headers lead to the whole check."""
    return replace(prepared(headers={}, codec=codec), given=given)


def prepared(
    delay: Any = UNSET,
    at: Any = None,
    lease: Any = None,
    ttl: Any = None,
    headers: Mapping[str, str] | None = None,
    max_length: Any = None,
    block: Any = UNSET,
    replicas: Any = None,
    durable: Durable | None = None,
    dedup_id: Any = None,
    dedup: Dedup | None = None,
    retry: Any = None,
    key: Any = None,
    codec: Codec | None = None,
    *,
    many: bool = False,
    result_ttl: Any = None,
    priority: Any = None,
) -> Prepared:
    """Check the options of an enqueue and return them in the form of the wire.

    Args:
        delay, at, lease, ttl, headers, max_length, block, replicas, durable, dedup_id, dedup,
            retry, key: the arguments of the enqueue.
        codec: the codec of the client.
        many: whether the dedup id, and the key, may be computed from each body.
        result_ttl, priority: arguments of the enqueue, too.

    Raises:
        BadArgument: an option can't be used; the error names it and the reason.
    """
    if (
        at is lease is ttl is headers is max_length is replicas is durable is None
        and dedup_id is dedup is retry is key is result_ttl is priority is None
    ):
        if delay is UNSET and block is UNSET:
            return USUAL if codec is None else _usual(codec)
        if delay == 0 and block == 0 and delay is not False and block is not False:
            return _usual(codec, (delay, *[None] * 5, block))
    wait = start_of(delay, at)
    own_lease = None if lease is None else lease_ms("lease", lease)
    own_ttl = None if ttl is None else duration_ms("ttl", ttl, zero=False)
    once = own_lease == 0
    if once and own_ttl is None:
        own_ttl = AT_MOST_ONCE_TTL_MS
    if own_lease and own_ttl is not None and own_lease >= own_ttl:
        _warn_of_lease(own_lease, own_ttl)
    if own_ttl is not None and isinstance(wait, int) and own_ttl <= wait:
        raise BadArgument("ttl", ttl, f"must be longer than the delay ({wait / 1000} s)")
    if headers is not None and not isinstance(headers, Mapping):
        raise BadArgument("headers", headers, "must be a mapping of str to str")
    own_key = KEY_PLACEHOLDER
    if key is None or not (many and callable(key)):
        own_key = "" if key is None else key_hash(check_label("key", key))
    chosen = dedup_of(dedup_id, dedup, many=many)
    head, coded_head = encode_head(
        lease_ms=own_lease,
        ttl_ms=own_ttl,
        headers=headers,
        dedup="" if chosen is None else chosen.fields,
        retry=_storable(retry),
        codec="json" if codec is None else codec.name,
        result_ms=None if result_ttl is None else duration_ms("result_ttl", result_ttl),
        priority=None if priority is None else check_count("priority", priority, low=0, high=9),
        key=own_key,
    )
    is_plain = (
        at is ttl is max_length is replicas is durable is retry is chosen is None
        and delay == 0
        and block == 0
        and not once
        and not priority
    )
    return Prepared(
        head[:-1],
        coded_head[:-1],
        wait,
        "" if max_length is None else check_count("max_length", max_length),
        check_block(block),
        ttl_code(own_ttl, at_most_once=once),
        enqueue_wait(replicas, durable, once=once),
        chosen,
        key,
        codec,
        is_plain,
        (
            delay, at, lease, ttl, headers, max_length, block, replicas, durable, dedup_id, dedup,
            retry, key, result_ttl, priority,
        ),
    )  # fmt: skip


def start_of(delay: Any = UNSET, at: Any = None) -> str | int:
    """Return the time of the first delivery as it goes on the wire.

    Raises:
        BadArgument: it can't be used.
    """
    wait = duration_ms("delay", delay)
    if at is None:
        return wait
    if wait:
        raise BadArgument("at", at, "not together with delay: pass one of them")
    return f"@{moment_ms('at', at)}"


def _storable(retry: Any) -> RetryPolicy | None:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise BadArgument("retry", retry, "must be a RetryPolicy")
    if retry is not None and retry.on:
        raise BadArgument(
            "retry",
            retry,
            "rules for exceptions (on=) can't be stored with a job: give them to the worker",
        )
    return retry


USUAL = _usual(None)
"""The options of an enqueue without any, by a client without a codec."""


class EnqueueOptions(TypedDict, total=False):
    """Options of an enqueue, as `Queue.enqueue` describes them."""

    delay: Duration
    at: Moment | None
    lease: Duration | None
    ttl: Duration | None
    headers: Mapping[str, str] | None
    max_length: int | None
    block: Duration | None
    replicas: int | None
    durable: Durable | None
    dedup_id: str | None
    dedup: Dedup | None
    retry: RetryPolicy | None
    key: str | None
    result_ttl: Duration | None
    priority: int | None


OPTIONS = tuple(EnqueueOptions.__annotations__)
"""Names of the options, in the order of `prepared`."""
RIVALS = {
    "delay": "at", "at": "delay", "replicas": "durable", "durable": "replicas",
    "dedup_id": "dedup", "dedup": "dedup_id",
}  # fmt: skip
"""Option -> the other form of it."""


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
        given: arguments of `Queue.enqueue`.

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
            found = self.by_codec[codec] = prepared(**self.given, codec=codec)
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
                raise BadArgument(name, value, f"no option of a job; use {', '.join(OPTIONS)}")
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


def hooked(job: NewJob, queue: str, middleware: Iterable[Middleware]) -> NewJob:
    """Return a job with the headers that middleware adds, for a job that another call adds later.

    Args:
        job: the job.
        queue: the name of its queue.
        middleware: of the client; none = the job stays as it is.

    Raises:
        BadArgument: the headers can't be used.
        Any exception of the middleware.
    """
    if not middleware:
        return job
    event = enqueue_event(queue, 1, job.options.headers)
    with enqueuing(middleware, event):
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
