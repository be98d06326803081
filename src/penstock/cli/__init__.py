"""The command line: `penstock --help`. It needs the extra `cli` (typer and rich).

A command is a function; its docstring is its help, and the Args are the help of its options.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

__all__ = ["main"]

ROOMS = (
    "demo.command",
    "worker",
    "jobs",
    "queues",
    "schedules",
    "server",
    "nodes",
    "doctor",
    "protocol",
)
"""The modules that hold commands, in the order in which the help lists them."""
NEEDED = ("typer", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code.

    0 = done; 1 = refused, failed, or a promise is broken (doctor, demo); 2 = bad usage, an app
    that can't be loaded (worker), or the extra `cli` is not installed.

    Args:
        argv: the arguments after the program's name; None = this process's own.
    """
    try:
        from penstock.cli import app

        for room in ROOMS:
            importlib.import_module(f"penstock.cli.{room}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write(
            f"penstock: the command line needs {' and '.join(NEEDED)}: "
            "pip install 'penstock[cli]'\n"
        )
        return 2
    return app.run(sys.argv[1:] if argv is None else list(argv))
