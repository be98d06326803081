"""Cancelling an asyncio worker, for example at the end of `asyncio.run`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock import AsyncJob, AsyncWorker, Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.support.twins import await_for


@pytest.fixture
def queue(worker_server: EmbeddedServer) -> Iterator[Queue]:
    """An empty queue for the worker."""
    with Penstock(worker_server.url) as client:
        client.backend.node.command("FLUSHALL")
        yield client.queue("work")


@pytest.mark.parametrize("busy", [False, True])
def test_a_loop_that_ends_under_its_worker(
    worker_server: EmbeddedServer, queue: Queue, busy: bool
) -> None:
    """A worker whose event loop ends gives its jobs back without charging an attempt."""
    began: list[AsyncJob] = []
    if busy:
        queue.enqueue_many([1, 2])

    async def handler(job: AsyncJob) -> None:
        began.append(job)
        await asyncio.sleep(60)

    async def main() -> None:
        worker = AsyncWorker(worker_server.url, "work", handler, concurrency=1, prefetch=1)
        await worker.start()
        await await_for(lambda: bool(began) or not busy)
        await await_for(worker.healthy)

    asyncio.run(asyncio.wait_for(main(), 30))
    stats = queue.stats()
    assert (stats.active, stats.ready, stats.nacked) == (0, 2 if busy else 0, 0)
    assert [job.attempt for job in queue.reserve(5, block=0)] == ([1, 1] if busy else [])


async def test_a_run_that_is_cancelled(worker_server: EmbeddedServer, queue: Queue) -> None:
    """When a task group cancels a worker, it has ended before the cancellation is raised."""
    queue.enqueue(1)
    began: list[AsyncJob] = []

    async def handler(job: AsyncJob) -> None:
        began.append(job)

    worker = AsyncWorker(worker_server.url, "work", handler)
    running = asyncio.create_task(worker.run())
    await await_for(lambda: bool(began))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert worker.state == "stopped"


async def test_a_handler_that_cancels_something_of_its_own(
    worker_server: EmbeddedServer, queue: Queue
) -> None:
    """A CancelledError from the handler's own task is a failure, and the worker continues."""
    queue.configure(backoff_base=3600)
    queue.enqueue_many([1, 2])

    async def handler(job: AsyncJob) -> None:
        if job.body == 1:
            raise asyncio.CancelledError

    async with AsyncWorker(worker_server.url, "work", handler, concurrency=1):
        await await_for(lambda: queue.stats().acked == 1)
    assert queue.stats().nacked == 1
