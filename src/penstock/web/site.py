"""The site: the client, its options, and how pages are made of templates."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args
from urllib.parse import parse_qsl

from jinja2 import Environment, FunctionLoader, StrictUndefined
from redis.exceptions import RedisError
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

import penstock
from penstock.client._async.client import AsyncPenstock
from penstock.client._async.queue import AsyncQueue
from penstock.core.jobs.logs import get_logger
from penstock.core.values.urls import redacted
from penstock.errors import BadArgument, PenstockError
from penstock.web import shapes
from penstock.web.files import read_template
from penstock.web.groups import GroupCounts
from penstock.web.runs import Runs
from penstock.web.sampler import Sampler
from penstock.web.security import Notes, Options, audit, is_token

__all__ = ["Endpoint", "Refused", "Site", "is_live", "one_of"]

MAX_FORM_BYTES = 256 * 1024
logger = get_logger("penstock.web")


class Refused(Exception):
    """A request that can't be answered.

    Args:
        status: of HTTP.
        text: for people.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Site:
    """All that pages and actions share.

    Args:
        client: reads and manages queues.
        options: of the page.

    Attributes:
        sampler: figures of all queues.
        groups: groups of errors of the dead letters of queues.
        runs: actions on many jobs.
    """

    def __init__(self, client: AsyncPenstock, options: Options) -> None:
        self.client = client
        self.options = options
        self.sampler = Sampler(client)
        self.groups = GroupCounts()
        self.runs = Runs(self.sampler.forget)
        self._notes = Notes(options)
        self._env = Environment(
            loader=FunctionLoader(read_template),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters.update(shapes.TEMPLATE_FILTERS)
        self._env.globals.update(
            bars=shapes.bars,
            sparkline=shapes.sparkline,
            preview=shapes.preview,
            job_path=shapes.job_path,
            queue_path=shapes.queue_path,
            version=penstock.__version__,
            asset=secrets.token_hex(4),
            hide_bodies=options.hide_bodies,
            write=options.write,
        )

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Serve; then stop the runs and close the connections."""
        try:
            yield
        finally:
            await self.runs.close()
            await self.groups.close()
            await self.client.close()

    async def open_queue(self, name: str) -> AsyncQueue:
        """Return a queue that exists.

        Raises:
            Refused: there is none of this name.
        """
        if name not in (await self.sampler.sample()).queues:
            stats = await (await self.client.open(name)).stats()
            if not stats.exists:
                raise Refused(404, f"There is no queue {name!r}.")
        return await self.client.open(name)

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page."""
        base = request.scope.get("root_path", "")
        path = request.url.path
        raw = request.scope.get("raw_path") or path.encode()
        text = self._env.get_template(template).render(
            base=base,
            here=raw.decode("latin-1") + (f"?{request.url.query}" if request.url.query else ""),
            section=path[len(base) :].strip("/").partition("/")[0],
            csrf=request.state.csrf,
            user=request.state.user,
            note="" if is_live(request) else self._notes.read(request),
            when=lambda at, now=None: shapes.when(at, time.time() if now is None else now),
            status=status,
            **values,
        )
        response = HTMLResponse(text, status)
        if not is_live(request):
            self._notes.drop(request, response)
        return response

    def redirect(self, request: Request, path: str, note: str = "") -> Response:
        """Return a redirection to a page, which is read by GET and shows the note once."""
        response = RedirectResponse(request.scope.get("root_path", "") + path, 303)
        if note:
            self._notes.attach(request, response, note)
        return response

    async def read_form(self, request: Request) -> ImmutableMultiDict[str, str]:
        """Return the fields of an action's form.

        Raises:
            Refused: actions are not allowed, the form is too large, or its token is not the user's.
        """
        if not self.options.write:
            raise Refused(403, "Actions are switched off: start the page with --write.")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                raise Refused(413, "The form is too large.")
        try:
            fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=2000)
        except ValueError:
            raise Refused(400, "The form can't be read.") from None
        found = ImmutableMultiDict(fields)
        if not is_token(request, self.options, found.get("csrf", "")):
            raise Refused(403, "The form is too old: go back, load the page again, and repeat.")
        return found

    def note(self, request: Request, action: str, **facts: object) -> None:
        """Write an action to the audit log."""
        told = " ".join(f"{name}={value!r}" for name, value in facts.items() if value != "")
        client = request.client.host if request.client else "-"
        audit.info("action=%s user=%r client=%s %s", action, request.state.user, client, told)

    def route(self, path: str, endpoint: Endpoint, method: str = "GET") -> Route:
        """Return a route whose errors become pages."""

        async def answer(request: Request) -> Response:
            try:
                return await endpoint(self, request)
            except Refused as error:
                status, text = error.status, str(error)
            except BadArgument as error:
                status, text = 400, str(error)
            except (PenstockError, RedisError, OSError) as error:
                logger.warning("%s: %s", request.url.path, error)
                status, text = 503, redacted(f"{type(error).__name__}: {error}")
            except Exception:
                logger.exception("%s has failed", request.url.path)
                status, text = 500, "The page has failed: see the log of the server."
            if is_live(request):
                return PlainTextResponse(text, status)
            retry = status == 503 and request.method == "GET"
            return self.page(request, "error.html", status=status, text=text, retry=retry)

        return Route(path, answer, methods=[method])


Endpoint = Callable[[Site, Request], Awaitable[Response]]


def is_live(request: Request) -> bool:
    """Return whether a page that is open asks for new figures."""
    return request.headers.get("hx-request") == "true"


def one_of(choices: Any, kind: str, text: str | None) -> Any:
    """Return a word of a request that is one of a `Literal`.

    Raises:
        Refused: it is not.
    """
    if text not in get_args(choices):
        raise Refused(400, f"There is no {kind} {text!r}.")
    return text
