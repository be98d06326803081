"""A queue of a client of one source, which joins other nodes as soon as its node lists some."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.queue import AsyncQueue
from penstock.client._async.sharded.sharded_queue import (
    AsyncObservedShardedQueue,
    AsyncShardedQueue,
)
from penstock.client.clock import monotonic
from penstock.core.values.checks import BATCH, Duration, check_block, check_count
from penstock.core.values.durable import Durable, delivery_wait
from penstock.errors import NodesUnavailable

if TYPE_CHECKING:
    from penstock.client._async.backend import AsyncBackend
    from penstock.client._async.job import AsyncJob
    from penstock.client._async.sharded.federated_node import AsyncFederatedNode
    from penstock.client._async.sharded.federation import AsyncFederation

__all__ = ["AsyncObservedSingleQueue", "AsyncSingleQueue"]


class AsyncSingleQueue(AsyncQueue):
    """A queue of a client of one source: an ordinary one, until its node lists others.

    Each call reads the list of nodes first, when that is due. If the list names other nodes, `join`
    makes an `AsyncShardedQueue` of the object, and that runs the call. Calls of other threads go on
    as they began, so they must not look methods up by `super`.

    Args:
        root: the node, or the federation.
        name: any non-empty text.
    """

    def __init__(self, root: AsyncBackend, name: str) -> None:
        super().__init__(root.member, name)
        self._root = root

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
        # sync only: return self._is_taking()
        return await self._gathering.shared(self._is_taking)  # async only

    async def _is_taking(self) -> bool:
        root, client = self._root, self._root.member
        if monotonic() >= root.look_at and await root.look():
            return False
        try:
            await client.check_taking()
        except NodesUnavailable:  # the node is leaving
            if await root.look():
                return False
            raise
        client.taking_until = min(client.taking_until, root.look_at)
        return True

    def _twin(self) -> AsyncQueue:
        return self._root.member.queue(self.name)

    async def _has_moved(self) -> bool:
        return await self._root.look()

    async def reserve(
        self, n: int = 1, *, block: Duration | None = 5, durable: Durable | None = None
    ) -> list[AsyncJob]:
        """Take up to n jobs under a lease. Args, returns, raises: as `AsyncQueue.reserve`."""
        is_usual = durable is None and monotonic() < self._root.look_at
        if type(n) is not int or not 0 < n <= BATCH or not is_usual:
            check_count("n", n)
            confirm = delivery_wait(durable)
            return await self._root.reserve([self], n, check_block(block), confirm=confirm)
        wait = block if type(block) is int and 0 <= block < 1000 else check_block(block)
        taken = await self.backend.node.run(self.ops.reserve(n))
        if taken.deliveries:
            return taken.deliveries
        if taken.is_over:
            raise self.ops.drained()
        if wait == 0 and taken.next_ms != 0:
            return []
        return await self._root.reserve([self], n, wait, taken if taken.next_ms else None)

    async def _lone(self) -> AsyncQueue:
        if await self._root.look():
            self._check_roles()  # it is a sharded queue now, which raises
        return self._twin()


class AsyncObservedSingleQueue(AsyncObservedQueue, AsyncSingleQueue):
    """A queue of a client of one source, whose enqueues pass through the middleware."""


def _looking(name: str) -> Any:
    inner = getattr(AsyncQueue, name)

    @functools.wraps(inner)
    async def method(self: AsyncSingleQueue, *args: Any, **options: Any) -> Any:
        if monotonic() >= self._root.look_at and await self._root.look():
            return await getattr(self, name)(*args, **options)
        return await inner(self, *args, **options)

    return method


for _name in (
    "_ack_one", "_add_all", "_asked", "_clear", "_configured", "_exchanged", "_found", "_opened",
    "_peeked", "_receipt_of", "_routed", "_scanned", "_settled", "_store_schedule", "stats",
):  # fmt: skip
    setattr(AsyncSingleQueue, _name, _looking(_name))
