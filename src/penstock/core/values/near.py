"""Guess the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["MISSPELLED", "did_you_mean", "nearest"]

MISSPELLED = 0.8
"""Likeness of two names, up to 1, from which one is probably the other one misspelled."""


def nearest(name: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the name that is most like this one; None = none is like it."""
    near = get_close_matches(name, [*names], 1, likeness)
    return near[0] if near else None


def did_you_mean(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return ` (did you mean 'emails'?)`, or nothing, for the text of an error."""
    near = nearest(name, names, likeness)
    return "" if near is None else f" (did you mean {near!r}?)"
