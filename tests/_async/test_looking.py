"""Inspecting a queue: counts, lists, single jobs; and removing jobs by hand."""

from __future__ import annotations

import pytest

from penstock import AsyncPenstock, AsyncQueue, Outcome, Penstock
from penstock.core.calls.call import Call
from penstock.wire.keys import queue_crc
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, numbers, raw_time


async def fill(q: AsyncQueue, raw: Raw) -> None:
    """Put a known number of jobs into every state."""
    await q.enqueue_many(range(7))
    await q.bury((await q.reserve(7, block=0))[:3])  # 3 dead, 4 active for 30 s
    await q.enqueue_many(["orphan"] * 2, lease=5)
    await q.reserve(2, block=0)  # 2 jobs, whose leases will end
    await q.enqueue("once", lease=0)
    await q.reserve(block=0)  # 1 active, at most once
    await q.enqueue_many(["due"] * 5, delay=5)
    await q.enqueue_many(["later"] * 6, delay=100)
    await q.enqueue_many(["milk"] * 8, ttl=5)  # 8 expired
    await q.enqueue_many(["waits"] * 9)
    advance(raw, q.ops, 6)


async def test_counts_are_exact(q: AsyncQueue, raw: Raw) -> None:
    """A due job and an ended lease count as ready; expired jobs stay, and count apart."""
    await fill(q, raw)
    before = dump(raw)
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (9 + 5 + 2, 6, 4 + 1)
    assert (stats.dead, stats.unswept, stats.expired) == (3, 8, 0)
    assert (stats.enqueued, stats.deliveries, stats.died) == (38, 10, 3)
    assert (stats.name, stats.exists) == ("q", True)
    assert dump(raw) == before
    taken = await q.reserve(100, block=0)
    after = await q.stats()
    assert len(taken) == stats.ready
    assert (after.ready, after.active, after.unswept, after.expired) == (0, 5 + 16, 0, 8)
    assert after.crashed == 2


async def test_expired_jobs_in_each_place_are_distinguished(q: AsyncQueue, raw: Raw) -> None:
    """Expired jobs of each state (waiting, delayed, leased, at most once) are counted only as
    expired.

    `stats` changes nothing; `peek` removes those that it reads.
    """
    await q.enqueue("delayed", delay=500, ttl=1000)
    await q.enqueue("leased", lease=800, ttl=1000)
    await q.enqueue("once", lease=0, ttl=1000)
    await q.reserve(2, block=0)
    await q.enqueue_many(range(300), ttl=1000)
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.unswept) == (300, 1, 2, 0)
    advance(raw, q.ops, 1001)
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (0, 0, 0)
    assert (stats.unswept, stats.expired) == (303, 0)
    assert await q.peek() == []
    assert numbers(raw, q.ops, "expiry") == []
    for state in ("scheduled", "active", "dead"):
        assert await q.peek(state=state) == []
    stats = await q.stats()
    assert (stats.unswept, stats.expired) == (0, 303)
    assert await q.sweep() == 0


async def test_reading_jobs_makes_room(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A call that removes expired jobs wakes a producer that waits for room."""
    await q.configure(max_length=1)
    await q.enqueue("milk", ttl=5)
    advance(raw, q.ops, 6)
    until = round(raw_time(raw) * 1000) + 60_000
    raw.hset(q.ops.keys["meta"], "full", until)  # as a waiting producer does
    await q.peek()
    assert raw.lrange(q.ops.keys["space"], 0, -1) == [b"1"]


async def test_the_age_of_the_longest_waiting(q: AsyncQueue, raw: Raw) -> None:
    """The age counts from the time when the job became deliverable: enqueued, due,
    or lease ended.
    """
    assert (await q.stats()).oldest is None
    await q.enqueue("held", lease=50)
    await q.reserve(block=0)
    await q.enqueue("later", delay=30)
    assert (await q.stats()).oldest is None
    advance(raw, q.ops, 40)
    assert (await q.stats()).oldest == pytest.approx(10, abs=3)
    await q.enqueue("waits")
    advance(raw, q.ops, 100)
    assert (await q.stats()).oldest == pytest.approx(110, abs=3)
    assert sorted(job.body for job in await q.reserve(3, block=0)) == ["held", "later", "waits"]
    await q.enqueue("waits")
    advance(raw, q.ops, 7)
    assert (await q.stats()).oldest == pytest.approx(7, abs=3)


async def test_totals(q: AsyncQueue) -> None:
    """Each kind of event is counted since the queue was created."""
    await q.enqueue_many(range(10))
    jobs = await q.reserve(8, block=0)
    await q.ack(jobs[:2])
    await q.nack(jobs[2:4], delay=0)
    await q.release(jobs[4:5])
    await q.bury(jobs[5:7])
    await q.redrive(limit=1)
    await q.delete([jobs[7].id])
    await q.purge("dead")
    await q.purge("ready")
    stats = await q.stats()
    assert (stats.enqueued, stats.deliveries, stats.acked, stats.nacked) == (10, 8, 2, 2)
    assert (stats.released, stats.died, stats.redriven, stats.deleted) == (1, 2, 1, 1)
    assert stats.purged == 10 - 2 - 1
    assert (stats.ready, stats.active, stats.dead) == (0, 0, 0)


async def test_a_missing_queue(q: AsyncQueue, raw: Raw) -> None:
    """For a missing queue all figures are 0 and no job is found; the queue is not created."""
    before = dump(raw)
    stats = await q.stats()
    assert (stats.exists, stats.ready, stats.enqueued, stats.oldest) == (False, 0, 0, None)
    for state in ("ready", "scheduled", "active", "dead"):
        assert await q.peek(state=state) == []
    assert await q.reserve(block=0) == []
    assert (await q.purge(), await q.sweep(), await q.redrive()) == (0, 0, 0)
    assert dump(raw) == before


@pytest.mark.parametrize("start, n", [(0, 100), (0, 3), (2, 3), (4, 100), (99, 5)])
async def test_peek_of_ready(q: AsyncQueue, raw: Raw, start: int, n: int) -> None:
    """Peek lists ready jobs in the order of reserve, and changes nothing."""
    await fill(q, raw)
    await q.peek()
    before = dump(raw)
    seen = await q.peek(n, start=start)
    assert dump(raw) == before
    assert {view.state for view in seen} <= {"ready"}
    assert "milk" not in [view.body for view in seen]
    taken = await q.reserve(100, block=0)
    assert [view.id for view in seen] == [job.id for job in taken][start : start + n]


@pytest.mark.parametrize(
    "state, bodies",
    [
        ("scheduled", ["a", "b", "c", "d"]),
        ("active", ["a", "b", "c", "d"]),
        ("dead", ["a", "b", "c", "d"]),
    ],
)
async def test_peek_of_the_other_states(q: AsyncQueue, state: str, bodies: list[str]) -> None:
    """Peek sorts by due time, end of lease or time of death, with `start` and a number."""
    for place, body in enumerate(bodies):
        if state == "scheduled":
            await q.enqueue(body, delay=60 + place)
        else:
            await q.enqueue(body, lease=60 + place)
    if state != "scheduled":
        jobs = await q.reserve(4, block=0)
        if state == "dead":
            for job in jobs:
                await job.bury()
    views = await q.peek(state=state)
    assert [view.body for view in views] == bodies
    assert {view.state for view in views} == {state}
    assert [view.body for view in await q.peek(2, state=state, start=1)] == bodies[1:3]
    assert await q.peek(state=state, start=4) == []


async def test_peek_of_active_shows_both_kinds(q: AsyncQueue) -> None:
    """Peek lists leased jobs first and then jobs with lease 0; `start` counts through both."""
    await q.enqueue_many(["leased"] * 3)
    await q.enqueue_many(["once"] * 3, lease=0)
    await q.reserve(6, block=0)
    every = await q.peek(10, state="active")
    assert [view.body for view in every] == ["leased"] * 3 + ["once"] * 3
    for start in range(7):
        part = await q.peek(2, state="active", start=start)
        assert [view.id for view in part] == [view.id for view in every[start : start + 2]]


async def test_peek_through_a_long_queue(q: AsyncQueue) -> None:
    """Peek reads a long queue in pages, larger than one page of a script."""
    await q.enqueue_many(range(450))
    await q.enqueue_many(range(450), delay=60)
    for state in ("ready", "scheduled"):
        pages = [await q.peek(130, state=state, start=at) for at in range(0, 450, 130)]
        assert [view.body for page in pages for view in page] == list(range(450))


async def test_peek_reads_about_a_mebibyte(q: AsyncQueue) -> None:
    """Large bodies need several pages; a page has at least one job."""
    await q.enqueue_many(b"x" * 400_000 for _ in range(6))
    first = await q.peek(6)
    assert 1 <= len(first) < 6
    assert len(await q.peek(6, start=5)) == 1


async def test_show_of_a_waiting_job(q: AsyncQueue) -> None:
    """`show` of a waiting job returns the producer's data, and no delivery."""
    done = await q.enqueue({"a": [1]}, headers={"h": "v"}, lease=7, ttl=70, delay=3)
    view = await q.show(done.id)
    assert view is not None
    assert (view.id, view.queue, view.state) == (done.id, "q", "scheduled")
    assert (view.body, view.raw, view.codec) == ({"a": [1]}, b'{"a":[1]}', "json")
    assert (view.headers, view.lease) == ({"h": "v"}, 7)
    assert view.due == pytest.approx(view.created + 3)
    assert view.expires == pytest.approx(view.created + 70)
    assert (view.lease_until, view.died, view.delivered, view.owner) == (None, None, None, "")
    assert (view.deliveries, view.attempts, view.nacks, view.error) == (0, 0, 0, "")


async def test_show_of_a_job_of_any_queue(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The client finds the queue of an id."""
    added = await q.enqueue("milk")
    view = await ps.show(added.id)
    assert view is not None
    assert (view.id, view.queue, view.body) == (added.id, "q", "milk")
    await q.clear()
    assert await ps.show(added.id) is None


async def test_show_through_the_life_of_a_job(q: AsyncQueue, raw: Raw) -> None:
    """`show`, by id or by delivery, has state, counters, owner and last error at each step."""
    done = await q.enqueue("x", lease=20)
    seen = []

    async def look() -> None:
        view = await q.show(done.id)
        assert view is not None
        seen.append((view.state, view.deliveries, view.attempts, view.owner, view.error))

    await look()
    (job,) = await q.reserve(block=0)
    await look()
    await job.nack(delay=60, error="oops")
    await look()
    advance(raw, q.ops, 61)
    await look()
    (job,) = await q.reserve(block=0)
    advance(raw, q.ops, 21)
    await look()
    (job,) = await q.reserve(block=0)
    await job.bury("enough")
    await look()
    assert seen == [
        ("ready", 0, 0, "", ""),
        ("active", 1, 1, "tester", ""),
        ("scheduled", 1, 1, "tester", "oops"),
        ("ready", 1, 1, "tester", "oops"),
        ("ready", 2, 1, "tester", "oops"),  # the end of a lease counts when the job is taken
        ("dead", 3, 3, "tester", "enough"),
    ]
    by_delivery = await q.show(job)
    assert by_delivery is not None
    assert by_delivery.id == done.id
    await q.delete([done.id])
    assert await q.show(done.id) is None


async def test_show_of_an_expired_job(q: AsyncQueue, raw: Raw) -> None:
    """`show` reports an expired job as expired until a sweep removes it."""
    done = await q.enqueue("x", ttl=10)
    once = await q.enqueue("x", ttl=10, lease=0)
    (_, job) = await q.reserve(2, block=0)
    advance(raw, q.ops, 11)
    for name in (done.id, once.id, job):
        view = await q.show(name)
        assert view is not None
        assert view.state == "expired"
    await q.sweep()
    assert await q.show(done.id) is None


async def test_delete_in_every_state(q: AsyncQueue, raw: Raw) -> None:
    """Deleted jobs leave no data in any state; their holders' calls find them gone."""
    await q.enqueue_many(["dead", "active"], ttl=600)
    dead, active = await q.reserve(2, block=0)
    await dead.bury()
    once = await q.enqueue("once", lease=0)
    (held,) = await q.reserve(block=0)
    later = await q.enqueue("later", delay=60, ttl=600)
    ready = await q.enqueue("ready", ttl=600)
    ids = [dead.id, active.id, once.id, later.id, ready.id]
    assert list(await q.delete([*ids, ids[0]])) == [Outcome.DONE] * 6
    assert [kind for kind in q.ops.keys.names if numbers_left(raw, q, kind)] == []
    assert await active.ack() is False
    assert await held.ack() is False
    assert (await q.stats()).deleted == 5
    assert list(await q.delete(ids)) == [Outcome.GONE] * 5


def numbers_left(raw: Raw, q: AsyncQueue, kind: str) -> bool:
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
async def test_purge(q: AsyncQueue, raw: Raw, states: tuple[str, ...], left: object) -> None:
    """Purge removes and counts the jobs of the named states; the default is ready and scheduled."""
    await fill(q, raw)
    total = 9 + 5 + 2 + 6 + 4 + 1 + 3 + 8
    removed = await q.purge(*states)
    stats = await q.stats()
    counts = {
        "ready": stats.ready,
        "scheduled": stats.scheduled,
        "active": stats.active,
        "dead": stats.dead,
        "expired": stats.unswept,
    }
    assert removed == stats.purged == total - sum(counts.values())
    assert {state: count for state, count in counts.items() if count} == left


async def test_purge_of_a_long_queue(q: AsyncQueue) -> None:
    """A long queue is purged in bounded steps; later jobs have higher numbers and are delivered."""
    first = await q.enqueue_many(range(2500))
    await q.enqueue_many(range(1500), delay=60)
    assert await q.purge() == 4000
    after = await q.enqueue("after")
    assert after.id > first[-1].id
    assert [job.id for job in await q.reserve(5, block=0)] == [after.id]


@pytest.mark.parametrize("state", ["ready", "scheduled", "dead"])
async def test_a_purge_leaves_jobs_added_after_its_start(
    backend: Backend, q: AsyncQueue, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A purge ends although a producer keeps adding jobs, and does not remove these."""
    delay = 60 if state == "scheduled" else 0
    await q.enqueue_many(range(1200), delay=delay)
    if state == "dead":
        await q.bury(await q.reserve(1200, block=0))
    beside = Penstock(backend.sync_client()).queue("q")
    step = q.ops.purge

    def purge(which: str, fence: bytes | str, skip: int) -> Call:
        if fence and not beside.stats().enqueued > 1200:
            beside.enqueue("after", delay=delay)
            if state == "dead":
                beside.bury(beside.reserve(1, block=0))
        return step(which, fence, skip)

    monkeypatch.setattr(q.ops, "purge", purge)
    assert await q.purge(state) == 1200
    assert [view.body for view in await q.peek(state=state)] == ["after"]


async def test_purge_of_long_bodies_with_a_ttl(q: AsyncQueue) -> None:
    """Purged jobs with a ttl are removed from the index of ttls too."""
    await q.enqueue_many((b"x" * 50_000 for _ in range(60)), ttl=600)
    await q.enqueue_many(range(1200), ttl=600)
    assert await q.purge("ready") == 1260
    stats = await q.stats()
    assert (stats.ready, stats.unswept) == (0, 0)


async def test_a_holder_of_a_purged_job(q: AsyncQueue) -> None:
    """When an active job was purged, its holder's ack finds it gone."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert await q.purge("active") == 1
    assert await job.ack() is False
    assert (await q.stats()).acked == 0


async def test_queues_are_listed_by_name(ps: AsyncPenstock, raw: Raw) -> None:
    """Existing queues are listed by name; stale registry entries are left out."""
    assert await ps.queues() == []
    for name in ("b", "a/ü", "{c}", "a"):
        await ps.queue(name).enqueue(1)
    await ps.queue("configured").configure(max_length=5)
    raw.hset("penstock:queues", "0123456789abcdef", "never made")
    raw.hset("penstock:queues", "000000001f2e3d4c", "")  # the checksum of no text
    part = "q\0/300-aaa"  # there are 256 partitions at most
    raw.hset("penstock:queues", f"{queue_crc(part):08x}1f2e3d4c", part)
    assert (await ps.info()).registered_queues == 5
    assert len((await ps.scan_queues()).queues) == 5
    assert await ps.queues() == ["a", "a/ü", "b", "configured", "{c}"]


async def test_times_are_the_servers(q: AsyncQueue, raw: Raw) -> None:
    """Times are those of the server, in seconds since 1970 with milliseconds."""
    before = raw_time(raw)
    done = await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    await job.bury()
    view = await q.show(done.id)
    after = raw_time(raw)
    assert view is not None
    assert view.delivered is not None
    assert view.died is not None
    assert before - 0.001 <= view.created <= view.delivered <= view.died <= after


async def test_handles_stand_for_ids(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """What `enqueue` returns, and what `show` and `peek` do, are taken wherever an id is."""
    added, other = await q.enqueue("x", delay=60, result_ttl=60), await q.enqueue("y")
    view = await q.show(added)
    assert view is not None
    assert view.id == added.id
    assert [one and one.id for one in (await ps.show(added), await q.show(view))] == [added.id] * 2
    assert (await q.chains.status(added)).id == added.id
    assert [*await q.promote([added])] == [Outcome.DONE]
    await q.reserve(2)
    assert [*await q.bury([view, other], "no")] == [Outcome.DONE] * 2
    assert await q.redrive(await q.peek(state="dead")) == 2
    await q.reserve(2)
    assert [*await ps.ack([added])] == [*await q.ack([other])] == [Outcome.DONE]
    assert await ps.result(added, timeout=0) is await q.result(added, timeout=0) is None
    assert [*await q.delete([added, view])] == [Outcome.GONE] * 2
