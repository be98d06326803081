"""The command about schedules: list, trigger, pause, resume and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from penstock import Queue, ScheduleView
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.jobs import QueueArgument
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage, Option
from penstock.core.enqueuing.schedules import every_of
from penstock.worker.target import NoWorker, load

__all__ = ["schedules"]

Action = Literal["trigger", "pause", "resume", "remove", "restore"]
SCHEDULE_COLUMNS = ("schedule", "runs at", "next", "last", "last job", "runs", "skipped", "app")


@command("schedules")
def schedules(
    session: Session,
    queue: QueueArgument,
    action: Annotated[Action | None, Argument("ACTION")] = None,
    name: Annotated[str | None, Argument("NAME")] = None,
    app: Annotated[str | None, Option(metavar="MODULE:NAME")] = None,
) -> None:
    """List the schedules of a queue, or change one of them.

    Args:
        action: trigger = add a job now; pause = no ticks until resume; resume; remove; restore =
            bring back the version of --app, which a later one has replaced. Default: list them.
        name: name of the schedule.
        app: with restore: the worker whose handler has the schedule, as in `penstock worker`.

    Examples:
        penstock schedules emails
        penstock schedules emails trigger nightly
    """
    if (action is None) != (name is None):
        raise BadUsage("an action needs the name of a schedule")
    if (action == "restore") != (app is not None):
        raise BadUsage("restore needs --app MODULE:NAME, and no other action takes it")
    with session.queue(queue) as target:
        if action is not None and name is not None:
            document, line = _change(target, action, name, app or "")
            session.answer({"queue": queue, "schedule": name, **document}, line)
            return
        found = target.schedules.list()
    document = {"queue": queue, "schedules": [asdict(one) for one in found]}
    session.answer(document, lambda: _print(found))


def _change(queue: Queue, action: Action, name: str, app: str) -> tuple[dict[str, Any], str]:
    """Act on a schedule; return the document and the line to print."""
    if action == "trigger":
        job_id = queue.schedules.run(name).id
        return {"id": job_id}, job_id
    if action == "remove":
        removed = queue.schedules.remove(name)
        told = "removed" if removed else "there is no such schedule"
        return {"removed": removed}, f"{name}: {told}"
    if action == "restore":
        changed = _restore(queue, name, app)
        told = "restored" if changed else "it has this version already"
        return {"changed": changed}, f"{name}: {told}"
    is_pause = action == "pause"
    (queue.schedules.pause if is_pause else queue.schedules.resume)(name)
    return {"paused": is_pause}, f"{name}: {'paused' if is_pause else 'not paused'}"


def _restore(queue: Queue, name: str, app: str) -> bool:
    """Store the schedule of a handler of a worker, also if it was replaced before.

    Raises:
        Failed: there is no such worker, or no handler of it has this schedule.
    """
    try:
        worker = load(app)
    except NoWorker as error:
        raise Failed(str(error)) from error
    for handler in worker.handlers:
        spec = handler.schedule
        if spec is not None and (handler.queue, handler.name) == (queue.name, name):
            return queue.schedules.restore(
                name,
                job=handler.scheduled_job(),
                cron=spec.cron,
                every=every_of(spec),
                tz=spec.tz if spec.cron is not None else None,
                overlap=spec.overlap,
                missed=spec.missed,
            )
    raise Failed(f"{app} has no handler {name!r} with a schedule for queue {queue.name!r}")


def _print(found: Sequence[ScheduleView]) -> None:
    rows = [
        (
            one.name,
            one.spec,
            "paused" if one.paused else "orphaned" if one.orphaned else output.moment(one.next),
            output.moment(one.last),
            "" if one.last_run is None else one.last_state or "ended",
            one.runs,
            one.skipped,
            one.app or "",
        )
        for one in found
    ]
    output.table(SCHEDULE_COLUMNS, rows, right="runs skipped")
