# From src/penstock/client/_async/route/partitions.py by tools/unasync.py; do not edit.
"""The route of a queue with partitions on one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._sync.nodes.node import Node
from penstock.client._sync.route.interfaces import QueueTopology, Routed
from penstock.client._sync.route.part import AskPart, CallPart, Part, ReadPart
from penstock.client._sync.route.parts import NodeAnswers, PartsRoute
from penstock.client.clock import monotonic
from penstock.core.calls.operations import QueueOps, Taken
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.flows import ReserveRequest
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import Delivery, JobName
from penstock.core.jobs.outcomes import Outcome
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.views import ScanPage
from penstock.core.nodes import merging
from penstock.core.values.partitions import partition_of
from penstock.errors import NodesUnavailable

if TYPE_CHECKING:
    from penstock.core.enqueuing.schedules import NewSchedule

__all__ = ["PartitionsRoute"]

T = TypeVar("T")


class PartitionsRoute(PartsRoute):
    """The route of a queue with partitions on one node, which may be a cluster.

    Its parts are known from the beginning, so a call of one job goes to its part at once. There is
    no other node to fail over to: errors are raised as they are.

    Args:
        topology: the nodes of the client.
        node: the node.
        queue: the queue, with partitions.
    """

    partitions: int

    def __init__(self, topology: QueueTopology, node: Node, queue: Routed) -> None:
        super().__init__(topology, node, queue)
        self.node = node
        self._parts = [Part(node, self.name, number=i, queue=queue) for i in self.numbers]
        for part in self._parts:
            part.ops.partitions = self.partitions
            self._by_ops[part.ops] = part
        self._is_declared = False

    @property
    def operations(self) -> list[QueueOps]:
        """Return the operations of each partition."""
        return [*self._by_ops]

    @property
    def parts(self) -> Sequence[Part]:
        """Each partition."""
        return self._parts

    def declare(self) -> None:
        """Store the number of partitions, unless that was done.

        Raises:
            QueuePartitioned: the node has another number of partitions.
        """
        if not self._is_declared:
            self.node.connect()
            self.node.driver.declare(self.ops.keys, self.partitions)
            self._is_declared = True

    def _find_by_id(self, node_id: str, number: int | None, name: object) -> Part:
        self.node.check_known(node_id, name)
        return self._parts[number or 0]

    # -- producing -------------------------------------------------------------------------

    def _offer(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[Part, Prepared], T],
    ) -> T:
        if monotonic() >= self.topology.look_at and self._find_other_route():
            return self._offer_elsewhere(number, options, attempt)
        if not self._is_declared:
            self.declare()
        try:
            return attempt(self._parts[number or 0], options)
        except NodesUnavailable:  # the node is leaving
            if not self._find_other_route():
                raise
        return self._offer_elsewhere(number, options, attempt)

    def _offer_elsewhere(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[Part, Prepared], T],
    ) -> T:
        route = self._queue.route
        assert isinstance(route, PartsRoute)
        return route._offer(number, options, attempt)

    def store_schedule(self, new: NewSchedule, *, force: bool) -> int:
        """Store a schedule in the partition of its name. Returns: as `flows.schedule`."""
        self.declare()
        part = self._parts[partition_of(new.name, self.partitions)]
        return part.store_schedule(new, force=force)

    # -- consuming -------------------------------------------------------------------------

    def reserve(self, request: ReserveRequest) -> list[Any]:
        """Take up to n jobs of all parts; the first part may have the only one that is wanted."""
        is_alone = request.n == 1 and request.confirm is None and not self.node.is_apart
        if is_alone and self._is_declared:
            ops = self.order_parts()[0][0]
            taken: Taken = self.node.executor.run(ops.reserve(1))
            if taken.deliveries:
                self.note_poll(ops, 1)
                return taken.deliveries
            request = request._replace(seen={ops: taken})
        return super().reserve(request)

    # -- settling --------------------------------------------------------------------------

    def ack_one(self, job: Delivery) -> Outcome:
        """Finish one delivery."""
        return self._find_part(job).ack_one(job)

    # -- calls to parts --------------------------------------------------------------------

    def _can_do_without(self, part: Part, failure: BaseException) -> bool:
        del part, failure
        return False

    def _call_part(
        self, part: Part, names: list[JobName], call: CallPart[T], intent: Intent | None
    ) -> Sequence[T]:
        del intent  # no other node keeps a hint
        self.declare()
        return call(part, names)

    def _ask_nodes(self, ask: AskPart[Any]) -> NodeAnswers:
        self.declare()
        return NodeAnswers([(self.node, [ask(part) for part in self._parts])], {})

    def _read_part(self, part: Part, ask: ReadPart, cursor: str) -> ScanPage | None:
        self.declare()
        return ask(part, cursor)

    # -- the whole queue -------------------------------------------------------------------

    def _merge_stats(self, answers: NodeAnswers) -> QueueStats:
        return merging.merged_stats(answers.of_nodes[0][1])

    def clear(self) -> tuple[bool, int]:
        """Remove the queue; return whether it existed, and its number of jobs."""
        self.declare()
        cleared = [part.clear() for part in self._parts]
        self.node.driver.undeclare(self.name, self.partitions)
        self._is_declared = False
        return any(there for there, _ in cleared), sum(count for _, count in cleared)
