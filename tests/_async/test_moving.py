"""Moving jobs by id: promote, postpone and withdraw; and evicting on a full server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import redis

from penstock import AsyncPenstock, AsyncQueue, BadArgument, Outcome, OutOfMemory, StaleReceipt
from penstock.core.jobs.job import JobName
from penstock.embedded import EmbeddedServer
from tests.support.keyspace import Raw, advance, dump, method_of, numbers
from tests.support.twins import aspawn

from .conftest import AsyncWaits

DONE, GONE, REFUSED, EXPIRED = Outcome.DONE, Outcome.GONE, Outcome.REFUSED, Outcome.EXPIRED


async def in_order(q: AsyncQueue) -> list[str]:
    """Return the ids of the jobs that can be reserved, in order."""
    return [view.id for view in await q.peek(1000)]


# -- promote -----------------------------------------------------------------------------------


async def test_promoted_jobs_stand_at_the_place_of_their_creation(q: AsyncQueue, raw: Raw) -> None:
    """Promoted jobs are ordered by creation among the ready jobs, whatever delayed them."""
    a = (await q.enqueue("a")).id
    later = (await q.enqueue("later", delay=600)).id
    b = (await q.enqueue("b")).id
    failed = (await q.enqueue("failed")).id
    c = (await q.enqueue("c")).id
    held = (await q.enqueue("held")).id
    d = (await q.enqueue("d")).id
    jobs = {job.id: job for job in await q.reserve(9, block=0)}
    await jobs[failed].nack(delay=600)
    await q.release([jobs[x] for x in (a, b, c, d)])
    raw.delete(q.ops.keys["wake"])
    assert await in_order(q) == [a, b, c, d]
    assert list(await q.promote([held, later, failed])) == [DONE, DONE, DONE]
    assert await in_order(q) == [a, later, b, failed, c, held, d]
    assert [job.id for job in await q.reserve(9, block=0)] == [a, later, b, failed, c, held, d]
    stats = await q.stats()
    assert (stats.promoted, stats.released, stats.nacked, stats.crashed) == (3, 4, 1, 0)


async def test_the_delivery_of_a_promoted_job_ends(q: AsyncQueue) -> None:
    """Promoting an active job ends its delivery: the receipt is stale, and no
    attempt is charged.
    """
    await q.enqueue("x", lease=600)
    (old,) = await q.reserve(block=0)
    assert await q.promote([old])
    for call in (old.ack, old.nack, old.release, old.bury, old.extend):
        with pytest.raises(StaleReceipt):
            await call()
    view = await q.show(old.id)
    assert view is not None
    assert (view.state, view.deliveries, view.attempts, view.redeliveries) == ("ready", 1, 0, 1)
    (new,) = await q.reserve(block=0)
    assert (new.deliveries, new.attempt, new.redeliveries) == (2, 1, 1)
    with pytest.raises(StaleReceipt):
        await old.ack()
    assert await new.ack()


async def test_due_jobs_and_ended_leases_are_promoted_too(q: AsyncQueue, raw: Raw) -> None:
    """Due jobs and jobs with an ended lease are promoted to the place of their age."""
    ended = (await q.enqueue("ended", lease=1)).id
    await q.reserve(block=0)
    due = (await q.enqueue("due", delay=1)).id
    ready = (await q.enqueue("ready")).id
    advance(raw, q.ops, 2)
    assert await in_order(q) == [ended, ready, due]
    assert list(await q.promote([due, ended])) == [DONE, DONE]
    assert await in_order(q) == [ended, due, ready]
    assert (await q.stats()).crashed == 0


async def test_jobs_that_cannot_be_promoted(q: AsyncQueue, raw: Raw) -> None:
    """Ready, dead and at-most-once jobs are not promoted."""
    dead, once = await q.enqueue("dead"), await q.enqueue("once", lease=0)
    jobs = await q.reserve(2, block=0)
    await jobs[0].bury()
    gone = await q.enqueue("gone")
    await q.delete([gone.id])
    ready, over = await q.enqueue("ready"), await q.enqueue("over", ttl=50, delay=40)
    advance(raw, q.ops, 60)
    before = dump(raw)
    names: list[JobName] = [dead.id, once.id, jobs[1], gone.id, ready.id, over.id]
    settled = await q.promote(names)
    assert list(settled) == [REFUSED, REFUSED, REFUSED, GONE, REFUSED, EXPIRED]
    assert settled.ids(EXPIRED) == [over.id]
    assert dump(raw) == before


@pytest.mark.usefixtures("no_ticks")
async def test_a_promoted_job_starts_at_once(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A promoted job wakes a waiting consumer long before its next own look."""
    done = await q.enqueue("x", delay=600)
    consumer = aspawn(q.reserve, block=30)
    await waits.reach(1)
    assert await q.promote([done.id])
    assert [job.id for job in await consumer.result()] == [done.id]


@pytest.mark.parametrize("side", ["in", "out", "all"])
async def test_promoting_in_a_paused_queue(q: AsyncQueue, side: str) -> None:
    """In a paused queue a job is promoted, and delivered after the pause."""
    done = await q.enqueue("x", delay=600)
    await q.pause(side)
    assert await q.promote([done.id])
    assert await q.reserve(block=0) == []
    await q.resume()
    assert [job.id for job in await q.reserve(block=0)] == [done.id]


async def test_promoting_ends_with_the_ttl(q: AsyncQueue, raw: Raw) -> None:
    """A job with a ttl can be promoted and keeps its ttl."""
    done = await q.enqueue("x", delay=600, ttl=900)
    assert await q.promote([done.id])
    view = await q.show(done.id)
    assert view is not None
    assert (view.state, view.ttl) == ("ready", 900)
    advance(raw, q.ops, 901)
    assert await q.reserve(block=0) == []
    assert (await q.stats()).expired == 1


# -- postpone -----------------------------------------------------------------------------------


async def test_postponed_jobs_come_back_after_their_lease(q: AsyncQueue, raw: Raw) -> None:
    """A postponed job is delivered after its lease or the queue's; no attempt or
    delivery is counted.
    """
    await q.configure(lease=50)
    own = (await q.enqueue("own", lease=20)).id
    plain = (await q.enqueue("plain")).id
    due = (await q.enqueue("due", delay=1, lease=10)).id
    advance(raw, q.ops, 2)
    assert list(await q.postpone([own, plain, due])) == [DONE] * 3
    assert await q.reserve(9, block=0) == []
    assert [view.id for view in await q.peek(state="scheduled")] == [due, own, plain]
    spans = [view.next_in for view in await q.peek(state="scheduled")]
    assert spans == [pytest.approx(span, abs=5) for span in (10, 20, 50)]
    for seconds, expected in ((11, due), (10, own), (30, plain)):
        advance(raw, q.ops, seconds)
        (job,) = await q.reserve(block=0)
        assert job.id == expected
        assert (job.deliveries, job.attempt, job.redeliveries) == (1, 1, 0)
        assert await job.ack()
    stats = await q.stats()
    assert (stats.postponed, stats.deliveries, stats.crashed) == (3, 3, 0)


async def test_a_lease_that_has_ended_is_postponed_without_a_crash(q: AsyncQueue, raw: Raw) -> None:
    """Postponing after the lease has ended counts no crash and makes the old receipt stale."""
    await q.enqueue("x", lease=10)
    (old,) = await q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert await q.postpone([old])
    with pytest.raises(StaleReceipt):
        await old.ack()
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 11)
    (new,) = await q.reserve(block=0)
    assert (new.deliveries, new.crashes, new.redeliveries) == (2, 0, 1)
    with pytest.raises(StaleReceipt):
        await old.ack()
    assert (await q.stats()).crashed == 0


async def test_jobs_that_cannot_be_postponed(q: AsyncQueue, raw: Raw) -> None:
    """Active, delayed, dead and at-most-once jobs cannot be postponed."""
    dead, once = await q.enqueue("dead"), await q.enqueue("once", lease=0)
    held = await q.enqueue("held", lease=600)
    jobs = await q.reserve(3, block=0)
    await jobs[0].bury()
    gone = await q.enqueue("gone")
    await q.delete([gone.id])
    unborn = await q.enqueue("at most once, and not delivered", lease=0)
    over, later = await q.enqueue("over", ttl=50), await q.enqueue("later", delay=600)
    advance(raw, q.ops, 60)
    before = dump(raw)
    names: list[JobName] = [
        dead.id,
        once.id,
        held.id,
        jobs[2],
        gone.id,
        unborn.id,
        over.id,
        later.id,
    ]
    outcomes = [REFUSED, REFUSED, REFUSED, REFUSED, GONE, REFUSED, EXPIRED, REFUSED]
    assert list(await q.postpone(names)) == outcomes
    assert dump(raw) == before


async def test_a_postponed_job_never_outlives_its_ttl(q: AsyncQueue, raw: Raw) -> None:
    """A postponed job whose ttl ends is removed instead of coming back."""
    done = await q.enqueue("x", lease=600, ttl=100)
    assert await q.postpone([done.id])
    view = await q.show(done.id)
    assert view is not None
    assert view.due == view.expires
    advance(raw, q.ops, 101)
    assert await q.reserve(block=0) == []
    assert (await q.stats()).expired == 1


@pytest.mark.usefixtures("no_ticks")
async def test_a_waiting_consumer_gets_a_postponed_job(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A postponed job that is due within a tick is delivered on time to a waiting consumer."""
    done = await q.enqueue("x", lease=0.5)
    assert await q.postpone([done.id])
    assert await q.reserve(block=0) == []
    consumer = aspawn(q.reserve, block=30)
    assert [job.id for job in await consumer.result()] == [done.id]


# -- withdraw ----------------------------------------------------------------------------------


async def test_undelivered_jobs_are_withdrawn(q: AsyncQueue, raw: Raw) -> None:
    """Jobs that were never delivered can be withdrawn: ready, delayed or due; no data is left."""
    ids = (await q.enqueue_many(["a", "b"], ttl=900)).ids
    ids += (await q.enqueue_many(["c", "d"], delay=600, ttl=900)).ids
    ids += (await q.enqueue_many(["e", "f"], lease=0)).ids
    postponed = (await q.enqueue("g")).id
    await q.postpone([postponed])
    assert await q.delete([*ids, postponed], if_undelivered=True)
    assert [kind for kind in ("ready", "held", "scheduled", "expiry") if left(raw, q, kind)] == []
    stats = await q.stats()
    assert (stats.withdrawn, stats.deleted, stats.enqueued) == (7, 0, 7)
    assert list(await q.delete(ids[:2], if_undelivered=True)) == [GONE, GONE]


def left(raw: Raw, q: AsyncQueue, kind: str) -> bool:
    """Tell if a structure still has jobs."""
    return bool(numbers(raw, q.ops, kind))


async def test_delivered_jobs_are_not_withdrawn(q: AsyncQueue, raw: Raw) -> None:
    """A delivered job is not withdrawn, as its consumer may have done the work."""
    await q.enqueue_many(["held", "released", "failed", "dead"], lease=600)
    held, released, failed, dead = await q.reserve(4, block=0)
    await released.release()
    await failed.nack(delay=600)
    await dead.bury()
    once = await q.enqueue("once", lease=0)
    (first,) = await q.reserve(1, block=0)
    assert first.id == released.id
    await first.release()
    buried = await q.enqueue("buried before its delivery")
    await q.bury([buried.id])
    before = dump(raw)
    names: list[JobName] = [held, released, failed, dead, buried.id]
    assert list(await q.delete(names, if_undelivered=True)) == [REFUSED] * 5
    assert dump(raw) == before
    assert await q.delete([once.id], if_undelivered=True)
    await q.redrive([buried.id])
    assert await q.delete([buried.id], if_undelivered=True)


@pytest.mark.usefixtures("no_ticks")
async def test_withdrawing_makes_room(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A withdrawn job makes room and wakes a waiting producer."""
    await q.configure(max_length=1)
    first = await q.enqueue(1)
    producer = aspawn(q.enqueue, 2, block=30)
    await waits.reach(1)
    assert await q.delete([first.id], if_undelivered=True)
    done = await producer.result()
    assert await in_order(q) == [done.id]


# -- naming jobs -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["promote", "postpone", "withdraw"])
async def test_a_job_that_is_named_twice_is_moved_once(q: AsyncQueue, how: str) -> None:
    """A job named twice is moved and counted once, and both outcomes are the same."""
    done = await q.enqueue("x", delay=600 if how == "promote" else 0)
    settled = await method_of(q, how)([done.id, done.id])
    assert (list(settled), settled.ids()) == ([DONE, DONE], [done.id])
    stats = await q.stats()
    assert stats.promoted + stats.postponed + stats.withdrawn == 1


@pytest.mark.parametrize("how", ["promote", "postpone", "withdraw"])
async def test_more_jobs_than_a_script_takes(q: AsyncQueue, how: str) -> None:
    """More ids than a script takes need several calls; no ids need no call."""
    ids = (await q.enqueue_many(range(1500), delay=600 if how == "promote" else 0)).ids
    settled = await method_of(q, how)(iter(ids))
    assert (bool(settled), len(settled), settled.done) == (True, 1500, 1500)
    assert list(await method_of(q, how)([])) == []
    left_over = {"promote": ids, "postpone": [], "withdraw": []}[how]
    assert await in_order(q) == left_over[:1000]


@pytest.mark.parametrize("how", ["promote", "postpone", "withdraw"])
@pytest.mark.parametrize("names", ["x", b"x", None, 5, [""], [b"x"], ["x" * 40], [None]], ids=repr)
async def test_bad_names(q: AsyncQueue, raw: Raw, how: str, names: object) -> None:
    """Bad ids are refused, and no key changes."""
    await q.enqueue("x")
    before = dump(raw)
    with pytest.raises(BadArgument):
        await method_of(q, how)(names)
    assert dump(raw) == before


# -- evict -------------------------------------------------------------------------------------


async def test_evicting(q: AsyncQueue, raw: Raw) -> None:
    """Evict takes jobs with lease 0 before dead letters: by end of ttl, then the oldest letter."""
    first = (await q.enqueue_many(range(3))).ids
    await q.bury(await q.reserve(3, block=0))
    once = [(await q.enqueue("x", lease=0, ttl=ttl)).id for ttl in (300, 100, 200)]
    await q.reserve(3, block=0)
    held, waiting = await q.enqueue("held"), await q.enqueue("later", delay=60)
    await q.reserve(block=0)
    assert await q.sweep(evict=1) == 1
    assert await q.sweep(evict=1) == 1
    assert [await q.show(job_id) is None for job_id in once] == [False, True, True]
    assert await q.sweep(evict=2) == 2
    assert [view.id for view in await q.peek(state="dead")] == first[1:]
    assert await q.sweep(evict=100) == 2
    assert await q.sweep(evict=100) == 0
    assert {await shown(q, held.id), await shown(q, waiting.id)} == {"active", "scheduled"}
    stats = await q.stats()
    assert (stats.evicted, stats.dead, stats.trimmed, stats.deleted) == (6, 0, 0, 0)
    assert numbers(raw, q.ops, "tally") == []


async def shown(q: AsyncQueue, job_id: str) -> str:
    """Return the state of a job."""
    view = await q.show(job_id)
    return "gone" if view is None else view.state


async def test_dead_letters_may_be_spared(q: AsyncQueue) -> None:
    """With `dead=False` evict removes only jobs with lease 0."""
    await q.enqueue_many(range(3))
    await q.bury(await q.reserve(3, block=0))
    await q.enqueue_many(range(4), lease=0)
    await q.enqueue("not delivered yet", lease=0)
    held = await q.reserve(4, block=0)
    assert await q.sweep(evict=1000, dead=False) == 4
    stats = await q.stats()
    assert (stats.dead, stats.active, stats.ready, stats.evicted) == (3, 0, 1, 4)
    assert await held[0].ack() is False


@pytest.mark.parametrize("n", [-1, 1001, True, 1.5, "5", None])
async def test_bad_numbers_to_evict(n: object) -> None:
    """A bad number to evict is refused without a connection."""
    q = AsyncPenstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="evict="):
        await q.sweep(evict=n)  # type: ignore[arg-type]  # on purpose


async def test_evicting_in_a_queue_that_does_not_exist(q: AsyncQueue, raw: Raw) -> None:
    """Evicting in a missing queue removes nothing and does not create it."""
    assert await q.sweep(evict=100) == 0
    assert raw.dbsize() == 1  # the node's id


async def test_a_full_server_takes_jobs_again(make_server: Callable[..., EmbeddedServer]) -> None:
    """At `maxmemory` enqueue is refused but evict works; afterwards there is room."""
    server = make_server(args=("--maxmemory-policy", "noeviction"))
    with redis.Redis.from_url(server.url) as raw:
        async with AsyncPenstock(server.url, evict=False) as ps:
            q = ps.queue("q")
            await q.enqueue_many([b"x" * 10_000] * 600, ttl=900, lease=0)
            while (await q.stats()).ready:
                await q.reserve(100, block=0)
            # The server frees buffers of clients later; half of the jobs take up more than this.
            raw.config_set("maxmemory", int(0.7 * raw.info("memory")["used_memory"]))
            with pytest.raises(OutOfMemory):
                await q.enqueue(b"x" * 10_000)
            assert await q.sweep(evict=300) == 300
            done = await q.enqueue(b"x" * 10_000)
            assert await in_order(q) == [done.id]
            assert (await q.stats()).evicted == 300


async def test_a_full_server_moves_jobs(make_server: Callable[..., EmbeddedServer]) -> None:
    """At `maxmemory` jobs can be promoted, recovered, postponed and withdrawn. A refused enqueue
    drops no dead letter.
    """
    server = make_server(args=("--maxmemory-policy", "noeviction"))
    with redis.Redis.from_url(server.url) as raw:
        async with AsyncPenstock(server.url) as ps:
            q = ps.queue("q")
            dead = (await q.enqueue("dead")).id
            await q.bury([dead])
            later = (await q.enqueue("later", delay=600)).id
            held, out, back = (await q.enqueue_many(["held", "out", "back"])).ids
            await q.reserve(1, block=0)
            for call in (q.promote, q.postpone, partial(q.delete, if_undelivered=True)):
                assert list(await call([])) == []
            raw.config_set("maxmemory", 1)
            with pytest.raises(OutOfMemory):
                await q.enqueue("x")
            assert await shown(q, dead) == "dead"
            assert [job.id for job in await q.recover(idle=0)] == [held]
            assert await q.promote([later])
            assert await q.postpone([out])
            assert await q.delete([back], if_undelivered=True)
            assert await in_order(q) == [later]
