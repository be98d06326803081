"""Searches among the jobs of a queue: cursors, and what a job must match."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.record import key_hash
from penstock.core.jobs.views import JobView
from penstock.core.values.checks import (
    JOB_CURSOR,
    Duration,
    StateName,
    check_count,
    check_cursor,
    check_flag,
    check_label,
    duration_ms,
)
from penstock.core.values.ids import is_job_id
from penstock.errors import BadArgument, BadJobId

__all__ = ["Search", "check_search"]

INDEXES_OF_STATE: dict[str, tuple[str, ...]] = {
    "ready": ("ended", "due", "ready"),
    "scheduled": ("scheduled",),
    "parked": ("parked",),
    "active": ("active", "once"),
    "dead": ("dead",),
}
"""The parts of each state, in the order in which a search passes them."""
LONGEST_LISTED_BODY = 1000
"""Bytes. Of a large body a page in order has nothing."""
SEARCH_CURSOR = r"([a-z]+):((?:-?[0-9]{1,16} )?[0-9]{1,16}-[0-9]{10}|)"
"""A part, and a place in it: score and number, in the stream only a number; empty = its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search among the jobs of a queue.

    Attributes:
        states: their states; empty = all.
        in_order: whether it passes the jobs of one state in order.
        handler: only jobs of this handler; "" = jobs without one.
        group: only jobs of the group of errors with this id.
        error: only jobs whose last error contains this text, in any case of its letters.
        text: only jobs that contain this text, in any case of its letters.
        key: only jobs with the hash of this key.
        batch: only jobs of the batch with this id.
        older_than: only jobs that were enqueued more than so many seconds ago.
        suspended: whether only jobs whose step waits are searched for.
        newest: whether it goes from the end to the beginning.
        body: the most bytes of each body; None = all.
    """

    states: tuple[StateName, ...] = ()
    in_order: bool = False
    handler: str | None = None
    error: str | None = None
    text: str | None = None
    group: str | None = None
    key: str | None = None
    batch: str | None = None
    older_than: float | None = None
    suspended: bool = False
    newest: bool = False
    body: int | None = None

    @property
    def is_filtered(self) -> bool:
        """Return True if the search needs more of a job than its state."""
        chosen = (self.handler, self.error, self.text, self.group, self.key, self.batch)
        return self.suspended or any(one is not None for one in (*chosen, self.older_than))

    @property
    def listed_bytes(self) -> int:
        """Return the most bytes of each body that a page in order has."""
        return LONGEST_LISTED_BODY if self.body is None or self.text is not None else self.body

    def is_cut(self, job: JobView) -> bool:
        """Return True if a whole body is wanted, and a page in order may have only a part of it."""
        is_whole = not self.in_order or 0 < len(job.raw) < LONGEST_LISTED_BODY
        return (self.body is None or self.text is not None) and not is_whole

    def cut(self, job: JobView) -> JobView:
        """Return a job with the part of its body that the search asks for."""
        return job if self.body is None else replace(job, raw=job.raw[: self.body])

    def matches_shown(self, job: JobView) -> bool:
        """Return True if a job is one of those searched for, with all that a search can know."""
        if self.states and job.state not in self.states:
            return False  # it has changed its state meanwhile
        if self.suspended and not job.is_suspended:
            return False
        return self.batch in (None, job.batch) and self.matches(job) and self._has_text(job)

    def matches(self, job: JobView) -> bool:
        """Return True if a job is one of those searched for, as far as a page tells."""
        if self.handler is not None and job.headers.get(HANDLER, "") != self.handler:
            return False
        if self.key is not None and job.key_hash != key_hash(self.key):
            return False
        if self.older_than is not None and job.age <= self.older_than:
            return False
        if self.error is not None and self.error.casefold() not in job.error.casefold():
            return False
        if not self.is_cut(job) and not self._has_text(job):
            return False
        if self.group is None:
            return True
        from penstock.core.jobs.error_groups import group_id

        return group_id(job) == self.group

    def _has_text(self, job: JobView) -> bool:
        if self.text is None:
            return True
        folded, body = self.text.casefold(), job.raw.decode("utf-8", "replace")
        texts = (job.dedup_id or "", *job.headers.values(), job.error, body)
        return any(folded in text.casefold() for text in texts)

    def check_cursor(self, cursor: object) -> tuple[str, str]:
        """Return the part with which a search goes on, and the place behind which.

        Raises:
            BadArgument: not the cursor of a page of this search.
        """
        if not self.in_order:
            return "", check_cursor("cursor", cursor, JOB_CURSOR)
        if cursor == "0":
            return self._parts()[0], ""
        match = re.fullmatch(SEARCH_CURSOR, cursor) if isinstance(cursor, str) else None
        if match is None or match.group(1) not in self._parts():
            reason = f'must be the cursor of a page of {self.states[0]} jobs, or "0" to begin'
            raise BadArgument("cursor", cursor, reason)
        return match.group(1), match.group(2)

    def next_cursor(self, part: str, place: str) -> str:
        """Return the cursor behind a page of a part; an empty place ends the part."""
        if place:
            return f"{part}:{place}"
        behind = self._parts()[self._parts().index(part) + 1 :]
        return f"{behind[0]}:" if behind else "0"

    def _parts(self) -> tuple[str, ...]:
        parts = INDEXES_OF_STATE[self.states[0]]
        return parts[::-1] if self.newest else parts


def check_search(
    *,
    state: object = None,
    handler: object = None,
    error: object = None,
    text: object = None,
    group: object = None,
    key: str | None = None,
    batch: str | None = None,
    older_than: Duration | None = None,
    suspended: bool = False,
    newest: bool = False,
    body: int | None = None,
) -> Search:
    """Return a search; see `AsyncQueue.jobs` for the arguments.

    Raises:
        BadArgument: one of them can't be used.
    """
    if check_flag("suspended", suspended):
        if state not in (None, "scheduled"):
            raise BadArgument("state", state, "a suspended job is scheduled: omit it")
        state = "scheduled"
    in_order = isinstance(state, str)
    states = _check_states(state)
    if check_flag("newest", newest) and not in_order:
        raise BadArgument("newest", newest, "needs one state: jobs of several have no order")
    if batch is not None and not is_job_id(batch):
        raise BadJobId("batch", batch, "must be the id of a batch")
    return Search(
        states=states,
        in_order=in_order,
        handler=_check_text("handler", handler),
        error=_check_text("error", error),
        text=_check_text("text", text),
        group=_check_text("group", group),
        key=None if key is None else check_label("key", key),
        batch=batch,
        older_than=None if older_than is None else duration_ms("older_than", older_than) / 1000,
        suspended=suspended,
        newest=newest,
        body=None if body is None else check_count("body", body, low=0, high=LONGEST_LISTED_BODY),
    )


def _check_states(values: Any) -> tuple[StateName, ...]:
    """Return the states, each once; empty = all.

    Raises:
        BadArgument: not a collection of ready, scheduled, parked, active, dead.
    """
    if values is None:
        return ()
    names = get_args(StateName)
    listed: Any = [values] if isinstance(values, str) else values
    is_many = isinstance(listed, Iterable) and not isinstance(listed, bytes)
    states: list[StateName] = list(listed) if is_many else []
    if not states or any(value not in names for value in states):
        raise BadArgument("state", values, f"must be one or more of {', '.join(names)}")
    return tuple(dict.fromkeys(states))


def _check_text(argument: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadArgument(argument, value, "must be a str")
    return value
