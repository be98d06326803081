"""The pages: overview, queue, job, workers, schedules, batches, nodes. They never write."""

from __future__ import annotations

import json
import time
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from penstock.core.jobs.logs import printable
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.views import JobView, QueueStats, ScanPage
from penstock.core.values.checks import StateName
from penstock.errors import BadJobId, JobCancelled, JobExpired, JobFailed, ResultGone, ResultTimeout
from penstock.web.runs import ACTIONS_OF_STATE, Filter
from penstock.web.shapes import body_text
from penstock.web.site import Refused, Site, one_of
from penstock.web.timeline import timeline_of

__all__ = [
    "filter_of",
    "show_batches",
    "show_job",
    "show_nodes",
    "show_overview",
    "show_queue",
    "show_run",
    "show_runs",
    "show_schedules",
    "show_workers",
]

JOBS_PER_PAGE_ABOUT = 50
"""Jobs on a page, about."""
MAX_SEARCH_STEPS = 5
"""Most steps of the search for one page."""
JOBS_PER_SEARCH_STEP = 200
"""Jobs that a step looks at."""
SEARCH_SECONDS = 0.05
"""Seconds after which a search begins no further step."""
QUEUES_PER_PAGE = 100
"""Queues on a page."""
PREVIEW_BYTES = 120
"""Bytes of a body in a list."""
SORT_COLUMNS = (*get_args(StateName), "oldest")


async def show_overview(site: Site, request: Request) -> Response:
    """Show all queues with their counts and rates."""
    sample, query = await site.sampler.sample(), request.query_params
    wanted, sort = query.get("q", ""), query.get("sort", "name")
    found = [one for one in sample.queues.values() if wanted.casefold() in one.name.casefold()]
    if sort in SORT_COLUMNS:
        found.sort(key=lambda one: (-(getattr(one, sort) or 0), one.name))
    else:
        found.sort(key=lambda one: one.name)
    sums = {name: sum(getattr(one, name) for one in found) for name in get_args(StateName)}
    states = [name for name, number in sums.items() if number or name != "parked"]
    start = _number(query.get("start", ""))
    live = request.headers.get("hx-request") == "true"
    return site.page(
        request,
        "_overview.html" if live else "overview.html",
        sample=sample,
        series=site.sampler.series,
        found=found[start : start + QUEUES_PER_PAGE],
        start=start,
        total=len(found),
        next_start=start + QUEUES_PER_PAGE if start + QUEUES_PER_PAGE < len(found) else None,
        wanted=wanted,
        sort=sort,
        sorts=["name", *states, "oldest"],
        sums={name: sums[name] for name in states},
        runs=site.runs.latest()[:5],
    )


async def show_queue(site: Site, request: Request) -> Response:
    """Show a queue: its counts, and the jobs of a state."""
    name = request.path_params["name"] or request.query_params.get("name", "")
    target = await site.open_queue(name)
    sample = await site.sampler.sample()
    stats = sample.queues.get(name) or await target.stats()
    chosen = filter_of(request.query_params)
    values: dict[str, Any] = {
        "stats": stats,
        "series": site.sampler.series.get(name),
        "chosen": chosen,
        "states": [
            state
            for state in get_args(StateName)
            if state != "parked" or stats.parked or chosen.state == state
        ],
        "settings": _settings(stats),
    }
    if request.headers.get("hx-request") == "true":
        return site.page(request, "_queue.html", **values)
    order = request.query_params.get("order") or ("new" if chosen.state == "dead" else "old")
    cursor = request.query_params.get("cursor", "0")
    page = await _search(target, chosen, cursor, newest=order == "new")
    return site.page(
        request,
        "queue.html",
        page=page,
        now=page.jobs[0].now if page.jobs else time.time(),
        order=order,
        cursor=cursor,
        actions=ACTIONS_OF_STATE[chosen.state],
        handler_field=HANDLER,
        **values,
    )


async def _search(queue: Any, chosen: Filter, cursor: str, *, newest: bool) -> ScanPage:
    """Return about 50 jobs, or those among the next 1,000 that match."""
    search = queue.jobs(
        chosen.state,
        newest=newest,
        body=PREVIEW_BYTES,
        n=JOBS_PER_SEARCH_STEP if chosen else JOBS_PER_PAGE_ABOUT,
        **chosen.options,
    )
    found, until = ScanPage(cursor, [], []), time.monotonic() + SEARCH_SECONDS
    for _ in range(MAX_SEARCH_STEPS):
        page = await search.page(found.cursor)
        ids, jobs = found.ids + page.ids, found.jobs + page.jobs
        found = ScanPage(page.cursor, ids, jobs, page.unreachable, found.looked + page.looked)
        if page.cursor == "0" or len(jobs) >= JOBS_PER_PAGE_ABOUT or time.monotonic() > until:
            break
    return found


async def show_job(site: Site, request: Request) -> Response:
    """Show all data of a job."""
    name = request.path_params.get("id") or request.query_params.get("id", "").strip()
    try:
        view = await site.client.show(name)
    except BadJobId as error:
        raise Refused(404, f"This is not the id of a job: {error}") from None
    if view is None:
        told = f"Job {printable(name)} is gone: it has ended, or its queue was deleted."
        raise Refused(404, told)
    state = view.state if view.state in ACTIONS_OF_STATE else None
    return site.page(
        request,
        "job.html",
        job=view,
        timeline=timeline_of(view),
        handler=view.headers.get(HANDLER),
        body="" if site.options.hide_bodies else body_text(view.raw, view.codec),
        result=await _read_result(site, view),
        actions=ACTIONS_OF_STATE.get(view.state, ()) if view.finished is None else (),  # type: ignore[call-overload]  # of any state
        state=state,
    )


async def _read_result(site: Site, view: JobView) -> str | None:
    if view.finished is None or site.options.hide_bodies:
        return None
    queue = await site.client.open(view.queue)
    try:
        value = await queue.result(view.id, timeout=0)
    except (JobCancelled, JobExpired, JobFailed, ResultGone, ResultTimeout) as error:
        return printable(str(error))
    return body_text(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), "json")


async def show_workers(site: Site, request: Request) -> Response:
    """Show the workers that run, and the jobs that they hold."""
    found = await site.client.workers(jobs=True)
    missed = getattr(found, "unreachable", {})
    return site.page(
        request, "workers.html", found=found, unreachable=list(missed), handler_field=HANDLER
    )


async def show_schedules(site: Site, request: Request) -> Response:
    """Show the schedules of all queues."""
    return await _show_of_queues(site, request, "schedules", "has_schedules")


async def show_batches(site: Site, request: Request) -> Response:
    """Show the batches of all queues."""
    return await _show_of_queues(site, request, "batches", "batches", QUEUES_PER_PAGE)


async def _show_of_queues(
    site: Site, request: Request, kind: str, figure: str, most: int | None = None
) -> Response:
    """Show the schedules or batches of all queues for which a figure is not zero.

    Args:
        site: the site.
        request: for this page.
        kind: "schedules" or "batches".
        figure: of the statistics of a queue.
        most: of one queue.
    """
    sample = await site.sampler.sample()
    names = sorted(name for name, one in sample.queues.items() if getattr(one, figure))
    found = []
    for name in names[:QUEUES_PER_PAGE]:
        queue = await site.client.open(name)
        found += [(name, one) for one in (await getattr(queue, kind).list())[:most]]
    return site.page(request, f"{kind}.html", found=found, left=len(names) - QUEUES_PER_PAGE)


async def show_nodes(site: Site, request: Request) -> Response:
    """Show the nodes with their memory."""
    hello = await site.client.hello()
    return site.page(request, "nodes.html", hello=hello)


async def show_runs(site: Site, request: Request) -> Response:
    """Show the actions on many jobs of this process."""
    return site.page(request, "runs.html", runs=site.runs.latest())


async def show_run(site: Site, request: Request) -> Response:
    """Show an action on many jobs."""
    found = site.runs.get(request.path_params["id"])
    if found is None:
        raise Refused(404, "This action is not known any more: see the audit log.")
    live = request.headers.get("hx-request") == "true"
    return site.page(request, "_run.html" if live else "run.html", run=found)


def filter_of(fields: Any) -> Filter:
    """Return the filter in the fields of a query or a form."""
    handler, error, key = (fields.get(name) or None for name in ("handler", "error", "key"))
    state = one_of(StateName, "state", fields.get("state") or "ready")
    return Filter(state, handler, error, key)


def _settings(stats: QueueStats) -> dict[str, object]:
    names = type(stats.settings).__dataclass_fields__
    found = {name: getattr(stats.settings, name) for name in names if name != "paused"}
    return {name.replace("_", " "): value for name, value in found.items() if value is not None}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
