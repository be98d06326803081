"""The report as text, Markdown and JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.figures import Budget, Table, shown

__all__ = ["as_json", "budget_table", "say", "write_markdown", "write_text"]


def say(text: str = "", *, progress: bool = False) -> None:
    """Print a line; progress goes to stderr if the report is on stdout."""
    print(text, file=sys.stderr if progress else sys.stdout, flush=True)


def budget_table(tables: Iterable[Table]) -> Table:
    """Return a table of every budget of the run, with its verdict."""
    closing = Table("budgets", "Budgets", ("what", "measured"))
    for table in tables:
        for budget in table.budgets:
            closing.add(budget.name, f"{shown(budget.value)} {budget.unit}", budget=budget)
    return closing


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "").lstrip("-").isdigit()


def _right(texts: Sequence[tuple[str, ...]], column: int) -> bool:
    return all(_is_number(row[column]) for row in texts)


def write_text(tables: Sequence[Table], facts: dict[str, str]) -> None:
    """Write aligned text, with rich tables on a terminal if rich is installed."""
    for name, value in facts.items():
        say(f"{name + ':':<13} {value}")
    for table in tables:
        say()
        if not (sys.stdout.isatty() and _rich(table)):
            _plain(table)


def _plain(table: Table) -> None:
    texts = table.texts()
    rows = [table.heads, *texts]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.heads))]
    say(f"== {table.title}")
    if table.note:
        say(f"   {table.note}")
    for row in rows:
        cells = [
            text.rjust(widths[i]) if _right(texts, i) else text.ljust(widths[i])
            for i, text in enumerate(row)
        ]
        say("  ".join(cells).rstrip())


def _rich(table: Table) -> bool:
    """Draw a table with rich; return False if it is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        return False
    texts = table.texts()
    drawn = RichTable(title=table.title, caption=table.note or None, title_justify="left")
    for i, head in enumerate(table.heads):
        drawn.add_column(head, justify="right" if _right(texts, i) else "left")
    for row in texts:
        styled = {"ok": "[green]ok[/]", "over": "[bold red]over[/]"}
        drawn.add_row(*row[:-1], styled.get(row[-1], row[-1]))
    Console().print(drawn)
    return True


def write_markdown(tables: Sequence[Table], facts: dict[str, str]) -> None:
    """Write tables in the form for the README."""
    for name, value in facts.items():
        say(f"- {name}: {value}")
    for table in tables:
        texts = table.texts()
        say()
        say(f"**{table.title}**")
        if table.note:
            say()
            say(table.note)
        say()
        say("| " + " | ".join(table.heads) + " |")
        right = [_right(texts, i) for i in range(len(table.heads))]
        say("|" + "|".join("---:" if is_right else "---" for is_right in right) + "|")
        for row in texts:
            say("| " + " | ".join(row) + " |")


def as_json(tables: Sequence[Table], budgets: Sequence[Budget], **facts: Any) -> dict[str, Any]:
    """Return all data for programs."""
    return {
        **facts,
        "tables": [table.as_json() for table in tables],
        "budgets": [budget.as_json() for budget in budgets],
        "holds": all(budget.holds for budget in budgets),
    }
