"""The command `web`: serve the page."""

from __future__ import annotations

import logging
import os
import re
from typing import Annotated

from penstock import AsyncPenstock
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.output import Failed
from penstock.cli.parameters import Option
from penstock.core.jobs.logs import get_logger
from penstock.core.values.urls import HOST_NAME_FAULT, bracketed, can_be_looked_up, host_and_port

__all__ = ["web"]

PASSWORD_VARIABLE = "PENSTOCK_WEB_PASSWORD"  # the name of a variable


def _check_path(text: str) -> str:
    """Return a path without the slash at its end."""
    path = text.rstrip("/")
    if path and not re.fullmatch(r"(/(?!\.+(/|$))[A-Za-z0-9._~-]+)+", path):
        raise ValueError("must be such as /queues: letters, digits, and . _ ~ -")
    return path


@command("web")
def web(
    session: Session,
    host: str = "127.0.0.1",
    port: Annotated[int, Option(metavar="PORT", low=1, high=65535)] = 8080,
    write: bool = False,
    user: str = "",
    allow_host: str = "",
    hide_bodies: bool = False,
    path: Annotated[str, Option(metavar="/PATH", convert=_check_path)] = "",
) -> None:
    """Serve a page that shows queues, jobs, schedules and nodes, until SIGTERM or SIGINT.

    It needs the extra `web`. It only reads, unless --write is given. Beyond this machine it needs
    --user, and the password in $PENSTOCK_WEB_PASSWORD.

    Args:
        host: address to listen on.
        port: port to listen on.
        write: allow actions: redrive, cancel, delete, pause and so on.
        user: name that browsers must give, with the password of $PENSTOCK_WEB_PASSWORD.
        allow_host: names under which browsers may reach the page, separated by spaces; those of
            this machine are allowed.
        hide_bodies: do not show bodies and results of jobs.
        path: path below which the page is served, for a proxy that passes it on.

    Examples:
        penstock web
        penstock web --port 8080 --write
        penstock web --path /queues --allow-host admin.example.com
    """
    try:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Mount

        from penstock.web import app
        from penstock.web.security import LOOPBACK_NAMES, is_loopback
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "jinja2"):
            raise
        raise Failed("this command needs more packages: pip install 'penstock[web]'") from None
    if not can_be_looked_up(host):
        raise Failed(f"argument --host: {host!r}: {HOST_NAME_FAULT}")
    auth = _auth(user)
    if auth is None and not is_loopback(host):
        told = f"{host} is reachable from other machines: give --user, and set ${PASSWORD_VARIABLE}"
        raise Failed(told)
    client = AsyncPenstock(session.source, **session.options)
    names = (*LOOPBACK_NAMES, bracketed(host), *allow_host.split())
    page = app(client, write=write, auth=auth, hosts=names, hide_bodies=hide_bodies)
    _log_actions()
    lifespan = page.router.lifespan_context
    served = Starlette(routes=[Mount(path, page)], lifespan=lifespan) if path else page
    rights = "read and write" if write else "read-only"
    output.note(f"penstock: http://{host_and_port(host, port)}{path}/ ({rights})")
    settings = uvicorn.Config(
        served, host=host, port=port, log_level="warning", access_log=False, server_header=False
    )
    uvicorn.Server(settings).run()


def _auth(user: str) -> tuple[str, str] | None:
    password = os.environ.get(PASSWORD_VARIABLE, "")
    if bool(user) != bool(password):
        raise Failed(f"--user and ${PASSWORD_VARIABLE} are needed together")
    return (user, password) if user else None


def _log_actions() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    audit = get_logger("penstock.web.audit")
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
