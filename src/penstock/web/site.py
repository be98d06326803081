"""The site: the client, its options, and how pages are made of templates."""

from __future__ import annotations

import re
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
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

import penstock
from penstock.client._async.client import AsyncPenstock
from penstock.client._async.queue import AsyncQueue
from penstock.core.jobs.logs import get_logger
from penstock.core.values.urls import redacted
from penstock.errors import BadArgument, PenstockError
from penstock.web import shapes
from penstock.web.files import read_template
from penstock.web.runs import Runs
from penstock.web.sampler import Sampler
from penstock.web.security import Options, is_token

__all__ = ["Endpoint", "Refused", "Site", "one_of"]

MAX_FORM_BYTES = 256 * 1024
DONE_NOTES = {
    "pause": "Paused.",
    "resume": "Resumed.",
    "trigger": "A job was added.",
    "remove": "Removed.",
}
"""Texts that a page shows after an action; those about jobs have a number."""

audit = get_logger("penstock.web.audit")
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
        runs: actions on many jobs.
    """

    def __init__(self, client: AsyncPenstock, options: Options) -> None:
        self.client = client
        self.options = options
        self.sampler = Sampler(client)
        self.runs = Runs(self.sampler.forget)
        self._env = Environment(
            loader=FunctionLoader(read_template),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters.update(shapes.TEMPLATE_FILTERS)
        self._env.globals.update(
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
            note=_note_of(request),
            when=lambda at, now=None: shapes.when(at, time.time() if now is None else now),
            status=status,
            **values,
        )
        return HTMLResponse(text, status)

    def redirect(self, request: Request, path: str) -> Response:
        """Return a redirection to a page, which is read by GET."""
        return RedirectResponse(request.scope.get("root_path", "") + path, 303)

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
            return self.page(request, "error.html", status=status, text=text)

        return Route(path, answer, methods=[method])


Endpoint = Callable[[Site, Request], Awaitable[Response]]


def one_of(choices: Any, kind: str, text: str | None) -> Any:
    """Return a word of a request that is one of a `Literal`.

    Raises:
        Refused: it is not.
    """
    if text not in get_args(choices):
        raise Refused(400, f"There is no {kind} {text!r}.")
    return text


def _note_of(request: Request) -> str:
    """Return the text about the action that led to this page: `?note=redrive-3-4`."""
    note = request.query_params.get("note", "")
    found = re.fullmatch("(redrive|promote|cancel|delete)-([0-9]{1,9})-([0-9]{1,9})", note)
    if found is None:
        return DONE_NOTES.get(note, "")
    action, done, named = found.groups()
    return f"{action.capitalize()}: done for {int(done):,} of {int(named):,} jobs."
