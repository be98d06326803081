"""Servers that stop and return, and lost replies."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from penstock import AsyncPenstock, Penstock
from penstock.client._async.transport import blocking as tasks
from penstock.client._sync.transport import blocking as threads
from penstock.client._sync.transport.executor import Executor
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.support.keyspace import check_invariant, evalshas, load_scripts
from tests.support.proxy import Proxy
from tests.support.twins import await_for, spawn, wait_for

Server = Callable[..., EmbeddedServer]


def has_more_than(connections: int, proxy: Proxy) -> bool:
    """Tell if the proxy has accepted more connections than this."""
    return proxy.connections > connections


def test_a_restart_between_two_calls(server: EmbeddedServer) -> None:
    """Connection and scripts are gone after a restart, and the next call works."""
    with Penstock(server.url) as ps:
        q = ps.queue("q")
        for turn in range(3):
            q.enqueue(turn)
            server.restart()
        (job, *_) = q.reserve(3, block=0)
        server.restart()
        assert job.ack() is True
        server.restart()
        assert (q.stats().acked, q.stats().active) == (1, 2)


async def test_a_restart_between_two_calls_of_asyncio(server: EmbeddedServer) -> None:
    """The next call of the asyncio client works after a restart."""
    async with AsyncPenstock(server.url) as ps:
        q = ps.queue("q")
        await q.enqueue(1)
        server.restart()
        (job,) = await q.reserve(block=0)
        server.restart()
        assert await job.ack() is True


def test_a_restart_while_a_consumer_waits(server: EmbeddedServer) -> None:
    """A waiting consumer waits again after a restart, and gets the next job."""
    with Penstock(server.url) as ps, Penstock(server.url) as producer:
        producer.queue("q").enqueue("make the queue")
        producer.queue("q").purge()
        idle = spawn(ps.queue("q").reserve, 1, block=30)
        with redis.Redis.from_url(server.url) as raw:
            wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
        server.restart()
        producer.queue("q").enqueue("after")
        (job,) = idle.result()
        assert job.body == "after"


async def test_a_restart_while_a_task_waits(server: EmbeddedServer) -> None:
    """A waiting task waits again after a restart, and gets the next job."""
    async with AsyncPenstock(server.url) as ps:
        q = ps.queue("q")
        await q.enqueue("make the queue")
        await q.purge()
        idle = asyncio.ensure_future(q.reserve(1, block=30))
        with redis.Redis.from_url(server.url) as raw:
            await await_for(lambda: raw.info("clients")["blocked_clients"] == 1)
        server.restart()
        await q.enqueue("after")
        (job,) = await asyncio.wait_for(idle, 20)
        assert job.body == "after"


def test_a_server_that_is_down() -> None:
    """A call to a stopped server is retried for a bounded time and raises redis-py's error."""
    with Proxy(("127.0.0.1", 1)) as proxy:
        proxy.refuse()
        for retry_for in (0, 0.3):
            start = time.monotonic()
            with pytest.raises(RedisConnectionError):
                Penstock(proxy.url, retry_for=retry_for).queue("q").enqueue(1)
            assert retry_for <= time.monotonic() - start < retry_for + 5

        async def run() -> None:
            await AsyncPenstock(proxy.url, retry_for=0.3).queue("q").reserve(block=0)

        start = time.monotonic()
        with pytest.raises(RedisConnectionError):
            asyncio.run(run())
        assert 0.3 <= time.monotonic() - start < 5.3


def test_a_server_that_comes_back_in_time(server: EmbeddedServer) -> None:
    """A call succeeds if its server starts again in time."""
    with Penstock(server.url, retry_for=20) as ps:
        q = ps.queue("q")
        q.enqueue(1)
        server.kill()
        call = spawn(q.enqueue, 2)
        server.restart()
        call.result()
        assert [view.body for view in q.peek()] == [1, 2]


def test_a_client_continues_after_an_outage(server: EmbeddedServer) -> None:
    """After a failed call and the end of the outage the client works again."""
    with Penstock(server.url, retry_for=1) as ps:
        q = ps.queue("q")

        def answers() -> bool:
            with suppress(RedisConnectionError, RedisTimeoutError):
                return q.stats().ready == 1  # a busy machine may need longer than retry_for
            return False

        q.enqueue(1)
        server.kill()
        for call in (lambda: q.enqueue(2), q.stats, lambda: q.reserve(block=0.1)):
            with pytest.raises(RedisConnectionError):
                call()
        server.restart()
        wait_for(answers)
        q.enqueue(3)
        assert [job.body for job in q.reserve(5, block=0)] == [1, 3]


@pytest.mark.parametrize("call", ["enqueue", "reserve", "stats", "connect"])
def test_a_server_is_tried_once_for_a_call(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call to a server that is down is tried for `retry_for`, not for twice as long."""
    tried = []

    def prepare(node: Executor) -> None:
        tried.append(node)
        raise RedisConnectionError("down")

    monkeypatch.setattr(Executor, "prepare", prepare)
    ps = Penstock("redis://127.0.0.1:1/0")
    q = ps.queue("q")
    calls = {"enqueue": lambda: q.enqueue(1), "reserve": q.reserve, "stats": q.stats}
    with pytest.raises(RedisConnectionError, match="down"):
        calls.get(call, ps.connect)()
    assert len(tried) == 1


def test_a_server_that_does_not_answer(server: EmbeddedServer) -> None:
    """A hanging server causes a socket timeout, retries for a bounded time, and
    later calls work.
    """
    with redis.Redis.from_url(server.url, socket_timeout=0.2) as lent:
        ps = Penstock(lent, retry_for=0.3)
        q = ps.queue("q")
        q.enqueue(1)
        server.pause()
        start = time.monotonic()
        with pytest.raises((RedisTimeoutError, RedisConnectionError)):
            q.stats()
        assert 0.2 <= time.monotonic() - start < 6
        server.resume()
        assert q.stats().ready == 1
        ps.close()


def silent_introduction(monkeypatch: pytest.MonkeyPatch, waiter: Any, proxy: Proxy) -> list[Any]:
    """Drop all data from a waiter's first handshake until it has failed, and collect the errors."""
    begin, failures = waiter._open, list[Any]()

    def struck(error: BaseException) -> None:
        failures.append(error)
        proxy.restore()

    def plain(self: Any, *args: Any) -> Any:
        if failures:
            return begin(self, *args)
        proxy.hole()
        try:
            return begin(self, *args)
        except BaseException as error:
            struck(error)
            raise

    async def coroutine(self: Any, *args: Any) -> Any:
        if failures:
            return await begin(self, *args)
        proxy.hole()
        try:
            return await begin(self, *args)
        except BaseException as error:
            struck(error)
            raise

    is_async = inspect.iscoroutinefunction(begin)
    monkeypatch.setattr(waiter, "_open", coroutine if is_async else plain)
    return failures


def test_a_server_that_hangs_when_a_consumer_begins_to_wait(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake of a waiting consumer times out, and it connects again."""
    monkeypatch.setattr(threads, "SOCKET_TIMEOUT", 0.3)
    with (
        Proxy(server.address) as proxy,
        Penstock(proxy.url) as ps,
        Penstock(server.url) as producer,
    ):
        failures = silent_introduction(monkeypatch, threads.BlockingConnection, proxy)
        idle = spawn(ps.queue("q").reserve, 1, block=30)
        wait_for(lambda: bool(failures))
        assert isinstance(failures[0], RedisTimeoutError)
        producer.queue("q").enqueue(1)
        assert [job.body for job in idle.result()] == [1]


async def test_a_server_that_hangs_when_a_task_begins_to_wait(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake of a waiting task times out, and it connects again."""
    monkeypatch.setattr(tasks, "SOCKET_TIMEOUT", 0.3)
    with Proxy(server.address) as proxy:
        async with AsyncPenstock(proxy.url) as ps, AsyncPenstock(server.url) as producer:
            failures = silent_introduction(monkeypatch, tasks.AsyncBlockingConnection, proxy)
            idle = asyncio.ensure_future(ps.queue("q").reserve(1, block=30))
            await await_for(lambda: bool(failures))
            assert isinstance(failures[0], RedisTimeoutError)
            await producer.queue("q").enqueue(1)
            assert [job.body for job in await asyncio.wait_for(idle, 20)] == [1]


def eager(url: str) -> redis.Redis:
    """A client whose own settings would repeat every call."""
    return redis.Redis.from_url(
        url, retry=Retry(ExponentialBackoff(cap=0.01, base=0.001), 10), retry_on_timeout=True
    )


def test_a_lost_reply_adds_no_job(server: EmbeddedServer) -> None:
    """The call is repeated once, by our client only, and the server recognises it."""
    with Proxy(server.address) as proxy, eager(proxy.url) as lent, Penstock(lent) as ps:
        q = ps.queue("q")
        ids = [q.enqueue(0).id]
        with redis.Redis.from_url(server.url) as raw:
            for turn in range(1, 6):
                before = evalshas(raw)
                fault = proxy.eat_reply(after=b"EVALSHA")
                ids.append(q.enqueue(turn).id)
                assert fault.has_struck
                assert evalshas(raw) - before == 2
            check_invariant(raw)
        assert [view.id for view in q.peek(100)] == ids
        assert q.stats().enqueued == 6


async def test_a_lost_reply_adds_no_job_of_asyncio(server: EmbeddedServer) -> None:
    """A bulk of the asyncio client is repeated once and recognised."""
    with Proxy(server.address) as proxy:
        async with AsyncPenstock(proxy.url) as ps:
            q = ps.queue("q")
            await q.enqueue("make the queue")
            for _ in range(3):
                fault = proxy.eat_reply(after=b"EVALSHA")
                results = await q.enqueue_many(range(50))
                assert fault.has_struck
                assert len(results) == 50
            stats = await q.stats()
            assert (stats.enqueued, stats.ready) == (151, 151)


@pytest.mark.parametrize("how", ["ack", "nack", "release", "bury", "extend", "delete", "settle"])
def test_a_lost_reply_of_settling(server: EmbeddedServer, how: str) -> None:
    """After a lost reply the repeat reports done, not gone or stale."""
    with Proxy(server.address) as proxy, Penstock(proxy.url) as ps:
        q = ps.queue("q")
        q.enqueue_many(["x", "next"])
        (job,) = q.reserve(block=0)
        with redis.Redis.from_url(server.url) as raw:
            load_scripts(raw)
        calls: dict[str, Callable[[], Any]] = {
            "ack": job.ack,
            "nack": job.nack,
            "release": job.release,
            "bury": job.bury,
            "extend": job.extend,
            "delete": lambda: q.delete([job]),
            "settle": lambda: q.ack_and_reserve([job], 1)[0],
        }
        fault = proxy.eat_reply(after=b"EVALSHA")
        assert calls[how]()
        assert fault.has_struck
        stats = q.stats()
        counts = (stats.acked, stats.nacked, stats.released, stats.died, stats.deleted)
        assert sum(counts) == (how != "extend")


def test_a_lost_reply_of_reserve(server: EmbeddedServer) -> None:
    """Jobs of a lost reply are delivered again after their lease; none is lost."""
    with Proxy(server.address) as proxy, Penstock(proxy.url) as ps:
        q = ps.queue("q")
        q.enqueue_many(range(2), lease=0.3)
        with redis.Redis.from_url(server.url) as raw:
            load_scripts(raw)
        fault = proxy.eat_reply(after=script("reserve").sha.encode())  # a lease is not plain
        got = q.reserve(1, block=0)
        assert fault.has_struck
        assert [job.body for job in got] == [1]
        (again,) = q.reserve(1, block=10)
        assert (again.body, again.crashes) == (0, 1)


def test_a_connection_cut_while_a_consumer_waits(server: EmbeddedServer) -> None:
    """A waiting consumer looks and waits again, and gets the job."""
    with Proxy(server.address) as proxy, Penstock(proxy.url) as ps, Penstock(server.url) as other:
        other.queue("q").enqueue("make the queue")
        other.queue("q").purge()
        idle = spawn(ps.queue("q").reserve, 1, block=30)
        with redis.Redis.from_url(server.url) as raw:
            wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
            for _ in range(3):
                before = proxy.connections
                proxy.cut()
                proxy.wait_until(partial(has_more_than, before))
                wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
        start = time.monotonic()
        other.queue("q").enqueue("after")
        (job,) = idle.result()
        assert job.body == "after"
        assert time.monotonic() - start < 3


def test_a_client_closed_by_another_thread(server: EmbeddedServer) -> None:
    """Closing does not disturb a running call, and the client can be used again."""
    with Penstock(server.url) as ps:
        q = ps.queue("q")
        stop = threading.Event()

        def produce() -> int:
            added = 0
            while not stop.is_set():
                q.enqueue(added)
                added += 1
            return added

        worker = spawn(produce)
        for _ in range(20):
            ps.close()
        stop.set()
        added = worker.result()
        assert q.stats().enqueued == added
