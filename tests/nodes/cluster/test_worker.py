"""Workers whose queues are on several servers of a cluster."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import pytest
from redis.exceptions import TryAgainError

from penstock import Durable, Penstock
from penstock.worker import Worker, concerns
from tests.support.cluster import Cluster, RawCluster, names_apart, slot_of_queue
from tests.support.keyspace import check_invariant, load_scripts
from tests.support.twins import wait_for
from tests.worker.faults import KINDS, Seen, at_work

kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def names(cluster: Cluster) -> list[str]:
    """Three queues on three primaries."""
    return names_apart(cluster, 3)


@pytest.fixture
def ps(cluster: Cluster) -> Any:
    """A client of the cluster; the queues are checked at the end."""
    with Penstock(cluster.url, retry_for=20) as client:
        yield client
    cluster.settle()
    with RawCluster(cluster) as raw:
        check_invariant(raw)


def wait_blocked(cluster: Cluster, count: int) -> None:
    """Wait until this many connections wait for tokens."""
    wait_for(lambda: _blocked(cluster) == count)


def _blocked(cluster: Cluster) -> int:
    return sum(one.raw.info("clients")["blocked_clients"] for one in cluster.alive)


@kinds
def test_a_job_for_an_idle_worker(
    cluster: Cluster, ps: Penstock, names: list[str], kind: str
) -> None:
    """A job of any queue starts at once, and the waits for the other queues stay."""
    with RawCluster(cluster) as raw:
        load_scripts(raw)
    seen, late = Seen(), []
    with at_work(kind, cluster.url, names, seen):
        wait_blocked(cluster, 3)
        before = cluster.calls("client|unblock")
        for number in range(15):
            began = time.monotonic()
            ps.queue(names[number % 3]).enqueue(number)
            seen.wait(number)
            late.append(time.monotonic() - began)
            wait_blocked(cluster, 3)
        unblocked = cluster.calls("client|unblock") - before
        assert unblocked <= 15  # not each of the others each time
    assert statistics.median(late) < 0.25  # a tick is 4 s; the machine may be busy
    wait_blocked(cluster, 0)


@kinds
def test_an_idle_worker_is_quiet(
    cluster: Cluster, names: list[str], kind: str, ps: Penstock
) -> None:
    """An idle worker sends one reserve per tick and queue, and hardly anything else."""
    with at_work(kind, cluster.url, names, Seen()):
        wait_blocked(cluster, 3)
        before = _commands(cluster)
        began = time.monotonic()
        wait_for(lambda: time.monotonic() > began + 9)
        spent = _commands(cluster) - before
    assert spent / 9 <= 3 * 0.5


def _commands(cluster: Cluster) -> int:
    names = ("evalsha", "blpop", "hget", "client|unblock", "client|id", "cluster|slots")
    return sum(cluster.calls(name) for name in names)


@kinds
def test_a_full_worker_takes_no_token(
    cluster: Cluster, ps: Penstock, names: list[str], kind: str
) -> None:
    """While a worker is busy, jobs of its other queues go to waiting consumers."""
    gate, begun = threading.Event(), threading.Event()

    def handle(job: Any) -> None:
        begun.set()
        assert gate.wait(30)

    seen = Seen()
    with at_work("threads", cluster.url, names, handle, concurrency=1):
        wait_blocked(cluster, 3)
        ps.queue(names[0]).enqueue("long")
        assert begun.wait(20)
        with at_work(kind, cluster.url, names[1:], seen):
            wait_blocked(cluster, 2)
            for number in range(6):
                ps.queue(names[1 + number % 2]).enqueue(number)
                assert seen.wait(number) < 3  # less than a tick
        gate.set()


@kinds
def test_slots_that_move_under_a_worker(
    cluster: Cluster, ps: Penstock, names: list[str], kind: str
) -> None:
    """Every job runs once; leases are renewed wherever the slots are."""
    seen, long = Seen(), threading.Event()

    def handle(job: Any) -> None:
        if job.body == "long" and kind == "threads":
            assert long.wait(30)
        seen(job)

    for name in names:
        ps.queue(name).configure(lease=1.5)
    with at_work(kind, cluster.url, names, handle) as worker:
        ps.queue(names[0]).enqueue("long")
        for turn in range(3):
            for number, name in enumerate(names):
                ps.queue(name).enqueue_many((turn, number, i) for i in range(50))
                slot = slot_of_queue(name)
                cluster.move(slot, cluster.other(slot))
        began = time.monotonic()
        wait_for(lambda: time.monotonic() > began + 4)
        long.set()
        wait_for(lambda: sum(ps.queue(name).stats().acked for name in names) == 451, 60)
        assert sorted(map(str, seen.bodies)) == sorted(set(map(str, seen.bodies)))
        wait_for(lambda: worker.status().stats.counts == {"done": 451})


@kinds
def test_a_migrating_slot_does_not_delay_others(
    cluster: Cluster, ps: Penstock, names: list[str], kind: str
) -> None:
    """Jobs of other queues run during a migration; its own when it has ended."""
    seen = Seen()
    slot = slot_of_queue(names[0])
    ps.queue(names[0]).enqueue("first")
    with at_work(kind, cluster.url, names, seen):
        seen.wait("first")
        target = cluster.other(slot)
        source = cluster.begin_move(slot, target)
        cluster.move_keys(slot, source, target, most=1)
        before = cluster.errors("TRYAGAIN")
        wait_for(lambda: cluster.errors("TRYAGAIN") > before + 2)
        for number in range(10):
            ps.queue(names[1 + number % 2]).enqueue(number)
            assert seen.wait(number) < 3
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)
        ps.queue(names[0]).enqueue("last")
        seen.wait("last")


@kinds
def test_a_burst_waits_for_a_migrating_slot(
    cluster: Cluster, ps: Penstock, names: list[str], kind: str
) -> None:
    """It does the jobs of other queues, and those of the slot when the migration has ended."""
    slot = slot_of_queue(names[0])
    for name in names:
        ps.queue(name).enqueue_many(range(10))
    target = cluster.other(slot)
    source = cluster.begin_move(slot, target)
    cluster.move_keys(slot, source, target, most=1)
    seen = Seen()
    with at_work(kind, cluster.url, names, seen, burst=True) as worker:
        wait_for(lambda: len(seen.bodies) == 20)
        before = cluster.errors("TRYAGAIN")
        wait_for(lambda: cluster.errors("TRYAGAIN") > before + 2)
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)
        wait_for(lambda: worker.status().stats.counts == {"done": 30})
        wait_for(lambda: worker.state == "stopped")


def test_a_burst_gives_up_a_slot(
    cluster: Cluster, ps: Penstock, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the migration outlasts `OUTAGE_SECONDS`, the error is raised after the other jobs.

    A worker that has taken `max_jobs` meanwhile does not need the queue, and raises nothing.
    """
    monkeypatch.setattr(concerns, "OUTAGE_SECONDS", 1.0)
    slot = slot_of_queue(names[0])
    for name in names:
        ps.queue(name).enqueue(1)
    target = cluster.other(slot)
    source = cluster.begin_move(slot, target)
    cluster.move_keys(slot, source, target, most=1)
    seen = Seen()
    with pytest.raises(TryAgainError):
        Worker(cluster.url, names, seen, burst=True).run()
    assert len(seen.bodies) == 2
    for name in names[1:]:
        ps.queue(name).enqueue_many([2, 3])
    Worker(cluster.url, names, seen, burst=True, concurrency=1, max_jobs=3).run()
    assert len(seen.bodies) == 5
    cluster.move_keys(slot, source, target)
    cluster.end_move(slot, target)
    assert ps.queue(names[0]).stats().ready == 1


@kinds
def test_a_stopped_primary_does_not_delay_others(kind: str) -> None:
    """One of three primaries without a replica stops: the others continue, and it comes back.

    The node time-out is long: if the two others are slow to answer each other while the machine is
    busy, each would find itself in a minority and refuse calls.
    """
    options = ("--cluster-require-full-coverage", "no", "--appendonly", "yes")
    with Cluster(3, node_timeout=3000, args=options) as cluster:
        names = names_apart(cluster, 3)
        gone = cluster.owner(slot_of_queue(names[0]))
        url = cluster.owner(slot_of_queue(names[1])).url
        seen = Seen()
        with Penstock(url, retry_for=30) as ps, at_work(kind, url, names, seen):
            for name in names:
                ps.queue(name).enqueue(name)
            seen.wait(*names)
            wait_for(lambda: ps.queue(names[0]).stats().acked == 1)
            gone.kill()
            late = []
            for number in range(40):
                ps.queue(names[1 + number % 2]).enqueue(number)
                late.append(seen.wait(number, timeout=60))
            assert statistics.median(late) < 4  # less than a tick
            gone.server.restart()
            cluster.settle()
            ps.queue(names[0]).enqueue("again")
            seen.wait("again")


@pytest.mark.parametrize(
    "kind,heartbeat", [("threads", "thread"), ("threads", "process"), ("asyncio", "thread")]
)
def test_a_job_that_takes_several_leases_outlives_a_failover(
    frail_cluster: Cluster, kind: str, heartbeat: str
) -> None:
    """The lease is renewed at the new primary, so the job runs once."""
    (name, *_) = names_apart(frail_cluster, 3)
    primary = frail_cluster.owner(slot_of_queue(name))
    begun, runs = threading.Event(), []
    with Penstock(frail_cluster.url, retry_for=30) as ps:
        ps.queue(name).enqueue("long", lease=8, durable=Durable(1, timeout=5))

        def handle(job: Any) -> None:
            runs.append(job.body)
            begun.set()
            until = time.monotonic() + 14
            while time.monotonic() < until:  # blocks the event loop in the asyncio worker
                time.sleep(0.05)

        url = frail_cluster.replica_of(primary).url
        with _worker(kind, url, name, handle, heartbeat) as worker:
            assert begun.wait(20)
            frail_cluster.fail_over(primary)
            wait_for(lambda: worker.status().stats.counts == {"done": 1}, 40)
            assert ps.queue(name).stats().acked == 1
    assert runs == ["long"]


def _worker(kind: str, url: str, name: str, handle: Any, heartbeat: str) -> Any:
    if kind == "threads":
        return Worker(url, name, handle, heartbeat=heartbeat)
    return at_work(kind, url, name, handle)
