"""The settings of connections, from a URL or from a redis-py client."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.sentinel import SentinelConnectionPool

from penstock.client._acompat import AsyncRedisConnection
from penstock.client._async.transport.sentinel import (
    SENTINEL_STEP_SECONDS,
    AsyncPrimary,
    sentinel_pool,
    to_primary,
    url_pool,
    without_retry,
)
from penstock.core.values.urls import check_url, host_and_port, shown
from penstock.errors import BadArgument, ConfigurationError

CLIENTS = ("Redis", "RedisCluster")
"""Names of the classes of redis-py, also of those for the other kind of program."""
TWIN_PREFIX = ""  # async only
# sync only: TWIN_PREFIX = "Async"
SOCKET_TIMEOUT = 5.0
KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
"""TCP's own test of idle connections: seconds, and a count. Older redis-py has none."""
LEAST_CONNECT_SECONDS = 1.0
"""Seconds to connect that even an impatient client has."""
HURRY_SECONDS = 1.0
"""Seconds that a client which is about to end waits for a reply."""


def connection_factory(
    source: object, connect_timeout: float = SOCKET_TIMEOUT
) -> tuple[Callable[..., AsyncRedisConnection], str, AsyncPrimary | None]:
    """Return a factory of connections for a URL or a redis-py client.

    Args:
        source: the URL or client.
        connect_timeout: seconds to connect, if the source says nothing else.

    Returns:
        The factory, the address, and under Sentinel the object that finds the primary.

    Raises:
        BadArgument: neither of the two, a URL that can't be used, or a client of replicas.
        ConfigurationError: the client decodes responses, so bodies would not come back as bytes.
    """
    pool: Any
    if isinstance(source, str):
        check_url("source", source)
        pool = sentinel_pool(source) or url_pool(source, source)
    elif isinstance(source, Redis) and not isinstance(source, Pipeline):
        pool = source.connection_pool
    else:
        reason = f"must be a URL or a {Redis.__module__} client, not a pipeline"
        is_client = any(one.__name__ in CLIENTS for one in type(source).__mro__)
        if is_client and not isinstance(source, Redis):
            twin = f"{TWIN_PREFIX}Penstock"
            reason = f"must be a URL or a {Redis.__module__} client: pass this one to {twin}"
        raise BadArgument("source", shown(source), reason)
    kwargs = own_settings(pool.connection_kwargs)
    if isinstance(pool, SentinelConnectionPool):
        kwargs.setdefault("socket_connect_timeout", SENTINEL_STEP_SECONDS)
        if not pool.is_master:
            raise BadArgument(
                "source", shown(source), "must be a client of the primary, made with master_for()"
            )
        primary = AsyncPrimary(pool)
        kwargs["connection_pool"] = primary
        factory = own_factory(to_primary(pool.connection_class), kwargs, connect_timeout)
        return factory, str(primary), primary
    host = host_and_port(kwargs.get("host", "localhost"), kwargs.get("port", 6379))
    factory = own_factory(pool.connection_class, kwargs, connect_timeout)
    return factory, str(kwargs.get("path") or host), None


def seconds_to_connect(retry_for: float) -> float:
    """Return the seconds to connect of a client that tries a call again for so long."""
    return min(SOCKET_TIMEOUT, max(LEAST_CONNECT_SECONDS, retry_for))


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
    make: Callable[..., AsyncRedisConnection], settings: dict[str, Any], connect_timeout: float
) -> Callable[..., AsyncRedisConnection]:
    """Return a function that makes connections; its keyword arguments override the settings."""
    return partial(make, **{"socket_connect_timeout": connect_timeout, **settings})
