"""Searches among the jobs of a queue: the parts of a state, cursors, and what a job must match."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.record import key_hash
from penstock.core.jobs.views import JobView
from penstock.core.values.checks import StateName
from penstock.errors import BadArgument

__all__ = ["Search"]

INDEXES_OF_STATE: dict[str, tuple[str, ...]] = {
    "ready": ("ended", "due", "ready"),
    "scheduled": ("scheduled",),
    "parked": ("parked",),
    "active": ("active", "once"),
    "dead": ("dead",),
}
"""The parts of each state, in the order in which a search passes them."""
SEARCH_CURSOR = r"([a-z]+):((?:-?[0-9]{1,16} )?[0-9]{1,16}-[0-9]{10}|)"
"""A part, and a place in it: score and number, in the stream only a number; empty = its start."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search among the jobs of one state.

    Attributes:
        state: their state.
        handler: only jobs of this handler.
        error: only jobs whose last error contains this text, in any case of its letters.
        key: only jobs with the hash of this key.
        newest: whether it goes from the end to the beginning.
        body: the most bytes to read of each body.
    """

    state: StateName
    handler: str | None
    error: str | None
    key: str | None
    newest: bool
    body: int

    def matches(self, job: JobView) -> bool:
        """Return True if a job is one of those searched for."""
        if self.handler is not None and job.headers.get(HANDLER) != self.handler:
            return False
        if self.key is not None and job.key_hash != key_hash(self.key):
            return False
        return self.error is None or self.error.casefold() in job.error.casefold()

    def check_cursor(self, cursor: str) -> tuple[str, str]:
        """Return the part with which a search goes on, and the place behind which.

        Raises:
            BadArgument: not the cursor of a page of this state.
        """
        if cursor == "0":
            return self._parts()[0], ""
        found = re.fullmatch(SEARCH_CURSOR, cursor)
        if found is None or found.group(1) not in self._parts():
            reason = f'must be the cursor of a page of {self.state} jobs, or "0" to begin'
            raise BadArgument("cursor", cursor, reason)
        return found.group(1), found.group(2)

    def next_cursor(self, part: str, place: str) -> str:
        """Return the cursor behind a page of a part; an empty place ends the part."""
        if place:
            return f"{part}:{place}"
        behind = self._parts()[self._parts().index(part) + 1 :]
        return f"{behind[0]}:" if behind else "0"

    def _parts(self) -> tuple[str, ...]:
        parts = INDEXES_OF_STATE[self.state]
        return parts[::-1] if self.newest else parts
