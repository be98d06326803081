"""The command: arguments, the sections in order, the report."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    client,
    cost,
    cycle,
    dedup,
    depth,
    disque,
    hold,
    instructions,
    keys,
    overload,
    page,
    peers,
    pressure,
    report,
    single,
    spark,
    standby,
    waiting,
    workers,
)
from benchmarks.bed import Bed, Refused, opened
from benchmarks.figures import Table
from benchmarks.machine import Noise, describe, pinned
from benchmarks.plan import FULL, QUICK, Plan

__all__ = ["SECTIONS", "run"]

SECTIONS: dict[str, Callable[[Bed, Plan], Table]] = {
    "batches": cost.batches,
    "commands": cost.commands,
    "memory": cost.memory,
    "dedup": dedup.dedup,
    "results": cost.results,
    "keys": keys.keys,
    "python": client.python,
    "options": client.options,
    "single": single.single,
    "cycle": cycle.cycle,
    "disque": disque.disque,
    "copies": disque.copies,
    "handover": waiting.handover,
    "awaited": waiting.awaited,
    "delayed": waiting.delayed,
    "idle": waiting.idle,
    "pressure": pressure.pressure,
    "workers": workers.workers,
    "pickup": standby.pickup,
    "standby": standby.standby,
    "overload": overload.overload,
    "hold": hold.hold,
    "backlog": depth.backlog,
}
"""All sections; the deepest queues come last, as they leave memory used."""

APART: dict[str, Callable[[Bed, Plan], Table]] = {
    "instructions": instructions.instructions,
    "peers": peers.peers,
    "spark": spark.spark,
}
"""Sections that need more than a server: part of a full run if it is installed, or by `--only`."""
IS_THERE = {
    "instructions": instructions.is_there,
    "peers": peers.is_there,
    "spark": spark.is_there,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    args = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure penstock against Streams and lists by hand, on one server in one run.",
    )
    args.add_argument("--url", help="measure on this server; default: start one")
    args.add_argument("--yes", action="store_true", help="even if its database holds keys")
    args.add_argument("--quick", action="store_true", help="smaller figures, under a minute")
    args.add_argument("--rounds", type=_positive, help="rounds of each pair")
    args.add_argument(
        "--only", nargs="+", choices=[*SECTIONS, *APART], metavar="SECTION", help=_sections()
    )
    args.add_argument("--depths", nargs="+", type=_positive, metavar="N", help="waiting jobs")
    args.add_argument("--scale", type=float, default=1.0, help="times as many jobs")
    args.add_argument(
        "--record",
        metavar="COMMIT",
        help="add the counts of the section `instructions` to benchmarks/history.csv",
    )
    args.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file")
    args.add_argument(
        "--page", action="store_true", help="measure for docs/benchmarks.md, and write its figures"
    )
    args.add_argument("--markdown", action="store_true", help="print Markdown, for a README")
    args.add_argument("--check", action="store_true", help="exit 1 if a budget does not hold")
    return args


def _sections() -> str:
    return f"only these: {', '.join([*SECTIONS, *APART])}"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def run(argv: list[str] | None = None) -> int:
    """Measure and report; return the exit code."""
    args = parser().parse_args(argv)
    plan = (QUICK if args.quick else FULL).scaled(args.scale)
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds)
    if args.depths:
        plan = dataclasses.replace(plan, depths=tuple(args.depths))
    try:
        with opened(args.url, sure=args.yes) as bed, pinned(bed.pid) as placement:
            apart = [] if args.quick else [name for name in APART if IS_THERE[name]()]
            names = args.only or (page.SECTIONS if args.page else [*SECTIONS, *apart])
            _check(args, names)
            tables, facts = _measure(bed, plan, names, placement)
    except Refused as error:
        report.say(f"python -m benchmarks: {error}", progress=True)
        return 2
    closing = report.budget_table(tables)
    write = report.write_markdown if args.markdown else report.write_text
    write([*tables, closing], facts)
    if args.record:
        [counts] = [table for table in tables if table.name == "instructions"]
        instructions.record(counts, args.record)
    found = report.as_json(tables, closing.budgets, facts=facts, plan=dataclasses.asdict(plan))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.page:
        page.keep(found)
        page.main([])
    return int(args.check and not all(budget.holds for budget in closing.budgets))


def _check(args: argparse.Namespace, names: Sequence[str]) -> None:
    if args.record and "instructions" not in names:
        raise Refused("--record needs the section instructions: --only instructions")
    if args.page and (args.only or not peers.is_there()):
        raise Refused("--page needs all of its sections, and the group bench: nox -s bench")


def _measure(
    bed: Bed, plan: Plan, names: Sequence[str], placement: str
) -> tuple[list[Table], dict[str, str]]:
    noise = Noise(bed.pid)
    facts = describe(bed.redis.info("server"), placement=placement, transport=bed.transport)
    tables = []
    for name, section in {**SECTIONS, **APART}.items():
        if name in names:
            report.say(f"{name} ...", progress=True)
            tables.append(section(bed, plan))
    rounds = f"{plan.rounds}, interleaved; medians, and ratios pair by pair within a round"
    return tables, facts | {"rounds": rounds} | noise.report()
