"""Searches among the jobs of a queue, without a server."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.jobs.searching import INDEXES_OF_STATE, LONGEST_LISTED_BODY, Search
from penstock.errors import BadArgument


def test_bytes_of_bodies_in_a_page() -> None:
    """A page in order has as much of each body as the search asks for, or a part of it."""
    for body, listed in ((None, LONGEST_LISTED_BODY), (0, 0), (7, 7)):
        assert Search(body=body).listed_bytes == listed


def test_bodies_that_a_page_has_cut() -> None:
    """Only a page in order cuts bodies; an empty one may be a large one that was left out."""
    for length, is_suspicious in (
        (0, True),
        (1, False),
        (LONGEST_LISTED_BODY - 1, False),
        (LONGEST_LISTED_BODY, True),
    ):
        job: Any = SimpleNamespace(raw=bytes(length))
        assert Search(in_order=True).is_cut(job) == is_suspicious
        assert not Search().is_cut(job)
        assert not Search(in_order=True, body=LONGEST_LISTED_BODY).is_cut(job)


def test_the_cursors_of_a_search_in_order() -> None:
    """They pass the parts of a state one by one; a cursor of another search is refused."""
    first, second = INDEXES_OF_STATE["active"]
    search = Search(states=("active",), in_order=True)
    assert search.check_cursor("0") == (first, "")
    assert search.check_cursor(f"{second}:7 1-1000000000") == (second, "7 1-1000000000")
    assert search.next_cursor(first, "7 1-1000000000") == f"{first}:7 1-1000000000"
    assert search.next_cursor(first, "") == f"{second}:"
    assert search.next_cursor(second, "") == "0"
    newest = replace(search, newest=True)
    assert newest.check_cursor("0") == (second, "")
    assert newest.next_cursor(first, "") == "0"
    for wrong in ("dead:7 1-1000000000", "active", "7", 0, None):
        with pytest.raises(BadArgument, match="a page of active jobs"):
            search.check_cursor(wrong)
    assert Search().check_cursor("h7") == ("", "h7")
