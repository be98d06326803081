"""The end of workers in each situation, for each way to stop them.

Each test runs four workers, each stopped in one way: SIGTERM, SIGTERM twice, SIGINT, and `stop()`
from another thread.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.support.workers import Nursery, until
from tests.worker.support import Crew, Diary, WorkerProcess

KINDS = ("thread", "asyncio")
WAYS = ("terminate", "twice", "interrupt", "stop")
GRACE = 0.6
OVERDUE = 4.0
"""Seconds after the grace until the end of a worker whose handler blocks the event loop, or
whose handlers keep it from ending: coroutines that refuse to be cancelled, calls in its executor.
"""
ROUND_OFF = 1.0
"""Seconds that a worker waits for cancelled handlers."""
IN_VAIN = 4.0
"""Seconds of its last call: two tries, each a second to connect and a second for the reply."""
NOISE = 20.0
"""Allowance for a busy machine."""
LATE = 2.0
"""Seconds after which a stopped worker knows it."""


@dataclass
class Situation:
    """The state of a worker when it is told to stop.

    Attributes:
        jobs: bodies.
        options: of the worker.
        starts: how many handlers are running then.
        left: how many jobs are not taken; None = some.
        lease: of the jobs.
        finish: how many jobs are done at the end, if it was told once; None = some.
        at_least: seconds for which it goes on, if it was told once.
        once, twice: the most that it may, told once or twice.
    """

    jobs: list[dict[str, Any]]
    options: dict[str, Any]
    starts: int
    left: int | None
    finish: int | None
    at_least: float = 0.0
    once: float = 0.0
    twice: float = 0.0
    lease: float | None = None


def nap(seconds: float) -> dict[str, Any]:
    """Return a job that sleeps this long."""
    return {"do": "nap", "s": seconds}


SITUATIONS = {
    "idle": Situation([], {}, 0, 0, 0),
    "short": Situation([nap(0.1)] * 200, {"concurrency": 4}, 4, None, None, 0, 0.1, 0.1),
    "long": Situation([nap(60)] * 10, {"concurrency": 8}, 8, 2, 0, GRACE, GRACE),
    "prefetched": Situation([nap(0.3)] * 6, {"concurrency": 1, "prefetch": 5}, 1, 0, None, 0, 0.3),
    "gathering": Situation([nap(0)] * 3, {"batch": (10, 60.0), "concurrency": 1}, 0, 0, 0),
    "at most once": Situation(
        [nap(0.1)] * 4, {"concurrency": 1, "prefetch": 3}, 1, 0, 4, 0, 0.4, lease=0
    ),
    "deaf": Situation(
        [{"do": "deaf", "s": 60}] * 3, {"concurrency": 2}, 2, 1, 0, GRACE, GRACE + OVERDUE, OVERDUE
    ),
    "executor": Situation(
        [{"do": "executor", "s": 60}] * 3,
        {"concurrency": 2},
        2,
        1,
        0,
        GRACE,
        GRACE + OVERDUE,
        OVERDUE,
    ),
    "blocking": Situation(
        [{"do": "block", "s": 60}] * 2,
        {"concurrency": 2},
        1,
        0,
        0,
        GRACE,
        GRACE + OVERDUE,
        OVERDUE,
    ),
}


def tell(worker: WorkerProcess, way: str) -> float:
    """Stop a worker, and return the time of the first stop."""
    told = time.monotonic()
    if way == "stop":
        worker.child.send("stop")
        return told
    worker.signal(signal.SIGINT if way == "interrupt" else signal.SIGTERM)
    return told


@pytest.fixture
def client(worker_url: str, queue: Queue) -> Any:
    """A client of the empty server."""
    with Penstock(worker_url) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_end_of_a_worker(kind: str, name: str, crew: Crew, client: Penstock) -> None:
    """The exit code is 0, in time; no job is lost, and released jobs are charged no attempt.

    Running handlers may finish, unless they outlast the grace or the worker is told twice. Only if
    handlers block the event loop or keep it from ending, the process is ended, with exit code 1. If
    the loop runs, the lines after `run` are executed.
    """
    at = SITUATIONS[name]
    workers: dict[str, WorkerProcess] = {}
    for way in WAYS:
        queue = client.queue(f"{name} {way}")
        bodies = [{"n": n, **body} for n, body in enumerate(at.jobs)]
        queue.enqueue_many(bodies, lease=at.lease)
        options = {"grace": GRACE, "control": True, **at.options}
        workers[way] = crew.start(kind, patient=not at.starts, queues=[queue.name], **options)
        if at.starts:
            crew.diary.wait("start", at.starts, queue=queue.name)
        until(lambda queue=queue: at.left in (None, queue.stats().ready))
    told = {way: tell(worker, way) for way, worker in workers.items()}
    time.sleep(0.1)  # like a key that is pressed twice
    workers["twice"].signal(signal.SIGTERM)
    for way, worker in workers.items():
        code = worker.ended()
        is_kept = kind == "asyncio" and name in ("deaf", "executor", "blocking")
        has_returned = bool(crew.diary.events("returned", pid=worker.pid))
        assert has_returned != (kind == "asyncio" and name == "blocking"), (way, code)
        # A signal after the return of `run` is the program's.
        is_late = code == -signal.SIGTERM and way == "twice" and has_returned
        assert code == (1 if is_kept else 0) or is_late, (way, code)
        assert worker.died is not None
        took = worker.died - told[way]
        assert took <= (at.twice if way == "twice" else at.once) + ROUND_OFF + NOISE, way
        assert took >= at.at_least or way == "twice", way
        late = told[way] + LATE
        assert at.lease == 0 or not [one for one in starts(crew, worker) if one > late], way
        if (name, way) != ("at most once", "twice"):  # jobs at most once can't be released
            check_jobs(crew, client.queue(f"{name} {way}"), at, way)


def starts(crew: Crew, worker: WorkerProcess) -> list[float]:
    """Return the start times of the handlers."""
    return [one["t"] for one in crew.diary.events("start", pid=worker.pid)]


def check_jobs(crew: Crew, queue: Queue, at: Situation, way: str) -> None:
    """Check that each job is done, or ready again without a charged attempt."""
    stats = queue.stats()
    assert (stats.active, stats.dead, stats.nacked, stats.crashed) == (0, 0, 0, 0), way
    done = {one["n"] for one in crew.diary.events("end", queue=queue.name)}
    if way != "twice":  # otherwise a handler may end after its job was released
        assert at.finish in (None, len(done)), way
        assert at.lease == 0 or stats.acked == len(done), way
    back = queue.reserve(1000, block=0)
    assert len(back) == len(at.jobs) - (len(done) if at.lease == 0 else stats.acked), way
    assert {job.body["n"] for job in back} | done == set(range(len(at.jobs))), way
    assert {job.attempt for job in back} <= {1}, way


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_silent", [False, True], ids=["killed", "silent"])
def test_the_end_while_the_server_is_away(
    kind: str,
    is_silent: bool,
    server: EmbeddedServer,
    diary: Diary,
    home: Callable[[], Nursery],
) -> None:
    """`run` returns in time, told before or after the grace, even if calls never return.

    The lines after it are executed; the jobs are there when the server is back.
    """
    crew = Crew(server.url, diary, home)
    with Penstock(server.url) as client:
        workers = {}
        for way in WAYS:
            queue = client.queue(f"down {way}")
            queue.configure(lease=1.0)
            queue.enqueue({"n": 1, **nap(0.3)})
            options = {"grace": GRACE, "control": True, "concurrency": 2}
            workers[way] = crew.start(kind, queues=[queue.name], **options)
            crew.diary.wait("start", queue=queue.name)
        try:
            server.pause() if is_silent else server.kill()
            told = {way: tell(worker, way) for way, worker in workers.items()}
            time.sleep(0.1)  # as above
            workers["twice"].signal(signal.SIGTERM)
            for way, worker in workers.items():
                code = worker.ended()
                assert crew.diary.events("returned", pid=worker.pid), (way, code)
                assert code == 0 or (code == -signal.SIGTERM and way == "twice"), (way, code)
                assert worker.died is not None
                assert worker.died - told[way] <= GRACE + OVERDUE + IN_VAIN + NOISE, way
            server.resume() if is_silent else server.restart()
            crew.start(kind, queues=[f"down {way}" for way in WAYS])
            for way in WAYS:
                until(lambda way=way: client.queue(f"down {way}").stats().acked == 1)
        finally:
            if is_silent:
                server.resume()
            crew.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_in_the_first_moment(kind: str, crew: Crew, queue: Queue) -> None:
    """A worker that just started is stopped too, by its own handler or the default one."""
    for n in range(20):
        worker = crew.start(kind, patient=False)
        time.sleep(n / 1000)  # somewhere during its start
        told = worker.signal(signal.SIGTERM)
        assert worker.ended() in (0, -signal.SIGTERM)
        assert worker.died is not None
        assert worker.died - told < NOISE
