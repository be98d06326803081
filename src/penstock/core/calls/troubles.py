"""Explains failures of connections and refusals of servers: what is wrong, and what to do.

redis-py's errors name neither the server nor the remedy. Each of these errors also subclasses the
one of redis-py that it replaces, so code that handles redis-py's errors goes on working.
"""

from __future__ import annotations

import os
import re

from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.errors import (
    AccessDenied,
    NoSuchDatabase,
    NotPermitted,
    NotRedis,
    ReadOnlyReplica,
    ServerError,
    ServerTimeout,
    ServerUnreachable,
)

__all__ = ["KEY_TYPES", "ScriptsRefused", "raise_explained", "reason_of", "wrong_type"]

KEY_TYPES = {
    "ready": "stream", "held": "hash", "active": "zset", "scheduled": "zset", "once": "zset",
    "dead": "zset", "tally": "hash", "expiry": "zset", "finished": "stream", "dedup": "hash",
    "windows": "zset", "meta": "hash", "wake": "list", "space": "list", "ticks": "zset",
    "schedules": "hash", "parked": "zset", "tickets": "zset", "turns": "zset", "paces": "zset",
    "holds": "zset",
    "urgent": "zset", "members": "hash", "batches": "hash",
}  # fmt: skip
"""The types of a queue's keys, as the command TYPE names them."""
CONNECT_PREAMBLE = r"^Error (-?\d+) (?:while )?connecting to \S+\. "
NEEDED_PERMISSIONS = (
    "+@read +@write +@blocking +client|id +client|unblock +evalsha +info +ping +script|load "
    "+time +wait"
)
"""The rules that allow all commands of the scripts (protocol/core.md, Access, has the fewest)."""
DENIED_COMMAND = r"run the '([^']+)' command"
UNKNOWN_COMMAND = r"(?:unknown|unsupported) command\W+([\w|]+)"


class ScriptsRefused(ResponseError):
    """The server, or a proxy before it, loads no scripts; the text is its reason."""


def reason_of(error: BaseException) -> str:
    """Return the message of redis-py's error without what it repeats of the address."""
    text = " ".join(str(error).split())
    match = re.match(CONNECT_PREAMBLE, text)
    if match and "Connect call failed" in text:  # asyncio's text has only the address
        return os.strerror(int(match[1]))
    return text[match.end() if match else 0 :].rstrip(".")


def wrong_type(kind: str, key: bytes, actual: str) -> str:
    """Return what is wrong with the type of a key of a queue; empty = nothing.

    Args:
        kind: the last part of its name.
        key: its name.
        actual: its type, as the command TYPE names it.
    """
    if actual in ("none", KEY_TYPES.get(kind, actual)):
        return ""
    return f"key {key.decode()!r} has the wrong type: it is a {actual}, not a {KEY_TYPES[kind]}"


def raise_explained(error: BaseException, address: str, *, tls: bool = False) -> None:
    """Raise the error that takes the place of an error of redis-py, if there is one.

    It is raised here, as no variable may hold it: see `caught`.

    Args:
        error: what redis-py has raised.
        address: host and port, or path, of the server.
        tls: whether the connection uses TLS.
    """
    if isinstance(error, ServerError):
        return
    if isinstance(error, AuthenticationError):
        raise AccessDenied(_denied(str(error), address)) from None
    if isinstance(error, InvalidResponse):
        reason = "check host and port; a web server may listen there"
        raise NotRedis(f"{address} does not speak the protocol of Redis: {reason}") from None
    if type(error) is RedisTimeoutError:
        hint = ": does this port speak TLS? otherwise the URL begins with redis://" if tls else ""
        raise ServerTimeout(f"{address} does not answer: {reason_of(error)}{hint}") from None
    if type(error) is RedisConnectionError:
        hint = ""
        if tls and "SSL" in str(error):
            hint = ": if this port does not speak TLS, the URL begins with redis://"
        reason = reason_of(error)
        if "refused" in reason:
            hint = _start_hint(address)
        message = f"{address} can't be reached: {reason}{hint}"
        raise ServerUnreachable(message) from None
    if isinstance(error, ResponseError):
        _raise_refused(error, address)


def _start_hint(address: str) -> str:
    """Return how to start a server at an address of this machine."""
    match = re.fullmatch(r"(?:localhost|127\.0\.0\.1|\[::1\]):(\d+)", address)
    if match is None:
        return ""
    url = "" if match[1] == "6379" else f"--url redis://{address} "
    return f". To start one here: penstock {url}dev"


def _denied(text: str, address: str) -> str:
    if "without any password configured" in text:
        return f"{address} has no password: leave it out of the URL"
    if "required" in text:
        return f"{address}: the server wants a password: redis://:PASSWORD@{address}"
    return (
        f"{address} refuses the user name or the password: check them; in a URL their special "
        "characters are percent-encoded"
    )


def _raise_refused(error: ResponseError, address: str) -> None:
    text = str(error)
    if "DB index is out of range" in text:
        reason = "a server has the databases 0 to 15 unless its setting `databases` says otherwise"
        raise NoSuchDatabase(f"{address} has no database of this number: {reason}") from None
    if isinstance(error, ReadOnlyError) or "READONLY" in text:
        message = f"{address} is a read-only replica: connect to its primary"
        raise ReadOnlyReplica(message) from None
    if isinstance(error, ScriptsRefused):
        raise NotPermitted(_lacking("SCRIPT LOAD", address, f" ({text})")) from None
    if match := re.search(UNKNOWN_COMMAND, text):
        raise NotPermitted(_lacking(match[1], address)) from None
    is_forbidden = isinstance(error, NoPermissionError) or "ACL failure in script" in text
    if is_forbidden or "user executing the script can't" in text:  # Redis 6.2 names no command
        raise NotPermitted(_forbidden(text, address)) from None


def _lacking(command: str, address: str, reason: str = "") -> str:
    return (
        f"{address} refuses the command {command}{reason}: it, or a proxy before it, does not have"
        " the commands that penstock needs; connect to a Redis server itself"
    )


def _forbidden(text: str, address: str) -> str:
    if "key" in text:
        return (
            f"{address}: this user may not use the keys of penstock: allow them with "
            "ACL SETUSER <user> ~penstock:* (or ~PREFIX:*)"
        )
    match = re.search(DENIED_COMMAND, text)
    if match:
        return (
            f"{address}: this user may not run the command {match[1]!r}: allow it with "
            f"ACL SETUSER <user> +{match[1]}"
        )
    return (
        f"{address}: this user may not run a command that the scripts use: ACL LOG on the server "
        f"names it; ACL SETUSER <user> {NEEDED_PERMISSIONS} allows all of them"
    )
