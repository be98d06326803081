# From src/penstock/client/_async/sharded/sharded_queue.py by tools/unasync.py; do not edit.
"""A queue that is made of parts, each an ordinary queue: on several nodes, in partitions, or both.

A method adds to one part, reserves from all, calls the part that has a job, or calls every part and
merges the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._sync.job import Job
from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.role import Role
from penstock.client._sync.settling import check_jobs
from penstock.client._sync.sharded.parts import ShardedParts
from penstock.client._sync.sharded.shard import AnyNode, Shard
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
    from penstock.client._sync.sharded.federation import Federation
    from penstock.client._sync.sharded.node_client import NodeClient

__all__ = ["ObservedShardedQueue", "ShardedQueue"]

T = TypeVar("T")
MISSING = Enqueued("", "missing", action="refused")
"""The result of a body of a bulk that was not added, or perhaps not, while others were."""


class ShardedQueue(ShardedParts):
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

    def join(self, federation: Federation, home: AnyNode) -> None:
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

    def _add(self, record: bytes, options: Prepared) -> Enqueued:
        def attempt(part: Shard, options: Prepared) -> Enqueued:
            return part._add(record, options)

        return self._placed(options, attempt)

    def _add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        start = len(results)

        def attempt(part: Shard, options: Prepared) -> None:
            # A part that waits for room may have taken some before it failed.
            part._add_chunk(chunk[len(results) - start :], options, results)

        self._placed(options, attempt)

    def _placed(self, options: Prepared, attempt: Callable[[Shard, Prepared], T]) -> T:
        """Add to the partition of the key or dedup id; without both, to the next with room."""
        if self.partitions is None:
            return self._offered(None, options, attempt)
        if options.is_keyed:
            number = partition_of(options.chooser(None), self.partitions)
            return self._offered(number, options, attempt)
        first, *others = self._turns.order()
        at_once = options if options.block == 0 else replace(options, block=0.0)
        full: QueueFull | None = None
        for number in (first, *others):
            try:
                return self._offered(number, at_once, attempt)
            except QueueFull as error:  # noqa: PERF203  # as many tries as there are partitions
                full = error
        if full is not None and options.block == 0:
            raise full
        return self._offered(first, options, attempt)

    def _offered(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[Shard, Prepared], T],
    ) -> T:
        def on_part(part: Shard) -> T:
            if not self._is_agreed:
                self.agree()
            self._declare(part.home)
            return attempt(part, options)

        site: Federation | NodeClient = self._federation
        return site.produce(partial(self._preferred, number), on_part)

    def _add_all(self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued) -> None:
        if self.partitions is None or not options.is_keyed:
            super()._add_all(bodies, options, results)
            return
        for window in windows(bodies, options, self.partitions):
            self._add_window(window, options, results)

    def _add_window(self, window: Window, options: Prepared, results: BulkEnqueued) -> None:
        """Add the bodies of a window, each to its partition; append the results in body order."""
        answers: list[Enqueued] = [MISSING] * window.count
        try:
            for number, chunk in window.chunks.items():
                own = BulkEnqueued(options.ttl_code)

                def attempt(
                    part: Shard,
                    options: Prepared,
                    own: BulkEnqueued = own,
                    chunk: list[bytes] = chunk,
                ) -> None:
                    part._add_chunk(chunk[len(own) :], options, own)

                try:
                    self._offered(number, options, attempt)
                finally:
                    for at, answer in zip(window.places[number], own, strict=False):
                        answers[at] = answer
        finally:
            while answers and answers[-1] is MISSING:
                answers.pop()
            results.append(answers)

    def exclusive(
        self,
        role: RoleName,  # noqa: ARG002  # the form of `Queue.exclusive`
        *,
        lease: Duration = 30,  # noqa: ARG002  # same
        block: Duration | None = None,  # noqa: ARG002  # same
    ) -> Role:
        """Refuse the call: an exclusive role needs a queue on one node, without partitions.

        Raises:
            ConfigurationError: always.
        """
        if self.partitions is not None:
            raise ConfigurationError("only a queue without partitions has exclusive roles")
        raise ConfigurationError("a role is held on one node: make a client of that node alone")

    # -- consuming -------------------------------------------------------------------------

    def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[Job]:
        """Take up to n jobs under a lease, from any node; wait on all nodes.

        Args, returns: as `Queue.reserve`.

        Raises:
            NodesUnavailable: no node answered.
        """
        check_count("n", n)
        site: Federation | NodeClient = self._federation
        return site.reserve([self], n, check_block(block))

    def settle(
        self, done: Iterable[JobName], n: int, *, block: Duration | None = 0
    ) -> tuple[Settled, list[Job]]:
        """Finish jobs and take up to n more.

        Args, returns: as `Queue.settle`.
        """
        names = check_jobs("done", done, most=BATCH)
        check_count("n", n, high=BATCH)
        wait = check_block(block)
        outcomes = self.ack(names)
        try:
            return outcomes, self._federation.reserve([self], n, wait)
        except (
            NodesUnavailable,
            QueueClosed,
        ):  # the jobs are finished: the next call raises
            return outcomes, []

    def recover(self, n: int = 1, *, idle: Duration) -> list[Job]:
        """Take over jobs of consumers that no longer respond, on any node.

        Args, returns: as `Queue.recover`.
        """
        check_count("n", n, high=BATCH)
        jobs: list[Job] = []

        def some(part: Shard) -> None:
            if len(jobs) < n:
                jobs.extend(part.recover(n - len(jobs), idle=idle))

        self._asked(some)
        return jobs

    # -- settling --------------------------------------------------------------------------

    def ack(
        self,
        jobs: Iterable[JobName],
        *,
        dedup_window: Duration | None = None,
        replicas: int = 0,
        durable: Durable | None = None,
    ) -> Settled:
        """Finish jobs, each on its node. Args, returns, raises: as `Queue.ack`.

        If a node can't be reached, the call is stored on another node (`Outcome.HINTED`) and runs
        when the node is back. The same holds for `delete` and `bury`, but not for jobs delivered at
        most once.
        """
        window = None if dedup_window is None else duration_ms("dedup_window", dedup_window)
        return self._settled(
            jobs,
            lambda part, names: part.ack(
                names, dedup_window=dedup_window, replicas=replicas, durable=durable
            ),
            Intent("ack", window, waits=ack_wait(replicas, durable) is not None),
        )

    def _ack_one(self, job: Delivery) -> Outcome:
        return self.ack([job])[0]

    def nack(
        self, jobs: Iterable[JobName], *, delay: Duration | None = None, error: str = ""
    ) -> Settled:
        """Report failed attempts. Args, returns, raises: as `Queue.nack`."""
        return self._settled(jobs, lambda part, names: part.nack(names, delay=delay, error=error))

    def release(self, jobs: Iterable[JobName], *, delay: Duration = 0) -> Settled:
        """Give jobs back. Args, returns, raises: as `Queue.release`."""
        return self._settled(jobs, lambda part, names: part.release(names, delay=delay))

    def bury(self, jobs: Iterable[JobName], reason: str = "") -> Settled:
        """Turn jobs into dead letters. Args, returns, raises: as `Queue.bury`."""
        text = check_text("reason", reason, limit=1024)
        intent = Intent("bury", reason=text)
        return self._settled(jobs, lambda part, names: part.bury(names, text), intent)

    def extend(
        self, jobs: Iterable[JobName], lease: Duration | None = None, *, late: bool = False
    ) -> list[float | Outcome]:
        """Renew leases. Args, returns, raises: as `Queue.extend`."""
        names = check_jobs("jobs", jobs)

        def extended(part: Shard, own: list[Any]) -> Sequence[float | Outcome]:
            return part.extend(own, lease, late=late)

        unknown: float | Outcome = Outcome.UNKNOWN
        return list(self._routed(names, extended, unknown)) if names else []

    # -- moving ----------------------------------------------------------------------------

    def redrive(self, jobs: Iterable[JobName] | None = None, *, limit: int | None = None) -> int:
        """Bring dead letters back: those given, or the oldest of each node in turn.

        Args, returns: as `Queue.redrive`.
        """
        left = check_count("limit", limit) if limit is not None else None
        if jobs is not None:
            names = check_jobs("jobs", jobs)

            def named(part: Shard, own: list[Any]) -> list[int]:
                count = part.redrive(own)
                return [count, *[0] * (len(own) - 1)]

            return sum(self._routed(names, named, 0)) if names else 0
        total = 0

        def oldest(part: Shard) -> int:
            nonlocal total
            if left is None or total < left:
                total += part.redrive(limit=None if left is None else left - total)
            return total

        self._everywhere(oldest)
        return total

    def promote(self, jobs: Iterable[JobName]) -> Settled:
        """Make jobs ready at once. Args, returns: as `Queue.promote`."""
        return self._settled(jobs, lambda part, names: part.promote(names))

    def dequeue(self, jobs: Iterable[JobName]) -> Settled:
        """Take jobs out for the length of their lease. Args, returns: as `Queue.dequeue`."""
        return self._settled(jobs, lambda part, names: part.dequeue(names))

    # -- removing --------------------------------------------------------------------------

    def delete(self, jobs: Iterable[JobName], *, if_undelivered: bool = False) -> Settled:
        """Remove jobs. Args, returns: as `Queue.delete`."""
        call = partial(_deleted, if_undelivered=if_undelivered)
        return self._settled(jobs, call, None if if_undelivered else Intent("delete"))

    def purge(self, *states: StateName) -> int:
        """Remove the jobs that exist now, on every node. Args, returns: as `Queue.purge`."""
        for state in states:
            check_choice("states", state, StateName)
        return sum(self._everywhere(lambda part: part.purge(*states)))

    def sweep(self, *, evict: int = 0, dead: bool = True) -> int:
        """Sweep every node; `evict` applies to each part. Args, returns: as `Queue.sweep`."""
        check_count("evict", evict, low=0, high=BATCH)
        return sum(self._everywhere(lambda part: part.sweep(evict=evict, dead=dead)))

    def _clear(self) -> tuple[bool, int]:
        def cleared(home: AnyNode) -> tuple[bool, int]:
            self._declare(home)
            found = [self._brief(home, number)._clear() for number in self._numbers]
            if self.partitions is not None:
                home.brief.driver.undeclare(self.name, self.partitions)
                self._declared.discard(home)
            return any(there for there, _ in found), sum(count for _, count in found)

        found, missed = self._federation.each(cleared)
        if missed:
            raise NodesMissed(missed, [answer for _, answer in found])
        answers = [answer for _, answer in found]
        return any(there for there, _ in answers), sum(count for _, count in answers)

    # -- looking ---------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        """Return the counts of all nodes that answer; `unreachable` names the others.

        Settings are those that were stored last. `differing` names nodes with other settings, and
        `nodes` has the figures of each node.
        """
        found, missed = self._asked_nodes(lambda part: part.stats())
        of_nodes = {home.address: answers for home, answers in found}
        if found[0][0].is_federated:
            whole = nodes.stats_of_nodes(of_nodes, missed)
        else:
            whole = nodes.merged_stats(found[0][1])
        return replace(whole, partitions=self.partitions)

    def peek(
        self, n: int = 10, *, state: StateName = "ready", start: int = 0, newest: bool = False
    ) -> list[JobView]:
        """Return jobs of all nodes that answer, merged by time.

        Consumers do not reserve in this order: it holds only within a node.

        Args:
            n, state, newest: as in `Queue.peek`.
            start: as in `Queue.peek`; n and start together at most 1000.

        Returns:
            The jobs; `unreachable` of the list names the nodes that did not answer.
        """
        check_count("n", n, high=BATCH)
        check_count("start", start, low=0 if newest else -BATCH, high=BATCH)
        check_choice("state", state, StateName)
        if start + n > BATCH:
            raise BadArgument("start", start, f"n and start together must be at most {BATCH}")
        most = -start if start < 0 else start + n
        found, missed = self._asked(
            lambda part: part.peek(most, state=state, newest=newest or start < 0)
        )
        return Partial(nodes.merged_peek(found, state, start, n, newest=newest), missed)

    def show(self, job: JobName) -> JobView | None:
        """Return all data of one job. Returns, raises: as `Queue.show`."""

        def shown(part: Shard, names: list[Any]) -> list[JobView | None]:
            return [part.show(names[0])]

        [view] = self._routed(check_jobs("job", [job]), shown, None)
        return view

    def status(self, dedup_id: str) -> DedupStatus | None:
        """Return the job that has a dedup id, on the first node that knows the id.

        Returns: as `Queue.status`.

        Raises:
            NodesMissed: no node that answered has the id, and some did not answer.
        """
        found, missed = self._asked(lambda part: part.status(dedup_id))
        present = [status for status in found if status is not None]
        if not present and missed:
            raise NodesMissed(missed)
        return present[0] if present else None

    def scan(
        self,
        cursor: str = "0",
        n: int = 100,
        *,
        states: Iterable[StateName] | None = None,
        full: bool = True,
    ) -> ScanPage:
        """Return the next page of jobs, node after node.

        Args, returns: as `Queue.scan`; `unreachable` names the nodes that were skipped.
        """
        check_count("n", n, high=BATCH)
        chosen = check_states("states", states) or None
        key, inner = nodes.split_cursor(cursor)
        check_cursor("cursor", inner, JOB_CURSOR)
        self._federation.connect()
        missed = [part.home.address for part in self.parts if not part.home.id]
        left = sorted(
            ((self._key(part), part) for part in self.parts if part.home.id), key=lambda p: p[0]
        )
        left = [(own, part) for own, part in left if own >= key]
        while left:
            own, part = left.pop(0)
            at = inner if own == key else "0"
            page = self._federation.tried(
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

    def _scanned(self, part: Shard, at: str, n: int, states: Any, full: bool) -> ScanPage:
        self._declare(part.home)
        return self._brief(part.home, part.number).scan(at, n, states=states, full=full)

    def _key(self, part: Shard) -> str:
        """Return the name of a part in the cursors of a scan: node and checksum."""
        return f"{part.home.id}-{part.ops.crc:08x}"

    # -- settings --------------------------------------------------------------------------

    def _configured(self, fields: list[Any]) -> Settings:
        return self._everywhere(lambda part: part._configured(fields))[0]

    def _receipt_of(self, job: Delivery) -> str | None:
        return self._part_of(job)._receipt_of(job)


def _deleted(part: Shard, names: list[Any], *, if_undelivered: bool) -> Settled:
    return part.delete(names, if_undelivered=if_undelivered)


class ObservedShardedQueue(ObservedQueue, ShardedQueue):
    """A queue of several parts whose enqueues pass through the middleware of its client."""
