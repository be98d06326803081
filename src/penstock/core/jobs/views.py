"""Read-only views of jobs and queues, and pages of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from penstock.core.jobs.job import QueueIdentity, parse_counters
from penstock.core.jobs.marks import Failure, Progress, read_failures, read_progress
from penstock.core.jobs.record import Record, parse_record
from penstock.core.values.codec import Codec
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id, ttl_code
from penstock.core.values.policy import RetryPolicy
from penstock.core.values.rate import rate_text
from penstock.wire import replies

__all__ = [
    "NEVER_MS",
    "RECEIPT_PLACE",
    "SETTING_KINDS",
    "TOTALS",
    "DedupStatus",
    "Holder",
    "JobResult",
    "JobView",
    "QueuePage",
    "QueueStats",
    "ScanPage",
    "Settings",
    "number_in",
    "read_result",
    "read_settings",
    "read_stats",
    "read_view",
]

NEVER_MS = 2**53 - 1
"""Due time of a job that waits for the end of others (protocol/dedup.md, batches.md)."""
MAX_STEP_MS = 30 * 86_400_000
"""A role that ends later than its lease by more than this was written by a wrong clock: it has
ended (protocol/maintenance.md, A wrong clock)."""


@dataclass(frozen=True, slots=True, repr=False)
class JobView:
    """A job as a reader sees it. Reading it takes no lease and changes nothing.

    Times are seconds since 1970 by the server's clock; None = the time does not exist.

    Attributes:
        id: the job's id.
        queue: its queue's name.
        state: ready, scheduled, parked (it waits for other jobs of its key), active, dead or
            expired (ttl ended). Of a job whose result is kept also done or cancelled, see
            `finished`.
        raw: the body's bytes.
        codec: "json", the name of another codec, or "" for bytes.
        headers: the headers that the producer set.
        dedup_id: its dedup id, or None.
        batch: the id of its batch, or None; only of `show`, `peek`, `dedup_status` and
            `jobs(batch=...)`.
        key_hash: the hash of its key, 13 hex digits (protocol/keys.md), or None.
        retry: its own retry policy; None = the queue's applies.
        priority: 0 to 9; jobs with a higher one are delivered first.
        now: when it was read.
        created: when it was enqueued.
        due: when a scheduled job may start.
        lease: its lease in seconds; 0 = at most once.
        lease_until: end of the lease of an active job.
        expires: end of its ttl.
        died: when a dead letter died.
        delivered: time of the last delivery.
        owner: the client that took the last delivery; "" = it was never delivered.
        deliveries: number of deliveries.
        nacks: number of reported failures.
        crashes: number of leases that ended without a report.
        releases: number of releases without delay.
        error: last error, or the reason why it is dead.
        snoozes: number of releases with a delay.
        unknowns: number of returns by workers that have no handler for it.
        cancelled: when an active job was cancelled; its worker has not ended it yet.
        progress: what its handler told last, or None.
        failures: its last failures, at most 10, the oldest first.
        trace: the end of the last traceback, at most 8 KiB; only `show` reads it and `failures`.
        stable_id: id of the enqueue, equal to `stable_id` of the delivered job.
        finished: when a job ended whose result is kept: it has no body, options and counters any
            more, but the number of the last attempt.
    """

    id: str
    queue: str
    state: str
    raw: bytes = field(repr=False)
    codec: str
    headers: Mapping[str, str]
    dedup_id: str | None
    retry: RetryPolicy | None
    now: float
    created: float
    due: float | None
    lease: float
    lease_until: float | None
    expires: float | None
    died: float | None
    delivered: float | None
    owner: str
    deliveries: int
    nacks: int
    crashes: int
    releases: int
    error: str
    priority: int = 0
    snoozes: int = 0
    unknowns: int = 0
    cancelled: float | None = None
    progress: Progress | None = None
    failures: tuple[Failure, ...] = field(default=(), repr=False)
    trace: str = field(default="", repr=False)
    stable_id: str = field(default="", compare=False)
    key_hash: str | None = None
    batch: str | None = None
    finished: float | None = None
    _codec: Codec | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        error = f": {self.error}" if self.error else ""
        text = f"{self.state} in {self.queue!r}, attempts {self.attempts}"
        return f"<JobView {self.id} {text}{error}>"

    @property
    def body(self) -> Any:
        """Return the body: bytes, or the object decoded from JSON (or by the client's codec).

        Raises:
            UndecodableBody: the codec can't decode the bytes, or is unknown; see `raw`.
        """
        record = Record(self.raw)
        record.codec = self.codec
        return record.body(self._codec)

    @property
    def attempts(self) -> int:
        """Return the number of attempts: the deliveries that count. Releases don't.

        Those that have failed or crashed, and the one that runs, has finished the job, or has
        buried it. A redrive begins again from 0.
        """
        if self.finished is not None:
            return self.deliveries
        failed = self.nacks + self.crashes
        if self.state == "dead":
            counted = self.deliveries - self.releases - self.snoozes - self.unknowns
            was_buried = counted == failed + 1 or (failed == 0 and counted > 0)
            return failed + was_buried
        return failed + (self.state == "active")

    @property
    def redeliveries(self) -> int:
        """Return the number of deliveries that ended without a nack (in Disque: additional ones).

        It is exact until a redrive, which resets the nacks but not the deliveries. Of a job whose
        result is kept it is 0.
        """
        ended = self.deliveries - (self.state == "active") if self.finished is None else 0
        return max(0, ended - self.nacks)

    @property
    def age(self) -> float:
        """Return the seconds since it was enqueued."""
        return self.now - self.created

    @property
    def ttl(self) -> float | None:
        """Return the seconds from its creation to the end of its ttl; None = no ttl."""
        return None if self.expires is None else self.expires - self.created

    @property
    def ttl_left(self) -> float | None:
        """Return the seconds until its ttl ends; None = no ttl."""
        return None if self.expires is None else self.expires - self.now

    @property
    def idle(self) -> float | None:
        """Return the seconds since its last delivery; None = never delivered."""
        return None if self.delivered is None else self.now - self.delivered

    @property
    def next_in(self) -> float | None:
        """Return the seconds until it is due or its lease ends; None = neither."""
        at = self.lease_until if self.due is None else self.due
        return None if at is None else at - self.now


class JobResult(NamedTuple):
    """The result of a job, as the server has it.

    Attributes:
        state: "waiting" = the job has not ended; dead, done, cancelled or expired.
        finished: when it ended, seconds since 1970 by the server's clock.
        attempt: the last attempt; 0 = it was never delivered.
        seconds: how long the last run took.
        missing: why there is no value: "large", "full" (the server's memory) or "json"; else empty.
        value: JSON, empty = none; or the error of a dead letter.
    """

    state: str
    finished: float
    attempt: int
    seconds: float
    missing: str
    value: bytes


def read_result(entry: list[bytes]) -> JobResult:
    """Parse an entry of the reply of `result`."""
    state, at, attempt, ms, flags, value = entry
    times = int(at) / 1000, int(attempt), int(ms) / 1000
    return JobResult(state.decode(), *times, flags.decode(), value)


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
        result_ttl: seconds for which results are kept of jobs that do not say it; default 0.
        rate: most deliveries in a time, such as "100/min"; default no limit (docs/rate.md).
        burst: most deliveries at once after a pause of any length; default 1.
        per_key: most jobs of one key that are delivered at once; default no limit.
        ordered: one job of a key at a time, in order, also across retries; default no.
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
    ordered: bool | None = None
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
    "ordered": "flag",
}
"""The kind of each setting: a lease, a duration, a rate, a count from 1, a limit, a flag."""


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
        promoted: total of jobs brought forward by `promote`.
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
    has_schedules: bool = False
    configured: float | None = None
    unreachable: tuple[str, ...] = ()
    partitions: int | None = None
    nodes: Mapping[str, QueueStats] = field(default_factory=dict)
    differing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DedupStatus:
    """The job that has a dedup id.

    Attributes:
        dedup_id: the id.
        state: state of the job that has the id: ready, scheduled, parked, active; or "window":
            that job is done, and the id stays taken for a time.
        job: the job that has the id; in a window the job that runs when it ends, or None.
        successor: the job that runs when `job` has ended, or None.
        window_ends: seconds since 1970 by the server's clock, None = no window is open.
    """

    dedup_id: str
    state: str
    job: JobView | None
    successor: JobView | None
    window_ends: float | None


@dataclass(frozen=True, slots=True)
class ScanPage:
    """The result of one step of a search, or of a scan.

    Attributes:
        cursor: argument for the next step; "0" = this was the last step.
        ids: ids of the jobs found.
        jobs: views of the jobs found; empty if only ids were requested.
        unreachable: addresses of nodes that did not answer; this step skipped them.
        looked: number of jobs looked at.
    """

    cursor: str
    ids: list[str]
    jobs: list[JobView]
    unreachable: tuple[str, ...] = ()
    looked: int = 0


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


RECEIPT_PLACE, BATCH_PLACE = 11, 12
"""Places of two items of a job in the reply of `show`."""


def read_view(
    place: QueueIdentity, entry: list[Any], lease_ms: int, now: int, codec: Codec | None = None
) -> JobView:
    """Parse a job in a script's reply: number, state, score, delivered, owner, counters, record.

    Behind them: the marks cancelled, progress, snoozes, failures; in some also receipt and batch.
    """
    number, state, score, delivered, owner, counts, data, cancelled, progress, snoozes, failed = (
        entry[:11]
    )
    failures, trace = read_failures(failed)
    record = parse_record(data)
    once = record.lease_ms == 0
    name = "active" if state == b"once" else state.decode()
    at = int(score) / 1000
    created = int(number[:-11])
    batch = entry[BATCH_PLACE] if len(entry) > BATCH_PLACE else b""
    was = int(delivered)
    counters = parse_counters(counts)
    given_back = [*snoozes.decode("ascii", "replace").split(" "), ""]
    ttl = ttl_code(record.ttl_ms, at_most_once=once)
    job_id = encode_id(place.node, place.packed, number, ttl)
    return JobView(
        id=job_id,
        queue=place.queue,
        state=name,
        raw=record.raw,
        codec=record.codec,
        headers=record.headers,
        dedup_id=record.dedup_id or None,
        retry=record.retry,
        now=now / 1000,
        created=created / 1000,
        due=at if name == "scheduled" and at < NEVER_MS // 1000 else None,
        lease=record.span_ms(lease_ms) / 1000,
        lease_until=at if state == b"active" else None,
        expires=None if record.ttl_ms is None else (created + record.ttl_ms) / 1000,
        died=at if name == "dead" else None,
        delivered=was / 1000 if was else None,
        owner=owner.decode("utf-8", "replace"),
        deliveries=counters.deliveries if counts else int(was > 0),
        nacks=counters.nacks,
        crashes=counters.crashes,
        releases=counters.releases,
        error=counters.error,
        priority=record.priority,
        snoozes=number_in(given_back[0]) or 0,
        unknowns=number_in(given_back[1]) or 0,
        cancelled=int(cancelled) / 1000 if cancelled else None,
        progress=read_progress(progress),
        failures=failures,
        trace=trace,
        stable_id=record.stable_id or job_id,
        key_hash=record.key_hash or None,
        finished=at if len(entry) > RECEIPT_PLACE and entry[RECEIPT_PLACE] == b"kept" else None,
        batch=encode_id(place.node, place.packed, batch, AT_LEAST_ONCE_FOREVER) if batch else None,
        _codec=codec,
    )


STATE_COUNTS = ("ready", "scheduled", "active", "dead", "unswept")
"""The numbers of jobs of `QueueStats`."""
SIDE_COUNTS = ("parked", "batches", "staged", "promised", "dependent")
"""Other numbers that the script counts."""
TOTALS = {
    one.name: one.name
    for one in fields(QueueStats)
    if one.type == "int" and one.name not in (*STATE_COUNTS, "kept", *SIDE_COUNTS)
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
        has_schedules="e" in fields.get("uses", ""),
        **figures,
    )


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
        elif kind == "flag" and number is not None:
            values[name] = bool(number)
        elif number is not None:
            values[name] = number if kind in ("count", "limit") else number / 1000
    return Settings(**values)
