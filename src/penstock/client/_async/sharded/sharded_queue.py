"""A queue that is made of parts, each an ordinary queue: on several nodes, in partitions, or both.

A method adds to one part, reserves from all, calls the part that has a job, or calls every part and
merges the answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._async.job import AsyncJob
from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.role import AsyncRole
from penstock.client._async.settling import check_jobs
from penstock.client._async.sharded.parts import AsyncShardedParts
from penstock.client._async.sharded.shard import AnyNode, AsyncShard
from penstock.core import nodes
from penstock.core.bulk import Prepared, Window, windows
from penstock.core.durable import Durable, ack_wait
from penstock.core.hints import Intent
from penstock.core.job import BulkEnqueued, Delivery, Enqueued, JobName, Outcome, Settled
from penstock.core.nodes import Partial
from penstock.core.operations.managing import check_states
from penstock.core.options import (
    BATCH,
    JOB_CURSOR,
    Duration,
    RoleName,
    StateName,
    check_block,
    check_choice,
    check_count,
    check_cursor,
    check_text,
    duration_ms,
)
from penstock.core.partitions import partition_of
from penstock.core.views import DedupStatus, JobView, QueueStats, ScanPage, Settings
from penstock.errors import (
    BadArgument,
    ConfigurationError,
    NodesMissed,
    NodesUnavailable,
    QueueClosed,
    QueueFull,
)

if TYPE_CHECKING:
    from penstock.client._async.sharded.federation import AsyncFederation
    from penstock.client._async.sharded.node_client import AsyncNodeClient

__all__ = ["AsyncObservedShardedQueue", "AsyncShardedQueue"]

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

    def join(self, federation: AsyncFederation, home: AnyNode) -> None:
        """Go on as a queue on several nodes; jobs that were delivered stay its jobs.

        Args:
            federation: the nodes.
            home: the node of this queue until now, as one of them.
        """
        for part in list(self._by_ops.values()):
            self.adopt(part.ops, home, part.number)
        self.backend = self._federation = federation
        self._is_agreed = False
        federation.watch(self)

    # -- producing -------------------------------------------------------------------------

    async def _add(self, record: bytes, options: Prepared) -> Enqueued:
        async def attempt(part: AsyncShard, options: Prepared) -> Enqueued:
            return await part._add(record, options)

        return await self._placed(options, attempt)

    async def _add_chunk(
        self, chunk: list[bytes], options: Prepared, results: BulkEnqueued
    ) -> None:
        start = len(results)

        async def attempt(part: AsyncShard, options: Prepared) -> None:
            # A part that waits for room may have taken some before it failed.
            await part._add_chunk(chunk[len(results) - start :], options, results)

        await self._placed(options, attempt)

    async def _placed(
        self, options: Prepared, attempt: Callable[[AsyncShard, Prepared], Awaitable[T]]
    ) -> T:
        """Add to the partition of the key or dedup id; without both, to the next with room."""
        if self.partitions is None:
            return await self._offered(None, options, attempt)
        if options.is_keyed:
            number = partition_of(options.chooser(None), self.partitions)
            return await self._offered(number, options, attempt)
        first, *others = self._turns.order()
        at_once = options if options.block == 0 else replace(options, block=0.0)
        full: QueueFull | None = None
        for number in (first, *others):
            try:
                return await self._offered(number, at_once, attempt)
            except QueueFull as error:  # noqa: PERF203  # as many tries as there are partitions
                full = error
        if full is not None and options.block == 0:
            raise full
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

        site: AsyncFederation | AsyncNodeClient = self._federation
        return await site.produce(partial(self._preferred, number), on_part)

    async def _add_all(
        self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued
    ) -> None:
        if self.partitions is None or not options.is_keyed:
            await super()._add_all(bodies, options, results)
            return
        for window in windows(bodies, options, self.partitions):
            await self._add_window(window, options, results)

    async def _add_window(self, window: Window, options: Prepared, results: BulkEnqueued) -> None:
        """Add the bodies of a window, each to its partition; append the results in body order."""
        answers: list[Enqueued] = [MISSING] * window.count
        try:
            for number, chunk in window.chunks.items():
                own = BulkEnqueued(options.ttl_code)

                async def attempt(
                    part: AsyncShard,
                    options: Prepared,
                    own: BulkEnqueued = own,
                    chunk: list[bytes] = chunk,
                ) -> None:
                    await part._add_chunk(chunk[len(own) :], options, own)

                try:
                    await self._offered(number, options, attempt)
                finally:
                    for at, answer in zip(window.places[number], own, strict=False):
                        answers[at] = answer
        finally:
            while answers and answers[-1] is MISSING:
                answers.pop()
            results.append(answers)

    def exclusive(
        self,
        role: RoleName,  # noqa: ARG002  # the form of `AsyncQueue.exclusive`
        *,
        lease: Duration = 30,  # noqa: ARG002  # same
        block: Duration | None = None,  # noqa: ARG002  # same
    ) -> AsyncRole:
        """Refuse the call: an exclusive role needs a queue on one node, without partitions.

        Raises:
            ConfigurationError: always.
        """
        if self.partitions is not None:
            raise ConfigurationError("only a queue without partitions has exclusive roles")
        raise ConfigurationError("a role is held on one node: make a client of that node alone")

    # -- consuming -------------------------------------------------------------------------

    async def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[AsyncJob]:
        """Take up to n jobs under a lease, from any node; wait on all nodes.

        Args, returns: as `AsyncQueue.reserve`.

        Raises:
            NodesUnavailable: no node answered.
        """
        check_count("n", n)
        site: AsyncFederation | AsyncNodeClient = self._federation
        return await site.reserve([self], n, check_block(block))

    async def settle(
        self, done: Iterable[JobName], n: int, *, block: Duration | None = 0
    ) -> tuple[Settled, list[AsyncJob]]:
        """Finish jobs and take up to n more.

        Args, returns: as `AsyncQueue.settle`.
        """
        names = check_jobs("done", done, most=BATCH)
        check_count("n", n, high=BATCH)
        wait = check_block(block)
        outcomes = await self.ack(names)
        try:
            return outcomes, await self._federation.reserve([self], n, wait)
        except (
            NodesUnavailable,
            QueueClosed,
        ):  # the jobs are finished: the next call raises
            return outcomes, []

    async def recover(self, n: int = 1, *, idle: Duration) -> list[AsyncJob]:
        """Take over jobs of consumers that no longer respond, on any node.

        Args, returns: as `AsyncQueue.recover`.
        """
        check_count("n", n, high=BATCH)
        jobs: list[AsyncJob] = []

        async def some(part: AsyncShard) -> None:
            if len(jobs) < n:
                jobs.extend(await part.recover(n - len(jobs), idle=idle))

        await self._asked(some)
        return jobs

    # -- settling --------------------------------------------------------------------------

    async def ack(
        self,
        jobs: Iterable[JobName],
        *,
        dedup_window: Duration | None = None,
        replicas: int = 0,
        durable: Durable | None = None,
    ) -> Settled:
        """Finish jobs, each on its node. Args, returns, raises: as `AsyncQueue.ack`.

        If a node can't be reached, the call is stored on another node (`Outcome.HINTED`) and runs
        when the node is back. The same holds for `delete` and `bury`, but not for jobs delivered at
        most once.
        """
        window = None if dedup_window is None else duration_ms("dedup_window", dedup_window)
        return await self._settled(
            jobs,
            lambda part, names: part.ack(
                names, dedup_window=dedup_window, replicas=replicas, durable=durable
            ),
            Intent("ack", window, waits=ack_wait(replicas, durable) is not None),
        )

    async def _ack_one(self, job: Delivery) -> Outcome:
        return (await self.ack([job]))[0]

    async def nack(
        self, jobs: Iterable[JobName], *, delay: Duration | None = None, error: str = ""
    ) -> Settled:
        """Report failed attempts. Args, returns, raises: as `AsyncQueue.nack`."""
        return await self._settled(
            jobs, lambda part, names: part.nack(names, delay=delay, error=error)
        )

    async def release(self, jobs: Iterable[JobName], *, delay: Duration = 0) -> Settled:
        """Give jobs back. Args, returns, raises: as `AsyncQueue.release`."""
        return await self._settled(jobs, lambda part, names: part.release(names, delay=delay))

    async def bury(self, jobs: Iterable[JobName], reason: str = "") -> Settled:
        """Turn jobs into dead letters. Args, returns, raises: as `AsyncQueue.bury`."""
        text = check_text("reason", reason, limit=1024)
        intent = Intent("bury", reason=text)
        return await self._settled(jobs, lambda part, names: part.bury(names, text), intent)

    async def extend(
        self, jobs: Iterable[JobName], lease: Duration | None = None, *, late: bool = False
    ) -> list[float | Outcome]:
        """Renew leases. Args, returns, raises: as `AsyncQueue.extend`."""
        names = check_jobs("jobs", jobs)

        async def extended(part: AsyncShard, own: list[Any]) -> Sequence[float | Outcome]:
            return await part.extend(own, lease, late=late)

        unknown: float | Outcome = Outcome.UNKNOWN
        return list(await self._routed(names, extended, unknown)) if names else []

    # -- moving ----------------------------------------------------------------------------

    async def redrive(
        self, jobs: Iterable[JobName] | None = None, *, limit: int | None = None
    ) -> int:
        """Bring dead letters back: those given, or the oldest of each node in turn.

        Args, returns: as `AsyncQueue.redrive`.
        """
        left = check_count("limit", limit) if limit is not None else None
        if jobs is not None:
            names = check_jobs("jobs", jobs)

            async def named(part: AsyncShard, own: list[Any]) -> list[int]:
                count = await part.redrive(own)
                return [count, *[0] * (len(own) - 1)]

            return sum(await self._routed(names, named, 0)) if names else 0
        total = 0

        async def oldest(part: AsyncShard) -> int:
            nonlocal total
            if left is None or total < left:
                total += await part.redrive(limit=None if left is None else left - total)
            return total

        await self._everywhere(oldest)
        return total

    async def promote(self, jobs: Iterable[JobName]) -> Settled:
        """Make jobs ready at once. Args, returns: as `AsyncQueue.promote`."""
        return await self._settled(jobs, lambda part, names: part.promote(names))

    async def dequeue(self, jobs: Iterable[JobName]) -> Settled:
        """Take jobs out for the length of their lease. Args, returns: as `AsyncQueue.dequeue`."""
        return await self._settled(jobs, lambda part, names: part.dequeue(names))

    # -- removing --------------------------------------------------------------------------

    async def delete(self, jobs: Iterable[JobName], *, if_undelivered: bool = False) -> Settled:
        """Remove jobs. Args, returns: as `AsyncQueue.delete`."""
        call = partial(_deleted, if_undelivered=if_undelivered)
        return await self._settled(jobs, call, None if if_undelivered else Intent("delete"))

    async def purge(self, *states: StateName) -> int:
        """Remove the jobs that exist now, on every node. Args, returns: as `AsyncQueue.purge`."""
        for state in states:
            check_choice("states", state, StateName)
        return sum(await self._everywhere(lambda part: part.purge(*states)))

    async def sweep(self, *, evict: int = 0, dead: bool = True) -> int:
        """Sweep every node; `evict` applies to each part. Args, returns: as `AsyncQueue.sweep`."""
        check_count("evict", evict, low=0, high=BATCH)
        return sum(await self._everywhere(lambda part: part.sweep(evict=evict, dead=dead)))

    async def _clear(self) -> tuple[bool, int]:
        async def cleared(home: AnyNode) -> tuple[bool, int]:
            await self._declare(home)
            found = [await self._brief(home, number)._clear() for number in self._numbers]
            if self.partitions is not None:
                await home.brief.driver.undeclare(self.name, self.partitions)
                self._declared.discard(home)
            return any(there for there, _ in found), sum(count for _, count in found)

        found, missed = await self._federation.each(cleared)
        if missed:
            raise NodesMissed(missed, [answer for _, answer in found])
        answers = [answer for _, answer in found]
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
            whole = nodes.stats_of_nodes(of_nodes, missed)
        else:
            whole = nodes.merged_stats(found[0][1])
        return replace(whole, partitions=self.partitions)

    async def peek(
        self, n: int = 10, *, state: StateName = "ready", start: int = 0, newest: bool = False
    ) -> list[JobView]:
        """Return jobs of all nodes that answer, merged by time.

        Consumers do not reserve in this order: it holds only within a node.

        Args:
            n, state, newest: as in `AsyncQueue.peek`.
            start: as in `AsyncQueue.peek`; n and start together at most 1000.

        Returns:
            The jobs; `unreachable` of the list names the nodes that did not answer.
        """
        check_count("n", n, high=BATCH)
        check_count("start", start, low=0 if newest else -BATCH, high=BATCH)
        check_choice("state", state, StateName)
        if start + n > BATCH:
            raise BadArgument("start", start, f"n and start together must be at most {BATCH}")
        most = -start if start < 0 else start + n
        found, missed = await self._asked(
            lambda part: part.peek(most, state=state, newest=newest or start < 0)
        )
        return Partial(nodes.merged_peek(found, state, start, n, newest=newest), missed)

    async def show(self, job: JobName) -> JobView | None:
        """Return all data of one job. Returns, raises: as `AsyncQueue.show`."""

        async def shown(part: AsyncShard, names: list[Any]) -> list[JobView | None]:
            return [await part.show(names[0])]

        [view] = await self._routed(check_jobs("job", [job]), shown, None)
        return view

    async def status(self, dedup_id: str) -> DedupStatus | None:
        """Return the job that has a dedup id, on the first node that knows the id.

        Returns: as `AsyncQueue.status`.

        Raises:
            NodesMissed: no node that answered has the id, and some did not answer.
        """
        found, missed = await self._asked(lambda part: part.status(dedup_id))
        present = [status for status in found if status is not None]
        if not present and missed:
            raise NodesMissed(missed)
        return present[0] if present else None

    async def scan(
        self,
        cursor: str = "0",
        n: int = 100,
        *,
        states: Iterable[StateName] | None = None,
        full: bool = True,
    ) -> ScanPage:
        """Return the next page of jobs, node after node.

        Args, returns: as `AsyncQueue.scan`; `unreachable` names the nodes that were skipped.
        """
        check_count("n", n, high=BATCH)
        chosen = check_states("states", states) or None
        key, inner = nodes.split_cursor(cursor)
        check_cursor("cursor", inner, JOB_CURSOR)
        await self._federation.connect()
        missed = [part.home.address for part in self.parts if not part.home.id]
        left = sorted(
            ((self._key(part), part) for part in self.parts if part.home.id), key=lambda p: p[0]
        )
        left = [(own, part) for own, part in left if own >= key]
        while left:
            own, part = left.pop(0)
            at = inner if own == key else "0"
            page = await self._federation.tried(
                part.home,
                partial(self._scanned, part, at, n, chosen, full),
            )
            if page is None:
                missed.append(part.home.address)
                continue
            is_last = page.cursor == "0" and not left
            after = left[0][0] if page.cursor == "0" and left else own
            at = "0" if is_last else f"{after}:{page.cursor}"
            return ScanPage(at, page.ids, page.jobs, tuple(missed))
        return ScanPage("0", [], [], tuple(missed))

    async def _scanned(
        self, part: AsyncShard, at: str, n: int, states: Any, full: bool
    ) -> ScanPage:
        await self._declare(part.home)
        return await self._brief(part.home, part.number).scan(at, n, states=states, full=full)

    def _key(self, part: AsyncShard) -> str:
        """Return the name of a part in the cursors of a scan: node and checksum."""
        return f"{part.home.id}-{part.ops.crc:08x}"

    # -- settings --------------------------------------------------------------------------

    async def _configured(self, fields: list[Any]) -> Settings:
        return (await self._everywhere(lambda part: part._configured(fields)))[0]

    async def _receipt_of(self, job: Delivery) -> str | None:
        return await self._part_of(job)._receipt_of(job)


async def _deleted(part: AsyncShard, names: list[Any], *, if_undelivered: bool) -> Settled:
    return await part.delete(names, if_undelivered=if_undelivered)


class AsyncObservedShardedQueue(AsyncObservedQueue, AsyncShardedQueue):
    """A queue of several parts whose enqueues pass through the middleware of its client."""
