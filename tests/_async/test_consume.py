"""The `consume` loop: which jobs it yields, and when it acknowledges them."""

from __future__ import annotations

import logging

import pytest

from penstock import AsyncQueue, BadArgument
from tests.support.keyspace import Raw, advance, evalshas, load_scripts
from tests.support.twins import aspawn, await_for

from .conftest import AsyncWaits


async def test_consume_hands_jobs_out_one_by_one(q: AsyncQueue) -> None:
    """The loop reserves in batches, yields single jobs, and ends after `block`
    seconds without one.
    """
    await q.enqueue_many(range(5))
    seen = []
    async for job in q.consume(batch=2, block=0):
        seen.append(job.body)
        await job.ack()
    assert seen == list(range(5))
    assert (await q.stats()).acked == 5


async def test_consume_waits_for_jobs(q: AsyncQueue, waits: AsyncWaits) -> None:
    """The loop waits for new jobs, and the caller may leave it at any time."""

    async def first_two() -> list[object]:
        seen = []
        async for job in q.consume():
            seen.append(job.body)
            await job.ack()
            if len(seen) == 2:
                break
        return seen

    consumer = aspawn(first_two)
    await waits.reach(1)
    await q.enqueue("a")
    await waits.reach(1)
    await q.enqueue("b")
    assert await consumer.result() == ["a", "b"]


async def test_consume_acknowledges_jobs_whose_block_succeeded(q: AsyncQueue) -> None:
    """When the loop ends, every job whose block raised no error is acknowledged."""
    await q.enqueue_many(range(7))
    seen = []
    async for job in q.consume(batch=3, block=0):
        async with job:
            seen.append(job.body)
    assert seen == list(range(7))
    stats = await q.stats()
    assert (stats.acked, stats.active, stats.ready) == (7, 0, 0)


async def test_consume_needs_a_trip_a_job(real_q: AsyncQueue, real_raw: Raw) -> None:
    """A finished job is acknowledged in the call that reserves the next one."""
    load_scripts(real_raw)
    await real_q.enqueue_many(range(20))
    before = evalshas(real_raw)
    async for job in real_q.consume(block=0):
        async with job:
            pass
    assert evalshas(real_raw) - before <= 21
    assert (await real_q.stats()).acked == 20


async def test_a_failure_in_a_batch_is_that_jobs_alone(q: AsyncQueue) -> None:
    """A failed job of a batch is reported at once; the other jobs are done."""
    await q.configure(backoff_base=3600)  # no draw of the jitter brings it back into this loop
    await q.enqueue_many(range(6))
    async for job in q.consume(batch=6, block=0):
        async with job:
            if job.body in (1, 4):
                raise ValueError(f"no {job.body}")
    stats = await q.stats()
    assert (stats.acked, stats.nacked, stats.active) == (4, 2, 0)


async def test_jobs_settled_by_the_caller_are_settled_once(q: AsyncQueue) -> None:
    """A job that the caller settles is not settled again by the loop."""
    await q.enqueue_many(range(4))
    async for job in q.consume(batch=4, block=0):
        async with job:
            if job.body == 1:
                await job.ack()
            elif job.body == 2:
                await job.bury("enough")
    stats = await q.stats()
    assert (stats.acked, stats.dead, stats.active) == (3, 1, 0)


async def first_job(q: AsyncQueue) -> object:
    """Leave the loop after the first job, and return its body."""
    async for job in q.consume(batch=2, block=5):
        async with job:
            return job.body
    return None


async def test_leaving_the_loop_acknowledges(q: AsyncQueue, raw: Raw) -> None:
    """Leaving the loop acknowledges the finished jobs; a job that was not yielded
    keeps its lease.
    """
    await q.enqueue_many(range(2))
    assert await first_job(q) == 0
    await await_for(lambda: int(raw.hget(q.ops.keys["meta"], "acked") or 0) == 1)
    (held,) = await q.peek(state="active")
    assert held.body == 1


async def test_an_error_that_leaves_the_loop(q: AsyncQueue, raw: Raw) -> None:
    """An error that leaves the loop gives the current job back; finished jobs are acknowledged."""

    async def work() -> None:
        async for job in q.consume(batch=2, block=0):
            async with job:
                if job.body == 1:
                    raise KeyboardInterrupt

    await q.enqueue_many(range(2))
    with pytest.raises(KeyboardInterrupt):
        await work()
    await await_for(lambda: int(raw.hget(q.ops.keys["meta"], "acked") or 0) == 1)
    (again,) = await q.reserve(block=0)
    assert (again.body, again.attempt) == (1, 1)


async def test_done_after_the_lease_has_ended(
    q: AsyncQueue, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """An ack after the lease has ended is logged as stale, and the loop continues."""
    await q.enqueue_many(["late", "next"], lease=10)
    others = []
    with caplog.at_level(logging.WARNING, "penstock"):
        async for job in q.consume(block=0):
            async with job:
                if job.body == "late":
                    advance(raw, q.ops, 11)
                    others += await q.reserve(block=0)
    assert [job.body for job in others] == ["late"]
    assert others[0].id in caplog.text
    assert await others[0].ack() is True
    assert (await q.stats()).acked == 2


async def test_a_job_that_is_done_does_not_wait_for_a_slow_one(
    q: AsyncQueue, waits: AsyncWaits
) -> None:
    """The first job of a batch is acknowledged in time, although the second outlasts a lease."""
    await q.enqueue_many(["quick", "slow"], lease=0.3)
    again = []
    async for job in q.consume(batch=2, block=0):
        async with job:
            if job.body == "slow":
                await job.extend(30)
                again += await q.reserve(block=0.8)
    assert [job.body for job in again] == []


@pytest.mark.parametrize("batch", [0, -1, 1001, 1.5, None, True])
async def test_batches(q: AsyncQueue, batch: int) -> None:
    """From 1 to 1000."""
    with pytest.raises(BadArgument, match="batch="):
        await anext(aiter(q.consume(batch=batch, block=0)))
