"""Network partitions: jobs confirmed by all replicas are delivered on either side."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from penstock import Penstock
from tests.nodes.load import Load
from tests.nodes.partition import Partitioned
from tests.nodes.service import NAME
from tests.support.keyspace import check_invariant
from tests.support.twins import spawn, wait_for


@pytest.fixture
def service() -> Iterator[Partitioned]:
    """A primary, two replicas and three Sentinels, connected through proxies."""
    began = time.monotonic()
    with Partitioned() as made:
        assert time.monotonic() - began < 10
        yield made


def test_the_primary_is_alone_with_the_clients(service: Partitioned) -> None:
    """The primary is isolated with its clients: they leave it, and confirmed jobs are safe.

    Jobs that only this primary confirmed are lost when it becomes a replica.
    """
    with Load(service.url, replicas=2) as load:
        load.wait_more()
        old = service.primary()
        load.strike(lambda: service.isolate(old))
        service.wait_for_another_than(old)
        raw = service.raw(old)
        assert raw.info("replication")["role"] == "master"
        load.wait_delivery()
        wait_for(lambda: raw.info("clients")["blocked_clients"] == 0)
        load.strike(service.heal)
        load.wait_more()
        load.drain()
        load.check()
        assert load.refused  # by one replica of two
    check_invariant(service.raw(service.primary()))


def test_how_long_a_primary_that_is_alone_is_believed(service: Partitioned) -> None:
    """Without WAIT an isolated primary loses jobs until a second after the election.

    Ids of lost jobs match no job.
    """
    with Penstock(service.url, retry_for=30) as ps:
        q = ps.queue("q")
        q.enqueue("before")
        old = service.primary()
        service.isolate(old)
        alone = [q.enqueue("alone").id for _ in range(10)]
        while service.primary() is old:
            alone.append(q.enqueue("alone").id)
        chosen = time.monotonic()
        door = service.outer[service.primary()]
        while not door.connections:
            alone.append(q.enqueue("alone").id)
        assert time.monotonic() - chosen < 4
        after = q.enqueue("after").id
        service.heal()
        assert [job.body for job in q.reserve(9, block=0)][:1] == ["before"]
        assert after not in alone
        assert all(q.show(one) is None for one in alone[:10])


def test_the_clients_are_cut_off_from_the_primary(service: Partitioned) -> None:
    """Clients are isolated, without an election: they retry, and each call counts once."""
    for sentinel in service.sentinels:  # a second is too short on a busy machine
        down_after = ("SENTINEL SET", NAME, "down-after-milliseconds", 60_000)
        service.raw(sentinel).execute_command(*down_after)
    with Load(service.url, replicas=2) as load:
        load.wait_more()
        old = service.primary()
        load.strike(service.outer[old].hole)
        before = len(load.confirmed)
        wait_for(lambda: _is_silent(load), 20)
        assert len(load.confirmed) <= before + 10
        assert service.primary() is old
        load.strike(service.heal)
        load.wait_more()
        load.drain()
        load.check()
    check_invariant(service.raw(service.primary()))


def _is_silent(load: Load) -> bool:
    """Tell if no job was delivered for longer than a socket timeout."""
    last = max(times[-1] for times in list(load.delivered.values()))
    return time.monotonic() - last > 2.5


def test_clients_and_primary_are_cut_off_together(service: Partitioned) -> None:
    """Isolated clients can't learn of the election; jobs confirmed by two replicas are safe."""
    with Load(service.url, replicas=2) as load:
        load.wait_more()
        old = service.primary()
        for gate in service.gates:
            gate.hole()
        load.strike(lambda: service.isolate(old))
        service.wait_for_another_than(old)
        load.strike(service.heal)
        load.wait_more()
        load.drain()
        load.check()
    check_invariant(service.raw(service.primary()))


def test_replies_are_lost_on_the_way_to_the_next_primary(service: Partitioned) -> None:
    """An enqueue whose reply was lost with its primary is repeated with its number: added once."""
    with Penstock(service.url, retry_for=30) as ps:
        q = ps.queue("q")
        q.enqueue("first")
        old = service.primary()
        door = service.outer[old]
        door.hole("down")  # it runs commands, and its replies are lost
        call = spawn(q.enqueue, "second")
        raw = service.raw(old)
        wait_for(lambda: raw.xlen("penstock:{q}:ready") == 2)
        wait_for(lambda: bool(raw.set("settled", 1)) and raw.execute_command("WAIT", 2, 1000) == 2)
        old.kill()
        assert call.result(40).state == "ready"
        assert [job.body for job in q.reserve(9, block=0)] == ["first", "second"]
