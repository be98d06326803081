"""Running the command line, in this process and in others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import penstock

__all__ = ["Cli", "Result", "environment", "hear_signals", "in_process_of_its_own"]

TIMEOUT = 60


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Stdout as the one JSON document that it must be."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table, below its heading; columns are two blanks or more apart."""
        lines = self.out.splitlines()
        rule = next(number for number, line in enumerate(lines) if line.startswith("──"))
        return [
            [cell for cell in line.strip().split("  ") if cell.strip()]
            for line in lines[rule + 1 :]
            if line.strip()
        ]


class Cli(Protocol):
    """`cli("stats", "q")` runs `penstock stats q` on the test's server."""

    def __call__(self, *argv: str, stdin: bytes = b"", url: str | None = None) -> Result:
        """Run a command."""


def hear_signals() -> None:
    """In a child: signals that the tests' own process ignores, as below nohup, are heard again."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def environment(**changes: str) -> dict[str, str]:
    """The environment of a process that imports this same penstock, installed or not."""
    here = str(Path(penstock.__file__).parents[1])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"}
    plain = {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": ""}
    return {**kept, **plain, **changes}


def in_process_of_its_own(*argv: str, stdin: bytes = b"", **changes: str) -> Result:
    """`python -m penstock.cli` with these arguments."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *argv],
        input=stdin,
        capture_output=True,
        env=environment(**changes),
        timeout=TIMEOUT,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
