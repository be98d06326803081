"""An idle worker starts a job at once: it is reserved behind its wait."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, AsyncWorker, Penstock, Queue, Worker
from penstock.client._async.transport import blocking
from penstock.client._sync.transport import server as threads
from penstock.embedded import EmbeddedServer
from tests.support.twins import wait_for


async def test_the_handler_begins_before_the_worker_waits_again(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token, a reserve, the handler's first line, and only then the next BLPOP."""
    steps: list[str] = []
    waits, handled = asyncio.Event(), asyncio.Event()
    send: Callable[..., Any] = blocking.asend

    async def noted(conn: Any, packed: bytes) -> None:
        await send(conn, packed)
        if b"BLPOP" in packed:
            steps.append("BLPOP")
            waits.set()

    async def handler(_: Any) -> None:
        steps.append("handler")
        handled.set()
        await asyncio.wait_for(waits.wait(), 20)  # while a handler runs, there is room for more

    monkeypatch.setattr(blocking, "asend", noted)
    async with AsyncPenstock(server.url) as client, AsyncWorker(client, "q", handler):
        await asyncio.wait_for(waits.wait(), 20)
        waits.clear()
        steps.clear()
        await client.queue("q").enqueue(b"a")
        await asyncio.wait_for(handled.wait(), 20)
        await asyncio.wait_for(waits.wait(), 20)
    assert steps == ["handler", "BLPOP"]


# -- the reserve behind the wait ------------------------------------------------------------------


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def waiting(server: EmbeddedServer, raw: redis.Redis) -> Iterator[tuple[Worker, Queue, list[Any]]]:
    """A worker that waits, its queue, and the bodies of the jobs that it has run."""
    seen: list[Any] = []
    with (
        Penstock(server.url) as client,
        Worker(server.url, "q", lambda job: seen.append(job.body)) as worker,
    ):
        queue = client.queue("q")
        queue.enqueue("first")
        wait_for(lambda: seen == ["first"] and raw.info("clients")["blocked_clients"] == 1)
        yield worker, queue, seen


def test_a_token_costs_no_trip(
    waiting: tuple[Worker, Queue, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of an idle worker is reserved by the call behind its wait."""
    _, queue, seen = waiting
    called: list[str] = []
    run = threads.Server.run

    def noted(self: Any, call: Any, **options: Any) -> Any:
        called.append(call.script.name)
        return run(self, call, **options)

    monkeypatch.setattr(threads.Server, "run", noted)
    queue.enqueue("second")
    wait_for(lambda: seen == ["first", "second"])
    assert called[0] == "enqueue"
    assert "reserve" not in called


def test_a_job_that_comes_with_the_end_of_a_wait_is_given_back(
    waiting: tuple[Worker, Queue, list[Any]], raw: redis.Redis
) -> None:
    """A worker that stops runs no job that the reserve behind its wait has taken."""
    worker, queue, seen = waiting
    ops = queue.ops
    call = ops.enqueue([b"1;i=abc\nlast"])
    with raw.pipeline(transaction=True) as pipeline:  # no token comes, as if it had been lost
        keys_and_args = (*call.head, 1, "0123456789abcdef", *call.sent_args)
        pipeline.execute_command("EVALSHA", call.script.sha, *keys_and_args)
        pipeline.delete(ops.keys["wake"])
        pipeline.execute()
    worker.stop()
    worker.join()
    assert seen == ["first"]
    [job] = queue.reserve(1, block=0)
    assert (job.raw, job.deliveries, job.attempt) == (b"last", 2, 1)
    assert queue.stats().released == 1


def test_a_wait_after_the_scripts_are_gone(
    waiting: tuple[Worker, Queue, list[Any]], raw: redis.Redis
) -> None:
    """If the server does not know the script any more, the worker sends the call again."""
    _, queue, seen = waiting
    raw.script_flush()
    queue.enqueue("second")
    wait_for(lambda: seen == ["first", "second"])


def _wait_for_ever(url: str, pipe: Connection) -> None:
    with Worker(url, "q", lambda job: pipe.send(job.body)):
        signal.pause()


def test_a_frozen_worker_takes_no_job_after_a_tick(
    server: EmbeddedServer, raw: redis.Redis
) -> None:
    """Its wait ends after a tick. So a job that comes later goes to others, and is not delayed."""
    pipe, end = Pipe()
    process = Process(target=_wait_for_ever, args=(server.url, end), daemon=True)
    with Penstock(server.url) as client:
        queue = client.queue("q")
        queue.enqueue("first")
        process.start()
        try:
            assert pipe.recv() == "first"
            wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
            os.kill(process.pid or 0, signal.SIGSTOP)
            wait_for(lambda: raw.info("clients")["blocked_clients"] == 0)
            queue.enqueue("second")
            [job] = queue.reserve(1, block=0)
            assert (job.body, job.deliveries) == ("second", 1)
        finally:
            process.kill()
            process.join()
