"""A delivered job, and the calls of its holder."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from penstock.client._async.batches import read_results
from penstock.client._async.nodes.one_part import AsyncOnePart
from penstock.client._async.queue_settling import AsyncQueueSettling
from penstock.core.jobs.job import (
    Delivery,
    note_watched,
    put_back,
    put_back_progress,
    take_unsent,
)
from penstock.core.jobs.logs import AT_MOST_ONCE_NOTE, log_failure
from penstock.core.jobs.marks import trace_of
from penstock.core.jobs.outcomes import Outcome
from penstock.core.jobs.results import CHAIN_FIELD, refuse_links
from penstock.core.values.annotations import Self
from penstock.core.values.caught import summary_of
from penstock.core.values.checks import Duration
from penstock.core.values.durable import Durable
from penstock.errors import (
    AckNotReplicated,
    JobGone,
    JobNotActive,
    PenstockError,
    StaleReceipt,
    TooLate,
)

__all__ = ["AsyncJobOf", "lost"]

Q = TypeVar("Q", bound=AsyncQueueSettling)


class AsyncJobOf(Delivery, Generic[Q]):
    """A job that a consumer holds; see `AsyncJob`, which names the class of its queue."""

    __slots__ = ()

    @property
    def queue(self) -> Q:
        """Return the queue of the job."""
        queue: Q = self._reservation.queue
        return queue

    async def ack(
        self,
        *,
        dedup_window: Duration | None = None,
        replicas: int = 0,
        durable: Durable | None = None,
    ) -> bool:
        """Finish the job: it is done and removed.

        Args:
            dedup_window: seconds for which its dedup id stays taken from now on, instead of the
                window that the producer chose; 0 = it is free.
            replicas: the short form of `durable=Durable(replicas=...)`.
            durable: replicas and disks that must confirm the ack.

        Returns:
            True; False if it is gone already: expired, deleted, or finished by id.

        Raises:
            BadArgument: jobs follow it in a chain, to which its worker hands over when the handler
                returns; nothing was done.
            StaleReceipt: the lease ended and a later delivery holds the job (the error has its
                receipt, if it could be read), or this delivery was settled before.
            AckNotReplicated: too few replicas confirmed in time, or the disk did not. The job is
                acknowledged all the same if the outcome in the error is done.
            CannotSync: the server can't report which writes are on disk; nothing was done.
        """
        if dedup_window is None and durable is None and type(replicas) is int and replicas == 0:
            if self._data.find(CHAIN_FIELD, 0, self._data.find(b"\n")) > 0:
                refuse_links((self,))
            route = await self._reservation.queue.route.refresh()
            outcome = await route.ack_one(self)
            if outcome is not Outcome.DONE:
                return await self._note_outcome("ack", outcome)
            self.settled = True
            return True
        try:
            outcomes = await self.queue.ack(
                [self], dedup_window=dedup_window, replicas=replicas, durable=durable
            )
        except AckNotReplicated as error:
            await self._note_outcome("ack", error.outcomes[0])
            raise
        return await self._note_outcome("ack", outcomes[0])

    async def nack(
        self, *, delay: Duration | None = None, error: str = "", trace: str = ""
    ) -> bool:
        """Report a failed attempt. The job is tried again later, or is dead after the last attempt.

        Args:
            delay: seconds until the next attempt; None = the backoff of the job's policy, or the
                queue's (exponential, with full jitter); 0 = at once, before younger jobs, or
                by the turns of its key.
            error: text of the failure; stored with the job, cut to 1024 bytes.
            trace: the traceback; its last 8192 bytes are stored.

        Returns, raises: as `ack`.
        """
        return await self._note_outcome(
            "nack", (await self.queue.nack([self], delay=delay, error=error, trace=trace))[0]
        )

    async def release(self, *, delay: Duration = 0) -> bool:
        """Give the job back without counting a failure.

        Args:
            delay: seconds until it may be delivered again; 0 = at once, before younger jobs, or
                by the turns of its key.

        Returns, raises: as `ack`.
        """
        return await self._note_outcome(
            "release", (await self.queue.release([self], delay=delay))[0]
        )

    async def bury(self, reason: str = "") -> bool:
        """Turn the job into a dead letter.

        Args:
            reason: stored with the job, cut to 1024 bytes.

        Returns, raises: as `ack`.
        """
        return await self._note_outcome("bury", (await self.queue.bury([self], reason))[0])

    async def extend(self, lease: Duration | None = None, *, late: bool = False) -> float:
        """Renew the lease from now on.

        A worker renews the leases of its jobs itself. In its handlers a lease never gets shorter,
        and `late` is as if it was given.

        Args:
            lease: seconds; None = the job's own lease. It ends at the latest with the job's ttl.
            late: also extend when more than half of the job's ttl has passed.

        Returns:
            Seconds from now until the lease ends.

        Raises:
            StaleReceipt: a later delivery holds the job.
            JobGone: it finished, expired or was deleted.
            JobNotActive: it is delivered at most once and has no lease.
            TooLate: more than half of its ttl has passed.
        """
        settled = await self.queue.extend([self], lease, late=late)
        [seconds] = settled.seconds_left
        if seconds is None:
            raise await self._explain_refusal("extend", settled[0])
        return seconds

    async def send_progress(self) -> bool:
        """Send the last `progress` and log lines, and learn if the job is cancelled.

        The lease is not renewed.

        If a client watches the job, or a chunk has a `ttl`, all that was told is sent: each
        `progress` and each chunk of `emit`. A worker does this for its jobs, about once a second.

        Returns:
            True; False if the job is cancelled: end it by `release` when you can. Then `cancelled`
            is true, too.

        Raises:
            StaleReceipt, JobGone, JobNotActive: as in `extend`.
        """
        route = await self.queue.route.refresh()
        unsent = take_unsent(self)
        try:
            [outcome] = await route.settle([self], lambda ops, names: ops.beat(names, [unsent]))
        except BaseException:
            put_back(self, unsent)
            raise
        if outcome not in (Outcome.DONE, Outcome.WATCHED, Outcome.CANCELLED):
            raise await self._explain_refusal("send_progress", outcome)
        if outcome is Outcome.WATCHED:
            put_back_progress(self, unsent)
        if outcome is Outcome.CANCELLED:
            self.cancelled = True
        if note_watched(self, is_watched=outcome is Outcome.WATCHED):
            from penstock.client._async.emitting import send_emission

            async def send(part: AsyncOnePart, _: object) -> list[str]:
                return [await send_emission(part.executor, self)]

            await route.call_parts([self], send, "")
        return outcome is not Outcome.CANCELLED

    async def batch_results(self, *, return_exceptions: bool = False) -> list[Any]:
        """Return the values of the jobs of a batch, in the callback, in the order of joining.

        The batch was opened with `results=True`. A retry of the callback reads the same values.

        Args:
            return_exceptions: put the error of a job that has no value in its place, in place of
                raising the first one.

        Raises:
            As `AsyncQueueBatches.results`.
        """
        return await read_results(self.queue, self, return_exceptions=return_exceptions)

    async def _fail(self, error: Exception) -> None:
        text = summary_of(error)
        if self.at_most_once:
            log_failure(self, text, error, ending=AT_MOST_ONCE_NOTE)
            return
        outcome = (await self.queue.nack([self], error=text, trace=trace_of(error)))[0]
        log_failure(self, text, error, ending="a dead letter" if outcome is Outcome.DEAD else "")
        await self._note_outcome("nack", outcome)

    async def _note_outcome(self, operation: str, outcome: Outcome) -> bool:
        self.settled = outcome is not Outcome.REFUSED
        if outcome in (Outcome.STALE, Outcome.ENDED, Outcome.REFUSED):
            raise await self._explain_refusal(operation, outcome)
        return outcome is not Outcome.GONE

    async def _explain_refusal(self, operation: str, outcome: Outcome) -> PenstockError:
        if outcome is Outcome.STALE:
            current = await (await self.queue.route.refresh()).read_receipt(self)
            return StaleReceipt(self.id, operation, self.receipt, current=current)
        if outcome is Outcome.ENDED:
            return StaleReceipt(self.id, operation, self.receipt)
        return lost(operation, self.id, outcome)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self.settled:
            return False
        if error is None and self._reservation.deferred is not None:
            self.settled = True
            self._reservation.deferred.append(self)
            return False
        if error is None:
            await self.ack()
            return False
        if isinstance(error, Exception):
            await self._fail(error)
            return True
        if not self.at_most_once:
            await self.release()
        return False


def lost(operation: str, job_id: str, outcome: Outcome) -> PenstockError:
    """Return the error for a delivery that could not be settled or extended, and is not stale."""
    if outcome is Outcome.GONE:
        return JobGone(f"{operation} of {job_id}: the job finished, expired or was deleted")
    if outcome is Outcome.TOO_LATE:
        return TooLate(f"{operation} of {job_id}: more than half of the job's ttl has passed")
    return JobNotActive(
        f"{operation} of {job_id}: the job is not active, or is delivered at most once (lease=0)"
    )
