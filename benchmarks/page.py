"""The page of benchmarks: its tables and charts, written from the results of one run.

    python -m benchmarks --quick --rounds 5 --page    # measures, and writes all three
    python -m benchmarks.page                         # writes tables and charts again
    python -m benchmarks.page --check                 # only compares

The results are in benchmarks/results.json, the text of the page is written by hand between the
tables of docs/benchmarks.md, the charts are in docs/images.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import shown

__all__ = ["CHARTS", "SECTIONS", "chart", "files", "filled", "keep"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
SECTIONS = ("memory", "dedup", "python", "workers", "pickup", "standby", "backlog", "peers")
"""Of a run for the page."""
REGION = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
Row = Mapping[str, Any]
Results = Mapping[str, Any]

COLUMNS = {
    "peers": ("system", "version", "worker", "enqueue jobs/s", "worker jobs/s"),
    "python": ("penstock", "base", "penstock jobs/s", "base jobs/s", "x base"),
    "workers": (
        "worker", "jobs/s", "base", "base jobs/s", "trips/job",
        "client us CPU/job", "server us CPU/job",
    ),
    "pickup": ("worker", "figure", "enqueue to handler ms", "LPUSH to BLPOP ms"),
}  # fmt: skip
"""Columns of a table on the page; other tables have all."""


def keep(found: Results) -> None:
    """Write the results of a run, without the figures of single rounds."""
    tables = [{k: v for k, v in table.items() if k != "rounds"} for table in found["tables"]]
    RESULTS.write_text(json.dumps({**found, "tables": tables}, indent=1) + "\n", encoding="utf-8")


# -- tables --------------------------------------------------------------------------------------


def filled(text: str, results: Results) -> str:
    """Return the page with the tables of a run.

    Raises:
        KeyError: the run has no table of a name on the page.
    """
    made: dict[str, Callable[[], str]] = {
        "machine": lambda: _machine(results["facts"]),
        "budgets": lambda: _budgets(results["budgets"]),
    }
    for table in results["tables"]:
        made[table["name"]] = partial(_table, table)
    return REGION.sub(lambda found: f"{found[1]}\n{made[found[2]]()}\n\n{found[3]}", text)


def _machine(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _table(table: Row) -> str:
    rows = [row for row in table["rows"] if len(_values(row)) > 2]  # not: one figure for a budget
    heads = COLUMNS.get(table["name"]) or [name for name in table["rows"][0] if name != "budget"]
    note = f"{table['note']}\n\n" if table["note"] else ""
    return note + _grid(heads, ([row.get(name) for name in heads] for row in rows))


def _values(row: Row) -> list[Any]:
    return [value for name, value in row.items() if name != "budget" and value is not None]


def _budgets(budgets: Sequence[Row]) -> str:
    heads = ("what", "measured", "budget", "")
    rows = [
        (
            one["name"],
            f"{shown(one['value'])} {one['unit']}",
            f"{'>=' if one['least'] else '<='} {shown(one['limit'])} {one['unit']}",
            "ok" if one["holds"] else "missed",
        )
        for one in budgets
    ]
    missed = sum(not one["holds"] for one in budgets)
    return f"{_grid(heads, rows)}\n\n{missed} of {len(budgets)} are missed in this run."


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    found = list(rows)
    right = [all(not isinstance(row[i], str) for row in found) for i in range(len(heads))]
    lines = [heads, ["---:" if one else "---" for one in right]]
    lines += [[shown(cell) for cell in row] for row in found]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# -- charts --------------------------------------------------------------------------------------


def _systems(results: Results, figure: str) -> dict[str, float]:
    rows = _rows(results, "peers")
    return {f"{row['system']} {row['version']}".strip(): row[figure] for row in rows}


def _workers(results: Results) -> dict[str, float]:
    rows = _rows(results, "workers")
    found = {row["worker"]: row["jobs/s"] for row in rows if row.get("jobs/s")}
    return found | {row["base"]: row["base jobs/s"] for row in rows if row.get("base")}


def _rows(results: Results, name: str) -> list[Row]:
    [table] = [table for table in results["tables"] if table["name"] == name]
    rows: list[Row] = table["rows"]
    return rows


CHARTS: dict[str, tuple[str, Callable[[Results], dict[str, float]], str]] = {
    "drain": (
        "Jobs per second that one worker process finishes",
        lambda results: _systems(results, "worker jobs/s"),
        "Empty handlers. huey does not acknowledge. rq: SimpleWorker, celery: solo pool.",
    ),
    "enqueue": (
        "Jobs per second that one producer adds, one a call",
        lambda results: _systems(results, "enqueue jobs/s"),
        "100-byte bodies.",
    ),
    "workers": (
        "Jobs per second of one process: workers of penstock, and bare loops",
        _workers,
        "thread, asyncio: Worker and AsyncWorker. The last two are loops of plain redis-py.",
    ),
}
"""Name of the image: title, the bars, and what to know of them."""
BAR, PITCH, LEFT, WIDE = 28, 40, 250, 380
STYLE = (
    "text{fill:#24292f}.b{fill:#8c959f}.o{fill:#0969da}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)
BARE = ("BLMOVE", "XREADGROUP")


def chart(title: str, bars: Mapping[str, float], notes: Sequence[str], ours: str = "") -> str:
    """Return horizontal bars as SVG; those whose name begins with `ours` are in colour."""
    most = max(bars.values())
    parts = [f'<text x="0" y="20" font-weight="bold">{title}</text>']
    for at, (name, value) in enumerate(bars.items()):
        y, width = 40 + PITCH * at, max(round(WIDE * value / most), 1)
        kind = "o" if name.startswith(ours) and not name.startswith(BARE) else "b"
        parts.append(
            f'<text x="0" y="{y + 19}">{name}</text>'
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}" rx="3"/>'
            f'<text x="{LEFT + width + 8}" y="{y + 19}">{value:,.0f}</text>'
        )
    top = 40 + PITCH * len(bars)
    parts += [
        f'<text x="0" y="{top + 16 + 18 * at}" font-size="11">{note}</text>'
        for at, note in enumerate(notes)
    ]
    height = top + 10 + 18 * len(notes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" font-size="15"'
        f' font-family="sans-serif" role="img" aria-label="{title}">\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def files(results: Results) -> dict[Path, str]:
    """Return the page and the charts as they have to be, by their paths."""
    facts = results["facts"]
    run = (
        f"Medians of one run: {facts['machine']}; {facts.get('others', 'load unknown')}",
        f"{facts['server']}; {facts['client']}",
    )
    made = {PAGE: filled(PAGE.read_text(encoding="utf-8"), results)}
    for name, (title, bars, note) in CHARTS.items():
        ours = "" if name == "workers" else "penstock"
        made[IMAGES / f"{name}.svg"] = chart(title, bars(results), (note, *run), ours)
    return made


def main(argv: Sequence[str]) -> int:
    """Write or compare the files; return the exit code."""
    made = files(json.loads(RESULTS.read_text(encoding="utf-8")))
    wrong = [path for path, text in made.items() if not _is(path, text)]
    if "--check" not in argv:
        for path in wrong:
            path.write_text(made[path], encoding="utf-8")
        return 0
    for path in wrong:
        print(f"{path.relative_to(ROOT)}: run python -m benchmarks.page")
    return int(bool(wrong))


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
