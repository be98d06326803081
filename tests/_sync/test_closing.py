# From tests/_async/test_closing.py by tools/unasync.py; do not edit.
"""Closing a queue: producers are refused; consumers finish the remaining jobs and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    Dedup,
    Job,
    Penstock,
    Queue,
    QueueClosed,
    QueueFull,
    QueuePaused,
    Worker,
)
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, evalshas, load_scripts, numbers
from tests.support.twins import Beside, spawn, wait_for

from .conftest import Waits


def ended(consumers: list[Beside[Any]]) -> None:
    """Check that each consumer was told of the end without polling."""
    for consumer in consumers:
        with pytest.raises(QueueClosed, match="'q' is closed, and no job is left"):
            consumer.result()


def consumed(q: Queue, batch: int = 1) -> list[Any]:
    """Return the bodies of all jobs until the loop ends by itself."""
    bodies = []
    for job in q.consume(batch=batch):
        with job:
            bodies.append(job.body)
    return bodies


def test_a_closed_queue_takes_no_jobs(q: Queue, raw: Raw) -> None:
    """A closed queue refuses every way of adding a job, and no key changes."""
    q.enqueue("before")
    assert not q.stats().closed
    q.close()
    assert q.stats().closed
    before = dump(raw)
    for options in ({}, {"delay": 5}, {"block": 30}, {"max_length": 1}, {"lease": 0}):
        with pytest.raises(QueueClosed, match="'q' is closed and takes no more jobs"):
            q.enqueue("after", **options)
    with pytest.raises(QueueClosed):
        q.enqueue_many(["after", "that"])
    assert dump(raw) == before


@pytest.mark.parametrize("mode", ["refuse", "update", "debounce", "requeue", "requeue+debounce"])
def test_duplicates_are_refused_as_well(q: Queue, raw: Raw, mode: str) -> None:
    """Duplicates are refused too, with or without an existing job: nothing is added or updated."""
    q.enqueue("waits", dedup_id="waits")
    q.enqueue("active", dedup_id="active")
    q.promote([view.id for view in q.peek()])
    (job,) = q.reserve(block=0)
    q.close()
    before = dump(raw)
    for name in ("waits", "active", "new"):
        with pytest.raises(QueueClosed):
            q.enqueue("again", dedup=Dedup(name, on_duplicate=mode))
    assert dump(raw) == before
    status = q.dedup_status("active")
    assert status is not None
    assert job.dedup_id in ("waits", "active")


def test_reopening_lets_producers_in_again(q: Queue) -> None:
    """A queue may be closed twice and reopened twice; its settings and jobs stay."""
    q.configure(max_length=2)
    q.enqueue(1)
    for _ in range(2):
        q.close()
    with pytest.raises(QueueClosed):
        q.enqueue(2)
    for _ in range(2):
        q.reopen()
    q.enqueue(2)
    with pytest.raises(QueueFull):
        q.enqueue(3)
    stats = q.stats()
    assert (stats.closed, stats.ready, stats.settings.max_length) == (False, 2, 2)


def test_a_queue_may_be_closed_before_its_first_job(ps: Penstock, q: Queue, raw: Raw) -> None:
    """Closing creates the queue. It stays although it is idle, so later clients find it closed."""
    q.close()
    with pytest.raises(QueueClosed):
        q.enqueue(1)
    advance(raw, q.ops, 3600)
    assert q.sweep() == 0
    assert ps.queues() == ["q"]
    with pytest.raises(QueueClosed):
        q.enqueue(1)
    assert q.clear() == 0
    q.enqueue(1)


def test_consumers_drain_a_closed_queue_and_end(q: Queue) -> None:
    """Loops get the remaining jobs, ready, delayed or put back, and then end."""
    q.enqueue_many(range(20))
    q.enqueue(20, delay=0.3)
    (held,) = q.reserve(block=0)
    q.close()
    loops = [spawn(consumed, q, batch) for batch in (1, 2, 3)]
    assert held.nack(delay=0.2)
    found = [body for loop in loops for body in loop.result()]
    assert sorted(found) == list(range(21))
    assert q.stats().acked == 21
    assert consumed(q) == []


@pytest.mark.usefixtures("no_ticks")
def test_all_waiting_consumers_are_told_of_the_end(q: Queue, waits: Waits) -> None:
    """Five consumers wait while the last job is active; when it is done, all five end at once."""
    q.enqueue(1)
    (job,) = q.reserve(block=0)
    consumers = [spawn(q.reserve, 1, block=block) for block in (30, 30, 30, None, None)]
    waits.reach(5)
    q.close()
    waits.reach(5)
    assert not any(consumer.is_done for consumer in consumers)
    assert job.ack()
    ended(consumers)
    assert q.stats().acked == 1


@pytest.mark.usefixtures("no_ticks")
def test_a_close_wakes_consumers_of_an_empty_queue(q: Queue, waits: Waits) -> None:
    """Consumers at an empty queue end when it is closed, paused or not."""
    q.enqueue(1)
    q.purge()
    for side in (None, "out", "all"):
        if side:
            q.pause(side)
        consumers = [spawn(q.reserve, 1, block=30) for _ in range(3)]
        waits.reach(3)
        q.close()
        ended(consumers)
        q.reopen()
    assert q.reserve(block=0) == []


def end(q: Queue, how: str, held: list[Job], number: str) -> Any:
    """End the last job of a queue in one of many ways."""
    if how == "expire by reserve":
        with pytest.raises(QueueClosed):
            q.reserve(block=0)
        return None
    ways: dict[str, Callable[[], Any]] = {
        "ack by id": lambda: q.ack([number]),
        "settle": lambda: q.ack_and_reserve(held, 5),
        "recover": lambda: q.recover(idle=0),
        "purge": lambda: q.purge("active"),
        "delete": lambda: q.delete([number]),
        "withdraw": lambda: q.delete([number], if_undelivered=True),
        "expire by peek": q.peek,
        "expire by sweep": q.sweep,
    }
    return ways[how]() if how in ways else getattr(held[0], how)()


ENDINGS = [
    "ack", "ack by id", "settle", "bury", "nack", "release", "delete", "purge", "withdraw",
    "recover", "expire by peek", "expire by sweep", "expire by reserve",
]  # fmt: skip


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("how", ENDINGS)
def test_every_way_of_emptying_the_queue_ends_the_consumers(
    q: Queue, raw: Raw, waits: Waits, how: str
) -> None:
    """The last job ends in any way: one waiting consumer is told, and tells the other one."""
    q.configure(max_attempts=1, max_crashes=1, max_releases=1)
    is_waiting = how in ("withdraw", "ack by id")
    ttl = 600 if how.startswith("expire") else None
    added = q.enqueue(1, ttl=ttl, delay=600 if is_waiting else 0)
    held = [] if is_waiting else q.reserve(block=0)
    q.close()
    consumers = [spawn(q.reserve, 1, block=30) for _ in range(2)]
    waits.reach(2)
    if ttl:
        advance(raw, q.ops, 601)
    end(q, how, held, added.id)
    ended(consumers)
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (0, 0, 0)


@pytest.mark.usefixtures("no_ticks")
def test_jobs_at_most_once_are_not_waited_for(q: Queue, waits: Waits) -> None:
    """A job with lease 0 is not delivered again, so its delivery ends all other consumers."""
    q.enqueue(1, lease=0, delay=0.5)
    q.close()
    consumers = [spawn(consumed, q) for _ in range(3)]
    assert sorted([consumer.result() for consumer in consumers]) == [[], [], [1]]


def test_dead_letters_are_no_jobs_to_wait_for(q: Queue) -> None:
    """A closed queue that has only dead letters is drained; redriven jobs are still delivered."""
    q.enqueue("bad")
    (job,) = q.reserve(block=0)
    q.close()
    job.bury("no use")
    with pytest.raises(QueueClosed):
        q.reserve(block=0)
    assert q.redrive() == 1
    assert consumed(q) == ["bad"]


def test_accepted_jobs_are_processed_as_usual(q: Queue, raw: Raw) -> None:
    """Retries, releases, ended leases, takeovers and promotions work as in an open queue."""
    q.enqueue_many(range(5))
    q.enqueue(5, delay=600)
    q.close()
    one, two, three, four = q.reserve(4, block=0)
    assert one.nack(delay=0)
    assert two.release()
    assert three.extend(60)
    (taken,) = q.recover(idle=0, n=1)
    assert (taken.id, taken.crashes) == (three.id, 1)
    assert q.promote([view.id for view in q.peek(state="scheduled")]).done == 1
    advance(raw, q.ops, 31)
    bodies = sorted(job.body for job in q.reserve(9, block=0))
    assert bodies == [0, 1, 2, 3, 4, 5]
    assert four.body == 3


def test_successors_are_run_before_the_end(q: Queue, waits: Waits) -> None:
    """A closed queue is not drained while a successor waits for another job's end."""
    q.enqueue("first", dedup_id="x")
    (first,) = q.reserve(block=0)
    q.enqueue("second", dedup=Dedup("x", on_duplicate="requeue"))
    q.close()
    consumer = spawn(consumed, q)
    waits.reach(1)
    assert first.ack()
    assert consumer.result() == ["second"]


@pytest.mark.usefixtures("no_ticks")
def test_producers_waiting_for_room_are_refused(q: Queue, waits: Waits) -> None:
    """All producers that wait for room are refused at once, and their jobs are not added."""
    q.configure(max_length=1)
    q.enqueue(0)
    producers = [spawn(q.enqueue, i, block=30 if i % 2 else None) for i in (1, 2, 3)]
    waits.reach(3)
    q.close()
    for producer in producers:
        with pytest.raises(QueueClosed, match="takes no more jobs"):
            producer.result()
    assert consumed(q) == [0]


def test_a_closed_queue_is_closed_rather_than_paused_or_full(q: Queue) -> None:
    """A closed queue that is also paused or full raises `QueueClosed`, as that does not pass."""
    q.configure(max_length=1)
    q.enqueue(1)
    q.pause("in")
    with pytest.raises(QueuePaused):
        q.enqueue(2)
    q.close()
    with pytest.raises(QueueClosed):
        q.enqueue(2, block=30)


def test_a_settle_returns_the_outcomes_of_finished_jobs(q: Queue) -> None:
    """A settle of the last job returns its outcome; the next call says that the queue has ended."""
    q.enqueue(1)
    jobs = q.reserve(block=0)
    q.close()
    outcomes, more = q.ack_and_reserve(jobs, 1, block=30)
    assert outcomes.all_done
    assert more == []
    with pytest.raises(QueueClosed):
        q.reserve(block=30)


@pytest.mark.usefixtures("no_ticks")
def test_several_queues_end_together(ps: Penstock, q: Queue, waits: Waits) -> None:
    """A consumer of two queues goes on while one of them is open, and ends with the last one."""
    other = ps.queue("other")
    for queue in (q, other):
        queue.enqueue(queue.name)
        queue.purge()
    q.close()
    assert ps.reserve([q, other], block=0) == []
    consumers = [spawn(ps.reserve, [q, other], block=30) for _ in range(2)]
    waits.reach(2)
    other.enqueue("still open")
    wait_for(lambda: any(consumer.is_done for consumer in consumers))
    (told, left) = sorted(consumers, key=lambda consumer: not consumer.is_done)
    (job,) = told.result()
    assert job.body == "still open"
    other.close()
    job.ack()
    with pytest.raises(QueueClosed):
        left.result()


def test_a_queue_that_is_reopened_meanwhile_is_not_left(
    ps: Penstock, q: Queue, waits: Waits
) -> None:
    """Two queues are closed one after the other. The first is reopened, so its consumer stays."""
    other = ps.queue("other")
    other.enqueue("other")
    (held,) = other.reserve(block=0)
    q.close()
    consumer = spawn(ps.reserve, [q, other], block=30)
    waits.reach(1)
    other.close()
    q.reopen()
    held.ack()
    q.enqueue("new")
    (job,) = consumer.result()
    assert job.body == "new"


def test_a_drained_queue_is_not_asked_over_and_over(
    real_ps: Penstock, real_q: Queue, real_raw: Raw, waits: Waits
) -> None:
    """A drained queue keeps its token for the next consumer and is not asked over and over."""
    load_scripts(real_raw)
    other = real_ps.queue("other")
    other.enqueue(1)
    other.purge()
    real_q.close()
    before = evalshas(real_raw)
    assert real_ps.reserve([real_q, other], block=1) == []
    assert evalshas(real_raw) - before <= 6
    assert real_raw.lrange(real_q.ops.keys["wake"], 0, -1) == [b"1"]
    waits.reach(0)


@pytest.mark.usefixtures("no_ticks")
def test_a_worker_ends_with_its_queues(ps: Penstock, q: Queue) -> None:
    """A worker ends when all its queues are closed and drained, and continues with open ones."""
    other = ps.queue("other")
    q.enqueue_many(range(5))
    seen: list[Any] = []

    def handler(job: Job) -> None:
        seen.append(job.body)

    worker = Worker(ps, ["q", "other"], handler)
    running = spawn(worker.run, signals=False)
    wait_for(lambda: len(seen) == 5)
    q.close()
    other.enqueue("other")
    wait_for(lambda: len(seen) == 6)
    assert worker.state == "running"
    other.close()
    running.result()
    assert worker.state == "stopped"
    assert q.stats().acked == 5


def test_workers_share_the_end(ps: Penstock, q: Queue, backend: Backend) -> None:
    """Three workers share one queue: when its last job is done, all of them end."""
    q.enqueue_many(range(30))
    seen: list[Any] = []

    def handler(job: Job) -> None:
        seen.append(job.body)

    workers = [Worker(ps, "q", handler, concurrency=2) for _ in range(3)]
    running = [spawn(worker.run, signals=False) for worker in workers]
    wait_for(lambda: len(seen) > 3)
    q.close()
    for one in running:
        one.result()
    assert sorted(seen) == list(range(30))
    assert q.stats().acked == 30
    assert numbers(backend.sync_client(), q.ops, "held") == []
