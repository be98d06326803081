"""Shares of keys: waits of small tenants beside big ones, slots in use, cost and throughput."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Iterator
from functools import partial

from benchmarks.bed import Bed
from benchmarks.contenders import Jobs, KeyedJobs
from benchmarks.figures import Budget, Sample, Table, median, pairwise, percentile
from benchmarks.plan import Plan
from penstock.client._sync.queue import Job
from penstock.worker import Handlers, Worker

__all__ = ["add_shares"]

SLOTS = 8
SMALL = 20
"""Tenants that have one job at a time."""
BIG = (1, 4, 20)
"""Tenants that share the backlog."""
WAITS = 1000
"""Jobs of small tenants whose wait is measured."""
MOST_ROUNDS = 2.0
"""A wait of a small tenant's job, in rounds of all tenants."""
ROUNDS = 9
CPU_BUDGET = 1.05
"""Server CPU of a job, x a limit per key that fills the same slots."""
HANDLER_SECONDS = 0.001
SPEED_BUDGET = 0.9


def add_shares(table: Table, bed: Bed, plan: Plan) -> None:
    """Add the rows of queues with a share of 1."""
    for tenants in BIG:
        _add_waits(table, bed, plan, tenants)
    _add_slots(table, bed, plan)
    for tenants, limit in ((1, SLOTS), (SMALL, 1)):
        _add_cost(table, bed, plan, tenants, limit)
    _add_speed(table, bed, plan)


def _shared(bed: Bed, name: str, keys: Iterator[str] | None = None) -> KeyedJobs:
    jobs = KeyedJobs(bed.client, name, keys)
    jobs.queue.configure(per_key=None, share=1)
    return jobs


def _tenants(name: str, count: int) -> Iterator[str]:
    return map(f"{name} {{}}".format, itertools.cycle(range(count)))


def _add_waits(table: Table, bed: Bed, plan: Plan, tenants: int) -> None:
    """Add the wait of jobs of small tenants, in job times: deliveries by the slots.

    A small tenant adds a job some time after its last one has ended; a big one's backlog stays as
    long as it is. All jobs take equally long.
    """
    ours = _shared(bed, "waits", _tenants("big", tenants))
    ours.fill(plan.depths[1])
    dice = random.Random(tenants)
    idle = {f"small {one}": dice.randrange(100) for one in range(SMALL)}
    added: dict[str, tuple[int, int]] = {}  # deliveries so far, and tenants that wait
    held = deque(ours.reserve(SLOTS))
    waits: list[float] = []
    rounds: list[float] = []
    delivered = SLOTS
    while len(waits) < WAITS:
        for tenant in [tenant for tenant, at in idle.items() if at <= delivered]:
            del idle[tenant]
            ours.queue.enqueue(tenant.encode(), key=tenant)
            added[tenant] = delivered, tenants + len(added) + 1
        taken = ours.settle([ended := held.popleft()], 1) or ours.reserve(1)
        if (tenant := ended.raw.decode()).startswith("small"):
            idle[tenant] = delivered + dice.randrange(100)
        else:
            ours.fill(1)
        for job in taken:
            delivered += 1
            held.append(job)
            if (tenant := job.raw.decode()) in added:
                since, count = added.pop(tenant)
                waits.append((delivered - since) / SLOTS)
                rounds.append(count / SLOTS)
    ratios = [wait / one for wait, one in zip(waits, rounds, strict=True)]
    worst = percentile(ratios, 0.99)
    name = f"p99 wait of a small tenant, {tenants} big"
    budget = Budget(f"share: {name}, x a round", worst, MOST_ROUNDS)
    table.add(
        name, "a round", "job times", median(rounds), percentile(waits, 0.99), worst, budget=budget
    )
    bed.drop(ours.keys())


def _add_slots(table: Table, bed: Bed, plan: Plan) -> None:
    """Add the fewest slots in use while jobs of one tenant wait."""
    ours = _shared(bed, "slots", itertools.repeat("only"))
    jobs = min(plan.lifecycles, 2000)
    ours.fill(jobs)
    held, fewest = deque(ours.reserve(SLOTS)), SLOTS
    for _ in range(jobs - SLOTS):
        held += ours.settle([held.popleft()], 1)
        fewest = min(fewest, len(held))
    ours.ack(held)
    budget = Budget(
        "share: slots that one tenant uses", float(fewest), float(SLOTS), least=True, unit="slots"
    )
    name = "slots in use by one tenant"
    table.add(name, "slots", "jobs", SLOTS, fewest, fewest / SLOTS, budget=budget)
    bed.drop(ours.keys())


def _add_cost(table: Table, bed: Bed, plan: Plan, tenants: int, limit: int) -> None:
    """Add the server CPU of the whole life of jobs, one a call, with all slots in use."""
    contenders = (
        KeyedJobs(bed.client, "limited", _tenants("tenant", tenants)),
        _shared(bed, "shared", _tenants("tenant", tenants)),
    )
    contenders[0].queue.configure(per_key=limit)
    jobs = min(plan.lifecycles, 5000)
    rounds: list[tuple[Sample, Sample]] = []
    for _ in range(min(plan.rounds, ROUNDS) + 1):
        base, ours = (bed.measure(partial(_live, one, jobs)) for one in contenders)
        rounds.append((base, ours))
    bases, shared = [base for base, _ in rounds[1:]], [ours for _, ours in rounds[1:]]
    ratio = pairwise([s.server for s in shared], [s.server for s in bases])
    name = f"life by 1, {tenants} keys on {SLOTS} slots"
    per_key = f"per_key={limit}"
    budget = Budget(f"share: server CPU, {name}, x {per_key}", ratio, CPU_BUDGET)
    figures = median(s.server_us for s in bases), median(s.server_us for s in shared)
    table.add(name, per_key, "us CPU/job", *figures, ratio, budget=budget)
    table.rounds[f"{name} {per_key} us"] = [s.server_us for s in bases]
    table.rounds[f"{name} share us"] = [s.server_us for s in shared]
    for contender in contenders:
        bed.drop(contender.keys())


def _live(contender: Jobs, jobs: int) -> int:
    contender.fill(jobs)
    held, done = deque(contender.reserve(SLOTS)), 0
    while held:
        done += 1
        held += contender.settle([held.popleft()], 1) or _refill(contender, held, jobs - done)
    return jobs


def _refill(contender: Jobs, held: deque[Job], left: int) -> list[Job]:
    """Reserve again, as a worker does when an ended job has freed one of its key."""
    return contender.reserve(1) if left > len(held) else []


def _add_speed(table: Table, bed: Bed, plan: Plan) -> None:
    """Add jobs/s of a worker whose handlers take a ms, against a queue without limits."""
    contenders = (
        Jobs(bed.client, "no limits"),
        _shared(bed, "share", _tenants("tenant", SMALL)),
    )
    jobs = min(plan.worked, 4000)
    rounds: list[tuple[Sample, Sample]] = []
    for _ in range(min(plan.rounds, ROUNDS) + 1):
        samples = []
        for contender in contenders:
            contender.fill(jobs)
            samples.append(bed.measure(partial(_work, bed, contender, jobs)))
        rounds.append((samples[0], samples[1]))
    bases, shared = [base for base, _ in rounds[1:]], [ours for _, ours in rounds[1:]]
    ratio = pairwise([s.rate for s in shared], [s.rate for s in bases])
    name = f"worker, handlers of {HANDLER_SECONDS * 1000:.0f} ms"
    budget = Budget(f"share: {name}, x no limits", ratio, SPEED_BUDGET, least=True)
    figures = median(s.rate for s in bases), median(s.rate for s in shared)
    table.add(name, "no limits", "jobs/s", *figures, ratio, budget=budget)
    for contender in contenders:
        bed.drop(contender.keys())


def _work(bed: Bed, contender: Jobs, jobs: int) -> int:
    handlers = Handlers()

    @handlers.handler(None)
    def handle(_: Job) -> None:
        time.sleep(HANDLER_SECONDS)  # the work that is measured

    queue = contender.queue.name
    Worker(bed.client, queue, handlers, concurrency=SLOTS, max_jobs=jobs).run()
    return jobs
