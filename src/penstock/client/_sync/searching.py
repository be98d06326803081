# From src/penstock/client/_async/searching.py by tools/unasync.py; do not edit.
"""A search among the jobs of a queue: an iterator, pages, and counts of errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.client._sync.route.interfaces import Routed
from penstock.client._sync.route.part import Part
from penstock.core.jobs.searching import Search
from penstock.core.jobs.views import JobView, ScanPage
from penstock.core.values.checks import check_count, check_flag
from penstock.core.values.methods import name_methods
from penstock.errors import WrongEpoch

if TYPE_CHECKING:
    from penstock.core.jobs.error_groups import ErrorGroups

__all__ = ["JobSearch", "show_each"]

SHOWN_PER_CALL = 100


@name_methods("JobSearch")
class JobSearch:
    """Jobs of a queue, made by `Queue.jobs`: iterate over them, or read page after page.

    Each iteration begins anew. It skips nodes that can't be reached; `page` names them.

        for view in queue.jobs("dead", handler="resize"):
            print(view.id, view.error)

    Args:
        queue: the queue.
        search: what a job must match.
        n: number of jobs to look at in a step.
    """

    def __init__(self, queue: Routed, search: Search, n: int) -> None:
        self._queue, self._search, self._n = queue, search, n

    def __repr__(self) -> str:
        states = ", ".join(self._search.states) or "all"
        return f"<{type(self).__name__} of {states} jobs in {self._queue.name!r}>"

    def __iter__(self) -> Iterator[JobView]:
        page = self.page()
        while True:
            for view in page.jobs:
                yield view
            if page.cursor == "0":
                return
            page = self.page(page.cursor)

    def page(self, cursor: str = "0", *, full: bool = True) -> ScanPage:
        """Return the next page of jobs. Its work is bounded by `n` of the search.

        Args:
            cursor: "0" to begin, then the cursor of the last page, until it is "0" again. A page
                with few or no jobs may not be the last.
            full: False = return only ids.

        Returns:
            The page. With several nodes they are read one after another, and `unreachable` names
            those that were skipped.

        Raises:
            BadArgument: not a cursor of this search; nothing was sent.
        """
        check_flag("full", full)
        route = self._queue.route.refresh()
        return route.read_page(
            cursor, self._search.check_cursor, lambda part, at: self._read(part, at, full=full)
        )

    def _read(self, part: Part, cursor: str, *, full: bool) -> ScanPage:
        search = self._search if full else replace(self._search, body=0)
        by_batch = search.batch is not None
        if search.in_order:
            page = part.find(search, cursor, self._n)
        else:
            is_read = not by_batch and (full or search.is_filtered)
            page = part.scan(cursor, self._n, search.states, full=is_read)
            page = replace(page, looked=len(page.ids))
            if not full and not search.is_filtered:
                return page
        unread = page.ids if by_batch else [view.id for view in page.jobs if search.is_cut(view)]
        views: dict[str, JobView | None] = {view.id: view for view in page.jobs}
        if search.suspended:  # steps are told of one job at a time
            for job_id in page.ids:
                views |= _show_if_there(part, [job_id])
        else:
            views |= _show_if_there(part, unread)
        jobs = [search.cut(view) for view in views.values() if view and search.matches_shown(view)]
        return replace(page, ids=[view.id for view in jobs], jobs=jobs if full else [])

    def error_groups(self, *, limit: int | None = None) -> ErrorGroups:
        """Count the jobs by handler and error, page by page.

        Errors that differ only in numbers, ids and quoted parts are one group.

        Args:
            limit: the number of jobs after which to stop, to the end of a page; None = count all.

        Examples:
            >>> for path in ("a.png", "b.png"):
            ...     added = q.enqueue(path)
            ...     outcomes = q.bury(q.reserve(), f"no file '{path}'")
            >>> groups = (q.jobs("dead").error_groups()).groups
            >>> [(group.jobs, group.error) for group in groups]
            [(2, "no file '…'")]
            >>> [view.error for view in q.jobs("dead", group=groups[0].id, newest=True)]
            ["no file 'b.png'", "no file 'a.png'"]
        """
        from penstock.core.jobs.error_groups import ErrorCounter

        most = None if limit is None else check_count("limit", limit)
        counter = ErrorCounter()
        search = JobSearch(self._queue, replace(self._search, body=0), self._n)
        while not counter.is_complete and (most is None or counter.looked < most):
            counter.add(search.page(counter.cursor))
        return counter.result


def _show_if_there(part: Part, ids: list[str]) -> dict[str, JobView | None]:
    try:
        return show_each(part, ids)
    except WrongEpoch:  # the queue was deleted meanwhile
        return dict.fromkeys(ids)


def show_each(part: Part, ids: list[str]) -> dict[str, JobView | None]:
    """Return all data of jobs of a part by their ids, read in steps; None = a job is gone."""
    view_of, start = dict[str, JobView | None](), 0
    while start < len(ids):
        step = ids[start : start + SHOWN_PER_CALL]
        views = part.show([*step])
        view_of |= zip(step, views, strict=False)  # a reply may have fewer
        start += len(views)
    return view_of
