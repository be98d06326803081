# From src/penstock/worker/_async/hand_over.py by tools/unasync.py; do not edit.
"""Jobs that follow another one: their records, and the enqueue of those in other queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.client.clock import monotonic
from penstock.core.enqueuing.new_jobs import NewJob, hooked
from penstock.core.enqueuing.next_jobs import records_of, repeatable
from penstock.core.jobs.job import Delivery, ops_of

__all__ = ["hand_over"]


def hand_over(client: Any, job: Delivery, then: Sequence[NewJob]) -> tuple[tuple[int, bytes], ...]:
    """Add the next jobs of other queues; return delay and record of those for the same queue.

    The ack adds these. If the queue has partitions, a job with a key counts as one of another
    queue, as the key chooses the partition.

    Args:
        client: the client of the worker.
        job: the job that they follow.
        then: the next jobs.

    Raises:
        BadArgument: the records are too large, or a body can't be used; nothing was added.
        PenstockError: a job of another queue could not be added.
    """
    ops = ops_of(job)
    own, others = list[NewJob](), list[tuple[int, NewJob]]()
    for place, new in enumerate(then):
        is_own = new.queue in (None, job.queue_name)
        if is_own and not (ops.partitions and new.options.by_name.get("key") is not None):
            own.append(new)
        else:
            others.append((place, new))
    own = [
        hooked(new, job.queue_name, middleware=client.middleware, clock=monotonic) for new in own
    ]
    records = records_of(own, ops.codec)
    for place, new in others:
        queue = client.open(new.queue or job.queue_name)
        queue.enqueue(new, dedup=repeatable(job.id, place, job.lease))
    return records
