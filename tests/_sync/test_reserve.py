# From tests/_async/test_reserve.py by tools/unasync.py; do not edit.
"""Reserving: which jobs are returned, and in which order."""

from __future__ import annotations

import time

import pytest

from penstock import Penstock, Queue
from tests.support.keyspace import Raw, advance, evalshas, load_scripts
from tests.support.twins import spawn

from .conftest import Waits


def bodies(q: Queue, n: int = 100) -> list[object]:
    """Return the bodies of one reserve."""
    return [job.body for job in q.reserve(n, block=0)]


def test_first_in_first_out(q: Queue) -> None:
    """Jobs come in the order of their enqueues, singly or in batches, from single or bulk calls."""
    q.enqueue(0)
    q.enqueue_many([1, 2, 3])
    q.enqueue(4)
    assert [bodies(q, n) for n in (1, 2, 9, 1)] == [[0], [1, 2], [3, 4], []]


def test_many_jobs_of_one_ms_keep_their_order(q: Queue) -> None:
    """500 single calls, several per millisecond, are delivered in order, however
    they are reserved.
    """
    for number in range(500):
        q.enqueue(number)
    taken: list[object] = []
    for n in (1, 7, 100, 392):
        taken += bodies(q, n)
    assert taken == list(range(500))


def test_put_backs_come_first_by_creation(q: Queue) -> None:
    """Released jobs come back by age, whatever the order of the releases."""
    q.enqueue_many(range(4))
    jobs = q.reserve(3, block=0)
    jobs[2].release()
    jobs[0].nack(delay=0)
    jobs[1].release()
    q.enqueue(4)
    assert bodies(q) == [0, 1, 2, 3, 4]


def test_put_backs_of_one_ms_keep_their_order(q: Queue) -> None:
    """A batch released in reverse is delivered in its first order."""
    q.enqueue_many(range(100))
    jobs = q.reserve(100, block=0)
    q.release(list(reversed(jobs)))
    assert bodies(q) == list(range(100))


def test_due_jobs_are_merged_with_ready_ones(q: Queue, raw: Raw) -> None:
    """Jobs come in the order in which they became deliverable, so none starves."""
    q.enqueue("0 min, due at 10", delay=600)
    q.enqueue("0 min, due at 2", delay=120)
    advance(raw, q.ops, 60)
    q.enqueue("1 min")
    advance(raw, q.ops, 240)
    q.enqueue("5 min")
    q.enqueue("5 min, due at 7", delay=120)
    advance(raw, q.ops, 180)
    q.enqueue("8 min")
    seen = [view.body for view in q.peek(100)]
    expected = ["1 min", "0 min, due at 2", "5 min", "5 min, due at 7", "8 min"]
    assert seen == expected
    assert [bodies(q, 2) for _ in range(3)] == [expected[:2], expected[2:4], expected[4:]]


def test_ended_leases_come_before_all_others(q: Queue, raw: Raw) -> None:
    """Jobs with ended leases come first, by end of lease; then waiting jobs."""
    q.enqueue("put back")
    q.enqueue("longer", lease=20)
    q.enqueue("shorter", lease=10)
    jobs = q.reserve(3, block=0)
    jobs[0].release()
    q.enqueue("fresh")
    advance(raw, q.ops, 21)
    assert bodies(q) == ["shorter", "longer", "put back", "fresh"]


def test_a_job_is_held_by_one_consumer(q: Queue) -> None:
    """While a lease runs no other consumer gets the job."""
    q.enqueue(1)
    assert bodies(q) == [1]
    assert bodies(q) == []
    assert q.stats().active == 1


def test_no_more_than_asked_for(q: Queue) -> None:
    """`n` bounds the batch, also above the 1,000 jobs of one script."""
    q.enqueue_many(range(2200))
    assert [len(q.reserve(n, block=0)) for n in (1, 999, 1100, 500)] == [1, 999, 1100, 100]


def test_a_call_reads_about_a_mebibyte(q: Queue) -> None:
    """Large bodies come in several batches of at least one job; none is skipped."""
    sizes = [300_000] * 5 + [2_000_000, 5, 300_000]
    q.enqueue_many(b"x" * size for size in sizes)
    batches = []
    while jobs := q.reserve(100, block=0):
        batches.append([len(job.raw) for job in jobs])
    assert [size for batch in batches for size in batch] == sizes
    assert len(batches) > 2
    assert all(sum(batch[:-1]) < 1 << 20 for batch in batches)


def test_several_queues_left_to_right(ps: Penstock) -> None:
    """The first queue is emptied before the second one is asked."""
    high, low = ps.queue("high"), ps.queue("low")
    low.enqueue_many([1, 2, 3])
    high.enqueue_many([10, 20])
    jobs = ps.reserve([high, "low"], 4, block=0)
    assert [(job.queue_name, job.body) for job in jobs] == [
        ("high", 10),
        ("high", 20),
        ("low", 1),
        ("low", 2),
    ]
    assert [job.queue for job in jobs] == [high, high, low, low]
    assert [job.ack() for job in jobs] == [True] * 4
    assert [job.body for job in ps.reserve(["low", "high"], 4, block=0)] == [3]


def test_waiting_on_several_queues(ps: Penstock, waits: Waits) -> None:
    """A job on any of the queues ends the wait."""
    for name in ("a", "b", "c"):
        consumer = spawn(ps.reserve, ["a", "b", "c"], 5, block=20)
        waits.reach(1)
        ps.queue(name).enqueue(name)
        (job,) = consumer.result()
        assert (job.queue_name, job.body) == (name, name)
        assert job.delivered - job.created < 2


def test_reserve_waits_for_block_seconds(q: Queue) -> None:
    """`block=0` does not wait; otherwise the call returns an empty list after `block` seconds."""
    start = time.monotonic()
    assert q.reserve(block=0) == []
    assert time.monotonic() - start < 2
    start = time.monotonic()
    assert q.reserve(block=0.15) == []
    assert 0.15 <= time.monotonic() - start < 3


def test_one_trip_for_a_batch(real_q: Queue, real_raw: Raw) -> None:
    """reserve, ack, nack, settle and the other calls need one script each; a refused one, two."""
    load_scripts(real_raw)
    real_q.enqueue_many(range(30))
    before = evalshas(real_raw)
    one = real_q.reserve(10, block=0)
    two = real_q.reserve(10, block=5)
    assert evalshas(real_raw) - before == 2
    real_q.ack(one)
    real_q.nack(two[:3])
    real_q.release(two[3:6])
    real_q.bury(two[6:8])
    real_q.extend(two[8:])
    assert evalshas(real_raw) - before == 7
    outcomes, three = real_q.ack_and_reserve(two[8:], 9)
    assert (outcomes.done, len(three)) == (2, 9)
    assert evalshas(real_raw) - before == 8


def test_a_consumer_that_blocks_again_and_again(q: Queue) -> None:
    """One client blocks for each of many jobs and reuses its connections."""
    for number in range(20):
        consumer = spawn(q.reserve, 1, block=20)
        q.enqueue(number)
        (job,) = consumer.result()
        assert job.body == number
        job.ack()


def test_a_job_of_a_reserve_is_from_its_queue(ps: Penstock) -> None:
    """Two queue objects with one name are the same queue."""
    assert ps.queue("q") is ps.queue("q")
    assert ps.queue("q").name == "q"
    ps.queue("q").enqueue(1)
    (job,) = ps.queue("q").reserve(block=0)
    assert job.queue_name == "q"
    assert "'q'" in repr(ps.queue("q"))


@pytest.mark.parametrize("n", [1, 5])
def test_order_survives_the_loss_of_every_lease(q: Queue, raw: Raw, n: int) -> None:
    """Jobs whose leases ended together are delivered in their first order."""
    q.enqueue_many(range(30), lease=10)
    assert bodies(q, 30) == list(range(30))
    advance(raw, q.ops, 11)
    taken: list[object] = []
    for _ in range(30 // n):
        taken += bodies(q, n)
    assert taken == list(range(30))
