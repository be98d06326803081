"""The configuration of a client, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.core.jobs.middleware import Middleware
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.values.checks import OnUnknown, check_count, duration_ms
from penstock.core.values.codec import Codec
from penstock.core.values.urls import shown
from penstock.errors import BadArgument

__all__ = ["ClientConfig", "QueueFilter", "check_hosts", "check_sources", "queue_filter"]

QueueFilter: TypeAlias = Callable[[QueueStats], bool]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The configuration that all parts of a client share.

    Attributes:
        prefix: of all keys.
        owner: the name of the client, which its leases carry.
        retry_for: seconds for which a call is tried again when the connection fails.
        middleware: hooks.
        on_unknown: what an enqueue does if a node may have the job: "raise" or "next".
        node_hosts: patterns of the hosts to which a password may be sent, besides the URLs given.
        evict: whether an enqueue that a full server refuses evicts delivered lease-0 jobs.
        codec: of bodies; None = plain JSON.
    """

    prefix: str
    owner: str
    retry_for: float
    middleware: tuple[Middleware, ...] = ()
    on_unknown: OnUnknown = "raise"
    node_hosts: tuple[str, ...] = ()
    evict: bool = True
    codec: Codec | None = None


def check_sources(source: object) -> list[Any] | None:
    """Return the sources of a federation; None = it is one source.

    Raises:
        BadArgument: there are none, or one is named twice.
    """
    if isinstance(source, (str, bytes)) or not isinstance(source, Sequence):
        return None
    sources = list(source)
    if not sources or any(one in sources[:at] for at, one in enumerate(sources)):
        raise BadArgument("source", shown(source), "must name one or more nodes, each once")
    return sources


def queue_filter(min_length: object, max_length: object, max_idle: object) -> QueueFilter:
    """Return a filter of queues by their figures.

    Raises:
        BadArgument: a bound can't be used.
    """
    low = 0 if min_length is None else check_count("min_length", min_length, low=0)
    high = math.inf if max_length is None else check_count("max_length", max_length, low=0)
    idle = math.inf if max_idle is None else duration_ms("max_idle", max_idle) / 1000

    def is_wanted(stats: QueueStats) -> bool:
        return low <= stats.ready <= high and (stats.idle or 0) <= idle

    return is_wanted


def check_hosts(value: object) -> tuple[str, ...]:
    """Return an allow list of hosts.

    Raises:
        BadArgument: one of them is neither a host nor a pattern of hosts.
    """
    hosts = []
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise BadArgument("node_hosts", value, "must be a list of hosts")
    for host in value:
        if not isinstance(host, str) or not re.fullmatch(r"[^\s/@?#,]+", host):
            raise BadArgument(
                "node_hosts", host, "must be a host, or a pattern such as *.redis.internal"
            )
        hosts.append(host.lower())
    return tuple(hosts)
