"""The connection breaks after the server ran a call: the repeat doubles nothing.

Every test runs with the synchronous client and with the asyncio client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, Outcome, Penstock
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.crash.tasks import CHUNK, QUEUE
from tests.support.keyspace import advance, check_invariant, load_scripts
from tests.support.proxy import Fault, Proxy

LOSSES = 50
DONE = [Outcome.DONE]


class Plain:
    """An asyncio queue with synchronous methods.

    Args:
        queue: to be called.
        loop: where it lives.
    """

    def __init__(self, queue: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._queue, name)
        if not callable(found):
            return found
        return lambda *args, **options: self._loop.run_until_complete(found(*args, **options))


@pytest.fixture(autouse=True)
def one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the many losses of a test for one event, so they say nothing about sizes of replies."""
    monkeypatch.setattr("penstock.core.calls.reply_limit.ONE_EVENT_SECONDS", math.inf)


@pytest.fixture
def proxy(crash_server: EmbeddedServer) -> Iterator[Proxy]:
    """A proxy between client and server."""
    with Proxy(crash_server.address) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def queue(request: pytest.FixtureRequest, proxy: Proxy, raw: redis.Redis) -> Iterator[Any]:
    """A queue behind the proxy; the server knows all scripts."""
    load_scripts(raw)
    if request.param == "sync":
        with Penstock(proxy.url) as client:
            yield ready_to_use(client.queue(QUEUE))
        return
    loop = asyncio.new_event_loop()
    late = AsyncPenstock(proxy.url)
    try:
        yield ready_to_use(Plain(late.queue(QUEUE), loop))
    finally:
        loop.run_until_complete(late.close())
        loop.close()


def ready_to_use(queue: Any) -> Any:
    """An existing queue whose jobs survive any number of crashes."""
    queue.configure(max_crashes=1_000_000, max_attempts=1_000_000, max_releases=1_000_000)
    return queue


@pytest.fixture
def lose(proxy: Proxy) -> Callable[[str], Fault]:
    """Drop the next reply to a script, and the connection with it."""
    return lambda name: proxy.eat_reply(after=script(name).sha.encode())


def test_enqueue(queue: Any, lose: Callable[[str], Fault], raw: redis.Redis) -> None:
    """The job exists once, and the repeat returns its id."""
    for i in range(LOSSES):
        body = b"job %d" % i
        fault = lose("enqueue")
        result = queue.enqueue(body)
        fault.wait()
        assert queue.show(result.id).raw == body
        assert queue.stats().enqueued == queue.stats().ready == i + 1
    check_invariant(raw)


def test_enqueue_with_a_delay(queue: Any, lose: Callable[[str], Fault]) -> None:
    """A delayed job is scheduled once, and the repeat says so."""
    fault = lose("enqueue")
    result = queue.enqueue(b"later", delay=60)
    fault.wait()
    assert result.state == "scheduled"
    assert (queue.stats().scheduled, queue.stats().enqueued) == (1, 1)


def test_first_enqueue_of_a_queue(
    lose: Callable[[str], Fault], proxy: Proxy, raw: redis.Redis
) -> None:
    """A queue created by a call without a reply is listed and has one job."""
    with Penstock(proxy.url) as client:
        client.queue("other").stats()
        fault = lose("enqueue")
        client.queue("other").enqueue(b"first")
        fault.wait()
        assert client.queues() == ["other"]
        assert client.queue("other").stats().enqueued == 1


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_enqueue_many(
    chunk: int,
    queue: Any,
    lose: Callable[[str], Fault],
    monkeypatch: pytest.MonkeyPatch,
    raw: redis.Redis,
) -> None:
    """Whichever chunk's reply is lost, every job exists once, in order, with its returned id."""
    monkeypatch.setattr("penstock.core.enqueuing.chunks.BATCH", CHUNK)
    faults: list[Fault] = []

    def bodies(serial: int) -> Iterator[bytes]:
        for i in range(3 * CHUNK):
            if i == chunk * CHUNK:
                faults.append(lose("enqueue"))
            yield b"%d.%d" % (serial, i)

    for serial in range(LOSSES):
        results = queue.enqueue_many(bodies(serial))
        faults.pop().wait()
        views = queue.peek(1000)
        assert [view.id for view in views] == results.ids
        assert [view.raw for view in views] == [b"%d.%d" % (serial, i) for i in range(3 * CHUNK)]
        assert queue.purge() == 3 * CHUNK
    assert queue.stats().enqueued == LOSSES * 3 * CHUNK
    check_invariant(raw)


def test_reserve(queue: Any, lose: Callable[[str], Fault], raw: redis.Redis) -> None:
    """Jobs of the lost reply are delivered again after their lease, with one more crash."""
    for _ in range(LOSSES):
        queue.enqueue_many([b"1", b"2", b"3", b"4"])
        fault = lose("reserve")
        jobs = queue.reserve(2, block=0)
        fault.wait()
        assert [job.body for job in jobs] == [b"3", b"4"]
        assert queue.stats().active == 4
        assert queue.ack(jobs)
        advance(raw, queue.ops, 31)
        again = queue.reserve(10, block=0)
        assert [(job.body, job.deliveries, job.crashes) for job in sorted(again, key=body_of)] == [
            (b"1", 2, 1),
            (b"2", 2, 1),
        ]
        assert queue.ack(again)
    assert queue.stats().crashed == 2 * LOSSES
    check_invariant(raw)


def body_of(job: Any) -> bytes:
    """Return the body, as a sort key."""
    body: bytes = job.body
    return body


def test_ack(queue: Any, lose: Callable[[str], Fault], raw: redis.Redis) -> None:
    """The repeat finds the jobs gone by the first sending: done, and counted once."""
    for i in range(LOSSES):
        queue.enqueue_many([b"1", b"2"])
        jobs = queue.reserve(2, block=0)
        fault = lose("ack")
        assert list(queue.ack(jobs)) == DONE * 2
        fault.wait()
        stats = queue.stats()
        assert (stats.acked, stats.active, stats.ready) == (2 * i + 2, 0, 0)
    check_invariant(raw)


def test_settle(queue: Any, lose: Callable[[str], Fault], raw: redis.Redis) -> None:
    """Jobs are acknowledged once; those in the lost reply come back after their lease."""
    for i in range(LOSSES):
        queue.enqueue_many([b"1", b"2", b"3"])
        jobs = queue.reserve(1, block=0)
        fault = lose("settle")
        outcomes, others = queue.ack_and_reserve(jobs, 1)
        fault.wait()
        assert (list(outcomes), [job.body for job in others]) == (DONE, [b"3"])
        assert queue.ack(others)
        advance(raw, queue.ops, 31)
        (lost,) = queue.reserve(10, block=0)
        assert (lost.body, lost.crashes) == (b"2", 1)
        assert queue.ack([lost])
        assert queue.stats().acked == 3 * i + 3
    check_invariant(raw)


@pytest.mark.parametrize("named_by", ["receipt", "id"])
@pytest.mark.parametrize("operation", ["nack", "release", "bury"])
def test_the_end_of_a_delivery(
    operation: str, named_by: str, queue: Any, lose: Callable[[str], Fault], raw: redis.Redis
) -> None:
    """The delivery ends once and is counted once; with the receipt the outcome is done."""
    for i in range(LOSSES):
        queue.enqueue(b"1")
        (job,) = queue.reserve(1, block=0)
        fault = lose(operation)
        (outcome,) = getattr(queue, operation)([job if named_by == "receipt" else job.id])
        fault.wait()
        if named_by == "receipt":
            assert outcome is Outcome.DONE
        view = queue.show(job.id)
        assert (view.nacks, view.releases) == (operation == "nack", operation == "release")
        assert (view.state == "dead") == (operation == "bury")
        stats = queue.stats()
        assert stats.nacked + stats.released + stats.died == i + 1
        assert list(queue.ack([job])) == [Outcome.ENDED if named_by == "receipt" else Outcome.STALE]
        assert list(queue.delete([job.id])) == DONE
    check_invariant(raw)


def test_extend(queue: Any, lose: Callable[[str], Fault], raw: redis.Redis) -> None:
    """The lease runs from the repeat, and the receipt stays valid."""
    queue.enqueue(b"1")
    (job,) = queue.reserve(1, block=0)
    for _ in range(LOSSES):
        fault = lose("extend")
        assert queue.extend([job], 60).seconds_left == [60.0]
        fault.wait()
    assert list(queue.ack([job])) == DONE
    check_invariant(raw)


def test_delete_and_redrive(queue: Any, lose: Callable[[str], Fault]) -> None:
    """The effect of the first sending counts as done."""
    result = queue.enqueue(b"1")
    queue.bury([result.id])
    fault = lose("redrive")
    assert queue.redrive([result.id]) == 1
    fault.wait()
    fault = lose("delete")
    assert list(queue.delete([result.id])) == DONE
    fault.wait()
    assert (queue.stats().redriven, queue.stats().deleted) == (1, 1)


@pytest.mark.parametrize("operation", ["enqueue", "reserve", "ack", "settle"])
def test_torn_request(operation: str, queue: Any, proxy: Proxy, raw: redis.Redis) -> None:
    """An incomplete request is not run; only its repeat is."""
    for i in range(LOSSES):
        if operation != "enqueue":
            queue.enqueue_many([b"1", b"2"])
        held = queue.reserve(1, block=0) if operation in ("ack", "settle") else []
        fault = proxy.cut_after_request_bytes(40, after=script(operation).sha.encode())
        if operation == "enqueue":
            queue.enqueue(b"1")
        elif operation == "reserve":
            assert len(queue.reserve(1, block=0)) == 1
        elif operation == "ack":
            assert list(queue.ack(held)) == DONE
        else:
            assert [job.body for job in queue.ack_and_reserve(held, 1)[1]] == [b"2"]
        fault.wait()
        stats = queue.stats()
        assert stats.enqueued == (i + 1) * (1 if operation == "enqueue" else 2)
        assert stats.acked == (i + 1 if operation in ("ack", "settle") else 0)
        assert stats.active == (1 if operation in ("reserve", "settle") else 0)
        queue.purge("ready", "active")
    check_invariant(raw)
