# From src/penstock/client/_async/sharded/node_client.py by tools/unasync.py; do not edit.
"""One node, and an ordinary client of it: what a `Penstock` of one node is made of."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from penstock.client._acompat import Signal
from penstock.client._sync.job import Job
from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.queue import Queue
from penstock.client._sync.sharded.alone import Alone
from penstock.client._sync.sharded.sharded_queue import (
    ObservedShardedQueue,
    ShardedQueue,
)
from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.driver import Driver
from penstock.client._sync.transport.failures import passing
from penstock.client._sync.transport.node import Node
from penstock.core import flows
from penstock.core.config import ClientConfig, QueueFilter
from penstock.core.logs import get_logger
from penstock.core.nodes import LOOK
from penstock.core.operations import QueueOps, Taken
from penstock.core.options import BATCH, QUEUE_CURSOR, check_cursor
from penstock.core.servers import PROTOCOL_VERSION, ServerFacts
from penstock.core.views import Hello, Info, NodeView, QueuePage, QueueStats
from penstock.errors import NodesUnavailable, QueueDamaged
from penstock.wire.keys import QueueKeys, node_key, split_name

__all__ = ["BRIEF", "NodeClient"]

logger = get_logger("penstock")

BRIEF = 2.0
"""Seconds that a consumer waits for a reply while others may have jobs."""


def _noted(part: QueueOps, count: int | None) -> None:
    """A part of a queue was asked, and gave so many, or did not answer."""
    if part.partitions is not None:
        part.queue.noted(part, count)


class Totals(NamedTuple):
    """Sums over the queues of a node."""

    queues: int
    waiting: int
    active: int
    dead: int


class NodeClient:
    """A node as a client sees it, with all that is asked of one node.

    Args:
        source: a URL or a redis-py client.
        terms: what the client was told.
        node: its connections; None = of its own.

    Attributes:
        taking_until: until when by the clock the node is believed to take jobs.
    """

    def __init__(self, source: Any, terms: ClientConfig, node: Node | None = None) -> None:
        self.source = source
        self.terms = terms
        self._node = node or Node(source, prefix=terms.prefix, retry_for=terms.retry_for)
        self._driver = Driver(self._node, terms.prefix)
        self._alone = Alone(self)
        self._ear: Driver | None = None
        self.taking_until = -math.inf

    @property
    def address(self) -> str:
        """Host and port, or path of the socket."""
        return self._node.address

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return self.terms.prefix

    @property
    def owner(self) -> str:
        """Who reserves."""
        return self.terms.owner

    @property
    def middleware(self) -> tuple[Any, ...]:
        """Hooks."""
        return self.terms.middleware

    def queue(self, name: str, partitions: int | None = None) -> Queue:
        """The queue of this name on this node."""
        if partitions is None:
            return (ObservedQueue if self.middleware else Queue)(self, name)
        made = ObservedShardedQueue if self.middleware else ShardedQueue
        return made(self._alone, name, partitions)

    def partitions(self, name: str) -> int | None:
        """How many partitions a queue has; 0 = it is an ordinary queue, None = it is not there."""
        self.connect()
        return self._driver.partitions(name)

    def connect(self) -> None:
        """Reach the server, check it and learn its id, unless that was done."""
        if not self._node.id:
            self._node.prepare()

    def check_taking(self) -> None:
        """Read the node's flag `leaving`, before jobs are added.

        Raises:
            NodesUnavailable: the node takes no new jobs.
        """
        self.connect()
        if self.is_leaving():
            raise NodesUnavailable("no node takes jobs", {self._node.address: "leaving"})
        self.taking_until = monotonic() + LOOK

    def is_leaving(self) -> bool:
        """Whether the node takes no new jobs."""
        return bool(self._node.command("HGET", node_key(self.prefix), "leaving"))

    def close(self) -> None:
        """Close the connections."""
        self._node.close()
        if self._ear is not None:
            self._ear.node.close()

    @property
    def _hasty(self) -> Driver:
        """A driver whose calls fail soon, for what other servers of a cluster could do as well."""
        if self._ear is None:
            twin = self._node.twin(retry_for=self.terms.retry_for, socket_timeout=BRIEF)
            self._ear = Driver(twin, self.prefix)
        self._ear.node.id = self._node.id
        return self._ear

    def reserve(
        self, queues: Sequence[Queue], n: int, wait: float | None, seen: Taken | None = None
    ) -> list[Job]:
        """Take up to n jobs from several queues, the first queue first.

        Args:
            queues: where.
            n: at most so many.
            wait: seconds, None = for ever.
            seen: what the only queue answered a moment ago: nothing.
        """
        self.connect()
        sources: list[QueueOps] = []
        eager: int | None = 1
        for queue in queues:
            queue.declare()
            parts, eager = queue.asked(monotonic())
            sources += parts
        if len(sources) == 1 and n <= BATCH and seen is None:
            taken = self._driver.reserve(sources[0], n, idle=False)
            if taken.is_over:
                raise sources[0].drained()
            if taken.deliveries or (wait == 0 and taken.next_ms != 0):
                return taken.deliveries
            seen = taken if taken.next_ms != 0 else None
        apart = self.is_apart and any(queue.partitions for queue in queues)
        flow = flows.reserve(
            sources,
            n,
            wait,
            clock=monotonic,
            transient=passing,
            seen=seen,
            apart=apart,
            noted=_noted,
            eager=eager if len(queues) == 1 else None,
        )
        jobs: list[Job] = (self._hasty if apart else self._driver).drive(flow)
        return jobs

    @property
    def is_apart(self) -> bool:
        """Whether waits for several queues stand by themselves; known from the first call on."""
        return self._node.is_cluster

    def drive(self, flow: Generator[Any, Any, Any], signal: Signal | None = None) -> Any:
        """Run a flow to its end; its result."""
        return self._driver.drive(flow, signal)

    def queues(self, pattern: str) -> list[str]:
        """The names of the queues that exist, sorted."""
        self.connect()
        names: dict[str, None] = {}
        for listed, epoch in self._driver.registry():
            name, number = split_name(listed)
            keys = QueueKeys(name, self.prefix, number)
            is_new = name not in names and fnmatchcase(name, pattern)
            if is_new and self._exists(keys, epoch):
                names[name] = None
        return sorted(names)

    def _exists(self, keys: QueueKeys, epoch: str) -> bool:
        """Whether an entry of the registry is that of a living queue."""
        found = self._node.command("HGET", keys["meta"], "epoch")
        return bool(found == epoch.encode())

    def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter) -> QueuePage:
        """One step through the registry."""
        at = check_cursor("cursor", cursor, QUEUE_CURSOR)
        self.connect()
        after, entries = self._driver.registry_page(at, n)
        found = [
            stats if number is None else self._whole(stats.name, number)
            for stats, number in self._living(entries)
        ]
        return QueuePage(after, [stats for stats in found if stats and is_wanted(stats)])

    def _whole(self, name: str, number: int) -> QueueStats | None:
        """The figures of a queue with partitions; None = an earlier one of them stands for it."""
        for earlier in range(number):
            if Queue(self, name, earlier).stats().exists:
                return None
        return self.queue(name, self._driver.partitions(name) or None).stats()

    def _living(self, entries: list[tuple[str, str]]) -> list[tuple[QueueStats, int | None]]:
        """The figures of what is as the registry lists it, and which partition it is."""
        found = []
        for listed, epoch in entries:
            name, number = split_name(listed)
            try:
                stats = Queue(self, name, number).stats()
            except QueueDamaged as error:  # no reason to hide the others
                logger.warning("queue %r is left out: %s", name, error)
                continue
            if stats.epoch == epoch:
                found.append((stats, number))
        return found

    def hello(self) -> Hello:
        """Who it is."""
        self.connect()
        view = self.view()
        return Hello(PROTOCOL_VERSION, view.id, (view,))

    def view(self) -> NodeView:
        """The node in words."""
        facts = self._node.server_facts()
        leaving = self.is_leaving()
        return NodeView(
            id=self._node.whole_id(),
            address=self._node.address,
            priority=100 if leaving else 10 if facts.is_crowded else 1,
            used_memory=facts.number("used_memory"),
            max_memory=facts.number("maxmemory"),
            leaving=leaving,
        )

    def info(self) -> Info:
        """The state of the node."""
        self.connect()
        facts = self._node.server_facts()
        totals = self.totals()
        return facts.info(
            node=self._node.whole_id(),
            queues=totals.queues,
            jobs=totals.waiting + totals.active + totals.dead,
            waiting=totals.waiting,
        )

    def totals(self) -> Totals:
        """How many jobs all queues have."""
        living = self._living(self._driver.registry())
        found = [stats for stats, _ in living]
        return Totals(
            len({stats.name for stats in found}),
            sum(stats.ready + stats.scheduled for stats in found),
            sum(stats.active for stats in found),
            sum(stats.dead for stats in found),
        )

    def server_facts(self) -> ServerFacts:
        """What the server says of itself now."""
        return self._node.server_facts()

    def command(self, *args: Any) -> Any:
        """A plain command."""
        return self._node.command(*args)
