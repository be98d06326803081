# From src/penstock/client/_async/sharded/single.py by tools/unasync.py; do not edit.
"""A queue of a client of one source, which joins other nodes as soon as its node lists some."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.queue import Queue
from penstock.client._sync.sharded.sharded_queue import (
    ObservedShardedQueue,
    ShardedQueue,
)
from penstock.client.clock import monotonic
from penstock.core.values.checks import BATCH, Duration, check_block, check_count
from penstock.core.values.durable import Durable, delivery_wait
from penstock.errors import NodesUnavailable

if TYPE_CHECKING:
    from penstock.client._sync.backend import Backend
    from penstock.client._sync.job import Job
    from penstock.client._sync.sharded.federated_node import FederatedNode
    from penstock.client._sync.sharded.federation import Federation

__all__ = ["ObservedSingleQueue", "SingleQueue"]


class SingleQueue(Queue):
    """A queue of a client of one source: an ordinary one, until its node lists others.

    Each call reads the list of nodes first, when that is due. If the list names other nodes, `join`
    makes a `ShardedQueue` of the object, and that runs the call. Calls of other threads go on
    as they began, so they must not look methods up by `super`.

    Args:
        root: the node, or the federation.
        name: any non-empty text.
    """

    def __init__(self, root: Backend, name: str) -> None:
        super().__init__(root.member, name)
        self._root = root

    def join(self, federation: Federation, home: FederatedNode) -> None:
        """Become a queue on several nodes; jobs that were delivered stay its jobs.

        Args:
            federation: the nodes.
            home: the node of this queue until now.
        """
        whole: Any = self
        ops, is_observed = self.ops, isinstance(self, ObservedQueue)
        ShardedQueue.__init__(whole, federation, self.name)
        ShardedQueue.adopt(whole, ops, home, None)
        whole.ops = ops  # of calls that are under way
        whole.__class__ = ObservedShardedQueue if is_observed else ShardedQueue
        federation.watch(whole)

    def _may_add(self) -> bool:
        return self._is_taking()

    def _is_taking(self) -> bool:
        root, client = self._root, self._root.member
        if monotonic() >= root.look_at and root.look():
            return False
        try:
            client.check_taking()
        except NodesUnavailable:  # the node is leaving
            if root.look():
                return False
            raise
        client.taking_until = min(client.taking_until, root.look_at)
        return True

    def _twin(self) -> Queue:
        return self._root.member.queue(self.name)

    def _has_moved(self) -> bool:
        return self._root.look()

    def reserve(
        self, n: int = 1, *, block: Duration | None = 5, durable: Durable | None = None
    ) -> list[Job]:
        """Take up to n jobs under a lease. Args, returns, raises: as `Queue.reserve`."""
        is_usual = durable is None and monotonic() < self._root.look_at
        if type(n) is not int or not 0 < n <= BATCH or not is_usual:
            check_count("n", n)
            confirm = delivery_wait(durable)
            return self._root.reserve([self], n, check_block(block), confirm=confirm)
        wait = block if type(block) is int and 0 <= block < 1000 else check_block(block)
        taken = self.backend.node.run(self.ops.reserve(n))
        if taken.deliveries:
            return taken.deliveries
        if taken.is_over:
            raise self.ops.drained()
        if wait == 0 and taken.next_ms != 0:
            return []
        return self._root.reserve([self], n, wait, taken if taken.next_ms else None)

    def _lone(self) -> Queue:
        if self._root.look():
            self._check_roles()  # it is a sharded queue now, which raises
        return self._twin()


class ObservedSingleQueue(ObservedQueue, SingleQueue):
    """A queue of a client of one source, whose enqueues pass through the middleware."""


def _looking(name: str) -> Any:
    inner = getattr(Queue, name)

    @functools.wraps(inner)
    def method(self: SingleQueue, *args: Any, **options: Any) -> Any:
        if monotonic() >= self._root.look_at and self._root.look():
            return getattr(self, name)(*args, **options)
        return inner(self, *args, **options)

    return method


for _name in (
    "_ack_one", "_add_all", "_asked", "_clear", "_configured", "_exchanged", "_found", "_opened",
    "_peeked", "_receipt_of", "_routed", "_scanned", "_settled", "_store_schedule", "stats",
):  # fmt: skip
    setattr(SingleQueue, _name, _looking(_name))
