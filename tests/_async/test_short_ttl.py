"""Jobs with a ttl: their default lease, and the count of jobs that expire while active."""

from __future__ import annotations

import logging

import pytest

from penstock import AsyncPenstock, AsyncQueue
from penstock.core.enqueuing.prepared import _shared, _warn_of_lease
from penstock.core.jobs.job import receipt_with_end
from tests.support.keyspace import Raw, advance


@pytest.fixture
def q(ps: AsyncPenstock) -> AsyncQueue:
    """A queue that does not exist yet."""
    return ps.queue("q")


@pytest.mark.parametrize("many", [False, True])
async def test_a_short_ttl_leaves_time_for_another_delivery(
    q: AsyncQueue, raw: Raw, many: bool
) -> None:
    """After its consumer died, the job is delivered again before its ttl ends."""
    if many:
        await q.enqueue_many(["x"], ttl=40)
    else:
        await q.enqueue("x", ttl=40)
    (job,) = await q.reserve(block=0)
    assert job.lease == 4
    advance(raw, q.ops, 4.1)
    (again,) = await q.reserve(block=0)
    assert (again.body, again.deliveries, again.crashes) == ("x", 2, 1)
    assert await again.ack()


@pytest.mark.parametrize(
    "ttl, lease, queue, wanted",
    [
        (9, None, None, 1),
        (100, None, None, 10),
        (3600, None, None, 30),
        (3600, None, 5, 5),
        (100, 50, None, 50),
        (None, None, 5, 5),
    ],
)
async def test_the_lease_of_a_job_with_a_ttl(
    q: AsyncQueue,
    raw: Raw,
    ttl: float | None,
    lease: float | None,
    queue: float | None,
    wanted: float,
) -> None:
    """The default lease is a tenth of the ttl, between 1 s and the queue's lease."""
    await q.configure(lease=queue)
    await q.enqueue("x", ttl=ttl, lease=lease)
    (view,) = await q.peek()
    (job,) = await q.reserve(block=0)
    assert view.lease == job.lease == wanted
    (held,) = await q.peek(state="active")
    assert held.delivered is not None
    assert held.lease_until == pytest.approx(held.delivered + wanted, abs=0.01)
    assert (await q.extend([job], late=True)).seconds_left == [wanted]
    assert await q.ack([job])


async def test_the_hint_of_a_whole_reservation_fits(q: AsyncQueue, raw: Raw) -> None:
    """The client computes the end of such a lease as the server does."""
    await q.enqueue_many(range(20), ttl=100)
    jobs = await q.reserve(20, block=0)
    (view,) = await q.peek(1, state="active")
    assert view.lease_until is not None
    until = str(round(view.lease_until * 1000))
    assert {receipt_with_end(job).partition("@")[2] for job in jobs} == {until}
    assert (await q.ack(jobs)).done == 20


async def test_expired_active_jobs_are_counted(q: AsyncQueue, raw: Raw) -> None:
    """Active jobs that expire are counted apart from jobs that were never delivered."""
    await q.enqueue("delivered", ttl=60)
    assert len(await q.reserve(block=0)) == 1
    await q.enqueue("waits", ttl=60)
    advance(raw, q.ops, 61)
    assert await q.sweep() == 2
    stats = await q.stats()
    assert (stats.expired, stats.expired_active) == (2, 1)


async def test_a_lease_as_long_as_the_ttl_is_logged_once(
    q: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A job with a lease as long as its ttl is logged once, as it can't be
    redelivered; not lease 0.
    """
    _warn_of_lease.cache_clear()
    _shared.cache_clear()
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(3):
            await q.enqueue("x", ttl=7, lease=7)
            await q.enqueue_many(["x"], ttl=7, lease=7)
        await q.enqueue("x", ttl=7, lease=6)
        await q.enqueue("x", ttl=7, lease=0)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("lease=7.0 s is not shorter than ttl=7.0 s: ")
