# From tests/_async/test_rate.py by tools/unasync.py; do not edit.
"""The rate of a queue limits its deliveries, and makes no consumer busy."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import BadArgument, Penstock, Queue
from tests.support.keyspace import Raw, advance, check_invariant, evalshas
from tests.support.twins import spawn

from .conftest import Waits


def taken(q: Queue, n: int = 1000) -> int:
    """Reserve jobs, acknowledge them, and return how many there were."""
    jobs = q.reserve(n, block=0)
    if jobs:
        q.ack(jobs)
    return len(jobs)


def test_a_burst_and_then_the_rate(q: Queue, raw: Raw) -> None:
    """A queue that had no delivery for a while delivers a burst; each interval gives one more."""
    settings = q.configure(rate="100/h", burst=20)
    assert (settings.rate, settings.burst) == ("100/h", 20)
    q.enqueue_many(range(100))
    assert taken(q, 5) == 5
    assert taken(q) == 15
    assert taken(q) == 0
    advance(raw, q.ops, 366)
    assert taken(q) == 10
    advance(raw, q.ops, 36_000)
    assert taken(q) == 20
    stats = q.stats()
    assert (stats.ready, stats.settings.rate, stats.settings.burst) == (50, "100/h", 20)
    check_invariant(raw)


def test_without_a_rate_all_are_delivered(q: Queue) -> None:
    """The default comes back with None; without a burst it is one job at a time."""
    q.enqueue_many(range(10))
    q.configure(rate="1/d")
    assert taken(q) == 1
    assert taken(q) == 0
    settings = q.configure(rate=None)
    assert settings.rate is None
    assert taken(q) == 9


def test_every_delivery_counts(q: Queue, raw: Raw) -> None:
    """So do retries, ended leases, and the jobs of a settle."""
    q.configure(rate="1/min", burst=3)
    q.enqueue_many(range(9))
    jobs = q.reserve(1, block=0)
    q.nack(jobs, delay=0)
    jobs = q.reserve(1, block=0)
    assert jobs[0].attempt == 2
    _, jobs = q.ack_and_reserve(jobs, 5)
    assert len(jobs) == 1
    advance(raw, q.ops, 31)
    assert q.reserve(9, block=0) == []
    advance(raw, q.ops, 30)
    jobs = q.reserve(9, block=0)
    assert [job.crashes for job in jobs] == [1]
    _, jobs = q.ack_and_reserve(jobs, 5)
    assert jobs == []
    assert q.stats().acked == 2


def test_what_is_held_back_is_an_event(real_q: Queue, real_raw: Raw) -> None:
    """A consumer that waits sleeps until the next job is allowed."""
    real_q.configure(rate="10/s")
    real_q.enqueue_many(range(4))
    before = evalshas(real_raw)
    for wanted in range(4):
        [job] = real_q.reserve(block=5)
        assert job.body == wanted
    assert evalshas(real_raw) - before < 20
    assert real_q.reserve(block=0) == []


@pytest.mark.usefixtures("no_ticks")
def test_a_job_that_comes_before_it_is_allowed(q: Queue, waits: Waits) -> None:
    """It tells one of two consumers that wait of the time; later jobs wake neither of them, and
    each gets its job when the rate allows it.
    """
    q.configure(rate="1/s")
    q.enqueue(0)
    assert taken(q) == 1
    consumers = [spawn(q.reserve, 1, block=30) for _ in range(2)]
    waits.reach(2)
    for number in (1, 2, 3):
        q.enqueue(number)
    jobs = [job for one in consumers for job in one.result()]
    assert sorted(job.body for job in jobs) == [1, 2]
    assert abs(jobs[0].delivered - jobs[1].delivered) > 0.9


@pytest.mark.usefixtures("no_ticks")
def test_a_consumer_that_leaves_hands_the_time_on(q: Queue, waits: Waits) -> None:
    """Another one learns of it, though no job that comes meanwhile wakes it."""
    q.configure(rate="1/2s")
    q.enqueue(0)
    assert taken(q) == 1
    leaves = spawn(q.reserve, 1, block=0.5)
    waits.reach(1)
    stays = spawn(q.reserve, 1, block=30)
    waits.reach(2)
    for number in (1, 2):
        q.enqueue(number)
    assert leaves.result() == []
    assert [job.body for job in stays.result()] == [1]


def test_a_later_event_waits_for_the_rate(q: Queue) -> None:
    """A job that becomes due before it is allowed wakes no consumer then."""
    q.configure(rate="1/min")
    q.enqueue("a")
    q.enqueue("b", delay=5)
    assert taken(q) == 1
    assert 55_000 < q.route.node.executor.run(q.ops.reserve(1)).next_ms <= 60_000


def test_a_wrong_clock_holds_nothing_back(q: Queue, raw: Raw) -> None:
    """A stored time counts as at most a burst ahead."""
    q.configure(rate="1/min", burst=2)
    q.enqueue_many(range(5))
    raw.hset(q.ops.keys["meta"], "tat", f"{10**14} 0 1")
    assert taken(q) == 0
    advance(raw, q.ops, 61)
    assert taken(q) == 1


def test_another_rate_counts_on(q: Queue, raw: Raw) -> None:
    """A new rate begins with the time that the last deliveries have taken up."""
    q.configure(rate="7/s", burst=7)
    q.enqueue_many(range(50))
    assert taken(q) == 7
    q.configure(rate="3/s", burst=3)
    assert taken(q) == 0
    advance(raw, q.ops, 1.1)
    assert taken(q) == 3


def test_partitions_share_the_rate(ps: Penstock) -> None:
    """Each partition has its part of rate and burst, and shows the whole."""
    q = ps.queue("parted", partitions=4)
    settings = q.configure(rate="8/min", burst=8)
    assert (settings.rate, settings.burst) == ("8/min", 8)
    q.enqueue_many(range(200), key=str)
    total = 0
    while got := taken(q):
        total += got
    assert total == 8
    assert q.stats().settings.rate == "8/min"


@pytest.mark.parametrize("text", ["5/s", "100/min", "10/h", "3/d", "100/90s", "1/20ms", "7/36h"])
def test_rates_that_can_be_used(q: Queue, text: str) -> None:
    """They come back as they were given, or are refused."""
    if text == "7/36h":
        with pytest.raises(BadArgument, match="a day"):
            q.configure(rate=text)
        return
    assert q.configure(rate=text).rate == text


@pytest.mark.parametrize(
    "rate", ["", "5", "5/", "/s", "0/s", "-1/s", "5/0s", "5/week", "1.5/s", "2000000/s", 5, "5/25h"]
)
def test_rates_that_are_refused(q: Queue, rate: Any) -> None:
    """A rate is a number of jobs and a time of at most a day."""
    with pytest.raises(BadArgument, match="rate"):
        q.configure(rate=rate)


@pytest.mark.parametrize("burst", [0, -1, 1.5, 100_001, "5"])
def test_bursts_that_are_refused(q: Queue, burst: Any) -> None:
    """A burst is a number of jobs."""
    with pytest.raises(BadArgument, match="burst"):
        q.configure(rate="1/s", burst=burst)
