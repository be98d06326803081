"""R6, R7: workers continue by themselves after faults of the server or the network.

Each fault hits a threaded and an asyncio worker at once. A client that bypasses the proxy enqueues
their jobs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import Penstock, embedded
from penstock.core.flows import POLL_INTERVAL
from penstock.embedded import EmbeddedServer
from penstock.worker import AsyncWorker, Worker, idle, state
from tests.support.busy import busy
from tests.support.keyspace import check_invariant
from tests.support.proxy import Proxy
from tests.support.twins import spawn, wait_for
from tests.worker.faults import KINDS, Seen, both, sent, wait_idle

RESUMED = 10.0
"""Seconds after the end of a fault: one wait of 5 s, and 5 s."""
LEASE = 2.0
"""Seconds until jobs of a lost reply come back."""

Both = dict[str, tuple[Seen, Worker | AsyncWorker]]


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of the server, which reconnects by itself."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """A proxy between the workers and the server."""
    with Proxy(server.address) as made:
        yield made


@pytest.fixture
def ps(server: EmbeddedServer) -> Iterator[Penstock]:
    """A client that bypasses the proxy; it creates queues with short leases."""
    with Penstock(server.url) as client:
        for kind in KINDS:
            client.queue(kind).configure(lease=LEASE)
        yield client


def ask(ps: Penstock, workers: Both, *bodies: Any) -> None:
    """Enqueue jobs for each worker."""
    for kind in workers:
        ps.queue(kind).enqueue_many(list(bodies))


def resumed(ps: Penstock, workers: Both, what: str) -> float:
    """Return the seconds until each worker has done a new job; no process has ended."""
    began = time.monotonic()
    ask(ps, workers, what)
    for seen, worker in workers.values():
        seen.wait(what, timeout=30)
        assert worker.healthy()
    return time.monotonic() - began


def drained(ps: Penstock, raw: redis.Redis) -> None:
    """Check that no job is left, lost or dead."""
    for kind in KINDS:
        stats = ps.queue(kind).stats
        wait_for(lambda: (stats().ready, stats().active, stats().scheduled) == (0, 0, 0))  # noqa: B023
        assert stats().dead == 0
    check_invariant(raw)


def test_r6_connections_are_killed(server: EmbeddedServer, ps: Penstock, raw: redis.Redis) -> None:
    """R6: CLIENT KILL of every connection, while working and idle, repeatedly."""
    with both(server.url) as workers:
        for turn in range(10):
            ask(ps, workers, *range(turn * 100, turn * 100 + 100))
            raw.client_kill_filter(_type="normal", skipme=True)
        for seen, _ in workers.values():
            seen.wait(*range(1000))
        for turn in range(3):
            wait_idle(raw, 2)
            raw.client_kill_filter(_type="normal", skipme=True)
            assert resumed(ps, workers, f"idle {turn}") < RESUMED
        drained(ps, raw)


def test_r6_the_server_restarts(server: EmbeddedServer, ps: Penstock, raw: redis.Redis) -> None:
    """R6: after a restart workers continue with the stored jobs, and load scripts again."""
    with both(server.url) as workers:
        ask(ps, workers, *range(2000))
        for seen, _ in workers.values():
            wait_for(lambda: len(seen.bodies) > 100)  # noqa: B023
        server.restart()
        assert resumed(ps, workers, "after") < RESUMED
        for seen, _ in workers.values():
            seen.wait(*range(2000))
        drained(ps, raw)


def test_r6_a_long_outage(
    server: EmbeddedServer, ps: Penstock, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6, scaled to seconds: unhealthy during an outage, soon working and healthy after it."""
    monkeypatch.setattr(state, "HEALTHY_SECONDS", 3.0)
    with both(server.url) as workers:
        assert resumed(ps, workers, "before") < RESUMED
        server.kill()
        for _, worker in workers.values():
            wait_for(lambda: not worker.healthy())  # noqa: B023
            assert not worker.status().healthy
        server.restart()
        assert resumed(ps, workers, "after") < RESUMED
        assert all(worker.healthy() for _, worker in workers.values())
        drained(ps, raw)


def test_r6_the_server_comes_late(
    server: EmbeddedServer, ps: Penstock, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: workers started before their server wait for it, unhealthy meanwhile."""
    monkeypatch.setattr(state, "HEALTHY_SECONDS", 1.0)
    proxy.refuse()
    with both(proxy.url) as workers:
        for _, worker in workers.values():
            wait_for(lambda: not worker.healthy())  # noqa: B023
        proxy.restore()
        assert resumed(ps, workers, "first") < RESUMED


def test_r6_the_server_refuses_at_the_start(
    server: EmbeddedServer, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """R6: a new server that refuses writes is waited for."""
    raw.replicaof("127.0.0.1", 1)
    with both(server.url) as workers:
        wait_for(lambda: sum("no server yet" in text for text in caplog.messages) >= 2)
        raw.replicaof("NO", "ONE")
        with Penstock(server.url) as ps:
            assert resumed(ps, workers, "first") < RESUMED


def test_r6_the_server_is_paused(server: EmbeddedServer, ps: Penstock, raw: redis.Redis) -> None:
    """R6: a server is paused; jobs reserved for clients that gave up come back."""
    with both(server.url, client={"socket_timeout": 1}) as workers:
        ask(ps, workers, *range(500))
        server.pause()
        time.sleep(4)
        server.resume()
        assert resumed(ps, workers, "after") < RESUMED
        for seen, _ in workers.values():
            seen.wait(*range(500))
        drained(ps, raw)


def test_r6_the_primary_becomes_a_replica(
    server: EmbeddedServer,
    make_server: Callable[..., EmbeddedServer],
    proxy: Proxy,
    ps: Penstock,
    raw: redis.Redis,
) -> None:
    """R6: UNBLOCKED ends waits and READONLY writes; the name leads to the new primary."""
    other = make_server(tcp=True)
    with redis.Redis.from_url(other.url) as new, Penstock(other.url) as after:
        new.replicaof("127.0.0.1", server.port)
        with both(proxy.url) as workers:
            assert resumed(ps, workers, "before") < RESUMED
            wait_for(lambda: new.info("replication")["master_link_status"] == "up")
            wait_for(lambda: raw.info("replication")["slave0"]["lag"] == 0)
            new.replicaof("NO", "ONE")
            raw.replicaof("127.0.0.1", other.port)
            proxy.redirect(other.address)
            assert resumed(after, workers, "after") < RESUMED
            drained(after, new)


@pytest.mark.parametrize("refusal", ["NOREPLICAS", "READONLY"])
def test_r6_writes_are_refused_for_a_while(
    server: EmbeddedServer, ps: Penstock, raw: redis.Redis, refusal: str
) -> None:
    """R6: the server refuses all writes: workers keep trying."""
    with both(server.url) as workers:
        for kind in KINDS:
            ps.queue(kind).enqueue_many(range(20), delay=0.5)
        if refusal == "NOREPLICAS":
            raw.config_set("min-replicas-to-write", 1)
        else:
            raw.replicaof("127.0.0.1", 1)
        time.sleep(2)
        if refusal == "READONLY":
            raw.replicaof("NO", "ONE")
        raw.config_set("min-replicas-to-write", 0)
        assert resumed(ps, workers, "after") < RESUMED
        for seen, _ in workers.values():
            seen.wait(*range(20))
        drained(ps, raw)


def is_loading(raw: redis.Redis) -> bool:
    """Tell if the server is loading its data."""
    try:
        raw.get("1")
    except redis.exceptions.BusyLoadingError:
        return True
    except redis.exceptions.ConnectionError:
        pass
    return False


@pytest.mark.slow  # a short run has it for the client, in test_sentinel.py
def test_r6_a_server_that_loads_its_data(
    server: EmbeddedServer,
    ps: Penstock,
    proxy: Proxy,
    raw: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R6: LOADING answers every command until both workers have seen it."""
    caplog.set_level(logging.INFO, "penstock")
    with raw.pipeline(transaction=False) as pipe:
        for serial in range(50_000):
            pipe.set("1", serial)  # loaded in 45 s
        pipe.execute()
    monkeypatch.setattr(embedded, "STARTUP_TIMEOUT", 60)
    with both(server.url) as workers:
        server.args = (
            "--key-load-delay",
            "1000",
            "--loading-process-events-interval-bytes",
            "1024",
        )
        restarted = spawn(server.restart)
        wait_for(lambda: is_loading(raw))
        wait_for(lambda: sum("loading the dataset" in text for text in caplog.messages) >= 2, 30)
        raw.config_set("key-load-delay", 0)
        restarted.result()
        assert resumed(ps, workers, "after") < RESUMED
        drained(ps, raw)


@pytest.mark.slow  # a short run has it for the client, in test_busy.py
def test_r6_a_server_that_is_busy(
    server: EmbeddedServer,
    ps: Penstock,
    proxy: Proxy,
    raw: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R6: BUSY answers every command while another client's slow script runs."""
    caplog.set_level(logging.INFO, "penstock")
    with both(server.url) as workers:
        wait_idle(raw, 2)
        with busy(server.url):
            wait_for(lambda: sum("BUSY" in text for text in caplog.messages) >= 2, 30)
        assert resumed(ps, workers, "after") < RESUMED
        drained(ps, raw)


@pytest.mark.parametrize("limit", [0.5, 3], ids=["socket_timeout=0.5", "socket_timeout=3"])
def test_r6_r7_connections_are_forgotten(
    ps: Penstock, proxy: Proxy, raw: redis.Redis, limit: float
) -> None:
    """R6, R7: open connections swallow all data but new ones work; waits leave the old ones.

    It takes at most a tick of 4 s and the socket timeout, 9 s by default.
    """
    with both(proxy.url, client={"socket_timeout": limit}) as workers:
        assert resumed(ps, workers, "before") < RESUMED
        wait_idle(raw, 2)
        proxy.strand()
        assert resumed(ps, workers, "after") < (RESUMED if limit > 1 else 7.0)
        assert resumed(ps, workers, "later") < 2.0
        drained(ps, raw)


def test_r6_everything_is_swallowed(
    server: EmbeddedServer,
    ps: Penstock,
    proxy: Proxy,
    raw: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R6: new connections hang too; the worker is unhealthy meanwhile."""
    monkeypatch.setattr(state, "HEALTHY_SECONDS", 4.5)
    with both(proxy.url) as workers:
        assert resumed(ps, workers, "before") < RESUMED
        wait_idle(raw, 2)
        proxy.hole()
        for _, worker in workers.values():
            wait_for(lambda: not worker.healthy())  # noqa: B023
        proxy.restore()
        assert resumed(ps, workers, "after") < RESUMED
        drained(ps, raw)


@pytest.mark.slow
def test_r7_idle_with_a_short_socket_timeout(
    server: EmbeddedServer,
    ps: Penstock,
    raw: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R7: an idle wait is no timeout: no log record, no new connection.

    R12: it costs at most half a command per second and queue, as counted by the server: one for
    each tick; the BLPOP stays pending.
    """
    caplog.set_level(logging.INFO, "penstock")
    monkeypatch.setattr(idle, "FOLLOWING_SECONDS", 0.0)
    with both(server.url, client={"socket_timeout": 0.5}) as workers:
        assert resumed(ps, workers, "first") < RESUMED
        wait_idle(raw, 2)
        # After the work, the worker checks the queue sizes once more, and asks at the lease's end.
        time.sleep(LEASE + 0.5)
        caplog.clear()
        connections = raw.info("stats")["total_connections_received"]
        before, began = sent(raw), time.monotonic()
        time.sleep(12)
        after, seconds = sent(raw), time.monotonic() - began
        assert raw.info("stats")["total_connections_received"] == connections
        assert caplog.messages == []
    asked = sum(after[name] - before.get(name, 0) for name in after if name != "info")
    ticks = seconds // POLL_INTERVAL + 1  # of each worker
    assert 2 <= asked <= 2 * (ticks + 2)  # and what comes once or twice a minute
