"""The cost of a job for the server by step and batch size, and its memory while it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.bed import Bed
from benchmarks.contenders import Ids, Jobs, KeptJobs, Streams
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.plan import IN_FLIGHT, Plan

__all__ = [
    "LIFE",
    "STEPS",
    "Samples",
    "batches",
    "commands",
    "life",
    "memory",
    "results",
    "steps",
    "stock",
    "weigh",
]

STEPS = ("add", "reserve", "ack")
LIFE = "whole life"
SETTLED = "life, settle"
CPU_BUDGET, KEPT_BUDGET, MEMORY_BUDGET = 1.6, 1.86, 1.2

Samples = dict[str, Sample]


def batches(bed: Bed, plan: Plan) -> Table:
    """Measure server CPU of add, reserve and ack for each batch size, against
    handwritten Streams.
    """
    table = Table(
        "batches",
        "Server CPU and speed by step and batch",
        (
            "batch", "step", "Streams us CPU/job", "penstock us CPU/job", "x Streams",
            "Streams jobs/s", "penstock jobs/s",
        ),
        f"100-byte bodies; us CPU/job is INFO cpu of the server. {IN_FLIGHT} jobs are in flight"
        f" between reserve and ack, {plan.standing} wait all the time. `{SETTLED}`: add, then ack"
        " and reserve in one trip; its base is the Streams' whole life.",
    )  # fmt: skip
    for n, jobs in plan.cost.items():
        rounds = _rounds(bed, plan, n, jobs)
        for step in (*STEPS, LIFE, SETTLED):
            ours = [penstock[step] for _, penstock in rounds]
            base = [streams[LIFE if step == SETTLED else step] for streams, _ in rounds]
            ratio = pairwise([s.server for s in ours], [s.server for s in base])
            budget = None
            if n == 100 and step == LIFE:
                budget = Budget("server CPU, whole life, batch 100, x Streams", ratio, CPU_BUDGET)
            table.add(
                str(n),
                step,
                median(s.server_us for s in base),
                median(s.server_us for s in ours),
                ratio,
                median(s.rate for s in base),
                median(s.rate for s in ours),
                budget=budget,
            )
            table.rounds[f"{n} {step} Streams us"] = [s.server_us for s in base]
            table.rounds[f"{n} {step} penstock us"] = [s.server_us for s in ours]
    return table


def _rounds(bed: Bed, plan: Plan, n: int, jobs: int) -> list[tuple[Samples, Samples]]:
    """Run interleaved rounds: Streams, penstock, Streams, penstock."""
    streams = Streams(bed.redis, bed.key(f"stream:{n}"))
    ours = Jobs(bed.client, f"batch {n}")
    for contender in (streams, ours):
        stock(contender, plan.standing)
        life(bed, contender, n, max(n, IN_FLIGHT))  # warm up: load scripts
    found = []
    for _ in range(plan.rounds):
        base, own = life(bed, streams, n, jobs), life(bed, ours, n, jobs)
        own[SETTLED] = own["add"] + _settled(bed, ours, n, jobs)
        own[SETTLED] = _per(own[SETTLED], jobs)
        found.append((base, own))
    bed.drop(streams.keys() + ours.keys())
    return found


def results(bed: Bed, plan: Plan) -> Table:
    """Measure server CPU of jobs whose results are kept, against handwritten Streams."""
    table = Table(
        "results",
        "Jobs whose results are kept",
        ("step", "Streams us CPU/job", "penstock us CPU/job", "x Streams"),
        "Calls of 100 jobs; a small value goes with each ack, which also removes as many results"
        f" as it keeps. us CPU/job is INFO cpu of the server; {IN_FLIGHT} jobs are in flight.",
    )
    contenders = Streams(bed.redis, bed.key("stream:results")), KeptJobs(bed.client, "results")
    for contender in contenders:
        stock(contender, plan.standing)
        life(bed, contender, 100, max(plan.cost[100] // 2, IN_FLIGHT))  # and past the first refusal
    rounds = []
    for _ in range(plan.rounds):
        base, ours = (life(bed, one, 100, plan.cost[100]) for one in contenders)
        rounds.append((base, ours))
    for step in (*STEPS, LIFE):
        streams, kept = ([one[side][step] for one in rounds] for side in (0, 1))
        ratio = pairwise([s.server for s in kept], [s.server for s in streams])
        budget = None
        if step == LIFE:
            name = "server CPU, whole life with results, batch 100, x Streams"
            budget = Budget(name, ratio, KEPT_BUDGET)
        figures = (median(s.server_us for s in streams), median(s.server_us for s in kept), ratio)
        table.add(f"{step} by 100", *figures, budget=budget)
        table.rounds[f"{step} Streams us"] = [s.server_us for s in streams]
        table.rounds[f"{step} penstock us"] = [s.server_us for s in kept]
    for contender in contenders:
        bed.drop(contender.keys())
    return table


def stock(contender: Streams | Jobs | Ids, jobs: int) -> None:
    """Add jobs, 100 at a time."""
    for start in range(0, jobs, 100):
        contender.add(min(100, jobs - start))


def _per(sample: Sample, jobs: int) -> Sample:
    """Return the sum of several steps of the same jobs: each job is counted once."""
    return Sample(jobs, sample.server, sample.client, sample.wall)


def life(bed: Bed, contender: Any, n: int, jobs: int) -> Samples:
    """Return the cost of each step, and of all three."""
    costs = dict.fromkeys(STEPS, Sample())
    flight = max(n, IN_FLIGHT)
    for _ in range(jobs // flight):
        held: list[Any] = []
        for step, work in zip(STEPS, steps(contender, n, flight, held), strict=True):
            costs[step] += bed.measure(work)
    total = costs["add"] + costs["reserve"] + costs["ack"]
    return costs | {LIFE: _per(total, jobs)}


def steps(contender: Any, n: int, flight: int, held: list[Any]) -> Iterator[Callable[[], int]]:
    """Yield what adds, reserves and acknowledges `flight` jobs, n a call; `held` are reserved."""
    times = flight // n

    def add() -> int:
        for _ in range(times):
            contender.add(n)
        return times * n

    def reserve() -> int:
        held.extend(contender.reserve(n) for _ in range(times))
        return sum(len(jobs) for jobs in held)

    def ack() -> int:
        for jobs in held:
            contender.ack(jobs)
        return sum(len(jobs) for jobs in held)

    yield from (add, reserve, ack)


def _settled(bed: Bed, ours: Jobs, n: int, jobs: int) -> Sample:
    """Measure ack and reserve in one trip, over as many jobs as the other steps moved."""
    stock(ours, jobs)
    held = ours.reserve(n)

    def work() -> int:
        nonlocal held
        for _ in range(jobs // n):
            held = ours.settle(held, n)
        return jobs // n * n

    cost = bed.measure(work)
    ours.ack(held)
    return cost


def commands(bed: Bed, plan: Plan) -> Table:
    """Count the commands inside each call, and the trips of a job."""
    table = Table(
        "commands",
        "Commands inside Lua, and trips",
        ("batch", "step", "penstock commands/call", "penstock trips/job", "Streams trips/job"),
        "From INFO commandstats; commands/call counts those that a script runs, without itself.",
    )
    for n in plan.cost:
        streams = Streams(bed.redis, bed.key(f"trips:{n}"))
        ours = Jobs(bed.client, f"trips {n}")
        ours.add(n)
        ours.ack(ours.reserve(n))
        flight = max(n, min(IN_FLIGHT, 10 * n))
        base = [_trips(streams, work) for work in steps(streams, n, flight, [])]
        for i, work in enumerate(steps(ours, n, flight, [])):
            calls = bed.count(work)
            inside = (calls.total - calls.scripts) / max(calls.scripts, 1)
            budget = None
            if n == 1 and STEPS[i] in INNER:
                name = f"commands inside one single {STEPS[i]}"
                budget = Budget(name, inside, INNER[STEPS[i]], unit="commands")
            table.add(
                str(n), STEPS[i], inside, calls.scripts / flight, base[i] / flight, budget=budget
            )
        _count_settle(bed, ours, n, flight, table)
        bed.drop(streams.keys() + ours.keys())
    return table


INNER = {"add": 8.0, "reserve": 13.0}
"""The maximum of commands that a script may run for one job."""


def _trips(contender: Streams, work: Callable[[], int]) -> int:
    before = contender.trips
    work()
    return contender.trips - before


def _count_settle(bed: Bed, ours: Jobs, n: int, flight: int, table: Table) -> None:
    stock(ours, flight + n)
    held = ours.reserve(n)

    def work() -> None:
        nonlocal held
        for _ in range(flight // n):
            held = ours.settle(held, n)

    calls = bed.count(work)
    inside = (calls.total - calls.scripts) / max(calls.scripts, 1)
    table.add(str(n), "settle", inside, calls.scripts / flight, None)
    ours.ack(held)


def memory(bed: Bed, plan: Plan) -> Table:
    """Measure the bytes per waiting job: of its keys, and of the server's allocation."""
    table = Table(
        "memory",
        "Memory per waiting job (100-byte body)",
        ("measure", "Streams bytes/job", "penstock bytes/job", "x Streams"),
        f"{plan.memory:,} jobs, added 100 at a time.",
    )
    figures: dict[str, tuple[list[float], list[float]]] = {}
    for i in range(min(plan.rounds, 3)):
        base = weigh(bed, Streams(bed.redis, bed.key(f"weight:{i}")), plan.memory)
        own = weigh(bed, Jobs(bed.client, f"weight {i}"), plan.memory)
        for measure in base:
            sides = figures.setdefault(measure, ([], []))
            sides[0].append(base[measure])
            sides[1].append(own[measure])
    for measure, (base_figures, own_figures) in figures.items():
        ratio = pairwise(own_figures, base_figures)
        table.add(
            measure,
            median(base_figures),
            median(own_figures),
            ratio,
            budget=Budget(f"memory per waiting job ({measure}), x Streams", ratio, MEMORY_BUDGET),
        )
    return table


def weigh(bed: Bed, contender: Streams | Jobs | Ids, jobs: int) -> dict[str, float]:
    """Return the bytes per waiting job by each measure, and remove the jobs."""
    before = bed.used_memory()
    stock(contender, jobs)
    after = bed.used_memory()
    keys = bed.key_memory(contender.keys())
    bed.drop(contender.keys())
    return {"MEMORY USAGE": keys / jobs, "used_memory": max(after - before, 0) / jobs}
