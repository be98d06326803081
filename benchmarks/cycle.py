"""A job's whole cycle compared with Streams: add, reserve, ack, sent in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.bed import Bed
from benchmarks.contenders import Jobs, PipelinedJobs, PipelinedStreams, Streams
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.plan import Plan

__all__ = ["cycle"]

BATCH = 100
ROUNDS = 9
BULK, SINGLE, PIPELINED = "by 100 a call", "by 1 a call", "by 1 a call, 100 calls a trip"
LIMITS = {BULK: 0.9, SINGLE: 0.4}


class Contender(Protocol):
    """The interface of a contender."""

    def add(self, n: int) -> None:
        """Add n jobs."""

    def reserve(self, n: int) -> Any:
        """Take up to n jobs."""

    def work(self, held: Any) -> int:
        """Read every body."""

    def ack(self, held: Any) -> None:
        """Finish jobs."""

    def keys(self) -> list[bytes]:
        """Return the keys of its jobs."""


def cycle(bed: Bed, plan: Plan) -> Table:
    """Measure jobs/s of add, reserve and ack of one process, as a ratio within each round."""
    table = Table(
        "cycle",
        "The whole cycle: add, take, look at, finish, from Python",
        ("cycle", "Streams jobs/s", "penstock jobs/s", "x Streams", "x Streams server CPU"),
        "Streams: XADD, XREADGROUP, XACK + XDEL; three trips a cycle on both sides. By 100 a call:"
        " XADD pipelined by 100, the others name 100 entries. 100 calls a trip: each command, and"
        " each script, for one job, pipelined by 100; penstock's client does not send so.",
    )
    sides: dict[str, tuple[Contender, Contender, int]] = {
        BULK: (Streams(bed.redis, bed.key("cycle:100")), Jobs(bed.client, "cycle 100"), BATCH),
        SINGLE: (Streams(bed.redis, bed.key("cycle:1")), Jobs(bed.client, "cycle 1"), 1),
        PIPELINED: (
            PipelinedStreams(bed.redis, bed.key("cycle:piped")),
            PipelinedJobs(bed.client, "cycle piped", bed.redis),
            BATCH,
        ),
    }
    for name, (streams, jobs, n) in sides.items():
        times = max((plan.bulk // 3 if name == BULK else plan.single) // n, 1)
        rounds = _rounds(bed, min(plan.rounds, ROUNDS), times, n, streams, jobs)
        ours, base = [s.rate for _, s in rounds], [s.rate for s, _ in rounds]
        ratio = pairwise(ours, base)
        budget = None
        if name in LIMITS:
            budget = Budget(f"whole cycle {name}, x Streams", ratio, LIMITS[name], least=True)
        cpu = pairwise([s.server for _, s in rounds], [s.server for s, _ in rounds])
        table.add(name, median(base), median(ours), ratio, cpu, budget=budget)
        table.rounds[f"{name} Streams jobs/s"] = base
        table.rounds[f"{name} penstock jobs/s"] = ours
    return table


def _rounds(
    bed: Bed, rounds: int, times: int, n: int, streams: Contender, jobs: Contender
) -> list[tuple[Sample, Sample]]:
    """Run interleaved rounds: Streams, penstock, Streams, penstock."""
    for contender in (streams, jobs):
        _cycles(contender, max(times // 10, 1), n)()
    found = [
        (bed.measure(_cycles(streams, times, n)), bed.measure(_cycles(jobs, times, n)))
        for _ in range(rounds)
    ]
    bed.drop(streams.keys() + jobs.keys())
    return found


def _cycles(contender: Contender, times: int, n: int) -> Callable[[], int]:
    def work() -> int:
        for _ in range(times):
            contender.add(n)
            held = contender.reserve(n)
            contender.work(held)
            contender.ack(held)
        return times * n

    return work
