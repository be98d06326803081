"""A rate for each key: commands, bytes and what is left, with few and with many keys."""

from __future__ import annotations

import itertools
import time
from functools import partial

from benchmarks.bed import Bed
from benchmarks.contenders import KeyedJobs
from benchmarks.figures import Budget, Table
from benchmarks.plan import Plan

__all__ = ["add_key_rates"]

FEW = 10
"""Keys of the base."""
CALLS = 50
"""Calls whose commands are counted."""
BATCH = 100
RATE = "100/s"
COMMANDS_BUDGET = 1.05
"""Commands of a call with many keys, x those with few."""


def add_key_rates(table: Table, bed: Bed, plan: Plan) -> None:
    """Add the rows of queues with a rate for each key."""
    many = plan.depths[1]
    few = _paced(bed, "few keys", FEW)
    few.fill(CALLS * 2)
    ours = _paced(bed, "many keys", many)
    ours.fill(many)
    size = bed.key_memory([ours.queue.ops.keys["turns"]]) / many
    name = "life by 1, many keys with a rate"
    base, commands = (bed.count(partial(_live, one, 1, CALLS)).total / CALLS for one in (few, ours))
    budget = Budget(f"key_rate: commands, {name}, x {FEW} keys", commands / base, COMMANDS_BUDGET)
    table.add(name, f"{FEW} keys", "commands", base, commands, commands / base, budget=budget)
    table.add("a key in `turns` (MEMORY USAGE)", "none", "bytes/key", 0, size, None)
    _live(ours, BATCH, many)
    time.sleep(0.1)  # ten times as long as RATE keeps a key in `paces`
    ours.queue.sweep()
    left = float(bed.redis.exists(*(ours.queue.ops.keys[kind] for kind in ("turns", "paces"))))
    name = "sets left behind many keys with a rate"
    budget = Budget(f"key_rate: {name}", left, 0.0, unit="sets")
    table.add(name, "none", "sets", 0, left, None, budget=budget)
    for contender in (few, ours):
        bed.drop(contender.keys())


def _paced(bed: Bed, name: str, count: int) -> KeyedJobs:
    keys = map("customer:{}".format, itertools.cycle(range(count)))
    jobs = KeyedJobs(bed.client, name, keys)
    jobs.queue.configure(per_key=None, key_rate=RATE, key_burst=5)
    jobs.queue.reserve(1, block=0)  # no later call looks for jobs that the change concerns
    return jobs


def _live(jobs: KeyedJobs, batch: int, most: int) -> None:
    """Deliver and acknowledge up to so many jobs."""
    for _ in range(0, most, batch):
        held = jobs.queue.reserve(batch, block=0)
        if not held:
            return
        jobs.queue.ack(held)
