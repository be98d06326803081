"""The command `dev`: a server, the web page and a worker, for development."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated
from urllib.parse import urlsplit

from penstock import AsyncPenstock
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, Option
from penstock.cli.worker import worker
from penstock.embedded import LOOPBACK_HOST, EmbeddedServer
from penstock.worker.processes import reason_against_processes
from penstock.worker.signals import handling_signals

__all__ = ["dev"]

DEV_PACKAGES = ("jinja2", "starlette", "uvicorn", "watchfiles")
DEFAULT_REDIS_PORT = 6379
PAGE_PORTS = range(8080, 8180)
"""Ports that are tried for the page if none is given: several commands may run at once."""


@command("dev", common=False)
def dev(
    session: Session,
    target: Annotated[str | None, Argument("MODULE:NAME")] = None,
    port: Annotated[int | None, Option(metavar="PORT", low=0, high=65535)] = None,
) -> None:
    """Run a server, the web page and a worker for development, until Ctrl-C ends them all.

    The server is that of --url before the command, of PENSTOCK_URL, or redis://localhost:6379/0. If
    none answers there and the address is on this machine, one is started, and its data end with the
    command. The page has actions, as with `penstock web --write`. The worker is restarted when a
    .py file changes in the current directory or below. It needs the extra `dev`.

    Args:
        target: a worker, as of `penstock worker`. Default: only the server and the page.
        port: port of the page; 0 = any free port. Default: 8080, or the next free one.

    Examples:
        penstock dev
        penstock dev app:worker
    """
    if reason := reason_against_processes():
        raise Failed(f"the command dev {reason}")
    for package in DEV_PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise Failed(f"this command needs {package}: pip install 'penstock[dev]'")
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(port))  # first, as this may be refused
        stack.enter_context(_run_server(session))
        stack.enter_context(_serve_page(session, listening))
        if target is None:
            _await_signal()
        else:
            output.note(f"penstock: {target} runs, and restarts when a .py file changes")
            worker(session.changed(given_url=session.url), target, reload=True, log_jobs=True)


def _listen(given: int | None) -> socket.socket:
    if given is None:
        for port in PAGE_PORTS:
            with suppress(OSError):
                return socket.create_server((LOOPBACK_HOST, port))
    port = PAGE_PORTS[0] if given is None else given
    try:
        return socket.create_server((LOOPBACK_HOST, port))
    except OSError as error:
        reason = f"argument --port: {port}: {error.strerror}; such as --port 0 for a free one"
        raise Failed(reason) from None


@contextmanager
def _run_server(session: Session) -> Iterator[None]:
    """Start a server at the address of the session, unless one is there or it is elsewhere."""
    port = _startable_port(session)
    if port is None:
        output.note(f"penstock: {session.url}")
        yield
        return
    with EmbeddedServer(tcp=True, port=port) as server:
        binary = server.binary
        kind = f"{binary.product().capitalize()} {binary.version()}"
        output.note(f"penstock: {session.url} ({kind}, started; its data end with this command)")
        yield


def _startable_port(session: Session) -> int | None:
    """Return the port at which a server can be started for the session's URL; None = it can't."""
    urls = session.urls()
    parts = urlsplit(urls[0])
    if len(urls) > 1 or parts.scheme != "redis" or parts.username or parts.password:
        return None
    if parts.hostname not in ("localhost", LOOPBACK_HOST):
        return None
    port = parts.port or DEFAULT_REDIS_PORT
    with socket.socket() as tried:
        is_there = tried.connect_ex((parts.hostname, port)) == 0
    return None if is_there else port


@contextmanager
def _serve_page(session: Session, listening: socket.socket) -> Iterator[None]:
    """Serve the page in a thread; the main thread handles signals."""
    import uvicorn

    from penstock.web import app

    page = app(AsyncPenstock(session.source, **session.options), write=True)
    settings = uvicorn.Config(
        page,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    output.note(f"penstock: http://{LOOPBACK_HOST}:{listening.getsockname()[1]}/ (read and write)")
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="penstock-page", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _await_signal() -> None:
    stopped = threading.Event()
    with handling_signals(lambda _: stopped.set()):
        output.note("penstock: Ctrl-C ends both")
        stopped.wait()
