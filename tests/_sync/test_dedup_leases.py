# From tests/_async/test_dedup_leases.py by tools/unasync.py; do not edit.
"""Duplicates of jobs whose lease has ended, and successors with a delay."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Dedup, Outcome, Penstock, Queue, StaleReceipt
from tests.support.keyspace import Raw, advance, check_invariant

from .test_dedup import BUSY, take

FOLLOW = [how for how in BUSY if how.startswith("requeue")]


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue that does not exist yet."""
    return ps.queue("q")


@pytest.mark.parametrize("how", BUSY)
@pytest.mark.parametrize("many", [False, True])
def test_an_update_outlives_the_old_delivery(q: Queue, raw: Raw, how: str, many: bool) -> None:
    """An update tells its producer that the job is ready, so the old holder cannot end it."""
    q.enqueue("v1", dedup_id="x", lease=1)
    old = take(q)
    advance(raw, q.ops, 1.1)
    if many:
        answers = q.enqueue_many(["no", "v2"], dedup=Dedup("x", on_duplicate=how))
        answer = answers[1]
    else:
        answer = q.enqueue("v2", dedup=Dedup("x", on_duplicate=how))
    updated = how not in ("refuse", "requeue")
    assert (answer.id, answer.state) == (old.id, "ready")
    assert answer.action == ("updated" if updated else "refused")
    assert q.extend([old]) == [Outcome.STALE]
    for settle in (old.nack, old.release, old.ack):
        with pytest.raises(StaleReceipt):
            settle()
    again = take(q)
    assert (again.body, again.deliveries) == ("v2" if updated else "v1", 2)
    assert (again.crashes, again.attempt) == (1, 2)
    assert list(q.ack([old])) == [Outcome.STALE]
    assert again.ack()
    check_invariant(raw)


def test_an_extended_lease_is_a_running_one(q: Queue, raw: Raw) -> None:
    """Extending the lease before the duplicate comes keeps the delivery: the job is
    active again.
    """
    q.enqueue("v1", dedup_id="x", lease=1)
    old = take(q)
    advance(raw, q.ops, 1.1)
    assert q.extend([old], 60).seconds_left == [60]
    answer = q.enqueue("v2", dedup=Dedup("x", on_duplicate="update"))
    assert (answer.action, answer.state) == ("refused", "active")
    assert old.ack()


def test_by_id_an_ended_delivery_is_not_extended(q: Queue, raw: Raw) -> None:
    """Without a holder a job can't be extended by id, but can be released, buried
    or acknowledged.
    """
    answers = [q.enqueue(name, dedup_id=name, lease=1) for name in ("a", "b", "c")]
    assert len(q.reserve(3, block=0)) == 3
    advance(raw, q.ops, 1.1)
    for name in ("a", "b", "c"):
        assert q.enqueue("no", dedup_id=name).state == "ready"
    ids = [answer.id for answer in answers]
    assert list(q.extend(ids)) == [Outcome.REFUSED] * 3
    assert list(q.nack(ids[:1], delay=0)) == [Outcome.DONE]
    assert list(q.bury(ids[1:2])) == [Outcome.DONE]
    assert list(q.ack(ids[2:])) == [Outcome.DONE]
    job = take(q)
    assert (job.body, job.deliveries, job.nacks) == ("a", 2, 1)
    assert job.ack()


def test_a_job_that_always_crashes_dies_despite_duplicates(q: Queue, raw: Raw) -> None:
    """Each ended lease counts as one crash, no matter which call finds it first."""
    q.configure(max_crashes=3)
    q.enqueue("poison", dedup_id="x", lease=1)
    for serial in range(3):
        assert take(q).crashes == serial
        advance(raw, q.ops, 1.1)
        for _ in range(2):
            q.enqueue("no", dedup_id="x")
    assert q.reserve(block=0) == []
    (view,) = q.peek(state="dead")
    assert (view.body, view.deliveries, view.crashes) == ("poison", 3, 3)


def test_recover_leaves_an_ended_delivery_to_reserve(q: Queue, raw: Raw) -> None:
    """`recover` takes over deliveries, but not one that an update has ended."""
    q.enqueue("v1", dedup_id="x", lease=1)
    take(q)
    advance(raw, q.ops, 1.1)
    q.enqueue("v2", dedup=Dedup("x", on_duplicate="update"))
    assert q.recover(10, idle=0) == []
    assert take(q).body == "v2"


# -- successors with a delay of their own --------------------------------------------------------


@pytest.mark.parametrize("how", FOLLOW)
@pytest.mark.parametrize("end", ["ack", "bury", "delete", "ttl"])
def test_a_successor_waits_for_its_own_delay(q: Queue, raw: Raw, how: str, end: str) -> None:
    """A successor is due when the job before it has ended and its own delay has passed."""
    q.enqueue("old", dedup_id="x", ttl=60, lease=50)
    old = take(q)
    answer = q.enqueue("new", dedup=Dedup("x", on_duplicate=how), delay=100)
    assert (answer.action, answer.state) == ("requeued", "scheduled")
    if end == "ttl":
        advance(raw, q.ops, 61)
        q.sweep()
    elif end == "delete":
        q.delete([old.id])
    else:
        (old.ack() if end == "ack" else old.bury())
    (view,) = q.peek(state="scheduled")
    assert view.id == answer.id
    assert view.next_in == pytest.approx(39 if end == "ttl" else 100, abs=9)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 101)
    assert take(q).body == "new"
    check_invariant(raw)


def test_a_successor_to_a_point_in_time(q: Queue, raw: Raw) -> None:
    """A successor accepts `at` too; a time that has passed when the job before ends
    delays nothing.
    """
    q.enqueue("old", dedup_id="x")
    old = take(q)
    at = old.created + 20
    q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), at=at)
    advance(raw, q.ops, 21)
    assert q.reserve(block=0) == []
    old.ack()
    assert take(q).body == "new"


def test_a_requeue_and_debounce_takes_every_change(q: Queue, raw: Raw) -> None:
    """While a job is active its successor takes the last content and restarts its delay."""
    options: dict[str, Any] = {
        "delay": 10,
        "dedup": Dedup("x", on_duplicate="requeue+debounce"),
    }
    assert q.enqueue("v1", **options).action == "added"
    assert q.enqueue("v2", **options).action == "updated"
    advance(raw, q.ops, 11)
    old = take(q)
    assert old.body == "v2"
    first = q.enqueue("v3", **options)
    assert (first.action, first.state) == ("requeued", "scheduled")
    advance(raw, q.ops, 8)
    for body in ("v4", "v5"):
        answer = q.enqueue(body, **options)
        assert (answer.id, answer.action, answer.state) == (first.id, "updated", "scheduled")
    old.ack()
    advance(raw, q.ops, 8)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 3)
    job = take(q)
    assert (job.id, job.body) == (first.id, "v5")
    assert job.ack()
    assert q.dedup_status("x") is None


def test_a_debounce_without_delay_ends_that_of_a_successor(q: Queue, raw: Raw) -> None:
    """A debounce without a delay makes the successor due as soon as the job before it has ended."""
    q.enqueue("old", dedup_id="x")
    old = take(q)
    q.enqueue("v1", dedup=Dedup("x", on_duplicate="requeue"), delay=60)
    q.enqueue("v2", dedup=Dedup("x", on_duplicate="requeue+update"))
    assert q.reserve(block=0) == []
    q.enqueue("v3", dedup=Dedup("x", on_duplicate="requeue+debounce"))
    old.ack()
    assert take(q).body == "v3"


def test_a_successor_waits_for_window_and_delay(q: Queue, raw: Raw) -> None:
    """A successor is due after window and delay; a debounce restarts only its delay."""
    debounce = Dedup("x", on_duplicate="requeue+debounce")
    q.enqueue("old", dedup=Dedup("x", window=20))
    old = take(q)
    q.enqueue("v1", delay=5, dedup=debounce)
    old.ack()
    for delay, left in ((5, 20), (30, 30), (0, 20)):
        q.enqueue("v2", delay=delay, dedup=debounce)
        (view,) = q.peek(state="scheduled")
        assert view.next_in == pytest.approx(left, abs=2)
    advance(raw, q.ops, 21)
    assert take(q).body == "v2"


def test_a_bulk_debounces_one_successor(q: Queue, raw: Raw) -> None:
    """Several jobs of one call with one id: one successor waits, with the last content."""
    q.enqueue("old", dedup_id="x")
    old = take(q)
    for call in range(2):
        answers = q.enqueue_many(
            ["a", "b", f"c{call}"], dedup=Dedup("x", on_duplicate="requeue+debounce"), delay=10
        )
        assert [one.action for one in answers] == ["updated" if call else "requeued"] + [
            "updated"
        ] * 2
        assert len(set(answers.ids)) == 1
    old.ack()
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 11)
    (job,) = q.reserve(9, block=0)
    assert job.body == "c1"


def test_a_successor_with_a_delay_is_not_promoted(q: Queue, raw: Raw) -> None:
    """A successor with a delay can't be promoted while the job before it exists; later it can."""
    q.enqueue("old", dedup_id="x")
    old = take(q)
    answer = q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), delay=60)
    assert list(q.promote([answer.id])) == [Outcome.REFUSED]
    old.ack()
    assert list(q.promote([answer.id])) == [Outcome.DONE]
    assert take(q).body == "new"
