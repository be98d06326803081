"""At most so many jobs of a queue are delivered at once, over all its consumers."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from penstock import AsyncJob, AsyncQueue, BadArgument
from penstock.client._acompat import asleep
from tests.support.keyspace import Raw, advance, check_invariant, evalshas
from tests.support.twins import aspawn

from .conftest import AsyncWaits

End: TypeAlias = Callable[[AsyncQueue, AsyncJob], Awaitable[object]]


def bodies(jobs: list[AsyncJob]) -> list[Any]:
    """Return the bodies of jobs."""
    return [job.body for job in jobs]


async def taken(q: AsyncQueue, n: int = 100) -> list[Any]:
    """Reserve jobs, and return their bodies."""
    return bodies(await q.reserve(n, block=0))


async def next_ms(q: AsyncQueue) -> int:
    """Return what a call that takes nothing more is told of the next event."""
    found: int = (await q.route.node.executor.run(q.ops.reserve(1))).next_ms
    return found


async def test_no_more_than_the_limit(q: AsyncQueue, raw: Raw) -> None:
    """Calls deliver what is free, and an end makes room for one job."""
    settings = await q.configure(max_active=3)
    assert (settings.max_active, (await q.stats()).settings.max_active) == (3, 3)
    await q.enqueue_many(range(10))
    held = await q.reserve(2, block=0)
    held += await q.reserve(9, block=0)
    assert bodies(held) == [0, 1, 2]
    assert await taken(q) == []
    stats = await q.stats()
    assert (stats.ready, stats.active) == (7, 3)
    await held.pop().ack()
    assert await taken(q) == [3]
    await held.pop().nack(delay=60)
    await held.pop().release(delay=60)
    assert await taken(q) == [4, 5]
    check_invariant(raw)


async def test_a_settle_that_ends_and_takes(q: AsyncQueue) -> None:
    """It takes as many as it ends: a stale receipt, and a job that waits, make no room."""
    await q.configure(max_active=2)
    await q.enqueue_many(range(9))
    held = await q.reserve(2, block=0)
    outcome, more = await q.ack_and_reserve([held[0]], 9)
    assert (bodies(more), outcome) == ([2], await q.ack([held[1]]))
    assert bodies(await q.reserve(9, block=0)) == [3]
    _, more = await q.ack_and_reserve([held[0]], 9)
    assert more == []


async def test_ended_leases_come_back_without_room(q: AsyncQueue, raw: Raw) -> None:
    """They are counted already; what waits comes when they have ended."""
    await q.configure(max_active=2, lease=20)
    await q.enqueue_many(range(4))
    await q.reserve(2, block=0)
    advance(raw, q.ops, 21)
    again = await q.reserve(1, block=0)
    assert [(job.body, job.crashes) for job in again] == [(0, 1)]
    assert await taken(q) == [1]
    assert await taken(q) == []
    await again[0].ack()
    assert await taken(q) == [2]


async def test_a_job_that_dies_of_its_crash_makes_room(q: AsyncQueue, raw: Raw) -> None:
    """So does one that was cancelled, or whose ttl has ended, in the same call."""
    await q.configure(max_active=3, lease=20, max_crashes=1)
    await q.enqueue("dies")
    cancelled = await q.enqueue("cancelled")
    await q.enqueue("expires", ttl=20)
    await q.enqueue_many(range(9))
    assert await taken(q) == ["dies", "cancelled", "expires"]
    await q.cancel([cancelled.id])
    advance(raw, q.ops, 21)
    assert await taken(q) == [0, 1, 2]
    stats = await q.stats()
    assert (stats.dead, stats.cancelled, stats.expired) == (1, 1, 1)
    check_invariant(raw)


async def test_jobs_at_most_once_take_a_slot(q: AsyncQueue, raw: Raw) -> None:
    """Until they are acknowledged, or until the end of their ttl, which is an event."""
    await q.configure(max_active=2)
    await q.enqueue_many(range(2), lease=0, ttl=10)
    await q.enqueue_many([2, 3])
    held = await q.reserve(9, block=0)
    assert bodies(held) == [0, 1]
    assert 9_000 < await next_ms(q) <= 10_000
    await held[0].ack()
    assert await taken(q) == [2]
    advance(raw, q.ops, 11)
    assert await taken(q) == [3]


async def test_a_full_queue_has_no_event_but_the_first_end(q: AsyncQueue, raw: Raw) -> None:
    """Jobs that wait, and jobs that become due, do not count before there is a slot."""
    await q.configure(max_active=1, lease=30)
    await q.enqueue_many(range(3))
    await q.enqueue("soon", delay=1)
    [job] = await q.reserve(9, block=0)
    assert 29_000 < await next_ms(q) <= 30_000
    advance(raw, q.ops, 2)
    assert 27_000 < await next_ms(q) <= 28_000
    await job.extend(60)
    assert 59_000 < await next_ms(q) <= 60_000


@pytest.mark.usefixtures("no_ticks")
async def test_a_blocked_consumer_makes_few_calls(real_q: AsyncQueue, real_raw: Raw) -> None:
    """Beside a full queue and a producer it sleeps until a job ends."""
    await real_q.configure(max_active=1)
    await real_q.enqueue_many(range(5))
    [first] = await real_q.reserve(1, block=0)
    before = evalshas(real_raw)
    consumer = aspawn(real_q.reserve, 1, block=30)
    for number in range(20):
        await real_q.enqueue(number)
        await asleep(0.02)
    assert evalshas(real_raw) - before - 20 <= 4
    await first.ack()
    assert bodies(await consumer.result()) == [1]


async def release(_: AsyncQueue, job: AsyncJob) -> None:
    """Give a job back for later."""
    await job.release(delay=60)


async def hand_over_later(q: AsyncQueue, job: AsyncJob) -> None:
    """End a job, and add one for later."""
    records = [(60_000, b"1;i=later\nlater")]
    await q.route.node.executor.run(q.ops.hand_over([job], records))


ENDS: dict[str, End] = {
    "ack": lambda _, job: job.ack(),
    "nack": lambda _, job: job.nack(delay=60),
    "release": release,
    "bury": lambda _, job: job.bury("enough"),
    "delete": lambda q, job: q.delete([job.id]),
    "purge": lambda q, _: q.purge("active"),
    "settle": lambda q, job: q.route.node.executor.run(q.ops.settle([job], 0)),
    "evict": lambda q, _: q.sweep(evict=1),
    "hand over": hand_over_later,
}


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("end", ENDS)
async def test_the_end_of_a_job_wakes_a_consumer(
    q: AsyncQueue, waits: AsyncWaits, end: str
) -> None:
    """A blocked consumer gets the next job at once, however the delivery has ended."""
    await q.configure(max_active=1)
    await q.enqueue("a", **({"lease": 0, "ttl": 60} if end == "evict" else {}))
    await q.enqueue("b")
    [held] = await q.reserve(1, block=0)
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await ENDS[end](q, held)
    assert bodies(await consumer.result()) == ["b"]


@pytest.mark.usefixtures("no_ticks")
async def test_more_slots_wake_a_consumer(q: AsyncQueue, waits: AsyncWaits) -> None:
    """So does a limit that is raised or dropped; one that is lowered ends nothing."""
    await q.configure(max_active=1)
    await q.enqueue_many(range(4))
    held = await q.reserve(9, block=0)
    for value in (2, None):
        consumer = aspawn(q.reserve, 1, block=30)
        await waits.reach(1)
        await q.configure(max_active=value)
        held += await consumer.result()
    assert bodies(held) == [0, 1, 2]
    await q.configure(max_active=1)
    for job in held[:2]:
        await job.ack()
        assert await taken(q) == []
    await held[2].ack()
    assert await taken(q) == [3]


@pytest.mark.usefixtures("no_ticks")
async def test_a_job_that_is_due_soon_wakes_a_consumer_at_an_end(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """While the queue was full its time was no event: the consumer must be told of it."""
    await q.configure(max_active=1)
    await q.enqueue("first")
    [held] = await q.reserve(1, block=0)
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.enqueue("soon", delay=0.5)
    await held.ack()
    assert bodies(await consumer.result()) == ["soon"]


async def test_with_other_limits(q: AsyncQueue) -> None:
    """A rate, a priority, keys and shares hold beside it."""
    await q.configure(max_active=3, share=1, rate="4/d", burst=4)
    await q.enqueue_many(["a"] * 3, key="a")
    await q.enqueue("urgent", priority=5)
    await q.enqueue("plain")
    held = await q.reserve(9, block=0)
    assert bodies(held) == ["urgent", "a", "plain"]
    await q.ack(held)
    assert await taken(q) == ["a"]


async def test_recover_is_not_limited(q: AsyncQueue) -> None:
    """A delivery that is taken over was counted before."""
    await q.configure(max_active=1)
    await q.enqueue_many(range(2))
    await q.reserve(1, block=0)
    assert bodies(await q.recover(5, idle=0)) == [0]


async def test_it_stays_with_the_queue(q: AsyncQueue, raw: Raw) -> None:
    """Neither a sweep nor an empty queue forgets it; clearing does."""
    await q.configure(max_active=2)
    await q.sweep()
    advance(raw, q.ops, 86_400)
    await q.sweep()
    assert (await q.stats()).settings.max_active == 2
    await q.enqueue_many(range(3))
    assert await taken(q) == [0, 1]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", 1 << 53])
async def test_a_limit_that_is_none(q: AsyncQueue, value: Any) -> None:
    """It is refused by name, and nothing is stored."""
    with pytest.raises(BadArgument, match=r"^max_active="):
        await q.configure(max_active=value)
    assert not (await q.stats()).exists


async def test_any_program_holds_it(q: AsyncQueue, raw: Raw) -> None:
    """Random calls: never more than the limit, and never fewer while jobs wait.

    Times differ by 50 s at least from the ends of leases and ttls, so none ends between two calls.
    """
    draws = random.Random(7)
    most = 3
    await q.configure(max_active=most, lease=2050, max_crashes=0)
    held: list[AsyncJob] = []
    for step in range(300):
        act = draws.choice(["add", "add", "take", "ack", "fail", "settle", "time", "cancel"])
        if act == "add":
            options: dict[str, Any] = draws.choice([{}, {"ttl": 3050}, {"lease": 0, "ttl": 950}])
            await q.enqueue_many([step] * draws.randrange(1, 4), **options)
        elif act == "take":
            held += await q.reserve(draws.randrange(1, 6), block=0)
        elif act == "time":
            advance(raw, q.ops, draws.choice([100, 1000, 2100]))
        elif held:
            job = held.pop(draws.randrange(len(held)))
            if act == "settle":
                held += (await q.ack_and_reserve([job], draws.randrange(1, 4)))[1]
            elif act == "cancel":
                await q.cancel([job.id])
            else:
                end = q.ack if act == "ack" else q.nack
                await end([job])
        assert (await q.stats()).active <= most
        held += await q.reserve(most, block=0)  # with the ended leases, all slots
        stats = await q.stats()
        assert stats.active == most or not stats.ready
        check_invariant(raw)
