"""Nodes that change: emptied, replaced, copied, removed from the list, repaired."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import traceback
import warnings
from collections.abc import Iterator

import pytest
import redis

from penstock import AsyncPenstock, ConfigurationError, Outcome, Penstock, WrongNode
from penstock.client._sync.nodes import federation
from penstock.client._sync.nodes.federated_node import FederatedNode
from penstock.client._sync.nodes.federation import Federation
from tests.nodes.federation import Servers, home_of, one_on
from tests.support.twins import await_for, wait_for


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Three nodes whose clients read the lists every 0.2 s."""
    monkeypatch.setattr(federation, "NODE_LIST_MAX_AGE", 0.2)
    with Servers(3) as servers:
        yield servers


def inside(ps: Penstock) -> Federation:
    """Return the nodes of a client."""
    found = ps.topology.current
    assert isinstance(found, Federation)
    return found


def connections(servers: Servers, number: int) -> int:
    """Count the connections of a node except the one that asks."""
    with redis.Redis.from_url(servers.all[number].url) as raw:
        own = {int(raw.client_id())}
        return len([one for one in raw.client_list() if int(one["id"]) not in own])


def listed(servers: Servers) -> None:
    """Add all nodes to the list."""
    with Penstock(servers.urls[0]) as first, Penstock([servers.urls[0]]) as ps:
        assert first.hello().nodes
        for url in servers.urls:
            ps.nodes.add(url)


def test_a_node_that_comes_back_empty(three: Servers) -> None:
    """An emptied node has a new id; its old jobs are gone, and clients keep bounded state."""
    listed(three)
    with three.client(retry_for=0.3) as ps:
        q = ps.queue("q")
        old = one_on(three.all[0], lease=9)
        [job] = q.reserve(1)
        before = {node.address: node.id for node in ps.nodes.list()}
        three.all[0].kill()
        assert job.ack()
        three.all[0].restart()
        three.raw(0).flushall()
        three.all[0].kill()
        assert q.stats().unreachable
        three.all[0].restart()
        wait_for(lambda: not q.stats().unreachable)
        after = {node.address: node.id for node in ps.nodes.list()}
        changed = [address for address in before if before[address] != after[address]]
        assert changed == [f"127.0.0.1:{three.all[0].port}"]
        assert list(q.ack([old])) == [Outcome.GONE]
        new = one_on(three.all[0])
        assert home_of(new) == after[changed[0]][:8]
        [job] = q.reserve(1)
        assert job.id == new
        assert job.ack()
        wait_for(lambda: not any(three.raw(i).hlen("penstock:hints") for i in range(3)))
        began, looks = time.monotonic(), len(inside(ps).nodes)
        held = connections(three, 0)
        while time.monotonic() < began + 3:
            assert q.reserve(1, block=0.1) == []
        assert len(inside(ps).nodes) == looks == 3
        assert connections(three, 0) < held + 6  # after 15 looks


def test_a_node_that_was_restarted_is_steered(three: Servers) -> None:
    """The first call after a restart opens a new connection, whichever call it is."""
    listed(three)
    with three.client() as ps:
        ps.queue("q").reserve(1, block=0)
        node = ps.nodes.list()[0]
        server = three.with_id(ps, node.id)
        for steer in (ps.nodes.leave, ps.nodes.check_drained, ps.nodes.join, ps.nodes.forget):
            server.kill()
            server.restart()
            steer(node)


def test_a_hint_for_a_node_that_stays_away(three: Servers) -> None:
    """The node that keeps the hint stays up, and the missing node is not asked."""
    with three.client(retry_for=0.3) as ps:
        q = ps.queue("q")
        one_on(three.all[0], lease=9)
        [job] = q.reserve(1)
        three.all[0].kill()
        assert job.ack()
        down = f"127.0.0.1:{three.all[0].port}"
        keepers = [home for home in inside(ps).nodes if home.address != down]
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert q.reserve(1, block=0.05) == []
            assert all(home.state.is_up for home in keepers), [h.state for h in keepers]
        assert sorted(three.raw(i).hlen("penstock:hints") for i in (1, 2)) == [0, 1]


def test_a_forgotten_node_leaves_no_connection(three: Servers) -> None:
    """Jobs of a removed node are settled there; closing the client closes all connections."""
    listed(three)
    with three.client() as ps:
        q = ps.queue("q")
        one_on(three.all[0])
        [job] = q.reserve(1)
        view = next(n for n in ps.nodes.list() if n.address.endswith(str(three.all[0].port)))
        ps.nodes.forget(view)
        assert job.ack()
    wait_for(lambda: connections(three, 0) == 0)


def test_a_copy_is_refused_until_it_is_another(three: Servers) -> None:
    """When the copy has its own id, clients that refused it use it."""
    with three.client(retry_for=1) as ps:
        ps.queue("q").enqueue("x")
        ids = {node.address: node.id for node in ps.nodes.list()}
        mine, other = (three.raw(i).hget("penstock:node", "id") for i in (0, 1))
        three.raw(1).hset("penstock:node", "id", mine)
        three.all[1].kill()
        assert ps.queue("q").stats().unreachable
        three.all[1].restart()
        with pytest.raises(ConfigurationError, match="same node id"):
            wait_for(lambda: not ps.nodes.list())
        three.all[1].kill()
        wait_for(lambda: _works(ps, 2))
        three.all[1].restart()
        with pytest.raises(ConfigurationError, match="same node id"):
            wait_for(lambda: not ps.nodes.list())
        three.raw(1).hset("penstock:node", "id", other)
        wait_for(lambda: _works(ps))
        assert {node.address: node.id for node in ps.nodes.list()} == ids


def test_a_producer_refuses_a_copy(three: Servers) -> None:
    """A copy replaces the producer's node: it is refused, as ids would name the wrong node."""
    with three.client(retry_for=1) as ps:
        q = ps.queue("q")
        home = home_of(q.enqueue("x").id)
        number = three.all.index(three.with_id(ps, home))
        copied = three.raw((number + 1) % 3).hget("penstock:node", "id")
        three.raw(number).hset("penstock:node", "id", copied)
        three.all[number].kill()
        three.all[number].restart()
        added = set()
        with pytest.raises(ConfigurationError, match="same node id"):
            wait_for(lambda: added.add(q.enqueue("y").id) is not None)
    assert three.raw(number).xlen("penstock:{q}:ready") == 1
    ready = [three.raw(n).xlen("penstock:{q}:ready") for n in range(3) if n != number]
    assert sum(ready) == len(added)


def test_running_clients_learn_of_removed_nodes(three: Servers) -> None:
    """Running producers and consumers stop using a removed node until it is added again."""
    listed(three)
    with three.client() as ps, three.client() as steering:
        q = ps.queue("q")
        home = home_of(q.enqueue("x").id)
        server = three.with_id(ps, home)
        steering.nodes.forget(home)
        wait_for(lambda: home_of(q.enqueue("x").id) != home)
        wait_for(lambda: len(q.reserve(1000, block=0)) == 0)
        one_on(server)
        assert q.reserve(1, block=1) == []
        with pytest.raises(WrongNode, match=home):
            q.show(one_on(server))
        steering.nodes.add(server.url)
        assert len(q.reserve(2, block=10)) >= 1
        assert {node.id[:8] for node in ps.nodes.list()} >= {home}


def _works(ps: Penstock, count: int = 3) -> bool:
    try:
        return len([node for node in ps.nodes.list() if not node.error]) == count
    except ConfigurationError:
        return False


def test_threads_meet_a_node_at_once(three: Servers) -> None:
    """Threads that find a node at once share one object; closing the client leaves nothing."""
    with Penstock([three.urls[0]]) as ps:
        ps.queue("q").enqueue("x")
        listed(three)
        ends = threading.Barrier(8)

        def work() -> None:
            ends.wait()
            until = time.monotonic() + 1
            while time.monotonic() < until:
                ps.queue("q").enqueue("x")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        # A duplicate object is removed at the next use of the client.
        wait_for(lambda: bool(ps.queue("q").stats()) and len(inside(ps).nodes) == 3)
        assert len({home.id for home in inside(ps).nodes}) == 3
    for number in range(3):
        wait_for(lambda number=number: connections(three, number) == 0)


def test_calls_go_on_without_a_thread_for_looks(
    three: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system refuses another thread, calls use the nodes that are up."""
    refused: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    listed(three)
    with three.client(retry_for=0.3) as ps:
        q = ps.queue("q")
        q.enqueue("before")
        monkeypatch.setattr(threading.Thread, "start", refuse)
        wait_for(lambda: bool(q.enqueue("x").id and refused))
    assert set(refused) == {"penstock-background"}


def test_a_node_that_was_met_twice_is_left_out_once(three: Servers) -> None:
    """Of two objects for one node exactly one stays, in whichever order they are checked."""
    listed(three)
    with Penstock([three.urls[0]]) as ps:
        found = inside(ps)
        wait_for(lambda: bool(ps.queue("q").stats()) and len(found.nodes) == 3)
        wait_for(lambda: found.is_whole)
        homes = list(found.nodes)
        for is_first in (True, False):
            twin = FederatedNode(homes[1].source, found.config, homes[1].whole_id)
            twin.look()
            found.nodes.append(twin)
            for home in (twin, homes[1]) if is_first else (homes[1], twin):
                found.check_id(home)
            assert found.nodes == homes
            assert twin in found._gone


def test_a_forked_child_checks_nodes(three: Servers) -> None:
    """A check running in the parent does not count as running in the child."""
    with three.client(retry_for=0.3) as ps:
        q = ps.queue("q")
        q.reserve(1, block=0)
        three.all[0].pause()
        try:
            wait_for(lambda: bool(q.stats().unreachable))
            wait_for(lambda: bool(q.stats()) and _is_looked_after(ps))
            child = os.fork()
            if child == 0:
                _in_child(ps)
        finally:
            three.all[0].resume()
        assert os.waitpid(child, 0)[1] == 0


def _is_looked_after(ps: Penstock) -> bool:
    return any(home.tasks.under_way for home in inside(ps).nodes)


def _in_child(ps: Penstock) -> None:
    try:
        wait_for(lambda: not ps.queue("q").stats().unreachable, 8)
        ps.close()
    except BaseException:  # noqa: BLE001  # the parent can't see it
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def test_one_event_loop_after_another(three: Servers) -> None:
    """A check running in a stopped event loop is not waited for in the next loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the first loop's sockets can't be closed
        _in_two_loops(three)
        gc.collect()


def _in_two_loops(servers: Servers) -> None:
    ps = AsyncPenstock(servers.urls, retry_for=0.3)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def unreachable() -> int:
        return len((await ps.queue("q").stats()).unreachable)

    async def whole() -> None:
        until = time.monotonic() + 8
        while await unreachable():
            assert time.monotonic() < until
        await ps.close()

    servers.all[0].pause()
    assert first.run_until_complete(unreachable()) == 1
    servers.all[0].resume()
    second.run_until_complete(whole())
    for loop in (first, second):
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


def test_a_cancelled_reserve_releases_its_jobs(three: Servers) -> None:
    """A job was reserved from one node, the next node hangs, the caller is
    cancelled: it is released.
    """

    async def main() -> int:
        async with AsyncPenstock(three.urls) as ps:
            q = ps.queue("q")
            await q.reserve(1, block=0)
            for number in (0, 2):
                one_on(three.all[number])
            three.all[1].pause()
            try:
                task = asyncio.ensure_future(q.reserve(3, block=0))
                await await_for(lambda: bool(three.raw(0).zcard("penstock:{q}:active")))
                await asyncio.sleep(0.3)  # the reply
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            finally:
                three.all[1].resume()
            return len(await q.reserve(3, block=0))

    assert asyncio.run(main()) == 2
