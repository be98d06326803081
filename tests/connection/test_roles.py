"""Exclusive roles whose taking has no reply, or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, BadArgument, Penstock, QueueInUse
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.support.proxy import Proxy
from tests.support.twins import Beside, spawn, wait_for

ACQUIRE = script("acquire").sha.encode()
TRIES = 2
"""Number of sendings with `retry_for=0`: the first connection may have been an old one."""

Server = Callable[..., EmbeddedServer]


def test_a_taking_that_was_not_answered(make_server: Server) -> None:
    """After a lost reply the same object takes the role again; another object is refused."""
    server = make_server(tcp=True)
    with (
        Penstock(server.url) as other,
        Proxy(server.address) as door,
        Penstock(door.url, retry_for=0) as ps,
    ):
        q = ps.queue("q")
        with q.exclusive("producer"):
            pass  # the server knows the script
        role = q.exclusive("producer", lease=600, block=0)
        for _ in range(TRIES):
            door.eat_reply(after=ACQUIRE)
        with pytest.raises(redis.ConnectionError):
            role.take()
        holder = q.stats().producer
        assert holder is not None
        with pytest.raises(QueueInUse):
            other.queue("q").enqueue("refused")
        with pytest.raises(QueueInUse):  # another object counts as another client
            q.exclusive("producer", block=0).take()
        with role:
            assert role.fence == holder.fence
            role.queue.enqueue("accepted")
        first = role.fence
        with role:  # after a confirmed taking, giving back ends it
            assert role.fence > first
        other.queue("q").enqueue("free again")


def test_a_taking_that_was_not_answered_may_be_given_back(make_server: Server) -> None:
    """The object that took the role without a reply can give it back."""
    server = make_server(tcp=True)
    with Proxy(server.address) as door, Penstock(door.url, retry_for=0) as ps:
        q = ps.queue("q")
        q.enqueue("a job")
        with q.exclusive("consumer"):
            pass  # the server knows the script
        role = q.exclusive("consumer", lease=600, block=0)
        for _ in range(TRIES):
            door.eat_reply(after=ACQUIRE)
        with pytest.raises(redis.ConnectionError):
            role.take()
        assert q.stats().consumer is not None
        assert role.release()
        assert q.stats().consumer is None
        assert len(q.reserve(block=0)) == 1


def is_refused(taking: Beside[Any]) -> bool:
    """Return True if the taking raised because another client has the role."""
    try:
        taking.result()
    except (QueueInUse, BadArgument):
        return True
    return False


def test_one_object_in_two_threads_is_two_parties(make_server: Server) -> None:
    """The second thread is refused; the first one gives back its own role."""
    with Penstock(make_server().url) as ps:
        q = ps.queue("q")
        role = q.exclusive("producer", lease=600, block=1)
        with q.exclusive("producer", lease=600):
            waiting = [spawn(role.take) for _ in range(2)]
            wait_for(lambda: role._unanswered == [] and q.stats().producer is not None)
        assert sorted(is_refused(one) for one in waiting) == [False, True]
        role.queue.enqueue("borne")
        assert role.release()
        assert q.stats().producer is None


def test_confirmed_and_unconfirmed_takings_are_given_back(make_server: Server) -> None:
    """Whichever taking reached the server, giving back leaves no role."""
    server = make_server(tcp=True)
    with Proxy(server.address) as door, Penstock(door.url, retry_for=0) as ps:
        q = ps.queue("q")
        role = q.exclusive("producer", lease=0.05, block=0)
        role.take()
        wait_for(lambda: role.lost)
        for _ in range(TRIES):
            door.eat_reply(after=ACQUIRE)
        role._lease_ms = 600_000
        with pytest.raises(redis.ConnectionError):
            role.take()
        assert q.stats().producer is not None
        assert role.release()
        assert q.stats().producer is None
        door.cut_after_request_bytes(0, after=ACQUIRE)
        door.refuse()
        with pytest.raises(redis.ConnectionError):
            role.take()
        door.restore()
        assert not role.release()  # the server never received it


@pytest.mark.parametrize("exists", [True, False], ids=["a queue", "none yet"])
async def test_a_taking_that_is_cancelled(make_server: Server, exists: bool) -> None:
    """A taking is cancelled at any point, once or twice: the next client can take
    the role at once.
    """
    server = make_server()
    async with AsyncPenstock(server.url) as ps:
        for steps in range(200):
            q = ps.queue(f"q{steps}")
            if exists:
                await q.enqueue("make the queue")
            task = asyncio.ensure_future(q.exclusive("producer", lease=600).take())
            for _ in range(steps):
                await asyncio.sleep(0)
            if task.done():
                break
            task.cancel()
            if steps % 2:
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait({task})
            assert task.cancelled(), f"a cancellation after {steps} turns of the loop was lost"
            assert (await q.stats()).producer is None, f"taken, cancelled after {steps} turns"
            async with q.exclusive("producer", block=0) as role:
                await role.queue.enqueue("in order")
        assert steps > 3
