"""Search among the jobs of a queue."""

from __future__ import annotations

from penstock.client._async.admin import AsyncQueueAdmin
from penstock.core.jobs.views import ScanPage
from penstock.core.values.checks import (
    BATCH,
    StateName,
    check_choice,
    check_count,
    check_flag,
    check_label,
)
from penstock.errors import BadArgument

__all__ = ["AsyncQueueSearch"]


class AsyncQueueSearch(AsyncQueueAdmin):
    """The methods of a queue that look for jobs."""

    async def find(
        self,
        state: StateName,
        cursor: str = "0",
        n: int = 100,
        *,
        handler: str | None = None,
        error: str | None = None,
        key: str | None = None,
        newest: bool = False,
        body: int = 0,
    ) -> ScanPage:
        """Return the next page of jobs of a state, in order. Nothing changes on the server.

        Ready jobs: first those with an ended lease, then those that have become due, then the
        others. Scheduled ones by due time, parked ones by key, active ones by end of lease, dead
        ones by death. A queue of several parts is read part after part.

        A job that is removed meanwhile, or changes its place, does not disturb the search. A job
        that comes to a place behind the cursor is found, too.

        Args:
            state: ready, scheduled, parked, active or dead.
            cursor: "0" to begin, then the cursor of the last page, until it is "0" again.
            n: the most jobs to look at, up to 1000. A page with few or no jobs may not be the last.
            handler: only jobs of the handler of this name.
            error: only jobs whose last error contains this text, in any case of its letters.
            key: only jobs of this key.
            newest: go backwards from the end.
            body: the most bytes to read of each body, up to 1000, into `raw`; a large body (more
                than 4096 bytes) may be left out.

        Raises:
            BadArgument: an argument can't be used; nothing was sent.
        """
        from penstock.core.jobs.searching import Search

        search = Search(
            check_choice("state", state, StateName),
            _text("handler", handler),
            _text("error", error),
            None if key is None else check_label("key", key),
            check_flag("newest", newest),
            check_count("body", body, low=0, high=1000),
        )
        begin, most = _text("cursor", cursor) or "0", check_count("n", n, high=BATCH)
        return await (await self.route.refresh()).read_page(
            begin, search.check_cursor, lambda part, at: part.find(search, at, most)
        )


def _text(argument: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadArgument(argument, value, "must be a str")
    return value
