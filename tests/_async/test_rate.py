"""The rate of a queue limits its deliveries, and makes no consumer busy."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, BadArgument
from tests.support.keyspace import Raw, advance, check_invariant, evalshas
from tests.support.twins import aspawn

from .conftest import AsyncWaits


async def taken(q: AsyncQueue, n: int = 1000) -> int:
    """Reserve jobs, acknowledge them, and return how many there were."""
    jobs = await q.reserve(n, block=0)
    if jobs:
        await q.ack(jobs)
    return len(jobs)


async def test_a_burst_and_then_the_rate(q: AsyncQueue, raw: Raw) -> None:
    """A queue that had no delivery for a while delivers a burst; each interval gives one more."""
    settings = await q.configure(rate="100/h", burst=20)
    assert (settings.rate, settings.burst) == ("100/h", 20)
    await q.enqueue_many(range(100))
    assert await taken(q, 5) == 5
    assert await taken(q) == 15
    assert await taken(q) == 0
    advance(raw, q.ops, 366)
    assert await taken(q) == 10
    advance(raw, q.ops, 36_000)
    assert await taken(q) == 20
    stats = await q.stats()
    assert (stats.ready, stats.settings.rate, stats.settings.burst) == (50, "100/h", 20)
    check_invariant(raw)


async def test_without_a_rate_all_are_delivered(q: AsyncQueue) -> None:
    """The default comes back with None; without a burst it is one job at a time."""
    await q.enqueue_many(range(10))
    await q.configure(rate="1/d")
    assert await taken(q) == 1
    assert await taken(q) == 0
    settings = await q.configure(rate=None)
    assert settings.rate is None
    assert await taken(q) == 9


async def test_every_delivery_counts(q: AsyncQueue, raw: Raw) -> None:
    """So do retries, ended leases, and the jobs of a settle."""
    await q.configure(rate="1/min", burst=3)
    await q.enqueue_many(range(9))
    jobs = await q.reserve(1, block=0)
    await q.nack(jobs, delay=0)
    jobs = await q.reserve(1, block=0)
    assert jobs[0].attempt == 2
    _, jobs = await q.ack_and_reserve(jobs, 5)
    assert len(jobs) == 1
    advance(raw, q.ops, 31)
    assert await q.reserve(9, block=0) == []
    advance(raw, q.ops, 30)
    jobs = await q.reserve(9, block=0)
    assert [job.crashes for job in jobs] == [1]
    _, jobs = await q.ack_and_reserve(jobs, 5)
    assert jobs == []
    assert (await q.stats()).acked == 2


async def test_what_is_held_back_is_an_event(real_q: AsyncQueue, real_raw: Raw) -> None:
    """A consumer that waits sleeps until the next job is allowed."""
    await real_q.configure(rate="10/s")
    await real_q.enqueue_many(range(4))
    before = evalshas(real_raw)
    for wanted in range(4):
        [job] = await real_q.reserve(block=5)
        assert job.body == wanted
    assert evalshas(real_raw) - before < 20
    assert await real_q.reserve(block=0) == []


@pytest.mark.usefixtures("no_ticks")
async def test_a_job_that_comes_before_it_is_allowed(q: AsyncQueue, waits: AsyncWaits) -> None:
    """It tells one of two consumers that wait of the time; later jobs wake neither of them, and
    each gets its job when the rate allows it.
    """
    await q.configure(rate="1/s")
    await q.enqueue(0)
    assert await taken(q) == 1
    consumers = [aspawn(q.reserve, 1, block=30) for _ in range(2)]
    await waits.reach(2)
    for number in (1, 2, 3):
        await q.enqueue(number)
    jobs = [job for one in consumers for job in await one.result()]
    assert sorted(job.body for job in jobs) == [1, 2]
    assert abs(jobs[0].delivered - jobs[1].delivered) > 0.9


@pytest.mark.usefixtures("no_ticks")
async def test_a_consumer_that_leaves_hands_the_time_on(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Another one learns of it, though no job that comes meanwhile wakes it."""
    await q.configure(rate="1/2s")
    await q.enqueue(0)
    assert await taken(q) == 1
    leaves = aspawn(q.reserve, 1, block=0.5)
    await waits.reach(1)
    stays = aspawn(q.reserve, 1, block=30)
    await waits.reach(2)
    for number in (1, 2):
        await q.enqueue(number)
    assert await leaves.result() == []
    assert [job.body for job in await stays.result()] == [1]


async def test_a_later_event_waits_for_the_rate(q: AsyncQueue) -> None:
    """A job that becomes due before it is allowed wakes no consumer then."""
    await q.configure(rate="1/min")
    await q.enqueue("a")
    await q.enqueue("b", delay=5)
    assert await taken(q) == 1
    assert 55_000 < (await q.route.node.executor.run(q.ops.reserve(1))).next_ms <= 60_000


async def test_a_wrong_clock_holds_nothing_back(q: AsyncQueue, raw: Raw) -> None:
    """A stored time counts as at most a burst ahead."""
    await q.configure(rate="1/min", burst=2)
    await q.enqueue_many(range(5))
    raw.hset(q.ops.keys["meta"], "tat", f"{10**14} 0 1")
    assert await taken(q) == 0
    advance(raw, q.ops, 61)
    assert await taken(q) == 1


async def test_another_rate_counts_on(q: AsyncQueue, raw: Raw) -> None:
    """A new rate begins with the time that the last deliveries have taken up."""
    await q.configure(rate="7/s", burst=7)
    await q.enqueue_many(range(50))
    assert await taken(q) == 7
    await q.configure(rate="3/s", burst=3)
    assert await taken(q) == 0
    advance(raw, q.ops, 1.1)
    assert await taken(q) == 3


async def test_partitions_share_the_rate(ps: AsyncPenstock) -> None:
    """Each partition has its part of rate and burst, and shows the whole."""
    q = ps.queue("parted", partitions=4)
    settings = await q.configure(rate="8/min", burst=8)
    assert (settings.rate, settings.burst) == ("8/min", 8)
    await q.enqueue_many(range(200), key=str)
    total = 0
    while got := await taken(q):
        total += got
    assert total == 8
    assert (await q.stats()).settings.rate == "8/min"


@pytest.mark.parametrize("text", ["5/s", "100/min", "10/h", "3/d", "100/90s", "1/20ms", "7/36h"])
async def test_rates_that_can_be_used(q: AsyncQueue, text: str) -> None:
    """They come back as they were given, or are refused."""
    if text == "7/36h":
        with pytest.raises(BadArgument, match="a day"):
            await q.configure(rate=text)
        return
    assert (await q.configure(rate=text)).rate == text


@pytest.mark.parametrize(
    "rate", ["", "5", "5/", "/s", "0/s", "-1/s", "5/0s", "5/week", "1.5/s", "2000000/s", 5, "5/25h"]
)
async def test_rates_that_are_refused(q: AsyncQueue, rate: Any) -> None:
    """A rate is a number of jobs and a time of at most a day."""
    with pytest.raises(BadArgument, match="rate"):
        await q.configure(rate=rate)


@pytest.mark.parametrize("burst", [0, -1, 1.5, 100_001, "5"])
async def test_bursts_that_are_refused(q: AsyncQueue, burst: Any) -> None:
    """A burst is a number of jobs."""
    with pytest.raises(BadArgument, match="burst"):
        await q.configure(rate="1/s", burst=burst)
