"""Exclusive roles: one producer or one consumer, under a lease with a fencing number."""

from __future__ import annotations

import asyncio  # async only
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncRole,
    AsyncWorker,
    BadArgument,
    Dedup,
    Middleware,
    QueueClosed,
    QueueFull,
    QueueInUse,
    RoleLost,
)
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, evalshas, load_scripts, numbers
from tests.support.twins import AsyncBeside, aspawn, await_for

from .conftest import AsyncWaits


async def bodies_of(q: AsyncQueue, during: Callable[[], Any] | None = None) -> list[Any]:
    """Return the bodies of a loop; call `during` while it has its first job."""
    bodies = []
    async for job in q.consume():
        async with job:
            bodies.append(job.body)
            if during is not None and len(bodies) == 1:
                await during()
    return bodies


async def test_one_producer_at_a_time(q: AsyncQueue) -> None:
    """While the role is held only its own calls add jobs; afterwards all clients may again."""
    await q.enqueue("before")
    async with q.exclusive("producer") as role:
        assert isinstance(role, AsyncRole)
        assert (role.role, role.lost, role.queue.name) == ("producer", False, "q")
        with pytest.raises(QueueInUse, match="the producer role is held by tester") as caught:
            await q.enqueue("refused")
        assert (caught.value.role, caught.value.holder) == ("producer", "tester")
        with pytest.raises(QueueInUse):
            await q.enqueue_many(["refused"])
        with pytest.raises(QueueInUse):
            await q.enqueue("refused", dedup=Dedup("x", on_duplicate="requeue+update"))
        await role.queue.enqueue("first")
        await role.queue.enqueue_many(range(3))
        await role.queue.enqueue("named", dedup_id="x")
        assert str((await q.stats()).producer) == "tester"
        assert len(await q.reserve(9, block=0)) == 6
    assert role.lost
    assert (await q.stats()).producer is None
    await q.enqueue("after")
    with pytest.raises(RoleLost, match="no longer holds the producer role"):
        await role.queue.enqueue("late")
    assert (await q.stats()).enqueued == 7


async def test_one_consumer_at_a_time(q: AsyncQueue) -> None:
    """Only calls with the role reserve jobs; settling held jobs does not need it."""
    await q.enqueue_many(range(8))
    held = await q.reserve(4, block=0)
    async with q.exclusive("consumer") as role:
        calls: list[Callable[[], Any]] = [
            lambda: q.reserve(block=0),
            lambda: q.reserve(block=5),
            lambda: q.recover(idle=0),
            lambda: q.ack_and_reserve([], 1),
            lambda: bodies_of(q),
        ]
        for call in calls:
            with pytest.raises(QueueInUse, match="the consumer role is held by tester"):
                await call()
        await q.enqueue(8)
        assert await held[0].ack()
        assert await held[1].nack(delay=600)
        assert await held[2].release(delay=600)
        assert await held[3].extend() > 0
        (job,) = await role.queue.reserve(block=0)
        outcomes, (more,) = await role.queue.ack_and_reserve([job], 1)
        assert outcomes.all_done
        assert (job.body, more.body) == (4, 5)
        assert more.queue is role.queue
        assert {found.body for found in await role.queue.recover(9, idle=0)} == {3, 5}
        assert str((await q.stats()).consumer) == "tester"
    assert [job.body for job in await q.reserve(2, block=0)] == [6, 7]


async def test_a_refused_settle_finishes_nothing(q: AsyncQueue, raw: Raw) -> None:
    """A settle that would reserve is refused as a whole; `ack`, or settle with n = 0, works."""
    await q.enqueue_many(range(2))
    held = await q.reserve(2, block=0)
    async with q.exclusive("consumer"):
        before = dump(raw)
        with pytest.raises(QueueInUse):
            await q.ack_and_reserve(held, 1)
        assert dump(raw) == before
        assert (await q.ack(held)).all_done


async def test_a_refused_loop_acknowledges_its_last_job(q: AsyncQueue) -> None:
    """Another client takes the role while the loop has a job: the job is done, the loop ends."""
    await q.enqueue_many(range(3))
    role = q.exclusive("consumer")
    with pytest.raises(QueueInUse):
        await bodies_of(q, during=role.take)
    assert (await q.stats()).acked == 1
    assert await role.release()


@pytest.mark.usefixtures("no_ticks")
async def test_waiting_consumers_are_told_of_a_taken_role(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Three waiting consumers are told at once; their token is left for the holder."""
    await q.enqueue(0)
    await q.purge()
    consumers = [aspawn(q.reserve, 1, block=block) for block in (30, 30, None)]
    await waits.reach(3)
    async with q.exclusive("consumer") as role:
        for consumer in consumers:
            with pytest.raises(QueueInUse):
                await consumer.result()
        holder = aspawn(role.queue.reserve, 1, block=30)
        await waits.reach(1)
        await q.enqueue(1)
        (job,) = await holder.result()
        assert job.body == 1


@pytest.mark.usefixtures("no_ticks")
async def test_waiting_producers_are_told_of_a_taken_role(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Waiting producers are refused; the holder of the role still waits for room as usual."""
    await q.configure(max_length=1)
    await q.enqueue(0)
    producers = [aspawn(q.enqueue, i, block=30) for i in (1, 2, 3)]
    await waits.reach(3)
    async with q.exclusive("producer") as role:
        for producer in producers:
            with pytest.raises(QueueInUse):
                await producer.result()
        with pytest.raises(QueueFull):
            await role.queue.enqueue(4)
        mine = aspawn(role.queue.enqueue, 5, block=30)
        await waits.reach(1)
        assert [job.body for job in await q.reserve(block=0)] == [0]
        await mine.result()
    assert [job.body for job in await q.reserve(block=0)] == [5]


async def test_numbers_rise(q: AsyncQueue, raw: Raw) -> None:
    """The number rises with every taking, after a return or an ended lease, and across epochs."""
    fences = []
    for _ in range(3):
        async with q.exclusive("producer") as role:
            fences.append(role.fence)
    lapsed = await q.exclusive("producer", lease=1).take()
    fences.append(lapsed.fence)
    advance(raw, q.ops, 1)
    async with q.exclusive("producer", block=0) as role:
        fences.append(role.fence)
    await q.clear()
    async with q.exclusive("producer") as role:
        fences.append(role.fence)
    assert fences[:-1] == sorted(set(fences[:-1]))
    # setting the queue's clock forward above was lost with the queue
    assert fences[-1] > fences[3]
    async with q.exclusive("consumer") as other:
        assert isinstance(other.fence, int)


async def test_a_role_ends_with_its_lease(q: AsyncQueue, raw: Raw) -> None:
    """After its lease the calls of a role are refused, even if no other client has it."""
    role = await q.exclusive("consumer", lease=5).take()
    await q.enqueue(1)
    advance(raw, q.ops, 5)
    before = dump(raw)
    for _ in range(2):
        with pytest.raises(RoleLost) as caught:
            await role.queue.reserve(block=0)
        assert caught.value.role == "consumer"
        assert role.lost
    with pytest.raises(RoleLost):
        await role.extend()
    assert dump(raw) == before
    assert [job.body for job in await q.reserve(block=0)] == [1]
    assert not await role.release()


async def test_a_former_holder_is_refused(q: AsyncQueue, raw: Raw) -> None:
    """A former holder has a lower number, and returning its role changes nothing."""
    first = await q.exclusive("producer", lease=5).take()
    advance(raw, q.ops, 5)
    async with q.exclusive("producer", lease=60, block=0) as second:
        assert second.fence > first.fence
        with pytest.raises(RoleLost):
            await first.queue.enqueue("old")
        assert not await first.release()
        await second.queue.enqueue("new")
        with pytest.raises(RoleLost):
            await first.queue.enqueue_many(["old"])
    assert (await q.stats()).enqueued == 1


async def test_each_call_with_the_role_renews_it(q: AsyncQueue, raw: Raw) -> None:
    """Each call that adds or reserves with the role renews it, even without result;
    reads do not.
    """
    await q.configure(max_length=3, lease=3600)
    async with q.exclusive("producer", lease=100) as producer:
        mine = producer.queue
        async with q.exclusive("consumer", lease=100) as consumer:
            theirs = consumer.queue
            for _ in range(3):
                await mine.enqueue(1)
                await consumer.extend()
                advance(raw, q.ops, 90)
            with pytest.raises(QueueFull):
                await mine.enqueue(1)
            jobs = await theirs.reserve(2, block=0)
            advance(raw, q.ops, 90)
            await mine.enqueue_many([1, 2])
            await theirs.ack_and_reserve(jobs, 1)
            advance(raw, q.ops, 90)
            await mine.enqueue(1, dedup_id="x", max_length=9)
            assert len(await theirs.recover(9, idle=0)) == 1
            advance(raw, q.ops, 90)
            await producer.extend()
            await q.pause("all")
            assert await theirs.reserve(block=0) == []
            advance(raw, q.ops, 90)
            await mine.stats()
            assert not producer.lost
            advance(raw, q.ops, 10)
            with pytest.raises(RoleLost):
                await mine.enqueue(1)
            with pytest.raises(RoleLost):
                await theirs.reserve(block=0)


async def test_waiting_renews_the_role(q: AsyncQueue) -> None:
    """A consumer without jobs and a producer without room keep their roles beyond the lease."""
    await q.configure(max_length=1)
    await q.enqueue("before")
    await q.pause("out")
    async with (
        q.exclusive("consumer", lease=1.5) as consumer,
        q.exclusive("producer", lease=1.5) as producer,
    ):
        taking = aspawn(consumer.queue.reserve, 1, block=2.5)
        adding = aspawn(producer.queue.enqueue_many, [1, 2, 3], block=2.5)
        assert await taking.result() == []
        with pytest.raises(QueueFull):
            await adding.result()
        with pytest.raises(QueueInUse):
            await q.reserve(block=0)
        with pytest.raises(QueueInUse):
            await q.enqueue("not ours")
        assert not consumer.lost
        assert not producer.lost


async def test_the_holder_tracks_the_lease_locally(q: AsyncQueue) -> None:
    """By the client's own clock the role is lost a lease after the last renewal."""
    short = await q.exclusive("producer", lease=0.2).take()
    await await_for(lambda: short.lost)
    async with q.exclusive("producer", lease=60) as role:
        assert not role.lost
        before = role.queue.ops.role_leases["producer"].until
        await role.queue.enqueue(1)
        assert role.queue.ops.role_leases["producer"].until > before
        assert 30 < await role.extend() <= 60
        assert not role.lost


async def test_taking_a_held_role(q: AsyncQueue) -> None:
    """Taking a held role is refused at once or after the wait; the error has the holder."""
    async with q.exclusive("producer"):
        with pytest.raises(QueueInUse, match="tester"):
            await q.exclusive("producer", block=0).take()
        start = time.monotonic()
        with pytest.raises(QueueInUse):
            async with q.exclusive("producer", block=0.3):
                pytest.fail("two have it")
        assert time.monotonic() - start >= 0.3


async def test_waiting_for_a_returned_role(q: AsyncQueue) -> None:
    """Three clients take turns, each with a higher number."""
    turns: list[int] = []

    async def once() -> None:
        async with q.exclusive("consumer", block=None) as role:
            turns.append(role.fence)
            await role.queue.stats()

    async with q.exclusive("consumer") as first:
        waiting = [aspawn(once) for _ in range(3)]
        await q.stats()
        assert turns == []
        turns.append(first.fence)
    for one in waiting:
        await one.result()
    assert turns == sorted(set(turns))
    assert len(turns) == 4


async def test_waiting_for_the_end_of_a_lease(
    q: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder stopped renewing: the next client gets the role when the lease ends,
    without polling.
    """
    for pause in ("FIRST_ROLE_PAUSE", "LONGEST_ROLE_PAUSE"):
        monkeypatch.setattr(f"penstock.core.flows.roles.{pause}", 60.0)
    silent = await q.exclusive("producer", lease=1).take()
    start = time.monotonic()
    async with q.exclusive("producer", block=20) as role:
        assert time.monotonic() - start < 15
        assert role.fence - silent.fence >= 999_000  # microseconds; leases end on a whole ms


async def test_waiting_for_a_role_needs_few_calls(real_q: AsyncQueue, real_raw: Raw) -> None:
    """A waiting client asks quickly at first, then less than once in two seconds."""
    load_scripts(real_raw)
    async with real_q.exclusive("producer", lease=60):
        before = evalshas(real_raw)
        with pytest.raises(QueueInUse):
            await real_q.exclusive("producer", block=5).take()
        assert evalshas(real_raw) - before <= 8  # at 0, .1, .3, .7, 1.5, 3.1, 5


async def test_both_roles(q: AsyncQueue) -> None:
    """With one role inside the other, the inner queue has both, and each ends by itself."""
    async with q.exclusive("producer") as outer:
        async with outer.queue.exclusive("consumer") as inner:
            await inner.queue.enqueue(1)
            (job,) = await inner.queue.reserve(block=0)
            await job.ack()
            with pytest.raises(QueueInUse):
                await outer.queue.reserve(block=0)
        await outer.queue.enqueue(2)
        (job,) = await outer.queue.reserve(block=0)
        assert job.body == 2
    with pytest.raises(RoleLost):
        await inner.queue.enqueue(3)


async def test_a_role_and_a_close(q: AsyncQueue, raw: Raw) -> None:
    """The only producer fills and closes the queue; the only consumer drains it and ends."""
    async with q.exclusive("producer") as producer:
        await producer.queue.enqueue_many(range(5))
        await producer.queue.close()
        with pytest.raises(QueueClosed):
            await producer.queue.enqueue(5)
        with pytest.raises(QueueClosed):
            await q.enqueue(5)
    async with q.exclusive("consumer") as consumer:
        assert await bodies_of(consumer.queue) == list(range(5))
        with pytest.raises(QueueInUse):
            await q.reserve(block=0)
    assert numbers(raw, q.ops, "held") == []


async def test_roles_of_a_removed_queue(q: AsyncQueue, raw: Raw) -> None:
    """When the queue is cleared or re-created, its roles are lost and their calls refused."""
    role = await q.exclusive("producer").take()
    await q.clear()
    with pytest.raises(RoleLost):
        await role.queue.enqueue(1)
    assert dump(raw).keys() <= {b"penstock:node", b"penstock:queues"}
    await q.enqueue("of others")
    with pytest.raises(RoleLost):
        await role.queue.enqueue(1)
    assert not await role.release()


async def test_a_held_role_keeps_an_idle_queue(q: AsyncQueue, raw: Raw) -> None:
    """A queue is not swept before the lease of its role has ended."""
    role = await q.exclusive("producer", lease=7200).take()
    advance(raw, q.ops, 3600)
    await q.sweep()
    assert not (await q.stats()).ready
    assert str((await q.stats()).producer) == "tester"
    await role.queue.enqueue(1)
    await q.purge()
    advance(raw, q.ops, 9000)
    await q.sweep()
    assert not (await q.stats()).exists


async def test_a_queue_with_roles_from_several(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """One call may reserve from a role's queue and others; it is refused if one role is taken."""
    other = ps.queue("other")
    await q.enqueue("mine")
    await other.enqueue("theirs")
    async with q.exclusive("consumer") as role:
        jobs = await ps.reserve([role.queue, other], 5, block=0)
        assert [job.body for job in jobs] == ["mine", "theirs"]
        await other.enqueue("more")
        with pytest.raises(QueueInUse):
            await ps.reserve([other, q], 5, block=0)
    assert (await other.stats()).ready == 1


async def test_middleware_sees_calls_with_a_role(backend: Backend) -> None:
    """The queue of a role uses the client's middleware."""
    seen: list[Any] = []

    class Watching(Middleware):
        def enqueue(self, event: Any) -> Any:
            seen.append(event.queue)
            return super().enqueue(event)

    async with (
        backend.async_client() as lent,
        AsyncPenstock(lent, middleware=[Watching()]) as client,
        client.queue("q").exclusive("producer") as role,
    ):
        await role.queue.enqueue(1)
    assert seen == ["q"]


async def test_a_worker_respects_a_role(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """When another client takes the role, a worker finishes its jobs and works on other queues."""
    other = ps.queue("other")
    seen: list[Any] = []
    role = q.exclusive("consumer", lease=60)

    async def handler(job: AsyncJob) -> None:
        seen.append(job.body)
        if job.body == "first":
            await role.take()

    await q.enqueue("first")
    async with AsyncWorker(ps, ["q", "other"], handler, concurrency=1) as worker:
        await await_for(lambda: seen == ["first"])
        await q.enqueue("for the holder")
        await other.enqueue("other")
        await await_for(lambda: seen == ["first", "other"])
        (job,) = await role.queue.reserve(block=5)
        assert job.body == "for the holder"
        await job.ack()
        await q.enqueue("last")
        assert await role.release()
        await await_for(lambda: "last" in seen)
        await await_for(lambda: worker.status().stats.counts == {"done": 3})
    assert (await q.stats()).acked == 3


async def test_a_worker_without_the_role_reports_finished_jobs(
    ps: AsyncPenstock, q: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker without the role reports finished jobs while it waits for other queues."""
    taken: list[Any] = []

    async def handler(job: AsyncJob) -> None:
        await await_for(lambda: bool(taken))

    caplog.set_level("INFO", "penstock")
    await q.enqueue("first")
    async with AsyncWorker(ps, ["q", "other"], handler, concurrency=2) as worker:
        await await_for(lambda: len(worker.status().running) == 1)
        async with q.exclusive("consumer", lease=60) as role:
            await await_for(lambda: "the consumer role is held by" in caplog.text)
            taken.append(role)
            await await_for(lambda: worker.status().stats.counts == {"done": 1})
            assert (await q.stats()).acked == 1


BAD: list[tuple[Any, dict[str, Any]]] = [
    *((role, {}) for role in ("producers", None, "", b"producer")),
    *(("producer", {"lease": lease}) for lease in (0, -1, float("nan"), "30", True, 25 * 86_400)),
    *(("consumer", {"block": block}) for block in (-1, "long", float("inf"))),
]


async def test_bad_arguments(q: AsyncQueue, raw: Raw) -> None:
    """Bad arguments are refused before anything is sent."""
    before = dump(raw)
    for role, options in BAD:
        with pytest.raises(BadArgument):
            q.exclusive(role, **options)
    assert dump(raw) == before


async def test_a_role_that_is_not_taken(q: AsyncQueue, raw: Raw) -> None:
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
        await role.extend()
    with pytest.raises(BadArgument):
        await role.release()
    assert dump(raw) == before
    async with role:
        with pytest.raises(BadArgument, match="holds it already"):
            role.queue.exclusive("producer")


async def test_a_role_may_be_taken_again(q: AsyncQueue) -> None:
    """A role object may be taken again: it has a new number, and its first queue is refused."""
    role = q.exclusive("producer")
    async with role:
        first, before = role.fence, role.queue
    async with role:
        assert role.fence > first
        await role.queue.enqueue(1)
        with pytest.raises(RoleLost):
            await before.enqueue(2)


async def test_a_role_does_not_wait_for_itself(q: AsyncQueue) -> None:
    """Entering a held role again is refused, and the role stays held."""
    role = q.exclusive("producer", lease=60)
    async with role:
        with pytest.raises(BadArgument, match="held already"):
            await role.take()
        await role.queue.enqueue(1)
    assert (await q.stats()).producer is None


async def test_an_error_in_the_block_is_raised(q: AsyncQueue) -> None:
    """An error in the block is raised, and the role is given back."""
    with pytest.raises(ZeroDivisionError):
        async with q.exclusive("producer"):
            raise ZeroDivisionError
    await q.enqueue(1)


# [async only
async def test_a_wait_for_a_role_may_be_cancelled(q: AsyncQueue) -> None:
    """A cancelled wait takes no role."""
    # redis-py may swallow a cancellation while it connects: connections for both are made before
    await asyncio.gather(*(q.stats() for _ in range(3)))
    async with q.exclusive("producer"):
        waiting: AsyncBeside[Any] = aspawn(q.exclusive("producer").take)
        await q.stats()
        waiting._task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting.result()
    await q.enqueue(1)
    assert (await q.stats()).producer is None


# async only]
