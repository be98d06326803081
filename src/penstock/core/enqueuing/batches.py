"""Batches: sets of jobs with a callback that runs when they have ended (protocol/batches.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from penstock.core.enqueuing.new_jobs import JobOptions, NewJob
from penstock.core.enqueuing.options import NOT_STORED, NamedHandler
from penstock.core.jobs.job import QueueIdentity
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.record import parse_record
from penstock.core.jobs.results import value_of
from penstock.core.jobs.views import JobResult
from penstock.core.values.checks import check_choice, check_flag, lease_ms
from penstock.core.values.ids import encode_id, ttl_code
from penstock.errors import BadArgument, PenstockError, ResultGone, ResultTimeout
from penstock.wire.replies import ListBatches, ReadBatch

__all__ = [
    "BATCHES_WITH_FAILURES",
    "MOST_NAMED_FAILURES",
    "BatchCondition",
    "BatchFailure",
    "BatchState",
    "BatchStatus",
    "MemberOutcome",
    "callback_job",
    "failures_of",
    "outcomes_of",
    "statuses",
    "values_of",
]

BatchCondition: TypeAlias = Literal["success", "finished"]
BatchState: TypeAlias = Literal["open", "waiting", "called", "failed", "abandoned"]
NOT_OF_CALLBACKS = (*NOT_STORED, "delay", "ttl", "key")
"""Options that a callback can't have."""
KEEPS_VALUES = "+"
"""Behind a condition on the wire: the values of the jobs are kept for the callback."""
FAILURE = "failure"
"""Condition on the wire: "success", with a follow-up when only dead letters are left."""


MOST_NAMED_FAILURES = 20
"""Most dead letters that the status of a batch names."""
BATCHES_WITH_FAILURES = 20
"""Most batches of a list whose dead letters are read: a call or more for each."""
MOST_KEPT_VALUES = 10_000
"""Most members of a batch whose values are kept."""


class MemberOutcome(NamedTuple):
    """The id of a job of a batch, and how it has ended."""

    id: str
    result: JobResult


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """A job of a batch that is a dead letter.

    Attributes:
        id: of the job.
        handler: the name of its handler; "" = it has none.
        error: its last error, or the reason why it is dead.
    """

    id: str
    handler: str
    error: str


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The state of a batch.

    Attributes:
        id: of the batch: the job id of its callback.
        state: "open" = more jobs may join; "waiting" = it is closed, and waits for jobs; "called" =
            its callback was due; "failed" = with `on="success"`, jobs have failed, and the callback
            is a dead letter; "abandoned" = it was not closed in time, and the callback is a dead
            letter.
        on: "success" or "finished".
        total: number of jobs that have joined.
        done: those that were acknowledged.
        failed: those that ended otherwise.
        dead: those that are dead letters now.
        failures: the first 20 of these, the oldest death first; of `queue.batches.list` none.
    """

    id: str
    state: BatchState
    on: BatchCondition
    total: int
    done: int
    failed: int
    dead: int
    failures: tuple[BatchFailure, ...] = ()

    @property
    def open(self) -> int:
        """Return the number of jobs that wait or are active."""
        return self.total - self.done - self.failed - self.dead

    @property
    def awaited(self) -> int:
        """Return the number of jobs that the callback waits for: dead ones too, on success."""
        return self.open + (self.dead if self.on == "success" else 0)

    @property
    def progress(self) -> float:
        """Return the part of the jobs that the callback does not wait for, from 0 to 1."""
        return 1 - self.awaited / self.total if self.total else 1.0

    @property
    def is_stuck(self) -> bool:
        """Return True if it waits only for dead letters, which are to be redriven or deleted.

        `queue.jobs("dead", batch=batch.id)` has them.
        """
        return self.state == "waiting" and self.open == 0 and self.awaited > 0


def callback_job(
    then: Any, on: BatchCondition, *, on_failure: object, results: object
) -> tuple[NewJob, str]:
    """Return the callback of a batch, and its condition on the wire.

    Raises:
        BadArgument: it has an option that a callback can't have, or `on` is unknown, or
            `on_failure` can't be used.
    """
    check_choice("on", on, BatchCondition)
    values = KEEPS_VALUES if check_flag("results", results) else ""
    if on_failure is not None and on == "finished":
        reason = 'can\'t be used with on="finished": that callback runs in any case'
        raise BadArgument("on_failure", on_failure, reason)
    if isinstance(on_failure, NewJob):
        reason = "must be a handler, not a job: it gets the body of the callback"
        raise BadArgument("on_failure", on_failure, reason)
    job = then if isinstance(then, NewJob) else NewJob(then, JobOptions({}))
    job.options.refuse(
        NOT_OF_CALLBACKS, "a callback can't have it: it waits for the jobs of its batch"
    )
    lease = job.options.by_name.get("lease")
    if lease is not None and lease_ms("lease", lease) == 0:
        raise BadArgument("lease", lease, "a callback is delivered at least once: omit lease=0")
    if on_failure is None:
        return job, on + values
    if hasattr(type(on_failure), "check_takes"):
        cast(NamedHandler, on_failure).check_takes("on_failure", job.body)
    return replace(job, options=job.options.updated({"on_dead": on_failure})), FAILURE + values


def statuses(reply: ListBatches, ids: list[str]) -> list[BatchStatus]:
    """Return the batches of a reply; `ids` has the job id of each callback."""
    batches = []
    for job_id, (_, state, letter, total, *counts) in zip(ids, reply.batches, strict=True):
        done, failed, dead = counts
        on: BatchCondition = "finished" if letter == b"f" else "success"  # or a newer form of it
        status = BatchStatus(
            id=job_id,
            state=cast("BatchState", state.decode()),
            on=on,
            total=total,
            done=done,
            failed=failed,
            dead=dead,
        )
        batches.append(status)
    return batches


def failures_of(reply: ReadBatch, place: QueueIdentity) -> list[BatchFailure]:
    """Return the dead letters of a reply; `place`: of the queue."""
    failures = []
    for number, _, _, header, error in reply.members:
        record = parse_record(header + b"\n")
        job_id = encode_id(place.node, place.packed, number, ttl_code(record.ttl_ms))
        handler = record.headers.get(HANDLER, "")
        failures.append(BatchFailure(job_id, handler, error.decode("utf-8", "replace")))
    return failures


def outcomes_of(reply: ReadBatch, ids: list[str]) -> list[MemberOutcome]:
    """Return how the members of a batch have ended; `ids` has the job id of each."""
    outcomes = []
    for job_id, (_, state, failures, _, text) in zip(ids, reply.members, strict=True):
        flag = text[1:].decode() if text[:1] == b"!" and state != b"dead" else ""
        result = JobResult(
            state=state.decode(),
            finished=0.0,
            attempt=int(failures or 0),
            seconds=0.0,
            missing=flag,
            value=b"" if flag else text,
        )
        outcomes.append(MemberOutcome(job_id, result))
    return outcomes


def values_of(
    batch: str, outcomes: Sequence[MemberOutcome], total: int, *, return_exceptions: bool
) -> list[Any]:
    """Return the values of the members of a batch, in the order in which they have joined.

    Args:
        batch: its id.
        outcomes: of the members whose values are kept.
        total: number of members.
        return_exceptions: whether the error of a member without a value takes its place.

    Raises:
        JobFailed, JobCancelled, JobExpired, ResultGone, ResultTimeout: a member has none.
    """
    values = list[Any]()
    for place in range(total):
        try:
            if place >= len(outcomes):
                most = f"only the first {MOST_KEPT_VALUES:,} are kept"
                raise ResultGone(f"batch {batch} has the values of {total:,} jobs: {most}")
            job_id, result = outcomes[place]
            values.append(_member_value(job_id, result))
        except PenstockError as error:  # noqa: PERF203 - each has its own
            if not return_exceptions:
                raise
            values.append(error)
    return values


def _member_value(job_id: str, result: JobResult) -> Any:
    if result.state == "waiting":
        raise ResultTimeout(f"job {job_id} of the batch has not ended")
    if result.state == "gone":
        raise ResultGone(f"job {job_id} of the batch was removed before it was done")
    return value_of(job_id, result)
