"""A part of a queue, as the modules see it that add jobs to it and settle them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from penstock.client._async.nodes.node import AsyncNode
from penstock.client.gathering import Gathering  # async only
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.jobs.job import JobQueue

__all__ = ["AsyncOnePart", "AsyncPartQueue"]


class AsyncTaker(Protocol):
    """The route of a queue, as a part sees it whose node takes no more jobs."""

    async def add(self, record: bytes, options: Prepared) -> Enqueued:
        """Add a job to one part."""

    async def add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        """Add the jobs of a chunk to one part; append the results."""


class AsyncPartQueue(JobQueue, Protocol):
    """The queue object of a part, as the part sees it."""

    @property
    def route(self) -> AsyncTaker:
        """Its route, which may be another one than that of the part."""


class AsyncOnePart(ABC):
    """A queue on one node, or one of its partitions there: what builds its calls and runs them.

    Args:
        node: the node.
        name: of the queue.
        number: of the partition; None = the queue has none.
        queue: the queue object.
        through: the node by the connections to use, such as its `brief`; None = `node` itself.
        ops: its operations, by which jobs were delivered before; None = make them.

    Attributes:
        ops: build its calls.
        executor, driver: run them.
        node, number, queue: the arguments.
    """

    def __init__(
        self,
        node: AsyncNode,
        name: str,
        *,
        number: int | None = None,
        queue: AsyncPartQueue,
        through: AsyncNode | None = None,
        ops: QueueOps | None = None,
    ) -> None:
        self._through = through or node
        self.node = node
        self.executor = self._through.executor
        self.driver = self._through.driver
        self.number = number
        self.queue = queue
        self.ops = ops or self._through.operations(name, number, queue)
        self._gathering = Gathering(self)  # async only

    @property
    def address(self) -> str:
        """Return the address of the node, for people."""
        return self.node.address

    async def connect(self) -> None:
        """Reach the node, unless that was done."""
        await self._through.connect()

    @abstractmethod
    async def add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        """Add the jobs of a chunk; append the results, also of those before a failure."""
