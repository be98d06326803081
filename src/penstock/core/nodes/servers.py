"""INFO of a server, and the settings that break a promise (protocol/core.md, Servers)."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import CannotSync, UnsupportedServer

if TYPE_CHECKING:
    from penstock.core.nodes.node_views import Info, PrimaryView

__all__ = [
    "PROTOCOL_VERSION",
    "EvictionWarning",
    "ServerFacts",
    "Syncing",
    "parse_info",
    "together",
    "unsynced",
]

PROTOCOL_VERSION = 2
OLDEST_REDIS = (6, 2)
REDIS_WITH_FSYNC_COUNTS = (8, 0)
NEEDS_REDIS_8 = "this needs Redis 8.0 or newer"


class EvictionWarning(UserWarning):
    """The server may delete jobs by itself."""


class Syncing(enum.Enum):
    """Ways to find out that a write is on disk (protocol/durability.md, Waiting for the disk)."""

    WAITAOF = "WAITAOF"
    ALWAYS = "appendfsync always"


def unsynced(settings: Mapping[str, str]) -> str:
    """Return why a reply does not mean that the write is on disk; "" = it does.

    Args:
        settings: settings of the append-only file, by CONFIG GET.
    """
    if settings.get("appendonly") != "yes":
        return "it has no append-only file (appendonly no)"
    policy = settings.get("appendfsync", "unknown")
    if policy != "always":
        return f"appendfsync is {policy}, not always"
    if settings.get("no-appendfsync-on-rewrite") != "no":
        return "no-appendfsync-on-rewrite suspends appendfsync always while the file is rewritten"
    return ""


def parse_info(text: bytes) -> dict[str, str]:
    """Parse an INFO reply."""
    lines = text.decode("utf-8", "replace").splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The fields of INFO.

    Attributes:
        fields: name -> value; empty when the server has no INFO (fakeredis) or forbids it.
        parts: the facts of each server, where there are several (Cluster).
        address: of the server.
        error: reason why it does not answer; empty if it does.
    """

    fields: Mapping[str, str]
    parts: Sequence[ServerFacts] = ()
    address: str = ""
    error: str = ""

    @property
    def version(self) -> tuple[int, ...]:
        """Version of Redis, or the one that the server is compatible with; () = unknown."""
        numbers = re.findall(r"\d+", self.fields.get("redis_version", ""))
        return tuple(int(part) for part in numbers[:3])

    @property
    def name(self) -> str:
        """Product and version, for people."""
        if not self.fields:
            return "unknown server"
        if self.fields.get("server_name") == "valkey":
            return f"Valkey {self.fields.get('valkey_version', '?')}"
        return f"Redis {self.fields.get('redis_version', '?')}"

    @property
    def evicts(self) -> str:
        """Name of the maxmemory policy if it may evict a queue's keys, else ''."""
        policy = self.fields.get("maxmemory_policy", "")
        return policy if policy.startswith("allkeys-") else ""

    def number(self, field: str) -> int | None:
        """Return a field that is a whole number; None = the server does not tell."""
        text = self.fields.get(field, "")
        return int(text) if text.isdecimal() else None

    @property
    def is_crowded(self) -> bool:
        """True if more than three quarters of `maxmemory` are in use, on any of its servers."""
        if self.parts:
            return any(part.is_crowded for part in self.parts)
        used, most = self.number("used_memory"), self.number("maxmemory")
        return bool(used and most and used * 4 > most * 3)

    def primaries(self) -> tuple[PrimaryView, ...]:
        """Return the servers, where there are several."""
        from penstock.core.nodes.node_views import PrimaryView

        return tuple(
            PrimaryView(
                part.address,
                part.number("used_memory"),
                part.number("maxmemory"),
                part.is_crowded,
                part.error,
            )
            for part in self.parts
        )

    def info(self, *, node: str, queues: int, jobs: int, waiting: int) -> Info:
        """Return these facts together with the counts."""
        from penstock.core.nodes.node_views import Info

        aof = self.number("aof_enabled")
        return Info(
            node=node,
            server=self.name,
            uptime=self.number("uptime_in_seconds"),
            connected_clients=self.number("connected_clients"),
            blocked_clients=self.number("blocked_clients"),
            used_memory=self.number("used_memory"),
            max_memory=self.number("maxmemory"),
            maxmemory_policy=self.fields.get("maxmemory_policy"),
            aof_enabled=None if aof is None else aof == 1,
            connected_replicas=self.number("connected_slaves"),
            registered_queues=queues,
            registered_jobs=jobs,
            waiting_jobs=waiting,
        )

    def syncing(self, settings: Mapping[str, str] | None, replicas: int) -> Syncing:
        """Return the way to find out that a write is on disk.

        Args:
            settings: settings of the append-only file, by CONFIG GET; None = it is refused.
            replicas: number of replicas that must have it on disk, too.

        Raises:
            CannotSync: the server can't tell, or would not tell the truth.
        """
        if not self.fields:
            raise CannotSync("the server does not answer INFO: allow that command for this user")
        if self.number("aof_enabled") != 1:
            raise CannotSync(f"{self.name} has no append-only file: set appendonly yes")
        if (
            self.fields.get("server_name", "redis") == "redis"
            and self.version >= REDIS_WITH_FSYNC_COUNTS
        ):
            return Syncing.WAITAOF  # a compatible server may have another WAITAOF
        if replicas:
            raise CannotSync(
                f"{self.name} can't tell what its replicas have on disk: {NEEDS_REDIS_8}"
            )
        if settings is None:
            reason = "CONFIG GET is forbidden, so appendfsync is not known"
        else:
            reason = unsynced(settings)
        if reason:
            raise CannotSync(f"{self.name}: {reason}, and {self._untold}")
        if self.number("aof_base_size") == 0 and self.number("aof_rewrite_in_progress"):
            raise CannotSync(f"{self.name} is still creating its append-only file: try again later")
        return Syncing.ALWAYS

    @property
    def _untold(self) -> str:
        if self.version >= (7, 2):
            return (
                f"its WAITAOF answers before the disk does: {NEEDS_REDIS_8}, or appendfsync always"
            )
        return f"it has no WAITAOF: {NEEDS_REDIS_8}, or appendfsync always"

    def check(self) -> None:
        """Check that the server is new enough for the scripts.

        Raises:
            UnsupportedServer: older than Redis 6.2.
        """
        if self.version and self.version[:2] < OLDEST_REDIS:
            raise UnsupportedServer(f"{self.name}: penstock needs Redis 6.2 or newer")

    def warnings(self) -> list[str]:
        """Return the warnings to show when a client connects."""
        policy = self.fields.get("maxmemory_policy", "")
        if self.evicts:
            loss = "at maxmemory the server silently deletes jobs"
        elif policy.startswith("volatile-"):
            loss = "at maxmemory the server may add a repeated enqueue twice"
        else:
            return []
        return [f"maxmemory-policy is {policy}: {loss}; set it to noeviction"]


SUMMED_INFO = ("used_memory", "connected_clients", "blocked_clients", "evicted_keys")
LEAST_INFO = ("uptime_in_seconds", "connected_slaves", "aof_enabled")


def together(servers: Sequence[ServerFacts]) -> ServerFacts:
    """Merge the facts of several servers: sums, and the worst of the others."""
    parts = [part for part in servers if not part.error]
    if len(servers) == 1:
        return servers[0]
    if not parts:
        return ServerFacts({})
    fields = dict(min(parts, key=lambda part: part.version).fields)
    for name in (*SUMMED_INFO, *LEAST_INFO):
        numbers = [number for part in parts if (number := part.number(name)) is not None]
        if numbers:
            fields[name] = str(sum(numbers) if name in SUMMED_INFO else min(numbers))
    limits = [part.number("maxmemory") or 0 for part in parts]
    fields["maxmemory"] = str(sum(limits) if all(limits) else 0)  # 0 = somewhere there is none
    worst = max(parts, key=_danger)
    fields["maxmemory_policy"] = worst.fields.get("maxmemory_policy", "")
    return ServerFacts(fields, tuple(servers))


def _danger(facts: ServerFacts) -> int:
    policy = facts.fields.get("maxmemory_policy", "")
    return 2 if facts.evicts else int(policy.startswith("volatile-"))
