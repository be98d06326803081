"""How deliveries end: for one job or many, by receipt or by bare id."""

from __future__ import annotations

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    JobGone,
    JobNotActive,
    Outcome,
    Settled,
    StaleReceipt,
)
from tests.support.keyspace import Raw, advance, dump, numbers, queue_time_ms

DONE, DEAD, GONE = Outcome.DONE, Outcome.DEAD, Outcome.GONE
STALE, ENDED, REFUSED = Outcome.STALE, Outcome.ENDED, Outcome.REFUSED
WAYS = ["ack", "nack", "release", "bury", "extend"]


async def settle(how: str, job: AsyncJob) -> bool:
    """End or extend a delivery in one of the ways."""
    if how == "extend":
        return await job.extend() > 0
    call = {"ack": job.ack, "nack": job.nack, "release": job.release, "bury": job.bury}[how]
    return await call()


async def settle_many(q: AsyncQueue, how: str, named: list[AsyncJob | str]) -> list[object]:
    """The same through the queue, for jobs or ids."""
    if how == "extend":
        return [one if isinstance(one, Outcome) else Outcome.DONE for one in await q.extend(named)]
    call = {"ack": q.ack, "nack": q.nack, "release": q.release, "bury": q.bury}[how]
    return list(await call(named))


async def one_of_each_state(q: AsyncQueue) -> dict[str, str]:
    """A job in every state, by its id."""
    ids = {}
    for state in ("dead", "active"):
        ids[state] = (await q.enqueue(state)).id
        (job,) = await q.reserve(block=0)
        if state == "dead":
            await job.bury()
    ids["scheduled"] = (await q.enqueue("scheduled", delay=600)).id
    ids["ready"] = (await q.enqueue("ready")).id
    return ids


async def test_ack_finishes_a_job(q: AsyncQueue, raw: Raw) -> None:
    """Nothing of it is left; the counter knows."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert await job.ack() is True
    assert job.settled
    stats = await q.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 1)
    assert numbers(raw, q.ops, "held") == []


async def test_nack_without_delay_follows_the_policy(q: AsyncQueue, raw: Raw) -> None:
    """It waits for the backoff; with `delay=0` it comes at once, with another then."""
    await q.enqueue_many(["policy", "at once", "in a minute"])
    policy, at_once, minute = await q.reserve(3, block=0)
    assert await policy.nack(error="one")
    assert await at_once.nack(delay=0)
    now = queue_time_ms(raw, q.ops) / 1000
    assert await minute.nack(delay=60)
    by_body = {view.body: view for view in await q.peek(state="scheduled")}
    assert set(by_body) == {"policy", "in a minute"}
    assert by_body["policy"].due is not None
    assert by_body["policy"].due <= now + 5.001
    assert by_body["in a minute"].due == pytest.approx(now + 60, abs=2)
    assert [job.body for job in await q.reserve(3, block=0)] == ["at once"]
    assert (await q.stats()).nacked == 3


async def test_release_is_no_failure(q: AsyncQueue) -> None:
    """The job comes again at once, or after a delay, with the same attempt."""
    await q.enqueue_many([1, 2])
    one, two = await q.reserve(2, block=0)
    assert await one.release()
    assert await two.release(delay=60)
    (again,) = await q.reserve(2, block=0)
    assert (again.id, again.attempt, again.deliveries) == (one.id, 1, 2)
    stats = await q.stats()
    assert (stats.scheduled, stats.released, stats.nacked) == (1, 2, 0)


async def test_bury_makes_a_dead_letter(q: AsyncQueue) -> None:
    """With its reason, its body and the time of its death; it is not delivered any more."""
    await q.enqueue({"k": 1}, headers={"a": "b"})
    (job,) = await q.reserve(block=0)
    assert await job.bury("no such customer")
    (view,) = await q.peek(state="dead")
    assert (view.id, view.body, view.headers) == (job.id, {"k": 1}, {"a": "b"})
    assert view.error == "no such customer"
    assert view.died is not None
    assert view.died >= job.delivered
    assert await q.reserve(block=0) == []


async def test_extend_renews_the_lease_from_now(q: AsyncQueue, raw: Raw) -> None:
    """By the job's own lease or another one; the receipt stays."""
    await q.enqueue("x", lease=60)
    (job,) = await q.reserve(block=0)
    advance(raw, q.ops, 50)
    assert await job.extend() == 60
    advance(raw, q.ops, 50)
    assert await q.reserve(block=0) == []
    assert await job.extend(300) == 300
    advance(raw, q.ops, 290)
    assert await q.reserve(block=0) == []
    assert await job.extend(0.5) == 0.5
    assert await job.ack() is True


async def test_extend_ends_with_the_ttl(q: AsyncQueue, raw: Raw) -> None:
    """A job is not held beyond the end of its life."""
    await q.enqueue("x", lease=10, ttl=60)
    (job,) = await q.reserve(block=0)
    assert await job.extend(600) == pytest.approx(60, abs=2)
    advance(raw, q.ops, 61)
    with pytest.raises(JobGone):
        await job.extend()


async def test_extend_uses_the_lease_of_the_queue(q: AsyncQueue) -> None:
    """For a job without one of its own."""
    await q.configure(lease=90)
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert job.lease == 90
    assert await job.extend() == 90


@pytest.mark.parametrize("how", ["ack", "nack", "release", "bury", "extend"])
async def test_many_in_one_call(q: AsyncQueue, how: str) -> None:
    """Also more than one script takes; an outcome for each, in order."""
    await q.enqueue_many(range(1100))
    jobs = await q.reserve(1100, block=0)
    assert await settle_many(q, how, [*jobs]) == [DONE] * 1100
    stats = await q.stats()
    counts = (stats.acked, stats.nacked, stats.released, stats.died, stats.active)
    assert sum(counts) == 1100
    assert counts[["ack", "nack", "release", "bury", "extend"].index(how)] == 1100


@pytest.mark.parametrize("how", WAYS)
async def test_many_of_different_fates(q: AsyncQueue, raw: Raw, how: str) -> None:
    """Each job has its own outcome; one that can't be settled stops none of the others."""
    await q.enqueue_many(["fine", "gone", "stale", "dead", "fine too"], lease=10)
    jobs = await q.reserve(5, block=0)
    await q.delete([jobs[1].id])
    await q.bury([jobs[3].id])
    await q.extend([jobs[0], jobs[4]], 100)
    advance(raw, q.ops, 11)
    (other,) = await q.reserve(block=0)
    outcomes = await settle_many(q, how, [*jobs])
    assert outcomes == [DONE, GONE, STALE, STALE, DONE]
    assert await other.extend() == 10
    assert (await q.stats()).dead == (3 if how == "bury" else 1)


async def test_outcomes_as_a_sequence(q: AsyncQueue) -> None:
    """True when all is done; the ids of those that were, or of any outcome."""
    results = await q.enqueue_many([1, 2, 3])
    jobs = await q.reserve(3, block=0)
    await q.delete([jobs[1].id])
    settled = await q.ack(jobs)
    assert not settled
    assert (len(settled), settled.done) == (3, 2)
    assert settled.ids() == [results[0].id, results[2].id]
    assert settled.ids(GONE) == [results[1].id]
    assert settled[0:2] == [DONE, GONE]
    assert (settled[-1], str(settled[1])) == (DONE, "gone")
    assert isinstance(settled, Settled)
    assert await q.ack([])
    assert list(await q.ack([])) == []


@pytest.mark.parametrize("how", WAYS)
async def test_a_stale_receipt_changes_nothing(q: AsyncQueue, raw: Raw, how: str) -> None:
    """After a lease has ended and another consumer holds the job, and it is said so."""
    await q.enqueue("x", lease=10)
    (late,) = await q.reserve(block=0)
    advance(raw, q.ops, 11)
    (holder,) = await q.reserve(block=0)
    assert holder.receipt != late.receipt
    before = dump(raw)
    with pytest.raises(StaleReceipt, match=late.id) as caught:
        await settle(how, late)
    assert (caught.value.job_id, caught.value.operation) == (late.id, how)
    assert (caught.value.receipt, caught.value.current) == (late.receipt, holder.receipt)
    assert late.receipt in str(caught.value)
    assert holder.receipt in str(caught.value)
    assert dump(raw) == before
    assert await settle_many(q, how, [late]) == [STALE]
    assert dump(raw) == before
    assert await holder.ack() is True


@pytest.mark.parametrize("how", WAYS)
async def test_release_and_reserve_again_voids_the_receipt(
    q: AsyncQueue, raw: Raw, how: str
) -> None:
    """Also when the same consumer gets the job again."""
    await q.enqueue("x")
    (first,) = await q.reserve(block=0)
    await first.release()
    (second,) = await q.reserve(block=0)
    before = dump(raw)
    with pytest.raises(StaleReceipt):
        await settle(how, first)
    assert dump(raw) == before
    assert await second.ack() is True


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("count", [1, 8])
async def test_a_receipt_that_was_guessed(q: AsyncQueue, raw: Raw, how: str, count: int) -> None:
    """The number of the delivery is not enough: the random part has to be the one given out."""
    await q.enqueue_many(range(count))
    jobs = await q.reserve(count, block=0)
    batch = jobs[0].batch
    given = (batch.tag, batch.receipt, batch.hinted)
    batch.tag ^= 1
    batch.receipt = f"1-{batch.tag:03x}"
    batch.hinted = batch.receipt + batch.hinted[5:]
    before = dump(raw)
    assert await settle_many(q, how, [*jobs]) == [STALE] * count
    assert dump(raw) == before
    batch.tag, batch.receipt, batch.hinted = given
    assert await settle_many(q, how, [*jobs]) == [DONE] * count


@pytest.mark.parametrize("how", ["nack", "release", "bury"])
@pytest.mark.parametrize("then", WAYS)
async def test_a_call_by_id_ends_the_delivery(q: AsyncQueue, raw: Raw, how: str, then: str) -> None:
    """Its holder's receipt is void from then on, though the job has no new holder."""
    await q.enqueue("x")
    (holder,) = await q.reserve(block=0)
    assert await settle_many(q, how, [holder.id]) == [DONE]
    before = dump(raw)
    with pytest.raises(StaleReceipt):
        await settle(then, holder)
    assert await settle_many(q, then, [holder]) == [STALE]
    assert dump(raw) == before


async def test_extend_by_id_keeps_the_receipt(q: AsyncQueue) -> None:
    """It does not end the delivery."""
    await q.enqueue("x")
    (holder,) = await q.reserve(block=0)
    assert await q.extend([holder.id], 90) == [90]
    assert await q.extend([holder.id]) == [30]
    assert await holder.ack() is True


@pytest.mark.parametrize("how", ["nack", "release", "bury"])
async def test_settling_twice(q: AsyncQueue, raw: Raw, how: str) -> None:
    """The second time changes nothing, and the same receipt is recognised."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert await settle(how, job) is True
    before = dump(raw)
    assert await settle_many(q, how, [job]) == [ENDED]
    with pytest.raises(StaleReceipt):
        await settle(how, job)
    assert dump(raw) == before


async def test_acknowledging_twice(q: AsyncQueue, raw: Raw) -> None:
    """The second time there is nothing left to do: False, and no error."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert await job.ack() is True
    before = dump(raw)
    assert await job.ack() is False
    assert list(await q.ack([job, job.id])) == [GONE, GONE]
    assert dump(raw) == before


@pytest.mark.parametrize(
    "how, expected",
    [
        ("ack", {"ready": DONE, "scheduled": DONE, "active": DONE, "dead": REFUSED}),
        ("nack", {"ready": REFUSED, "scheduled": REFUSED, "active": DONE, "dead": REFUSED}),
        ("release", {"ready": REFUSED, "scheduled": REFUSED, "active": DONE, "dead": REFUSED}),
        ("bury", {"ready": DONE, "scheduled": DONE, "active": DONE, "dead": REFUSED}),
        ("extend", {"ready": REFUSED, "scheduled": REFUSED, "active": DONE, "dead": REFUSED}),
    ],
)
async def test_by_id_in_every_state(
    q: AsyncQueue, raw: Raw, how: str, expected: dict[str, Outcome]
) -> None:
    """What a call without a receipt may do in each state; refused, it changes nothing."""
    ids = await one_of_each_state(q)
    for state, outcome in expected.items():
        before = dump(raw)
        assert await settle_many(q, how, [ids[state]]) == [outcome], state
        assert (dump(raw) == before) == (outcome is REFUSED), state


async def test_a_dead_letter_is_not_finished_by_its_last_holder(q: AsyncQueue) -> None:
    """Once the job is buried by id, its holder's ack comes too late."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    await q.bury([job.id], "an operator's decision")
    with pytest.raises(StaleReceipt):
        await job.ack()
    (view,) = await q.peek(state="dead")
    assert view.error == "an operator's decision"


async def test_settle_finishes_and_takes(q: AsyncQueue) -> None:
    """The jobs that are done leave, the next ones come, in one call."""
    await q.enqueue_many(range(6))
    jobs = await q.reserve(2, block=0)
    outcomes, jobs = await q.settle(jobs, 3)
    assert (list(outcomes), [job.body for job in jobs]) == ([DONE] * 2, [2, 3, 4])
    outcomes, rest = await q.settle([jobs[0].id, jobs[2]], 3)
    assert (list(outcomes), [job.body for job in rest]) == ([DONE] * 2, [5])
    stats = await q.stats()
    assert (stats.acked, stats.active, stats.deliveries) == (4, 2, 6)


async def test_settle_names_what_it_could_not_finish(q: AsyncQueue, raw: Raw) -> None:
    """A stale or gone job does not keep the next ones from coming."""
    await q.enqueue_many(["stale", "gone", "fine"], lease=10)
    jobs = await q.reserve(3, block=0)
    await q.ack([jobs[1].id])
    await q.extend([jobs[2]], 100)
    advance(raw, q.ops, 11)
    (other,) = await q.reserve(block=0)
    await q.enqueue("next")
    outcomes, taken = await q.settle(jobs, 5)
    assert list(outcomes) == [STALE, GONE, DONE]
    assert [job.body for job in taken] == ["next"]
    assert await other.ack()


async def test_settle_does_not_take_what_it_finishes(q: AsyncQueue, raw: Raw) -> None:
    """A job whose lease has ended is finished by its late holder, not delivered again."""
    await q.enqueue_many([1, 2], lease=10)
    jobs = await q.reserve(2, block=0)
    advance(raw, q.ops, 11)
    outcomes, taken = await q.settle(jobs[:1], 5)
    assert outcomes
    assert [(job.body, job.crashes) for job in taken] == [(2, 1)]


async def test_settle_may_wait_for_the_next_job(q: AsyncQueue) -> None:
    """What is done is finished before; then it waits like reserve."""
    await q.enqueue("one")
    (job,) = await q.reserve(block=0)
    await q.enqueue("two", delay=0.2)
    outcomes, taken = await q.settle([job], 1, block=10)
    assert outcomes
    assert [one.body for one in taken] == ["two"]
    outcomes, taken = await q.settle(taken, 1, block=0.05)
    assert (outcomes.done, taken) == (1, [])


async def test_at_most_once_is_delivered_once(q: AsyncQueue, raw: Raw) -> None:
    """Lease 0: seen until acknowledged or until its ttl ends, but never delivered again."""
    await q.enqueue("x", lease=0, ttl=60)
    (job,) = await q.reserve(block=0)
    assert (job.lease, job.at_most_once) == (0, True)
    advance(raw, q.ops, 50)
    assert await q.reserve(block=0) == []
    (view,) = await q.peek(state="active")
    assert (view.id, view.lease, view.lease_until) == (job.id, 0, None)
    assert (await q.stats()).active == 1
    advance(raw, q.ops, 11)
    stats = await q.stats()
    assert (stats.active, stats.ready, stats.swept) == (0, 0, 1)
    assert await q.reserve(block=0) == []
    assert await q.sweep() == 0
    assert await q.show(job) is None


async def test_at_most_once_lives_for_a_day(q: AsyncQueue) -> None:
    """Unless it has a ttl of its own."""
    await q.enqueue("x", lease=0)
    (job,) = await q.reserve(block=0)
    view = await q.show(job)
    assert view is not None
    assert job.ttl == 86_400
    assert view.expires == pytest.approx(job.created + 86_400)


@pytest.mark.parametrize("by_id", [False, True])
async def test_at_most_once_can_only_be_acknowledged(q: AsyncQueue, raw: Raw, by_id: bool) -> None:
    """Whatever would bring it back is refused, and changes nothing."""
    await q.enqueue("x", lease=0)
    (job,) = await q.reserve(block=0)
    before = dump(raw)
    for how in ("nack", "release", "bury", "extend"):
        assert await settle_many(q, how, [job.id if by_id else job]) == [REFUSED]
        if not by_id:
            with pytest.raises(JobNotActive, match=how):
                await settle(how, job)
    assert dump(raw) == before
    assert await q.ack([job.id if by_id else job])
    assert raw.exists(q.ops.keys["once"], q.ops.keys["held"]) == 0


async def test_at_most_once_in_a_block(q: AsyncQueue, raw: Raw) -> None:
    """Success finishes it; a failure leaves it as it is, logged, and it is not tried again."""
    await q.enqueue_many([1, 2], lease=0)
    one, two = await q.reserve(2, block=0)
    async with one:
        pass
    async with two:
        raise ValueError("once is all there is")
    assert [view.id for view in await q.peek(state="active")] == [two.id]
    assert await q.reserve(block=0) == []


async def test_many_at_most_once_beside_others(q: AsyncQueue) -> None:
    """Acknowledged together with leased jobs, in any order."""
    await q.enqueue_many([1, 2], lease=0)
    await q.enqueue_many([3, 4])
    jobs = await q.reserve(4, block=0)
    assert await q.ack([jobs[2], jobs[0], jobs[3], jobs[1]])
    assert (await q.stats()).acked == 4


async def test_deliveries_of_several_reserves_in_one_call(q: AsyncQueue) -> None:
    """Jobs with different receipts are settled together."""
    await q.enqueue_many(range(6))
    jobs = [job for _ in range(3) for job in await q.reserve(2, block=0)]
    assert len({job.receipt for job in jobs}) >= 2
    assert await q.nack(jobs[:3], delay=0)
    assert await q.ack([*jobs[3:5], jobs[5].id])
    stats = await q.stats()
    assert (stats.ready, stats.acked, stats.nacked) == (3, 3, 3)


@pytest.mark.parametrize(
    "how, second", [("ack", DONE), ("nack", ENDED), ("release", ENDED), ("bury", ENDED)]
)
async def test_a_job_named_twice(q: AsyncQueue, how: str, second: Outcome) -> None:
    """It is settled once, and counted once."""
    await q.enqueue_many([1, 2])
    one, two = await q.reserve(2, block=0)
    assert await settle_many(q, how, [one, two, one, one.id]) == [DONE, DONE, second, second]
    stats = await q.stats()
    assert stats.acked + stats.nacked + stats.released + stats.died == 2
    assert (stats.ready + stats.scheduled + stats.dead, stats.active) == (2 * (how != "ack"), 0)


async def test_jobs_of_another_queue_are_refused(ps: AsyncPenstock, raw: Raw) -> None:
    """A delivery names its queue; another one does not take it."""
    await ps.queue("a").enqueue(1)
    await ps.queue("b").enqueue(1)
    (job,) = await ps.queue("a").reserve(block=0)
    before = dump(raw)
    for how in WAYS:
        with pytest.raises(ValueError, match="belongs to another queue than 'b'"):
            await settle_many(ps.queue("b"), how, [job])
    assert dump(raw) == before
