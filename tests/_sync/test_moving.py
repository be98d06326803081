# From tests/_async/test_moving.py by tools/unasync.py; do not edit.
"""Moving jobs by id: promote, postpone and withdraw; and evicting on a full server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import redis

from penstock import BadArgument, Outcome, OutOfMemory, Penstock, Queue, StaleReceipt
from penstock.core.jobs.job import JobName
from penstock.embedded import EmbeddedServer
from tests.support.keyspace import Raw, advance, dump, method_of, numbers
from tests.support.twins import spawn

from .conftest import Waits

DONE, GONE, REFUSED, EXPIRED = Outcome.DONE, Outcome.GONE, Outcome.REFUSED, Outcome.EXPIRED


def in_order(q: Queue) -> list[str]:
    """Return the ids of the jobs that can be reserved, in order."""
    return [view.id for view in q.peek(1000)]


# -- promote -----------------------------------------------------------------------------------


def test_promoted_jobs_stand_at_the_place_of_their_creation(q: Queue, raw: Raw) -> None:
    """Promoted jobs are ordered by creation among the ready jobs, whatever delayed them."""
    a = q.enqueue("a").id
    later = q.enqueue("later", delay=600).id
    b = q.enqueue("b").id
    failed = q.enqueue("failed").id
    c = q.enqueue("c").id
    held = q.enqueue("held").id
    d = q.enqueue("d").id
    jobs = {job.id: job for job in q.reserve(9, block=0)}
    jobs[failed].nack(delay=600)
    q.release([jobs[x] for x in (a, b, c, d)])
    raw.delete(q.ops.keys["wake"])
    assert in_order(q) == [a, b, c, d]
    assert list(q.promote([held, later, failed])) == [DONE, DONE, DONE]
    assert in_order(q) == [a, later, b, failed, c, held, d]
    assert [job.id for job in q.reserve(9, block=0)] == [a, later, b, failed, c, held, d]
    stats = q.stats()
    assert (stats.promoted, stats.released, stats.nacked, stats.crashed) == (3, 4, 1, 0)


def test_the_delivery_of_a_promoted_job_ends(q: Queue) -> None:
    """Promoting an active job ends its delivery: the receipt is stale, and no
    attempt is charged.
    """
    q.enqueue("x", lease=600)
    (old,) = q.reserve(block=0)
    assert q.promote([old])
    for call in (old.ack, old.nack, old.release, old.bury, old.extend):
        with pytest.raises(StaleReceipt):
            call()
    view = q.show(old.id)
    assert view is not None
    assert (view.state, view.deliveries, view.attempts, view.redeliveries) == ("ready", 1, 0, 1)
    (new,) = q.reserve(block=0)
    assert (new.deliveries, new.attempt, new.redeliveries) == (2, 1, 1)
    with pytest.raises(StaleReceipt):
        old.ack()
    assert new.ack()


def test_due_jobs_and_ended_leases_are_promoted_too(q: Queue, raw: Raw) -> None:
    """Due jobs and jobs with an ended lease are promoted to the place of their age."""
    ended = q.enqueue("ended", lease=1).id
    q.reserve(block=0)
    due = q.enqueue("due", delay=1).id
    ready = q.enqueue("ready").id
    advance(raw, q.ops, 2)
    assert in_order(q) == [ended, ready, due]
    assert list(q.promote([due, ended])) == [DONE, DONE]
    assert in_order(q) == [ended, due, ready]
    assert q.stats().crashed == 0


def test_jobs_that_cannot_be_promoted(q: Queue, raw: Raw) -> None:
    """Ready, dead and at-most-once jobs are not promoted."""
    dead, once = q.enqueue("dead"), q.enqueue("once", lease=0)
    jobs = q.reserve(2, block=0)
    jobs[0].bury()
    gone = q.enqueue("gone")
    q.delete([gone.id])
    ready, over = q.enqueue("ready"), q.enqueue("over", ttl=50, delay=40)
    advance(raw, q.ops, 60)
    before = dump(raw)
    names: list[JobName] = [dead.id, once.id, jobs[1], gone.id, ready.id, over.id]
    settled = q.promote(names)
    assert list(settled) == [REFUSED, REFUSED, REFUSED, GONE, REFUSED, EXPIRED]
    assert settled.ids(EXPIRED) == [over.id]
    assert dump(raw) == before


@pytest.mark.usefixtures("no_ticks")
def test_a_promoted_job_starts_at_once(q: Queue, waits: Waits) -> None:
    """A promoted job wakes a waiting consumer long before its next own look."""
    done = q.enqueue("x", delay=600)
    consumer = spawn(q.reserve, block=30)
    waits.reach(1)
    assert q.promote([done.id])
    assert [job.id for job in consumer.result()] == [done.id]


@pytest.mark.parametrize("side", ["in", "out", "all"])
def test_promoting_in_a_paused_queue(q: Queue, side: str) -> None:
    """In a paused queue a job is promoted, and delivered after the pause."""
    done = q.enqueue("x", delay=600)
    q.pause(side)
    assert q.promote([done.id])
    assert q.reserve(block=0) == []
    q.resume()
    assert [job.id for job in q.reserve(block=0)] == [done.id]


def test_promoting_ends_with_the_ttl(q: Queue, raw: Raw) -> None:
    """A job with a ttl can be promoted and keeps its ttl."""
    done = q.enqueue("x", delay=600, ttl=900)
    assert q.promote([done.id])
    view = q.show(done.id)
    assert view is not None
    assert (view.state, view.ttl) == ("ready", 900)
    advance(raw, q.ops, 901)
    assert q.reserve(block=0) == []
    assert q.stats().expired == 1


# -- postpone -----------------------------------------------------------------------------------


def test_postponed_jobs_come_back_after_their_lease(q: Queue, raw: Raw) -> None:
    """A postponed job is delivered after its lease or the queue's; no attempt or
    delivery is counted.
    """
    q.configure(lease=50)
    own = q.enqueue("own", lease=20).id
    plain = q.enqueue("plain").id
    due = q.enqueue("due", delay=1, lease=10).id
    advance(raw, q.ops, 2)
    assert list(q.postpone([own, plain, due])) == [DONE] * 3
    assert q.reserve(9, block=0) == []
    assert [view.id for view in q.peek(state="scheduled")] == [due, own, plain]
    spans = [view.next_in for view in q.peek(state="scheduled")]
    assert spans == [pytest.approx(span, abs=5) for span in (10, 20, 50)]
    for seconds, expected in ((11, due), (10, own), (30, plain)):
        advance(raw, q.ops, seconds)
        (job,) = q.reserve(block=0)
        assert job.id == expected
        assert (job.deliveries, job.attempt, job.redeliveries) == (1, 1, 0)
        assert job.ack()
    stats = q.stats()
    assert (stats.postponed, stats.deliveries, stats.crashed) == (3, 3, 0)


def test_a_lease_that_has_ended_is_postponed_without_a_crash(q: Queue, raw: Raw) -> None:
    """Postponing after the lease has ended counts no crash and makes the old receipt stale."""
    q.enqueue("x", lease=10)
    (old,) = q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert q.postpone([old])
    with pytest.raises(StaleReceipt):
        old.ack()
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 11)
    (new,) = q.reserve(block=0)
    assert (new.deliveries, new.crashes, new.redeliveries) == (2, 0, 1)
    with pytest.raises(StaleReceipt):
        old.ack()
    assert q.stats().crashed == 0


def test_jobs_that_cannot_be_postponed(q: Queue, raw: Raw) -> None:
    """Active, delayed, dead and at-most-once jobs cannot be postponed."""
    dead, once = q.enqueue("dead"), q.enqueue("once", lease=0)
    held = q.enqueue("held", lease=600)
    jobs = q.reserve(3, block=0)
    jobs[0].bury()
    gone = q.enqueue("gone")
    q.delete([gone.id])
    unborn = q.enqueue("at most once, and not delivered", lease=0)
    over, later = q.enqueue("over", ttl=50), q.enqueue("later", delay=600)
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
    assert list(q.postpone(names)) == outcomes
    assert dump(raw) == before


def test_a_postponed_job_never_outlives_its_ttl(q: Queue, raw: Raw) -> None:
    """A postponed job whose ttl ends is removed instead of coming back."""
    done = q.enqueue("x", lease=600, ttl=100)
    assert q.postpone([done.id])
    view = q.show(done.id)
    assert view is not None
    assert view.due == view.expires
    advance(raw, q.ops, 101)
    assert q.reserve(block=0) == []
    assert q.stats().expired == 1


@pytest.mark.usefixtures("no_ticks")
def test_a_waiting_consumer_gets_a_postponed_job(q: Queue, waits: Waits) -> None:
    """A postponed job that is due within a tick is delivered on time to a waiting consumer."""
    done = q.enqueue("x", lease=0.5)
    assert q.postpone([done.id])
    assert q.reserve(block=0) == []
    consumer = spawn(q.reserve, block=30)
    assert [job.id for job in consumer.result()] == [done.id]


# -- withdraw ----------------------------------------------------------------------------------


def test_undelivered_jobs_are_withdrawn(q: Queue, raw: Raw) -> None:
    """Jobs that were never delivered can be withdrawn: ready, delayed or due; no data is left."""
    ids = q.enqueue_many(["a", "b"], ttl=900).ids
    ids += q.enqueue_many(["c", "d"], delay=600, ttl=900).ids
    ids += q.enqueue_many(["e", "f"], lease=0).ids
    postponed = q.enqueue("g").id
    q.postpone([postponed])
    assert q.delete([*ids, postponed], if_undelivered=True)
    assert [kind for kind in ("ready", "held", "scheduled", "expiry") if left(raw, q, kind)] == []
    stats = q.stats()
    assert (stats.withdrawn, stats.deleted, stats.enqueued) == (7, 0, 7)
    assert list(q.delete(ids[:2], if_undelivered=True)) == [GONE, GONE]


def left(raw: Raw, q: Queue, kind: str) -> bool:
    """Tell if a structure still has jobs."""
    return bool(numbers(raw, q.ops, kind))


def test_delivered_jobs_are_not_withdrawn(q: Queue, raw: Raw) -> None:
    """A delivered job is not withdrawn, as its consumer may have done the work."""
    q.enqueue_many(["held", "released", "failed", "dead"], lease=600)
    held, released, failed, dead = q.reserve(4, block=0)
    released.release()
    failed.nack(delay=600)
    dead.bury()
    once = q.enqueue("once", lease=0)
    (first,) = q.reserve(1, block=0)
    assert first.id == released.id
    first.release()
    buried = q.enqueue("buried before its delivery")
    q.bury([buried.id])
    before = dump(raw)
    names: list[JobName] = [held, released, failed, dead, buried.id]
    assert list(q.delete(names, if_undelivered=True)) == [REFUSED] * 5
    assert dump(raw) == before
    assert q.delete([once.id], if_undelivered=True)
    q.redrive([buried.id])
    assert q.delete([buried.id], if_undelivered=True)


@pytest.mark.usefixtures("no_ticks")
def test_withdrawing_makes_room(q: Queue, waits: Waits) -> None:
    """A withdrawn job makes room and wakes a waiting producer."""
    q.configure(max_length=1)
    first = q.enqueue(1)
    producer = spawn(q.enqueue, 2, block=30)
    waits.reach(1)
    assert q.delete([first.id], if_undelivered=True)
    done = producer.result()
    assert in_order(q) == [done.id]


# -- naming jobs -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["promote", "postpone", "withdraw"])
def test_a_job_that_is_named_twice_is_moved_once(q: Queue, how: str) -> None:
    """A job named twice is moved and counted once, and both outcomes are the same."""
    done = q.enqueue("x", delay=600 if how == "promote" else 0)
    settled = method_of(q, how)([done.id, done.id])
    assert (list(settled), settled.ids()) == ([DONE, DONE], [done.id])
    stats = q.stats()
    assert stats.promoted + stats.postponed + stats.withdrawn == 1


@pytest.mark.parametrize("how", ["promote", "postpone", "withdraw"])
def test_more_jobs_than_a_script_takes(q: Queue, how: str) -> None:
    """More ids than a script takes need several calls; no ids need no call."""
    ids = q.enqueue_many(range(1500), delay=600 if how == "promote" else 0).ids
    settled = method_of(q, how)(iter(ids))
    assert (bool(settled), len(settled), settled.done) == (True, 1500, 1500)
    assert list(method_of(q, how)([])) == []
    left_over = {"promote": ids, "postpone": [], "withdraw": []}[how]
    assert in_order(q) == left_over[:1000]


@pytest.mark.parametrize("how", ["promote", "postpone", "withdraw"])
@pytest.mark.parametrize("names", ["x", b"x", None, 5, [""], [b"x"], ["x" * 40], [None]], ids=repr)
def test_bad_names(q: Queue, raw: Raw, how: str, names: object) -> None:
    """Bad ids are refused, and no key changes."""
    q.enqueue("x")
    before = dump(raw)
    with pytest.raises(BadArgument):
        method_of(q, how)(names)
    assert dump(raw) == before


# -- evict -------------------------------------------------------------------------------------


def test_evicting(q: Queue, raw: Raw) -> None:
    """Evict takes jobs with lease 0 before dead letters: by end of ttl, then the oldest letter."""
    first = q.enqueue_many(range(3)).ids
    q.bury(q.reserve(3, block=0))
    once = [q.enqueue("x", lease=0, ttl=ttl).id for ttl in (300, 100, 200)]
    q.reserve(3, block=0)
    held, waiting = q.enqueue("held"), q.enqueue("later", delay=60)
    q.reserve(block=0)
    assert q.sweep(evict=1) == 1
    assert q.sweep(evict=1) == 1
    assert [q.show(job_id) is None for job_id in once] == [False, True, True]
    assert q.sweep(evict=2) == 2
    assert [view.id for view in q.peek(state="dead")] == first[1:]
    assert q.sweep(evict=100) == 2
    assert q.sweep(evict=100) == 0
    assert {shown(q, held.id), shown(q, waiting.id)} == {"active", "scheduled"}
    stats = q.stats()
    assert (stats.evicted, stats.dead, stats.trimmed, stats.deleted) == (6, 0, 0, 0)
    assert numbers(raw, q.ops, "tally") == []


def shown(q: Queue, job_id: str) -> str:
    """Return the state of a job."""
    view = q.show(job_id)
    return "gone" if view is None else view.state


def test_dead_letters_may_be_spared(q: Queue) -> None:
    """With `dead=False` evict removes only jobs with lease 0."""
    q.enqueue_many(range(3))
    q.bury(q.reserve(3, block=0))
    q.enqueue_many(range(4), lease=0)
    q.enqueue("not delivered yet", lease=0)
    held = q.reserve(4, block=0)
    assert q.sweep(evict=1000, dead=False) == 4
    stats = q.stats()
    assert (stats.dead, stats.active, stats.ready, stats.evicted) == (3, 0, 1, 4)
    assert held[0].ack() is False


@pytest.mark.parametrize("n", [-1, 1001, True, 1.5, "5", None])
def test_bad_numbers_to_evict(n: object) -> None:
    """A bad number to evict is refused without a connection."""
    q = Penstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="evict="):
        q.sweep(evict=n)  # type: ignore[arg-type]  # on purpose


def test_evicting_in_a_queue_that_does_not_exist(q: Queue, raw: Raw) -> None:
    """Evicting in a missing queue removes nothing and does not create it."""
    assert q.sweep(evict=100) == 0
    assert raw.dbsize() == 1  # the node's id


def test_a_full_server_takes_jobs_again(make_server: Callable[..., EmbeddedServer]) -> None:
    """At `maxmemory` enqueue is refused but evict works; afterwards there is room."""
    server = make_server(args=("--maxmemory-policy", "noeviction"))
    with redis.Redis.from_url(server.url) as raw:
        with Penstock(server.url, evict=False) as ps:
            q = ps.queue("q")
            q.enqueue_many([b"x" * 10_000] * 600, ttl=900, lease=0)
            while q.stats().ready:
                q.reserve(100, block=0)
            # The server frees buffers of clients later; half of the jobs take up more than this.
            raw.config_set("maxmemory", int(0.7 * raw.info("memory")["used_memory"]))
            with pytest.raises(OutOfMemory):
                q.enqueue(b"x" * 10_000)
            assert q.sweep(evict=300) == 300
            done = q.enqueue(b"x" * 10_000)
            assert in_order(q) == [done.id]
            assert q.stats().evicted == 300


def test_a_full_server_moves_jobs(make_server: Callable[..., EmbeddedServer]) -> None:
    """At `maxmemory` jobs can be promoted, recovered, postponed and withdrawn. A refused enqueue
    drops no dead letter.
    """
    server = make_server(args=("--maxmemory-policy", "noeviction"))
    with redis.Redis.from_url(server.url) as raw:
        with Penstock(server.url) as ps:
            q = ps.queue("q")
            dead = q.enqueue("dead").id
            q.bury([dead])
            later = q.enqueue("later", delay=600).id
            held, out, back = q.enqueue_many(["held", "out", "back"]).ids
            q.reserve(1, block=0)
            for call in (q.promote, q.postpone, partial(q.delete, if_undelivered=True)):
                assert list(call([])) == []
            raw.config_set("maxmemory", 1)
            with pytest.raises(OutOfMemory):
                q.enqueue("x")
            assert shown(q, dead) == "dead"
            assert [job.id for job in q.recover(idle=0)] == [held]
            assert q.promote([later])
            assert q.postpone([out])
            assert q.delete([back], if_undelivered=True)
            assert in_order(q) == [later]
