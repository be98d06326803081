# From src/penstock/client/_async/sharded/node_client.py by tools/unasync.py; do not edit.
"""The client of one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._acompat import Signal
from penstock.client._sync.job import Job
from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.queue import Queue
from penstock.client._sync.sharded.parts import ask_order, sources_of
from penstock.client._sync.sharded.sharded_queue import ShardedQueue, sharded_queue
from penstock.client._sync.transport.driver import Driver
from penstock.client._sync.transport.node import Node
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
    from penstock.client._sync.sharded.shard import Shard
    from penstock.core.nodes.node_views import Hello, Info, NodeView

__all__ = ["BRIEF", "NodeClient"]

logger = get_logger("penstock")
T = TypeVar("T")

BRIEF = 2.0
"""Seconds that a consumer waits for a reply while other servers may have jobs."""


class NodeClient:
    """The client of one node.

    A queue with partitions uses it like a federation that has one node: see `Federation` for
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
        brief: this node; a `FederatedNode` has several kinds of connections.
        missed: no nodes, as it is the only one.
        state: always up.
    """

    is_federated = False
    missed: Mapping[str, str] = MappingProxyType({})

    def __init__(self, source: Any, terms: ClientConfig, node: Node | None = None) -> None:
        self.source = source
        self.terms = terms
        self.node = node or Node(source, prefix=terms.prefix, retry_for=terms.retry_for)
        self.driver = Driver(self.node, terms.prefix)
        self._brief_driver: Driver | None = None
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

    def queue(self, name: str, partitions: int | None = None) -> Queue:
        """Return the queue of this name on this node."""
        if partitions is not None:
            return sharded_queue(self, name, partitions)
        return (ObservedQueue if self.terms.middleware else Queue)(self, name)

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions of a queue: 0 = it has none, None = no such queue."""
        return self.partitions_of([name])[0]

    def partitions_of(self, names: Iterable[str]) -> list[int | None]:
        """Return the number of partitions of each queue."""
        self.connect()
        return self.driver.partitions_of(names)

    def connect(self) -> None:
        """Reach the server, check it and learn its id, unless that was done."""
        if not self.node.id:
            self.node.prepare()

    # -- as a federation of one node -------------------------------------------------------

    def home_of(self, node: str, name: object) -> NodeClient:
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

    def tried(self, home: object, ask: Callable[[], T]) -> T | None:  # noqa: ARG002  # a federation uses it
        """Ask this node."""
        return ask()

    def each(
        self, ask: Callable[[NodeClient], T]
    ) -> tuple[list[tuple[NodeClient, T]], dict[str, str]]:
        """Ask this node."""
        self.connect()
        return [(self, ask(self))], {}

    def produce(
        self,
        part_on: Callable[[NodeClient], Shard],
        attempt: Callable[[Shard], T],
    ) -> T:
        """Add jobs to the only part."""
        return attempt(part_on(self))

    # -- this node -------------------------------------------------------------------------

    def check_taking(self) -> bool:
        """Check that the node takes new jobs, before some are added. Return True.

        Raises:
            NodesUnavailable: its flag `leaving` is set.
        """
        self.connect()
        if self.is_leaving():
            raise NodesUnavailable("no node takes jobs", {self.node.address: "leaving"})
        self.taking_until = monotonic() + FLAG_MAX_AGE
        return True

    def is_leaving(self) -> bool:
        """Return True if the node takes no new jobs."""
        return bool(self.node.command("HGET", node_key(self.terms.prefix), "leaving"))

    def close(self) -> None:
        """Close the connections."""
        self.node.close()
        if self._brief_driver is not None:
            self._brief_driver.node.close()

    def _driver_apart(self) -> Driver:
        """Return a driver whose calls fail soon: other servers of the cluster may have jobs."""
        if self._brief_driver is None:
            twin = self.node.twin(retry_for=self.terms.retry_for, socket_timeout=BRIEF)
            self._brief_driver = Driver(twin, self.terms.prefix)
        self._brief_driver.node.id = self.node.id
        return self._brief_driver

    def reserve(
        self,
        queues: Sequence[Queue],
        n: int,
        wait: float | None,
        seen: Taken | None = None,
        confirm: Wait | None = None,
    ) -> list[Job]:
        """Take up to n jobs from several queues, the first queue first.

        Args:
            queues: in order of preference.
            n: limit.
            wait: seconds, None = for ever.
            seen: the reply, without jobs, that the only queue gave a moment ago.
            confirm: the confirmations of deliveries at most once.
        """
        self.connect()
        for queue in queues:
            if isinstance(queue, ShardedQueue):
                queue.declare()
        parts, _ = ask_order(queues)
        if len(parts) == 1 and n <= BATCH and seen is None and confirm is None:
            taken = self.node.run(parts[0].reserve(n))
            if taken.is_over:
                raise parts[0].drained()
            if taken.deliveries or (wait == 0 and taken.next_ms != 0):
                return taken.deliveries
            seen = taken if taken.next_ms != 0 else None
        apart = self.is_apart and any(queue.partitions for queue in queues)
        sources = sources_of(queues, apart=apart and len(parts) > 1, wait=confirm)
        flow = flows.reserve(sources, n, wait, seen)
        return (self._driver_apart() if apart else self.driver).drive(flow)

    @property
    def is_apart(self) -> bool:
        """Return True if queues may lie on several servers; known from the first call on."""
        return self.node.is_cluster

    def drive(self, flow: Generator[Any, Any, T], signal: Signal | None = None) -> T:
        """Run a flow to its end and return its result."""
        return self.driver.drive(flow, signal)

    def queues(self, pattern: str) -> list[str]:
        """Return the names of the queues that exist, sorted."""
        self.connect()
        names = set[str]()
        for listed, epoch in self.node.registry():
            name, number = split_name(listed)
            if name not in names and fnmatchcase(name, pattern):
                meta = QueueKeys(name, self.terms.prefix, number)["meta"]
                if self.node.command("HGET", meta, "epoch") == epoch.encode():
                    names.add(name)
        return sorted(names)

    def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter) -> QueuePage:
        """Return one page of the registry."""
        at = check_cursor("cursor", cursor, QUEUE_CURSOR)
        self.connect()
        after, entries = self.driver.registry_page(at, n)
        found = [
            stats if number is None else self._whole(stats.name, number)
            for stats, number in self._living(entries)
        ]
        return QueuePage(after, [stats for stats in found if stats and is_wanted(stats)])

    def _whole(self, name: str, number: int) -> QueueStats | None:
        """Return the figures of a queue with partitions; None if an earlier partition exists."""
        for earlier in range(number):
            if Queue(self, name, earlier).stats().exists:
                return None
        return self.queue(name, self.driver.partitions(name) or None).stats()

    def _living(self, entries: list[tuple[str, str]]) -> list[tuple[QueueStats, int | None]]:
        found = []
        for listed, epoch in entries:
            name, number = split_name(listed)
            try:
                stats = Queue(self, name, number).stats()
            except QueueDamaged as error:  # the others are still shown
                logger.warning("queue %r is left out: %s", name, error)
                continue
            if stats.epoch == epoch:
                found.append((stats, number))
        return found

    def hello(self) -> Hello:
        """Return the protocol version and the node."""
        from penstock.core.nodes.node_views import Hello

        self.connect()
        view = self.view()
        return Hello(PROTOCOL_VERSION, view.id, (view,))

    def view(self) -> NodeView:
        """Return address, memory and flags of the node."""
        from penstock.core.nodes.node_views import NodeView

        facts = self.node.server_facts()
        leaving = self.is_leaving()
        return NodeView(
            id=self.node.whole_id(),
            address=self.node.address,
            priority=100 if leaving else 10 if facts.is_crowded else 1,
            used_memory=facts.number("used_memory"),
            max_memory=facts.number("maxmemory"),
            leaving=leaving,
        )

    def info(self) -> Info:
        """Return the state of the server, and how many queues and jobs it has."""
        self.connect()
        facts = self.node.server_facts()
        found = self.living()
        waiting = sum(one.ready + one.scheduled + one.parked for one in found)
        return facts.info(
            node=self.node.whole_id(),
            queues=len({one.name for one in found}),
            jobs=waiting + sum(one.active + one.dead for one in found),
            waiting=waiting,
        )

    def living(self) -> list[QueueStats]:
        """Return the figures of all queues, each partition by itself."""
        return [stats for stats, _ in self._living(self.node.registry())]
