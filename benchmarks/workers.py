"""The throughput of one worker process: jobs/s of empty handlers, CPU, and trips."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from redis import Redis

from benchmarks.apart import process
from benchmarks.bed import SENT, Bed, Counted
from benchmarks.contenders import Lists, Streams
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.plan import BODY, Plan
from penstock.client._async.client import AsyncPenstock
from penstock.client._sync.client import Penstock
from penstock.worker import AsyncWorker, Handlers, Worker

__all__ = ["SETTINGS", "Setting", "worked", "workers"]

BATCH = 100
ROUNDS = 9
LISTS, STREAMS = "BLMOVE + LREM", "XREADGROUP, XACK + XDEL by 100"
TIMES = {LISTS: 1, STREAMS: 6}
"""Factor on the jobs of a worker with defaults, so that rounds take equally long."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A worker and the bare loop for comparison.

    Attributes:
        kind: "thread" or "asyncio".
        label: in words.
        base: name of the bare loop.
        least: bound on the ratio.
        goal: jobs/s on a quiet machine with two cores.
        times: times as many jobs as with defaults.
        size: jobs of one call of the handler, None = one, given alone.
        prefetch: of the worker; None = it adapts.
    """

    kind: str
    label: str
    base: str
    least: float
    goal: float
    times: int = 1
    size: int | None = None
    prefetch: int | None = None

    @property
    def name(self) -> str:
        """Return its name in the report."""
        return f"{self.kind}, {self.label}"


SETTINGS = (
    Setting("thread", "defaults", LISTS, 2.5, 30_000, times=4),
    Setting("asyncio", "defaults", LISTS, 2.0, 24_000, times=4),
    Setting("thread", "prefetch 0", LISTS, 1.2, 12_000, prefetch=0),
    Setting("asyncio", "prefetch 0", LISTS, 1.0, 12_000, prefetch=0),
    Setting("thread", "prefetch 100", STREAMS, 0.25, 40_000, times=4, prefetch=100),
    Setting("asyncio", "prefetch 100", STREAMS, 0.25, 40_000, times=4, prefetch=100),
    Setting("thread", "batches of 100", STREAMS, 0.5, 100_000, times=6, size=100),
    Setting("asyncio", "batches of 100", STREAMS, 0.5, 100_000, times=6, size=100),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The cost of a round of one side.

    Attributes:
        sample: jobs, CPU, seconds.
        trips: per job.
    """

    sample: Sample
    trips: float


def workers(bed: Bed, plan: Plan) -> Table:
    """Measure jobs/s of one worker process with a backlog, and bare loops of the same round.

    The worker runs in a process of its own, as users have it, and so do the loops.
    """
    table = Table(
        "workers",
        "One process of a worker, handlers that do nothing, a backlog",
        (
            "worker", "base", "base jobs/s", "jobs/s", "goal", "x base",
            "client us CPU/job", "server us CPU/job", "trips/job",
        ),
        "From its start until the last job is acknowledged; every job at least once, and given to"
        " the handler once. Trips: scripts, and whatever else it sent. The goal is for a quiet"
        " machine with two cores, best peer 30,000/s (BullMQ); the budget is a ratio.",
    )  # fmt: skip
    sides = _Sides(bed)
    with process(_serve, bed.url, bed.prefix) as pipe:
        sides.round(pipe, max(plan.worked // 10, BATCH))
        rounds = [sides.round(pipe, plan.worked) for _ in range(min(plan.rounds, ROUNDS))]
        pipe.send(None)
    for setting in SETTINGS:
        _report(table, setting, [(r[setting.base], r[setting.name]) for r in rounds])
    most = max(median(r[setting.name].trips for r in rounds) for setting in SETTINGS)
    trips = Budget("trips of a worker per job, the most of all", most, 1.0, unit="trips/job")
    table.add("the most trips of these", *[None] * 7, most, budget=trips)
    sides.close()
    return table


def _report(table: Table, setting: Setting, rounds: list[tuple[Run, Run]]) -> None:
    base, ours = [b.sample for b, _ in rounds], [o.sample for _, o in rounds]
    ratio = pairwise([s.rate for s in ours], [s.rate for s in base])
    name = f"worker: {setting.name}, x {setting.base}"
    table.add(
        setting.name,
        setting.base,
        median(s.rate for s in base),
        median(s.rate for s in ours),
        setting.goal,
        ratio,
        median(s.client_us for s in ours),
        median(s.server_us for s in ours),
        median(o.trips for _, o in rounds),
        budget=Budget(name, ratio, setting.least, least=True),
    )
    table.rounds[f"{setting.name} jobs/s"] = [s.rate for s in ours]
    table.rounds[f"{setting.name}, base jobs/s"] = [s.rate for s in base]


class _Sides:
    """Workers and bare loops: one round runs each loop, and then its workers."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.lists = Lists(bed.redis, bed.key("worker:list"))
        self.streams = Streams(bed.redis, bed.key("worker:stream"))
        self.queue = bed.client.queue("workers")

    def round(self, pipe: Connection, jobs: int) -> dict[str, Run]:
        """Run every side once, each with its number of jobs."""
        found: dict[str, Run] = {}
        for base in (LISTS, STREAMS):
            found[base] = self._base(pipe, base, jobs * TIMES[base])
            for setting in SETTINGS:
                if setting.base == base:
                    found[setting.name] = self._worker(pipe, setting, jobs * setting.times)
        return found

    def _base(self, pipe: Connection, name: str, jobs: int) -> Run:
        if name == LISTS:
            self.lists.fill(jobs)
            return self._measured(pipe, (name, self.lists.key, jobs))[0]
        for _ in range(jobs // BATCH):
            self.streams.add(BATCH)
        return self._measured(pipe, (name, self.streams.key, jobs))[0]

    def _worker(self, pipe: Connection, setting: Setting, jobs: int) -> Run:
        self.queue.enqueue_many(BODY for _ in range(jobs))
        run, counted = self._measured(pipe, (setting.name, self.queue.name, jobs))
        return Run(run.sample, counted.of(SENT) / jobs)

    def _measured(self, pipe: Connection, order: tuple[str, str, int]) -> tuple[Run, Counted]:
        """Measure the other process, with the server's CPU and commands."""
        found: list[tuple[float, float, float]] = []

        def work() -> None:
            pipe.send(order)
            found.append(pipe.recv())

        server = self.bed.cpu()
        counted = self.bed.count(work)
        server = max(self.bed.cpu() - server, 0.0)
        ((client, wall, trips),) = found
        jobs = order[2]
        return Run(Sample(jobs, server, client, wall), trips / jobs), counted

    def close(self) -> None:
        """Remove the keys of the sides."""
        keys = [self.lists.key.encode(), self.lists.busy.encode(), *self.streams.keys()]
        self.bed.drop(keys + list(self.queue.ops.keys.names.values()))


# -- in the other process ----------------------------------------------------------------------


def _serve(pipe: Connection, url: str, prefix: str) -> None:
    """Serve requests: report client CPU, seconds, and trips if known here."""
    settings = {setting.name: setting for setting in SETTINGS}
    while (order := pipe.recv()) is not None:
        name, key, jobs = order
        if name in settings:
            pipe.send((*worked(settings[name], url, prefix, key, jobs), 0.0))
        else:
            pipe.send(_loop(name, url, key, jobs))


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    client, begin = time.process_time(), time.perf_counter()
    work()
    wall = time.perf_counter() - begin
    return time.process_time() - client, wall


def _loop(name: str, url: str, key: str, jobs: int) -> tuple[float, float, float]:
    """Run a bare loop of redis-py calls."""
    redis: Any = Redis.from_url(url)
    trips = jobs * 2
    if name == LISTS:
        lists = Lists(redis, key)
        took = _timed(lambda: [lists.cycle() for _ in range(jobs)])
    else:
        streams = Streams(redis, key, made=True)
        took = _timed(lambda: _drain(streams))
        trips = streams.trips
    redis.close()
    return (*took, trips)


def _drain(streams: Streams) -> None:
    while held := streams.reserve(BATCH):
        streams.work(held)
        streams.ack(held)


def worked(setting: Setting, url: str, prefix: str, queue: str, jobs: int) -> tuple[float, float]:
    """Run a worker that ends after this many jobs, each handled once."""
    seen: list[int] = []
    if setting.kind == "thread":
        took = _timed(_threads(setting, url, prefix, queue, jobs, seen))
    else:
        main = _tasks(setting, url, prefix, queue, jobs, seen)
        took = _timed(lambda: asyncio.run(main()))
    if sum(seen) != jobs:
        raise AssertionError(f"{setting.name}: {sum(seen)} of {jobs} jobs were handled")
    return took


def _threads(
    setting: Setting, url: str, prefix: str, queue: str, jobs: int, seen: list[int]
) -> Callable[[], None]:
    handlers = Handlers()
    if setting.size is None:
        handlers.handler(None)(lambda _: seen.append(1))
    else:
        handlers.chunk(None, size=setting.size)(lambda batch: seen.append(len(batch)))

    def main() -> None:
        with Penstock(url, prefix=prefix) as client:
            Worker(client, queue, handlers, max_jobs=jobs, prefetch=setting.prefetch).run()

    return main


def _tasks(
    setting: Setting, url: str, prefix: str, queue: str, jobs: int, seen: list[int]
) -> Callable[[], Coroutine[Any, Any, None]]:
    handlers = Handlers()

    async def one(_: Any) -> None:
        seen.append(1)

    async def many(batch: list[Any]) -> None:
        seen.append(len(batch))

    if setting.size is None:
        handlers.handler(None)(one)
    else:
        handlers.chunk(None, size=setting.size)(many)

    async def main() -> None:
        async with AsyncPenstock(url, prefix=prefix) as client:
            prefetch = setting.prefetch
            await AsyncWorker(client, queue, handlers, max_jobs=jobs, prefetch=prefetch).run()

    return main
