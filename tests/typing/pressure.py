"""Queues of the protocol pressure as used by callers. Not run: the type checker is the test."""

from __future__ import annotations

from datetime import timedelta

import redis
import redis.asyncio
from typing_extensions import assert_type

from penstock import OutcomeUnknown, PenstockError, QueueInUse
from penstock.pressure import AsyncPressureQueue, PressureCounters, PressureQueue


def plain(client: redis.Redis) -> None:
    PressureQueue("q")
    PressureQueue("q", "redis://localhost:6379/0", prefix="p", client_id="me")
    with PressureQueue("q", client) as q:
        q.create()
        q.create(bound=5)
        assert_type(q.exists(), bool)
        assert_type(q.length(), int)
        assert_type(q.closed(), bool)
        assert_type(q.bound(), int)
        assert_type(q.client_id, str)
        q.put("text")
        q.put(b"bytes", timeout=timedelta(seconds=1), overfill=True)
        q.put_nowait(b"bytes", overfill=True)
        q.put("text", replicas=2, replication_timeout=timedelta(seconds=5))
        assert_type(q.peek_reverse(timeout=1), bytes | None)
        assert_type(q.peek_reverse_nowait(), bytes | None)
        q.unblock()
        assert_type(q.get(), bytes)
        assert_type(q.get(timeout=0.5), bytes)
        assert_type(q.get_nowait(), bytes)
        assert_type(list(q), list[bytes])
        assert_type(q.counters(), PressureCounters)
        assert_type(q.counters().consumed_bytes, int)
        assert_type(q.free_role("consumer"), bool)
        q.free_role("reader")  # type: ignore[arg-type] # there is no such role
        q.put(7)  # type: ignore[arg-type] # neither bytes nor text
        q.close(timeout=1)
        q.delete(timeout=1)
        q.disconnect()


async def asynchronous(client: redis.asyncio.Redis) -> None:
    async with AsyncPressureQueue("q", client) as q:
        await q.create(bound=5)
        assert_type(await q.get(timeout=None), bytes)
        async for message in q:
            assert_type(message, bytes)
        assert_type(await q.counters(), PressureCounters)
        await q.disconnect()


def errors(error: QueueInUse, lost: OutcomeUnknown) -> tuple[PenstockError, redis.ConnectionError]:
    assert_type(error.role, str)
    assert_type(error.holder, str)
    return error, lost
