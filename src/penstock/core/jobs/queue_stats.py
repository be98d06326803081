"""The figures and settings of a queue, as `stats` answers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.core.values.checks import LATEST_HOLD_END_MS
from penstock.core.values.rate import rate_text, slots_in, slots_of_part
from penstock.wire import replies

__all__ = [
    "SETTING_KINDS",
    "TOTALS",
    "Holder",
    "QueuePage",
    "QueueStats",
    "Settings",
    "number_in",
    "read_settings",
    "read_stats",
]

MAX_STEP_MS = 30 * 86_400_000
"""A role that ends later than its lease by more than this was written by a wrong clock: it has
ended (protocol/maintenance.md, A wrong clock)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings stored on a queue; None = the default applies (protocol/core.md, Settings).

    Attributes:
        lease: seconds; default 30.
        max_length: most jobs that wait (ready, scheduled and parked); default no bound.
        max_attempts: nacks and crashes after which a job is dead; default 20; 0 = never.
        max_crashes: leases ended without a report after which a job is dead; default 3; 0 = never.
        max_releases: releases without delay after which a job is dead; default 1000; 0 = never.
        max_snoozes: releases with a delay after which a job is dead; default 0 = never.
        replicas: replicas that must confirm an enqueue that sets no number; default 0.
        backoff_base: seconds; default 5.
        backoff_cap: seconds; default 6 hours.
        unknown_age: seconds after which a job is dead that only workers without its handler have
            taken; default a day.
        dead_max: most dead letters kept; default 100000.
        dead_age: seconds for which a dead letter is kept; default 14 days.
        results_max: most results kept; the soonest to end are dropped; default 10000.
        results_bytes: most bytes of kept results; default 64 MiB.
        result_size: most bytes of one result's value; a larger one is not kept; default 64 KiB.
            Above that it also counts for the values of steps.
        result_ttl: seconds for which results are kept of jobs that do not say it; default 0.
        rate: most deliveries in a time, such as "100/min"; default no limit (docs/rate.md).
        burst: most deliveries at once after a pause of any length; default 1.
        per_key: most jobs of one key that are delivered at once; default no limit.
        share: most jobs of one key that are in the line; when it is empty, more of them are
            delivered, by turns; default no share (docs/tenants.md).
        ordered: one job of a key at a time, in order, also across retries; default no.
        key_rate: most deliveries of each key in a time, such as "60/min"; default no limit
            (docs/keys.md).
        key_burst: most deliveries of a key at once; default 1.
        max_active: most jobs that are delivered at once, over all consumers; default no limit
            (docs/rate.md).
        history: whether workers note the history of the queue; default yes (docs/observing.md).
        longest_wait: seconds that a job may wait, and a tick of a schedule be late, before
            `penstock check` says so; default 300, or what its caller chooses.
        paused: "in", "out", "all" or None.
    """

    lease: float | None = None
    max_length: int | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    max_releases: int | None = None
    max_snoozes: int | None = None
    replicas: int | None = None
    backoff_base: float | None = None
    backoff_cap: float | None = None
    unknown_age: float | None = None
    dead_max: int | None = None
    dead_age: float | None = None
    results_max: int | None = None
    results_bytes: int | None = None
    result_size: int | None = None
    result_ttl: float | None = None
    rate: str | None = None
    burst: int | None = None
    per_key: int | None = None
    share: int | None = None
    ordered: bool | None = None
    key_rate: str | None = None
    key_burst: int | None = None
    max_active: int | None = None
    history: bool | None = None
    longest_wait: float | None = None
    paused: str | None = None


SETTING_KINDS: Mapping[str, str] = {
    one.name: "duration" if one.type == "float | None" else "limit"
    for one in fields(Settings)
    if one.name != "paused"
} | {
    "lease": "lease",
    "max_length": "count",
    "rate": "rate",
    "burst": "count",
    "per_key": "count",
    "share": "count",
    "ordered": "flag",
    "key_rate": "rate",
    "key_burst": "count",
    "max_active": "slots",
    "history": "switch",
}
"""The kind of each setting: a lease, a duration, a rate, a count from 1, a limit, a flag, slots,
or a switch, which is on by default."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of an exclusive role of a queue. As text: its owner.

    Attributes:
        owner: the name of its client.
        fence: the number of this holding of the role.
        age: seconds since it took the role.
        left: seconds until the lease of the role ends; each call that uses the role renews it.
    """

    owner: str
    fence: int
    age: float
    left: float

    def __str__(self) -> str:
        return self.owner


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Figures of a queue, exact at one moment.

    Attributes:
        name: name of the queue.
        exists: whether it was used, and not removed since.
        epoch: the queue's epoch, 8 hex digits; None = it does not exist, or has parts
            on several nodes, each with its own.
        ready: jobs that could be reserved now (ignoring a pause): waiting, due, or with an ended
            lease.
        scheduled: jobs due later, or when other jobs have ended.
        active: leased jobs, and at-most-once jobs that were delivered and not acknowledged.
        dead: dead letters.
        unswept: jobs whose ttl has ended and that no call has removed yet; in no other figure but
            `parked`.
        oldest: seconds for which the longest waiting job could have been reserved; None = no job.
        age: seconds since the queue was made; None = it does not exist.
        idle: seconds since the last write, to a second; None = it does not exist.
        closed: whether producers are refused for good, and consumers end when it is drained.
        producer, consumer: holder of this exclusive role; None = the role is free.
        enqueued: total of jobs added. All totals count from the creation of the queue.
        deliveries: total of deliveries.
        acked: total of jobs finished.
        nacked: total of reported failures.
        released: total of releases.
        crashed: total of leases that ended without a report.
        died: total of jobs that became dead letters.
        redriven: total of dead letters brought back.
        trimmed: total of dead letters dropped by age or number.
        expired: total of jobs removed because their ttl had ended.
        expired_active: those of `expired` that were delivered and not finished: the ttl is too
            short for the work, or their consumers died.
        deleted: total of jobs deleted one by one.
        cancelled: total of jobs that ended because they were cancelled.
        purged: total of jobs purged.
        promoted: total of jobs brought forward by `promote`, or by the tick of their schedule.
        postponed: total of jobs set aside for a lease by `postpone`.
        withdrawn: total of jobs taken back before their delivery.
        evicted: total of jobs removed to make room.
        dangling: total of index entries without a job: the server evicted its key, or a restore was
            damaged.
        settings: the settings stored on the queue.
        kept: results kept of jobs that have ended.
        parked: jobs that wait for other jobs of their keys.
        batches: batches whose callbacks have not ended.
        staged: rows of staged writes that are not committed yet; in no other figure.
        promised: rows of committed writes that are not in the queue yet; in no other figure.
        dependent: those of `scheduled` that wait for other jobs: callbacks of batches, and
            successors by dedup id. `max_length` does not count them.
        slots: how many jobs may be delivered at once, on all its nodes and partitions together
            (`max_active`); None = any number.
        held: seconds for which nothing is delivered (`hold`); None = it is not held.
        held_keys: how many keys are held now, on all its nodes and partitions together.
        last_death: seconds since the last death among the dead letters; None = there are none.
        has_schedules: whether it has schedules, or had some a while ago.
        configured: when settings, pause or `closed` were changed last, seconds since 1970 by the
            server's clock; None = never.
        unreachable: addresses of nodes that did not answer: their jobs are in no figure.
        partitions: number of its partitions; None = the queue has none.
        nodes: for a queue on several nodes, address -> its figures there.
        differing: addresses of nodes with another settings, pause or `closed` than those shown
            here, which were set last. Clients that use the queue correct that within 30 s.
    """

    name: str
    exists: bool
    epoch: str | None
    ready: int
    scheduled: int
    active: int
    dead: int
    unswept: int
    oldest: float | None
    age: float | None
    idle: float | None
    closed: bool
    producer: Holder | None
    consumer: Holder | None
    enqueued: int
    deliveries: int
    acked: int
    nacked: int
    released: int
    crashed: int
    died: int
    redriven: int
    trimmed: int
    expired: int
    expired_active: int
    deleted: int
    cancelled: int
    purged: int
    promoted: int
    postponed: int
    withdrawn: int
    evicted: int
    dangling: int
    settings: Settings
    kept: int = 0
    parked: int = 0
    batches: int = 0
    staged: int = 0
    promised: int = 0
    dependent: int = 0
    slots: int | None = None
    held: float | None = None
    held_keys: int = 0
    last_death: float | None = None
    has_schedules: bool = False
    configured: float | None = None
    unreachable: tuple[str, ...] = ()
    partitions: int | None = None
    nodes: Mapping[str, QueueStats] = field(default_factory=dict)
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePage:
    """The result of one step of a scan over queues.

    Attributes:
        cursor: argument for the next step; "0" = this was the last step.
        queues: the queues found, with their figures.
        unreachable: addresses of nodes that did not answer; this step skipped them.
    """

    cursor: str
    queues: list[QueueStats]
    unreachable: tuple[str, ...] = ()


STATE_COUNTS = ("ready", "scheduled", "active", "dead", "unswept")
"""The numbers of jobs of `QueueStats`."""
SIDE_COUNTS = ("parked", "batches", "staged", "promised", "dependent")
"""Other numbers that the script counts."""
TOTALS = {
    one.name: one.name
    for one in fields(QueueStats)
    if one.type == "int" and one.name not in (*STATE_COUNTS, "kept", "held_keys", *SIDE_COUNTS)
} | {"deliveries": "delivered", "postponed": "dequeued"}
"""The totals of `QueueStats`, each with its field of meta."""


def read_stats(name: str, reply: replies.Stats) -> QueueStats:
    """Return the figures of a queue."""
    fields = {field.decode(): value.decode() for field, value in reply.fields}
    figures: dict[str, Any] = {
        total: number_in(fields.get(field, "")) or 0 for total, field in TOTALS.items()
    } | {name: getattr(reply, name) for name in (*STATE_COUNTS, *SIDE_COUNTS)}
    configured = number_in(fields.get("configured", ""))

    def since(field: str) -> float | None:
        at = number_in(fields.get(field, ""))
        return None if at is None else max(0, reply.now - at) / 1000

    return QueueStats(
        name=name,
        exists="epoch" in fields,
        epoch=fields.get("epoch"),
        oldest=None if reply.oldest < 0 else reply.oldest / 1000,
        age=since("made"),
        idle=since("seen"),
        closed="closed" in fields,
        producer=_holder(fields.get("producer", ""), reply.now),
        consumer=_holder(fields.get("consumer", ""), reply.now),
        settings=read_settings(fields),
        kept=number_in(fields.get("kept", "")) or 0,
        configured=None if configured is None else configured / 1000,
        slots=slots_of_part(fields.get("max_active", "")),
        last_death=since("last_death"),
        held=_hold_left(number_in(fields.get("held_until", "")) or 0, reply.now),
        held_keys=number_in(fields.get("held_keys", "")) or 0,
        has_schedules="e" in fields.get("uses", ""),
        **figures,
    )


def _hold_left(until: int, now: int) -> float | None:
    return (until - now) / 1000 if now < until <= now + LATEST_HOLD_END_MS else None


def _holder(text: str, now: int) -> Holder | None:
    """Parse the holder of a role from its field of meta: fence, end of the lease, lease, owner.

    A fence is the time at which the role was taken, in microseconds, or just above the last one.
    """
    parts = text.split(" ", 3)
    if len(parts) < 4:
        return None
    fence, ends, span = (number_in(part.partition("-")[0]) for part in parts[:3])
    if fence is None or ends is None or span is None or not 0 < ends - now <= span + MAX_STEP_MS:
        return None
    return Holder(parts[3], fence, max(0, now - fence // 1000) / 1000, (ends - now) / 1000)


def number_in(text: str) -> int | None:
    """Parse a number of meta as the scripts do. Anything else counts as absent."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 17 else None


def read_settings(fields: Mapping[str, str]) -> Settings:
    """Read the settings among the fields of meta."""
    values: dict[str, Any] = {"paused": fields.get("paused")}
    for name, kind in SETTING_KINDS.items():
        number = number_in(fields.get(name, ""))
        if kind == "rate":
            values[name] = rate_text(fields.get(name, ""))
        elif kind == "slots":
            values[name] = slots_in(fields.get(name, ""))
        elif kind in ("flag", "switch") and number is not None:
            values[name] = bool(number)
        elif number is not None:
            values[name] = number if kind in ("count", "limit") else number / 1000
    return Settings(**values)
