"""Faults under load: a primary is killed, paused or replaced, slots move; no job is lost.

The rules are those of a total queue: every job whose enqueue returned is delivered, and an
acknowledged job comes back only where the protocol says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import DeliveryNotReplicated, Durable, Job, Penstock, Queue
from tests.nodes.load import QUEUES, Load
from tests.support.cluster import Cluster, Member, RawCluster, slot_of_queue
from tests.support.keyspace import check_invariant
from tests.support.twins import spawn, wait_for

PROMPT = 15.0
"""Seconds within which jobs flow again: a second of silence, an election, a busy machine."""


@pytest.fixture
def load(frail_cluster: Cluster) -> Iterator[Load]:
    """Clients with the address of a replica; all replicas confirm each enqueue."""
    url = frail_cluster.replica_of(frail_cluster.primaries[0]).url
    with Load(url, replicas=1) as load:
        load.wait_more()
        yield load


def owners(cluster: Cluster) -> list[Member]:
    """Return the owners of the load's queues, each once."""
    return list(dict.fromkeys(cluster.owner(slot_of_queue(name)) for name in QUEUES))


def sound(cluster: Cluster) -> None:
    """Check every queue."""
    cluster.settle()
    with RawCluster(cluster) as raw:
        check_invariant(raw)


def test_primaries_are_killed_under_load(frail_cluster: Cluster, load: Load) -> None:
    """Each queue's primary is killed in turn: what its replica confirmed is delivered."""
    for primary in owners(frail_cluster):
        load.strike(primary.kill)
        frail_cluster.wait_taken_over(primary)
        assert load.wait_delivery() < PROMPT
        frail_cluster.bring_back(primary)
        load.wait_more()
    load.drain()
    assert load.check()["confirmed"] > 400
    sound(frail_cluster)


def test_replicas_take_over_on_command_under_load(frail_cluster: Cluster, load: Load) -> None:
    """No job is lost, no acknowledged job comes back, and no call fails."""
    for _ in range(2):
        for primary in owners(frail_cluster):
            frail_cluster.fail_over(primary)
            load.wait_more()
    load.drain()
    assert load.check()["again"] == 0
    sound(frail_cluster)


def test_a_primary_that_is_paused_under_load(frail_cluster: Cluster, load: Load) -> None:
    """A paused primary keeps its connections open; clients find the new primary."""
    primary = owners(frail_cluster)[0]
    load.strike(primary.server.pause)
    try:
        wait_for(lambda: _elsewhere(frail_cluster, primary), 30)
        load.wait_more(30, timeout=60)  # slowly: no replica is left to confirm
    finally:
        primary.server.resume()
    # Until it learns of its successor it answers clients that still use it; these writes are lost.
    load.strike(lambda: wait_for(lambda: not primary.is_primary, 30))
    load.wait_more()
    load.drain()
    load.check()
    sound(frail_cluster)


def _elsewhere(cluster: Cluster, primary: Member) -> bool:
    others = [one for one in cluster.members if one is not primary]
    return all(primary.port not in one.owners() for one in others)


def test_slots_move_under_load(frail_cluster: Cluster, load: Load) -> None:
    """Slots move repeatedly: every job is delivered once."""
    moves = 0
    for _ in range(4):
        for name in QUEUES:
            slot = slot_of_queue(name)
            frail_cluster.move(slot, frail_cluster.other(slot))
            moves += 1
            load.wait_more(100)
    load.drain()
    found = load.check()
    assert found["again"] == 0
    assert found["confirmed"] > 100 * moves
    sound(frail_cluster)


def test_a_slot_that_moves_slowly_under_load(
    frail_cluster: Cluster, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """A slot migrates slowly: its queue waits, the other one continues, and no call fails."""
    caplog.set_level(logging.INFO)
    slot = slot_of_queue(QUEUES[0])
    target = frail_cluster.other(slot)
    source = frail_cluster.begin_move(slot, target)
    seen = frail_cluster.errors("TRYAGAIN")
    wait_for(lambda: frail_cluster.errors("TRYAGAIN") > seen + 50)
    frail_cluster.move_keys(slot, source, target, most=3)  # then the target answers it, too
    wait_for(lambda: frail_cluster.errors("TRYAGAIN") > seen + 100)
    frail_cluster.move_keys(slot, source, target)
    frail_cluster.end_move(slot, target)
    load.wait_more()
    load.drain()
    assert load.check()["again"] == 0
    assert "the reply is not that of call" not in caplog.text
    sound(frail_cluster)


def test_waiting_consumers_get_jobs_after_a_failover(frail_cluster: Cluster) -> None:
    """The primary of waiting consumers dies: they wait at the new primary."""
    url = frail_cluster.replica_of(frail_cluster.primaries[0]).url
    with Penstock(url, retry_for=30) as ps:
        names = list(QUEUES)
        consumer = spawn(ps.reserve, names, 1, block=60)
        primary = frail_cluster.owner(slot_of_queue(names[0]))
        wait_for(lambda: primary.raw.info("clients")["blocked_clients"] >= 1)
        primary.kill()
        frail_cluster.wait_taken_over(primary)
        ps.queue(names[0]).enqueue("after")
        began = time.monotonic()
        (job,) = consumer.result(40)
        assert job.body == "after"
        assert time.monotonic() - began < PROMPT
        job.ack()


def test_a_client_outlives_the_server_that_it_was_given(frail_cluster: Cluster) -> None:
    """A client continues after its given server died, as it knows the others."""
    given = frail_cluster.primaries[0]
    names = ["a", "b", "c", "d"]
    with Penstock(given.url, retry_for=30) as ps:
        for name in names:
            ps.queue(name).enqueue(1, durable=Durable(1, timeout=5))
        given.kill()
        found: list[Any] = []
        for name in names:
            found += ps.queue(name).reserve(block=0)
        assert [job.queue_name for job in found] == names
        assert ps.queues() == names


def take_all(queue: Queue, jobs: list[Job]) -> None:
    """Take jobs until that is refused."""
    while True:
        jobs += queue.reserve(100, durable=Durable(1, timeout=15))


def test_deliveries_at_most_once(frail_cluster: Cluster) -> None:
    """A confirmed delivery survives a failover; a server without a replica delivers nothing."""
    with Penstock(frail_cluster.url, retry_for=60) as ps:
        q, parted = ps.queue("once"), ps.queue("parted", partitions=8)
        primary = frail_cluster.owner(slot_of_queue("once"))
        frail_cluster.replica_of(primary)
        q.enqueue_many(["x", "y"], lease=0)
        parted.enqueue_many(range(100), lease=0, key=str)
        assert [job.body for job in q.reserve(durable=Durable(1, timeout=15))] == ["x"]
        primary.kill()
        frail_cluster.wait_taken_over(primary)
        with pytest.raises(DeliveryNotReplicated, match="0 of 1 replicas are connected"):
            q.reserve(durable=Durable(1))
        jobs: list[Job] = []
        with pytest.raises(DeliveryNotReplicated, match="0 of 1 replicas are connected"):
            take_all(parted, jobs)
        assert 0 < len(jobs) < 100
        assert parted.stats().ready == 100 - len(jobs)
        assert [job.body for job in q.reserve(2, block=0)] == ["y"]
