# Generated from src/penstock/_async/client.py by tools/unasync.py; do not edit.
"""The client: one server, its queues."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from redis import Redis

from penstock._sync.connection import Node, monotonic
from penstock._sync.driver import Driver
from penstock._sync.job import Job
from penstock._sync.queue import Queue
from penstock.core import flows
from penstock.core.options import BATCH, Duration, check_block, check_count, duration_ms
from penstock.core.servers import ServerFacts
from penstock.errors import BadArgument, MetaLost
from penstock.wire.keys import DEFAULT_PREFIX, QueueKeys, check_prefix, check_queue_name


class Penstock:
    """Queues on one Redis.

    Opens connections of its own when they are needed: a client that is passed in only lends its
    settings. Safe to share between tasks; a forked child opens connections anew.

    Args:
        source: a URL (`redis://`, `rediss://`, `unix://`) or a redis-py client.
        prefix: prefix of all keys.
        owner: who reserves, kept with each delivery; default host and process.
        retry_for: seconds for which a call is tried again when the connection fails, before
            redis-py's exception is raised; at most 300.

    Raises:
        BadArgument, ConfigurationError: the source can't be used.
    """

    def __init__(
        self,
        source: str | Redis = "redis://localhost:6379/0",
        *,
        prefix: str = DEFAULT_PREFIX,
        owner: str | None = None,
        retry_for: Duration = 5,
    ) -> None:
        self.prefix = check_prefix(prefix)
        self.owner = check_owner(owner)
        wait = duration_ms("retry_for", retry_for) / 1000
        if wait > 300:
            raise BadArgument("retry_for", retry_for, "at most 300 s: producer keys live 600 s")
        self._node = Node(source, prefix=prefix, retry_for=wait)
        self._driver = Driver(self._node, prefix)
        self._queues: dict[str, Queue] = {}

    def connect(self) -> Penstock:
        """Reach the server, check it and learn its id; every call does so if need be.

        Raises:
            UnsupportedServer: older than Redis 6.2.
            redis.exceptions.ConnectionError: not reached within `retry_for`.
        """
        if not self._node.id:
            self._node.prepare()
        return self

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._node.close()

    def __enter__(self) -> Penstock:
        try:
            return self.connect()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def queue(self, name: str) -> Queue:
        """The queue of this name; nothing is sent.

        Raises:
            BadArgument: not a str, empty, over 1024 bytes, or with a NUL.
        """
        found = self._queues.get(check_queue_name(name))
        if found is None:
            found = Queue(self, name)
            if len(self._queues) >= 10_000:
                self._queues.clear()
            self._queues[name] = found
        return found

    def reserve(
        self, queues: Iterable[Queue | str], n: int = 1, *, block: Duration | None = 5
    ) -> list[Job]:
        """Take up to n jobs from several queues, the first queue first.

        Args:
            queues: queues or names, in order of preference; each named once.
            n, block: as in `Queue.reserve`.

        Returns:
            The jobs in order; empty if there was none in time.
        """
        check_count("n", n)
        wait = check_block(block)
        if isinstance(queues, (str, bytes)) or not isinstance(queues, Iterable):
            raise BadArgument("queues", queues, "an iterable of queues or names")
        sources = [q.ops if isinstance(q, Queue) else self.queue(q).ops for q in queues]
        if not sources or len({ops.name for ops in sources}) < len(sources):
            raise BadArgument("queues", [ops.name for ops in sources], "one or more, each once")
        self.connect()
        seen = None
        if len(sources) == 1 and n <= BATCH:
            with suppress(MetaLost):  # the flow mends it
                taken = self._driver.reserve(sources[0], n, idle=False)
                if taken.deliveries or (wait == 0 and taken.next_ms != 0):
                    return taken.deliveries
                seen = taken if taken.next_ms != 0 else None
        flow = flows.reserve(sources, n, wait, clock=monotonic, seen=seen)
        jobs: list[Job] = self._driver.drive(flow)
        return jobs

    def queues(self) -> list[str]:
        """The names of the queues that exist, sorted."""
        self.connect()
        names = []
        for name, epoch in self._driver.registry():
            key = QueueKeys(name, self.prefix)["meta"]
            if self._node.command("HGET", key, "epoch") == epoch.encode():
                names.append(name)
        return sorted(names)

    def sweep(self) -> int:
        """Sweep every queue; see `Queue.sweep`. Returns how many jobs were removed."""
        return sum([self.queue(name).sweep() for name in self.queues()])

    def server_facts(self) -> ServerFacts:
        """What the server says of itself now."""
        return self._node.server_facts()

    def command(self, *args: Any) -> Any:
        """A plain Redis command on a connection of this client, its reply undecoded; for tools."""
        return self._node.command(*args)


def check_owner(owner: object) -> str:
    """Who reserves: the given text, or host and process.

    Raises:
        BadArgument: empty, over 200 bytes, or with control characters.
    """
    if owner is None:
        return f"{socket.gethostname()}:{os.getpid()}"[:200]
    fits = isinstance(owner, str) and owner.isprintable() and 1 <= len(owner.encode()) <= 200
    if not isinstance(owner, str) or not fits:
        raise BadArgument("owner", owner, "1 to 200 bytes of printable text")
    return owner
