"""Events of a job that a client watches (protocol/watching.md).

A look at the job gives its state, and the entries that its handler has told since the last look.
`JobStory` makes events of them: what has changed since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.core.jobs.job import parse_counters
from penstock.core.jobs.marks import Failure, Progress, read_failures, read_progress
from penstock.core.jobs.results import MISSING_VALUE_REASONS
from penstock.core.jobs.views import NEVER_MS, JobResult
from penstock.wire import replies

__all__ = ["EventKind", "JobEvent", "JobStory", "LookedAt", "read_look"]

EventKind: TypeAlias = Literal["waiting", "started", "progress", "chunk", "failed", "ended"]
"""Kind of an event: `JobEvent` says what each of them is."""
ENDS = frozenset({"gone", "done", "dead", "cancelled", "expired"})
WORKING = frozenset({"active", "once"})
NO_ENTRY = b"0-0"
"""The place before the first entry of a stream."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that has happened to a job.

    Attributes:
        kind: "waiting" = the job waits in `state`, until `due` if that is known; "started" = an
            attempt has begun; "progress"; "chunk" = its handler has emitted `data`; "failed" = an
            attempt has failed with `error`, and the next one may begin at `due`; "ended" = it is
            over: `state` says how. An ended event is the last entry.
        id: of the job. In a chain it changes: the jobs of a chain are watched one behind another.
        at: when it happened, seconds since 1970 by the server's clock; of an attempt that began
            before it was seen, when the attempt began.
        state: ready, scheduled, parked, active; of an ended job done, dead, cancelled, expired, or
            gone = nothing is kept of it: it was deleted, or it is done and has no `result_ttl`.
        attempt: number of the attempt, from 1; 0 = none has begun, or it is not known any more.
        delivery: number of the delivery, which also counts what is no attempt (releases).
        number: of a progress or a chunk: its place among those of its delivery. A gap = those
            between were dropped, as they came faster than they could be sent, or are too old.
        data: of a chunk.
        progress: of a progress.
        error: of a failure, and of a dead letter; of a job that is done, why it has no value.
        due: when a waiting job may start, None = at once or not known.
        value: of a job that is done: what its handler returned, decoded from JSON.
    """

    kind: EventKind
    id: str
    at: float
    state: str
    attempt: int = 0
    delivery: int = 0
    number: int = 0
    data: Any = None
    progress: Progress | None = None
    error: str = ""
    due: float | None = None
    value: Any = None


class Told(NamedTuple):
    """An entry that a handler has told.

    Attributes:
        at_ms: when the server stored it.
        kind: `p`, `t`, `j` or `s`, as in `Emission`.
        delivery, attempt, number: of the delivery, and its place in it.
        text: the content.
    """

    at_ms: int
    kind: str
    delivery: int
    attempt: int
    number: int
    text: str


class LookedAt(NamedTuple):
    """The result of a look at a watched job.

    Attributes:
        now: seconds since 1970 by the server's clock.
        last: id of the last entry of the stream `finished`.
        state: as in `JobEvent`.
        at: due time, end of the lease, or when it ended.
        result: of a job that has ended; None = nothing is kept of it, or it has not ended.
        delivered: time of the last delivery; 0 = none.
        delivery, attempt: of the last delivery; 0 = none.
        progress: the last one that is stored, or None.
        failures: the last ones, the oldest first.
        entries: what the handler has told since the last look.
        read: the number of entries that were read, with those of another form.
        place: id of the last one; empty = there is none.
    """

    now: float
    last: bytes
    state: str
    at: float
    result: JobResult | None
    delivered: float
    delivery: int
    attempt: int
    progress: Progress | None
    failures: Sequence[Failure]
    entries: Sequence[Told]
    read: int
    place: bytes


def read_look(reply: replies.Watch) -> LookedAt:
    """Parse the reply of `watch`."""
    state, at = reply.state.decode() or "gone", int(reply.at) / 1000
    was_delivered, counters = int(reply.delivered), parse_counters(reply.counters)
    has_begun = was_delivered > 0 or bool(reply.counters)
    is_kept = state in ENDS and state != "gone"
    return LookedAt(
        now=reply.now / 1000,
        last=reply.last,
        state=state,
        at=at,
        result=JobResult(state, at, int(reply.attempt), 0.0, reply.flags.decode(), reply.value)
        if is_kept
        else None,
        delivered=was_delivered / 1000,
        delivery=counters.deliveries if has_begun else 0,
        attempt=counters.nacks + counters.crashes + (state in WORKING) if has_begun else 0,
        progress=read_progress(reply.progress),
        failures=read_failures(reply.failures + b"\n\n")[0] if reply.failures else (),
        entries=[*read_told(reply.entries)],
        read=len(reply.entries),
        place=reply.entries[-1][0] if reply.entries else b"",
    )


def read_told(entries: Sequence[tuple[bytes, bytes, bytes]]) -> Iterator[Told]:
    """Parse entries of the stream `emitted`: id, kind, text; leave out those of another form."""
    for entry_id, kind, value in entries:
        parts = value.decode("utf-8", "replace").split(" ", 4)
        if len(parts) == 5 and all(part.isdecimal() for part in parts[:4]):
            delivery, attempt, number, _, text = parts
            at_ms = int(entry_id.partition(b"-")[0])
            place = int(delivery), int(attempt), int(number)
            yield Told(at_ms, kind.decode("ascii", "replace"), *place, text)


class JobStory:
    """What has happened to a job, as far as its watcher has seen it.

    Args:
        job_id: the id of the job.

    Attributes:
        place: id of the last entry that was read.
        has_ended: whether the last event was the end.
    """

    def __init__(self, job_id: str) -> None:
        self._id = job_id
        self.place = NO_ENTRY
        self.has_ended = False
        self._is_new = True
        self._failed_at = -1.0
        self._told_at = 0.0
        self._delivery = 0
        self._attempt = 0
        self._failed_attempts = 0
        self._wait: tuple[str, float | None] | None = None

    def read(self, look: LookedAt) -> Iterator[JobEvent]:
        """Return the events since the last look, in order."""
        entries = look.entries
        self.place = look.place or self.place
        if self._is_new:
            entries = self._begin(look)
            yield from self._first(look)
        failures = [entry for entry in look.failures if entry.at > self._failed_at]
        for entry in entries:
            if entry.delivery > self._delivery:
                early = self._before(entry, failures)
                failures = failures[len(early) :]
                yield from self._fail(early, look)
                yield self._start(entry.at_ms / 1000, entry.delivery, entry.attempt)
            if entry.delivery == self._delivery:
                yield from self._read_entry(entry)
        is_working = look.state in WORKING
        yield from self._fail(failures, look, is_last=not is_working)
        if is_working:
            if look.delivery > self._delivery:
                yield self._start(look.delivered, look.delivery, look.attempt)
            yield from self._progress_beside(look)
        elif look.state in ENDS:
            self.has_ended = True
            yield self._end(look)
        else:
            yield from self._wait_in(look)
        self._is_new = False

    def _before(self, entry: Told, failures: Sequence[Failure]) -> Sequence[Failure]:
        """Return the failures before an entry; of those in its ms, only what its attempt counts."""
        earlier = sum(round(failure.at * 1000) < entry.at_ms for failure in failures)
        until_then = sum(round(failure.at * 1000) <= entry.at_ms for failure in failures)
        counted = entry.attempt - 1 - self._failed_attempts
        return failures[: max(earlier, min(counted, until_then))]

    def _begin(self, look: LookedAt) -> Sequence[Told]:
        """Note what was before the first look; return the entries of the delivery that counts."""
        if look.failures:
            self._failed_at = look.failures[-1].at
        if look.state not in ENDS and look.state not in WORKING:
            self._delivery, self._attempt = look.delivery, look.attempt
            self._failed_attempts = look.attempt
        newest = max((entry.delivery for entry in look.entries), default=0)
        is_current = look.state in ENDS or (look.state in WORKING and newest == look.delivery)
        return [entry for entry in look.entries if entry.delivery == newest] if is_current else ()

    def _first(self, look: LookedAt) -> Iterator[JobEvent]:
        if look.state in WORKING:
            yield self._start(look.delivered, look.delivery, look.attempt)
            yield from self._progress_beside(look)
        elif look.state not in ENDS:
            yield from self._wait_in(look)

    def _start(self, at: float, delivery: int, attempt: int) -> JobEvent:
        self._delivery, self._attempt, self._wait = delivery, attempt, None
        self._failed_attempts = attempt - 1
        return self._event("started", at, "active")

    def _read_entry(self, entry: Told) -> Iterator[JobEvent]:
        at = entry.at_ms / 1000
        self._told_at = max(self._told_at, at)
        if entry.kind == "p":
            progress = read_progress(f"{entry.at_ms} {entry.text}".encode())
            if progress is not None:
                yield self._event("progress", at, "active", number=entry.number, progress=progress)
        elif entry.kind in ("t", "j"):
            try:
                data = entry.text if entry.kind == "t" else json.loads(entry.text)
            except ValueError:  # clients store what they like
                return
            yield self._event("chunk", at, "active", number=entry.number, data=data)

    def _progress_beside(self, look: LookedAt) -> Iterator[JobEvent]:
        """Return the stored progress if it is news: a worker that does not emit has told it."""
        progress = look.progress
        if progress is None or progress.at < look.delivered or progress.at <= self._told_at:
            return
        if self._is_new and any(entry.kind == "p" for entry in look.entries):
            return  # those are read one by one
        self._told_at = progress.at
        yield self._event("progress", progress.at, "active", progress=progress)

    def _fail(
        self, failures: Sequence[Failure], look: LookedAt, *, is_last: bool = False
    ) -> Iterator[JobEvent]:
        for failure in failures:
            self._failed_at = failure.at
            is_now = is_last and failure is failures[-1]
            state = look.state if is_now and look.state not in ENDS else "ready"
            due = _due(look) if is_now else None
            if is_now and look.state not in ENDS:
                self._wait, self._attempt = (look.state, due), look.attempt
                self._failed_attempts = look.attempt
            yield self._event("failed", failure.at, state, error=failure.text, due=due)

    def _wait_in(self, look: LookedAt) -> Iterator[JobEvent]:
        wait = (look.state, _due(look))
        if wait != self._wait:
            self._wait = wait
            yield self._event("waiting", look.now, look.state, due=wait[1])

    def _end(self, look: LookedAt) -> JobEvent:
        result = look.result
        if result is None:
            return self._event("ended", look.now, "gone")
        self._attempt = result.attempt or self._attempt
        error, value = "", None
        if result.state == "dead":
            error = result.value.decode("utf-8", "replace")
        elif result.missing:
            error = MISSING_VALUE_REASONS.get(result.missing, result.missing)
        elif result.value:
            value = json.loads(result.value)
        return self._event("ended", result.finished, result.state, error=error, value=value)

    def _event(self, kind: EventKind, at: float, state: str, **more: Any) -> JobEvent:
        return JobEvent(
            kind, self._id, at, state, attempt=self._attempt, delivery=self._delivery, **more
        )


def _due(look: LookedAt) -> float | None:
    return look.at if look.state == "scheduled" and look.at < NEVER_MS // 1000 else None
