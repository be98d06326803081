"""Look at a queue: counts, jobs, results and history."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from penstock.client._async.admin import AsyncQueueAdmin, ask_all
from penstock.client._async.route.part import AsyncPart
from penstock.client._async.settling import check_jobs
from penstock.client._async.transport.finished import AsyncJobWait
from penstock.client.clock import monotonic
from penstock.core.jobs.job import JobName
from penstock.core.jobs.marks import LogLine
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.results import next_link, value_of
from penstock.core.jobs.views import DedupStatus, JobResult, JobView
from penstock.core.values.checks import (
    BATCH,
    Duration,
    StateName,
    check_choice,
    check_count,
    check_flag,
    check_label,
    duration_ms,
)
from penstock.core.values.ids import is_job_id
from penstock.errors import (
    BadArgument,
    NodesMissed,
    PenstockError,
    ResultTimeout,
)

if TYPE_CHECKING:
    from penstock.client._async.chains import AsyncQueueChains
    from penstock.client._async.searching import AsyncJobSearch
    from penstock.core.jobs.events import JobEvent
    from penstock.core.jobs.history import QueueHistory

LOOK_AGAIN = 4.0
"""Seconds after which a job that is awaited or watched is looked at again."""


class AsyncQueueLooking(AsyncQueueAdmin):
    """The methods of a queue that look at it."""

    async def stats(self) -> QueueStats:
        """Return exact counts, in time that does not grow with the number of jobs.

        With several nodes or partitions they are added up, and settings are those that were stored
        last. `unreachable` names the nodes that did not answer, `differing` those with other
        settings, and `nodes` has the figures of each node.

        Examples:
            >>> added = await q.enqueue_many([b"a", b"b"], delay=60)
            >>> (await q.stats()).scheduled
            2
        """
        return await (await self.route.refresh()).read_stats()

    async def history(self) -> QueueHistory:
        """Return what has happened in the queue in the last two days, as its workers noted it.

        Parts on several nodes and partitions are added up; those that did not answer are left out.
        Nothing is written.

        Examples:
            >>> (await q.history()).minutes
            []
        """
        from penstock.core.jobs.history import read_history

        route = await self.route.refresh()
        answers, _ = await route.ask_parts(lambda part: part.read_history())
        now = max((now_ms for _, now_ms in answers), default=0) / 1000
        return read_history([stored for stored, _ in answers], now)

    async def peek(
        self, n: int = 10, *, state: StateName = "ready", start: int = 0, newest: bool = False
    ) -> list[JobView]:
        """Return jobs without taking them. Ready jobs come in the order of `reserve`.

        Expired jobs in the way are removed; the call is repeated until there are none.

        Args:
            n: most jobs to return, up to 1000; about 1 MiB of bodies, less after a lost reply.
            state: ready, scheduled (by due time), parked (by key), active (by end of lease) or dead
                (by death).
            start: number of jobs to skip, up to 1000; negative = the first job, counted from the
                end: -3 is the last but two. Beyond either end there are no jobs.
            newest: go backwards from the end.

        With several nodes or partitions, n and start together are at most 1000, and jobs are merged
        by time (parked ones by key): consumers do not reserve in this order. `unreachable` of the
        list names the nodes that did not answer.

        Examples:
            >>> added = await q.enqueue({"to": "ada"})
            >>> [(view.state, view.body) for view in await q.peek()]
            [('ready', {'to': 'ada'})]
        """
        check_count("n", n, high=BATCH)
        low = 0 if check_flag("newest", newest) else -BATCH
        check_count("start", start, low=low, high=BATCH)
        check_choice("state", state, StateName)
        return await (await self.route.refresh()).peek(state, start, n, newest=newest)

    async def show(self, job: JobName) -> JobView | None:
        """Return all data of one job, or None if it is gone.

        Raises:
            BadJobId: the id is malformed, or of another queue, node or epoch.
        """
        names = check_jobs("job", [job])
        route = await self.route.refresh()
        return (await route.call_parts(names, lambda part, own: part.show(own), None))[0]

    async def log(self, job: JobName) -> list[LogLine]:
        """Return the last 100 lines that handlers of a job have logged, the oldest first.

        The server has the lines of a running handler after a second or two. They are gone when the
        job is done or removed; a dead letter keeps them.

        Args:
            job: a delivery or an id.

        Raises:
            BadJobId: the id is malformed, or of another queue or node.

        Examples:
            >>> added = await q.enqueue("ping")
            >>> [job] = await q.reserve(block=0)
            >>> job.log("3 rows, 1 of them new")
            >>> await job.send_progress()
            True
            >>> [line.text for line in await q.log(added.id)]
            ['3 rows, 1 of them new']
        """
        names = check_jobs("job", [job])
        route = await self.route.refresh()
        nothing = list[LogLine]()
        return (await route.call_parts(names, lambda part, own: part.read_logs(own), nothing))[0]

    async def result(self, job: JobName, *, timeout: Duration | None = None) -> Any:
        """Wait until a job has ended, and return the value that its handler returned.

        The job needs a `result_ttl`: without one nothing is kept when it is done. The queue is
        asked at once, and again when the job's end is told, or after four seconds. Of a chain it
        is that of the last job.

        Args:
            job: a delivery or an id.
            timeout: seconds to wait; 0 = look once, None = for ever.

        Returns:
            The value, decoded from JSON. None if the job was acknowledged without a value.

        Raises:
            BadArgument, BadJobId: an argument can't be used.
            JobFailed: the job is a dead letter; the error has the stored error.
            JobCancelled, JobExpired: it was cancelled, or its ttl has ended.
            ResultGone: the job is gone and nothing is kept of it, or its value was not kept: it was
                too large, not JSON, its node was down, or the server's memory was full.
            ResultTimeout: it has not ended in time. The text says in which state it is, and if no
                worker of the queue is listed.

        Examples:
            >>> job = await q.enqueue(3, result_ttl=60)
            >>> await AsyncWorker(ps, q, lambda job: job.body**2, burst=True).run()
            >>> await q.result(job.id, timeout=10)
            9
        """
        span = None if timeout is None else duration_ms("timeout", timeout) / 1000
        names = check_jobs("job", [job])
        until, wait = math.inf if span is None else monotonic() + span, AsyncJobWait()
        last = b""

        async def look(part: AsyncPart, own: list[JobName]) -> list[JobResult | None]:
            nonlocal last
            looked = await part.read_results(own, None if span == 0 else wait)
            last = looked.last
            return looked.jobs

        try:
            while True:
                [result] = await (await self.route.refresh()).call_parts(names, look, None)
                name = names[0] if isinstance(names[0], str) else names[0].id
                if following := next_link(name, result):
                    names = [following]
                    continue
                if result is None or result.state != "waiting":
                    return value_of(name, result)
                left = until - monotonic()
                if left <= 0:
                    why = await self._explain_wait(names[0]) if span else ""
                    raise ResultTimeout(f"job {names[0]!s} has not ended within {span} s{why}")
                await wait.pause([last], min(left, LOOK_AGAIN))
        finally:
            wait.leave()

    def watch(self, job: JobName, *, timeout: Duration | None = None) -> AsyncIterator[JobEvent]:
        """Iterate over what happens to a job: its attempts, progress and chunks, until its end.

        The first event is the state of the job now. While a client watches, the worker sends each
        progress and each chunk (`job.emit`) at once. Chunks that were told before are read as far
        as the server has kept them, those of earlier attempts left out. The last event has the kind
        "ended". Of a chain, all jobs are watched, one behind another. A client that stops reading
        needs to do nothing else.

        Args:
            job: a delivery or an id.
            timeout: seconds until the job must have ended; 0 = yield what is known now, None = wait
                for ever.

        Returns:
            The events, in order. With `async for` of an `AsyncQueue`.

        Raises:
            BadArgument, BadJobId: an argument can't be used.
            ResultTimeout: the job has not ended in time.

        Examples:
            >>> job = await q.enqueue(3, result_ttl=60)
            >>> await AsyncWorker(ps, q, lambda job: job.body**2, burst=True).run()
            >>> [(event.kind, event.value) async for event in q.watch(job.id)]
            [('ended', 9)]
        """
        from penstock.client._async.watching import watch_job

        span = None if timeout is None else duration_ms("timeout", timeout) / 1000
        [name] = check_jobs("job", [job])
        return watch_job(self, name, span=span, look_again=LOOK_AGAIN)

    @property
    def chains(self) -> AsyncQueueChains:
        """Its chains: their state, and their end."""
        from penstock.client._async.chains import AsyncQueueChains

        return AsyncQueueChains(self)

    async def _explain_wait(self, job: JobName) -> str:
        from penstock.client._async.workers import read_workers

        with suppress(RedisError, PenstockError):  # the time is over in any case
            view = await self.show(job)
            if view is None:
                return ""
            if view.state != "ready":  # only then a worker may be missing
                return f": it is {view.state}"
            prefix = self.ops.keys.prefix
            lists = await ask_all(self, lambda part: read_workers(part.executor, prefix))
            runs = any(self.name in one.queues for views in lists for one in views)
            lack = "" if runs else f", and no worker of queue {self.name!r} is listed"
            return f": it is ready{lack}"
        return ""

    async def dedup_status(self, dedup_id: str) -> DedupStatus | None:
        """Return the job that has a dedup id, its successor if one waits, and the open window.

        Args:
            dedup_id: as the producer gave it, not the id of a job.

        Returns:
            None if the id is free: the next enqueue with it adds a job. With several nodes: the
            job on the first node that knows the id.

        Raises:
            BadArgument: it is the id of a job; nothing was sent.
            NodesMissed: no node that answered has the id, and some did not answer.
        """
        label = check_label("dedup_id", dedup_id)
        if is_job_id(dedup_id):
            raise BadArgument("dedup_id", dedup_id, "is the id of a job: use show() with it")
        statuses, missed = await (await self.route.refresh()).ask_parts(
            lambda part: part.look_up(label)
        )
        known = next((status for status in statuses if status is not None), None)
        if known is None and missed:
            raise NodesMissed(missed)
        return known

    def jobs(
        self,
        state: StateName | Iterable[StateName] | None = None,
        *,
        handler: str | None = None,
        error: str | None = None,
        text: str | None = None,
        group: str | None = None,
        key: str | None = None,
        batch: str | None = None,
        older_than: Duration | None = None,
        suspended: bool = False,
        newest: bool = False,
        body: int | None = None,
        n: int = 100,
    ) -> AsyncJobSearch:
        """Return the jobs that match, to iterate over or to read page by page.

            async for view in queue.jobs("dead", handler="resize", error="Timeout"): ...
            page = await queue.jobs("dead").page()  # page.jobs, page.cursor

        Jobs of one state come in order. Ready jobs: first those with an ended lease, then those
        that have become due, then the others. Scheduled ones by due time, parked ones by key,
        active ones by end of lease, dead ones by death. A queue of several parts is read part after
        part. A job that is removed meanwhile, or changes its place, does not disturb the search. A
        job that comes to a place behind the cursor is found, too.

        Jobs of several states come in no order. One that exists from the first step to the last is
        found at least once, perhaps twice. One that is added or removed meanwhile may be missed
        (protocol/maintenance.md, Scanning).

        Args:
            state: ready, scheduled, parked, active or dead; or several of them; None = all.
            handler: only jobs of the handler of this name; "" = jobs without one.
            error: only jobs whose last error contains this text, in any case of its letters.
            text: only jobs with this text in their body, a header, their dedup id or last error,
                in any case of its letters. JSON is searched as it is stored.
            group: only jobs of the group of errors with this id, see `error_groups`.
            key: only jobs of this key.
            batch: only jobs of the batch with this id, whose callback has not ended. Each job is
                looked at alone, so a step takes longer.
            older_than: only jobs that were enqueued longer ago than this.
            suspended: only jobs whose step sleeps, or waits for a signal or for the jobs that it
                has called. They are scheduled; each scheduled one costs a round trip.
            newest: with one state: go backwards from the end.
            body: the most bytes of each body, up to 1000, into `raw`; a large body (more than 4096
                bytes) may be left out then. None = whole bodies; of one state those from 1000
                bytes on take another round trip for 100 jobs or 1 MiB.
            n: the most jobs to look at in a step, up to 1000; without order about as many.

        Raises:
            BadArgument: an argument can't be used.

        Examples:
            >>> added = await q.enqueue_many([b"a", b"b", b"c"])
            >>> [view.body async for view in q.jobs("ready", newest=True)]
            [b'c', b'b', b'a']
        """
        from penstock.client._async.searching import AsyncJobSearch
        from penstock.core.jobs.searching import check_search

        search = check_search(
            state=state,
            handler=handler,
            error=error,
            text=text,
            group=group,
            key=key,
            batch=batch,
            older_than=older_than,
            suspended=suspended,
            newest=newest,
            body=body,
        )
        return AsyncJobSearch(self, search, check_count("n", n, high=BATCH))
