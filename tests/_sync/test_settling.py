# From tests/_async/test_settling.py by tools/unasync.py; do not edit.
"""Settling deliveries: one job or many, by receipt or by id."""

from __future__ import annotations

import pytest

from penstock import (
    BadArgument,
    BadJobId,
    IncompleteSettle,
    Job,
    JobGone,
    JobNotActive,
    Outcome,
    Penstock,
    Queue,
    QueueDamaged,
    Settled,
    StaleReceipt,
)
from penstock.core.jobs.job import reservation_of
from tests.support.keyspace import Raw, advance, dump, numbers, queue_time_ms

DONE, DEAD, GONE = Outcome.DONE, Outcome.DEAD, Outcome.GONE
STALE, ENDED, REFUSED = Outcome.STALE, Outcome.ENDED, Outcome.REFUSED
WAYS = ["ack", "nack", "release", "bury", "extend"]


def settle(how: str, job: Job) -> bool:
    """End or extend a delivery in the given way."""
    if how == "extend":
        return job.extend() > 0
    call = {"ack": job.ack, "nack": job.nack, "release": job.release, "bury": job.bury}[how]
    return call()


def settle_many(q: Queue, how: str, named: list[Job | str]) -> list[object]:
    """Settle jobs or ids through the queue in the given way."""
    if how == "extend":
        return [one if isinstance(one, Outcome) else Outcome.DONE for one in q.extend(named)]
    call = {"ack": q.ack, "nack": q.nack, "release": q.release, "bury": q.bury}[how]
    return list(call(named))


def one_of_each_state(q: Queue) -> dict[str, str]:
    """Return the ids of one job in each state."""
    ids = {}
    for state in ("dead", "active"):
        ids[state] = q.enqueue(state).id
        (job,) = q.reserve(block=0)
        if state == "dead":
            job.bury()
    ids["scheduled"] = q.enqueue("scheduled", delay=600).id
    ids["ready"] = q.enqueue("ready").id
    return ids


def test_ack_finishes_a_job(q: Queue, raw: Raw) -> None:
    """An acknowledged job leaves no data and is counted."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    assert job.ack() is True
    assert job.settled
    stats = q.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 1)
    assert numbers(raw, q.ops, "held") == []


def test_nack_without_delay_follows_the_policy(q: Queue, raw: Raw) -> None:
    """A nack uses the backoff of the policy; with `delay=0` the job is ready at once."""
    q.enqueue_many(["policy", "at once", "in a minute"])
    policy, at_once, minute = q.reserve(3, block=0)
    assert policy.nack(error="one")
    assert at_once.nack(delay=0)
    now = queue_time_ms(raw, q.ops) / 1000
    assert minute.nack(delay=60)
    by_body = {view.body: view for view in q.peek(state="scheduled")}
    assert set(by_body) == {"policy", "in a minute"}
    assert by_body["policy"].due is not None
    assert by_body["policy"].due <= now + 5.001
    assert by_body["in a minute"].due == pytest.approx(now + 60, abs=2)
    assert [job.body for job in q.reserve(3, block=0)] == ["at once"]
    assert q.stats().nacked == 3


def test_release_is_no_failure(q: Queue) -> None:
    """A released job is ready at once or after a delay, with an unchanged attempt."""
    q.enqueue_many([1, 2])
    one, two = q.reserve(2, block=0)
    assert one.release()
    assert two.release(delay=60)
    (again,) = q.reserve(2, block=0)
    assert (again.id, again.attempt, again.deliveries) == (one.id, 1, 2)
    stats = q.stats()
    assert (stats.scheduled, stats.released, stats.nacked) == (1, 2, 0)


def test_bury_makes_a_dead_letter(q: Queue) -> None:
    """A buried job keeps its body, has a reason and a time of death, and is not delivered."""
    q.enqueue({"k": 1}, headers={"a": "b"})
    (job,) = q.reserve(block=0)
    assert job.bury("no such customer")
    (view,) = q.peek(state="dead")
    assert (view.id, view.body, view.headers) == (job.id, {"k": 1}, {"a": "b"})
    assert view.error == "no such customer"
    assert view.died is not None
    assert view.died >= job.delivered
    assert q.reserve(block=0) == []


def test_extend_renews_the_lease_from_now(q: Queue, raw: Raw) -> None:
    """`extend` renews by the job's lease or a given one; the receipt stays valid."""
    q.enqueue("x", lease=60)
    (job,) = q.reserve(block=0)
    advance(raw, q.ops, 50)
    assert job.extend() == 60
    advance(raw, q.ops, 50)
    assert q.reserve(block=0) == []
    assert job.extend(300) == 300
    advance(raw, q.ops, 290)
    assert q.reserve(block=0) == []
    assert job.extend(0.5) == 0.5
    assert job.ack() is True


def test_extend_ends_with_the_ttl(q: Queue, raw: Raw) -> None:
    """A lease cannot be extended past the ttl."""
    q.enqueue("x", lease=10, ttl=60)
    (job,) = q.reserve(block=0)
    assert job.extend(600) == pytest.approx(60, abs=2)
    advance(raw, q.ops, 61)
    with pytest.raises(JobGone):
        job.extend()


def test_extend_uses_the_lease_of_the_queue(q: Queue) -> None:
    """`extend` uses the queue's lease for a job without its own."""
    q.configure(lease=90)
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    assert job.lease == 90
    assert job.extend() == 90


@pytest.mark.parametrize("how", ["ack", "nack", "release", "bury", "extend"])
def test_many_in_one_call(q: Queue, how: str) -> None:
    """Many jobs, even more than one script takes, get an outcome each, in order."""
    q.enqueue_many(range(1100))
    jobs = q.reserve(1100, block=0)
    assert settle_many(q, how, [*jobs]) == [DONE] * 1100
    stats = q.stats()
    counts = (stats.acked, stats.nacked, stats.released, stats.died, stats.active)
    assert sum(counts) == 1100
    assert counts[["ack", "nack", "release", "bury", "extend"].index(how)] == 1100


@pytest.mark.parametrize("how", WAYS)
def test_many_jobs_with_different_outcomes(q: Queue, raw: Raw, how: str) -> None:
    """Each job has its own outcome; one failure does not affect the others."""
    q.enqueue_many(["fine", "gone", "stale", "dead", "fine too"], lease=10)
    jobs = q.reserve(5, block=0)
    q.delete([jobs[1].id])
    q.bury([jobs[3].id])
    q.extend([jobs[0], jobs[4]], 100)
    advance(raw, q.ops, 11)
    (other,) = q.reserve(block=0)
    outcomes = settle_many(q, how, [*jobs])
    assert outcomes == [DONE, GONE, STALE, STALE, DONE]
    assert other.extend() == 10
    assert q.stats().dead == (3 if how == "bury" else 1)


def test_outcomes_as_a_sequence(q: Queue) -> None:
    """Outcomes are true if all are done, and list the ids of each outcome."""
    results = q.enqueue_many([1, 2, 3])
    jobs = q.reserve(3, block=0)
    q.delete([jobs[1].id])
    settled = q.ack(jobs)
    assert not settled
    assert (len(settled), settled.done) == (3, 2)
    assert settled.ids() == [results[0].id, results[2].id]
    assert settled.ids(GONE) == [results[1].id]
    assert settled[0:2] == [DONE, GONE]
    assert (settled[-1], str(settled[1])) == (DONE, "gone")
    assert isinstance(settled, Settled)
    assert q.ack([])
    assert list(q.ack([])) == []


@pytest.mark.parametrize("how", WAYS)
def test_a_stale_receipt_changes_nothing(q: Queue, raw: Raw, how: str) -> None:
    """When another consumer holds the job, a stale receipt is reported and changes nothing."""
    q.enqueue("x", lease=10)
    (late,) = q.reserve(block=0)
    advance(raw, q.ops, 11)
    (holder,) = q.reserve(block=0)
    assert holder.receipt != late.receipt
    before = dump(raw)
    with pytest.raises(StaleReceipt, match=late.id) as caught:
        settle(how, late)
    assert (caught.value.job_id, caught.value.operation) == (late.id, how)
    assert (caught.value.receipt, caught.value.current) == (late.receipt, holder.receipt)
    assert late.receipt in str(caught.value)
    assert holder.receipt in str(caught.value)
    assert dump(raw) == before
    assert settle_many(q, how, [late]) == [STALE]
    assert dump(raw) == before
    assert holder.ack() is True


@pytest.mark.parametrize("how", WAYS)
def test_release_and_reserve_again_voids_the_receipt(q: Queue, raw: Raw, how: str) -> None:
    """After a release the old receipt is stale, even if the same consumer gets the job again."""
    q.enqueue("x")
    (first,) = q.reserve(block=0)
    first.release()
    (second,) = q.reserve(block=0)
    before = dump(raw)
    with pytest.raises(StaleReceipt):
        settle(how, first)
    assert dump(raw) == before
    assert second.ack() is True


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("count", [1, 8])
def test_a_receipt_that_was_guessed(q: Queue, raw: Raw, how: str, count: int) -> None:
    """A receipt needs the right random part; the delivery's number is not enough."""
    q.enqueue_many(range(count))
    jobs = q.reserve(count, block=0)
    batch = reservation_of(jobs[0])
    given = (batch.tag, batch.receipt, batch.receipt_with_end)
    batch.tag ^= 1
    batch.receipt = f"1-{batch.tag:03x}"
    batch.receipt_with_end = batch.receipt + batch.receipt_with_end[5:]
    before = dump(raw)
    assert settle_many(q, how, [*jobs]) == [STALE] * count
    assert dump(raw) == before
    batch.tag, batch.receipt, batch.receipt_with_end = given
    assert settle_many(q, how, [*jobs]) == [DONE] * count


@pytest.mark.parametrize("how", ["nack", "release", "bury"])
@pytest.mark.parametrize("then", WAYS)
def test_a_call_by_id_ends_the_delivery(q: Queue, raw: Raw, how: str, then: str) -> None:
    """A call by id ends the delivery, so the holder's receipt is stale."""
    q.enqueue("x")
    (holder,) = q.reserve(block=0)
    assert settle_many(q, how, [holder.id]) == [DONE]
    before = dump(raw)
    with pytest.raises(StaleReceipt):
        settle(then, holder)
    assert settle_many(q, then, [holder]) == [STALE]
    assert dump(raw) == before


def test_extend_by_id_keeps_the_receipt(q: Queue) -> None:
    """`extend` by id does not end the delivery, so the receipt stays valid."""
    q.enqueue("x")
    (holder,) = q.reserve(block=0)
    assert q.extend([holder.id], 90).seconds_left == [90]
    assert q.extend([holder.id]).seconds_left == [30]
    assert holder.ack() is True


@pytest.mark.parametrize("how", ["nack", "release", "bury"])
def test_settling_twice(q: Queue, raw: Raw, how: str) -> None:
    """A second call with the same receipt changes nothing and is recognised."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    assert settle(how, job) is True
    before = dump(raw)
    assert settle_many(q, how, [job]) == [ENDED]
    with pytest.raises(StaleReceipt):
        settle(how, job)
    assert dump(raw) == before


def test_acknowledging_twice(q: Queue, raw: Raw) -> None:
    """A second ack of the same job returns False without an error."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    assert job.ack() is True
    before = dump(raw)
    assert job.ack() is False
    assert list(q.ack([job, job.id])) == [GONE, GONE]
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
def test_by_id_in_every_state(q: Queue, raw: Raw, how: str, expected: dict[str, Outcome]) -> None:
    """A call by id has the expected outcome in each state; a refusal changes nothing."""
    ids = one_of_each_state(q)
    for state, outcome in expected.items():
        before = dump(raw)
        assert settle_many(q, how, [ids[state]]) == [outcome], state
        assert (dump(raw) == before) == (outcome is REFUSED), state


def test_a_dead_letter_is_not_finished_by_its_last_holder(q: Queue) -> None:
    """After a job was buried by id, its holder's ack is refused."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    q.bury([job.id], "an operator's decision")
    with pytest.raises(StaleReceipt):
        job.ack()
    (view,) = q.peek(state="dead")
    assert view.error == "an operator's decision"


def test_settle_finishes_and_reserves(q: Queue) -> None:
    """One call finishes jobs and reserves the next ones."""
    q.enqueue_many(range(6))
    jobs = q.reserve(2, block=0)
    outcomes, jobs = q.ack_and_reserve(jobs, 3)
    assert (list(outcomes), [job.body for job in jobs]) == ([DONE] * 2, [2, 3, 4])
    outcomes, rest = q.ack_and_reserve([jobs[0].id, jobs[2]], 3)
    assert (list(outcomes), [job.body for job in rest]) == ([DONE] * 2, [5])
    stats = q.stats()
    assert (stats.acked, stats.active, stats.deliveries) == (4, 2, 6)


def test_settle_names_jobs_that_it_could_not_finish(q: Queue, raw: Raw) -> None:
    """A stale or missing job does not prevent the reservation of others."""
    q.enqueue_many(["stale", "gone", "fine"], lease=10)
    jobs = q.reserve(3, block=0)
    q.ack([jobs[1].id])
    q.extend([jobs[2]], 100)
    advance(raw, q.ops, 11)
    (other,) = q.reserve(block=0)
    q.enqueue("next")
    outcomes, taken = q.ack_and_reserve(jobs, 5)
    assert list(outcomes) == [STALE, GONE, DONE]
    assert [job.body for job in taken] == ["next"]
    assert other.ack()


def test_settle_does_not_reserve_a_job_that_it_finishes(q: Queue, raw: Raw) -> None:
    """A job whose lease has ended is finished by its late holder, not delivered again."""
    q.enqueue_many([1, 2], lease=10)
    jobs = q.reserve(2, block=0)
    advance(raw, q.ops, 11)
    outcomes, taken = q.ack_and_reserve(jobs[:1], 5)
    assert outcomes
    assert [(job.body, job.crashes) for job in taken] == [(2, 1)]


def test_settle_may_wait_for_the_next_job(q: Queue) -> None:
    """Jobs are finished first; then the call waits like reserve."""
    q.enqueue("one")
    (job,) = q.reserve(block=0)
    q.enqueue("two", delay=0.2)
    outcomes, taken = q.ack_and_reserve([job], 1, block=10)
    assert outcomes
    assert [one.body for one in taken] == ["two"]
    outcomes, taken = q.ack_and_reserve(taken, 1, block=0.05)
    assert (outcomes.done, taken) == (1, [])


def test_at_most_once_is_delivered_once(q: Queue, raw: Raw) -> None:
    """With lease 0 a job exists until its ack or the end of its ttl, but is delivered once."""
    q.enqueue("x", lease=0, ttl=60)
    (job,) = q.reserve(block=0)
    assert (job.lease, job.at_most_once) == (0, True)
    advance(raw, q.ops, 50)
    assert q.reserve(block=0) == []
    (view,) = q.peek(state="active")
    assert (view.id, view.lease, view.lease_until) == (job.id, 0, None)
    assert q.stats().active == 1
    advance(raw, q.ops, 11)
    assert q.reserve(block=0) == []
    stats = q.stats()
    assert (stats.active, stats.ready, stats.expired) == (0, 0, 1)
    assert q.sweep() == 0
    assert q.show(job) is None


def test_at_most_once_lives_for_a_day(q: Queue) -> None:
    """A job with lease 0 has a ttl of a day by default."""
    q.enqueue("x", lease=0)
    (job,) = q.reserve(block=0)
    view = q.show(job)
    assert view is not None
    assert job.ttl == 86_400
    assert view.expires == pytest.approx(job.created + 86_400)


@pytest.mark.parametrize("by_id", [False, True])
def test_at_most_once_can_only_be_acknowledged(q: Queue, raw: Raw, by_id: bool) -> None:
    """A job with lease 0 can only be acknowledged; other calls are refused without a change."""
    q.enqueue("x", lease=0)
    (job,) = q.reserve(block=0)
    before = dump(raw)
    for how in ("nack", "release", "bury", "extend"):
        assert settle_many(q, how, [job.id if by_id else job]) == [REFUSED]
        if not by_id:
            with pytest.raises(JobNotActive, match=how):
                settle(how, job)
    assert dump(raw) == before
    assert q.ack([job.id if by_id else job])
    assert raw.exists(q.ops.keys["once"], q.ops.keys["held"]) == 0


def test_at_most_once_in_a_block(q: Queue, raw: Raw) -> None:
    """With lease 0 success finishes the job; a failure is logged and changes nothing."""
    q.enqueue_many([1, 2], lease=0)
    one, two = q.reserve(2, block=0)
    with one:
        pass
    with two:
        raise ValueError("once is all there is")
    assert [view.id for view in q.peek(state="active")] == [two.id]
    assert q.reserve(block=0) == []


def test_jobs_at_most_once_and_others_in_one_call(q: Queue) -> None:
    """Jobs with lease 0 and leased jobs are acknowledged in one call, in any order."""
    q.enqueue_many([1, 2], lease=0)
    q.enqueue_many([3, 4])
    jobs = q.reserve(4, block=0)
    assert q.ack([jobs[2], jobs[0], jobs[3], jobs[1]])
    assert q.stats().acked == 4


def test_deliveries_of_several_reserves_in_one_call(q: Queue) -> None:
    """Jobs with different receipts are settled in one call."""
    q.enqueue_many(range(6))
    jobs = [job for _ in range(3) for job in q.reserve(2, block=0)]
    assert len({job.receipt for job in jobs}) >= 2
    assert q.nack(jobs[:3], delay=0)
    assert q.ack([*jobs[3:5], jobs[5].id])
    stats = q.stats()
    assert (stats.ready, stats.acked, stats.nacked) == (3, 3, 3)


@pytest.mark.parametrize(
    "how, second", [("ack", DONE), ("nack", ENDED), ("release", ENDED), ("bury", ENDED)]
)
def test_a_job_named_twice(q: Queue, how: str, second: Outcome) -> None:
    """A job named twice is settled and counted once."""
    q.enqueue_many([1, 2])
    one, two = q.reserve(2, block=0)
    assert settle_many(q, how, [one, two, one, one.id]) == [DONE, DONE, second, second]
    stats = q.stats()
    assert stats.acked + stats.nacked + stats.released + stats.died == 2
    assert (stats.ready + stats.scheduled + stats.dead, stats.active) == (2 * (how != "ack"), 0)


def test_jobs_of_another_queue_are_refused(ps: Penstock, raw: Raw) -> None:
    """A delivery of another queue is refused."""
    ps.queue("a").enqueue(1)
    ps.queue("b").enqueue(1)
    (job,) = ps.queue("a").reserve(block=0)
    before = dump(raw)
    for how in WAYS:
        with pytest.raises(ValueError, match="belongs to another queue than 'b'"):
            settle_many(ps.queue("b"), how, [job])
    assert dump(raw) == before


def test_ids_lead_to_their_queues(ps: Penstock) -> None:
    """Jobs of several queues, with partitions or without, are acknowledged by one call."""
    a, b = ps.queue("a"), ps.queue("b", partitions=3)
    ids = [queue.enqueue(1).id for queue in (a, b, a, b, b)]
    [job] = a.reserve(block=0)
    old = ps.queue("old").enqueue(1)
    ps.queue("old").clear()
    assert ps.ack([]) == []
    assert ps.ack([job, *ids[1:], old.id]) == [DONE, DONE, DONE, DONE, DONE, GONE]
    assert a.stats().acked + b.stats().acked == 5


def test_a_bad_id_among_those_of_several_queues(ps: Penstock, raw: Raw) -> None:
    """Nothing is done if an id is malformed. A queue that fails later is reported as such."""
    job, other = ps.queue("a").enqueue(1), ps.queue("b").enqueue(1)
    before = dump(raw)
    with pytest.raises(BadJobId):
        ps.ack([job.id, "D-no-id"])
    with pytest.raises(BadArgument, match="jobs"):
        ps.ack(job.id)
    assert dump(raw) == before
    raw.delete("penstock:{b}:ready")
    raw.set("penstock:{b}:ready", "x")
    with pytest.raises(QueueDamaged):
        ps.ack([other.id])
    third = ps.queue("c").enqueue(1)
    with pytest.raises(IncompleteSettle, match=r"^2 jobs were done") as caught:
        ps.ack([job.id, other.id, third.id])
    assert caught.value.outcomes == [DONE, Outcome.UNKNOWN, DONE]
    assert caught.value.outcomes.ids() == [job.id, third.id]
    assert isinstance(caught.value.__cause__, QueueDamaged)
    raw.delete("penstock:{b}:ready")
