"""The ASGI application of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.client._async.client import AsyncPenstock
from penstock.core.values.checks import check_flag
from penstock.errors import BadArgument
from penstock.web import actions, pages
from penstock.web.files import answer_static
from penstock.web.security import LOOPBACK_NAMES, Auth, Guard, Options, check_auth, check_hosts
from penstock.web.site import Site

__all__ = ["app"]


def app(
    ps: AsyncPenstock | str,
    *,
    write: bool = False,
    auth: Auth | None = None,
    hosts: Sequence[str] = LOOPBACK_NAMES,
    hide_bodies: bool = False,
) -> Starlette:
    """Return the web page as an ASGI application, to serve or to mount in another one.

    Args:
        ps: the client, or the URL of its server.
        write: whether the page has actions; otherwise it only reads.
        auth: a user name and a password, which browsers ask for; or a function, also async, that
            gets the request and returns the user's name, for the audit log. With any other answer
            the request is refused. None = only requests from this machine are answered.
        hosts: the names under which the page is served, without ports; "*" = any name.
        hide_bodies: whether bodies and results of jobs are hidden.

    Raises:
        BadArgument: an argument can't be used.

    When the application is shut down it closes the connections of the client. One that is mounted
    is not told of that: close the client in the lifespan of the other application.
    """
    client = AsyncPenstock(ps) if isinstance(ps, str) else ps
    if not isinstance(client, AsyncPenstock):
        raise BadArgument("ps", ps, "must be an AsyncPenstock or a URL")
    options = Options(
        check_flag("write", write),
        check_auth(auth),
        check_hosts(hosts),
        check_flag("hide_bodies", hide_bodies),
    )
    site = Site(client, options)
    return Starlette(
        routes=[
            site.route("/", pages.show_overview),
            site.route("/queues/{name:path}", pages.show_queue),
            site.route("/jobs", pages.show_job),
            site.route("/jobs/{id}", pages.show_job),
            site.route("/workers", pages.show_workers),
            site.route("/schedules", pages.show_schedules),
            site.route("/batches", pages.show_batches),
            site.route("/nodes", pages.show_nodes),
            site.route("/runs", pages.show_runs),
            site.route("/runs/{id}", pages.show_run),
            site.route("/actions/jobs", actions.act_on_jobs, "POST"),
            site.route("/actions/pause", actions.change_pause, "POST"),
            site.route("/actions/schedule", actions.change_schedule, "POST"),
            site.route("/actions/runs/{id}", actions.change_run, "POST"),
            Route("/static/{name}", answer_static),
        ],
        middleware=[Middleware(Guard, options=options)],
        exception_handlers={HTTPException: _page_of(site)},
        lifespan=site.lifespan,
    )


def _page_of(site: Site) -> Any:
    async def answer(request: Request, error: HTTPException) -> Response:
        text = "There is no such page." if error.status_code == 404 else error.detail
        return site.page(request, "error.html", status=error.status_code, text=text, retry=False)

    return answer
