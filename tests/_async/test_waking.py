"""Idle consumers are woken in time, and only when there is a reason."""

from __future__ import annotations

import asyncio  # async only

import pytest

from penstock import AsyncJob, AsyncPenstock, AsyncQueue
from tests.support.backends import Backend
from tests.support.keyspace import Raw, evalshas, load_scripts
from tests.support.twins import aspawn

from .conftest import AsyncWaits


def passed(before: AsyncJob, after: AsyncJob) -> float:
    """Return the seconds between two deliveries by the server's clock."""
    return round(after.delivered - before.delivered, 3)


async def test_an_idle_consumer_recovers_an_ended_lease(q: AsyncQueue, waits: AsyncWaits) -> None:
    """With a lease of 1 s an idle consumer gets the orphaned job within 2 s,
    without other traffic.
    """
    await q.enqueue("orphan", lease=1)
    (held,) = await q.reserve(block=0)
    (again,) = await q.reserve(block=30)
    assert (again.id, again.crashes) == (held.id, 1)
    assert 1.0 <= passed(held, again) < 2.0


async def test_a_consumer_that_waited_before_recovers_it_too(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """A consumer that blocked before the job came gets it after the other holder's lease."""
    await q.enqueue("make the queue")
    await q.purge()
    idle = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.enqueue("orphan", lease=1)
    (first,) = await idle.result()
    second = aspawn(q.reserve, 1, block=30)
    (again,) = await second.result()
    assert again.id == first.id
    assert 1.0 <= passed(first, again) < 2.0


async def test_two_idle_consumers_recover_one_job_after_the_other(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """Two leases end one after the other; the wake-up for the first does not lose the second."""
    await q.enqueue("a", lease=0.4)
    await q.enqueue("b", lease=0.9)
    held = await q.reserve(2, block=0)

    async def take_one() -> AsyncJob:
        (job,) = await q.reserve(1, block=30)
        await job.ack()
        return job

    consumers = [aspawn(take_one) for _ in range(2)]
    again = sorted([await one.result() for one in consumers], key=lambda job: job.body)
    assert [job.body for job in again] == ["a", "b"]
    for before, after in zip(held, again, strict=True):
        assert before.lease <= passed(before, after) < before.lease + 1


async def test_a_lease_cut_short_is_noticed(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A consumer that knew a later end of the lease is told of the earlier one."""
    await q.enqueue("x", lease=60)
    (held,) = await q.reserve(block=0)
    idle = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    assert await held.extend(0.2) == 0.2
    (again,) = await idle.result()
    assert again.delivered - held.delivered < 3


@pytest.mark.parametrize("how", ["ack", "delete", "bury", "extend", "purge", "nack"])
async def test_an_early_settled_lease_hides_no_later_event(
    q: AsyncQueue, waits: AsyncWaits, how: str
) -> None:
    """An announced lease is settled early; a delay that ends later is still on time."""
    await q.enqueue("x", lease=1)
    (job,) = await q.reserve(block=0)
    if how == "delete":
        await q.delete([job.id])
    elif how == "purge":
        await q.purge("active")
    elif how == "extend":
        await job.extend(60)
    elif how == "nack":
        await job.nack(delay=60)
    else:
        await (job.ack() if how == "ack" else job.bury("no use"))
    idle = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.enqueue("later", delay=1.1)
    (later,) = await idle.result()
    assert later.body == "later"
    assert later.delivered - later.created < 3  # a tick alone would need 4


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("how", ["release", "nack", "release later", "nack later", "redrive"])
async def test_a_job_given_back_wakes_an_idle_consumer(
    q: AsyncQueue, waits: AsyncWaits, how: str
) -> None:
    """A released job wakes an idle consumer at once or after its delay."""
    delay = 0.1 if "later" in how else 0
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    if how == "redrive":
        await job.bury()
    idle = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    if how.startswith("release"):
        assert await job.release(delay=delay)
    elif how.startswith("nack"):
        assert await job.nack(delay=delay)
    else:
        assert await q.redrive() == 1
    (again,) = await idle.result()
    assert (again.id, again.deliveries) == (job.id, 2)


async def test_a_delayed_job_is_never_early_and_hardly_late(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """A delayed job is never early and, unless the machine is busy, at most 50 ms late."""
    late = []
    for _ in range(7):
        idle = aspawn(q.reserve, 1, block=30)
        await waits.reach(1)
        await q.enqueue("x", delay=0.12)
        (job,) = await idle.result()
        late.append(round(job.delivered - job.created - 0.12, 3))
        await job.ack()
    assert 0 <= min(late) <= 0.05


async def test_a_delay_longer_than_a_tick_is_on_time(q: AsyncQueue) -> None:
    """A delay longer than the 4 s tick is on time too."""
    await q.enqueue("x", delay=4.3)
    (job,) = await q.reserve(block=30)
    assert 4.3 <= round(job.delivered - job.created, 3) < 5.3


async def test_consumers_share_the_delayed_jobs(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Three jobs are due one after the other; three idle consumers start one each on time."""
    consumers = [aspawn(q.reserve, 1, block=30) for _ in range(3)]
    await waits.reach(3)
    for number in (1, 2, 3):
        await q.enqueue(number, delay=number * 0.25)
    jobs = [job for one in consumers for job in await one.result()]
    assert sorted(job.body for job in jobs) == [1, 2, 3]
    for job in jobs:
        late = round(job.delivered - job.created - job.body * 0.25, 3)
        assert 0 <= late < 1


@pytest.mark.usefixtures("no_ticks")
async def test_one_call_wakes_enough_consumers(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Five jobs in one call: each woken consumer passes the token to the next one."""
    consumers = [aspawn(q.reserve, 1, block=30) for _ in range(5)]
    await waits.reach(5)
    await q.enqueue_many(range(5))
    jobs = [job for one in consumers for job in await one.result()]
    assert sorted(job.body for job in jobs) == list(range(5))


async def test_a_fresh_job_wakes_one_consumer(
    real_q: AsyncQueue, real_raw: Raw, waits: AsyncWaits
) -> None:
    """One new job wakes one of five waiting consumers; the other four send nothing."""
    load_scripts(real_raw)
    await real_q.enqueue("make the queue")
    await real_q.purge()
    consumers = [aspawn(real_q.reserve, 1, block=30) for _ in range(5)]
    await waits.reach(5)
    before = evalshas(real_raw)
    await real_q.enqueue("fresh")
    await waits.reach(4)
    assert evalshas(real_raw) - before <= 3  # enqueue, reserve, and at most one more
    await real_q.enqueue_many(range(4))
    assert sum([len(await one.result()) for one in consumers]) == 5


async def test_a_consumer_that_stops_waiting_takes_no_token(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """One of two idle consumers takes a due job by its timer; the next job wakes the other one."""
    for _ in range(3):
        consumers = [aspawn(q.reserve, 1, block=30) for _ in range(2)]
        await waits.reach(2)
        await q.enqueue("due", delay=0.1)
        await waits.reach(1)
        await q.enqueue("fresh")
        jobs = [job for one in consumers for job in await one.result()]
        (fresh,) = (job for job in jobs if job.body == "fresh")
        assert fresh.delivered - fresh.created < 2
        await q.ack(jobs)


async def test_a_token_of_another_queue_is_not_taken(ps: AsyncPenstock, waits: AsyncWaits) -> None:
    """A consumer of two queues takes a job of one; a job of the other wakes its own consumer."""
    for _ in range(3):
        both = aspawn(ps.reserve, ["a", "b"], 1, block=30)
        await waits.reach(1)
        other = aspawn(ps.queue("b").reserve, 1, block=30)
        await waits.reach(2)
        await ps.queue("a").enqueue("for both")
        await ps.queue("b").enqueue("for the other")
        jobs = await both.result() + await other.result()
        assert sorted(job.body for job in jobs) == ["for both", "for the other"]
        assert all(job.delivered - job.created < 2 for job in jobs)


async def test_a_wait_that_ends_leaves_the_job_to_others(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A consumer's wait times out; a later job reaches the remaining consumer."""
    short = aspawn(q.reserve, 1, block=0.1)
    stays = aspawn(q.reserve, 1, block=30)
    assert await short.result() == []
    await waits.reach(1)
    await q.enqueue("x")
    (job,) = await stays.result()
    assert job.delivered - job.created < 2


# [async only
async def test_a_cancelled_consumer_leaves_the_job_to_others(
    backend: Backend, q: AsyncQueue, waits: AsyncWaits
) -> None:
    """A cancelled wait ends on the server too, so it takes no later token."""
    # fakeredis continues the BLPOP of a closed connection, so a tick is lost there.
    soon = 5 if backend.is_fake else 2
    cancelled = asyncio.create_task(q.reserve(1, block=30))
    await waits.reach(1)
    stays = aspawn(q.reserve, 1, block=30)
    await waits.reach(2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await waits.reach(1)
    await q.enqueue("x")
    (job,) = await stays.result()
    assert job.delivered - job.created < soon


# async only]
@pytest.mark.parametrize("side", ["out", "all"])
async def test_a_pause_with_jobs_waiting_costs_no_busy_loop(
    real_q: AsyncQueue, real_raw: Raw, waits: AsyncWaits, side: str
) -> None:
    """Two consumers wait at a paused queue with ready, due and orphaned jobs
    without a busy loop.
    """
    load_scripts(real_raw)
    await real_q.enqueue("orphan", lease=0.01)
    await real_q.reserve(block=0)
    await real_q.enqueue_many(range(10))
    await real_q.enqueue("due", delay=0.01)
    await real_q.pause(side)
    before = evalshas(real_raw)
    consumers = [aspawn(real_q.reserve, 1, block=0.8) for _ in range(2)]
    assert [await one.result() for one in consumers] == [[], []]
    assert evalshas(real_raw) - before <= 12


async def test_a_pause_of_the_incoming_side_costs_no_busy_loop(
    real_q: AsyncQueue, real_raw: Raw, waits: AsyncWaits
) -> None:
    """With the incoming side paused, held-back jobs cause no busy loop."""
    load_scripts(real_raw)
    await real_q.enqueue("orphan", lease=0.01)
    await real_q.reserve(block=0)
    await real_q.enqueue("due", delay=0.01)
    await real_q.pause("in")
    before = evalshas(real_raw)
    consumers = [aspawn(real_q.reserve, 1, block=0.8) for _ in range(2)]
    assert [await one.result() for one in consumers] == [[], []]
    assert evalshas(real_raw) - before <= 12


async def test_waiting_for_a_far_event_costs_a_call_a_tick(
    real_q: AsyncQueue, real_raw: Raw, waits: AsyncWaits
) -> None:
    """Leases and delays that end after the wait do not cause repeated calls."""
    load_scripts(real_raw)
    await real_q.enqueue("held", lease=3600)
    await real_q.reserve(block=0)
    await real_q.enqueue("later", delay=3)
    before = evalshas(real_raw)
    assert await real_q.reserve(block=0.6) == []
    assert evalshas(real_raw) - before <= 6


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("side", ["out", "all"])
async def test_resume_wakes_idle_consumers(q: AsyncQueue, waits: AsyncWaits, side: str) -> None:
    """Idle consumers start on the waiting jobs at once after a resume."""
    await q.enqueue_many(range(2))
    await q.pause(side)
    consumers = [aspawn(q.reserve, 1, block=30) for _ in range(2)]
    await waits.reach(2)
    await q.resume()
    jobs = [job for one in consumers for job in await one.result()]
    assert sorted(job.body for job in jobs) == [0, 1]


@pytest.mark.usefixtures("no_ticks")
async def test_resuming_the_incoming_side_wakes_idle_consumers(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """Jobs that a pause held back wake idle consumers after a resume."""
    await q.enqueue("due", delay=0.01)
    await q.pause("in")
    idle = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.resume()
    assert [job.body for job in await idle.result()] == ["due"]
