"""Idle workers: pick-up of a new job, delayed jobs, idle traffic."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from redis import Redis

from benchmarks.apart import process
from benchmarks.bed import SENT, Bed
from benchmarks.figures import Budget, Table, median, pairwise, percentile
from benchmarks.plan import Plan
from penstock.client._async.client import AsyncPenstock
from penstock.client._sync.client import Penstock
from penstock.client._sync.queue import Queue
from penstock.worker import AsyncWorker, Worker
from penstock.worker.idle import FOLLOWING_SECONDS

__all__ = ["pickup", "standby"]

BARE, KINDS = "LPUSH to BLPOP", ("thread", "asyncio")
GAP = 0.004  # seconds between two jobs
LISTS = ("set", "hgetall")  # of workers and of nodes; an idle queue's scripts run none of them
ROUNDS = 7
PATIENCE = 60.0
GOALS_MS = {"p50": 0.5, "p99": 2.0}
PICKUP_BUDGET, LATE_BUDGET_MS, IDLE_BUDGET = 2.0, 50.0, 0.5

Seen = list[tuple[bytes, int, float]]
"""For each job: body, monotonic clock in ns at its handler's first line, and age in s."""


def pickup(bed: Bed, plan: Plan) -> Table:
    """Measure the time from an enqueue to the first line of its handler."""
    table = Table(
        "pickup",
        "A fresh job reaches the handler of an idle worker in another process",
        ("worker", "figure", "LPUSH to BLPOP ms", "enqueue to handler ms", "goal ms", "x bare"),
        f"From before the producer's call to the handler's first line, {plan.picked} jobs a round,"
        " one every 4 ms. The goal is for a quiet machine with two cores, best peer 0.34 ms; the"
        " budget is a ratio.",
    )
    with _waiting(bed, "pickup") as (queues, pipes), ExitStack() as stack:
        key = bed.key("pickup")
        pipes[BARE] = stack.enter_context(process(_pop, bed.url, key))
        sends: dict[str, Callable[[bytes], object]] = {BARE: lambda b: bed.redis.lpush(key, b)}
        sends.update({kind: queue.enqueue for kind, queue in queues.items()})
        bed.await_blocked(len(pipes))
        for name, send in sends.items():
            _paced(pipes[name], send, 10)
        rounds = [
            {name: _paced(pipes[name], send, plan.picked) for name, send in sends.items()}
            for _ in range(min(plan.rounds, ROUNDS))
        ]
        pipes[BARE].send(None)
        bed.redis.lpush(key, b"0")
    for kind in KINDS:
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            base = [percentile(r[BARE], share) for r in rounds]
            ours = [percentile(r[kind], share) for r in rounds]
            ratio, budget = pairwise(ours, base), None
            if label == "p50":
                name = f"fresh job to an idle worker's handler, {kind}, p50, x bare"
                budget = Budget(name, ratio, PICKUP_BUDGET)
            goal = GOALS_MS[label]
            table.add(kind, label, median(base), median(ours), goal, ratio, budget=budget)
            table.rounds[f"{kind} {label} ms"] = ours
            table.rounds[f"{kind} {label}, bare ms"] = base
    return table


def _paced(pipe: Connection, send: Callable[[bytes], object], jobs: int) -> list[float]:
    """Enqueue jobs 4 ms apart, and return the time of each until its handler in ms."""
    for _ in range(jobs):
        time.sleep(GAP)
        send(b"%d" % time.monotonic_ns())
    return [(at - int(body)) / 1e6 for body, at, _ in _taken(pipe, jobs)]


def _taken(pipe: Connection, jobs: int) -> Seen:
    """Return the jobs seen by the other process, once it has this many."""
    pipe.send(jobs)
    found: Seen = pipe.recv()
    return found


@contextmanager
def _waiting(bed: Bed, name: str) -> Iterator[tuple[dict[str, Queue], dict[str, Connection]]]:
    """Run an idle worker of each kind in a process with its own queue."""
    queues = {kind: bed.client.queue(f"{name} {kind}") for kind in KINDS}
    pipes: dict[str, Connection] = {}
    with ExitStack() as stack:
        for kind, queue in queues.items():
            queue.enqueue(b"0")  # create the queue before the measurement
            target = _stand_threads if kind == "thread" else _stand_tasks
            pipes[kind] = stack.enter_context(process(target, bed.url, bed.prefix, queue.name))
        for pipe in pipes.values():
            _taken(pipe, 1)
        bed.await_blocked(len(pipes))
        yield queues, pipes
        for kind in KINDS:
            pipes[kind].send(None)
    for queue in queues.values():
        bed.drop(list(queue.ops.keys.names.values()))


def standby(bed: Bed, plan: Plan) -> Table:
    """Measure the traffic of idle workers, and the lateness of delayed jobs; none may be early."""
    seconds = plan.idle * 4 / 3
    quiet = min(FOLLOWING_SECONDS, 2 * seconds)
    table = Table(
        "standby",
        "Idle workers, and delayed jobs",
        ("worker", "figure", "value"),
        f"Watched for {seconds:.3g} s, {quiet:.3g} s after the last job; then {plan.delayed} jobs"
        " with a delay: the handler's first line less the moment asked for.",
    )
    with _waiting(bed, "standby") as (queues, pipes):
        time.sleep(quiet)  # the measured state: idle for a while
        sent = bed.count(lambda: time.sleep(seconds)).of((*SENT, *LISTS))
        rate = sent / seconds / len(KINDS)
        late = {kind: _late(queues[kind], pipes[kind], plan.delayed) for kind in KINDS}
    idle = Budget("commands/s of an idle worker", rate, IDLE_BUDGET, unit="/s")
    table.add("both", "commands/s sent by one of them", rate, budget=idle)
    for kind, found in late.items():
        name = f"delayed jobs, {kind} worker"
        most = Budget(f"{name}: latest start", max(found), LATE_BUDGET_MS, unit="ms")
        least = Budget(f"{name}: earliest start, ms late", min(found), 0, least=True, unit="ms")
        table.add(kind, "p50 late, ms", percentile(found, 0.5))
        table.add(kind, "most late, ms", max(found), budget=most)
        table.add(kind, "least late, ms (below 0 = early)", min(found), budget=least)
        table.rounds[f"{kind} ms late"] = found
    return table


def _late(queue: Queue, pipe: Connection, jobs: int) -> list[float]:
    """Return the lateness of delayed jobs at their handler, in ms."""
    for i in range(jobs):
        delay_ms = 50 + 40 * i + random.randrange(20)
        queue.enqueue(b"%d" % delay_ms, delay=delay_ms / 1000)
    return [age * 1000 - int(body) for body, _, age in _taken(pipe, jobs)]


# -- in the other process ----------------------------------------------------------------------


def _pop(pipe: Connection, url: str, key: str) -> None:
    """Run the bare loop."""
    seen: Seen = []

    def loop() -> None:
        client: Any = Redis.from_url(url, socket_timeout=None)  # it waits between rounds
        while True:
            body = client.blpop([key], timeout=0)[1]
            seen.append((body, time.monotonic_ns(), 0.0))
            if body == b"0":
                client.close()
                return

    thread = threading.Thread(target=loop)
    thread.start()
    _answer(pipe, seen)
    thread.join(PATIENCE)


def _answer(pipe: Connection, seen: Seen) -> None:
    """Send the recorded jobs, once there are as many as requested."""
    while (jobs := pipe.recv()) is not None:
        deadline = time.monotonic() + PATIENCE
        while len(seen) < jobs:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(seen)} of {jobs} jobs were handled")
            time.sleep(0.001)
        pipe.send(seen[:jobs])
        del seen[:jobs]


def _noted(job: Any) -> tuple[bytes, int, float]:
    now, wall = time.monotonic_ns(), time.time()
    return job.raw, now, wall - job.created


def _stand_threads(pipe: Connection, url: str, prefix: str, queue: str) -> None:
    """Run a worker with defaults."""
    seen: Seen = []

    def handler(job: Any) -> None:
        seen.append(_noted(job))

    with Penstock(url, prefix=prefix) as client, Worker(client, queue, handler):
        _answer(pipe, seen)


def _stand_tasks(pipe: Connection, url: str, prefix: str, queue: str) -> None:
    """Run an asyncio worker with defaults."""
    seen: Seen = []

    async def handler(job: Any) -> None:
        seen.append(_noted(job))

    async def main() -> None:
        client = AsyncPenstock(url, prefix=prefix)
        async with client, AsyncWorker(client, queue, handler):
            await asyncio.to_thread(_answer, pipe, seen)

    asyncio.run(main())
