"""The throughput of one Python process, compared with handwritten loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.bed import Bed
from benchmarks.contenders import Jobs, Lists, Streams
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.plan import BODY, Plan

__all__ = ["options", "python"]

BATCH = 100
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {}, "delay": {"delay": 60}, "priority": {"priority": 5}, "ttl": {"ttl": 3600},
    "key": {"key": "customer:7"}, "result_ttl": {"result_ttl": 60},
}  # fmt: skip
OPTION_BUDGET = 1.15
"""Client CPU of a whole enqueue with one option, x that without."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A loop of ours and its baseline.

    Attributes:
        ours, base: names of the two.
        limit: bound on the ratio, or on jobs/s.
        absolute: whether the bound is on jobs/s.
    """

    ours: str
    base: str
    limit: float | None = None
    absolute: bool = False


PAIRS = (
    Pair("enqueue", "LPUSH", 0.85),
    Pair("enqueue_many by 100", "XADD pipelined by 100", 1.5),
    Pair("enqueue_many by 1000", "XADD pipelined by 100"),
    Pair("reserve + ack by 100", "XREADGROUP, XACK + XDEL by 100", 100_000, absolute=True),
    Pair("settle by 100", "XREADGROUP, XACK + XDEL by 100"),
    Pair("consume(), with job", "BLMOVE + LREM", 1.0),
    Pair("settle by 1", "BLMOVE + LREM", 1.0),
    Pair("reserve + job.ack", "BLMOVE + LREM"),
)


def python(bed: Bed, plan: Plan) -> Table:
    """Measure jobs/s and client CPU of one process with redis-py and hiredis."""
    table = Table(
        "python",
        "From Python: one process, redis-py with hiredis",
        (
            "penstock", "base", "penstock jobs/s", "base jobs/s", "x base",
            "penstock client us CPU/job", "base client us CPU/job",
        ),
        "Consumers look at every body. Baselines are bare loops of redis-py calls. consume() and"
        " settle take one trip a job, reserve + job.ack and BLMOVE + LREM two.",
    )  # fmt: skip
    loops = _Loops(bed)
    loops.round(max(plan.single // 10, 1), BATCH * 5)
    rounds = [loops.round(plan.single, plan.bulk) for _ in range(plan.rounds)]
    for pair in PAIRS:
        ours, base = [r[pair.ours] for r in rounds], [r[pair.base] for r in rounds]
        ratio = pairwise([s.rate for s in ours], [s.rate for s in base])
        rate = median(s.rate for s in ours)
        table.add(
            pair.ours,
            pair.base,
            rate,
            median(s.rate for s in base),
            ratio,
            median(s.client_us for s in ours),
            median(s.client_us for s in base),
            budget=_budget(pair, rate, ratio),
        )
        table.rounds[f"{pair.ours} jobs/s"] = [s.rate for s in ours]
        table.rounds[f"{pair.base} jobs/s"] = [s.rate for s in base]
    loops.close()
    return table


def options(bed: Bed, plan: Plan) -> Table:
    """Measure the client CPU of an enqueue with one option, beside one without."""
    table = Table(
        "options",
        "One option of an enqueue",
        ("option", "client us CPU/job", "x none"),
        "One process, one job a call, each option in a queue of its own.",
    )

    def add(name: str) -> int:
        queue, given = bed.client.queue(f"with {name}"), OPTIONS[name]
        return _Loops._repeat(plan.single, lambda: queue.enqueue(BODY, **given))

    rounds = [
        {name: bed.measure(lambda name=name: add(name)).client_us for name in OPTIONS}  # type: ignore[misc]  # a default binds it
        for _ in range(plan.rounds + 1)
    ][1:]
    base = [one["none"] for one in rounds]
    for name in OPTIONS:
        figures = [one[name] for one in rounds]
        ratio = pairwise(figures, base)
        budget = Budget(f"enqueue with {name}, client CPU", ratio, OPTION_BUDGET)
        table.add(name, median(figures), ratio, budget=None if name == "none" else budget)
        table.rounds[name] = figures
        bed.client.queue(f"with {name}").clear()
    return table


def _budget(pair: Pair, rate: float, ratio: float) -> Budget | None:
    if pair.limit is None:
        return None
    if pair.absolute:
        return Budget(pair.ours, rate, pair.limit, least=True, unit="jobs/s")
    return Budget(f"{pair.ours}, x {pair.base}", ratio, pair.limit, least=True)


class _Loops:
    """Loops of which each round runs every one once, next to its baseline."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.lists = Lists(bed.redis, bed.key("list"))
        self.streams = Streams(bed.redis, bed.key("stream"))
        self.jobs = Jobs(bed.client, "python")

    def round(self, single: int, bulk: int) -> dict[str, Sample]:
        """Run every loop once; added jobs are consumed."""
        measure, found = self.bed.measure, {}
        found["LPUSH"] = measure(lambda: self._repeat(single, self.lists.add))
        found["enqueue"] = measure(lambda: self._repeat(single, lambda: self.jobs.add(1)))
        found["BLMOVE + LREM"] = measure(lambda: self._repeat(single, self.lists.cycle))
        found["reserve + job.ack"] = measure(lambda: self._one_by_one(single))
        self.jobs.fill(single)
        found["consume(), with job"] = measure(self._consume)
        self.jobs.fill(single)
        found["settle by 1"] = measure(lambda: self._settle(single, 1))
        times = bulk // BATCH
        found["XADD pipelined by 100"] = measure(lambda: self._bulk(times, self.streams))
        found["enqueue_many by 100"] = measure(lambda: self._bulk(times, self.jobs))
        found["XREADGROUP, XACK + XDEL by 100"] = measure(lambda: self._drain(self.streams))
        found["reserve + ack by 100"] = measure(lambda: self._drain(self.jobs))
        found["enqueue_many by 1000"] = measure(lambda: self._fill(bulk))
        found["settle by 100"] = measure(lambda: self._settle(bulk, BATCH))
        return found

    def close(self) -> None:
        """Remove the keys of the loops."""
        self.bed.drop(self.streams.keys() + self.jobs.keys())

    @staticmethod
    def _repeat(times: int, work: Callable[[], object]) -> int:
        for _ in range(times):
            work()
        return times

    def _one_by_one(self, times: int) -> int:
        queue, seen = self.jobs.queue, 0
        for _ in range(times):
            for job in queue.reserve(1):
                seen += len(job.raw) > 0
                job.ack()
        return seen

    def _consume(self) -> int:
        seen = 0
        for job in self.jobs.queue.consume(block=0):
            with job:
                seen += len(job.raw) > 0
        return seen

    def _bulk(self, times: int, contender: Streams | Jobs) -> int:
        for _ in range(times):
            contender.add(BATCH)
        return times * BATCH

    def _fill(self, jobs: int) -> int:
        self.jobs.fill(jobs)
        return jobs

    def _drain(self, contender: Streams | Jobs) -> int:
        done = 0
        held = contender.reserve(BATCH)
        while held:
            contender.work(held)  # type: ignore[arg-type]  # each has its own kind
            contender.ack(held)  # type: ignore[arg-type]  # each has its own kind
            done += len(held)
            held = contender.reserve(BATCH)
        return done

    def _settle(self, jobs: int, n: int) -> int:
        done = 0
        held = self.jobs.reserve(n)
        while done < jobs and held:
            self.jobs.work(held)
            done += len(held)
            held = self.jobs.settle(held, n)
        return done
