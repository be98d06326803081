"""Helpers that run the command line, in this process and in others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import penstock
from penstock.wire.keys import QueueKeys, queue_crc, split_name
from tests.protocol.clock import run

__all__ = [
    "Cli",
    "Result",
    "environment",
    "following",
    "hear_signals",
    "in_process_of_its_own",
    "poisoned",
]

TIMEOUT = 60
YEARS_MS = 19 * 365 * 86_400_000


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return stdout, which must be one JSON document."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """Return the cells of a table without its heading; columns are two blanks or more apart."""
        lines = self.out.splitlines()
        rule = next(number for number, line in enumerate(lines) if line.startswith("──"))
        return [
            [cell for cell in line.strip().split("  ") if cell.strip()]
            for line in lines[rule + 1 :]
            if line.strip()
        ]


class Cli(Protocol):
    """A command runner: `cli("stats", "q")` runs `penstock stats q` on the test's server."""

    def __call__(self, *argv: str, stdin: bytes = b"", url: str | None = None) -> Result:
        """Run a command."""


def hear_signals() -> None:
    """Restore signals in a child that nohup makes the tests' own process ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that imports this penstock, installed or not."""
    here = str(Path(penstock.__file__).parents[1])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"}
    plain = {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": ""}
    return {**kept, **plain, **changes}


def in_process_of_its_own(*argv: str, stdin: bytes = b"", **changes: str) -> Result:
    """Run `python -m penstock.cli` with these arguments."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *argv],
        input=stdin,
        capture_output=True,
        env=environment(**changes),
        timeout=TIMEOUT,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def following(url: str, *argv: str) -> Iterator[Callable[[], str]]:
    """Run a command that prints for a while; yield a function that waits for its next line.

    The line has no newline; after the last one it is empty.
    """
    command = [sys.executable, "-m", "penstock.cli", "--url", url, *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            yield lambda: process.stdout.readline().rstrip("\n")  # type: ignore[union-attr]  # it is piped
        finally:
            process.kill()


def poisoned(raw: Any, name: str = "q") -> QueueKeys:
    """Make a queue whose consumer reserved jobs at a wrong time and died.

    Args:
        raw: a client of redis-py.
        name: as the registry has it, of a partition too.
    """
    whole, number = split_name(name)
    keys, now = QueueKeys(whole, partition=number), int(time.time() * 1000)
    raw.hset("penstock:queues", f"{queue_crc(name):08x}e0e0e0e0", name)
    early = (1, "e0e0e0e0", 0, "", 0, "", "1\nearly")
    late = (2, "e0e0e0e0", 0, "", 0, "", "", "1;d=a;w=60000\nlate")
    run(raw, keys, "enqueue", early, now_ms=now)
    run(raw, keys, "claim", late, now_ms=now + YEARS_MS)
    run(raw, keys, "reserve", (1, 2, 7, "ada", 0, ""), now_ms=now + YEARS_MS)
    return keys
