"""Duplicates of jobs whose lease has ended, and successors with a delay."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, Dedup, Outcome, StaleReceipt
from tests.support.keyspace import Raw, advance, check_invariant

from .test_dedup import BUSY, take

FOLLOW = [how for how in BUSY if how.startswith("requeue")]


@pytest.fixture
def q(ps: AsyncPenstock) -> AsyncQueue:
    """A queue that does not exist yet."""
    return ps.queue("q")


@pytest.mark.parametrize("how", BUSY)
@pytest.mark.parametrize("many", [False, True])
async def test_an_update_outlives_the_old_delivery(
    q: AsyncQueue, raw: Raw, how: str, many: bool
) -> None:
    """An update tells its producer that the job is ready, so the old holder cannot end it."""
    await q.enqueue("v1", dedup_id="x", lease=1)
    old = await take(q)
    advance(raw, q.ops, 1.1)
    if many:
        answers = await q.enqueue_many(["no", "v2"], dedup=Dedup("x", on_duplicate=how))
        answer = answers[1]
    else:
        answer = await q.enqueue("v2", dedup=Dedup("x", on_duplicate=how))
    updated = how not in ("refuse", "requeue")
    assert (answer.id, answer.state) == (old.id, "ready")
    assert answer.action == ("updated" if updated else "refused")
    assert await q.extend([old]) == [Outcome.STALE]
    for settle in (old.nack, old.release, old.ack):
        with pytest.raises(StaleReceipt):
            await settle()
    again = await take(q)
    assert (again.body, again.deliveries) == ("v2" if updated else "v1", 2)
    assert (again.crashes, again.attempt) == (1, 2)
    assert list(await q.ack([old])) == [Outcome.STALE]
    assert await again.ack()
    check_invariant(raw)


async def test_an_extended_lease_is_a_running_one(q: AsyncQueue, raw: Raw) -> None:
    """Extending the lease before the duplicate comes keeps the delivery: the job is
    active again.
    """
    await q.enqueue("v1", dedup_id="x", lease=1)
    old = await take(q)
    advance(raw, q.ops, 1.1)
    assert (await q.extend([old], 60)).seconds_left == [60]
    answer = await q.enqueue("v2", dedup=Dedup("x", on_duplicate="update"))
    assert (answer.action, answer.state) == ("refused", "active")
    assert await old.ack()


async def test_by_id_an_ended_delivery_is_not_extended(q: AsyncQueue, raw: Raw) -> None:
    """Without a holder a job can't be extended by id, but can be released, buried
    or acknowledged.
    """
    answers = [await q.enqueue(name, dedup_id=name, lease=1) for name in ("a", "b", "c")]
    assert len(await q.reserve(3, block=0)) == 3
    advance(raw, q.ops, 1.1)
    for name in ("a", "b", "c"):
        assert (await q.enqueue("no", dedup_id=name)).state == "ready"
    ids = [answer.id for answer in answers]
    assert list(await q.extend(ids)) == [Outcome.REFUSED] * 3
    assert list(await q.nack(ids[:1], delay=0)) == [Outcome.DONE]
    assert list(await q.bury(ids[1:2])) == [Outcome.DONE]
    assert list(await q.ack(ids[2:])) == [Outcome.DONE]
    job = await take(q)
    assert (job.body, job.deliveries, job.nacks) == ("a", 2, 1)
    assert await job.ack()


async def test_a_job_that_always_crashes_dies_despite_duplicates(q: AsyncQueue, raw: Raw) -> None:
    """Each ended lease counts as one crash, no matter which call finds it first."""
    await q.configure(max_crashes=3)
    await q.enqueue("poison", dedup_id="x", lease=1)
    for serial in range(3):
        assert (await take(q)).crashes == serial
        advance(raw, q.ops, 1.1)
        for _ in range(2):
            await q.enqueue("no", dedup_id="x")
    assert await q.reserve(block=0) == []
    (view,) = await q.peek(state="dead")
    assert (view.body, view.deliveries, view.crashes) == ("poison", 3, 3)


async def test_recover_leaves_an_ended_delivery_to_reserve(q: AsyncQueue, raw: Raw) -> None:
    """`recover` takes over deliveries, but not one that an update has ended."""
    await q.enqueue("v1", dedup_id="x", lease=1)
    await take(q)
    advance(raw, q.ops, 1.1)
    await q.enqueue("v2", dedup=Dedup("x", on_duplicate="update"))
    assert await q.recover(10, idle=0) == []
    assert (await take(q)).body == "v2"


# -- successors with a delay of their own --------------------------------------------------------


@pytest.mark.parametrize("how", FOLLOW)
@pytest.mark.parametrize("end", ["ack", "bury", "delete", "ttl"])
async def test_a_successor_waits_for_its_own_delay(
    q: AsyncQueue, raw: Raw, how: str, end: str
) -> None:
    """A successor is due when the job before it has ended and its own delay has passed."""
    await q.enqueue("old", dedup_id="x", ttl=60, lease=50)
    old = await take(q)
    answer = await q.enqueue("new", dedup=Dedup("x", on_duplicate=how), delay=100)
    assert (answer.action, answer.state) == ("requeued", "scheduled")
    if end == "ttl":
        advance(raw, q.ops, 61)
        await q.sweep()
    elif end == "delete":
        await q.delete([old.id])
    else:
        await (old.ack() if end == "ack" else old.bury())
    (view,) = await q.peek(state="scheduled")
    assert view.id == answer.id
    assert view.next_in == pytest.approx(39 if end == "ttl" else 100, abs=9)
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 101)
    assert (await take(q)).body == "new"
    check_invariant(raw)


async def test_a_successor_to_a_point_in_time(q: AsyncQueue, raw: Raw) -> None:
    """A successor accepts `at` too; a time that has passed when the job before ends
    delays nothing.
    """
    await q.enqueue("old", dedup_id="x")
    old = await take(q)
    at = old.created + 20
    await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), at=at)
    advance(raw, q.ops, 21)
    assert await q.reserve(block=0) == []
    await old.ack()
    assert (await take(q)).body == "new"


async def test_a_requeue_and_debounce_takes_every_change(q: AsyncQueue, raw: Raw) -> None:
    """While a job is active its successor takes the last content and restarts its delay."""
    options: dict[str, Any] = {
        "delay": 10,
        "dedup": Dedup("x", on_duplicate="requeue+debounce"),
    }
    assert (await q.enqueue("v1", **options)).action == "added"
    assert (await q.enqueue("v2", **options)).action == "updated"
    advance(raw, q.ops, 11)
    old = await take(q)
    assert old.body == "v2"
    first = await q.enqueue("v3", **options)
    assert (first.action, first.state) == ("requeued", "scheduled")
    advance(raw, q.ops, 8)
    for body in ("v4", "v5"):
        answer = await q.enqueue(body, **options)
        assert (answer.id, answer.action, answer.state) == (first.id, "updated", "scheduled")
    await old.ack()
    advance(raw, q.ops, 8)
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 3)
    job = await take(q)
    assert (job.id, job.body) == (first.id, "v5")
    assert await job.ack()
    assert await q.dedup_status("x") is None


async def test_a_debounce_without_delay_ends_that_of_a_successor(q: AsyncQueue, raw: Raw) -> None:
    """A debounce without a delay makes the successor due as soon as the job before it has ended."""
    await q.enqueue("old", dedup_id="x")
    old = await take(q)
    await q.enqueue("v1", dedup=Dedup("x", on_duplicate="requeue"), delay=60)
    await q.enqueue("v2", dedup=Dedup("x", on_duplicate="requeue+update"))
    assert await q.reserve(block=0) == []
    await q.enqueue("v3", dedup=Dedup("x", on_duplicate="requeue+debounce"))
    await old.ack()
    assert (await take(q)).body == "v3"


async def test_a_successor_waits_for_window_and_delay(q: AsyncQueue, raw: Raw) -> None:
    """A successor is due after window and delay; a debounce restarts only its delay."""
    debounce = Dedup("x", on_duplicate="requeue+debounce")
    await q.enqueue("old", dedup=Dedup("x", window=20))
    old = await take(q)
    await q.enqueue("v1", delay=5, dedup=debounce)
    await old.ack()
    for delay, left in ((5, 20), (30, 30), (0, 20)):
        await q.enqueue("v2", delay=delay, dedup=debounce)
        (view,) = await q.peek(state="scheduled")
        assert view.next_in == pytest.approx(left, abs=2)
    advance(raw, q.ops, 21)
    assert (await take(q)).body == "v2"


async def test_a_bulk_debounces_one_successor(q: AsyncQueue, raw: Raw) -> None:
    """Several jobs of one call with one id: one successor waits, with the last content."""
    await q.enqueue("old", dedup_id="x")
    old = await take(q)
    for call in range(2):
        answers = await q.enqueue_many(
            ["a", "b", f"c{call}"], dedup=Dedup("x", on_duplicate="requeue+debounce"), delay=10
        )
        assert [one.action for one in answers] == ["updated" if call else "requeued"] + [
            "updated"
        ] * 2
        assert len(set(answers.ids)) == 1
    await old.ack()
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 11)
    (job,) = await q.reserve(9, block=0)
    assert job.body == "c1"


async def test_a_successor_with_a_delay_is_not_promoted(q: AsyncQueue, raw: Raw) -> None:
    """A successor with a delay can't be promoted while the job before it exists; later it can."""
    await q.enqueue("old", dedup_id="x")
    old = await take(q)
    answer = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), delay=60)
    assert list(await q.promote([answer.id])) == [Outcome.REFUSED]
    await old.ack()
    assert list(await q.promote([answer.id])) == [Outcome.DONE]
    assert (await take(q)).body == "new"
