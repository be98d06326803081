"""Connections that a load balancer or a NAT has dropped while they were idle, and tells no side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, Penstock
from penstock.client._async.transport import commands as async_commands
from penstock.client._sync.transport import blocking as sync_blocking
from penstock.client._sync.transport import commands as sync_commands
from penstock.client._sync.transport import server as sync_server
from penstock.client._sync.transport.settings import own_settings
from penstock.embedded import EmbeddedServer
from penstock.pressure import PressureQueue
from tests.support.proxy import Proxy
from tests.support.twins import spawn, wait_for

TOO_LONG = 20.0
"""Seconds; a reply that does not come costs three times as much."""
SILENCE = "?socket_timeout=60&socket_connect_timeout=5"


@pytest.fixture
def proxy(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that drops connections; the test of an idle connection is quick."""
    for module in (async_commands, sync_commands, sync_blocking):
        monkeypatch.setattr(module, "PROBE_TIMEOUT", 0.1)
    with Proxy(server.address) as proxy:
        yield proxy


def drop(proxy: Proxy, client: Any) -> None:
    """Let the client's connections have been idle for long, and drop them."""
    for connection in client.topology.executor.connections.idle:
        connection.used = 0.0
    for waiter in client.topology.executor.connections._waiters:
        waiter._since = 0.0
    assert proxy.strand()


CALLS: list[Callable[[Any], Any]] = [
    lambda ps: ps.queue("q").enqueue(b"x"),
    lambda ps: ps.queue("q").enqueue_many([b"x"] * 3),
    lambda ps: ps.queue("q").reserve(1, block=0),
    lambda ps: ps.queues(),
]


@pytest.mark.parametrize("is_lent", [False, True], ids=["url", "lent"])
def test_the_first_call_after_an_idle_time(proxy: Proxy, is_lent: bool) -> None:
    """It is sent on a new connection at once, whatever it is, although none is repeated."""
    url = proxy.url + SILENCE
    with Penstock(redis.Redis.from_url(url) if is_lent else url, retry_for=0) as ps:
        ps.queue("q").enqueue(b"x")
        for call in CALLS:
            drop(proxy, ps)
            begun = time.monotonic()
            call(ps)
            assert time.monotonic() - begun < TOO_LONG
        assert ps.queue("q").stats().enqueued == 5  # each one once


async def test_the_first_call_of_asyncio_after_an_idle_time(proxy: Proxy) -> None:
    """An asyncio client sends its first call on a new connection at once."""
    async with AsyncPenstock(proxy.url + SILENCE, retry_for=0) as ps:
        await ps.queue("q").enqueue(b"x")
        for call in CALLS:
            drop(proxy, ps)
            await asyncio.wait_for(call(ps), TOO_LONG)
        assert (await ps.queue("q").stats()).enqueued == 5


def test_a_wait_after_an_idle_time(server: EmbeddedServer, proxy: Proxy) -> None:
    """A consumer waits on a new connection."""
    with Penstock(proxy.url + SILENCE) as ps, redis.Redis.from_url(server.url) as raw:
        q = ps.queue("q")
        q.configure(lease=5)
        assert q.reserve(1, block=0.01) == []
        drop(proxy, ps)
        idle = spawn(q.reserve, 1, block=30)
        wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
        Penstock(server.url).queue("q").enqueue("x")
        assert [job.body for job in idle.result()] == ["x"]


@pytest.mark.parametrize("is_busy", [False, True])
def test_other_idle_connections(
    proxy: Proxy, is_busy: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They count as dropped, too, unless the server is busy: a new one has no answer at once."""
    monkeypatch.setattr(sync_server, "FAST_OPENING_SECONDS", 0.0 if is_busy else TOO_LONG)
    caplog.set_level("INFO")
    with Penstock(proxy.url + SILENCE) as ps:
        ps.queue("q").enqueue(b"x")
        for _ in range(2):
            drop(proxy, ps)
            ps.queue("q").enqueue(b"x")
        connections: Any = ps.topology.executor.connections
        assert (connections.lost_at == 0) == is_busy
    assert caplog.text.count("on an idle connection") == 1


def test_a_pressure_queue_after_an_idle_time(proxy: Proxy) -> None:
    """A call that is never repeated is sent on a new connection."""
    q = PressureQueue("q", proxy.url + SILENCE)
    q.create(0)
    for connection in q._server.idle:
        connection.used = 0.0
    proxy.strand()
    begun = time.monotonic()
    q.put(b"x")
    assert time.monotonic() - begun < TOO_LONG


def test_a_command_is_repeated_once_at_least(proxy: Proxy) -> None:
    """Also if the lost reply has used up the time: the connection was dropped between two calls."""
    with Penstock(f"{proxy.url}?socket_timeout=0.2", retry_for=0) as ps:
        ps.queue("q").enqueue(b"x")
        proxy.strand()
        assert ps.queues() == ["q"]


@pytest.mark.parametrize(
    "lent, kept", [({}, True), ({"socket_keepalive": False}, False), ({"path": "/s"}, None)]
)
def test_the_system_tests_idle_connections(lent: dict[str, Any], kept: bool | None) -> None:
    """TCP's keep-alive is on, unless the user turns it off."""
    assert own_settings(lent).get("socket_keepalive") is kept
