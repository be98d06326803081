# From tests/_async/test_roles.py by tools/unasync.py; do not edit.
"""Exclusive roles: one producer or one consumer, under a lease with a fencing number."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    BadArgument,
    Dedup,
    Job,
    Middleware,
    Penstock,
    Queue,
    QueueClosed,
    QueueFull,
    QueueInUse,
    Role,
    RoleLost,
    Worker,
)
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, evalshas, load_scripts, numbers
from tests.support.twins import spawn, wait_for

from .conftest import Waits


def bodies_of(q: Queue, during: Callable[[], Any] | None = None) -> list[Any]:
    """Return the bodies of a loop; call `during` while it has its first job."""
    bodies = []
    for job in q.consume():
        with job:
            bodies.append(job.body)
            if during is not None and len(bodies) == 1:
                during()
    return bodies


def test_one_producer_at_a_time(q: Queue) -> None:
    """While the role is held only its own calls add jobs; afterwards all clients may again."""
    q.enqueue("before")
    with q.exclusive("producer") as role:
        assert isinstance(role, Role)
        assert (role.role, role.lost, role.queue.name) == ("producer", False, "q")
        with pytest.raises(QueueInUse, match="the producer role is held by tester") as caught:
            q.enqueue("refused")
        assert (caught.value.role, caught.value.holder) == ("producer", "tester")
        with pytest.raises(QueueInUse):
            q.enqueue_many(["refused"])
        with pytest.raises(QueueInUse):
            q.enqueue("refused", dedup=Dedup("x", on_duplicate="requeue+update"))
        role.queue.enqueue("first")
        role.queue.enqueue_many(range(3))
        role.queue.enqueue("named", dedup_id="x")
        assert str(q.stats().producer) == "tester"
        assert len(q.reserve(9, block=0)) == 6
    assert role.lost
    assert q.stats().producer is None
    q.enqueue("after")
    with pytest.raises(RoleLost, match="no longer holds the producer role"):
        role.queue.enqueue("late")
    assert q.stats().enqueued == 7


def test_one_consumer_at_a_time(q: Queue) -> None:
    """Only calls with the role reserve jobs; settling held jobs does not need it."""
    q.enqueue_many(range(8))
    held = q.reserve(4, block=0)
    with q.exclusive("consumer") as role:
        calls: list[Callable[[], Any]] = [
            lambda: q.reserve(block=0),
            lambda: q.reserve(block=5),
            lambda: q.recover(idle=0),
            lambda: q.ack_and_reserve([], 1),
            lambda: bodies_of(q),
        ]
        for call in calls:
            with pytest.raises(QueueInUse, match="the consumer role is held by tester"):
                call()
        q.enqueue(8)
        assert held[0].ack()
        assert held[1].nack(delay=600)
        assert held[2].release(delay=600)
        assert held[3].extend() > 0
        (job,) = role.queue.reserve(block=0)
        outcomes, (more,) = role.queue.ack_and_reserve([job], 1)
        assert outcomes.all_done
        assert (job.body, more.body) == (4, 5)
        assert more.queue is role.queue
        assert {found.body for found in role.queue.recover(9, idle=0)} == {3, 5}
        assert str(q.stats().consumer) == "tester"
    assert [job.body for job in q.reserve(2, block=0)] == [6, 7]


def test_a_refused_settle_finishes_nothing(q: Queue, raw: Raw) -> None:
    """A settle that would reserve is refused as a whole; `ack`, or settle with n = 0, works."""
    q.enqueue_many(range(2))
    held = q.reserve(2, block=0)
    with q.exclusive("consumer"):
        before = dump(raw)
        with pytest.raises(QueueInUse):
            q.ack_and_reserve(held, 1)
        assert dump(raw) == before
        assert q.ack(held).all_done


def test_a_refused_loop_acknowledges_its_last_job(q: Queue) -> None:
    """Another client takes the role while the loop has a job: the job is done, the loop ends."""
    q.enqueue_many(range(3))
    role = q.exclusive("consumer")
    with pytest.raises(QueueInUse):
        bodies_of(q, during=role.take)
    assert q.stats().acked == 1
    assert role.release()


@pytest.mark.usefixtures("no_ticks")
def test_waiting_consumers_are_told_of_a_taken_role(q: Queue, waits: Waits) -> None:
    """Three waiting consumers are told at once; their token is left for the holder."""
    q.enqueue(0)
    q.purge()
    consumers = [spawn(q.reserve, 1, block=block) for block in (30, 30, None)]
    waits.reach(3)
    with q.exclusive("consumer") as role:
        for consumer in consumers:
            with pytest.raises(QueueInUse):
                consumer.result()
        holder = spawn(role.queue.reserve, 1, block=30)
        waits.reach(1)
        q.enqueue(1)
        (job,) = holder.result()
        assert job.body == 1


@pytest.mark.usefixtures("no_ticks")
def test_waiting_producers_are_told_of_a_taken_role(q: Queue, waits: Waits) -> None:
    """Waiting producers are refused; the holder of the role still waits for room as usual."""
    q.configure(max_length=1)
    q.enqueue(0)
    producers = [spawn(q.enqueue, i, block=30) for i in (1, 2, 3)]
    waits.reach(3)
    with q.exclusive("producer") as role:
        for producer in producers:
            with pytest.raises(QueueInUse):
                producer.result()
        with pytest.raises(QueueFull):
            role.queue.enqueue(4)
        mine = spawn(role.queue.enqueue, 5, block=30)
        waits.reach(1)
        assert [job.body for job in q.reserve(block=0)] == [0]
        mine.result()
    assert [job.body for job in q.reserve(block=0)] == [5]


def test_numbers_rise(q: Queue, raw: Raw) -> None:
    """The number rises with every taking, after a return or an ended lease, and across epochs."""
    fences = []
    for _ in range(3):
        with q.exclusive("producer") as role:
            fences.append(role.fence)
    lapsed = q.exclusive("producer", lease=1).take()
    fences.append(lapsed.fence)
    advance(raw, q.ops, 1)
    with q.exclusive("producer", block=0) as role:
        fences.append(role.fence)
    q.clear()
    with q.exclusive("producer") as role:
        fences.append(role.fence)
    assert fences[:-1] == sorted(set(fences[:-1]))
    # setting the queue's clock forward above was lost with the queue
    assert fences[-1] > fences[3]
    with q.exclusive("consumer") as other:
        assert isinstance(other.fence, int)


def test_a_role_ends_with_its_lease(q: Queue, raw: Raw) -> None:
    """After its lease the calls of a role are refused, even if no other client has it."""
    role = q.exclusive("consumer", lease=5).take()
    q.enqueue(1)
    advance(raw, q.ops, 5)
    before = dump(raw)
    for _ in range(2):
        with pytest.raises(RoleLost) as caught:
            role.queue.reserve(block=0)
        assert caught.value.role == "consumer"
        assert role.lost
    with pytest.raises(RoleLost):
        role.extend()
    assert dump(raw) == before
    assert [job.body for job in q.reserve(block=0)] == [1]
    assert not role.release()


def test_a_former_holder_is_refused(q: Queue, raw: Raw) -> None:
    """A former holder has a lower number, and returning its role changes nothing."""
    first = q.exclusive("producer", lease=5).take()
    advance(raw, q.ops, 5)
    with q.exclusive("producer", lease=60, block=0) as second:
        assert second.fence > first.fence
        with pytest.raises(RoleLost):
            first.queue.enqueue("old")
        assert not first.release()
        second.queue.enqueue("new")
        with pytest.raises(RoleLost):
            first.queue.enqueue_many(["old"])
    assert q.stats().enqueued == 1


def test_each_call_with_the_role_renews_it(q: Queue, raw: Raw) -> None:
    """Each call that adds or reserves with the role renews it, even without result;
    reads do not.
    """
    q.configure(max_length=3, lease=3600)
    with q.exclusive("producer", lease=100) as producer:
        mine = producer.queue
        with q.exclusive("consumer", lease=100) as consumer:
            theirs = consumer.queue
            for _ in range(3):
                mine.enqueue(1)
                consumer.extend()
                advance(raw, q.ops, 90)
            with pytest.raises(QueueFull):
                mine.enqueue(1)
            jobs = theirs.reserve(2, block=0)
            advance(raw, q.ops, 90)
            mine.enqueue_many([1, 2])
            theirs.ack_and_reserve(jobs, 1)
            advance(raw, q.ops, 90)
            mine.enqueue(1, dedup_id="x", max_length=9)
            assert len(theirs.recover(9, idle=0)) == 1
            advance(raw, q.ops, 90)
            producer.extend()
            q.pause("all")
            assert theirs.reserve(block=0) == []
            advance(raw, q.ops, 90)
            mine.stats()
            assert not producer.lost
            advance(raw, q.ops, 10)
            with pytest.raises(RoleLost):
                mine.enqueue(1)
            with pytest.raises(RoleLost):
                theirs.reserve(block=0)


def test_waiting_renews_the_role(q: Queue) -> None:
    """A consumer without jobs and a producer without room keep their roles beyond the lease."""
    q.configure(max_length=1)
    q.enqueue("before")
    q.pause("out")
    with (
        q.exclusive("consumer", lease=1.5) as consumer,
        q.exclusive("producer", lease=1.5) as producer,
    ):
        taking = spawn(consumer.queue.reserve, 1, block=2.5)
        adding = spawn(producer.queue.enqueue_many, [1, 2, 3], block=2.5)
        assert taking.result() == []
        with pytest.raises(QueueFull):
            adding.result()
        with pytest.raises(QueueInUse):
            q.reserve(block=0)
        with pytest.raises(QueueInUse):
            q.enqueue("not ours")
        assert not consumer.lost
        assert not producer.lost


def test_the_holder_tracks_the_lease_locally(q: Queue) -> None:
    """By the client's own clock the role is lost a lease after the last renewal."""
    short = q.exclusive("producer", lease=0.2).take()
    wait_for(lambda: short.lost)
    with q.exclusive("producer", lease=60) as role:
        assert not role.lost
        before = role.queue.ops.role_leases["producer"].until
        role.queue.enqueue(1)
        assert role.queue.ops.role_leases["producer"].until > before
        assert 30 < role.extend() <= 60
        assert not role.lost


def test_taking_a_held_role(q: Queue) -> None:
    """Taking a held role is refused at once or after the wait; the error has the holder."""
    with q.exclusive("producer"):
        with pytest.raises(QueueInUse, match="tester"):
            q.exclusive("producer", block=0).take()
        start = time.monotonic()
        with pytest.raises(QueueInUse):
            with q.exclusive("producer", block=0.3):
                pytest.fail("two have it")
        assert time.monotonic() - start >= 0.3


def test_waiting_for_a_returned_role(q: Queue) -> None:
    """Three clients take turns, each with a higher number."""
    turns: list[int] = []

    def once() -> None:
        with q.exclusive("consumer", block=None) as role:
            turns.append(role.fence)
            role.queue.stats()

    with q.exclusive("consumer") as first:
        waiting = [spawn(once) for _ in range(3)]
        q.stats()
        assert turns == []
        turns.append(first.fence)
    for one in waiting:
        one.result()
    assert turns == sorted(set(turns))
    assert len(turns) == 4


def test_waiting_for_the_end_of_a_lease(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder stopped renewing: the next client gets the role when the lease ends,
    without polling.
    """
    for pause in ("FIRST_ROLE_PAUSE", "LONGEST_ROLE_PAUSE"):
        monkeypatch.setattr(f"penstock.core.flows.roles.{pause}", 60.0)
    silent = q.exclusive("producer", lease=1).take()
    start = time.monotonic()
    with q.exclusive("producer", block=20) as role:
        assert time.monotonic() - start < 15
        assert role.fence - silent.fence >= 999_000  # microseconds; leases end on a whole ms


def test_waiting_for_a_role_needs_few_calls(real_q: Queue, real_raw: Raw) -> None:
    """A waiting client asks quickly at first, then less than once in two seconds."""
    load_scripts(real_raw)
    with real_q.exclusive("producer", lease=60):
        before = evalshas(real_raw)
        with pytest.raises(QueueInUse):
            real_q.exclusive("producer", block=5).take()
        assert evalshas(real_raw) - before <= 8  # at 0, .1, .3, .7, 1.5, 3.1, 5


def test_both_roles(q: Queue) -> None:
    """With one role inside the other, the inner queue has both, and each ends by itself."""
    with q.exclusive("producer") as outer:
        with outer.queue.exclusive("consumer") as inner:
            inner.queue.enqueue(1)
            (job,) = inner.queue.reserve(block=0)
            job.ack()
            with pytest.raises(QueueInUse):
                outer.queue.reserve(block=0)
        outer.queue.enqueue(2)
        (job,) = outer.queue.reserve(block=0)
        assert job.body == 2
    with pytest.raises(RoleLost):
        inner.queue.enqueue(3)


def test_a_role_and_a_close(q: Queue, raw: Raw) -> None:
    """The only producer fills and closes the queue; the only consumer drains it and ends."""
    with q.exclusive("producer") as producer:
        producer.queue.enqueue_many(range(5))
        producer.queue.close()
        with pytest.raises(QueueClosed):
            producer.queue.enqueue(5)
        with pytest.raises(QueueClosed):
            q.enqueue(5)
    with q.exclusive("consumer") as consumer:
        assert bodies_of(consumer.queue) == list(range(5))
        with pytest.raises(QueueInUse):
            q.reserve(block=0)
    assert numbers(raw, q.ops, "held") == []


def test_roles_of_a_removed_queue(q: Queue, raw: Raw) -> None:
    """When the queue is cleared or re-created, its roles are lost and their calls refused."""
    role = q.exclusive("producer").take()
    q.clear()
    with pytest.raises(RoleLost):
        role.queue.enqueue(1)
    assert dump(raw).keys() <= {b"penstock:node", b"penstock:queues"}
    q.enqueue("of others")
    with pytest.raises(RoleLost):
        role.queue.enqueue(1)
    assert not role.release()


def test_a_held_role_keeps_an_idle_queue(q: Queue, raw: Raw) -> None:
    """A queue is not swept before the lease of its role has ended."""
    role = q.exclusive("producer", lease=7200).take()
    advance(raw, q.ops, 3600)
    q.sweep()
    assert not q.stats().ready
    assert str(q.stats().producer) == "tester"
    role.queue.enqueue(1)
    q.purge()
    advance(raw, q.ops, 9000)
    q.sweep()
    assert not q.stats().exists


def test_a_queue_with_roles_from_several(ps: Penstock, q: Queue) -> None:
    """One call may reserve from a role's queue and others; it is refused if one role is taken."""
    other = ps.queue("other")
    q.enqueue("mine")
    other.enqueue("theirs")
    with q.exclusive("consumer") as role:
        jobs = ps.reserve([role.queue, other], 5, block=0)
        assert [job.body for job in jobs] == ["mine", "theirs"]
        other.enqueue("more")
        with pytest.raises(QueueInUse):
            ps.reserve([other, q], 5, block=0)
    assert other.stats().ready == 1


def test_middleware_sees_calls_with_a_role(backend: Backend) -> None:
    """The queue of a role uses the client's middleware."""
    seen: list[Any] = []

    class Watching(Middleware):
        def enqueue(self, event: Any) -> Any:
            seen.append(event.queue)
            return super().enqueue(event)

    with (
        backend.sync_client() as lent,
        Penstock(lent, middleware=[Watching()]) as client,
        client.queue("q").exclusive("producer") as role,
    ):
        role.queue.enqueue(1)
    assert seen == ["q"]


def test_a_worker_respects_a_role(ps: Penstock, q: Queue) -> None:
    """When another client takes the role, a worker finishes its jobs and works on other queues."""
    other = ps.queue("other")
    seen: list[Any] = []
    role = q.exclusive("consumer", lease=60)

    def handler(job: Job) -> None:
        seen.append(job.body)
        if job.body == "first":
            role.take()

    q.enqueue("first")
    with Worker(ps, ["q", "other"], handler, concurrency=1) as worker:
        wait_for(lambda: seen == ["first"])
        q.enqueue("for the holder")
        other.enqueue("other")
        wait_for(lambda: seen == ["first", "other"])
        (job,) = role.queue.reserve(block=5)
        assert job.body == "for the holder"
        job.ack()
        q.enqueue("last")
        assert role.release()
        wait_for(lambda: "last" in seen)
        wait_for(lambda: worker.status().stats.counts == {"done": 3})
    assert q.stats().acked == 3


def test_a_worker_without_the_role_reports_finished_jobs(
    ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker without the role reports finished jobs while it waits for other queues."""
    taken: list[Any] = []

    def handler(job: Job) -> None:
        wait_for(lambda: bool(taken))

    caplog.set_level("INFO", "penstock")
    q.enqueue("first")
    with Worker(ps, ["q", "other"], handler, concurrency=2) as worker:
        wait_for(lambda: len(worker.status().running) == 1)
        with q.exclusive("consumer", lease=60) as role:
            wait_for(lambda: "the consumer role is held by" in caplog.text)
            taken.append(role)
            wait_for(lambda: worker.status().stats.counts == {"done": 1})
            assert q.stats().acked == 1


BAD: list[tuple[Any, dict[str, Any]]] = [
    *((role, {}) for role in ("producers", None, "", b"producer")),
    *(("producer", {"lease": lease}) for lease in (0, -1, float("nan"), "30", True, 25 * 86_400)),
    *(("consumer", {"block": block}) for block in (-1, "long", float("inf"))),
]


def test_bad_arguments(q: Queue, raw: Raw) -> None:
    """Bad arguments are refused before anything is sent."""
    before = dump(raw)
    for role, options in BAD:
        with pytest.raises(BadArgument):
            q.exclusive(role, **options)
    assert dump(raw) == before


def test_a_role_that_is_not_taken(q: Queue, raw: Raw) -> None:
    """Before it is taken a role has no queue and no number; its queue can't take a role itself."""
    role, before = q.exclusive("producer"), dump(raw)
    assert repr(role).endswith("Role producer of 'q': not held>")
    with pytest.raises(BadArgument, match="the role is not held"):
        _ = role.fence
    with pytest.raises(BadArgument):
        _ = role.queue
    with pytest.raises(BadArgument):
        _ = role.lost
    with pytest.raises(BadArgument):
        role.extend()
    with pytest.raises(BadArgument):
        role.release()
    assert dump(raw) == before
    with role:
        with pytest.raises(BadArgument, match="holds it already"):
            role.queue.exclusive("producer")


def test_a_role_may_be_taken_again(q: Queue) -> None:
    """A role object may be taken again: it has a new number, and its first queue is refused."""
    role = q.exclusive("producer")
    with role:
        first, before = role.fence, role.queue
    with role:
        assert role.fence > first
        role.queue.enqueue(1)
        with pytest.raises(RoleLost):
            before.enqueue(2)


def test_a_role_does_not_wait_for_itself(q: Queue) -> None:
    """Entering a held role again is refused, and the role stays held."""
    role = q.exclusive("producer", lease=60)
    with role:
        with pytest.raises(BadArgument, match="held already"):
            role.take()
        role.queue.enqueue(1)
    assert q.stats().producer is None


def test_an_error_in_the_block_is_raised(q: Queue) -> None:
    """An error in the block is raised, and the role is given back."""
    with pytest.raises(ZeroDivisionError):
        with q.exclusive("producer"):
            raise ZeroDivisionError
    q.enqueue(1)
