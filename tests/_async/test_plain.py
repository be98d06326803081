"""The client calls the plain forms of reserve, ack and settle, and the full ones if it must."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncQueue, StaleReceipt
from penstock.core.calls.operations.base import CALLS_BEFORE_PLAIN


@pytest.fixture
def scripts(q: AsyncQueue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the scripts that the client calls."""
    found: list[str] = []
    run = q.node.executor.connections.run

    async def noting(call: Any, **options: Any) -> Any:
        found.append(call.script.name)
        return await run(call, **options)

    monkeypatch.setattr(q.node.executor.connections, "run", noting)
    return found


async def test_the_usual_case_takes_the_plain_forms(q: AsyncQueue, scripts: list[str]) -> None:
    """First deliveries in a queue without options."""
    await q.enqueue_many([b"1", b"2", b"3", b"4", b"5"])
    scripts.clear()
    [one] = await q.reserve()
    many = await q.reserve(2)
    await one.ack()
    assert (await q.ack(many)).all_done
    assert await q.reserve(5)
    assert not await q.reserve(block=0)
    assert scripts == ["reserve_plain"] * 2 + ["ack_plain"] * 2 + ["reserve_plain"] * 2
    assert (await q.stats()).acked == 3


async def test_an_exchange_takes_the_plain_form(q: AsyncQueue, scripts: list[str]) -> None:
    """`settle` of first deliveries."""
    await q.enqueue_many([b"1", b"2", b"3"])
    jobs = await q.reserve(2)
    scripts.clear()
    outcomes, jobs = await q.ack_and_reserve(jobs, 2)
    assert outcomes.all_done
    assert [job.body for job in jobs] == [b"3"]
    assert [job.attempt for job in jobs] == [1]
    assert scripts == ["settle_plain"]


async def test_a_refusal_leads_to_the_full_script(q: AsyncQueue, scripts: list[str]) -> None:
    """The call is done by the full script, and so are the next ones, until it is tried again."""
    await q.enqueue(b"x", ttl=60)
    await q.enqueue_many([b"x"] * (CALLS_BEFORE_PLAIN + 3))
    scripts.clear()
    for _ in range(CALLS_BEFORE_PLAIN + 2):
        assert len(await q.reserve()) == 1
    refused = ["reserve_plain", "reserve"]
    assert scripts == [*refused, *["reserve"] * CALLS_BEFORE_PLAIN, *refused]


async def test_a_second_delivery_is_ended_by_the_full_script(
    q: AsyncQueue, scripts: list[str]
) -> None:
    """It has counters. A first one is left to the plain form again."""
    await q.enqueue(b"x")
    [job] = await q.reserve()
    await job.release()
    [again] = await q.reserve()
    await q.enqueue(b"y")
    [first] = await q.reserve()
    scripts.clear()
    with pytest.raises(StaleReceipt):
        await job.ack()
    await again.ack()
    q.ops.declined.clear()
    await first.ack()
    assert scripts == ["ack_plain", "ack", "show", "ack", "ack_plain"]
    assert (await q.stats()).acked == 2


async def test_options_of_a_call_need_the_full_script(q: AsyncQueue, scripts: list[str]) -> None:
    """Acks by id or with a window."""
    job = await q.enqueue(b"x")
    await q.enqueue(b"y")
    taken = await q.reserve(2)
    scripts.clear()
    await q.ack([job.id])
    await q.ack(taken[1:], dedup_window=5)
    assert scripts == ["ack", "ack"]


async def test_many_plain_jobs_take_the_plain_form(q: AsyncQueue, scripts: list[str]) -> None:
    """Also when the first call has created the queue. Jobs with options need the full script."""
    assert len(await q.enqueue_many([b"x"] * 3)) == 3
    assert scripts == ["enqueue_plain", "enqueue", "enqueue", "enqueue"]
    scripts.clear()
    added = await q.enqueue_many([b"1", {"to": "ada"}, b"3"], lease=60)
    assert scripts == ["enqueue_plain"]
    assert [job.state for job in added] == ["ready"] * 3
    assert [view.id for view in await q.peek(10)][3:] == added.ids
    scripts.clear()
    await q.enqueue_many([b"x"] * 2, delay=5)
    await q.enqueue_many([b"x"] * 2, max_length=100)
    await q.enqueue_many([b"x" * 5000] * 2)
    await q.enqueue_many([b"x"] * 2, ttl=60)
    assert scripts == ["enqueue"] * 4
    scripts.clear()
    await q.enqueue_many([b"x"] * 2)
    await q.enqueue_many([b"x"] * 2)
    assert scripts == ["enqueue_plain", "enqueue", "enqueue"]
