# From src/penstock/client/_async/route/one_node.py by tools/unasync.py; do not edit.
"""The route of a queue that has one part, on one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._sync.nodes.node import Node
from penstock.client._sync.route.interfaces import (
    LookingRoute,
    QueueTopology,
    Route,
    Routed,
)
from penstock.client._sync.route.part import AskPart, CallPart, Part, ReadPart
from penstock.client._sync.route.reserving import reserve_on_node
from penstock.client.clock import monotonic
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.chunks import chunks
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.flows import ReserveRequest
from penstock.core.jobs.enqueued import BulkEnqueued
from penstock.core.jobs.job import JobName
from penstock.core.jobs.outcomes import Settled
from penstock.core.jobs.views import ScanPage
from penstock.errors import NodesUnavailable, QueueClosed, QueueInUse, RoleLost
from penstock.wire.codes import Code

__all__ = ["BoundRoute", "NodeRoute"]

T = TypeVar("T")


class NodeRoute(LookingRoute, Part):
    """The route of a queue with one part: it is that part.

    Args:
        topology: the nodes of the client.
        node: the node.
        queue: the queue.
        number: of the partition; None = the queue has none.

    Attributes:
        topology: the argument.
        part: this part, the only one.
    """

    def __init__(
        self,
        topology: QueueTopology,
        node: Node,
        queue: Routed,
        number: int | None = None,
    ) -> None:
        super().__init__(node, queue.name, number=number, queue=queue)
        self.topology = topology
        self._queue = queue
        self.part: Part | None = self

    @property
    def operations(self) -> list[QueueOps]:
        """Return the operations of the part."""
        return [self.ops]

    # -- producing -------------------------------------------------------------------------

    def _check_taking(self) -> bool:
        return self._ask_if_taking()

    def _ask_if_taking(self) -> bool:
        topology, node = self.topology, self.node
        if monotonic() >= topology.look_at and self._find_other_route():
            return False
        try:
            node.check_taking()
        except NodesUnavailable:  # the node is leaving
            if self._find_other_route():
                return False
            raise
        node.taking_until = min(node.taking_until, topology.look_at)
        return True

    def add_many(self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued) -> None:
        """Add jobs in chunks; append the results, also of those before a failure."""
        for chunk, own in chunks(bodies, options, parted=False):
            self.add_chunk(chunk, own, results)

    # -- consuming -------------------------------------------------------------------------

    def order_parts(self) -> tuple[list[QueueOps], int]:
        """Return the part, as the one to ask for jobs."""
        return [self.ops], 1

    def note_poll(self, ops: QueueOps, count: int | None) -> None:
        """Note nothing: there is one part only."""

    def declare(self) -> None:
        """Store nothing: a queue with one part has nothing to agree on."""

    def exchange(
        self, names: list[JobName], n: int, *, block: float | None
    ) -> tuple[Settled, list[Any]]:
        """Finish jobs and take up to n others, in one trip."""
        self.connect()
        call = self.ops.settle(names, n)
        outcomes, taken = self.executor.run(call)
        if call.resent:
            outcomes = outcomes.after_resend(Code.GONE)
        jobs = taken.deliveries
        if not jobs and (block is None or block > 0 or taken.next_ms == 0):
            # The jobs are finished: the next call raises if the connection fails now.
            refusals = (QueueClosed, QueueInUse, RoleLost)
            with suppress(RedisConnectionError, RedisTimeoutError, *refusals):
                jobs = self.reserve(ReserveRequest(n, block))
        return outcomes, jobs

    # -- calls to the part -----------------------------------------------------------------

    def call_parts(self, names: list[JobName], call: CallPart[T], unknown: T) -> Sequence[T]:
        """Call the part with the jobs; return an answer for each, in order."""
        del unknown  # the part answers, or the call raises
        self.connect()
        return call(self, names)

    def ask_parts(self, ask: AskPart[T]) -> tuple[list[T], dict[str, str]]:
        """Ask the part."""
        self.connect()
        return [ask(self)], {}

    def read_page(self, cursor: str, check: Callable[[str], object], ask: ReadPart) -> ScanPage:
        """Return the next page of a scan."""
        check(cursor)
        return ask(self, cursor)


class BoundRoute(NodeRoute):
    """The route of a queue object that stays in one part: for a batch, or for a role.

    Args:
        topology: the nodes of the client.
        part: the part.
        queue: the queue object.
    """

    def __init__(self, topology: QueueTopology, part: Part, queue: Routed) -> None:
        super().__init__(topology, part.node, queue, number=part.number)
        self.ops.node, self.ops.partitions = part.ops.node, part.ops.partitions

    def refresh(self) -> Route:
        """Return this route: its queue object never gets another one."""
        return self

    def _ask_if_taking(self) -> bool:
        self.node.check_taking()
        return True

    def _find_other_route(self) -> bool:
        return False

    def reserve(self, request: ReserveRequest) -> list[Any]:
        """Take up to n jobs of this part."""
        return reserve_on_node(self.node, [self], request)
