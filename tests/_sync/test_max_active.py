# From tests/_async/test_max_active.py by tools/unasync.py; do not edit.
"""At most so many jobs of a queue are delivered at once, over all its consumers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from penstock import BadArgument, Job, Queue
from penstock.client._acompat import sleep
from tests.support.keyspace import Raw, advance, check_invariant, evalshas
from tests.support.twins import spawn

from .conftest import Waits

End: TypeAlias = Callable[[Queue, Job], object]


def bodies(jobs: list[Job]) -> list[Any]:
    """Return the bodies of jobs."""
    return [job.body for job in jobs]


def taken(q: Queue, n: int = 100) -> list[Any]:
    """Reserve jobs, and return their bodies."""
    return bodies(q.reserve(n, block=0))


def next_ms(q: Queue) -> int:
    """Return what a call that takes nothing more is told of the next event."""
    found: int = q.route.node.executor.run(q.ops.reserve(1)).next_ms
    return found


def test_no_more_than_the_limit(q: Queue, raw: Raw) -> None:
    """Calls deliver what is free, and an end makes room for one job."""
    settings = q.configure(max_active=3)
    assert (settings.max_active, q.stats().settings.max_active) == (3, 3)
    q.enqueue_many(range(10))
    held = q.reserve(2, block=0)
    held += q.reserve(9, block=0)
    assert bodies(held) == [0, 1, 2]
    assert taken(q) == []
    stats = q.stats()
    assert (stats.ready, stats.active) == (7, 3)
    held.pop().ack()
    assert taken(q) == [3]
    held.pop().nack(delay=60)
    held.pop().release(delay=60)
    assert taken(q) == [4, 5]
    check_invariant(raw)


def test_a_settle_that_ends_and_takes(q: Queue) -> None:
    """It takes as many as it ends: a stale receipt, and a job that waits, make no room."""
    q.configure(max_active=2)
    q.enqueue_many(range(9))
    held = q.reserve(2, block=0)
    outcome, more = q.ack_and_reserve([held[0]], 9)
    assert (bodies(more), outcome) == ([2], q.ack([held[1]]))
    assert bodies(q.reserve(9, block=0)) == [3]
    _, more = q.ack_and_reserve([held[0]], 9)
    assert more == []


def test_ended_leases_come_back_without_room(q: Queue, raw: Raw) -> None:
    """They are counted already; what waits comes when they have ended."""
    q.configure(max_active=2, lease=20)
    q.enqueue_many(range(4))
    q.reserve(2, block=0)
    advance(raw, q.ops, 21)
    again = q.reserve(1, block=0)
    assert [(job.body, job.crashes) for job in again] == [(0, 1)]
    assert taken(q) == [1]
    assert taken(q) == []
    again[0].ack()
    assert taken(q) == [2]


def test_a_job_that_dies_of_its_crash_makes_room(q: Queue, raw: Raw) -> None:
    """So does one that was cancelled, or whose ttl has ended, in the same call."""
    q.configure(max_active=3, lease=20, max_crashes=1)
    q.enqueue("dies")
    cancelled = q.enqueue("cancelled")
    q.enqueue("expires", ttl=20)
    q.enqueue_many(range(9))
    assert taken(q) == ["dies", "cancelled", "expires"]
    q.cancel([cancelled.id])
    advance(raw, q.ops, 21)
    assert taken(q) == [0, 1, 2]
    stats = q.stats()
    assert (stats.dead, stats.cancelled, stats.expired) == (1, 1, 1)
    check_invariant(raw)


def test_jobs_at_most_once_take_a_slot(q: Queue, raw: Raw) -> None:
    """Until they are acknowledged, or until the end of their ttl, which is an event."""
    q.configure(max_active=2)
    q.enqueue_many(range(2), lease=0, ttl=10)
    q.enqueue_many([2, 3])
    held = q.reserve(9, block=0)
    assert bodies(held) == [0, 1]
    assert 9_000 < next_ms(q) <= 10_000
    held[0].ack()
    assert taken(q) == [2]
    advance(raw, q.ops, 11)
    assert taken(q) == [3]


def test_a_full_queue_has_no_event_but_the_first_end(q: Queue, raw: Raw) -> None:
    """Jobs that wait, and jobs that become due, do not count before there is a slot."""
    q.configure(max_active=1, lease=30)
    q.enqueue_many(range(3))
    q.enqueue("soon", delay=1)
    [job] = q.reserve(9, block=0)
    assert 29_000 < next_ms(q) <= 30_000
    advance(raw, q.ops, 2)
    assert 27_000 < next_ms(q) <= 28_000
    job.extend(60)
    assert 59_000 < next_ms(q) <= 60_000


@pytest.mark.usefixtures("no_ticks")
def test_a_blocked_consumer_makes_few_calls(real_q: Queue, real_raw: Raw) -> None:
    """Beside a full queue and a producer it sleeps until a job ends."""
    real_q.configure(max_active=1)
    real_q.enqueue_many(range(5))
    [first] = real_q.reserve(1, block=0)
    before = evalshas(real_raw)
    consumer = spawn(real_q.reserve, 1, block=30)
    for number in range(20):
        real_q.enqueue(number)
        sleep(0.02)
    assert evalshas(real_raw) - before - 20 <= 4
    first.ack()
    assert bodies(consumer.result()) == [1]


def release(_: Queue, job: Job) -> None:
    """Give a job back for later."""
    job.release(delay=60)


def hand_over_later(q: Queue, job: Job) -> None:
    """End a job, and add one for later."""
    records = [(60_000, b"1;i=later\nlater")]
    q.route.node.executor.run(q.ops.hand_over([job], records))


ENDS: dict[str, End] = {
    "ack": lambda _, job: job.ack(),
    "nack": lambda _, job: job.nack(delay=60),
    "release": release,
    "bury": lambda _, job: job.bury("enough"),
    "delete": lambda q, job: q.delete([job.id]),
    "purge": lambda q, _: q.purge("active"),
    "settle": lambda q, job: q.route.node.executor.run(q.ops.settle([job], 0)),
    "evict": lambda q, _: q.sweep(evict=1),
    "hand over": hand_over_later,
}


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_job_wakes_a_consumer(q: Queue, waits: Waits, end: str) -> None:
    """A blocked consumer gets the next job at once, however the delivery has ended."""
    q.configure(max_active=1)
    q.enqueue("a", **({"lease": 0, "ttl": 60} if end == "evict" else {}))
    q.enqueue("b")
    [held] = q.reserve(1, block=0)
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    ENDS[end](q, held)
    assert bodies(consumer.result()) == ["b"]


@pytest.mark.usefixtures("no_ticks")
def test_more_slots_wake_a_consumer(q: Queue, waits: Waits) -> None:
    """So does a limit that is raised or dropped; one that is lowered ends nothing."""
    q.configure(max_active=1)
    q.enqueue_many(range(4))
    held = q.reserve(9, block=0)
    for value in (2, None):
        consumer = spawn(q.reserve, 1, block=30)
        waits.reach(1)
        q.configure(max_active=value)
        held += consumer.result()
    assert bodies(held) == [0, 1, 2]
    q.configure(max_active=1)
    for job in held[:2]:
        job.ack()
        assert taken(q) == []
    held[2].ack()
    assert taken(q) == [3]


@pytest.mark.usefixtures("no_ticks")
def test_a_job_that_is_due_soon_wakes_a_consumer_at_an_end(q: Queue, waits: Waits) -> None:
    """While the queue was full its time was no event: the consumer must be told of it."""
    q.configure(max_active=1)
    q.enqueue("first")
    [held] = q.reserve(1, block=0)
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.enqueue("soon", delay=0.5)
    held.ack()
    assert bodies(consumer.result()) == ["soon"]


def test_with_other_limits(q: Queue) -> None:
    """A rate, a priority, keys and shares hold beside it."""
    q.configure(max_active=3, share=1, rate="4/d", burst=4)
    q.enqueue_many(["a"] * 3, key="a")
    q.enqueue("urgent", priority=5)
    q.enqueue("plain")
    held = q.reserve(9, block=0)
    assert bodies(held) == ["urgent", "a", "plain"]
    q.ack(held)
    assert taken(q) == ["a"]


def test_recover_is_not_limited(q: Queue) -> None:
    """A delivery that is taken over was counted before."""
    q.configure(max_active=1)
    q.enqueue_many(range(2))
    q.reserve(1, block=0)
    assert bodies(q.recover(5, idle=0)) == [0]


def test_it_stays_with_the_queue(q: Queue, raw: Raw) -> None:
    """Neither a sweep nor an empty queue forgets it; clearing does."""
    q.configure(max_active=2)
    q.sweep()
    advance(raw, q.ops, 86_400)
    q.sweep()
    assert q.stats().settings.max_active == 2
    q.enqueue_many(range(3))
    assert taken(q) == [0, 1]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", 1 << 53])
def test_a_limit_that_is_none(q: Queue, value: Any) -> None:
    """It is refused by name, and nothing is stored."""
    with pytest.raises(BadArgument, match=r"^max_active="):
        q.configure(max_active=value)
    assert not q.stats().exists


def test_any_program_holds_it(q: Queue, raw: Raw) -> None:
    """Random calls: never more than the limit, and never fewer while jobs wait.

    Times differ by 50 s at least from the ends of leases and ttls, so none ends between two calls.
    """
    draws = random.Random(7)
    most = 3
    q.configure(max_active=most, lease=2050, max_crashes=0)
    held: list[Job] = []
    for step in range(300):
        act = draws.choice(["add", "add", "take", "ack", "fail", "settle", "time", "cancel"])
        if act == "add":
            options: dict[str, Any] = draws.choice([{}, {"ttl": 3050}, {"lease": 0, "ttl": 950}])
            q.enqueue_many([step] * draws.randrange(1, 4), **options)
        elif act == "take":
            held += q.reserve(draws.randrange(1, 6), block=0)
        elif act == "time":
            advance(raw, q.ops, draws.choice([100, 1000, 2100]))
        elif held:
            job = held.pop(draws.randrange(len(held)))
            if act == "settle":
                held += q.ack_and_reserve([job], draws.randrange(1, 4))[1]
            elif act == "cancel":
                q.cancel([job.id])
            else:
                end = q.ack if act == "ack" else q.nack
                end([job])
        assert q.stats().active <= most
        held += q.reserve(most, block=0)  # with the ended leases, all slots
        stats = q.stats()
        assert stats.active == most or not stats.ready
        check_invariant(raw)
