"""One part of a queue: its jobs on one node, of one partition, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.queue import AsyncQueue

if TYPE_CHECKING:
    from penstock.client._async.sharded.federated_node import AsyncFederatedNode
    from penstock.client._async.sharded.node_client import AsyncNodeClient

__all__ = ["AsyncShard"]


class AsyncShard(AsyncQueue):
    """An ordinary queue that is a part of another one. Its jobs name the whole as their queue.

    Args:
        whole: the queue that it is a part of.
        home: the node.
        client: client of that node.
        number: number of the partition; None = the queue has none.
    """

    def __init__(
        self,
        whole: AsyncQueue,
        home: AsyncNodeClient,
        client: AsyncNodeClient,
        number: int | None,
    ) -> None:
        super().__init__(client, whole.name, number)
        self.home = home
        self.number = number
        self.ops.home = home if home.is_federated else None
        self.ops.partitions = whole.partitions
        self.ops.queue = whole

    @property
    def federated(self) -> AsyncFederatedNode:
        """Its node, where that is one of several."""
        return cast("AsyncFederatedNode", self.home)

    def _twin(self) -> AsyncShard:
        made = AsyncObservedShard if self.backend.terms.middleware else AsyncShard
        return made(self.ops.queue, self.home, self.backend, self.number)


class AsyncObservedShard(AsyncObservedQueue, AsyncShard):
    """A part through which jobs join a batch, and pass through the middleware of their client."""
