"""Filters and lists that a client's caller gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.core.calls.config import queue_filter


def test_the_bounds_of_a_filter_belong_to_it() -> None:
    """A queue whose figure equals a bound is wanted; an idle time that is unknown is none."""
    is_wanted = queue_filter(2, 4, 1.5)
    for ready, idle, wanted in (
        (1, 1.0, False),
        (2, 1.5, True),
        (4, None, True),
        (5, 1.0, False),
        (3, 1.501, False),
    ):
        stats: Any = SimpleNamespace(ready=ready, idle=idle)
        assert is_wanted(stats) == wanted
    assert queue_filter(None, None, None)(stats)
    assert queue_filter(None, None, 0)(SimpleNamespace(ready=0, idle=0.0))  # type: ignore[arg-type]  # a part of it
