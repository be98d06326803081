"""Cancelling an asyncio worker, for example at the end of `asyncio.run`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock import AsyncJob, AsyncWorker, ConfigurationError, Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.support.twins import await_for


@pytest.fixture
def queue(worker_server: EmbeddedServer) -> Iterator[Queue]:
    """An empty queue for the worker."""
    with Penstock(worker_server.url) as client:
        client.topology.executor.command("FLUSHALL")
        yield client.queue("work")


ENDS = {"return": None, "exception": RuntimeError("the program's own"), "exit": SystemExit(3)}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("jobs, room", [(0, 1), (2, 0), (2, 1)], ids=["idle", "full", "waiting"])
def test_a_loop_that_ends_under_its_worker(
    worker_server: EmbeddedServer, queue: Queue, jobs: int, room: int, end: str
) -> None:
    """A worker whose event loop ends gives its jobs back without charging an attempt.

    It may be full, or wait for more jobs. The end may be that of the main coroutine, or an
    exception of it or, such as `sys.exit`, of any task.
    """
    began: list[AsyncJob] = []
    queue.enqueue_many(range(jobs))

    async def handler(job: AsyncJob) -> None:
        began.append(job)
        await asyncio.sleep(60)

    async def leave() -> None:
        if error := ENDS[end]:
            raise error

    async def main() -> None:
        worker = AsyncWorker(worker_server.url, "work", handler, concurrency=jobs + room)
        await worker.start()
        await await_for(lambda: len(began) == jobs and worker.healthy())
        await await_for(lambda: worker._life.state.waiting or not room)
        await asyncio.create_task(leave())

    with suppress(RuntimeError, SystemExit):
        asyncio.run(main())
    stats = queue.stats()
    assert (stats.active, stats.ready, stats.nacked) == (0, jobs, 0)
    assert [job.attempt for job in queue.reserve(5, block=0)] == [1] * jobs


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "refused"])
async def test_an_end_while_more_nodes_are_connected(
    worker_server: EmbeddedServer, queue: Queue, is_cancelled: bool
) -> None:
    """A worker that ends while it connects to nodes that it has learned gives its jobs back.

    Meanwhile it is stopping, also for its handlers.
    """
    queue.enqueue(1)
    began, connecting = asyncio.Event(), asyncio.Event()

    async def handler(job: AsyncJob) -> None:
        began.set()
        await asyncio.sleep(60)

    async def connect() -> None:
        connecting.set()
        if not is_cancelled:
            raise ConfigurationError("no such node")
        await asyncio.sleep(60)

    worker: Any = AsyncWorker(worker_server.url, "work", handler)
    await worker.start()
    await began.wait()
    worker._client.connect = connect
    worker._life.state.moved = True
    worker._life.state.wake()
    await connecting.wait()
    if is_cancelled:
        worker._activity._task.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else ConfigurationError):
        await worker.join()
    assert worker.stopping
    stats = queue.stats()
    assert (stats.ready, stats.active) == (1, 0)


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
