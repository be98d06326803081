"""The streaming source when a node hangs: it takes connections, and never answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from penstock.spark import lanes
from penstock.spark.stream import StreamReader
from tests.spark.hands import close_all, schema
from tests.spark.support import wait_for

LEASE = 3.0


class Hanging:
    """Two servers with jobs of a queue, of which the second one can hang."""

    def __init__(self, servers: list[EmbeddedServer], partitions: int | None) -> None:
        self.servers = servers
        self.clients = [Penstock(server.url) for server in servers]
        self.queues = [one.queue("q", partitions=partitions) for one in self.clients]
        for queue in self.queues:
            for _ in range(10):
                queue.enqueue_many([b"a body"] * 4)

    def reader(self) -> StreamReader:
        """Return a reader of both, which renews leases."""
        urls = [f"{server.url}?socket_timeout=20" for server in self.servers]
        options = {
            "queue": "q",
            "nodes": ",".join(urls),
            "leaseDuration": f"{LEASE}s",
            "retryFor": "1s",
        }
        return StreamReader(options, schema("id string, payload binary"))

    def first_end(self) -> float:
        """Return when the first of the leases on the healthy node ends."""
        return min(view.lease_until or 0.0 for view in self.queues[0].jobs("active", n=1000))


@pytest.fixture(params=[None, 3])
def hanging(request: pytest.FixtureRequest) -> Iterator[Hanging]:
    """A queue on both servers, perhaps in partitions."""
    with EmbeddedServer(tcp=True) as one, EmbeddedServer(tcp=True) as other:
        made = Hanging([one, other], request.param)
        try:
            yield made
        finally:
            other.resume()
            for client in made.clients:
                client.close()
            close_all()


def latest(life: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Return the latest offset."""
    return life.latestOffset(start, life.getDefaultReadLimit())


def test_a_node_that_hangs(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leases on the others are renewed, their jobs come, and the query can be stopped."""
    monkeypatch.setattr(lanes, "NODE_PATIENCE", 0.5)
    life = hanging.reader()
    first = latest(life, life.initialOffset())
    life.partitions(life.initialOffset(), first)
    jobs = sum(queue.stats().active for queue in hanging.queues)
    assert jobs == 80
    end = hanging.first_end()
    hanging.servers[1].pause()
    wait_for(lambda: hanging.first_end() > end + 2 * LEASE)
    assert hanging.queues[0].reserve(100, block=0) == []
    assert hanging.queues[0].stats().crashed == 0
    hanging.queues[0].enqueue_many([b"another"] * 4)
    began = monotonic()
    second = latest(life, first)
    known = {key: n for key, n in second["nodes"].items() if n != first["nodes"].get(key)}
    assert {key[:8] for key in known} == {hanging.clients[0].topology.executor.id}
    assert life.reportLatestOffset()["active"] == 4  # without a wait for the other
    assert monotonic() - began < 15
    assert hanging.queues[0].stats().acked == 40
    hanging.servers[1].resume()
    third = wait_for(lambda: later(life, second))
    assert sum(queue.stats().acked for queue in hanging.queues) == 84
    life.commit(third)
    life.stop()


def later(life: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Return the next offset when both nodes are used; {} = not yet."""
    found = latest(life, start)
    return found if life._reached.unreached == 0 else {}


def test_a_query_is_stopped_while_a_node_hangs(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the renewals there."""
    monkeypatch.setattr("penstock.spark.stream.STOP_SECONDS", 0.2)
    monkeypatch.setattr(StreamReader, "beat", 0.1)
    life = hanging.reader()
    latest(life, life.initialOffset())
    renewing, renew = threading.Event(), StreamReader.renew

    def noted(reader: StreamReader, node: str) -> None:
        if node == hanging.clients[1].topology.executor.id:
            renewing.set()
        renew(reader, node)

    hanging.servers[1].pause()
    monkeypatch.setattr(StreamReader, "renew", noted)
    assert renewing.wait(20)
    began = monotonic()
    life.stop()
    assert monotonic() - began < 10
