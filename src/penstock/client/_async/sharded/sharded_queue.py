"""A queue that is made of parts, each an ordinary queue: on several nodes, in partitions, or both.

A method adds to one part, reserves from all, calls the part that has a job, or calls every part and
merges the answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._acompat import asleep
from penstock.client._async.job import AsyncJob
from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.sharded.parts import AsyncShardedParts, next_page
from penstock.client._async.sharded.shard import AsyncShard
from penstock.client.clock import monotonic
from penstock.core.enqueuing.batches import BatchCondition
from penstock.core.enqueuing.chunks import Window, windows
from penstock.core.enqueuing.options import Prepared, prepared
from penstock.core.flows.schedules import StoreOutcome, schedule_on
from penstock.core.jobs.job import BulkEnqueued, Delivery, Enqueued, JobName
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.views import JobView, QueueStats, ScanPage, Settings
from penstock.core.nodes import merging
from penstock.core.nodes.merging import Partial
from penstock.core.values.checks import BATCH, JOB_CURSOR, StateName, check_cursor
from penstock.core.values.partitions import partition_of
from penstock.errors import (
    BadArgument,
    ConfigurationError,
    NodesMissed,
    NodesUnavailable,
    QueueClosed,
    QueueFull,
)

if TYPE_CHECKING:
    from penstock.client._async.queue import AsyncQueue
    from penstock.client._async.sharded.federation import AsyncFederation
    from penstock.client._async.sharded.node_client import AsyncNodeClient
    from penstock.core.enqueuing.schedules import NewSchedule
    from penstock.core.jobs.searching import Search

__all__ = ["AsyncObservedShardedQueue", "AsyncShardedQueue", "sharded_queue"]

T = TypeVar("T")
MISSING = Enqueued("", "missing", action="refused")
"""The result of a body of a bulk that was not added, or perhaps not, while others were."""


class AsyncShardedQueue(AsyncShardedParts):
    """A queue on several nodes, or in several partitions, or both: each partition on each node.

    Bounds, settings and a pause apply to each part: `max_length` is the most jobs that wait in one
    part. Duplicates are found only among the jobs of one node. Calls that change the whole queue
    (`configure`, `pause`, `resume`, `purge`, `sweep`, `clear`) run on every node that can be
    reached; if a node can't, they raise `NodesMissed`, which names it. Calls that read the whole
    queue name such nodes as `unreachable` in the result.

    Args:
        federation: the nodes, or the only node.
        name: any non-empty text.
        partitions: number of partitions; None = none.

    Attributes:
        partitions: number of partitions; None = none.
    """

    def join(self, federation: AsyncFederation, home: AsyncNodeClient) -> None:
        """Go on as a queue on several nodes; jobs that were delivered stay its jobs.

        Args:
            federation: the nodes.
            home: the node of this queue until now, as one of them.
        """
        for part in list(self._by_ops.values()):
            self.adopt(part.ops, home, part.number)
        self.backend = federation
        self._is_agreed = False
        federation.watch(self)

    # -- producing -------------------------------------------------------------------------

    async def _add(self, record: bytes, options: Prepared) -> Enqueued:
        added = await self._placed(options, lambda part, options: part._add(record, options))
        added.queue = self
        return added

    async def _add_chunk(
        self, chunk: list[bytes], options: Prepared, results: BulkEnqueued
    ) -> None:
        await self._placed(options, _adding(chunk, results))

    async def _placed(
        self, options: Prepared, attempt: Callable[[AsyncShard, Prepared], Awaitable[T]]
    ) -> T:
        """Add to the partition of the key or dedup id; without both, to the next with room."""
        if self.partitions is None:
            return await self._offered(None, options, attempt)
        if options.is_keyed:
            number = partition_of(options.chooser(None), self.partitions)
            return await self._offered(number, options, attempt)
        first = self._turn = (self._turn + 1) % self.partitions
        order = [*range(first, self.partitions), *range(first)]
        at_once = options if options.block == 0 else replace(options, block=0.0)
        for number in order:
            try:
                return await self._offered(number, at_once, attempt)
            except QueueFull:  # noqa: PERF203  # as many tries as there are partitions
                if options.block == 0 and number == order[-1]:
                    raise
        return await self._offered(first, options, attempt)

    async def _offered(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[AsyncShard, Prepared], Awaitable[T]],
    ) -> T:
        async def on_part(part: AsyncShard) -> T:
            if not self._is_agreed:
                await self.agree()
            await self._declare(part.home)
            return await attempt(part, options)

        site: AsyncFederation | AsyncNodeClient = self.backend
        return await site.produce(partial(self._part, number=number), on_part)

    async def _add_all(
        self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued
    ) -> None:
        if self.partitions is None or not options.is_keyed:
            await super()._add_all(bodies, options, results)
            return
        for window in windows(bodies, options, self.partitions):
            await self._add_window(window, results)

    async def _add_window(self, window: Window, results: BulkEnqueued) -> None:
        """Add the bodies of a window, each to its partition; append the results in body order."""
        answers: list[Enqueued] = [MISSING] * window.count
        try:
            for number, chunk in window.chunks.items():
                own = BulkEnqueued(self)
                try:
                    await self._offered(number, window.options, _adding(chunk, own))
                finally:
                    for at, answer in zip(window.places[number], own, strict=False):
                        answers[at] = answer
        finally:
            while answers and answers[-1] is MISSING:
                answers.pop()
            results.append(answers)

    def _check_roles(self) -> None:
        if self.partitions is not None:
            raise ConfigurationError("only a queue without partitions has exclusive roles")
        raise ConfigurationError("a role is held on one node: make a client of that node alone")

    # -- consuming -------------------------------------------------------------------------

    async def _exchanged(
        self, names: list[JobName], n: int, wait: float | None
    ) -> tuple[Settled, list[AsyncJob]]:
        outcomes = await self.ack(names)
        try:
            return outcomes, await self.backend.reserve([self], n, wait)
        except (NodesUnavailable, QueueClosed):  # the next call raises it: these jobs are finished
            return outcomes, []

    # -- settling --------------------------------------------------------------------------

    async def _ack_one(self, job: Delivery) -> Outcome:
        return (await self.ack([job]))[0]

    # -- removing --------------------------------------------------------------------------

    async def _clear(self) -> tuple[bool, int]:
        async def cleared(home: AsyncNodeClient) -> tuple[bool, int]:
            await self._declare(home)
            found = [await self._brief(home, number)._clear() for number in self._numbers]
            if self.partitions is not None:
                await home.brief.driver.undeclare(self.name, self.partitions)
                self._declared.discard(home)
            return any(there for there, _ in found), sum(count for _, count in found)

        found, missed = await self.backend.each(cleared)
        answers = [answer for _, answer in found]
        if missed:
            raise NodesMissed(missed, answers)
        return any(there for there, _ in answers), sum(count for _, count in answers)

    # -- looking ---------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """Return the counts of all nodes that answer; `unreachable` names the others.

        Settings are those that were stored last. `differing` names nodes with other settings, and
        `nodes` has the figures of each node.
        """
        found, missed = await self._asked_nodes(lambda part: part.stats())
        of_nodes = {home.address: answers for home, answers in found}
        if found[0][0].is_federated:
            whole = merging.stats_of_nodes(of_nodes, missed)
        else:
            whole = merging.merged_stats(found[0][1])
        return replace(whole, partitions=self.partitions)

    async def _peeked(self, state: StateName, start: int, n: int, *, newest: bool) -> list[JobView]:
        if start + n > BATCH:
            raise BadArgument("start", start, f"n and start together must be at most {BATCH}")
        most, backwards = (-start if start < 0 else start + n), newest or start < 0
        found, missed = await self._asked(
            lambda part: part._peeked(state, 0, most, newest=backwards)
        )
        return Partial(merging.merged_peek(found, state, start, n, newest=newest), missed)

    async def _scanned(
        self, cursor: str, n: int, states: Sequence[StateName], *, full: bool
    ) -> ScanPage:
        check_cursor("cursor", merging.split_cursor(cursor)[1], JOB_CURSOR)
        return await self._page_of_parts(
            cursor, lambda part, at: part._scanned(at, n, states, full=full)
        )

    async def _found(self, search: Search, cursor: str, n: int) -> ScanPage:
        search.check_cursor(merging.split_cursor(cursor)[1])
        return await self._page_of_parts(cursor, lambda part, at: part._found(search, at, n))

    async def _page_of_parts(
        self, cursor: str, ask: Callable[[AsyncShard, str], Awaitable[ScanPage]]
    ) -> ScanPage:
        await self.backend.connect()

        async def asked(part: AsyncShard, at: str) -> ScanPage:
            await self._declare(part.home)
            return await ask(self._brief(part.home, part.number), at)

        places = [(self._key(part), part.home, partial(asked, part)) for part in self.parts]
        at = merging.split_cursor(cursor)
        _, page = await next_page(self.backend, at, places, ScanPage("0", [], []))
        return page

    def _key(self, part: AsyncShard) -> str:
        """Return the name of a part in the cursors of a scan: node and checksum."""
        return f"{part.home.id}-{part.ops.crc:08x}"

    # -- batches ---------------------------------------------------------------------------

    async def _opened(self, record: bytes, on: BatchCondition) -> tuple[str, AsyncQueue]:
        """Open a batch on one node, in one partition; return its id, and that part."""
        return await self._placed(prepared(), lambda part, _: part._opened(record, on))

    # -- schedules -------------------------------------------------------------------------

    async def _store_schedule(self, new: NewSchedule, *, force: bool) -> int:
        """Store a schedule in the partition of its name, on the node that has it or on one of all.

        Returns:
            As `flows.schedule`.

        Raises:
            NodesUnavailable: it is new, and a node was not reached within `retry_for`.
        """
        until = monotonic() + self.backend.terms.retry_for
        while True:
            await self.backend.connect()
            what = await self._stored_on_one(new, force=force)
            if what is not None:
                return what
            if monotonic() >= until:
                reason = f"the new schedule {new.name!r} may lie on a node that is down"
                raise NodesUnavailable(reason, self.backend.missed)
            await asleep(0.05)

    async def _stored_on_one(self, new: NewSchedule, *, force: bool) -> int | None:
        number = None if self.partitions is None else partition_of(new.name, self.partitions)
        missed = self.backend.missed
        homes = [home for home in list(self.backend.homes) if home.state.is_up]
        for home in homes:
            await self._declare(home)
        parts = [self._part(home, number).ops for home in homes]
        flow = schedule_on(parts, new, force=force, is_whole=not missed)
        outcome: StoreOutcome = await self.backend.drive(flow)
        return outcome.code

    # -- settings --------------------------------------------------------------------------

    async def _configured(self, fields: list[Any]) -> Settings:
        return (await self._everywhere(lambda part: part._configured(fields)))[0]

    async def _receipt_of(self, job: Delivery) -> str | None:
        return await self._part_of(job)._receipt_of(job)


def _adding(
    chunk: list[bytes], results: BulkEnqueued
) -> Callable[[AsyncShard, Prepared], Awaitable[None]]:
    """Return a function that adds records to a part, without those that another one has taken."""
    start = len(results)

    async def attempt(part: AsyncShard, options: Prepared) -> None:
        # A part that waits for room may have taken some before it failed.
        await part._add_chunk(chunk[len(results) - start :], options, results)

    return attempt


class AsyncObservedShardedQueue(AsyncObservedQueue, AsyncShardedQueue):
    """A queue of several parts whose enqueues pass through the middleware of its client."""


def sharded_queue(site: Any, name: str, partitions: int | None) -> AsyncShardedQueue:
    """Return a queue on all nodes of a client, whose enqueues pass through its middleware."""
    made = AsyncObservedShardedQueue if site.terms.middleware else AsyncShardedQueue
    return made(site, name, partitions)
