"""Jobs that follow another one: its ack adds them in the same step (protocol/hand-over.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.core.enqueuing.dedup import Dedup
from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.enqueuing.options import NOT_STORED
from penstock.core.values.codec import Codec
from penstock.errors import BadArgument

__all__ = ["NextJobs", "next_jobs", "records_of", "repeatable"]

MOST_NEXT_JOBS = 16
"""Most jobs that one ack adds."""
MOST_NEXT_JOBS_BYTES = 65_536
"""Most bytes of their records."""
DAY = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class NextJobs:
    """The jobs that follow one, as its handler describes them, and as they go on the wire.

    Attributes:
        jobs: the jobs.
        records: of those in the queue of the first job: delay in ms, and record.
    """

    jobs: tuple[NewJob, ...]
    records: tuple[tuple[int, bytes], ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NextJobs):
            return NotImplemented
        return self.records == other.records and self._described == other._described

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


def records_of(jobs: Iterable[NewJob], codec: Codec | None) -> tuple[tuple[int, bytes], ...]:
    """Return delay in ms and record of each job.

    Raises:
        BadArgument: a body can't be used, or the records are too large.
    """
    records: list[tuple[int, bytes]] = []
    for job in jobs:
        options = job.options.prepared(codec)
        records.append((int(options.delay), options.record(job.body)))
    size = sum(len(record) for _, record in records)
    if size > MOST_NEXT_JOBS_BYTES:
        limit = f"an ack adds at most {MOST_NEXT_JOBS_BYTES} bytes, not {size}"
        reason = f"{limit}: store large bodies elsewhere"
        raise BadArgument("then", f"<{len(records)} jobs>", reason)
    return tuple(records)


def repeatable(job_id: str, place: int, lease: float) -> Dedup:
    """Return the dedup id of a job in another queue, so that a repeat of its enqueue adds it once.

    Args:
        job_id: of the job that it follows.
        place: its place among those that follow.
        lease: of the first job, seconds.
    """
    return Dedup(f"then:{job_id}:{place}", window=max(DAY, 2 * lease), until="enqueued")
