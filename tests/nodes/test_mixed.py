"""A federation of a server, a service with Sentinel, and a Redis Cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock import AsyncPenstock, Durable, Outcome, Penstock, Worker
from penstock.embedded import EmbeddedServer
from tests.nodes.federation import home_of
from tests.nodes.service import Service
from tests.support.cluster import Cluster
from tests.support.twins import aspawn, spawn, wait_for

QUEUES = ("emails", "letters", "cards")
"""Queues in several slots of the cluster."""


@pytest.fixture
def service() -> Iterator[Service]:
    """A primary with a replica, and Sentinels."""
    with Service(replicas=1) as made:
        yield made


@pytest.fixture
def urls(service: Service) -> Iterator[list[str]]:
    """One node of each kind."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(tcp=True))
        cluster = stack.enter_context(Cluster(3))
        yield [server.url, service.url, cluster.url]


def one_on_each(urls: list[str], name: str) -> list[str]:
    """Return the ids of jobs, one on each node."""
    ids = []
    for url in urls:
        with Penstock(url) as single:
            ids.append(single.queue(name).enqueue("x").id)
    return ids


def test_they_are_one_federation(urls: list[str]) -> None:
    """Jobs of all nodes are found, reserved, awaited and finished."""
    with Penstock(urls) as ps:
        assert len({node.id for node in ps.nodes.list()}) == 3
        assert not any(node.error for node in ps.nodes.list())
        for name in QUEUES:
            ids = one_on_each(urls, name)
            q = ps.queue(name)
            assert q.stats().ready == 3
            assert {view.id for view in q.jobs()} == set(ids)
            jobs = q.reserve(3, block=5)
            assert list(q.ack(jobs)) == [Outcome.DONE] * 3
        for url in urls:
            for name in QUEUES:
                waiting = spawn(ps.reserve, QUEUES, 1, block=20)
                with Penstock(url) as single:
                    added = single.queue(name).enqueue("late")
                [job] = waiting.result()
                assert job.id == added.id
                assert job.ack()
        assert ps.queues() == sorted(QUEUES)


async def test_they_are_one_for_asyncio_too(urls: list[str]) -> None:
    """A task waits on all of them at once."""
    async with AsyncPenstock(urls) as ps:
        for url in urls:
            waiting = aspawn(ps.reserve, QUEUES, 1, block=20)
            async with AsyncPenstock(url) as single:
                added = await single.queue("letters").enqueue("late")
            [job] = await waiting.result()
            assert job.id == added.id
            assert await job.ack()


def test_a_worker_on_all_of_them(urls: list[str]) -> None:
    """Every job of every queue on every node is done once."""
    seen: list[str] = []
    with Worker(urls, QUEUES, lambda job: seen.append(job.id), concurrency=2):
        ids = [job_id for name in QUEUES for job_id in one_on_each(urls, name)]
        wait_for(lambda: len(seen) >= len(ids))
    assert sorted(seen) == sorted(ids)


def test_a_node_of_any_kind_may_leave(urls: list[str]) -> None:
    """Producers use the other nodes."""
    with Penstock(urls) as ps:
        homes = [node.id[:8] for node in ps.nodes.list()]
        for home in homes[:2]:
            ps.nodes.leave(home)
        with Penstock(urls) as producer:
            assert home_of(producer.queue("emails").enqueue("x").id) == homes[2]
        for home in homes[:2]:
            assert ps.nodes.check_drained(home)
            ps.nodes.join(home)
        ps.nodes.leave(homes[2])
        assert not ps.nodes.check_drained(homes[2])
        with Penstock(urls) as producer:
            assert home_of(producer.queue("emails").enqueue("x").id) in homes[:2]


def test_a_failover_within_a_node(urls: list[str], service: Service) -> None:
    """During a failover the other nodes are used, and acks are kept as hints; then it works again.

    The new primary has the delivery, so the job is not redelivered.
    """
    with Penstock(urls, retry_for=1) as ps:
        q = ps.queue("emails")
        with Penstock(service.url) as single:
            added = single.queue("emails").enqueue("x", lease=3, durable=Durable(1, timeout=5))
        [job] = q.reserve(1, block=5)
        raw = service.raw(service.primary())
        wait_for(lambda: bool(raw.set("settled", 1)) and raw.execute_command("WAIT", 1, 1000) == 1)
        old = service.kill_primary()
        assert list(q.ack([job])) == [Outcome.HINTED]
        ids = [q.enqueue(number).id for number in range(20)]
        assert home_of(added.id) not in {home_of(one) for one in ids}
        service.wait_for_another_than(old)
        wait_for(lambda: not q.stats().unreachable)
        time.sleep(3)  # the lease
        jobs = q.reserve(100, block=0)
        assert sorted(job.id for job in jobs) == sorted(ids)
        assert q.stats().acked == 1
        assert not any(node.error for node in ps.nodes.list())
