"""Write names and defaults of options into the tables of docs/spark.md; `--check` only compares.

The texts of the tables are written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.spark.options import Connection, Read, Stream, Write, spelled

__all__ = ["updated"]

PAGE = Path(__file__).parents[1] / "docs" / "spark.md"
PART = re.compile(r"<!-- options: (\w+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| .*? \| (.*) \|$", re.MULTILINE)
GROUPS: dict[str, type[Connection]] = {
    group.__name__: group for group in (Connection, Write, Read, Stream)
}


def updated(text: str) -> str:
    """Return the page with current tables; a new option has no text."""
    return PART.sub(lambda match: _part(match[1], dict(ROW.findall(match[2]))), text)


def _part(name: str, texts: dict[str, str]) -> str:
    lines = [
        f"| `{option}` | {_shown(value)} | {texts.get(option, '')} |"
        for option, value in _rows(name)
    ]
    table = "\n".join(["| option | default | |", "|---|---|---|", *lines])
    return f"<!-- options: {name} -->\n{table}\n<!-- end -->\n"


def _rows(name: str) -> list[tuple[str, Any]]:
    """Return names and defaults of the group's own options."""
    group = GROUPS[name]
    shared = set() if group is Connection else set(Connection.options())
    own = [one for lowered, one in group.options().items() if lowered not in shared]
    return [(spelled(one.name), _unit(spelled(one.name), one.default)) for one in own]


def _unit(name: str, value: Any) -> Any:
    """Return the unit: durations are kept in ms."""
    spans = ("Timeout", "Window", "Duration", "Ttl", "For", "Lease", "Delay", "delay")
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(spans):
        return _span(value)
    return value


def _span(ms: int) -> str:
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _shown(value: Any) -> str:
    if value is None or value == "" or value == ():
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(value) if isinstance(value, tuple) else value}`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(arguments)
    old = PAGE.read_text("utf-8")
    new = updated(old)
    if old != new and options.check:
        print("docs/spark.md is stale: run tools/spark.py", file=sys.stderr)
        return 1
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
