"""R8 to R11, R14: memory that a worker leaves behind, and its load on the server."""

from __future__ import annotations

import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import EvictionWarning, OutOfMemory, Penstock, Queue
from penstock.embedded import EmbeddedServer
from penstock.worker import Done, Reject, Retry, Snooze
from tests.support.backends import Backend, clustered
from tests.support.keyspace import check_invariant
from tests.support.twins import wait_for
from tests.worker.faults import KINDS, Seen, at_work, sent, wait_idle

MakeServer = Callable[..., EmbeddedServer]
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def server(make_server: MakeServer) -> EmbeddedServer:
    """A server of its own for the test, so that no other client changes its figures."""
    return make_server(tcp=True)


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of it."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def ps(server: EmbeddedServer) -> Iterator[Penstock]:
    """A client of it."""
    with Penstock(server.url) as client:
        yield client


def drained(q: Queue) -> None:
    """Wait until only dead letters are left in the queue."""
    wait_for(lambda: _waiting(q) == 0, 60)


def _waiting(q: Queue) -> int:
    stats = q.stats()
    return stats.ready + stats.active + stats.scheduled


# -- R8: memory --------------------------------------------------------------------------------


def mixed(job: Any) -> Any:
    """Handle a hundred jobs: 70 done, 10 snoozed, 10 retried, 5 rejected; 5 had dedup ids."""
    turn = job.body % 100
    if turn < 5:
        raise Reject("no")
    if turn < 15 and job.deliveries == 1:
        return Snooze(0.01)
    if turn < 25 and job.deliveries == 1:
        return Retry(0.01)
    return Done(dedup_window=0) if turn < 30 else None


@pytest.mark.slow
def test_r8_nothing_is_kept_of_finished_jobs(
    server: EmbeddedServer, raw: redis.Redis, ps: Penstock
) -> None:
    """R8: after 100,000 jobs of mixed outcome memory is unchanged; every key has a bound.

    The history of a queue is not of its jobs (protocol/history.md).
    """
    q = ps.queue("q")
    with at_work("threads", server.url, "q", mixed, prefetch=200):
        _run_off(q, 20_000)
        before = _used(raw)
        _run_off(q, 100_000)
        wait_for(lambda: _used(raw) <= before * 1.01)
    left = {key.decode() for key in raw.scan_iter()} - {"penstock:{q}:history"}
    queue = {f"penstock:{{q}}:{name}" for name in ("meta", "ready")}
    assert (raw.memory_usage("penstock:{q}:history") or 0) <= 40 << 10
    assert left == queue | {"penstock:node", "penstock:queues"}
    assert raw.xlen("penstock:{q}:ready") == 0


def _run_off(q: Queue, jobs: int) -> None:
    """Run this many more jobs, half with dedup ids; none is left, dead letters included."""
    for start in range(0, jobs, 10_000):
        ids = str if start % 20_000 else None
        q.enqueue_many(range(start, start + 10_000), dedup_id=ids)
    drained(q)
    assert q.stats().dead == jobs // 20
    q.purge("dead")
    q.sweep()


def _used(raw: redis.Redis) -> int:
    """Return used memory without connection buffers and the slow log."""
    raw.slowlog_reset()
    memory = raw.info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"])


# -- R9: a full server -------------------------------------------------------------------------


@kinds
def test_r9_a_full_server_is_drained(
    server: EmbeddedServer, raw: redis.Redis, ps: Penstock, kind: str
) -> None:
    """R9: on a full server enqueues are refused without a trace; jobs are still settled."""
    q = ps.queue("q")
    q.configure(lease=0.6)
    q.enqueue_many(range(500))
    q.enqueue("long")
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", 1)
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    with pytest.raises(OutOfMemory):
        q.enqueue("one more")
    with pytest.raises(OutOfMemory):
        q.enqueue_many(["two", "more"])
    assert before == {key: raw.dump(key) for key in raw.scan_iter()}
    calls: list[Any] = []

    def handle(job: Any) -> Any:
        calls.append(job.body)
        if job.body != "long":
            return mixed(job)
        if kind == "threads":  # more than two leases
            wait_for(lambda: _waiting(q) == 1 and time.monotonic() > began + 1.5)
        return None

    began = time.monotonic()
    with at_work(kind, server.url, "q", handle):
        drained(q)
    assert calls.count("long") == 1
    assert (q.stats().dead, q.stats().acked) == (25, 476)
    check_invariant(raw)
    raw.config_set("maxmemory", 0)
    assert q.enqueue("room again")


def test_r9_a_server_that_evicts_is_warned_of(server: EmbeddedServer, raw: redis.Redis) -> None:
    """R9: at its start a worker warns of a server that evicts, and works."""
    raw.config_set("maxmemory-policy", "allkeys-lru")
    seen = Seen()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with at_work("threads", server.url, "q", seen), Penstock(server.url) as ps:
            ps.queue("q").enqueue("x")
            seen.wait("x")
    kinds_of = [one.category for one in caught]
    assert EvictionWarning in kinds_of


# -- leases ------------------------------------------------------------------------------------


@kinds
def test_leases_are_renewed_together(
    server: EmbeddedServer, raw: redis.Redis, ps: Penstock, kind: str
) -> None:
    """Fifty jobs held for two leases need a few calls, not some for each job."""
    q = ps.queue("q")
    q.configure(lease=4)
    q.enqueue_many(range(50))
    done = threading.Event()
    try:
        with at_work(kind, server.url, "q", lambda _: done.wait(30), concurrency=2, prefetch=48):
            wait_for(lambda: q.stats().active == 50)
            views = q.peek(50, state="active")
            first = sent(raw)["evalsha"]
            ends = {view.id: view.lease_until for view in views}

            def all_renewed() -> bool:
                now = {view.id: view.lease_until for view in q.peek(50, state="active")}
                return all(now[id_] - end > 4 for id_, end in ends.items())

            looks = 0
            while not all_renewed():
                looks += 1
                time.sleep(0.2)  # each look is a call too
            assert sent(raw)["evalsha"] - first - looks < 50
            done.set()
            wait_for(lambda: q.stats().acked == 50)
    finally:
        done.set()
    assert q.stats().crashed == 0


# -- R10: long queues --------------------------------------------------------------------------


@pytest.mark.slow
def test_r10_no_script_is_slow_on_long_queues(
    server: EmbeddedServer, raw: redis.Redis, ps: Penstock
) -> None:
    """R10: with 50,000 jobs in each state a script takes less than 5 ms of the server's CPU time.

    That is the mean of a worker's calls. No single call of a client takes more than 10 ms.
    """
    q = ps.queue("q")
    q.configure(lease=3600, dead_max=1_000_000)
    for state in ("dead", "active", "scheduled", "ready"):
        _fill(q, state, 50_000)
    seen = Seen()
    before, spent = sent(raw)["evalsha"], _spent(raw)
    for prefetch, jobs in ((50, 10_000), (1000, 30_000)):
        with at_work("threads", server.url, "q", seen, prefetch=prefetch):
            wait_for(lambda jobs=jobs: len(seen.bodies) > jobs, 60)
    calls, spent = sent(raw)["evalsha"] - before, _spent(raw) - spent
    assert calls > 100  # few calls settle the rest of the jobs
    assert spent / calls < 0.005
    costs = []
    for _ in range(50):
        spent = _spent(raw)
        jobs = q.reserve(100, block=0)
        costs.append(_spent(raw) - spent)
        assert q.ack(jobs).done == 100
        costs.append(_spent(raw) - spent - costs[-1])
    assert max(costs) < 0.01


def _spent(raw: redis.Redis) -> float:
    """Return the CPU seconds of the server."""
    figures = raw.info("cpu")
    return figures["used_cpu_user"] + figures["used_cpu_sys"]


def _fill(q: Queue, state: str, jobs: int) -> None:
    """Put this many jobs into a state."""
    for _ in range(jobs // 10_000):
        q.enqueue_many([b"x" * 50] * 10_000, delay=86_400 if state == "scheduled" else 0)
        if state in ("dead", "active"):
            for _ in range(10):
                found = q.reserve(1000, block=0)
                if state == "dead":
                    q.bury(found, "for the test")


# -- R11: a cluster's node ---------------------------------------------------------------------


@pytest.fixture
def cluster(make_server: MakeServer) -> Iterator[redis.Redis]:
    """A client of a cluster node that has all slots; it refuses undeclared keys."""
    server = clustered(make_server)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        wait_for(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield client


@kinds
def test_r11_names_without_braces_on_a_cluster(cluster: redis.Redis, kind: str) -> None:
    """R11: user-chosen queue names work on a cluster, one or several in different slots."""
    names = ["e-mails to Ana\N{LATIN SMALL LETTER I WITH ACUTE}s", "reports", "{a}b{c}"]
    seen = Seen()
    with Penstock(cluster) as ps:
        host = cluster.connection_pool.connection_kwargs
        url = f"redis://{host['host']}:{host['port']}"
        with at_work(kind, url, names[0], seen):
            ps.queue(names[0]).enqueue("alone")
            seen.wait("alone")
        with at_work(kind, url, names, lambda job: seen(job) or mixed(job)):
            for name in names:
                ps.queue(name).enqueue_many(range(100))
                drained(ps.queue(name))
            wait_for(lambda: all(ps.queue(name).stats().acked >= 95 for name in names))
            ps.queue(names[2]).enqueue(50)  # the other queues are idle, and it is noticed
            drained(ps.queue(names[2]))


# -- R14: delays; a job for an idle worker -----------------------------------------------------


def test_r14_delayed_jobs_start_when_they_are_due(server: EmbeddedServer, ps: Penstock) -> None:
    """R14: delayed jobs start soon after they are due and never before, beyond a tick too."""
    late: dict[str, list[float]] = {kind: [] for kind in KINDS}

    def handle(job: Any) -> None:
        late[job.queue_name].append(time.time() - job.body)

    with (
        at_work("threads", server.url, "threads", handle),
        at_work("asyncio", server.url, "asyncio", handle),
    ):
        for serial in range(80):
            delay = 0.2 + serial * 0.05
            for kind in KINDS:
                ps.queue(kind).enqueue(time.time() + delay, delay=delay)
        wait_for(lambda: all(len(found) == 80 for found in late.values()))
    for found in late.values():
        assert min(found) > -0.002  # the server's time is in whole ms
        assert statistics.median(found) < 1  # and not at the next tick, after 4 s


@kinds
def test_an_enqueued_job_starts_at_once(
    server: EmbeddedServer, raw: redis.Redis, ps: Penstock, kind: str
) -> None:
    """An idle worker starts an enqueued job within milliseconds."""
    q, seen, waits = ps.queue("q"), Seen(), list[float]()
    with at_work(kind, server.url, "q", seen):
        for serial in range(100):
            wait_idle(raw)
            began = time.monotonic()
            q.enqueue(serial)
            seen.wait(serial)
            waits.append(seen.times[-1] - began)
    assert statistics.median(waits) < 0.05


def test_a_worker_of_a_real_backend(real_backend: Backend) -> None:
    """A worker runs on each installed server version."""
    with Penstock(real_backend.sync_client()) as ps:
        ps.queue("q").enqueue_many(range(200))
        assert real_backend.url is not None
        with at_work("threads", real_backend.url, "q", mixed):
            drained(ps.queue("q"))
        assert ps.queue("q").stats().dead == 10
