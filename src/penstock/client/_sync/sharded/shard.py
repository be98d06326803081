# From src/penstock/client/_async/sharded/shard.py by tools/unasync.py; do not edit.
"""One part of a queue: its jobs on one node, of one partition, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.queue import Queue

if TYPE_CHECKING:
    from penstock.client._sync.sharded.federated_node import FederatedNode
    from penstock.client._sync.sharded.node_client import NodeClient

__all__ = ["Shard"]


class Shard(Queue):
    """An ordinary queue that is a part of another one. Its jobs name the whole as their queue.

    Args:
        whole: the queue that it is a part of.
        home: the node.
        client: client of that node.
        number: number of the partition; None = the queue has none.
    """

    def __init__(
        self,
        whole: Queue,
        home: NodeClient,
        client: NodeClient,
        number: int | None,
    ) -> None:
        super().__init__(client, whole.name, number)
        self.home = home
        self.number = number
        self.ops.home = home if home.is_federated else None
        self.ops.partitions = whole.partitions
        self.ops.queue = whole

    @property
    def federated(self) -> FederatedNode:
        """Its node, where that is one of several."""
        return cast("FederatedNode", self.home)

    def _twin(self) -> Shard:
        made = ObservedShard if self.backend.terms.middleware else Shard
        return made(self.ops.queue, self.home, self.backend, self.number)


class ObservedShard(ObservedQueue, Shard):
    """A part through which jobs join a batch, and pass through the middleware of their client."""
