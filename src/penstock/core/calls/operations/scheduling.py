"""The calls about schedules: store them, read them, run their ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from penstock.core.calls.call import Call, RawReply
from penstock.core.calls.operations.base import Operations
from penstock.wire import replies
from penstock.wire.codes import Code
from penstock.wire.packing import words
from penstock.wire.replies import Parser

if TYPE_CHECKING:
    from penstock.core.enqueuing.schedules import NewSchedule, StoredSchedule

__all__ = ["ListedSchedules", "Scheduling"]


class ListedSchedules(NamedTuple):
    """Schedules that were read.

    Attributes:
        now_ms: the server's time.
        next_ms: ms until the next tick that is not among them; -1 = there is none.
        epoch: of the queue; empty = there is no queue.
        cursor: of the next page; "0" = there is none.
        unscheduled: how many schedules were removed on purpose since the queue was created.
        entries: the schedules.
        unread: by name, why an entry could not be read.
    """

    now_ms: int
    next_ms: int
    epoch: bytes
    cursor: str
    unscheduled: int
    entries: list[StoredSchedule]
    unread: dict[str, str]


class Scheduling(Operations):
    """The operations on schedules."""

    def schedule(
        self, new: NewSchedule, next_ms: int, *, force: bool = False, create: str = ""
    ) -> Call[replies.Schedule]:
        """Create a schedule, or replace its value."""
        flag, app = "1" if force else "", quote(new.app, safe="")
        begin = (create, new.name, next_ms, new.value_hash, flag)
        return self.call("schedule", *begin, new.value, app)

    def keep_schedules(self, names: Sequence[str]) -> Call[replies.Bury]:
        """Note that a worker declares these schedules."""
        return self.call("keep_schedules", *names)

    def orphan_schedules(self, app: str, idle_ms: int, names: Sequence[str]) -> Call[replies.Bury]:
        """Let these schedules of an app wait if no worker has declared them for so long."""
        return self.call("orphan_schedules", quote(app, safe=""), idle_ms, *names)

    def unschedule(self, name: str, *, is_duplicate: bool = False) -> Call[replies.Unschedule]:
        """Remove a schedule; a duplicate if another node keeps it."""
        return self.call("unschedule", name, "1" if is_duplicate else "")

    def pause_schedule(self, name: str) -> Call[replies.PauseSchedule]:
        """Pause a schedule."""
        return self.call("pause_schedule", name, "")

    def resume_schedule(self, name: str, next_ms: int) -> Call[replies.PauseSchedule]:
        """Resume a schedule."""
        return self.call("pause_schedule", name, next_ms)

    def schedules(self, cursor: str = "", names: Sequence[str] = ()) -> Call[ListedSchedules]:
        """Read the schedules with these names, or a page of all."""
        return self.call_read_by("schedules", _listed, (cursor, *names))

    def near_schedules(self, span_ms: int) -> Call[ListedSchedules]:
        """Read the schedules with a tick within this time."""
        return self.schedules(f"+{span_ms}")

    def tick(self, entry: StoredSchedule, next_ms: int, what: str) -> Call[replies.Tick | None]:
        """Run or skip the tick of a schedule; the result is None if it was done before."""
        assert entry.tick is not None
        adds = what in ("run", "alone")
        record = entry.record_at(entry.tick) if adds else b""
        return self._tick(entry, entry.tick, next_ms, what, record)

    def trigger(self, entry: StoredSchedule, record: bytes) -> Call[replies.Tick | None]:
        """Add a job of a schedule now; None = the schedule was changed or removed meanwhile."""
        return self._tick(entry, "", "", "run", record)

    def _tick(
        self,
        entry: StoredSchedule,
        expected: int | str,
        next_ms: int | str,
        what: str,
        record: bytes,
    ) -> Call[replies.Tick | None]:
        begin = words((entry.name, entry.value_hash, expected, next_ms, what))
        return self.call_read_by("tick", _ticked, (*begin, self.producing, record))


def _ticked(parse: Parser[Any], raw: RawReply) -> replies.Tick | None:
    return None if raw[0] == Code.GONE else parse(raw)


def _listed(parse: Parser[replies.Schedules], raw: RawReply) -> ListedSchedules:
    from penstock.core.enqueuing.schedules import read_entry

    reply = parse(raw)
    entries: list[StoredSchedule] = []
    unread: dict[str, str] = {}
    for name, tick, entry in reply.schedules:
        try:
            entries.append(read_entry(name, tick, entry))
        except ValueError as error:  # noqa: PERF203  # of a newer penstock
            unread[name.decode("utf-8", "replace")] = str(error)
    cursor = reply.cursor.decode()
    return ListedSchedules(
        now_ms=reply.now,
        next_ms=reply.next,
        epoch=reply.epoch,
        cursor=cursor,
        unscheduled=reply.unscheduled,
        entries=entries,
        unread=unread,
    )
