"""The command about schedules: list, add, edit, trigger, pause, resume and remove them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from penstock import Queue, ScheduleView
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.jobs import QueueArgument, parsed_body, parsed_headers
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage, Option
from penstock.core.enqueuing.new_jobs import JobOptions, NewJob
from penstock.core.enqueuing.schedules import every_of
from penstock.core.values.checks import Missed
from penstock.worker.target import NoWorker, load

__all__ = ["schedules"]

Action = Literal["add", "edit", "trigger", "pause", "resume", "remove", "restore"]
SCHEDULE_COLUMNS = ("schedule", "runs at", "next", "last", "last job", "runs", "skipped", "app")


@command("schedules")
def schedules(
    session: Session,
    queue: QueueArgument,
    action: Annotated[Action | None, Argument("ACTION")] = None,
    name: Annotated[str | None, Argument("NAME")] = None,
    body: Annotated[str | None, Argument("BODY")] = None,
    cron: str | None = None,
    every: Annotated[str | None, Option(metavar="INTERVAL")] = None,
    tz: Annotated[str | None, Option(metavar="ZONE")] = None,
    overlap: Literal["yes", "no"] | None = None,
    missed: Missed | None = None,
    header: Annotated[list[str] | None, Option(metavar="NAME=VALUE")] = None,
    json_body: bool = False,
    app: Annotated[str | None, Option(metavar="MODULE:NAME")] = None,
) -> None:
    """List the schedules of a queue, or change one of them.

    Args:
        action: add = create one with BODY, or replace it; edit = change when it runs, and keep its
            job; trigger = add a job now; pause = no ticks until resume; resume; remove; restore =
            bring back the version of --app, which a later one has replaced. Default: list them.
        name: name of the schedule.
        body: with add: the body of its jobs.
        cron: when it runs: minute hour day month weekday, such as "0 3 * * *".
        every: when it runs: an interval such as 15m or 1h30m, counted from 1970 in UTC.
        tz: time zone of --cron. Default: UTC.
        overlap: whether a job is added while the last one has not ended. Default: no.
        missed: after an outage: one = one job for all ticks that were missed; skip = none. Default:
            one.
        header: with add: a header of its jobs; may be repeated. handler=NAME names their function.
        json_body: with add: the body is JSON. Default: bytes.
        app: with restore: the worker whose handler has the schedule, as in `penstock worker`.

    Examples:
        penstock schedules emails
        penstock schedules emails trigger nightly
        penstock schedules emails add digest '[7]' --json-body --header handler=send --every 1h
        penstock schedules emails edit digest --cron '0 3 * * *' --tz Europe/Berlin
    """
    given = {"cron": cron, "every": every, "tz": tz, "overlap": overlap, "missed": missed}
    rule: dict[str, Any] = {one: value for one, value in given.items() if value is not None}
    _check_usage(action, name, app=app, body=body, job_options=bool(header or json_body), rule=rule)
    if overlap is not None:
        rule["overlap"] = overlap == "yes"
    if action == "add":
        content = parsed_body((body or "").encode("utf-8", "surrogateescape"), is_json=json_body)
        job = NewJob(content, JobOptions({"headers": parsed_headers(header or [])}))
        with session.client() as client:  # it may be the first thing in its queue
            changed = client.open(queue).schedules.add(name or "", job=job, **rule)
        added = {"queue": queue, "schedule": name, "changed": changed}
        session.answer(added, f"{name}: {'stored' if changed else 'it was like this'}")
        return
    with session.queue(queue) as target:
        if action is not None and name is not None:
            document, line = _change(target, action, name, app or "", rule)
            session.answer({"queue": queue, "schedule": name, **document}, line)
            return
        found = target.schedules.list()
    listed = {"queue": queue, "schedules": [asdict(one) for one in found]}
    session.answer(listed, lambda: _print(found))


def _check_usage(
    action: Action | None,
    name: str | None,
    *,
    app: str | None,
    body: str | None,
    job_options: bool,
    rule: Mapping[str, Any],
) -> None:
    """Check which arguments and options an action takes."""
    if (action is None) != (name is None):
        raise BadUsage("an action needs the name of a schedule")
    if (action == "restore") != (app is not None):
        raise BadUsage("restore needs --app MODULE:NAME, and no other action takes it")
    if (action == "add") != (body is not None):
        raise BadUsage("add needs a BODY, and no other action takes one")
    if job_options and action != "add":
        raise BadUsage("--header and --json-body go with add only")
    if rule and action not in ("add", "edit"):
        raise BadUsage(f"--{next(iter(rule))} goes with add and edit only")
    if action == "edit" and not rule:
        raise BadUsage("edit needs --cron, --every, --tz, --overlap or --missed")


def _change(
    queue: Queue, action: Action, name: str, app: str, rule: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Act on a schedule; return the document and the line to print."""
    if action == "trigger":
        job_id = queue.schedules.run(name).id
        return {"id": job_id}, job_id
    if action == "edit":
        changed = queue.schedules.change(name, **rule)
        return {"changed": changed}, f"{name}: {'changed' if changed else 'it was like this'}"
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
