# From tests/nodes/cluster/_async/test_waiting.py by tools/unasync.py; do not edit.
"""Waiting in several slots at once."""

from __future__ import annotations

import statistics
import time

import pytest

from penstock import Penstock
from tests.support.cluster import Cluster, RawCluster, names_apart, slot_of_queue
from tests.support.keyspace import load_scripts
from tests.support.twins import spawn, wait_for

EVENTS = 20


def blocked(raw: RawCluster) -> int:
    """Count the connections that wait for tokens: one for each slot of each consumer."""
    return int(raw.info("clients")["blocked_clients"])


@pytest.fixture
def names(cluster: Cluster) -> list[str]:
    """Three queues on three primaries."""
    return names_apart(cluster, 3)


def test_a_job_in_any_slot_ends_a_wait(ps: Penstock, raw: RawCluster, names: list[str]) -> None:
    """A job in any slot ends the wait, names its queue, and leaves nothing."""
    load_scripts(raw)
    late = []
    for number in range(EVENTS):
        name = names[number % 3]
        consumer = spawn(ps.reserve, names, 1, block=30)
        wait_for(lambda: blocked(raw) == 3)
        start = time.monotonic()
        ps.queue(name).enqueue(number)
        (job,) = consumer.result()
        late.append(time.monotonic() - start)
        assert (job.queue_name, job.body) == (name, number)
        job.ack()
    assert statistics.median(late) < 0.25  # a tick is 4 s; the machine may be busy
    wait_for(lambda: blocked(raw) == 0)


def test_tokens_of_several_slots_at_once(ps: Penstock, raw: RawCluster, names: list[str]) -> None:
    """Each wait takes its token; a consumer that leaves with one job passes the others on."""
    for _ in range(5):
        consumers = [spawn(ps.reserve, names, 1, block=30) for _ in names]
        wait_for(lambda: blocked(raw) == 9)
        for name in names:
            ps.queue(name).enqueue(name)
        found = []
        for consumer in consumers:
            (job,) = consumer.result(3)  # less than a tick
            found.append(job.queue_name)
            job.ack()
        assert sorted(found) == sorted(names)


def test_a_consumer_that_has_left_takes_no_token(
    ps: Penstock, raw: RawCluster, names: list[str]
) -> None:
    """A consumer that leaves ends its waits in all slots, so the next job reaches another one."""
    for name in names:
        everywhere = spawn(ps.reserve, names, 1, block=30)
        wait_for(lambda: blocked(raw) == 3)
        ps.queue(names[0]).enqueue("for the first")
        assert len(everywhere.result()) == 1
        here = spawn(ps.queue(name).reserve, 1, block=30)
        wait_for(lambda: blocked(raw) == 1)
        ps.queue(name).enqueue("for the other")
        assert len(here.result(3)) == 1


def test_an_idle_wait_costs_a_tick(
    ps: Penstock, raw: RawCluster, cluster: Cluster, names: list[str]
) -> None:
    """One reserve for each queue every 4 s, and no other command."""
    consumer = spawn(ps.reserve, names, 1, block=9)
    wait_for(lambda: blocked(raw) == 3)
    counted = ("evalsha", "blpop", "hget", "client|unblock", "cluster|slots")
    before = {name: cluster.calls(name) for name in counted}
    assert consumer.result() == []
    spent = {name: cluster.calls(name) - count for name, count in before.items()}
    assert spent["evalsha"] <= 3 * 4  # two ticks, and the end
    assert spent["client|unblock"] == 3
    assert spent["blpop"] in (0, 3)  # Valkey counts a BLPOP when it ends
    assert spent["hget"] == spent["cluster|slots"] == 0


def test_a_slot_that_moves_under_a_wait(
    ps: Penstock, raw: RawCluster, cluster: Cluster, names: list[str]
) -> None:
    """The server ends the wait; the consumer waits at the slot's new place."""
    consumer = spawn(ps.reserve, names, 1, block=60)
    wait_for(lambda: blocked(raw) == 3)
    for name in names:
        slot = slot_of_queue(name)
        moved = cluster.errors("MOVED")
        cluster.move(slot, cluster.other(slot))
        wait_for(lambda seen=moved: cluster.errors("MOVED") > seen)
        # It may read the map after the next slot moved too, and get no error for that.
        wait_for(lambda: blocked(raw) == 3)
    start = time.monotonic()
    ps.queue(names[1]).enqueue("x")
    (job,) = consumer.result()
    assert job.body == "x"
    assert time.monotonic() - start < 3


def test_waiting_for_room_in_a_slot_that_moves(ps: Penstock, cluster: Cluster) -> None:
    """A producer of a full queue adds its job when there is room, wherever the slot is."""
    (name,) = names_apart(cluster, 1)
    q = ps.queue(name)
    q.configure(max_length=1)
    q.enqueue("first")
    producer = spawn(q.enqueue, "second", block=60)
    slot = slot_of_queue(name)
    wait_for(lambda: cluster.owner(slot).raw.info("clients")["blocked_clients"] == 1)
    cluster.move(slot, cluster.other(slot))
    (job,) = q.reserve()
    job.ack()
    producer.result()
    assert [view.body for view in q.peek()] == ["second"]


def test_a_server_that_dies_under_a_wait(names: list[str], cluster: Cluster) -> None:
    """A server dies: the consumer continues with the others and gets their jobs."""
    with Penstock(cluster.url, retry_for=20) as ps:
        consumer = spawn(ps.reserve, names, 1, block=60)
        owner = cluster.owner(slot_of_queue(names[2]))
        wait_for(lambda: owner.raw.info("clients")["blocked_clients"] == 1)
        owner.raw.client_kill_filter(_type="normal", skipme=True)
        wait_for(lambda: owner.raw.info("clients")["blocked_clients"] == 1)
        ps.queue(names[2]).enqueue("x")
        (job,) = consumer.result()
        assert job.body == "x"
