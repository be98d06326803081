# From src/penstock/client/_async/route/several_nodes.py by tools/unasync.py; do not edit.
"""The route of a queue on several nodes, with partitions or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.client._acompat import sleep
from penstock.client._sync.nodes import agreement, hints
from penstock.client._sync.nodes.federated_node import FederatedNode
from penstock.client._sync.nodes.federation import Federation
from penstock.client._sync.nodes.node import Node
from penstock.client._sync.nodes.placement import produce
from penstock.client._sync.route.interfaces import QueueTopology, Routed
from penstock.client._sync.route.part import AskPart, CallPart, Part, ReadPart
from penstock.client._sync.route.parts import NodeAnswers, PartsRoute
from penstock.client.clock import monotonic
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.flows.schedules import schedule_on
from penstock.core.jobs.hints import Intent, is_once
from penstock.core.jobs.job import JobName
from penstock.core.jobs.merge import hinted, split_error
from penstock.core.jobs.outcomes import Settled
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.views import ScanPage
from penstock.core.nodes import merging
from penstock.core.values.partitions import partition_of
from penstock.errors import IncompleteSettle, NodesMissed, NodesUnavailable
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from penstock.core.enqueuing.schedules import NewSchedule

__all__ = ["NodesRoute"]

T = TypeVar("T")


class NodesRoute(PartsRoute):
    """The route of a queue on several nodes: each partition on each node.

    Duplicates are found only among the jobs of one node. Calls that change the whole queue run on
    every node that can be reached; if a node can't, they raise `NodesMissed`, which names it. Calls
    that read the whole queue name such nodes as `unreachable` in the result.

    Args:
        topology: the nodes of the client.
        federation: the nodes.
        queue: the queue.
    """

    def __init__(self, topology: QueueTopology, federation: Federation, queue: Routed) -> None:
        super().__init__(topology, federation, queue)
        self.federation = federation
        self._parts: dict[tuple[Node, int | None], Part] = {}
        self._declared: set[Node] = set()
        self._is_agreed = False
        federation.watch(self)

    # -- parts -----------------------------------------------------------------------------

    @property
    def parts(self) -> Sequence[Part]:
        """Each partition on each node."""
        nodes = self.federation.nodes
        return [self._part(node, node, number) for node in nodes for number in self.numbers]

    def _part(
        self,
        node: FederatedNode,
        through: Node,
        number: int | None,
        ops: QueueOps | None = None,
    ) -> Part:
        """Return a part, whose calls use some connections of its node.

        Args:
            node: the node.
            through: it, or its `brief` or `prompt`.
            number: of the partition.
            ops: operations that a part with another route had, whose jobs are still out.
        """
        part = self._parts.get((through, number))
        if part is None:
            part = Part(
                node,
                self.name,
                number=number,
                queue=self._queue,
                through=through,
                ops=ops,
            )
            part.ops.node, part.ops.partitions = node, self.partitions
            self._parts[through, number] = part
            if through is node:
                self._by_ops[part.ops] = part
        return part

    def adopt(self, ops: QueueOps, node: FederatedNode, number: int | None) -> None:
        """Use these operations, by which jobs were delivered before, for a part."""
        self._part(node, node, number, ops=ops)

    def _find_by_id(self, node_id: str, number: int | None, name: object) -> Part:
        node = self.federation.find_node(node_id, name)
        return self._part(node, node, number)

    def declare(self) -> None:
        """Store settings and number of partitions on the nodes that are up and lack them.

        Raises:
            QueuePartitioned: a node has another number of partitions.
        """
        if not self._is_agreed:
            self.agree()
        if self.partitions is None:
            return
        for node in list(self.federation.nodes):
            if node not in self._declared and node.state.is_up:
                self.federation.try_node(node, partial(self._declare_on, node))

    def _declare_on(self, node: FederatedNode) -> None:
        """Store the number of partitions on one node, unless it is stored."""
        if self.partitions is not None and node not in self._declared:
            node.connect()
            node.brief.driver.declare(self.ops.keys, self.partitions)
            self._declared.add(node)

    def agree(self, *more: FederatedNode) -> None:
        """Store the latest settings on the nodes that have others.

        Args:
            more: nodes that are about to be up, in addition to those that are.
        """
        self._is_agreed = True
        agreement.agree(self.federation, self.name, self.partitions, more=more)

    # -- producing -------------------------------------------------------------------------

    def _offer(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[Part, Prepared], T],
    ) -> T:
        def add_to(node: FederatedNode) -> T:
            if not self._is_agreed:
                self.agree()
            self._declare_on(node)
            return attempt(self._part(node, node, number), options)

        return produce(self.federation, add_to)

    def store_schedule(self, new: NewSchedule, *, force: bool) -> int:
        """Store a schedule in the partition of its name, on the node that has it or on one of all.

        Returns:
            As `flows.schedule`.

        Raises:
            NodesUnavailable: it is new, and a node was not reached within `retry_for`.
        """
        until = monotonic() + self.federation.config.retry_for
        while True:
            self.federation.connect()
            code = self._store_on_one(new, force=force)
            if code is not None:
                return code
            if monotonic() >= until:
                reason = f"the new schedule {new.name!r} may lie on a node that is down"
                raise NodesUnavailable(reason, self.federation.missed)
            sleep(0.05)

    def _store_on_one(self, new: NewSchedule, *, force: bool) -> int | None:
        number = None if self.partitions is None else partition_of(new.name, self.partitions)
        missed = self.federation.missed
        nodes = [node for node in list(self.federation.nodes) if node.state.is_up]
        for node in nodes:
            self._declare_on(node)
        parts = [self._part(node, node, number).ops for node in nodes]
        flow = schedule_on(parts, new, force=force, is_whole=not missed)
        return self.federation.drive(flow).code

    # -- consuming -------------------------------------------------------------------------

    def order_parts(self) -> tuple[list[QueueOps], int]:
        """Return the parts in the order to ask them for jobs, of which any may have some."""
        order, _ = super().order_parts()
        return order, len(order)

    # -- calls to parts --------------------------------------------------------------------

    def _can_do_without(self, part: Part, failure: BaseException) -> bool:
        return self.federation.note_failure(cast("FederatedNode", part.node), failure)

    def _call_part(
        self, part: Part, names: list[JobName], call: CallPart[T], intent: Intent | None
    ) -> Sequence[T]:
        node, queue = cast("FederatedNode", part.node), part.ops.keys.name
        if intent is not None and node.id and not node.state.is_up:
            kept = hints.keep(self.federation, node, queue, names=names, intent=intent)
            if any(kept):
                return cast("Sequence[T]", hinted(kept))
        # If another node can keep a hint, this one is asked once, with a short time-out.
        may_keep = intent is not None and not intent.waits and not all(map(is_once, names))
        is_prompt = may_keep and len(self.federation.nodes) > 1
        try:
            self._declare_on(node)
            chosen = self._part(node, node.prompt, part.number) if is_prompt else part
            return call(chosen, names)
        except Exception as error:
            done, unconfirmed, failure = split_error(error)
            is_down = failure is not None and self.federation.note_failure(node, failure)
            left = names[len(done) :]  # the first chunks may be done
            if is_down and unconfirmed is None and intent is not None:
                kept = hints.keep(self.federation, node, queue, names=left, intent=intent)
                if any(kept):
                    return cast("Sequence[T]", [*done, *hinted(kept)])
            if not is_down or not is_prompt:
                raise
        try:
            rest = call(part, left)
        except Exception as error:
            more, _, failure = split_error(error)
            if done:
                raise IncompleteSettle([*done, *more]) from failure
            raise
        ended = Code.ENDED if intent is not None and intent.kind == "bury" else Code.GONE
        if isinstance(rest, Settled):  # the first call may have got through
            rest = cast("Sequence[T]", rest.after_resend(ended))
        return cast("Sequence[T]", [*done, *rest])

    def _ask_nodes(self, ask: AskPart[Any]) -> NodeAnswers:
        def ask_all(node: FederatedNode) -> list[Any]:
            self._declare_on(node)
            return [ask(self._part(node, node.brief, number)) for number in self.numbers]

        answers, missed = self.federation.each(ask_all)
        return NodeAnswers([*answers], missed)

    def _read_part(self, part: Part, ask: ReadPart, cursor: str) -> ScanPage | None:
        node = cast("FederatedNode", part.node)

        def read() -> ScanPage:
            self._declare_on(node)
            return ask(self._part(node, node.brief, part.number), cursor)

        return self.federation.try_node(node, read)

    # -- the whole queue -------------------------------------------------------------------

    def _merge_stats(self, answers: NodeAnswers) -> QueueStats:
        of_nodes = {node.address: own for node, own in answers.of_nodes}
        return merging.stats_of_nodes(of_nodes, answers.missed)

    def clear(self) -> tuple[bool, int]:
        """Remove the queue; return whether it existed, and its number of jobs.

        Raises:
            NodesMissed: some nodes did not answer.
        """

        def clear_on(node: FederatedNode) -> tuple[bool, int]:
            self._declare_on(node)
            parts = [self._part(node, node.brief, number) for number in self.numbers]
            cleared = [part.clear() for part in parts]
            if self.partitions is not None:
                node.brief.driver.undeclare(self.name, self.partitions)
                self._declared.discard(node)
            return any(there for there, _ in cleared), sum(count for _, count in cleared)

        of_nodes, missed = self.federation.each(clear_on)
        answers = [answer for _, answer in of_nodes]
        if missed:
            raise NodesMissed(missed, answers)
        return any(there for there, _ in answers), sum(count for _, count in answers)
