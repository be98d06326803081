"""A rate for each key of a queue."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from penstock import AsyncJob, AsyncPenstock, AsyncQueue, BadArgument
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, advance, check_invariant, evalshas
from tests.support.twins import aspawn

from .conftest import AsyncWaits

TURNS, PACES = "penstock:{q}:turns", "penstock:{q}:paces"


def bodies(jobs: list[AsyncJob]) -> list[Any]:
    """Return the bodies of jobs."""
    return [job.body for job in jobs]


def member(key: str) -> str:
    """Return the member of a key in `turns` and `paces`."""
    return str(int(key_hash(key), 16))


async def next_ms(q: AsyncQueue) -> int:
    """Return what a call that takes one job says about the next event."""
    return (await q.route.node.executor.run(q.ops.reserve(1))).next_ms


async def test_each_key_has_a_burst_and_then_its_rate(q: AsyncQueue, raw: Raw) -> None:
    """Keys do not wait for each other, and jobs without a key for none."""
    settings = await q.configure(key_rate="60/min", key_burst=3)
    assert (settings.key_rate, settings.key_burst) == ("60/min", 3)
    for key in "ab":
        await q.enqueue_many([key] * 6, key=key)
    await q.enqueue("plain")
    assert (await q.stats()).parked == 12
    assert sorted(bodies(await q.reserve(20, block=0))) == ["a"] * 3 + ["b"] * 3 + ["plain"]
    assert await q.reserve(20, block=0) == []
    advance(raw, q.ops, 2.1)
    assert sorted(bodies(await q.reserve(20, block=0))) == ["a", "a", "b", "b"]
    assert (await q.stats()).settings.key_rate == "60/min"
    check_invariant(raw)


async def test_gaps_are_those_of_the_rate_with_late_workers(q: AsyncQueue, raw: Raw) -> None:
    """A delivery that comes late is followed by a whole interval: only it admits the job."""
    await q.configure(key_rate="1/min", lease=3600)
    await q.enqueue_many(range(3), key="a")
    assert bodies(await q.reserve(9, block=0)) == [0]
    advance(raw, q.ops, 119)
    assert bodies(await q.reserve(9, block=0)) == [1]
    assert 59_000 < await next_ms(q) <= 60_000
    advance(raw, q.ops, 50)
    assert await q.reserve(9, block=0) == []


async def test_a_raised_rate_counts_at_once(q: AsyncQueue, raw: Raw) -> None:
    """The jobs that wait have no times of the old one."""
    await q.configure(key_rate="1/h")
    for key in "abc":
        await q.enqueue_many([key] * 5, key=key)
    assert len(await q.reserve(20, block=0)) == 3
    await q.configure(key_rate="60/min")
    assert await q.reserve(20, block=0) == []
    assert await next_ms(q) <= 1000
    advance(raw, q.ops, 1.1)
    assert sorted(bodies(await q.reserve(20, block=0))) == ["a", "b", "c"]
    await q.configure(key_burst=4)
    assert len(await q.reserve(20, block=0)) == 9


async def test_a_lowered_rate_counts_from_the_next_delivery_on(q: AsyncQueue, raw: Raw) -> None:
    """A time of the old rate is no promise."""
    await q.configure(key_rate="60/min", key_burst=5, lease=3600)
    await q.enqueue_many(range(9), key="a")
    assert len(await q.reserve(3, block=0)) == 3
    await q.configure(key_burst=None, key_rate="1/min")
    assert await q.reserve(9, block=0) == []
    assert await next_ms(q) <= 60_000
    advance(raw, q.ops, 61)
    assert bodies(await q.reserve(9, block=0)) == [3]


@pytest.mark.parametrize("end", ["cancel", "delete", "purge", "ttl"])
async def test_a_job_that_ends_before_it_is_delivered_costs_nothing(
    q: AsyncQueue, raw: Raw, end: str
) -> None:
    """Its key goes on at once, and leaves `turns` if it has no other job."""
    await q.configure(key_rate="1/min")
    first = await q.enqueue("gone", key="a", ttl=5 if end == "ttl" else None)
    if end == "purge":
        await q.purge("parked")
    elif end == "ttl":
        advance(raw, q.ops, 6)
        assert await q.reserve(9, block=0) == []
    else:
        await getattr(q, end)([first.id])
    assert not raw.exists(TURNS, PACES)
    await q.enqueue("next", key="a")
    assert bodies(await q.reserve(9, block=0)) == ["next"]
    assert not raw.exists(TURNS)


@pytest.mark.parametrize("delay", [0, 1])
async def test_a_retry_spends_again(q: AsyncQueue, raw: Raw, delay: float) -> None:
    """It waits for its key as a new job does, with or without others of it."""
    await q.configure(key_rate="1/min")
    await q.enqueue("a", key="a")
    [job] = await q.reserve(9, block=0)
    await job.nack(delay=delay)
    advance(raw, q.ops, 2)
    assert await q.reserve(9, block=0) == []
    assert (await q.stats()).parked == 1
    advance(raw, q.ops, 59)
    [job] = await q.reserve(9, block=0)
    assert (job.attempt, job.body) == (2, "a")
    await job.ack()
    assert not raw.exists(TURNS)
    check_invariant(raw)


async def test_an_ended_lease_spends_nothing(q: AsyncQueue, raw: Raw) -> None:
    """The job keeps its ticket, and its redelivery comes before any time of its key."""
    await q.configure(key_rate="1/h", lease=30)
    await q.enqueue_many(["first", "second"], key="a")
    assert bodies(await q.reserve(9, block=0)) == ["first"]
    paces = raw.zrange(PACES, 0, -1, withscores=True)
    advance(raw, q.ops, 31)
    [job] = await q.reserve(9, block=0)
    assert (job.body, job.crashes) == ("first", 1)
    assert raw.zrange(PACES, 0, -1, withscores=True) == paces


async def test_an_ordered_queue_keeps_its_order(q: AsyncQueue, raw: Raw) -> None:
    """One job of a key at a time; a waiting retry stays first, and its delivery spends."""
    await q.configure(key_rate="60/min", key_burst=2, ordered=True)
    await q.enqueue_many(range(3), key="a")
    [job] = await q.reserve(9, block=0)
    assert job.body == 0
    await job.nack(delay=5)
    assert await q.reserve(9, block=0) == []
    advance(raw, q.ops, 6)
    [job] = await q.reserve(9, block=0)
    assert (job.body, job.attempt) == (0, 2)
    assert await q.reserve(9, block=0) == []
    await job.nack(delay=0)
    [job] = await q.reserve(9, block=0)
    assert (job.body, job.attempt) == (0, 3)
    await job.nack(delay=0)
    assert await q.reserve(9, block=0) == []  # the burst is spent
    assert (await q.stats()).parked == 3
    for wanted in range(3):
        advance(raw, q.ops, 1.1)
        [job] = await q.reserve(9, block=0)
        assert job.body == wanted
        await job.ack()
    check_invariant(raw)
    assert not raw.exists(TURNS)


async def test_per_key_is_still_the_most(q: AsyncQueue, raw: Raw) -> None:
    """A key at its limit has no turn, whatever its rate allows; the end of a job gives one."""
    await q.configure(key_rate="60/min", key_burst=5, per_key=2)
    await q.enqueue_many(range(5), key="a")
    held = await q.reserve(9, block=0)
    assert bodies(held) == [0, 1]
    assert not raw.exists(TURNS)
    _, more = await q.ack_and_reserve([held[0]], 5)
    assert bodies(more + await q.reserve(9, block=0)) == [2]


async def test_other_jobs_get_each_fourth_delivery(q: AsyncQueue) -> None:
    """Keys whose time has come are first, and do not stop jobs without keys."""
    await q.configure(key_rate="100/s", key_burst=100)
    await q.enqueue_many(["plain"] * 20)
    await q.enqueue_many(["keyed"] * 20, key="a")
    assert bodies(await q.reserve(20, block=0)).count("plain") == 5
    taken = [(await q.reserve(1, block=0))[0].body for _ in range(8)]
    assert taken.count("plain") >= 2


@pytest.mark.usefixtures("no_ticks")
async def test_a_waiting_consumer_is_told_of_the_next_turn(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """It gets a job that its key allows at once, and others when their time comes."""
    await q.configure(key_rate="2/s")
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.enqueue_many(range(3), key="a")
    assert bodies(await consumer.result()) == [0]
    for number in (1, 2):
        assert bodies(await q.reserve(1, block=30)) == [number]
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.enqueue(3, key="a")
    assert bodies(await consumer.result()) == [3]


async def test_a_consumer_sleeps_until_the_next_turn(real_q: AsyncQueue, real_raw: Raw) -> None:
    """A rate makes no consumer busy, with any number of keys."""
    await real_q.configure(key_rate="4/s")
    for key in range(50):
        await real_q.enqueue_many(range(2), key=str(key))
    assert len(await real_q.reserve(100, block=0)) == 50
    before = evalshas(real_raw)
    assert len(await real_q.reserve(100, block=5)) == 50
    assert await real_q.reserve(block=0) == []
    assert evalshas(real_raw) - before < 8


async def test_wrong_times_are_capped_and_repaired(q: AsyncQueue, raw: Raw) -> None:
    """A time far ahead counts as the latest possible, in both sets, and is written so."""
    await q.configure(key_rate="1/min", key_burst=2, lease=3600)
    await q.enqueue_many(range(3), key="a")
    for at in (10**15, 8 * 10**15):
        raw.zadd(TURNS, {member("a"): at})
        raw.zadd(PACES, {member("a"): at * 1000 if at < 10**13 else 9 * 10**15})
        assert await q.reserve(9, block=0) == []
        assert await next_ms(q) <= 60_000
        advance(raw, q.ops, 61)
        assert len(await q.reserve(9, block=0)) == 1


async def test_a_sweep_repairs_what_no_call_looks_at(q: AsyncQueue, raw: Raw) -> None:
    """The last entries of both sets; and it drops those of paces that are past."""
    await q.configure(key_rate="1/min")
    for key in "ab":
        await q.enqueue_many([key] * 3, key=key)
    assert len(await q.reserve(9, block=0)) == 2
    raw.zadd(TURNS, {member("b"): 10**15})
    raw.zadd(PACES, {member("b"): 9 * 10**15, member("c"): 9 * 10**15, member("d"): 5})
    await q.sweep()
    latest = raw.zscore(TURNS, member("a")) + 10_000
    assert raw.zscore(TURNS, member("b")) <= latest
    assert raw.zscore(PACES, member("b")) <= latest * 1000
    assert raw.zscore(PACES, member("c")) <= latest * 1000
    assert raw.zscore(PACES, member("d")) is None


async def test_what_is_past_is_dropped(q: AsyncQueue, raw: Raw) -> None:
    """Each call drops twice as many entries of `paces` as it may add; at the end none is left."""
    await q.configure(key_rate="100/s")
    await q.enqueue_many(range(500), key=str)
    while jobs := await q.reserve(50, block=0):
        await q.ack(jobs)
    advance(raw, q.ops, 11)
    await q.reserve(1, block=0)
    assert raw.zcard(PACES) < 500
    await q.sweep()
    assert not raw.exists(TURNS, PACES)


async def test_a_call_costs_the_same_with_any_number_of_keys(
    real_q: AsyncQueue, real_raw: Raw
) -> None:
    """Its commands are those of the jobs that it takes."""
    q, raw = real_q, real_raw
    counts = []
    await q.configure(key_rate="1/h")
    for number in (10, 1000):
        await q.enqueue_many(range(number), key=lambda body, n=number: f"{n} {body}")
        before = raw.info("commandstats")
        [job] = await q.reserve(1, block=0)
        await job.ack()
        after = raw.info("commandstats")
        calls = Counter({name: one["calls"] for name, one in after.items()})
        calls.subtract({name: one["calls"] for name, one in before.items()})
        counts.append(sum(calls.values()))
    assert counts[1] <= counts[0] + 4


async def test_it_is_set_and_dropped_while_jobs_wait(q: AsyncQueue, raw: Raw) -> None:
    """With a share, a limit and an order before or behind it: nothing is stuck."""
    await q.enqueue_many(range(12), key="a")
    await q.configure(key_rate="1/h", key_burst=2)
    assert bodies(await q.reserve(4, block=0)) == [0, 1]
    assert (await q.stats()).parked == 10
    await q.configure(key_rate=None)
    assert not raw.exists(TURNS, PACES)
    assert bodies(await q.reserve(2, block=0)) in ([2, 3], [])
    await q.configure(share=1)
    found = [job.body for _ in range(3) for job in await q.reserve(1, block=0)]
    await q.configure(key_rate="1/h", key_burst=1)
    found += bodies(await q.reserve(9, block=0))
    await q.configure(key_rate=None, share=None, key_burst=None)
    found += [job.body for _ in range(4) for job in await q.reserve(9, block=0)]
    assert max(found) == 11
    assert (await q.stats()).parked == 0


async def test_jobs_that_came_without_a_ticket(q: AsyncQueue) -> None:
    """Those of a dedup id, a delay and a redrive need a delivery of the rate, too."""
    await q.configure(key_rate="1/h", key_burst=2)
    for number in range(3):
        await q.enqueue(number, key="a", dedup_id=str(number))
    assert bodies(await q.reserve(9, block=0)) == [0, 1]
    assert (await q.stats()).parked == 1
    assert await q.reserve(9, block=0) == []


async def test_the_rate_of_the_queue_counts_turns(q: AsyncQueue) -> None:
    """A call takes no more than both rates allow."""
    await q.configure(key_rate="1/h", key_burst=9, rate="3/h", burst=3)
    await q.enqueue_many(range(9), key="a")
    assert bodies(await q.reserve(9, block=0)) == [0, 1, 2]
    assert await q.reserve(9, block=0) == []
    assert await next_ms(q) > 10_000


async def test_slots_of_the_queue_bound_turns(q: AsyncQueue) -> None:
    """Keys whose time has come wait for a slot, and are no event without one."""
    await q.configure(key_rate="1/h", key_burst=9, max_active=2)
    await q.enqueue_many(range(5), key="a")
    held = await q.reserve(9, block=0)
    assert bodies(held) == [0, 1]
    assert await next_ms(q) > 10_000
    _, more = await q.ack_and_reserve(held[:1], 9)
    assert bodies(more) == [2]


@pytest.mark.parametrize("side", ["in", "out"])
async def test_a_pause_stops_turns(q: AsyncQueue, side: Any) -> None:
    """Nothing is delivered while the queue is paused, and what is allowed behind it."""
    await q.configure(key_rate="1/h", key_burst=2)
    await q.enqueue_many(range(3), key="a")
    await q.pause(side)
    assert await q.reserve(3, block=0) == []
    assert await next_ms(q) == -1
    await q.resume()
    assert bodies(await q.reserve(3, block=0)) == [0, 1]


async def test_partitions_have_the_whole_rate(ps: AsyncPenstock) -> None:
    """All jobs of a key are in one partition."""
    q = ps.queue("parted", partitions=4)
    settings = await q.configure(key_rate="1/h", key_burst=2)
    assert settings.key_rate == "1/h"
    for key in "abcdef":
        await q.enqueue_many([key] * 4, key=key)
    found = [job.body for _ in range(16) for job in await q.reserve(30, block=0)]
    assert sorted(found) == sorted("abcdef" * 2)


@pytest.mark.parametrize(
    "name, value",
    [("key_rate", "5"), ("key_rate", "0/s"), ("key_rate", "1/2d"), ("key_rate", 5),
     ("key_burst", 0), ("key_burst", True), ("key_burst", 100_001)],
)  # fmt: skip
async def test_what_is_no_rate(q: AsyncQueue, name: str, value: Any) -> None:
    """It is refused by name, and nothing is stored."""
    with pytest.raises(BadArgument, match=f"^{name}="):
        await q.configure(**{name: value})
    assert not (await q.stats()).exists


async def check_turns(q: AsyncQueue, raw: Raw) -> None:
    """Check that exactly the keys with parked jobs are in `turns`."""
    parked = await q.peek(100, state="parked")
    hashes = {str(int(view.key_hash or "", 16)).encode() for view in parked}
    assert {*raw.zrange(TURNS, 0, -1)} == hashes


async def test_any_program_keeps_the_rate(q: AsyncQueue, raw: Raw) -> None:
    """Random calls: at most a burst and the rate in any span, exact turns, and nothing is stuck."""
    draws = random.Random(7)
    await q.configure(key_rate="1/s", key_burst=2, lease=600)
    started: dict[str, list[float]] = defaultdict(list)
    held: list[AsyncJob] = []
    for _ in range(250):
        act = draws.choice(["add", "add", "take", "ack", "fail", "retry", "pass", "cancel"])
        if act == "add":
            key = draws.choice("abcd")
            await q.enqueue_many([key] * draws.randrange(1, 4), key=key)
        elif act == "pass":
            advance(raw, q.ops, 0.7)
        elif act == "take":
            jobs = await q.reserve(draws.randrange(1, 5), block=0)
            for job in jobs:
                started[job.body].append(job.delivered)
            held += jobs
        elif act == "cancel":
            await q.cancel([view.id for view in await q.peek(1, state="parked")])
        elif held:
            job = held.pop(draws.randrange(len(held)))
            await (job.ack() if act == "ack" else job.nack(delay=0 if act == "retry" else 1))
        await check_turns(q, raw)
    for times in started.values():
        assert all(later - first >= 0.999 for first, later in zip(times, times[2:], strict=False))
    assert sum(map(len, started.values())) > 20
    await q.ack(held)
    while (await q.stats()).parked:
        advance(raw, q.ops, 5)
        await q.ack(await q.reserve(50, block=0))
    check_invariant(raw)


async def test_a_parked_job_tells_how_long_it_waits(q: AsyncQueue) -> None:
    """`show` and `jobs` have the time from which its key may have its next job."""
    await q.configure(key_rate="1/h")
    ids = (await q.enqueue_many(range(3), key="a")).ids
    waiting = await q.show(ids[1])
    assert waiting is not None
    assert (waiting.state, waiting.due, waiting.next_in) == ("parked", None, None)
    await q.reserve(1, block=0)
    found = {one.id: one async for one in q.jobs()}
    for view in (await q.show(ids[1]), found[ids[1]]):
        assert view is not None
        assert view.due is not None
        assert 3590 < view.due - view.now <= 3600
        assert view.next_in == view.due - view.now


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("way", ["delete", "cancel"])
async def test_a_removal_tells_a_consumer_of_the_next_turn(
    real_q: AsyncQueue, waits: AsyncWaits, way: str
) -> None:
    """The key has room again, and its rate allows the next job in a second."""
    await real_q.configure(per_key=1, key_rate="1/s", lease=600)
    ids = (await real_q.enqueue_many(range(3), key="a")).ids
    [job] = await real_q.reserve(1, block=0)
    consumer = aspawn(real_q.reserve, 1, block=60)
    await waits.reach(1)
    if way == "cancel":
        await real_q.cancel([ids[1]])
    await real_q.delete([job.id])
    assert [job.body for job in await consumer.result()] == [2 if way == "cancel" else 1]
