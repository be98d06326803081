# From src/penstock/client/_async/queue.py by tools/unasync.py; do not edit.
"""The queue: producing, consuming and settling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.client._sync.batches import BatchOf, QueueBatches
from penstock.client._sync.job import JobOf
from penstock.client._sync.queue_settling import QueueSettling
from penstock.client._sync.role import RoleOf
from penstock.client._sync.route.one_node import BoundRoute
from penstock.client._sync.route.part import Part
from penstock.client._sync.schedules import QueueSchedules
from penstock.client._sync.settling import check_jobs
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.enqueuing.batches import BatchCondition
from penstock.core.enqueuing.new_jobs import NewJob, NewJobs, headers_of
from penstock.core.enqueuing.options import (
    EnqueueManyOptions,
    EnqueueOptions,
    NamedHandler,
    refuse_others,
    show_options,
)
from penstock.core.enqueuing.prepared import MANY, prepared
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.jobs.job import JobName, reservation_of
from penstock.core.jobs.logs import Fields, get_logger
from penstock.core.jobs.middleware import enqueue_event, enqueuing
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.record import RECORD
from penstock.core.values import stable
from penstock.core.values.annotations import Self, Unpack
from penstock.core.values.checks import (
    BATCH,
    Duration,
    RoleName,
    check_block,
    check_count,
    duration_ms,
)
from penstock.core.values.durable import Durable, delivery_wait
from penstock.core.values.methods import ElsewhereCall, name_methods
from penstock.errors import (
    IncompleteEnqueue,
    QueueClosed,
)

logger = get_logger("penstock")


@name_methods("Job")
class Job(JobOf["Queue"]):
    """A job that this consumer holds until its lease ends.

    As a context manager it settles itself. The end of the block acknowledges the job (one from
    `consume`: together with the next reserve). An `Exception` reports a failed attempt with its
    text; it is logged and not raised further. Any other exception (`KeyboardInterrupt`,
    cancellation) gives the job back without a failure, and is raised further. If the job was
    settled inside the block, nothing is sent.
    """

    __slots__ = ()


@name_methods("Role")
class Role(RoleOf["Queue"]):
    """An exclusive role of a queue, made by `Queue.exclusive` and taken by `with`.

    Calls through `queue` of this object use the role. While it is held, other calls of its kind are
    refused with `QueueInUse`: for a producer `enqueue`; for a consumer `recover`, `reserve` and all
    calls that reserve. Settling jobs needs no role. Each call that uses the role renews its lease,
    also while it waits for a job or for room. When the role has ended, calls that use it are
    refused with `RoleLost`, even if the role is free.
    """


@name_methods("Batch")
class Batch(BatchOf["Queue"]):
    """A batch that takes jobs until its block ends, made by `Queue.batch`.

    The end of the block closes it. If the block raises an Exception and no job has joined, the
    batch is cancelled. If it raises later, the batch stays open: it is abandoned an hour after its
    last job, unless `close` is called.

    Attributes:
        id: of the batch: the job id of its callback. It is set when the block begins.
        queue: the queue, on the node and in the partition of the batch. Jobs that are added through
            it join the batch: `resize.enqueue(batch.queue, "a.png")`.
    """


@name_methods("Queue")
class Queue(QueueSettling):
    """A queue, made by `Penstock.queue`. It exists on the server from its first use.

    - Produce: `enqueue`, `enqueue_many`, `batch`, `schedules`, `exclusive`; `result`.
    - Consume: `handler` and a `Worker`; or `reserve` and `consume`, then `ack`, `ack_and_reserve`,
      `nack`, `release`, `bury`, `extend`.
    - Look: `stats`, `peek`, `jobs`, `show`, `dedup_status`, `batches`.
    - Manage: `configure`, `pause`, `close`, `redrive`, `cancel`, `postpone`, `delete`, `purge`.
    """

    if not TYPE_CHECKING:  # a type checker refuses them itself
        delay = ElsewhereCall("queue", "enqueue(body, delay=seconds)")
        send = ElsewhereCall("queue", "enqueue(body)")
        enqueue_at = ElsewhereCall("queue", "enqueue(body, at=when)")
        enqueue_in = ElsewhereCall("queue", "enqueue(body, delay=seconds)")

    job_type = Job

    def __repr__(self) -> str:
        parts = "" if self.partitions is None else f" in {self.partitions} partitions"
        return f"<{Queue.__name__} {self.name!r}{parts} at {self.route.address}>"

    @property
    def schedules(self) -> QueueSchedules:
        """The schedules of the queue: add, list, remove, pause, resume, run and restore them."""
        return QueueSchedules(self)

    @property
    def batches(self) -> QueueBatches[Batch]:
        """The batches of the queue: open, list, get and close them."""
        return QueueBatches(self, partial(Batch, self, self._bind))

    def _bind(self, part: Part) -> Self:
        """Return an object of the queue whose calls stay in one part, for a batch or a role."""
        bound = type(self)(self._name, middleware=self.middleware)
        bound.route = BoundRoute(self.route.topology, part, bound)
        if self.route.part is None:
            bound.ops.queue = self
        return bound

    # -- producing -------------------------------------------------------------------------

    @show_options(EnqueueOptions)
    def enqueue(self, body: Any, *others: NoReturn, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Add one job: it waits in `ready`, or in `scheduled` until its time comes.

        A call whose reply is lost is repeated with the same number, so the job is added once
        (protocol/core.md, Repeats).

        Args:
            body: bytes pass untouched; anything else must be expressible in JSON, or by the
                client's codec (docs/bodies.md). Keys are str; tuples come back as lists. Or a job
                of a handler, `welcome.job("ada")`: options given here win over its own.
            delay: seconds until the job may be delivered.
            at: seconds since 1970 or an aware datetime, instead of a delay; the past = now.
            lease: seconds, up to 24 days; None = the queue's (30), but with a ttl at most a tenth
                of the ttl, and at least 1 s; 0 = deliver at most once. A lease as long as the ttl
                is logged as a warning: if its consumer dies, the job is not delivered again.
            ttl: seconds until it expires, longer than the delay; None = no limit (lease 0: a day).
            headers: names and values carried with the job.
            max_length: refuse if more jobs than this would wait. The queue's own bound also holds.
            block: seconds to wait for room in a full queue; 0 = refuse at once, None = for ever.
            replicas: the short form of `durable=Durable(replicas=...)`.
            durable: replicas and disks that must confirm the job before the call returns; None =
                the number of replicas in the queue's settings (0), with a timeout of a second; no
                replicas for a job delivered at most once.
            dedup_id: the short form of `dedup=Dedup(id)`.
            dedup: while a job with the same id exists, this one is a duplicate. `Dedup` sets for
                how long, and how a duplicate is handled.
            retry: the job's own policy, stored with it and applied by every client. The queue's
                settings fill in the fields left out. None = an update keeps the stored policy.
            key: jobs with one key go to one partition, which keeps their order (docs/nodes.md,
                Partitions); None = the partition of the dedup id, or any. The queue's settings
                `per_key`, `share`, `ordered` and `key_rate` are for jobs with a key (docs/keys.md).
            result_ttl: seconds for which the result is kept when the job has ended; 0 = it is not
                kept; None = the queue's setting, which is 0 by default (docs/results.md).
            priority: 0 to 9: jobs with a higher one are delivered first (docs/priorities.md). None
                = 0, the usual one; an update keeps the stored one.
            on_dead: a handler, or its name: if the job becomes a dead letter, the same step adds a
                job of it, with the same body (docs/dead-letters.md). None = an update keeps the
                stored one.

        Returns:
            The job's id and state, and how many replicas confirmed. For a duplicate: those of the
            existing job, and how the duplicate was handled (`action`).

        Raises:
            BadArgument: an argument can't be used.
            QueueFull, QueueClosed, QueuePaused, QueueInUse, RoleLost: the job was not added.
            OutOfMemory: the server is at maxmemory; the job was not added. Unless the client has
                `evict=False`, delivered lease-0 jobs of this queue were evicted before.
            NotReplicated: too few replicas confirmed in time, or the disk did not. The job was
                taken back, unless a consumer already had it. If too few replicas are connected,
                the call is refused at once and nothing is added.
            CannotSync: the server can't report which writes are on disk; the job was not added.

        Examples:
            >>> (q.enqueue({"to": "ada"}, delay=60, ttl=3600)).state
            'scheduled'
        """
        if others:
            refuse_others(body, others)
        if self.middleware:
            return self._enqueue_in_hooks(body, options)
        route = self.route
        checked = prepared(route.ops.codec, **options)
        if type(body) is bytes:  # as `Prepared.record`
            return route.add(RECORD % (checked.head, stable.next_id(), body), checked)
        if type(body) is NewJob:
            checked, body = body.options.joined(checked), body.body
        return route.add(checked.record(body), checked)

    def _enqueue_in_hooks(self, body: Any, options: EnqueueOptions) -> Enqueued:
        event = enqueue_event(self.name, 1, headers_of(body, options.get("headers")))
        with enqueuing(self.middleware, event, monotonic):
            options["headers"] = event.headers or None
            added = self._without_hooks().enqueue(body, **options)
            event.results = (added,)
        return added

    def _enqueue_many_in_hooks(
        self, bodies: Iterable[Any], options: EnqueueManyOptions
    ) -> BulkEnqueued:
        """Enqueue bodies inside the hooks, which run once for all of them."""
        event = enqueue_event(self.name, None, headers_of(bodies, options.get("headers")))
        with enqueuing(self.middleware, event, monotonic):
            options["headers"] = event.headers or None
            added = self._without_hooks().enqueue_many(bodies, **options)
            event.results = added
        return added

    def _without_hooks(self) -> Queue:
        bare = copy(self)
        bare.middleware = ()
        return bare

    @show_options(EnqueueManyOptions)
    def enqueue_many(
        self, bodies: Iterable[Any], **options: Unpack[EnqueueManyOptions]
    ) -> BulkEnqueued:
        """Add many jobs in chunks of up to 1,000 (500 with a ttl) or 1 MiB.

        A chunk is one round trip. Either all of its jobs are added, or none.

        Args:
            bodies: any iterable, also a generator; read as the chunks go out. Its elements are as
                in `enqueue`: jobs of several handlers may be among them. `welcome.jobs(...)` makes
                many jobs of one handler.
            **options: as in `enqueue`, for every job. With `block`, jobs are added as room appears.
                Replicas and disks confirm whole chunks.
            dedup_id, dedup: as in `enqueue`. The id may be a function that computes it from a body;
                a str is the id of all jobs. With dedup ids a chunk is added as a whole, and there
                is an answer for each job, in order.
            key: a function that computes the key of a body, or a str: the key of all jobs.

        Returns:
            The results in the order of the bodies. Ids are built when they are read.

        Raises:
            IncompleteEnqueue: a chunk failed after others were accepted. `results` holds the
                accepted jobs; `__cause__` is the error of the chunk.
            As `enqueue`: nothing was accepted.

        Examples:
            >>> added = q.enqueue_many(({"n": n} for n in range(2500)), priority=5)
            >>> len(added)
            2500
        """
        if self.middleware:
            return self._enqueue_many_in_hooks(bodies, options)
        checked = prepared(self.route.ops.codec, MANY, **options)
        if type(bodies) is NewJobs:
            checked = bodies.options.joined(checked)
        route = self.route.refresh()
        results = BulkEnqueued(route.ops.queue)
        try:
            route.add_many(bodies, checked, results)
        except Exception as error:
            if len(results):
                raise IncompleteEnqueue(results) from error
            raise
        return results

    def batch(
        self,
        *,
        then: Any,
        on: BatchCondition = "success",
        on_failure: NamedHandler | str | None = None,
        results: bool = False,
    ) -> Batch:
        """Return a batch: jobs that are added in its block, and a callback that follows them.

            with queue.batch(then=summary.job("b1")) as batch:
                batch.enqueue_many(resize.jobs(paths))

        The short form of `queue.batches.open`, which see.

        Args:
            then: the callback: a job of a handler, `summary.job("b1")`, or a body.
            on: "success" = when all jobs are done; "finished" = when each job is done, dead, or has
                ended otherwise.
            on_failure: a handler, or its name: a job of it is added, with the body of the callback,
                when only dead letters are left to wait for, or when the callback is dead.
            results: keep the values of the jobs for the callback, which reads them by
                `job.batch_results()`.

        Raises:
            BadArgument: an argument can't be used.
        """
        return self.batches.open(then=then, on=on, on_failure=on_failure, results=results)

    def exclusive(
        self, role: RoleName, *, lease: Duration = 30, block: Duration | None = None
    ) -> Role:
        """Return an exclusive role: a `with` block on it makes this the only producer or consumer.

        Nothing is sent before the block is entered. Make calls through `queue` of the result: only
        those use the role.

        Args:
            role: "producer" or "consumer".
            lease: seconds for which the role is held after the last call that uses it. If its
                holder dies, the role is free after this time.
            block: seconds to wait until the role is free; 0 = not at all, None = for ever.

        Raises:
            BadArgument: an argument can't be used, or this queue object has the role already.
            ConfigurationError: the queue lies on several nodes, or has partitions.
        """
        return Role(self, self._bind, role, lease=lease, block=block)

    # -- consuming -------------------------------------------------------------------------

    def reserve(
        self, n: int = 1, *, block: Duration | None = 5, durable: Durable | None = None
    ) -> list[Job]:
        """Take up to n jobs under a lease. They stay on the server until they are acknowledged.

        Jobs whose lease has ended come first, then those that have been due or waiting longest. A
        call takes about 1 MiB of bodies, at least one job.

        Args:
            n: at least 1.
            block: seconds to wait until there is a job; 0 = not at all, None = for ever.
            durable: replicas and disks that must confirm the delivery of jobs with lease 0, so that
                they are delivered at most once even after a failover; None = none.

        Returns:
            The jobs in order; empty if there was none in time.

        Raises:
            QueueClosed: the queue is closed, and no job is left that could be delivered. Every
                waiting consumer gets this error at once.
            DeliveryNotReplicated: jobs with lease 0 are given up as delivered, as too few replicas
                confirmed; the error has the others. No job was taken if `given_up` is empty.
            CannotSync: the server can't report which writes are on disk; no job was taken.

        Examples:
            >>> added = q.enqueue({"to": "ada"})
            >>> [job] = q.reserve(10, block=0)
            >>> job.body, job.attempt
            ({'to': 'ada'}, 1)
        """
        route = self.route
        part = route.part
        is_usual = durable is None and type(n) is int and 0 < n <= BATCH
        is_look_due = monotonic() >= route.topology.look_at
        # Before the node's id is known, jobs would have none.
        if part is None or not part.executor.id or is_look_due or not is_usual:
            check_count("n", n)
            request = flows.ReserveRequest(n, check_block(block), confirm=delivery_wait(durable))
            return route.refresh().reserve(request)
        # As `check_block`, without its calls for usual values.
        seconds = block if type(block) is int and 0 <= block < 1000 else check_block(block)
        taken = part.executor.run(part.ops.reserve(n))
        if taken.deliveries:
            return taken.deliveries
        if taken.is_over:
            raise part.ops.drained()
        has_more = taken.next_ms == 0  # this call found expired jobs only
        if seconds == 0 and not has_more:
            return []
        seen = {} if has_more else {part.ops: taken}
        return route.reserve(flows.ReserveRequest(n, seconds, seen=seen))

    def consume(
        self, *, batch: int = 1, block: Duration | None = None, durable: Durable | None = None
    ) -> Iterator[Job]:
        """Reserve jobs and yield them one by one, until the queue is closed and drained.

        It is drained when no job is left that could be delivered (see `close`).

        A job that its `with` block has finished is acknowledged when the loop asks for the next job
        or ends. The last job of a batch is acknowledged together with the next reserve, in one
        round trip. Calls on the job itself, such as `job.ack()`, are sent at once.

        Args:
            batch: number of jobs to reserve at once. Their leases run while they wait here.
            block: seconds without a job after which the loop ends; None = never.
            durable: as in `reserve`; then the last ack of a batch is sent before the next reserve.
        """
        check_count("batch", batch, high=BATCH)
        done: list[Job] = []
        try:
            jobs = self.reserve(batch, block=block, durable=durable)
            while jobs or block is None:
                for job in jobs:
                    if done:  # the next one may take long, and this one's lease runs
                        _log_late(done, self.ack(done))
                    reservation_of(job).deferred = done
                    yield job
                if done and durable is None:
                    outcomes, jobs = self.ack_and_reserve(done, batch, block=block)
                    _log_late(done, outcomes)
                    continue
                if done:
                    _log_late(done, self.ack(done))
                jobs = self.reserve(batch, block=block, durable=durable)
        except QueueClosed:
            return
        finally:
            if done:
                _log_late(done, self.ack(done))

    def recover(self, n: int = 1, *, idle: Duration) -> list[Job]:
        """Take over jobs of consumers that no longer respond, before their leases end.

        Each is a new delivery with its own lease, and the old delivery counts as a crash. A job
        that has crashed too often becomes a dead letter instead. The old receipt is void. Nothing
        is taken while the queue is paused. Jobs delivered at most once are never taken.

        Args:
            n: most jobs to take, up to 1000.
            idle: seconds; take only jobs delivered at least this long ago, extended or not.

        Returns:
            The jobs, oldest delivery first.
        """
        check_count("n", n, high=BATCH)
        span = duration_ms("idle", idle)
        jobs: list[Job] = []

        def recover_some(part: Part) -> None:
            if len(jobs) < n:
                flow = flows.recover(part.ops, n - len(jobs), span)
                jobs.extend(part.driver.drive(flow))

        self.route.refresh().ask_parts(recover_some)
        return jobs

    def ack_and_reserve(
        self, done: Iterable[JobName], n: int, *, block: Duration | None = 0
    ) -> tuple[Settled, list[Job]]:
        """Finish jobs and take up to n more in one trip.

        Args:
            done: deliveries or ids, at most 1000.
            n: up to 1000.
            block: seconds to wait for a job if there is none. Jobs are finished before the wait.

        Returns:
            An outcome for each of `done` as in `ack`, and the jobs taken. If the queue is closed
            and drained there are none, and the next `reserve` raises `QueueClosed`.
        """
        names = check_jobs("done", done, most=BATCH)
        most, seconds = check_count("n", n, high=BATCH), check_block(block)
        return self.route.refresh().exchange(names, most, block=seconds)


def _log_late(done: list[Job], outcomes: Settled) -> None:
    """Log the jobs of `consume` whose lease ended before their ack; forget them all."""
    text = "%s finished after its lease had ended; it may run again"
    for job, outcome in zip(done, outcomes, strict=True):
        if outcome in (Outcome.STALE, Outcome.ENDED):
            logger.warning(text, job.id, extra=Fields(job))
    done.clear()


__all__ = ["Batch", "Job", "Queue", "Role"]
