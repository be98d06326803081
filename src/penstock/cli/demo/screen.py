"""The screen of the demo while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.core.logs import printable

__all__ = ["PlainScreen", "Screen", "screen"]


class Screen(Protocol):
    """Where a run tells what it does."""

    def say(self, text: str) -> None:
        """Something happened."""

    def progress(self, done: int, total: int, workers: Mapping[str, str]) -> None:
        """So many files are done; what each worker has to show for it."""


class PlainScreen:
    """Plain lines, a few of them.

    Args:
        file: where to.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._told = 0

    def say(self, text: str) -> None:
        """A line."""
        self._file.write(text + "\n")
        self._file.flush()

    def progress(self, done: int, total: int, workers: Mapping[str, str]) -> None:
        """A line for each quarter."""
        quarter = 4 * done // total
        if quarter > self._told:
            self._told = quarter
            each = ", ".join(f"{name}: {what}" for name, what in workers.items())
            self.say(f"{done} of {total} files done ({each})")


class Bar:
    """A bar that moves.

    Args:
        bar: started.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("files", total=None, workers="")

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(escape(printable(text)), highlight=False)

    def progress(self, done: int, total: int, workers: Mapping[str, str]) -> None:
        """The bar, with the workers behind it."""
        each = "  ".join(f"{name}: {what}" for name, what in workers.items())
        self._bar.update(self._task, completed=done, total=total, workers=each)


@contextmanager
def screen(*, as_json: bool) -> Iterator[Screen]:
    """A bar for a terminal; lines elsewhere, and on stderr if stdout is for a document."""
    if as_json or not sys.stdout.isatty():
        yield PlainScreen(sys.stderr if as_json else sys.stdout)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[workers]}"),
    )
    with Progress(*columns, console=Console()) as bar:
        yield Bar(bar)
