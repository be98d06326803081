"""Tables in lines of text, as wide as the terminal, with colours if it has some."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

__all__ = ["Medium", "grid"]

WHOLE = ("id", "sha1", "example", "created", "due", "lease_until", "died", "job")
"""Columns that are never wrapped: ids can be copied, and times be compared."""
NARROWEST = 8
"""Cells that a wrapped column has at least."""
GAP = "  "
COLOURS = {
    "ready": 32, "active": 36, "scheduled": 34, "dead": 31, "error": 31, "broken": 31,
    "warning": 33, "healthy": 32,
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

    def painted(self, text: str, *codes: int) -> str:
        """Return a text in colours, if there are any."""
        if not (self.colours and codes and text.strip()):
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


def grid(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
    medium: Medium,
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        columns: the headings; _ is printed as a space.
        rows: printable cells, one for each column.
        right: headings of the columns of numbers.
        spare: headings of columns that a narrow terminal leaves out, the first one first.
        medium: the place where it is shown.
    """
    chosen = list(range(len(columns)))
    if medium.width is not None and rows:
        chosen = [at for at in chosen if any(row[at] for row in rows)]
    wanted = [_wanted(columns[at], [row[at] for row in rows]) for at in range(len(columns))]
    for name in spare:
        if medium.width is None or _total([wanted[at] for at in chosen]) <= medium.width:
            break
        chosen = [at for at in chosen if columns[at] != name]
    names = [columns[at] for at in chosen]
    widths = _fitted(names, [wanted[at] for at in chosen], medium.width)
    heads = [name.replace("_", " ") for name in names]
    yield from _lines(names, heads, widths, right, medium, head=True)
    yield medium.painted("─" * _total(widths), 2)
    for row in rows:
        yield from _lines(names, [row[at] for at in chosen], widths, right, medium)


def _wanted(name: str, cells: Sequence[str]) -> int:
    return max(map(width_of, [name, *cells]))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * max(0, len(widths) - 1)


def _fitted(names: Sequence[str], widths: Sequence[int], most: int | None) -> list[int]:
    """Return widths whose total is at most `most`, if wrapped columns can make it so."""
    fitted = list(widths)
    while most is not None and _total(fitted) > most:
        flexible = [
            at for at, name in enumerate(names) if name not in WHOLE and fitted[at] > NARROWEST
        ]
        if not flexible:
            break
        widest = max(flexible, key=fitted.__getitem__)
        fitted[widest] = max(NARROWEST, min(fitted[widest] - 1, most))
    return fitted


def _lines(
    names: Sequence[str],
    cells: Sequence[str],
    widths: Sequence[int],
    right: Sequence[str],
    medium: Medium,
    *,
    head: bool = False,
) -> Iterator[str]:
    """Yield the lines of one row: more than one if a cell is wrapped."""
    folded = [list(_folded(cell, width)) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*folded, fillvalue=""):
        line = []
        for name, cell, part, width in zip(names, cells, parts, widths, strict=True):
            blank = " " * (width - width_of(part))
            padded = blank + part if name in right else part + blank
            codes = (1,) if head else _codes(name, cell)
            line.append(medium.painted(padded, *codes))
        yield GAP.join(line).rstrip()


def _codes(name: str, cell: str) -> tuple[int, ...]:
    colour = COLOURS.get(cell) if name in ("", "state") else COLOURS.get(name)
    return () if colour is None or cell == "0" else (colour,)


def width_of(text: str) -> int:
    """Return how many cells of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _folded(text: str, width: int) -> Iterator[str]:
    """Yield parts of a text, each at most this wide: whole words if they are short enough."""
    while width_of(text) > width:
        end = taken = 0
        while taken + _cells(text[end]) <= max(2, width):
            taken += _cells(text[end])
            end += 1
        blank = text.rfind(" ", 1, end + 1)
        end = blank if blank > width // 2 else end
        yield text[:end].rstrip()
        text = text[end:].lstrip()
    yield text
