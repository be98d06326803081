"""The types of routes, and of what a queue needs of its client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.client._async.nodes.one_part import AsyncPartQueue
from penstock.client._async.route.part import (
    AsyncAskPart,
    AsyncCallPart,
    AsyncOpenedBatch,
    AsyncPart,
    AsyncReadPart,
)
from penstock.client._async.settling import BuildCall
from penstock.client.clock import monotonic
from penstock.core.calls.config import ClientConfig
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.flows import ReserveRequest
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import Delivery, JobName
from penstock.core.jobs.middleware import Middleware
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.views import JobView, ScanPage
from penstock.core.values.checks import StateName
from penstock.core.values.confirmations import Wait
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from penstock.core.enqueuing.schedules import NewSchedule

__all__ = [
    "AsyncEnqueuing",
    "AsyncLookingRoute",
    "AsyncQueueTopology",
    "AsyncRoute",
    "AsyncRouted",
]

T = TypeVar("T")


class AsyncRoute(Protocol):
    """The way of a queue's calls to its parts: to the only one, or to several.

    A call stays on the route on which it began, also when the queue gets another one meanwhile.

    """

    @property
    def topology(self) -> AsyncQueueTopology:
        """Return the nodes of the client."""

    @property
    def ops(self) -> QueueOps:
        """Return the operations of the queue; those of its part if it has only one."""

    @property
    def address(self) -> str:
        """Return the address of its node, or of all, for people."""

    @property
    def part(self) -> AsyncPart | None:
        """Return the only part; None = there are several."""

    @property
    def operations(self) -> list[QueueOps]:
        """Return the operations of each part."""

    async def refresh(self) -> AsyncRoute:
        """Return the route of the queue; if the list of nodes is due, read it first.

        It is another one if the client joins other nodes.
        """

    # -- producing -------------------------------------------------------------------------

    async def add(self, record: bytes, options: Prepared) -> Enqueued:
        """Add a job to one part."""

    async def add_many(
        self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued
    ) -> None:
        """Add jobs in chunks; append the results, also of those before a failure."""

    async def add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        """Add the jobs of a chunk to one part; append the results."""

    async def open_batch(self, record: bytes, on: str) -> AsyncOpenedBatch:
        """Open a batch in one part."""

    async def store_schedule(self, new: NewSchedule, *, force: bool) -> int:
        """Store a schedule in one part. Returns: as `flows.schedule`."""

    # -- consuming -------------------------------------------------------------------------

    async def reserve(self, request: ReserveRequest) -> list[Any]:
        """Take up to n jobs of all parts; see `AsyncQueueTopology.reserve`."""

    def order_parts(self) -> tuple[list[QueueOps], int]:
        """Return the parts in the order in which to ask them for jobs.

        Returns:
            Their operations, and how many of them to ask for more when some jobs were taken: other
            parts had no jobs a moment ago.
        """

    def note_poll(self, ops: QueueOps, count: int | None) -> None:
        """Note how many jobs a part gave; None = it did not answer."""

    async def declare(self) -> None:
        """Store what all parts must agree on, before some are asked for jobs."""

    # -- settling --------------------------------------------------------------------------

    async def ack_one(self, job: Delivery) -> Outcome:
        """Finish one delivery."""

    async def exchange(
        self, names: list[JobName], n: int, *, block: float | None
    ) -> tuple[Settled, list[Any]]:
        """Finish jobs and take up to n others."""

    async def settle(
        self,
        jobs: Iterable[JobName],
        build: BuildCall,
        *,
        resent_code: int = Code.ENDED,
        wait: Wait | None = None,
        intent: Intent | None = None,
    ) -> Settled:
        """Run a script on jobs, each in its part; see `settle_each`."""

    async def read_receipt(self, job: Delivery) -> str | None:
        """Return the receipt of the delivery that holds a job; None = it is not known."""

    # -- calls to parts --------------------------------------------------------------------

    async def call_parts(
        self, names: list[JobName], call: AsyncCallPart[T], unknown: T
    ) -> Sequence[T]:
        """Call each part with its jobs; return an answer for each job, in order.

        Args:
            names: deliveries or ids.
            call: calls a part.
            unknown: the answer for a job whose node can't be reached.
        """

    async def ask_parts(self, ask: AsyncAskPart[T]) -> tuple[list[T], dict[str, str]]:
        """Ask every part; return the answers, and by address why a node has not answered."""

    async def read_page(
        self, cursor: str, check: Callable[[str], object], ask: AsyncReadPart
    ) -> ScanPage:
        """Return the next page of a scan, which passes part after part.

        Args:
            cursor: of the last page.
            check: raises a BadArgument if it is no cursor of a part.
            ask: reads a page of a part.
        """

    async def read_stats(self) -> QueueStats:
        """Return the counts of all parts."""

    async def peek(self, state: StateName, start: int, n: int, *, newest: bool) -> list[JobView]:
        """Return jobs without taking them."""

    async def clear(self) -> tuple[bool, int]:
        """Remove the queue; return whether it existed, and its number of jobs."""


class AsyncLookingRoute:
    """A route whose client may join other nodes: it looks for the route that the queue has then.

    Attributes:
        topology: the nodes of the client.
    """

    topology: AsyncQueueTopology
    _queue: AsyncRouted

    async def refresh(self) -> AsyncRoute:
        """Return the route of the queue; if the list of nodes is due, read it first."""
        if monotonic() >= self.topology.look_at:
            await self.topology.look()
        return self._queue.route

    async def reserve(self, request: ReserveRequest) -> list[Any]:
        """Take up to n jobs of all parts."""
        return await self.topology.reserve([self._queue], request)

    async def _find_other_route(self) -> bool:
        if not await self.topology.look():
            return False
        route: object = self._queue.route
        return route is not self


class AsyncRouted(AsyncPartQueue, Protocol):
    """A queue, as its route and its role see it."""

    route: AsyncRoute
    partitions: int | None

    @property
    def name(self) -> str:
        """Return the name of the queue."""

    @property
    def ops(self) -> QueueOps:
        """Return the operations of the queue."""


class AsyncEnqueuing(AsyncRouted, Protocol):
    """A queue, as handlers and batches see it."""

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Return the hooks around each enqueue."""

    async def enqueue(self, *args: Any, **options: Any) -> Enqueued:
        """Add one job."""

    async def enqueue_many(self, *args: Any, **options: Any) -> BulkEnqueued:
        """Add many jobs."""


class AsyncQueueTopology(Protocol):
    """The nodes of a client, as its queues see them.

    Attributes:
        config: the configuration of the client.
        look_at: time of the clock when the node's list is read again.
    """

    config: ClientConfig
    look_at: float

    async def look(self) -> bool:
        """Read the node's list and join the nodes in it; return True if there are some."""

    async def reserve(
        self,
        queues: Sequence[AsyncRouted],
        request: ReserveRequest,
    ) -> list[Any]:
        """Take up to n jobs from several queues, the first queue first."""
