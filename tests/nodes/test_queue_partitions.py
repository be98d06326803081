"""Partitioned queues on a cluster of real servers, and on several nodes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Outcome, Penstock, Worker
from penstock.core.jobs.job import reservation_of
from penstock.core.values.partitions import partition_of
from penstock.wire.keys import QueueKeys, key_slot, partition_name, queue_crc
from tests.nodes.federation import Servers, home_of
from tests.nodes.load import QUEUES, Load
from tests.support.cluster import Cluster, Member, RawCluster
from tests.support.keyspace import check_invariant
from tests.support.twins import spawn, wait_for
from tools import partitions as tool

PROMPT = 15.0
"""Seconds within which jobs flow again: a second of silence, an election, a busy machine."""
KEYS = {partition_of(key, 4): key for key in "abcdefgh"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three primaries."""
    with Cluster(3, node_timeout=15_000) as cluster:
        yield cluster


@pytest.fixture
def frail_cluster() -> Iterator[Cluster]:
    """Three primaries with a replica each, which takes over after a second."""
    with Cluster(3, replicas=1, node_timeout=1000) as cluster:
        yield cluster


def slot_of(name: str, number: int) -> int:
    """Return the slot of a partition."""
    return key_slot(QueueKeys(name, partition=number)["meta"])


def sound(cluster: Cluster) -> None:
    """Check every partition."""
    cluster.settle()
    with RawCluster(cluster) as raw:
        check_invariant(raw)


def test_a_partitioned_queue_is_on_all_servers(cluster: Cluster) -> None:
    """Partitions are on all servers; a job on any of them wakes a waiting consumer."""
    owners = {cluster.owner(slot_of("q", number)) for number in range(4)}
    assert owners == set(cluster.primaries)
    with Penstock(cluster.url) as ps, Penstock(cluster.url) as other:
        queue = ps.queue("q", partitions=4)
        ids = queue.enqueue_many(range(400), key=str).ids
        assert queue.stats().ready == 400
        jobs = []
        while found := queue.reserve(100, block=0):
            jobs += found
        assert {job.id for job in jobs} == set(ids)
        assert queue.ack(jobs).all_done
        assert other.queues() == ["q"]
        consumer = other.open("q")
        for key in KEYS.values():
            waiting = spawn(consumer.reserve, 1, block=20)
            wait_for(lambda: _blocked(cluster) == 4)
            done = queue.enqueue("x", key=key)
            [job] = waiting.result()
            assert job.id == done.id
            job.ack()
    sound(cluster)


def _blocked(cluster: Cluster) -> int:
    return sum(member.raw.info("clients")["blocked_clients"] for member in cluster.primaries)


def test_four_partitions_do_more_than_one(cluster: Cluster) -> None:
    """No server has more than half of the jobs, so three servers do more than one.

    A run uses hundredths of a second of CPU, which other load disturbs: one of some has to show it.
    """
    assert _added(cluster, 1) == [0, 0, 1000]
    assert _added(cluster, 4) == [250, 250, 500]
    runs = []
    for _ in range(5):
        runs.append((tool.load(cluster, 1, 10_000), tool.load(cluster, 4, 10_000)))
        if runs[-1][1].rate > 1.25 * runs[-1][0].rate:
            return
    pytest.fail(f"{runs}")


def _added(cluster: Cluster, partitions: int) -> list[int]:
    """Count how many of 1000 jobs each server got, in ascending order."""
    before = [member.calls("xadd") for member in cluster.primaries]
    with Penstock(cluster.url) as ps:
        queue = ps.queue(f"spread {partitions}", partitions=partitions)
        for number in range(40):
            queue.enqueue_many([number] * 25)
        queue.clear()
    after = [member.calls("xadd") for member in cluster.primaries]
    return sorted(now - was for now, was in zip(after, before, strict=True))


def test_an_idle_consumer_is_quiet(cluster: Cluster) -> None:
    """An idle consumer checks each partition once per tick, and sends nothing else."""
    rate, _ = tool.idle(cluster, 16, 8.5)
    assert rate <= 16 / 4 * 1.5 + 0.5


def test_a_stopped_server_does_not_delay_other_partitions(cluster: Cluster) -> None:
    """A consumer and a worker use the remaining partitions; the others come back
    with the server.
    """
    with Penstock(cluster.url, retry_for=60) as ps:
        queue = ps.queue("q", partitions=4)
        queue.enqueue_many([{"n": number} for number in range(40)], key=lambda b: str(b["n"]))
        victim = cluster.owner(slot_of("q", 0))
        for member in cluster.primaries:
            member.raw.config_set("cluster-require-full-coverage", "no")
            member.raw.config_set("cluster-allow-reads-when-down", "yes")
        gone = {n for n in range(4) if cluster.owner(slot_of("q", n)) is victim}
        crcs = {queue_crc(partition_name("q", number)): number for number in range(4)}
        victim.server.pause()
        try:
            began, taken = time.monotonic(), []
            left = sum(partition_of(str(n), 4) not in gone for n in range(40))
            while len(taken) < left:
                taken += queue.reserve(5, block=1)
                assert time.monotonic() - began < 60
            places = {
                crcs[int.from_bytes(reservation_of(job).place.packed[:4], "big")] for job in taken
            }
            assert not places & gone
        finally:
            victim.server.resume()
        assert queue.ack(taken).all_done
        while len(taken) < 40:
            more = queue.reserve(40, block=5)
            queue.ack(more)
            taken += more
    assert len({job.id for job in taken}) == 40
    sound(cluster)


@pytest.fixture
def load(frail_cluster: Cluster) -> Iterator[Load]:
    """Clients of partitioned queues; all replicas confirm each enqueue."""
    with Load(frail_cluster.url, replicas=1, partitions=6) as load:
        load.wait_more()
        yield load


def owners(cluster: Cluster) -> list[Member]:
    """Return the owners of the partitions, each once."""
    slots = [slot_of(name, number) for name in QUEUES for number in range(6)]
    return list(dict.fromkeys(cluster.owner(slot) for slot in slots))


def test_a_primary_is_killed_under_load(frail_cluster: Cluster, load: Load) -> None:
    """Jobs confirmed by the replica are delivered; acknowledged jobs stay done."""
    primary = owners(frail_cluster)[0]
    load.strike(primary.kill)
    frail_cluster.wait_taken_over(primary)
    assert load.wait_delivery() < PROMPT
    frail_cluster.bring_back(primary)
    load.wait_more()
    load.drain()
    assert load.check()["confirmed"] > 400
    sound(frail_cluster)


def test_slots_move_under_load(frail_cluster: Cluster, load: Load) -> None:
    """Slots of two partitions move: no job is lost or delivered twice."""
    for name in QUEUES:
        slot = slot_of(name, 1)
        frail_cluster.move(slot, frail_cluster.other(slot))
        load.wait_more()
    load.drain()
    assert load.check()["again"] == 0
    sound(frail_cluster)


# -- several nodes ---------------------------------------------------------------------------


def test_each_partition_is_on_each_node(three: Servers) -> None:
    """Producers stay with a node; consumers use all partitions of all nodes."""
    with three.client() as ps, three.client() as other:
        queue = ps.queue("q", partitions=4)
        ids = [queue.enqueue(number, key=str(number)).id for number in range(40)]
        assert len({home_of(one) for one in ids}) == 1
        for url in three.urls:
            with Penstock(url) as single:
                single.queue("q", partitions=4).enqueue_many(range(20), key=str)
        assert (queue.stats().ready, queue.stats().partitions) == (100, 4)
        assert len(list(queue.jobs(n=7))) == 100
        assert ps.queues() == ["q"]
        consumer = other.open("q")
        jobs: list[Any] = []
        while found := consumer.reserve(9, block=0):
            jobs += found
        assert len(jobs) == 100
        assert len(Counter((home_of(job.id), job.id[20:30]) for job in jobs)) > 3
        assert consumer.ack([job.id for job in jobs]).all_done
        assert other.queue("q").partitions == 4


def test_the_order_of_a_key(three: Servers) -> None:
    """Order is kept on the producer's node."""
    seen = defaultdict(list)
    with three.client() as ps:
        queue = ps.queue("q", partitions=4)
        for number in range(100):
            queue.enqueue([number % 7, number], key=str(number % 7))
        while jobs := queue.reserve(3, block=0):
            for job in jobs:
                seen[job.body[0]].append(job.body[1])
            queue.ack(jobs)
    assert sum(map(len, seen.values())) == 100
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_an_ack_of_a_partition_is_kept_as_a_hint(three: Servers) -> None:
    """The node dies between delivery and ack; the job is done when it is back, not redelivered."""
    with three.client() as ps, three.client() as other:
        queue = ps.queue("q", partitions=4)
        queue.configure(lease=1)
        done = queue.enqueue("x", key="ada")
        [job] = queue.reserve()
        home = three.with_id(ps, home_of(done.id))
        home.kill()
        assert list(queue.ack([job])) == [Outcome.HINTED]
        home.restart()
        wait_for(lambda: not other.open("q").stats().unreachable)
        wait_for(lambda: not queue.stats().unreachable)
        time.sleep(1.2)  # the lease has ended
        assert queue.reserve(1, block=0) == []
        assert queue.stats().acked == 1


def test_a_worker_on_several_nodes_takes_from_all_partitions(three: Servers) -> None:
    """The worker finds the partitions itself."""
    with three.client() as ps:
        for url in three.urls:
            with Penstock(url) as single:
                single.queue("q", partitions=4).enqueue_many(range(20), key=str)
        done: list[str] = []
        with Worker(three.urls, "q", lambda job: done.append(job.id), concurrency=2):
            wait_for(lambda: len(set(done)) == 60)
        queue = ps.open("q")
        wait_for(lambda: queue.stats().acked == 60)
