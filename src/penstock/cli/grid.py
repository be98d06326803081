"""Tables in lines of text. With rich (extra `cli`) they fit the terminal, and have colours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TextIO

__all__ = ["Medium", "grid"]

UNCUT_COLUMNS = ("id", "sha1", "example", "created", "due", "lease_until", "died", "job")
"""Columns that are never wrapped: ids can be copied, and times be compared."""
MIN_COLUMN_WIDTH = 8
"""Cells that a wrapped column has at least."""
COLUMN_GAP = "  "
RULE_BOX = "    \n    \n ── \n    \n    \n    \n    \n    \n"
"""Borders for rich: a line below the headings."""
COLOUR_OF_WORD = {
    "ready": "green", "active": "cyan", "scheduled": "blue", "dead": "red", "error": "red",
    "broken": "red", "warning": "yellow", "healthy": "green",
}  # fmt: skip
"""The colour of a cell that is one of these words, and of a column with this heading."""


@dataclass(frozen=True)
class Medium:
    """The place where a table is shown.

    Attributes:
        width: cells of a line; None = no limit: a pipe.
        colours: whether it shows colours.
    """

    width: int | None = None
    colours: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Medium:
        """Return the medium of a stream. NO_COLOR and TERM=dumb switch colours off."""
        if not stream.isatty():
            return cls()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(shutil.get_terminal_size().columns, not plain)


def grid(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
    cut: Mapping[str, int] = {},
    medium: Medium,
) -> list[str]:
    """Return the lines of a table.

    Args:
        columns: the headings; _ is printed as a space.
        rows: printable cells, one for each column.
        right: headings of the columns of numbers.
        spare: headings of columns that a narrow terminal leaves out, the first one first.
        cut: columns of one line on a terminal, with the cells that they have at most.
        medium: the place where it is shown.
    """
    if medium.width is not None and find_spec("rich") is not None:
        return _fitted(columns, rows, right, spare, cut, medium)
    heads = [name.replace("_", " ") for name in columns]
    widths = [max(map(len, cells)) for cells in zip(heads, *rows, strict=True)]
    lines = [
        COLUMN_GAP.join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in (heads, *rows)
    ]
    return [lines[0], "─" * (sum(widths) + len(COLUMN_GAP) * (len(widths) - 1)), *lines[1:]]


def _fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str],
    spare: Sequence[str],
    cut: Mapping[str, int],
    medium: Medium,
) -> list[str]:
    """Return the lines of a table that fits the width of a terminal: cells are wrapped."""
    from rich.box import Box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    most = medium.width or 80
    widths = [
        min(max(map(cell_len, cells)), cut.get(cells[0], most))
        for cells in zip(columns, *rows, strict=True)
    ]
    chosen = [at for at in range(len(columns)) if not rows or any(row[at] for row in rows)]
    for name in spare:
        if sum(widths[at] + len(COLUMN_GAP) for at in chosen) - len(COLUMN_GAP) <= most:
            break
        chosen = [at for at in chosen if columns[at] != name]
    table = Table(box=Box(RULE_BOX), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.border_style = "dim"
    for at in chosen:
        name = columns[at]
        is_whole, is_number, is_cut = name in UNCUT_COLUMNS, name in right, name in cut
        table.add_column(
            Text(columns[at].replace("_", " "), "bold"),
            justify="right" if is_number else "left",
            overflow="ellipsis" if is_cut else "fold",
            no_wrap=is_whole or is_cut,
            max_width=cut.get(name),
            min_width=widths[at] if is_whole else min(widths[at], MIN_COLUMN_WIDTH),
        )
    for row in rows:
        table.add_row(*(Text(row[at], _colour(columns[at], row[at])) for at in chosen))
    console = Console(width=most, color_system="standard" if medium.colours else None)
    with console.capture() as captured:
        console.print(table, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def _colour(name: str, cell: str) -> str:
    colour = COLOUR_OF_WORD.get(cell if name in ("", "state") else name, "")
    return "" if cell == "0" else colour
