"""Stable ids: a handler can use them to make its work idempotent."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, Dedup
from penstock.core.calls.call import Call
from tests.support.keyspace import Raw, drop_producers


@pytest.fixture
def q(ps: AsyncPenstock) -> AsyncQueue:
    """A queue that does not exist yet."""
    return ps.queue("q")


async def test_producer_and_consumer_see_the_same(q: AsyncQueue) -> None:
    """Producer and consumer see the same id, for single, bulk and dedup jobs, at every delivery."""
    told = [await q.enqueue("a"), *await q.enqueue_many(["b", b"c"])]
    told += [await q.enqueue("d", dedup_id="d"), *await q.enqueue_many(["e"], dedup_id="e")]
    jobs = await q.reserve(9, block=0)
    assert [job.id for job in jobs] == [one.id for one in told]
    assert [job.stable_id for job in jobs] == [one.stable_id for one in told]
    assert len({job.stable_id for job in jobs}) == 5
    for job in jobs:
        view = await q.show(job.id)
        assert view is not None
        assert view.stable_id == job.stable_id
    await q.release(jobs)
    assert [view.stable_id for view in await q.peek(9)] == [job.stable_id for job in jobs]
    found = {view.id: view.stable_id async for view in q.jobs()}
    assert found == {job.id: job.stable_id for job in jobs}
    again = await q.reserve(9, block=0)
    assert [job.stable_id for job in again] == [one.stable_id for one in told]


async def test_a_repeat_on_a_primary_without_the_call_keeps_it(
    q: AsyncQueue, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover that lost the call, its repeat has another id but the same stable id."""
    build = q.ops.enqueue_one
    sent: list[Call[Any]] = []

    def kept(*args: Any, **options: Any) -> Call[Any]:
        sent.append(build(*args, **options))
        return sent[-1]

    await q.enqueue("first")
    await q.reserve(1, block=0)
    with monkeypatch.context() as patch:
        patch.setattr(q.ops, "enqueue_one", kept)
        told = await q.enqueue("work")
    (old,) = await q.reserve(1, block=0)
    await old.ack()
    drop_producers(raw, q.ops)  # as a lagging replica: it has neither the job nor the call
    await q.route.node.executor.run(sent[-1])
    (new,) = await q.reserve(1, block=0)
    assert new.id != old.id == told.id
    assert new.stable_id == old.stable_id == told.stable_id
    assert (new.body, new.deliveries) == ("work", 1)


async def test_a_refused_duplicate_has_none(q: AsyncQueue) -> None:
    """An update has the stable id of the new content; a refused duplicate has none."""
    first = await q.enqueue("a", dedup_id="x")
    assert first.stable_id
    assert (await q.enqueue("b", dedup_id="x")).stable_id == ""
    update = await q.enqueue("c", dedup=Dedup("x", on_duplicate="update"))
    (job,) = await q.reserve(1, block=0)
    assert job.stable_id == update.stable_id != first.stable_id
    after = await q.enqueue("d", dedup=Dedup("x", on_duplicate="requeue"))
    await job.ack()
    (job,) = await q.reserve(1, block=0)
    assert job.stable_id == after.stable_id


async def test_a_job_without_one_has_its_id(q: AsyncQueue, raw: Raw) -> None:
    """A job whose producer gave no stable id uses its id."""
    await q.enqueue("made")
    await q.purge()
    raw.xadd(q.ops.keys["ready"], {"j": b"1\nplain"}, id=b"1900000000000-1000000000")
    (view,) = await q.peek(1)
    (job,) = await q.reserve(1, block=0)
    assert job.stable_id == job.id == view.stable_id == view.id
