# From tests/_async/test_key_rate.py by tools/unasync.py; do not edit.
"""A rate for each key of a queue."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from penstock import BadArgument, Job, Penstock, Queue
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, advance, check_invariant, evalshas
from tests.support.twins import spawn

from .conftest import Waits

TURNS, PACES = "penstock:{q}:turns", "penstock:{q}:paces"


def bodies(jobs: list[Job]) -> list[Any]:
    """Return the bodies of jobs."""
    return [job.body for job in jobs]


def member(key: str) -> str:
    """Return the member of a key in `turns` and `paces`."""
    return str(int(key_hash(key), 16))


def next_ms(q: Queue) -> int:
    """Return what a call that takes one job says about the next event."""
    return q.route.node.executor.run(q.ops.reserve(1)).next_ms


def test_each_key_has_a_burst_and_then_its_rate(q: Queue, raw: Raw) -> None:
    """Keys do not wait for each other, and jobs without a key for none."""
    settings = q.configure(key_rate="60/min", key_burst=3)
    assert (settings.key_rate, settings.key_burst) == ("60/min", 3)
    for key in "ab":
        q.enqueue_many([key] * 6, key=key)
    q.enqueue("plain")
    assert q.stats().parked == 12
    assert sorted(bodies(q.reserve(20, block=0))) == ["a"] * 3 + ["b"] * 3 + ["plain"]
    assert q.reserve(20, block=0) == []
    advance(raw, q.ops, 2.1)
    assert sorted(bodies(q.reserve(20, block=0))) == ["a", "a", "b", "b"]
    assert q.stats().settings.key_rate == "60/min"
    check_invariant(raw)


def test_gaps_are_those_of_the_rate_with_late_workers(q: Queue, raw: Raw) -> None:
    """A delivery that comes late is followed by a whole interval: only it admits the job."""
    q.configure(key_rate="1/min", lease=3600)
    q.enqueue_many(range(3), key="a")
    assert bodies(q.reserve(9, block=0)) == [0]
    advance(raw, q.ops, 119)
    assert bodies(q.reserve(9, block=0)) == [1]
    assert 59_000 < next_ms(q) <= 60_000
    advance(raw, q.ops, 50)
    assert q.reserve(9, block=0) == []


def test_a_raised_rate_counts_at_once(q: Queue, raw: Raw) -> None:
    """The jobs that wait have no times of the old one."""
    q.configure(key_rate="1/h")
    for key in "abc":
        q.enqueue_many([key] * 5, key=key)
    assert len(q.reserve(20, block=0)) == 3
    q.configure(key_rate="60/min")
    assert q.reserve(20, block=0) == []
    assert next_ms(q) <= 1000
    advance(raw, q.ops, 1.1)
    assert sorted(bodies(q.reserve(20, block=0))) == ["a", "b", "c"]
    q.configure(key_burst=4)
    assert len(q.reserve(20, block=0)) == 9


def test_a_lowered_rate_counts_from_the_next_delivery_on(q: Queue, raw: Raw) -> None:
    """A time of the old rate is no promise."""
    q.configure(key_rate="60/min", key_burst=5, lease=3600)
    q.enqueue_many(range(9), key="a")
    assert len(q.reserve(3, block=0)) == 3
    q.configure(key_burst=None, key_rate="1/min")
    assert q.reserve(9, block=0) == []
    assert next_ms(q) <= 60_000
    advance(raw, q.ops, 61)
    assert bodies(q.reserve(9, block=0)) == [3]


@pytest.mark.parametrize("end", ["cancel", "delete", "purge", "ttl"])
def test_a_job_that_ends_before_it_is_delivered_costs_nothing(q: Queue, raw: Raw, end: str) -> None:
    """Its key goes on at once, and leaves `turns` if it has no other job."""
    q.configure(key_rate="1/min")
    first = q.enqueue("gone", key="a", ttl=5 if end == "ttl" else None)
    if end == "purge":
        q.purge("parked")
    elif end == "ttl":
        advance(raw, q.ops, 6)
        assert q.reserve(9, block=0) == []
    else:
        getattr(q, end)([first.id])
    assert not raw.exists(TURNS, PACES)
    q.enqueue("next", key="a")
    assert bodies(q.reserve(9, block=0)) == ["next"]
    assert not raw.exists(TURNS)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_retry_spends_again(q: Queue, raw: Raw, delay: float) -> None:
    """It waits for its key as a new job does, with or without others of it."""
    q.configure(key_rate="1/min")
    q.enqueue("a", key="a")
    [job] = q.reserve(9, block=0)
    job.nack(delay=delay)
    advance(raw, q.ops, 2)
    assert q.reserve(9, block=0) == []
    assert q.stats().parked == 1
    advance(raw, q.ops, 59)
    [job] = q.reserve(9, block=0)
    assert (job.attempt, job.body) == (2, "a")
    job.ack()
    assert not raw.exists(TURNS)
    check_invariant(raw)


def test_an_ended_lease_spends_nothing(q: Queue, raw: Raw) -> None:
    """The job keeps its ticket, and its redelivery comes before any time of its key."""
    q.configure(key_rate="1/h", lease=30)
    q.enqueue_many(["first", "second"], key="a")
    assert bodies(q.reserve(9, block=0)) == ["first"]
    paces = raw.zrange(PACES, 0, -1, withscores=True)
    advance(raw, q.ops, 31)
    [job] = q.reserve(9, block=0)
    assert (job.body, job.crashes) == ("first", 1)
    assert raw.zrange(PACES, 0, -1, withscores=True) == paces


def test_an_ordered_queue_keeps_its_order(q: Queue, raw: Raw) -> None:
    """One job of a key at a time; a waiting retry stays first, and its delivery spends."""
    q.configure(key_rate="60/min", key_burst=2, ordered=True)
    q.enqueue_many(range(3), key="a")
    [job] = q.reserve(9, block=0)
    assert job.body == 0
    job.nack(delay=5)
    assert q.reserve(9, block=0) == []
    advance(raw, q.ops, 6)
    [job] = q.reserve(9, block=0)
    assert (job.body, job.attempt) == (0, 2)
    assert q.reserve(9, block=0) == []
    job.nack(delay=0)
    [job] = q.reserve(9, block=0)
    assert (job.body, job.attempt) == (0, 3)
    job.nack(delay=0)
    assert q.reserve(9, block=0) == []  # the burst is spent
    assert q.stats().parked == 3
    for wanted in range(3):
        advance(raw, q.ops, 1.1)
        [job] = q.reserve(9, block=0)
        assert job.body == wanted
        job.ack()
    check_invariant(raw)
    assert not raw.exists(TURNS)


def test_per_key_is_still_the_most(q: Queue, raw: Raw) -> None:
    """A key at its limit has no turn, whatever its rate allows; the end of a job gives one."""
    q.configure(key_rate="60/min", key_burst=5, per_key=2)
    q.enqueue_many(range(5), key="a")
    held = q.reserve(9, block=0)
    assert bodies(held) == [0, 1]
    assert not raw.exists(TURNS)
    _, more = q.ack_and_reserve([held[0]], 5)
    assert bodies(more + q.reserve(9, block=0)) == [2]


def test_other_jobs_get_each_fourth_delivery(q: Queue) -> None:
    """Keys whose time has come are first, and do not stop jobs without keys."""
    q.configure(key_rate="100/s", key_burst=100)
    q.enqueue_many(["plain"] * 20)
    q.enqueue_many(["keyed"] * 20, key="a")
    assert bodies(q.reserve(20, block=0)).count("plain") == 5
    taken = [q.reserve(1, block=0)[0].body for _ in range(8)]
    assert taken.count("plain") >= 2


@pytest.mark.usefixtures("no_ticks")
def test_a_waiting_consumer_is_told_of_the_next_turn(q: Queue, waits: Waits) -> None:
    """It gets a job that its key allows at once, and others when their time comes."""
    q.configure(key_rate="2/s")
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.enqueue_many(range(3), key="a")
    assert bodies(consumer.result()) == [0]
    for number in (1, 2):
        assert bodies(q.reserve(1, block=30)) == [number]
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.enqueue(3, key="a")
    assert bodies(consumer.result()) == [3]


def test_a_consumer_sleeps_until_the_next_turn(real_q: Queue, real_raw: Raw) -> None:
    """A rate makes no consumer busy, with any number of keys."""
    real_q.configure(key_rate="4/s")
    for key in range(50):
        real_q.enqueue_many(range(2), key=str(key))
    assert len(real_q.reserve(100, block=0)) == 50
    before = evalshas(real_raw)
    assert len(real_q.reserve(100, block=5)) == 50
    assert real_q.reserve(block=0) == []
    assert evalshas(real_raw) - before < 8


def test_wrong_times_are_capped_and_repaired(q: Queue, raw: Raw) -> None:
    """A time far ahead counts as the latest possible, in both sets, and is written so."""
    q.configure(key_rate="1/min", key_burst=2, lease=3600)
    q.enqueue_many(range(3), key="a")
    for at in (10**15, 8 * 10**15):
        raw.zadd(TURNS, {member("a"): at})
        raw.zadd(PACES, {member("a"): at * 1000 if at < 10**13 else 9 * 10**15})
        assert q.reserve(9, block=0) == []
        assert next_ms(q) <= 60_000
        advance(raw, q.ops, 61)
        assert len(q.reserve(9, block=0)) == 1


def test_a_sweep_repairs_what_no_call_looks_at(q: Queue, raw: Raw) -> None:
    """The last entries of both sets; and it drops those of paces that are past."""
    q.configure(key_rate="1/min")
    for key in "ab":
        q.enqueue_many([key] * 3, key=key)
    assert len(q.reserve(9, block=0)) == 2
    raw.zadd(TURNS, {member("b"): 10**15})
    raw.zadd(PACES, {member("b"): 9 * 10**15, member("c"): 9 * 10**15, member("d"): 5})
    q.sweep()
    latest = raw.zscore(TURNS, member("a")) + 10_000
    assert raw.zscore(TURNS, member("b")) <= latest
    assert raw.zscore(PACES, member("b")) <= latest * 1000
    assert raw.zscore(PACES, member("c")) <= latest * 1000
    assert raw.zscore(PACES, member("d")) is None


def test_what_is_past_is_dropped(q: Queue, raw: Raw) -> None:
    """Each call drops twice as many entries of `paces` as it may add; at the end none is left."""
    q.configure(key_rate="100/s")
    q.enqueue_many(range(500), key=str)
    while jobs := q.reserve(50, block=0):
        q.ack(jobs)
    advance(raw, q.ops, 11)
    q.reserve(1, block=0)
    assert raw.zcard(PACES) < 500
    q.sweep()
    assert not raw.exists(TURNS, PACES)


def test_a_call_costs_the_same_with_any_number_of_keys(real_q: Queue, real_raw: Raw) -> None:
    """Its commands are those of the jobs that it takes."""
    q, raw = real_q, real_raw
    counts = []
    q.configure(key_rate="1/h")
    for number in (10, 1000):
        q.enqueue_many(range(number), key=lambda body, n=number: f"{n} {body}")
        before = raw.info("commandstats")
        [job] = q.reserve(1, block=0)
        job.ack()
        after = raw.info("commandstats")
        calls = Counter({name: one["calls"] for name, one in after.items()})
        calls.subtract({name: one["calls"] for name, one in before.items()})
        counts.append(sum(calls.values()))
    assert counts[1] <= counts[0] + 4


def test_it_is_set_and_dropped_while_jobs_wait(q: Queue, raw: Raw) -> None:
    """With a share, a limit and an order before or behind it: nothing is stuck."""
    q.enqueue_many(range(12), key="a")
    q.configure(key_rate="1/h", key_burst=2)
    assert bodies(q.reserve(4, block=0)) == [0, 1]
    assert q.stats().parked == 10
    q.configure(key_rate=None)
    assert not raw.exists(TURNS, PACES)
    assert bodies(q.reserve(2, block=0)) in ([2, 3], [])
    q.configure(share=1)
    found = [job.body for _ in range(3) for job in q.reserve(1, block=0)]
    q.configure(key_rate="1/h", key_burst=1)
    found += bodies(q.reserve(9, block=0))
    q.configure(key_rate=None, share=None, key_burst=None)
    found += [job.body for _ in range(4) for job in q.reserve(9, block=0)]
    assert max(found) == 11
    assert q.stats().parked == 0


def test_jobs_that_came_without_a_ticket(q: Queue) -> None:
    """Those of a dedup id, a delay and a redrive need a delivery of the rate, too."""
    q.configure(key_rate="1/h", key_burst=2)
    for number in range(3):
        q.enqueue(number, key="a", dedup_id=str(number))
    assert bodies(q.reserve(9, block=0)) == [0, 1]
    assert q.stats().parked == 1
    assert q.reserve(9, block=0) == []


def test_the_rate_of_the_queue_counts_turns(q: Queue) -> None:
    """A call takes no more than both rates allow."""
    q.configure(key_rate="1/h", key_burst=9, rate="3/h", burst=3)
    q.enqueue_many(range(9), key="a")
    assert bodies(q.reserve(9, block=0)) == [0, 1, 2]
    assert q.reserve(9, block=0) == []
    assert next_ms(q) > 10_000


def test_slots_of_the_queue_bound_turns(q: Queue) -> None:
    """Keys whose time has come wait for a slot, and are no event without one."""
    q.configure(key_rate="1/h", key_burst=9, max_active=2)
    q.enqueue_many(range(5), key="a")
    held = q.reserve(9, block=0)
    assert bodies(held) == [0, 1]
    assert next_ms(q) > 10_000
    _, more = q.ack_and_reserve(held[:1], 9)
    assert bodies(more) == [2]


@pytest.mark.parametrize("side", ["in", "out"])
def test_a_pause_stops_turns(q: Queue, side: Any) -> None:
    """Nothing is delivered while the queue is paused, and what is allowed behind it."""
    q.configure(key_rate="1/h", key_burst=2)
    q.enqueue_many(range(3), key="a")
    q.pause(side)
    assert q.reserve(3, block=0) == []
    assert next_ms(q) == -1
    q.resume()
    assert bodies(q.reserve(3, block=0)) == [0, 1]


def test_partitions_have_the_whole_rate(ps: Penstock) -> None:
    """All jobs of a key are in one partition."""
    q = ps.queue("parted", partitions=4)
    settings = q.configure(key_rate="1/h", key_burst=2)
    assert settings.key_rate == "1/h"
    for key in "abcdef":
        q.enqueue_many([key] * 4, key=key)
    found = [job.body for _ in range(16) for job in q.reserve(30, block=0)]
    assert sorted(found) == sorted("abcdef" * 2)


@pytest.mark.parametrize(
    "name, value",
    [("key_rate", "5"), ("key_rate", "0/s"), ("key_rate", "1/2d"), ("key_rate", 5),
     ("key_burst", 0), ("key_burst", True), ("key_burst", 100_001)],
)  # fmt: skip
def test_what_is_no_rate(q: Queue, name: str, value: Any) -> None:
    """It is refused by name, and nothing is stored."""
    with pytest.raises(BadArgument, match=f"^{name}="):
        q.configure(**{name: value})
    assert not q.stats().exists


def check_turns(q: Queue, raw: Raw) -> None:
    """Check that exactly the keys with parked jobs are in `turns`."""
    parked = q.peek(100, state="parked")
    hashes = {str(int(view.key_hash or "", 16)).encode() for view in parked}
    assert {*raw.zrange(TURNS, 0, -1)} == hashes


def test_any_program_keeps_the_rate(q: Queue, raw: Raw) -> None:
    """Random calls: at most a burst and the rate in any span, exact turns, and nothing is stuck."""
    draws = random.Random(7)
    q.configure(key_rate="1/s", key_burst=2, lease=600)
    started: dict[str, list[float]] = defaultdict(list)
    held: list[Job] = []
    for _ in range(250):
        act = draws.choice(["add", "add", "take", "ack", "fail", "retry", "pass", "cancel"])
        if act == "add":
            key = draws.choice("abcd")
            q.enqueue_many([key] * draws.randrange(1, 4), key=key)
        elif act == "pass":
            advance(raw, q.ops, 0.7)
        elif act == "take":
            jobs = q.reserve(draws.randrange(1, 5), block=0)
            for job in jobs:
                started[job.body].append(job.delivered)
            held += jobs
        elif act == "cancel":
            q.cancel([view.id for view in q.peek(1, state="parked")])
        elif held:
            job = held.pop(draws.randrange(len(held)))
            (job.ack() if act == "ack" else job.nack(delay=0 if act == "retry" else 1))
        check_turns(q, raw)
    for times in started.values():
        assert all(later - first >= 0.999 for first, later in zip(times, times[2:], strict=False))
    assert sum(map(len, started.values())) > 20
    q.ack(held)
    while q.stats().parked:
        advance(raw, q.ops, 5)
        q.ack(q.reserve(50, block=0))
    check_invariant(raw)


def test_a_parked_job_tells_how_long_it_waits(q: Queue) -> None:
    """`show` and `jobs` have the time from which its key may have its next job."""
    q.configure(key_rate="1/h")
    ids = q.enqueue_many(range(3), key="a").ids
    waiting = q.show(ids[1])
    assert waiting is not None
    assert (waiting.state, waiting.due, waiting.next_in) == ("parked", None, None)
    q.reserve(1, block=0)
    found = {one.id: one for one in q.jobs()}
    for view in (q.show(ids[1]), found[ids[1]]):
        assert view is not None
        assert view.due is not None
        assert 3590 < view.due - view.now <= 3600
        assert view.next_in == view.due - view.now


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("way", ["delete", "cancel"])
def test_a_removal_tells_a_consumer_of_the_next_turn(real_q: Queue, waits: Waits, way: str) -> None:
    """The key has room again, and its rate allows the next job in a second."""
    real_q.configure(per_key=1, key_rate="1/s", lease=600)
    ids = real_q.enqueue_many(range(3), key="a").ids
    [job] = real_q.reserve(1, block=0)
    consumer = spawn(real_q.reserve, 1, block=60)
    waits.reach(1)
    if way == "cancel":
        real_q.cancel([ids[1]])
    real_q.delete([job.id])
    assert [job.body for job in consumer.result()] == [2 if way == "cancel" else 1]
