"""Connections: one client for each process and each set of options.

Spark pickles readers and writers, so they hold options and never a client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from redis.exceptions import RedisError

from penstock import Penstock
from penstock.client._sync.queue import Queue
from penstock.client._sync.sharded.shard import Shard
from penstock.client._sync.sharded.sharded_queue import ShardedQueue
from penstock.core.logs import get_logger
from penstock.core.middleware import Middleware
from penstock.core.node_list import URL, others
from penstock.core.urls import check_url
from penstock.errors import BadArgument, NodesUnavailable, QueueMissing
from penstock.spark.errors import HIDDEN, OptionError, Unreachable, WrongServer
from penstock.spark.options import Connection
from penstock.wire.keys import QueueKeys

__all__ = [
    "Shards",
    "check_nodes",
    "check_queue",
    "check_reached",
    "client",
    "close_all",
    "current",
    "new_client",
    "node_ids",
    "open_in_task",
    "open_on_driver",
    "reaching",
    "shards_of",
]

logger = get_logger("penstock")
VARIABLE = re.compile("[A-Z_][A-Z0-9_]*")
"""A name of an environment variable. Other values may be secrets, so errors do not show them."""

Shards = dict[tuple[str, int], Queue]
"""Shards by the node's id and the number of the partition; 0 in a queue without partitions."""

_clients: dict[tuple[object, ...], Penstock] = {}
"""The clients of this process, by its pid and their options.

A worker process of Spark runs many tasks, one after the other. They share its client, so that each
slot has one connection.
"""


def client(options: Connection) -> Penstock:
    """Return the client of this process for these options; nothing is sent.

    Raises:
        OptionError: the environment or a file does not have what an option names, or a URL can't
            be used.
    """
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
    """Return the connected client of this process, a new one if the server is another than before.

    A server has another id after a FLUSHALL, or when another server answers at its address. The
    ids that the driver and the executors see are compared, so all of them have to be current.

    Raises:
        OptionError: as `client`.
        Unreachable: no server can be reached.
    """
    made = client(options)
    with reaching(options):
        made.connect()
        if options.nodes:
            for part in _parts(made.queue(options.queue)):
                with suppress(RedisError):  # this node does not answer, others may
                    part.home.recognise()
        elif made.backend.node.whole_id()[:8] != made.backend.node.id:
            _clients.pop(_key(options), made).close()
            made = client(options).connect()
    return made


def _parts(queue: Queue) -> Sequence[Shard]:
    return queue.parts if isinstance(queue, ShardedQueue) else ()


@contextmanager
def reaching(options: Connection) -> Iterator[None]:
    """Raise connection errors of this block with the queue's name.

    Raises:
        Unreachable: the server can't be reached.
    """
    try:
        yield
    except (RedisError, NodesUnavailable) as error:
        text = str(error).rstrip(".")
        raise Unreachable(
            f"queue {options.queue!r}: the server can't be reached: {text}"
        ) from error


def shards_of(options: Connection, name: str = "") -> Shards:
    """Return the shards of a queue on the nodes that can be reached.

    Args:
        name: the queue's; empty = the queue of the options.

    Raises:
        Unreachable: no server can be reached.
    """
    queue = current(options).open(name or options.queue)
    if isinstance(queue, ShardedQueue):
        return {(part.home.id, part.number or 0): part for part in queue.parts if part.home.id}
    return {(queue.backend.node.id, 0): queue}


def node_ids(found: Shards) -> tuple[str, ...]:
    """Return the ids of the nodes of shards."""
    return tuple(sorted({node for node, _ in found}))


def open_on_driver(options: Connection) -> Shards:
    """Return the shards, for the driver. Its tasks compare the ids of the nodes with theirs.

    Raises:
        Unreachable: no server can be reached.
        QueueMissing: there is no such queue, and `requireQueue` is set.
    """
    found = shards_of(options)
    check_queue(options, options.queue, found.values())
    for part in () if options.nodes else list(found.values())[:1]:
        listed = others(part.backend.node.listed(), part.backend.node.whole_id())
        if listed:
            logger.warning(
                "queue %r: option 'url' names one of several nodes, and only this one is read and "
                "written. Name all of them by option 'nodes'; the others are %s",
                options.queue,
                ", ".join(map(repr, listed)),
            )
    return found


def open_in_task(options: Connection, expected: Sequence[str]) -> Shards:
    """Return the shards, for a task.

    Args:
        expected: ids of the nodes that the driver reaches; empty = not known.

    Raises:
        Unreachable: no server can be reached.
        WrongServer: this process reaches none of these nodes.
    """
    found = shards_of(options)
    check_nodes(options, node_ids(found), expected)
    return found


def check_nodes(options: Connection, found: Sequence[str], expected: Sequence[str]) -> None:
    """Check that this process reaches a node that the driver reaches.

    Args:
        found: ids of the nodes that this process reaches.
        expected: ids of the nodes that the driver reaches; empty = not known.

    Raises:
        WrongServer: it reaches none of them.
    """
    if expected and not set(found) & set(expected):
        raise WrongServer(
            f"queue {options.queue!r}: the driver's server is node {', '.join(expected)}, and from "
            f"here the same options lead to node {', '.join(found)}; a host name such as localhost "
            f"is not the same machine everywhere"
        )


def check_reached(options: Connection) -> None:
    """Check that every node can be reached: the node of a row depends on the list of all nodes.

    Raises:
        Unreachable: a node can't be reached.
    """
    every = _parts(client(options).queue(options.queue))
    away = sum(1 for part in every if not part.home.id)
    if away:
        raise Unreachable(
            f"queue {options.queue!r}: {away} of {len(every)} nodes can't be reached. Rows that an "
            f"earlier attempt has put there would be added again (skipUnreachable=true writes to "
            f"the others)"
        )


def check_queue(options: Connection, name: str, found: Iterable[Queue]) -> None:
    """Check that a queue exists, if `requireQueue` is set.

    Args:
        name: the queue's.
        found: its shards.

    Raises:
        QueueMissing: there is no such queue, and `requireQueue` is set.
    """
    meta = QueueKeys(name, options.prefix)["meta"]  # also of a queue in partitions
    if not options.require_queue:
        return
    if not any(part.backend.node.command("EXISTS", meta) for part in found):
        raise QueueMissing(f"queue {name!r} does not exist, and requireQueue is set")


def _key(options: Connection) -> tuple[object, ...]:
    names = [one.name for one in fields(Connection) if one.name not in ("queue", "require_queue")]
    return (os.getpid(), *(getattr(options, name) for name in names))


def new_client(options: Connection, middleware: Iterable[Middleware] = ()) -> Penstock:
    """Return another client; nothing is sent.

    Raises:
        OptionError: as `client`.
    """
    urls = list(options.nodes) or [options.url or _from_environment("urlEnv", options.url_env)]
    name = "nodes" if options.nodes else "urlEnv" if options.url_env else "url"
    sources = [_completed(name, url, options) for url in urls]
    try:
        return Penstock(
            sources if options.nodes else sources[0],
            federation=bool(options.nodes),
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
