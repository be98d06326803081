"""A queue survives the end of its server: the stored data is complete and used at once.

Disque's unit 07 requires jobs after a restart. Here everything is checked: order, counters, delays,
leases and their receipts, pauses, settings and totals, jobs at most once included.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from penstock import (
    Durable,
    JobView,
    Outcome,
    Penstock,
    Queue,
    QueueFull,
    QueuePaused,
    StaleReceipt,
)
from penstock.embedded import ServerBinary
from penstock.wire.scripts import script
from tests.conformance.durable import (
    EVERYTHING,
    MANY,
    WAYS,
    Always,
    Keeper,
    Promoted,
    fill,
    picture,
    take,
    views,
)
from tests.support.binaries import chosen_binaries
from tests.support.keyspace import advance, check_invariant
from tests.support.twins import spawn, wait_for

BINARIES: list[ServerBinary | None] = [*chosen_binaries()] or [None]
PLACES = list(itertools.product(WAYS, BINARIES))
PATIENCE = 30
PAUSES = {"in": (True, False), "out": (False, True), "all": (True, True)}
"""Paused side -> whether producers are refused, and whether delivery stops."""


def named(value: object) -> str:
    """Names in test ids."""
    return value.name if isinstance(value, ServerBinary) else str(value)


@pytest.fixture
def keeper(way: str, binary: ServerBinary | None) -> Iterator[Keeper]:
    """A server whose data survives in this way."""
    with WAYS[way](binary) as made:
        yield made


@pytest.fixture
def ps(keeper: Keeper) -> Iterator[Penstock]:
    """A client from before the fall that is used after it."""
    with Penstock(keeper.url, owner="tester", retry_for=PATIENCE) as client:
        yield client


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue that does not exist yet."""
    return ps.queue("q")


def shown(queue: Queue, job_id: str) -> JobView:
    """Return the view of an existing job."""
    view = queue.show(job_id)
    assert view is not None
    return view


def due(queue: Queue, job_id: str) -> float:
    """Return when a scheduled job may start."""
    at = shown(queue, job_id).due
    assert at is not None
    return at


everywhere = pytest.mark.parametrize("way, binary", PLACES, ids=named)
each_way = pytest.mark.parametrize(
    "way, binary", list(zip(WAYS, itertools.cycle(BINARIES), strict=False)), ids=named
)


# -- the data --------------------------------------------------------------------------------------


@everywhere
def test_everything_is_there_at_once(keeper: Keeper, ps: Penstock) -> None:
    """Every key with type and value, and all client views, are equal before and after the fall.

    Jobs ready, delayed, backing off, released, held with their leases and receipts, extended, at
    most once and delivered or not, dead with their reasons; counters, pauses, settings, tokens.
    """
    fill(ps)
    raw = keeper.raw()
    before, seen = picture(raw), views(ps)
    assert len(seen[EVERYTHING, "ready"]) > MANY
    assert {key.rpartition(b":")[2] for key in before.keys} == {
        *(b"ready", b"held", b"active", b"once", b"scheduled", b"dead", b"tally", b"expiry"),
        *(b"meta", b"wake", b"space", b"queues", b"node"),
    }
    keeper.fall()
    after = picture(keeper.raw())
    assert after.keys == before.keys
    assert after == before
    assert views(ps) == seen
    check_invariant(keeper.raw())


@each_way
def test_waiting_jobs_are_delivered_in_the_same_order(
    keeper: Keeper, ps: Penstock, q: Queue
) -> None:
    """Jobs of one ms, released, nacked, due, with ended lease: each is delivered in its order."""
    q.enqueue_many(range(40))
    jobs = q.reserve(40, block=0)
    q.enqueue_many(range(100, 100 + MANY))
    q.enqueue("due", delay=0.001)
    wait_for(lambda: q.stats().scheduled == 0)
    q.enqueue("last")
    q.release(jobs[20:30])
    q.nack(jobs[5:10], delay=0, error="again")
    q.extend(jobs[30:], 0.001)
    wait_for(lambda: q.stats().ready == 25 + MANY + 2)
    wanted = [(view.id, view.deliveries, view.nacks) for view in q.peek(1000)]
    keeper.fall()
    got = q.reserve(1000, block=0)
    assert [job.id for job in got] == [number for number, _, _ in wanted]
    assert [job.body for job in got] == [
        *range(30, 40), *range(5, 10), *range(20, 30), *range(100, 100 + MANY), "due", "last",
    ]  # fmt: skip
    assert [job.nacks for job in got] == [nacks for _, _, nacks in wanted]
    assert [job.deliveries for job in got] == [2] * 25 + [1] * (MANY + 2)
    assert [job.crashes for job in got] == [1] * 10 + [0] * (15 + MANY + 2)


def calls_of_every_kind(queue: Queue) -> Iterator[object]:
    """Make calls that change several keys each."""
    yield queue.enqueue_many(range(5), ttl=600)
    yield queue.enqueue("later", delay=600, lease=0)
    jobs = queue.reserve(5, block=0)
    yield jobs
    yield queue.extend(jobs[:2], 90)
    yield queue.nack(jobs[:2], delay=0, error="again")
    yield queue.reserve(1, block=0)
    yield queue.release(jobs[2:3])
    yield queue.bury(jobs[3:4], "given up")
    yield queue.redrive()
    outcomes, more = queue.ack_and_reserve(jobs[4:], 2)
    yield outcomes, more
    yield queue.delete(more)
    yield queue.configure(lease=5, max_length=50)
    queue.pause("all")
    yield None


@pytest.mark.parametrize("binary", BINARIES, ids=named)
@pytest.mark.parametrize("way", ["always"])
def test_a_torn_end_loses_whole_calls(keeper: Always, ps: Penstock, q: Queue) -> None:
    """A file cut off within a call, as after a power failure, has no part of that call."""
    q.configure(lease=60)
    q.enqueue("first")
    file, raw = keeper.file(), keeper.raw()
    calls = itertools.chain([None], calls_of_every_kind(q))
    states = [(file.stat().st_size, picture(raw)) for _ in calls]
    keeper.server.kill()
    whole = file.read_bytes()
    assert len(whole) == states[-1][0]
    for (begin, before), (end, _) in itertools.pairwise(states):
        assert begin < end
        for cut in {begin, begin + 1, (begin + end) // 2, end - 1}:
            file.write_bytes(whole[:cut])
            keeper.server.restart()
            assert picture(keeper.raw()) == before, f"{cut} of {begin} to {end}"
            keeper.server.kill()


# -- holders ---------------------------------------------------------------------------------------


@each_way
def test_holders_continue(keeper: Keeper, ps: Penstock) -> None:
    """Every delivery from before the fall can be extended and acknowledged by its receipt."""
    held = fill(ps)
    queue = ps.queue(EVERYTHING)
    keeper.fall()
    once = [job for job in held.values() if job.at_most_once]
    leased = [job for job in held.values() if not job.at_most_once]
    assert len(once) == 2
    assert queue.extend(once) == [Outcome.REFUSED] * 2
    assert queue.extend(leased, 60)
    acked = queue.stats().acked
    assert list(queue.ack(held.values())) == [Outcome.DONE] * len(held)
    assert queue.stats().acked == acked + len(held)
    assert queue.stats().active == 0
    check_invariant(keeper.raw())


@each_way
def test_old_receipts_stay_valid(keeper: Keeper, q: Queue) -> None:
    """Each way to settle works with an old receipt; stale and used ones are recognised."""
    q.configure(max_attempts=2)
    jobs = {name: take(q, name) for name in ("ack", "nack", "release", "bury", "dies", "ended")}
    jobs["dies"].nack(delay=0, error="first")
    (dies,) = q.reserve(1, block=0)
    jobs["ended"].nack(delay=1000)
    keeper.fall()
    assert jobs["ack"].ack()
    assert jobs["nack"].nack(delay=1000, error="late")
    assert jobs["release"].release(delay=1000)
    assert jobs["bury"].bury("given up")
    assert list(q.ack([jobs["dies"]])) == [Outcome.STALE]
    assert list(q.nack([dies], delay=0, error="second")) == [Outcome.DEAD]
    assert list(q.ack([jobs["ended"]])) == [Outcome.ENDED]
    assert {view.body: (view.nacks, view.error) for view in q.peek(state="scheduled")} == {
        "nack": (1, "late"), "release": (0, ""), "ended": (1, ""),
    }  # fmt: skip
    assert {view.body: (view.nacks, view.error) for view in q.peek(state="dead")} == {
        "bury": (0, "given up"), "dies": (2, "second"),
    }  # fmt: skip
    stats = q.stats()
    assert (stats.enqueued, stats.deliveries, stats.acked) == (6, 7, 1)
    assert (stats.nacked, stats.released, stats.died) == (4, 1, 2)


@each_way
def test_a_lease_ends_at_its_time(keeper: Keeper, ps: Penstock, q: Queue) -> None:
    """The fall neither shortens nor restarts a lease; after its end the receipt is stale."""
    short, long = take(q, "short", lease=300), take(q, "long", lease=6000)
    ends = {job.id: shown(q, job.id).lease_until for job in (short, long)}
    keeper.fall()
    assert {job_id: shown(q, job_id).lease_until for job_id in ends} == ends
    assert q.reserve(2, block=0) == []
    advance(keeper.raw(), q.ops, 300)
    (back,) = q.reserve(2, block=0)
    assert (back.id, back.deliveries, back.crashes) == (short.id, 2, 1)
    assert round(back.delivered - short.delivered, 3) >= 300
    with pytest.raises(StaleReceipt):
        short.ack()
    assert long.ack()
    assert back.ack()


@each_way
def test_at_most_once_stays_at_most_once(keeper: Keeper, ps: Penstock, q: Queue) -> None:
    """A delivered job with lease 0 is not delivered again; an undelivered one is, exactly once.

    Disque never delivers the latter after a restart.
    """
    delivered = take(q, "delivered", lease=0)
    acked = take(q, "acked", lease=0)
    acked.ack()
    added = [q.enqueue("waits", lease=0), q.enqueue("is due", lease=0, delay=0.001)]
    keeper.fall()
    wait_for(lambda: q.stats().ready == 2)
    got = q.reserve(10, block=0)
    assert [job.id for job in got] == [one.id for one in added]
    assert q.reserve(10, block=0) == []
    advance(keeper.raw(), q.ops, 12 * 3600)
    assert q.reserve(10, block=0) == []
    assert q.stats().active == 3
    assert list(q.ack([delivered, *got])) == [Outcome.DONE] * 3
    assert list(q.ack([acked])) == [Outcome.GONE]


@pytest.mark.parametrize("binary", BINARIES, ids=named)
@pytest.mark.parametrize("way", ["promoted"])
def test_confirmed_jobs_survive(keeper: Promoted, ps: Penstock, q: Queue) -> None:
    """Jobs enqueued with replicas=1 exist when the only replica is promoted at once."""
    q.enqueue("make the queue")
    keeper.catch_up()
    added = [q.enqueue(number, durable=Durable(1, timeout=PATIENCE)) for number in range(20)]
    added += q.enqueue_many(range(20, 60), delay=600, durable=Durable(1, timeout=PATIENCE))
    keeper.promote()
    assert {one.replicas for one in added} == {1}
    assert all(shown(q, one.id) for one in added)
    assert (q.stats().ready, q.stats().scheduled, q.stats().enqueued) == (21, 40, 61)


@pytest.mark.parametrize("binary", BINARIES, ids=named)
@pytest.mark.parametrize("way", ["promoted"])
def test_confirmed_acks_survive(keeper: Promoted, ps: Penstock, q: Queue) -> None:
    """Jobs acknowledged with replicas=1 do not come back when the only replica is promoted at once.

    A job whose delivery the replica lacks comes back: its holder's receipt is stale.
    """
    q.enqueue_many(range(60))
    keeper.catch_up()
    jobs = q.reserve(60, block=0)
    settled = q.ack(jobs[:40], durable=Durable(1, timeout=PATIENCE))
    assert (settled.all_done, settled.replicas) == (True, 1)
    assert all(job.ack(durable=Durable(1, timeout=PATIENCE)) for job in jobs[40:])
    keeper.refrain()
    lost = q.enqueue("the replica does not hear of this")
    ps.queue("other").enqueue("nor of this")
    keeper.promote()
    assert q.show(lost.id) is None
    assert (q.stats().acked, q.stats().ready, q.stats().active) == (60, 0, 0)
    assert q.reserve(60, block=0) == []


@pytest.mark.parametrize("binary", BINARIES, ids=named)
@pytest.mark.parametrize("way", ["promoted"])
def test_an_unreplicated_delivery(keeper: Promoted, ps: Penstock, q: Queue) -> None:
    """The job will be delivered again, so its holder's receipt is stale and not done or gone."""
    q.enqueue("x")
    keeper.catch_up()
    keeper.refrain()
    (job,) = q.reserve(1, block=0)
    keeper.promote()
    with pytest.raises(StaleReceipt):
        job.ack()
    assert list(q.nack([job])) == list(q.extend([job])) == [Outcome.STALE]
    (again,) = q.reserve(1, block=0)
    assert (again.id, again.deliveries) == (job.id, 1)


# -- time ------------------------------------------------------------------------------------------


@each_way
def test_jobs_that_wait_come_at_their_time(keeper: Keeper, q: Queue) -> None:
    """For delayed, nacked and released jobs the fall neither ends nor restarts the delay."""
    nacked, released = take(q, "nacked"), take(q, "released")
    assert nacked.nack(delay=300)
    assert released.release(delay=320)
    delayed = q.enqueue("delayed", delay=280)
    wanted = {job_id: due(q, job_id) for job_id in (delayed.id, nacked.id, released.id)}
    assert round(wanted[nacked.id] - nacked.delivered, 3) >= 300
    assert q.reserve(1, block=0) == []
    keeper.fall()
    assert {job_id: due(q, job_id) for job_id in wanted} == wanted
    assert q.reserve(1, block=0) == []
    advance(keeper.raw(), q.ops, 320)
    got = q.reserve(3, block=0)
    assert sorted(job.id for job in got) == sorted(wanted)
    for job in got:
        assert job.delivered >= wanted[job.id]


@each_way
def test_numbers_continue_rising(keeper: Keeper, ps: Penstock, q: Queue) -> None:
    """This holds for a drained queue and for one whose clock is ahead of the server's."""
    ahead = ps.queue("ahead")
    for queue in (q, ahead):
        queue.enqueue_many(range(10))
        queue.ack(queue.reserve(10, block=0))
    advance(keeper.raw(), ahead.ops, 3600)
    last = {queue.name: queue.enqueue("x").id for queue in (q, ahead)}
    for queue in (q, ahead):
        queue.ack(queue.reserve(1, block=0))
    keeper.fall()
    for queue in (q, ahead):
        new = queue.enqueue("y").id
        assert new > last[queue.name]  # ids of a node sort by creation
        assert new[:10] == last[queue.name][:10]
        (job,) = queue.reserve(10, block=0)
        assert job.id == new
        assert queue.stats().enqueued == 12


@each_way
def test_a_ttl_ends_at_its_time(keeper: Keeper, q: Queue) -> None:
    """A waiting or held job is removed when its ttl ends; others stay."""
    held, waits = take(q, "held", ttl=3600), q.enqueue("waits", ttl=3600)
    stays = q.enqueue("stays", ttl=7200)
    keeper.fall()
    view = shown(q, waits.id)
    assert view.expires == pytest.approx(view.created + 3600)
    advance(keeper.raw(), q.ops, 3600)
    assert q.sweep() == 2
    assert q.show(held) is None
    (job,) = q.reserve(10, block=0)
    assert job.id == stays.id
    assert q.stats().expired == 2


# -- pauses, bounds, waits -------------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("side", PAUSES)
def test_a_pause_holds(keeper: Keeper, q: Queue, side: str) -> None:
    """Until its end; then all waiting jobs are ready."""
    refuses, stops = PAUSES[side]
    first = q.enqueue("x").id
    q.pause(side)
    keeper.fall()
    assert q.stats().settings.paused == side
    if refuses:
        with pytest.raises(QueuePaused):
            q.enqueue("y")
    else:
        q.enqueue("y")
    assert [job.id for job in q.reserve(1, block=0)] == ([] if stops else [first])
    q.resume()
    assert len(q.reserve(10, block=0)) == stops + (not refuses)
    assert q.enqueue("z").state == "ready"


@each_way
def test_settings_hold(keeper: Keeper, q: Queue) -> None:
    """A queue keeps its lease, bound and limits."""
    q.configure(lease=123, max_length=2, max_crashes=1, dead_max=1)
    wanted = q.stats().settings
    keeper.fall()
    assert q.stats().settings == wanted
    job = take(q, "a")
    assert job.lease == 123
    q.enqueue_many(["b", "c"])
    with pytest.raises(QueueFull):
        q.enqueue("d")
    assert q.purge() == 2
    q.extend([job], 0.001)
    wait_for(lambda: q.stats().active == 0)
    assert q.reserve(1, block=0) == []  # one crash is enough
    assert q.stats().dead == 1


@each_way
def test_consumers_that_wait_heal(keeper: Keeper, ps: Penstock, q: Queue) -> None:
    """Consumers that waited during the fall get later jobs, each job once."""
    q.enqueue("make the queue")
    q.purge()
    consumers = [spawn(q.reserve, 1, block=PATIENCE) for _ in range(3)]
    raw = keeper.raw()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 3)
    keeper.fall()
    added = q.enqueue_many(range(3))
    got = [job for one in consumers for job in one.result(PATIENCE)]
    assert sorted(job.id for job in got) == added.ids
    assert {job.deliveries for job in got} == {1}
    assert list(q.ack(got)) == [Outcome.DONE] * 3


@each_way
def test_a_producer_that_waits_for_room_heals(keeper: Keeper, ps: Penstock, q: Queue) -> None:
    """A producer that waited for room during the fall adds its job once there is room."""
    q.configure(max_length=1)
    q.enqueue("a")
    producer = spawn(q.enqueue, "b", block=PATIENCE)
    raw = keeper.raw()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    keeper.fall()
    (first,) = q.reserve(1, block=0)
    assert first.body == "a"
    added = producer.result(PATIENCE)
    assert [view.id for view in q.peek()] == [added.id]
    assert q.stats().enqueued == 2


@each_way
def test_a_call_across_the_fall_is_counted_once(keeper: Keeper, ps: Penstock, q: Queue) -> None:
    """The server added the job and fell before its answer: the repeat adds nothing."""
    q.enqueue("before")
    fault = keeper.door.eat_reply(after=script("enqueue").sha.encode())
    keeper.door.refuse()
    producer = spawn(q.enqueue, "across")
    fault.wait()
    keeper.fall()
    assert not producer.is_done
    keeper.door.restore()
    added = producer.result(PATIENCE)
    assert [view.id for view in q.peek()][1:] == [added.id]
    assert q.stats().enqueued == 2


@each_way
def test_dead_letters_come_back(keeper: Keeper, q: Queue) -> None:
    """Dead letters keep their reasons until they are redriven, then they are ready by age."""
    jobs = [take(q, number) for number in range(3)]
    for job in reversed(jobs):
        job.bury(f"reason {job.body}")
    young = q.enqueue("young").id
    dead = [(view.id, view.error, view.died) for view in q.peek(state="dead")]
    assert {reason for _, reason, _ in dead} == {"reason 0", "reason 1", "reason 2"}
    keeper.fall()
    assert [(view.id, view.error, view.died) for view in q.peek(state="dead")] == dead
    assert q.redrive() == 3
    got = q.reserve(10, block=0)
    assert [job.id for job in got] == [*(job.id for job in jobs), young]
    assert [job.deliveries for job in got] == [2, 2, 2, 1]
