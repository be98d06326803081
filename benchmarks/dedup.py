"""The cost of dedup ids: server CPU of a whole life, and bytes of a waiting job."""

from __future__ import annotations

from benchmarks.bed import Bed
from benchmarks.contenders import NAME, Ids, Jobs, NamedJobs
from benchmarks.cost import LIFE, STEPS, Samples, life, stock, weigh
from benchmarks.figures import Budget, Table, median, pairwise
from benchmarks.plan import IN_FLIGHT, Plan

__all__ = ["dedup"]

MOST = {1: 1000, 10: 2000, 100: 5000}
"""Maximum of jobs a round for each batch size; other sizes are not measured."""
ROUNDS = 5
WEIGHED = 20_000
WEIGHINGS = 3
CPU_BUDGET, MEMORY_BUDGET = 1.6, 1.1
BOUNDED = (1, 10)
"""Batch sizes with a bound."""


def dedup(bed: Bed, plan: Plan) -> Table:
    """Measure the same jobs with and without dedup ids."""
    table = Table(
        "dedup",
        "Dedup ids: the same jobs with them and without",
        ("what", "base", "unit", "base figure", "with dedup ids", "x base"),
        f"An id of {len(NAME.format(0))} bytes for each job, all different. {IN_FLIGHT} jobs are in"
        f" flight, {plan.standing} wait all the time; us CPU/job is INFO cpu of the server. An id"
        " lies in a hash with the number of its job, and in the record: what it adds is held"
        " against a hash of the same ids and numbers plus the bytes that the record grows by.",
    )
    for n, jobs in plan.cost.items():
        if n in MOST:
            _add_costs(table, n, _rounds(bed, plan, n, min(jobs, MOST[n])))
    _add_weights(table, bed, plan)
    return table


def _rounds(bed: Bed, plan: Plan, n: int, jobs: int) -> list[tuple[Samples, Samples]]:
    """Run interleaved rounds: without, with, without, with."""
    plain, named = Jobs(bed.client, f"plain {n}"), NamedJobs(bed.client, f"named {n}")
    for contender in (plain, named):
        stock(contender, plan.standing)
        life(bed, contender, n, IN_FLIGHT)
    found = [
        (life(bed, plain, n, jobs), life(bed, named, n, jobs))
        for _ in range(min(plan.rounds, ROUNDS))
    ]
    bed.drop(plain.keys() + named.keys())
    return found


def _add_costs(table: Table, n: int, rounds: list[tuple[Samples, Samples]]) -> None:
    for step in (*STEPS, LIFE):
        base, own = ([one[side][step] for one in rounds] for side in (0, 1))
        ratio = pairwise([s.server for s in own], [s.server for s in base])
        name, budget = f"{step} by {n}", None
        if step == LIFE and n in BOUNDED:
            budget = Budget(f"dedup ids, server CPU, {name}, x without", ratio, CPU_BUDGET)
        base_us, own_us = [s.server_us for s in base], [s.server_us for s in own]
        table.add(
            name, "without", "us CPU/job", median(base_us), median(own_us), ratio, budget=budget
        )
        table.rounds[f"{name}, without, us"] = base_us
        table.rounds[f"{name}, with, us"] = own_us


def _add_weights(table: Table, bed: Bed, plan: Plan) -> None:
    """Add the bytes of a job, and those that an id adds."""
    jobs, grown = min(plan.memory, WEIGHED), len(f";d={NAME.format(0)}")
    figures: dict[str, list[tuple[float, float, float]]] = {}
    for i in range(max(min(plan.rounds // 3, WEIGHINGS), 1)):
        plain = weigh(bed, Jobs(bed.client, f"plain weight {i}"), jobs)
        named = weigh(bed, NamedJobs(bed.client, f"named weight {i}"), jobs)
        ids = weigh(bed, Ids(bed.redis, bed.key(f"ids:{i}")), jobs)
        for measure in plain:
            three = (plain[measure], named[measure], ids[measure] + grown)
            figures.setdefault(measure, []).append(three)
    for measure, found in figures.items():
        base, own, by_hand = map(list, zip(*found, strict=True))
        name = f"waiting job ({measure})"
        table.add(name, "without", "bytes/job", median(base), median(own), pairwise(own, base))
        added = [max(b - a, 0.0) for a, b in zip(base, own, strict=True)]
        ratio = pairwise(added, by_hand)
        table.add(
            f"what an id adds ({measure})",
            "a hash entry + the record's growth",
            "bytes/job",
            median(by_hand),
            median(added),
            ratio,
            budget=Budget(f"a dedup id's bytes ({measure}), x a hash entry", ratio, MEMORY_BUDGET),
        )
