"""Jobs delivered at most once whose delivery replicas or the disk must confirm."""

from __future__ import annotations

import asyncio  # async only
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis

from penstock import (
    AsyncPenstock,
    AsyncQueue,
    BadArgument,
    CannotSync,
    DeliveryNotReplicated,
    Durable,
)
from penstock.client._async.transport import confirming
from penstock.embedded import EmbeddedServer
from penstock.worker import AsyncWorker, concerns
from tests.support.keyspace import load_scripts
from tests.support.replicated import Replicated, replicated
from tests.support.twins import aspawn, await_for

Server = Callable[..., EmbeddedServer]
BOTH = Durable(2, timeout=15)
SHORT = Durable(2, timeout=0.1)


@pytest.fixture
def trio(make_server: Server) -> Iterator[Replicated]:
    """A primary and two replicas that follow it."""
    with replicated(make_server) as made:
        yield made


@pytest.fixture
async def tq(trio: Replicated) -> AsyncIterator[AsyncQueue]:
    """A queue on the primary whose leases do not end during a test."""
    async with AsyncPenstock(trio.url, owner="tester") as client:
        queue = client.queue("q")
        await queue.configure(lease=600)
        yield queue


@pytest.mark.parametrize("durable", [1, "1", Durable(), Durable(timeout=3)])
async def test_bad_confirmations(durable: Any) -> None:
    """A value that confirms nothing is refused without a connection."""
    client = AsyncPenstock("redis://127.0.0.1:1", retry_for=0)
    q = client.queue("q")
    with pytest.raises(BadArgument, match="durable"):
        await q.reserve(durable=durable)
    with pytest.raises(BadArgument, match="durable"):
        await client.reserve(["q"], durable=durable)
    with pytest.raises(BadArgument, match="at_most_once"):
        AsyncWorker(client, "q", print, at_most_once=durable)


async def test_only_jobs_with_lease_0_wait(trio: Replicated, tq: AsyncQueue) -> None:
    """A reserve without such a job sends no WAIT, but for the first; one with it sends it then."""
    await tq.enqueue("usual")
    assert await tq.reserve(block=0, durable=BOTH)
    await tq.enqueue("usual")
    before = trio.calls()[1]
    [job] = await tq.reserve(durable=BOTH)
    assert await tq.reserve(block=0, durable=BOTH) == []
    assert trio.calls()[1] == before
    await tq.enqueue_many(["once"] * 3, lease=0)
    assert [one.body for one in await tq.reserve(3, durable=BOTH)] == ["once"] * 3
    assert trio.calls()[1] > before
    assert await job.ack()


async def test_the_replicas_are_counted_now_and_then(
    trio: Replicated, tq: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that finds no job with lease 0 does not ask for the replicas at each call."""
    monkeypatch.setattr(confirming, "REPLICA_COUNT_AGE", 0.1)

    def asked() -> int:
        return int(trio.raw.info("commandstats")["cmdstat_info"]["calls"])

    assert await tq.reserve(block=0, durable=BOTH) == []
    start = time.monotonic()
    await await_for(lambda: time.monotonic() > start + 0.1)  # the first answer is old then
    before, start = asked(), time.monotonic()
    for _ in range(30):
        assert await tq.reserve(block=0, durable=BOTH) == []
    assert asked() - before <= 3 + (time.monotonic() - start) / 0.1  # one by this test


async def test_a_waiting_consumer(trio: Replicated, tq: AsyncQueue) -> None:
    """A job that comes during the wait for one is confirmed too, also from several queues."""
    call = aspawn(tq.ops.queue.reserve, 1, block=15, durable=BOTH)
    await await_for(lambda: bool(trio.raw.info("clients")["blocked_clients"]))
    await tq.enqueue("once", lease=0)
    [job] = await call.result()
    assert (job.body, job.at_most_once) == ("once", True)
    async with AsyncPenstock(trio.url) as other:
        await tq.enqueue("twice", lease=0)
        [job] = await other.reserve(["p", "q"], durable=BOTH)
        assert job.body == "twice"


async def test_unconfirmed_deliveries_are_given_up(trio: Replicated, tq: AsyncQueue) -> None:
    """Only the other jobs of the call can be processed. Until the replica follows, none is taken.

    So a replica that hangs costs the jobs of one call.
    """
    assert await tq.reserve(block=0, durable=BOTH) == []
    await tq.enqueue_many(["once", "once"], lease=0)
    await tq.enqueue("usual")
    await tq.enqueue("later", lease=0)
    trio.replicas[0].pause()
    with pytest.raises(DeliveryNotReplicated, match=r"1 of 2 .* 2 jobs with lease=0") as caught:
        await tq.reserve(3, durable=SHORT)
    error = caught.value
    assert (error.wanted, error.got, error.connected, error.withdrawn) == (2, 1, None, False)
    assert error.args == (str(error),)
    assert [job.body for job in error.given_up] == ["once", "once"]
    [job] = error.jobs
    assert (job.body, await job.ack()) == ("usual", True)
    before = trio.calls()[0]
    for _ in range(2):
        with pytest.raises(DeliveryNotReplicated, match="no job was taken") as caught:
            await tq.reserve(3, durable=SHORT)
        assert (caught.value.jobs, caught.value.given_up) == ([], [])
    assert trio.calls()[0] == before
    stats = await tq.stats()
    assert (stats.ready, stats.active) == (1, 2)
    trio.replicas[0].resume()
    [job] = await tq.reserve(3, durable=BOTH)
    assert (job.body, await job.ack()) == ("later", True)


async def test_a_replica_that_is_gone(trio: Replicated, tq: AsyncQueue) -> None:
    """With too few connected replicas no job is taken, whatever the wait; others can take it."""
    await tq.enqueue("once", lease=0)
    trio.cut(0)
    for block in (0, 3600):
        with pytest.raises(DeliveryNotReplicated, match="1 of 2 replicas are connected, no job"):
            await tq.reserve(block=block, durable=Durable(2, timeout=3600))
    with pytest.raises(DeliveryNotReplicated):
        [job.body async for job in tq.consume(durable=BOTH)]
    assert (await tq.stats()).ready == 1
    [job] = await tq.reserve(durable=Durable(1, timeout=15))
    assert job.body == "once"


async def test_consume(trio: Replicated, tq: AsyncQueue) -> None:
    """A loop over jobs confirms each delivery, and acknowledges what its blocks have finished."""
    await tq.enqueue_many(range(5), lease=0)
    seen = []
    async for job in tq.consume(batch=2, block=0, durable=BOTH):
        async with job:
            seen.append(job.body)
    assert seen == [*range(5)]
    stats = await tq.stats()
    assert (stats.active, stats.acked) == (0, 5)


async def test_partitions(trio: Replicated) -> None:
    """The jobs of all partitions come with the error; of one that confirms none is lost."""
    async with AsyncPenstock(trio.url) as client:
        q = client.queue("parted", partitions=3)
        assert await q.reserve(block=0, durable=BOTH) == []
        await q.enqueue_many(range(9), lease=0, key=str)
        trio.replicas[0].pause()
        with pytest.raises(DeliveryNotReplicated) as caught:
            await q.reserve(9, block=0, durable=SHORT)
        given_up = len(caught.value.given_up)
        assert 0 < given_up < 9
        assert caught.value.jobs == []
        trio.replicas[0].resume()
        rest = await q.reserve(9, block=0, durable=BOTH)
        while more := await q.reserve(9, block=0, durable=BOTH):
            rest += more
        assert len(rest) == 9 - given_up


async def test_a_server_that_may_not_be_asked(trio: Replicated, tq: AsyncQueue) -> None:
    """A user without WAIT, or a server without it, gets no jobs that would be given up."""
    trio.raw.execute_command("ACL SETUSER limited on >secret ~* &* +@all -info -wait")
    host, port = trio.primary.address
    await tq.enqueue("once", lease=0)
    async with AsyncPenstock(f"redis://limited:secret@{host}:{port}/0") as client:
        with pytest.raises(DeliveryNotReplicated, match="0 of 1 replicas confirmed, no job"):
            await client.queue("q").reserve(block=0, durable=Durable(1))
    async with AsyncPenstock(fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())) as client:
        with pytest.raises(DeliveryNotReplicated, match="0 of 1 replicas confirmed, no job"):
            await client.queue("q").reserve(block=0, durable=Durable(1))
    assert (await tq.stats()).ready == 1


async def test_several_nodes(trio: Replicated, make_server: Server) -> None:
    """A node whose replicas are gone gives no jobs while others have some; then the call raises."""
    alone = make_server(tcp=True)
    async with AsyncPenstock([trio.url, alone.url]) as client:
        q = client.queue("q")
        for url in (trio.url, alone.url):
            async with AsyncPenstock(url, federation=False) as one:
                await one.queue("q").enqueue_many(range(5), lease=0)
        found = []
        for _ in range(5):
            found += [job.body for job in await q.reserve(durable=BOTH)]
        assert sorted(found) == [*range(5)]
        with pytest.raises(DeliveryNotReplicated, match="0 of 2 replicas are connected"):
            await q.reserve(block=3600, durable=BOTH)
        assert len(await q.reserve(10, block=0)) == 5


# [async only
async def test_a_cancelled_wait(trio: Replicated, tq: AsyncQueue) -> None:
    """If the task is cancelled during the wait, the other jobs of the reply are given back."""
    assert await tq.reserve(block=0, durable=BOTH) == []
    await tq.enqueue("once", lease=0)
    await tq.enqueue("usual")
    trio.replicas[0].pause()
    task = asyncio.ensure_future(tq.reserve(2, durable=Durable(2, timeout=3600)))
    await await_for(lambda: trio.raw.xlen("penstock:{q}:ready") == 0)
    await await_for(lambda: bool(trio.raw.info("clients")["blocked_clients"]))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    trio.replicas[0].resume()
    [job] = await tq.reserve(block=0)
    assert (job.body, job.crashes) == ("usual", 0)


# async only]
async def test_a_worker(trio: Replicated, tq: AsyncQueue, caplog: pytest.LogCaptureFixture) -> None:
    """A worker runs confirmed jobs only, counts the others, and goes on when the replica does."""
    seen: list[Any] = []
    worker = AsyncWorker(trio.url, "q", seen.append, concurrency=2, at_most_once=SHORT)
    assert worker.status().options["at_most_once"] == {
        "replicas": 2,
        "fsynced": False,
        "timeout": 0.1,
    }
    async with worker:
        await tq.enqueue_many(["usual", "more"])
        await await_for(lambda: len(seen) == 2)
        trio.replicas[0].pause()
        await tq.enqueue("lost", lease=0)
        await await_for(lambda: "unconfirmed" in worker.status().stats.counts)
        await tq.enqueue_many(["a", "b", "c"], lease=0)
        await await_for(lambda: "no job was taken" in caplog.text)
        trio.replicas[0].resume()
        await await_for(lambda: len(seen) == 5)
        await await_for(lambda: worker.status().stats.counts.get("done") == 5)
    counts = worker.status().stats.counts
    assert counts == {"done": 5, "unconfirmed": 1}
    assert sorted(job.body for job in seen) == ["a", "b", "c", "more", "usual"]
    assert caplog.text.count("is not run, as a failover could deliver it again") == 1
    assert (await tq.stats()).active == 1


async def test_a_worker_without_replicas(
    trio: Replicated, tq: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that can't have its confirmations takes no job; a burst raises the error."""
    monkeypatch.setattr(concerns, "OUTAGE_SECONDS", 0.0)
    await tq.enqueue("once", lease=0)
    trio.cut(0)
    worker = AsyncWorker(trio.url, "q", print, burst=True, at_most_once=BOTH)
    with pytest.raises(DeliveryNotReplicated, match="1 of 2 replicas are connected"):
        await worker.run(signals=False)
    worker = AsyncWorker(trio.url, "q", print, burst=True, at_most_once=Durable(fsynced=True))
    with pytest.raises(CannotSync):
        await worker.run(signals=False)
    assert (await tq.stats()).ready == 1


async def test_a_lost_tail_of_the_file(make_server: Server) -> None:
    """A power cut that loses the reserve delivers the job again, unless the disk has confirmed it.

    With `everysec` such a job is not handed out; with `always` it is on disk.
    """
    server = make_server(appendonly=True, args=("--auto-aof-rewrite-percentage", "0"))
    on_disk = Durable(fsynced=True)
    async with AsyncPenstock(server.url) as client:
        q = client.queue("q")
        await q.enqueue("once", lease=0)
        path = _log_of(server)
        kept = path.read_bytes()
        assert [job.body for job in await q.reserve(block=0)] == ["once"]
        assert await q.reserve(block=0) == []
        server.kill()
        path.write_bytes(kept)
        server.restart()
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("appendfsync", "everysec")
            if not _tells_syncs(server):
                with pytest.raises(CannotSync, match="everysec"):
                    await q.reserve(block=0, durable=on_disk)
            raw.config_set("appendfsync", "always")
        assert [job.body for job in await q.reserve(block=0, durable=on_disk)] == ["once"]
        server.kill()
        server.restart()
        assert await q.reserve(block=0) == []


def _log_of(server: EmbeddedServer) -> Path:
    home = Path(server.directory)
    found = [*home.glob("appendonlydir/*.incr.aof"), *home.glob("appendonly.aof")]
    return found[0]


def _tells_syncs(server: EmbeddedServer) -> bool:
    binary = server.binary
    return binary.product() == "redis" and int(binary.version().split(".")[0]) >= 8


async def test_a_setting_that_changes(make_server: Server) -> None:
    """If the disk stops to confirm, what was delivered meanwhile is given up."""
    server = make_server(appendonly=True, args=("--appendfsync", "always"))
    with redis.Redis.from_url(server.url) as raw:
        load_scripts(raw)
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            await q.enqueue_many(["a", "b"], lease=0)
            assert len(await q.reserve(durable=Durable(fsynced=True))) == 1
            raw.config_set("appendonly", "no")
            with pytest.raises(DeliveryNotReplicated, match="not on the server's disk") as caught:
                await q.reserve(durable=Durable(fsynced=True, timeout=0.1))
            assert caught.value.fsynced is False
            assert [job.body for job in caught.value.given_up] == ["b"]
