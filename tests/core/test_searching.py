"""Searches among the jobs of a queue, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.core.jobs.searching import LONGEST_LISTED_BODY, Search


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
