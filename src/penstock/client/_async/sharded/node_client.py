"""One node, and an ordinary client of it: what a `Penstock` of one node is made of."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from penstock.client._acompat import AsyncSignal
from penstock.client._async.job import AsyncJob
from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.queue import AsyncQueue
from penstock.client._async.sharded.alone import AsyncAlone
from penstock.client._async.sharded.sharded_queue import (
    AsyncObservedShardedQueue,
    AsyncShardedQueue,
)
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.driver import AsyncDriver
from penstock.client._async.transport.failures import passing
from penstock.client._async.transport.node import AsyncNode
from penstock.core import flows
from penstock.core.config import ClientConfig, QueueFilter
from penstock.core.logs import get_logger
from penstock.core.nodes import LOOK
from penstock.core.operations import QueueOps, Taken
from penstock.core.options import BATCH, QUEUE_CURSOR, check_cursor
from penstock.core.servers import PROTOCOL_VERSION, ServerFacts
from penstock.core.views import Hello, Info, NodeView, QueuePage, QueueStats
from penstock.errors import NodesUnavailable, QueueDamaged
from penstock.wire.keys import QueueKeys, node_key, split_name

__all__ = ["BRIEF", "AsyncNodeClient"]

logger = get_logger("penstock")

BRIEF = 2.0
"""Seconds that a consumer waits for a reply while others may have jobs."""


def _noted(part: QueueOps, count: int | None) -> None:
    """A part of a queue was asked, and gave so many, or did not answer."""
    if part.partitions is not None:
        part.queue.noted(part, count)


class Totals(NamedTuple):
    """Sums over the queues of a node."""

    queues: int
    waiting: int
    active: int
    dead: int


class AsyncNodeClient:
    """A node as a client sees it, with all that is asked of one node.

    Args:
        source: a URL or a redis-py client.
        terms: what the client was told.
        node: its connections; None = of its own.

    Attributes:
        taking_until: until when by the clock the node is believed to take jobs.
    """

    def __init__(self, source: Any, terms: ClientConfig, node: AsyncNode | None = None) -> None:
        self.source = source
        self.terms = terms
        self._node = node or AsyncNode(source, prefix=terms.prefix, retry_for=terms.retry_for)
        self._driver = AsyncDriver(self._node, terms.prefix)
        self._alone = AsyncAlone(self)
        self._ear: AsyncDriver | None = None
        self.taking_until = -math.inf

    @property
    def address(self) -> str:
        """Host and port, or path of the socket."""
        return self._node.address

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return self.terms.prefix

    @property
    def owner(self) -> str:
        """Who reserves."""
        return self.terms.owner

    @property
    def middleware(self) -> tuple[Any, ...]:
        """Hooks."""
        return self.terms.middleware

    def queue(self, name: str, partitions: int | None = None) -> AsyncQueue:
        """The queue of this name on this node."""
        if partitions is None:
            return (AsyncObservedQueue if self.middleware else AsyncQueue)(self, name)
        made = AsyncObservedShardedQueue if self.middleware else AsyncShardedQueue
        return made(self._alone, name, partitions)

    async def partitions(self, name: str) -> int | None:
        """How many partitions a queue has; 0 = it is an ordinary queue, None = it is not there."""
        await self.connect()
        return await self._driver.partitions(name)

    async def connect(self) -> None:
        """Reach the server, check it and learn its id, unless that was done."""
        if not self._node.id:
            await self._node.prepare()

    async def check_taking(self) -> None:
        """Read the node's flag `leaving`, before jobs are added.

        Raises:
            NodesUnavailable: the node takes no new jobs.
        """
        await self.connect()
        if await self.is_leaving():
            raise NodesUnavailable("no node takes jobs", {self._node.address: "leaving"})
        self.taking_until = monotonic() + LOOK

    async def is_leaving(self) -> bool:
        """Whether the node takes no new jobs."""
        return bool(await self._node.command("HGET", node_key(self.prefix), "leaving"))

    async def close(self) -> None:
        """Close the connections."""
        await self._node.close()
        if self._ear is not None:
            await self._ear.node.close()

    @property
    def _hasty(self) -> AsyncDriver:
        """A driver whose calls fail soon, for what other servers of a cluster could do as well."""
        if self._ear is None:
            twin = self._node.twin(retry_for=self.terms.retry_for, socket_timeout=BRIEF)
            self._ear = AsyncDriver(twin, self.prefix)
        self._ear.node.id = self._node.id
        return self._ear

    async def reserve(
        self, queues: Sequence[AsyncQueue], n: int, wait: float | None, seen: Taken | None = None
    ) -> list[AsyncJob]:
        """Take up to n jobs from several queues, the first queue first.

        Args:
            queues: where.
            n: at most so many.
            wait: seconds, None = for ever.
            seen: what the only queue answered a moment ago: nothing.
        """
        await self.connect()
        sources: list[QueueOps] = []
        eager: int | None = 1
        for queue in queues:
            await queue.declare()
            parts, eager = queue.asked(monotonic())
            sources += parts
        if len(sources) == 1 and n <= BATCH and seen is None:
            taken = await self._driver.reserve(sources[0], n, idle=False)
            if taken.is_over:
                raise sources[0].drained()
            if taken.deliveries or (wait == 0 and taken.next_ms != 0):
                return taken.deliveries
            seen = taken if taken.next_ms != 0 else None
        apart = self.is_apart and any(queue.partitions for queue in queues)
        flow = flows.reserve(
            sources,
            n,
            wait,
            clock=monotonic,
            transient=passing,
            seen=seen,
            apart=apart,
            noted=_noted,
            eager=eager if len(queues) == 1 else None,
        )
        jobs: list[AsyncJob] = await (self._hasty if apart else self._driver).drive(flow)
        return jobs

    @property
    def is_apart(self) -> bool:
        """Whether waits for several queues stand by themselves; known from the first call on."""
        return self._node.is_cluster

    async def drive(self, flow: Generator[Any, Any, Any], signal: AsyncSignal | None = None) -> Any:
        """Run a flow to its end; its result."""
        return await self._driver.drive(flow, signal)

    async def queues(self, pattern: str) -> list[str]:
        """The names of the queues that exist, sorted."""
        await self.connect()
        names: dict[str, None] = {}
        for listed, epoch in await self._driver.registry():
            name, number = split_name(listed)
            keys = QueueKeys(name, self.prefix, number)
            is_new = name not in names and fnmatchcase(name, pattern)
            if is_new and await self._exists(keys, epoch):
                names[name] = None
        return sorted(names)

    async def _exists(self, keys: QueueKeys, epoch: str) -> bool:
        """Whether an entry of the registry is that of a living queue."""
        found = await self._node.command("HGET", keys["meta"], "epoch")
        return bool(found == epoch.encode())

    async def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter) -> QueuePage:
        """One step through the registry."""
        at = check_cursor("cursor", cursor, QUEUE_CURSOR)
        await self.connect()
        after, entries = await self._driver.registry_page(at, n)
        found = [
            stats if number is None else await self._whole(stats.name, number)
            for stats, number in await self._living(entries)
        ]
        return QueuePage(after, [stats for stats in found if stats and is_wanted(stats)])

    async def _whole(self, name: str, number: int) -> QueueStats | None:
        """The figures of a queue with partitions; None = an earlier one of them stands for it."""
        for earlier in range(number):
            if (await AsyncQueue(self, name, earlier).stats()).exists:
                return None
        return await self.queue(name, await self._driver.partitions(name) or None).stats()

    async def _living(self, entries: list[tuple[str, str]]) -> list[tuple[QueueStats, int | None]]:
        """The figures of what is as the registry lists it, and which partition it is."""
        found = []
        for listed, epoch in entries:
            name, number = split_name(listed)
            try:
                stats = await AsyncQueue(self, name, number).stats()
            except QueueDamaged as error:  # no reason to hide the others
                logger.warning("queue %r is left out: %s", name, error)
                continue
            if stats.epoch == epoch:
                found.append((stats, number))
        return found

    async def hello(self) -> Hello:
        """Who it is."""
        await self.connect()
        view = await self.view()
        return Hello(PROTOCOL_VERSION, view.id, (view,))

    async def view(self) -> NodeView:
        """The node in words."""
        facts = await self._node.server_facts()
        leaving = await self.is_leaving()
        return NodeView(
            id=await self._node.whole_id(),
            address=self._node.address,
            priority=100 if leaving else 10 if facts.is_crowded else 1,
            used_memory=facts.number("used_memory"),
            max_memory=facts.number("maxmemory"),
            leaving=leaving,
        )

    async def info(self) -> Info:
        """The state of the node."""
        await self.connect()
        facts = await self._node.server_facts()
        totals = await self.totals()
        return facts.info(
            node=await self._node.whole_id(),
            queues=totals.queues,
            jobs=totals.waiting + totals.active + totals.dead,
            waiting=totals.waiting,
        )

    async def totals(self) -> Totals:
        """How many jobs all queues have."""
        living = await self._living(await self._driver.registry())
        found = [stats for stats, _ in living]
        return Totals(
            len({stats.name for stats in found}),
            sum(stats.ready + stats.scheduled for stats in found),
            sum(stats.active for stats in found),
            sum(stats.dead for stats in found),
        )

    async def server_facts(self) -> ServerFacts:
        """What the server says of itself now."""
        return await self._node.server_facts()

    async def command(self, *args: Any) -> Any:
        """A plain command."""
        return await self._node.command(*args)
