# From src/penstock/client/_async/sharded/single.py by tools/unasync.py; do not edit.
"""A client of one source: it uses that node, and the others as soon as that node lists some.

A client that was given one node of a federation must know the other ones, so it reads the list of
that node and joins them (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.queue import Queue
from penstock.client._sync.role import Role
from penstock.client._sync.sharded.federated_node import FederatedNode
from penstock.client._sync.sharded.federation import REFRESH, Federation
from penstock.client._sync.sharded.node_client import NodeClient
from penstock.client._sync.sharded.sharded_queue import (
    ObservedShardedQueue,
    ShardedQueue,
)
from penstock.client._sync.transport.connection import monotonic
from penstock.core.config import ClientConfig
from penstock.core.logs import get_logger
from penstock.core.node_list import others
from penstock.core.operations import Taken
from penstock.core.options import BATCH, Duration, RoleName, check_block, check_count
from penstock.errors import NodesUnavailable

if TYPE_CHECKING:
    from penstock.client._sync.job import Job
    from penstock.client._sync.sharded.shard import Shard

__all__ = ["Single"]

logger = get_logger("penstock")
T = TypeVar("T")

AGAIN = 1.0
"""Seconds after which the list is read again when that has failed."""


class Single:
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
        self.member = NodeClient(source, terms)
        self.federation: Federation | None = None
        self.look_at = -math.inf
        self._queues: weakref.WeakSet[SingleQueue | ShardedQueue] = weakref.WeakSet()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    @property
    def now(self) -> NodeClient | Federation:
        """Node or federation in use; the list of nodes is not read."""
        return self.federation or self.member

    def current(self) -> NodeClient | Federation:
        """Return the node or the federation; read the list if that is due."""
        if self.federation is None and monotonic() >= self.look_at:
            self.look()
        return self.federation or self.member

    def look(self) -> bool:
        """Read the node's list and join the nodes in it; return True if there are some."""
        if self.federation is None and self.has_others():
            self.join()
        return self.federation is not None

    def has_others(self) -> bool:
        """Read the node's list; return True if it names other nodes.

        Errors are left to the next call of the client.
        """
        node = self.member.node
        try:
            node.reach()
            self.member.connect()
            told = node.listed()
            found = bool(told) and bool(others(told, node.whole_id()))
        except Exception as error:  # noqa: BLE001  # the next call reports it
            logger.debug("the list of nodes can't be read: %s", error)
            self.look_at = monotonic() + AGAIN
            return False
        self.look_at = monotonic() + REFRESH
        return found

    def join(self) -> Federation:
        """Become a client of several nodes; nothing is sent."""
        if self.federation is None:
            member = self.member
            home = FederatedNode(member.source, member.terms, node=member.node)
            made = Federation([member.source], member.terms, [home])
            for queue in list(self._queues):
                queue.join(made, home)
            self.federation = made
        return self.federation

    def queue(self, name: str, partitions: int | None = None) -> Queue:
        """Return the queue of this name."""
        if self.federation is not None:
            return self.federation.queue(name, partitions)
        is_observed = bool(self.member.terms.middleware)
        queue: SingleQueue | ShardedQueue
        if partitions is None:
            queue = (ObservedSingleQueue if is_observed else SingleQueue)(self, name)
        else:
            made = ObservedShardedQueue if is_observed else ShardedQueue
            queue = made(self, name, partitions)
        self._queues.add(queue)
        found = self.now
        if isinstance(found, Federation):  # another thread has joined meanwhile
            queue.join(found, found.homes[0])
        return queue

    def each(self, ask: Callable[[Any], T]) -> tuple[list[tuple[Any, T]], Any]:
        """Ask the node, or every node: see `Federation.each`."""
        self.current()
        found: tuple[list[tuple[Any, T]], Any] = self.now.each(ask)
        return found

    def produce(
        self,
        parts: Callable[[], Sequence[Shard]],
        attempt: Callable[[Shard], T],
    ) -> T:
        """Add jobs to the first part that takes them; if the only node is leaving, join others."""
        site = self.current()
        try:
            return site.produce(parts, attempt)
        except NodesUnavailable:
            if site is not self.member or not self.look():
                raise
        return self.now.produce(parts, attempt)

    def reserve(
        self, queues: Sequence[Queue], n: int, wait: float | None, seen: Taken | None = None
    ) -> list[Job]:
        """Take up to n jobs from several queues; a long wait is interrupted to read the list.

        Args:
            queues: in order of preference.
            n: limit.
            wait: seconds, None = for ever.
            seen: the reply, without jobs, that the only queue gave a moment ago.
        """
        until = math.inf if wait is None else monotonic() + wait
        while True:
            self.current()
            left = max(0.0, until - monotonic())
            if self.federation is not None:
                return self.federation.reserve(queues, n, None if wait is None else left)
            span = max(0.0, min(left, self.look_at - monotonic()))
            jobs = self.member.reserve(queues, n, span, seen)
            if jobs or monotonic() >= until:
                return jobs
            seen = None

    def connect(self) -> None:
        """Reach the node, or one of several."""
        self.current().connect()

    def close(self) -> None:
        """Close the connections."""
        self.member.close()
        if self.federation is not None:
            self.federation.close()


class SingleQueue(Queue):
    """A queue of a client of one source: an ordinary one, until its node lists others.

    Each call reads the list of nodes first, when that is due. If the list names other nodes, `join`
    makes a `ShardedQueue` of the object, and that runs the call. Calls of other threads go on
    as they began, so they must not look methods up by `super`.

    Args:
        single: the node, or the federation.
        name: any non-empty text.
    """

    def __init__(self, single: Single, name: str) -> None:
        super().__init__(single.member, name)
        self._single = single

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
        single, client = self._single, self._single.member
        if monotonic() >= single.look_at and single.look():
            return False
        try:
            client.check_taking()
        except NodesUnavailable:  # the node is leaving
            if single.look():
                return False
            raise
        client.taking_until = min(client.taking_until, single.look_at)
        return True

    def _has_moved(self) -> bool:
        return self._single.look()

    def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[Job]:
        """Take up to n jobs under a lease. Args, returns, raises: as `Queue.reserve`."""
        if type(n) is not int or not 0 < n <= BATCH or monotonic() >= self._single.look_at:
            check_count("n", n)
            return self._single.reserve([self], n, check_block(block))
        wait = block if type(block) is int and 0 <= block < 1000 else check_block(block)
        taken = self.backend.node.run(self.ops.reserve(n))
        if taken.deliveries:
            return taken.deliveries
        if taken.is_over:
            raise self.ops.drained()
        if wait == 0 and taken.next_ms != 0:
            return []
        return self._single.reserve([self], n, wait, taken if taken.next_ms else None)

    def exclusive(
        self, role: RoleName, *, lease: Duration = 30, block: Duration | None = None
    ) -> Role:
        """Return an exclusive role. Args, raises: as `Queue.exclusive`."""
        return Role(self, role, lease, block, self._lone)

    def _lone(self) -> Queue:
        if self._single.look():
            self.exclusive("producer")  # it is a sharded queue now, which raises
        return self._single.member.queue(self.name)


class ObservedSingleQueue(ObservedQueue, SingleQueue):
    """A queue of a client of one source, whose enqueues pass through the middleware."""


def _looking(name: str) -> Any:
    inner = getattr(Queue, name)

    @functools.wraps(inner)
    def method(self: SingleQueue, *args: Any, **options: Any) -> Any:
        if monotonic() >= self._single.look_at and self._single.look():
            return getattr(self, name)(*args, **options)
        return inner(self, *args, **options)

    return method


for _name in (
    "_ack_one", "_add_all", "_asked", "_clear", "_configured", "_receipt_of", "_routed", "_settled",
    "peek", "scan", "settle", "stats",
):  # fmt: skip
    setattr(SingleQueue, _name, _looking(_name))
