"""Connections: one client for each process and each set of options, made where it is used.

Spark pickles readers and writers, so they hold options and never a client.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from redis.exceptions import RedisError

from penstock import Penstock
from penstock.client._sync.queue import Queue
from penstock.client._sync.sharded.sharded_queue import ShardedQueue
from penstock.core.logs import get_logger
from penstock.core.node_list import URL, others
from penstock.core.urls import check_url
from penstock.errors import BadArgument, NodesUnavailable, QueueMissing
from penstock.spark.errors import HIDDEN, OptionError, Unreachable, WrongServer
from penstock.spark.options import Connection
from penstock.wire.keys import QueueKeys

__all__ = [
    "check_identity",
    "check_queue",
    "check_reached",
    "client",
    "close_all",
    "current",
    "identity",
    "parts",
    "reaching",
    "shares",
]

logger = get_logger("penstock")
VARIABLE = re.compile("[A-Z_][A-Z0-9_]*")
"""Names of environment variables; other values than names are rejected."""
ASKED = "option 'sslCertFile': the server may ask for a certificate that it trusts"
TLS_ERRORS = {
    "certificate is not valid for": "option 'url': the server's certificate is for another host",
    "CERTIFICATE_VERIFY_FAILED": "option 'sslCaFile': none of its certificates signs the server's",
    "UNKNOWN_CA": ASKED,
    "CERTIFICATE_REQUIRED": ASKED,
    "HANDSHAKE_FAILURE": ASKED,
    "EOF occurred in violation of protocol": ASKED,
}
"""Words of OpenSSL, the first that is found."""


class Clients:
    """The clients of a process.

    A worker process of Spark runs many tasks, one after the other: they share its client, so that
    each slot has one connection.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Penstock] = {}

    def get(self, options: Connection) -> Penstock:
        """The client of this process for these options."""
        key = (os.getpid(), *_key(options))
        found = self._made.get(key)
        if found is None:
            if any(one[0] != os.getpid() for one in self._made):  # the parent's, before a fork
                self._made = {}
            found = self._made[key] = _made(options)
        return found

    def drop(self, options: Connection) -> None:
        """Close the client for these options; the next use makes another one."""
        found = self._made.pop((os.getpid(), *_key(options)), None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        made, self._made = self._made, {}
        for one in made.values():
            one.close()


_clients = Clients()


def client(options: Connection) -> Penstock:
    """The client of this process for these options; nothing is sent.

    Raises:
        OptionError: the environment or a file does not have what an option names, or a URL can't
            be used.
    """
    return _clients.get(options)


def close_all() -> None:
    """Close the connections of this process."""
    _clients.close()


def current(options: Connection) -> Penstock:
    """The connected client of this process, made anew if the server is not the one that it knows.

    A server has another id after a FLUSHALL, or when another one answers at its address. Ids of the
    driver and of executors are compared, so all of them have to be the present ones.

    Raises:
        OptionError: as `client`.
        Unreachable: no server can be reached.
    """
    made = client(options)
    with reaching(options):
        made.connect()
        if options.nodes:
            _recognise(made.queue(options.queue))
        elif made._node.whole_id()[:8] != made._node.id:
            _clients.drop(options)
            made = client(options).connect()
    return made


def _recognise(queue: Any) -> None:
    """Ask the nodes of a federation for their ids, as far as they answer."""
    for part in queue.parts if isinstance(queue, ShardedQueue) else ():
        with suppress(RedisError):
            part.home.recognise()


@contextmanager
def reaching(options: Connection) -> Iterator[None]:
    """A server is reached within this block, or else an error says what may be wrong.

    Raises:
        Unreachable: it is not.
    """
    try:
        yield
    except (RedisError, NodesUnavailable) as error:
        text = str(error).rstrip(".")
        raise Unreachable(
            f"queue {options.queue!r}: the server can't be reached: {text}{_distrust(text)}"
        ) from error


def _distrust(text: str) -> str:
    """Which option is to be looked at when one side does not trust the other's certificate."""
    for word, advice in TLS_ERRORS.items():
        if word in text:
            return f"; {advice}"
    return ""


def parts(options: Connection, name: str = "") -> dict[str, Queue]:
    """A queue's part on each node that can be reached, by the node's id; of one server it is one.

    Args:
        name: the queue's; empty = the one of the options.

    Raises:
        Unreachable: no server can be reached.
    """
    queue = current(options).queue(name or options.queue)
    if isinstance(queue, ShardedQueue):
        return {part.home.id: part for part in queue.parts if part.home.id}
    return {queue._node.id: queue}


def shares(options: Connection, name: str = "") -> dict[tuple[str, int], Queue]:
    """What a queue is made of: the part on each node that can be reached, and of each partition.

    Args:
        name: the queue's; empty = the one of the options.

    Returns:
        Node and number of the partition -> the part; the number is 0 in a queue without.

    Raises:
        Unreachable: no server can be reached.
    """
    whole = parts(options, name)
    queue = client(options).open(name or options.queue)
    if isinstance(queue, ShardedQueue) and queue.partitions:
        return {(part.home.id, part.number or 0): part for part in queue.parts if part.home.id}
    return {(node, 0): part for node, part in whole.items()}


def identity(options: Connection) -> tuple[str, ...]:
    """The ids of the nodes that are reached from here: the driver notes them for the executors.

    Raises:
        Unreachable: no server can be reached.
        QueueMissing: there is no such queue, and `requireQueue` is set.
    """
    found = parts(options)
    check_queue(options, options.queue, found.values())
    _tell_others(options, found)
    return tuple(sorted(found))


def _tell_others(options: Connection, found: dict[str, Queue]) -> None:
    """Warn of the nodes that a single one lists: what lies there is neither read nor written."""
    text = "queue %r: option 'url' names one node of several, and only it is used: see 'nodes'; %s"
    for part in found.values() if not options.nodes else ():
        listed = others(part._node.listed(), part._node.whole_id())
        if listed:
            logger.warning(text, options.queue, ", ".join(map(repr, listed)))


def check_reached(options: Connection) -> None:
    """See that every node can be reached: which of them has a row goes by all of them.

    Raises:
        Unreachable: some can't be.
    """
    queue = client(options).queue(options.queue)
    every = queue.parts if isinstance(queue, ShardedQueue) else ()
    away = sum(1 for part in every if not part.home.id)
    if away:
        raise Unreachable(
            f"queue {options.queue!r}: {away} of {len(every)} nodes can't be reached. Rows that an "
            f"earlier attempt has put there would be added again (skipUnreachable=true writes to "
            f"the others)"
        )


def check_queue(options: Connection, name: str, found: Iterable[Queue]) -> None:
    """See that there is a queue, where one is required.

    Args:
        name: of the queue.
        found: its parts, on each node.

    Raises:
        QueueMissing: there is none, and `requireQueue` is set.
    """
    meta = QueueKeys(name, options.prefix)["meta"]  # also of a queue in partitions
    if options.require_queue and not any(part._node.command("EXISTS", meta) for part in found):
        raise QueueMissing(f"queue {name!r} does not exist, and requireQueue is set")


def check_identity(options: Connection, expected: Sequence[str]) -> None:
    """See that the same server is reached from here as from the driver.

    Raises:
        WrongServer: it is another one.
    """
    found = sorted(parts(options))
    if expected and not set(found) & set(expected):
        raise WrongServer(
            f"queue {options.queue!r}: the driver's server is node {', '.join(expected)}, and from "
            f"here the same options lead to node {', '.join(found)}; a host name such as localhost "
            f"is not the same machine everywhere"
        )


def _key(options: Connection) -> tuple[Any, ...]:
    return tuple(
        getattr(options, one.name)
        for one in fields(Connection)
        if one.name not in ("queue", "require_queue")
    )


def _made(options: Connection) -> Penstock:
    urls = list(options.nodes) or [options.url or _from_environment("urlEnv", options.url_env)]
    name = "nodes" if options.nodes else "urlEnv" if options.url_env else "url"
    sources = [_completed(name, url, options) for url in urls]
    try:
        return Penstock(
            sources if options.nodes else sources[0],
            federation=bool(options.nodes),
            prefix=options.prefix,
            retry_for=options.retry_for / 1000,
        )
    except BadArgument as error:
        raise OptionError(name, HIDDEN, error.reason) from None


def _completed(name: str, url: str, options: Connection) -> str:
    """A URL with the user and the settings that other options give."""
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
        "ssl_ca_certs": options.ssl_ca_file,
        "ssl_certfile": options.ssl_cert_file,
        "ssl_keyfile": options.ssl_key_file,
    }
    _check_tls(scheme, options, given.get("ssl_password", ""))
    added = {key: value for key, value in settings.items() if value and key not in given}
    merged = "&".join(f"{quote(k)}={quote(str(v), safe='')}" for k, v in {**given, **added}.items())
    user = _user(user, options)
    return f"{scheme}{user + '@' if user else ''}{place}?{merged}"


def _check_tls(scheme: str, options: Connection, password: str) -> None:
    """See that the files for TLS are here, and are what they should be.

    Raises:
        OptionError: one is not, or can't be used with this URL.
    """
    ca, cert, key = options.ssl_ca_file, options.ssl_cert_file, options.ssl_key_file
    given = {"sslCaFile": ca, "sslCertFile": cert, "sslKeyFile": key}
    for name, file in given.items():
        if file and not scheme.startswith("rediss"):
            raise OptionError(name, None, "needs a URL that begins with rediss://")
        try:
            if file:
                Path(file).read_bytes()
        except OSError as error:
            raise OptionError(name, file, f"can't be read here: {error.strerror}") from None
    if key and not cert:
        raise OptionError("sslKeyFile", key, "works only with sslCertFile")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    name = "sslCaFile"
    try:
        if ca:
            context.load_verify_locations(ca)
        name = "sslCertFile"
        if cert:
            context.load_cert_chain(cert, key or None, password)  # else OpenSSL asks for it
    except ssl.SSLError as error:
        raise OptionError(name, given[name], f"can't be used: {error}") from None


def _user(given: str, options: Connection) -> str:
    """Name and password as a URL has them."""
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
        shown = variable if VARIABLE.fullmatch(variable) else HIDDEN  # the secret itself, perhaps
        raise OptionError(name, shown, "is not set in the environment of this process")
    return value
