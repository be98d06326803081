# From src/penstock/client/_async/schedules.py by tools/unasync.py; do not edit.
"""Schedules of a queue: create, list, pause, run and remove them."""

from __future__ import annotations

import builtins
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.client._sync.admin import ask_all
from penstock.client._sync.looking import QueueLooking
from penstock.client._sync.route.part import Part
from penstock.core import flows
from penstock.core.calls.operations.scheduling import ListedSchedules
from penstock.core.jobs.enqueued import Enqueued
from penstock.core.jobs.record import stable_id_of
from penstock.core.values.checks import Missed, check_party
from penstock.core.values.methods import name_methods
from penstock.errors import BadArgument

if TYPE_CHECKING:
    from penstock.core.enqueuing.schedules import (
        ScheduleView,
        Spec,
        StoredSchedule,
    )

__all__ = ["QueueSchedules"]


@name_methods("QueueSchedules")
class QueueSchedules:
    """The schedules of a queue, as `queue.schedules`: periodic jobs, which its workers add."""

    def __init__(self, queue: QueueLooking) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue.name!r}>"

    def add(
        self,
        name: str,
        *,
        job: Any,
        cron: str | None = None,
        every: float | timedelta | str | None = None,
        tz: str | None = None,
        overlap: bool = False,
        missed: Missed = "one",
    ) -> bool:
        """Create a schedule, or replace the one of this name. Workers of the queue add its jobs.

        Args:
            name: 1 to 200 bytes of printable text.
            job: a job of a handler, `report.job("daily")`, or a body as in `enqueue`.
            cron: a cron expression: minute, hour, day, month and weekday, such as `0 3 * * *`. It
                needs `pip install 'penstock[cron]'`.
            every: seconds, a timedelta, or a text such as "15m" or "1h30m". Ticks are counted from
                1970 in UTC: "15m" runs at :00, :15, :30 and :45.
            tz: the time zone of `cron`; None = UTC.
            overlap: whether to add a job while the last one waits or is active. False = such a tick
                is skipped, and counted.
            missed: after an outage of more than a minute, "one" adds one job for all ticks that
                were missed, and "skip" none.

        Returns:
            False if the schedule was like this before.

        Raises:
            BadArgument: an argument can't be used, or this version was replaced by a later one: see
                `restore`. Nothing was written.
            NodesUnavailable: it is new, and one of several nodes can't be reached, which may have
                it.

        Examples:
            >>> q.schedules.add("report", job={"kind": "daily"}, every="1h")
            True
            >>> [(one.name, one.spec) for one in q.schedules.list()]
            [('report', 'every 1h')]
        """
        from penstock.core.enqueuing.schedules import check_spec

        spec = check_spec(cron, every, tz, overlap=overlap, missed=missed)
        return self._store(name, job, spec, force=False)

    def restore(
        self,
        name: str,
        *,
        job: Any,
        cron: str | None = None,
        every: float | timedelta | str | None = None,
        tz: str | None = None,
        overlap: bool = False,
        missed: Missed = "one",
    ) -> bool:
        """Store a schedule as `add`, also if it is one of the last 8 versions that were replaced.

        Args, returns, raises: as `add`.
        """
        from penstock.core.enqueuing.schedules import check_spec

        spec = check_spec(cron, every, tz, overlap=overlap, missed=missed)
        return self._store(name, job, spec, force=True)

    def change(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: float | timedelta | str | None = None,
        tz: str | None = None,
        overlap: bool | None = None,
        missed: Missed | None = None,
    ) -> bool:
        """Change when a schedule runs; its job and what is not given stay.

        A schedule that an app declares stays so: its workers leave it until their code declares it
        in another way.

        Args:
            name: its name.
            cron, every, tz, overlap, missed: as of `add`. A rule of the other kind replaces it.

        Returns:
            False if the schedule was like this before.

        Raises:
            BadArgument: an argument can't be used, or there is no such schedule.

        Examples:
            >>> q.schedules.add("report", job={"kind": "daily"}, every="1h")
            True
            >>> q.schedules.change("report", every="2h")
            True
            >>> [(one.name, one.spec) for one in q.schedules.list()]
            [('report', 'every 2h')]
        """
        from penstock.core.enqueuing.schedules import NewSchedule, changed_spec

        check_party("name", name)
        answers = ask_all(self._queue, lambda part: _read_entry(part, name))
        entry = next((entry for entry, _ in answers if entry is not None), None)
        if entry is None:
            raise _missing(name)
        spec = changed_spec(
            entry.spec, cron=cron, every=every, tz=tz, overlap=overlap, missed=missed
        )
        route = self._queue.route.refresh()
        new = NewSchedule(name, spec, record=entry.record, app=entry.app)
        return route.store_schedule(new, force=True) != flows.SCHEDULE_UNCHANGED

    def _store(self, name: str, job: Any, spec: Spec, *, force: bool) -> bool:
        from penstock.core.enqueuing.schedules import new_schedule

        new = new_schedule(name, job, spec, codec=self._queue.ops.codec)
        change = self._queue.route.refresh().store_schedule(new, force=force)
        if change == flows.SCHEDULE_OUTDATED:
            reason = "this version was replaced by a later one: schedules.restore() brings it back"
            raise BadArgument("name", name, reason)
        return change != flows.SCHEDULE_UNCHANGED

    def list(self) -> builtins.list[ScheduleView]:
        """Return the schedules of the queue, by name."""
        parts = ask_all(self._queue, _list)
        return sorted((one for part in parts for one in part), key=lambda one: one.name)

    def remove(self, name: str) -> bool:
        """Remove a schedule. Its jobs stay.

        A worker whose handler declares the schedule creates it again when it starts: remove the
        declaration too, or use `pause`.

        Args:
            name: its name.

        Returns:
            Whether there was one.
        """
        check_party("name", name)

        def remove_from(part: Part) -> bool:
            return part.executor.run(part.ops.unschedule(name)).code > 0

        return any(ask_all(self._queue, remove_from))

    def pause(self, name: str) -> None:
        """Stop the ticks of a schedule until `resume`, also across deploys.

        Args:
            name: its name.

        Raises:
            BadArgument: there is no such schedule.
        """
        check_party("name", name)

        def pause_in(part: Part) -> bool:
            return part.executor.run(part.ops.pause_schedule(name)).code > 0

        if not any(ask_all(self._queue, pause_in)):
            raise _missing(name)

    def resume(self, name: str) -> None:
        """End the pause of a schedule. Ticks that came meanwhile are not made up for.

        Args:
            name: its name.

        Raises:
            BadArgument: there is no such schedule.
        """
        check_party("name", name)

        def resume_in(part: Part) -> bool:
            entry, listed = _read_entry(part, name)
            if entry is None:
                return False
            call = part.ops.resume_schedule(name, entry.first_tick(listed.now_ms))
            return part.executor.run(call).code > 0

        if not any(ask_all(self._queue, resume_in)):
            raise _missing(name)

    def run(self, name: str) -> Enqueued:
        """Add a job of a schedule now. Its ticks stay as they are.

        A pause of the schedule and a job that still runs do not matter.

        Args:
            name: its name.

        Returns:
            The job.

        Raises:
            BadArgument: there is no such schedule.
            QueueFull, QueueClosed, QueuePaused, QueueInUse, OutOfMemory: as `enqueue`; no job was
                added.
        """
        check_party("name", name)
        for added in ask_all(self._queue, lambda part: _run(part, name)):
            if added is not None:
                added.queue = self._queue
                return added
        raise _missing(name)


def _missing(name: str) -> BadArgument:
    return BadArgument("name", name, "no such schedule: schedules.list() lists them")


def _read_entry(part: Part, name: str) -> tuple[StoredSchedule | None, ListedSchedules]:
    listed = part.executor.run(part.ops.schedules(names=[name]))
    if listed.unread:
        raise BadArgument("name", name, f"it can't be read: {listed.unread[name]}")
    return (listed.entries[0] if listed.entries else None), listed


def _run(part: Part, name: str) -> Enqueued | None:
    while True:
        entry, listed = _read_entry(part, name)
        if entry is None:
            return None
        record = entry.record_at(listed.now_ms)
        reply = part.executor.run(part.ops.trigger(entry, record))
        if reply is not None:  # otherwise it was replaced meanwhile
            job_id = part.ops.id_of(reply.first, reply.epoch, entry.spec.ttl_code)
            return Enqueued(job_id, "ready", stable_id=stable_id_of(record))


def _list(part: Part) -> list[ScheduleView]:
    from penstock.client._sync.searching import show_each
    from penstock.core.enqueuing.schedules import view

    part.connect()
    cursor = "0"
    entries: dict[str, StoredSchedule] = {}
    while True:
        listed = part.executor.run(part.ops.schedules(cursor))
        entries.update((entry.name, entry) for entry in listed.entries)  # a page may repeat some
        cursor = listed.cursor
        if cursor == "0":
            break
    runs = {
        name: part.ops.id_of(entry.last_run, listed.epoch, entry.spec.ttl_code)
        for name, entry in entries.items()
        if entry.last_run is not None
    }
    jobs = show_each(part, list(runs.values()))
    return [
        view(entry, runs.get(name), jobs.get(runs.get(name, ""))) for name, entry in entries.items()
    ]
