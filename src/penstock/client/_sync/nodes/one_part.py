# From src/penstock/client/_async/nodes/one_part.py by tools/unasync.py; do not edit.
"""A part of a queue, as the modules see it that add jobs to it and settle them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from penstock.client._sync.nodes.node import Node
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.jobs.job import JobQueue

__all__ = ["OnePart", "PartQueue"]


class Taker(Protocol):
    """The route of a queue, as a part sees it whose node takes no more jobs."""

    def add(self, record: bytes, options: Prepared) -> Enqueued:
        """Add a job to one part."""

    def add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        """Add the jobs of a chunk to one part; append the results."""


class PartQueue(JobQueue, Protocol):
    """The queue object of a part, as the part sees it."""

    @property
    def route(self) -> Taker:
        """Its route, which may be another one than that of the part."""


class OnePart(ABC):
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
        node: Node,
        name: str,
        *,
        number: int | None = None,
        queue: PartQueue,
        through: Node | None = None,
        ops: QueueOps | None = None,
    ) -> None:
        self._through = through or node
        self.node = node
        self.executor = self._through.executor
        self.driver = self._through.driver
        self.number = number
        self.queue = queue
        self.ops = ops or self._through.operations(name, number, queue)

    @property
    def address(self) -> str:
        """Return the address of the node, for people."""
        return self.node.address

    def connect(self) -> None:
        """Reach the node, unless that was done."""
        self._through.connect()

    @abstractmethod
    def add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        """Add the jobs of a chunk; append the results, also of those before a failure."""
