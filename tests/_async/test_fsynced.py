"""Waiting for the disk: enqueue and acknowledge on servers that report it reliably."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fakeredis
import pytest
import redis

from penstock import (
    AckNotReplicated,
    AsyncPenstock,
    AsyncQueue,
    BadArgument,
    CannotSync,
    DeliveryNotReplicated,
    Durable,
    IncompleteEnqueue,
    NotReplicated,
    Outcome,
)
from penstock.core.nodes import servers
from penstock.core.nodes.servers import ServerFacts, Syncing
from penstock.embedded import EmbeddedServer, ServerBinary
from tests.support.binaries import chosen_binaries
from tests.support.keyspace import Raw, load_scripts
from tests.support.replicated import reach_replicas
from tests.support.twins import wait_for
from tests.support.waitaof import WaitAof

Server = Callable[..., EmbeddedServer]
BINARIES = chosen_binaries()
ALWAYS = ("--appendfsync", "always")
EVERYSEC = ("--appendfsync", "everysec")
FOLLOWED = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "60")

on_each = pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: str(binary.name))


def tells(binary: ServerBinary) -> bool:
    """Tell if this server's WAITAOF is reliable."""
    return binary.product() == "redis" and int(binary.version().split(".")[0]) >= 8


def calls(raw: Raw, *names: str) -> list[int]:
    """Count how often these commands have run."""
    stats = raw.info("commandstats")
    return [int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in names]


async def refused(q: AsyncQueue, raw: Raw, reason: str, replicas: int = 0) -> None:
    """Check that each call that asks for the disk is refused with this reason."""
    (job,) = await one_held(q)
    before = calls(raw, "evalsha")
    with pytest.raises(CannotSync, match=reason):
        await q.enqueue("x", durable=Durable(replicas, fsynced=True))
    with pytest.raises(CannotSync, match=reason):
        await q.enqueue_many(["x", "y"], durable=Durable(replicas, fsynced=True))
    with pytest.raises(CannotSync, match=reason):
        await q.ack([job], durable=Durable(replicas, fsynced=True))
    with pytest.raises(CannotSync, match=reason):
        await job.ack(durable=Durable(replicas, fsynced=True))
    assert not job.settled
    assert calls(raw, "evalsha") == before
    assert await job.ack()


async def one_held(q: AsyncQueue) -> list[Any]:
    """Reserve a job with a lease that does not end during the test."""
    await q.enqueue("held", lease=600)
    return await q.reserve(block=0)


@pytest.mark.parametrize("fsynced", [None, 1, "yes", 0])
async def test_fsynced_must_be_a_bool(fsynced: Any) -> None:
    """`fsynced` must be True or False; the check needs no connection."""
    q = AsyncPenstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="fsynced"):
        await q.enqueue("x", durable=Durable(fsynced=fsynced))
    with pytest.raises(BadArgument, match="fsynced"):
        await q.enqueue_many(["x"], durable=Durable(fsynced=fsynced))
    with pytest.raises(BadArgument, match="fsynced"):
        await q.ack(["x"], durable=Durable(fsynced=fsynced))


@on_each
async def test_appendfsync_always(make_server: Server, binary: ServerBinary) -> None:
    """With `appendfsync always` enqueue and ack, one or many, need one round trip each."""
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    asked = "waitaof" if tells(binary) else "config|get"
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        asked = asked if raw.info("server")["redis_version"] >= "7" else "config"
        load_scripts(raw)
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            await q.configure(lease=600)
            first = await q.enqueue("first", durable=Durable(fsynced=True))
            assert (first.replicas, first.state) == (0, "ready")
            before = calls(raw, "evalsha", asked)
            many = await q.enqueue_many(range(1500), durable=Durable(fsynced=True))
            assert len(many) == 1500
            jobs = [*await q.reserve(1000, block=0), *await q.reserve(501, block=0)]
            assert await jobs[0].ack(durable=Durable(fsynced=True))
            settled = await q.ack(jobs[1:], durable=Durable(fsynced=True, timeout=20))
            assert (settled.done, settled.replicas) == (1500, 0)
            after = calls(raw, "evalsha", asked)
            assert after[0] - before[0] == 2 + 2 + 1 + 2
            assert after[1] - before[1] == 2 + 1 + 2
            stats = await q.stats()
            assert (stats.enqueued, stats.acked) == (1501, 1501)


@on_each
async def test_appendfsync_everysec(make_server: Server, binary: ServerBinary) -> None:
    """With `everysec`, a reliable WAITAOF is waited for; other servers are refused
    with a reason.
    """
    server = make_server(binary=binary, appendonly=True, args=EVERYSEC)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            if not tells(binary):
                return await refused(q, raw, "appendfsync is everysec, not always, and it")
            assert (await q.enqueue("x", durable=Durable(fsynced=True))).state == "ready"
            (job,) = await q.reserve(block=0)
            assert await job.ack(durable=Durable(fsynced=True))
    return None


@on_each
async def test_without_an_append_only_file(make_server: Server, binary: ServerBinary) -> None:
    """Without an append-only file the call is refused."""
    server = make_server(binary=binary)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        async with AsyncPenstock(server.url) as client:
            await refused(client.queue("q"), raw, "has no append-only file")


async def test_without_info() -> None:
    """A server without INFO, such as fakeredis, is refused."""
    async with AsyncPenstock(fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())) as client:
        q = client.queue("q")
        with pytest.raises(CannotSync, match="INFO"):
            await q.enqueue("x", durable=Durable(fsynced=True))
        assert await q.peek() == []


on_one = pytest.mark.parametrize("binary", BINARIES[:1], ids=lambda binary: str(binary.name))


@pytest.fixture
def disbelieved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat no server's WAITAOF as reliable, so that only the settings count."""
    monkeypatch.setattr(servers, "REDIS_WITH_FSYNC_COUNTS", (1000, 0))


@on_one
@pytest.mark.usefixtures("disbelieved")
async def test_syncs_that_a_rewrite_suspends(make_server: Server, binary: ServerBinary) -> None:
    """`always` is not enough if a rewrite suspends the syncs."""
    args = (*ALWAYS, "--no-appendfsync-on-rewrite", "yes")
    server = make_server(binary=binary, appendonly=True, args=args)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        async with AsyncPenstock(server.url) as client:
            await refused(client.queue("q"), raw, "no-appendfsync-on-rewrite suspends")


@on_one
@pytest.mark.usefixtures("disbelieved")
async def test_without_permission_to_read_the_settings(
    make_server: Server, binary: ServerBinary
) -> None:
    """Without permission to read the settings the call is refused."""
    server = make_server(binary=binary, tcp=True, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        raw.execute_command("ACL SETUSER limited on >secret ~* &* +@all -config")
        host, port = server.address
        async with AsyncPenstock(f"redis://limited:secret@{host}:{port}/0") as client:
            await refused(client.queue("q"), raw, "CONFIG GET is forbidden")


@on_one
@pytest.mark.usefixtures("disbelieved")
async def test_unknown_disks_of_replicas(make_server: Server, binary: ServerBinary) -> None:
    """A replica's disk can't be checked: calls and settings that ask for it are refused."""
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            await refused(q, raw, "can't tell what its replicas have on disk", replicas=1)
            await q.configure(replicas=1)
            before = calls(raw, "evalsha")
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                await q.enqueue("x", durable=Durable(fsynced=True))
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            for _ in range(2):
                with pytest.raises(CannotSync, match="what its replicas have on disk"):
                    await q.enqueue("x", durable=Durable(fsynced=True))
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                await q.enqueue("x", durable=Durable(fsynced=True), dedup_id="x")
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                await q.enqueue_many(["x", "y"], durable=Durable(fsynced=True))
            assert calls(raw, "evalsha") == before
            assert (await q.enqueue("x", durable=Durable(0, fsynced=True))).state == "ready"
            raw.hdel("penstock:{q}:meta", "replicas")
            assert (await q.enqueue("x", durable=Durable(fsynced=True))).state == "ready"


@on_one
@pytest.mark.usefixtures("disbelieved")
async def test_a_number_of_replicas_that_changes(make_server: Server, binary: ServerBinary) -> None:
    """When the stored number of replicas changes, the reply tells the client, which
    withdraws once.
    """
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            await q.enqueue("x", durable=Durable(fsynced=True))
            asked = calls(raw, "hget")
            await q.enqueue("x", durable=Durable(fsynced=True))
            assert calls(raw, "hget") == asked  # what is known is not asked for
            raw.hset("penstock:{q}:meta", mapping={"replicas": 1, "uses": "l"})
            with pytest.raises(NotReplicated, match="is on the server's disk, 0 of 1") as caught:
                await q.enqueue("x", durable=Durable(fsynced=True))
            assert (caught.value.fsynced, caught.value.withdrawn) == (True, True)
            before = calls(raw, "evalsha")
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                await q.enqueue("x", durable=Durable(fsynced=True))
            assert calls(raw, "evalsha") == before
            await q.configure(replicas=0)
            assert (await q.enqueue("x", durable=Durable(fsynced=True))).state == "ready"


@on_one
@pytest.mark.usefixtures("disbelieved")
async def test_a_setting_that_changes(make_server: Server, binary: ServerBinary) -> None:
    """Each call checks the settings again: a change during a call withdraws the
    job; then calls fail.
    """
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            jobs = [*await one_held(q), *await one_held(q)]
            await q.enqueue("x", durable=Durable(fsynced=True))
            raw.config_set("appendfsync", "everysec")
            with pytest.raises(NotReplicated, match="not on the server's disk in") as caught:
                await q.enqueue("y", durable=Durable(fsynced=True))
            assert (caught.value.fsynced, caught.value.withdrawn) == (False, True)
            await refused(q, raw, "everysec")
            raw.config_set("appendfsync", "always")
            assert await jobs[0].ack(durable=Durable(fsynced=True))
            raw.config_set("appendfsync", "no")
            with pytest.raises(AckNotReplicated, match="not on the server's disk") as lost:
                await jobs[1].ack(durable=Durable(fsynced=True))
            assert (lost.value.fsynced, list(lost.value.outcomes)) == (False, [Outcome.DONE])
            assert "y" not in [view.body for view in await q.peek()]


@on_one
@pytest.mark.usefixtures("disbelieved")
async def test_a_file_before_its_first_rewrite(make_server: Server, binary: ServerBinary) -> None:
    """An append-only file counts only after its first rewrite; before that a crash loses it."""
    server = make_server(binary=binary, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        async with AsyncPenstock(server.url) as client:
            q = client.queue("q")
            raw.mset({f"filler {i}": i for i in range(200)})
            raw.config_set("rdb-key-save-delay", 1_000_000)
            raw.config_set("appendonly", "yes")
            await refused(q, raw, "still creating its append-only file")
            raw.config_set("rdb-key-save-delay", 0)
            raw.config_set("appendonly", "no")  # ends the slow one
            raw.config_set("appendonly", "yes")
            wait_for(lambda: not raw.info("persistence")["aof_rewrite_in_progress"])
            assert (await q.enqueue("x", durable=Durable(fsynced=True))).state == "ready"


# -- WAITAOF ---------------------------------------------------------------------------------------

KNOWING = [
    b
    for b in BINARIES
    if b.product() == "valkey" or tuple(map(int, b.version().split(".")[:2])) >= (7, 2)
]
"""Servers with the command. With `always` it is reliable on all of them."""
on_a_knowing = pytest.mark.parametrize(
    "binary", KNOWING[:1] or BINARIES[:1], ids=lambda binary: str(binary.name)
)


@contextmanager
def knowing(server: EmbeddedServer, binary: ServerBinary, keeping: int = 0) -> Iterator[str]:
    """Return the URL of a server with WAITAOF; `keeping` of its replicas have a file.

    If no installed server has WAITAOF, a proxy answers it.
    """
    if binary in KNOWING:
        yield server.url
        return
    with WaitAof(server, keeping) as door:
        yield door.url


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every server's WAITAOF as reliable."""
    monkeypatch.setattr(ServerFacts, "syncing", lambda *_: Syncing.WAITAOF)


@on_one
@pytest.mark.usefixtures("believed")
async def test_a_server_that_does_not_know_the_command(
    make_server: Server, binary: ServerBinary
) -> None:
    """A server without WAITAOF confirms nothing, and is not asked again for a while."""
    hidden = ("--rename-command", "WAITAOF", "") if binary in KNOWING else ()
    server = make_server(binary=binary, appendonly=True, args=(*ALWAYS, *hidden))
    async with AsyncPenstock(server.url) as client:
        with pytest.raises(NotReplicated) as caught:
            await client.queue("q").enqueue("x", durable=Durable(fsynced=True, timeout=3600))
        assert (caught.value.fsynced, caught.value.withdrawn) == (False, True)


@on_a_knowing
@pytest.mark.usefixtures("believed")
async def test_disks_of_replicas(make_server: Server, binary: ServerBinary) -> None:
    """One replica has a file and confirms; one has none and never confirms."""
    options = {"binary": binary, "tcp": True, "args": (*ALWAYS, *FOLLOWED)}
    primary, keeps = (
        make_server(appendonly=True, **options),
        make_server(appendonly=True, **options),
    )
    forgets = make_server(**options)
    with (
        redis.Redis.from_url(primary.url, protocol=2) as raw,
        redis.Redis.from_url(keeps.url, protocol=2) as copy,
        redis.Redis.from_url(forgets.url, protocol=2) as other,
    ):
        for replica in (copy, other):
            replica.replicaof(*map(str, primary.address))
        reach_replicas(raw, 2)
        wait_for(lambda: not copy.info("persistence")["aof_rewrite_in_progress"])
        with knowing(primary, binary, keeping=1) as url:
            await confirmed_by_one(url, copy)


async def confirmed_by_one(url: str, copy: Raw) -> None:
    """Two replicas, one of them with a file."""
    async with AsyncPenstock(url) as client:
        q = client.queue("q")
        assert (await q.enqueue("x", lease=600, durable=Durable(1, fsynced=True))).replicas == 1
        (job,) = await q.reserve(block=0)
        with pytest.raises(NotReplicated, match="on the server's disk, 1 of 2") as caught:
            await q.enqueue("y", durable=Durable(2, fsynced=True, timeout=2))
        error = caught.value
        assert (error.wanted, error.got, error.fsynced, error.withdrawn) == (2, 1, True, True)
        with pytest.raises(AckNotReplicated) as lost:
            await job.ack(durable=Durable(2, fsynced=True, timeout=2))
        assert (lost.value.got, lost.value.fsynced) == (1, True)
        await q.configure(replicas=1)
        many = await q.enqueue_many(range(1200), durable=Durable(fsynced=True))
        assert {done.replicas for done in many} == {1}
        assert copy.xlen("penstock:{q}:ready") == 1200
        once = client.queue("once")
        await once.enqueue_many(["a", "b"], lease=0)
        assert len(await once.reserve(durable=Durable(1, fsynced=True))) == 1
        with pytest.raises(DeliveryNotReplicated, match=r"disk, 1 of 2 .* no job was taken"):
            await once.reserve(durable=Durable(2, fsynced=True, timeout=0.3))
        assert (await once.stats()).ready == 1


@on_a_knowing
@pytest.mark.usefixtures("believed")
async def test_a_file_that_is_switched_off(make_server: Server, binary: ServerBinary) -> None:
    """When the file is switched off WAITAOF fails: nothing is confirmed, and the
    call does not wait.
    """
    server = make_server(binary=binary, tcp=True, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw, knowing(server, binary) as url:
        async with AsyncPenstock(url) as client:
            q = client.queue("q")

            def bodies() -> Any:
                yield from range(1000)
                raw.config_set("appendonly", "no")
                yield from range(500)

            with pytest.raises(IncompleteEnqueue) as caught:
                await q.enqueue_many(bodies(), durable=Durable(fsynced=True, timeout=3600))
            assert isinstance(caught.value.__cause__, NotReplicated)
            assert caught.value.__cause__.fsynced is False
            assert [one.replicas for one in caught.value.results] == [0] * 1000
            assert (await q.stats()).ready == 1000
            raw.script_flush()  # the answer must be found behind a NOSCRIPT error too
            with pytest.raises(NotReplicated):
                await q.enqueue("x", durable=Durable(fsynced=True, timeout=3600))
            assert (await q.stats()).ready == 1000
