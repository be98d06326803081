"""Cancelling an asyncio task while the reply with its jobs is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import AsyncJob, AsyncPenstock, AsyncWorker, Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.support.keyspace import check_invariant, load_scripts
from tests.support.proxy import Proxy
from tests.support.twins import await_for


@pytest.fixture
def door(server: EmbeddedServer) -> Iterator[Proxy]:
    """A proxy in front of the server, which has all scripts."""
    with redis.Redis.from_url(server.url) as raw, Proxy(server.address) as proxy:
        load_scripts(raw)
        yield proxy
        check_invariant(raw)


@pytest.fixture
def direct(server: EmbeddedServer, door: Proxy) -> Iterator[Queue]:
    """A queue with three jobs, of a client that no proxy hinders."""
    with Penstock(server.url) as ps:
        queue = ps.queue("work")
        queue.enqueue_many([0, 1, 2])
        yield queue


CALLS: dict[str, Callable[[AsyncPenstock, list[AsyncJob]], Awaitable[Any]]] = {
    "reserve": lambda ps, _: ps.queue("work").reserve(2),
    "settle": lambda ps, held: ps.queue("work").ack_and_reserve(held, 2),
    "of several queues": lambda ps, _: ps.reserve(["work", "other"], 2),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_cancelled_call_releases_its_jobs(name: str, door: Proxy, direct: Queue) -> None:
    """The jobs are ready at once, and no attempt is counted."""
    async with AsyncPenstock(door.url) as ps:
        held = await ps.queue("work").reserve()
        door.hold("down")
        call = asyncio.ensure_future(CALLS[name](ps, held))
        left = 0 if name == "settle" else 1
        await await_for(lambda: direct.stats().active == left + 2)
        call.cancel()
        await asyncio.sleep(0)  # the cancellation comes before the reply
        door.restore()
        with pytest.raises(asyncio.CancelledError):
            await call
        stats = direct.stats()
        assert (stats.active, stats.ready) == (left, 2)
        assert [job.attempt for job in direct.reserve(2)] == [1, 1]


async def test_a_cancelled_call_waits_a_second_for_its_reply(door: Proxy, direct: Queue) -> None:
    """Without a reply the jobs come back after their leases; the client stays usable."""
    async with AsyncPenstock(door.url) as ps:
        queue = ps.queue("work")
        await queue.reserve()
        door.hold("down")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue.reserve(), 0.01)
        await await_for(lambda: direct.stats().active == 2)
        door.restore()
        [job] = await queue.reserve()
        assert job.body == 2


def test_a_loop_that_ends_under_the_call_of_a_worker(door: Proxy, direct: Queue) -> None:
    """The event loop ends while a call settles a job and takes the next one."""

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handler(job: AsyncJob) -> None:
            if job.body == 1:
                begun.set()
                await go_on.wait()

        await AsyncWorker(door.url, "work", handler, concurrency=1, prefetch=0).start()
        await begun.wait()
        door.hold("down")
        go_on.set()
        await await_for(lambda: direct.stats().acked == 2)
        assert direct.stats().active == 1
        asyncio.get_running_loop().call_later(0.1, door.restore)  # when the tasks are cancelled

    asyncio.run(main())
    stats = direct.stats()
    assert (stats.active, stats.ready, stats.acked) == (0, 1, 2)
