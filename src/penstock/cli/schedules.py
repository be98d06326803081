"""The command about schedules: list, trigger, pause, resume and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from penstock import Queue, ScheduleView
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.jobs import QueueArgument, existing
from penstock.cli.parameters import Argument, BadUsage

__all__ = ["schedules"]

Action = Literal["trigger", "pause", "resume", "remove"]
COLUMNS = ("schedule", "runs at", "next", "last", "last job", "runs", "skipped")


@command("schedules")
def schedules(
    session: Session,
    queue: QueueArgument,
    action: Annotated[Action | None, Argument("ACTION")] = None,
    name: Annotated[str | None, Argument("NAME")] = None,
) -> None:
    """List the schedules of a queue, or change one of them.

    Args:
        action: trigger = add a job now; pause = no ticks until resume; resume; remove. Default:
            list them.
        name: name of the schedule.
    """
    if (action is None) != (name is None):
        raise BadUsage("an action needs the name of a schedule")
    with session.client() as client:
        target = client.open(queue)
        if action is not None and name is not None:
            document, line = _changed(target, action, name)
            session.answer({"queue": queue, "schedule": name, **document}, line)
            return
        found = target.schedules()
        if not found:
            existing(client, queue)
    document = {"queue": queue, "schedules": [asdict(one) for one in found]}
    session.answer(document, lambda: _print(found))


def _changed(queue: Queue, action: Action, name: str) -> tuple[dict[str, Any], str]:
    """Act on a schedule; return the document and the line to print."""
    if action == "trigger":
        job_id = queue.trigger(name).id
        return {"id": job_id}, job_id
    if action == "remove":
        removed = queue.unschedule(name)
        return {
            "removed": removed
        }, f"{name}: {'removed' if removed else 'there is no such schedule'}"
    if action == "pause":
        queue.pause_schedule(name)
        return {"paused": True}, f"{name}: paused"
    queue.resume_schedule(name)
    return {"paused": False}, f"{name}: not paused"


def _print(found: Sequence[ScheduleView]) -> None:
    rows = [
        (
            one.name,
            one.spec,
            "paused" if one.paused else output.moment(one.next),
            output.moment(one.last),
            "" if one.last_run is None else one.last_state or "ended",
            one.runs,
            one.skipped,
        )
        for one in found
    ]
    output.table(COLUMNS, rows, right="runs skipped")
