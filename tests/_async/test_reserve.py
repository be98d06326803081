"""Reserving: which jobs are returned, and in which order."""

from __future__ import annotations

import time

import pytest

from penstock import AsyncPenstock, AsyncQueue
from tests.support.keyspace import Raw, advance, evalshas, load_scripts
from tests.support.twins import aspawn

from .conftest import AsyncWaits


async def bodies(q: AsyncQueue, n: int = 100) -> list[object]:
    """Return the bodies of one reserve."""
    return [job.body for job in await q.reserve(n, block=0)]


async def test_first_in_first_out(q: AsyncQueue) -> None:
    """Jobs come in the order of their enqueues, singly or in batches, from single or bulk calls."""
    await q.enqueue(0)
    await q.enqueue_many([1, 2, 3])
    await q.enqueue(4)
    assert [await bodies(q, n) for n in (1, 2, 9, 1)] == [[0], [1, 2], [3, 4], []]


async def test_many_jobs_of_one_ms_keep_their_order(q: AsyncQueue) -> None:
    """500 single calls, several per millisecond, are delivered in order, however
    they are reserved.
    """
    for number in range(500):
        await q.enqueue(number)
    taken: list[object] = []
    for n in (1, 7, 100, 392):
        taken += await bodies(q, n)
    assert taken == list(range(500))


async def test_put_backs_come_first_by_creation(q: AsyncQueue) -> None:
    """Released jobs come back by age, whatever the order of the releases."""
    await q.enqueue_many(range(4))
    jobs = await q.reserve(3, block=0)
    await jobs[2].release()
    await jobs[0].nack(delay=0)
    await jobs[1].release()
    await q.enqueue(4)
    assert await bodies(q) == [0, 1, 2, 3, 4]


async def test_put_backs_of_one_ms_keep_their_order(q: AsyncQueue) -> None:
    """A batch released in reverse is delivered in its first order."""
    await q.enqueue_many(range(100))
    jobs = await q.reserve(100, block=0)
    await q.release(list(reversed(jobs)))
    assert await bodies(q) == list(range(100))


async def test_due_jobs_are_merged_with_ready_ones(q: AsyncQueue, raw: Raw) -> None:
    """Jobs come in the order in which they became deliverable, so none starves."""
    await q.enqueue("0 min, due at 10", delay=600)
    await q.enqueue("0 min, due at 2", delay=120)
    advance(raw, q.ops, 60)
    await q.enqueue("1 min")
    advance(raw, q.ops, 240)
    await q.enqueue("5 min")
    await q.enqueue("5 min, due at 7", delay=120)
    advance(raw, q.ops, 180)
    await q.enqueue("8 min")
    seen = [view.body for view in await q.peek(100)]
    expected = ["1 min", "0 min, due at 2", "5 min", "5 min, due at 7", "8 min"]
    assert seen == expected
    assert [await bodies(q, 2) for _ in range(3)] == [expected[:2], expected[2:4], expected[4:]]


async def test_ended_leases_come_before_all_others(q: AsyncQueue, raw: Raw) -> None:
    """Jobs with ended leases come first, by end of lease; then waiting jobs."""
    await q.enqueue("put back")
    await q.enqueue("longer", lease=20)
    await q.enqueue("shorter", lease=10)
    jobs = await q.reserve(3, block=0)
    await jobs[0].release()
    await q.enqueue("fresh")
    advance(raw, q.ops, 21)
    assert await bodies(q) == ["shorter", "longer", "put back", "fresh"]


async def test_a_job_is_held_by_one_consumer(q: AsyncQueue) -> None:
    """While a lease runs no other consumer gets the job."""
    await q.enqueue(1)
    assert await bodies(q) == [1]
    assert await bodies(q) == []
    assert (await q.stats()).active == 1


async def test_no_more_than_asked_for(q: AsyncQueue) -> None:
    """`n` bounds the batch, also above the 1,000 jobs of one script."""
    await q.enqueue_many(range(2200))
    assert [len(await q.reserve(n, block=0)) for n in (1, 999, 1100, 500)] == [1, 999, 1100, 100]


async def test_a_call_reads_about_a_mebibyte(q: AsyncQueue) -> None:
    """Large bodies come in several batches of at least one job; none is skipped."""
    sizes = [300_000] * 5 + [2_000_000, 5, 300_000]
    await q.enqueue_many(b"x" * size for size in sizes)
    batches = []
    while jobs := await q.reserve(100, block=0):
        batches.append([len(job.raw) for job in jobs])
    assert [size for batch in batches for size in batch] == sizes
    assert len(batches) > 2
    assert all(sum(batch[:-1]) < 1 << 20 for batch in batches)


async def test_several_queues_left_to_right(ps: AsyncPenstock) -> None:
    """The first queue is emptied before the second one is asked."""
    high, low = ps.queue("high"), ps.queue("low")
    await low.enqueue_many([1, 2, 3])
    await high.enqueue_many([10, 20])
    jobs = await ps.reserve([high, "low"], 4, block=0)
    assert [(job.queue_name, job.body) for job in jobs] == [
        ("high", 10),
        ("high", 20),
        ("low", 1),
        ("low", 2),
    ]
    assert [job.queue for job in jobs] == [high, high, low, low]
    assert [await job.ack() for job in jobs] == [True] * 4
    assert [job.body for job in await ps.reserve(["low", "high"], 4, block=0)] == [3]


async def test_waiting_on_several_queues(ps: AsyncPenstock, waits: AsyncWaits) -> None:
    """A job on any of the queues ends the wait."""
    for name in ("a", "b", "c"):
        consumer = aspawn(ps.reserve, ["a", "b", "c"], 5, block=20)
        await waits.reach(1)
        await ps.queue(name).enqueue(name)
        (job,) = await consumer.result()
        assert (job.queue_name, job.body) == (name, name)
        assert job.delivered - job.created < 2


async def test_reserve_waits_for_block_seconds(q: AsyncQueue) -> None:
    """`block=0` does not wait; otherwise the call returns an empty list after `block` seconds."""
    start = time.monotonic()
    assert await q.reserve(block=0) == []
    assert time.monotonic() - start < 2
    start = time.monotonic()
    assert await q.reserve(block=0.15) == []
    assert 0.15 <= time.monotonic() - start < 3


async def test_one_trip_for_a_batch(real_q: AsyncQueue, real_raw: Raw) -> None:
    """reserve, ack, nack, settle and the other calls need one script each; a refused one, two."""
    load_scripts(real_raw)
    await real_q.enqueue_many(range(30))
    before = evalshas(real_raw)
    one = await real_q.reserve(10, block=0)
    two = await real_q.reserve(10, block=5)
    assert evalshas(real_raw) - before == 2
    await real_q.ack(one)
    await real_q.nack(two[:3])
    await real_q.release(two[3:6])
    await real_q.bury(two[6:8])
    await real_q.extend(two[8:])
    assert evalshas(real_raw) - before == 7
    outcomes, three = await real_q.ack_and_reserve(two[8:], 9)
    assert (outcomes.done, len(three)) == (2, 9)
    assert evalshas(real_raw) - before == 8


async def test_a_consumer_that_blocks_again_and_again(q: AsyncQueue) -> None:
    """One client blocks for each of many jobs and reuses its connections."""
    for number in range(20):
        consumer = aspawn(q.reserve, 1, block=20)
        await q.enqueue(number)
        (job,) = await consumer.result()
        assert job.body == number
        await job.ack()


async def test_a_job_of_a_reserve_is_from_its_queue(ps: AsyncPenstock) -> None:
    """Two queue objects with one name are the same queue."""
    assert ps.queue("q") is ps.queue("q")
    assert ps.queue("q").name == "q"
    await ps.queue("q").enqueue(1)
    (job,) = await ps.queue("q").reserve(block=0)
    assert job.queue_name == "q"
    assert "'q'" in repr(ps.queue("q"))


@pytest.mark.parametrize("n", [1, 5])
async def test_order_survives_the_loss_of_every_lease(q: AsyncQueue, raw: Raw, n: int) -> None:
    """Jobs whose leases ended together are delivered in their first order."""
    await q.enqueue_many(range(30), lease=10)
    assert await bodies(q, 30) == list(range(30))
    advance(raw, q.ops, 11)
    taken: list[object] = []
    for _ in range(30 // n):
        taken += await bodies(q, n)
    assert taken == list(range(30))
