"""A service of real servers and Sentinels: the primary dies, is replaced, or is paused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, DeliveryNotReplicated, Durable, Penstock, Queue
from penstock.client._sync.transport.settings import SOCKET_TIMEOUT
from penstock.embedded import EmbeddedServer
from penstock.worker import AsyncWorker, Worker
from tests.model.clock import TestClock, use_test_clock
from tests.nodes.load import Load
from tests.nodes.service import NAME, Service
from tests.support.keyspace import check_invariant
from tests.support.twins import Beside, spawn, wait_for

MOVED = SOCKET_TIMEOUT + 1.0
"""Maximum of seconds until a waiting consumer uses another primary: it may have sent a call to a
primary that is frozen, and gives up that call after the time-out of its socket."""
RETRY_FOR = 30.0


@pytest.fixture
def service() -> Iterator[Service]:
    """A primary, two replicas, three Sentinels."""
    began = time.monotonic()
    with Service() as made:
        assert time.monotonic() - began < 10
        yield made


def test_the_fixture(service: Service) -> None:
    """All processes run, agree, and work with redis-py itself."""
    assert len(service.replicas()) == 2
    with service.client() as client:
        client.set("k", 1)
        assert client.execute_command("WAIT", 2, 4000) == 2


def test_a_wait_for_a_result_outlives_a_failover(service: Service) -> None:
    """A call that waits for a result gets it from the new primary."""
    with Penstock(service.url, retry_for=RETRY_FOR) as ps:
        queue = ps.queue("q")
        job = queue.enqueue(b"x", result_ttl=600, replicas=2)
        waiting = spawn(queue.result, job.id, timeout=60)
        service.wait_for_another_than(service.kill_primary())
        (taken,) = queue.reserve(block=20)
        assert not waiting.is_done
        assert taken.ack()
        assert waiting.result() is None
        assert job.result(timeout=10) is None


# -- under load --------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [3])
def test_the_primary_is_killed_under_load(service: Service, turns: int) -> None:
    """Repeated kills: jobs confirmed by two replicas are delivered by the new primary."""
    with Load(service.url, replicas=2) as load:
        load.wait_more()
        for _ in range(turns):
            old = load.strike(service.kill_primary)
            service.wait_for_another_than(old)
            load.wait_delivery()
            service.bring_back(old)
            load.wait_more()
        load.drain()
        assert load.check()["confirmed"] > 200 * turns
    check_invariant(service.raw(service.primary()))


def test_another_primary_is_chosen_under_load(service: Service) -> None:
    """After SENTINEL FAILOVER the old primary works for some seconds and loses its writes."""
    with Load(service.url, replicas=2) as load:
        load.wait_more()
        for _ in range(2):
            load.strike(service.fail_over)
            load.wait_delivery()
            service.wait_whole()
            load.wait_more()
        load.drain()
        assert load.check()["confirmed"] > 400
    check_invariant(service.raw(service.primary()))


# -- waits -------------------------------------------------------------------------------------


class Waiting:
    """Consumers of each kind, each blocked on its own queue.

    Args:
        service: where.
    """

    KINDS = ("thread", "task", "worker", "asyncio worker")

    def __init__(self, service: Service) -> None:
        self._service = service
        self.seen: dict[str, list[Any]] = {kind: [] for kind in self.KINDS}
        self._stack = ExitStack()
        self._ending = threading.Event()
        self._others: list[Beside[None]] = []

    def __enter__(self) -> Waiting:
        client = Penstock(self._service.client(), retry_for=RETRY_FOR)
        worker = Worker(client, "worker", self._see("worker"))
        self._stack.enter_context(worker)
        self._others = [spawn(self._thread), spawn(asyncio.run, self._tasks())]
        primary = self._service.raw(self._service.primary())
        wait_for(lambda: primary.info("clients")["blocked_clients"] == len(self.KINDS))
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._stack.close()
        for other in self._others:
            other.result(40)

    def _see(self, kind: str) -> Callable[[Any], None]:
        return lambda job: self.seen[kind].append(job.body)

    def _thread(self) -> None:
        with Penstock(self._service.url, retry_for=RETRY_FOR) as ps:
            while not self._ending.is_set():
                for job in ps.queue("thread").reserve(1, block=3):
                    self.seen["thread"].append(job.body)
                    job.ack()

    async def _tasks(self) -> None:
        async def seen(job: Any) -> None:
            self.seen["asyncio worker"].append(job.body)

        lent = self._service.async_client()
        client = AsyncPenstock(lent, retry_for=RETRY_FOR)
        async with AsyncWorker(client, "asyncio worker", seen), AsyncPenstock(lent) as ps:
            while not self._ending.is_set():
                for job in await ps.queue("task").reserve(1, block=3):
                    self.seen["task"].append(job.body)
                    await job.ack()
        await lent.aclose()

    def got(self, url: str, body: str) -> dict[str, float]:
        """Return the seconds from an enqueue to its delivery, for each kind."""
        began, found = time.monotonic(), {}
        with Penstock(url, retry_for=RETRY_FOR) as ps:
            for kind in self.KINDS:
                ps.queue(kind).enqueue(body)
        for kind in self.KINDS:
            wait_for(lambda: body in self.seen[kind])  # noqa: B023
            found[kind] = time.monotonic() - began
        return found


def kill(service: Service) -> EmbeddedServer:
    """Kill the primary."""
    old = service.kill_primary()
    service.wait_for_another_than(old)
    return old


def freeze(service: Service) -> EmbeddedServer:
    """Pause the primary: its connections stay open."""
    old = service.primary()
    old.pause()
    service.wait_for_another_than(old)
    return old


@pytest.mark.parametrize("how", [kill, Service.fail_over, freeze], ids=["kill", "switch", "freeze"])
def test_consumers_that_wait_move(
    service: Service, how: Callable[[Service], EmbeddedServer], record_property: Any
) -> None:
    """Waiting consumers continue at the new primary soon after its promotion."""
    with Waiting(service) as waiting:
        waiting.got(service.url, "before")
        how(service)
        seconds = waiting.got(service.primary().url, "after")
        record_property("seconds", seconds)
        assert max(seconds.values()) < MOVED, seconds
        again = waiting.got(service.url, "later")
        assert max(again.values()) < MOVED, again


def test_all_clients_leave_a_demoted_primary(service: Service) -> None:
    """Sentinels and clients close its connections; new ones go to the new primary."""
    with Waiting(service):
        old = service.fail_over()
        raw = service.raw(old)
        wait_for(lambda: _is_left(raw), 30)


def _is_left(raw: redis.Redis) -> bool:
    """Tell if a server is demoted, and no client calls it or waits there."""
    try:
        is_demoted = raw.info("replication")["role"] == "slave"
        no_client_waits = raw.info("clients")["blocked_clients"] == 0
        only_known = all(_is_known(client) for client in raw.client_list())
        return is_demoted and no_client_waits and only_known
    except redis.ConnectionError:  # Sentinels close the test's connection too
        return False


def _is_known(client: dict[str, Any]) -> bool:
    """Tell if a connection is that of a Sentinel, of the primary, or of the test."""
    asks = client["cmd"].split("|")[0] in ("client", "info")  # 6.2 leaves out the subcommand
    return client["name"].startswith("sentinel-") or client["flags"] != "N" or asks


def test_one_sentinel_is_enough(service: Service) -> None:
    """With one of three Sentinels left, old and new clients find their primary."""
    with Penstock(service.url) as ps:
        ps.queue("q").enqueue(1)
        for sentinel in service.sentinels[:2]:
            sentinel.kill()
        ps.queue("q").enqueue(2)
        with Penstock(service.url) as later:
            assert [job.body for job in later.queue("q").reserve(5, block=0)] == [1, 2]


def test_the_primary_comes_back_before_it_is_missed(service: Service) -> None:
    """A primary without a file restarts before its Sentinels notice, and its jobs are lost.

    The replicas copy the empty server. Automatic restarts need a server with a file.
    """
    primary = service.primary()
    with Penstock(service.url, retry_for=RETRY_FOR) as ps:
        ps.queue("q").enqueue(1)
        epoch = service.raw(service.sentinels[0]).sentinel_master(NAME)["config-epoch"]
        primary.kill()
        call = spawn(ps.queue("q").enqueue, 2)
        primary.restart()
        assert call.result(60)
        if service.raw(service.sentinels[0]).sentinel_master(NAME)["config-epoch"] == epoch:
            assert service.primary() is primary


# -- clocks ------------------------------------------------------------------------------------

START = 1_800_000_000_000


def settled(service: Service) -> None:
    """Wait until both replicas have all writes."""
    raw = service.raw(service.primary())
    wait_for(lambda: bool(raw.set("settled", 1)) and raw.execute_command("WAIT", 2, 1000) == 2)


def take(q: Queue) -> list[Any]:
    """Return the bodies that can be reserved now."""
    return [job.body for job in q.reserve(100, block=0)]


def lease_left(q: Queue) -> dict[Any, int]:
    """Return the remaining seconds of the leases, by the queue's time."""
    views = q.peek(100, state="active")
    return {view.body: round((view.lease_until or 0) - view.now) for view in views}


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make scripts read the time that the test sets on each server."""
    use_test_clock(monkeypatch)


def prepared(q: Queue, clock: TestClock) -> list[str]:
    """A queue with timed jobs in each state; returns the ids."""
    ids = [q.enqueue(body, lease=30).id for body in ("held", "leased")]
    held, leased = q.reserve(2, block=0)
    assert (held.body, leased.body) == ("held", "leased")
    ids.append(q.enqueue("delayed", delay=40).id)
    ids.append(q.enqueue("mortal", ttl=50, delay=10).id)
    clock.set(START + 5_000)
    held.extend(30)  # a write, which stores the queue's clock
    return ids


@pytest.mark.usefixtures("clocks")
def test_the_next_primary_is_a_minute_behind(service: Service) -> None:
    """The queue's clock continues from its last stored time, so nothing ends early.

    A lease of 30 seconds ends 30 seconds later by the queue's time, which continues from 5 s and
    not from 55 s before.
    """
    raw = service.raw(service.primary())
    clock = TestClock(raw, START)
    with Penstock(service.url, retry_for=RETRY_FOR) as ps:
        q = ps.queue("q")
        ids = prepared(q, clock)
        settled(service)
        kill(service)
        clock = TestClock(service.raw(service.primary()), START + 5_000 - 60_000)
        assert take(q) == []
        ids.append(q.enqueue("after").id)
        assert ids == sorted(ids)
        assert take(q) == ["after"]
        stats = q.stats()
        assert (stats.active, stats.scheduled) == (3, 2)
        assert lease_left(q) == {"held": 30, "leased": 25, "after": 30}
        clock.set(clock.ms + 10_000)
        assert take(q) == ["mortal"]
        clock.set(clock.ms + 20_000)
        assert sorted(take(q)) == ["leased", "mortal"]  # a short ttl has a short lease
        check_invariant(service.raw(service.primary()))


@pytest.mark.usefixtures("clocks")
def test_the_next_primary_is_a_minute_ahead(service: Service) -> None:
    """Times below a minute end at once; ids rise, and no job is lost."""
    raw = service.raw(service.primary())
    clock = TestClock(raw, START)
    with Penstock(service.url, retry_for=RETRY_FOR) as ps:
        q = ps.queue("q")
        ids = prepared(q, clock)
        settled(service)
        kill(service)
        clock = TestClock(service.raw(service.primary()), START + 5_000 + 60_000)
        assert take(q) == ["leased", "held", "delayed"]  # their times have come
        assert q.stats().unswept + q.stats().expired == 1  # "mortal"
        ids.append(q.enqueue("after").id)
        service.bring_back(next(one for one in service.servers if not one.is_running))
        settled(service)
        kill(service)  # and back to the right time
        clock = TestClock(service.raw(service.primary()), START + 6_000)
        ids.append(q.enqueue("and back").id)
        assert ids == sorted(set(ids))
        assert take(q) == ["after", "and back"]
        check_invariant(service.raw(service.primary()))


def test_a_delivery_at_most_once(service: Service) -> None:
    """After a failover a job whose delivery all replicas confirmed is not delivered again."""
    with Penstock(service.url, retry_for=RETRY_FOR) as ps:
        q = ps.queue("q")
        q.enqueue_many(["x", "y"], lease=0)
        assert [job.body for job in q.reserve(durable=Durable(2, timeout=15))] == ["x"]
        service.wait_for_another_than(service.kill_primary())
        with pytest.raises(DeliveryNotReplicated, match="of 2 replicas are connected, no job"):
            q.reserve(durable=Durable(2))
        assert [job.body for job in q.reserve(2, block=0)] == ["y"]
