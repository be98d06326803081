"""Chains: the way from a job to the one that follows it, to the present one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.client._async.route.interfaces import AsyncRouted
from penstock.client._async.route.part import AsyncPart
from penstock.client._async.settling import check_jobs
from penstock.core.enqueuing.chains import ChainStatus
from penstock.core.jobs.job import JobName
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.results import linked, next_link
from penstock.core.jobs.views import JobResult, JobView
from penstock.core.values.methods import name_methods

__all__ = ["AsyncChained", "AsyncQueueChains"]


class AsyncChained(AsyncRouted, Protocol):
    """A queue whose chains are followed."""

    async def show(self, job: JobName) -> JobView | None:
        """Return all data of one job, or None if it is gone."""

    async def cancel(self, jobs: Iterable[JobName]) -> Settled:
        """Cancel jobs."""


@name_methods("AsyncQueueChains")
class AsyncQueueChains:
    """The chains of a queue, as `queue.chains`.

    Args:
        queue: the queue.
    """

    def __init__(self, queue: AsyncChained) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue.name!r}>"

    async def status(self, job: JobName) -> ChainStatus:
        """Return the state of a chain.

        Args:
            job: its first job, or a later one: a delivery or an id. A job without a chain is one of
                one job.

        Raises:
            BadJobId: the id is malformed, or of another queue, node or epoch.
        """
        name, done = job if isinstance(job, str) else job.id, 0
        while True:
            result = await _look(self._queue, name)
            if following := next_link(name, result):
                name, done = following, done + 1
            elif result is None:
                return ChainStatus(state="gone", id=name, done=done)
            elif result.state not in ("waiting", "dead"):
                done += result.state == "done"
                return ChainStatus(state=result.state, id=name, done=done)
            else:
                view = await self._queue.show(name)
                if view is not None and view.finished is None:
                    return ChainStatus(
                        state=view.state,
                        id=view.id,
                        done=done,
                        left=len(linked(view.headers)),
                        error=view.error if view.state == "dead" else "",
                    )

    async def cancel(self, job: JobName) -> Outcome:
        """Cancel a chain: its present job, as by `AsyncQueue.cancel`. No other job follows.

        Args:
            job: as of `status`.

        Returns:
            As an outcome of `AsyncQueue.cancel`. If the last job is active and finishes first, its
            value is the result.

        Raises:
            As `status`.
        """
        name = job if isinstance(job, str) else job.id
        while True:
            [outcome] = await self._queue.cancel([name])
            following = None
            if outcome is Outcome.GONE:
                following = next_link(name, await _look(self._queue, name))
            if following is None:
                return outcome
            name = following


async def _look(queue: AsyncChained, name: str) -> JobResult | None:
    async def look(part: AsyncPart, own: list[JobName]) -> list[JobResult | None]:
        return (await part.read_results(own, None)).jobs

    route = await queue.route.refresh()
    [result] = await route.call_parts(check_jobs("job", [name]), look, None)
    return result
