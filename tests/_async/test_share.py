"""A share of the line for each key, which leaves no consumer idle."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from penstock import AsyncJob, AsyncQueue, BadArgument
from penstock.client._acompat import asleep
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, check_invariant
from tests.support.twins import aspawn

from .conftest import AsyncWaits

SLOTS = 8
TENANTS = list("abcd")
TURNS = "penstock:{q}:turns"


def waiting_keys(raw: Raw) -> dict[str, float]:
    """Return the keys of TENANTS that are in `turns`, and since when."""
    names = {str(int(key_hash(key), 16)): key for key in TENANTS}
    return {names[one.decode()]: at for one, at in raw.zrange(TURNS, 0, -1, withscores=True)}


def bodies(jobs: list[AsyncJob]) -> list[Any]:
    """Return the bodies of jobs."""
    return [job.body for job in jobs]


async def test_a_tenant_alone_uses_every_slot(q: AsyncQueue, raw: Raw) -> None:
    """Its jobs above the share are parked, and each call takes as many as it asks for."""
    settings = await q.configure(share=1)
    assert (settings.share, (await q.stats()).settings.share) == (1, 1)
    await q.enqueue_many(range(20), key="a")
    assert (await q.stats()).parked == 19
    held = await q.reserve(SLOTS, block=0)
    done = bodies(held)
    while held:
        _, more = await q.ack_and_reserve([held.pop(0)], 1)
        done += bodies(more)
        held += more
        assert len(held) == min(SLOTS, 20 - len(done) + len(held))
    assert done == [*range(20)]
    assert not raw.exists(TURNS)
    check_invariant(raw)


async def test_one_job_of_each_in_turn(q: AsyncQueue, raw: Raw) -> None:
    """Keys with parked jobs share the free slots, also over several calls."""
    await q.configure(share=1)
    for key in TENANTS:
        await q.enqueue_many([key] * 10, key=key)
    assert bodies(await q.reserve(4, block=0)) == TENANTS
    assert {*waiting_keys(raw)} == {*TENANTS}
    taken: Counter[Any] = Counter()
    for n in (3, 1, 2, 2, 1, 3):
        taken += Counter(bodies(await q.reserve(n, block=0)))
        await asleep(0.002)  # two turns in one ms are in the order of their hashes
    assert set(taken.values()) == {3}


async def test_a_new_tenant_beside_a_flood(q: AsyncQueue) -> None:
    """Its job gets the first slot that becomes free."""
    await q.configure(share=1)
    await q.enqueue_many(["flood"] * 100, key="a")
    held = await q.reserve(SLOTS, block=0)
    await q.enqueue_many(["small"] * 2, key="b")
    order = []
    for _ in range(4):
        await held.pop(0).ack()
        held += await q.reserve(1, block=0)
        order.append(held[-1].body)
        await asleep(0.002)  # two turns in one ms are in the order of their hashes
    assert order[0] == "small"
    assert order.count("small") == 2


async def test_other_jobs_come_first(q: AsyncQueue) -> None:
    """A parked job is taken only if nothing else waits; a priority comes before all."""
    await q.configure(share=1)
    await q.enqueue_many(["a"] * 3, key="a")
    await q.enqueue("plain")
    await q.enqueue("urgent", key="b", priority=5)
    assert bodies(await q.reserve(5, block=0)) == ["urgent", "a", "plain", "a", "a"]


@pytest.mark.usefixtures("no_ticks")
async def test_a_parked_job_wakes_a_consumer(q: AsyncQueue, waits: AsyncWaits) -> None:
    """An idle consumer gets a job above the share as soon as it is added."""
    await q.configure(share=1)
    await q.enqueue("first", key="a")
    [first] = await q.reserve(1, block=0)
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.enqueue("second", key="a")
    [second] = await consumer.result()
    assert second.body == "second"
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.configure(per_key=2)
    await q.enqueue("third", key="a")
    await first.ack()
    assert bodies(await consumer.result()) == ["third"]


@pytest.mark.usefixtures("no_ticks")
async def test_an_end_wakes_a_consumer_for_the_next_turn(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A key that was at its limit may have a job more."""
    await q.configure(share=1, per_key=2)
    await q.enqueue_many(range(3), key="a")
    held = await q.reserve(3, block=0)
    assert bodies(held) == [0, 1]
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await held[0].ack()
    assert bodies(await consumer.result()) == [2]


@pytest.mark.parametrize("end", ["ack", "nack", "bury", "delete", "cancel", "purge"])
async def test_keys_leave_turns(q: AsyncQueue, raw: Raw, end: str) -> None:
    """A key without parked jobs is not in `turns`, however they ended."""
    await q.configure(share=1)
    ids = (await q.enqueue_many(["a"] * 2, key="a")).ids
    await q.enqueue_many(["b"] * 3, key="b")
    assert {*waiting_keys(raw)} == {"a", "b"}
    if end in ("ack", "nack", "bury"):
        job = (await q.reserve(1, block=0))[0]
        await (job.nack(delay=60) if end == "nack" else getattr(job, end)())
        assert {*waiting_keys(raw)} == {"b"}
    elif end == "purge":
        await q.purge("parked")
        assert not raw.exists(TURNS)
    else:
        await getattr(q, end)([ids[1]])
        assert {*waiting_keys(raw)} == {"b"}


async def test_it_is_changed_while_jobs_wait(q: AsyncQueue, raw: Raw) -> None:
    """Set, dropped, beside a limit, and behind an order: nothing is stuck."""
    await q.enqueue_many(range(12), key="a")
    await q.configure(share=1)
    assert bodies(await q.reserve(4, block=0)) == [0]  # this call parks the others
    assert bodies(await q.reserve(2, block=0)) == [1, 2]
    await q.configure(per_key=4)
    assert bodies(await q.reserve(9, block=0)) == [3]
    await q.configure(share=None)
    assert not raw.exists(TURNS)
    assert bodies(await q.reserve(9, block=0)) == []
    await q.configure(ordered=True, share=2, per_key=None)
    assert bodies(await q.reserve(9, block=0)) == []
    assert not raw.exists(TURNS)
    await q.configure(ordered=None)
    found = [job for _ in range(3) for job in await q.reserve(4, block=0)]
    assert bodies(found) == [*range(4, 12)]
    assert not raw.exists(TURNS)


async def test_an_ordered_queue_has_no_share(q: AsyncQueue, raw: Raw) -> None:
    """One job of a key at a time, in order, whatever the share is."""
    await q.configure(ordered=True, share=3)
    await q.enqueue_many(range(3), key="a")
    for number in range(3):
        [job] = await q.reserve(5, block=0)
        assert job.body == number
        assert not raw.exists(TURNS)
        await job.ack()


async def test_the_rate_counts_turns(q: AsyncQueue) -> None:
    """A call takes no more parked jobs than the rate allows."""
    await q.configure(share=1, rate="3/h", burst=3)
    await q.enqueue_many(range(9), key="a")
    assert bodies(await q.reserve(9, block=0)) == [0, 1, 2]
    assert await q.reserve(9, block=0) == []


@pytest.mark.parametrize("side", ["in", "out"])
async def test_a_pause_stops_turns(q: AsyncQueue, side: Any) -> None:
    """Parked jobs are not delivered while the queue is paused, and all of them behind it."""
    await q.configure(share=1)
    await q.enqueue_many(range(3), key="a")
    [first] = await q.reserve(1, block=0)
    await q.pause(side)
    assert await q.reserve(3, block=0) == []
    await q.resume()
    assert bodies(await q.reserve(3, block=0)) == [1, 2]
    await first.ack()


@pytest.mark.parametrize("share", [0, -1, 1.5, True, "1"])
async def test_a_share_that_is_none(q: AsyncQueue, share: Any) -> None:
    """It is refused by name, and nothing is stored."""
    with pytest.raises(BadArgument, match=r"^share="):
        await q.configure(share=share)
    assert not (await q.stats()).exists


async def test_any_program_ends(q: AsyncQueue, raw: Raw) -> None:
    """Random calls leave exactly the keys in `turns` that may be delivered, and no slot idle."""
    draws = random.Random(5)
    await q.configure(share=1)
    held: list[AsyncJob] = []
    for _ in range(150):
        act = draws.choice(["add", "add", "take", "ack", "fail", "retry", "settle"])
        if act == "add":
            await q.enqueue_many(range(draws.randrange(1, 4)), key=draws.choice(TENANTS))
        elif act == "take":
            held += await q.reserve(2, block=0)
            stats = await q.stats()
            assert held or not stats.parked
        elif held:
            job = held.pop(draws.randrange(len(held)))
            if act == "settle":
                held += (await q.ack_and_reserve([job], 1))[1]
            else:
                await (job.ack() if act == "ack" else job.nack(delay=60 * (act == "fail")))
        parked = await q.peek(100, state="parked")
        hashes = {str(int(view.key_hash or "", 16)).encode() for view in parked}
        assert {*raw.zrange(TURNS, 0, -1)} == hashes
    check_invariant(raw)
