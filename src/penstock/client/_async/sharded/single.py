"""A client of one source: it uses that node, and the others as soon as that node lists some.

A client that was given one node of a federation must know the other ones, so it reads the list of
that node and joins them (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.queue import AsyncQueue
from penstock.client._async.role import AsyncRole
from penstock.client._async.sharded.federated_node import AsyncFederatedNode
from penstock.client._async.sharded.federation import REFRESH, AsyncFederation
from penstock.client._async.sharded.node_client import AsyncNodeClient
from penstock.client._async.sharded.sharded_queue import (
    AsyncObservedShardedQueue,
    AsyncShardedQueue,
)
from penstock.client._async.transport.connection import monotonic
from penstock.core.config import ClientConfig
from penstock.core.logs import get_logger
from penstock.core.node_list import others
from penstock.core.operations import Taken
from penstock.core.options import BATCH, Duration, RoleName, check_block, check_count
from penstock.errors import NodesUnavailable

if TYPE_CHECKING:
    from penstock.client._async.job import AsyncJob
    from penstock.client._async.sharded.shard import AsyncShard

__all__ = ["AsyncSingle"]

logger = get_logger("penstock")
T = TypeVar("T")

AGAIN = 1.0
"""Seconds after which the list is read again when that has failed."""


class AsyncSingle:
    """The node of a client that was given one source, or the federation that it has joined.

    A queue with partitions uses it like a federation: other attributes are those of the node or the
    federation in use.

    Args:
        source: a URL or a redis-py client.
        terms: configuration of the client.

    Attributes:
        member: the node.
        federation: the node and the others; None = no others are known.
        look_at: time of the clock when the list is read again.
    """

    def __init__(self, source: Any, terms: ClientConfig) -> None:
        self.member = AsyncNodeClient(source, terms)
        self.federation: AsyncFederation | None = None
        self.look_at = -math.inf
        self._queues: weakref.WeakSet[AsyncSingleQueue | AsyncShardedQueue] = weakref.WeakSet()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    @property
    def now(self) -> AsyncNodeClient | AsyncFederation:
        """Node or federation in use; the list of nodes is not read."""
        return self.federation or self.member

    async def current(self) -> AsyncNodeClient | AsyncFederation:
        """Return the node or the federation; read the list if that is due."""
        if self.federation is None and monotonic() >= self.look_at:
            await self.look()
        return self.federation or self.member

    async def look(self) -> bool:
        """Read the node's list and join the nodes in it; return True if there are some."""
        if self.federation is None and await self.has_others():
            self.join()
        return self.federation is not None

    async def has_others(self) -> bool:
        """Read the node's list; return True if it names other nodes.

        Errors are left to the next call of the client.
        """
        node = self.member.node
        try:
            await node.reach()
            await self.member.connect()
            told = await node.listed()
            found = bool(told) and bool(others(told, await node.whole_id()))
        except Exception as error:  # noqa: BLE001  # the next call reports it
            logger.debug("the list of nodes can't be read: %s", error)
            self.look_at = monotonic() + AGAIN
            return False
        self.look_at = monotonic() + REFRESH
        return found

    def join(self) -> AsyncFederation:
        """Become a client of several nodes; nothing is sent."""
        if self.federation is None:
            member = self.member
            home = AsyncFederatedNode(member.source, member.terms, node=member.node)
            made = AsyncFederation([member.source], member.terms, [home])
            for queue in list(self._queues):
                queue.join(made, home)
            self.federation = made
        return self.federation

    def queue(self, name: str, partitions: int | None = None) -> AsyncQueue:
        """Return the queue of this name."""
        if self.federation is not None:
            return self.federation.queue(name, partitions)
        is_observed = bool(self.member.terms.middleware)
        queue: AsyncSingleQueue | AsyncShardedQueue
        if partitions is None:
            queue = (AsyncObservedSingleQueue if is_observed else AsyncSingleQueue)(self, name)
        else:
            made = AsyncObservedShardedQueue if is_observed else AsyncShardedQueue
            queue = made(self, name, partitions)
        self._queues.add(queue)
        found = self.now
        if isinstance(found, AsyncFederation):  # another thread has joined meanwhile
            queue.join(found, found.homes[0])
        return queue

    async def each(self, ask: Callable[[Any], Awaitable[T]]) -> tuple[list[tuple[Any, T]], Any]:
        """Ask the node, or every node: see `AsyncFederation.each`."""
        await self.current()
        found: tuple[list[tuple[Any, T]], Any] = await self.now.each(ask)
        return found

    async def produce(
        self,
        parts: Callable[[], Sequence[AsyncShard]],
        attempt: Callable[[AsyncShard], Awaitable[T]],
    ) -> T:
        """Add jobs to the first part that takes them; if the only node is leaving, join others."""
        site = await self.current()
        try:
            return await site.produce(parts, attempt)
        except NodesUnavailable:
            if site is not self.member or not await self.look():
                raise
        return await self.now.produce(parts, attempt)

    async def reserve(
        self, queues: Sequence[AsyncQueue], n: int, wait: float | None, seen: Taken | None = None
    ) -> list[AsyncJob]:
        """Take up to n jobs from several queues; a long wait is interrupted to read the list.

        Args:
            queues: in order of preference.
            n: limit.
            wait: seconds, None = for ever.
            seen: the reply, without jobs, that the only queue gave a moment ago.
        """
        until = math.inf if wait is None else monotonic() + wait
        while True:
            await self.current()
            left = max(0.0, until - monotonic())
            if self.federation is not None:
                return await self.federation.reserve(queues, n, None if wait is None else left)
            span = max(0.0, min(left, self.look_at - monotonic()))
            jobs = await self.member.reserve(queues, n, span, seen)
            if jobs or monotonic() >= until:
                return jobs
            seen = None

    async def connect(self) -> None:
        """Reach the node, or one of several."""
        await (await self.current()).connect()

    async def close(self) -> None:
        """Close the connections."""
        await self.member.close()
        if self.federation is not None:
            await self.federation.close()


class AsyncSingleQueue(AsyncQueue):
    """A queue of a client of one source: an ordinary one, until its node lists others.

    Each call reads the list of nodes first, when that is due. If the list names other nodes, `join`
    makes an `AsyncShardedQueue` of the object, and that runs the call. Calls of other threads go on
    as they began, so they must not look methods up by `super`.

    Args:
        single: the node, or the federation.
        name: any non-empty text.
    """

    def __init__(self, single: AsyncSingle, name: str) -> None:
        super().__init__(single.member, name)
        self._single = single

    def join(self, federation: AsyncFederation, home: AsyncFederatedNode) -> None:
        """Become a queue on several nodes; jobs that were delivered stay its jobs.

        Args:
            federation: the nodes.
            home: the node of this queue until now.
        """
        whole: Any = self
        ops, is_observed = self.ops, isinstance(self, AsyncObservedQueue)
        AsyncShardedQueue.__init__(whole, federation, self.name)
        AsyncShardedQueue.adopt(whole, ops, home, None)
        whole.ops = ops  # of calls that are under way
        whole.__class__ = AsyncObservedShardedQueue if is_observed else AsyncShardedQueue
        federation.watch(whole)

    async def _may_add(self) -> bool:
        single, client = self._single, self._single.member
        if monotonic() >= single.look_at and await single.look():
            return False
        try:
            await client.check_taking()
        except NodesUnavailable:  # the node is leaving
            if await single.look():
                return False
            raise
        client.taking_until = min(client.taking_until, single.look_at)
        return True

    async def _has_moved(self) -> bool:
        return await self._single.look()

    async def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[AsyncJob]:
        """Take up to n jobs under a lease. Args, returns, raises: as `AsyncQueue.reserve`."""
        if type(n) is not int or not 0 < n <= BATCH or monotonic() >= self._single.look_at:
            check_count("n", n)
            return await self._single.reserve([self], n, check_block(block))
        wait = block if type(block) is int and 0 <= block < 1000 else check_block(block)
        taken = await self.backend.node.run(self.ops.reserve(n))
        if taken.deliveries:
            return taken.deliveries
        if taken.is_over:
            raise self.ops.drained()
        if wait == 0 and taken.next_ms != 0:
            return []
        return await self._single.reserve([self], n, wait, taken if taken.next_ms else None)

    def exclusive(
        self, role: RoleName, *, lease: Duration = 30, block: Duration | None = None
    ) -> AsyncRole:
        """Return an exclusive role. Args, raises: as `AsyncQueue.exclusive`."""
        return AsyncRole(self, role, lease, block, self._lone)

    async def _lone(self) -> AsyncQueue:
        if await self._single.look():
            self.exclusive("producer")  # it is a sharded queue now, which raises
        return self._single.member.queue(self.name)


class AsyncObservedSingleQueue(AsyncObservedQueue, AsyncSingleQueue):
    """A queue of a client of one source, whose enqueues pass through the middleware."""


def _looking(name: str) -> Any:
    inner = getattr(AsyncQueue, name)

    @functools.wraps(inner)
    async def method(self: AsyncSingleQueue, *args: Any, **options: Any) -> Any:
        if monotonic() >= self._single.look_at and await self._single.look():
            return await getattr(self, name)(*args, **options)
        return await inner(self, *args, **options)

    return method


for _name in (
    "_ack_one", "_add_all", "_asked", "_clear", "_configured", "_receipt_of", "_routed", "_settled",
    "peek", "scan", "settle", "stats",
):  # fmt: skip
    setattr(AsyncSingleQueue, _name, _looking(_name))
