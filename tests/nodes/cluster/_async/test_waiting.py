"""Waiting in several slots at once."""

from __future__ import annotations

import statistics
import time

import pytest

from penstock import AsyncPenstock
from tests.support.cluster import Cluster, RawCluster, names_apart, slot_of_queue
from tests.support.keyspace import load_scripts
from tests.support.twins import aspawn, await_for

EVENTS = 20


def blocked(raw: RawCluster) -> int:
    """Count the connections that wait for tokens: one for each slot of each consumer."""
    return int(raw.info("clients")["blocked_clients"])


@pytest.fixture
def names(cluster: Cluster) -> list[str]:
    """Three queues on three primaries."""
    return names_apart(cluster, 3)


async def test_a_job_in_any_slot_ends_a_wait(
    ps: AsyncPenstock, raw: RawCluster, names: list[str]
) -> None:
    """A job in any slot ends the wait, names its queue, and leaves nothing."""
    load_scripts(raw)
    late = []
    for number in range(EVENTS):
        name = names[number % 3]
        consumer = aspawn(ps.reserve, names, 1, block=30)
        await await_for(lambda: blocked(raw) == 3)
        start = time.monotonic()
        await ps.queue(name).enqueue(number)
        (job,) = await consumer.result()
        late.append(time.monotonic() - start)
        assert (job.queue_name, job.body) == (name, number)
        await job.ack()
    assert statistics.median(late) < 0.25  # a tick is 4 s; the machine may be busy
    await await_for(lambda: blocked(raw) == 0)


async def test_tokens_of_several_slots_at_once(
    ps: AsyncPenstock, raw: RawCluster, names: list[str]
) -> None:
    """Each wait takes its token; a consumer that leaves with one job passes the others on."""
    for _ in range(5):
        consumers = [aspawn(ps.reserve, names, 1, block=30) for _ in names]
        await await_for(lambda: blocked(raw) == 9)
        for name in names:
            await ps.queue(name).enqueue(name)
        found = []
        for consumer in consumers:
            (job,) = await consumer.result(3)  # less than a tick
            found.append(job.queue_name)
            await job.ack()
        assert sorted(found) == sorted(names)


async def test_a_consumer_that_has_left_takes_no_token(
    ps: AsyncPenstock, raw: RawCluster, names: list[str]
) -> None:
    """A consumer that leaves ends its waits in all slots, so the next job reaches another one."""
    for name in names:
        everywhere = aspawn(ps.reserve, names, 1, block=30)
        await await_for(lambda: blocked(raw) == 3)
        await ps.queue(names[0]).enqueue("for the first")
        assert len(await everywhere.result()) == 1
        here = aspawn(ps.queue(name).reserve, 1, block=30)
        await await_for(lambda: blocked(raw) == 1)
        await ps.queue(name).enqueue("for the other")
        assert len(await here.result(3)) == 1


async def test_an_idle_wait_costs_a_tick(
    ps: AsyncPenstock, raw: RawCluster, cluster: Cluster, names: list[str]
) -> None:
    """One reserve for each queue every 4 s, and no other command."""
    consumer = aspawn(ps.reserve, names, 1, block=9)
    await await_for(lambda: blocked(raw) == 3)
    counted = ("evalsha", "blpop", "hget", "client|unblock", "cluster|slots")
    before = {name: cluster.calls(name) for name in counted}
    assert await consumer.result() == []
    spent = {name: cluster.calls(name) - count for name, count in before.items()}
    assert spent["evalsha"] <= 3 * 4  # two ticks, and the end
    assert spent["client|unblock"] == 3
    assert spent["blpop"] in (0, 3)  # Valkey counts a BLPOP when it ends
    assert spent["hget"] == spent["cluster|slots"] == 0


async def test_a_slot_that_moves_under_a_wait(
    ps: AsyncPenstock, raw: RawCluster, cluster: Cluster, names: list[str]
) -> None:
    """The server ends the wait; the consumer waits at the slot's new place."""
    consumer = aspawn(ps.reserve, names, 1, block=60)
    await await_for(lambda: blocked(raw) == 3)
    for name in names:
        slot = slot_of_queue(name)
        moved = cluster.errors("MOVED")
        cluster.move(slot, cluster.other(slot))
        await await_for(lambda seen=moved: cluster.errors("MOVED") > seen)
        # It may read the map after the next slot moved too, and get no error for that.
        await await_for(lambda: blocked(raw) == 3)
    start = time.monotonic()
    await ps.queue(names[1]).enqueue("x")
    (job,) = await consumer.result()
    assert job.body == "x"
    assert time.monotonic() - start < 3


async def test_waiting_for_room_in_a_slot_that_moves(ps: AsyncPenstock, cluster: Cluster) -> None:
    """A producer of a full queue adds its job when there is room, wherever the slot is."""
    (name,) = names_apart(cluster, 1)
    q = ps.queue(name)
    await q.configure(max_length=1)
    await q.enqueue("first")
    producer = aspawn(q.enqueue, "second", block=60)
    slot = slot_of_queue(name)
    await await_for(lambda: cluster.owner(slot).raw.info("clients")["blocked_clients"] == 1)
    cluster.move(slot, cluster.other(slot))
    (job,) = await q.reserve()
    await job.ack()
    await producer.result()
    assert [view.body for view in await q.peek()] == ["second"]


async def test_a_server_that_dies_under_a_wait(names: list[str], cluster: Cluster) -> None:
    """A server dies: the consumer continues with the others and gets their jobs."""
    async with AsyncPenstock(cluster.url, retry_for=20) as ps:
        consumer = aspawn(ps.reserve, names, 1, block=60)
        owner = cluster.owner(slot_of_queue(names[2]))
        await await_for(lambda: owner.raw.info("clients")["blocked_clients"] == 1)
        owner.raw.client_kill_filter(_type="normal", skipme=True)
        await await_for(lambda: owner.raw.info("clients")["blocked_clients"] == 1)
        await ps.queue(names[2]).enqueue("x")
        (job,) = await consumer.result()
        assert job.body == "x"
