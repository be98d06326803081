"""A part of a queue: its share on one node, one of its partitions, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.client._async.queue import AsyncQueue

if TYPE_CHECKING:
    from penstock.client._async.sharded.node_client import AsyncNodeClient

__all__ = ["AnyNode", "AsyncShard"]

AnyNode: TypeAlias = Any
"""A node: one of several (`AsyncFederatedNode`), or the only one (`AsyncAlone`)."""


class AsyncShard(AsyncQueue):
    """A part of a queue: an ordinary queue, whose jobs call the whole their queue.

    Args:
        whole: what it is a part of.
        home: the node.
        client: the node by some connections.
        number: which partition; None = the queue has none.
    """

    def __init__(
        self,
        whole: AsyncQueue,
        home: AnyNode,
        client: AsyncNodeClient,
        number: int | None,
    ) -> None:
        super().__init__(client, whole.name, number)
        self.home = home
        self.number = number
        self.ops.home = home if home.is_one_of_several else None
        self.ops.partitions = whole.partitions
        self.ops.queue = whole
