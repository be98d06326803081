"""The client of one node."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._acompat import AsyncSignal
from penstock.client._async.job import AsyncJob
from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.queue import AsyncQueue
from penstock.client._async.sharded.parts import ask_order, sources_of
from penstock.client._async.sharded.sharded_queue import AsyncShardedQueue, sharded_queue
from penstock.client._async.transport.driver import AsyncDriver
from penstock.client._async.transport.node import AsyncNode
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.config import ClientConfig, QueueFilter
from penstock.core.calls.operations import Taken
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.views import QueuePage, QueueStats
from penstock.core.nodes.servers import PROTOCOL_VERSION
from penstock.core.nodes.state import FLAG_MAX_AGE, NodeState
from penstock.core.values.checks import BATCH, QUEUE_CURSOR, check_cursor
from penstock.core.values.confirmations import Wait
from penstock.errors import NodesUnavailable, QueueDamaged, WrongNode
from penstock.wire.keys import QueueKeys, node_key, split_name

if TYPE_CHECKING:
    from penstock.client._async.sharded.shard import AsyncShard
    from penstock.core.nodes.node_views import Hello, Info, NodeView

__all__ = ["BRIEF", "AsyncNodeClient"]

logger = get_logger("penstock")
T = TypeVar("T")

BRIEF = 2.0
"""Seconds that a consumer waits for a reply while other servers may have jobs."""


class AsyncNodeClient:
    """The client of one node.

    A queue with partitions uses it like a federation that has one node: see `AsyncFederation` for
    the methods that both have. There is no other node to fail over to, so errors are raised as they
    are.

    Args:
        source: a URL or a redis-py client.
        terms: configuration of the client.
        node: its connections; None = make them.

    Attributes:
        driver: runs flows on the node.
        taking_until: time of the clock until which the node is believed to take jobs.
        homes: this node.
        brief: this node; an `AsyncFederatedNode` has several kinds of connections.
        missed: no nodes, as it is the only one.
        state: always up.
    """

    is_federated = False
    missed: Mapping[str, str] = MappingProxyType({})

    def __init__(self, source: Any, terms: ClientConfig, node: AsyncNode | None = None) -> None:
        self.source = source
        self.terms = terms
        self.node = node or AsyncNode(source, prefix=terms.prefix, retry_for=terms.retry_for)
        self.driver = AsyncDriver(self.node, terms.prefix)
        self._brief_driver: AsyncDriver | None = None
        self.taking_until = -math.inf
        self.brief = self
        self.homes = [self]
        self.state = NodeState(met=True)

    @property
    def id(self) -> str:
        """First 8 digits of the node's id; empty until it is known."""
        return self.node.id

    @property
    def address(self) -> str:
        """Address of the node, for people."""
        return self.node.address

    def queue(self, name: str, partitions: int | None = None) -> AsyncQueue:
        """Return the queue of this name on this node."""
        if partitions is not None:
            return sharded_queue(self, name, partitions)
        return (AsyncObservedQueue if self.terms.middleware else AsyncQueue)(self, name)

    async def partitions(self, name: str) -> int | None:
        """Return the number of partitions of a queue: 0 = it has none, None = no such queue."""
        return (await self.partitions_of([name]))[0]

    async def partitions_of(self, names: Iterable[str]) -> list[int | None]:
        """Return the number of partitions of each queue."""
        await self.connect()
        return await self.driver.partitions_of(names)

    async def connect(self) -> None:
        """Reach the server, check it and learn its id, unless that was done."""
        if not self.node.id:
            await self.node.prepare()

    # -- as a federation of one node -------------------------------------------------------

    def home_of(self, node: str, name: object) -> AsyncNodeClient:
        """Return this node.

        Raises:
            WrongNode: `node` is not the prefix of one of its ids.
        """
        known = self.node.known
        if known and node not in known:
            told = f"node {node} is unknown, this client knows {', '.join(known)}: add its URL"
            raise WrongNode("id", name, told)
        return self

    def note_failure(self, home: object, error: BaseException) -> bool:  # noqa: ARG002  # as a federation
        """Return False: no other node makes up for a failure."""
        return False

    async def tried(self, home: object, ask: Callable[[], Awaitable[T]]) -> T | None:  # noqa: ARG002  # a federation uses it
        """Ask this node."""
        return await ask()

    async def each(
        self, ask: Callable[[AsyncNodeClient], Awaitable[T]]
    ) -> tuple[list[tuple[AsyncNodeClient, T]], dict[str, str]]:
        """Ask this node."""
        await self.connect()
        return [(self, await ask(self))], {}

    async def produce(
        self,
        part_on: Callable[[AsyncNodeClient], AsyncShard],
        attempt: Callable[[AsyncShard], Awaitable[T]],
    ) -> T:
        """Add jobs to the only part."""
        return await attempt(part_on(self))

    # -- this node -------------------------------------------------------------------------

    async def check_taking(self) -> bool:
        """Check that the node takes new jobs, before some are added. Return True.

        Raises:
            NodesUnavailable: its flag `leaving` is set.
        """
        await self.connect()
        if await self.is_leaving():
            raise NodesUnavailable("no node takes jobs", {self.node.address: "leaving"})
        self.taking_until = monotonic() + FLAG_MAX_AGE
        return True

    async def is_leaving(self) -> bool:
        """Return True if the node takes no new jobs."""
        return bool(await self.node.command("HGET", node_key(self.terms.prefix), "leaving"))

    async def close(self) -> None:
        """Close the connections."""
        await self.node.close()
        if self._brief_driver is not None:
            await self._brief_driver.node.close()

    def _driver_apart(self) -> AsyncDriver:
        """Return a driver whose calls fail soon: other servers of the cluster may have jobs."""
        if self._brief_driver is None:
            twin = self.node.twin(retry_for=self.terms.retry_for, socket_timeout=BRIEF)
            self._brief_driver = AsyncDriver(twin, self.terms.prefix)
        self._brief_driver.node.id = self.node.id
        return self._brief_driver

    async def reserve(
        self,
        queues: Sequence[AsyncQueue],
        n: int,
        wait: float | None,
        seen: Taken | None = None,
        confirm: Wait | None = None,
    ) -> list[AsyncJob]:
        """Take up to n jobs from several queues, the first queue first.

        Args:
            queues: in order of preference.
            n: limit.
            wait: seconds, None = for ever.
            seen: the reply, without jobs, that the only queue gave a moment ago.
            confirm: the confirmations of deliveries at most once.
        """
        await self.connect()
        for queue in queues:
            if isinstance(queue, AsyncShardedQueue):
                await queue.declare()
        parts, _ = ask_order(queues)
        if len(parts) == 1 and n <= BATCH and seen is None and confirm is None:
            taken = await self.node.run(parts[0].reserve(n))
            if taken.is_over:
                raise parts[0].drained()
            if taken.deliveries or (wait == 0 and taken.next_ms != 0):
                return taken.deliveries
            seen = taken if taken.next_ms != 0 else None
        apart = self.is_apart and any(queue.partitions for queue in queues)
        sources = sources_of(queues, apart=apart and len(parts) > 1, wait=confirm)
        flow = flows.reserve(sources, n, wait, seen)
        return await (self._driver_apart() if apart else self.driver).drive(flow)

    @property
    def is_apart(self) -> bool:
        """Return True if queues may lie on several servers; known from the first call on."""
        return self.node.is_cluster

    async def drive(self, flow: Generator[Any, Any, T], signal: AsyncSignal | None = None) -> T:
        """Run a flow to its end and return its result."""
        return await self.driver.drive(flow, signal)

    async def queues(self, pattern: str) -> list[str]:
        """Return the names of the queues that exist, sorted."""
        await self.connect()
        names = set[str]()
        for listed, epoch in await self.node.registry():
            name, number = split_name(listed)
            if name not in names and fnmatchcase(name, pattern):
                meta = QueueKeys(name, self.terms.prefix, number)["meta"]
                if await self.node.command("HGET", meta, "epoch") == epoch.encode():
                    names.add(name)
        return sorted(names)

    async def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter) -> QueuePage:
        """Return one page of the registry."""
        at = check_cursor("cursor", cursor, QUEUE_CURSOR)
        await self.connect()
        after, entries = await self.driver.registry_page(at, n)
        found = [
            stats if number is None else await self._whole(stats.name, number)
            for stats, number in await self._living(entries)
        ]
        return QueuePage(after, [stats for stats in found if stats and is_wanted(stats)])

    async def _whole(self, name: str, number: int) -> QueueStats | None:
        """Return the figures of a queue with partitions; None if an earlier partition exists."""
        for earlier in range(number):
            if (await AsyncQueue(self, name, earlier).stats()).exists:
                return None
        return await self.queue(name, await self.driver.partitions(name) or None).stats()

    async def _living(self, entries: list[tuple[str, str]]) -> list[tuple[QueueStats, int | None]]:
        found = []
        for listed, epoch in entries:
            name, number = split_name(listed)
            try:
                stats = await AsyncQueue(self, name, number).stats()
            except QueueDamaged as error:  # the others are still shown
                logger.warning("queue %r is left out: %s", name, error)
                continue
            if stats.epoch == epoch:
                found.append((stats, number))
        return found

    async def hello(self) -> Hello:
        """Return the protocol version and the node."""
        from penstock.core.nodes.node_views import Hello

        await self.connect()
        view = await self.view()
        return Hello(PROTOCOL_VERSION, view.id, (view,))

    async def view(self) -> NodeView:
        """Return address, memory and flags of the node."""
        from penstock.core.nodes.node_views import NodeView

        facts = await self.node.server_facts()
        leaving = await self.is_leaving()
        return NodeView(
            id=await self.node.whole_id(),
            address=self.node.address,
            priority=100 if leaving else 10 if facts.is_crowded else 1,
            used_memory=facts.number("used_memory"),
            max_memory=facts.number("maxmemory"),
            leaving=leaving,
        )

    async def info(self) -> Info:
        """Return the state of the server, and how many queues and jobs it has."""
        await self.connect()
        facts = await self.node.server_facts()
        found = await self.living()
        waiting = sum(one.ready + one.scheduled + one.parked for one in found)
        return facts.info(
            node=await self.node.whole_id(),
            queues=len({one.name for one in found}),
            jobs=waiting + sum(one.active + one.dead for one in found),
            waiting=waiting,
        )

    async def living(self) -> list[QueueStats]:
        """Return the figures of all queues, each partition by itself."""
        return [stats for stats, _ in await self._living(await self.node.registry())]
