"""The schedules that a worker has stored, and how it finds those that its server has lost.

A server loses schedules when it restarts empty, by `clear`, or in a failover. Then the worker
stores them again. It does not bring back a schedule that a client has removed: `unschedule` counts
in `meta`, and what a server loses counts nowhere (protocol/schedules.md, Storing).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.operations.scheduling import ListedSchedules
from penstock.core.schedules import NewSchedule

__all__ = ["DeclaredSchedules", "Missing"]


class Missing(NamedTuple):
    """Schedules that a check of all entries has not found.

    Attributes:
        lost: those that the server has lost.
        removed: those that another client has removed.
    """

    lost: list[NewSchedule]
    removed: list[NewSchedule]


@dataclass(slots=True)
class DeclaredSchedules:
    """The schedules that handlers declare for one queue, on one node.

    Attributes:
        by_name: all of them.
        stored: the names of those that lie on this node with the value of this worker, as far as it
            knows.
        epoch: that of the queue when the last check began.
        unscheduled: the number of removals then.
        seen: the names that the present check has found, with the hashes of their values.
        began: the epoch and the number of removals when it began.
    """

    by_name: dict[str, NewSchedule]
    stored: set[str] = field(default_factory=set)
    epoch: bytes = b""
    unscheduled: int = 0
    seen: dict[str, str] = field(default_factory=dict)
    began: tuple[bytes, int] = (b"", 0)

    @classmethod
    def of(cls, own: Iterable[NewSchedule]) -> DeclaredSchedules:
        """Return those that are not stored yet."""
        return cls({new.name: new for new in own})

    def is_of_other_queue(self, epoch: bytes) -> bool:
        """Return True if the queue was deleted, or created again, since some were stored."""
        return bool(self.stored) and epoch != self.epoch

    def see(self, listed: ListedSchedules, *, is_first: bool) -> None:
        """Note the entries of a page."""
        if is_first:
            self.seen, self.began = {}, (listed.epoch, listed.unscheduled)
        self.seen.update((entry.name, entry.value_hash) for entry in listed.entries)
        self.seen.update(dict.fromkeys(listed.unread, ""))

    def end_check(self, listed: ListedSchedules) -> Missing:
        """Return the stored schedules that no page had.

        One that has another value is not among them: another version of the program has replaced
        it, and stores it again if need be.

        Args:
            listed: the last page.
        """
        gone = self.stored - self.seen.keys()
        missing = [new for name, new in self.by_name.items() if name in gone]
        was_removed = listed.epoch == self.epoch and listed.unscheduled > self.unscheduled
        self.epoch, self.unscheduled = self.began
        self.stored = {
            name for name, new in self.by_name.items() if self.seen.get(name) == new.value_hash
        }
        return Missing([], missing) if was_removed else Missing(missing, [])
