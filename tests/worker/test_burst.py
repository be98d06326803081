"""Burst mode: a worker runs until its queues are empty, including jobs added by handlers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.worker import AsyncWorker, Worker
from tests.support.backends import Backend
from tests.support.twins import wait_for


@pytest.fixture
def queue(backend: Backend) -> Any:
    """A queue."""
    with Penstock(backend.sync_client()) as client:
        yield client.queue("work")


def test_jobs_that_handlers_add_are_run_too(backend: Backend, queue: Queue) -> None:
    """Jobs that handlers add, in this queue or another, run before the worker ends."""
    seen: list[str] = []
    with Penstock(backend.sync_client()) as client:

        def handle(job: Any) -> None:
            seen.append(job.queue_name)
            if len(seen) < 5:
                client.queue(("work", "more")[len(seen) % 2]).enqueue(b"")

        queue.enqueue(b"")
        Worker(backend.sync_client(), ["work", "more"], handle, burst=True).run()
    assert seen == ["work", "more", "work", "more", "work"]


async def test_a_released_job_runs_again(backend: Backend, queue: Queue) -> None:
    """A job released by its handler runs again before the worker ends."""
    deliveries: list[int] = []

    async def handle(job: Any) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries < 3:
            await job.release()

    queue.enqueue(b"")
    async with backend.async_client() as client:
        await AsyncWorker(client, "work", handle, burst=True).run()
    assert deliveries == [1, 2, 3]
    assert queue.stats().acked == 1


def test_a_burst_runs_its_suspects(backend: Backend, queue: Queue) -> None:
    """Suspects run one after the other before the worker ends; only runs count as taken."""
    queue.configure(lease=0.05)
    queue.enqueue_many(range(3))
    for _ in range(2):  # two crashes each
        assert len(queue.reserve(3, block=5)) == 3
    wait_for(lambda: queue.stats().active == 0)
    queue.configure(lease=30)
    at_once: list[int] = []
    worker: Worker

    def handle(job: Any) -> None:
        at_once.append(len(worker.status().running))

    worker = Worker(backend.sync_client(), "work", handle, burst=True)
    worker.run()
    assert at_once == [1, 1, 1]
    assert (queue.stats().acked, queue.stats().crashed) == (3, 6)
    assert worker.status().taken == 3


def test_a_long_job_delays_no_report(backend: Backend, queue: Queue) -> None:
    """A single runner reports a job that is done while it runs the next one of the reserve."""
    reported = threading.Event()

    def handle(job: Any) -> None:
        if job.body == 2:
            wait_for(lambda: queue.stats().acked == 2)
            reported.set()

    queue.enqueue_many(range(6))
    Worker(backend.sync_client(), "work", handle, concurrency=1, prefetch=5, burst=True).run()
    assert reported.is_set()
    assert queue.stats().acked == 6


@pytest.mark.parametrize("concurrency", [1, 2])
def test_nothing_is_prefetched_from_a_queue_with_slots(
    backend: Backend, queue: Queue, concurrency: int
) -> None:
    """A job that waits in a busy worker would take the slot of one that could run elsewhere."""
    active: list[int] = []
    queue.configure(max_active=9)
    queue.enqueue_many(range(8))

    def handle(_: Any) -> None:
        active.append(queue.stats().active)

    options: dict[str, Any] = {"concurrency": concurrency, "prefetch": 5, "burst": True}
    Worker(backend.sync_client(), "work", handle, **options).run()
    assert len(active) == 8
    assert max(active) <= concurrency


def test_a_lease_of_the_worker_is_not_of_its_queue(backend: Backend, queue: Queue) -> None:
    """If a worker has a lease of its own, other reserves by its queue object have the queue's."""
    leases: list[float] = []

    def handle(job: Any) -> None:
        others = job.queue.reserve(1, block=0)
        leases.extend(one.lease for one in (job, *others))

    queue.enqueue_many(range(2))
    client = backend.sync_client()
    worker = Worker(client, "work", handle, burst=True, concurrency=1, prefetch=0)
    worker.lease_ms = 600_000
    worker.run()
    assert leases == [600, 30]
