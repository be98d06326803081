"""Batches of a queue: sets of jobs with a callback."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.client._async.admin import AsyncQueueAdmin
from penstock.client._async.settling import check_jobs
from penstock.core import flows
from penstock.core.enqueuing.batches import BatchCondition, BatchStatus, callback_job
from penstock.core.enqueuing.options import EnqueueOptions, hooked
from penstock.core.jobs.job import BulkEnqueued, Enqueued, JobName
from penstock.errors import BatchClosed, PenstockError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from penstock.client._async.queue import AsyncQueue

__all__ = ["AsyncBatch", "AsyncQueueBatches"]


class AsyncBatch:
    """A batch that takes jobs until its block ends, made by `AsyncQueue.batch`.

    The end of the block closes it. If the block raises an Exception and no job has joined, the
    batch is cancelled. If it raises later, the batch stays open: it is abandoned an hour after its
    last job, unless `close` is called.

    Attributes:
        id: of the batch: the job id of its callback. It is set when the block begins.
        queue: the queue, on the node and in the partition of the batch. Jobs that are added through
            it join the batch: `resize.enqueue(batch.queue, "a.png")`.
    """

    id: str
    queue: AsyncQueue

    def __init__(self, queue: AsyncQueueBatches, record: bytes, on: BatchCondition) -> None:
        self._whole, self._record, self._on = queue, record, on

    async def __aenter__(self) -> Self:
        self.id, self.queue = await self._whole._opened(self._record, self._on)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            await self._cancel_if_empty()

    async def _cancel_if_empty(self) -> None:
        """Cancel the batch if no job has joined. If that fails, it is abandoned after an hour."""
        with suppress(PenstockError):
            status = await self.status()
            if status is not None and (status.state, status.total) == ("open", 0):
                await self._whole.cancel([self.id])

    async def enqueue(self, body: Any, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Add a job that joins the batch. Args, returns: as `AsyncQueue.enqueue`.

        Raises:
            BatchClosed: it is not open any more; nothing was added.
            As `AsyncQueue.enqueue`.
        """
        return await self.queue.enqueue(body, **options)

    async def enqueue_many(
        self, bodies: Iterable[Any], **options: Unpack[EnqueueOptions]
    ) -> BulkEnqueued:
        """Add jobs that join the batch. Args, returns: as `AsyncQueue.enqueue_many`.

        Raises:
            BatchClosed: it is not open any more; nothing was added.
            As `AsyncQueue.enqueue_many`.
        """
        return await self.queue.enqueue_many(bodies, **options)

    async def close(self) -> None:
        """End the joining of jobs: from now on the callback may run.

        Raises:
            BatchClosed: it was abandoned before.
        """
        status = await self._whole.close_batch(self.id)
        if status is not None and status.state == "abandoned":
            text = f"batch {self.id} was not closed within an hour of its last job: redrive the id"
            raise BatchClosed(f"{text} to run its callback")

    async def status(self) -> BatchStatus | None:
        """Return its state; None = its callback has ended."""
        return await self._whole.batch_status(self.id)


class AsyncQueueBatches(AsyncQueueAdmin):
    """The methods of a queue about batches."""

    def batch(self, *, then: Any, on: BatchCondition = "success") -> AsyncBatch:
        """Return a batch: jobs that are added in its block, and a callback that follows them.

            async with queue.batch(then=summary.job("b1")) as batch:
                await batch.enqueue_many(resize.jobs(paths))

        The callback is a job of the queue. It runs once, when the block has ended and no job of the
        batch is left to wait for. Jobs that a job of the batch hands over (`Done(then=...)`) join.
        A batch lies on one node, and in one partition.

        Args:
            then: the callback: a job of a handler, `summary.job("b1")`, or a body.
            on: "success" = when all jobs are done. A dead letter is waited for, as it may be
                redriven; if a job ends otherwise, the callback becomes a dead letter.
                "finished" = when each job is done, dead, or has ended otherwise.

        Raises:
            BadArgument: an argument can't be used.

        Examples:
            >>> async with q.batch(then="report") as batch:
            ...     added = await batch.enqueue_many([b"a", b"b"])
            >>> outcomes = await q.ack(await q.reserve(2))
            >>> [job.body for job in await q.reserve()]  # when both are done
            ['report']
        """
        job = hooked(callback_job(then, on), self.name, self.backend.terms.middleware)
        record = job.options.prepared(self.ops.codec).record(job.body)
        return AsyncBatch(self, record, on)

    async def _opened(self, record: bytes, on: BatchCondition) -> tuple[str, AsyncQueue]:
        """Open a batch; return its id, and a queue whose jobs join it."""
        await self.backend.connect()
        build = partial(self.ops.open_batch, record, on)
        _, reply = await self.backend.driver.drive(flows.create_and_run(self.ops, build))
        queue = self._twin()
        queue.ops.join_batch(reply.first)
        return self.ops.batch_id(reply.epoch, reply.first), queue

    def _twin(self) -> AsyncQueue:
        """Return another object of the queue."""
        return type(self)(self.backend, self.name)  # type: ignore[return-value]  # a kind of queue

    async def batch_status(self, batch: JobName) -> BatchStatus | None:
        """Return the state of a batch.

        Args:
            batch: its id.

        Returns:
            None if its callback has ended, there is no such batch, or its node can't be reached.

        Raises:
            BadJobId: the id is malformed, of another queue, node or epoch.
        """

        async def read(part: AsyncQueueAdmin, names: list[JobName]) -> list[BatchStatus | None]:
            _, found = await part.backend.node.run(part.ops.batches(names=names))
            return [*found] or [None]

        [status] = await self._routed(check_jobs("batch", [batch]), read, None)
        return status

    async def close_batch(self, batch: JobName) -> BatchStatus | None:
        """Close a batch whose producer did not; its callback may run then.

        Args:
            batch: its id.

        Returns, raises: as `batch_status`.
        """

        async def close(part: AsyncQueueAdmin, names: list[JobName]) -> list[bool]:
            return [(await part.backend.node.run(part.ops.close_batch(names[0]))).code > 0]

        await self._routed(check_jobs("batch", [batch]), close, False)
        return await self.batch_status(batch)

    async def batches(self) -> list[BatchStatus]:
        """Return the batches of the queue whose callbacks have not ended, by id."""
        parts = await self._everywhere(_listed)
        return sorted((one for part in parts for one in part), key=lambda one: one.id)


async def _listed(part: AsyncQueueAdmin) -> list[BatchStatus]:
    found: dict[str, BatchStatus] = {}
    cursor = "0"
    while True:
        cursor, page = await part.backend.node.run(part.ops.batches(cursor))
        found |= {status.id: status for status in page}
        if cursor == "0":
            return [*found.values()]
