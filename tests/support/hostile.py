"""Texts that try to control a terminal, or to look like several lines."""

from __future__ import annotations

import hypothesis.strategies as st

__all__ = ["HOSTILE", "is_harmless"]

PIECES = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\r\n",
    "\nERROR forged",
    "\x00",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u200f",
    "\u061c",
    "\u2028",
    "\udcff",
    "%s%n",
    "\\x1b",
    '"',
    "'",
    "[red]",
    "name",
    "é",
    "日本",
]

HOSTILE = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text(st.characters(codec=None), max_size=20),
)
"""Sequences that terminals obey, mixed with harmless text; and any text at all."""


def is_harmless(line: str) -> bool:
    """Tell if a terminal only shows these characters."""
    return line.isprintable()
