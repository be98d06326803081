# From tests/_async/test_share.py by tools/unasync.py; do not edit.
"""A share of the line for each key, which leaves no consumer idle."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from penstock import BadArgument, Job, Queue
from penstock.client._acompat import sleep
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, check_invariant
from tests.support.twins import spawn

from .conftest import Waits

SLOTS = 8
TENANTS = list("abcd")
TURNS = "penstock:{q}:turns"


def waiting_keys(raw: Raw) -> dict[str, float]:
    """Return the keys of TENANTS that are in `turns`, and since when."""
    names = {str(int(key_hash(key), 16)): key for key in TENANTS}
    return {names[one.decode()]: at for one, at in raw.zrange(TURNS, 0, -1, withscores=True)}


def bodies(jobs: list[Job]) -> list[Any]:
    """Return the bodies of jobs."""
    return [job.body for job in jobs]


def test_a_tenant_alone_uses_every_slot(q: Queue, raw: Raw) -> None:
    """Its jobs above the share are parked, and each call takes as many as it asks for."""
    settings = q.configure(share=1)
    assert (settings.share, q.stats().settings.share) == (1, 1)
    q.enqueue_many(range(20), key="a")
    assert q.stats().parked == 19
    held = q.reserve(SLOTS, block=0)
    done = bodies(held)
    while held:
        _, more = q.ack_and_reserve([held.pop(0)], 1)
        done += bodies(more)
        held += more
        assert len(held) == min(SLOTS, 20 - len(done) + len(held))
    assert done == [*range(20)]
    assert not raw.exists(TURNS)
    check_invariant(raw)


def test_one_job_of_each_in_turn(q: Queue, raw: Raw) -> None:
    """Keys with parked jobs share the free slots, also over several calls."""
    q.configure(share=1)
    for key in TENANTS:
        q.enqueue_many([key] * 10, key=key)
    assert bodies(q.reserve(4, block=0)) == TENANTS
    assert {*waiting_keys(raw)} == {*TENANTS}
    taken: Counter[Any] = Counter()
    for n in (3, 1, 2, 2, 1, 3):
        taken += Counter(bodies(q.reserve(n, block=0)))
        sleep(0.002)  # two turns in one ms are in the order of their hashes
    assert set(taken.values()) == {3}


def test_a_new_tenant_beside_a_flood(q: Queue) -> None:
    """Its job gets the first slot that becomes free."""
    q.configure(share=1)
    q.enqueue_many(["flood"] * 100, key="a")
    held = q.reserve(SLOTS, block=0)
    q.enqueue_many(["small"] * 2, key="b")
    order = []
    for _ in range(4):
        held.pop(0).ack()
        held += q.reserve(1, block=0)
        order.append(held[-1].body)
        sleep(0.002)  # two turns in one ms are in the order of their hashes
    assert order[0] == "small"
    assert order.count("small") == 2


def test_other_jobs_come_first(q: Queue) -> None:
    """A parked job is taken only if nothing else waits; a priority comes before all."""
    q.configure(share=1)
    q.enqueue_many(["a"] * 3, key="a")
    q.enqueue("plain")
    q.enqueue("urgent", key="b", priority=5)
    assert bodies(q.reserve(5, block=0)) == ["urgent", "a", "plain", "a", "a"]


@pytest.mark.usefixtures("no_ticks")
def test_a_parked_job_wakes_a_consumer(q: Queue, waits: Waits) -> None:
    """An idle consumer gets a job above the share as soon as it is added."""
    q.configure(share=1)
    q.enqueue("first", key="a")
    [first] = q.reserve(1, block=0)
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.enqueue("second", key="a")
    [second] = consumer.result()
    assert second.body == "second"
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.configure(per_key=2)
    q.enqueue("third", key="a")
    first.ack()
    assert bodies(consumer.result()) == ["third"]


@pytest.mark.usefixtures("no_ticks")
def test_an_end_wakes_a_consumer_for_the_next_turn(q: Queue, waits: Waits) -> None:
    """A key that was at its limit may have a job more."""
    q.configure(share=1, per_key=2)
    q.enqueue_many(range(3), key="a")
    held = q.reserve(3, block=0)
    assert bodies(held) == [0, 1]
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    held[0].ack()
    assert bodies(consumer.result()) == [2]


@pytest.mark.parametrize("end", ["ack", "nack", "bury", "delete", "cancel", "purge"])
def test_keys_leave_turns(q: Queue, raw: Raw, end: str) -> None:
    """A key without parked jobs is not in `turns`, however they ended."""
    q.configure(share=1)
    ids = q.enqueue_many(["a"] * 2, key="a").ids
    q.enqueue_many(["b"] * 3, key="b")
    assert {*waiting_keys(raw)} == {"a", "b"}
    if end in ("ack", "nack", "bury"):
        job = q.reserve(1, block=0)[0]
        (job.nack(delay=60) if end == "nack" else getattr(job, end)())
        assert {*waiting_keys(raw)} == {"b"}
    elif end == "purge":
        q.purge("parked")
        assert not raw.exists(TURNS)
    else:
        getattr(q, end)([ids[1]])
        assert {*waiting_keys(raw)} == {"b"}


def test_it_is_changed_while_jobs_wait(q: Queue, raw: Raw) -> None:
    """Set, dropped, beside a limit, and behind an order: nothing is stuck."""
    q.enqueue_many(range(12), key="a")
    q.configure(share=1)
    assert bodies(q.reserve(4, block=0)) == [0]  # this call parks the others
    assert bodies(q.reserve(2, block=0)) == [1, 2]
    q.configure(per_key=4)
    assert bodies(q.reserve(9, block=0)) == [3]
    q.configure(share=None)
    assert not raw.exists(TURNS)
    assert bodies(q.reserve(9, block=0)) == []
    q.configure(ordered=True, share=2, per_key=None)
    assert bodies(q.reserve(9, block=0)) == []
    assert not raw.exists(TURNS)
    q.configure(ordered=None)
    found = [job for _ in range(3) for job in q.reserve(4, block=0)]
    assert bodies(found) == [*range(4, 12)]
    assert not raw.exists(TURNS)


def test_an_ordered_queue_has_no_share(q: Queue, raw: Raw) -> None:
    """One job of a key at a time, in order, whatever the share is."""
    q.configure(ordered=True, share=3)
    q.enqueue_many(range(3), key="a")
    for number in range(3):
        [job] = q.reserve(5, block=0)
        assert job.body == number
        assert not raw.exists(TURNS)
        job.ack()


def test_the_rate_counts_turns(q: Queue) -> None:
    """A call takes no more parked jobs than the rate allows."""
    q.configure(share=1, rate="3/h", burst=3)
    q.enqueue_many(range(9), key="a")
    assert bodies(q.reserve(9, block=0)) == [0, 1, 2]
    assert q.reserve(9, block=0) == []


@pytest.mark.parametrize("side", ["in", "out"])
def test_a_pause_stops_turns(q: Queue, side: Any) -> None:
    """Parked jobs are not delivered while the queue is paused, and all of them behind it."""
    q.configure(share=1)
    q.enqueue_many(range(3), key="a")
    [first] = q.reserve(1, block=0)
    q.pause(side)
    assert q.reserve(3, block=0) == []
    q.resume()
    assert bodies(q.reserve(3, block=0)) == [1, 2]
    first.ack()


@pytest.mark.parametrize("share", [0, -1, 1.5, True, "1"])
def test_a_share_that_is_none(q: Queue, share: Any) -> None:
    """It is refused by name, and nothing is stored."""
    with pytest.raises(BadArgument, match=r"^share="):
        q.configure(share=share)
    assert not q.stats().exists


def test_any_program_ends(q: Queue, raw: Raw) -> None:
    """Random calls leave exactly the keys in `turns` that may be delivered, and no slot idle."""
    draws = random.Random(5)
    q.configure(share=1)
    held: list[Job] = []
    for _ in range(150):
        act = draws.choice(["add", "add", "take", "ack", "fail", "retry", "settle"])
        if act == "add":
            q.enqueue_many(range(draws.randrange(1, 4)), key=draws.choice(TENANTS))
        elif act == "take":
            held += q.reserve(2, block=0)
            stats = q.stats()
            assert held or not stats.parked
        elif held:
            job = held.pop(draws.randrange(len(held)))
            if act == "settle":
                held += q.ack_and_reserve([job], 1)[1]
            else:
                (job.ack() if act == "ack" else job.nack(delay=60 * (act == "fail")))
        parked = q.peek(100, state="parked")
        hashes = {str(int(view.key_hash or "", 16)).encode() for view in parked}
        assert {*raw.zrange(TURNS, 0, -1)} == hashes
    check_invariant(raw)
