"""The pages: overview, queue, job, workers, schedules, batches, nodes. They never write."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from penstock.client._async.queue import AsyncQueue
from penstock.core.enqueuing.batches import BATCHES_WITH_FAILURES
from penstock.core.jobs.history import QueueHistory
from penstock.core.jobs.logs import printable
from penstock.core.jobs.marks import LogLine
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.views import JobView, ScanPage
from penstock.core.values.checks import StateName
from penstock.errors import (
    BadJobId,
    JobCancelled,
    JobExpired,
    JobFailed,
    NotPermitted,
    ResultGone,
    ResultTimeout,
)
from penstock.web.charts import charts_of, handler_times
from penstock.web.runs import ACTIONS_OF_STATE, FILTERS, Filter
from penstock.web.sampler import Sample
from penstock.web.shapes import body_text
from penstock.web.site import Refused, Site, is_live, one_of
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
JOBS_PER_SEARCH_STEP = 200
"""Jobs that a step looks at: the server takes about 5 ms for them."""
FIRST_SEARCH_SECONDS = 0.05
"""Seconds after which no step begins for the page itself, which is to be there at once."""
SEARCH_SECONDS = 0.5
"""Seconds after which no step begins for a request with which the open page goes on."""
REST_PER_SEARCH_STEP = 1.0
"""Pause after a step of these requests, in lengths of the step."""
MAX_SEARCHED_JOBS = 250_000
"""Jobs after which a search waits for its user."""
QUEUES_PER_PAGE = 100
"""Queues on a page."""
MAIN_GROUPS, SHOWN_GROUPS = 3, 100
"""Groups of errors on the page of a queue: at first, and if all are wanted."""
PREVIEW_BYTES = 120
"""Bytes of a body in a list."""
SORT_COLUMNS = (*get_args(StateName), "oldest")


async def show_overview(site: Site, request: Request) -> Response:
    """Show all queues with their counts and rates."""
    query = request.query_params
    wanted, sort = query.get("q", ""), query.get("sort", "name")
    await site.sampler.sample()
    sampler = site.sampler.find(wanted)
    sample = await sampler.sample()
    found = [one for one in sample.queues.values() if wanted.casefold() in one.name.casefold()]
    if sort in SORT_COLUMNS:
        found.sort(key=lambda one: (-(getattr(one, sort) or 0), one.name))
    else:
        found.sort(key=lambda one: one.name)
    named = {one.name for one in found}
    known = sample.problems
    problems = known and [one for one in known if one.queue is None or one.queue in named]
    sums = {name: sum(getattr(one, name) for one in found) for name in get_args(StateName)}
    states = [name for name, number in sums.items() if number or name != "parked"]
    start = _number(query.get("start", ""))
    return site.page(
        request,
        "_overview.html" if is_live(request) else "overview.html",
        age=sampler.age,
        sample=sample,
        problems=problems,
        series=sampler.series,
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
    groups = await site.groups.read(target, stats)
    chosen = site.groups.explain(name, filter_of(request.query_params))
    is_all = request.query_params.get("groups") == "all"
    values: dict[str, Any] = {
        "age": site.sampler.age,
        "stats": stats,
        "series": site.sampler.series.get(name),
        "chosen": chosen,
        "groups": groups,
        "shown_groups": SHOWN_GROUPS if is_all else MAIN_GROUPS,
        "states": [
            state
            for state in get_args(StateName)
            if state != "parked" or stats.parked or chosen.state == state
        ],
        "settings": _settings(stats),
    }
    is_step = is_live(request) and "looked" in request.query_params
    if is_live(request) and chosen and not is_step:  # a search is not repeated by itself
        return site.page(request, "_queue_live.html", **values)
    template = "_queue_live.html" if is_live(request) else "queue.html"
    if template == "queue.html":
        history = QueueHistory(0.0)
        with suppress(NotPermitted):
            history = await target.history()
        values |= {"charts": charts_of(history), "handler_times": handler_times(history)}
    values |= await _find_jobs(target, chosen, request.query_params, is_step=is_step)
    return site.page(
        request,
        "_found.html" if is_step else template,
        is_step=is_step,
        total=getattr(stats, chosen.state),
        actions=ACTIONS_OF_STATE[chosen.state],
        handler_field=HANDLER,
        **values,
    )


async def _find_jobs(
    queue: AsyncQueue, chosen: Filter, query: Mapping[str, str], *, is_step: bool
) -> dict[str, Any]:
    """Return jobs for a page, or more of them for an open one, and how far the search is."""
    order = query.get("order") or ("new" if chosen.state == "dead" else "old")
    cursor = query.get("cursor", "0")
    looked, found = _number(query.get("looked", "")), _number(query.get("found", ""))
    page = await _search(
        queue,
        chosen,
        cursor,
        newest=order == "new",
        wanted=JOBS_PER_PAGE_ABOUT - found,
        seconds=SEARCH_SECONDS if is_step else FIRST_SEARCH_SECONDS,
    )
    looked, found = looked + page.looked, found + len(page.jobs)
    has_room = found < JOBS_PER_PAGE_ABOUT and looked < MAX_SEARCHED_JOBS
    return {
        "page": page,
        "now": page.jobs[0].now if page.jobs else time.time(),
        "order": order,
        "cursor": cursor,
        "looked": looked,
        "found": found,
        "goes_on": bool(chosen) and page.cursor != "0" and has_room,
    }


async def _search(
    queue: AsyncQueue,
    chosen: Filter,
    cursor: str,
    *,
    newest: bool,
    wanted: int,
    seconds: float,
) -> ScanPage:
    """Return about as many jobs as wanted, or those that a search finds in this time."""
    search = queue.jobs(
        chosen.state,
        newest=newest,
        body=PREVIEW_BYTES,
        n=JOBS_PER_SEARCH_STEP if chosen else JOBS_PER_PAGE_ABOUT,
        **chosen.options,
    )
    found, until = ScanPage(cursor, [], []), time.monotonic() + seconds
    while True:
        began = time.monotonic()
        page = await search.page(found.cursor)
        ids, jobs = found.ids + page.ids, found.jobs + page.jobs
        found = ScanPage(page.cursor, ids, jobs, page.unreachable, found.looked + page.looked)
        now = time.monotonic()
        if page.cursor == "0" or len(jobs) >= wanted or now > until:
            return found
        await asyncio.sleep(REST_PER_SEARCH_STEP * (now - began))


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
        log=await _read_log(site, view),
        handler=view.headers.get(HANDLER),
        body="" if site.options.hide_bodies else body_text(view.raw, view.codec),
        result=await _read_result(site, view),
        actions=ACTIONS_OF_STATE.get(view.state, ()) if view.finished is None else (),  # type: ignore[call-overload]  # of any state
        state=state,
    )


async def _read_log(site: Site, view: JobView) -> list[LogLine]:
    if view.finished is not None or site.options.hide_bodies:
        return []
    return await (await site.client.open(view.queue)).log(view.id)


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
    sample, left, found = await _find_of_queues(site, "schedules", "has_schedules")
    return site.page(request, "schedules.html", found=found, left=left, sample=sample)


async def show_batches(site: Site, request: Request) -> Response:
    """Show the batches of all queues, and the first dead letters of some."""
    sample, left, found = await _find_of_queues(site, "batches", "batches", QUEUES_PER_PAGE)
    failing = [place for place, (_, one) in enumerate(found) if one.dead]
    for place in failing[:BATCHES_WITH_FAILURES]:
        name, one = found[place]
        queue = await site.client.open(name)
        found[place] = name, await queue.batches.get(one.id) or one
    return site.page(request, "batches.html", found=found, left=left, sample=sample)


async def _find_of_queues(
    site: Site, kind: str, figure: str, most: int | None = None
) -> tuple[Sample, int, list[tuple[str, Any]]]:
    """Return schedules or batches of the queues for which a figure is not zero.

    Returns:
        The sample, how many more of these queues there are, and the name of a queue with each.

    Args:
        site: of the page.
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
    return sample, len(names) - QUEUES_PER_PAGE, found


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
    return site.page(request, "_run.html" if is_live(request) else "run.html", run=found)


def filter_of(fields: Any) -> Filter:
    """Return the filter in the fields of a query or a form."""
    state = one_of(StateName, "state", fields.get("state") or "ready")
    chosen: dict[str, Any] = {name: fields.get(name) or None for name in FILTERS}
    return Filter(state, **chosen)


def _settings(stats: QueueStats) -> dict[str, object]:
    names = type(stats.settings).__dataclass_fields__
    found = {name: getattr(stats.settings, name) for name in names if name != "paused"}
    return {name.replace("_", " "): value for name, value in found.items() if value is not None}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
