"""Limits per key: the cost of keyed jobs, and of one hot key beside cold ones."""

from __future__ import annotations

import itertools

from benchmarks.bed import Bed
from benchmarks.contenders import Jobs, KeyedJobs, Streams
from benchmarks.cost import LIFE, STEPS, Samples, life, stock, weigh
from benchmarks.figures import Budget, Table, median, pairwise
from benchmarks.key_rates import add_key_rates
from benchmarks.plan import IN_FLIGHT, Plan
from benchmarks.shares import add_shares

__all__ = ["keys"]

BATCH = 100
MOST = 5000
ROUNDS = 5
WEIGHED = 20_000
CPU_BUDGET = 3.58
"""Server CPU of a keyed job, x Streams by hand: 2.5 x the 1.43 of a plain job before keys came."""
HOT = 10
"""Jobs of the hot key for each job of a cold key."""
LATE = 1
"""Most calls by which jobs of cold keys may come later than without the hot key."""


def keys(bed: Bed, plan: Plan) -> Table:
    """Measure jobs with keys against plain jobs, and cold keys beside a hot one."""
    table = Table(
        "keys",
        "Limits per key",
        ("what", "base", "unit", "base figure", "with keys", "x base"),
        f"`per_key=1`, calls of {BATCH} jobs. {IN_FLIGHT} jobs are in flight, {plan.standing} wait"
        " all the time; us CPU/job is INFO cpu of the server. The hot key has"
        f" {plan.depths[1]:,} jobs; then {plan.depths[1] // HOT:,} jobs are added, each with a key"
        " of its own.",
    )
    _add_costs(table, _rounds(bed, plan))
    _add_hot(table, bed, plan)
    add_shares(table, bed, plan)
    add_key_rates(table, bed, plan)
    return table


def _rounds(bed: Bed, plan: Plan) -> list[tuple[Samples, Samples, Samples]]:
    """Run interleaved rounds: Streams, plain, keyed; each job has a key of its own."""
    jobs = min(plan.cost[BATCH], MOST)
    contenders = (
        Streams(bed.redis, bed.key("stream:keys")),
        Jobs(bed.client, "plain keys"),
        KeyedJobs(bed.client, "keyed"),
    )
    for contender in contenders:
        stock(contender, plan.standing)
        life(bed, contender, BATCH, IN_FLIGHT)
    found = []
    for _ in range(min(plan.rounds, ROUNDS)):
        streams, plain, keyed = (life(bed, one, BATCH, jobs) for one in contenders)
        found.append((streams, plain, keyed))
    for contender in contenders:
        bed.drop(contender.keys())
    return found


def _add_costs(table: Table, rounds: list[tuple[Samples, Samples, Samples]]) -> None:
    for step in (*STEPS, LIFE):
        streams, plain, keyed = ([one[side][step] for one in rounds] for side in (0, 1, 2))
        for name, base in (("Streams", streams), ("plain jobs", plain)):
            ratio = pairwise([s.server for s in keyed], [s.server for s in base])
            budget = None
            if step == LIFE and base is streams:
                text = f"keyed jobs, server CPU, {LIFE} by {BATCH}, x Streams"
                budget = Budget(text, ratio, CPU_BUDGET)
            table.add(
                f"{step} by {BATCH}",
                name,
                "us CPU/job",
                median(s.server_us for s in base),
                median(s.server_us for s in keyed),
                ratio,
                budget=budget,
            )


def _add_hot(table: Table, bed: Bed, plan: Plan) -> None:
    """Add the calls that deliver all jobs of cold keys, and the bytes of parked jobs."""
    depth = plan.depths[1]
    parked = weigh(bed, KeyedJobs(bed.client, "parked", itertools.repeat("hot")), WEIGHED)
    plain = weigh(bed, Jobs(bed.client, "unparked"), WEIGHED)
    for measure, weight in parked.items():
        ratio = weight / plain[measure]
        table.add(f"parked job ({measure})", "plain", "bytes/job", plain[measure], weight, ratio)
    hot, cold = itertools.repeat("hot", depth), depth // HOT
    ours = KeyedJobs(bed.client, "hot", itertools.chain(hot, map("cold {}".format, range(cold))))
    ours.fill(depth + cold)
    left, calls = cold + 1, 0  # and the first job of the hot key
    while left:
        calls += 1
        left -= len(ours.reserve(BATCH))
    base = -(-(cold + 1) // BATCH)
    late = calls - base
    budget = Budget("calls by which a hot key delays cold ones", float(late), float(LATE))
    name = "calls for all jobs of cold keys"
    table.add(name, "without the hot key", "calls", base, calls, calls / base, budget=budget)
    bed.drop(ours.keys())
