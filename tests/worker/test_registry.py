"""The entry of a worker in the registry: when it is written, what it costs, and failures."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from multiprocessing import Process
from typing import Any

import pytest
import redis

from penstock import Handlers, Penstock, Worker, __version__
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import worker_key, workers_key
from penstock.worker._async import registration as asyncio_entries
from penstock.worker._sync import registration as entries
from penstock.worker._sync.registration import Registration
from tests.support.twins import wait_for
from tests.worker.faults import KINDS, Seen, at_work

LIST = workers_key("penstock")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register workers at once."""
    for module in (entries, asyncio_entries):
        monkeypatch.setattr(module, "REGISTRATION_DELAY", 0.0)


@pytest.fixture
def ps(server: EmbeddedServer) -> Iterator[Penstock]:
    """A client of the server."""
    with Penstock(server.url) as client:
        yield client


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry(kind: str, server: EmbeddedServer, ps: Penstock, raw: redis.Redis) -> None:
    """It says what the worker is; it ends by itself, and is removed at a clean end."""
    with at_work(kind, server.url, ["a", "b"], Seen(), name="w", concurrency=3) as worker:
        wait_for(lambda: bool(ps.workers()) and raw.pttl(LIST) > 0)  # two commands
        (view,) = ps.workers()
        assert (view.name, view.kind, view.queues) == ("w", type(worker).__name__, ("a", "b"))
        assert (view.host, view.pid) == (socket.gethostname(), os.getpid())
        assert (view.version, view.concurrency) == (__version__, 3)
        assert 30_000 < raw.pttl(worker_key("penstock", view.id)) <= 40_000
        assert raw.pttl(LIST) <= 3_600_000
    assert ps.workers() == []
    assert raw.keys("penstock:worker*") == []


@pytest.mark.parametrize("kind", KINDS)
def test_missing_handlers_are_told(
    kind: str, server: EmbeddedServer, ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry has the names of jobs that were given back, and a check finds them."""
    for module in (entries, asyncio_entries):
        monkeypatch.setattr(module, "ENTRY_INTERVAL", 0.05)
    handlers = Handlers()
    handlers.handler("old")(print)
    with at_work(kind, server.url, "q", handlers, name="w"):
        ps.queue("q").enqueue({}, headers={"handler": "new"})
        ps.queue("q").enqueue("without a name")
        wait_for(lambda: [len(view.unknown.get("q", ())) for view in ps.workers()] == [2])
        texts = [one.text for one in ps.find_problems() if one.kind == "handler"]
    assert texts == [
        "jobs of handler 'new' are given back by w: no such handler",
        "jobs without a handler's name are given back by w: no such handler",
    ]


def _work(url: str) -> None:
    entries.REGISTRATION_DELAY = 0.0
    Worker(url, "q", print).run()


def test_a_worker_that_was_killed(ps: Penstock, server: EmbeddedServer, raw: redis.Redis) -> None:
    """It is gone when its entry has ended; later workers remove its id."""
    process = Process(target=_work, args=(server.url,))
    process.start()
    wait_for(lambda: bool(ps.workers()))
    (view,) = ps.workers()
    assert view.pid == process.pid
    os.kill(view.pid, signal.SIGKILL)
    process.join()
    assert raw.pttl(worker_key("penstock", view.id)) > 0
    raw.pexpire(worker_key("penstock", view.id), 1)
    wait_for(lambda: ps.workers() == [])
    raw.zadd(LIST, {view.id: raw.time()[0] * 1000 - 3_600_001})
    with Worker(ps, "q", print):
        wait_for(lambda: bool(ps.workers()))
        wait_for(lambda: raw.zscore(LIST, view.id) is None)


def test_a_short_burst_writes_nothing(
    ps: Penstock, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is registered when it has run for a while."""
    monkeypatch.setattr(entries, "REGISTRATION_DELAY", 600.0)
    ps.queue("q").enqueue("x")
    Worker(ps, "q", lambda _: None, burst=True).run()
    assert "cmdstat_set" not in raw.info("commandstats")
    assert raw.keys("penstock:worker*") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_server(
    kind: str,
    server: EmbeddedServer,
    ps: Penstock,
    raw: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Jobs are handled as ever; the worker is not listed, and says so once."""
    caplog.set_level(logging.INFO, "penstock")
    q, seen = ps.queue("q"), Seen()
    q.enqueue_many(range(3))
    raw.config_set("maxmemory", 1)
    try:
        with at_work(kind, server.url, "q", seen):
            seen.wait(0, 1, 2)
            wait_for(lambda: q.stats().acked == 3)
            told = "the list of workers can't be written"
            wait_for(lambda: any(told in text for text in caplog.messages))
    finally:
        raw.config_set("maxmemory", 0)
    assert len([text for text in caplog.messages if told in text]) == 1
    assert raw.keys("penstock:worker*") == []


def test_a_key_of_another_type(
    server: EmbeddedServer, ps: Penstock, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not disturb work, and the entry is written when the key is free."""
    monkeypatch.setattr(entries, "ENTRY_INTERVAL", 0.1)
    raw.set(LIST, "of another type")
    seen = Seen()
    with at_work("threads", server.url, "q", seen):
        ps.queue("q").enqueue("x")
        seen.wait("x")
        raw.delete(LIST)
        wait_for(lambda: bool(ps.workers()))


@pytest.mark.slow
def test_several_nodes(make_server: Callable[..., EmbeddedServer]) -> None:
    """A worker tells each of its nodes, and is listed once. A node that is down is left out."""
    servers = [make_server(tcp=True) for _ in range(2)]
    urls = [server.url for server in servers]
    with Penstock(urls) as ps, Worker(urls, "q", print):
        for url in urls:
            with redis.Redis.from_url(url) as raw:
                wait_for(lambda: bool(raw.exists(LIST)))  # it is called in this round
        assert len(ps.workers()) == 1
        servers[0].stop()
        found: Any = ps.workers()
        assert (len(found), len(found.unreachable)) == (1, 1)


class Recorder:
    """Stands for a node; records the commands.

    Attributes:
        entry: the present entry.
    """

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.entry: str | None = None

    def time_ms(self) -> int:
        """Return the time of the server."""
        self.commands.append("TIME")
        return 5_000_000

    def command(self, *args: Any) -> str | None:
        """Record a command; SET returns the entry that was there."""
        self.commands.append(args[0])
        before, self.entry = self.entry, args[2] if args[0] == "SET" else self.entry
        return before


LISTED = ["TIME", "ZADD", "ZREMRANGEBYSCORE", "PEXPIRE"]


def test_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small write every 15 s; every 10 minutes, and if the entry was lost, three for the list."""
    clock = [100.0]
    monkeypatch.setattr(entries, "monotonic", lambda: clock[0])
    node: Any = Recorder()
    entry = Registration(lambda since_ms, seen_ms: f"since {since_ms} seen {seen_ms}", "penstock")
    entry.renew([node])
    assert node.commands == ["TIME", "SET", *LISTED]
    node.commands.clear()
    for _ in range(39):
        assert entry.at - clock[0] == 15
        clock[0] = entry.at
        entry.renew([node])
    assert node.commands == ["SET"] * 39
    assert node.entry == f"since {4_999_000 + 1000} seen {5_000_000 + 39 * 15_000}"
    clock[0] = entry.at
    entry.renew([node])
    assert node.commands[39:] == ["SET", *LISTED]
    node.entry = None
    entry.renew([node])
    assert node.commands[44:] == ["SET", *LISTED]


def test_the_entry_of_a_process_is_its_own(ps: Penstock) -> None:
    """Two workers of one name are two entries."""
    with Worker(ps, "q", print, name="w"), Worker(ps, "q", print, name="w"):
        wait_for(lambda: len(ps.workers()) == 2)
        assert {view.name for view in ps.workers()} == {"w"}
