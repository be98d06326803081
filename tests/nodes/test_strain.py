"""Callers that wait, share, and end, while nodes leave, hang, or tell another time."""

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
from penstock.client._sync.sharded import federation
from penstock.client._sync.sharded.federation import Federation
from penstock.core import hints
from penstock.core.nodes import LOOK
from penstock.wire.scripts import script
from tests.model.clock import TestClock, use_test_clock
from tests.nodes.federation import Servers, fill_up, home_of, one_on
from tests.support.keyspace import load_scripts
from tests.support.proxy import Proxy
from tests.support.twins import await_for, spawn, wait_for

HASTY = "socket_timeout=0.5"


def hasty(servers: Servers, **options: Any) -> Penstock:
    """A client that does not wait long for a reply."""
    return Penstock([f"{url}?{HASTY}" for url in servers.urls], retry_for=0.5, **options)


# -- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_who_waits_for_room_hears_that_the_node_leaves(three: Servers, many: bool) -> None:
    """The room that comes there is not taken: the job goes to another node, within a second."""
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
    """When a consumer makes it, at once; in vain it is told at the time given, and no earlier."""
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
    """Whether it has the job is not known, which is told soon; the next one goes elsewhere."""
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
    """The ack is kept elsewhere; that the node does it too when it goes on changes nothing."""
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


def test_a_client_is_closed_beside_a_node_that_hangs(three: Servers) -> None:
    """It does not wait for it longer than for one reply, in either world."""
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
    """Threads that add and do jobs by one client, with the interpreter given away often.

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
        except BaseException as error:  # noqa: BLE001  # told at the end
            self.broken.append(error)

    def _produce(self) -> None:
        with suppress(RedisError):  # it is not known
            self.added.append(self._q.enqueue("x").id)

    def consume(self) -> None:
        """Do some jobs."""
        with suppress(RedisError):
            for job in self._q.reserve(5, block=0.1):
                self.done[job.id] += 1
                job.ack()

    def wait_added(self, count: int) -> None:
        """Return when so many more jobs were added."""
        goal = len(self.added) + count
        wait_for(lambda: bool(self.broken) or len(self.added) > goal)


def test_threads_share_a_client_while_nodes_fall(three: Servers) -> None:
    """Each job is delivered, and what each thread has done is done."""
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
    """Their waits go on to their end, and no call fails with a closed connection."""
    ps = three.client()
    waiting = [spawn(ps.queue("q").reserve, 1, block=6) for _ in range(3)]
    wait_for(lambda: all(_blocked(three, number) == 3 for number in range(3)))
    ps.close()
    one_on(three.all[1])
    found = [job.body for one in waiting for job in one.result()]
    assert found == ["x"]
    ps.close()


def test_a_client_is_closed_while_tasks_wait(three: Servers) -> None:
    """The same in an event loop; those that are cancelled leave no wait behind."""

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


def test_who_knew_of_no_outage_hears_of_hints(
    three: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the client that did the job is cut off from its home: others do its ack in time."""
    monkeypatch.setattr(federation, "REFRESH", 0.3)
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
    """A node that keeps as many as it may is passed over; when all do so the caller is told."""
    monkeypatch.setattr(hints, "MOST", 3)
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
    """A minute behind those that keep it, or ahead: the ack of a job of a short ttl is kept."""
    use_test_clock(monkeypatch)
    monkeypatch.setattr(federation, "REFRESH", 0.2)
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
            assert q.reserve(1, block=0) == []  # and the lists are read meanwhile
        three.all[0].restart()
        wait_for(lambda: not q.stats().unreachable)
        assert (q.stats().acked, q.stats().active) == (1, 0)


# -- what is not known -------------------------------------------------------------------------


@pytest.mark.parametrize("on_unknown", ["raise", "next"])
def test_taking_back_fails(three: Servers, on_unknown: str) -> None:
    """Too few replicas, and the reply to the withdrawal is lost: the job may be there."""
    load_scripts(three.raw(0))
    silent, replica = (
        three.more("--replicaof", "127.0.0.1", str(three.all[node].port)) for node in (0, 1)
    )
    for raw in (three.raw(0), three.raw(1)):
        wait_for(lambda raw=raw: raw.incr("step") and raw.wait(1, 500) == 1)
        raw.delete("step")
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


def test_pauses_and_their_like_name_who_was_missed(three: Servers) -> None:
    """The other nodes carry the calls out; errors and reads name the missing node."""
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
        assert q.scan().unreachable == (away,) or q.scan().cursor != "0"
        pages, cursor = [], "0"
        while not pages or cursor != "0":
            pages.append(q.scan(cursor))
            cursor = pages[-1].cursor
        assert {name for page in pages for name in page.unreachable} == {away}


def _settings(servers: Servers, number: int) -> Any:
    with Penstock(servers.urls[number]) as single:
        return single.queue("q").configure()


# -- how long a node that says nothing is waited for -------------------------------------------


def test_a_producer_without_a_connection_meets_a_node_that_hangs(three: Servers) -> None:
    """It learns so by the brief question, not by a handshake on the other connection."""
    with three.client() as ps:
        q = ps.queue("q")
        home = home_of(q.enqueue("before").id)
        server = three.with_id(ps, home)
        [mine] = [one for one in ps.backend.home.homes if one.id == home]  # type: ignore[union-attr]  # a federation
        mine.node.close()
        time.sleep(LOOK)
        server.pause()
        try:
            began = time.monotonic()
            assert home_of(q.enqueue("x").id) != home
            assert time.monotonic() - began < 4.5
        finally:
            server.resume()


def test_a_producer_does_not_miss_a_quick_restart(three: Servers) -> None:
    """A node that was restarted between two calls is used as before."""
    with three.client() as ps:
        q = ps.queue("q")
        home = home_of(q.enqueue("before").id)
        server = three.with_id(ps, home)
        for _ in range(3):
            server.kill()
            server.restart()
            assert home_of(q.enqueue("after").id) == home


class Hole:
    """Listens at a port and never lets anybody in: connections hang.

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


def test_a_node_that_lets_nobody_in(three: Servers) -> None:
    """Its host is gone without an error: calls wait for it two seconds, once."""
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


def test_hello_says_how_each_node_is(three: Servers) -> None:
    """Id, address, priority, memory, whether it is leaving; of one that is down what is known."""
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
    """However many look after a node that is down, the end of the client is the end of them."""
    ps = hasty(three)
    ps.queue("q").reserve(1, block=0)
    three.all[0].pause()
    try:
        assert ps.queue("q").stats().unreachable
        gate, before = threading.Barrier(16), sys.getswitchinterval()
        home = ps.backend.home
        assert isinstance(home, Federation)

        def tend() -> None:
            gate.wait()
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                home.tend()

        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=tend) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
        ps.close()
        assert not [one for one in threading.enumerate() if one.name == "penstock-errand"]
    finally:
        three.all[0].resume()


def test_a_home_that_falls_amid_the_ack_of_many(three: Servers) -> None:
    """What was done there is done, the rest is kept elsewhere, and the answer says which."""
    with (
        Proxy(three.all[0].address) as proxy,
        Penstock([proxy.url, *three.urls[1:]], retry_for=0.3) as ps,
        Penstock(three.urls[0]) as single,
    ):
        q = ps.queue("q")
        single.queue("q").enqueue_many(range(2501), lease=30)
        one, *jobs = q.reserve(2501)
        assert q.ack([one]).all_done  # a connection to settle by
        proxy.cut_after_request_bytes(1, after=jobs[1500].number)
        proxy.refuse()
        assert list(q.ack(jobs)) == [Outcome.DONE] * 1000 + [Outcome.HINTED] * 1500
        proxy.restore()
        wait_for(lambda: not q.stats().unreachable)
        assert (q.stats().acked, q.stats().active) == (2501, 0)
