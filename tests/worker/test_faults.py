"""Every job ends as it should after each fault, with results, progress and a cancelled job in play.

The faults of a worker hit one that runs all jobs while another one is idle. Faults at each step of
a call are in `test_kills.py`, more faults of the server and the network in `test_trouble.py`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from penstock import JobCancelled, JobFailed, Penstock, Queue, RetryPolicy
from penstock.embedded import EmbeddedServer
from tests.support.keyspace import check_invariant, load_scripts
from tests.support.proxy import Proxy
from tests.support.workers import until
from tests.worker.support import Crew, WorkerProcess

KINDS = ("thread", "asyncio")
LEASE = 2.0
SLACK = 3.0
"""Seconds that recovery may take in addition to the lease: one, and two for a busy machine."""
KEPT = 600
GATED = 3
"""Jobs that wait for the gate."""


@dataclass(frozen=True)
class WorkerFault:
    """A fault of a worker.

    Attributes:
        do: the task of the job that causes it; empty = the test does.
        strike: the test's part; returns the time.
        error: the error of that job, which becomes a dead letter; empty = it is done.
        options: of the workers.
        holds: whether the other jobs stay with their worker.
        more: fields of the job's body.
        retry: its retry policy.
    """

    do: str = ""
    strike: Callable[[WorkerProcess], float] = lambda _: time.monotonic()
    error: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    holds: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    retry: RetryPolicy | None = None


NATIVE = {"s": 10.0, "slice": 10.0}
FAULTS = {
    "killed": WorkerFault(strike=WorkerProcess.kill),
    "stopped": WorkerFault(strike=lambda victim: victim.signal(signal.SIGSTOP)),
    "exit": WorkerFault("exit", error="lease ended 3 times"),
    "hanging": WorkerFault(
        "spin", error="TimeLimit", options={"time_limit": 5}, holds=True, retry=RetryPolicy(2)
    ),
    "native code": WorkerFault("keep", error="lease ended 3 times", more=NATIVE),
    "native code, helper": WorkerFault(
        "keep", options={"heartbeat": "process"}, holds=True, more=NATIVE
    ),
    "memory": WorkerFault("memory", error="MemoryError", holds=True, retry=RetryPolicy(2)),
}


class Jobs:
    """The jobs of a test: some wait for a gate and tell progress, one is cancelled.

    Args:
        queue: their queue.
        gate: a file; the jobs go on when it exists.
    """

    def __init__(self, queue: Queue, gate: Path) -> None:
        self.queue = queue
        self.gate = gate
        queue.configure(lease=LEASE, backoff_base=0.01)
        gated = {"do": "gate", "for": str(gate), "note": "it waits"}
        bodies = [{"n": n, **gated} for n in range(GATED)]
        spinning = {"n": "cancelled", "do": "spin"}
        self.ids = [job.id for job in queue.enqueue_many([*bodies, spinning], result_ttl=KEPT)]

    def begun(self, crew: Crew) -> None:
        """Wait until all jobs run and their progress is known; then cancel the last one."""
        for n in (*range(GATED), "cancelled"):
            crew.diary.wait("start", n=n)
        for job_id in self.ids[:-1]:
            until(lambda job_id=job_id: "it waits" in str(self._view(job_id).progress))
        self.queue.cancel(self.ids[-1:])

    def _view(self, job_id: str) -> Any:
        view = self.queue.show(job_id)
        assert view is not None
        return view

    def ended(self) -> list[int]:
        """Wait for the results; return the process that has done each job."""
        values = [self.queue.result(job_id, timeout=60) for job_id in self.ids[:-1]]
        assert [value["n"] for value in values] == list(range(GATED))
        with pytest.raises(JobCancelled):
            self.queue.result(self.ids[-1], timeout=60)
        stats = self.queue.stats()
        assert (stats.ready, stats.scheduled, stats.active) == (0, 0, 0)
        assert stats.cancelled == 1
        return [value["pid"] for value in values]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_worker(
    name: str, kind: str, crew: Crew, queue: Queue, raw: redis.Redis, tmp_path: Path
) -> None:
    """No job is lost or done twice, and the cancelled one does not run again.

    The jobs of a dead or stopped worker, and one whose lease ends, start in the idle one within
    lease + 1 s.
    """
    fault, gate = FAULTS[name], tmp_path / "gate"
    options = {"concurrency": GATED + 2, **fault.options}
    jobs = Jobs(queue, gate)
    victim = crew.start(kind, **options)
    jobs.begun(crew)
    other = crew.start(kind, **options)
    if fault.do:
        crew.diary.wait("up", pid=other.pid)
        body = {"n": "fault", "do": fault.do, **fault.more}
        causing = queue.enqueue(body, result_ttl=KEPT, retry=fault.retry).id
        crew.diary.wait("start", n="fault")
        gate.touch()
        _replace_ended(crew, kind, options, lambda: _is_over(queue, causing))
        if fault.error:
            with pytest.raises(JobFailed, match=fault.error):
                queue.result(causing, timeout=60)
        else:
            assert queue.result(causing, timeout=60)["n"] == "fault"
        if fault.error.startswith("lease ended"):
            first, again, *_ = crew.diary.events("start", n="fault")
            assert LEASE / 2 < again["t"] - first["t"] <= LEASE + SLACK
            assert again["pid"] != first["pid"]
    else:
        struck = fault.strike(victim)
        again = [crew.diary.wait("start", n=n, pid=other.pid) for n in range(GATED)]
        assert all(LEASE / 2 < one["t"] - struck <= LEASE + SLACK for one in again)
        gate.touch()
        assert set(jobs.ended()) == {other.pid}
        if victim.died is None:
            victim.signal(signal.SIGCONT)
            until(lambda: len(_ends_in(crew, victim)) >= GATED)
    pids = jobs.ended()
    if fault.holds:
        assert set(pids) == {victim.pid}
    assert len(crew.diary.events("start", n="cancelled")) == 1
    assert queue.stats().acked == GATED + bool(fault.do and not fault.error)
    check_invariant(raw)


def _ends_in(crew: Crew, worker: WorkerProcess) -> list[Any]:
    """Return the ends of runs. A coroutine is cancelled, if it does not end before that."""
    names, events = ("end", "cancelled"), crew.diary.events(pid=worker.pid)
    return [one for one in events if one["event"] in names and one["n"] != "cancelled"]


def _is_over(queue: Queue, job_id: str) -> bool:
    view = queue.show(job_id)
    return view is not None and view.state in ("done", "dead")


def _replace_ended(
    crew: Crew, kind: str, options: dict[str, Any], reached: Callable[[], bool]
) -> None:
    """Start a worker for each that has ended, until a condition holds."""

    def look() -> bool:
        for worker in list(crew.workers):
            if worker.died is None and not psutil.pid_exists(worker.pid):
                worker.ended()
                crew.start(kind, patient=False, **options)
        return reached()

    until(look, 90)


@contextmanager
def cutting(proxy: Proxy) -> Iterator[list[int]]:
    """Cut all connections each second; yield the numbers of those that were cut."""
    over, cuts = threading.Event(), list[int]()

    def run() -> None:
        while not over.wait(1):
            cuts.append(proxy.cut())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield cuts
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_connections_that_are_cut_each_second(
    kind: str, crew: Crew, server: EmbeddedServer, tmp_path: Path
) -> None:
    """All jobs are done, each with its value; the cancelled one is interrupted."""
    with Proxy(server.address) as proxy, Penstock(server.url) as client, cutting(proxy) as cuts:
        queue = client.queue("work")
        jobs = Jobs(queue, tmp_path / "gate")
        queue.configure(max_attempts=1000, max_crashes=1000)
        crew.start(kind, url=proxy.url, concurrency=5)
        jobs.begun(crew)
        naps = [{"n": n, "do": "nap", "s": 0.1, "note": "soon"} for n in range(100, 200)]
        ids = [job.id for job in queue.enqueue_many(naps, result_ttl=KEPT)]
        until(lambda: len(cuts) > 4)
        jobs.gate.touch()
        assert [queue.result(job_id, timeout=60)["n"] for job_id in ids] == list(range(100, 200))
        jobs.ended()
        assert queue.stats().dead == 0
        assert sum(cuts) > len(cuts), "several connections were cut"
    with redis.Redis.from_url(server.url) as raw:
        check_invariant(raw)


@pytest.mark.slow
@pytest.mark.parametrize("has_data", [True, False], ids=["with data", "without data"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_of_the_server(
    kind: str,
    has_data: bool,
    crew: Crew,
    make_server: Callable[..., EmbeddedServer],
    tmp_path: Path,
) -> None:
    """With its data the server gets all reports; without, the worker goes on with new jobs."""
    server = make_server(tcp=True, appendonly=has_data)
    with Penstock(server.url) as client:
        queue = client.queue("work")
        jobs = Jobs(queue, tmp_path / "gate")
        crew.start(kind, url=server.url, concurrency=5)
        jobs.begun(crew)
        server.restart()
        with redis.Redis.from_url(server.url) as raw:
            load_scripts(raw)
            jobs.gate.touch()
            if has_data:
                jobs.ended()
            else:  # running handlers end, or are cancelled: the server has no job of theirs
                new = Penstock(server.url).queue("work")
                job = new.enqueue({"n": "new", "do": "no", "note": "new"}, result_ttl=KEPT)
                assert new.result(job.id, timeout=60)["n"] == "new"
            check_invariant(raw)
