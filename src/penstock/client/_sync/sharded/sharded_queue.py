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

from penstock.client._acompat import sleep
from penstock.client._sync.job import Job
from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.sharded.parts import ShardedParts, next_page
from penstock.client._sync.sharded.shard import Shard
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
    from penstock.client._sync.queue import Queue
    from penstock.client._sync.sharded.federation import Federation
    from penstock.client._sync.sharded.node_client import NodeClient
    from penstock.core.enqueuing.schedules import NewSchedule
    from penstock.core.jobs.searching import Search

__all__ = ["ObservedShardedQueue", "ShardedQueue", "sharded_queue"]

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

    def join(self, federation: Federation, home: NodeClient) -> None:
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

    def _add(self, record: bytes, options: Prepared) -> Enqueued:
        added = self._placed(options, lambda part, options: part._add(record, options))
        added.queue = self
        return added

    def _add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        self._placed(options, _adding(chunk, results))

    def _placed(self, options: Prepared, attempt: Callable[[Shard, Prepared], T]) -> T:
        """Add to the partition of the key or dedup id; without both, to the next with room."""
        if self.partitions is None:
            return self._offered(None, options, attempt)
        if options.is_keyed:
            number = partition_of(options.chooser(None), self.partitions)
            return self._offered(number, options, attempt)
        first = self._turn = (self._turn + 1) % self.partitions
        order = [*range(first, self.partitions), *range(first)]
        at_once = options if options.block == 0 else replace(options, block=0.0)
        for number in order:
            try:
                return self._offered(number, at_once, attempt)
            except QueueFull:  # noqa: PERF203  # as many tries as there are partitions
                if options.block == 0 and number == order[-1]:
                    raise
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

        site: Federation | NodeClient = self.backend
        return site.produce(partial(self._part, number=number), on_part)

    def _add_all(self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued) -> None:
        if self.partitions is None or not options.is_keyed:
            super()._add_all(bodies, options, results)
            return
        for window in windows(bodies, options, self.partitions):
            self._add_window(window, results)

    def _add_window(self, window: Window, results: BulkEnqueued) -> None:
        """Add the bodies of a window, each to its partition; append the results in body order."""
        answers: list[Enqueued] = [MISSING] * window.count
        try:
            for number, chunk in window.chunks.items():
                own = BulkEnqueued(self)
                try:
                    self._offered(number, window.options, _adding(chunk, own))
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

    def _exchanged(
        self, names: list[JobName], n: int, wait: float | None
    ) -> tuple[Settled, list[Job]]:
        outcomes = self.ack(names)
        try:
            return outcomes, self.backend.reserve([self], n, wait)
        except (NodesUnavailable, QueueClosed):  # the next call raises it: these jobs are finished
            return outcomes, []

    # -- settling --------------------------------------------------------------------------

    def _ack_one(self, job: Delivery) -> Outcome:
        return self.ack([job])[0]

    # -- removing --------------------------------------------------------------------------

    def _clear(self) -> tuple[bool, int]:
        def cleared(home: NodeClient) -> tuple[bool, int]:
            self._declare(home)
            found = [self._brief(home, number)._clear() for number in self._numbers]
            if self.partitions is not None:
                home.brief.driver.undeclare(self.name, self.partitions)
                self._declared.discard(home)
            return any(there for there, _ in found), sum(count for _, count in found)

        found, missed = self.backend.each(cleared)
        answers = [answer for _, answer in found]
        if missed:
            raise NodesMissed(missed, answers)
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
            whole = merging.stats_of_nodes(of_nodes, missed)
        else:
            whole = merging.merged_stats(found[0][1])
        return replace(whole, partitions=self.partitions)

    def _peeked(self, state: StateName, start: int, n: int, *, newest: bool) -> list[JobView]:
        if start + n > BATCH:
            raise BadArgument("start", start, f"n and start together must be at most {BATCH}")
        most, backwards = (-start if start < 0 else start + n), newest or start < 0
        found, missed = self._asked(lambda part: part._peeked(state, 0, most, newest=backwards))
        return Partial(merging.merged_peek(found, state, start, n, newest=newest), missed)

    def _scanned(self, cursor: str, n: int, states: Sequence[StateName], *, full: bool) -> ScanPage:
        check_cursor("cursor", merging.split_cursor(cursor)[1], JOB_CURSOR)
        return self._page_of_parts(cursor, lambda part, at: part._scanned(at, n, states, full=full))

    def _found(self, search: Search, cursor: str, n: int) -> ScanPage:
        search.check_cursor(merging.split_cursor(cursor)[1])
        return self._page_of_parts(cursor, lambda part, at: part._found(search, at, n))

    def _page_of_parts(self, cursor: str, ask: Callable[[Shard, str], ScanPage]) -> ScanPage:
        self.backend.connect()

        def asked(part: Shard, at: str) -> ScanPage:
            self._declare(part.home)
            return ask(self._brief(part.home, part.number), at)

        places = [(self._key(part), part.home, partial(asked, part)) for part in self.parts]
        at = merging.split_cursor(cursor)
        _, page = next_page(self.backend, at, places, ScanPage("0", [], []))
        return page

    def _key(self, part: Shard) -> str:
        """Return the name of a part in the cursors of a scan: node and checksum."""
        return f"{part.home.id}-{part.ops.crc:08x}"

    # -- batches ---------------------------------------------------------------------------

    def _opened(self, record: bytes, on: BatchCondition) -> tuple[str, Queue]:
        """Open a batch on one node, in one partition; return its id, and that part."""
        return self._placed(prepared(), lambda part, _: part._opened(record, on))

    # -- schedules -------------------------------------------------------------------------

    def _store_schedule(self, new: NewSchedule, *, force: bool) -> int:
        """Store a schedule in the partition of its name, on the node that has it or on one of all.

        Returns:
            As `flows.schedule`.

        Raises:
            NodesUnavailable: it is new, and a node was not reached within `retry_for`.
        """
        until = monotonic() + self.backend.terms.retry_for
        while True:
            self.backend.connect()
            what = self._stored_on_one(new, force=force)
            if what is not None:
                return what
            if monotonic() >= until:
                reason = f"the new schedule {new.name!r} may lie on a node that is down"
                raise NodesUnavailable(reason, self.backend.missed)
            sleep(0.05)

    def _stored_on_one(self, new: NewSchedule, *, force: bool) -> int | None:
        number = None if self.partitions is None else partition_of(new.name, self.partitions)
        missed = self.backend.missed
        homes = [home for home in list(self.backend.homes) if home.state.is_up]
        for home in homes:
            self._declare(home)
        parts = [self._part(home, number).ops for home in homes]
        flow = schedule_on(parts, new, force=force, is_whole=not missed)
        outcome: StoreOutcome = self.backend.drive(flow)
        return outcome.code

    # -- settings --------------------------------------------------------------------------

    def _configured(self, fields: list[Any]) -> Settings:
        return self._everywhere(lambda part: part._configured(fields))[0]

    def _receipt_of(self, job: Delivery) -> str | None:
        return self._part_of(job)._receipt_of(job)


def _adding(chunk: list[bytes], results: BulkEnqueued) -> Callable[[Shard, Prepared], None]:
    """Return a function that adds records to a part, without those that another one has taken."""
    start = len(results)

    def attempt(part: Shard, options: Prepared) -> None:
        # A part that waits for room may have taken some before it failed.
        part._add_chunk(chunk[len(results) - start :], options, results)

    return attempt


class ObservedShardedQueue(ObservedQueue, ShardedQueue):
    """A queue of several parts whose enqueues pass through the middleware of its client."""


def sharded_queue(site: Any, name: str, partitions: int | None) -> ShardedQueue:
    """Return a queue on all nodes of a client, whose enqueues pass through its middleware."""
    made = ObservedShardedQueue if site.terms.middleware else ShardedQueue
    return made(site, name, partitions)
