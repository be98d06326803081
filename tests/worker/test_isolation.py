"""Suspects run in a separate process, while the same worker runs ordinary jobs."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from penstock import BadArgument, Job, Penstock, Queue, Worker
from penstock.worker import AsyncWorker, isolation
from penstock.worker.processes import Line
from penstock.worker.signals import GROUP_SIGNALS
from tests.support.workers import until
from tests.worker import tasks
from tests.worker.support import Crew, Event, WorkerProcess

KINDS = ("thread", "asyncio", "mixed")


def crashed_twice(queue: Queue, *bodies: dict[str, Any], lease: float = 30) -> None:
    """Enqueue jobs whose lease ended twice."""
    queue.configure(lease=0.05)
    queue.enqueue_many(bodies)
    for _ in range(2):
        until(lambda: len(queue.reserve(len(bodies), block=1)) == len(bodies))
    until(lambda: queue.stats().active == 0)
    queue.configure(lease=lease)


def started(crew: Crew, kind: str, **options: Any) -> WorkerProcess:
    """Start a worker that isolates suspects."""
    return crew.start(kind, isolate=True, **{"concurrency": 4, **options})


def begun(crew: Crew, worker: WorkerProcess, **wanted: Any) -> Event:
    """Wait until a suspect runs in a separate process."""
    event = crew.diary.wait("start", **wanted)
    assert psutil.Process(event["pid"]).ppid() == worker.pid
    return event


def status(worker: WorkerProcess) -> tuple[int, int]:
    """Return the numbers of held and of running jobs, as reported by the worker."""
    worker.child.send("status")
    told = worker.child.next_event()
    return told["held"], told["running"]


def test_no_process_without_suspects(crew: Crew, queue: Queue) -> None:
    """Without suspects no process is started; one crash does not make a suspect."""
    queue.configure(lease=0.05)
    queue.enqueue({"n": 0, "do": "no"})
    queue.reserve(block=1)
    until(lambda: queue.stats().active == 0)
    queue.configure(lease=30)
    worker = started(crew, "thread")
    queue.enqueue({"n": 1, "do": "no"})
    until(lambda: queue.stats().acked == 2)
    assert psutil.Process(worker.pid).children() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_jobs_continue_in_the_same_worker(
    kind: str, crew: Crew, queue: Queue, tmp_path: Path
) -> None:
    """Ordinary jobs run next to the suspect, whose result is reported as usual."""
    gate = tmp_path / "gate"
    crashed_twice(queue, {"n": 0, "do": "wait", "for": str(gate)})
    worker = started(crew, kind, control=True)
    begun(crew, worker, n=0)
    queue.enqueue_many({"n": n, "do": "nap", "s": 0.02} for n in range(1, 40))
    until(lambda: queue.stats().acked == 39)
    assert crew.diary.events("end", n=0) == []
    until(lambda: status(worker) == (1, 1))
    gate.touch()
    until(lambda: queue.stats().acked == 40)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heartbeat", ["thread", "process"])
def test_a_suspect_that_keeps_the_interpreter(
    kind: str, heartbeat: str, crew: Crew, queue: Queue, tmp_path: Path
) -> None:
    """A suspect that holds the interpreter lock stalls only its own process.

    With a helper process that renews its lease it is done.
    """
    gate = tmp_path / "gate"
    gate.touch()
    is_renewed = heartbeat == "process"
    suspect = {"n": 0, "do": "seize", "for": str(gate)}
    crashed_twice(queue, suspect, lease=6 if is_renewed else 2)
    with gate.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        worker = started(crew, kind, heartbeat=heartbeat)
        begun(crew, worker, n=0)
        queue.enqueue_many({"n": n, "do": "no"} for n in range(1, 10))
        until(lambda: queue.stats().acked >= 9)
        if is_renewed:
            [held] = queue.jobs("active").page().jobs
            until(lambda: queue.jobs("active").page().jobs[0].lease_until != held.lease_until)
        else:
            until(lambda: queue.stats().dead == 1)
        assert crew.diary.events("end", n=0) == []
    crew.diary.wait("end", n=0)
    until(lambda: (stats := queue.stats()).acked + stats.dead == 10)
    assert [letter.body["n"] for letter in queue.peek(state="dead")] == [0] * (not is_renewed)


@pytest.mark.slow  # a short run has one partition, in the tests above
@pytest.mark.usefixtures("raw")
@pytest.mark.parametrize("kind", KINDS)
def test_suspects_of_partitions(kind: str, crew: Crew, worker_url: str) -> None:
    """The separate process knows the partitions of a queue."""
    with Penstock(worker_url) as client:
        queue = client.queue("work", partitions=3)
        crashed_twice(queue, *({"n": n, "do": "no"} for n in range(4)))
        worker = started(crew, kind)
        until(lambda: queue.stats().acked == 4)
    assert worker.pid not in {one["pid"] for one in crew.diary.events("start")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_suspect_that_kills_its_process(kind: str, crew: Crew, queue: Queue) -> None:
    """A suspect kills its process: the crash counts when its lease ends; a new process starts."""
    crashed_twice(queue, {"n": 0, "do": "die"}, {"n": 1, "do": "no"}, lease=0.5)
    worker = started(crew, kind)
    until(lambda: queue.stats().dead == 1)
    [letter] = queue.peek(state="dead")
    assert (letter.body["n"], letter.crashes) == (0, 3)
    assert crew.diary.wait("end", n=1)["pid"] != worker.pid
    queue.enqueue({"n": 2, "do": "no"})
    assert crew.diary.wait("end", n=2)["pid"] == worker.pid


@pytest.mark.slow  # a short run has it in test_kills.py, with two processes
@pytest.mark.parametrize("kind", KINDS)
def test_jobs_with_one_that_stalls_its_worker(kind: str, crew: Crew, queue: Queue) -> None:
    """One worker: only jobs that stall it may become dead letters."""
    queue.configure(lease=0.5)
    queue.enqueue({"n": 0, "do": "keep", "s": 1.5, "slice": 1.5})
    queue.enqueue_many({"n": n, "do": "nap", "s": 0.02} for n in range(1, 30))
    queue.enqueue({"n": 30, "do": "keep", "s": 1.5, "slice": 1.5})
    started(crew, kind, concurrency=8, patient=False)
    until(lambda: (stats := queue.stats()).acked + stats.dead >= 31, 60)
    assert {letter.body["do"] for letter in queue.peek(state="dead")} <= {"keep"}
    assert {one["n"] for one in crew.diary.events("end")} >= set(range(1, 30))


@pytest.mark.parametrize("kind", KINDS)
def test_a_suspect_that_is_not_done_at_a_stop(kind: str, crew: Crew, queue: Queue) -> None:
    """A suspect that runs longer than the grace is released without a crash; both processes end."""
    crashed_twice(queue, {"n": 0, "do": "nap", "s": 20})
    worker = started(crew, kind, grace=0.1)
    process = psutil.Process(begun(crew, worker, n=0)["pid"])
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    process.wait(10)
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.crashed) == (1, 0, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_suspect_that_is_done_within_the_grace(
    kind: str, crew: Crew, queue: Queue, tmp_path: Path
) -> None:
    """A stopping worker waits for its suspect within the grace; signals to all reach both."""
    gate = tmp_path / "gate"
    crashed_twice(queue, {"n": 0, "do": "wait", "for": str(gate)})
    worker = started(crew, kind, grace=60)
    process = psutil.Process(begun(crew, worker, n=0)["pid"])
    for number in GROUP_SIGNALS:
        process.send_signal(number)
    worker.signal(signal.SIGTERM)
    gate.touch()
    assert worker.ended() == 0
    assert queue.stats().acked == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_death_of_the_worker(kind: str, crew: Crew, queue: Queue, tmp_path: Path) -> None:
    """When the worker is killed its process finishes the suspect within the grace, and ends."""
    gate = tmp_path / "gate"
    crashed_twice(queue, {"n": 0, "do": "wait", "for": str(gate)})
    worker = started(crew, kind)
    process = psutil.Process(begun(crew, worker, n=0)["pid"])
    worker.kill()
    gate.touch()
    until(lambda: queue.stats().acked == 1)
    process.wait(10)


@pytest.mark.slow  # a short run has the one above, which ends
@pytest.mark.parametrize("kind", KINDS)
def test_the_death_of_the_worker_with_an_endless_suspect(
    kind: str, crew: Crew, queue: Queue, tmp_path: Path
) -> None:
    """When the worker is killed its process ends seconds after the grace, even with
    a blocked loop.
    """
    crashed_twice(queue, {"n": 0, "do": "wait", "for": str(tmp_path / "never")})
    worker = started(crew, kind, grace=0.1)
    process = psutil.Process(begun(crew, worker, n=0)["pid"])
    worker.kill()
    process.wait(20)
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.crashed) == (1, 0, 2)


@pytest.mark.slow  # it takes the seconds for which a process waits at its end
def test_the_death_of_the_worker_with_a_deaf_suspect(crew: Crew, queue: Queue) -> None:
    """When the worker is killed its process ends, even if a coroutine refuses to be cancelled."""
    crashed_twice(queue, {"n": 0, "do": "deaf", "s": 60})
    worker = started(crew, "asyncio", grace=0.1)
    process = psutil.Process(begun(crew, worker, n=0)["pid"])
    worker.kill()
    process.wait(30)
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.crashed) == (1, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_waits_for_its_suspects(kind: str, crew: Crew, queue: Queue) -> None:
    """In burst mode suspects run one after the other, and all are done."""
    crashed_twice(queue, *({"n": n, "do": "no"} for n in range(3)))
    worker = started(crew, kind, burst=True)
    assert worker.ended() == 0
    assert queue.stats().acked == 3
    assert {one["pid"] for one in crew.diary.events("end")}.isdisjoint({worker.pid})


@pytest.mark.parametrize("kind", KINDS)
def test_outcomes_of_suspects_are_counted(kind: str, crew: Crew, queue: Queue, diary: Any) -> None:
    """The outcomes of suspects are in the worker's statistics."""
    crashed_twice(queue, {"n": 0, "do": "no"}, {"n": 1, "do": "boom"})
    queue.configure(max_attempts=3)
    options = [kind, crew.url, str(diary.path), ["work"], None, {}]
    worker = worker_here(options)
    run(worker)
    counts = worker.status().stats.counts
    assert (counts.pop("done"), counts.pop("dead")) == (1, 1)
    assert counts.keys() <= {"handed back"}
    [letter] = queue.peek(state="dead")
    assert (letter.error, letter.nacks, letter.crashes) == ("ValueError: boom", 1, 2)
    assert os.getpid() not in {one["pid"] for one in diary.events("start")}


def worker_here(told: list[Any]) -> Worker | AsyncWorker:
    """Return a worker of this process."""
    kind, url, diary, queues, batch, options = told
    os.environ[tasks.TOLD] = tasks.json.dumps(told)
    deeds = tasks.Deeds(tasks.Diary(diary))
    more = {"isolate": "tests.worker.tasks:again", "burst": True}
    return tasks.made(kind, url, deeds, queues, batch, **options, **more)


def run(worker: Worker | AsyncWorker) -> None:
    """Run it until it ends."""
    if isinstance(worker, AsyncWorker):
        tasks.asyncio.run(worker.run())
    else:
        worker.run()


def test_an_app_that_cannot_be_loaded(
    crew: Crew, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the app can't be loaded, suspects run alone in the worker; the reason is logged."""
    monkeypatch.setattr(
        isolation, "ISOLATED_END_SECONDS", 30
    )  # a busy machine is slow to end the process
    crashed_twice(queue, {"n": 0, "do": "no"}, {"n": 1, "do": "no"})
    seen: list[int] = []

    def handle(job: Job) -> None:
        seen.append(len(worker.status().running))

    worker = Worker(crew.url, "work", handle, burst=True, isolate="nosuch:worker")
    with caplog.at_level(logging.ERROR):
        worker.run()
    assert seen == [1, 1]
    assert queue.stats().acked == 2
    assert "suspects can't run in a process of their own (it ended with 2)" in caplog.text


def test_a_process_whose_line_has_no_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no thread can read its messages, the process ends, and suspects run in the worker."""
    lines: list[Line] = []

    def refuse(line: Line, hear: Any, name: str) -> None:
        lines.append(line)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Line, "listen", refuse)
    state: Any = SimpleNamespace(log=logging.getLogger("penstock"))
    isolator, job = isolation.Isolator("nosuch:worker", {}, state), cast("Job", None)
    assert not isolator.take(job)
    assert isolator.is_broken
    assert [line.is_broken for line in lines] == [True]
    assert "can't run in a process of their own (can't start new thread)" in caplog.text


@pytest.mark.parametrize("value", ["app", "app:", "./app.py:worker", 5])
def test_invalid_names_of_workers(crew: Crew, value: Any) -> None:
    """An invalid worker name is refused when the worker is constructed."""
    with pytest.raises(BadArgument, match="isolate"):
        Worker(crew.url, "work", print, isolate=value)
