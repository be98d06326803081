"""The client: one server, its queues."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from redis.asyncio import Redis

from penstock._async.connection import AsyncNode, monotonic
from penstock._async.driver import AsyncDriver
from penstock._async.job import AsyncJob
from penstock._async.queue import AsyncQueue
from penstock.core import flows
from penstock.core.options import BATCH, Duration, check_block, check_count, duration_ms
from penstock.core.servers import ServerFacts
from penstock.errors import BadArgument, MetaLost
from penstock.wire.keys import DEFAULT_PREFIX, QueueKeys, check_prefix, check_queue_name


class AsyncPenstock:
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
        self._node = AsyncNode(source, prefix=prefix, retry_for=wait)
        self._driver = AsyncDriver(self._node, prefix)
        self._queues: dict[str, AsyncQueue] = {}

    async def connect(self) -> AsyncPenstock:
        """Reach the server, check it and learn its id; every call does so if need be.

        Raises:
            UnsupportedServer: older than Redis 6.2.
            redis.exceptions.ConnectionError: not reached within `retry_for`.
        """
        if not self._node.id:
            await self._node.prepare()
        return self

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        await self._node.close()

    async def __aenter__(self) -> AsyncPenstock:
        try:
            return await self.connect()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def queue(self, name: str) -> AsyncQueue:
        """The queue of this name; nothing is sent.

        Raises:
            BadArgument: not a str, empty, over 1024 bytes, or with a NUL.
        """
        found = self._queues.get(check_queue_name(name))
        if found is None:
            found = AsyncQueue(self, name)
            if len(self._queues) >= 10_000:
                self._queues.clear()
            self._queues[name] = found
        return found

    async def reserve(
        self, queues: Iterable[AsyncQueue | str], n: int = 1, *, block: Duration | None = 5
    ) -> list[AsyncJob]:
        """Take up to n jobs from several queues, the first queue first.

        Args:
            queues: queues or names, in order of preference; each named once.
            n, block: as in `AsyncQueue.reserve`.

        Returns:
            The jobs in order; empty if there was none in time.
        """
        check_count("n", n)
        wait = check_block(block)
        if isinstance(queues, (str, bytes)) or not isinstance(queues, Iterable):
            raise BadArgument("queues", queues, "an iterable of queues or names")
        sources = [q.ops if isinstance(q, AsyncQueue) else self.queue(q).ops for q in queues]
        if not sources or len({ops.name for ops in sources}) < len(sources):
            raise BadArgument("queues", [ops.name for ops in sources], "one or more, each once")
        await self.connect()
        seen = None
        if len(sources) == 1 and n <= BATCH:
            with suppress(MetaLost):  # the flow mends it
                taken = await self._driver.reserve(sources[0], n, idle=False)
                if taken.deliveries or (wait == 0 and taken.next_ms != 0):
                    return taken.deliveries
                seen = taken if taken.next_ms != 0 else None
        flow = flows.reserve(sources, n, wait, clock=monotonic, seen=seen)
        jobs: list[AsyncJob] = await self._driver.drive(flow)
        return jobs

    async def queues(self) -> list[str]:
        """The names of the queues that exist, sorted."""
        await self.connect()
        names = []
        for name, epoch in await self._driver.registry():
            key = QueueKeys(name, self.prefix)["meta"]
            if await self._node.command("HGET", key, "epoch") == epoch.encode():
                names.append(name)
        return sorted(names)

    async def sweep(self) -> int:
        """Sweep every queue; see `AsyncQueue.sweep`. Returns how many jobs were removed."""
        return sum([await self.queue(name).sweep() for name in await self.queues()])

    async def server_facts(self) -> ServerFacts:
        """What the server says of itself now."""
        return await self._node.server_facts()

    async def command(self, *args: Any) -> Any:
        """A plain Redis command on a connection of this client, its reply undecoded; for tools."""
        return await self._node.command(*args)


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
