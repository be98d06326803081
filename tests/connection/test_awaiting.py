"""Waits for results while servers, connections and processes fail."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, Penstock, Queue, ResultGone, ResultTimeout
from penstock.client._sync import looking
from penstock.client._sync.transport import finished
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.connection.sentinels import FakeSentinel, sentinel_url
from tests.support.proxy import Proxy
from tests.support.replicated import reach_replicas
from tests.support.twins import aspawn, await_for, spawn, wait_for

Server = Callable[..., EmbeddedServer]
MARKS_FROM = 2**52


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of it."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def q(server: EmbeddedServer) -> Iterator[Queue]:
    """A queue of another client than the one that waits."""
    with Penstock(server.url) as client:
        yield client.queue("q")


def awaited(raw: redis.Redis, count: int = 1) -> None:
    """Wait until so many jobs are awaited, and their client reads the stream."""
    key = "penstock:{q}:expiry"
    wait_for(lambda: raw.zcount(key, MARKS_FROM, "+inf") == count)
    wait_for(lambda: raw.info("clients")["blocked_clients"] >= 1)


def outcome(queue: Queue, job_id: str, timeout: float = 20) -> Any:
    """Return the result of a job, or the type of the error."""
    try:
        return queue.result(job_id, timeout=timeout)
    except (ResultGone, ResultTimeout) as error:
        return type(error)


def finish(queue: Queue) -> None:
    """Run a job."""
    (job,) = queue.reserve(block=20)
    assert job.ack()


def test_a_failover_while_a_client_waits(server: EmbeddedServer, make_server: Server) -> None:
    """The wait goes on at the new primary, which has the mark of the wait or not."""
    new = make_server(tcp=True)
    with redis.Redis.from_url(new.url) as replica:
        replica.execute_command("REPLICAOF", "127.0.0.1", server.port)
        wait_for(lambda: replica.info("replication")["master_link_status"] == "up")
        with (
            FakeSentinel(server.port) as sentinel,
            Penstock(sentinel_url(sentinel)) as ps,
            redis.Redis.from_url(server.url) as old,
        ):
            queue = ps.queue("q")
            jobs = [queue.enqueue(number, result_ttl=60) for number in range(2)]
            waits = [spawn(lambda job=job: outcome(queue, job.id)) for job in jobs]  # type: ignore[misc]  # a default
            awaited(old, 2)
            reach_replicas(old, 1)
            replica.execute_command("REPLICAOF", "NO", "ONE")
            sentinel.moves(new.port)
            server.kill()
            with Penstock(new.url) as ours:
                finish(ours.queue("q"))
                finish(ours.queue("q"))
            assert [wait.result() for wait in waits] == [None, None]


async def test_a_failover_while_a_task_waits(server: EmbeddedServer, make_server: Server) -> None:
    """A task that waits for a result finds the new primary after a failover."""
    new = make_server(tcp=True)
    with redis.Redis.from_url(new.url) as replica:
        replica.execute_command("REPLICAOF", "127.0.0.1", server.port)
        await await_for(lambda: replica.info("replication")["master_link_status"] == "up")
        with FakeSentinel(server.port) as sentinel, redis.Redis.from_url(server.url) as old:
            async with AsyncPenstock(sentinel_url(sentinel)) as ps:
                queue = ps.queue("q")
                job = await queue.enqueue(1, result_ttl=60)
                waiting = aspawn(queue.result, job.id, timeout=20)
                await await_for(lambda: old.info("clients")["blocked_clients"] >= 1)
                reach_replicas(old, 1)
                replica.execute_command("REPLICAOF", "NO", "ONE")
                sentinel.moves(new.port)
                server.kill()
                with Penstock(new.url) as ours:
                    finish(ours.queue("q"))
                assert await waiting.result() is None


def test_a_server_that_restarts(server: EmbeddedServer, q: Queue, raw: redis.Redis) -> None:
    """With its data the wait goes on; without data it ends, as nothing is kept."""
    jobs = [q.enqueue(number, result_ttl=60) for number in range(2)]
    with Penstock(server.url, retry_for=20) as theirs:
        waits = [spawn(lambda job=job: outcome(theirs.queue("q"), job.id)) for job in jobs]  # type: ignore[misc]  # a default
        awaited(raw, 2)
        server.kill()
        server.restart()
        finish(q)
        assert waits[0].result() is None
        awaited(raw)
        raw.flushall()
        assert waits[1].result() is ResultGone


def test_a_reply_of_the_look_that_is_lost(
    server: EmbeddedServer, q: Queue, raw: redis.Redis
) -> None:
    """The look is repeated, and the wait is told of the end."""
    job = q.enqueue(1, result_ttl=60)
    with Proxy(server.address) as proxy, Penstock(proxy.url) as theirs:
        queue = theirs.queue("q")
        assert outcome(queue, job.id, 0) is ResultTimeout  # connected, and the script is loaded
        fault = proxy.eat_reply(after=script("results").sha.encode())
        waiting = spawn(lambda: outcome(queue, job.id))
        fault.wait()
        awaited(raw)
        finish(q)
        assert waiting.result() is None


def test_a_reader_that_is_cut_off(
    server: EmbeddedServer, q: Queue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all connections are cut again and again, each wait ends with its job."""
    monkeypatch.setattr(looking, "LOOK_AGAIN", 600.0)  # only the failure makes it look again
    jobs = [q.enqueue(number, result_ttl=60) for number in range(3)]
    with Proxy(server.address) as proxy, Penstock(proxy.url) as theirs:
        queue = theirs.queue("q")
        waits = [spawn(lambda job=job: outcome(queue, job.id)) for job in jobs]  # type: ignore[misc]  # a default
        for left in (3, 2, 1):
            awaited(raw, left)
            proxy.cut()
            finish(q)
        assert [wait.result() for wait in waits] == [None] * 3


def test_an_end_that_was_trimmed(
    server: EmbeddedServer, q: Queue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that reads too late to find the entry of its job looks again after some seconds."""
    monkeypatch.setattr(looking, "LOOK_AGAIN", 1.0)
    began, go = threading.Event(), threading.Event()
    read: Any = finished.EndReader._arm

    def late(reader: Any) -> None:
        began.set()
        assert go.wait(20)
        read(reader)

    monkeypatch.setattr(finished.EndReader, "_arm", late)
    job = q.enqueue(1, result_ttl=60)
    with Penstock(server.url) as theirs:
        waiting = spawn(lambda: outcome(theirs.queue("q"), job.id))
        assert began.wait(20)
        finish(q)
        raw.xtrim("penstock:{q}:finished", 0, approximate=False)
        go.set()
        assert waiting.result() is None


def test_a_process_that_forks_while_it_waits(server: EmbeddedServer, q: Queue) -> None:
    """Parent and child each wait for their own job, on connections of their own."""
    mine, theirs = (q.enqueue(number, result_ttl=60) for number in range(2))
    with Penstock(server.url) as ps, redis.Redis.from_url(server.url) as raw:
        queue = ps.queue("q")
        waiting = spawn(lambda: outcome(queue, mine.id))
        awaited(raw)
        child = os.fork()
        if child == 0:
            os._exit(0 if queue.result(theirs.id, timeout=20) is None else 1)
        awaited(raw, 2)
        wait_for(lambda: raw.info("clients")["blocked_clients"] == 2)
        q.ack([theirs.id])
        assert os.waitpid(child, 0)[1] == 0
        finish(q)
        assert waiting.result() is None
