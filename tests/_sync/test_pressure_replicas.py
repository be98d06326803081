# From tests/_async/test_pressure_replicas.py by tools/unasync.py; do not edit.
"""Putting a message and waiting for replicas: a primary with two replicas."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import NotReplicated, OutcomeUnknown, QueueFull
from penstock.embedded import EmbeddedServer
from penstock.pressure import PressureCounters, PressureQueue, PutNotReplicated
from tests.support.backends import Backend
from tests.support.proxy import Proxy
from tests.support.replicated import Replicated, replicated
from tests.support.twins import spawn, wait_for

BASE = "__pressure__:q"


@pytest.fixture
def trio(make_server: Callable[..., EmbeddedServer]) -> Iterator[Replicated]:
    """A primary and two replicas that follow it."""
    with replicated(make_server) as made:
        yield made


@pytest.fixture
def pq(trio: Replicated) -> Iterator[PressureQueue]:
    """A queue with bound 2 on the primary."""
    with PressureQueue("q", trio.url) as queue:
        queue.create(2)
        yield queue


def copies(trio: Replicated) -> list[list[bytes]]:
    """Return the messages of each replica, newest first."""
    return [raw.lrange(BASE, 0, -1) for raw in trio.copies]


def at_rest(trio: Replicated) -> bool:
    """Tell if both roles are free."""
    return [trio.raw.llen(f"{BASE}:{role}_free") for role in ("producer", "consumer")] == [1, 1]


def test_a_put_that_replicas_confirm(trio: Replicated, pq: PressureQueue) -> None:
    """Both replicas have the message when the call returns; without `replicas` no WAIT is sent."""
    pq.put("a", replicas=2, replication_timeout=10)
    assert copies(trio) == [[b"a"]] * 2
    waits = trio.calls()[1]
    pq.put("b")
    assert trio.calls()[1] == waits


def test_a_put_that_had_to_wait_for_room(trio: Replicated, pq: PressureQueue) -> None:
    """WAIT is sent on the connection on which the message was put."""
    for message in ("a", "b"):
        pq.put(message)
    putting = spawn(pq.put, "c", replicas=2, replication_timeout=10)
    wait_for(lambda: not trio.raw.exists(f"{BASE}:producer_free"))
    with PressureQueue("q", trio.url) as other:
        assert other.get() == b"a"
    putting.result()
    assert [found[0] for found in copies(trio)] == [b"c"] * 2
    assert at_rest(trio)


def test_too_few_replicas_are_connected(trio: Replicated, pq: PressureQueue) -> None:
    """With too few connected replicas the put is refused at once; a put that asks
    for fewer succeeds.
    """
    trio.cut(0)
    with pytest.raises(NotReplicated, match="1 of 2 replicas are connected") as caught:
        pq.put("a", replicas=2, replication_timeout=60)
    assert (caught.value.connected, caught.value.withdrawn) == (1, True)
    assert not isinstance(caught.value, PutNotReplicated)
    assert pq.counters() == PressureCounters(0, 0, 0, 0)
    pq.put("a", replicas=1, replication_timeout=10)
    assert pq.get() == b"a"
    assert at_rest(trio)


def test_replicas_that_go_while_the_put_waits(trio: Replicated, pq: PressureQueue) -> None:
    """Replicas disconnect while the put waits for room: it is refused and gives the role back."""
    for message in ("a", "b"):
        pq.put(message)
    putting = spawn(pq.put, "c", replicas=2)
    wait_for(lambda: not trio.raw.exists(f"{BASE}:producer_free"))
    for replica in (0, 1):
        trio.cut(replica)
    with PressureQueue("q", trio.url) as other:
        assert other.get() == b"a"
    with pytest.raises(NotReplicated) as caught:
        putting.result()
    assert caught.value.connected == 0
    assert pq.length() == 1
    assert at_rest(trio)


@pytest.mark.parametrize("waits", [False, True])
def test_a_message_that_is_not_confirmed_in_time(
    trio: Replicated, pq: PressureQueue, waits: bool
) -> None:
    """A message that is not confirmed in time stays in the queue; the error says so."""
    if waits:
        for message in ("a", "b"):
            pq.put(message)
    trio.settle()
    trio.replicas[0].pause()
    putting = spawn(pq.put, "c", replicas=2, replication_timeout=1.5)
    if waits:
        wait_for(lambda: not trio.raw.exists(f"{BASE}:producer_free"))
        with PressureQueue("q", trio.url) as other:
            assert other.get() == b"a"
    with pytest.raises(PutNotReplicated, match="do not put it again") as caught:
        putting.result()
    error = caught.value
    assert (error.wanted, error.got, error.withdrawn, error.connected) == (2, 1, False, None)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.got) == (str(error), 1)
    got = [pq.get() for _ in range(pq.length())]
    assert got == ([b"b", b"c"] if waits else [b"c"])
    assert at_rest(trio)


def test_a_full_queue_raises_before_replicas_are_waited_for(
    trio: Replicated, pq: PressureQueue
) -> None:
    """For a full queue the call fails before any time for replicas; that begins at the put."""
    for message in ("a", "b"):
        pq.put(message)
    with pytest.raises(QueueFull):
        pq.put("c", timeout=0.1, replicas=2, replication_timeout=60)
    assert at_rest(trio)


def test_a_connection_that_fails_while_replicas_are_waited_for(trio: Replicated) -> None:
    """When the connection fails during WAIT the outcome is unknown, and the put is not repeated."""
    with Proxy(trio.primary.address) as proxy:
        with PressureQueue("q", proxy.url) as q:
            q.create()
            q.put("a", replicas=2, replication_timeout=10)
            proxy.eat_reply(after=b"EVALSHA")
            with pytest.raises(OutcomeUnknown):
                q.put("b", replicas=2, replication_timeout=10)
            assert q.counters() == PressureCounters(2, 2, 0, 0)


def test_a_server_that_has_no_replicas(backend: Backend) -> None:
    """A server without replicas refuses the call; fakeredis can't be asked, and
    confirms nothing.
    """
    lent: Any
    with backend.sync_client() as lent:
        q = PressureQueue("q", lent)
        q.create()
        with pytest.raises(NotReplicated) as caught:
            q.put("a", replicas=1, replication_timeout=0.05)
        assert isinstance(caught.value, PutNotReplicated) is backend.is_fake
        assert q.length() == int(backend.is_fake)
        q.disconnect()


def test_the_text_of_the_error() -> None:
    """The error has the number of confirmations, says that the message is queued, and advises."""
    assert str(PutNotReplicated(3, 1)) == (
        "1 of 3 replicas confirmed: the message is in the queue: do not put it again"
    )
    assert issubclass(PutNotReplicated, redis.RedisError) is False
