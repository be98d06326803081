"""A call that arrives after a later one of its producer does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock import AsyncPenstock, Penstock, Queue, StaleCall
from penstock.embedded import EmbeddedServer
from tests.crash.tasks import QUEUE
from tests.support.keyspace import check_invariant, dump, evalshas, load_scripts
from tests.support.proxy import Proxy
from tests.support.twins import spawn
from tests.support.workers import until

PRODUCER = "00112233aabbccdd"


@pytest.fixture
def queue(client: Penstock) -> Queue:
    """The queue of these tests."""
    return client.queue(QUEUE)


@pytest.fixture
def call(queue: Queue, raw: redis.Redis) -> Callable[..., list[Any]]:
    """Run enqueue directly with a producer's call number and bodies."""

    def run(number: int, *bodies: bytes) -> list[Any]:
        built = queue.ops.enqueue([b"1\n" + body for body in bodies])
        args = (*built.head, number, PRODUCER, *built.sent_args)
        answer: list[Any] = raw.evalsha(built.script.sha, *args)
        return answer

    load_scripts(raw)
    return run


def test_lower_number(call: Callable[..., list[Any]], raw: redis.Redis) -> None:
    """A number below the producer's last one is refused, and no key changes."""
    call(8, b"8")
    before = dump(raw)
    for number in range(1, 8):
        assert call(number, b"late")[:3] == [-7, b"%d" % number, b"8"]
        assert dump(raw) == before
    check_invariant(raw)


def test_equal_number(call: Callable[..., list[Any]], queue: Queue, raw: redis.Redis) -> None:
    """An equal number returns the first answer and adds nothing."""
    first = call(8, b"8", b"9")
    before = dump(raw)
    again = call(8, b"8", b"9")
    assert (again[2:4], first[6], again[6]) == (first[2:4], 0, 1)
    assert dump(raw) == before


def test_numbers_of_a_thawed_server(call: Callable[..., list[Any]], queue: Queue) -> None:
    """Calls 7, 7 and 8 arriving as 8, 7, 7 add the jobs of 8; as 7, 8, 7 those of both, once."""
    enqueued = queue.stats().enqueued
    for number in (8, 7, 7):
        call(number, b"%d" % number)
    assert queue.stats().enqueued == enqueued + 1
    for number in (17, 18, 17):
        call(number, b"%d" % number)
    assert queue.stats().enqueued == enqueued + 3


def test_client_reports_a_stale_call(queue: Queue, raw: redis.Redis) -> None:
    """A client whose call came too late raises, and no key changes."""
    queue.enqueue(b"1")
    (connection,) = queue.route.node.executor.connections.idle
    connection.calls -= 5
    before = dump(raw)
    with pytest.raises(StaleCall):
        queue.enqueue(b"2")
    assert dump(raw) == before


def test_frozen_server(
    crash_server: EmbeddedServer, client: Penstock, queue: Queue, raw: redis.Redis
) -> None:
    """A producer that times out and gives up on a frozen server has added at most one job.

    The requests stay in the server's sockets, and run in any order when it continues.
    """
    enqueued = queue.stats().enqueued
    source = redis.Redis.from_url(crash_server.url, socket_timeout=0.1)
    with source, Penstock(source, retry_for=0.3) as producer:
        impatient = producer.queue(QUEUE)
        for i in range(10):
            impatient.enqueue(b"%d.before" % i)
            crash_server.pause()
            try:
                with pytest.raises(RedisTimeoutError):
                    impatient.enqueue(b"%d.frozen" % i)
            finally:
                crash_server.resume()
            impatient.enqueue(b"%d.after" % i)
    bodies = [view.raw for view in client.queue(QUEUE).peek(1000)]
    assert len(bodies) == len(set(bodies))
    assert sum(body.endswith(b".after") for body in bodies) == 10
    assert sum(body.endswith(b".frozen") for body in bodies) <= 10
    until(lambda: queue.stats().enqueued - enqueued == len(queue.peek(1000)))
    check_invariant(raw)


class Freezer:
    """Freezes the server between a client's first call and its enqueue, until the retry."""

    def __init__(self, server: EmbeddedServer, proxy: Proxy) -> None:
        self.server = server
        self.proxy = proxy
        self.frozen: SimpleQueue[int] = SimpleQueue()

    def freeze(self) -> None:
        """Freeze the server; the connected client calls this."""
        self.server.pause()
        self.frozen.put(self.proxy.connections)

    def thaw(self) -> None:
        """Let the server continue, after the client has opened a second connection."""
        before = self.frozen.get(timeout=20)
        try:
            self.proxy.wait_until(lambda proxy: proxy.connections > before)
        finally:
            self.server.resume()


def add(freezer: Freezer, body: bytes) -> str:
    """Add two jobs; the second call is repeated after a moment."""
    with (
        redis.Redis.from_url(freezer.proxy.url, socket_timeout=0.3) as source,
        Penstock(source) as client,
    ):
        queue = client.queue(QUEUE)
        queue.enqueue(b"first " + body)
        freezer.freeze()
        return queue.enqueue(body).id


def add_in_a_task(freezer: Freezer, body: bytes) -> str:
    """Add two jobs with asyncio."""

    async def run() -> str:
        async with (
            redis.asyncio.Redis.from_url(freezer.proxy.url, socket_timeout=0.3) as source,
            AsyncPenstock(source) as client,
        ):
            queue = client.queue(QUEUE)
            await queue.enqueue(b"first " + body)
            freezer.freeze()
            return (await queue.enqueue(body)).id

    return asyncio.run(run())


@pytest.mark.parametrize("add_one", [add, add_in_a_task])
def test_both_sendings_are_run(
    add_one: Callable[[Freezer, bytes], str],
    crash_server: EmbeddedServer,
    queue: Queue,
    raw: redis.Redis,
) -> None:
    """A resumed server runs a timed-out call and its repeat; the job exists once.

    The first one is in the socket of a connection that the client has closed.
    """
    enqueued, scripts = queue.stats().enqueued, evalshas(raw)
    with Proxy(crash_server.address) as proxy:
        for i in range(5):
            freezer = Freezer(crash_server, proxy)
            work = spawn(add_one, freezer, b"%d" % i)
            freezer.thaw()
            assert work.result() == queue.peek(100)[-1].id
    # In each round: the client's first enqueue, its second one twice, and our peek.
    assert evalshas(raw) - scripts >= 5 * 4
    assert queue.stats().enqueued == enqueued + 10
    bodies = [view.raw for view in queue.peek(100)]
    assert bodies == [body for i in range(5) for body in (b"first %d" % i, b"%d" % i)]
    check_invariant(raw)
