# From src/penstock/client/_async/batches.py by tools/unasync.py; do not edit.
"""Batches of a queue: sets of jobs with a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.client._sync.admin import QueueAdmin
from penstock.client._sync.route.interfaces import Enqueuing
from penstock.client._sync.route.part import Part
from penstock.client._sync.settling import check_jobs
from penstock.core.enqueuing.batches import BatchCondition, BatchStatus
from penstock.core.enqueuing.options import EnqueueOptions
from penstock.core.jobs.job import BulkEnqueued, Enqueued, JobName
from penstock.errors import BatchClosed, PenstockError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


__all__ = ["BatchOf", "QueueBatches"]

Q = TypeVar("Q", bound=Enqueuing)


class BatchOf(Generic[Q]):
    """A batch that takes jobs; see `Batch`, which names the class of its queue."""

    id: str
    queue: Q

    def __init__(
        self,
        queue: QueueBatches,
        bind: Callable[[Part], Q],
        record: bytes,
        on: BatchCondition,
    ) -> None:
        self._whole, self._bind, self._record, self._on = queue, bind, record, on

    def __enter__(self) -> Self:
        route = self._whole.route.refresh()
        opened = route.open_batch(self._record, self._on)
        self.id, self.queue = opened.id, self._bind(opened.part)
        self.queue.ops.join_batch(opened.number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif isinstance(error, Exception):
            self._cancel_if_empty()

    def _cancel_if_empty(self) -> None:
        """Cancel the batch if no job has joined. If that fails, it is abandoned after an hour."""
        with suppress(PenstockError):
            status = self.status()
            if status is not None and (status.state, status.total) == ("open", 0):
                self._whole.cancel([self.id])

    def enqueue(self, body: Any, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Add a job that joins the batch. Args, returns: as `Queue.enqueue`.

        Raises:
            BatchClosed: it is not open any more; nothing was added.
            As `Queue.enqueue`.
        """
        return self.queue.enqueue(body, **options)

    def enqueue_many(
        self, bodies: Iterable[Any], **options: Unpack[EnqueueOptions]
    ) -> BulkEnqueued:
        """Add jobs that join the batch. Args, returns: as `Queue.enqueue_many`.

        Raises:
            BatchClosed: it is not open any more; nothing was added.
            As `Queue.enqueue_many`.
        """
        return self.queue.enqueue_many(bodies, **options)

    def close(self) -> None:
        """End the joining of jobs: from now on the callback may run.

        Raises:
            BatchClosed: it was abandoned before.
        """
        status = self._whole.close_batch(self.id)
        if status is not None and status.state == "abandoned":
            text = f"batch {self.id} was not closed within an hour of its last job: redrive the id"
            raise BatchClosed(f"{text} to run its callback")

    def status(self) -> BatchStatus | None:
        """Return its state; None = its callback has ended."""
        return self._whole.batch_status(self.id)


class QueueBatches(QueueAdmin):
    """The methods of a queue about batches."""

    def batch_status(self, batch: JobName) -> BatchStatus | None:
        """Return the state of a batch.

        Args:
            batch: its id.

        Returns:
            None if its callback has ended, there is no such batch, or its node can't be reached.

        Raises:
            BadJobId: the id is malformed, of another queue, node or epoch.
        """

        def read(part: Part, names: list[JobName]) -> list[BatchStatus | None]:
            _, found = part.backend.node.run(part.ops.batches(names=names))
            return [*found] or [None]

        route = self.route.refresh()
        [status] = route.call_parts(check_jobs("batch", [batch]), read, None)
        return status

    def close_batch(self, batch: JobName) -> BatchStatus | None:
        """Close a batch whose producer did not; its callback may run then.

        Args:
            batch: its id.

        Returns, raises: as `batch_status`.
        """

        def close(part: Part, names: list[JobName]) -> list[bool]:
            return [part.backend.node.run(part.ops.close_batch(names[0])).code > 0]

        route = self.route.refresh()
        route.call_parts(check_jobs("batch", [batch]), close, False)
        return self.batch_status(batch)

    def batches(self) -> list[BatchStatus]:
        """Return the batches of the queue whose callbacks have not ended, by id."""
        parts = self._ask_all(_list)
        return sorted((one for part in parts for one in part), key=lambda one: one.id)


def _list(part: Part) -> list[BatchStatus]:
    found: dict[str, BatchStatus] = {}
    cursor = "0"
    while True:
        cursor, page = part.backend.node.run(part.ops.batches(cursor))
        found |= {status.id: status for status in page}
        if cursor == "0":
            return [*found.values()]
