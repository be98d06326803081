"""Backups, copies and moves of queues: what docs/moving.md says of jobs, ids and leases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.cluster import RedisCluster

from penstock import Penstock, WrongNode
from penstock.embedded import EmbeddedServer
from tests.cli.conftest import run_cli
from tests.cli.support import Cli
from tests.support.cluster import Cluster
from tests.support.twins import wait_for

__all__ = ["run_cli"]

QUEUES = ("mail", "orders", "{braces}", "reports")


@pytest.fixture
def old() -> Iterator[EmbeddedServer]:
    """A server that is left."""
    with EmbeddedServer(tcp=True) as server:
        yield server


def fill(ps: Penstock) -> dict[str, list[Any]]:
    """Add a schedule and three jobs to each queue; return those: held, waiting and delayed."""
    jobs = {}
    for name in QUEUES:
        queue = ps.queue(name)
        queue.configure(lease=600)
        queue.schedules.add("nightly", job="tick", cron="0 3 * * *")
        queue.enqueue("held")
        [held] = queue.reserve()
        jobs[name] = [held, queue.enqueue("waits", dedup_id="once"), queue.enqueue("x", delay=900)]
    return jobs


def copy_keys(old: EmbeddedServer, new: Any, pattern: str = "*") -> None:
    """Copy keys with their times to live, as `redis-cli --cluster import --copy` does."""
    raw = redis.Redis.from_url(old.url)
    for key in raw.scan_iter(pattern):
        new.restore(key, max(raw.pttl(key), 0), raw.dump(key), replace=True)


def check_moved(ps: Penstock, jobs: dict[str, list[Any]]) -> None:
    """Check that receipts, ids, dedup ids and schedules hold for the other client."""
    for name, (held, waits, later) in jobs.items():
        queue = ps.queue(name)
        assert queue.ack([held])
        views = queue.show(waits.id), queue.show(later.id)
        assert [view and view.state for view in views] == ["ready", "scheduled"]
        assert queue.enqueue("again", dedup_id="once").id == waits.id
        assert [one.name for one in queue.schedules.list()] == ["nightly"]
        assert [job.body for job in queue.reserve(9)] == ["waits"]


def test_a_backup_is_restored(old: EmbeddedServer, tmp_path: Path) -> None:
    """The queue is as it was at the backup: a job acked since runs again, one added is unknown."""
    with Penstock(old.url) as ps:
        queue = ps.queue("work")
        queue.configure(lease=1)
        queue.enqueue_many(["acked", "held", "waits"])
        [acked, held] = queue.reserve(2)
        redis.Redis.from_url(old.url).save()
        shutil.copy(old.directory / "dump.rdb", tmp_path / "dump.rdb")
        assert queue.ack([acked])
        later = queue.enqueue("later")
    old.kill()
    with (
        EmbeddedServer(tcp=True, args=["--dir", str(tmp_path)]) as new,
        Penstock(new.url) as ps,
    ):
        queue = ps.queue("work")
        wait_for(lambda: queue.stats().active == 0)
        assert queue.show(later.id) is None
        jobs = {job.body: job for job in queue.reserve(9)}
        assert set(jobs) == {"acked", "held", "waits"}
        assert [jobs[body].crashes for body in ("acked", "held", "waits")] == [1, 1, 0]
        assert jobs["held"].id == held.id
        assert queue.enqueue("new").id not in (later.id, acked.id, held.id)


def test_one_server_becomes_a_cluster(old: EmbeddedServer, cluster: Cluster) -> None:
    """With all keys copied, the cluster is the same node: ids, receipts and leases hold."""
    with Penstock(old.url) as ps:
        jobs = fill(ps)
    copy_keys(old, RedisCluster(host="127.0.0.1", port=cluster.primaries[0].port))
    with Penstock(cluster.url) as ps:
        assert sorted(ps.queues()) == sorted(QUEUES)
        check_moved(ps, jobs)


def test_one_queue_is_copied(old: EmbeddedServer, run_cli: Cli) -> None:
    """Its ids hold if the node id is copied before the first client comes; a repair lists it."""
    with Penstock(old.url) as ps:
        jobs = {"mail": fill(ps)["mail"]}
    with EmbeddedServer(tcp=True) as new:
        raw = redis.Redis.from_url(new.url)
        copy_keys(old, raw, "penstock:node")
        copy_keys(old, raw, "penstock:{mail}:*")
        with Penstock(new.url) as ps:
            assert ps.queues() == []
            assert run_cli("doctor", "--repair", url=new.url).code == 0
            assert ps.queues() == ["mail"]
            check_moved(ps, jobs)


def test_one_queue_is_copied_to_a_node_of_its_own(old: EmbeddedServer) -> None:
    """Its jobs run there, but ids that were given before name the old node."""
    with Penstock(old.url) as ps:
        jobs = fill(ps)["mail"]
    with EmbeddedServer(tcp=True) as new, Penstock(new.url) as ps:
        queue = ps.queue("mail")
        assert ps.queues() == []  # the client has given the server an id
        copy_keys(old, redis.Redis.from_url(new.url), "penstock:{mail}:*")
        with pytest.raises(WrongNode, match="this client knows"):
            queue.show(jobs[1].id)
        assert [job.body for job in queue.reserve(9)] == ["waits"]
