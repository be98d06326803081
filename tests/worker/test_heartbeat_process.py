"""The helper process that renews leases while the worker's threads can't run."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import redis

from penstock import BadArgument, Penstock, Queue
from penstock.cli import main
from penstock.core.jobs.job import (
    Delivery,
    Reservation,
    epoch_of,
    number_of,
    reservation_of,
    set_term,
    term_of,
)
from penstock.embedded import EmbeddedServer
from penstock.worker import AsyncWorker, Worker, processes
from penstock.worker import heartbeat_process as module
from penstock.worker.heartbeat_process import HeartbeatProcess
from penstock.worker.processes import Line
from penstock.worker.terms import Term
from tests.support.workers import until
from tests.worker.support import Crew, WorkerProcess, runs, runs_at_once

KINDS = pytest.mark.parametrize("kind", ["thread", "asyncio"])
LEASE = 2.0


def start(crew: Crew, kind: str, prefetch: int = 0) -> tuple[WorkerProcess, int]:
    """Start a worker with a helper, and return the helper's process."""
    options: dict[str, Any] = {"heartbeat": "process", "concurrency": 1, "prefetch": prefetch}
    worker = crew.start(kind, control=True, **options)
    return worker, keeper_of(worker)


def keeper_of(worker: WorkerProcess, old: int | None = None) -> int:
    """Wait for the worker's helper and return its process, other than the old one."""
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
    """The queue as used by another consumer."""
    with Penstock(worker_server.url) as client:
        yield client.queue("work")


@pytest.fixture
def helper(worker_server: EmbeddedServer, raw: redis.Redis) -> Iterator[HeartbeatProcess]:
    """The worker's side of a helper that is connected to the server."""
    made = HeartbeatProcess(worker_server.url, prefix="penstock", owner="tester")
    made.start()
    until(made.is_ready)
    yield made
    made.close()


def taken(queue: Queue, count: int, lease: float = 60.0) -> list[Any]:
    """Return just reserved jobs; the last ones are unknown to the server."""
    queue.enqueue({})
    jobs: list[Any] = queue.reserve()
    reservation, (at, number) = reservation_of(jobs[0]), number_of(jobs[0]).split(b"-")
    made_up = [b"%s-%d" % (at, int(number) + n) for n in range(1, count)]
    return [held(jobs[0], lease), *(made(reservation, number, lease) for number in made_up)]


def made(reservation: Reservation, number: bytes, lease: float) -> Any:
    """Return a job of that number."""
    return held(Delivery(reservation, number, b"", b"1\n"), lease)


def held(job: Any, lease: float) -> Any:
    """Return the job with a lease from now on."""
    set_term(job, Term(monotonic() + lease, lease))
    return job


def told_lost(helper: HeartbeatProcess, count: int) -> list[Any]:
    """Wait until this many jobs are lost."""
    found: dict[Any, None] = {}

    def is_enough() -> bool:
        found.update(dict.fromkeys(helper.news()))
        return len(found) >= count

    until(is_enough)
    return list(found)


def stop(helper: HeartbeatProcess) -> int:
    """Stop the helper with SIGSTOP and return its process."""
    pid = helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def end(helper: HeartbeatProcess) -> None:
    """Kill the helper and wait until the worker knows."""
    pid = helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: helper.pid is None)


@pytest.mark.slow
@KINDS
def test_a_handler_that_holds_the_interpreter_lock(
    crew: Crew, queue: Queue, other: Queue, kind: str
) -> None:
    """A handler holds the interpreter lock for three leases: it runs once, and its result
    counts.
    """
    queue.configure(lease=LEASE)
    start(crew, kind)
    queue.enqueue({"n": 1, "do": "keep", "s": 3 * LEASE, "slice": 3 * LEASE})
    crew.diary.wait("start", n=1)
    assert other.reserve(block=2 * LEASE) == []
    crew.diary.wait("end", n=1)
    until(lambda: queue.stats().acked == 1)
    found = runs(crew.diary.events())
    assert len(found[1]) == 1
    assert queue.stats().crashed == 0


def test_the_helper_ends_with_its_worker(crew: Crew, queue: Queue, other: Queue) -> None:
    """When the worker is killed its helper ends too, so the job's lease ends."""
    queue.configure(lease=LEASE)
    worker, helper = start(crew, "thread")
    queue.enqueue({"n": 1, "do": "nap", "s": 60})
    crew.diary.wait("start", n=1)
    worker.kill()
    until(lambda: not psutil.pid_exists(helper))
    jobs = other.reserve(block=20)
    assert [job.crashes for job in jobs] == [1]


def test_a_worker_that_has_ended_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper renews nothing when it notices the end of its worker, even if a lease is due."""
    ours, its = socket.socketpair()
    helper = module._Helper(Line(its))
    monkeypatch.setattr(helper, "_beat", lambda: pytest.fail("leases were renewed"))
    ours.close()
    helper.run()
    its.close()


def test_a_stopped_worker_holds_nothing(crew: Crew, queue: Queue, other: Queue) -> None:
    """While the worker is stopped the helper renews nothing; the worker notices
    when it continues.
    """
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


@pytest.mark.slow
def test_a_helper_that_dies_is_replaced(
    crew: Crew, queue: Queue, other: Queue, raw: redis.Redis
) -> None:
    """When the helper dies the worker's thread renews the leases until a new one runs."""
    queue.configure(lease=LEASE)
    worker, helper = start(crew, "thread")
    queue.enqueue({"n": 1, "do": "nap", "s": 3 * LEASE})
    crew.diary.wait("start", n=1)
    os.kill(helper, signal.SIGKILL)
    assert keeper_of(worker, old=helper) != helper
    assert other.reserve(block=2 * LEASE) == []
    crew.diary.wait("end", n=1)
    until(lambda: queue.stats().acked == 1)
    assert queue.stats().crashed == 0


@pytest.mark.slow
def test_a_helper_that_hangs(crew: Crew, queue: Queue) -> None:
    """A helper that hangs does not block the worker."""
    worker, helper = start(crew, "thread", prefetch=1000)
    os.kill(helper, signal.SIGSTOP)
    queue.enqueue_many({"n": n, "do": "nothing"} for n in range(6000))
    until(lambda: queue.stats().acked == 6000, 60)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert not psutil.pid_exists(helper)


def test_a_slow_helper_gets_all_jobs(helper: HeartbeatProcess, queue: Queue) -> None:
    """A slow helper gets all jobs, even more than a socket holds, and is not killed."""
    pid = stop(helper)
    jobs = taken(queue, 6000, lease=30.0)
    began = Term(monotonic() + 20, 30.0)  # to be renewed at once; it ends long after that
    for job in jobs:
        set_term(job, began)
    helper.hold(jobs)
    helper.news()
    assert helper.pid == pid
    os.kill(pid, signal.SIGCONT)
    lost = told_lost(helper, 5999)
    assert set(lost) == set(jobs[1:])
    until(lambda: not helper.news() and term_of(jobs[0]).until > began.until)
    assert helper.pid == pid


def test_jobs_are_known_before_their_handlers_run(
    helper: HeartbeatProcess, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers start only after the helper knows their jobs."""
    monkeypatch.setattr(module, "HELPER_FLUSH_SECONDS", 30.0)
    helper.hold(taken(queue, 6000))
    assert helper._process is not None
    assert not helper._process.line.unsent


@pytest.mark.parametrize("bound", ["HELPER_STUCK_SECONDS", "MOST_UNSENT_BYTES"])
def test_a_helper_that_hangs_is_replaced(
    helper: HeartbeatProcess, queue: Queue, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A hanging helper is replaced after a timeout or with too much pending; the new one gets all
    jobs.
    """
    pid = stop(helper)
    jobs = taken(queue, 6000, lease=3.0)
    with monkeypatch.context() as patch:
        patch.setattr(module, bound, 0.2 if bound == "HELPER_STUCK_SECONDS" else 1000)
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
    """If no helper can be started, that is logged and retried with pauses."""
    calls = []

    def refuse(*args: Any, **options: Any) -> None:
        calls.append(args)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    end(helper)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        until(lambda: helper.news() == [] and bool(calls))
        patch.setattr(module, "HELPER_START_INTERVAL", 1000.0)
        helper.news()
        assert len(calls) == 1
        jobs = taken(queue, 2, lease=1.0)
        helper.hold(jobs)
        assert helper._process is None, "messages pile up for a helper that is not there"
    assert "can't be started" in caplog.text
    assert told_lost(helper, 1) == jobs[1:]


def test_a_report_is_never_applied_to_another_job(helper: HeartbeatProcess, queue: Queue) -> None:
    """A report on a dropped job is not applied to a new job with its number."""
    jobs = taken(queue, 2)
    reservation, number = reservation_of(jobs[1]), number_of(jobs[1])
    del jobs
    for _ in range(5):
        lapsed = made(reservation, number, lease=0.01)
        helper.hold([lapsed])
        assert helper._process is not None
        assert helper._process.line.wait(30)
        helper.drop([lapsed])
        del lapsed
        other = made(reservation, number, lease=60.0)  # usually stored where the lapsed one was
        helper.hold([other])
        assert helper.news() == []
        helper.drop([other])
        del other


def test_a_dropped_job_is_forgotten(helper: HeartbeatProcess, queue: Queue) -> None:
    """A dropped job is forgotten; dropping it again or an unknown job is harmless."""
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
    """Jobs of an earlier epoch are lost; those of the current one are renewed."""
    earlier = taken(queue, 2, lease=1.0)
    raw.flushall()
    later = taken(queue, 1, lease=1.0)
    assert epoch_of(earlier[0]) != epoch_of(later[0])
    began = term_of(later[0])
    helper.hold([earlier[0], *later, earlier[1]])
    assert set(told_lost(helper, 2)) == set(earlier)
    until(lambda: not helper.news() and term_of(later[0]).until > began.until)


@pytest.mark.slow
@KINDS
def test_it_ends_in_order(crew: Crew, queue: Queue, kind: str) -> None:
    """A stopping worker ends its helper."""
    worker, helper = start(crew, kind)
    queue.enqueue({"n": 1, "do": "nothing"})
    crew.diary.wait("end", n=1)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert not psutil.pid_exists(helper)


def test_a_helper_needs_a_url(raw: redis.Redis) -> None:
    """A helper needs a client made from a URL; this is checked before the start."""

    def handler(job: Any) -> None:
        """Do nothing."""

    with pytest.raises(BadArgument, match=r"^heartbeat='process'"):
        Worker(raw, "q", handler, heartbeat="process").start()
    made = AsyncWorker("redis://127.0.0.1:1/0", "q", handler, heartbeat="process")
    assert made.state == "new"


def test_it_needs_a_unix(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems other than Unix a helper is refused, as it can't inherit a socket."""
    monkeypatch.setattr(processes, "os", SimpleNamespace(name="nt"))
    with pytest.raises(BadArgument, match=r"^heartbeat='process': needs a Unix"):
        HeartbeatProcess("redis://127.0.0.1:1/0", prefix="penstock", owner="tester")


def test_an_unknown_executable_starts_no_copies_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started as a helper, and runs another program, starts no helper."""
    monkeypatch.setenv(processes.LINE_VARIABLE, "7")
    with pytest.raises(BadArgument, match=r"^heartbeat='process': needs a Python interpreter"):
        HeartbeatProcess("redis://127.0.0.1:1/0", prefix="penstock", owner="tester")


def test_an_embedded_interpreter_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in which Python runs may have no executable for it."""
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(BadArgument, match=r"interpreter, and sys\.executable names none: use"):
        HeartbeatProcess("redis://127.0.0.1:1/0", prefix="penstock", owner="tester")


def test_a_frozen_program_starts_no_copies_of_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its executable is no interpreter: what needs a process is refused, or done in this one."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    url, reason = "redis://127.0.0.1:1/0", "needs a Python interpreter, and this program is frozen"
    with pytest.raises(
        BadArgument, match=f"^heartbeat='process': {reason}: use heartbeat='thread'"
    ):
        Worker(url, "q", print, heartbeat="process").start()
    with pytest.raises(BadArgument, match=f"^isolate='app:worker': {reason}: omit it"):
        Worker(url, "q", print, isolate="app:worker")
    for option in ("--processes=2", "--max-memory=1G", "--reload"):
        assert main(["worker", "app:worker", option]) == 2
        assert f"argument {option.partition('=')[0]}: {reason}" in capsys.readouterr().err
    assert main(["demo"]) == 1
    assert f"the demo {reason}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", "change"])
def test_the_worker_beside_a_helper_uses_one_node(worker_server: EmbeddedServer, how: str) -> None:
    """The helper knows one node, so its worker uses no other one, at any start."""
    worker = Worker(worker_server.url, "work", print, burst=True)
    assert worker._client.topology.joins
    worker.change(heartbeat="process")
    if how == "restart":
        worker.run()
        with worker:
            assert not worker._client.topology.joins
    assert not worker._client.topology.joins
