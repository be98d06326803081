"""A call that fails, or that is repeated, does not keep the local variables of its callers.

The frames in the traceback of an error refer to their callers. So a client that keeps an error also
keeps what the callers have in their variables, such as the data of a handler.
"""

from __future__ import annotations

import asyncio  # async only
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, AsyncQueue, PenstockError
from penstock.client._acompat import asleep
from penstock.embedded import EmbeddedServer
from tests.support.freed import Freed, all_records, no_collector
from tests.support.proxy import Proxy
from tests.support.twins import aspawn, await_for

Call = Callable[[AsyncQueue], Awaitable[Any]]


@pytest.fixture
def freed() -> Iterator[Freed]:
    """Objects to watch, without the garbage collector."""
    with all_records(), no_collector():
        yield Freed()


@pytest.fixture
def proxy(make_server: Callable[..., EmbeddedServer]) -> Iterator[Proxy]:
    """A proxy in front of a server."""
    with Proxy(make_server(tcp=True).address) as found:
        yield found


async def call_with_data(call: Call, q: AsyncQueue, freed: Freed) -> None:
    """Call with an object in a local variable."""
    local = freed.make()
    await call(q)
    assert local is not None


async def ack_twice(q: AsyncQueue) -> None:
    """Acknowledge a job that is gone."""
    await q.enqueue(1)
    [job] = await q.reserve()
    await job.ack()
    await job.ack()


async def overfill(q: AsyncQueue) -> None:
    """Add more jobs than there is room for."""
    await q.enqueue_many([1, 2], max_length=1)


async def take_a_plain_key(q: AsyncQueue) -> None:
    """Call a queue one of whose keys has another type."""
    await q.enqueue(1)
    await q.route.node.executor.command("DEL", q.ops.keys["ready"])
    await q.route.node.executor.command("SET", q.ops.keys["ready"], "x")
    await q.reserve()


REFUSED: dict[str, Call] = {
    "a bad argument": lambda q: q.enqueue(1, delay=-1),
    "a body that is no JSON": lambda q: q.enqueue(object()),
    "many bodies that are no JSON": lambda q: q.enqueue_many([object()]),
    "a full queue": overfill,
    "a stale receipt": ack_twice,
    "a key of another type": take_a_plain_key,
    "a command that does not exist": lambda q: q.route.node.executor.command("NONE"),
    "no result": lambda q: q.result("x", timeout=0),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal(name: str, proxy: Proxy, freed: Freed) -> None:
    """The error has no owner when its caller has caught it."""
    async with AsyncPenstock(proxy.url) as ps:
        with suppress(PenstockError, redis.RedisError):
            await call_with_data(REFUSED[name], ps.queue("q"), freed)
        await await_for(freed.are_all)


@pytest.mark.parametrize("faults", [0, 1, 3], ids=["no script", "a lost reply", "three of them"])
async def test_a_call_that_is_repeated(faults: int, proxy: Proxy, freed: Freed) -> None:
    """A call that succeeds after errors keeps none of them."""
    async with AsyncPenstock(proxy.url) as ps:
        q = ps.queue("q")
        await q.enqueue(1)
        await q.route.node.executor.command("SCRIPT", "FLUSH")
        armed = [proxy.eat_reply(after=b"EVALSHA") for _ in range(faults)]
        await call_with_data(lambda q: q.enqueue(2), q, freed)
        await await_for(freed.are_all)
        assert [fault.has_struck for fault in armed] == [True] * faults
        assert (await q.stats()).ready == 2


@pytest.mark.parametrize("retry_for", [0, 0.1])
@pytest.mark.parametrize("call", ["enqueue", "stats", "reserve"])
async def test_a_server_that_is_gone(
    call: str, retry_for: float, proxy: Proxy, freed: Freed
) -> None:
    """The error is raised after the repeats, and is not kept."""
    calls: dict[str, Call] = {
        "enqueue": lambda q: q.enqueue(1),
        "stats": lambda q: q.stats(),
        "reserve": lambda q: q.reserve(block=1),
    }
    async with AsyncPenstock(proxy.url, retry_for=retry_for) as ps:
        q = ps.queue("q")
        await q.enqueue(1)
        await q.reserve()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            await call_with_data(calls[call], q, freed)
        await await_for(freed.are_all)


async def test_a_wait_that_is_cut(proxy: Proxy, freed: Freed) -> None:
    """A waiting call goes on after its connection was cut."""
    async with AsyncPenstock(proxy.url) as ps:
        q = ps.queue("q")
        await q.enqueue(1)
        await q.reserve()
        waiting = aspawn(call_with_data, lambda q: q.reserve(block=20), q, freed)
        await await_for(lambda: proxy.open_connections == 2)
        proxy.cut()
        await asleep(0)
        await q.enqueue(2)
        await waiting.result()
        await await_for(freed.are_all)


# [async only
async def test_calls_that_are_gathered(proxy: Proxy, freed: Freed) -> None:
    """Concurrent calls that fail together each raise the error, and keep it no longer."""
    async with AsyncPenstock(proxy.url, retry_for=0.1) as ps:
        q = ps.queue("q")
        await q.enqueue(1)
        proxy.refuse()
        proxy.cut()
        calls = [call_with_data(lambda q: q.enqueue(1), q, freed) for _ in range(20)]
        assert len(await asyncio.gather(*calls, return_exceptions=True)) == 20
        await await_for(lambda: freed.are_all(20))


# async only]
