"""Queues of the protocol pressure in a Redis Cluster and with Sentinel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from penstock.embedded import EmbeddedServer
from penstock.pressure import AsyncPressureQueue, PressureQueue, QueueEmpty
from tests.nodes.service import Service
from tests.support.backends import clustered
from tests.support.twins import spawn, wait_for

HALF = 8192
NAMES = ("{a}", "{b}", "{c}", "{d}")


@pytest.fixture
def cluster(make_server: Callable[..., EmbeddedServer]) -> Iterator[list[redis.Redis]]:
    """A client of each node; each has half of the slots."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(redis.Redis.from_url(clustered(make_server).url)) for _ in range(2)
        ]
        for number, node in enumerate(nodes):
            node.execute_command("CLUSTER ADDSLOTS", *range(number * HALF, (number + 1) * HALF))
        host, port = (nodes[1].connection_pool.connection_kwargs[name] for name in ("host", "port"))
        nodes[0].execute_command("CLUSTER MEET", host, port)
        for node in nodes:
            wait_for(lambda node=node: _is_whole(node))
        yield nodes


def _is_whole(node: redis.Redis) -> bool:
    found = node.execute_command("CLUSTER INFO")
    return (found["cluster_state"], found["cluster_known_nodes"]) == ("ok", "2")


def url_of(node: redis.Redis) -> str:
    """Return the URL of a node."""
    known = node.connection_pool.connection_kwargs
    return f"redis://{known['host']}:{known['port']}"


def test_a_queue_is_found_wherever_its_slot_is(cluster: list[redis.Redis]) -> None:
    """With one node given, queues on both are created, awaited and removed."""
    homes = set()
    for name in NAMES:
        with (
            PressureQueue(name, url_of(cluster[0])) as q,
            PressureQueue(name, url_of(cluster[1])) as other,
        ):
            assert not q.exists()
            q.create(1)
            homes.add(cluster[0].execute_command("CLUSTER KEYSLOT", name) // HALF)
            reader = spawn(other.get)
            q.put("a")
            assert reader.result() == b"a"
            with pytest.raises(QueueEmpty):
                q.get(timeout=0.1)
            q.close()
            q.delete()
    assert homes == {0, 1}
    assert [node.keys() for node in cluster] == [[], []]


def test_the_same_with_asyncio(cluster: list[redis.Redis]) -> None:
    """The first call of the asyncio client finds the node."""

    async def run(name: str) -> bytes:
        async with AsyncPressureQueue(name, url_of(cluster[0])) as q:
            await q.create(1)
            reader = asyncio.ensure_future(q.get())
            await q.put("a")
            got = await reader
            await q.delete()
            return got

    assert [asyncio.run(run(name)) for name in NAMES] == [b"a"] * len(NAMES)


@pytest.mark.parametrize("strike", ["kill_primary", "fail_over"])
def test_another_primary(strike: str) -> None:
    """A failover ends a wait with a connection error; the next call uses the new primary.

    Its role is free there if the replica knew of it, otherwise it is freed as a dead party's.
    """
    with (
        Service() as service,
        PressureQueue("q", service.url) as q,
        PressureQueue("q", service.url) as other,
    ):
        q.create(bound=2)
        q.put("a")
        assert other.get() == b"a"
        reader = spawn(other.get)
        old = service.primary()
        raw = service.raw(old)
        wait_for(lambda: raw.llen("__pressure__:q:consumer_free") == 0)
        assert raw.execute_command("WAIT", 2, 5000) == 2
        getattr(service, strike)()
        with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
            reader.result()
        service.wait_for_another_than(old)
        wait_for(lambda: _is_back(q))
        q.free_role("consumer")
        q.put("b", timeout=5)
        assert other.get(timeout=5) == b"b"
        assert q.counters() == (2, 2, 2, 2)


def _is_back(q: PressureQueue) -> bool:
    try:
        return q.length() == 0
    except redis.RedisError:
        return False
