"""The queue: producing, consuming and settling."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._async.admin import AsyncQueueAdmin, Named
from penstock.client._async.job import AsyncJob
from penstock.client._async.role import AsyncRole
from penstock.client._async.transport.connection import monotonic
from penstock.core import flows
from penstock.core.bulk import USUAL, Prepared, chunks, prepared
from penstock.core.calls import Confirmed
from penstock.core.dedup import Dedup
from penstock.core.durable import Durable, ack_wait
from penstock.core.job import OUTCOMES, BulkEnqueued, Delivery, Enqueued, Outcome, Settled
from penstock.core.logs import get_logger
from penstock.core.nodes import LOOK
from penstock.core.operations.producing import Added, updates
from penstock.core.options import (
    BATCH,
    Duration,
    Moment,
    RoleName,
    check_block,
    check_count,
    check_text,
    duration_ms,
    lease_ms,
)
from penstock.core.policy import RetryPolicy
from penstock.core.record import check_size, stable_id_of
from penstock.core.stable import next_stable_id
from penstock.errors import (
    BadArgument,
    IncompleteEnqueue,
    NodesUnavailable,
    OutOfMemory,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueueMissing,
    RoleLost,
)
from penstock.wire.codes import Code
from penstock.wire.replies import Claim

logger = get_logger("penstock")

EVICTED = (100, 200, 400, 800, 1000, 1000)
"""Most lease-0 jobs that an enqueue evicts from a full server, each time that it is refused."""
LISTED = 16
"""How many listed queues it sweeps where none is left."""


class AsyncQueue(AsyncQueueAdmin):
    """One queue. Made by `AsyncPenstock.queue`; it exists on the server from its first use.

    Args:
        client: whose connections it uses.
        name: any non-empty text.
        number: which of its partitions; None = it has none.
    """

    def __repr__(self) -> str:
        parts = "" if self.partitions is None else f" in {self.partitions} partitions"
        return f"<{AsyncQueue.__name__} {self.name!r}{parts} at {self._client.address}>"

    # -- producing -------------------------------------------------------------------------

    async def enqueue(
        self,
        body: Any,
        *,
        delay: Duration = 0,
        at: Moment | None = None,
        lease: Duration | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        max_length: int | None = None,
        block: Duration | None = 0,
        replicas: int | None = None,
        durable: Durable | None = None,
        dedup_id: str | None = None,
        dedup: Dedup | None = None,
        retry: RetryPolicy | None = None,
        key: str | None = None,
    ) -> Enqueued:
        """Add one job: it waits in `ready`, or in `scheduled` until its time comes.

        A call whose reply is lost is repeated with the same number, so the job is added once
        (protocol/core.md, Repeats).

        Args:
            body: bytes pass untouched; anything else must be expressible in JSON, or by the
                client's codec (docs/bodies.md). Keys are str; tuples come back as lists.
            delay: seconds from now before which it is not delivered.
            at: seconds since 1970 or an aware datetime, instead of a delay; the past = now.
            lease: seconds, up to 24 days; None = the queue's (30), with a ttl at most a tenth of
                that, but 1 s; 0 = deliver at most once. One that is not shorter than the ttl is
                logged as a warning: if its consumer dies, such a job is not delivered again.
            ttl: seconds after which it is not delivered any more; None = never (lease 0: a day).
            headers: names and values carried with the job.
            max_length: refuse if more jobs than this would wait; beside the queue's own bound.
            block: seconds to wait for room in a full queue; 0 = refuse at once, None = for ever.
            replicas: the short form of `durable=Durable(replicas=...)`.
            durable: replicas and disks that must confirm the job before the call returns; None =
                as many replicas as the queue's setting says (0), for at most a second, and none for
                a job delivered at most once.
            dedup_id: the short form of `dedup=Dedup(id)`.
            dedup: while a job with the same id is there, this one is a duplicate; `Dedup` says for
                how long, and what becomes of it.
            retry: the job's own policy, kept with it and applied by every client; what it leaves
                open is the queue's. An update keeps the one that is there if this is None.
            key: jobs of one key lie in one partition, which keeps their order (docs/nodes.md,
                Partitions); None = in that of the dedup id, or in any. Of no use, and no harm,
                where there are no partitions.

        Returns:
            The job's id and state, how many replicas confirmed; for a duplicate those of the job
            that is there, and what was done (`action`).

        Raises:
            BadArgument: an argument can't be used.
            QueueFull, QueueClosed, QueuePaused, QueueInUse, RoleLost: the job was not added.
            OutOfMemory: the server is at maxmemory; the job was not added. Unless the client has
                `evict=False`, delivered lease-0 jobs of this queue were evicted before.
            NotReplicated: too few replicas confirmed in time, or the disk did not; the job was
                taken back, unless a consumer had got it already. Too few replicas are connected:
                refused at once, and nothing was added.
            CannotSync: the server can't tell what is on disk; the job was not added.
        """
        options = prepared(
            delay,
            at,
            lease,
            ttl,
            headers,
            max_length,
            block,
            replicas,
            durable,
            dedup_id,
            dedup,
            retry,
            key,
            self.ops.codec,
        )
        if type(body) is bytes and options.dedup is None:
            record = b"%b;i=%b\n%b" % (options.head, next_stable_id(), body)
        else:
            record = options.record(body)
        if len(record) > 1_000_000:
            check_size(len(record))
        return await self._add(record, options)

    async def _add(self, record: bytes, options: Prepared) -> Enqueued:
        if monotonic() >= self._client.taking_until and not await self._may_add():
            return await self._add(record, options)  # the queue lies on several nodes now
        ops = self.ops
        call = ops.enqueue((record,), wait=options.wait) if options is USUAL else None
        try:
            if call is None:
                reply, got = await self._added((record,), options, partial=False)
            else:
                reply, got = await self._node.run(call), call.confirmed
        except (QueueMissing, QueueFull, OutOfMemory):
            if call is None:
                raise
            reply, got = await self._added((record,), options, partial=False)
        except NodesUnavailable:
            if not await self._has_moved():
                raise
            return await self._add(record, options)
        ops.replicas, wait, replicas = reply.replicas, options.wait, 0
        if wait is not None and (reply.replicas or wait.replicas or wait.fsynced):
            replicas = await self._replicated(reply, got, options)
        if isinstance(reply, Claim):
            return ops.claimed(reply, (record,), options.ttl_code, replicas)[0]
        return ops.added(reply, record, options.ttl_code, replicas)

    async def _may_add(self) -> bool:
        """Return True if the node takes jobs, False if the queue has moved to several nodes."""
        await self._client.check_taking()
        return True

    async def _has_moved(self) -> bool:
        """Return True if the queue now lies on other nodes, because its node is leaving."""
        return False

    async def enqueue_many(
        self,
        bodies: Iterable[Any],
        *,
        delay: Duration = 0,
        at: Moment | None = None,
        lease: Duration | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        max_length: int | None = None,
        block: Duration | None = 0,
        replicas: int | None = None,
        durable: Durable | None = None,
        dedup_id: Callable[[Any], str] | str | None = None,
        dedup: Dedup | None = None,
        retry: RetryPolicy | None = None,
        key: Callable[[Any], str] | str | None = None,
    ) -> BulkEnqueued:
        """Add many jobs in chunks of up to 1,000 (500 with a ttl) or 1 MiB.

        A chunk is one trip, and all or nothing.

        Args:
            bodies: any iterable, also a generator; read as the chunks go out.
            delay, at, lease, ttl, headers, max_length, block, replicas, durable, retry: as in
                `enqueue`, for every job. With `block`, jobs go in as room appears. Replicas and
                disks confirm a chunk.
            dedup_id, dedup: as in `enqueue`; the id may be a function that computes it from a body,
                a str is the id of them all. With dedup ids a chunk goes in as a whole, and there is
                an answer for each job, in order.
            key: computes the key of each body; a str is the key of them all.

        Returns:
            The results in the order of the bodies; ids are built when looked at.

        Raises:
            IncompleteEnqueue: a chunk failed after others were accepted; `results` holds those, the
                cause is the error.
            As `enqueue`: nothing was accepted.
        """
        options = prepared(
            delay,
            at,
            lease,
            ttl,
            headers,
            max_length,
            block,
            replicas,
            durable,
            dedup_id,
            dedup,
            retry,
            key,
            self.ops.codec,
            many=True,
        )
        results = BulkEnqueued(options.ttl_code)
        try:
            await self._add_all(bodies, options, results)
        except Exception as error:
            if len(results):
                raise IncompleteEnqueue(results) from error
            raise
        return results

    async def _add_all(
        self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued
    ) -> None:
        for chunk in chunks(bodies, options):
            await self._add_chunk(chunk, options, results)

    async def _add_chunk(
        self, chunk: list[bytes], options: Prepared, results: BulkEnqueued
    ) -> None:
        if monotonic() >= self._client.taking_until and not await self._may_add():
            await self._add_chunk(chunk, options, results)
            return
        while chunk:
            partial = options.block != 0 and options.dedup is None
            try:
                reply, got = await self._added(chunk, options, partial=partial)
            except NodesUnavailable:
                if not await self._has_moved():
                    raise
                await self._add_chunk(chunk, options, results)
                return
            self.ops.replicas = reply.replicas
            replicas = await self._replicated(reply, got, options)
            if isinstance(reply, Claim):
                results.append(self.ops.claimed(reply, chunk, options.ttl_code, replicas))
                return
            place, state = self.ops.place(reply.epoch), "scheduled" if reply.scheduled else "ready"
            stable = [stable_id_of(record) for record in chunk[: reply.count]]
            results.add(reply.first, reply.count, place, state, replicas, stable)
            chunk = chunk[reply.count :]

    async def _added(
        self, records: Sequence[bytes], options: Prepared, *, partial: bool
    ) -> tuple[Added, Confirmed]:
        """Add in one trip if possible; while the server is full, evict and try again.

        Raises:
            OutOfMemory: nothing is left to evict, or the client may not.
        """
        rounds = iter(EVICTED if self._client.terms.evict else ())
        is_tried = options.block != 0
        while True:
            try:
                if not is_tried:
                    call = self.ops.enqueue(
                        records,
                        delay=options.delay,
                        bound=options.bound,
                        wait=options.wait,
                        mode=None if options.dedup is None else options.dedup.mode,
                    )
                    return await self._node.run(call), call.confirmed
                return await self._enqueue_flow(records, options, partial=partial)
            except (QueueMissing, QueueFull):  # noqa: PERF203  # a few rounds, each a trip
                if is_tried:
                    raise
                is_tried = True
            except OutOfMemory:
                n = next(rounds, None)
                if n is None or not await self._made_room(n):
                    raise

    async def _made_room(self, n: int) -> bool:
        """Remove delivered lease-0 jobs of this queue, or unused queues."""
        evicted = await self._node.run(self.ops.evict(n, letters=False))
        return evicted.once > 0 or await self._driver.sweep_listed(LISTED) > 0

    async def _enqueue_flow(
        self, records: Sequence[bytes], options: Prepared, *, partial: bool
    ) -> tuple[Added, Confirmed]:
        """Add, and wait for room; look meanwhile whether the node still takes jobs."""
        until = math.inf if options.block is None else monotonic() + options.block
        while True:
            began = monotonic()
            span = max(0.0, min(LOOK, until - began))
            flow = flows.enqueue(
                self.ops,
                records,
                delay=options.delay,
                bound=options.bound,
                block=span,
                partial=partial,
                clock=monotonic,
                wait=options.wait,
                mode=None if options.dedup is None else options.dedup.mode,
            )
            try:
                done: tuple[Added, Confirmed] = await self._driver.drive(flow)
            except QueueFull:
                if not began + span <= monotonic() < until:
                    raise  # it was not waited for, as they will never fit; or the time is over
            else:
                return done
            await self._client.check_taking()

    async def _replicated(self, reply: Added, got: Confirmed, options: Prepared) -> int:
        """Return how many replicas confirmed; if too few did, take the jobs back and raise."""
        wait = options.wait
        if wait is None:
            return got.replicas
        wanted = reply.replicas if wait.replicas is None else wait.replicas
        if got.covers(wanted, wait):
            return got.replicas
        updated = updates(reply) > 0
        if reply.count > 0 or updated:
            fsynced = got.fsynced if wait.fsynced else None
            flow = flows.withdraw(
                self.ops, reply, wanted, got.replicas, updated=updated, fsynced=fsynced
            )
            raise await self._driver.drive(flow)
        return got.replicas

    # -- roles -----------------------------------------------------------------------------

    def exclusive(
        self, role: RoleName, *, lease: Duration = 30, block: Duration | None = None
    ) -> AsyncRole:
        """Be the queue's only producer, or its only consumer, for as long as a `with` block runs.

        Nothing is sent before it is entered. What bears the role is `queue` of the result.

        Args:
            role: "producer" or "consumer".
            lease: seconds for which the role holds after the last call that bears it; when its
                holder dies it is free again then.
            block: seconds to wait until it is free, 0 = not at all, None = for ever.

        Raises:
            BadArgument: an argument can't be used, or this queue bears the role already.
        """
        return AsyncRole(self, role, lease, block)

    # -- consuming -------------------------------------------------------------------------

    async def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[AsyncJob]:
        """Take up to n jobs under a lease; nothing leaves the server before it is acknowledged.

        Ended leases come first, then what has been due or waiting longest. About 1 MiB of bodies is
        taken a call, at least one job.

        Args:
            n: at least 1.
            block: seconds to wait until there is a job; 0 = not at all, None = for ever.

        Returns:
            The jobs in order; empty if there was none in time.

        Raises:
            QueueClosed: the queue is closed, and no job is left that could be delivered; told at
                once to everybody who waits.
        """
        check_count("n", n)
        return await self._client.reserve([self], n, check_block(block))

    async def consume(
        self, *, batch: int = 1, block: Duration | None = None
    ) -> AsyncIterator[AsyncJob]:
        """Reserve jobs and hand them out, one after the other, until the queue is over.

        That is when it is closed (`close`) and no job is left that could be delivered.

        A job that its `with` block has finished is acknowledged as soon as the loop comes back or
        is left: the last of a batch together with the next reserve, in one trip. Calls on the job
        itself (`job.ack()` and its like) are sent as they are made.

        Args:
            batch: how many are reserved at once; their leases run while they wait for their turn.
            block: seconds without a job after which the loop ends; None = never.
        """
        check_count("batch", batch, high=BATCH)
        done: list[AsyncJob] = []
        try:
            jobs = await self.reserve(batch, block=block)
            while jobs or block is None:
                for job in jobs:
                    if done:  # the next one may take long, and this one's lease runs
                        self._report(done, await self.ack(done))
                    job.batch.deferred = done
                    yield job
                if done:
                    outcomes, jobs = await self.settle(done, batch, block=block)
                    self._report(done, outcomes)
                else:
                    jobs = await self.reserve(batch, block=block)
        except QueueClosed:
            return
        finally:
            if done:
                self._report(done, await self.ack(done))

    def _report(self, done: list[AsyncJob], outcomes: Settled) -> None:
        """Forget what was acknowledged, and log what was not: its lease had ended."""
        if not outcomes:
            for job_id in outcomes.ids(Outcome.STALE, Outcome.ENDED):
                logger.warning(
                    "%s finished after its lease had ended; it may run again",
                    job_id,
                    extra={
                        "job_id": job_id,
                        "queue": self.name,
                        "worker": self._client.terms.owner,
                    },
                )
        done.clear()

    # -- settling --------------------------------------------------------------------------

    async def ack(
        self,
        jobs: Iterable[Named],
        *,
        dedup_window: Duration | None = None,
        replicas: int = 0,
        durable: Durable | None = None,
    ) -> Settled:
        """Finish jobs: they are done and forgotten. By id alone a waiting job is finished too.

        An acknowledged job comes back when the server falls and what takes its place has not heard
        of the ack. `replicas` and `durable` wait until that can't be, once for each 1000 jobs.

        Args:
            jobs: deliveries, or ids.
            dedup_window: seconds for which their dedup ids stay taken from now on, instead of what
                each job's producer said; 0 = they are free. Nothing to a job without one.
            replicas: the short form of `durable=Durable(replicas=...)`.
            durable: replicas and disks that must confirm it. The queue's setting `replicas` is for
                producers: an ack waits only for what is given here.

        Returns:
            An outcome for each, in order: done, gone, stale, ended or refused (a dead letter); and
            how many replicas confirmed.

        Raises:
            BadArgument: an argument can't be used; nothing was done.
            BadJobId: an id is malformed, of another queue, node or epoch; nothing was done.
            AckNotReplicated: too few replicas confirmed in time, or the disk did not; the jobs are
                acknowledged all the same, and the error has their outcomes.
            CannotSync: the server can't tell what is on disk; nothing was done.
            IncompleteSettle: of more than 1000 jobs some were dealt with, and then a call failed.
        """
        window = None if dedup_window is None else duration_ms("dedup_window", dedup_window)
        build = self.ops.ack if window is None else lambda names: self.ops.ack(names, window)
        wait = ack_wait(replicas, durable)
        return await self._each(jobs, build, resent_code=Code.GONE, wait=wait)

    async def _ack_one(self, job: Delivery) -> Outcome:
        """Finish one delivery, whatever its replicas say."""
        call = self.ops.ack_one(job)
        codes = (await self._node.run(call)).codes
        if not codes or (call.resent and codes[0] == Code.GONE):
            return Outcome.DONE
        return OUTCOMES[codes[0]]

    async def recover(self, n: int = 1, *, idle: Duration) -> list[AsyncJob]:
        """Take over deliveries of consumers that have fallen silent, before their leases end.

        Each is a new delivery under a lease of its own, and counts as a crash of the old one: a job
        that has crashed too often becomes a dead letter instead. The old holder's receipt is void.
        Nothing is taken while the queue is paused, and nothing that is delivered at most once.

        Args:
            n: at most so many, up to 1000.
            idle: seconds; only deliveries made at least so long ago, extended or not.

        Returns:
            The jobs, oldest delivery first.
        """
        check_count("n", n, high=BATCH)
        span = duration_ms("idle", idle)
        await self._client.connect()
        flow = flows.recover(self.ops, n, span)
        jobs: list[AsyncJob] = await self._driver.drive(flow)
        return jobs

    async def settle(
        self, done: Iterable[Named], n: int, *, block: Duration | None = 0
    ) -> tuple[Settled, list[AsyncJob]]:
        """Finish jobs and take up to n more in one trip.

        Args:
            done: deliveries or ids, at most 1000.
            n: up to 1000.
            block: seconds to wait for a job if none is there; the finished are finished before.

        Returns:
            An outcome for each of `done` as in `ack`, and the jobs taken; none as well when the
            queue is closed and drained: the next `reserve` says so.
        """
        names = self._listed("done", done, most=BATCH)
        check_count("n", n, high=BATCH)
        wait = check_block(block)
        await self._client.connect()
        call = self.ops.settle(names, n)
        found = await self._node.run(call)
        outcomes, taken = found
        if call.resent:
            outcomes = outcomes.after_resend(Code.GONE)
        jobs = taken.deliveries
        if not jobs and (wait is None or wait > 0 or taken.next_ms == 0):
            # The finished are finished: a connection that fails now is the next call's news.
            refusals = (QueueClosed, QueueInUse, RoleLost)
            with suppress(RedisConnectionError, RedisTimeoutError, *refusals):
                jobs = await self.ops.queue.reserve(n, block=block)
        return outcomes, jobs

    async def nack(
        self, jobs: Iterable[Named], *, delay: Duration | None = None, error: str = ""
    ) -> Settled:
        """Report failed attempts: tried again later, or dead when the attempts are used up.

        Args:
            jobs: deliveries, or ids of delivered jobs, whose holders' receipts are void then.
            delay: seconds until the next try; None = by the job's policy, or the queue's; 0 = at
                once, before younger jobs.
            error: kept with the job, at most 1024 bytes.

        Returns:
            An outcome for each, in order: done, dead, gone, stale, ended or refused.

        Raises:
            BadArgument, BadJobId: nothing was done.
        """
        wait = -1 if delay is None else duration_ms("delay", delay)
        text = check_text("error", error, limit=1024)
        return await self._each(jobs, lambda names: self.ops.nack(names, wait, text))

    async def release(self, jobs: Iterable[Named], *, delay: Duration = 0) -> Settled:
        """Give jobs back without a failure; no attempt is charged.

        Args:
            jobs: deliveries, or ids of delivered jobs.
            delay: seconds until they may be delivered again; 0 = at once, before younger jobs.

        Returns, raises: as `nack`.
        """
        wait = duration_ms("delay", delay)
        return await self._each(jobs, lambda names: self.ops.release(names, wait))

    async def bury(self, jobs: Iterable[Named], reason: str = "") -> Settled:
        """Give jobs up: they become dead letters. By id alone also jobs that wait.

        Args:
            jobs: deliveries, or ids.
            reason: kept with the job, at most 1024 bytes.

        Returns, raises: as `nack`.
        """
        text = check_text("reason", reason, limit=1024)
        return await self._each(jobs, lambda names: self.ops.bury(names, text))

    async def extend(
        self, jobs: Iterable[Named], lease: Duration | None = None, *, late: bool = False
    ) -> list[float | Outcome]:
        """Renew leases, from now, never beyond the end of a job's ttl.

        Args:
            jobs: deliveries, or ids of delivered jobs.
            lease: seconds; None = each job's own lease.
            late: extend also when more than half of a job's ttl has passed. By default such a job
                goes to another consumer when its lease ends, while there is time left.

        Returns:
            For each, in order: seconds from now for which its lease holds, or the outcome that says
            why it does not: gone, stale, ended, too late (see `late`) or refused (not active, or at
            most once).

        Raises:
            BadArgument, BadJobId: nothing was done.
        """
        span = 0 if lease is None else lease_ms("lease", lease)
        if lease is not None and span == 0:
            raise BadArgument("lease", lease, "must be more than 0")
        await self._client.connect()
        names = self._checked("jobs", jobs)
        results: list[float | Outcome] = []
        for start in range(0, len(names), BATCH):
            call = self.ops.extend(names[start : start + BATCH], span, late=late)
            reply = await self._node.run(call)
            results += [
                OUTCOMES[until] if until <= Code.DIED else (until - reply.now) / 1000
                for until in reply.untils
            ]
        return results


__all__ = ["AsyncQueue"]
