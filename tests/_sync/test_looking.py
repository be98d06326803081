# From tests/_async/test_looking.py by tools/unasync.py; do not edit.
"""Inspecting a queue: counts, lists, single jobs; and removing jobs by hand."""

from __future__ import annotations

import pytest

from penstock import Outcome, Penstock, Queue
from penstock.core.calls.call import Call
from penstock.wire.keys import queue_crc
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, numbers, raw_time


def fill(q: Queue, raw: Raw) -> None:
    """Put a known number of jobs into every state."""
    q.enqueue_many(range(7))
    q.bury(q.reserve(7, block=0)[:3])  # 3 dead, 4 active for 30 s
    q.enqueue_many(["orphan"] * 2, lease=5)
    q.reserve(2, block=0)  # 2 jobs, whose leases will end
    q.enqueue("once", lease=0)
    q.reserve(block=0)  # 1 active, at most once
    q.enqueue_many(["due"] * 5, delay=5)
    q.enqueue_many(["later"] * 6, delay=100)
    q.enqueue_many(["milk"] * 8, ttl=5)  # 8 expired
    q.enqueue_many(["waits"] * 9)
    advance(raw, q.ops, 6)


def test_counts_are_exact(q: Queue, raw: Raw) -> None:
    """A due job and an ended lease count as ready; expired jobs stay, and count apart."""
    fill(q, raw)
    before = dump(raw)
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (9 + 5 + 2, 6, 4 + 1)
    assert (stats.dead, stats.unswept, stats.expired) == (3, 8, 0)
    assert (stats.enqueued, stats.deliveries, stats.died) == (38, 10, 3)
    assert (stats.name, stats.exists) == ("q", True)
    assert dump(raw) == before
    taken = q.reserve(100, block=0)
    after = q.stats()
    assert len(taken) == stats.ready
    assert (after.ready, after.active, after.unswept, after.expired) == (0, 5 + 16, 0, 8)
    assert after.crashed == 2


def test_expired_jobs_in_each_place_are_distinguished(q: Queue, raw: Raw) -> None:
    """Expired jobs of each state (waiting, delayed, leased, at most once) are counted only as
    expired.

    `stats` changes nothing; `peek` removes those that it reads.
    """
    q.enqueue("delayed", delay=500, ttl=1000)
    q.enqueue("leased", lease=800, ttl=1000)
    q.enqueue("once", lease=0, ttl=1000)
    q.reserve(2, block=0)
    q.enqueue_many(range(300), ttl=1000)
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.unswept) == (300, 1, 2, 0)
    advance(raw, q.ops, 1001)
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (0, 0, 0)
    assert (stats.unswept, stats.expired) == (303, 0)
    assert q.peek() == []
    assert numbers(raw, q.ops, "expiry") == []
    for state in ("scheduled", "active", "dead"):
        assert q.peek(state=state) == []
    stats = q.stats()
    assert (stats.unswept, stats.expired) == (0, 303)
    assert q.sweep() == 0


def test_reading_jobs_makes_room(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A call that removes expired jobs wakes a producer that waits for room."""
    q.configure(max_length=1)
    q.enqueue("milk", ttl=5)
    advance(raw, q.ops, 6)
    until = round(raw_time(raw) * 1000) + 60_000
    raw.hset(q.ops.keys["meta"], "full", until)  # as a waiting producer does
    q.peek()
    assert raw.lrange(q.ops.keys["space"], 0, -1) == [b"1"]


def test_the_age_of_the_longest_waiting(q: Queue, raw: Raw) -> None:
    """The age counts from the time when the job became deliverable: enqueued, due,
    or lease ended.
    """
    assert q.stats().oldest is None
    q.enqueue("held", lease=50)
    q.reserve(block=0)
    q.enqueue("later", delay=30)
    assert q.stats().oldest is None
    advance(raw, q.ops, 40)
    assert q.stats().oldest == pytest.approx(10, abs=3)
    q.enqueue("waits")
    advance(raw, q.ops, 100)
    assert q.stats().oldest == pytest.approx(110, abs=3)
    assert sorted(job.body for job in q.reserve(3, block=0)) == ["held", "later", "waits"]
    q.enqueue("waits")
    advance(raw, q.ops, 7)
    assert q.stats().oldest == pytest.approx(7, abs=3)


def test_totals(q: Queue) -> None:
    """Each kind of event is counted since the queue was created."""
    q.enqueue_many(range(10))
    jobs = q.reserve(8, block=0)
    q.ack(jobs[:2])
    q.nack(jobs[2:4], delay=0)
    q.release(jobs[4:5])
    q.bury(jobs[5:7])
    q.redrive(limit=1)
    q.delete([jobs[7].id])
    q.purge("dead")
    q.purge("ready")
    stats = q.stats()
    assert (stats.enqueued, stats.deliveries, stats.acked, stats.nacked) == (10, 8, 2, 2)
    assert (stats.released, stats.died, stats.redriven, stats.deleted) == (1, 2, 1, 1)
    assert stats.purged == 10 - 2 - 1
    assert (stats.ready, stats.active, stats.dead) == (0, 0, 0)


def test_a_missing_queue(q: Queue, raw: Raw) -> None:
    """For a missing queue all figures are 0 and no job is found; the queue is not created."""
    before = dump(raw)
    stats = q.stats()
    assert (stats.exists, stats.ready, stats.enqueued, stats.oldest) == (False, 0, 0, None)
    for state in ("ready", "scheduled", "active", "dead"):
        assert q.peek(state=state) == []
    assert q.reserve(block=0) == []
    assert (q.purge(), q.sweep(), q.redrive()) == (0, 0, 0)
    assert dump(raw) == before


@pytest.mark.parametrize("start, n", [(0, 100), (0, 3), (2, 3), (4, 100), (99, 5)])
def test_peek_of_ready(q: Queue, raw: Raw, start: int, n: int) -> None:
    """Peek lists ready jobs in the order of reserve, and changes nothing."""
    fill(q, raw)
    q.peek()
    before = dump(raw)
    seen = q.peek(n, start=start)
    assert dump(raw) == before
    assert {view.state for view in seen} <= {"ready"}
    assert "milk" not in [view.body for view in seen]
    taken = q.reserve(100, block=0)
    assert [view.id for view in seen] == [job.id for job in taken][start : start + n]


@pytest.mark.parametrize(
    "state, bodies",
    [
        ("scheduled", ["a", "b", "c", "d"]),
        ("active", ["a", "b", "c", "d"]),
        ("dead", ["a", "b", "c", "d"]),
    ],
)
def test_peek_of_the_other_states(q: Queue, state: str, bodies: list[str]) -> None:
    """Peek sorts by due time, end of lease or time of death, with `start` and a number."""
    for place, body in enumerate(bodies):
        if state == "scheduled":
            q.enqueue(body, delay=60 + place)
        else:
            q.enqueue(body, lease=60 + place)
    if state != "scheduled":
        jobs = q.reserve(4, block=0)
        if state == "dead":
            for job in jobs:
                job.bury()
    views = q.peek(state=state)
    assert [view.body for view in views] == bodies
    assert {view.state for view in views} == {state}
    assert [view.body for view in q.peek(2, state=state, start=1)] == bodies[1:3]
    assert q.peek(state=state, start=4) == []


def test_peek_of_active_shows_both_kinds(q: Queue) -> None:
    """Peek lists leased jobs first and then jobs with lease 0; `start` counts through both."""
    q.enqueue_many(["leased"] * 3)
    q.enqueue_many(["once"] * 3, lease=0)
    q.reserve(6, block=0)
    every = q.peek(10, state="active")
    assert [view.body for view in every] == ["leased"] * 3 + ["once"] * 3
    for start in range(7):
        part = q.peek(2, state="active", start=start)
        assert [view.id for view in part] == [view.id for view in every[start : start + 2]]


def test_peek_through_a_long_queue(q: Queue) -> None:
    """Peek reads a long queue in pages, larger than one page of a script."""
    q.enqueue_many(range(450))
    q.enqueue_many(range(450), delay=60)
    for state in ("ready", "scheduled"):
        pages = [q.peek(130, state=state, start=at) for at in range(0, 450, 130)]
        assert [view.body for page in pages for view in page] == list(range(450))


def test_peek_reads_about_a_mebibyte(q: Queue) -> None:
    """Large bodies need several pages; a page has at least one job."""
    q.enqueue_many(b"x" * 400_000 for _ in range(6))
    first = q.peek(6)
    assert 1 <= len(first) < 6
    assert len(q.peek(6, start=5)) == 1


def test_show_of_a_waiting_job(q: Queue) -> None:
    """`show` of a waiting job returns the producer's data, and no delivery."""
    done = q.enqueue({"a": [1]}, headers={"h": "v"}, lease=7, ttl=70, delay=3)
    view = q.show(done.id)
    assert view is not None
    assert (view.id, view.queue, view.state) == (done.id, "q", "scheduled")
    assert (view.body, view.raw, view.codec) == ({"a": [1]}, b'{"a":[1]}', "json")
    assert (view.headers, view.lease) == ({"h": "v"}, 7)
    assert view.due == pytest.approx(view.created + 3)
    assert view.expires == pytest.approx(view.created + 70)
    assert (view.lease_until, view.died, view.delivered, view.owner) == (None, None, None, "")
    assert (view.deliveries, view.attempts, view.nacks, view.error) == (0, 0, 0, "")


def test_show_of_a_job_of_any_queue(ps: Penstock, q: Queue) -> None:
    """The client finds the queue of an id."""
    added = q.enqueue("milk")
    view = ps.show(added.id)
    assert view is not None
    assert (view.id, view.queue, view.body) == (added.id, "q", "milk")
    q.clear()
    assert ps.show(added.id) is None


def test_show_through_the_life_of_a_job(q: Queue, raw: Raw) -> None:
    """`show`, by id or by delivery, has state, counters, owner and last error at each step."""
    done = q.enqueue("x", lease=20)
    seen = []

    def look() -> None:
        view = q.show(done.id)
        assert view is not None
        seen.append((view.state, view.deliveries, view.attempts, view.owner, view.error))

    look()
    (job,) = q.reserve(block=0)
    look()
    job.nack(delay=60, error="oops")
    look()
    advance(raw, q.ops, 61)
    look()
    (job,) = q.reserve(block=0)
    advance(raw, q.ops, 21)
    look()
    (job,) = q.reserve(block=0)
    job.bury("enough")
    look()
    assert seen == [
        ("ready", 0, 0, "", ""),
        ("active", 1, 1, "tester", ""),
        ("scheduled", 1, 1, "tester", "oops"),
        ("ready", 1, 1, "tester", "oops"),
        ("ready", 2, 1, "tester", "oops"),  # the end of a lease counts when the job is taken
        ("dead", 3, 3, "tester", "enough"),
    ]
    by_delivery = q.show(job)
    assert by_delivery is not None
    assert by_delivery.id == done.id
    q.delete([done.id])
    assert q.show(done.id) is None


def test_show_of_an_expired_job(q: Queue, raw: Raw) -> None:
    """`show` reports an expired job as expired until a sweep removes it."""
    done = q.enqueue("x", ttl=10)
    once = q.enqueue("x", ttl=10, lease=0)
    (_, job) = q.reserve(2, block=0)
    advance(raw, q.ops, 11)
    for name in (done.id, once.id, job):
        view = q.show(name)
        assert view is not None
        assert view.state == "expired"
    q.sweep()
    assert q.show(done.id) is None


def test_delete_in_every_state(q: Queue, raw: Raw) -> None:
    """Deleted jobs leave no data in any state; their holders' calls find them gone."""
    q.enqueue_many(["dead", "active"], ttl=600)
    dead, active = q.reserve(2, block=0)
    dead.bury()
    once = q.enqueue("once", lease=0)
    (held,) = q.reserve(block=0)
    later = q.enqueue("later", delay=60, ttl=600)
    ready = q.enqueue("ready", ttl=600)
    ids = [dead.id, active.id, once.id, later.id, ready.id]
    assert list(q.delete([*ids, ids[0]])) == [Outcome.DONE] * 6
    assert [kind for kind in q.ops.keys.names if numbers_left(raw, q, kind)] == []
    assert active.ack() is False
    assert held.ack() is False
    assert q.stats().deleted == 5
    assert list(q.delete(ids)) == [Outcome.GONE] * 5


def numbers_left(raw: Raw, q: Queue, kind: str) -> bool:
    """Tell if a structure of jobs still has entries."""
    return kind not in ("meta", "wake", "space") and bool(numbers(raw, q.ops, kind))


@pytest.mark.parametrize(
    "states, left",
    [
        ((), {"active": 5, "dead": 3}),
        (("ready",), {"scheduled": 6, "active": 5, "dead": 3}),
        (("scheduled",), {"ready": 16, "active": 5, "dead": 3, "expired": 8}),
        (("dead",), {"ready": 16, "scheduled": 6, "active": 5, "expired": 8}),
        (("active",), {"ready": 16, "scheduled": 6, "dead": 3, "expired": 8}),
        (("ready", "scheduled", "active", "dead"), {}),
    ],
)
def test_purge(q: Queue, raw: Raw, states: tuple[str, ...], left: object) -> None:
    """Purge removes and counts the jobs of the named states; the default is ready and scheduled."""
    fill(q, raw)
    total = 9 + 5 + 2 + 6 + 4 + 1 + 3 + 8
    removed = q.purge(*states)
    stats = q.stats()
    counts = {
        "ready": stats.ready,
        "scheduled": stats.scheduled,
        "active": stats.active,
        "dead": stats.dead,
        "expired": stats.unswept,
    }
    assert removed == stats.purged == total - sum(counts.values())
    assert {state: count for state, count in counts.items() if count} == left


def test_purge_of_a_long_queue(q: Queue) -> None:
    """A long queue is purged in bounded steps; later jobs have higher numbers and are delivered."""
    first = q.enqueue_many(range(2500))
    q.enqueue_many(range(1500), delay=60)
    assert q.purge() == 4000
    after = q.enqueue("after")
    assert after.id > first[-1].id
    assert [job.id for job in q.reserve(5, block=0)] == [after.id]


@pytest.mark.parametrize("state", ["ready", "scheduled", "dead"])
def test_a_purge_leaves_jobs_added_after_its_start(
    backend: Backend, q: Queue, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A purge ends although a producer keeps adding jobs, and does not remove these."""
    delay = 60 if state == "scheduled" else 0
    q.enqueue_many(range(1200), delay=delay)
    if state == "dead":
        q.bury(q.reserve(1200, block=0))
    beside = Penstock(backend.sync_client()).queue("q")
    step = q.ops.purge

    def purge(which: str, fence: bytes | str, skip: int) -> Call:
        if fence and not beside.stats().enqueued > 1200:
            beside.enqueue("after", delay=delay)
            if state == "dead":
                beside.bury(beside.reserve(1, block=0))
        return step(which, fence, skip)

    monkeypatch.setattr(q.ops, "purge", purge)
    assert q.purge(state) == 1200
    assert [view.body for view in q.peek(state=state)] == ["after"]


def test_purge_of_long_bodies_with_a_ttl(q: Queue) -> None:
    """Purged jobs with a ttl are removed from the index of ttls too."""
    q.enqueue_many((b"x" * 50_000 for _ in range(60)), ttl=600)
    q.enqueue_many(range(1200), ttl=600)
    assert q.purge("ready") == 1260
    stats = q.stats()
    assert (stats.ready, stats.unswept) == (0, 0)


def test_a_holder_of_a_purged_job(q: Queue) -> None:
    """When an active job was purged, its holder's ack finds it gone."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    assert q.purge("active") == 1
    assert job.ack() is False
    assert q.stats().acked == 0


def test_queues_are_listed_by_name(ps: Penstock, raw: Raw) -> None:
    """Existing queues are listed by name; stale registry entries are left out."""
    assert ps.queues() == []
    for name in ("b", "a/ü", "{c}", "a"):
        ps.queue(name).enqueue(1)
    ps.queue("configured").configure(max_length=5)
    raw.hset("penstock:queues", "0123456789abcdef", "never made")
    raw.hset("penstock:queues", "000000001f2e3d4c", "")  # the checksum of no text
    part = "q\0/300-aaa"  # there are 256 partitions at most
    raw.hset("penstock:queues", f"{queue_crc(part):08x}1f2e3d4c", part)
    assert ps.info().registered_queues == 5
    assert len(ps.scan_queues().queues) == 5
    assert ps.queues() == ["a", "a/ü", "b", "configured", "{c}"]


def test_times_are_the_servers(q: Queue, raw: Raw) -> None:
    """Times are those of the server, in seconds since 1970 with milliseconds."""
    before = raw_time(raw)
    done = q.enqueue("x")
    (job,) = q.reserve(block=0)
    job.bury()
    view = q.show(done.id)
    after = raw_time(raw)
    assert view is not None
    assert view.delivered is not None
    assert view.died is not None
    assert before - 0.001 <= view.created <= view.delivered <= view.died <= after


def test_handles_stand_for_ids(ps: Penstock, q: Queue) -> None:
    """What `enqueue` returns, and what `show` and `peek` do, are taken wherever an id is."""
    added, other = q.enqueue("x", delay=60, result_ttl=60), q.enqueue("y")
    view = q.show(added)
    assert view is not None
    assert view.id == added.id
    assert [one and one.id for one in (ps.show(added), q.show(view))] == [added.id] * 2
    assert q.chains.status(added).id == added.id
    assert [*q.promote([added])] == [Outcome.DONE]
    q.reserve(2)
    assert [*q.bury([view, other], "no")] == [Outcome.DONE] * 2
    assert q.redrive(q.peek(state="dead")) == 2
    q.reserve(2)
    assert [*ps.ack([added])] == [*q.ack([other])] == [Outcome.DONE]
    assert ps.result(added, timeout=0) is q.result(added, timeout=0) is None
    assert [*q.delete([added, view])] == [Outcome.GONE] * 2
