"""Settings and pauses: stored on the queue and valid for all clients."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import AsyncPenstock, AsyncQueue, QueuePaused, Settings
from tests.support.keyspace import Raw, advance, dump
from tests.support.twins import aspawn

EVERYTHING = {
    "lease": 45,
    "max_length": 1000,
    "max_attempts": 5,
    "max_crashes": 2,
    "max_releases": 7,
    "backoff_base": 0.5,
    "backoff_cap": 60,
    "dead_max": 50,
    "dead_age": 3600,
    "rate": "100/min",
    "burst": 20,
}


async def test_defaults(q: AsyncQueue) -> None:
    """A new queue has no stored settings."""
    await q.enqueue(1)
    assert (await q.stats()).settings == Settings()


async def test_settings_are_stored_and_answered(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """`configure` stores all settings and returns them; before the first job it
    creates the queue.
    """
    stored = await q.configure(**EVERYTHING)  # type: ignore[arg-type]  # one dict for all kinds
    assert stored == Settings(**EVERYTHING)  # type: ignore[arg-type]  # the same
    assert (await q.stats()).settings == stored
    assert await ps.queues() == ["q"]


async def test_settings_that_are_not_given_stay(q: AsyncQueue) -> None:
    """Settings that are not given stay; None restores the default of a single setting."""
    await q.configure(lease=45, max_attempts=5, dead_max=0)
    assert await q.configure(max_attempts=6) == Settings(lease=45, max_attempts=6, dead_max=0)
    assert await q.configure(lease=None) == Settings(max_attempts=6, dead_max=0)
    assert await q.configure() == Settings(max_attempts=6, dead_max=0)


async def test_durations_may_be_timedeltas(q: AsyncQueue) -> None:
    """Durations may be timedeltas, with millisecond precision."""
    stored = await q.configure(lease=timedelta(minutes=2), backoff_base=timedelta(milliseconds=1))
    assert (stored.lease, stored.backoff_base) == (120, 0.001)


async def test_the_lease_of_the_queue(q: AsyncQueue, raw: Raw) -> None:
    """The queue's lease applies to jobs without their own, from the next delivery on."""
    await q.enqueue_many([1, 2])
    (before,) = await q.reserve(block=0)
    await q.configure(lease=100)
    (after,) = await q.reserve(block=0)
    assert (before.lease, after.lease) == (30, 100)
    advance(raw, q.ops, 31)
    assert [job.id for job in await q.reserve(5, block=0)] == [before.id]


async def test_all_clients_see_them(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """All clients see the settings."""
    await ps.queue("q").configure(max_attempts=1)
    await q.enqueue(1)
    (job,) = await q.reserve(block=0)
    await job.nack()
    assert (await q.stats()).dead == 1


@pytest.mark.parametrize("side", ["in", "all"])
async def test_a_pause_for_producers(q: AsyncQueue, raw: Raw, side: str) -> None:
    """In a pause of both directions producers are refused, and no key changes."""
    await q.enqueue(1)
    await q.pause(side)
    before = dump(raw)
    for delay in (0, 5):
        with pytest.raises(QueuePaused, match=f"'q' is paused \\({side}\\)"):
            await q.enqueue(2, delay=delay)
    with pytest.raises(QueuePaused):
        await q.enqueue_many([2, 3])
    assert dump(raw) == before
    await q.resume()
    await q.enqueue(2)


@pytest.mark.parametrize("side", ["out", "all"])
async def test_a_pause_for_consumers(q: AsyncQueue, raw: Raw, side: str) -> None:
    """In a pause nothing is delivered; held jobs may be settled and extended."""
    await q.enqueue_many([1, 2, 3, 4])
    one, two, three = await q.reserve(3, block=0)
    await q.pause(side)
    assert await q.reserve(5, block=0.02) == []
    assert await one.ack()
    assert await two.nack(delay=0)
    assert await three.extend() == 30
    assert (await q.ack_and_reserve([three], 5))[1] == []
    stats = await q.stats()
    assert (stats.ready, stats.active, stats.acked) == (2, 0, 2)
    await q.resume()
    assert [job.body for job in await q.reserve(5, block=0)] == [2, 4]


async def test_a_pause_of_the_incoming_side(q: AsyncQueue, raw: Raw) -> None:
    """A pause of the incoming side also holds retries, due jobs and ended leases back."""
    await q.enqueue("orphan", lease=5)
    await q.reserve(block=0)
    await q.enqueue("retried")
    (job,) = await q.reserve(block=0)
    await q.enqueue("due", delay=1)
    await q.enqueue("ready")
    await q.pause("in")
    await job.nack(delay=0)
    advance(raw, q.ops, 6)
    assert [job.body for job in await q.reserve(9, block=0)] == ["ready"]
    assert await q.reserve(9, block=0.02) == []
    await q.resume()
    bodies = [job.body for job in await q.reserve(9, block=0)]
    assert bodies == ["orphan", "retried", "due"]


async def test_a_pause_of_the_outgoing_side_accepts_jobs(q: AsyncQueue) -> None:
    """A pause of the outgoing side accepts jobs, which are delivered later."""
    await q.pause("out")
    await q.enqueue(1)
    await q.enqueue_many([2, 3])
    assert (await q.stats()).settings.paused == "out"
    await q.resume()
    assert [job.body for job in await q.reserve(9, block=0)] == [1, 2, 3]


async def test_one_pause_replaces_another(q: AsyncQueue) -> None:
    """A second pause replaces the first; resume ends either, and is harmless without one."""
    for side in ("in", "out", "all"):
        await q.pause(side)
        assert (await q.stats()).settings.paused == side
    await q.resume()
    assert (await q.stats()).settings.paused is None
    await q.resume()
    await q.enqueue(1)


async def test_a_paused_queue_exists(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A paused queue exists even without jobs, and an idle sweep keeps it."""
    await q.pause("out")
    assert await ps.queues() == ["q"]
    advance(raw, q.ops, 100_000)
    assert await ps.sweep() == 0
    assert (await q.stats()).settings.paused == "out"


async def test_purge_and_delete_in_a_pause(q: AsyncQueue) -> None:
    """Purge and delete work in a pause."""
    results = await q.enqueue_many(range(4))
    await q.pause("all")
    assert (await q.delete([results[0].id])).done == 1
    assert (await q.bury([results[1].id])).done == 1
    assert await q.redrive() == 1
    assert await q.purge() == 3


async def test_a_consumer_that_waits_is_not_served_in_a_pause(q: AsyncQueue) -> None:
    """A waiting consumer gets no job during a pause, and gets one after it."""
    await q.pause("out")
    consumer = aspawn(q.reserve, 1, block=20)
    await q.enqueue(1)
    assert await q.reserve(1, block=0.05) == []
    assert not consumer.is_done
    await q.resume()
    assert [job.body for job in await consumer.result()] == [1]
