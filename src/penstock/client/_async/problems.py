"""Read what the rules about problems look at beside figures: schedules and batches of queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock.client._async.batches import read_batches
from penstock.core.enqueuing.batches import BatchStatus
from penstock.core.enqueuing.schedules import ScheduleView
from penstock.core.jobs.queue_stats import QueueStats

if TYPE_CHECKING:
    from penstock.client._async.queue import AsyncQueue

__all__ = ["read_work"]

MOST_BATCHES = 1_000
"""About so many batches of each part of a queue are looked at."""


async def read_work(
    open_queue: Callable[[str], Awaitable[AsyncQueue]], queues: Sequence[QueueStats]
) -> tuple[dict[str, list[ScheduleView]], dict[str, list[BatchStatus]]]:
    """Return the schedules of queues, and the first batches of those that may have one stuck.

    Args:
        open_queue: returns the queue of a name.
        queues: their figures.

    Returns:
        Schedules and batches, by the name of their queue.
    """
    schedules = {
        one.name: await (await open_queue(one.name)).schedules.list()
        for one in queues
        if one.has_schedules
    }
    batches = {  # one that can't end has dead letters
        one.name: await read_batches(await open_queue(one.name), MOST_BATCHES)
        for one in queues
        if one.batches and one.dead
    }
    return schedules, batches
