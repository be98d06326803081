# From tests/_async/test_hold.py by tools/unasync.py; do not edit.
"""A hold stops the deliveries of a queue for a time, and ends by itself."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    BadArgument,
    Job,
    Penstock,
    Queue,
    Retry,
    Snooze,
    Worker,
)
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, advance, evalshas
from tests.support.twins import spawn

from .conftest import Waits


def taken(q: Queue) -> list[Any]:
    """Reserve jobs, and return their bodies."""
    return [job.body for job in q.reserve(100, block=0)]


def test_nothing_starts_before_its_end(q: Queue, raw: Raw) -> None:
    """Jobs that wait, retries and ended leases come when it is over; holders may settle theirs."""
    q.configure(lease=20)
    q.enqueue_many(range(3))
    first, second, *_ = q.reserve(2, block=0)
    assert q.hold(60)
    assert 59 < (q.stats().held or 0) <= 60
    first.ack()
    advance(raw, q.ops, 30)
    assert taken(q) == []
    assert q.recover(5, idle=0) == []
    _, more = q.ack_and_reserve([second.id], 5)
    assert more == []
    q.enqueue("urgent", priority=9)
    assert taken(q) == []
    advance(raw, q.ops, 31)
    assert q.stats().held is None
    assert taken(q) == ["urgent", 2]


def test_the_later_end_counts(q: Queue, raw: Raw) -> None:
    """A shorter hold changes nothing, a longer one does, and 0 ends it."""
    q.enqueue("a")
    for seconds, left in ((60, 60), (5, 60), (90, 90)):
        q.hold(seconds)
        assert left - 1 < (q.stats().held or 0) <= left
    q.hold(0)
    assert q.stats().held is None
    assert taken(q) == ["a"]
    assert raw.hget(q.ops.keys["meta"], "held_until") is None
    q.hold(0)


@pytest.mark.usefixtures("no_ticks")
def test_consumers_wait_without_load(real_q: Queue, real_raw: Raw) -> None:
    """A blocked consumer makes no call until the hold ends, and then gets the job at once."""
    real_q.enqueue_many(range(2))
    real_q.hold(0.5)
    before = evalshas(real_raw)
    [job] = real_q.reserve(1, block=30)
    assert job.body == 0
    assert evalshas(real_raw) - before <= 5


@pytest.mark.usefixtures("no_ticks")
def test_jobs_that_come_meanwhile_wake_no_consumer(
    real_q: Queue, real_raw: Raw, waits: Waits
) -> None:
    """A consumer that waits makes no call for them, and learns of the end by a poll."""
    real_q.enqueue("a")
    real_q.enqueue("a", dedup_id="a")  # both scripts are loaded
    real_q.hold(600)
    consumer = spawn(real_q.reserve, 1, block=30)
    waits.reach(1)
    before = evalshas(real_raw)
    for number in range(20):
        real_q.enqueue(number)
        real_q.enqueue(number, dedup_id=str(number))
    assert evalshas(real_raw) - before == 40
    assert real_raw.llen(real_q.ops.keys["wake"]) == 0
    real_q.hold(0)
    assert [job.body for job in consumer.result()] == ["a"]


@pytest.mark.usefixtures("no_ticks")
def test_its_end_by_hand_wakes_a_consumer(q: Queue, waits: Waits) -> None:
    """A consumer that waits gets the job."""
    q.enqueue("a")
    q.hold(600)
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.hold(0)
    assert [job.body for job in consumer.result()] == ["a"]


def test_a_wrong_clock_holds_nothing(q: Queue, raw: Raw) -> None:
    """A time more than 25 hours ahead counts as none, and a sweep removes it."""
    q.enqueue("a")
    q.hold(60)
    raw.hset(q.ops.keys["meta"], "held_until", 10**14)
    assert q.stats().held is None
    assert taken(q) == ["a"]
    q.sweep()
    assert raw.hget(q.ops.keys["meta"], "held_until") is None


@pytest.mark.parametrize("key", [None, "k"])
def test_a_clock_that_goes_back(q: Queue, raw: Raw, key: str | None) -> None:
    """A hold of a whole day goes on, though its end is then more than a day ahead."""
    q.enqueue("a", key="k")
    q.hold(86_400, key=key)
    if key:
        raw.zincrby(q.ops.keys["holds"], 60_000, int(key_hash(key), 16))
    else:
        raw.hincrby(q.ops.keys["meta"], "held_until", 60_000)
    assert taken(q) == []
    stats = q.stats()
    assert stats.held_keys == 1 if key else stats.held
    advance(raw, q.ops, 86_461)
    assert taken(q) == ["a"]


def test_beside_a_rate(q: Queue, raw: Raw) -> None:
    """The later one of both counts."""
    q.configure(rate="1/min", lease=600)
    q.enqueue_many(range(3))
    assert taken(q) == [0]
    q.hold(30)
    advance(raw, q.ops, 31)
    assert taken(q) == []
    advance(raw, q.ops, 30)
    q.hold(90)
    assert taken(q) == []
    advance(raw, q.ops, 91)
    assert taken(q) == [1]


def test_a_queue_that_does_not_exist(q: Queue) -> None:
    """It has no hold, and gets none."""
    assert not q.hold(5)
    assert not q.stats().exists


def test_each_partition_is_held(ps: Penstock) -> None:
    """No partition delivers."""
    q = ps.queue("parted", partitions=3)
    q.enqueue_many(range(30), key=str)
    q.hold(60)
    assert taken(q) == []
    assert 59 < (q.stats().held or 0) <= 60


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "result, state",
    [
        (lambda: Retry(after=30, hold="queue"), "scheduled"),
        (lambda: Snooze(30, hold="queue"), "scheduled"),
    ],
)
def test_a_handler_holds_its_queue(ps: Penstock, result: Any, state: Any, raises: bool) -> None:
    """Its job comes back after the time, and no other job begins before, in no partition."""
    q = ps.queue("parted", partitions=2)
    q.enqueue_many(range(8), key=str)
    ran: list[Any] = []

    def handle(job: Job) -> Any:
        ran.append(job.body)
        if raises:
            raise result()
        return result()

    Worker(ps, q, handle, concurrency=1, burst=True).run()
    stats = q.stats()
    assert (len(ran), stats.ready, len(q.peek(9, state=state))) == (1, 7, 1)
    assert 28 < (stats.held or 0) <= 30


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: Retry(hold="queue"), "after"),
        (lambda: Retry(after=0, hold="queue"), "after"),
        (lambda: Snooze(86_401, hold="queue"), "seconds"),
        (lambda: Snooze(5, hold="job"), "hold"),  # type: ignore[arg-type]  # it is refused
    ],
)
def test_holds_that_are_refused(make: Any, name: str) -> None:
    """A hold has a time of at most a day, and is that of the queue or of a key."""
    with pytest.raises(BadArgument, match=f"^{name}="):
        make()
    assert repr(Retry(after=5, hold="queue")) == "Retry(after=5, hold='queue')"


@pytest.mark.parametrize("seconds", [-1, 86_401, "5", float("nan")])
def test_a_time_that_is_none(q: Queue, seconds: Any) -> None:
    """It is refused by name."""
    with pytest.raises(BadArgument, match=r"^seconds="):
        q.hold(seconds)
