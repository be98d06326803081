"""The cost of a lifecycle while many jobs wait."""

from __future__ import annotations

from benchmarks.bed import Bed
from benchmarks.contenders import Jobs
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.machine import memory_bytes
from benchmarks.plan import Plan

__all__ = ["backlog"]

BATCH = 100
BUDGET = 1.3
BYTES_PER_JOB = 200  # a generous estimate for a waiting job


def backlog(bed: Bed, plan: Plan) -> Table:
    """Measure enqueue + reserve + ack, in batches of 100, on queues of several depths.

    All queues exist on the server at the same time, and each round visits all of them.
    """
    table = Table(
        "backlog",
        "A lifecycle (enqueue, reserve, ack by 100) on a deep queue",
        ("waiting jobs", "us CPU/job", "x base CPU", "us wall/job", "x base wall"),
        f"Base: {plan.depths[0]:,} waiting jobs. All queues stand on the server together, a round"
        f" visits each: {plan.lifecycles:,} jobs.",
    )
    depths = _fitting(plan.depths, table)
    queues = {}
    for depth in depths:
        queues[depth] = Jobs(bed.client, f"depth {depth}")
        queues[depth].fill(depth)
    costs: dict[int, list[Sample]] = {depth: [] for depth in depths}
    for queue in queues.values():
        _lifecycles(bed, queue, BATCH * 5)
    for _ in range(plan.rounds):
        for depth, queue in queues.items():
            costs[depth].append(_lifecycles(bed, queue, plan.lifecycles))
    base = costs[depths[0]]
    for depth, samples in costs.items():
        cpu = pairwise([s.server for s in samples], [s.server for s in base])
        wall = pairwise([s.wall for s in samples], [s.wall for s in base])
        name = f"lifecycle at {depth:,} waiting jobs, server CPU, x {depths[0]:,}"
        budget = Budget(name, cpu, BUDGET) if depth != depths[0] else None
        table.add(
            f"{depth:,}",
            median(s.server_us for s in samples),
            cpu,
            median(s.wall_us for s in samples),
            wall,
            budget=budget,
        )
        table.rounds[f"{depth} us CPU"] = [s.server_us for s in samples]
        table.rounds[f"{depth} us wall"] = [s.wall_us for s in samples]
    for queue in queues.values():
        bed.drop(queue.keys())
    return table


def _fitting(depths: tuple[int, ...], table: Table) -> tuple[int, ...]:
    """Return the depths for which this machine has memory; the note names the others."""
    memory = memory_bytes()
    fitting = [depth for depth in depths if not memory or depth * BYTES_PER_JOB * 2 < memory]
    if len(fitting) < len(depths):
        left = ", ".join(f"{depth:,}" for depth in depths if depth not in fitting)
        table.note += f" Left out, for want of memory: {left}."
    return tuple(fitting)


def _lifecycles(bed: Bed, queue: Jobs, jobs: int) -> Sample:
    def work() -> int:
        for _ in range(jobs // BATCH):
            queue.add(BATCH)
            queue.ack(queue.reserve(BATCH))
        return jobs

    return bed.measure(work)
