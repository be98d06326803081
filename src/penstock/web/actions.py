"""The actions: each is a form with a token, and a line in the audit log."""

from __future__ import annotations

from functools import partial
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from penstock.core.jobs.logs import counted
from penstock.core.values.checks import PauseSide
from penstock.web.pages import filter_of
from penstock.web.runs import ACTIONS_OF_STATE, ActionName, BulkAction, act
from penstock.web.shapes import job_path, queue_path
from penstock.web.site import Refused, Site, one_of

__all__ = ["act_on_jobs", "change_pause", "change_run", "change_schedule"]

COUNT_WAIT = 0.3
"""Seconds that a request waits for a count."""
ScheduleAction = Literal["trigger", "pause", "resume", "remove"]
NOTES_OF_SCHEDULES: dict[ScheduleAction, str] = {
    "trigger": "A job was added.",
    "pause": "Paused.",
    "resume": "Resumed.",
    "remove": "Removed.",
}
"""Texts that the page shows after an action."""


async def act_on_jobs(site: Site, request: Request) -> Response:
    """Ask for a confirmation, then run an action on named jobs; or begin to count a filter's."""
    form = await site.read_form(request)
    queue = await site.open_queue(form.get("queue", ""))
    chosen = site.groups.explain(queue.name, filter_of(form))
    whole = form.get("all")
    action = one_of(ActionName, "action", whole or form.get("action"))
    if action not in ACTIONS_OF_STATE[chosen.state]:
        raise Refused(400, f"{action} is no action on {chosen.state} jobs.")
    if whole:
        run = site.runs.create(queue, action, chosen, request.state.user)
        if run is None:
            raise Refused(503, "Too many actions are under way: wait for one to end.")
        await site.runs.settle(run, COUNT_WAIT)
        return site.redirect(request, f"/runs/{run.id}")
    ids = list(dict.fromkeys(form.getlist("id")))[:1000]
    if not ids:
        raise Refused(400, "No job is selected: go back and select some.")
    if not form.get("confirmed"):
        return site.page(
            request,
            "confirm.html",
            action=action,
            ids=ids,
            queue=queue.name,
            chosen=chosen,
            back=form.get("back") == "job",
        )
    done = await act(queue, action, ids)
    site.sampler.forget()
    site.groups.forget(queue.name)
    named = ids if len(ids) <= 10 else f"{ids[0]} and {len(ids) - 1} more"
    site.note(request, action, queue=queue.name, state=chosen.state, jobs=named, done=done)
    note = f"{action.capitalize()}: done for {done:,} of {counted(len(ids), 'job')}."
    if form.get("back") == "job" and action != "delete":
        return site.redirect(request, job_path(ids[0]), note)
    return site.redirect(request, queue_path(queue.name, **chosen.query()), note)


async def change_run(site: Site, request: Request) -> Response:
    """Start an action on many jobs that was counted, or stop it."""
    form = await site.read_form(request)
    found = site.runs.get(request.path_params["id"])
    if found is None:
        raise Refused(404, "This action is not known any more: begin again.")
    if form.get("do") == "stop":
        await site.runs.stop(found)
        _note_run(site, request, "stopped", found)
    elif found.status == "counted":
        _note_run(site, request, "started", found)
        site.runs.start(found, partial(_note_run, site, request, "ended"))
        await site.runs.settle(found, COUNT_WAIT)
    return site.redirect(request, f"/runs/{found.id}")


def _note_run(site: Site, request: Request, what: str, found: BulkAction) -> None:
    facts = {name: value or "" for name, value in found.filter.query().items()}
    facts["errors"] = found.filter.group_text
    figures = {"matched": found.matched, "done": found.changed, "status": found.status}
    site.groups.forget(found.queue.name)
    action = f"{found.action}-all-{what}"
    site.note(request, action, queue=found.queue.name, **facts, **figures, why=found.error)


async def change_pause(site: Site, request: Request) -> Response:
    """Pause a side of a queue, or resume it."""
    form = await site.read_form(request)
    queue = await site.open_queue(form.get("queue", ""))
    side = form.get("side")
    if side:
        await queue.pause(one_of(PauseSide, "side", side))
    else:
        await queue.resume()
    site.sampler.forget()
    action = "pause" if side else "resume"
    site.note(request, action, queue=queue.name, side=side or "")
    return site.redirect(request, queue_path(queue.name), "Paused." if side else "Resumed.")


async def change_schedule(site: Site, request: Request) -> Response:
    """Trigger, pause, resume or remove a schedule."""
    form = await site.read_form(request)
    queue, name = await site.open_queue(form.get("queue", "")), form.get("name", "")
    action = one_of(ScheduleAction, "action", form.get("action"))
    if action == "remove" and not form.get("confirmed"):
        return site.page(request, "confirm_schedule.html", queue=queue.name, name=name)
    done = await getattr(queue.schedules, "run" if action == "trigger" else action)(name)
    if done is False:  # the other actions raise an error
        raise Refused(404, f"There is no schedule {name!r} of queue {queue.name!r}.")
    site.sampler.forget()
    site.note(request, f"{action}-schedule", queue=queue.name, schedule=name)
    return site.redirect(request, "/schedules", NOTES_OF_SCHEDULES[action])
