"""Jobs that follow another one: its ack adds them in the same step (protocol/hand-over.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.core.enqueuing.batches import BatchCondition, callback_job
from penstock.core.enqueuing.dedup import Dedup
from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.enqueuing.options import NOT_STORED, NamedHandler
from penstock.core.values.codec import Codec
from penstock.errors import BadArgument

__all__ = [
    "MOST_BATCH_BYTES",
    "MOST_NEXT_JOBS_BYTES",
    "NextJobs",
    "next_batch",
    "next_jobs",
    "records_of",
    "repeatable",
]

MOST_NEXT_JOBS = 16
"""Most jobs that one ack adds."""
MOST_NEXT_JOBS_BYTES = 65_536
"""Most bytes of their records."""
MOST_BATCH_JOBS = 1000
"""Most members of a batch that one ack adds."""
MOST_BATCH_BYTES = 1_048_576
"""Most bytes of the records of a batch."""
DAY = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class NextJobs:
    """The jobs that follow one, as its handler describes them, and as they go on the wire.

    Attributes:
        jobs: the jobs.
        records: of those in the queue of the first job: delay in ms, and record.
        batch: the condition of a batch on the wire: the first job is its callback, the others are
            its members, if there are some or it keeps their values; empty = they are no batch.
        is_chain: whether the first job is the next link of a chain.
    """

    jobs: tuple[NewJob, ...]
    records: tuple[tuple[int, bytes], ...] = ()
    batch: str = ""
    is_chain: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NextJobs):
            return NotImplemented
        mine, theirs = (self.records, self.batch), (other.records, other.batch)
        return mine == theirs and self._described == other._described

    def __hash__(self) -> int:
        return hash((len(self.jobs), self.records))  # the body of a job may have no hash

    @property
    def _described(self) -> list[tuple[Any, ...]]:
        return [(job.body, dict(job.options.by_name), job.queue) for job in self.jobs]


def next_jobs(then: Any) -> NextJobs | None:
    """Return the jobs of the argument `then`; None if there are none.

    Raises:
        BadArgument: not an iterable of at most 16 jobs, or one has an option that it can't have.
    """
    jobs = tuple(then) if isinstance(then, Iterable) else (None,)
    if not all(isinstance(job, NewJob) for job in jobs):
        reason = 'must be a list of jobs of handlers: then=[resize.job("a.png")]'
        raise BadArgument("then", then, reason)
    if len(jobs) > MOST_NEXT_JOBS:
        reason = (
            f"an ack adds at most {MOST_NEXT_JOBS} jobs, not {len(jobs)}: add them in a handler"
        )
        raise BadArgument("then", f"<{len(jobs)} jobs>", reason)
    for job in jobs:
        job.options.refuse(
            NOT_STORED, "a job that is handed over can't have it: enqueue it instead"
        )
    return NextJobs(jobs) if jobs else None


def next_batch(
    batch: Any,
    then: Any,
    on: BatchCondition,
    *,
    on_failure: NamedHandler | str | None,
    results: bool,
) -> NextJobs | None:
    """Return the jobs of a batch that follows a job, with its callback; None = there are none.

    Raises:
        BadArgument: they are no jobs, or too many; or an argument is not as in `Queue.batch`.
    """
    members = tuple(batch) if isinstance(batch, Iterable) else (None,)
    if not all(isinstance(job, NewJob) for job in members):
        reason = "must be a list of jobs of handlers: batch=resize.jobs(paths)"
        raise BadArgument("batch", batch, reason)
    if len(members) > MOST_BATCH_JOBS:
        reason = f"an ack adds a batch of at most {MOST_BATCH_JOBS} jobs: use queue.batch()"
        raise BadArgument("batch", f"<{len(members)} jobs>", reason)
    if not isinstance(then, NewJob):
        reason = 'must be the callback of the batch, a job of a handler: then=join.job("a")'
        raise BadArgument("then", then, reason)
    for job in members:
        job.options.refuse(NOT_STORED, "a job that is handed over can't have it: enqueue it")
    callback, condition = callback_job(then, on, on_failure=on_failure, results=results)
    return NextJobs((callback, *members), batch=condition)


def records_of(
    jobs: Iterable[NewJob], codec: Codec | None, *, most: int, argument: str = "then"
) -> tuple[tuple[int, bytes], ...]:
    """Return delay in ms and record of each job.

    Args:
        jobs: the jobs.
        codec: of the client.
        most: bytes that they may have together.
        argument: the name of the argument that has them.

    Raises:
        BadArgument: a body can't be used, or the records are too large.
    """
    records: list[tuple[int, bytes]] = []
    for job in jobs:
        options = job.options.prepared(codec)
        records.append((int(options.delay), options.record(job.body)))
    size = sum(len(record) for _, record in records)
    if size > most:
        limit = f"one call adds at most {most} bytes, not {size}"
        reason = f"{limit}: store large bodies elsewhere"
        raise BadArgument(argument, f"<{len(records)} jobs>", reason)
    return tuple(records)


def repeatable(job_id: str, place: int, lease: float) -> Dedup:
    """Return the dedup id of a job in another queue, so that a repeat of its enqueue adds it once.

    Args:
        job_id: of the job that it follows.
        place: its place among those that follow.
        lease: of the first job, seconds.
    """
    return Dedup(f"then:{job_id}:{place}", window=max(DAY, 2 * lease), until="enqueued")
