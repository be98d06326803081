"""The command line: `penstock --help`.

A command is a function; its docstring is its help, and the Args are the help of its options.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code.

    0 = done; 1 = refused, failed, or a promise is broken (doctor, demo); 2 = bad usage, an app
    that can't be loaded (worker), or a package that the command needs is not installed.

    Args:
        argv: the arguments after the program's name; None = this process's own.
    """
    if argv is None and "worker" in sys.argv:  # a reload may come before the handler is there
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from penstock.cli.app import run

    try:
        return run(sys.argv[1:] if argv is None else list(argv))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        sys.stderr.write("penstock: this command needs rich: pip install 'penstock[cli]'\n")
        return 2
