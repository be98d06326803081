"""More jobs than consumers can handle: the rate of delivery with and without a ttl."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection

from benchmarks.apart import process
from benchmarks.bed import Bed
from benchmarks.figures import Budget, Table, median, pairwise
from benchmarks.plan import BODY, Plan
from penstock.client._sync.client import Penstock

__all__ = ["overload"]

PRODUCERS, CONSUMERS = 2, 3
CHUNK, BATCH = 1000, 10
OFFERED = 20_000
"""Jobs/s added by all producers."""
WORK = 0.005
"""Seconds of work per batch, so that all consumers together do at most 6,000 jobs/s."""
TTL = 1.0
BUDGET, LATE_BUDGET_MS = 0.8, 500.0
START = 0.2
"""Seconds from the command to the start, so that all begin together."""

Workers = list[Connection]


def overload(bed: Bed, plan: Plan) -> Table:
    """Measure two bulk producers and three consumers, with a ttl that most jobs
    exceed and without.
    """
    table = Table(
        "overload",
        f"{PRODUCERS} bulk producers and {CONSUMERS} consumers, by {BATCH} jobs",
        ("load", "figure", "no ttl", f"ttl {TTL:g} s", "x no ttl"),
        f"Producers add {CHUNK:,} jobs a call for {plan.overload:g} s. Consumers work"
        f" {WORK * 1000:g} ms on a batch. Each is a process. Deliveries are counted after the first"
        " second.",
    )
    with contextlib.ExitStack() as stack:
        terms = bed.url, bed.prefix
        producers = [stack.enter_context(process(_produce, *terms)) for _ in range(PRODUCERS)]
        consumers = [stack.enter_context(process(_consume, *terms)) for _ in range(CONSUMERS)]
        for pipe in (*producers, *consumers):
            pipe.recv()  # it has started
        for load, offered in ((f"{OFFERED:,} jobs/s", OFFERED), ("as fast as they can", 0)):
            _compare(bed, plan, table, (producers, consumers), load, offered)
        for pipe in (*producers, *consumers):
            pipe.send(None)
    return table


def _compare(
    bed: Bed, plan: Plan, table: Table, crew: tuple[Workers, Workers], load: str, offered: int
) -> None:
    """Measure one load with and without a ttl, in turn."""
    found: dict[float | None, list[tuple[float, float, float]]] = {None: [], TTL: []}
    queue = bed.client.queue("overload")
    for _ in range(plan.rounds):
        for ttl, phases in found.items():
            phases.append(_phase(*crew, queue.name, plan.overload, ttl, offered))
            bed.drop([*queue.ops.keys.names.values()])
    for i, figure in enumerate(("added/s", "delivered/s")):
        base, ours = [one[i] for one in found[None]], [one[i] for one in found[TTL]]
        ratio = pairwise(ours, base)
        budget = None
        if figure == "delivered/s":
            name = f"delivered under overload with a ttl, x without ({load})"
            budget = Budget(name, ratio, BUDGET, least=True)
        table.add(load, figure, median(base), median(ours), ratio, budget=budget)
        table.rounds[f"{load}: {figure}, ttl"] = ours
        table.rounds[f"{load}: {figure}, no ttl"] = base
    longest = [max(one[2] for one in phases) for phases in found.values()]
    name = f"longest reserve(block=0) under overload with a ttl ({load})"
    budget = Budget(name, longest[1], LATE_BUDGET_MS, unit="ms")
    table.add(load, "longest reserve(block=0), ms", *longest, None, budget=budget)


def _phase(
    producers: Workers,
    consumers: Workers,
    name: str,
    seconds: float,
    ttl: float | None,
    offered: int,
) -> tuple[float, float, float]:
    """Run all processes; return added/s, delivered/s and the longest call in ms."""
    begin = time.monotonic() + START
    counted = begin + min(TTL, seconds / 2)
    end = begin + seconds
    for pipe in (*producers, *consumers):
        pipe.send((name, begin, counted, end, ttl, offered))
    added = sum(pipe.recv() for pipe in producers)
    took = [pipe.recv() for pipe in consumers]
    delivered = sum(jobs for jobs, _ in took) / (end - counted)
    return added / seconds, delivered, max(longest for _, longest in took) * 1000


def _produce(pipe: Connection, url: str, prefix: str) -> None:
    with Penstock(url, prefix=prefix) as client:
        pipe.send("ready")
        while order := pipe.recv():
            name, begin, _, end, ttl, offered = order
            queue, bodies, added = client.queue(name), [BODY] * CHUNK, 0
            pause = CHUNK * PRODUCERS / offered if offered else 0.0
            time.sleep(max(begin - time.monotonic(), 0.0))
            while (now := time.monotonic()) < end:
                queue.enqueue_many(bodies, ttl=ttl)
                added += CHUNK
                due = begin + added // CHUNK * pause
                time.sleep(max(min(due, end) - now, 0.0) if pause else 0.0)
            pipe.send(added)


def _consume(pipe: Connection, url: str, prefix: str) -> None:
    with Penstock(url, prefix=prefix) as client:
        pipe.send("ready")
        while order := pipe.recv():
            name, begin, counted, end, _, _ = order
            queue, jobs, longest = client.queue(name), 0, 0.0
            time.sleep(max(begin - time.monotonic(), 0.0))
            while (asked := time.monotonic()) < end:
                taken = queue.reserve(BATCH, block=0)
                now = time.monotonic()
                longest = max(longest, now - asked)
                jobs += len(taken) if now >= counted else 0
                time.sleep(WORK)
                queue.ack(taken)
            pipe.send((jobs, longest))
