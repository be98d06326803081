"""Clients that wait, are shared, or are closed, while nodes leave, hang, or differ in time."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import RedisError

from penstock import (
    AsyncPenstock,
    Durable,
    NodesMissed,
    NotReplicated,
    Outcome,
    Penstock,
    QueueFull,
)
from penstock.client._sync.nodes import federation
from penstock.client._sync.nodes.federation import Federation
from penstock.core.jobs import hints
from penstock.core.jobs.job import number_of
from penstock.core.nodes.state import FLAG_MAX_AGE
from penstock.wire.scripts import script
from tests.model.clock import TestClock, use_test_clock
from tests.nodes.federation import Servers, fill_up, home_of, one_on
from tests.support.keyspace import load_scripts
from tests.support.proxy import Proxy
from tests.support.replicated import reach_replicas
from tests.support.twins import await_for, spawn, wait_for

HASTY = "socket_timeout=0.5"


def hasty(servers: Servers, **options: Any) -> Penstock:
    """Return a client with a short timeout for replies."""
    return Penstock([f"{url}?{HASTY}" for url in servers.urls], retry_for=0.5, **options)


# -- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_a_waiting_producer_learns_that_the_node_leaves(three: Servers, many: bool) -> None:
    """Room on a leaving node is not used: within a second the job goes to another node."""
    with three.client() as ps:
        q = ps.queue("q")
        q.configure(max_length=1)
        first = q.enqueue("first")
        add = q.enqueue_many if many else q.enqueue
        waiting = spawn(add, ["second"] if many else "second", block=30)
        number = three.all.index(three.with_id(ps, home_of(first.id)))
        wait_for(lambda: three.raw(number).info("clients")["blocked_clients"] == 1)
        ps.nodes.leave(home_of(first.id))
        began = time.monotonic()
        done = waiting.result(10)
        assert time.monotonic() - began < 4
        [second] = done.ids if many else [done.id]
        assert home_of(second) != home_of(first.id)
        assert three.raw(number).xlen("penstock:{q}:ready") == 1


def test_a_waiting_producer_gets_room(three: Servers) -> None:
    """A producer gets room at once when a consumer makes it, or raises after exactly its time."""
    with three.client() as ps, three.client() as other:
        q = ps.queue("q")
        q.configure(max_length=1)
        q.enqueue("first")
        began = time.monotonic()
        with pytest.raises(QueueFull):
            q.enqueue("second", block=2)
        assert 1.9 < time.monotonic() - began < 6
        waiting = spawn(q.enqueue, "second", block=30)
        time.sleep(1)
        [job] = other.queue("q").reserve(1)
        assert job.ack()
        assert waiting.result(10).state == "ready"


# -- nodes that hang ---------------------------------------------------------------------------


def test_a_node_that_hangs_during_an_enqueue(three: Servers) -> None:
    """It is unknown if the hanging node has the job, which raises soon; the next
    enqueue uses another.
    """
    with hasty(three) as ps:
        q = ps.queue("q")
        home = home_of(q.enqueue("before").id)
        server = three.with_id(ps, home)
        server.pause()
        try:
            began = time.monotonic()
            try:
                added = [q.enqueue("first").id]
            except RedisError:
                added = []
            added += [q.enqueue(number).id for number in range(10)]
            assert time.monotonic() - began < 8
            assert home not in {home_of(one) for one in added}
        finally:
            server.resume()
        wait_for(lambda: not q.stats().unreachable)
        bodies = Counter(view.body for view in q.peek(100))
        assert bodies.pop("first") in (1, 2) if len(added) == 11 else bodies.pop("first", 0) <= 1
        assert set(bodies.values()) == {1}


def test_a_node_that_hangs_during_an_ack(three: Servers) -> None:
    """The ack is kept as a hint; its later execution by the resumed node changes nothing."""
    with hasty(three) as ps:
        q = ps.queue("q")
        one_on(three.all[0], lease=2)
        [job] = q.reserve(1)
        three.all[0].pause()
        try:
            began = time.monotonic()
            assert list(q.ack([job])) == [Outcome.HINTED]
            assert time.monotonic() - began < 6
            time.sleep(max(0.0, began + 2.1 - time.monotonic()))  # the lease
        finally:
            three.all[0].resume()
        assert q.reserve(1, block=3) == []
        stats = q.stats()
        assert (stats.acked, stats.deliveries, stats.active) == (1, 1, 0)
        wait_for(lambda: not any(three.raw(n).hlen("penstock:hints") for n in range(3)))


def test_a_client_is_closed_while_a_node_hangs(three: Servers) -> None:
    """Closing waits for a hanging node no longer than for one reply, with both clients."""
    ps = three.client()
    ps.queue("q").reserve(1, block=0)
    three.all[0].pause()
    try:
        assert ps.queue("q").stats().unreachable
        began = time.monotonic()
        ps.close()
        assert time.monotonic() - began < 6
        assert asyncio.run(_closed_in(three)) < 3
    finally:
        three.all[0].resume()


async def _closed_in(servers: Servers) -> float:
    ps = AsyncPenstock(servers.urls)
    assert (await ps.queue("q").stats()).unreachable
    began = time.monotonic()
    await ps.close()
    return time.monotonic() - began


# -- sharing, and ending -----------------------------------------------------------------------


class Sharing:
    """Threads that add and do jobs with one client and a short switch interval.

    Args:
        q: the queue.
    """

    def __init__(self, q: Any) -> None:
        self.added: list[str] = []
        self.done: Counter[str] = Counter()
        self.broken: list[BaseException] = []
        self._q = q
        self._stop = threading.Event()
        self._interval = sys.getswitchinterval()
        works = [self._produce] * 3 + [self.consume] * 4
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def __enter__(self) -> Sharing:
        sys.setswitchinterval(1e-5)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        sys.setswitchinterval(self._interval)

    def _run(self, work: Any) -> None:
        try:
            while not self._stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001  # raised at the end
            self.broken.append(error)

    def _produce(self) -> None:
        with suppress(RedisError):  # the result is unknown
            self.added.append(self._q.enqueue("x").id)

    def consume(self) -> None:
        """Do some jobs."""
        with suppress(RedisError):
            for job in self._q.reserve(5, block=0.1):
                self.done[job.id] += 1
                job.ack()

    def wait_added(self, count: int) -> None:
        """Return when this many more jobs were added."""
        goal = len(self.added) + count
        wait_for(lambda: bool(self.broken) or len(self.added) > goal)


def test_threads_share_a_client_while_nodes_fall(three: Servers) -> None:
    """Each job is delivered, and each thread's acks take effect."""
    with three.client(retry_for=1) as ps:
        q = ps.queue("q")
        q.configure(lease=3, max_crashes=0)
        with Sharing(q) as sharing:
            for server in three.all:
                sharing.wait_added(150)
                server.kill()
                sharing.wait_added(150)
                server.restart()
        assert not sharing.broken, sharing.broken
        wait_for(lambda: sharing.consume() is None and _is_empty(q))
        assert not set(sharing.added) - set(sharing.done)


def _is_empty(q: Any) -> bool:
    stats = q.stats()
    return not (stats.unreachable or stats.ready or stats.scheduled or stats.active)


def test_a_client_is_closed_while_others_wait(three: Servers) -> None:
    """Waits in other threads continue to their end, and no call fails with a closed connection."""
    ps = three.client()
    waiting = [spawn(ps.queue("q").reserve, 1, block=6) for _ in range(3)]
    wait_for(lambda: all(_blocked(three, number) == 3 for number in range(3)))
    ps.close()
    one_on(three.all[1])
    found = [job.body for one in waiting for job in one.result()]
    assert found == ["x"]
    ps.close()


def test_a_client_is_closed_while_tasks_wait(three: Servers) -> None:
    """Waits of tasks continue to their end; cancelled tasks leave no wait."""

    async def main() -> list[Any]:
        ps = AsyncPenstock(three.urls)
        q = ps.queue("q")
        waiting = [asyncio.ensure_future(q.reserve(1, block=6)) for _ in range(3)]
        await await_for(lambda: all(_blocked(three, number) == 3 for number in range(3)))
        await ps.close()
        waiting.pop().cancel()
        one_on(three.all[1])
        found = [job.body for jobs in await asyncio.gather(*waiting) for job in jobs]
        await ps.close()
        return found

    assert asyncio.run(main()) == ["x"]
    wait_for(lambda: not any(_blocked(three, number) for number in range(3)))


def _blocked(servers: Servers, number: int) -> int:
    return int(servers.raw(number).info("clients")["blocked_clients"])


# -- hints -------------------------------------------------------------------------------------


def test_clients_without_an_outage_apply_hints(
    three: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the client that did the job is disconnected from its node: others apply its hint."""
    monkeypatch.setattr(federation, "NODE_LIST_MAX_AGE", 0.3)
    with Proxy(three.all[0].address) as proxy, three.client() as other:
        other.queue("q").reserve(1, block=0)
        with Penstock([proxy.url, *three.urls[1:]], retry_for=0.3) as ps:
            one_on(three.all[0], lease=8)
            [job] = ps.queue("q").reserve(1)
            proxy.refuse()
            proxy.cut()
            assert list(ps.queue("q").ack([job])) == [Outcome.HINTED]
            wait_for(lambda: not other.queue("q").reserve(1, block=0.1) and _is_done(three, 0))
            assert other.queue("q").stats().deliveries == 1


def _is_done(servers: Servers, number: int) -> bool:
    with Penstock(servers.urls[number]) as single:
        return single.queue("q").stats().acked == 1


def test_hints_are_bounded(three: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with the maximum of hints is skipped; if all have it, the error says so."""
    monkeypatch.setattr(hints, "MAX_HINTS", 3)
    with three.client(retry_for=0.2) as ps:
        q = ps.queue("q")
        for number in range(8):
            one_on(three.all[0], number, lease=30)
        jobs = q.reserve(8)
        three.all[0].kill()
        assert list(q.ack(jobs[:2])) == [Outcome.HINTED] * 2
        assert list(q.ack(jobs[2:4])) == [Outcome.HINTED] * 2
        assert sorted(three.raw(n).hlen("penstock:hints") for n in (1, 2)) == [2, 2]
        with pytest.raises(RedisError):
            q.ack(jobs[4:6])
        assert list(q.ack(jobs[4:5])) == [Outcome.HINTED]
        assert sum(three.raw(n).hlen("penstock:hints") for n in (1, 2)) == 5


@pytest.mark.parametrize("ahead", [-60, 60])
def test_the_home_of_a_hint_has_another_time(
    three: Servers, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """A hint for a short-ttl job is kept although the nodes' clocks differ by a minute."""
    use_test_clock(monkeypatch)
    monkeypatch.setattr(federation, "NODE_LIST_MAX_AGE", 0.2)
    now = int(time.time() * 1000)
    for number in range(3):
        TestClock(three.raw(number), now + (ahead * 1000 if number == 0 else 0))
    with three.client(retry_for=0.2) as ps:
        q = ps.queue("q")
        one_on(three.all[0], ttl=30, lease=20)
        [job] = q.reserve(1)
        three.all[0].kill()
        assert list(q.ack([job])) == [Outcome.HINTED]
        until = time.monotonic() + 1
        while time.monotonic() < until:
            assert q.reserve(1, block=0) == []  # meanwhile the lists are read
        three.all[0].restart()
        wait_for(lambda: not q.stats().unreachable)
        assert (q.stats().acked, q.stats().active) == (1, 0)


# -- unknown results ---------------------------------------------------------------------------


@pytest.mark.parametrize("on_unknown", ["raise", "next"])
def test_taking_back_fails(three: Servers, on_unknown: str) -> None:
    """Too few replicas, and the withdrawal's reply is lost: the job may exist."""
    load_scripts(three.raw(0))
    silent, replica = (
        three.more("--replicaof", "127.0.0.1", str(three.all[node].port)) for node in (0, 1)
    )
    for raw in (three.raw(0), three.raw(1)):
        reach_replicas(raw, 1)
    silent.pause()
    with Proxy(three.all[0].address) as proxy:
        while True:
            source = [f"{proxy.url}?{HASTY}", three.urls[1]]
            ps = Penstock(source, retry_for=0.3, on_unknown=on_unknown)
            with Penstock(three.urls[0]) as single:
                first = single.hello().node[:8]
            if home_of(ps.queue("q").enqueue("first").id) == first:
                break
            ps.close()
        with ps:
            q = ps.queue("q")
            proxy.eat_reply(after=script("withdraw").sha.encode())
            proxy.refuse()
            if on_unknown == "raise":
                with pytest.raises(NotReplicated) as caught:
                    q.enqueue("x", durable=Durable(1, timeout=0.2))
                assert caught.value.withdrawn is None
            else:
                assert home_of(q.enqueue("x", durable=Durable(1, timeout=0.2)).id) != first
    silent.resume()
    assert replica.is_running


def test_pauses_and_similar_calls_name_missing_nodes(three: Servers) -> None:
    """Calls such as pause work on the other nodes; errors and reads name the missing node."""
    for server in three.all:
        one_on(server)
    with three.client(retry_for=0.2) as ps:
        q = ps.queue("q")
        q.stats()
        three.all[1].kill()
        away = f"127.0.0.1:{three.all[1].port}"
        for call in (q.pause, q.resume, q.sweep, lambda: q.configure(lease=9)):
            with pytest.raises(NodesMissed) as caught:
                call()
            assert list(caught.value.unreachable) == [away]
        q_settings = [_settings(three, number).lease for number in (0, 2)]
        assert q_settings == [9, 9]
        assert q.stats().unreachable == (away,)
        assert q.peek().unreachable == (away,)  # type: ignore[attr-defined]  # a Partial
        assert ps.queues().unreachable == (away,)  # type: ignore[attr-defined]  # same
        assert q.jobs().page().unreachable == (away,) or q.jobs().page().cursor != "0"
        pages, cursor = [], "0"
        while not pages or cursor != "0":
            pages.append(q.jobs().page(cursor))
            cursor = pages[-1].cursor
        assert {name for page in pages for name in page.unreachable} == {away}


def _settings(servers: Servers, number: int) -> Any:
    with Penstock(servers.urls[number]) as single:
        return single.queue("q").configure()


# -- timeouts for hanging nodes ----------------------------------------------------------------


def test_a_producer_without_a_connection_meets_a_node_that_hangs(three: Servers) -> None:
    """The client detects the hanging node by a short ping, not a second handshake."""
    with three.client() as ps:
        q = ps.queue("q")
        home = home_of(q.enqueue("before").id)
        server = three.with_id(ps, home)
        [mine] = [one for one in ps.topology.current.nodes if one.id == home]  # type: ignore[union-attr]  # a federation
        mine.executor.close()
        time.sleep(FLAG_MAX_AGE)
        server.pause()
        try:
            began = time.monotonic()
            assert home_of(q.enqueue("x").id) != home
            assert time.monotonic() - began < 4.5
        finally:
            server.resume()


def test_a_producer_does_not_miss_a_quick_restart(three: Servers) -> None:
    """A node restarted between two calls is used as before."""
    with three.client() as ps:
        q = ps.queue("q")
        home = home_of(q.enqueue("before").id)
        server = three.with_id(ps, home)
        for _ in range(3):
            server.kill()
            server.restart()
            assert home_of(q.enqueue("after").id) == home


class Hole:
    """A listener that accepts no connection, so that clients hang.

    Args:
        port: where.
    """

    def __init__(self, port: int) -> None:
        self._socks = [socket.socket() for _ in range(9)]
        listening, *guests = self._socks
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(0)
        for guest in guests:
            guest.setblocking(False)
            guest.connect_ex(("127.0.0.1", port))

    def __enter__(self) -> Hole:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._socks:
            sock.close()


def test_a_node_that_accepts_no_connection(three: Servers) -> None:
    """A host disappears without an error: calls wait two seconds for it, once."""
    with three.client() as ps:
        q = ps.queue("q")
        q.reserve(1, block=0)
        down = three.all[0]
        down.kill()
        assert down.port is not None
        with Hole(down.port):
            one_on(three.all[1])
            began = time.monotonic()
            jobs = []
            while not jobs:
                jobs = q.reserve(1, block=0)
            assert time.monotonic() - began < 4.5
            began = time.monotonic()
            assert q.ack(jobs).all_done
            assert q.reserve(1, block=0) == []
            assert time.monotonic() - began < 1.9


def test_hello_has_the_state_of_each_node(three: Servers) -> None:
    """`hello` has id, address, priority, memory and leaving flag; less for a node that is down."""
    with three.client(retry_for=0.3) as ps:
        ids = {view.address: view.id for view in ps.hello().nodes}
        assert all(len(one) == 40 for one in ids.values())
        fill_up(three.raw(0), 0.8)
        addresses = [f"127.0.0.1:{server.port}" for server in three.all]
        ps.nodes.leave(addresses[1])
        three.all[2].kill()
        found = {view.address: view for view in ps.hello().nodes}
        assert {address: view.id for address, view in found.items()} == ids
        full, leaving, down = (found[address] for address in addresses)
        assert (full.priority, full.leaving, full.error) == (10, False, "")
        assert 0 < (full.used_memory or 0) < (full.max_memory or 0)
        assert (leaving.priority, leaving.leaving, leaving.max_memory) == (100, True, 0)
        assert (down.priority, down.used_memory, down.max_memory) == (100, None, None)
        assert down.error


def test_threads_send_for_a_node_at_once(three: Servers) -> None:
    """Many threads check a node that is down; closing the client ends all checks."""
    ps = hasty(three)
    ps.queue("q").reserve(1, block=0)
    three.all[0].pause()
    try:
        assert ps.queue("q").stats().unreachable
        gate, before = threading.Barrier(16), sys.getswitchinterval()
        home = ps.topology.current
        assert isinstance(home, Federation)

        def tend() -> None:
            gate.wait()
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                home.start_due_looks()

        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=tend) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
        ps.close()
        assert not [one for one in threading.enumerate() if one.name == "penstock-background"]
    finally:
        three.all[0].resume()


def test_a_node_fails_during_the_ack_of_many_jobs(three: Servers) -> None:
    """Acks done on the failed node are done, the rest are hints, and the outcomes say which."""
    with (
        Proxy(three.all[0].address) as proxy,
        Penstock([proxy.url, *three.urls[1:]], retry_for=0.3) as ps,
        Penstock(three.urls[0]) as single,
    ):
        q = ps.queue("q")
        single.queue("q").enqueue_many(range(2501), lease=30)
        one, *jobs = q.reserve(2501)
        assert q.ack([one]).all_done  # opens a connection for settling
        proxy.cut_after_request_bytes(1, after=number_of(jobs[1500]))
        proxy.refuse()
        assert list(q.ack(jobs)) == [Outcome.DONE] * 1000 + [Outcome.HINTED] * 1500
        proxy.restore()
        wait_for(lambda: not q.stats().unreachable)
        assert (q.stats().acked, q.stats().active) == (2501, 0)
