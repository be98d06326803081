"""The options of an enqueue, checked, in the form of the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from penstock.core.enqueuing.dedup import Dedup, with_id
from penstock.core.enqueuing.options import NEW_OPTIONS, UNSHARED_OPTIONS, FollowerOfSet, check_each
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.record import (
    KEY_PLACEHOLDER,
    RECORD,
    check_head,
    encode_body,
    encode_front,
    key_hash,
    with_key,
)
from penstock.core.values import stable
from penstock.core.values.checks import (
    check_label,
)
from penstock.core.values.codec import Codec
from penstock.core.values.confirmations import Wait
from penstock.core.values.durable import enqueue_wait
from penstock.core.values.ids import ttl_code
from penstock.errors import BadArgument

__all__ = ["MANY", "USUAL", "Prepared", "check_size", "prepared", "warn_of_size"]

logger = get_logger("penstock")
AT_MOST_ONCE_TTL_MS = 86_400_000
MANY = True
"""Second argument of `prepared`, for the jobs of an `enqueue_many`."""
MAX_RECORD_BYTES = 512 * 1024 * 1024
LARGE_RECORD_BYTES = 1_000_000
"""Bytes of a job above which a warning is logged."""
CHECKED_SETS = 256
"""Sets of shared options whose checked form is kept."""
REPEATED_SETS = 1024
"""Sets of options, with a delay or a key, whose checked form is kept."""


@dataclass(slots=True)
class Prepared:
    """The checked options of an enqueue, as they go on the wire.

    Treat it as frozen: calls share it. Python takes three times as long to make a frozen one.

    Attributes:
        head, coded_head: the fields of a record before its stable id, for a body of bytes, and for
            a body encoded by JSON or `codec`. A placeholder stands for what is computed from each
            body.
        delay: ms, or `@` and an absolute time, as the scripts take it.
        bound: empty, or the most jobs that may wait, as the scripts take it.
        block: seconds to wait for room, None = for ever.
        ttl_code: the last four digits of the ids.
        ttl_ms: the ttl, or None.
        wait: the confirmations to wait for; None = none, even if the queue has a setting.
        dedup: the dedup id, or None.
        key: the key of the jobs, or a function that computes it; it also chooses the partition.
            None = no key; the dedup id chooses.
        codec: the codec of the client; None = JSON.
        fits_lane: whether the fast lane takes such jobs.
        arguments: the options as they were given.
    """

    head: bytes
    coded_head: bytes
    delay: bytes
    bound: bytes
    block: float | None
    ttl_code: str
    ttl_ms: int | None
    wait: Wait | None
    dedup: Dedup | None
    key: str | Callable[[Any], Any] | None
    codec: Codec | None
    fits_lane: bool = field(compare=False)
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
    if not many and NEW_OPTIONS.isdisjoint(options):
        try:
            return _repeated(codec, False, **options)
        except TypeError:  # a value has no hash
            pass
    return _check(codec, many, **options)


def _check(codec: Codec | None, many: bool, /, **options: Any) -> Prepared:
    """Return the form of options; see `prepared`."""
    if UNSHARED_OPTIONS.isdisjoint(options):
        try:
            return _shared(codec, False, **options)
        except TypeError:  # a value has no hash
            return _shared.__wrapped__(codec, False, **options)
    own: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for name, value in options.items():
        (own if name in UNSHARED_OPTIONS else shared)[name] = value
    is_dedup = own.get("dedup") is not None or own.get("dedup_id") is not None
    try:
        form = _shared(codec, is_dedup, **shared)
    except TypeError:  # a value has no hash
        form = _shared.__wrapped__(codec, is_dedup, **shared)
    return _with_own(form, own, options, many=many)


_repeated = lru_cache(maxsize=REPEATED_SETS, typed=True)(_check)  # True is not the delay 1
"""`_check` of options that come again, such as one delay, or the keys of a few tenants."""


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
    checked, fits_lane = check_each(options, many=False)
    lease, ttl, priority = checked.get("lease"), checked.get("ttl"), checked.get("priority")
    is_once = lease == 0
    if is_once and ttl is None:
        ttl = AT_MOST_ONCE_TTL_MS
    if is_once and "on_dead" in checked:
        if not isinstance(options["on_dead"], FollowerOfSet):
            reason = (
                "a job that is delivered at most once (lease=0) has no death: omit one of the two"
            )
            raise BadArgument("on_dead", options["on_dead"], reason)
        del checked["on_dead"]
    if lease and ttl is not None and lease >= ttl:
        _warn_of_lease(lease, ttl)
    wait = enqueue_wait(checked.get("replicas"), checked.get("durable"), once=is_once)
    head = encode_front(
        lease_ms=lease,
        ttl_ms=ttl,
        retry=checked.get("retry"),
        result_ms=checked.get("result_ttl"),
        priority=priority if priority or is_dedup else None,
        on_dead=checked.get("on_dead", ""),
    )
    return Prepared(
        head=head,
        coded_head=b"%b;c=%b" % (head, b"json" if codec is None else codec.name.encode()),
        delay=b"0",
        bound=b"%d" % bound if (bound := checked.get("max_length")) is not None else b"",
        block=checked.get("block", 0.0),
        ttl_code=ttl_code(ttl, at_most_once=is_once),
        ttl_ms=ttl,
        wait=wait,
        dedup=None,
        key=None,
        codec=codec,
        fits_lane=fits_lane and wait is not None,  # the lane has no lease 0, which waits for none
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
    checked, fits_lane = check_each(own, many=many)
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
        delay=b"%d" % delay if at is None else b"@%d" % at,
        bound=shared.bound,
        block=shared.block,
        ttl_code=shared.ttl_code,
        ttl_ms=shared.ttl_ms,
        wait=shared.wait,
        dedup=dedup,
        key=key,
        codec=shared.codec,
        fits_lane=fits_lane and shared.fits_lane,
        arguments=arguments,
    )


USUAL = prepared()
"""The options of an enqueue without any, by a client without a codec."""


def check_size(size: int) -> None:
    """Refuse a record that is too long for a string of Redis, and warn once of one above 1 MB.

    Raises:
        BadArgument: 512 MiB or more.
    """
    if size >= MAX_RECORD_BYTES:
        raise BadArgument(
            "body", f"<{size} bytes>", "body and headers together must be below 512 MiB"
        )
    if size > LARGE_RECORD_BYTES:
        warn_of_size()


@cache
def warn_of_size() -> None:
    """Warn, once in a process."""
    logger.warning(
        "a job has more than 1 MB: a single call with such jobs delays all other clients. Keep the"
        " data elsewhere, and put its address into the body (docs/bodies.md)"
    )


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
