"""Environment variables and arguments of pressure queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.core.values.checks import Duration, check_count, duration_ms
from penstock.core.values.confirmations import Wait
from penstock.core.values.urls import host_and_port
from penstock.errors import BadArgument
from penstock.pressure.keys import DEFAULT_PRESSURE_PREFIX, utf8

__all__ = [
    "PressureCounters",
    "check_replicas",
    "message_bytes",
    "prefix_in",
    "url_in",
]


class PressureCounters(NamedTuple):
    """Totals of a queue since it was created."""

    produced_messages: int
    produced_bytes: int
    consumed_messages: int
    consumed_bytes: int


def url_in(environ: Mapping[str, str]) -> str:
    """Return the URL that REDIS_SERVER (or REDIS_HOST), REDIS_PORT and REDIS_DB name.

    Raises:
        BadArgument: not a host, a port or a database.
    """
    name = "REDIS_SERVER" if environ.get("REDIS_SERVER") else "REDIS_HOST"
    host = environ.get(name) or "127.0.0.1"
    if not host.isprintable() or set(host) & set("/@?# "):
        raise BadArgument(name, host, "must be a host name or an IP address")
    port = _number(environ, "REDIS_PORT", "6379", low=1, high=65535)
    database = _number(environ, "REDIS_DB", "0", low=0, high=(1 << 31) - 1)
    return f"redis://{host_and_port(host, port)}/{database}"


def _number(environ: Mapping[str, str], name: str, default: str, *, low: int, high: int) -> int:
    text = environ.get(name) or default
    if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
        raise BadArgument(name, text, f"must be a whole number from {low} to {high}")
    return int(text)


def prefix_in(environ: Mapping[str, str]) -> str:
    """Return the prefix that PRESSURE_PREFIX names."""
    return environ.get("PRESSURE_PREFIX") or DEFAULT_PRESSURE_PREFIX


def check_replicas(replicas: object, timeout: Duration) -> Wait | None:
    """Return the confirmation that a put waits for; None = none.

    Raises:
        BadArgument: no number from 0 to 1,000, or not a duration.
    """
    wanted = check_count("replicas", replicas, low=0, high=1000)
    span = duration_ms("replication_timeout", timeout, zero=False)
    return Wait(wanted, span, wanted) if wanted else None


def message_bytes(value: object) -> bytes:
    """Return a message as it is stored: bytes as they are, text as UTF-8.

    Raises:
        BadArgument: neither, or text that UTF-8 can't hold.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return utf8("message", value)
    raise BadArgument("message", value, "must be bytes or a str")
