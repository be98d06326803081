# From src/penstock/client/_async/nodes/scanning.py by tools/unasync.py; do not edit.
"""Pages of a scan that passes several nodes, or several parts of a queue, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Generic, TypeVar

from penstock.client._sync.nodes.node import Node
from penstock.core.jobs.queue_stats import QueuePage
from penstock.core.jobs.views import ScanPage

__all__ = ["ScannedPlace", "read_next_page"]

N = TypeVar("N", bound=Node)
Page = TypeVar("Page", ScanPage, QueuePage)


@dataclass(frozen=True, slots=True)
class ScannedPlace(Generic[N, Page]):
    """A place that a scan passes.

    Attributes:
        key: orders the places, and names this one in cursors.
        node: its node.
        read: returns the page behind a cursor of the place; None = the node can't be reached.
    """

    key: str
    node: N
    read: Callable[[str], Page | None]


def read_next_page(
    cursor: tuple[str, str], places: Iterable[ScannedPlace[N, Page]], empty: Page
) -> tuple[N | None, Page]:
    """Return the next page of a scan, and the node that it comes from.

    Args:
        cursor: the place with which to go on, and the cursor in it: see `split_cursor`.
        places: the places.
        empty: the page when no place is left.
    """
    key, inner = cursor
    missed = [place.node.address for place in places if not place.node.id]
    met = sorted((place for place in places if place.node.id), key=attrgetter("key"))
    left = [place for place in met if place.key >= key]
    for at, place in enumerate(left):
        page = place.read(inner if place.key == key else "0")
        if page is None:
            missed.append(place.node.address)
            continue
        behind = [f"{other.key}:0" for other in left[at + 1 : at + 2]]
        is_over = page.cursor == "0"
        after = (behind[0] if behind else "0") if is_over else f"{place.key}:{page.cursor}"
        return place.node, replace(page, cursor=after, unreachable=tuple(missed))
    return None, replace(empty, unreachable=tuple(missed))
