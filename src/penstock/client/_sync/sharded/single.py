# From src/penstock/client/_async/sharded/single.py by tools/unasync.py; do not edit.
"""A client of one source: of its node, and of the others as soon as that node lists some.

A client that was given one node of a federation must not add jobs behind the back of the others, so
it reads the list of that node and joins them (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.queue import Queue
from penstock.client._sync.role import Role
from penstock.client._sync.sharded.federated_node import FederatedNode
from penstock.client._sync.sharded.federation import REFRESH, Federation
from penstock.client._sync.sharded.node_client import NodeClient
from penstock.client._sync.sharded.shard import Shard
from penstock.client._sync.sharded.sharded_queue import ShardedQueue
from penstock.client._sync.transport.connection import monotonic
from penstock.core.config import ClientConfig
from penstock.core.logs import get_logger
from penstock.core.node_list import others
from penstock.core.operations import QueueOps
from penstock.core.options import Duration, check_block, check_count
from penstock.errors import NodesUnavailable

if TYPE_CHECKING:
    from penstock.client._sync.job import Job
    from penstock.core.bulk import Prepared
    from penstock.core.job import BulkEnqueued, Enqueued

__all__ = ["Single"]

logger = get_logger("penstock")

AGAIN = 1.0
"""Seconds after which the list is read again when that has failed."""


class Single:
    """The node of a client that was given one source, or the federation that it has joined.

    Args:
        source: a URL or a redis-py client.
        terms: what the client was told.

    Attributes:
        member: the node.
        federation: the node and the others; None = it lists no others, as far as is known.
    """

    def __init__(self, source: Any, terms: ClientConfig) -> None:
        self.member = NodeClient(source, terms)
        self.federation: Federation | None = None
        self.look_at = -math.inf
        self._queues: weakref.WeakSet[SingleQueue] = weakref.WeakSet()

    @property
    def now(self) -> NodeClient | Federation:
        """The node or the federation, without a look at the list."""
        return self.federation or self.member

    def current(self) -> NodeClient | Federation:
        """The node or the federation; the list is read when the last time is a while ago."""
        if self.federation is None and monotonic() >= self.look_at:
            self.look()
        return self.federation or self.member

    def look(self) -> bool:
        """Read the node's list, and join the nodes in it; whether there are some."""
        if self.federation is None and self.has_others():
            self.join()
        return self.federation is not None

    def has_others(self) -> bool:
        """Whether the node lists others; read now.

        A node that can't be reached is left to the call that comes next, which has its own errors.
        """
        node = self.member._node
        try:
            node.reach()
            self.member.connect()
            told = node.listed()
            found = bool(told) and bool(others(told, node.whole_id()))
        except Exception as error:  # noqa: BLE001  # as above
            logger.debug("the list of nodes can't be read: %s", error)
            self.look_at = monotonic() + AGAIN
            return False
        self.look_at = monotonic() + REFRESH
        return found

    def join(self) -> Federation:
        """Become a client of several nodes; nothing is sent."""
        if self.federation is None:
            member = self.member
            home = FederatedNode(member.source, member.terms, node=member._node)
            made = Federation([member.source], member.terms, [home])
            for queue in list(self._queues):
                queue.spread(made, home)
            self.federation = made
        return self.federation

    def queue(self, name: str, partitions: int | None = None) -> Queue:
        """The queue of this name, wherever it turns out to be."""
        if self.federation is not None:
            return self.federation.queue(name, partitions)
        made = ObservedSingleQueue if self.member.middleware else SingleQueue
        queue = made(self, name, partitions)
        self._queues.add(queue)
        found = self.now
        if isinstance(found, Federation):  # another thread has joined meanwhile
            queue.spread(found, found.homes[0])
        return queue

    def reserve(self, queues: Sequence[Queue], n: int, wait: float | None) -> list[Job]:
        """Take up to n jobs from several queues; a long wait is ended for a look at the list."""
        until = math.inf if wait is None else monotonic() + wait
        while True:
            self.current()
            left = max(0.0, until - monotonic())
            if self.federation is not None:
                return self.federation.reserve(queues, n, None if wait is None else left)
            span = max(0.0, min(left, self.look_at - monotonic()))
            jobs = self.member.reserve(queues, n, span)
            if jobs or monotonic() >= until:
                return jobs

    def connect(self) -> None:
        """Reach the node, or one of several."""
        self.current().connect()

    def close(self) -> None:
        """Close the connections."""
        self.member.close()
        if self.federation is not None:
            self.federation.close()


class SingleQueue(ShardedQueue):
    """A queue of a client of one source.

    As long as its node lists no others it is an ordinary queue there, or one in partitions. Each
    call looks at the list first, if the last look is a while ago; then it is a queue on all nodes.

    Args:
        single: the node, or the federation.
        name: any non-empty text.
        partitions: how many; None = none.
    """

    def __init__(self, single: Single, name: str, partitions: int | None = None) -> None:
        alone = single.member._alone
        super().__init__(alone, name, partitions)
        self._single = single
        self._only: Shard | None = None
        self._spread_ops = self.ops
        if partitions is None:
            only = self._only = self._part(alone, None)
            self.ops, self._node, self._driver = only.ops, only._node, only._driver

    def spread(self, federation: Federation, home: FederatedNode) -> None:
        """Be a queue on several nodes from now on; jobs that were delivered stay its jobs.

        Args:
            federation: the nodes.
            home: the one on which it was until now.
        """
        if self._federation is federation:
            return
        self._client = self._federation = federation
        self._only, self.ops = None, self._spread_ops
        self._is_agreed = False
        federation.watch(self)
        self._briefs.clear()
        for (_, number), part in [*self._parts.items()]:
            part.home = part.ops.home = home
            self._parts[home, number] = part

    def asked(self, now: float) -> tuple[list[QueueOps], int]:
        """As of a queue."""
        only = self._only
        return super().asked(now) if only is None else only.asked(now)

    def _add(self, record: bytes, options: Prepared) -> Enqueued:
        self._single.current()
        if self._single.federation is None:
            only = self._only
            try:
                if only is not None:
                    return only._add(record, options)
                return super()._add(record, options)
            except NodesUnavailable:  # the node is leaving
                if not self._single.look():
                    raise
        return super()._add(record, options)

    def _add_all(self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued) -> None:
        self._single.current()
        super()._add_all(bodies, options, results)

    def _add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        start, only = len(results), self._only
        if self._single.federation is None:
            try:
                if only is not None:
                    only._add_chunk(chunk, options, results)
                else:
                    super()._add_chunk(chunk, options, results)
            except NodesUnavailable:
                if not self._single.look():
                    raise
        left = chunk[len(results) - start :]
        if left:
            super()._add_chunk(left, options, results)

    def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[Job]:
        """As `Queue.reserve`."""
        check_count("n", n)
        return self._single.reserve([self], n, check_block(block))

    def exclusive(self, role: str, *, lease: Duration = 30, block: Duration | None = None) -> Role:
        """As `Queue.exclusive`, unless the node turns out to be one of several."""
        if self._only is None:
            super().exclusive(role)
        return Role(self, role, lease, block)

    def lone(self) -> Queue:
        """The queue on its only node, for a role.

        Raises:
            ConfigurationError: it lies on several nodes.
        """
        self._single.look()
        if self._only is None:
            super().exclusive("")
        return self._single.member.queue(self.name)


class ObservedSingleQueue(ObservedQueue, SingleQueue):
    """A queue of a client of one source, whose enqueues pass through the middleware."""


def _looking(name: str) -> Any:
    """A method that looks where the queue is, and does there what the method of this name does."""

    @functools.wraps(getattr(Queue, name))
    def method(self: SingleQueue, *args: Any, **options: Any) -> Any:
        self._single.current()
        only = self._only
        if only is not None:
            return getattr(only, name)(*args, **options)
        return getattr(ShardedQueue, name)(self, *args, **options)

    return method


LOOKING = (
    "settle", "recover", "ack", "nack", "release", "bury", "extend", "redrive", "promote",
    "dequeue", "withdraw", "delete", "purge", "sweep", "evict", "stats", "peek", "show", "status",
    "scan", "_clear", "_configured", "_receipt_of",
)  # fmt: skip
for _name in LOOKING:
    setattr(SingleQueue, _name, _looking(_name))
