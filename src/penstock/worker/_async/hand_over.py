"""Jobs that follow another one: their records, and the enqueue of those in other queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.clock import monotonic
from penstock.core.enqueuing.new_jobs import NewJob, hooked
from penstock.core.enqueuing.next_jobs import (
    MOST_BATCH_BYTES,
    MOST_NEXT_JOBS_BYTES,
    NextJobs,
    records_of,
    repeatable,
)
from penstock.core.jobs.job import Delivery, ops_of
from penstock.errors import BadArgument

__all__ = ["hand_over", "records_of_calls"]


async def hand_over(client: Any, job: Delivery, then: NextJobs) -> tuple[tuple[int, bytes], ...]:
    """Add the next jobs of other queues; return delay and record of those for the same queue.

    The ack adds these. If the queue has partitions, a job with a key counts as one of another
    queue, as the key chooses the partition. A batch lies in the part of the first job.

    Args:
        client: the client of the worker.
        job: the job that they follow.
        then: the next jobs.

    Raises:
        BadArgument: the records are too large, or a body can't be used, or a job of a batch is of
            another queue; nothing was added.
        PenstockError: a job of another queue could not be added.
    """
    ops = ops_of(job)
    own, others = list[NewJob](), list[tuple[int, NewJob]]()
    for place, new in enumerate(then.jobs):
        is_own = new.queue in (None, job.queue_name)
        stays = bool(then.batch) or (then.is_chain and place == 0)
        if stays and not is_own:
            reason = f"a batch that follows a job lies in its queue, {job.queue_name!r}"
            raise BadArgument("queue", new.queue, reason)
        chooses_partition = ops.partitions and new.options.by_name.get("key") is not None
        if stays or (is_own and not chooses_partition):
            own.append(new)
        else:
            others.append((place, new))
    own = _hooked(client, job, own)
    is_large = then.is_chain or (then.batch and len(own) > 1)
    most = MOST_BATCH_BYTES if is_large else MOST_NEXT_JOBS_BYTES
    records = records_of(own, ops.codec, most=most)
    for place, new in others:
        queue = await client.open(new.queue or job.queue_name)
        await queue.enqueue(new, dedup=repeatable(job.id, place, job.lease))
    return records


def records_of_calls(
    client: Any, job: Delivery, calls: Iterable[NewJob]
) -> tuple[tuple[int, bytes], ...]:
    """Return delay and record of each job that a step calls.

    Args:
        client: the client of the worker.
        job: the job that calls them.
        calls: the jobs.

    Raises:
        BadArgument: they are too large.
        Any exception of the middleware.
    """
    jobs = _hooked(client, job, calls)
    return records_of(jobs, ops_of(job).codec, most=MOST_BATCH_BYTES, argument="jobs")


def _hooked(client: Any, job: Delivery, jobs: Iterable[NewJob]) -> list[NewJob]:
    queue, middleware = job.queue_name, client.middleware
    return [hooked(new, queue, middleware=middleware, clock=monotonic) for new in jobs]
