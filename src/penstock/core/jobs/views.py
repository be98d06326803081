"""Read-only views of jobs, and pages of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.core.jobs.job import QueueIdentity, parse_counters
from penstock.core.jobs.marks import (
    Death,
    Failure,
    Progress,
    follow_up_id,
    read_death,
    read_failures,
    read_progress,
)
from penstock.core.jobs.queue_stats import number_in
from penstock.core.jobs.record import Record, parse_record
from penstock.core.values.checks import MAX_DURATION_MS
from penstock.core.values.codec import Codec
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id, ttl_code
from penstock.core.values.policy import RetryPolicy

__all__ = [
    "NEVER_MS",
    "RECEIPT_PLACE",
    "DedupStatus",
    "JobResult",
    "JobView",
    "ScanPage",
    "StepKind",
    "StepView",
    "read_result",
    "read_view",
]

StepKind: TypeAlias = Literal["run", "sleep", "call", "signal", "timeout"]
KIND_OF_LETTER: dict[str, StepKind] = {
    "r": "run", "s": "sleep", "c": "call", "w": "signal", "t": "timeout",
}  # fmt: skip
NEVER_MS = 2**53 - 1
"""Due time of a job that waits for the end of others (protocol/dedup.md, batches.md)."""
LONGEST_TIMEOUT_MS = MAX_DURATION_MS // 2
"""Ms until the end of a wait for a signal beyond which it counts as one without a timeout."""


@dataclass(frozen=True, slots=True)
class StepView:
    """A step that a job has taken, or a signal that it has.

    Attributes:
        name: its name.
        kind: run = a function has run; sleep; call = a job was called; signal = the job has it, its
            wait may come later; timeout = the time of a wait is over.
        at: when it was noted; seconds since 1970 by the server's clock.
        seconds: of a sleep: how long it is; None = it is no sleep.
        job: of a call: the id of the called job, or of the one that took its place; else None.
        state: of a call: "open" = the job has not ended; done, dead, cancelled, expired, or removed
            (deleted, purged); else empty.
    """

    name: str
    kind: StepKind
    at: float
    seconds: float | None = None
    job: str | None = None
    state: str = ""


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
        key_held: whether it is parked and waits for the end of a hold of its key, `due`; as the
            next two, only of `show` and `dedup_status`.
        key_taken: of another parked job, how many of its key run or are next; None = not told.
        key_limit: the most of them, by `per_key`, `share` or `ordered`; None = there is no limit.
        retry: its own retry policy; None = the queue's applies.
        priority: 0 to 9; jobs with a higher one are delivered first.
        now: when it was read.
        created: when it was enqueued.
        due: when a scheduled job may start; of a parked one, from when its key may have its next
            job (docs/keys.md, A rate for each key, Holds), unless that is now; only of
            `show`, and of `jobs` without a state.
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
        on_dead: the name of the handler of the job that its death adds, or None.
        follow_up: the id of the job that its last death has added, or None.
        death: the death of another job after which this one was added, or None.
        steps: the steps that it has taken, and its signals, the earliest first; only of `show`.
        signal: the name of the signal that it waits for in `steps.wait`, until `due` (None = the
            wait has no timeout), or None; only of `show`.
        step: the name of the step for whose called jobs it waits, or None; only of `show`.
        open_calls: how many of them have not ended; 0 = it waits for none.
        caller: the id of the job whose step has called it, or None; as `batch`.
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
    on_dead: str | None = None
    follow_up: str | None = None
    death: Death | None = None
    finished: float | None = None
    key_held: bool = False
    key_taken: int | None = None
    key_limit: int | None = None
    steps: tuple[StepView, ...] = field(default=(), repr=False)
    signal: str | None = None
    step: str | None = None
    open_calls: int = 0
    caller: str | None = None
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
    def waits_for(self) -> str | None:
        """Say for people what a parked or suspended job waits for; None = nothing, or not told."""
        if self.signal is not None:
            return f"signal {self.signal}"
        if self.step is not None:
            return f"{self.open_calls} job{'s' * (self.open_calls > 1)} of step {self.step}"
        if self.is_asleep:
            return "the end of a sleep"
        if self.key_held:
            return "the end of a hold of its key"
        if self.key_taken is None:
            return None
        if self.due is not None:
            return "the rate of its key"
        if self.key_limit is None:
            return "its turn"
        return f"its key: {self.key_taken} of {self.key_limit} running or next"

    @property
    def is_asleep(self) -> bool:
        """Return whether the job sleeps, in `steps.sleep`, until `due`; only of `show`."""
        taken = [step for step in self.steps if step.kind in ("run", "sleep", "call")]
        if self.state != "scheduled" or self.due is None or not taken or self.signal is not None:
            return False
        last = taken[-1]  # a retry behind it has another due time
        ends = (self.expires, round(last.at + (last.seconds or 0), 3))
        return last.kind == "sleep" and round(self.due, 3) in ends

    @property
    def is_suspended(self) -> bool:
        """Return whether its step sleeps, or waits for a signal or for jobs; only of `show`."""
        return self.signal is not None or self.step is not None or self.is_asleep

    @property
    def next_in(self) -> float | None:
        """Return the seconds until it is due, its key may go on, or its lease ends.

        None = none of these.
        """
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


RECEIPT_PLACE, BATCH_PLACE, STEPS_PLACE = 11, 12, 13
"""Places of three items of a job in the reply of `show`."""


def read_view(
    place: QueueIdentity, entry: list[Any], lease_ms: int, now: int, codec: Codec | None = None
) -> JobView:
    """Parse a job in a script's reply: number, state, score, delivered, owner, counters, record.

    Behind them: the marks cancelled, progress, snoozes, failures; in some also receipt, batch and
    steps.
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
    step_notes = read_steps(place, entry[STEPS_PLACE]) if len(entry) > STEPS_PLACE else NO_STEPS
    signal, ttl_end = step_notes.signal, created + (record.ttl_ms or 0)
    if name != "scheduled" or int(score) not in (step_notes.waits_until, ttl_end):
        signal = None  # the head is that of a wait before this retry
    open_calls = step_notes.open_calls if name == "scheduled" else 0
    is_endless = bool(signal or open_calls) and int(score) - now > LONGEST_TIMEOUT_MS
    member_of, caller = (b"", batch[1:]) if batch[:1] == b"n" else (batch, b"")
    was = int(delivered)
    counters = parse_counters(counts)
    given_back = [*snoozes.decode("ascii", "replace").split(" "), ""]
    ttl = ttl_code(record.ttl_ms, at_most_once=once)
    job_id = encode_id(place.node, place.packed, number, ttl)
    note = entry[RECEIPT_PLACE].decode() if len(entry) > RECEIPT_PLACE else ""
    why = note if name == "parked" else ""
    taken, _, limit = why.partition(" ")
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
        due=at if _is_due_time(name, at, created / 1000) and not is_endless else None,
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
        on_dead=record.on_dead or None,
        follow_up=follow_up_id(record.follow_up, place.node, place.packed),
        death=read_death(record.headers, place.node, place.packed),
        finished=at if note == "kept" else None,
        batch=_id_or_none(place, member_of),
        key_held=why == "held",
        key_taken=number_in(taken),
        key_limit=number_in(limit),
        steps=step_notes.steps,
        signal=signal,
        step=step_notes.step if open_calls else None,
        open_calls=open_calls,
        caller=_id_or_none(place, caller),
        _codec=codec,
    )


class StepNotes(NamedTuple):
    """The steps of a job, and what it waits for.

    Attributes:
        steps: the steps, and the signals.
        signal: of a wait for a signal its name, else None.
        waits_until: until when it waits for it, ms.
        step: of a wait for called jobs the name of their step, else None.
        open_calls: how many of them have not ended.
    """

    steps: tuple[StepView, ...] = ()
    signal: str | None = None
    waits_until: int = 0
    step: str | None = None
    open_calls: int = 0


NO_STEPS = StepNotes()


def read_steps(place: QueueIdentity, text: bytes) -> StepNotes:
    """Read what `show` tells of the steps of a job."""
    wait, *lines = text.decode("utf-8", "replace").split("\n")
    steps = []
    for line in lines:
        letter, at, name, more = line.split("\t")
        step = StepView(name, KIND_OF_LETTER[letter], int(at) / 1000)
        if step.kind == "call":
            *_, number, state = more.split(" ")
            step = replace(step, job=_id_or_none(place, number.encode()), state=state)
        elif more:
            step = replace(step, seconds=int(more) / 1000)
        steps.append(step)
    steps.sort(key=lambda one: one.at)
    until, _, name = wait.partition(" ")
    if not name:
        return StepNotes(tuple(steps))
    if until.startswith("c"):
        return StepNotes(tuple(steps), step=name, open_calls=int(until[1:]))
    return StepNotes(tuple(steps), signal=name, waits_until=int(until))


def _id_or_none(place: QueueIdentity, number: bytes) -> str | None:
    """Return the id of a job, or None for an empty number."""
    if not number:
        return None
    return encode_id(place.node, place.packed, number, AT_LEAST_ONCE_FOREVER)


def _is_due_time(state: str, at: float, created: float) -> bool:
    is_scheduled = state == "scheduled" and at < NEVER_MS // 1000
    return is_scheduled or (state == "parked" and at > created)
