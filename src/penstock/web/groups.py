"""Groups of errors of dead letters: counted in the background, while pages ask for them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from redis.exceptions import RedisError

from penstock.client._async.queue import AsyncQueue
from penstock.core.jobs.error_groups import ErrorCounter, ErrorGroups
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.queue_stats import QueueStats
from penstock.errors import PenstockError
from penstock.web.runs import Filter

__all__ = ["GroupCounts"]

logger = get_logger("penstock.web")

JOBS_PER_GROUP_STEP = 500
"""Jobs that a step counts: the server takes about 10 ms for them."""
REST_PER_GROUP_STEP = 1.0
"""Pause after a step, in lengths of the step."""
REST_PER_GROUP_COUNT = 10.0
"""Pause after a count, in lengths of the count."""
SHORTEST_GROUP_REST = 5.0
"""Seconds from the end of a count to the next one, at least."""
FIRST_COUNT_SECONDS = 0.25
"""Seconds that the first page of a queue waits for a count."""
MAX_COUNTED_JOBS = 250_000
"""Dead letters that are counted, the newest ones."""
KEPT_GROUP_COUNTS = 50
"""Queues whose groups are remembered."""


@dataclass
class _Count:
    """The last count of a queue, and the one that is under way."""

    counted: tuple[object, ...] = ()
    groups: ErrorGroups | None = None
    due: float = 0.0
    is_stale: bool = True
    task: asyncio.Task[None] | None = None


class GroupCounts:
    """The groups of errors of queues whose pages are open."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    async def read(self, queue: AsyncQueue, stats: QueueStats) -> ErrorGroups | None:
        """Return the groups as far as they are counted; None = there are no dead letters.

        A count begins if the dead letters have changed. The groups of the last one are returned
        until it has ended.
        """
        if not stats.dead:
            return None
        count = self._counts.pop(queue.name, None) or _Count()
        self._counts[queue.name] = count
        self._drop_oldest()
        present = (stats.epoch, stats.died, stats.dead)
        if count.task is None and present != count.counted and time.monotonic() >= count.due:
            count.counted = present
            count.task = asyncio.create_task(self._work(queue, count))
            if count.is_stale or count.groups is None:
                count.is_stale = False
                await asyncio.wait([count.task], timeout=FIRST_COUNT_SECONDS)
        return count.groups

    def explain(self, name: str, chosen: Filter) -> Filter:
        """Return a filter of a queue with the text of its group, as far as that is known."""
        count = self._counts.get(name)
        for one in count.groups.groups if count and count.groups and chosen.group else ():
            if one.id == chosen.group:
                of_handler = f" in {one.handler}" if one.handler else ""
                return replace(chosen, group_text=f"{one.error or 'no error'}{of_handler}")
        return chosen

    def forget(self, name: str) -> None:
        """Count the groups of a queue again at the next request: an action has changed them."""
        count = self._counts.get(name)
        if count is not None:
            count.due, count.is_stale = 0.0, True

    async def close(self) -> None:
        """Stop all counts."""
        tasks = [count.task for count in self._counts.values() if count.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop_oldest(self) -> None:
        if len(self._counts) > KEPT_GROUP_COUNTS:
            idle = (name for name, count in self._counts.items() if count.task is None)
            self._counts.pop(next(idle, ""), None)

    async def _work(self, queue: AsyncQueue, count: _Count) -> None:
        began = time.monotonic()
        try:
            await _count_groups(queue, count)
        except (PenstockError, RedisError, OSError) as error:
            count.counted = ()
            logger.warning("groups of errors of %r are not counted: %s", queue.name, error)
        finally:
            ended = time.monotonic()
            rest = max(SHORTEST_GROUP_REST, REST_PER_GROUP_COUNT * (ended - began))
            count.due, count.task = ended + rest, None


async def _count_groups(queue: AsyncQueue, count: _Count) -> None:
    counter, is_first = ErrorCounter(), count.groups is None
    search = queue.jobs("dead", newest=True, body=0, n=JOBS_PER_GROUP_STEP)
    while not counter.is_complete and counter.looked < MAX_COUNTED_JOBS:
        began = time.monotonic()
        counter.add(await search.page(counter.cursor))
        if is_first:
            count.groups = counter.result
        await asyncio.sleep(REST_PER_GROUP_STEP * (time.monotonic() - began))
    count.groups = counter.result
