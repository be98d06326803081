"""Jobs that steps call, in real workers: killed processes, lost replies, and partitions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis

from penstock import Handlers, Penstock, Steps, Worker
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.support.keyspace import advance, check_invariant
from tests.support.proxy import Proxy

PROGRAM = """
import os, signal, sys
import redis
from penstock import AsyncPenstock, AsyncSteps, AsyncWorker, Handlers, Penstock, Steps, Worker
url, kind, fatal = sys.argv[1:]
raw = redis.Redis.from_url(url)
handlers = Handlers(queue="q")

def reach(place):
    raw.rpush("reached", place)
    if place == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

@handlers.handler
def ship(number: int) -> int:
    reach(f"{number} begins")
    reach(f"{number} ends")
    return number

if kind == "thread":
    @handlers.handler
    def order(steps: Steps) -> int:
        reach("calls 1")
        one = steps.call("one", ship.job(1))
        reach(f"got {one}")
        two, three = steps.gather("two", [ship.job(2), ship.job(3)])
        reach(f"got {one} {two} {three}")
    Worker(Penstock(url), handlers=handlers, burst=True).run()
else:
    import asyncio

    @handlers.handler
    async def order(steps: AsyncSteps) -> int:
        reach("calls 1")
        one = await steps.call("one", ship.job(1))
        reach(f"got {one}")
        two, three = await steps.gather("two", [ship.job(2), ship.job(3)])
        reach(f"got {one} {two} {three}")
    asyncio.run(AsyncWorker(AsyncPenstock(url), handlers=handlers, burst=True).run())
"""
PLACES = [
    "calls 1", "1 begins", "1 ends", "got 1", "2 begins", "2 ends", "3 begins", "3 ends",
    "got 1 2 3",
]  # fmt: skip


@pytest.fixture
def handlers() -> Handlers:
    """A set of handlers for the queue q."""
    return Handlers(queue="q")


def counts_of(worker: Worker) -> dict[str, int]:
    """Return the outcomes of a worker's jobs."""
    return dict(worker.status().stats.counts)


def run_until(url: str, kind: str, fatal: str) -> int:
    """Run a worker in a process that kills itself at a place; return the exit code."""
    program = [sys.executable, "-c", PROGRAM, url, kind, fatal]
    return subprocess.run(program, timeout=60, check=False, env={**os.environ}).returncode


@pytest.mark.parametrize(
    "kind, places",
    [
        pytest.param("thread", ["1 ends"], id="thread-one"),
        pytest.param("thread", PLACES, id="thread-all", marks=pytest.mark.slow),
        pytest.param("asyncio", PLACES, id="asyncio-all", marks=pytest.mark.slow),
    ],
)
def test_kill_9_at_each_place(server: EmbeddedServer, kind: str, places: list[str]) -> None:
    """Each job is called once, and its value comes back."""
    raw = redis.Redis.from_url(server.url)
    with Penstock(server.url) as client:
        q = client.queue("q")
        q.configure(max_crashes=100)
        q.enqueue({}, headers={"handler": "order"})
        for place in places:
            assert run_until(server.url, kind, place) == -signal.SIGKILL
            check_invariant(raw)
            advance(raw, q.ops, 31)
        assert run_until(server.url, kind, "") == 0
        stats = q.stats()
        assert (stats.enqueued, stats.acked) == (4, 4)
    reached = raw.lrange("reached", 0, -1)
    assert reached[-1] == b"got 1 2 3"
    check_invariant(raw)
    assert not raw.exists(q.ops.keys["tally"], q.ops.keys["members"])


def test_a_lost_reply(server: EmbeddedServer, handlers: Handlers) -> None:
    """The call is repeated, and the job is called once."""
    seen: list[object] = []

    @handlers.handler
    def ship(number: int) -> int:
        seen.append(number)
        return number

    @handlers.handler
    def order(steps: Steps, number: int) -> None:
        seen.append(steps.call("ship", ship.job(number)))

    with Proxy(server.address) as proxy, Penstock(proxy.url) as client:
        q = client.queue("q")
        order.enqueue(q, 7)
        Worker(client, "q", handlers, burst=True).run()  # the server knows the script
        fault = proxy.eat_reply(after=script("call_jobs").sha.encode())
        order.enqueue(q, 8)
        worker = Worker(client, "q", handlers, burst=True)
        worker.run()
        fault.wait()
        assert counts_of(worker)["done"] == 2
        assert seen == [7, 7, 8, 8]
        assert q.stats().enqueued == 4


@pytest.mark.parametrize("servers, partitions", [(1, 3), (2, None)])
def test_a_queue_of_several_parts(
    servers: int,
    partitions: int | None,
    make_server: Callable[..., EmbeddedServer],
    handlers: Handlers,
) -> None:
    """Called jobs lie in the part of their caller: a partition, or one of several nodes."""
    values: list[int] = []

    @handlers.handler
    def double(number: int) -> int:
        return 2 * number

    @handlers.handler
    def order(steps: Steps, number: int) -> None:
        doubled = steps.call("one", double.job(number))
        values.extend(steps.gather("two", [double.job(doubled), double.job(100)]))

    with Penstock([make_server().url for _ in range(servers)]) as client:
        q = client.queue("q", partitions=partitions)
        order.enqueue_many(q, range(6))
        worker = Worker(client, [q], handlers, burst=True)
        worker.run()
        assert counts_of(worker) == {"suspended": 12, "done": 24}
    assert sorted(values) == [*sorted(4 * number for number in range(6)), *[200] * 6]


def test_a_key_of_another_partition(server: EmbeddedServer, handlers: Handlers) -> None:
    """A job whose key chooses another partition is refused; its own one does no harm."""
    outcomes: list[str] = []

    @handlers.handler
    def double(number: int) -> int:
        return 2 * number

    @handlers.handler
    def order(steps: Steps, key: str) -> None:
        try:
            outcomes.append(f"{steps.call('one', double.options(key=key).job(7))}")
        except ValueError as error:
            outcomes.append(str(error).partition(",")[0])

    with Penstock(server.url) as client:
        q = client.queue("q", partitions=8)
        q.enqueue(order.job("a"), key="a")
        q.enqueue(order.job("b"), key="a")
        Worker(client, [q], handlers, burst=True).run()
    assert sorted(outcomes) == ["14", "key='b': it chooses another partition"]
