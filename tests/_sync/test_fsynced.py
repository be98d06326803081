# From tests/_async/test_fsynced.py by tools/unasync.py; do not edit.
"""Enqueue, acknowledge, and wait for the disk: on servers that tell the truth of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fakeredis
import pytest
import redis

from penstock import (
    AckNotReplicated,
    BadArgument,
    CannotSync,
    Durable,
    IncompleteEnqueue,
    NotReplicated,
    Outcome,
    Penstock,
    Queue,
)
from penstock.core import servers
from penstock.core.servers import ServerFacts, Syncing
from penstock.embedded import EmbeddedServer, ServerBinary
from tests.support.binaries import chosen_binaries
from tests.support.keyspace import Raw, load_scripts
from tests.support.twins import wait_for
from tests.support.waitaof import WaitAof

Server = Callable[..., EmbeddedServer]
BINARIES = chosen_binaries()
ALWAYS = ("--appendfsync", "always")
EVERYSEC = ("--appendfsync", "everysec")
FOLLOWED = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "60")

on_each = pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: str(binary.name))


def tells(binary: ServerBinary) -> bool:
    """Whether this server's WAITAOF can be believed."""
    return binary.product() == "redis" and int(binary.version().split(".")[0]) >= 8


def calls(raw: Raw, *names: str) -> list[int]:
    """How often these commands have been run."""
    stats = raw.info("commandstats")
    return [int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in names]


def refused(q: Queue, raw: Raw, reason: str, replicas: int = 0) -> None:
    """No call that is to be on disk is made, and each says why."""
    (job,) = one_held(q)
    before = calls(raw, "evalsha")
    with pytest.raises(CannotSync, match=reason):
        q.enqueue("x", durable=Durable(replicas, fsynced=True))
    with pytest.raises(CannotSync, match=reason):
        q.enqueue_many(["x", "y"], durable=Durable(replicas, fsynced=True))
    with pytest.raises(CannotSync, match=reason):
        q.ack([job], durable=Durable(replicas, fsynced=True))
    with pytest.raises(CannotSync, match=reason):
        job.ack(durable=Durable(replicas, fsynced=True))
    assert not job.settled
    assert calls(raw, "evalsha") == before
    assert job.ack()


def one_held(q: Queue) -> list[Any]:
    """A job under a lease that does not end."""
    q.enqueue("held", lease=600)
    return q.reserve(block=0)


@pytest.mark.parametrize("fsynced", [None, 1, "yes", 0])
def test_what_is_no_answer(fsynced: Any) -> None:
    """Yes or no; nothing is sent, as this client would not reach anybody."""
    q = Penstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="fsynced"):
        q.enqueue("x", durable=Durable(fsynced=fsynced))
    with pytest.raises(BadArgument, match="fsynced"):
        q.enqueue_many(["x"], durable=Durable(fsynced=fsynced))
    with pytest.raises(BadArgument, match="fsynced"):
        q.ack(["x"], durable=Durable(fsynced=fsynced))


@on_each
def test_a_file_that_is_synced_always(make_server: Server, binary: ServerBinary) -> None:
    """Enqueue and ack, one or many, in one trip each."""
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    asked = "waitaof" if tells(binary) else "config|get"
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        asked = asked if raw.info("server")["redis_version"] >= "7" else "config"
        load_scripts(raw)
        with Penstock(server.url) as client:
            q = client.queue("q")
            first = q.enqueue("first", lease=600, durable=Durable(fsynced=True))
            assert (first.replicas, first.state) == (0, "ready")
            before = calls(raw, "evalsha", asked)
            many = q.enqueue_many(range(1500), lease=600, durable=Durable(fsynced=True))
            assert len(many) == 1500
            jobs = [*q.reserve(1000, block=0), *q.reserve(501, block=0)]
            assert jobs[0].ack(durable=Durable(fsynced=True))
            settled = q.ack(jobs[1:], durable=Durable(fsynced=True, timeout=20))
            assert (settled.done, settled.replicas) == (1500, 0)
            after = calls(raw, "evalsha", asked)
            assert after[0] - before[0] == 2 + 2 + 1 + 2
            assert after[1] - before[1] == 2 + 1 + 2
            stats = q.stats()
            assert (stats.enqueued, stats.acked) == (1501, 1501)


@on_each
def test_a_file_that_is_synced_every_second(make_server: Server, binary: ServerBinary) -> None:
    """Where WAITAOF can be believed it is waited for; all others are refused, and say why."""
    server = make_server(binary=binary, appendonly=True, args=EVERYSEC)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with Penstock(server.url) as client:
            q = client.queue("q")
            if not tells(binary):
                return refused(q, raw, "appendfsync is everysec, not always, and it")
            assert q.enqueue("x", durable=Durable(fsynced=True)).state == "ready"
            (job,) = q.reserve(block=0)
            assert job.ack(durable=Durable(fsynced=True))
    return None


@on_each
def test_without_a_file(make_server: Server, binary: ServerBinary) -> None:
    """Nothing is ever on disk."""
    server = make_server(binary=binary)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with Penstock(server.url) as client:
            refused(client.queue("q"), raw, "has no append-only file")


def test_without_a_server_that_says_what_it_is() -> None:
    """Such as fakeredis, which has no INFO."""
    with Penstock(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as client:
        q = client.queue("q")
        with pytest.raises(CannotSync, match="INFO"):
            q.enqueue("x", durable=Durable(fsynced=True))
        assert q.peek() == []


on_one = pytest.mark.parametrize("binary", BINARIES[:1], ids=lambda binary: str(binary.name))


@pytest.fixture
def disbelieved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server's WAITAOF is used: the proof are the settings."""
    monkeypatch.setattr(servers, "TELLS_SYNCS", (1000, 0))


@on_one
@pytest.mark.usefixtures("disbelieved")
def test_syncs_that_a_rewrite_suspends(make_server: Server, binary: ServerBinary) -> None:
    """`always` is not always then."""
    args = (*ALWAYS, "--no-appendfsync-on-rewrite", "yes")
    server = make_server(binary=binary, appendonly=True, args=args)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with Penstock(server.url) as client:
            refused(client.queue("q"), raw, "no-appendfsync-on-rewrite suspends")


@on_one
@pytest.mark.usefixtures("disbelieved")
def test_settings_that_may_not_be_read(make_server: Server, binary: ServerBinary) -> None:
    """What can't be told is not claimed."""
    server = make_server(binary=binary, tcp=True, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        raw.execute_command("ACL SETUSER limited on >secret ~* &* +@all -config")
        host, port = server.address
        with Penstock(f"redis://limited:secret@{host}:{port}/0") as client:
            refused(client.queue("q"), raw, "CONFIG GET is forbidden")


@on_one
@pytest.mark.usefixtures("disbelieved")
def test_disks_of_replicas_that_nobody_knows(make_server: Server, binary: ServerBinary) -> None:
    """Asked for, or by the queue's setting: refused as soon as that is known."""
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with Penstock(server.url) as client:
            q = client.queue("q")
            refused(q, raw, "can't tell what its replicas have on disk", replicas=1)
            q.configure(replicas=1)
            before = calls(raw, "evalsha")
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                q.enqueue("x", durable=Durable(fsynced=True))
        with Penstock(server.url) as client:
            q = client.queue("q")
            for _ in range(2):
                with pytest.raises(CannotSync, match="what its replicas have on disk"):
                    q.enqueue("x", durable=Durable(fsynced=True))
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                q.enqueue("x", durable=Durable(fsynced=True), dedup_id="x")
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                q.enqueue_many(["x", "y"], durable=Durable(fsynced=True))
            assert calls(raw, "evalsha") == before
            assert q.enqueue("x", durable=Durable(0, fsynced=True)).state == "ready"
            raw.hdel("penstock:{q}:meta", "replicas")
            assert q.enqueue("x", durable=Durable(fsynced=True)).state == "ready"


@on_one
@pytest.mark.usefixtures("disbelieved")
def test_a_number_of_replicas_that_changes(make_server: Server, binary: ServerBinary) -> None:
    """A client that has seen another one learns of it by the reply: once it takes its job back."""
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with Penstock(server.url) as client:
            q = client.queue("q")
            q.enqueue("x", durable=Durable(fsynced=True))
            asked = calls(raw, "hget")
            q.enqueue("x", durable=Durable(fsynced=True))
            assert calls(raw, "hget") == asked  # what is known is not asked for
            raw.hset("penstock:{q}:meta", "replicas", 1)
            with pytest.raises(NotReplicated, match="is on the server's disk, 0 of 1") as caught:
                q.enqueue("x", durable=Durable(fsynced=True))
            assert (caught.value.fsynced, caught.value.withdrawn) == (True, True)
            before = calls(raw, "evalsha")
            with pytest.raises(CannotSync, match="what its replicas have on disk"):
                q.enqueue("x", durable=Durable(fsynced=True))
            assert calls(raw, "evalsha") == before
            q.configure(replicas=0)
            assert q.enqueue("x", durable=Durable(fsynced=True)).state == "ready"


@on_one
@pytest.mark.usefixtures("disbelieved")
def test_a_setting_that_changes(make_server: Server, binary: ServerBinary) -> None:
    """Each call asks anew: the job is taken back, the ack is told of; then it is refused."""
    server = make_server(binary=binary, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with Penstock(server.url) as client:
            q = client.queue("q")
            jobs = [*one_held(q), *one_held(q)]
            q.enqueue("x", durable=Durable(fsynced=True))
            raw.config_set("appendfsync", "everysec")
            with pytest.raises(NotReplicated, match="not on the server's disk in") as caught:
                q.enqueue("y", durable=Durable(fsynced=True))
            assert (caught.value.fsynced, caught.value.withdrawn) == (False, True)
            refused(q, raw, "everysec")
            raw.config_set("appendfsync", "always")
            assert jobs[0].ack(durable=Durable(fsynced=True))
            raw.config_set("appendfsync", "no")
            with pytest.raises(AckNotReplicated, match="not on the server's disk") as lost:
                jobs[1].ack(durable=Durable(fsynced=True))
            assert (lost.value.fsynced, list(lost.value.outcomes)) == (False, [Outcome.DONE])
            assert "y" not in [view.body for view in q.peek()]


@on_one
@pytest.mark.usefixtures("disbelieved")
def test_a_file_that_is_just_begun(make_server: Server, binary: ServerBinary) -> None:
    """It is none before its first rewrite has ended: nothing of it would outlive a crash."""
    server = make_server(binary=binary, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw:
        with Penstock(server.url) as client:
            q = client.queue("q")
            raw.mset({f"filler {i}": i for i in range(200)})
            raw.config_set("rdb-key-save-delay", 1_000_000)
            raw.config_set("appendonly", "yes")
            refused(q, raw, "still creating its append-only file")
            raw.config_set("rdb-key-save-delay", 0)
            raw.config_set("appendonly", "no")  # ends the slow one
            raw.config_set("appendonly", "yes")
            wait_for(lambda: not raw.info("persistence")["aof_rewrite_in_progress"])
            assert q.enqueue("x", durable=Durable(fsynced=True)).state == "ready"


# -- WAITAOF ---------------------------------------------------------------------------------------

KNOWING = [
    b
    for b in BINARIES
    if b.product() == "valkey" or tuple(map(int, b.version().split(".")[:2])) >= (7, 2)
]
"""Servers that have the command. With `always` all of them tell the truth by it."""
on_a_knowing = pytest.mark.parametrize(
    "binary", KNOWING[:1] or BINARIES[:1], ids=lambda binary: str(binary.name)
)


@contextmanager
def knowing(server: EmbeddedServer, binary: ServerBinary, keeping: int = 0) -> Iterator[str]:
    """The url of a server that has WAITAOF; `keeping` of its replicas have a file.

    Where no server at hand has it, it is answered in front of one.
    """
    if binary in KNOWING:
        yield server.url
        return
    with WaitAof(server, keeping) as door:
        yield door.url


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server's WAITAOF is used."""
    monkeypatch.setattr(ServerFacts, "syncing", lambda *_: Syncing.WAITAOF)


@on_one
@pytest.mark.usefixtures("believed")
def test_a_server_that_does_not_know_the_command(make_server: Server, binary: ServerBinary) -> None:
    """It confirms nothing by it, and is not asked for long."""
    hidden = ("--rename-command", "WAITAOF", "") if binary in KNOWING else ()
    server = make_server(binary=binary, appendonly=True, args=(*ALWAYS, *hidden))
    with Penstock(server.url) as client:
        with pytest.raises(NotReplicated) as caught:
            client.queue("q").enqueue("x", durable=Durable(fsynced=True, timeout=3600))
        assert (caught.value.fsynced, caught.value.withdrawn) == (False, True)


@on_a_knowing
@pytest.mark.usefixtures("believed")
def test_disks_of_replicas(make_server: Server, binary: ServerBinary) -> None:
    """One replica has a file and confirms; one has none and never does."""
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
        wait_for(lambda: raw.set("ping", "x") and raw.wait(2, 100) == 2)
        wait_for(lambda: not copy.info("persistence")["aof_rewrite_in_progress"])
        with knowing(primary, binary, keeping=1) as url:
            confirmed_by_one(url, copy)


def confirmed_by_one(url: str, copy: Raw) -> None:
    """Of two replicas one has a file."""
    with Penstock(url) as client:
        q = client.queue("q")
        assert q.enqueue("x", lease=600, durable=Durable(1, fsynced=True)).replicas == 1
        (job,) = q.reserve(block=0)
        with pytest.raises(NotReplicated, match="on the server's disk, 1 of 2") as caught:
            q.enqueue("y", durable=Durable(2, fsynced=True, timeout=2))
        error = caught.value
        assert (error.wanted, error.got, error.fsynced, error.withdrawn) == (2, 1, True, True)
        with pytest.raises(AckNotReplicated) as lost:
            job.ack(durable=Durable(2, fsynced=True, timeout=2))
        assert (lost.value.got, lost.value.fsynced) == (1, True)
        q.configure(replicas=1)
        many = q.enqueue_many(range(1200), durable=Durable(fsynced=True))
        assert {done.replicas for done in many} == {1}
        assert copy.xlen("penstock:{q}:ready") == 1200


@on_a_knowing
@pytest.mark.usefixtures("believed")
def test_a_file_that_is_switched_off(make_server: Server, binary: ServerBinary) -> None:
    """WAITAOF is answered by an error then: nothing is confirmed, and nothing is waited for."""
    server = make_server(binary=binary, tcp=True, appendonly=True, args=ALWAYS)
    with redis.Redis.from_url(server.url, protocol=2) as raw, knowing(server, binary) as url:
        with Penstock(url) as client:
            q = client.queue("q")

            def bodies() -> Any:
                yield from range(1000)
                raw.config_set("appendonly", "no")
                yield from range(500)

            with pytest.raises(IncompleteEnqueue) as caught:
                q.enqueue_many(bodies(), durable=Durable(fsynced=True, timeout=3600))
            assert isinstance(caught.value.__cause__, NotReplicated)
            assert caught.value.__cause__.fsynced is False
            assert len(caught.value.results) == q.stats().ready == 1000
            raw.script_flush()  # the answer is found behind that of a script that is not known, too
            with pytest.raises(NotReplicated):
                q.enqueue("x", durable=Durable(fsynced=True, timeout=3600))
            assert q.stats().ready == 1000
