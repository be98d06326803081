"""The helper process that renews leases where no thread of the worker could."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import redis

from penstock import BadArgument, Penstock, Queue
from penstock.core.job import Batch, Delivery
from penstock.embedded import EmbeddedServer
from penstock.worker import AsyncWorker, Worker
from penstock.worker import heartbeat_process as module
from penstock.worker.heartbeat_process import HeartbeatProcess
from penstock.worker.terms import Term
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
        pid = worker.child.next_event()["helper"]
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


@pytest.fixture
def helper(worker_server: EmbeddedServer, raw: redis.Redis) -> Iterator[HeartbeatProcess]:
    """The worker's side of a helper that has reached the server."""
    made = HeartbeatProcess(worker_server.url, prefix="penstock", owner="tester")
    made.start()
    until(made.is_ready)
    yield made
    made.close()


def taken(queue: Queue, count: int, lease: float = 60.0) -> list[Any]:
    """Jobs that were just taken; the last are made up, and the server does not know of them."""
    queue.enqueue({})
    jobs: list[Any] = queue.reserve()
    batch, (at, number) = jobs[0].batch, jobs[0].number.split(b"-")
    made_up = [b"%s-%d" % (at, int(number) + n) for n in range(1, count)]
    return [held(jobs[0], lease), *(made(batch, number, lease) for number in made_up)]


def made(batch: Batch, number: bytes, lease: float) -> Any:
    """A job of that number."""
    return held(Delivery(batch, number, b"", b"1\n"), lease)


def held(job: Any, lease: float) -> Any:
    """The job, held for a lease from now."""
    job.term = Term(monotonic() + lease, lease)
    return job


def told_lost(helper: HeartbeatProcess, count: int) -> list[Any]:
    """Wait until so many jobs are lost."""
    found: dict[Any, None] = {}

    def is_enough() -> bool:
        found.update(dict.fromkeys(helper.news()))
        return len(found) >= count

    until(is_enough)
    return list(found)


def stop(helper: HeartbeatProcess) -> int:
    """Stop the helper with SIGSTOP; its process."""
    pid = helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def end(helper: HeartbeatProcess) -> None:
    """Kill the helper, and wait until that is known."""
    pid = helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: helper.pid is None)


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
    """Killed in a job, the worker loses it after the lease: the helper has ended too."""
    queue.configure(lease=LEASE)
    worker, helper = start(crew, "thread")
    queue.enqueue({"n": 1, "do": "nap", "s": 60})
    crew.diary.wait("start", n=1)
    worker.kill()
    until(lambda: not psutil.pid_exists(helper))
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
    worker, helper = start(crew, "thread")
    queue.enqueue({"n": 1, "do": "nap", "s": 4 * LEASE})
    crew.diary.wait("start", n=1)
    os.kill(helper, signal.SIGKILL)
    assert keeper_of(worker, old=helper) != helper
    assert other.reserve(block=2 * LEASE) == []
    crew.diary.wait("end", n=1)
    until(lambda: queue.stats().acked == 1)
    assert queue.stats().crashed == 0


def test_a_helper_that_does_not_listen(crew: Crew, queue: Queue) -> None:
    """One that hangs does not hold up the worker."""
    worker, helper = start(crew, "thread", prefetch=1000)
    os.kill(helper, signal.SIGSTOP)
    queue.enqueue_many({"n": n, "do": "nothing"} for n in range(6000))
    until(lambda: queue.stats().acked == 6000, 60)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert not psutil.pid_exists(helper)


def test_a_helper_that_listens_late_knows_all(helper: HeartbeatProcess, queue: Queue) -> None:
    """More than a socket takes at once waits for it; the helper is not ended for that."""
    pid = stop(helper)
    jobs = taken(queue, 6000, lease=1.0)
    began = jobs[0].term
    helper.hold(jobs)
    helper.news()
    assert helper.pid == pid
    os.kill(pid, signal.SIGCONT)
    lost = told_lost(helper, 5999)
    assert set(lost) == set(jobs[1:])
    until(lambda: not helper.news() and jobs[0].term.until > began.until)
    assert helper.pid == pid


def test_jobs_are_known_before_their_handlers_run(
    helper: HeartbeatProcess, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To take many jobs waits for a helper that listens: nothing may run in the worker then."""
    monkeypatch.setattr(module, "MOMENT", 30.0)
    helper.hold(taken(queue, 6000))
    assert not helper._outbox


@pytest.mark.parametrize("bound", ["STUCK", "MOST"])
def test_a_helper_that_does_not_listen_is_replaced(
    helper: HeartbeatProcess, queue: Queue, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """After some time, or at once when too much waits for it; the next one is told everything."""
    pid = stop(helper)
    jobs = taken(queue, 6000, lease=3.0)
    with monkeypatch.context() as patch:
        patch.setattr(module, bound, 0.2 if bound == "STUCK" else 1000)
        helper.hold(jobs)
        until(lambda: helper.news() == [] and helper.pid != pid)
    assert set(told_lost(helper, 5999)) == set(jobs[1:])
    assert helper.pid not in (None, pid)


def test_a_helper_that_cannot_be_started(
    helper: HeartbeatProcess,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without files or processes to be had it is said, and tried again, not at each look."""
    calls = []

    def refuse(*args: Any, **options: Any) -> None:
        calls.append(args)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    end(helper)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        until(lambda: helper.news() == [] and bool(calls))
        patch.setattr(module, "AGAIN", 1000.0)
        helper.news()
        assert len(calls) == 1
        jobs = taken(queue, 2, lease=1.0)
        helper.hold(jobs)
    assert "can't be started" in caplog.text
    assert told_lost(helper, 1) == jobs[1:]


def test_news_of_a_job_is_never_that_of_another(helper: HeartbeatProcess, queue: Queue) -> None:
    """What the helper said of a job that was dropped since says nothing of the next one."""
    jobs = taken(queue, 2)
    batch, number = jobs[1].batch, jobs[1].number
    del jobs
    for _ in range(5):
        lapsed = made(batch, number, lease=0.01)
        helper.hold([lapsed])
        assert helper._socket is not None
        assert select.select([helper._socket], [], [], 30)[0]
        helper.drop([lapsed])
        del lapsed
        other = made(batch, number, lease=60.0)  # as a rule where the lapsed one was
        helper.hold([other])
        assert helper.news() == []
        helper.drop([other])
        del other


def test_what_is_dropped_is_forgotten(helper: HeartbeatProcess, queue: Queue) -> None:
    """Nothing of a job stays; one that is not known, or is dropped again, does no harm."""
    jobs = taken(queue, 10)
    helper.hold(jobs)
    helper.hold(jobs[:3])
    helper.drop(jobs[:5])
    helper.drop(jobs)
    helper.drop(jobs)
    assert not helper._jobs
    assert not helper._keys


def test_jobs_of_an_earlier_life_of_the_queue(
    helper: HeartbeatProcess, queue: Queue, raw: redis.Redis
) -> None:
    """They are lost; those of the queue as it is now are kept all the same."""
    earlier = taken(queue, 2, lease=1.0)
    raw.flushall()
    later = taken(queue, 1, lease=1.0)
    assert earlier[0].epoch != later[0].epoch
    began = later[0].term
    helper.hold([earlier[0], *later, earlier[1]])
    assert set(told_lost(helper, 2)) == set(earlier)
    until(lambda: not helper.news() and later[0].term.until > began.until)


@KINDS
def test_it_ends_in_order(crew: Crew, queue: Queue, kind: str) -> None:
    """Told to stop, the worker ends its helper with it."""
    worker, helper = start(crew, kind)
    queue.enqueue({"n": 1, "do": "nothing"})
    crew.diary.wait("end", n=1)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert not psutil.pid_exists(helper)


def test_only_a_url_can_be_told_to_another_process(raw: redis.Redis) -> None:
    """A client's settings can't; that is said before anything is started."""

    def handler(job: Any) -> None:
        """Do nothing."""

    with pytest.raises(BadArgument, match=r"^heartbeat='process'"):
        Worker(raw, "q", handler, heartbeat="process").start()
    made = AsyncWorker("redis://127.0.0.1:1/0", "q", handler, heartbeat="process")
    assert made.state == "new"


def test_it_needs_a_unix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere a process can't be given one end of a socket; that is said."""
    monkeypatch.setattr(module, "os", SimpleNamespace(name="nt"))
    with pytest.raises(BadArgument, match=r"^heartbeat='process': needs a Unix"):
        HeartbeatProcess("redis://127.0.0.1:1/0", prefix="penstock", owner="tester")
