"""Other queues on Redis: enqueue one by one, then one worker process that handles the backlog.

The packages are in the dependency group `bench`. One that is not installed is left out.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import logging
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from redis import Redis

from benchmarks.apart import process
from benchmarks.bed import Bed
from benchmarks.figures import Table, median
from benchmarks.machine import share_cores
from benchmarks.plan import BODY, Plan
from penstock import Handlers, Penstock, Worker
from penstock.embedded import EmbeddedServer, find_server

__all__ = ["PEERS", "Peer", "is_there", "peers"]

ROUNDS = 5
TEXT = BODY.decode()
Run = Callable[[int], None]
"""For producers: add so many jobs. For workers: run until `_done` ends the process."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue with its worker.

    Attributes:
        package: its name on PyPI, and of its module.
        settings: of its worker, in words.
        open: returns its producer and its worker for a server's URL.
        part: its number of jobs is the plan's divided by this, so that rounds take equally long.
    """

    package: str
    settings: str
    open: Callable[[str], tuple[Run, Run]]
    part: int = 1

    @property
    def version(self) -> str | None:
        """Return its version; None = not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "" if self.package == "penstock" else None  # a checkout on PYTHONPATH


def peers(bed: Bed, plan: Plan, chosen: tuple[Peer, ...] | None = None) -> Table:
    """Measure jobs/s of a producer and of one worker process of each system."""
    chosen = PEERS if chosen is None else chosen
    table = Table(
        "peers",
        "Other queues on Redis",
        ("system", "version", "worker", "enqueue jobs/s", "worker jobs/s"),
        "100-byte bodies, handlers that do nothing, results are not kept. Enqueue: one job a call,"
        " one producer. Worker: one process with a backlog, from the first job's handler to the"
        " last's."
        + "".join(f" Left out, not installed: {p.package}." for p in chosen if p.version is None),
    )
    there = [peer for peer in chosen if peer.version is not None]
    found: dict[str, list[tuple[float, float]]] = {peer.package: [] for peer in there}
    with EmbeddedServer(find_server(), tcp=True) as server, Redis.from_url(server.url) as redis:
        if bed.pid is not None:
            share_cores([server.pid], bed.pid)
        for _ in range(min(plan.rounds, ROUNDS)):
            for peer in there:
                jobs = max(plan.worked // peer.part, 10)
                found[peer.package].append(_measured(peer, server.url, jobs))
                redis.flushall()
    for peer in there:
        added, worked = zip(*found[peer.package], strict=True)
        table.add(peer.package, peer.version, peer.settings, median(added), median(worked))
        table.rounds[f"{peer.package} enqueue jobs/s"] = list(added)
        table.rounds[f"{peer.package} worker jobs/s"] = list(worked)
    return table


def is_there() -> bool:
    """Tell if a system to compare with is installed."""
    return any(peer.version for peer in PEERS if peer.package != "penstock")


def _measured(peer: Peer, url: str, jobs: int) -> tuple[float, float]:
    """Return jobs/s of producer and worker."""
    with process(_serve, PEERS.index(peer), url, jobs) as pipe:
        added, worked = pipe.recv()
    return jobs / added, (jobs - 1) / worked


# -- in the other process ----------------------------------------------------------------------

_seen = itertools.count(1)
_done: Callable[[], None]
_last = 0
_began = 0.0


def handle(body: Any) -> None:  # noqa: ARG001 - a handler gets its body
    """Count a job: the handler of all systems."""
    global _began  # noqa: PLW0603 - there is one run in this process
    number = next(_seen)
    if number == 1:
        _began = time.perf_counter()
    elif number == _last:
        _done()


def _serve(pipe: Connection, index: int, url: str, jobs: int) -> None:
    """Enqueue and handle this many jobs; send the seconds of both."""
    global _done, _last
    warnings.simplefilter("ignore")  # Celery's, of a worker that runs as root
    logging.getLogger("penstock").setLevel(logging.WARNING)
    enqueue, work = PEERS[index].open(url)
    enqueue(1)
    begin = time.perf_counter()
    enqueue(jobs - 1)
    added = (time.perf_counter() - begin) * jobs / (jobs - 1)

    def done() -> None:
        pipe.send((added, time.perf_counter() - _began))
        os._exit(0)  # workers of some systems can't be ended from a handler

    _done, _last = done, jobs
    work(jobs)
    time.sleep(60)  # the worker's threads go on


def _penstock(url: str) -> tuple[Run, Run]:
    client, handlers = Penstock(url), Handlers()
    queue = client.queue("bench")
    handler = handlers.handler("handle")(handle)

    def enqueue(jobs: int) -> None:
        for _ in range(jobs):
            handler.enqueue(queue, TEXT)

    return enqueue, lambda _: Worker(client, queue, handlers).run()


def _rq(url: str) -> tuple[Run, Run]:
    from rq import Queue, SimpleWorker

    redis = Redis.from_url(url)
    queue = Queue("bench", connection=redis)

    def enqueue(jobs: int) -> None:
        for _ in range(jobs):
            queue.enqueue(handle, TEXT, result_ttl=0)

    return enqueue, lambda _: SimpleWorker([queue], connection=redis).work(logging_level="ERROR")


def _celery(url: str) -> tuple[Run, Run]:
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=64)
    task = app.task(handle)

    def enqueue(jobs: int) -> None:
        for _ in range(jobs):
            task.delay(TEXT)

    def work(_: int) -> None:
        app.Worker(
            pool="solo", quiet=True, loglevel="ERROR",
            without_gossip=True, without_mingle=True, without_heartbeat=True,
        ).start()  # fmt: skip

    return enqueue, work


def _dramatiq(url: str) -> tuple[Run, Run]:
    os.environ["dramatiq_queue_prefetch"] = "256"  # noqa: SIM112 - its own name
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url, middleware=[])
    actor = dramatiq.actor(handle, broker=broker)

    def enqueue(jobs: int) -> None:
        for _ in range(jobs):
            actor.send(TEXT)

    return enqueue, lambda _: dramatiq.Worker(broker, worker_threads=8).start()


def _huey(url: str) -> tuple[Run, Run]:
    from huey import RedisHuey

    huey = RedisHuey("bench", url=url, results=False)
    task = huey.task()(handle)

    def enqueue(jobs: int) -> None:
        for _ in range(jobs):
            task(TEXT)

    return enqueue, lambda _: huey.create_consumer(workers=4, worker_type="thread").start()


PEERS = (
    Peer("penstock", "8 threads, defaults", _penstock),
    Peer("huey", "4 threads; no acknowledgement", _huey, part=2),
    Peer("dramatiq", "8 threads, prefetch 256", _dramatiq, part=2),
    Peer("celery", "solo pool, prefetch 64, acks late", _celery, part=10),
    Peer("rq", "SimpleWorker: no process per job", _rq, part=30),
)
"""penstock first."""
