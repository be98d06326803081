"""The screen of the demo while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from penstock.core.jobs.logs import printable

__all__ = ["Screen", "screen"]


class Screen:
    """Shows a run: a bar with lines above it, or lines alone if the bar is disabled.

    Args:
        bar: has a column for `note`.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("files", start=False, total=None, note="")
        self._quarters = 0

    def say(self, text: str) -> None:
        """Print a line."""
        self._bar.console.print(Text(printable(text)), soft_wrap=True)

    def note(self, text: str) -> None:
        """Show beside the bar what the run does."""
        self._bar.update(self._task, note=text)

    def start(self) -> None:
        """Start the clock of the bar."""
        self._bar.start_task(self._task)

    def progress(self, done: int, total: int, workers: Mapping[str, str]) -> None:
        """Show how many files are done, and the state of each worker; as lines in quarters."""
        each = ", ".join(f"{name}: {state}" for name, state in workers.items())
        self._bar.update(self._task, completed=done, total=total, note=each)
        quarters = 4 * done // total
        if self._bar.disable and quarters > self._quarters:
            self._quarters = quarters
            self.say(f"{done} of {total} files done ({each})")


@contextmanager
def screen(*, as_json: bool) -> Iterator[Screen]:
    """Show a bar on a terminal; print lines elsewhere, to stderr if stdout is for a document."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    disable = as_json or not sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=as_json), disable=disable) as bar:
        yield Screen(bar)
