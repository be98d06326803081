# From src/penstock/client/_async/transport/settings.py by tools/unasync.py; do not edit.
"""The settings of connections, from a URL or from a redis-py client."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.sentinel import SentinelConnectionPool

from penstock.client._acompat import RedisConnection
from penstock.client._sync.transport.sentinel import (
    SENTINEL_STEP_SECONDS,
    Primary,
    sentinel_pool,
    to_primary,
    url_pool,
    without_retry,
)
from penstock.core.values.urls import check_url, host_and_port, shown
from penstock.errors import BadArgument, ConfigurationError

SOCKET_TIMEOUT = 5.0
KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
"""TCP's own test of idle connections: seconds, and a count. Older redis-py has none."""
HURRY_SECONDS = 1.0
"""Seconds that a client which is about to end waits for a reply."""


def connection_factory(
    source: object,
) -> tuple[Callable[..., RedisConnection], str, Primary | None]:
    """Return a factory of connections for a URL or a redis-py client.

    Returns:
        The factory, the address, and under Sentinel the object that finds the primary.

    Raises:
        BadArgument: neither of the two, a URL that can't be used, or a client of replicas.
        ConfigurationError: the client decodes responses, so bodies would not come back as bytes.
    """
    given: Any
    if isinstance(source, str):
        check_url("source", source)
        given = sentinel_pool(source) or url_pool(source, source)
    elif isinstance(source, Redis) and not isinstance(source, Pipeline):
        given = source.connection_pool
    else:
        reason = f"must be a URL or a {Redis.__module__} client, not a pipeline"
        raise BadArgument("source", shown(source), reason)
    kwargs = own_settings(given.connection_kwargs)
    if isinstance(given, SentinelConnectionPool):
        kwargs.setdefault("socket_connect_timeout", SENTINEL_STEP_SECONDS)
        if not given.is_master:
            raise BadArgument(
                "source", shown(source), "must be a client of the primary, made with master_for()"
            )
        primary = Primary(given)
        kwargs["connection_pool"] = primary
        return own_factory(to_primary(given.connection_class), kwargs), str(primary), primary
    host = host_and_port(kwargs.get("host", "localhost"), kwargs.get("port", 6379))
    return own_factory(given.connection_class, kwargs), str(kwargs.get("path") or host), None


def own_settings(lent: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of connections, made from those of redis-py.

    Raises:
        ConfigurationError: they decode responses, so bodies would not come back as bytes.
    """
    if lent.get("decode_responses"):
        raise ConfigurationError(
            "the client has decode_responses=True, but bodies are bytes: pass one without it"
        )
    kwargs = without_retry(lent)
    kwargs.setdefault("socket_timeout", SOCKET_TIMEOUT)
    if "path" not in kwargs and kwargs.get("socket_keepalive") is None:
        kwargs.update(socket_keepalive=True, socket_keepalive_options=KEEPALIVE)
    return kwargs


def own_factory(
    make: Callable[..., RedisConnection], settings: dict[str, Any]
) -> Callable[..., RedisConnection]:
    """Return a function that makes connections; its keyword arguments override the settings."""
    return partial(make, **{"socket_connect_timeout": SOCKET_TIMEOUT, **settings})
