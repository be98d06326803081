"""A primary with two replicas, real servers on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from penstock.embedded import EmbeddedServer
from tests.support.keyspace import Raw, check_invariant, load_scripts
from tests.support.twins import wait_for

__all__ = ["Replicated", "reach_replicas", "replicated"]

COUNTED = ("evalsha", "wait")


def reach_replicas(raw: Raw, count: int) -> None:
    """Return when so many replicas have all that the server has executed before.

    WAIT is about the writes of its own connection, so this one writes: without one, a replica that
    has nothing yet is counted.
    """
    wait_for(lambda: _write(raw) and raw.wait(count, 500) == count, 30)


def _write(raw: Raw) -> bool:
    return bool(raw.incr("reached") and raw.delete("reached"))


class Replicated:
    """A primary and two replicas.

    Args:
        servers: the primary first.
        clients: of each.
    """

    def __init__(self, servers: list[EmbeddedServer], clients: list[Raw]) -> None:
        self.primary, *self.replicas = servers
        self.raw, *self.copies = clients
        self.url = self.primary.url
        for replica in range(len(self.replicas)):
            self.attach(replica)
        self.settle()

    def attach(self, replica: int) -> None:
        """Let a replica follow the primary."""
        self.copies[replica].replicaof(*map(str, self.primary.address))

    def cut(self, replica: int) -> None:
        """Detach a replica; the primary knows it when this returns."""
        count = self.online
        self.copies[replica].replicaof("NO", "ONE")
        wait_for(lambda: self.online < count)

    @property
    def online(self) -> int:
        """Return the number of connected replicas."""
        found = self.raw.info("replication")
        return sum(
            isinstance(value, dict) and value.get("state") == "online" for value in found.values()
        )

    def settle(self) -> None:
        """Return when both follow and have all data."""
        wait_for(lambda: self.online == 2 and all(map(self._has_all, self.copies)))

    def _has_all(self, copy: Raw) -> bool:
        """WAIT is not enough: Valkey counts a replica without data if this client wrote nothing."""
        found, wanted = copy.info("replication"), self.raw.info("replication")
        if found.get("master_link_status") != "up":
            return False
        return int(found["slave_repl_offset"]) >= int(wanted["master_repl_offset"])

    def calls(self) -> list[int]:
        """Count the relevant commands."""
        stats = self.raw.info("commandstats")
        return [int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in COUNTED]

    def bodies(self) -> list[list[Any]]:
        """Return the waiting bodies on the primary and on each replica."""
        key = "penstock:{q}:ready"
        return [
            [entry[1][b"j"].partition(b"\n")[2] for entry in raw.xrange(key)]
            for raw in (self.raw, *self.copies)
        ]


@contextmanager
def replicated(make_server: Callable[..., EmbeddedServer]) -> Iterator[Replicated]:
    """A primary and two replicas that follow it; no replica is left paused."""
    options = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "60")
    servers = [make_server(tcp=True, args=options) for _ in range(3)]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(redis.Redis.from_url(server.url, protocol=2)) for server in servers
        ]
        made = Replicated(servers, clients)
        load_scripts(made.raw)
        yield made
        for server in servers:
            server.resume()
        check_invariant(made.raw)
