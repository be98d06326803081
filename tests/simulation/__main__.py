"""Run seeds: `python -m tests.simulation --seed 17` repeats one, `--seeds 1000` runs many.

`--seconds 240` runs new seeds for so long. `--shrink` with `--seed` looks for the smallest system
that fails likewise, and tells its story. `--plants` counts the seeds after which each planted fault
is found.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from functools import partial
from multiprocessing import get_context
from typing import Any

from tests.simulation.plan import Plan, draw_plan
from tests.simulation.plants import PLANTS
from tests.simulation.runs import Share, find_plant, run_share
from tests.simulation.shrink import fail_by, shrink
from tests.simulation.story import tell
from tests.simulation.system import simulate

MOST_LINES = 120
"""Most lines of a story."""
NEW_SEEDS = (1_000_000, 1_000_000_000)
"""Between these a run with `--seconds` begins: in all likelihood no run had its seeds."""


def main() -> int:
    """Run the seeds, and print those that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--plants", action="store_true", help="find the planted faults")
    parser.add_argument("--seed", type=int, help="run this seed, and print its story")
    parser.add_argument("--plan", type=int, help="with --seed: have the system of this seed")
    parser.add_argument("--only", help="with --seed: the parts of its system, by commas")
    parser.add_argument("--shrink", action="store_true", help="with --seed: find what it needs")
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seconds", type=float, help="run new seeds for so long")
    parser.add_argument("--processes", type=int, default=1, help="run so many seeds at once")
    options = parser.parse_args()
    if options.seed is not None:
        plan = draw_plan(options.seed if options.plan is None else options.plan)
        return _repeat(options.seed, plan, options.only, is_shrunk=options.shrink)
    with get_context("spawn").Pool(options.processes) as pool:
        if options.plants:
            return _find_plants(pool, options.seeds)
        if options.seconds is None:
            return _run_all(pool, options.first, options.seeds, math.inf, options.processes)
        until = time.monotonic() + options.seconds
        first = random.SystemRandom().randrange(*NEW_SEEDS)
        print(f"new seeds from {first} on, for {options.seconds:.0f} s", flush=True)
        return _run_all(pool, first, 10**9, until, options.processes)


def _run_all(pool: Any, first: int, seeds: int, until: float, processes: int) -> int:
    began = time.monotonic()
    shares = [
        Share(range(first + number, first + seeds, processes), until) for number in range(processes)
    ]
    ends = pool.map(run_share, shares, chunksize=1)
    ran, failed = (sum(numbers) for numbers in zip(*ends, strict=True))
    seconds = time.monotonic() - began
    print(f"{ran} seeds from {first}: {failed} failed, {seconds:.0f} s")
    return failed > 0


def _find_plants(pool: Any, most: int) -> int:
    hidden = 0
    found = pool.imap(partial(find_plant, most), range(len(PLANTS)))
    for plant, seed in zip(PLANTS, found, strict=True):
        hidden += seed is None
        text = f"not found in {most} seeds" if seed is None else f"{seed + 1} seeds"
        print(f"{plant.name}: {text}", flush=True)
    return hidden > 0


def _repeat(seed: int, plan: Plan, only: str | None, *, is_shrunk: bool) -> int:
    if only is not None:
        plan = plan.keep([name.strip() for name in only.split(",")])
    failure = fail_by(seed, plan)
    if failure is None:
        world = simulate(seed, plan=plan)
        print(*world.story, world.digest, sep="\n")
        return 0
    if is_shrunk:
        failure = shrink(failure, tell=lambda text: print(text, flush=True))
        log: list[str] = []
        failure = fail_by(failure.seed, failure.plan, log=log) or failure
        print(*list(tell(log))[-MOST_LINES:], sep="\n")
    print(failure)
    return 1


if __name__ == "__main__":
    sys.exit(main())
