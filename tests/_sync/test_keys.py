# From tests/_async/test_keys.py by tools/unasync.py; do not edit.
"""Limits per key through the client."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import BadArgument, Dedup, Queue
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, advance, check_invariant
from tests.support.twins import spawn

from .conftest import Waits


def test_a_limit_per_key(q: Queue, raw: Raw) -> None:
    """At most so many jobs of a key are delivered at once; others pass by, and it can be raised."""
    settings = q.configure(per_key=2)
    assert (settings.per_key, settings.ordered) == (2, None)
    q.enqueue_many([b"1", b"2", b"3", b"4"], key="a")
    q.enqueue_many([b"5", b"6"])
    jobs = q.reserve(10, block=0)
    assert [job.body for job in jobs] == [b"1", b"2", b"5", b"6"]
    stats = q.stats()
    assert (stats.ready, stats.active, stats.parked) == (0, 4, 2)
    q.configure(per_key=4)
    jobs[0].ack()
    assert [job.body for job in q.reserve(10, block=0)] == [b"3", b"4"]
    check_invariant(raw)


def test_jobs_from_before_the_limit(q: Queue) -> None:
    """The limit holds for jobs that waited when it was set."""
    q.enqueue_many([b"1", b"2", b"3"], key="a")
    q.configure(per_key=1)
    [job] = q.reserve(10, block=0)
    assert job.body == b"1"
    assert q.stats().parked == 2


def test_an_ordered_queue(q: Queue) -> None:
    """A failed job keeps its key until it has ended, also behind jobs from before the setting."""
    q.enqueue_many([b"1", b"2"], key="a")
    assert q.configure(ordered=True).ordered
    q.enqueue(b"3", key="a")
    seen = []
    while jobs := q.reserve(10, block=0):
        [job] = jobs
        seen.append((job.body, job.attempt))
        if job.body == b"2" and job.attempt == 1:
            job.nack(delay=0)
        else:
            job.ack()
    assert seen == [(b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1)]
    assert q.configure(ordered=False).ordered is None


def test_a_redrive_while_a_job_waits_for_its_next_try(q: Queue) -> None:
    """The key still waits for that job: the redriven one comes next, before later jobs."""
    q.configure(ordered=True)
    dead, failed, last = [added.id for added in q.enqueue_many([b"1", b"2", b"3"], key="a")]
    q.reserve(1, block=0)[0].bury("no use")
    q.reserve(1, block=0)[0].nack(delay=60)
    assert q.redrive([dead]) == 1
    assert q.reserve(10, block=0) == []
    assert q.promote([failed])
    seen = []
    while jobs := q.reserve(10, block=0):
        [job] = jobs
        seen.append(job.id)
        job.ack()
    assert seen == [failed, dead, last]


def test_a_key_may_be_computed(q: Queue) -> None:
    """In bulk, a function gives the key of each body; also with dedup ids."""
    q.configure(per_key=1)
    q.enqueue_many([b"a1", b"b1", b"a2"], key=lambda body: body[:1].decode())
    assert [job.body for job in q.reserve(10, block=0)] == [b"a1", b"b1"]
    q.enqueue(b"a3", key="a", dedup=Dedup("x"))
    assert q.reserve(10, block=0) == []
    again = q.enqueue(b"a4", key="b", dedup=Dedup("x", on_duplicate="update"))
    assert (again.state, again.action) == ("parked", "updated")


def test_parked_jobs_are_shown(q: Queue) -> None:
    """Readers show the state and the hash of the key; purge removes parked jobs."""
    q.configure(per_key=1)
    results = list(q.enqueue_many([b"1", b"2"], key="a"))
    view = q.show(results[1].id)
    assert view is not None
    assert (view.state, view.key_hash, view.due) == ("parked", key_hash("a"), None)
    assert [job.id for job in q.peek(5, state="parked")] == [results[1].id]
    assert [job.id for job in q.jobs("parked").page().jobs] == [results[1].id]
    assert q.purge("parked") == 1
    assert q.stats().parked == 0


@pytest.mark.parametrize("key", ["", "x" * 1025, 5, b"a"])
def test_a_key_that_is_none(q: Queue, key: object) -> None:
    """A key is a str of 1 to 1024 bytes."""
    with pytest.raises(BadArgument) as caught:
        q.enqueue(b"1", key=key)  # type: ignore[arg-type]
    assert caught.value.argument == "key"


def test_a_call_parks_a_bounded_number_of_jobs(q: Queue, raw: Raw) -> None:
    """A reserve parks 1,000 due jobs and as many ready ones, and then there is more: a limit that
    is set late delays the jobs of other keys by a call for each 1,000 jobs.
    """
    q.enqueue_many([b"due"] * 1200, key="a", delay=0.001)
    q.enqueue_many([b"ready"] * 1900, key="a")
    q.enqueue(b"other")
    q.configure(per_key=1)
    advance(raw, q.ops, 1)
    parked, bodies = [], []
    for _ in range(3):
        taken = q.route.node.executor.run(q.ops.reserve(5))
        bodies += [job.body for job in taken.deliveries]
        parked.append(q.stats().parked)
        assert taken.next_ms == 0 or bodies[1:]
    assert (bodies, parked) == ([b"due", b"other"], [2000, 3000, 3099])


LOOSER: Any = [
    ({"per_key": 1}, {"per_key": 3}),
    ({"per_key": 1}, {"per_key": None}),
    ({"ordered": True}, {"ordered": False}),
]


@pytest.mark.parametrize("before, after", LOOSER)
@pytest.mark.usefixtures("no_ticks")
def test_a_looser_limit_holds_at_once(
    q: Queue, raw: Raw, waits: Waits, before: Any, after: Any
) -> None:
    """A consumer that waits is woken, and gets the parked jobs of each key, without the end of a
    job or a sweep. The next calls do not look at the keys again.
    """
    q.configure(**before)
    q.enqueue_many([b"a1", b"b1", b"a2", b"b2"], key=lambda body: body[:1].decode())
    assert len(q.reserve(10, block=0)) == 2
    consumer = spawn(q.reserve, 10, block=30)
    waits.reach(1)
    q.configure(**after)
    assert [job.body for job in consumer.result()] == [b"a2", b"b2"]
    assert raw.hget(q.ops.keys["meta"], "recheck") is None


def test_a_looser_limit_of_many_keys(q: Queue, raw: Raw) -> None:
    """A call looks at n + 100 keys with parked jobs, and tells that there is more."""
    q.configure(per_key=1)
    for _ in range(2):
        q.enqueue_many(range(250), key=str)
    assert len(q.reserve(250, block=0)) == 250
    q.configure(per_key=2)
    seen = []
    for _ in range(3):
        taken = q.route.node.executor.run(q.ops.reserve(20))
        seen.append((len(taken.deliveries), taken.next_ms, q.stats().parked))
    assert seen == [(0, 0, 130), (20, 0, 10), (20, 0, 0)]
    assert raw.hget(q.ops.keys["meta"], "recheck") is None


def test_a_looser_limit_of_a_key_with_many_jobs(q: Queue) -> None:
    """A call admits one job of each key and 100 in addition, until none is parked."""
    q.configure(per_key=1)
    q.enqueue_many([b"a"] * 300 + [b"b"] * 2, key=lambda body: body.decode())
    assert len(q.reserve(10, block=0)) == 2
    q.configure(per_key=None)
    replies = [q.route.node.executor.run(q.ops.reserve(1000)) for _ in range(4)]
    assert [len(one.deliveries) for one in replies] == [0, 102, 101, 97]
    assert [one.next_ms == 0 for one in replies] == [True, True, True, False]


def test_one_call_admits_jobs_of_thousands_of_keys(real_q: Queue, real_raw: Raw) -> None:
    """Jobs of 1,000 keys are acknowledged and those of 2,000 keys expire while all keys are
    rechecked: the call admits more jobs than one command can name, and loses none.
    """
    q, keys = real_q, sorted(map(str, range(4100)), key=key_hash)
    q.configure(per_key=1)
    q.enqueue_many(keys[:2100], key=str, lease=3600)
    jobs = [job for _ in range(3) for job in q.reserve(1000, block=0)]
    q.enqueue_many(keys[2100:], key=str, ttl=60)
    q.enqueue_many(keys, key=str)
    q.configure(per_key=2)
    advance(real_raw, q.ops, 61)
    acknowledged = [job for job in jobs if job.body in keys[1100:2100]]
    settled = q.route.node.executor.run(q.ops.settle(acknowledged, 1))
    assert (settled.outcomes.all_done, settled.taken.next_ms) == (True, 0)
    left, taken = q.stats(), len(settled.taken.deliveries)
    assert (left.active - taken, left.ready + left.parked + taken) == (1100, 4100)
    check_invariant(real_raw, q.ops)


def test_an_end_admits_a_bounded_number_of_jobs(q: Queue) -> None:
    """When a limit is raised, an end admits one job and 100 in addition."""
    q.configure(per_key=1)
    q.enqueue_many([b"x"] * 300, key="a")
    [job] = q.reserve(1, block=0)
    q.configure(per_key=1000)
    job.ack()
    assert q.stats().parked == 299 - 101
