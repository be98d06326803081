"""A call finds the server of its slot and runs once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ClusterDownError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock import AsyncPenstock, AsyncQueue, Dedup
from penstock.client._async.adding import add_each
from penstock.client._async.transport.connection import AsyncProducerConnection
from penstock.core.enqueuing.prepared import prepared
from penstock.core.nodes.cluster import Address
from penstock.wire.keys import SLOT_COUNT, key_slot, registry_key, tag
from tests.support.busy import busy
from tests.support.cluster import Cluster, names_apart, slot_of_queue
from tests.support.twins import aspawn, await_for


async def bodies(q: AsyncQueue) -> list[Any]:
    """Return the bodies of the waiting jobs, in order."""
    return [view.body for view in await q.peek(1000)]


async def test_every_call_finds_the_slot_that_has_moved(
    ps: AsyncPenstock, q: AsyncQueue, cluster: Cluster
) -> None:
    """MOVED: every call runs once at the new place, and the next one goes there directly."""
    slot = slot_of_queue(q.name)
    await q.enqueue_many(range(8))

    async def finish() -> Any:
        (job,) = await q.reserve(block=0)
        cluster.move(slot, cluster.other(slot))
        return await job.ack()

    async def settle() -> Any:
        jobs = await q.reserve(2, block=0)
        cluster.move(slot, cluster.other(slot))
        outcomes, more = await q.ack_and_reserve(jobs, 1)
        assert outcomes.all_done
        return await q.nack(more, delay=3600)

    calls: list[Callable[[], Any]] = [
        lambda: q.enqueue("more"),
        lambda: q.enqueue_many(["more"] * 3, dedup=Dedup(lambda _: "same", on_duplicate="refuse")),
        lambda: q.reserve(block=0),
        lambda: q.configure(lease=60),
        q.stats,
        lambda: q.peek(5),
        finish,
        settle,
        q.pause,
        q.resume,
        q.sweep,
    ]
    for call in calls:
        cluster.move(slot, cluster.other(slot))
        await call()
        moved = cluster.errors("MOVED")
        await q.stats()
        assert cluster.errors("MOVED") == moved
    stats = await q.stats()
    assert stats.enqueued == 8 + 1 + 1
    assert (stats.acked, stats.active, stats.scheduled, stats.ready) == (3, 1, 1, 5)


async def test_a_migrating_slot_is_waited_for(
    ps: AsyncPenstock, q: AsyncQueue, cluster: Cluster
) -> None:
    """TRYAGAIN: the call waits until the slot has migrated, and runs there once."""
    slot = slot_of_queue(q.name)
    await q.enqueue("before")
    for most in (0, 1, None):  # no keys, some, or all have migrated
        target = cluster.other(slot)
        source = cluster.begin_move(slot, target)
        cluster.move_keys(slot, source, target, most=most)
        before = cluster.errors("TRYAGAIN")
        adding = aspawn(q.enqueue, most, max_length=100)  # it names keys that are missing
        await await_for(lambda seen=before: cluster.errors("TRYAGAIN") > seen + 3)
        assert not adding.is_done
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)
        await adding.result()
    assert await bodies(q) == ["before", 0, 1, None]
    assert (await q.stats()).enqueued == 4


async def test_a_busy_server_is_waited_for(
    q: AsyncQueue, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """BUSY of a server, for a call or a query of the slots, is retried."""
    caplog.set_level("INFO", "penstock")
    await q.enqueue("before")
    async with AsyncPenstock(cluster.url, retry_for=60) as patient:
        with busy(cluster.owner(slot_of_queue(q.name)).url):
            adding = aspawn(patient.queue(q.name).enqueue, "after")
            taking = aspawn(patient.queue(q.name).reserve, block=0)
            await await_for(lambda: sum("BUSY" in text for text in caplog.messages) >= 4)
            assert not adding.is_done
            assert not taking.is_done
        await adding.result()
        await taking.result()
    assert (await q.stats()).enqueued == 2


async def test_patience_lasts_as_long_as_keys_move(q: AsyncQueue, cluster: Cluster) -> None:
    """Retries last while keys migrate, longer than `retry_for`, which counts without progress."""
    slot = slot_of_queue(q.name)
    await q.enqueue("before")
    for number in range(6):
        cluster.owner(slot).raw.set(f"{{{tag(q.name)}}}:{number}", "x")
    target = cluster.other(slot)
    source = cluster.begin_move(slot, target)
    async with AsyncPenstock(cluster.url, retry_for=3) as impatient:
        adding = aspawn(impatient.queue(q.name).enqueue, "after", max_length=100)
        start = time.monotonic()
        for step in range(1, 7):
            await await_for(lambda at=step: time.monotonic() > start + at * 0.8)
            assert cluster.move_keys(slot, source, target, most=1) == 1
        assert time.monotonic() > start + 4
        assert not adding.is_done
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)
        await adding.result()
    assert await bodies(q) == ["before", "after"]


async def test_a_slot_whose_migration_is_stuck(q: AsyncQueue, cluster: Cluster) -> None:
    """Without progress for `retry_for` an error says so, and no call has run."""
    slot = slot_of_queue(q.name)
    await q.enqueue("before")
    cluster.begin_move(slot, cluster.other(slot))
    async with AsyncPenstock(cluster.url, retry_for=0.5) as impatient:
        with pytest.raises(TryAgainError):
            await impatient.queue(q.name).enqueue("never", max_length=100)
        cluster.stop_move(slot)
        await impatient.queue(q.name).enqueue("after")
    assert await bodies(q) == ["before", "after"]


async def test_keys_that_have_migrated_before_their_slot(
    ps: AsyncPenstock, q: AsyncQueue, cluster: Cluster
) -> None:
    """ASK: the registry is read and written at its new place."""
    await q.enqueue("x")
    slot = key_slot(registry_key("penstock"))
    target = cluster.other(slot)
    source = cluster.begin_move(slot, target)
    assert cluster.move_keys(slot, source, target) >= 1
    before = source.errors("ASK")
    assert await ps.queues() == [q.name]
    await ps.queue("another").enqueue("y")
    assert source.errors("ASK") > before
    cluster.end_move(slot, target)
    assert await ps.queues() == ["another", q.name]


async def test_a_slot_without_a_server(q: AsyncQueue, cluster: Cluster) -> None:
    """CLUSTERDOWN is retried for `retry_for` and then raised."""
    slot = slot_of_queue(q.name)
    await q.enqueue("before")
    async with AsyncPenstock(cluster.url, retry_for=0.3) as impatient:
        with cluster.without(slot):
            with pytest.raises(ClusterDownError):
                await impatient.queue(q.name).enqueue("never")
            before = cluster.calls("cluster|slots")
            adding = aspawn(q.enqueue, "after")
            await await_for(lambda: cluster.calls("cluster|slots") > before + 3)
    await adding.result()
    assert await bodies(q) == ["before", "after"]


async def test_servers_that_know_no_script(
    ps: AsyncPenstock, q: AsyncQueue, cluster: Cluster
) -> None:
    """NOSCRIPT: scripts are loaded on each server that lacks them, after a move too."""
    await q.enqueue("before")
    for member in cluster.members:
        member.raw.script_flush()
    await q.enqueue("after a flush")
    slot = slot_of_queue(q.name)
    target = cluster.other(slot)
    target.raw.script_flush()
    cluster.move(slot, target)
    await q.enqueue("after a move")
    assert target.errors("NOSCRIPT") > 0
    assert await bodies(q) == ["before", "after a flush", "after a move"]


async def test_a_lost_reply_is_asked_for_where_the_slot_is_by_then(
    q: AsyncQueue, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost reply the call is repeated at the slot's new place, and recognised there."""
    slot = slot_of_queue(q.name)
    exchange = AsyncProducerConnection.exchange
    sent: list[tuple[str, int]] = []

    async def losing(connection: AsyncProducerConnection, call: Any, caller: Any) -> Any:
        sent.append((caller.producer, caller.calls))
        reply = await exchange(connection, call, caller)
        if len(sent) == 1:
            cluster.move(slot, cluster.other(slot))
            raise RedisConnectionError("the reply is lost")
        return reply

    await q.enqueue("before")
    monkeypatch.setattr(AsyncProducerConnection, "exchange", losing)
    done = await q.enqueue("once")
    monkeypatch.undo()
    assert len(sent) > 1
    assert len(set(sent)) == 1
    assert [view.id for view in await q.peek()][1:] == [done.id]
    assert (await q.stats()).enqueued == 2


async def test_a_call_that_was_redirected_is_no_repeat(q: AsyncQueue, cluster: Cluster) -> None:
    """A redirected call has not run, so its missing job is reported as gone."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    await q.delete([job.id])
    slot = slot_of_queue(q.name)
    cluster.move(slot, cluster.other(slot))
    (outcome,) = await q.ack([job])
    assert outcome == "gone"


async def test_many_calls_at_once_while_slots_move(ps: AsyncPenstock, cluster: Cluster) -> None:
    """Calls to queues on all primaries run while slots move: every job exists once."""
    names = names_apart(cluster, 6)
    queues = [ps.queue(name) for name in names]

    async def produce(queue: AsyncQueue) -> None:
        for number in range(60):
            await queue.enqueue(number)

    producers = [aspawn(produce, queue) for queue in queues]
    for name in names * 2:
        slot = slot_of_queue(name)
        cluster.move(slot, cluster.other(slot))
    for producer in producers:
        await producer.result(60)
    for queue in queues:
        assert await bodies(queue) == list(range(60))


async def test_calls_of_several_queues(ps: AsyncPenstock, cluster: Cluster) -> None:
    """Each goes to the server of its queue, wherever the slot is by then."""
    names = names_apart(cluster, 6)
    queues, terms = [ps.queue(name) for name in names], prepared()
    for turn in range(2):
        ends = await add_each([(queue.route.part, [terms.record(turn)], terms) for queue in queues])
        assert not [end for end in ends if isinstance(end, Exception)]
        for name in names[:3]:
            cluster.move(slot_of_queue(name), cluster.other(slot_of_queue(name)))
    for queue in queues:
        assert await bodies(queue) == [0, 1]


async def test_a_map_that_is_wrong_in_every_place(
    ps: AsyncPenstock, q: AsyncQueue, cluster: Cluster
) -> None:
    """The first redirection loads the whole map, so only one call is misdirected."""
    await q.enqueue("x")
    names = names_apart(cluster, 6)
    for name in names:
        await ps.queue(name).enqueue("x")
    connections = ps.topology.executor.connections
    connections._owners = [connections._owners[0]] * SLOT_COUNT
    connections._read_at = -100.0
    before = cluster.errors("MOVED")
    for name in names:
        assert (await ps.queue(name).stats()).ready == 1
    assert cluster.errors("MOVED") == before + 1


async def test_servers_that_have_gone_for_good(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Old addresses are forgotten; servers with slots are asked first."""
    await q.enqueue("x")
    connections = ps.topology.executor.connections
    for number in range(100):
        connections._server(Address("127.0.0.2", 10_000 + number))
    assert {address.host for address in list(connections._askable(None))[:3]} == {"127.0.0.1"}
    connections._read_at = -100.0
    await connections._reread(0.0)
    gone = [address for address in connections._servers if address.host == "127.0.0.2"]
    assert gone == [Address("127.0.0.2", 10_084 + number) for number in range(16)]
    assert (await q.stats()).ready == 1
