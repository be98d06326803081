"""The schedules that a worker has stored, and how it finds those that its server has lost.

A server loses schedules when it restarts empty, by `clear`, or in a failover. Then the worker
stores them again. It does not bring back a schedule that a client has removed: `schedules.remove`
counts in `meta`, and what a server loses counts nowhere (protocol/schedules.md, Storing).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.calls.operations.scheduling import ListedSchedules
from penstock.core.enqueuing.schedules import NewSchedule

__all__ = ["DeclaredSchedules", "Missing"]


class Mark(NamedTuple):
    """The state of a queue when a check of its schedules began.

    Attributes:
        epoch: of the queue.
        unscheduled: how many schedules clients had removed.
    """

    epoch: bytes = b""
    unscheduled: int = 0


class Missing(NamedTuple):
    """Stored schedules that a check has not found with their values.

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
        stored: names of those that this node had, with the value of this worker, when they were
            stored or last checked.
        older: by name, hashes of the values that this worker's value has replaced, as far as known.
        found: the declared schedules that the current check has found: the hash of the value, and
            those of replaced values; empty = the entry can't be read.
        last_check: the queue at the begin of the last check.
        current_check: the queue at the begin of the current check.
    """

    by_name: dict[str, NewSchedule]
    stored: set[str] = field(default_factory=set)
    older: dict[str, tuple[str, ...]] = field(default_factory=dict)
    found: dict[str, tuple[str, ...]] = field(default_factory=dict)
    last_check: Mark = field(default_factory=Mark)
    current_check: Mark = field(default_factory=Mark)

    def has_new_epoch(self, listed: ListedSchedules) -> bool:
        """Return True if the queue was deleted or created again since schedules were stored."""
        return bool(self.stored) and listed.epoch != self.last_check.epoch

    def has_removals(self, listed: ListedSchedules) -> bool:
        """Return True if a client has removed schedules of the queue since the last check."""
        return bool(self.stored) and listed.unscheduled > self.last_check.unscheduled

    def add_page(self, listed: ListedSchedules, *, is_first: bool) -> None:
        """Note the entries of a page of the current check."""
        if is_first:
            self.found, self.current_check = {}, Mark(listed.epoch, listed.unscheduled)
        for entry in listed.entries:
            if entry.name in self.by_name:
                self.found[entry.name] = (entry.value_hash, *entry.replaced_hashes)
        self.found.update((name, ()) for name in listed.unread if name in self.by_name)

    def finish_check(self, listed: ListedSchedules) -> Missing:
        """Return the stored schedules that no page had.

        One with a value that this worker's value had replaced is lost as well: an older version of
        the program has stored it again. One with any other value is not missing.

        Args:
            listed: the last page.
        """
        was_removed = listed.epoch == self.last_check.epoch and self.has_removals(listed)
        missing, stored = Missing(lost=[], removed=[]), self.stored
        self.stored, self.last_check = set(), self.current_check
        for name, new in self.by_name.items():
            value_hash, *replaced = self.found.get(name) or ("",)
            if value_hash == new.value_hash:
                self.older[name] = tuple(replaced)
                self.stored.add(name)
            elif name in stored and name not in self.found:
                (missing.removed if was_removed else missing.lost).append(new)
            elif (
                name in stored
                and value_hash in self.older.get(name, ())
                and new.value_hash not in replaced
            ):
                missing.lost.append(new)
        return missing
