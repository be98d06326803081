"""The route of a queue with partitions on one node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._async.nodes.node import AsyncNode
from penstock.client._async.route.interfaces import AsyncQueueTopology, AsyncRouted
from penstock.client._async.route.part import AsyncAskPart, AsyncCallPart, AsyncPart, AsyncReadPart
from penstock.client._async.route.parts import AsyncNodeAnswers, AsyncPartsRoute
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

__all__ = ["AsyncPartitionsRoute"]

T = TypeVar("T")


class AsyncPartitionsRoute(AsyncPartsRoute):
    """The route of a queue with partitions on one node, which may be a cluster.

    Its parts are known from the beginning, so a call of one job goes to its part at once. There is
    no other node to fail over to: errors are raised as they are.

    Args:
        topology: the nodes of the client.
        node: the node.
        queue: the queue, with partitions.
    """

    partitions: int

    def __init__(self, topology: AsyncQueueTopology, node: AsyncNode, queue: AsyncRouted) -> None:
        super().__init__(topology, node, queue)
        self.node = node
        self._parts = [AsyncPart(node, self.name, number=i, queue=queue) for i in self.numbers]
        for part in self._parts:
            part.ops.partitions = self.partitions
            self._by_ops[part.ops] = part
        self._is_declared = False

    @property
    def operations(self) -> list[QueueOps]:
        """Return the operations of each partition."""
        return [*self._by_ops]

    @property
    def parts(self) -> Sequence[AsyncPart]:
        """Each partition."""
        return self._parts

    async def declare(self) -> None:
        """Store the number of partitions, unless that was done.

        Raises:
            QueuePartitioned: the node has another number of partitions.
        """
        if not self._is_declared:
            await self.node.connect()
            await self.node.driver.declare(self.ops.keys, self.partitions)
            self._is_declared = True

    def _find_by_id(self, node_id: str, number: int | None, name: object) -> AsyncPart:
        self.node.check_known(node_id, name)
        return self._parts[number or 0]

    # -- producing -------------------------------------------------------------------------

    async def _offer(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[AsyncPart, Prepared], Awaitable[T]],
    ) -> T:
        if monotonic() >= self.topology.look_at and await self._find_other_route():
            return await self._offer_elsewhere(number, options, attempt)
        if not self._is_declared:
            await self.declare()
        try:
            return await attempt(self._parts[number or 0], options)
        except NodesUnavailable:  # the node is leaving
            if not await self._find_other_route():
                raise
        return await self._offer_elsewhere(number, options, attempt)

    async def _offer_elsewhere(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[AsyncPart, Prepared], Awaitable[T]],
    ) -> T:
        route = self._queue.route
        assert isinstance(route, AsyncPartsRoute)
        return await route._offer(number, options, attempt)

    async def store_schedule(self, new: NewSchedule, *, force: bool) -> int:
        """Store a schedule in the partition of its name. Returns: as `flows.schedule`."""
        await self.declare()
        part = self._parts[partition_of(new.name, self.partitions)]
        return await part.store_schedule(new, force=force)

    # -- consuming -------------------------------------------------------------------------

    async def reserve(self, request: ReserveRequest) -> list[Any]:
        """Take up to n jobs of all parts; the first part may have the only one that is wanted."""
        is_alone = request.n == 1 and request.confirm is None and not self.node.is_apart
        if is_alone and self._is_declared:
            ops = self.order_parts()[0][0]
            taken: Taken = await self.node.executor.run(ops.reserve(1))
            if taken.deliveries:
                self.note_poll(ops, 1)
                return taken.deliveries
            request = request._replace(seen={ops: taken})
        return await super().reserve(request)

    # -- settling --------------------------------------------------------------------------

    async def ack_one(self, job: Delivery) -> Outcome:
        """Finish one delivery."""
        return await self._find_part(job).ack_one(job)

    # -- calls to parts --------------------------------------------------------------------

    def _can_do_without(self, part: AsyncPart, failure: BaseException) -> bool:
        del part, failure
        return False

    async def _call_part(
        self, part: AsyncPart, names: list[JobName], call: AsyncCallPart[T], intent: Intent | None
    ) -> Sequence[T]:
        del intent  # no other node keeps a hint
        await self.declare()
        return await call(part, names)

    async def _ask_nodes(self, ask: AsyncAskPart[Any]) -> AsyncNodeAnswers:
        await self.declare()
        return AsyncNodeAnswers([(self.node, [await ask(part) for part in self._parts])], {})

    async def _read_part(self, part: AsyncPart, ask: AsyncReadPart, cursor: str) -> ScanPage | None:
        await self.declare()
        return await ask(part, cursor)

    # -- the whole queue -------------------------------------------------------------------

    def _merge_stats(self, answers: AsyncNodeAnswers) -> QueueStats:
        return merging.merged_stats(answers.of_nodes[0][1])

    async def clear(self) -> tuple[bool, int]:
        """Remove the queue; return whether it existed, and its number of jobs."""
        await self.declare()
        cleared = [await part.clear() for part in self._parts]
        await self.node.driver.undeclare(self.name, self.partitions)
        self._is_declared = False
        return any(there for there, _ in cleared), sum(count for _, count in cleared)
