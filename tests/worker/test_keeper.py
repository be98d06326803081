"""The helper process that renews leases where no thread of the worker could."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import redis

from penstock import BadArgument, Penstock, Queue
from penstock.embedded import EmbeddedServer
from penstock.worker import AsyncWorker, Worker
from tests.support.workers import until
from tests.worker.support import Crew, WorkerProcess, runs, runs_at_once

KINDS = pytest.mark.parametrize("kind", ["thread", "asyncio"])
LEASE = 0.8


def start(crew: Crew, kind: str, prefetch: int = 0) -> tuple[WorkerProcess, int]:
    """A worker with a helper, and the helper's process."""
    options: dict[str, Any] = {"heartbeat": "process", "concurrency": 1, "prefetch": prefetch}
    worker = crew.start(kind, control=True, **options)
    return worker, keeper_of(worker)


def keeper_of(worker: WorkerProcess, old: int | None = None) -> int:
    """The process of the worker's helper; another than the old one."""
    found: list[int] = []

    def is_there() -> bool:
        worker.child.send("status")
        pid = worker.child.next_event()["keeper"]
        if pid is not None and pid != old:
            found.append(pid)
        return bool(found)

    until(is_there)
    return found[0]


@pytest.fixture
def other(worker_server: EmbeddedServer) -> Iterator[Queue]:
    """The queue as another consumer sees it."""
    with Penstock(worker_server.url) as client:
        yield client.queue("work")


@KINDS
def test_a_handler_that_never_lets_the_interpreter_go(
    crew: Crew, queue: Queue, other: Queue, kind: str
) -> None:
    """For five leases: it is started once, and what it did counts."""
    queue.configure(lease=LEASE)
    start(crew, kind)
    queue.enqueue({"n": 1, "do": "keep", "s": 5 * LEASE, "slice": 5 * LEASE})
    crew.diary.wait("start", n=1)
    assert other.reserve(block=4 * LEASE) == []
    crew.diary.wait("end", n=1)
    until(lambda: queue.stats().acked == 1)
    found = runs(crew.diary.events())
    assert len(found[1]) == 1
    assert queue.stats().crashed == 0


def test_the_helper_ends_with_its_worker(crew: Crew, queue: Queue, other: Queue) -> None:
    """Killed in the middle of a job, the worker loses it after the lease: nobody keeps it alive."""
    queue.configure(lease=LEASE)
    worker, keeper = start(crew, "thread")
    queue.enqueue({"n": 1, "do": "nap", "s": 60})
    crew.diary.wait("start", n=1)
    worker.kill()
    until(lambda: not psutil.pid_exists(keeper))
    jobs = other.reserve(block=20)
    assert [job.crashes for job in jobs] == [1]


def test_a_stopped_worker_holds_nothing(crew: Crew, queue: Queue, other: Queue) -> None:
    """While its process is stopped the helper extends nothing; awake again it finds that out."""
    queue.configure(lease=LEASE)
    worker, _ = start(crew, "thread")
    queue.enqueue({"n": 1, "do": "watch"})
    crew.diary.wait("start", n=1)
    worker.signal(signal.SIGSTOP)
    jobs = other.reserve(block=20)
    assert [job.crashes for job in jobs] == [1]
    worker.signal(signal.SIGCONT)
    crew.diary.wait("end", n=1, lost=True)
    assert jobs[0].ack()
    assert not runs_at_once(runs(crew.diary.events()))


def test_a_helper_that_dies_is_replaced(
    crew: Crew, queue: Queue, other: Queue, raw: redis.Redis
) -> None:
    """The worker's own thread takes over meanwhile: the job is not lost."""
    queue.configure(lease=LEASE)
    worker, keeper = start(crew, "thread")
    queue.enqueue({"n": 1, "do": "nap", "s": 4 * LEASE})
    crew.diary.wait("start", n=1)
    os.kill(keeper, signal.SIGKILL)
    assert keeper_of(worker, old=keeper) != keeper
    assert other.reserve(block=2 * LEASE) == []
    crew.diary.wait("end", n=1)
    until(lambda: queue.stats().acked == 1)
    assert queue.stats().crashed == 0


def test_a_helper_that_does_not_listen_is_replaced(crew: Crew, queue: Queue) -> None:
    """One that hangs does not hold up the worker."""
    worker, keeper = start(crew, "thread", prefetch=1000)
    os.kill(keeper, signal.SIGSTOP)
    queue.enqueue_many({"n": n, "do": "nothing"} for n in range(6000))
    until(lambda: queue.stats().acked == 6000, 60)
    assert keeper_of(worker, old=keeper) != keeper
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


@KINDS
def test_it_ends_in_order(crew: Crew, queue: Queue, kind: str) -> None:
    """Told to stop, the worker ends its helper with it."""
    worker, keeper = start(crew, kind)
    queue.enqueue({"n": 1, "do": "nothing"})
    crew.diary.wait("end", n=1)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert not psutil.pid_exists(keeper)


def test_only_a_url_can_be_told_to_another_process(raw: redis.Redis) -> None:
    """A client's settings can't; that is said before anything is started."""

    def handler(job: Any) -> None:
        """Do nothing."""

    with pytest.raises(BadArgument, match=r"^heartbeat='process'"):
        Worker(raw, "q", handler, heartbeat="process").start()
    made = AsyncWorker("redis://127.0.0.1:1/0", "q", handler, heartbeat="process")
    assert made.state == "new"
