"""Settling deliveries: one job or many, by receipt or by id."""

from __future__ import annotations

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    BadArgument,
    BadJobId,
    IncompleteSettle,
    JobGone,
    JobNotActive,
    Outcome,
    QueueDamaged,
    Settled,
    StaleReceipt,
)
from penstock.core.jobs.job import reservation_of
from tests.support.keyspace import Raw, advance, dump, numbers, queue_time_ms

DONE, DEAD, GONE = Outcome.DONE, Outcome.DEAD, Outcome.GONE
STALE, ENDED, REFUSED = Outcome.STALE, Outcome.ENDED, Outcome.REFUSED
WAYS = ["ack", "nack", "release", "bury", "extend"]


async def settle(how: str, job: AsyncJob) -> bool:
    """End or extend a delivery in the given way."""
    if how == "extend":
        return await job.extend() > 0
    call = {"ack": job.ack, "nack": job.nack, "release": job.release, "bury": job.bury}[how]
    return await call()


async def settle_many(q: AsyncQueue, how: str, named: list[AsyncJob | str]) -> list[object]:
    """Settle jobs or ids through the queue in the given way."""
    if how == "extend":
        return [one if isinstance(one, Outcome) else Outcome.DONE for one in await q.extend(named)]
    call = {"ack": q.ack, "nack": q.nack, "release": q.release, "bury": q.bury}[how]
    return list(await call(named))


async def one_of_each_state(q: AsyncQueue) -> dict[str, str]:
    """Return the ids of one job in each state."""
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
    """An acknowledged job leaves no data and is counted."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert await job.ack() is True
    assert job.settled
    stats = await q.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 1)
    assert numbers(raw, q.ops, "held") == []


async def test_nack_without_delay_follows_the_policy(q: AsyncQueue, raw: Raw) -> None:
    """A nack uses the backoff of the policy; with `delay=0` the job is ready at once."""
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
    """A released job is ready at once or after a delay, with an unchanged attempt."""
    await q.enqueue_many([1, 2])
    one, two = await q.reserve(2, block=0)
    assert await one.release()
    assert await two.release(delay=60)
    (again,) = await q.reserve(2, block=0)
    assert (again.id, again.attempt, again.deliveries) == (one.id, 1, 2)
    stats = await q.stats()
    assert (stats.scheduled, stats.released, stats.nacked) == (1, 2, 0)


async def test_bury_makes_a_dead_letter(q: AsyncQueue) -> None:
    """A buried job keeps its body, has a reason and a time of death, and is not delivered."""
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
    """`extend` renews by the job's lease or a given one; the receipt stays valid."""
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
    """A lease cannot be extended past the ttl."""
    await q.enqueue("x", lease=10, ttl=60)
    (job,) = await q.reserve(block=0)
    assert await job.extend(600) == pytest.approx(60, abs=2)
    advance(raw, q.ops, 61)
    with pytest.raises(JobGone):
        await job.extend()


async def test_extend_uses_the_lease_of_the_queue(q: AsyncQueue) -> None:
    """`extend` uses the queue's lease for a job without its own."""
    await q.configure(lease=90)
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert job.lease == 90
    assert await job.extend() == 90


@pytest.mark.parametrize("how", ["ack", "nack", "release", "bury", "extend"])
async def test_many_in_one_call(q: AsyncQueue, how: str) -> None:
    """Many jobs, even more than one script takes, get an outcome each, in order."""
    await q.enqueue_many(range(1100))
    jobs = await q.reserve(1100, block=0)
    assert await settle_many(q, how, [*jobs]) == [DONE] * 1100
    stats = await q.stats()
    counts = (stats.acked, stats.nacked, stats.released, stats.died, stats.active)
    assert sum(counts) == 1100
    assert counts[["ack", "nack", "release", "bury", "extend"].index(how)] == 1100


@pytest.mark.parametrize("how", WAYS)
async def test_many_jobs_with_different_outcomes(q: AsyncQueue, raw: Raw, how: str) -> None:
    """Each job has its own outcome; one failure does not affect the others."""
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
    """Outcomes are true if all are done, and list the ids of each outcome."""
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
    """When another consumer holds the job, a stale receipt is reported and changes nothing."""
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
    """After a release the old receipt is stale, even if the same consumer gets the job again."""
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
    """A receipt needs the right random part; the delivery's number is not enough."""
    await q.enqueue_many(range(count))
    jobs = await q.reserve(count, block=0)
    batch = reservation_of(jobs[0])
    given = (batch.tag, batch.receipt, batch.receipt_with_end)
    batch.tag ^= 1
    batch.receipt = f"1-{batch.tag:03x}"
    batch.receipt_with_end = batch.receipt + batch.receipt_with_end[5:]
    before = dump(raw)
    assert await settle_many(q, how, [*jobs]) == [STALE] * count
    assert dump(raw) == before
    batch.tag, batch.receipt, batch.receipt_with_end = given
    assert await settle_many(q, how, [*jobs]) == [DONE] * count


@pytest.mark.parametrize("how", ["nack", "release", "bury"])
@pytest.mark.parametrize("then", WAYS)
async def test_a_call_by_id_ends_the_delivery(q: AsyncQueue, raw: Raw, how: str, then: str) -> None:
    """A call by id ends the delivery, so the holder's receipt is stale."""
    await q.enqueue("x")
    (holder,) = await q.reserve(block=0)
    assert await settle_many(q, how, [holder.id]) == [DONE]
    before = dump(raw)
    with pytest.raises(StaleReceipt):
        await settle(then, holder)
    assert await settle_many(q, then, [holder]) == [STALE]
    assert dump(raw) == before


async def test_extend_by_id_keeps_the_receipt(q: AsyncQueue) -> None:
    """`extend` by id does not end the delivery, so the receipt stays valid."""
    await q.enqueue("x")
    (holder,) = await q.reserve(block=0)
    assert (await q.extend([holder.id], 90)).seconds_left == [90]
    assert (await q.extend([holder.id])).seconds_left == [30]
    assert await holder.ack() is True


@pytest.mark.parametrize("how", ["nack", "release", "bury"])
async def test_settling_twice(q: AsyncQueue, raw: Raw, how: str) -> None:
    """A second call with the same receipt changes nothing and is recognised."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert await settle(how, job) is True
    before = dump(raw)
    assert await settle_many(q, how, [job]) == [ENDED]
    with pytest.raises(StaleReceipt):
        await settle(how, job)
    assert dump(raw) == before


async def test_acknowledging_twice(q: AsyncQueue, raw: Raw) -> None:
    """A second ack of the same job returns False without an error."""
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
    """A call by id has the expected outcome in each state; a refusal changes nothing."""
    ids = await one_of_each_state(q)
    for state, outcome in expected.items():
        before = dump(raw)
        assert await settle_many(q, how, [ids[state]]) == [outcome], state
        assert (dump(raw) == before) == (outcome is REFUSED), state


async def test_a_dead_letter_is_not_finished_by_its_last_holder(q: AsyncQueue) -> None:
    """After a job was buried by id, its holder's ack is refused."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    await q.bury([job.id], "an operator's decision")
    with pytest.raises(StaleReceipt):
        await job.ack()
    (view,) = await q.peek(state="dead")
    assert view.error == "an operator's decision"


async def test_settle_finishes_and_reserves(q: AsyncQueue) -> None:
    """One call finishes jobs and reserves the next ones."""
    await q.enqueue_many(range(6))
    jobs = await q.reserve(2, block=0)
    outcomes, jobs = await q.ack_and_reserve(jobs, 3)
    assert (list(outcomes), [job.body for job in jobs]) == ([DONE] * 2, [2, 3, 4])
    outcomes, rest = await q.ack_and_reserve([jobs[0].id, jobs[2]], 3)
    assert (list(outcomes), [job.body for job in rest]) == ([DONE] * 2, [5])
    stats = await q.stats()
    assert (stats.acked, stats.active, stats.deliveries) == (4, 2, 6)


async def test_settle_names_jobs_that_it_could_not_finish(q: AsyncQueue, raw: Raw) -> None:
    """A stale or missing job does not prevent the reservation of others."""
    await q.enqueue_many(["stale", "gone", "fine"], lease=10)
    jobs = await q.reserve(3, block=0)
    await q.ack([jobs[1].id])
    await q.extend([jobs[2]], 100)
    advance(raw, q.ops, 11)
    (other,) = await q.reserve(block=0)
    await q.enqueue("next")
    outcomes, taken = await q.ack_and_reserve(jobs, 5)
    assert list(outcomes) == [STALE, GONE, DONE]
    assert [job.body for job in taken] == ["next"]
    assert await other.ack()


async def test_settle_does_not_reserve_a_job_that_it_finishes(q: AsyncQueue, raw: Raw) -> None:
    """A job whose lease has ended is finished by its late holder, not delivered again."""
    await q.enqueue_many([1, 2], lease=10)
    jobs = await q.reserve(2, block=0)
    advance(raw, q.ops, 11)
    outcomes, taken = await q.ack_and_reserve(jobs[:1], 5)
    assert outcomes
    assert [(job.body, job.crashes) for job in taken] == [(2, 1)]


async def test_settle_may_wait_for_the_next_job(q: AsyncQueue) -> None:
    """Jobs are finished first; then the call waits like reserve."""
    await q.enqueue("one")
    (job,) = await q.reserve(block=0)
    await q.enqueue("two", delay=0.2)
    outcomes, taken = await q.ack_and_reserve([job], 1, block=10)
    assert outcomes
    assert [one.body for one in taken] == ["two"]
    outcomes, taken = await q.ack_and_reserve(taken, 1, block=0.05)
    assert (outcomes.done, taken) == (1, [])


async def test_at_most_once_is_delivered_once(q: AsyncQueue, raw: Raw) -> None:
    """With lease 0 a job exists until its ack or the end of its ttl, but is delivered once."""
    await q.enqueue("x", lease=0, ttl=60)
    (job,) = await q.reserve(block=0)
    assert (job.lease, job.at_most_once) == (0, True)
    advance(raw, q.ops, 50)
    assert await q.reserve(block=0) == []
    (view,) = await q.peek(state="active")
    assert (view.id, view.lease, view.lease_until) == (job.id, 0, None)
    assert (await q.stats()).active == 1
    advance(raw, q.ops, 11)
    assert await q.reserve(block=0) == []
    stats = await q.stats()
    assert (stats.active, stats.ready, stats.expired) == (0, 0, 1)
    assert await q.sweep() == 0
    assert await q.show(job) is None


async def test_at_most_once_lives_for_a_day(q: AsyncQueue) -> None:
    """A job with lease 0 has a ttl of a day by default."""
    await q.enqueue("x", lease=0)
    (job,) = await q.reserve(block=0)
    view = await q.show(job)
    assert view is not None
    assert job.ttl == 86_400
    assert view.expires == pytest.approx(job.created + 86_400)


@pytest.mark.parametrize("by_id", [False, True])
async def test_at_most_once_can_only_be_acknowledged(q: AsyncQueue, raw: Raw, by_id: bool) -> None:
    """A job with lease 0 can only be acknowledged; other calls are refused without a change."""
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
    """With lease 0 success finishes the job; a failure is logged and changes nothing."""
    await q.enqueue_many([1, 2], lease=0)
    one, two = await q.reserve(2, block=0)
    async with one:
        pass
    async with two:
        raise ValueError("once is all there is")
    assert [view.id for view in await q.peek(state="active")] == [two.id]
    assert await q.reserve(block=0) == []


async def test_jobs_at_most_once_and_others_in_one_call(q: AsyncQueue) -> None:
    """Jobs with lease 0 and leased jobs are acknowledged in one call, in any order."""
    await q.enqueue_many([1, 2], lease=0)
    await q.enqueue_many([3, 4])
    jobs = await q.reserve(4, block=0)
    assert await q.ack([jobs[2], jobs[0], jobs[3], jobs[1]])
    assert (await q.stats()).acked == 4


async def test_deliveries_of_several_reserves_in_one_call(q: AsyncQueue) -> None:
    """Jobs with different receipts are settled in one call."""
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
    """A job named twice is settled and counted once."""
    await q.enqueue_many([1, 2])
    one, two = await q.reserve(2, block=0)
    assert await settle_many(q, how, [one, two, one, one.id]) == [DONE, DONE, second, second]
    stats = await q.stats()
    assert stats.acked + stats.nacked + stats.released + stats.died == 2
    assert (stats.ready + stats.scheduled + stats.dead, stats.active) == (2 * (how != "ack"), 0)


async def test_jobs_of_another_queue_are_refused(ps: AsyncPenstock, raw: Raw) -> None:
    """A delivery of another queue is refused."""
    await ps.queue("a").enqueue(1)
    await ps.queue("b").enqueue(1)
    (job,) = await ps.queue("a").reserve(block=0)
    before = dump(raw)
    for how in WAYS:
        with pytest.raises(ValueError, match="belongs to another queue than 'b'"):
            await settle_many(ps.queue("b"), how, [job])
    assert dump(raw) == before


async def test_ids_lead_to_their_queues(ps: AsyncPenstock) -> None:
    """Jobs of several queues, with partitions or without, are acknowledged by one call."""
    a, b = ps.queue("a"), ps.queue("b", partitions=3)
    ids = [(await queue.enqueue(1)).id for queue in (a, b, a, b, b)]
    [job] = await a.reserve(block=0)
    old = await ps.queue("old").enqueue(1)
    await ps.queue("old").clear()
    assert await ps.ack([]) == []
    assert await ps.ack([job, *ids[1:], old.id]) == [DONE, DONE, DONE, DONE, DONE, GONE]
    assert (await a.stats()).acked + (await b.stats()).acked == 5


async def test_a_bad_id_among_those_of_several_queues(ps: AsyncPenstock, raw: Raw) -> None:
    """Nothing is done if an id is malformed. A queue that fails later is reported as such."""
    job, other = await ps.queue("a").enqueue(1), await ps.queue("b").enqueue(1)
    before = dump(raw)
    with pytest.raises(BadJobId):
        await ps.ack([job.id, "D-no-id"])
    with pytest.raises(BadArgument, match="jobs"):
        await ps.ack(job.id)
    assert dump(raw) == before
    raw.delete("penstock:{b}:ready")
    raw.set("penstock:{b}:ready", "x")
    with pytest.raises(QueueDamaged):
        await ps.ack([other.id])
    third = await ps.queue("c").enqueue(1)
    with pytest.raises(IncompleteSettle, match=r"^2 jobs were done") as caught:
        await ps.ack([job.id, other.id, third.id])
    assert caught.value.outcomes == [DONE, Outcome.UNKNOWN, DONE]
    assert caught.value.outcomes.ids() == [job.id, third.id]
    assert isinstance(caught.value.__cause__, QueueDamaged)
    raw.delete("penstock:{b}:ready")
