"""Killed and disconnected workers: no job is lost, and none runs twice at once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import JobEvent, Penstock, Queue
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.crash.tasks import STEPS, STEPS_AFTER_RUN
from tests.support.keyspace import check_invariant
from tests.support.proxy import Proxy
from tests.support.twins import spawn
from tests.support.workers import Nursery, until
from tests.worker.support import Crew, Diary, WorkerProcess, add, runs, runs_at_once

KINDS = ("thread", "asyncio")
JOBS = 20_000
KILLS = 200
CREW = (
    {"kind": "thread", "concurrency": 4},
    {"kind": "asyncio", "concurrency": 4},
    {"kind": "thread", "concurrency": 3, "prefetch": 3},
    {"kind": "asyncio", "concurrency": 3, "prefetch": 3},
)
CALLS = {
    "reserve": [{"do": "no"}] * 3,
    "settle": [{"do": "no"}] * 3,
    "ack": [{"do": "no"}],
    "extend": [{"do": "gate"}],
    "nack": [{"do": "stumble"}] * 2,
    "release": [{"do": "gate"}],
}
"""Jobs whose worker makes this call."""


def jobs_of(call: str, gate: Path) -> list[dict[str, Any]]:
    """Return the jobs whose worker makes this call; some of them end when the file exists."""
    return [{"n": n, "for": str(gate), **job} for n, job in enumerate(CALLS[call])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_watches_a_worker_that_is_killed(
    kind: str, crew: Crew, worker_url: str, tmp_path: Path
) -> None:
    """It sees the chunk of the killed attempt, its failure, and all of the next one."""
    gate, events = tmp_path / "gate", list[JobEvent]()
    with Penstock(worker_url) as client:
        queue = client.queue("watched")
        queue.configure(lease=2)
        body = {"n": 1, "do": "gate", "for": str(gate), "chunk": "hello"}
        job = queue.enqueue(body, result_ttl=60)
        watching = spawn(lambda: events.extend(job.watch(timeout=60)))
        seen = spawn(lambda: next(event for event in job.watch() if event.kind == "chunk"))
        victim = crew.start(kind, queues=["watched"])
        assert seen.result(60).data == "hello"
        os.kill(victim.pid, signal.SIGKILL)
        gate.touch()
        crew.start(kind, queues=["watched"])
        watching.result(60)
    told = [event for event in events if event.kind != "waiting"]
    assert [event.kind for event in told] == (
        ["started", "chunk", "failed", "started", "chunk", "ended"]
    )
    assert [event.attempt for event in told] == [1, 1, 1, 2, 2, 2]
    assert (told[2].error, told[-1].state) == ("lease ended", "done")


# -- R2: at every step ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_r2_killed_at_each_step_of_a_call(
    call: str, crew: Crew, raw: redis.Redis, worker_url: str, tmp_path: Path
) -> None:
    """R2: a worker is killed before, during or after a call, also with its reply unread.

    Another worker completes each job and nothing is left; R15: its dedup id is free.
    """
    gate = tmp_path / "gate"
    jobs = jobs_of(call, gate)
    with Penstock(worker_url) as client:
        queues = {step: client.queue(f"{call} {step}") for step in STEPS}
        for step, queue in queues.items():
            queue.configure(lease=0.5, backoff_base=0.01)
            queue.enqueue_many(jobs, dedup_id=lambda body: f"id {body['n']}")
            trap = {"operation": call, "step": step, "which": 0}
            leaves = call == "release"
            options = {"trap": trap, "control": leaves, "concurrency": 1}
            victim = crew.start("thread", queues=[queue.name], patient=False, **options)
            if leaves:
                crew.diary.wait("start", pid=victim.pid)
                victim.child.send("stop 0")
            victim.child.wait()
            assert victim.child.killed, "the call was not made"
        gate.touch()
        crew.start("asyncio", queues=[queue.name for queue in queues.values()])
        for queue in queues.values():
            until(lambda queue=queue: queue.stats().acked == len(jobs))
            stats = queue.stats()
            assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (0, 0, 0, 0)
            done = {one["n"] for one in crew.diary.events("end", queue=queue.name)}
            assert done == set(range(len(jobs)))
            assert [queue.dedup_status(f"id {n}") for n in range(len(jobs))] == [None] * len(jobs)
    check_invariant(raw)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [call for call in CALLS if call != "release"])
def test_r2_cut_off_at_a_call(
    kind: str, call: str, crew: Crew, queue: Queue, worker_server: EmbeddedServer, tmp_path: Path
) -> None:
    """R2: a reply is lost, or the socket breaks during a call: the same worker continues.

    It completes every job, the last one after a lease.
    """
    queue.configure(lease=1.0, backoff_base=0.01)
    sha = script(call).sha.encode()
    with Proxy(worker_server.address) as proxy:
        crew.start(kind, url=proxy.url, concurrency=1)
        for turn, arm in enumerate(
            (proxy.eat_reply, lambda after: proxy.cut_after_request_bytes(50, after=after))
        ):
            fault, gate = arm(after=sha), tmp_path / f"gate {turn}"
            jobs = jobs_of(call, gate)
            queue.enqueue_many(jobs, ttl=600)  # needs the full scripts
            fault.wait(20)
            gate.touch()
            done = len(jobs) * (turn + 1)
            until(lambda done=done: queue.stats().acked == done)
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (0, 0, 0, 0)


# -- killed in a loop ----------------------------------------------------------------------------


@pytest.mark.slow
def test_r2_kills_in_a_loop(crew: Crew, queue: Queue, raw: redis.Redis) -> None:
    """R2, scaled down: 200 kills at random times over 20,000 jobs lose no job.

    And no job starts while an earlier run of it continues in a living process.
    """
    dice = random.Random(5)
    queue.configure(lease=2.0, max_crashes=1_000_000, max_attempts=1_000_000)
    queue.enqueue_many({"n": n, "do": "nap", "s": n % 40 / 1000} for n in range(JOBS))
    places = [crew.start(**options) for options in CREW]
    for turn in range(KILLS):
        time.sleep(dice.uniform(0.0, 0.2))  # the work to be interrupted
        i = turn % len(CREW)
        places[i].kill()
        places[i] = crew.start(**CREW[i], patient=False)
        if turn == KILLS // 2:
            assert queue.stats().acked < JOBS, "too early done to be hard"
    until(lambda: queue.stats().acked >= JOBS, 60)
    for worker in places:
        worker.signal(signal.SIGTERM)
    assert [worker.ended() for worker in places] == [0] * len(places)
    check_invariant(raw)
    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.scheduled, stats.active, stats.dead) == (
        JOBS,
        0,
        0,
        0,
        0,
    )
    found = runs(crew.diary.events(), crew.deaths())
    assert {n for n, one in found.items() if any(run.finished for run in one)} == set(range(JOBS))
    assert runs_at_once(found) == []
    assert stats.crashed > KILLS / 2


# -- jobs that kill their worker
# --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_kills_its_worker(kind: str, crew: Crew, queue: Queue) -> None:
    """After three crashed workers the job is a dead letter that names the last one.

    Crashes count apart from nacks.
    """
    queue.configure(lease=0.5)
    queue.enqueue({"n": 1, "do": "die"})
    for n in range(3):
        victim = crew.start(kind, concurrency=1, patient=False, name=f"victim-{n}")
        victim.child.wait()
        assert victim.child.killed
    crew.start(kind, concurrency=1)
    until(lambda: queue.stats().dead == 1)
    (letter,) = queue.peek(state="dead")
    assert (letter.crashes, letter.nacks, letter.deliveries) == (3, 0, 3)
    assert "victim-2" in letter.error
    queue.enqueue({"n": 2, "do": "no"})
    crew.diary.wait("end", n=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_jobs_with_one_that_kills_its_worker(kind: str, crew: Crew, queue: Queue) -> None:
    """Jobs held by the same worker crash as often but are done, as each runs alone at last."""
    queue.configure(lease=2.0)
    options: dict[str, Any] = {"concurrency": 4, "prefetch": 4}
    queue.enqueue_many({"n": n, "do": "nap", "s": 0.2} for n in range(4))
    queue.enqueue({"n": 4, "do": "die"})
    queue.enqueue_many({"n": n, "do": "nap", "s": 0.2} for n in range(5, 8))
    for _ in range(3):
        victim = crew.start(kind, patient=False, **options)
        victim.child.wait()
        assert victim.child.killed
    crew.start(kind, **options)
    until(lambda: (queue.stats().acked, queue.stats().dead) == (7, 1))
    (letter,) = queue.peek(state="dead")
    assert letter.body["n"] == 4


def crashed_twice(queue: Queue, count: int, **body: Any) -> None:
    """Enqueue jobs whose lease ended twice."""
    queue.configure(lease=0.05)
    queue.enqueue_many({"n": n, **body} for n in range(count))
    for _ in range(2):
        until(lambda: len(queue.reserve(count, block=1)) == count)
    until(lambda: queue.stats().active == 0)
    queue.configure(lease=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_suspects_with_a_new_job_that_kills_its_worker(kind: str, crew: Crew, queue: Queue) -> None:
    """Jobs with one crash left come in a batch with a killing job: only that one dies."""
    crashed_twice(queue, 5, do="nap", s=0.02)
    queue.enqueue({"n": 5, "do": "die"})
    queue.enqueue_many({"n": n, "do": "nap", "s": 0.02} for n in range(6, 9))
    for _ in range(3):
        victim = crew.start(kind, patient=False, concurrency=12)
        victim.child.wait()
        assert victim.child.killed
    crew.start(kind, concurrency=12)
    until(lambda: (queue.stats().acked, queue.stats().dead) == (8, 1))
    (letter,) = queue.peek(state="dead")
    assert letter.body["n"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_jobs_with_one_that_stalls_its_worker(kind: str, crew: Crew, queue: Queue) -> None:
    """A handler holds the interpreter lock for longer than a lease: only its job may die."""
    queue.configure(lease=0.5)
    queue.enqueue({"n": 0, "do": "keep", "s": 1.5, "slice": 1.5})
    queue.enqueue_many({"n": n, "do": "nap", "s": 0.02} for n in range(1, 30))
    queue.enqueue({"n": 30, "do": "keep", "s": 1.5, "slice": 1.5})
    for _ in range(2):
        crew.start(kind, patient=False, concurrency=8)
    until(lambda: (stats := queue.stats()).acked + stats.dead >= 31, 60)
    assert {letter.body["do"] for letter in queue.peek(state="dead")} <= {"keep"}
    assert {one["n"] for one in crew.diary.events("end")} >= set(range(1, 30))


BEFORE_A_SUSPECT_BEGINS = (
    *(("reserve", step, 1) for step in STEPS_AFTER_RUN),  # number 0 reserves no jobs
    *(("extend", step, 0) for step in ("before", "torn")),
)


@pytest.mark.parametrize("call, step, which", BEFORE_A_SUSPECT_BEGINS)
def test_a_suspect_whose_worker_dies_before_it_begins(
    call: str, step: str, which: int, crew: Crew, queue: Queue
) -> None:
    """A suspect that was delivered but not started is not charged a crash."""
    crashed_twice(queue, 1, do="no")
    trap = {"operation": call, "step": step, "which": which}
    victim = crew.start("thread", patient=False, trap=trap)
    victim.child.wait()
    assert victim.child.killed
    crew.start("thread")
    crew.diary.wait("end", n=0)
    until(lambda: queue.stats().acked == 1)
    assert queue.stats().dead == 0


@pytest.mark.parametrize("step", STEPS_AFTER_RUN)
def test_a_suspect_whose_worker_dies_after_it_begins(step: str, crew: Crew, queue: Queue) -> None:
    """A suspect that has started is charged its last crash."""
    crashed_twice(queue, 1, do="no")
    trap = {"operation": "extend", "step": step, "which": 0}
    victim = crew.start("thread", patient=False, trap=trap)
    victim.child.wait()
    crew.start("thread")
    until(lambda: queue.stats().dead == 1)
    assert crew.diary.events("start", n=0) == []


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_jobs_continue_during_a_suspect(
    kind: str, crew: Crew, queue: Queue, tmp_path: Path
) -> None:
    """A suspect has a worker for itself; another worker runs the other jobs."""
    gate = tmp_path / "gate"
    crashed_twice(queue, 1, do="gate", **{"for": str(gate)})
    queue.configure(lease=30)
    workers = [crew.start(kind, concurrency=4) for _ in range(2)]
    begun = crew.diary.wait("start", n=0)
    (other,) = [worker.pid for worker in workers if worker.pid != begun["pid"]]
    queue.enqueue_many({"n": n, "do": "nap", "s": 0.02} for n in range(1, 40))
    until(lambda: queue.stats().acked == 39)
    assert {one["pid"] for one in crew.diary.events("start") if one["n"]} == {other}
    gate.touch()
    until(lambda: queue.stats().acked == 40)


# -- lost leases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_another_worker_took(kind: str, crew: Crew, queue: Queue) -> None:
    """The handler learns at the next renewal that its job is lost; its report changes nothing."""
    worker = crew.start(kind, concurrency=2)
    queue.enqueue({"n": 1, "do": "watch"}, lease=3.0)
    crew.diary.wait("start")
    (mine,) = queue.recover(1, idle=0)
    mine.extend(30)
    told = "cancelled" if kind == "asyncio" else "end"
    assert crew.diary.wait(told, n=1, patience=10)["lost"]
    queue.enqueue({"n": 2, "do": "no"})
    crew.diary.wait("end", n=2, pid=worker.pid)
    until(lambda: queue.stats().acked == 1)
    (view,) = queue.peek(state="active")
    assert (view.id, view.deliveries, view.nacks) == (mine.id, 2, 0)
    assert mine.ack()


@pytest.mark.parametrize("kind", KINDS)
def test_leases_that_end_while_the_server_is_paused(
    kind: str, server: EmbeddedServer, diary: Diary, home: Callable[[], Nursery]
) -> None:
    """Connections are cut and the server pauses longer than a lease: the handlers are told.

    The worker continues when the server does.
    """
    crew = Crew(server.url, diary, home)
    with Penstock(server.url) as client:
        queue = client.queue("work")
        queue.configure(lease=1.0)
        try:
            workers: list[WorkerProcess] = [crew.start(kind, concurrency=2)]
            queue.enqueue({"n": 1, "do": "watch"})
            begun = crew.diary.wait("start")
            with redis.Redis.from_url(server.url) as raw:
                raw.client_kill_filter(_type="normal", skipme=True)
            server.pause()
            told = "cancelled" if kind == "asyncio" else "end"
            event = crew.diary.wait(told, n=1, patience=10)
            server.resume()
            assert event["lost"]
            assert event["t"] >= begun["t"]
            add(queue, 20, "no")
            until(lambda: queue.stats().acked >= 20)
            assert workers[0].child.status is None
        finally:
            server.resume()
            crew.close()
