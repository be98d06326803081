"""Nodes of every kind in one federation: a server, a service under Sentinel, a Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock import AsyncPenstock, Outcome, Penstock, Worker
from penstock.embedded import EmbeddedServer
from tests.nodes.federation import home_of
from tests.nodes.service import Service
from tests.support.cluster import Cluster
from tests.support.twins import aspawn, spawn, wait_for

QUEUES = ("emails", "letters", "cards")
"""They lie in several slots of the cluster."""


@pytest.fixture
def urls() -> Iterator[list[str]]:
    """One node of each kind."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(tcp=True))
        service = stack.enter_context(Service(replicas=1))
        cluster = stack.enter_context(Cluster(3))
        yield [server.url, service.url, cluster.url]


def one_on_each(urls: list[str], name: str) -> list[str]:
    """The ids of jobs, one on each node."""
    ids = []
    for url in urls:
        with Penstock(url) as single:
            ids.append(single.queue(name).enqueue("x").id)
    return ids


def test_they_are_one_federation(urls: list[str]) -> None:
    """Jobs of all of them are taken, woken for, looked at and done."""
    with Penstock(urls) as ps:
        assert len({node.id for node in ps.nodes.list()}) == 3
        assert not any(node.error for node in ps.nodes.list())
        for name in QUEUES:
            ids = one_on_each(urls, name)
            q = ps.queue(name)
            assert q.stats().ready == 3
            assert {view.id for view in q.scan_iter()} == set(ids)
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
    """Producers go to the others."""
    with Penstock(urls) as ps:
        homes = [node.id[:8] for node in ps.nodes.list()]
        for home in homes[:2]:
            ps.nodes.leave(home)
        with Penstock(urls) as producer:
            assert home_of(producer.queue("emails").enqueue("x").id) == homes[2]
        for home in homes[:2]:
            assert ps.nodes.drained(home)
            ps.nodes.join(home)
        ps.nodes.leave(homes[2])
        assert not ps.nodes.drained(homes[2])
        with Penstock(urls) as producer:
            assert home_of(producer.queue("emails").enqueue("x").id) in homes[:2]
