"""The size of the measurements: job counts, rounds, depths."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

__all__ = ["BODY", "FULL", "QUICK", "Plan"]

BODY = b"x" * 100
"""The body of every job."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The figures of a run.

    Attributes:
        rounds: how often each pair is measured.
        standing: jobs that wait while the cost of a batch is measured.
        cost: jobs a round for each size of batch.
        memory: jobs of which the memory is measured.
        depths: backlogs of which a lifecycle's cost is compared; the first is the base.
        lifecycles: jobs a round at each depth.
        single: calls a round that carry one job.
        bulk: jobs a round in batches.
        samples: hand-overs a round.
        delayed: delayed jobs, spread over `delayed` x 40 ms.
        idle: seconds for which idle consumers are watched.
        fresh: jobs for which waking consumers are counted.
        worked: jobs a round of a worker with defaults; the faster ones get more.
        picked: jobs a round that an idle worker picks up.
        overload: seconds a round of producers that add more than consumers take.
        hold: jobs of 100 bytes on the queue while the longest call is looked for.
        large: the same of 1 MB.
    """

    rounds: int
    standing: int
    cost: dict[int, int]
    memory: int
    depths: tuple[int, ...]
    lifecycles: int
    single: int
    bulk: int
    samples: int
    delayed: int
    idle: float
    fresh: int
    worked: int
    picked: int
    overload: float
    hold: int
    large: int

    def scaled(self, factor: float) -> Plan:
        """Return the plan with fewer or more jobs, but enough for each measurement."""

        def jobs(number: int, batch: int = 1) -> int:
            return max(round(number * factor / batch), 1) * batch

        return dataclasses.replace(
            self,
            standing=jobs(self.standing),
            cost={n: jobs(number, max(n, IN_FLIGHT)) for n, number in self.cost.items()},
            memory=jobs(self.memory, 100),
            depths=tuple(jobs(depth, 100) for depth in self.depths),
            lifecycles=jobs(self.lifecycles, 100),
            single=jobs(self.single),
            bulk=jobs(self.bulk, 100),
            samples=max(jobs(self.samples), 2),
            delayed=max(jobs(self.delayed), 2),
            idle=max(self.idle * min(factor, 1.0), 0.2),
            fresh=jobs(self.fresh),
            worked=jobs(self.worked, 100),
            picked=max(jobs(self.picked), 10),
            overload=max(self.overload * min(factor, 1.0), 0.2),
            hold=max(jobs(self.hold), 100),
            large=max(jobs(self.large), 3),
        )


IN_FLIGHT = 1000
"""Jobs reserved before the first of them is acknowledged, while a batch's cost is measured."""

FULL = Plan(
    rounds=15,
    standing=1000,
    cost={1: 1000, 10: 5000, 100: 30_000, 1000: 30_000},
    memory=200_000,
    depths=(1000, 1_000_000, 5_000_000),
    lifecycles=20_000,
    single=2000,
    bulk=30_000,
    samples=40,
    delayed=75,
    idle=30.0,
    fresh=30,
    worked=10_000,
    picked=300,
    overload=4.0,
    hold=1_000_000,
    large=1000,
)

QUICK = Plan(
    rounds=3,
    standing=1000,
    cost={1: 1000, 10: 5000, 100: 20_000, 1000: 20_000},
    memory=50_000,
    depths=(1000, 100_000, 500_000),
    lifecycles=10_000,
    single=1500,
    bulk=20_000,
    samples=40,
    delayed=25,
    idle=30.0,
    fresh=10,
    worked=6000,
    picked=200,
    overload=3.0,
    hold=20_000,
    large=50,
)
