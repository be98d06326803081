"""Schedules of a queue: create, list, pause, run and remove them."""

from __future__ import annotations

import builtins
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.client._async.admin import ask_all
from penstock.client._async.looking import AsyncQueueLooking
from penstock.client._async.route.part import AsyncPart
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

__all__ = ["AsyncQueueSchedules"]


@name_methods("AsyncQueueSchedules")
class AsyncQueueSchedules:
    """The schedules of a queue, as `queue.schedules`: periodic jobs, which its workers add."""

    def __init__(self, queue: AsyncQueueLooking) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue.name!r}>"

    async def add(
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
            >>> await q.schedules.add("report", job={"kind": "daily"}, every="1h")
            True
            >>> [(one.name, one.spec) for one in await q.schedules.list()]
            [('report', 'every 1h')]
        """
        from penstock.core.enqueuing.schedules import check_spec

        spec = check_spec(cron, every, tz, overlap=overlap, missed=missed)
        return await self._store(name, job, spec, force=False)

    async def restore(
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
        return await self._store(name, job, spec, force=True)

    async def change(
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
            >>> await q.schedules.add("report", job={"kind": "daily"}, every="1h")
            True
            >>> await q.schedules.change("report", every="2h")
            True
            >>> [(one.name, one.spec) for one in await q.schedules.list()]
            [('report', 'every 2h')]
        """
        from penstock.core.enqueuing.schedules import NewSchedule, changed_spec

        check_party("name", name)
        answers = await ask_all(self._queue, lambda part: _read_entry(part, name))
        entry = next((entry for entry, _ in answers if entry is not None), None)
        if entry is None:
            raise _missing(name)
        spec = changed_spec(
            entry.spec, cron=cron, every=every, tz=tz, overlap=overlap, missed=missed
        )
        route = await self._queue.route.refresh()
        new = NewSchedule(name, spec, record=entry.record, app=entry.app)
        return await route.store_schedule(new, force=True) != flows.SCHEDULE_UNCHANGED

    async def _store(self, name: str, job: Any, spec: Spec, *, force: bool) -> bool:
        from penstock.core.enqueuing.schedules import new_schedule

        new = new_schedule(name, job, spec, codec=self._queue.ops.codec)
        change = await (await self._queue.route.refresh()).store_schedule(new, force=force)
        if change == flows.SCHEDULE_OUTDATED:
            reason = "this version was replaced by a later one: schedules.restore() brings it back"
            raise BadArgument("name", name, reason)
        return change != flows.SCHEDULE_UNCHANGED

    async def list(self) -> builtins.list[ScheduleView]:
        """Return the schedules of the queue, by name."""
        parts = await ask_all(self._queue, _list)
        return sorted((one for part in parts for one in part), key=lambda one: one.name)

    async def remove(self, name: str) -> bool:
        """Remove a schedule. Its jobs stay.

        A worker whose handler declares the schedule creates it again when it starts: remove the
        declaration too, or use `pause`.

        Args:
            name: its name.

        Returns:
            Whether there was one.
        """
        check_party("name", name)

        async def remove_from(part: AsyncPart) -> bool:
            return (await part.executor.run(part.ops.unschedule(name))).code > 0

        return any(await ask_all(self._queue, remove_from))

    async def pause(self, name: str) -> None:
        """Stop the ticks of a schedule until `resume`, also across deploys.

        Args:
            name: its name.

        Raises:
            BadArgument: there is no such schedule.
        """
        check_party("name", name)

        async def pause_in(part: AsyncPart) -> bool:
            return (await part.executor.run(part.ops.pause_schedule(name))).code > 0

        if not any(await ask_all(self._queue, pause_in)):
            raise _missing(name)

    async def resume(self, name: str) -> None:
        """End the pause of a schedule. Ticks that came meanwhile are not made up for.

        Args:
            name: its name.

        Raises:
            BadArgument: there is no such schedule.
        """
        check_party("name", name)

        async def resume_in(part: AsyncPart) -> bool:
            entry, listed = await _read_entry(part, name)
            if entry is None:
                return False
            call = part.ops.resume_schedule(name, entry.first_tick(listed.now_ms))
            return (await part.executor.run(call)).code > 0

        if not any(await ask_all(self._queue, resume_in)):
            raise _missing(name)

    async def run(self, name: str) -> Enqueued:
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
        for added in await ask_all(self._queue, lambda part: _run(part, name)):
            if added is not None:
                added.queue = self._queue
                return added
        raise _missing(name)


def _missing(name: str) -> BadArgument:
    return BadArgument("name", name, "no such schedule: schedules.list() lists them")


async def _read_entry(part: AsyncPart, name: str) -> tuple[StoredSchedule | None, ListedSchedules]:
    listed = await part.executor.run(part.ops.schedules(names=[name]))
    if listed.unread:
        raise BadArgument("name", name, f"it can't be read: {listed.unread[name]}")
    return (listed.entries[0] if listed.entries else None), listed


async def _run(part: AsyncPart, name: str) -> Enqueued | None:
    while True:
        entry, listed = await _read_entry(part, name)
        if entry is None:
            return None
        record = entry.record_at(listed.now_ms)
        reply = await part.executor.run(part.ops.trigger(entry, record))
        if reply is not None:  # otherwise it was replaced meanwhile
            job_id = part.ops.id_of(reply.first, reply.epoch, entry.spec.ttl_code)
            return Enqueued(job_id, "ready", stable_id=stable_id_of(record))


async def _list(part: AsyncPart) -> list[ScheduleView]:
    from penstock.client._async.searching import show_each
    from penstock.core.enqueuing.schedules import view

    await part.connect()
    cursor = "0"
    entries: dict[str, StoredSchedule] = {}
    while True:
        listed = await part.executor.run(part.ops.schedules(cursor))
        entries.update((entry.name, entry) for entry in listed.entries)  # a page may repeat some
        cursor = listed.cursor
        if cursor == "0":
            break
    runs = {
        name: part.ops.id_of(entry.last_run, listed.epoch, entry.spec.ttl_code)
        for name, entry in entries.items()
        if entry.last_run is not None
    }
    jobs = await show_each(part, list(runs.values()))
    return [
        view(entry, runs.get(name), jobs.get(runs.get(name, ""))) for name, entry in entries.items()
    ]
