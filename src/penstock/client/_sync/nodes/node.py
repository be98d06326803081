# From src/penstock/client/_async/nodes/node.py by tools/unasync.py; do not edit.
"""One node of a client."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._acompat import Wakeup
from penstock.client._sync.transport.driver import Driver
from penstock.client._sync.transport.executor import Executor
from penstock.client.clock import monotonic
from penstock.client.loops import warn_in_loop
from penstock.core.calls.config import ClientConfig, QueueFilter
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.job import Delivery, JobQueue
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.queue_stats import QueuePage, QueueStats
from penstock.core.nodes.merging import merged_stats
from penstock.core.nodes.servers import PROTOCOL_VERSION
from penstock.core.nodes.state import FLAG_MAX_AGE, NodeState
from penstock.core.values.checks import QUEUE_CURSOR, check_cursor
from penstock.errors import NodesUnavailable, QueueDamaged, WrongNode
from penstock.wire.keys import QueueKeys, node_key, split_name

if TYPE_CHECKING:
    from penstock.core.nodes.node_views import Hello, Info, NodeView

__all__ = ["BRIEF_SECONDS", "Node"]

logger = get_logger("penstock")
T = TypeVar("T")

BRIEF_SECONDS = 2.0
"""Seconds that a consumer waits for a reply while other servers may have jobs."""


class Node:
    """One node, as its client sees it: a server or a cluster.

    Args:
        source: a URL or a redis-py client.
        config: configuration of the client.
        executor: runs its calls; None = make them.

    Attributes:
        driver: runs flows on the node.
        taking_until: time of the clock until which the node is believed to take jobs.
        state: of the node; always up, unless it is one of several.
    """

    def __init__(self, source: Any, config: ClientConfig, executor: Executor | None = None) -> None:
        self.source = source
        self.config = config
        self.executor = executor or Executor(
            source, prefix=config.prefix, retry_for=config.retry_for
        )
        self.driver = Driver(self.executor, config.prefix)
        self._brief_driver: Driver | None = None
        self.taking_until = -math.inf
        self.state = NodeState(met=True)

    @property
    def id(self) -> str:
        """First 8 digits of the node's id; empty until it is known."""
        return self.executor.id

    @property
    def address(self) -> str:
        """Address of the node, for people."""
        return self.executor.address

    def operations(
        self, name: str, number: int | None = None, queue: JobQueue | None = None
    ) -> QueueOps:
        """Return the operations of a queue, or of one of its partitions.

        Args:
            name: of the queue.
            number: of the partition; None = the queue has none.
            queue: the queue object to which its jobs belong; None = no jobs are taken.
        """
        config, keys = self.config, QueueKeys(name, self.config.prefix, number)
        make = Delivery if queue is None else queue.job_type
        return QueueOps(
            keys, config.owner, self.executor.known, queue=queue, make=make, codec=config.codec
        )

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions of a queue: 0 = it has none, None = no such queue."""
        return self.partitions_of([name])[0]

    def partitions_of(self, names: Iterable[str]) -> list[int | None]:
        """Return the number of partitions of each queue."""
        self.connect()
        return self.driver.partitions_of(names)

    def connect(self) -> None:
        """Reach the server, check it and learn its id, unless that was done."""
        if not self.executor.id:
            warn_in_loop()
            self.executor.prepare()

    def check_known(self, node_id: str, name: object) -> None:
        """Check that this node has an id.

        Args:
            node_id: its first 8 digits.
            name: the job that names it.

        Raises:
            WrongNode: it has another id.
        """
        known = self.executor.known
        if known and node_id not in known:
            text = f"node {node_id} is unknown, this client knows {', '.join(known)}: add its URL"
            raise WrongNode("id", name, text)

    def check_taking(self) -> bool:
        """Check that the node takes new jobs, before some are added. Return True.

        Raises:
            NodesUnavailable: its flag `leaving` is set.
        """
        self.connect()
        if self.is_leaving():
            raise NodesUnavailable("no node takes jobs", {self.executor.address: "leaving"})
        self.taking_until = monotonic() + FLAG_MAX_AGE
        return True

    def is_leaving(self) -> bool:
        """Return True if the node takes no new jobs."""
        return bool(self.executor.command("HGET", node_key(self.config.prefix), "leaving"))

    def close(self) -> None:
        """Close the connections."""
        self.executor.close()
        if self._brief_driver is not None:
            self._brief_driver.executor.close()

    def brief_driver(self) -> Driver:
        """Return a driver whose calls fail soon: other servers of the cluster may have jobs."""
        if self._brief_driver is None:
            twin = self.executor.twin(retry_for=self.config.retry_for, socket_timeout=BRIEF_SECONDS)
            self._brief_driver = Driver(twin, self.config.prefix)
        self._brief_driver.executor.id = self.executor.id
        return self._brief_driver

    @property
    def is_apart(self) -> bool:
        """Return True if queues may lie on several servers; known from the first call on."""
        return self.executor.is_cluster

    def drive(self, flow: Generator[Any, Any, T], signal: Wakeup | None = None) -> T:
        """Run a flow to its end and return its result."""
        return self.driver.drive(flow, signal)

    def queues(self, pattern: str) -> list[str]:
        """Return the names of the queues that exist, sorted."""
        self.connect()
        names = set[str]()
        for listed, epoch in self.executor.registry():
            name, number = split_name(listed)
            if name not in names and fnmatchcase(name, pattern):
                meta = QueueKeys(name, self.config.prefix, number)["meta"]
                if self.executor.command("HGET", meta, "epoch") == epoch.encode():
                    names.add(name)
        return sorted(names)

    def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter, pattern: str) -> QueuePage:
        """Return one page of the registry; figures are read of queues whose names match."""
        at = check_cursor("cursor", cursor, QUEUE_CURSOR)
        self.connect()
        after, entries = self.driver.registry_page(at, n)
        named = [entry for entry in entries if fnmatchcase(split_name(entry[0])[0], pattern)]
        every = [
            stats if number is None else self._read_whole(stats.name, number)
            for stats, number in self._read_living(named)
        ]
        return QueuePage(after, [stats for stats in every if stats and is_wanted(stats)])

    def read_stats(self, name: str, partitions: int | None) -> QueueStats:
        """Return the figures of a queue with so many partitions; None = it has none."""
        self.connect()
        if partitions is None:
            return self.executor.run(self.operations(name).stats())
        calls = [self.operations(name, number).stats() for number in range(partitions)]
        return replace(
            merged_stats([self.executor.run(call) for call in calls]), partitions=partitions
        )

    def _read_whole(self, name: str, number: int) -> QueueStats | None:
        """Return the figures of a queue with partitions; None if an earlier partition exists."""
        for earlier in range(number):
            if self.executor.run(self.operations(name, earlier).stats()).exists:
                return None
        return self.read_stats(name, self.driver.partitions(name) or None)

    def _read_living(self, entries: list[tuple[str, str]]) -> list[tuple[QueueStats, int | None]]:
        living = []
        for listed, epoch in entries:
            name, number = split_name(listed)
            try:
                stats = self.executor.run(self.operations(name, number).stats())
            except QueueDamaged as error:  # the others are still shown
                logger.warning("queue %r is left out: %s", name, error)
                continue
            if stats.epoch == epoch:
                living.append((stats, number))
        return living

    def hello(self) -> Hello:
        """Return the protocol version and the node."""
        from penstock.core.nodes.node_views import Hello

        self.connect()
        view = self.view()
        return Hello(PROTOCOL_VERSION, view.id, (view,))

    def view(self) -> NodeView:
        """Return address, memory and flags of the node."""
        from penstock.core.nodes.node_views import NodeView

        facts = self.executor.server_facts()
        leaving = self.is_leaving()
        return NodeView(
            id=self.executor.whole_id(),
            address=self.executor.address,
            priority=100 if leaving else 10 if facts.is_crowded else 1,
            used_memory=facts.number("used_memory"),
            max_memory=facts.number("maxmemory"),
            leaving=leaving,
            primaries=facts.primaries(),
        )

    def info(self) -> Info:
        """Return the state of the server, and how many queues and jobs it has."""
        self.connect()
        facts = self.executor.server_facts()
        queues = self.living()
        waiting = sum(one.ready + one.scheduled + one.parked for one in queues)
        return facts.info(
            node=self.executor.whole_id(),
            queues=len({one.name for one in queues}),
            jobs=waiting + sum(one.active + one.dead for one in queues),
            waiting=waiting,
        )

    def living(self) -> list[QueueStats]:
        """Return the figures of all queues, each partition by itself."""
        return [stats for stats, _ in self._read_living(self.executor.registry())]
