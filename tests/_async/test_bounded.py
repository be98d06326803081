"""Bounded queues: a producer is refused or waits for room, and the bound is never exceeded."""

from __future__ import annotations

import time

import pytest

from penstock import AsyncPenstock, AsyncQueue, Dedup, QueueFull, QueuePaused
from tests.support.keyspace import Raw, advance, dump, evalshas, load_scripts, numbers
from tests.support.twins import aspawn

from .conftest import AsyncWaits


async def test_a_full_queue_refuses(q: AsyncQueue, raw: Raw) -> None:
    """Without `block` a full queue refuses at once: the error has both figures, and
    no key changes.
    """
    await q.enqueue_many([1, 2, 3])
    before = dump(raw)
    with pytest.raises(QueueFull, match="'q' is full: 3 jobs wait, the limit is 3"):
        await q.enqueue(4, max_length=3)
    with pytest.raises(QueueFull):
        await q.enqueue(4, max_length=2)
    with pytest.raises(QueueFull):
        await q.enqueue_many([4, 5], max_length=4)
    assert dump(raw) == before
    await q.enqueue(4, max_length=4)


async def test_the_bound_may_be_stored_on_the_queue(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A stored bound holds for every producer; the bound of a call can only be narrower."""
    await q.configure(max_length=3)
    await q.enqueue_many([1, 2])
    with pytest.raises(QueueFull, match="2 jobs wait, the limit is 2"):
        await q.enqueue(3, max_length=2)
    await q.enqueue(3, max_length=50)
    with pytest.raises(QueueFull, match="3 jobs wait, the limit is 3"):
        await q.enqueue(4, max_length=50)
    await q.configure(max_length=None)
    await q.enqueue(4)


async def test_waiting_is_ready_and_scheduled(q: AsyncQueue) -> None:
    """The bound counts ready and delayed jobs, but no active and dead ones."""
    await q.configure(max_length=2)
    await q.enqueue("later", delay=600)
    await q.enqueue("now")
    with pytest.raises(QueueFull):
        await q.enqueue("no room", delay=600)
    (job,) = await q.reserve(block=0)
    await q.enqueue("now there is")
    await job.bury()
    with pytest.raises(QueueFull):
        await q.enqueue("no room again")


async def test_jobs_that_wait_for_other_jobs_take_no_room(q: AsyncQueue) -> None:
    """Callbacks of open and closed batches and a successor, also with a ttl, are not counted, and
    fit into a full queue. When other jobs have ended they are due and count, above the bound.
    """
    await q.configure(max_length=1)
    async with q.batch(then="a") as batch:
        await batch.enqueue("member")
    (member,) = await q.reserve(block=0)
    await member.bury()
    again = Dedup("id", on_duplicate="requeue")
    await q.enqueue("owner", dedup=again)
    (owner,) = await q.reserve(block=0)
    async with q.batch(then="b"):
        await q.enqueue("one")
        await q.enqueue("successor", dedup=again, ttl=600)
        stats = await q.stats()
        assert (stats.ready, stats.scheduled, stats.dependent) == (1, 3, 3)
        with pytest.raises(QueueFull, match="1 jobs wait, the limit is 1"):
            await q.enqueue("no room")
    await owner.ack()
    await q.redrive()
    with pytest.raises(QueueFull, match="4 jobs wait, the limit is 1"):
        await q.enqueue("no room")
    done = [await q.ack(await q.reserve(9, block=0)) for _ in range(2)]
    assert list(map(len, done)) == [4, 1]
    await q.enqueue("room")


async def test_a_batch_that_got_no_job_is_cancelled(q: AsyncQueue) -> None:
    """Producers that try a full queue again leave no batches behind."""
    await q.configure(max_length=1)
    await q.enqueue("all the room")
    for _ in range(3):
        with pytest.raises(QueueFull):
            async with q.batch(then="callback") as batch:
                await batch.enqueue("member")
    stats = await q.stats()
    assert (stats.batches, stats.dependent, stats.dead) == (0, 0, 0)


async def test_jobs_put_back_may_exceed_the_bound(q: AsyncQueue, raw: Raw) -> None:
    """nack, release, an ended lease and redrive ignore the bound; only producers are refused."""
    await q.configure(max_length=2)
    await q.enqueue_many(["nacked", "released"])
    one, two = await q.reserve(2, block=0)
    await q.enqueue_many(["crashed", "buried"])
    three, four = await q.reserve(2, block=0)
    await four.bury()
    await q.enqueue_many([5, 6])
    assert await one.nack(delay=0)
    assert await two.release()
    assert await q.redrive() == 1
    advance(raw, q.ops, 31)
    assert (await q.stats()).ready == 6
    with pytest.raises(QueueFull):
        await q.enqueue(7)
    bodies = [job.body for job in await q.reserve(9, block=0)]
    assert bodies == ["crashed", "nacked", "released", "buried", 5, 6]
    assert three.id


@pytest.mark.usefixtures("no_ticks")
async def test_a_producer_waits_for_room(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A waiting producer is woken when a job is reserved, long before its next own look."""
    await q.enqueue(1)
    producer = aspawn(q.enqueue, 2, max_length=1, block=30)
    await waits.reach(1)
    (job,) = await q.reserve(block=0)
    done = await producer.result()
    assert job.body == 1
    assert [view.id for view in await q.peek()] == [done.id]


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("how", ["ack", "bury", "delete", "purge", "configure", "sweep", "settle"])
async def test_every_way_of_making_room_wakes_the_producer(
    q: AsyncQueue, raw: Raw, waits: AsyncWaits, how: str
) -> None:
    """A waiting job that ends in any way makes room for a waiting producer."""
    await q.configure(max_length=1)
    first = await q.enqueue(1, ttl=600 if how == "sweep" else None)
    producer = aspawn(q.enqueue, 2, block=30)
    await waits.reach(1)
    if how == "ack":
        assert await q.ack([first.id])
    elif how == "bury":
        assert await q.bury([first.id])
    elif how == "delete":
        assert await q.delete([first.id])
    elif how == "purge":
        assert await q.purge() == 1
    elif how == "settle":
        assert (await q.ack_and_reserve([first.id], 1))[0]
    elif how == "configure":
        await q.configure(max_length=2)
    else:
        advance(raw, q.ops, 600)
        assert await q.sweep() == 1
    await producer.result()


async def test_a_waiting_producer_gives_up_in_time(q: AsyncQueue, raw: Raw) -> None:
    """After `block` seconds the producer raises `QueueFull`, and the job is not added."""
    await q.enqueue(1)
    start = time.monotonic()
    with pytest.raises(QueueFull):
        await q.enqueue(2, max_length=1, block=0.2)
    assert 0.2 <= time.monotonic() - start < 3
    assert len(numbers(raw, q.ops, "ready")) == 1


async def test_a_waiting_producer_does_not_poll(
    real_q: AsyncQueue, real_raw: Raw, waits: AsyncWaits
) -> None:
    """A waiting producer sends one call for each tick of 4 s and nothing else."""
    load_scripts(real_raw)
    await real_q.enqueue(1)
    producer = aspawn(real_q.enqueue, 2, max_length=1, block=30)
    await waits.reach(1)
    before = evalshas(real_raw)
    assert await real_q.reserve(1, block=0)
    await producer.result()
    # Our own call, the producer's second attempt, and perhaps one that puts a token back.
    assert evalshas(real_raw) - before <= 3


@pytest.mark.usefixtures("no_ticks")
async def test_one_place_wakes_one_producer_after_the_other(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """Three producers wait, room for one job appears three times, and all three add their job."""
    await q.enqueue(0)
    producers = [aspawn(q.enqueue, i, max_length=1, block=30) for i in (1, 2, 3)]
    await waits.reach(3)
    bodies = [(await q.reserve(block=20))[0].body for _ in range(4)]
    for producer in producers:
        await producer.result()
    assert sorted(bodies) == [0, 1, 2, 3]


@pytest.mark.usefixtures("no_ticks")
async def test_room_for_all_lets_all_in(q: AsyncQueue, waits: AsyncWaits) -> None:
    """One call makes room for many jobs: each producer passes the token to the next one."""
    await q.enqueue_many([1, 2, 3])
    producers = [aspawn(q.enqueue, i, max_length=3, block=30) for i in range(3)]
    await waits.reach(3)
    await q.purge()
    for producer in producers:
        await producer.result()
    assert (await q.stats()).ready == 3


async def test_many_go_in_as_room_appears(q: AsyncQueue) -> None:
    """A bulk larger than the bound is added in parts as room appears; the order is kept."""
    producer = aspawn(q.enqueue_many, range(25), max_length=4, block=30)
    got: list[int] = []
    while len(got) < 25:
        jobs = await q.reserve(3, block=10)
        assert jobs
        assert (await q.stats()).ready <= 4
        got += [job.body for job in jobs]
        await q.ack(jobs)
    assert got == list(range(25))
    assert len(await producer.result()) == 25


async def test_more_at_once_than_may_ever_wait(q: AsyncQueue) -> None:
    """A bulk larger than its own bound can't be added at all, however long it waits."""
    await q.configure(max_length=2)
    with pytest.raises(QueueFull):
        await q.enqueue_many([1, 2, 3])
    assert not (await q.peek())


async def test_racing_producers_never_exceed_the_bound(q: AsyncQueue) -> None:
    """Eight producers and one consumer: at most five jobs wait at any time."""

    async def produce(number: int) -> int:
        refused = 0
        for i in range(10):
            try:
                await q.enqueue([number, i], max_length=5, block=20 if i % 2 else 0)
            except QueueFull:
                refused += 1
                await q.enqueue([number, i], max_length=5, block=20)
            assert (await q.stats()).ready <= 5
        return refused

    producers = [aspawn(produce, number) for number in range(8)]
    got: list[list[int]] = []
    while len(got) < 80:
        jobs = await q.reserve(2, block=10)
        assert jobs
        got += [job.body for job in jobs]
        await q.ack(jobs)
    for producer in producers:
        await producer.result()
    assert sorted(got) == [[number, i] for number in range(8) for i in range(10)]
    assert (await q.stats()).enqueued == 80


async def test_a_pause_is_not_waited_for(q: AsyncQueue) -> None:
    """A producer that would wait for room in a paused queue is refused at once."""
    await q.configure(max_length=1)
    await q.enqueue(1)
    await q.pause("in")
    with pytest.raises(QueuePaused):
        await q.enqueue(2, block=30)


async def test_a_producer_that_waits_is_refused_when_the_queue_is_paused(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """A pause wakes a waiting producer, which raises `QueuePaused`."""
    await q.enqueue(1)
    producer = aspawn(q.enqueue, 2, max_length=1, block=30)
    await waits.reach(1)
    await q.pause("in")
    with pytest.raises(QueuePaused):
        await producer.result(10)
