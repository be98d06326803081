"""Remember the tests that passed only when they were repeated; refuse the second time.

    grep -E '^(FAILED|ERROR) ' LOG | python tools/repeats.py RECORD

RECORD has a line for each of the last ten runs, a JSON list of names. The exit code is 1 if a test
of this run is also in an earlier one: it depends on luck, and has to be mended.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

RUNS = 10


def names_of(summary: str) -> set[str]:
    """Return the names of tests in lines of pytest's summary, whose parameters may have spaces."""
    return set(
        re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\](?= - |$))?)", summary, re.MULTILINE)
    )


def add_run(record: Path, names: set[str]) -> set[str]:
    """Add a run to the record; return those of its tests that are also in one of the runs before.

    Args:
        record: the file; it is made if it is not there.
        names: the tests that were repeated in this run.
    """
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    lines = lines[1 - RUNS :]
    before = {name for line in lines for name in json.loads(line)}
    record.parent.mkdir(parents=True, exist_ok=True)
    new = record.with_suffix(".new")  # a run may be killed while it writes
    new.write_text("\n".join([*lines, json.dumps(sorted(names)), ""]), encoding="utf-8")
    new.replace(record)
    return names & before


if __name__ == "__main__":
    again = add_run(Path(sys.argv[1]), names_of(sys.stdin.read()))
    for name in sorted(again):
        print(f"repeated in two of the last {RUNS} runs: {name}")
    sys.exit(bool(again))
