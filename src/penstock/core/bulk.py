"""The options of an enqueue, checked once for all its jobs, and bodies cut into chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, TypedDict

from penstock.core import stable
from penstock.core.calls import Wait
from penstock.core.codec import Codec
from penstock.core.dedup import Dedup, dedup_of, with_id
from penstock.core.durable import Durable, enqueue_wait
from penstock.core.ids import AT_LEAST_ONCE_FOREVER, ttl_code
from penstock.core.logs import get_logger
from penstock.core.middleware import HANDLER, Middleware, enqueue_event, enqueuing
from penstock.core.options import (
    BATCH,
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
from penstock.core.partitions import partition_of
from penstock.core.policy import RetryPolicy
from penstock.core.record import (
    KEY_PLACEHOLDER,
    check_size,
    encode_body,
    encode_head,
    key_hash,
    with_key,
)
from penstock.errors import BadArgument

__all__ = [
    "CHUNK_BYTES",
    "EnqueueOptions",
    "JobOptions",
    "NewJob",
    "NewJobs",
    "Prepared",
    "Window",
    "chunks",
    "headers_of",
    "prepared",
    "start_of",
    "windows",
]

logger = get_logger("penstock")
CHUNK_BYTES = 1 << 20
TTL_BATCH = BATCH // 2
"""Most jobs with a ttl in a chunk. A ttl doubles the server's work for a job, so these chunks are
half as long, and block the server no longer than others."""
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


def chunks(
    bodies: Iterable[Any], options: Prepared, *, parted: bool = False
) -> Iterator[tuple[list[bytes], Prepared]]:
    """Yield records in chunks of up to 1,000 (500 with a ttl) or 1 MiB, each with its options.

    Args:
        bodies: bodies, and jobs that handlers describe. Consecutive jobs share a chunk if their
            options allow it.
        options: of the call; with `NewJobs`, of their handler, too.
        parted: as in `Prepared.goes_with`.

    Raises:
        BadArgument: `bodies` is not an iterable of bodies, or a body can't be used.
    """
    _check_bodies(bodies)
    is_plain = options.dedup is None and not callable(options.key)
    head, bodies = _encoded(bodies, options)
    own = shared = options
    most, over = _most(options), lru_cache(maxsize=BATCH)(options.over)
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if is_plain and type(body) is bytes:
            own, record = options, b"%b;i=%b\n%b" % (head, stable.next_id(), body)
        elif type(body) is NewJob:
            own = over(body.options)
            record = own.record(body.body)
        else:
            own, record = options, options.record(body)
        length = len(record)
        if own is not shared:
            if chunk and not own.goes_with(shared, parted=parted):
                yield chunk, shared
                chunk, size = [], 0
            shared, most = own, _most(own)
        if size + length > CHUNK_BYTES and chunk:
            yield chunk, shared
            chunk, size = [], 0
        if length > CHUNK_BYTES:
            check_size(length)
        chunk.append(record)
        size += length
        if len(chunk) == most:
            yield chunk, shared
            chunk, size = [], 0
    if chunk:
        yield chunk, shared


def _encoded(bodies: Iterable[Any], options: Prepared) -> tuple[bytes, Iterable[Any]]:
    """Return the head of records with bodies of bytes, and the bodies, as JSON if possible."""
    if type(bodies) is not NewJobs:
        return options.head, bodies
    if bodies.encoded is None or options.codec is not None or options.dedup is not None:
        return options.head, bodies.bodies()
    return options.coded_head, bodies.encoded()


def _most(options: Prepared) -> int:
    return BATCH if options.ttl_code == AT_LEAST_ONCE_FOREVER else TTL_BATCH


def _check_bodies(bodies: Any) -> None:
    if isinstance(bodies, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(
        bodies, Iterable
    ):
        raise BadArgument("bodies", bodies, "must be an iterable of bodies")


@dataclass(slots=True)
class Window:
    """Consecutive bodies that are sent together, those of each partition in one chunk.

    Attributes:
        options: of its jobs.
        chunks: partition -> records, in the order of the bodies.
        places: partition -> index of the body of each record.
        sizes: partition -> bytes of its records.
        count: number of bodies.
        size: bytes of all records.
    """

    options: Prepared
    chunks: dict[int, list[bytes]] = field(default_factory=dict)
    places: dict[int, list[int]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    count: int = 0
    size: int = 0

    def has_room(self, partition: int, length: int) -> bool:
        """Return True if a record of this length for the partition fits beside those before."""
        held = self.sizes.get(partition, 0)
        return (
            self.count < WINDOW
            and self.size + length <= WINDOW_BYTES
            and (not held or held + length <= CHUNK_BYTES)
            and len(self.chunks.get(partition, ())) < _most(self.options)
        )

    def add(self, partition: int, record: bytes) -> None:
        """Add the record of the next body."""
        self.chunks.setdefault(partition, []).append(record)
        self.places.setdefault(partition, []).append(self.count)
        self.sizes[partition] = self.sizes.get(partition, 0) + len(record)
        self.count += 1
        self.size += len(record)


WINDOW, WINDOW_BYTES = 4 * BATCH, 4 * CHUNK_BYTES
"""Most bodies, and bytes, in a window: enough that the chunk of each partition is not small."""


def windows(bodies: Iterable[Any], options: Prepared, count: int) -> Iterator[Window]:
    """Yield windows of the bodies, each body under the partition that its key or dedup id fixes.

    Raises:
        BadArgument: `bodies` is not an iterable of bodies; or a body or its key can't be used.
    """
    _check_bodies(bodies)
    bodies = bodies.bodies() if type(bodies) is NewJobs else bodies
    window, over = Window(options), lru_cache(maxsize=BATCH)(options.over)
    for body in bodies:
        own = options
        if type(body) is NewJob:
            own, body = over(body.options), body.body
        name = own.chooser(body)
        record = own.record(body, name if own.key is None else None)
        check_size(len(record))
        partition = partition_of(name, count)
        fits = own is window.options or own.goes_with(window.options, parted=False)
        if window.count and not (fits and window.has_room(partition, len(record))):
            yield window
            window = Window(own)
        elif not window.count:
            window.options = own
        window.add(partition, record)
    if window.count:
        yield window


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
