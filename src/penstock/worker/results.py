"""Results that a handler returns or raises, and the verdicts that a worker reports.

A handler that returns any other value has done its job; one that raises any other exception has
failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

from penstock.core.calls.operations.consuming import JobsOfStep
from penstock.core.enqueuing.batches import BatchCondition
from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.enqueuing.next_jobs import NextJobs, next_batch, next_jobs
from penstock.core.enqueuing.options import NamedHandler
from penstock.core.values.caught import summary_of
from penstock.core.values.checks import LONGEST_HOLD_MS, Duration, check_text, duration_ms
from penstock.errors import BadArgument

__all__ = [
    "ACK",
    "CANCELLED",
    "HANDED_BACK",
    "HELD_AHEAD",
    "NO_REPORT",
    "RESULTS_OF_RUN",
    "CallNote",
    "Done",
    "Reject",
    "Result",
    "Retry",
    "SleepNote",
    "Snooze",
    "Suspension",
    "Verdict",
    "described",
    "outcome_of",
    "unknown",
]

MAX_TEXT_BYTES = 1024
"""Most bytes of a text that the scripts keep with a job (protocol/core.md, Counters)."""


class SleepNote(NamedTuple):
    """The place of a note from 1, and the name of its step; the place 0 = a wait for a signal."""

    place: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class CallNote:
    """The jobs that a step calls; two of them are never equal.

    Attributes:
        step: how they are noted.
        jobs: the jobs.
        records: delay in ms and record of each, as they go on the wire.
    """

    step: JobsOfStep
    jobs: tuple[NewJob[Any], ...]
    records: tuple[tuple[int, bytes], ...] = ()


class Verdict(NamedTuple):
    """The report that a worker makes about a delivery.

    Attributes:
        kind: "ack", "nack", "release", "suspend", "bury", or "none" for no report.
        delay_ms: milliseconds until the next attempt; -1 = by the job's or the queue's policy, and
            of a release: at its place, as nothing has begun with the job; -2 = of a nack: the
            worker has no handler for the job; of a release: as -1, and nothing is counted.
        text: error or reason, at most 1024 bytes.
        window_ms: of an ack: the window of the job's dedup id from now on; None = the job's own.
        is_asked: whether the handler has asked for this delay.
        trace: the end of the traceback of a failure.
        then: of an ack: the jobs that follow; None = there are none.
        limit: most attempts by the handler's policy; 0 = only that of the job or queue counts.
        hold: what is held, too: "queue", or "key" = the key of the job; "" = nothing.
        hold_ms: for so long nothing of it is delivered.
        sleep: of a suspend: the note of the sleep, or the wait, which lasts for the delay.
        calls: of a suspend: the jobs for which the job waits.
        logged: how the worker has logged the failure: "" (not yet), "failure", or "last" if it is
            that of the last attempt.
    """

    kind: str
    delay_ms: int = -1
    text: str = ""
    window_ms: int | None = None
    is_asked: bool = False
    trace: str = ""
    then: NextJobs | None = None
    limit: int = 0
    hold: Literal["", "queue", "key"] = ""
    hold_ms: int = 0
    sleep: SleepNote | None = None
    calls: CallNote | None = None
    logged: Literal["", "failure", "last"] = ""


ACK = Verdict("ack")
"""The usual verdict: one object, so that `verdict is ACK` is a quick test."""
HANDED_BACK = Verdict("release", -1, "not begun with")
HELD_AHEAD = Verdict("release", -2, "held for a moment")
"""For a job that was held ahead of the running ones and given back, as if it had not been taken."""
CANCELLED = Verdict("release", 0, "cancelled")
"""For a job that is marked by `cancel`: the release ends it."""
NO_REPORT = Verdict("none")
"""Nothing is reported: the handler has settled the job itself, or its lease was lost."""

OUTCOME_OF_KIND = {
    "ack": "done",
    "nack": "retried",
    "release": "snoozed",
    "suspend": "suspended",
    "bury": "rejected",
    "none": "settled",
}
"""The outcome that is counted for a job, by the kind of its verdict."""
UNKNOWN_DELAY_MS = -2
"""Delay of a nack: there is no handler for the job, and the script chooses the delay."""


class RunResults:
    """The results that a run of a handler makes; see `check_used`.

    Attributes:
        made: the results, each behind the code that has made it; None = the run has not begun, or
            has ended. Tasks that it has begun, and that go on, make others.
    """

    made: list[tuple[CodeType, Result]] | None = None


RESULTS_OF_RUN: ContextVar[RunResults | None] = ContextVar("RESULTS_OF_RUN", default=None)
"""The results of the handler that runs in this context."""


def unknown(reason: str) -> Verdict:
    """Return the verdict on a job for which the worker has no handler: another one may have it."""
    return Verdict("nack", UNKNOWN_DELAY_MS, reason)


def outcome_of(verdict: Verdict) -> str:
    """Return the outcome that is counted for a job if the server does as the verdict says."""
    is_unknown = verdict.kind == "nack" and verdict.delay_ms == UNKNOWN_DELAY_MS
    return "unknown" if is_unknown else OUTCOME_OF_KIND[verdict.kind]


class Result(Exception):
    """An outcome that a handler returns or raises: `Done`, `Retry`, `Snooze` or `Reject`.

    Two results are equal when they have one class and the same effect.

    Attributes:
        verdict: the report that the worker makes.
    """

    verdict: Verdict = ACK

    def __init__(self, *args: Any) -> None:
        if type(self) is Result:
            raise TypeError("use one of Done, Retry, Snooze, Reject")
        super().__init__(*args)
        run = RESULTS_OF_RUN.get()
        made = None if run is None else run.made
        if made is not None:
            frame = sys._getframe(1)
            while frame.f_back is not None and _is_init_of(frame, self):  # of a class below
                frame = frame.f_back
            made.append((frame.f_code, self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        return type(self) is type(other) and self.verdict == other.verdict

    def __hash__(self) -> int:
        return hash((type(self), self.verdict))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(arg) for arg in self.args)})"

    def __str__(self) -> str:
        return repr(self)


class Done(Result):
    """The job is finished, as if the handler had returned the value.

        return Done(then=[resize.job(path), notify.job(user)])

    Args:
        value: the result, kept if the job has a `result_ttl`.
        then: jobs that follow, at most 16 and 64 KiB: the ack adds them in the same step, so they
            are neither lost nor added twice. They ignore `max_length`, a pause and the closing of
            the queue. A handler that names its queue sends its jobs there: to another queue they
            are added before the ack, once within a day or two leases of this job.
        dedup_window: seconds for which the job's dedup id stays taken from now on; 0 = it is free
            at once; None = the window of the job.
        batch: jobs of a batch, at most 1,000 and 1 MiB, which the ack adds in the same step;
            `then` is the callback, one job. All are in the queue of this job, and in its partition.
        on, on_failure, results: of the batch, as in `Queue.batch`.

    Attributes:
        value: the argument.

    Raises:
        BadArgument: not a duration; or the jobs are too many, or have an option that they can't
            have (docs/hand-over.md).

    Examples:
        >>> job = q.enqueue(3, result_ttl=60)
        >>> Worker(ps, q, lambda job: Done(job.body**2), burst=True).run()
        >>> job.result(timeout=10)
        9
    """

    def __init__(
        self,
        value: Any = None,
        *,
        then: Iterable[NewJob] | NewJob = (),
        dedup_window: Duration | None = None,
        batch: Iterable[NewJob] | None = None,
        on: BatchCondition = "success",
        on_failure: NamedHandler | str | None = None,
        results: bool = False,
    ) -> None:
        super().__init__(value)
        self.value = value
        self._window = dedup_window
        window = None if dedup_window is None else duration_ms("dedup_window", dedup_window)
        if batch is None:
            options = {"on_failure": on_failure, "on": on, "results": results}
            for name, option in options.items():
                if option not in (None, "success", False):
                    raise BadArgument(name, option, "is of a batch: pass batch=")
            following = next_jobs(then)
        else:
            following = next_batch(batch, then, on, on_failure=on_failure, results=results)
        verdict = Verdict("ack", window_ms=window, then=following)
        if verdict != ACK:
            self.verdict = verdict

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Done):
            return NotImplemented
        return bool((self.value, self.verdict) == (other.value, other.verdict))

    __hash__ = Result.__hash__

    def __repr__(self) -> str:
        shown = [] if self.value is None else [repr(self.value)]
        if self.verdict.then is not None:
            jobs = self.verdict.then.jobs
            is_batch = self.verdict.then.batch
            shown.append(f"batch={[*jobs[1:]]}, then={jobs[0]}" if is_batch else f"then={[*jobs]}")
        if self._window is not None:
            shown.append(f"dedup_window={self._window!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Retry(Result):
    """The attempt failed, and the job is tried again; dead when its attempts are used up.

    Raised `from` another exception: policies look at that exception, and it is the error if `error`
    is empty.

    Args:
        after: seconds until the next attempt; None = by the policy.
        error: the error to keep with the job, at most 1024 bytes.
        hold: "queue" = nothing of the queue is delivered for this time either (docs/rate.md), "key"
            = no job with the key of this one (docs/keys.md). Then `after` is at most a day. With
            "key", a job without a key fails: its error says so.

    Raises:
        BadArgument: not a duration, not a text, no such hold, or a hold without a time.

    Examples:
        >>> job = q.enqueue("ping")
        >>> Worker(ps, q, lambda job: Retry(after=60, error="line busy"), burst=True).run()
        >>> [(view.nacks, view.error) for view in q.peek(state="scheduled")]
        [(1, 'line busy')]
    """

    def __init__(
        self,
        after: Duration | None = None,
        error: str = "",
        *,
        hold: Literal["queue", "key"] | None = None,
    ) -> None:
        super().__init__(after, error)
        delay_ms = -1 if after is None else duration_ms("after", after)
        text = check_text("error", error, limit=MAX_TEXT_BYTES)
        self.verdict = _with_hold(Verdict("nack", delay_ms, text), hold, "after", after)

    def __repr__(self) -> str:
        after, error = self.args
        shown = [] if after is None else [f"after={after!r}"]
        shown += [f"error={error!r}"] if error else []
        shown += [f"hold={self.verdict.hold!r}"] if self.verdict.hold else []
        return f"{type(self).__name__}({', '.join(shown)})"


class Snooze(Result):
    """The job is delivered again later; this is no failure and counts no attempt.

    Args:
        seconds: until it may be delivered again.
        hold: as of `Retry`.

    Raises:
        BadArgument: not a duration, no such hold, or a hold without a time.

    Examples:
        >>> job = q.enqueue("ping")
        >>> Worker(ps, q, lambda job: Snooze(60), burst=True).run()
        >>> [view.nacks for view in q.peek(state="scheduled")]
        [0]
    """

    def __init__(self, seconds: Duration, *, hold: Literal["queue", "key"] | None = None) -> None:
        super().__init__(seconds)
        verdict = Verdict("release", duration_ms("seconds", seconds))
        self.verdict = _with_hold(verdict, hold, "seconds", seconds)


class Reject(Result):
    """The job becomes a dead letter.

    Args:
        reason: the reason to keep with the job, at most 1024 bytes.

    Raises:
        BadArgument: not a text.

    Examples:
        >>> job = q.enqueue("ping")
        >>> Worker(ps, q, lambda job: Reject("no such host"), burst=True).run()
        >>> [letter.error for letter in q.peek(state="dead")]
        ['no such host']
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.verdict = Verdict("bury", text=check_text("reason", reason, limit=MAX_TEXT_BYTES))


def _is_init_of(frame: FrameType, result: Result) -> bool:
    """Return True if the frame is that of an `__init__` that makes this result."""
    code = frame.f_code
    return code.co_name == "__init__" and frame.f_locals.get(code.co_varnames[0]) is result


def _with_hold(
    verdict: Verdict,
    hold: Literal["queue", "key"] | None,
    name: str,
    seconds: Duration | None,
) -> Verdict:
    """Return the verdict with a hold for so long; `name` is that of the argument `seconds`."""
    if hold is None:
        return verdict
    if hold not in ("queue", "key"):
        raise BadArgument("hold", hold, 'must be "queue", "key" or None')
    span_ms = 0 if seconds is None else duration_ms(name, seconds)
    if not 0 < span_ms <= LONGEST_HOLD_MS:
        raise BadArgument(name, seconds, f'must be above 0 and at most a day with hold="{hold}"')
    return verdict._replace(hold=hold, hold_ms=span_ms)


class Suspension(Result):
    """The job sleeps or waits. A worker makes it; a handler takes `steps.sleep`, `steps.wait`.

    Args:
        verdict: the report.
    """

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict  # it is no result that the handler has made


def described(error: BaseException) -> str:
    """Return the summary of an exception, cut to 1024 bytes."""
    return check_text("error", summary_of(error), limit=MAX_TEXT_BYTES)
