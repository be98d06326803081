# From src/penstock/client/_async/batches.py by tools/unasync.py; do not edit.
"""Batches of a queue: sets of jobs with a callback."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

from penstock.client._sync.admin import ask_all
from penstock.client._sync.looking import QueueLooking
from penstock.client._sync.route.interfaces import Enqueuing
from penstock.client._sync.route.part import Part
from penstock.client._sync.settling import check_jobs
from penstock.client.clock import monotonic
from penstock.core.enqueuing.batches import (
    MOST_NAMED_FAILURES,
    BatchCondition,
    BatchFailure,
    BatchStatus,
    MemberOutcome,
    callback_job,
    values_of,
)
from penstock.core.enqueuing.new_jobs import hooked
from penstock.core.enqueuing.options import EnqueueOptions, NamedHandler
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.jobs.job import JobName
from penstock.core.jobs.logs import get_logger
from penstock.core.values.annotations import Self, Unpack
from penstock.core.values.checks import check_flag
from penstock.core.values.methods import name_methods
from penstock.errors import BatchClosed, PenstockError, ResultGone

__all__ = ["BatchOf", "QueueBatches", "read_results"]

Q = TypeVar("Q", bound=Enqueuing)
B = TypeVar("B")
logger = get_logger("penstock")
EMPTY_BATCH_HINT = (
    "welcome.enqueue(batch.queue, ...) adds to it, welcome.enqueue(queue, ...) does not"
)
MOST_LOOKS = 10
"""Most calls that look for the dead letters of a batch."""


class BatchOf(Generic[Q]):
    """A batch that takes jobs; see `Batch`, which names the class of its queue."""

    id: str
    queue: Q

    def __init__(
        self,
        queue: QueueLooking,
        bind: Callable[[Part], Q],
        record: bytes,
        on: str,
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
            status = self._close()
            if status is not None and status.total == 0:
                text = "batch %s has no job, so its callback may run at once: %s"
                logger.warning(text, self.id, EMPTY_BATCH_HINT)
        elif isinstance(error, Exception):
            self._cancel_if_empty()

    def _cancel_if_empty(self) -> None:
        """Cancel the batch if no job has joined. If that fails, it is abandoned after an hour."""
        with suppress(PenstockError):
            status = self.status()
            if status is not None and (status.state, status.total) == ("open", 0):
                self._whole.cancel([self.id])

    def enqueue(self, body: Any, *others: NoReturn, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Add a job that joins the batch. Args, returns: as `Queue.enqueue`.

        Raises:
            BatchClosed: it is not open any more; nothing was added.
            As `Queue.enqueue`.
        """
        return self.queue.enqueue(body, *others, **options)

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
        self._close()

    def _close(self) -> BatchStatus | None:
        status = _close(self._whole, self.id)
        if status is not None and status.state == "abandoned":
            text = f"batch {self.id} was not closed within an hour of its last job: redrive the id"
            raise BatchClosed(f"{text} to run its callback")
        return status

    def status(self) -> BatchStatus | None:
        """Return its state; None = its callback has ended."""
        return _read_status(self._whole, self.id)


@name_methods("QueueBatches")
class QueueBatches(Generic[B]):
    """The batches of a queue, as `queue.batches`.

    Args:
        queue: the queue.
        make: makes a batch of the record of its callback and its condition.
    """

    def __init__(self, queue: QueueLooking, make: Callable[[bytes, str], B]) -> None:
        self._queue, self._make = queue, make

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue.name!r}>"

    def open(
        self,
        *,
        then: Any,
        on: BatchCondition = "success",
        on_failure: NamedHandler | str | None = None,
        results: bool = False,
    ) -> B:
        """Return a batch: jobs that are added in its block, and a callback that follows them.

            with queue.batches.open(then=summary.job("b1")) as batch:
                batch.enqueue_many(resize.jobs(paths))

        The callback is a job of the queue. It runs once, when the block has ended and no job of the
        batch is left to wait for. Jobs that a job of the batch hands over (`Done(then=...)`) join.
        A batch lies on one node, and in one partition. `queue.batch(...)` is the short form.

        Args:
            then: the callback: a job of a handler, `summary.job("b1")`, or a body.
            on: "success" = when all jobs are done. A dead letter is waited for, as it may be
                redriven; if a job ends otherwise, the callback becomes a dead letter.
                "finished" = when each job is done, dead, or has ended otherwise.
            on_failure: a handler, or its name: a job of it is added, with the body of the callback,
                when a closed batch waits only for dead letters, or when the callback itself becomes
                a dead letter. Its `job.death` tells of it: `id` is that of the batch. The callback
                still runs if the dead letters are redriven and done.
            results: keep the values that the handlers return until the callback has ended: it reads
                them by `job.batch_results()`. Values of 16 MiB and 10,000 jobs are kept, each of at
                most `result_size`, 64 KiB.

        Raises:
            BadArgument: an argument can't be used.

        Examples:
            >>> with q.batches.open(then="report") as batch:
            ...     added = batch.enqueue_many([b"a", b"b"])
            >>> outcomes = q.ack(q.reserve(2))
            >>> [job.body for job in q.reserve()]  # when both are done
            ['report']
        """
        callback, condition = callback_job(then, on, on_failure=on_failure, results=results)
        queue = self._queue
        job = hooked(callback, queue.name, middleware=queue.middleware, clock=monotonic)
        record = job.options.prepared(queue.ops.codec).record(job.body)
        return self._make(record, condition)

    def get(self, batch: JobName) -> BatchStatus | None:
        """Return the state of a batch, and its first 20 dead letters.

        They are looked for among the first 10,000 dead letters of the queue since the batch was
        opened. `queue.jobs("dead", batch=id)` finds all.

        Args:
            batch: its id.

        Returns:
            None if its callback has ended, there is no such batch, or its node can't be reached.

        Raises:
            BadJobId: the id is malformed, of another queue, node or epoch.
        """
        return _read_status(self._queue, batch)

    def results(self, batch: JobName, *, return_exceptions: bool = False) -> builtins.list[Any]:
        """Return the values of the jobs of a batch, in the order in which they have joined.

        A job that has handed over to one other job has the place and the value of that one. A job
        without a value, such as one that was acknowledged by `job.ack()`, has None.

        Args:
            batch: its id; it was opened with `results=True`.
            return_exceptions: put the error of a job that has no value in its place, as
                `asyncio.gather` does, in place of raising the first one.

        Raises:
            JobFailed: a job is a dead letter.
            JobCancelled, JobExpired: a job has ended so.
            ResultTimeout: a job has not ended.
            ResultGone: the callback has ended; the batch keeps no values; or one job has no value:
                it was removed, its value was larger than the queue's `result_size` or not JSON,
                those of the batch are larger than 16 MiB together, the server's memory was full, or
                it is behind the first 10,000.
            BadJobId: as `get`.

        Examples:
            >>> from penstock import Handlers
            >>> handlers = Handlers()
            >>> @handlers.handler
            ... def square(number: int) -> int:
            ...     return number**2
            >>> with q.batches.open(then="sum", results=True) as batch:
            ...     added = batch.enqueue_many(square.jobs([1, 2, 3]))
            >>> Worker(ps, q, handlers, burst=True).run()
            >>> q.batches.results(batch.id)
            [1, 4, 9]
        """
        return read_results(self._queue, batch, return_exceptions=return_exceptions)

    def close(self, batch: JobName) -> BatchStatus | None:
        """Close a batch whose producer did not; its callback may run then.

        Args:
            batch: its id.

        Returns, raises: as `get`.
        """
        return _close(self._queue, batch)

    def list(self) -> builtins.list[BatchStatus]:
        """Return the batches of the queue whose callbacks have not ended, by id.

        They name no dead letters: `get` does.
        """
        return read_batches(self._queue)


def _read_status(queue: QueueLooking, batch: JobName) -> BatchStatus | None:
    def read(part: Part, names: list[JobName]) -> list[BatchStatus | None]:
        _, statuses = part.executor.run(part.ops.batches(names=names))
        return [_with_failures(part, status) for status in statuses] or [None]

    route = queue.route.refresh()
    [status] = route.call_parts(check_jobs("batch", [batch]), read, None)
    return status


def read_results(queue: QueueLooking, batch: JobName, *, return_exceptions: bool) -> list[Any]:
    """Return the values of the jobs of a batch; see `QueueBatches.results`."""
    check_flag("return_exceptions", return_exceptions)
    name = batch if isinstance(batch, str) else batch.id

    def read(part: Part, names: list[JobName]) -> list[list[Any] | None]:
        outcomes, start = list[MemberOutcome](), 0
        while True:
            page = part.executor.run(part.ops.batch_values(names[0], start))
            if page is None:
                return [None]
            start, total, some = page
            outcomes += some
            if start == 0:
                return [values_of(name, outcomes, total, return_exceptions=return_exceptions)]

    route = queue.route.refresh()
    [values] = route.call_parts(check_jobs("batch", [batch]), read, None)
    if values is None:
        reason = "it was not opened with results=True, or its callback has ended"
        raise ResultGone(f"batch {name} has no values: {reason}")
    return values


def _with_failures(part: Part, status: BatchStatus) -> BatchStatus:
    """Return the status with its first dead letters. Its calls look at 10,000 of the queue."""
    failures, start, looks = list[BatchFailure](), 0, 0
    wanted = min(status.dead, MOST_NAMED_FAILURES)
    while len(failures) < wanted and (start > 0 or looks == 0) and looks < MOST_LOOKS:
        start, page = part.executor.run(part.ops.batch_failures(status.id, start))
        failures, looks = failures + page, looks + 1
    return replace(status, failures=tuple(failures[:MOST_NAMED_FAILURES])) if failures else status


def _close(queue: QueueLooking, batch: JobName) -> BatchStatus | None:
    def close(part: Part, names: list[JobName]) -> list[bool]:
        return [part.executor.run(part.ops.close_batch(names[0])).code > 0]

    route = queue.route.refresh()
    route.call_parts(check_jobs("batch", [batch]), close, False)
    return _read_status(queue, batch)


def read_batches(queue: QueueLooking, most: float = math.inf) -> list[BatchStatus]:
    """Return the batches of a queue, by id; of each part all, or about `most`."""

    def read(part: Part) -> list[BatchStatus]:
        status_of: dict[str, BatchStatus] = {}
        cursor = "0"
        while True:
            cursor, page = part.executor.run(part.ops.batches(cursor))
            status_of |= {status.id: status for status in page}
            if cursor == "0" or len(status_of) >= most:
                return [*status_of.values()]

    parts = ask_all(queue, read)
    return sorted((one for part in parts for one in part), key=lambda one: one.id)
