"""Limits per key through the client."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncQueue, BadArgument, Dedup
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, advance, check_invariant
from tests.support.twins import aspawn

from .conftest import AsyncWaits


async def test_a_limit_per_key(q: AsyncQueue, raw: Raw) -> None:
    """At most so many jobs of a key are delivered at once; others pass by, and it can be raised."""
    settings = await q.configure(per_key=2)
    assert (settings.per_key, settings.ordered) == (2, None)
    await q.enqueue_many([b"1", b"2", b"3", b"4"], key="a")
    await q.enqueue_many([b"5", b"6"])
    jobs = await q.reserve(10, block=0)
    assert [job.body for job in jobs] == [b"1", b"2", b"5", b"6"]
    stats = await q.stats()
    assert (stats.ready, stats.active, stats.parked) == (0, 4, 2)
    await q.configure(per_key=4)
    await jobs[0].ack()
    assert [job.body for job in await q.reserve(10, block=0)] == [b"3", b"4"]
    check_invariant(raw)


async def test_jobs_from_before_the_limit(q: AsyncQueue) -> None:
    """The limit holds for jobs that waited when it was set."""
    await q.enqueue_many([b"1", b"2", b"3"], key="a")
    await q.configure(per_key=1)
    [job] = await q.reserve(10, block=0)
    assert job.body == b"1"
    assert (await q.stats()).parked == 2


async def test_an_ordered_queue(q: AsyncQueue) -> None:
    """A failed job keeps its key until it has ended, also behind jobs from before the setting."""
    await q.enqueue_many([b"1", b"2"], key="a")
    assert (await q.configure(ordered=True)).ordered
    await q.enqueue(b"3", key="a")
    seen = []
    while jobs := await q.reserve(10, block=0):
        [job] = jobs
        seen.append((job.body, job.attempt))
        if job.body == b"2" and job.attempt == 1:
            await job.nack(delay=0)
        else:
            await job.ack()
    assert seen == [(b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1)]
    assert (await q.configure(ordered=False)).ordered is None


async def test_a_redrive_while_a_job_waits_for_its_next_try(q: AsyncQueue) -> None:
    """The key still waits for that job: the redriven one comes next, before later jobs."""
    await q.configure(ordered=True)
    dead, failed, last = [added.id for added in await q.enqueue_many([b"1", b"2", b"3"], key="a")]
    await (await q.reserve(1, block=0))[0].bury("no use")
    await (await q.reserve(1, block=0))[0].nack(delay=60)
    assert await q.redrive([dead]) == 1
    assert await q.reserve(10, block=0) == []
    assert await q.promote([failed])
    seen = []
    while jobs := await q.reserve(10, block=0):
        [job] = jobs
        seen.append(job.id)
        await job.ack()
    assert seen == [failed, dead, last]


async def test_a_key_may_be_computed(q: AsyncQueue) -> None:
    """In bulk, a function gives the key of each body; also with dedup ids."""
    await q.configure(per_key=1)
    await q.enqueue_many([b"a1", b"b1", b"a2"], key=lambda body: body[:1].decode())
    assert [job.body for job in await q.reserve(10, block=0)] == [b"a1", b"b1"]
    await q.enqueue(b"a3", key="a", dedup=Dedup("x"))
    assert await q.reserve(10, block=0) == []
    again = await q.enqueue(b"a4", key="b", dedup=Dedup("x", on_duplicate="update"))
    assert (again.state, again.action) == ("parked", "updated")


async def test_parked_jobs_are_shown(q: AsyncQueue) -> None:
    """Readers show the state and the hash of the key; purge removes parked jobs."""
    await q.configure(per_key=1)
    results = list(await q.enqueue_many([b"1", b"2"], key="a"))
    view = await q.show(results[1].id)
    assert view is not None
    assert (view.state, view.key_hash, view.due) == ("parked", key_hash("a"), None)
    assert [job.id for job in await q.peek(5, state="parked")] == [results[1].id]
    assert [job.id for job in (await q.jobs("parked").page()).jobs] == [results[1].id]
    assert await q.purge("parked") == 1
    assert (await q.stats()).parked == 0


@pytest.mark.parametrize("key", ["", "x" * 1025, 5, b"a"])
async def test_a_key_that_is_none(q: AsyncQueue, key: object) -> None:
    """A key is a str of 1 to 1024 bytes."""
    with pytest.raises(BadArgument) as caught:
        await q.enqueue(b"1", key=key)  # type: ignore[arg-type]
    assert caught.value.argument == "key"


async def test_a_call_parks_a_bounded_number_of_jobs(q: AsyncQueue, raw: Raw) -> None:
    """A reserve parks 1,000 due jobs and as many ready ones, and then there is more: a limit that
    is set late delays the jobs of other keys by a call for each 1,000 jobs.
    """
    await q.enqueue_many([b"due"] * 1200, key="a", delay=0.001)
    await q.enqueue_many([b"ready"] * 1900, key="a")
    await q.enqueue(b"other")
    await q.configure(per_key=1)
    advance(raw, q.ops, 1)
    parked, bodies = [], []
    for _ in range(3):
        taken = await q.route.node.executor.run(q.ops.reserve(5))
        bodies += [job.body for job in taken.deliveries]
        parked.append((await q.stats()).parked)
        assert taken.next_ms == 0 or bodies[1:]
    assert (bodies, parked) == ([b"due", b"other"], [2000, 3000, 3099])


LOOSER: Any = [
    ({"per_key": 1}, {"per_key": 3}),
    ({"per_key": 1}, {"per_key": None}),
    ({"ordered": True}, {"ordered": False}),
]


@pytest.mark.parametrize("before, after", LOOSER)
@pytest.mark.usefixtures("no_ticks")
async def test_a_looser_limit_holds_at_once(
    q: AsyncQueue, raw: Raw, waits: AsyncWaits, before: Any, after: Any
) -> None:
    """A consumer that waits is woken, and gets the parked jobs of each key, without the end of a
    job or a sweep. The next calls do not look at the keys again.
    """
    await q.configure(**before)
    await q.enqueue_many([b"a1", b"b1", b"a2", b"b2"], key=lambda body: body[:1].decode())
    assert len(await q.reserve(10, block=0)) == 2
    consumer = aspawn(q.reserve, 10, block=30)
    await waits.reach(1)
    await q.configure(**after)
    assert [job.body for job in await consumer.result()] == [b"a2", b"b2"]
    assert raw.hget(q.ops.keys["meta"], "recheck") is None


async def test_a_looser_limit_of_many_keys(q: AsyncQueue, raw: Raw) -> None:
    """A call looks at n + 100 keys with parked jobs, and tells that there is more."""
    await q.configure(per_key=1)
    for _ in range(2):
        await q.enqueue_many(range(250), key=str)
    assert len(await q.reserve(250, block=0)) == 250
    await q.configure(per_key=2)
    seen = []
    for _ in range(3):
        taken = await q.route.node.executor.run(q.ops.reserve(20))
        seen.append((len(taken.deliveries), taken.next_ms, (await q.stats()).parked))
    assert seen == [(0, 0, 130), (20, 0, 10), (20, 0, 0)]
    assert raw.hget(q.ops.keys["meta"], "recheck") is None


async def test_a_looser_limit_of_a_key_with_many_jobs(q: AsyncQueue) -> None:
    """A call admits one job of each key and 100 in addition, until none is parked."""
    await q.configure(per_key=1)
    await q.enqueue_many([b"a"] * 300 + [b"b"] * 2, key=lambda body: body.decode())
    assert len(await q.reserve(10, block=0)) == 2
    await q.configure(per_key=None)
    replies = [await q.route.node.executor.run(q.ops.reserve(1000)) for _ in range(4)]
    assert [len(one.deliveries) for one in replies] == [0, 102, 101, 97]
    assert [one.next_ms == 0 for one in replies] == [True, True, True, False]


async def test_one_call_admits_jobs_of_thousands_of_keys(real_q: AsyncQueue, real_raw: Raw) -> None:
    """Jobs of 1,000 keys are acknowledged and those of 2,000 keys expire while all keys are
    rechecked: the call admits more jobs than one command can name, and loses none.
    """
    q, keys = real_q, sorted(map(str, range(4100)), key=key_hash)
    await q.configure(per_key=1)
    await q.enqueue_many(keys[:2100], key=str, lease=3600)
    jobs = [job for _ in range(3) for job in await q.reserve(1000, block=0)]
    await q.enqueue_many(keys[2100:], key=str, ttl=60)
    await q.enqueue_many(keys, key=str)
    await q.configure(per_key=2)
    advance(real_raw, q.ops, 61)
    acknowledged = [job for job in jobs if job.body in keys[1100:2100]]
    settled = await q.route.node.executor.run(q.ops.settle(acknowledged, 1))
    assert (settled.outcomes.all_done, settled.taken.next_ms) == (True, 0)
    left, taken = await q.stats(), len(settled.taken.deliveries)
    assert (left.active - taken, left.ready + left.parked + taken) == (1100, 4100)
    check_invariant(real_raw, q.ops)


async def test_an_end_admits_a_bounded_number_of_jobs(q: AsyncQueue) -> None:
    """When a limit is raised, an end admits one job and 100 in addition."""
    await q.configure(per_key=1)
    await q.enqueue_many([b"x"] * 300, key="a")
    [job] = await q.reserve(1, block=0)
    await q.configure(per_key=1000)
    await job.ack()
    assert (await q.stats()).parked == 299 - 101
