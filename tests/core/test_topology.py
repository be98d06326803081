"""The connections of a client while threads use them; nothing is sent."""

from __future__ import annotations

import inspect
import threading
from contextlib import closing
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.client._sync.route.several_nodes import NodesRoute
from tests.support.twins import PATIENCE


class NotedLock:
    """A lock that tells when it is asked for."""

    def __init__(self) -> None:
        self.lock, self.asked = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def test_a_queue_that_is_made_during_a_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the route to all nodes, although the join no longer looks for queues."""
    client = Penstock("redis://127.0.0.1:1/0")
    topology = client.topology
    before = topology.queue("before")
    lock: Any = NotedLock()
    monkeypatch.setattr(topology, "_joining", lock)
    made: list[Queue] = []

    def make() -> None:
        made.append(topology.queue("meanwhile"))
        lock.asked.set()

    maker = threading.Thread(target=make)
    route_to_all = topology._route_to_all

    def make_another_and_route(*args: Any) -> NodesRoute:
        if maker.ident is None:  # the join has begun to change the queues
            lock.asked.clear()
            maker.start()
            assert lock.asked.wait(PATIENCE)
        return route_to_all(*args)

    monkeypatch.setattr(topology, "_route_to_all", make_another_and_route)
    topology.join()
    maker.join(PATIENCE)
    assert isinstance(before.route, NodesRoute)
    assert isinstance(made[0].route, NodesRoute)
    client.close()


@pytest.mark.parametrize("sources", ["redis://127.0.0.1:1/0", ["redis://127.0.0.1:1/0"]])
def test_each_attribute_of_a_queue_can_be_read(sources: str | list[str]) -> None:
    """Debuggers read all of them: none raises, whether the queue lies on one node or on several."""
    with closing(Penstock(sources)) as client:
        assert dict(inspect.getmembers(client.queue("q")))["name"] == "q"
