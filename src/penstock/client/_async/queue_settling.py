"""The calls of a queue that settle jobs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

from penstock.client._async.handling import AsyncQueueHandlers
from penstock.client._async.settling import check_jobs, extend_each
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import Delivery, JobName, data_of
from penstock.core.jobs.marks import check_trace
from penstock.core.jobs.merge import with_outcomes
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.results import CHAIN_FIELD, refuse_links
from penstock.core.values.checks import (
    Duration,
    check_flag,
    check_text,
    duration_ms,
    lease_ms,
)
from penstock.core.values.durable import Durable, ack_wait
from penstock.wire.codes import Code

__all__ = ["AsyncQueueSettling"]


class AsyncQueueSettling(AsyncQueueHandlers):
    """The part of a queue that settles jobs and extends leases."""

    async def ack(
        self,
        jobs: Iterable[JobName],
        *,
        dedup_window: Duration | None = None,
        replicas: int = 0,
        durable: Durable | None = None,
    ) -> Settled:
        """Finish jobs: they are done and removed. An id alone finishes a waiting job too.

        An acknowledged job comes back if the server fails and its replacement did not get the ack.
        `replicas` and `durable` wait for confirmations against that, once for each 1000 jobs.

        Args:
            jobs: deliveries, or ids.
            dedup_window: seconds for which the jobs' dedup ids stay taken from now on, instead of
                the window that the producer chose; 0 = they are free. Ignored without a dedup id.
            replicas: the short form of `durable=Durable(replicas=...)`.
            durable: replicas and disks that must confirm the ack. The queue's setting `replicas` is
                for producers only.

        With several nodes: if the node of a job can't be reached, the call is stored on another one
        (`Outcome.HINTED`) and runs when the node is back. The same holds for `delete` and `bury`,
        but not for jobs delivered at most once.

        Returns:
            An outcome for each, in order: done, gone, stale, ended or refused (a dead letter); and
            how many replicas confirmed.

        Raises:
            BadArgument: an argument can't be used, or jobs follow a delivery in a chain, to which
                its worker hands over; nothing was done.
            BadJobId: an id is malformed, of another queue, node or epoch; nothing was done.
            AckNotReplicated: too few replicas confirmed in time, or the disk did not; the jobs are
                acknowledged all the same, and the error has their outcomes.
            CannotSync: the server can't report which writes are on disk; nothing was done.
            IncompleteSettle: of more than 1000 jobs some were settled, and then a call failed.

        Examples:
            >>> added = await q.enqueue_many([b"a", b"b"])
            >>> outcomes = await q.ack(await q.reserve(2))
            >>> [str(outcome) for outcome in outcomes]
            ['done', 'done']
        """
        window = None if dedup_window is None else duration_ms("dedup_window", dedup_window)
        build = QueueOps.ack if window is None else partial(QueueOps.ack, window_ms=window)
        wait = ack_wait(replicas, durable)
        intent = Intent("ack", window, waits=wait is not None)
        jobs = jobs if type(jobs) is list else check_jobs("jobs", jobs)
        for job in jobs:  # as `links_of`, without a call for each
            if isinstance(job, Delivery):
                data = data_of(job)
                if data.find(CHAIN_FIELD, 0, data.find(b"\n")) > 0:
                    refuse_links((job,))
        return await self._settle(jobs, build, resent_code=Code.GONE, wait=wait, intent=intent)

    async def nack(
        self,
        jobs: Iterable[JobName],
        *,
        delay: Duration | None = None,
        error: str = "",
        trace: str = "",
    ) -> Settled:
        """Report failed attempts. Jobs are tried again later, or are dead after the last attempt.

        Args:
            jobs: deliveries, or ids of delivered jobs. The receipts of their holders become void.
            delay: seconds until the next attempt; None = the backoff of the job's policy, or the
                queue's; 0 = at once, before younger jobs, or
                by the turns of its key.
            error: stored with the job, cut to 1024 bytes; also among its last ten failures.
            trace: the traceback; its last 8192 bytes are stored.

        Returns:
            An outcome for each, in order: done, dead, cancelled (it was marked, and has ended),
            gone, stale, ended or refused.

        Raises:
            BadArgument, BadJobId: nothing was done.

        Examples:
            >>> added = await q.enqueue(b"a")
            >>> outcomes = await q.nack(await q.reserve(), delay=0, error="no answer")
            >>> (await q.reserve())[0].last_error
            'no answer'
        """
        delay_ms = -1 if delay is None else duration_ms("delay", delay)
        text, tail = check_text("error", error, limit=1024), check_trace(trace)
        return await self._settle(
            jobs, lambda ops, names: ops.nack(names, delay_ms, text, trace=tail)
        )

    async def release(self, jobs: Iterable[JobName], *, delay: Duration = 0) -> Settled:
        """Give jobs back without counting a failure.

        Args:
            jobs: deliveries, or ids of delivered jobs.
            delay: seconds until they may be delivered again; 0 = at once, before younger jobs, or
                by the turns of its key.

        Returns, raises: as `nack`.
        """
        delay_ms = duration_ms("delay", delay)
        return await self._settle(jobs, lambda ops, names: ops.release(names, delay_ms))

    async def bury(self, jobs: Iterable[JobName], reason: str = "", *, trace: str = "") -> Settled:
        """Turn jobs into dead letters. An id alone buries a waiting job too.

        Args:
            jobs: deliveries, or ids.
            reason: stored with the job, cut to 1024 bytes.
            trace: as in `nack`.

        Returns, raises: as `nack`.
        """
        text, tail = check_text("reason", reason, limit=1024), check_trace(trace)
        intent = Intent("bury", reason=text)
        return await self._settle(
            jobs, lambda ops, names: ops.bury(names, text, tail), intent=intent
        )

    async def extend(
        self, jobs: Iterable[JobName], lease: Duration | None = None, *, late: bool = False
    ) -> Settled:
        """Renew leases from now on, at most until the end of a job's ttl.

        Leases that a worker renews never get shorter by this.

        Args:
            jobs: deliveries, or ids of delivered jobs.
            lease: seconds; None = each job's own lease.
            late: also extend jobs when more than half of their ttl has passed. By default such a
                job goes to another consumer when its lease ends, while there is time left.

        Returns:
            An outcome for each, in order: done, gone, stale, ended, too late (see `late`) or
            refused (not active, or delivered at most once). `seconds_left` has, for each, the
            seconds from now until its lease ends, or None.

        Raises:
            BadArgument, BadJobId: nothing was done.
        """
        span = 0 if lease is None else lease_ms("lease", lease, zero=False)
        check_flag("late", late)
        extend = partial(extend_each, span=span, late=late)
        names, unknown = check_jobs("jobs", jobs), cast("float | Outcome", Outcome.UNKNOWN)
        route = await self.route.refresh()
        with with_outcomes(names, Settled.of_leases):
            return Settled.of_leases(names, await route.call_parts(names, extend, unknown))
