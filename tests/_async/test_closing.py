"""Closing a queue: producers are refused; consumers finish the remaining jobs and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    Dedup,
    QueueClosed,
    QueueFull,
    QueuePaused,
)
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, evalshas, load_scripts, numbers
from tests.support.twins import AsyncBeside, aspawn, await_for

from .conftest import AsyncWaits


async def ended(consumers: list[AsyncBeside[Any]]) -> None:
    """Check that each consumer was told of the end without polling."""
    for consumer in consumers:
        with pytest.raises(QueueClosed, match="'q' is closed, and no job is left"):
            await consumer.result()


async def consumed(q: AsyncQueue, batch: int = 1) -> list[Any]:
    """Return the bodies of all jobs until the loop ends by itself."""
    bodies = []
    async for job in q.consume(batch=batch):
        async with job:
            bodies.append(job.body)
    return bodies


async def test_a_closed_queue_takes_no_jobs(q: AsyncQueue, raw: Raw) -> None:
    """A closed queue refuses every way of adding a job, and no key changes."""
    await q.enqueue("before")
    assert not (await q.stats()).closed
    await q.close()
    assert (await q.stats()).closed
    before = dump(raw)
    for options in ({}, {"delay": 5}, {"block": 30}, {"max_length": 1}, {"lease": 0}):
        with pytest.raises(QueueClosed, match="'q' is closed and takes no more jobs"):
            await q.enqueue("after", **options)
    with pytest.raises(QueueClosed):
        await q.enqueue_many(["after", "that"])
    assert dump(raw) == before


@pytest.mark.parametrize("mode", ["refuse", "update", "debounce", "requeue", "requeue+debounce"])
async def test_duplicates_are_refused_as_well(q: AsyncQueue, raw: Raw, mode: str) -> None:
    """Duplicates are refused too, with or without an existing job: nothing is added or updated."""
    await q.enqueue("waits", dedup_id="waits")
    await q.enqueue("active", dedup_id="active")
    await q.promote([view.id for view in await q.peek()])
    (job,) = await q.reserve(block=0)
    await q.close()
    before = dump(raw)
    for name in ("waits", "active", "new"):
        with pytest.raises(QueueClosed):
            await q.enqueue("again", dedup=Dedup(name, on_duplicate=mode))
    assert dump(raw) == before
    status = await q.dedup_status("active")
    assert status is not None
    assert job.dedup_id in ("waits", "active")


async def test_reopening_lets_producers_in_again(q: AsyncQueue) -> None:
    """A queue may be closed twice and reopened twice; its settings and jobs stay."""
    await q.configure(max_length=2)
    await q.enqueue(1)
    for _ in range(2):
        await q.close()
    with pytest.raises(QueueClosed):
        await q.enqueue(2)
    for _ in range(2):
        await q.reopen()
    await q.enqueue(2)
    with pytest.raises(QueueFull):
        await q.enqueue(3)
    stats = await q.stats()
    assert (stats.closed, stats.ready, stats.settings.max_length) == (False, 2, 2)


async def test_a_queue_may_be_closed_before_its_first_job(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw
) -> None:
    """Closing creates the queue. It stays although it is idle, so later clients find it closed."""
    await q.close()
    with pytest.raises(QueueClosed):
        await q.enqueue(1)
    advance(raw, q.ops, 3600)
    assert await q.sweep() == 0
    assert await ps.queues() == ["q"]
    with pytest.raises(QueueClosed):
        await q.enqueue(1)
    assert await q.clear() == 0
    await q.enqueue(1)


async def test_consumers_drain_a_closed_queue_and_end(q: AsyncQueue) -> None:
    """Loops get the remaining jobs, ready, delayed or put back, and then end."""
    await q.enqueue_many(range(20))
    await q.enqueue(20, delay=0.3)
    (held,) = await q.reserve(block=0)
    await q.close()
    loops = [aspawn(consumed, q, batch) for batch in (1, 2, 3)]
    assert await held.nack(delay=0.2)
    found = [body for loop in loops for body in await loop.result()]
    assert sorted(found) == list(range(21))
    assert (await q.stats()).acked == 21
    assert await consumed(q) == []


@pytest.mark.usefixtures("no_ticks")
async def test_all_waiting_consumers_are_told_of_the_end(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Five consumers wait while the last job is active; when it is done, all five end at once."""
    await q.enqueue(1)
    (job,) = await q.reserve(block=0)
    consumers = [aspawn(q.reserve, 1, block=block) for block in (30, 30, 30, None, None)]
    await waits.reach(5)
    await q.close()
    await waits.reach(5)
    assert not any(consumer.is_done for consumer in consumers)
    assert await job.ack()
    await ended(consumers)
    assert (await q.stats()).acked == 1


@pytest.mark.usefixtures("no_ticks")
async def test_a_close_wakes_consumers_of_an_empty_queue(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Consumers at an empty queue end when it is closed, paused or not."""
    await q.enqueue(1)
    await q.purge()
    for side in (None, "out", "all"):
        if side:
            await q.pause(side)
        consumers = [aspawn(q.reserve, 1, block=30) for _ in range(3)]
        await waits.reach(3)
        await q.close()
        await ended(consumers)
        await q.reopen()
    assert await q.reserve(block=0) == []


async def end(q: AsyncQueue, how: str, held: list[AsyncJob], number: str) -> Any:
    """End the last job of a queue in one of many ways."""
    if how == "expire by reserve":
        with pytest.raises(QueueClosed):
            await q.reserve(block=0)
        return None
    ways: dict[str, Callable[[], Any]] = {
        "ack by id": lambda: q.ack([number]),
        "settle": lambda: q.ack_and_reserve(held, 5),
        "recover": lambda: q.recover(idle=0),
        "purge": lambda: q.purge("active"),
        "delete": lambda: q.delete([number]),
        "withdraw": lambda: q.delete([number], if_undelivered=True),
        "expire by peek": q.peek,
        "expire by sweep": q.sweep,
    }
    return await (ways[how]() if how in ways else getattr(held[0], how)())


ENDINGS = [
    "ack", "ack by id", "settle", "bury", "nack", "release", "delete", "purge", "withdraw",
    "recover", "expire by peek", "expire by sweep", "expire by reserve",
]  # fmt: skip


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("how", ENDINGS)
async def test_every_way_of_emptying_the_queue_ends_the_consumers(
    q: AsyncQueue, raw: Raw, waits: AsyncWaits, how: str
) -> None:
    """The last job ends in any way: one waiting consumer is told, and tells the other one."""
    await q.configure(max_attempts=1, max_crashes=1, max_releases=1)
    is_waiting = how in ("withdraw", "ack by id")
    ttl = 600 if how.startswith("expire") else None
    added = await q.enqueue(1, ttl=ttl, delay=600 if is_waiting else 0)
    held = [] if is_waiting else await q.reserve(block=0)
    await q.close()
    consumers = [aspawn(q.reserve, 1, block=30) for _ in range(2)]
    await waits.reach(2)
    if ttl:
        advance(raw, q.ops, 601)
    await end(q, how, held, added.id)
    await ended(consumers)
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (0, 0, 0)


@pytest.mark.usefixtures("no_ticks")
async def test_jobs_at_most_once_are_not_waited_for(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A job with lease 0 is not delivered again, so its delivery ends all other consumers."""
    await q.enqueue(1, lease=0, delay=0.5)
    await q.close()
    consumers = [aspawn(consumed, q) for _ in range(3)]
    assert sorted([await consumer.result() for consumer in consumers]) == [[], [], [1]]


async def test_dead_letters_are_no_jobs_to_wait_for(q: AsyncQueue) -> None:
    """A closed queue that has only dead letters is drained; redriven jobs are still delivered."""
    await q.enqueue("bad")
    (job,) = await q.reserve(block=0)
    await q.close()
    await job.bury("no use")
    with pytest.raises(QueueClosed):
        await q.reserve(block=0)
    assert await q.redrive() == 1
    assert await consumed(q) == ["bad"]


async def test_accepted_jobs_are_processed_as_usual(q: AsyncQueue, raw: Raw) -> None:
    """Retries, releases, ended leases, takeovers and promotions work as in an open queue."""
    await q.enqueue_many(range(5))
    await q.enqueue(5, delay=600)
    await q.close()
    one, two, three, four = await q.reserve(4, block=0)
    assert await one.nack(delay=0)
    assert await two.release()
    assert await three.extend(60)
    (taken,) = await q.recover(idle=0, n=1)
    assert (taken.id, taken.crashes) == (three.id, 1)
    assert (await q.promote([view.id for view in await q.peek(state="scheduled")])).done == 1
    advance(raw, q.ops, 31)
    bodies = sorted(job.body for job in await q.reserve(9, block=0))
    assert bodies == [0, 1, 2, 3, 4, 5]
    assert four.body == 3


async def test_successors_are_run_before_the_end(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A closed queue is not drained while a successor waits for another job's end."""
    await q.enqueue("first", dedup_id="x")
    (first,) = await q.reserve(block=0)
    await q.enqueue("second", dedup=Dedup("x", on_duplicate="requeue"))
    await q.close()
    consumer = aspawn(consumed, q)
    await waits.reach(1)
    assert await first.ack()
    assert await consumer.result() == ["second"]


@pytest.mark.usefixtures("no_ticks")
async def test_producers_waiting_for_room_are_refused(q: AsyncQueue, waits: AsyncWaits) -> None:
    """All producers that wait for room are refused at once, and their jobs are not added."""
    await q.configure(max_length=1)
    await q.enqueue(0)
    producers = [aspawn(q.enqueue, i, block=30 if i % 2 else None) for i in (1, 2, 3)]
    await waits.reach(3)
    await q.close()
    for producer in producers:
        with pytest.raises(QueueClosed, match="takes no more jobs"):
            await producer.result()
    assert await consumed(q) == [0]


async def test_a_closed_queue_is_closed_rather_than_paused_or_full(q: AsyncQueue) -> None:
    """A closed queue that is also paused or full raises `QueueClosed`, as that does not pass."""
    await q.configure(max_length=1)
    await q.enqueue(1)
    await q.pause("in")
    with pytest.raises(QueuePaused):
        await q.enqueue(2)
    await q.close()
    with pytest.raises(QueueClosed):
        await q.enqueue(2, block=30)


async def test_a_settle_returns_the_outcomes_of_finished_jobs(q: AsyncQueue) -> None:
    """A settle of the last job returns its outcome; the next call says that the queue has ended."""
    await q.enqueue(1)
    jobs = await q.reserve(block=0)
    await q.close()
    outcomes, more = await q.ack_and_reserve(jobs, 1, block=30)
    assert outcomes.all_done
    assert more == []
    with pytest.raises(QueueClosed):
        await q.reserve(block=30)


@pytest.mark.usefixtures("no_ticks")
async def test_several_queues_end_together(
    ps: AsyncPenstock, q: AsyncQueue, waits: AsyncWaits
) -> None:
    """A consumer of two queues goes on while one of them is open, and ends with the last one."""
    other = ps.queue("other")
    for queue in (q, other):
        await queue.enqueue(queue.name)
        await queue.purge()
    await q.close()
    assert await ps.reserve([q, other], block=0) == []
    consumers = [aspawn(ps.reserve, [q, other], block=30) for _ in range(2)]
    await waits.reach(2)
    await other.enqueue("still open")
    await await_for(lambda: any(consumer.is_done for consumer in consumers))
    (told, left) = sorted(consumers, key=lambda consumer: not consumer.is_done)
    (job,) = await told.result()
    assert job.body == "still open"
    await other.close()
    await job.ack()
    with pytest.raises(QueueClosed):
        await left.result()


async def test_a_queue_that_is_reopened_meanwhile_is_not_left(
    ps: AsyncPenstock, q: AsyncQueue, waits: AsyncWaits
) -> None:
    """Two queues are closed one after the other. The first is reopened, so its consumer stays."""
    other = ps.queue("other")
    await other.enqueue("other")
    (held,) = await other.reserve(block=0)
    await q.close()
    consumer = aspawn(ps.reserve, [q, other], block=30)
    await waits.reach(1)
    await other.close()
    await q.reopen()
    await held.ack()
    await q.enqueue("new")
    (job,) = await consumer.result()
    assert job.body == "new"


async def test_a_drained_queue_is_not_asked_over_and_over(
    real_ps: AsyncPenstock, real_q: AsyncQueue, real_raw: Raw, waits: AsyncWaits
) -> None:
    """A drained queue keeps its token for the next consumer and is not asked over and over."""
    load_scripts(real_raw)
    other = real_ps.queue("other")
    await other.enqueue(1)
    await other.purge()
    await real_q.close()
    before = evalshas(real_raw)
    assert await real_ps.reserve([real_q, other], block=1) == []
    assert evalshas(real_raw) - before <= 6
    assert real_raw.lrange(real_q.ops.keys["wake"], 0, -1) == [b"1"]
    await waits.reach(0)


@pytest.mark.usefixtures("no_ticks")
async def test_a_worker_ends_with_its_queues(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A worker ends when all its queues are closed and drained, and continues with open ones."""
    other = ps.queue("other")
    await q.enqueue_many(range(5))
    seen: list[Any] = []

    async def handler(job: AsyncJob) -> None:
        seen.append(job.body)

    worker = AsyncWorker(ps, ["q", "other"], handler)
    running = aspawn(worker.run, signals=False)
    await await_for(lambda: len(seen) == 5)
    await q.close()
    await other.enqueue("other")
    await await_for(lambda: len(seen) == 6)
    assert worker.state == "running"
    await other.close()
    await running.result()
    assert worker.state == "stopped"
    assert (await q.stats()).acked == 5


async def test_workers_share_the_end(ps: AsyncPenstock, q: AsyncQueue, backend: Backend) -> None:
    """Three workers share one queue: when its last job is done, all of them end."""
    await q.enqueue_many(range(30))
    seen: list[Any] = []

    async def handler(job: AsyncJob) -> None:
        seen.append(job.body)

    workers = [AsyncWorker(ps, "q", handler, concurrency=2) for _ in range(3)]
    running = [aspawn(worker.run, signals=False) for worker in workers]
    await await_for(lambda: len(seen) > 3)
    await q.close()
    for one in running:
        await one.result()
    assert sorted(seen) == list(range(30))
    assert (await q.stats()).acked == 30
    assert numbers(backend.sync_client(), q.ops, "held") == []
