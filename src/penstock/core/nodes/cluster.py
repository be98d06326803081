"""The slot map of a Redis Cluster, and the limits of retries (protocol/nodes.md, Cluster).

A slot in migration replies TRYAGAIN or ASK until it is done, so calls are repeated as long as keys
move. After failures they are repeated for a bounded time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from penstock.core.calls.call import longest_pause
from penstock.core.values.urls import host_and_port
from penstock.wire.keys import key_slot

__all__ = [
    "KEYLESS_COMMANDS",
    "LONGEST_MIGRATION_PAUSE",
    "Address",
    "Patience",
    "SlotRange",
    "by_slot",
    "read_slots",
    "slot_of",
]

MAX_REDIRECTS = 5
"""Redirections that are followed at once; after more of them two nodes may disagree."""
MAX_REPEAT_SECONDS = 300.0
"""Limit of the seconds for which a call that may have run is repeated; its note stays 600 s."""
LONGEST_MIGRATION_PAUSE = 0.1
"""Limit of the seconds between two tries while a slot is in migration."""
KEYLESS_COMMANDS = frozenset(
    ("ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DEBUG", "ECHO", "FLUSHALL",
     "FLUSHDB", "INFO", "LASTSAVE", "LATENCY", "MEMORY", "MODULE", "PING", "RANDOMKEY", "ROLE",
     "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT")
)  # fmt: skip
"""Commands without a key as first argument."""


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)

    @classmethod
    def read(cls, text: str) -> Address | None:
        """Parse the text of an address; None = it has no port, as the path of a socket."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]"), int(port)) if port.isdecimal() else None


class SlotRange(NamedTuple):
    """Slots from `first` to `last` are served by `owner`."""

    first: int
    last: int
    owner: Address


def read_slots(reply: Iterable[Sequence[Any]], asked: str) -> list[SlotRange]:
    """Parse the reply to CLUSTER SLOTS, without the replicas.

    Args:
        reply: undecoded.
        asked: host of the server; it stands in for an unknown host in the reply.
    """
    return [SlotRange(int(part[0]), int(part[1]), _address(part[2], asked)) for part in reply]


def _address(entry: Sequence[Any], asked: str) -> Address:
    """Parse the preferred end point. `?` means that the host name is not set: use the IP."""
    host = (entry[0] or b"").decode()
    if host == "?":
        metadata = [one.decode() for one in (entry[3] if len(entry) > 3 else ())]
        host = dict(zip(metadata[::2], metadata[1::2], strict=False)).get("ip", "")
    return Address(host or asked, int(entry[1]))


def slot_of(command: Sequence[Any]) -> int | None:
    """Return the slot of a plain command's first key; None = it has no key."""
    name = command[0].decode() if isinstance(command[0], bytes) else str(command[0])
    if len(command) < 2 or name.upper() in KEYLESS_COMMANDS:
        return None
    key = command[1]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def by_slot(keys: Iterable[bytes]) -> dict[int, tuple[bytes, ...]]:
    """Group keys by slot: one command can wait for keys of one slot only."""
    keys_of: dict[int, tuple[bytes, ...]] = {}
    for key in keys:
        slot = key_slot(key)
        keys_of[slot] = (*keys_of.get(slot, ()), key)
    return keys_of


class Patience:
    """Limits the retries of one call, and gives the pauses between them.

    Args:
        retry_for: seconds after the first failure for which it is tried again while nothing
            changes.
        clock: returns monotonic seconds.
        draw: returns random numbers from 0 to 1; None = `random.random`.
    """

    def __init__(
        self,
        retry_for: float,
        clock: Callable[[], float],
        draw: Callable[[], float] | None = None,
    ) -> None:
        self._retry_for = retry_for
        self._clock = clock
        self._draw = draw or random.random
        self._since = math.inf
        self._lost: float | None = None
        self._tries = 0
        self._hops = 0
        self._keys_left: int | None = None

    @property
    def is_unsure(self) -> bool:
        """True if the call may have run without an answer."""
        return self._lost is not None

    def lost(self) -> None:
        """Note that no answer came: the call may have run."""
        if self._lost is None:
            self._lost = self._clock()

    def hop(self) -> float | None:
        """Return the seconds until a redirection is followed; None = give up."""
        self._hops += 1
        return 0.0 if self._hops <= MAX_REDIRECTS else self.pause(LONGEST_MIGRATION_PAUSE)

    def watch(self, keys_left: int) -> None:
        """Note the progress of a migration: as long as that changes the call is tried again."""
        if keys_left != self._keys_left:
            self._keys_left, self._since = keys_left, self._clock()

    def pause(self, most: float = math.inf) -> float | None:
        """Return the seconds until the next try; None = give up."""
        now = self._clock()
        self._since = min(self._since, now)
        self._tries += 1
        if self._tries > 1 and now >= self._since + self._retry_for:
            return None
        if self._lost is not None and now >= self._lost + MAX_REPEAT_SECONDS:
            return None
        return self._draw() * min(most, longest_pause(self._tries, now - self._since))
