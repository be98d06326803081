"""What the processes of a run do: each runs seeds, or looks for planted faults."""

from __future__ import annotations

import time
from typing import NamedTuple

from tests.simulation.plan import draw_plan
from tests.simulation.plants import PLANTS
from tests.simulation.shrink import fail_by
from tests.simulation.system import find

__all__ = ["Share", "find_plant", "run_share"]


class Share(NamedTuple):
    """Seeds that one process runs.

    Attributes:
        seeds: the seeds.
        until: when it ends, whether all seeds have run or not.
    """

    seeds: range
    until: float


def run_share(share: Share) -> tuple[int, int]:
    """Return how many seeds have run, and how many of them failed."""
    ran = failed = 0
    for seed in share.seeds:
        if time.monotonic() >= share.until:
            break
        failure = fail_by(seed, draw_plan(seed))
        ran += 1
        if failure is not None:
            failed += 1
            text = str(failure.error).partition("\n")[0]
            print(f"{type(failure.error).__name__}: seed {seed}: {text}", flush=True)
            print(f"  repeat it: nox -s simulate -- --seed {seed} --shrink", flush=True)
    return ran, failed


def find_plant(most: int, plant: int) -> int | None:
    """Return the first seed that shows a planted fault, by its number; None = none does."""
    return find(PLANTS[plant], most)
