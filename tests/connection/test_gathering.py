"""Concurrent enqueues on one event loop, which go to the server together."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock import (
    AsyncPenstock,
    AsyncQueue,
    BulkEnqueued,
    Handlers,
    QueueClosed,
    QueueFull,
    ServerTimeout,
)
from penstock.client.gathering import MOST_SINGLE_CALLS, Gathering
from penstock.embedded import EmbeddedServer
from tests.support.keyspace import check_invariant, evalshas

CALLS = 100


@pytest.fixture
def raw(server: EmbeddedServer) -> redis.Redis:
    """A plain client of the server."""
    return redis.Redis.from_url(server.url)


@pytest.fixture
async def q(server: EmbeddedServer) -> AsyncIterator[AsyncQueue]:
    """A queue that exists, and is empty."""
    async with AsyncPenstock(server.url, retry_for=0.2) as ps:
        queue = ps.queue("q")
        await queue.enqueue(b"made")
        await queue.ack(await queue.reserve(block=0))
        yield queue


def counted(raw: redis.Redis, command: str) -> int:
    """Count the runs of a command."""
    return int(raw.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def bodies(q: AsyncQueue) -> list[Any]:
    """Take all jobs, and return their bodies."""
    return [job.body for job in await q.reserve(1000, block=0)]


async def test_a_hundred_calls_take_a_few_trips(q: AsyncQueue, raw: redis.Redis) -> None:
    """Each call returns the id of its own job."""
    before = evalshas(raw)
    results = await asyncio.gather(*[q.enqueue(number) for number in range(CALLS)])
    assert evalshas(raw) - before <= MOST_SINGLE_CALLS + 2
    jobs = await q.reserve(CALLS, block=0)
    added = {result.id: (number, result.stable_id) for number, result in enumerate(results)}
    assert {job.id: (job.body, job.stable_id) for job in jobs} == added
    assert {(result.state, result.replicas) for result in results} == {("ready", 0)}
    check_invariant(raw)


async def test_a_few_callers_do_not_wait_for_each_other(q: AsyncQueue, raw: redis.Redis) -> None:
    """As many calls as may be under way go out one by one."""
    before = evalshas(raw)
    await asyncio.gather(*[q.enqueue(b"x") for _ in range(MOST_SINGLE_CALLS)])
    assert evalshas(raw) - before == MOST_SINGLE_CALLS


async def test_calls_of_several_kinds(q: AsyncQueue) -> None:
    """Jobs of handlers, with headers and with leases of their own may go together."""
    handlers = Handlers()

    @handlers.handler("greet", lease=7)
    def greet(name: str) -> None: ...

    kinds = [
        lambda: q.enqueue(b"bytes"),
        lambda: q.enqueue("text", headers={"a": "b"}),
        lambda: q.enqueue("leased", lease=5),
        lambda: greet.enqueue(q, "ada"),
        lambda: q.enqueue("later", delay=100),
    ]
    await asyncio.gather(*[kinds[number % len(kinds)]() for number in range(CALLS)])
    jobs = await q.reserve(CALLS, block=0)
    found = {(str(job.body), tuple(job.headers.items()), round(job.lease)) for job in jobs}
    assert found == {
        ("b'bytes'", (), 30),
        ("text", (("a", "b"),), 30),
        ("leased", (), 5),
        ("{'name': 'ada'}", (("handler", "greet"),), 7),
    }
    assert len(jobs) == CALLS * 4 // 5


async def test_more_than_one_call_takes(q: AsyncQueue, raw: redis.Redis) -> None:
    """More than 1,000 jobs or 1 MiB go out in several calls."""
    q.route.node.taking_until = math.inf  # no call reads the node's flag
    before = evalshas(raw)
    results = await asyncio.gather(*[q.enqueue(b"x" * 3000) for _ in range(1500)])
    assert MOST_SINGLE_CALLS + 5 <= evalshas(raw) - before <= MOST_SINGLE_CALLS + 8
    assert len({result.id for result in results}) == 1500
    assert (await q.stats()).ready == 1500


@pytest.mark.parametrize("due", ["flag", "list"])
async def test_calls_of_one_moment_read_the_node_once(
    q: AsyncQueue, raw: redis.Redis, due: str
) -> None:
    """If its flag `leaving` or its list of nodes has to be read, one of many calls reads it."""
    q.route.node.taking_until = 0.0
    if due == "list":
        q.route.topology.look_at = 0.0
    before, read = raw.info("clients")["connected_clients"], counted(raw, "hget")
    await asyncio.gather(*[q.enqueue(b"x") for _ in range(1500)])
    assert raw.info("clients")["connected_clients"] <= before + MOST_SINGLE_CALLS
    assert counted(raw, "hget") - read <= 2
    assert (await q.stats()).ready == 1500


async def test_each_call_reads_the_node_if_another_failed(
    q: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that has waited for the answer of a failed one asks for itself."""
    is_leaving, asked = q.route.node.is_leaving, itertools.count()

    async def fails_once() -> bool:
        if next(asked) == 0:
            raise ServerTimeout("no reply")
        return await is_leaving()

    monkeypatch.setattr(q.route.node, "is_leaving", fails_once)
    q.route.node.taking_until = 0.0
    results = await asyncio.gather(*[q.enqueue(b"x") for _ in range(9)], return_exceptions=True)
    assert [type(one) is ServerTimeout for one in results] == [True] + [False] * 8
    assert (await q.stats()).ready == 8


async def test_a_call_gets_the_answer_of_another(q: AsyncQueue) -> None:
    """True and False: the queue may lie on several nodes now."""
    for answer in (True, False):
        calls, gathering = itertools.count(), Gathering(q.route)

        async def ask(calls: Iterator[int] = calls, answer: bool = answer) -> bool:
            next(calls)
            await asyncio.sleep(0)
            return answer

        assert await asyncio.gather(*[gathering.share(ask) for _ in range(3)]) == [answer] * 3
        assert next(calls) == 1


async def test_a_cancelled_caller_that_waits_adds_nothing(q: AsyncQueue) -> None:
    """Its job has not been sent; those of the others are added."""
    calls = [asyncio.ensure_future(q.enqueue(number)) for number in range(CALLS)]
    await asyncio.sleep(0)
    for call in calls[MOST_SINGLE_CALLS::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    added = [number for number, one in enumerate(results) if not isinstance(one, BaseException)]
    assert added == [*range(MOST_SINGLE_CALLS), *range(MOST_SINGLE_CALLS + 1, CALLS, 2)]
    assert sorted(await bodies(q)) == added


async def test_each_caller_learns_of_a_refusal(q: AsyncQueue, server: EmbeddedServer) -> None:
    """Jobs that are refused together are tried one by one: there is room for some of them."""
    async with AsyncPenstock(server.url) as other:
        await other.queue("q").configure(max_length=50)
    results = await asyncio.gather(*[q.enqueue(b"x") for _ in range(CALLS)], return_exceptions=True)
    assert sum(isinstance(one, QueueFull) for one in results) == CALLS - 50
    assert (await q.stats()).ready == 50
    await q.close()
    results = await asyncio.gather(*[q.enqueue(b"x") for _ in range(CALLS)], return_exceptions=True)
    assert {type(one) for one in results} == {QueueClosed}


async def test_each_caller_learns_of_a_lost_server(q: AsyncQueue, server: EmbeddedServer) -> None:
    """All calls raise; later ones work again."""
    server.kill()
    results = await asyncio.gather(*[q.enqueue(b"x") for _ in range(20)], return_exceptions=True)
    assert all(isinstance(one, RedisConnectionError) for one in results)
    server.restart()
    await asyncio.gather(*[q.enqueue(b"x") for _ in range(20)])
    assert (await q.stats()).ready >= 20


def test_a_client_in_a_later_event_loop(server: EmbeddedServer) -> None:
    """Calls that ended with an event loop are not waited for in the next one."""
    ps = AsyncPenstock(server.url)
    queue = ps.queue("q")

    async def left_behind() -> None:
        calls = [asyncio.ensure_future(queue.enqueue(b"x")) for _ in range(CALLS)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()

    async def complete() -> int:
        try:
            return len(await asyncio.gather(*[queue.enqueue(b"y") for _ in range(CALLS)]))
        finally:
            await ps.close()

    asyncio.run(left_behind())
    assert asyncio.run(complete()) == CALLS


async def test_calls_go_on_after_all_tasks_were_cancelled(q: AsyncQueue) -> None:
    """The task that sends jobs together may be cancelled with all others; later calls work."""
    calls = [asyncio.ensure_future(q.enqueue(b"x")) for _ in range(CALLS)]
    await calls[0]
    mine = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not mine and task not in calls:
            task.cancel()
    await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    again = [q.enqueue(b"y") for _ in range(CALLS)]
    results = await asyncio.wait_for(asyncio.gather(*again), 20)
    assert len({result.id for result in results}) == CALLS


async def test_jobs_of_a_lost_reply_are_not_added_again(
    q: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the outcome of the common call is not known, each caller learns it and decides."""
    add = q.route.add_chunk

    async def lost(chunk: list[bytes], options: Any, _: BulkEnqueued) -> None:
        await add(chunk, options, BulkEnqueued())
        raise ServerTimeout("no reply")

    monkeypatch.setattr(q.route, "add_chunk", lost)
    results = await asyncio.gather(*[q.enqueue(b"x") for _ in range(CALLS)], return_exceptions=True)
    assert sum(isinstance(one, ServerTimeout) for one in results) == CALLS - MOST_SINGLE_CALLS
    assert (await q.stats()).ready == CALLS
