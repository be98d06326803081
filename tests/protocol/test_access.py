"""The access rules of protocol/core.md allow every operation, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import Durable, NotReplicated, Penstock, Worker
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script
from penstock.worker._sync import registration
from tests.protocol.clock import frozen, keys_of, with_producer
from tests.protocol.keyspace import Raw
from tests.protocol.pages import acl_rules
from tests.protocol.scenes import (
    CALLS,
    Act,
    Scene,
    dedup_scene,
    keyed_scene,
    plain_scene,
    rich_scene,
)
from tests.protocol.seeds import AT
from tests.support.backends import Backend
from tests.support.twins import wait_for

KEYS = QueueKeys("access")
PATIENCE = 20


@pytest.fixture
def admin(real_backend: Backend, make_server: Callable[..., EmbeddedServer]) -> Iterator[Raw]:
    """A client with all rights, on a server whose users the test may change."""
    url = make_server().url if real_backend.shared else real_backend.url
    assert url is not None
    with redis.Redis.from_url(url, protocol=2) as client:
        rules = acl_rules("worker")
        if Penstock(client, federation=False).topology.executor.server_facts().version < (7,):
            rules.remove("%R~penstock:nodes")  # as the document says
        client.execute_command("ACL", "SETUSER", "worker", *rules)
        yield client
        client.execute_command("ACL", "DELUSER", "worker")


@pytest.fixture
def worker(admin: Raw) -> Iterator[Raw]:
    """A client with the rights from the document."""
    with as_worker(admin) as client:
        yield client


def as_worker(admin: Raw) -> redis.Redis:
    """Return a new client of the same server, as the user `worker`."""
    options = dict(admin.connection_pool.connection_kwargs)
    options.update(username="worker", password="secret")
    kind = admin.connection_pool.connection_class
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **options))


SCENES = pytest.mark.parametrize(
    "build",
    [plain_scene, rich_scene, dedup_scene, keyed_scene],
    ids=lambda build: build.__name__,
)


@SCENES
def test_every_script_runs(
    build: Callable[[Raw, QueueKeys], Scene], admin: Raw, worker: Raw
) -> None:
    """Each call of each script, with its inner commands, works with these rights."""
    for act in CALLS:
        admin.flushdb()
        scene = build(admin, KEYS)
        act.prepare(scene)
        reply = _evalsha(worker, act, scene)
        assert int(reply[0]) in (1, 5, -3, -20), act.name


def _evalsha(raw: Raw, act: Act, scene: Scene) -> list[Any]:
    found = script(act.script)
    sha = raw.script_load(frozen(found.source, AT))
    keys, given = keys_of(KEYS, found), with_producer(found, act.arguments(scene))
    reply: list[Any] = raw.execute_command("EVALSHA", sha, len(keys), *keys, *given)
    return reply


def test_a_whole_life_of_jobs(admin: Raw) -> None:
    """Create, wait, work, fail, wait for room, read, redrive, purge, sweep: all as that user."""
    with Penstock(as_worker(admin)) as ours, Penstock(as_worker(admin)) as theirs:
        queue = ours.queue("life")
        got: list[Any] = []
        waiting = threading.Thread(
            target=lambda: got.extend(theirs.queue("life").reserve(block=PATIENCE)), daemon=True
        )
        waiting.start()
        queue.enqueue({"n": 1})
        waiting.join(PATIENCE)
        (job,) = got
        assert job.body == {"n": 1}
        job.extend(60)
        job.nack(delay=0, error="broke")
        (job,) = queue.reserve(block=PATIENCE)
        job.bury("no use")
        assert queue.redrive() == 1
        (job,) = queue.reserve(block=PATIENCE)
        job.release()
        (job,) = queue.reserve(block=PATIENCE)
        job.ack()
        assert queue.reserve(block=0.2) == []
        _bounded(ours, theirs)
        _moved(ours)
        queue.enqueue(b"raw", ttl=60, delay=30)
        assert queue.stats().scheduled == 1
        assert len(queue.peek(state="scheduled")) == 1
        assert queue.purge() == 1
        assert queue.sweep() == 0
        assert "life" in ours.queues()
        assert ours.topology.executor.server_facts().version >= (6, 2)


def _moved(ours: Penstock) -> None:
    queue = ours.queue("moved")
    with pytest.raises(NotReplicated) as caught:
        queue.enqueue(b"alone", durable=Durable(1, timeout=0.01))
    assert caught.value.withdrawn
    (first, second) = queue.enqueue_many([b"first", b"second"], delay=60).ids
    assert queue.promote([first]).done == 1
    assert queue.postpone([first]).done == 1
    assert queue.promote([first, second]).done == 2
    (job,) = queue.reserve()
    (again,) = queue.recover(idle=0)
    assert again.id == job.id
    assert {view.id for view in queue.jobs()} == {first, second}
    assert "moved" in {stats.name for stats in ours.scan_queues_iter()}
    again.bury()
    assert queue.sweep(evict=100) == 1
    assert ours.hello().node == ours.info().node


def _bounded(ours: Penstock, theirs: Penstock) -> None:
    queue = ours.queue("bounded")
    queue.configure(max_length=1)
    queue.enqueue(b"first")
    done: list[Any] = []
    waiting = threading.Thread(
        target=lambda: done.append(theirs.queue("bounded").enqueue(b"second", block=PATIENCE)),
        daemon=True,
    )
    waiting.start()
    for body in (b"first", b"second"):
        (job,) = queue.reserve(block=PATIENCE)
        assert job.body == body
        job.ack()
    waiting.join(PATIENCE)
    assert len(done) == 1


@pytest.mark.parametrize("may_write", [True, False])
def test_workers(may_write: bool, admin: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is listed; without the right to write the list it works all the same."""
    monkeypatch.setattr(registration, "REGISTRATION_DELAY", 0.0)
    if not may_write:
        admin.execute_command("ACL", "SETUSER", "worker", "resetkeys", "~penstock:{*")
        admin.execute_command("ACL", "SETUSER", "worker", "~penstock:node", "~penstock:queues")
    with Penstock(as_worker(admin)) as ps, Penstock(admin) as reader:
        queue, seen = ps.queue("q"), threading.Event()
        queue.enqueue("x")
        with Worker(ps, "q", lambda _: seen.set()):
            assert seen.wait(PATIENCE)
            if may_write:
                wait_for(lambda: len(ps.workers()) == 1)
            wait_for(lambda: queue.stats().acked == 1)
        assert reader.workers() == []
        assert not admin.keys("penstock:worker*")


def test_the_list_of_nodes_is_for_reading(admin: Raw) -> None:
    """A client reads it if the server has such a right, and works without it."""
    admin.hset("penstock:nodes", "e" * 40, "1 redis://127.0.0.1:1/0")
    with Penstock(as_worker(admin), node_hosts=["127.0.0.1"]) as ps:
        may_read = ps.topology.executor.server_facts().version >= (7,)
        ps.queue("q").enqueue("x")
        assert len(ps.hello().nodes) == 1 + may_read
        if may_read:
            with pytest.raises(redis.exceptions.NoPermissionError):
                ps.nodes.forget(ps.hello().nodes[-1])


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",), ("KEYS", "*"), ("GET", "other:key"), ("EVAL", "return 1", 0),
        ("SCRIPT", "FLUSH"), ("CLIENT", "KILL", "ID", 1), ("CONFIG", "GET", "*"),
        ("LPUSH", "penstock:{access}:wake", 1), ("HSET", "penstock:nodes", "e" * 40, "1 redis://e"),
        ("UNLINK", "penstock:nodes"), ("HGET", "penstock:other", "x"),
    ],
    ids=lambda command: " ".join(map(str, command[:2])),
)  # fmt: skip
def test_nothing_else_is_allowed(command: tuple[Any, ...], worker: Raw) -> None:
    """Other keys and other commands are refused."""
    with pytest.raises(redis.exceptions.NoPermissionError):
        worker.execute_command(*command)
