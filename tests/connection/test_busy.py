"""Temporary refusals: another client's slow script, and a failing disk."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from penstock import AsyncPenstock, Durable, Penstock
from penstock.client._async.transport.server import AsyncServer
from penstock.client._sync.transport.server import Server as SyncServer
from penstock.core.calls.call import EARLY_RETRY_PAUSE, LATE_RETRY_PAUSE, longest_pause
from penstock.core.nodes.cluster import Patience
from penstock.embedded import EmbeddedServer
from tests.connection.stub import Command, Stub, info
from tests.support.busy import busy
from tests.support.twins import aspawn, await_for, spawn, wait_for

Server = Callable[..., EmbeddedServer]


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def repeating(monkeypatch: pytest.MonkeyPatch) -> set[object]:
    """The threads and tasks whose calls, or handshakes, were refused and are repeated."""
    found = set[object]()

    def note(_: object, error: Exception, elapsed: float) -> None:
        assert str(error).startswith("BUSY ")
        try:
            found.add(asyncio.current_task())
        except RuntimeError:  # a thread without an event loop
            found.add(threading.current_thread())

    for server in (SyncServer, AsyncServer):
        monkeypatch.setattr(server, "_say", note)
    return found


def refused(raw: redis.Redis, code: str = "BUSY") -> int:
    """Count the error replies with this code since the last reset."""
    return int(raw.info("errorstats").get(f"errorstat_{code}", {}).get("count", 0))


def failed_scripts(raw: redis.Redis) -> int:
    """Count the calls of scripts that failed. Redis 6.2 gives an error in a script no code."""
    return int(raw.info("commandstats")["cmdstat_evalsha"]["failed_calls"])


CALLS: dict[str, Callable[[Any], Any]] = {
    "enqueue": lambda q: q.enqueue("new"),
    "enqueue_many": lambda q: q.enqueue_many(["new", "new"]),
    "reserve": lambda q: q.reserve(block=0),
    "stats": lambda q: q.stats(),
    "configure": lambda q: q.configure(lease=5),
    "peek": lambda q: q.peek(),
}


@pytest.mark.parametrize("database", [0, 1])
def test_calls_wait_until_a_busy_server_answers(
    server: EmbeddedServer, repeating: set[object], database: int
) -> None:
    """BUSY as the reply to a call or a handshake is retried, and each call runs once."""
    url = server.url.rpartition("/")[0] + f"/{database}"
    fresh = Penstock(url, retry_for=60)  # not connected yet
    with Penstock(url, retry_for=60) as ps, closing(fresh):
        q = ps.queue("q")
        q.enqueue("old")
        q.route.node.taking_until = math.inf  # no call reads the node's flag for the others
        with busy(server.url):
            calls = [spawn(call, q) for call in CALLS.values()]
            late = spawn(fresh.queue("q").enqueue, "new")
            wait_for(lambda: len(repeating) == len(calls) + 1)
            assert not any(call.is_done for call in [*calls, late])
        for call in [*calls, late]:
            assert call.result() is not None
        assert q.stats().enqueued == 5


async def test_calls_of_asyncio_wait_until_a_busy_server_answers(
    server: EmbeddedServer, repeating: set[object]
) -> None:
    """The asyncio client retries too, also in its handshake; each call runs once."""
    async with AsyncPenstock(server.url, retry_for=60) as ps:
        q = ps.queue("q")
        await q.enqueue("old")
        q.route.node.taking_until = math.inf
        with busy(server.url):
            calls = [aspawn(call, q) for call in CALLS.values()]
            late = aspawn(AsyncPenstock(server.url, retry_for=60).connect)
            await await_for(lambda: len(repeating) == len(calls) + 1)
            assert not any(call.is_done for call in [*calls, late])
        for call in calls:
            await call.result()
        await (await late.result()).close()
        assert (await q.stats()).enqueued == 4


def test_consume_survives_a_busy_server(server: EmbeddedServer, repeating: set[object]) -> None:
    """The loop continues, whether BUSY interrupts a wait or an ack."""
    got: list[Any] = []
    with Penstock(server.url, retry_for=60) as ps:
        q = ps.queue("q")

        def consume() -> None:
            for job in q.consume():
                with job:
                    got.append(job.body)
                    if job.body == "close":
                        q.close()

        q.enqueue("first")
        loop = spawn(consume)
        wait_for(lambda: got == ["first"])
        with busy(server.url):
            late = spawn(q.enqueue, "second")
            wait_for(lambda: len(repeating) == 2)  # one of them is the consumer's look
        late.result()
        wait_for(lambda: got == ["first", "second"])
        q.enqueue("close")
        loop.result()
        assert q.stats().acked == 3


async def test_consume_of_asyncio_survives_a_busy_server(
    server: EmbeddedServer, repeating: set[object]
) -> None:
    """The asynchronous loop continues."""
    got: list[Any] = []
    async with AsyncPenstock(server.url, retry_for=60) as ps:
        q = ps.queue("q")

        async def consume() -> None:
            async for job in q.consume():
                async with job:
                    got.append(job.body)
                    if job.body == "close":
                        await q.close()

        await q.enqueue("first")
        loop = aspawn(consume)
        await await_for(lambda: got == ["first"])
        with busy(server.url):
            late = aspawn(q.enqueue, "second")
            await await_for(lambda: len(repeating) == 2)
        await late.result()
        await await_for(lambda: got == ["first", "second"])
        await q.enqueue("close")
        await loop.result()
        assert (await q.stats()).acked == 3


def test_a_busy_server_is_given_up_in_time(server: EmbeddedServer, raw: redis.Redis) -> None:
    """After `retry_for` the server's own error is raised, and no call has run."""
    with Penstock(server.url, retry_for=0.2) as ps:
        q = ps.queue("q")
        q.enqueue("old")
        with busy(server.url), pytest.raises(ResponseError, match="BUSY"):
            q.enqueue("new")
        assert q.stats().enqueued == 1
        assert refused(raw) > 2


def test_the_first_call_to_a_busy_server_is_given_up_in_time(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new client, which reads the list of nodes first, waits no longer than another."""
    slept: list[float] = []
    for module in ("topology", "transport.server"):
        clock = f"penstock.client._sync.{module}.monotonic"
        monkeypatch.setattr(clock, lambda: 10.0 * len(slept))
    monkeypatch.setattr("penstock.client._sync.transport.server.sleep", slept.append)
    with busy(server.url):
        for call in (lambda q: q.enqueue(1), lambda q: q.stats(), lambda q: q.reserve(1)):
            with (
                closing(Penstock(server.url, retry_for=15)) as ps,
                pytest.raises(ResponseError, match="BUSY"),
            ):
                call(ps.queue("q"))
            assert len(slept) == 2
            slept.clear()


def test_wait_is_repeated_after_busy() -> None:
    """BUSY behind a completed call leaves its replicas unknown, so WAIT is sent again."""
    answers: list[bytes] = [b"-BUSY Redis is busy running a script.\r\n"] * 2 + [b":1\r\n"]
    told = iter(answers)

    def answer(command: Command) -> bytes:
        if command[0] == b"WAIT":
            return next(told)
        if command[0] == b"EVALSHA":
            count = int(command[2])
            nonce = command[3 + count]
            return (
                b"*9\r\n:1\r\n$%d\r\n%b\r\n$24\r\n1700000000000-1000000000\r\n:1\r\n"
                b"$8\r\n01020304\r\n:0\r\n:0\r\n:0\r\n:0\r\n" % (len(nonce), nonce)
            )
        if command[0] == b"INFO":
            return info(redis_version="7.0.0", connected_slaves="1", role="master")
        if command[0] == b"HGET":
            return b"$40\r\n%b\r\n" % (b"0" * 40) if command[2] == b"id" else b"$-1\r\n"
        return b"+OK\r\n"

    with Stub(answer) as stub, Penstock(stub.url) as ps:
        assert ps.queue("q").enqueue("x", durable=Durable(1, timeout=30)).replicas == 1
        assert stub.names().count(b"EVALSHA") == 1
        assert stub.names().count(b"WAIT") == 3


def test_a_failing_disk_is_retried(make_server: Server) -> None:
    """MISCONF: the server refuses writes until it can save again; the call is retried."""
    server = make_server(tcp=True, args=("--save", "3600", "1"))
    with redis.Redis.from_url(server.url) as raw, Penstock(server.url, retry_for=60) as ps:
        q = ps.queue("q")
        q.enqueue("old")
        directory = raw.config_get("dir")["dir"]
        shutil.move(directory, directory + ".gone")
        shutil.rmtree(directory + ".gone")
        raw.bgsave()
        wait_for(lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err")
        before = failed_scripts(raw)
        adding = spawn(q.enqueue, "new")
        taking = spawn(q.reserve, block=0)
        wait_for(lambda: failed_scripts(raw) >= before + 4)
        assert not adding.is_done
        assert not taking.is_done
        raw.config_set("stop-writes-on-bgsave-error", "no")
        adding.result()
        assert taking.result()
        assert q.stats().enqueued == 2


# -- pauses between two tries -------------------------------------------------------------------


@pytest.mark.parametrize("outage", [0.001, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.99])
def test_a_short_outage_costs_little_more_than_it_lasts(outage: float) -> None:
    """With the longest pauses a call takes at most twice the outage or 0.25 s more."""
    now, tries = 0.0, 0
    while now < outage:
        tries += 1
        now += longest_pause(tries, now)
    assert now - outage <= min(EARLY_RETRY_PAUSE, outage + 0.01)
    assert tries < 12


def test_a_long_outage_is_tried_once_a_second() -> None:
    """Later pauses are about a second."""
    assert [longest_pause(tries, 1.0) for tries in (20, 2000)] == [
        LATE_RETRY_PAUSE,
        LATE_RETRY_PAUSE,
    ]


def test_a_cluster_has_the_same_patience() -> None:
    """The pauses for a cluster are drawn from the same distribution."""
    clock = [100.0]
    patience = Patience(5.0, lambda: clock[0], lambda: 1.0)
    for tries in range(1, 7):
        assert patience.pause() == longest_pause(tries, 0.0)
    clock[0] = 102.0
    assert patience.pause() == longest_pause(7, 2.0) == 0.64


def test_pauses_of_a_failing_call(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing call makes the longest pauses between its attempts until `retry_for` is over."""
    slept: list[float] = []
    now = [1000.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("penstock.client._sync.transport.server.random.random", lambda: 1.0)
    with Penstock(server.url) as ps:
        q = ps.queue("q")
        q.enqueue(1)
        monkeypatch.setattr("penstock.client._sync.transport.server.sleep", sleep)
        monkeypatch.setattr("penstock.client._sync.transport.server.monotonic", lambda: now[0])
        server.kill()
        with pytest.raises(redis.ConnectionError):
            q.enqueue(2)
    assert slept[:6] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25]
    assert max(slept) == LATE_RETRY_PAUSE
    assert sum(slept) >= 5
