"""The public surface as used by callers. Not run: the type checker is the test."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
import redis.asyncio
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from typing_extensions import assert_type

import penstock
from penstock import (
    AckNotReplicated,
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    BadJobId,
    Batch,
    BatchStatus,
    BulkEnqueued,
    CannotSync,
    ChainStatus,
    Dedup,
    DedupStatus,
    DeliveryNotReplicated,
    Drain,
    Durable,
    Enqueued,
    EnqueueEvent,
    ErrorGroup,
    EvictionWarning,
    Handlers,
    Hello,
    Holder,
    IncompleteEnqueue,
    IncompleteSettle,
    Info,
    Job,
    JobId,
    JobSearch,
    JobView,
    Middleware,
    NodesMissed,
    NodesUnavailable,
    NodeView,
    NotReplicated,
    Outcome,
    Penstock,
    PenstockError,
    PrimaryView,
    Problem,
    Queue,
    QueueBatches,
    QueueFull,
    QueuePage,
    QueueSchedules,
    QueueStats,
    RetryPolicy,
    RunEvent,
    ScanPage,
    ScheduleView,
    Settings,
    Settled,
    StaleReceipt,
    TooLate,
    Worker,
    parse_id,
)
from penstock.core.jobs.job import Delivery
from penstock.integrations.otel import OpenTelemetry
from penstock.integrations.prometheus import Prometheus
from penstock.worker.monitor import LoopEvent, Monitor, size_monitor
from penstock.worker.running import RunningJob
from penstock.worker.statistics import Statistics, Summary, WorkerStats
from penstock.worker.status import WorkerStatus


def clients(lent: redis.Redis) -> None:
    Penstock()
    Penstock("redis://localhost:6379/0", prefix="app", owner="worker 1", retry_for=10)
    Penstock(lent, retry_for=timedelta(seconds=1), evict=False)
    with Penstock("unix:///run/redis.sock") as ps:
        assert_type(ps, Penstock)
        assert_type(ps.connect(), Penstock)
        assert_type(ps.queue("emails"), Queue)
        assert_type(ps.queues(), list[str])
        assert_type(ps.sweep(), int)
        assert_type(ps.prefix, str)
        assert_type(ps.owner, str)
        assert_type(ps.reserve(["a", ps.queue("b")], 10, block=None), list[Job])
        assert_type(ps.close(), None)


async def async_clients(lent: redis.asyncio.Redis) -> None:
    AsyncPenstock(lent)
    async with AsyncPenstock("rediss://user:secret@host:6380/1") as ps:
        assert_type(ps, AsyncPenstock)
        assert_type(await ps.connect(), AsyncPenstock)
        assert_type(ps.queue("emails"), AsyncQueue)
        assert_type(await ps.queues(), list[str])
        assert_type(await ps.sweep(), int)
        assert_type(await ps.reserve(("a", ps.queue("b"))), list[AsyncJob])
        assert_type(await ps.close(), None)


def producing(q: Queue) -> None:
    done = q.enqueue({"to": "ada"})
    assert_type(done, Enqueued)
    assert_type(done.id, str)
    assert_type(done.state, str)
    assert_type(done.duplicate, bool)
    assert_type(done.replicas, int)
    q.enqueue(b"bytes", delay=5, lease=60, ttl=3600, headers={"trace": "1"})
    q.enqueue(None, delay=timedelta(minutes=1), lease=timedelta(hours=1), block=2.5)
    q.enqueue(5, at=1_900_000_000.5, max_length=1000, block=None)
    q.enqueue([1], at=datetime(2030, 1, 1, tzinfo=timezone.utc), replicas=0)
    many = q.enqueue_many(({"n": n} for n in range(10)), delay=1, ttl=60)
    assert_type(many, BulkEnqueued)
    assert_type(many[0], Enqueued)
    assert_type(many[1:], list[Enqueued])
    assert_type(many.ids, list[str])
    assert_type(len(many), int)
    for one in many:
        assert_type(one, Enqueued)
    try:
        q.enqueue_many([b"a"])
    except IncompleteEnqueue as error:
        assert_type(error.results, Any)
    except QueueFull as error:
        assert_type(str(error), str)


def options(q: Queue, headers: dict[str, str]) -> None:
    """A wrong name or type of an option is an error; only `enqueue_many` takes functions."""
    q.enqueue_many([{"to": "ada"}], dedup_id=str, key=lambda body: body["to"], headers=headers)
    q.enqueue(b"x", dely=5)  # type: ignore[call-arg]  # on purpose
    q.enqueue(b"x", delay="5")  # type: ignore[arg-type]  # on purpose
    q.enqueue(b"x", delay=None)  # type: ignore[arg-type]  # on purpose
    q.enqueue(b"x", key=str)  # type: ignore[arg-type]  # on purpose
    q.enqueue_many([b"x"], dedup_id=len)  # type: ignore[arg-type]  # on purpose
    q.enqueue_many([b"x"], prio=5)  # type: ignore[call-arg]  # on purpose


async def async_producing(q: AsyncQueue) -> None:
    assert_type(await q.enqueue("x", delay=1), Enqueued)
    many = await q.enqueue_many(range(5), block=None)
    assert_type(many, BulkEnqueued)
    assert_type([one.id for one in many], list[str])


def consuming(q: Queue) -> None:
    assert_type(q.reserve(), list[Job])
    assert_type(q.reserve(100, block=timedelta(seconds=5)), list[Job])
    assert_type(q.reserve(durable=Durable(1)), list[Job])
    assert_type(DeliveryNotReplicated(1, 0).given_up, list[Any])
    for job in q.consume():
        assert_type(job, Job)
        with job as same:
            assert_type(same, Job)
    for job in q.consume(batch=10, block=1):
        a_job(job)


def a_job(job: Job) -> None:
    assert_type(job.id, str)
    assert_type(job.queue, Queue)
    assert_type(job.queue_name, str)
    assert_type(job.body, Any)
    assert_type(job.raw, bytes)
    assert_type(job.headers, Mapping[str, str])
    assert_type(job.attempt, int)
    assert_type(job.nacks, int)
    assert_type(job.crashes, int)
    assert_type(job.deliveries, int)
    assert_type(job.last_error, str)
    assert_type(job.created, float)
    assert_type(job.delivered, float)
    assert_type(job.lease, float)
    assert_type(job.ttl, float | None)
    assert_type(job.at_most_once, bool)
    assert_type(job.owner, str)
    assert_type(job.receipt, str)
    assert_type(job.settled, bool)
    assert_type(job.ack(), bool)
    assert_type(job.nack(), bool)
    assert_type(job.nack(delay=0, error="why"), bool)
    assert_type(job.release(), bool)
    assert_type(job.release(delay=timedelta(seconds=3)), bool)
    assert_type(job.bury("why"), bool)
    assert_type(job.extend(), float)
    assert_type(job.extend(60), float)


async def async_consuming(q: AsyncQueue) -> None:
    assert_type(await q.reserve(10, block=0), list[AsyncJob])
    async for job in q.consume(batch=2):
        assert_type(job, AsyncJob)
        async with job as same:
            assert_type(same, AsyncJob)
    (job,) = await q.reserve()
    assert_type(job.queue, AsyncQueue)
    assert_type(await job.ack(), bool)
    assert_type(await job.nack(delay=5), bool)
    assert_type(await job.release(), bool)
    assert_type(await job.bury(), bool)
    assert_type(await job.extend(timedelta(seconds=5)), float)


def settling(q: Queue, jobs: list[Job], ids: list[str]) -> None:
    outcomes = q.ack(jobs)
    assert_type(outcomes, Settled)
    assert_type(outcomes[0], Outcome)
    assert_type(outcomes[:2], list[Outcome])
    assert_type(outcomes.done, int)
    assert_type(outcomes.ids(), list[str])
    assert_type(outcomes.ids(Outcome.GONE, Outcome.STALE), list[str])
    assert_type(bool(outcomes), bool)
    q.ack(ids)
    q.ack([jobs[0], ids[0]])
    q.ack(job for job in jobs)
    assert_type(q.nack(jobs, delay=5, error="why"), Settled)
    assert_type(q.release(jobs, delay=5), Settled)
    assert_type(q.bury(ids, "why"), Settled)
    assert_type(q.delete(ids), Settled)
    assert_type(q.extend(jobs, 60), Settled)
    assert_type(q.ack_and_reserve(jobs, 10), tuple[Settled, list[Job]])
    assert_type(q.ack_and_reserve(jobs, 10, block=5), tuple[Settled, list[Job]])
    assert_type(q.redrive(), int)
    assert_type(q.redrive(limit=10), int)
    assert_type(q.redrive(ids), int)


async def async_settling(q: AsyncQueue, jobs: list[AsyncJob], ids: list[str]) -> None:
    assert_type(await q.ack(jobs), Settled)
    assert_type(await q.ack([*jobs, *ids]), Settled)
    assert_type(await q.nack(jobs), Settled)
    assert_type(await q.release(ids), Settled)
    assert_type(await q.bury(ids), Settled)
    assert_type(await q.delete(jobs), Settled)
    assert_type(await q.extend(ids), Settled)
    assert_type(await q.ack_and_reserve(jobs, 1), tuple[Settled, list[AsyncJob]])
    assert_type(await q.redrive(jobs), int)


def looking(q: Queue, job: Job) -> None:
    stats = q.stats()
    assert_type(stats, QueueStats)
    assert_type(stats.ready + stats.scheduled + stats.active + stats.dead + stats.unswept, int)
    assert_type(stats.oldest, float | None)
    assert_type(stats.settings, Settings)
    assert_type(stats.producer, Holder | None)
    views = q.peek(10, state="dead", start=5)
    assert_type(views, list[JobView])
    added = q.enqueue(1, result_ttl=timedelta(hours=1))
    assert_type(added.result(timeout=5), Any)
    assert_type(q.result(added.id, timeout=5), Any)
    assert_type(stats.kept, int)
    view = q.show(job)
    assert_type(view, JobView | None)
    if view is not None:
        assert_type(view.body, Any)
        assert_type(view.raw, bytes)
        assert_type(view.headers, Mapping[str, str])
        assert_type(view.state, str)
        assert_type(view.due, float | None)
        assert_type(view.lease_until, float | None)
        assert_type(view.attempts, int)
    assert_type(q.show(job.id), JobView | None)
    assert_type(q.purge(), int)
    assert_type(q.purge("ready", "dead"), int)
    assert_type(q.sweep(), int)
    assert_type(q.name, str)


def moving(q: Queue, jobs: list[Job], ids: list[str]) -> None:
    assert_type(q.promote(ids), Settled)
    assert_type(q.postpone([*ids, *jobs]), Settled)
    assert_type(q.delete(ids, if_undelivered=True), Settled)
    assert_type(q.sweep(evict=100), int)
    assert_type(q.sweep(evict=1000, dead=False), int)
    assert_type(q.recover(10, idle=60), list[Job])
    assert_type(q.extend(jobs, late=True), Settled)
    assert_type(q.extend(jobs).seconds_left, Sequence[float | None])
    assert_type(jobs[0].extend(late=True), float)
    assert_type(jobs[0].send_progress(), bool)
    assert_type(jobs[0].redeliveries, int)
    q.enqueue(1, durable=Durable(2, timeout=timedelta(milliseconds=500)))
    q.enqueue(1, durable=Durable(2, fsynced=True, timeout=None))
    q.enqueue_many([1], durable=Durable(fsynced=True))
    confirmed = q.ack(jobs, durable=Durable(1, fsynced=True, timeout=0.5))
    assert_type(confirmed.replicas, int)
    assert_type(jobs[0].ack(durable=Durable(1, fsynced=True, timeout=timedelta(seconds=1))), bool)
    q.ack(jobs, replicas=None)  # type: ignore[arg-type]  # no setting applies to an ack


def unique(ps: Penstock, q: Queue) -> None:
    done = q.enqueue(1, dedup=Dedup("a", window=60, on_duplicate="requeue+update"))
    assert_type(done.action, str)
    assert_type(done.duplicate, bool)
    q.enqueue(1, dedup=Dedup("a", until="started", on_duplicate="update"))
    q.enqueue_many([{"user": 1}], dedup_id=lambda body: str(body["user"]))
    status = q.dedup_status("a")
    assert_type(status, DedupStatus | None)
    if status is not None:
        assert_type(status.job, JobView | None)
        assert_type(status.successor, JobView | None)
        assert_type(status.window_ends, float | None)
    assert_type(q.clear(), int)
    assert_type(ps.clear(["a", q]), list[str])
    assert_type(ps.clear_all(confirm="penstock"), list[str])
    assert_type(ps.queues("mail.*"), list[str])
    for view in q.jobs():
        assert_type(view.dedup_id, str | None)
        assert_type(view.stable_id, str)
        assert_type(view.age, float)


def scanning(ps: Penstock, q: Queue) -> None:
    page = q.jobs(["ready", "dead"], n=50).page("0", full=False)
    assert_type(page, ScanPage)
    assert_type(page.cursor, str)
    assert_type(page.ids, list[str])
    assert_type(page.jobs, list[JobView])
    assert_type(list(q.jobs(state={"active"})), list[JobView])
    assert_type(q.jobs("dead", handler="h", group="0c51", batch="D-"), JobSearch)
    assert_type(q.jobs("dead").error_groups(limit=9).groups, list[ErrorGroup])
    assert_type(q.schedules, QueueSchedules)
    assert_type(q.schedules.list(), list[ScheduleView])
    assert_type(q.batches, QueueBatches[Batch])
    assert_type(q.batches.list(), list[BatchStatus])
    assert_type(q.batches.open(then="x"), Batch)
    assert_type(q.batches.results("D-", return_exceptions=True), list[Any])
    assert_type(q.chains.status("D-"), ChainStatus)
    assert_type(q.chains.cancel("D-"), Outcome)
    assert_type(q.peek(newest=True), list[JobView])
    queues = ps.scan_queues(pattern="m*", min_length=1, max_length=10, max_idle=60)
    assert_type(queues, QueuePage)
    assert_type(queues.queues, list[QueueStats])
    assert_type(list(ps.scan_queues_iter()), list[QueueStats])
    assert_type(list(ps.jobs(["a", q])), list[JobView])
    hello = ps.hello()
    assert_type(hello, Hello)
    assert_type(hello.nodes, tuple[NodeView, ...])
    assert_type(hello.nodes[0].primaries, tuple[PrimaryView, ...])
    assert_type(ps.find_problems(longest_wait=60, most_dead=5), list[Problem])
    assert_type(hello.nodes[0].used_memory, int | None)
    assert_type(ps.info(), Info)
    for view in page.jobs:
        assert_type(view.idle, float | None)
        assert_type(view.next_in, float | None)
        assert_type(view.ttl_left, float | None)


def several_nodes(lent: redis.Redis, handlers: Handlers) -> None:
    """A list of sources is a federation, with the same queues."""
    ps = Penstock(["redis://a", lent], on_unknown="next")
    assert_type(ps.queue("q"), Queue)
    assert_type(ps.nodes.list(), tuple[NodeView, ...])
    view = ps.nodes.add("redis://b")
    assert_type(view, NodeView)
    drain = ps.nodes.check_drained(view)
    assert_type(drain, Drain)
    if drain:
        ps.nodes.forget(view.id)
    ps.nodes.leave("redis://b")
    ps.nodes.join(view)
    try:
        stats = ps.queue("q").stats()
    except NodesUnavailable as error:
        assert_type(error.reasons, dict[str, str])
    except NodesMissed as error:
        assert_type(error.unreachable, dict[str, str])
    else:
        assert_type(stats.unreachable, tuple[str, ...])
    Worker(["redis://a", "redis://b"], "q", handlers)


async def async_several_nodes(lent: redis.asyncio.Redis) -> None:
    """A list of sources is a federation for asyncio too."""
    async with AsyncPenstock(("redis://a", lent)) as ps:
        assert_type(await ps.nodes.list(), tuple[NodeView, ...])
        await ps.nodes.leave((await ps.nodes.list())[0])


async def async_scanning(ps: AsyncPenstock, q: AsyncQueue) -> None:
    assert_type(await q.jobs("dead").page(), ScanPage)
    assert_type([view async for view in q.jobs()], list[JobView])
    assert_type([stats async for stats in ps.scan_queues_iter(n=5)], list[QueueStats])
    assert_type([view async for view in ps.jobs()], list[JobView])
    assert_type(await q.recover(idle=timedelta(minutes=1)), list[AsyncJob])
    assert_type(await q.promote(["D-"]), Settled)


def settings(q: Queue) -> None:
    stored = q.configure(
        lease=30,
        max_length=1000,
        max_attempts=5,
        max_crashes=3,
        max_releases=10,
        replicas=1,
        backoff_base=timedelta(seconds=1),
        backoff_cap=3600,
        dead_max=0,
        dead_age=timedelta(days=1),
    )
    assert_type(stored, Settings)
    assert_type(q.configure(lease=None), Settings)
    assert_type(stored.lease, float | None)
    assert_type(stored.max_length, int | None)
    assert_type(stored.paused, str | None)
    assert_type(q.pause("in"), None)
    assert_type(q.pause(), None)
    assert_type(q.resume(), None)


async def async_looking(q: AsyncQueue) -> None:
    assert_type(await q.stats(), QueueStats)
    assert_type(await q.peek(), list[JobView])
    assert_type(await q.show("D-"), JobView | None)
    assert_type(await q.configure(max_attempts=1), Settings)
    assert_type(await q.pause(), None)
    assert_type(await q.purge(), int)


def ids() -> None:
    parts = parse_id("D-")
    assert_type(parts, JobId)
    assert_type(parts.node, str)
    assert_type(parts.ms, int)
    assert_type(parts.ttl_minutes, int | None)
    assert_type(parts.at_most_once, bool)


def errors(q: Queue) -> None:
    try:
        q.enqueue(1)
    except BadJobId as error:
        assert_type(error.argument, str)
    except BadArgument as error:
        assert_type(error.value, Any)
        assert_type(error.reason, str)
    except StaleReceipt as error:
        assert_type(error.job_id, str)
        assert_type(error.receipt, str)
        assert_type(error.current, str | None)
        assert_type(error.operation, str)
    except AckNotReplicated as error:
        assert_type(error.confirmed, int)
        assert_type(error.outcomes, Any)
    except NotReplicated as error:
        assert_type(error.fsynced, bool | None)
        assert_type(error.wanted - error.got, int)
        assert_type(error.withdrawn, bool | None)
    except CannotSync as error:
        assert_type(str(error), str)
    except IncompleteSettle as error:
        assert_type(error.outcomes, Any)
        assert_type(error.not_replicated, AckNotReplicated | None)
    except TooLate as error:
        assert_type(str(error), str)
    except PenstockError as error:
        assert_type(error, PenstockError)
    assert_type(penstock.__version__, str)
    assert_type(EvictionWarning, type[EvictionWarning])


def mistakes(q: Queue, aq: AsyncQueue, job: Job, client: redis.Redis) -> None:
    q.enqueue("x", "y")  # type: ignore[arg-type]  # options are named
    q.enqueue("x", delay="soon")  # type: ignore[arg-type]  # not a duration
    q.enqueue("x", headers={"a": 1})  # type: ignore[dict-item]  # values are text
    q.enqueue_many(5)  # type: ignore[arg-type]  # not bodies
    q.ack(job)  # type: ignore[arg-type]  # a single job is not a list of jobs
    q.peek("dead")  # type: ignore[arg-type]  # the state is named
    q.reserve(block="5")  # type: ignore[arg-type]  # not a duration
    q.delay("x")  # type: ignore[attr-defined]  # a call of another library
    q.configure(leases=5)  # type: ignore[call-arg]  # no such setting
    AsyncPenstock(client)  # type: ignore[arg-type]  # a client of the other kind
    Penstock(5)  # type: ignore[arg-type]  # not a server
    aq.enqueue("x")  # type: ignore[unused-coroutine]  # a forgotten await is found
    with job as same:
        same.id = "other"  # type: ignore[misc]  # it is read-only


def policies() -> None:
    policy = RetryPolicy(5, base=0.5, cap=timedelta(minutes=1), on={OSError: RetryPolicy(1)})
    assert_type(policy, RetryPolicy)
    assert_type(policy.max_attempts, int | None)
    assert_type(policy.delay(3, 0.5), float)
    assert_type(policy.matching(OSError()), RetryPolicy)


class Quiet(Middleware):
    """Overrides one hook by a generator, the other by a method."""

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Generator[None, None, None]:
        assert_type(event.headers, dict[str, str])
        assert_type(event.count, int | None)
        assert_type(event.handler, str | None)
        yield
        assert_type(event.results[0].id, str)
        assert_type(event.error, BaseException | None)

    def run(self, event: RunEvent) -> AbstractContextManager[None]:
        assert_type(event.jobs, tuple[Delivery, ...])
        assert_type(event.outcome, str)
        assert_type(event.counts, Mapping[str, int])
        assert_type(event.queueing, float | None)
        return super().run(event)


def observing(registry: CollectorRegistry, provider: TracerProvider) -> None:
    hooks = [Quiet(), Prometheus(registry, prefix="shop"), OpenTelemetry(provider)]
    ps = Penstock(middleware=hooks)
    assert_type(ps.middleware, tuple[Middleware, ...])
    assert_type(AsyncPenstock(middleware=(OpenTelemetry(), Prometheus())).queue("q"), AsyncQueue)
    assert_type(ps.queue("q").enqueue_many([1]).duplicates, int)


def figures(stats: WorkerStats) -> None:
    assert_type(Statistics().snapshot(), WorkerStats)
    assert_type(stats.handling, Summary)
    assert_type(stats.handling.p99, float)
    assert_type(stats.queue_sizes["q"].last, float)
    assert_type(stats.counts, Mapping[str, int])
    assert_type(stats.as_dict(), dict[str, Any])
    assert_type(size_monitor(500, every=timedelta(hours=1)), Monitor)
    size_monitor()(LoopEvent({"q": 1001}, 0, 10))


def handle(job: Job) -> None: ...


async def ahandle(job: AsyncJob) -> None: ...


def working(ps: Penstock, lent: redis.Redis, handlers: Handlers) -> None:
    Worker("redis://localhost", "q", handle)
    Worker(lent, ["a", "b"], handlers)
    Worker(
        ps,
        {"mail": 8, "low": 2},
        handlers,
        concurrency=4,
        prefetch=10,
        grace=timedelta(seconds=5),
        burst=True,
        max_jobs=100,
        throttle=lambda size: 0.1 if size < 10 else 0,
        monitor=size_monitor(),
        heartbeat="process",
        name="web-1",
    )
    worker = Worker(ps, (name for name in "ab"), handlers, throttle=timedelta(seconds=1))
    worker.change(concurrency=2, queues="q", grace=None)
    worker.run(signals=False)
    worker.start()
    worker.stop()
    worker.stop(grace=timedelta(seconds=1))
    assert_type(worker.join(), bool)
    assert_type(worker.join(timeout=5), bool)
    with Worker(ps, "q", handlers) as inside:
        assert_type(inside, Worker)
    assert_type(worker.name, str)
    assert_type(worker.state, str)
    assert_type(worker.stopping, bool)
    assert_type(worker.healthy(), bool)


async def async_working(ps: AsyncPenstock, lent: redis.asyncio.Redis) -> None:
    AsyncWorker("redis://localhost", {"a": 2}, handle)  # a plain function runs in a thread
    AsyncWorker(lent, "q", ahandle, throttle=1, monitor=None)
    worker = AsyncWorker(ps, "q", ahandle)
    await worker.run()
    await worker.start()
    worker.stop(0)  # from any thread: no await
    assert_type(await worker.join(5), bool)
    async with AsyncWorker(ps, "q", ahandle) as inside:
        assert_type(inside, AsyncWorker)
    assert_type(worker.status(), WorkerStatus)


def what_it_says(worker: Worker, job: Job) -> None:
    status = worker.status()
    assert_type(status, WorkerStatus)
    assert_type((status.name, status.state, status.healthy), tuple[str, str, bool])
    assert_type(status.queues, Mapping[str, int])
    assert_type(status.concurrency + status.held + status.taken + status.idle_rounds, int)
    assert_type(status.answered, float)
    assert_type(status.stats, WorkerStats)
    assert_type(status.as_dict(), dict[str, Any])
    for running in status.running:
        assert_type(running, RunningJob)
        assert_type((running.id, running.queue, running.attempt), tuple[str, str, int])
        assert_type(running.handler, str | None)
        assert_type(running.seconds, float)
    assert_type(job.lost, bool)


def mistaken_workers(ps: Penstock, aps: AsyncPenstock) -> None:
    Worker(ps, 5, handle)  # type: ignore[arg-type]  # not a name
    Worker(ps, "q", handle, concurrency="8")  # type: ignore[arg-type]  # not a number
    Worker(ps, "q", handle, retries=3)  # type: ignore[call-arg]  # no such option: RetryPolicy
    AsyncWorker(aps, "q", 5)  # type: ignore[arg-type]  # not a function


async def policies_of_jobs(q: Queue, twin: AsyncQueue, job: Job, view: JobView) -> None:
    q.enqueue(1, retry=RetryPolicy(3))
    await twin.enqueue_many([1], retry=None)
    assert_type(job.retry, RetryPolicy | None)
    assert_type(view.retry, RetryPolicy | None)


async def windows_of_an_ack(q: Queue, twin: AsyncQueue, job: Job) -> None:
    assert_type(q.ack([job], dedup_window=timedelta(minutes=1)), Settled)
    assert_type(await twin.ack(["D-1"], dedup_window=0), Settled)
    assert_type(job.ack(dedup_window=60), bool)
