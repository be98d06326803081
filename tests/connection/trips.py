"""A small set of calls, made with each client."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock import AsyncPenstock, Penstock

__all__ = ["both", "by_async", "by_sync"]


def by_sync(source: Any, **options: Any) -> list[Any]:
    """Make every kind of call once, including a wait, and return the bodies."""
    ps = Penstock(source, **options)
    q = ps.queue("trip")
    try:
        q.enqueue("one")
        q.enqueue_many(["two", "three"], delay=0.05)
        jobs = q.reserve(1, block=5)  # the other jobs may be due by now
        _, more = q.ack_and_reserve(jobs, 3, block=5)
        q.nack(more[:1], delay=60)
        q.bury(more[1:])
        q.redrive()
        q.configure(max_length=10)
        assert [view.body for view in q.peek()] == ["three"]
        assert ps.queues() == ["trip"]
        assert q.stats().acked == 1
        q.purge()
        return [job.body for job in [*jobs, *more]]
    finally:
        ps.close()


async def by_async(source: Any, **options: Any) -> list[Any]:
    """Make every kind of call once with asyncio, and return the bodies."""
    ps = AsyncPenstock(source, **options)
    q = ps.queue("trip")
    try:
        await q.enqueue("one")
        await q.enqueue_many(["two", "three"], delay=0.05)
        jobs = await q.reserve(1, block=5)  # the other jobs may be due by now
        _, more = await q.ack_and_reserve(jobs, 3, block=5)
        await q.nack(more[:1], delay=60)
        await q.bury(more[1:])
        await q.redrive()
        await q.configure(max_length=10)
        assert [view.body for view in await q.peek()] == ["three"]
        assert await ps.queues() == ["trip"]
        assert (await q.stats()).acked == 2
        await q.purge()
        return [job.body for job in [*jobs, *more]]
    finally:
        await ps.close()


def both(url: str) -> None:
    """Make the calls with both clients at this address."""
    assert by_sync(url) == ["one", "two", "three"]
    assert asyncio.run(by_async(url)) == ["one", "two", "three"]
