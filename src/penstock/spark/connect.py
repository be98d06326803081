"""Connections: one client for each process and each set of options.

Spark pickles readers and writers, so they hold options and never a client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from redis.exceptions import RedisError

from penstock import Penstock
from penstock.core.logs import get_logger
from penstock.core.middleware import Middleware
from penstock.core.node_list import URL
from penstock.core.urls import check_url
from penstock.errors import BadArgument, NodesUnavailable
from penstock.spark.errors import HIDDEN, OptionError, Unreachable
from penstock.spark.options import Connection

__all__ = ["client", "close_all", "current", "new_client", "reaching"]

logger = get_logger("penstock")
VARIABLE = re.compile("[A-Z_][A-Z0-9_]*")
"""A name of an environment variable. Other values may be secrets, so errors do not show them."""

_clients: dict[tuple[object, ...], Penstock] = {}
"""The clients of this process, by its pid and their options.

A worker process of Spark runs many tasks, one after the other. They share its client, so that each
slot has one connection.
"""


def client(options: Connection) -> Penstock:
    """Return the client of this process for these options; nothing is sent."""
    key = _key(options)
    found = _clients.get(key)
    if found is None:
        if any(pid != os.getpid() for pid, *_ in _clients):  # a fork has copied the parent's
            _clients.clear()
        found = _clients[key] = new_client(options)
    return found


def close_all() -> None:
    """Close the connections of this process; the next use opens new ones."""
    while _clients:
        _clients.popitem()[1].close()


def current(options: Connection) -> Penstock:
    """Return the connected client of one node, a new one if the server is another than before.

    A server has another id after a FLUSHALL, or when another server answers at its address. The
    ids that the driver and the executors see are compared, so all of them have to be current.
    """
    made = client(options)
    with reaching(options):
        made.connect()
        if made.backend.node.whole_id()[:8] != made.backend.node.id:
            _clients.pop(_key(options), made).close()
            made = client(options).connect()
    return made


@contextmanager
def reaching(options: Connection) -> Iterator[None]:
    """Raise connection errors of this block with the queue's name."""
    try:
        yield
    except (RedisError, NodesUnavailable) as error:
        text = str(error).rstrip(".")
        raise Unreachable(
            f"queue {options.queue!r}: the server can't be reached: {text}"
        ) from error


def _key(options: Connection) -> tuple[object, ...]:
    names = [one.name for one in fields(Connection) if one.name not in ("queue", "require_queue")]
    return (os.getpid(), *(getattr(options, name) for name in names))


def new_client(options: Connection, middleware: Iterable[Middleware] = ()) -> Penstock:
    """Return another client; nothing is sent."""
    urls = list(options.nodes) or [options.url or _from_environment("urlEnv", options.url_env)]
    name = "nodes" if options.nodes else "urlEnv" if options.url_env else "url"
    sources = [_completed(name, url, options) for url in urls]
    try:
        return Penstock(
            sources if len(sources) > 1 else sources[0],
            federation=len(sources) > 1,
            prefix=options.prefix,
            retry_for=options.retry_for / 1000,
            middleware=middleware,
        )
    except BadArgument as error:
        raise OptionError(name, HIDDEN, error.reason) from None


def _completed(name: str, url: str, options: Connection) -> str:
    try:
        found = URL.fullmatch(check_url(name, url))
    except BadArgument as error:
        raise OptionError(name, HIDDEN, error.reason) from None
    if found is None:
        raise OptionError(name, HIDDEN, "must be a URL such as redis://host:6379/0")
    scheme, user, place, query = found.groups(default="")
    if name == "url" and ":" in user:
        logger.warning(
            "option 'url' has a password: use urlEnv, passwordEnv or passwordFile instead"
        )
    given = dict(parse_qsl(query))
    settings = {
        "socket_timeout": options.socket_timeout / 1000,
        "socket_connect_timeout": options.connect_timeout / 1000,
    }
    merged = urlencode({**settings, **given})
    user = _user(user, options)
    return f"{scheme}{user + '@' if user else ''}{place}?{merged}"


def _user(given: str, options: Connection) -> str:
    name, colon, password = given.partition(":")
    secret = _password(options)
    if options.username:
        name = quote(options.username, safe="")
    if secret is not None:
        colon, password = ":", quote(secret, safe="")
    return f"{name}{colon}{password}"


def _password(options: Connection) -> str | None:
    if options.password_env:
        return _from_environment("passwordEnv", options.password_env)
    if not options.password_file:
        return None
    try:
        return Path(options.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "must be a text file"
        shown = options.password_file if "/" in options.password_file else HIDDEN
        raise OptionError("passwordFile", shown, f"can't be read here: {reason}") from None


def _from_environment(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        shown = variable if VARIABLE.fullmatch(variable) else HIDDEN  # it may be the secret itself
        raise OptionError(name, shown, "is not set in the environment of this process")
    return value
