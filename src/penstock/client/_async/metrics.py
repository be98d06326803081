"""The figures of queues, workers and nodes for monitoring systems. Looking writes nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import escape
from http import HTTPStatus
from urllib.parse import unquote

from redis.exceptions import RedisError

from penstock.client._async.client import AsyncPenstock
from penstock.client._async.queue import AsyncQueue
from penstock.client._async.route.part import AsyncPart
from penstock.client.clock import monotonic
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.nodes.metrics import TEXT_TYPE, Family, LateSchedules, Seen, as_text
from penstock.core.nodes.times_counter import TimesCounter
from penstock.core.values.answers import HttpAnswer, json_answer, unavailable
from penstock.core.values.checks import check_count
from penstock.errors import BadArgument, NodesMissed, PenstockError

__all__ = ["MAX_QUEUES", "AsyncMetrics"]

logger = get_logger("penstock")
MAX_QUEUES = 1_000
"""Queues with labels of their own, unless another number is given."""
TIMES_INTERVAL = 55.0
"""Seconds between two looks at histories."""
IN_USE_SECONDS = 300.0
"""Seconds after the last write to a queue in which its history may still grow."""
LATE_TICK_SECONDS = 60.0
"""Seconds after which a due tick is late."""


class AsyncMetrics:
    """Reads the figures of queues, workers and nodes, and answers requests for them.

    Args:
        client: reads the figures.
        patterns: only queues whose names match one of them, as in `client.queues`.
        most: the most queues with figures of their own: the first ones by name.
        times: those of the jobs that earlier objects have seen; None = they are counted from now.

    Raises:
        BadArgument: an argument can't be used.
    """

    def __init__(
        self,
        client: AsyncPenstock,
        patterns: Sequence[str] = ("*",),
        most: int = MAX_QUEUES,
        times: TimesCounter | None = None,
    ) -> None:
        self._client = client
        self._patterns = patterns
        self._most = check_count("most", most)
        self._times = TimesCounter() if times is None else times

    async def read(self) -> list[Family]:
        """Return the metrics as they are now; `penstock_up` alone is 0 if no server answers."""
        try:
            return (await self._look()).families()
        except (PenstockError, RedisError, OSError) as error:
            logger.warning("the figures of queues can't be read: %s", error)
            return [Family("penstock_up", [((), 0)])]

    async def _look(self) -> Seen:
        every = dict[str, QueueStats]()
        for pattern in self._patterns:
            async for stats in self._find(pattern):
                every[stats.name] = stats
        shown = [every[name] for name in sorted(every)[: self._most]]
        late = {
            one.name: await _late_schedules(await self._client.open(one.name))
            for one in shown
            if one.has_schedules
        }
        await self._look_at_times(shown)
        workers, hello = await self._client.workers(), await self._client.hello()
        return Seen(shown, len(every), late, workers=workers, nodes=hello.nodes, times=self._times)

    async def _look_at_times(self, queues: Sequence[QueueStats]) -> None:
        """Read the histories of queues in use, once a minute, as workers write them."""
        times, now = self._times, monotonic()
        if now < times.due:
            return
        is_first, times.due = not times.due, now + TIMES_INTERVAL
        for stats in queues:
            if stats.deliveries and (is_first or (stats.idle or 0) < IN_USE_SECONDS):
                history = await (await self._client.open(stats.name)).history()
                times.note(stats.name, history, is_first=is_first)

    async def _find(self, pattern: str) -> AsyncIterator[QueueStats]:
        """Yield the queues of a pattern. A name is asked for: a scan would read all names."""
        name = re.sub(r"\[([*?[])\]", r"\1", pattern)
        if escape(name) != pattern:
            async for stats in self._client.scan_queues_iter(pattern=pattern):
                yield stats
            return
        with suppress(BadArgument):  # no queue can have this name
            stats = await (await self._client.open(name)).stats()
            if stats.exists:
                yield stats

    async def answer(self, path: str) -> HttpAnswer | None:
        """Return the answer to GET of this path; None = there is nothing at it.

        /metrics has the text format of Prometheus. /queues/NAME.json has the number of jobs of one
        queue, for autoscalers; a queue without jobs may not exist, and has zeros then.
        """
        if path == "/metrics":
            return HttpAnswer(HTTPStatus.OK, TEXT_TYPE, as_text(await self.read()))
        named = re.fullmatch(r"/queues/([^/]+)\.json", path)
        if not named:
            return None
        name = unquote(named[1])
        if not any(fnmatchcase(name, pattern) for pattern in self._patterns):
            return None
        try:
            return json_answer(await self._count_jobs(name))
        except BadArgument as error:
            return json_answer({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except (PenstockError, RedisError, OSError) as error:
            return unavailable(str(error))

    async def _count_jobs(self, name: str) -> dict[str, object]:
        stats = await (await self._client.open(name)).stats()
        if stats.unreachable:  # an autoscaler must not take the jobs that are seen for all
            raise NodesMissed(dict.fromkeys(stats.unreachable, "no answer"))
        return {
            "queue": stats.name,
            "backlog": stats.ready + stats.active,
            "ready": stats.ready,
            "active": stats.active,
            "scheduled": stats.scheduled,
            "parked": stats.parked,
            "dead": stats.dead,
            "oldest": stats.oldest or 0,
            "paused": stats.settings.paused in ("out", "all"),
        }


async def _late_schedules(queue: AsyncQueue) -> LateSchedules:
    async def look(part: AsyncPart) -> list[float]:
        listed = await part.executor.run(part.ops.near_schedules(0))
        ticks = [one.tick for one in listed.entries if one.tick is not None]
        return [(listed.now_ms - tick) / 1000 for tick in ticks]

    parts, _ = await (await queue.route.refresh()).ask_parts(look)
    late = [seconds for part in parts for seconds in part]
    return LateSchedules(sum(one > LATE_TICK_SECONDS for one in late), max(late, default=0.0))
