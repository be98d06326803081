# From tests/_async/test_bounded.py by tools/unasync.py; do not edit.
"""Bounded queues: a producer is refused or waits for room, and the bound is never exceeded."""

from __future__ import annotations

import time

import pytest

from penstock import Dedup, Penstock, Queue, QueueFull, QueuePaused
from tests.support.keyspace import Raw, advance, dump, evalshas, load_scripts, numbers
from tests.support.twins import spawn

from .conftest import Waits


def test_a_full_queue_refuses(q: Queue, raw: Raw) -> None:
    """Without `block` a full queue refuses at once: the error has both figures, and
    no key changes.
    """
    q.enqueue_many([1, 2, 3])
    before = dump(raw)
    with pytest.raises(QueueFull, match="'q' is full: 3 jobs wait, the limit is 3"):
        q.enqueue(4, max_length=3)
    with pytest.raises(QueueFull):
        q.enqueue(4, max_length=2)
    with pytest.raises(QueueFull):
        q.enqueue_many([4, 5], max_length=4)
    assert dump(raw) == before
    q.enqueue(4, max_length=4)


def test_the_bound_may_be_stored_on_the_queue(ps: Penstock, q: Queue) -> None:
    """A stored bound holds for every producer; the bound of a call can only be narrower."""
    q.configure(max_length=3)
    q.enqueue_many([1, 2])
    with pytest.raises(QueueFull, match="2 jobs wait, the limit is 2"):
        q.enqueue(3, max_length=2)
    q.enqueue(3, max_length=50)
    with pytest.raises(QueueFull, match="3 jobs wait, the limit is 3"):
        q.enqueue(4, max_length=50)
    q.configure(max_length=None)
    q.enqueue(4)


def test_waiting_is_ready_and_scheduled(q: Queue) -> None:
    """The bound counts ready and delayed jobs, but no active and dead ones."""
    q.configure(max_length=2)
    q.enqueue("later", delay=600)
    q.enqueue("now")
    with pytest.raises(QueueFull):
        q.enqueue("no room", delay=600)
    (job,) = q.reserve(block=0)
    q.enqueue("now there is")
    job.bury()
    with pytest.raises(QueueFull):
        q.enqueue("no room again")


def test_jobs_that_wait_for_other_jobs_take_no_room(q: Queue) -> None:
    """Callbacks of open and closed batches and a successor, also with a ttl, are not counted, and
    fit into a full queue. When other jobs have ended they are due and count, above the bound.
    """
    q.configure(max_length=1)
    with q.batch(then="a") as batch:
        batch.enqueue("member")
    (member,) = q.reserve(block=0)
    member.bury()
    again = Dedup("id", on_duplicate="requeue")
    q.enqueue("owner", dedup=again)
    (owner,) = q.reserve(block=0)
    with q.batch(then="b"):
        q.enqueue("one")
        q.enqueue("successor", dedup=again, ttl=600)
        stats = q.stats()
        assert (stats.ready, stats.scheduled, stats.dependent) == (1, 3, 3)
        with pytest.raises(QueueFull, match="1 jobs wait, the limit is 1"):
            q.enqueue("no room")
    owner.ack()
    q.redrive()
    with pytest.raises(QueueFull, match="4 jobs wait, the limit is 1"):
        q.enqueue("no room")
    done = [q.ack(q.reserve(9, block=0)) for _ in range(2)]
    assert list(map(len, done)) == [4, 1]
    q.enqueue("room")


def test_a_batch_that_got_no_job_is_cancelled(q: Queue) -> None:
    """Producers that try a full queue again leave no batches behind."""
    q.configure(max_length=1)
    q.enqueue("all the room")
    for _ in range(3):
        with pytest.raises(QueueFull):
            with q.batch(then="callback") as batch:
                batch.enqueue("member")
    stats = q.stats()
    assert (stats.batches, stats.dependent, stats.dead) == (0, 0, 0)


def test_jobs_put_back_may_exceed_the_bound(q: Queue, raw: Raw) -> None:
    """nack, release, an ended lease and redrive ignore the bound; only producers are refused."""
    q.configure(max_length=2)
    q.enqueue_many(["nacked", "released"])
    one, two = q.reserve(2, block=0)
    q.enqueue_many(["crashed", "buried"])
    three, four = q.reserve(2, block=0)
    four.bury()
    q.enqueue_many([5, 6])
    assert one.nack(delay=0)
    assert two.release()
    assert q.redrive() == 1
    advance(raw, q.ops, 31)
    assert q.stats().ready == 6
    with pytest.raises(QueueFull):
        q.enqueue(7)
    bodies = [job.body for job in q.reserve(9, block=0)]
    assert bodies == ["crashed", "nacked", "released", "buried", 5, 6]
    assert three.id


@pytest.mark.usefixtures("no_ticks")
def test_a_producer_waits_for_room(q: Queue, waits: Waits) -> None:
    """A waiting producer is woken when a job is reserved, long before its next own look."""
    q.enqueue(1)
    producer = spawn(q.enqueue, 2, max_length=1, block=30)
    waits.reach(1)
    (job,) = q.reserve(block=0)
    done = producer.result()
    assert job.body == 1
    assert [view.id for view in q.peek()] == [done.id]


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("how", ["ack", "bury", "delete", "purge", "configure", "sweep", "settle"])
def test_every_way_of_making_room_wakes_the_producer(
    q: Queue, raw: Raw, waits: Waits, how: str
) -> None:
    """A waiting job that ends in any way makes room for a waiting producer."""
    q.configure(max_length=1)
    first = q.enqueue(1, ttl=600 if how == "sweep" else None)
    producer = spawn(q.enqueue, 2, block=30)
    waits.reach(1)
    if how == "ack":
        assert q.ack([first.id])
    elif how == "bury":
        assert q.bury([first.id])
    elif how == "delete":
        assert q.delete([first.id])
    elif how == "purge":
        assert q.purge() == 1
    elif how == "settle":
        assert q.ack_and_reserve([first.id], 1)[0]
    elif how == "configure":
        q.configure(max_length=2)
    else:
        advance(raw, q.ops, 600)
        assert q.sweep() == 1
    producer.result()


def test_a_waiting_producer_gives_up_in_time(q: Queue, raw: Raw) -> None:
    """After `block` seconds the producer raises `QueueFull`, and the job is not added."""
    q.enqueue(1)
    start = time.monotonic()
    with pytest.raises(QueueFull):
        q.enqueue(2, max_length=1, block=0.2)
    assert 0.2 <= time.monotonic() - start < 3
    assert len(numbers(raw, q.ops, "ready")) == 1


def test_a_waiting_producer_does_not_poll(real_q: Queue, real_raw: Raw, waits: Waits) -> None:
    """A waiting producer sends one call for each tick of 4 s and nothing else."""
    load_scripts(real_raw)
    real_q.enqueue(1)
    producer = spawn(real_q.enqueue, 2, max_length=1, block=30)
    waits.reach(1)
    before = evalshas(real_raw)
    assert real_q.reserve(1, block=0)
    producer.result()
    # Our own call, the producer's second attempt, and perhaps one that puts a token back.
    assert evalshas(real_raw) - before <= 3


@pytest.mark.usefixtures("no_ticks")
def test_one_place_wakes_one_producer_after_the_other(q: Queue, waits: Waits) -> None:
    """Three producers wait, room for one job appears three times, and all three add their job."""
    q.enqueue(0)
    producers = [spawn(q.enqueue, i, max_length=1, block=30) for i in (1, 2, 3)]
    waits.reach(3)
    bodies = [q.reserve(block=20)[0].body for _ in range(4)]
    for producer in producers:
        producer.result()
    assert sorted(bodies) == [0, 1, 2, 3]


@pytest.mark.usefixtures("no_ticks")
def test_room_for_all_lets_all_in(q: Queue, waits: Waits) -> None:
    """One call makes room for many jobs: each producer passes the token to the next one."""
    q.enqueue_many([1, 2, 3])
    producers = [spawn(q.enqueue, i, max_length=3, block=30) for i in range(3)]
    waits.reach(3)
    q.purge()
    for producer in producers:
        producer.result()
    assert q.stats().ready == 3


def test_many_go_in_as_room_appears(q: Queue) -> None:
    """A bulk larger than the bound is added in parts as room appears; the order is kept."""
    producer = spawn(q.enqueue_many, range(25), max_length=4, block=30)
    got: list[int] = []
    while len(got) < 25:
        jobs = q.reserve(3, block=10)
        assert jobs
        assert q.stats().ready <= 4
        got += [job.body for job in jobs]
        q.ack(jobs)
    assert got == list(range(25))
    assert len(producer.result()) == 25


def test_more_at_once_than_may_ever_wait(q: Queue) -> None:
    """A bulk larger than its own bound can't be added at all, however long it waits."""
    q.configure(max_length=2)
    with pytest.raises(QueueFull):
        q.enqueue_many([1, 2, 3])
    assert not q.peek()


def test_racing_producers_never_exceed_the_bound(q: Queue) -> None:
    """Eight producers and one consumer: at most five jobs wait at any time."""

    def produce(number: int) -> int:
        refused = 0
        for i in range(10):
            try:
                q.enqueue([number, i], max_length=5, block=20 if i % 2 else 0)
            except QueueFull:
                refused += 1
                q.enqueue([number, i], max_length=5, block=20)
            assert q.stats().ready <= 5
        return refused

    producers = [spawn(produce, number) for number in range(8)]
    got: list[list[int]] = []
    while len(got) < 80:
        jobs = q.reserve(2, block=10)
        assert jobs
        got += [job.body for job in jobs]
        q.ack(jobs)
    for producer in producers:
        producer.result()
    assert sorted(got) == [[number, i] for number in range(8) for i in range(10)]
    assert q.stats().enqueued == 80


def test_a_pause_is_not_waited_for(q: Queue) -> None:
    """A producer that would wait for room in a paused queue is refused at once."""
    q.configure(max_length=1)
    q.enqueue(1)
    q.pause("in")
    with pytest.raises(QueuePaused):
        q.enqueue(2, block=30)


def test_a_producer_that_waits_is_refused_when_the_queue_is_paused(q: Queue, waits: Waits) -> None:
    """A pause wakes a waiting producer, which raises `QueuePaused`."""
    q.enqueue(1)
    producer = spawn(q.enqueue, 2, max_length=1, block=30)
    waits.reach(1)
    q.pause("in")
    with pytest.raises(QueuePaused):
        producer.result(10)
