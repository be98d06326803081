# From src/penstock/client/_async/route/parts.py by tools/unasync.py; do not edit.
"""The route of a queue that has several parts: what nodes and partitions have in common."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.client._sync.nodes.node import Node
from penstock.client._sync.nodes.scanning import ScannedPlace, read_next_page
from penstock.client._sync.route.interfaces import (
    LookingRoute,
    QueueTopology,
    Routed,
)
from penstock.client._sync.route.part import (
    AskPart,
    CallPart,
    OpenedBatch,
    Part,
    ReadPart,
)
from penstock.client._sync.settling import BuildCall, check_jobs, settle_each
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.chunks import Window, chunks, windows
from penstock.core.enqueuing.prepared import Prepared, prepared
from penstock.core.flows import ReserveRequest
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import Delivery, JobName, ops_of, reservation_of
from penstock.core.jobs.merge import Answers, split_error, with_outcomes
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.views import JobView, ScanPage
from penstock.core.nodes import merging, state
from penstock.core.nodes.merging import Partial
from penstock.core.values.checks import BATCH, StateName
from penstock.core.values.confirmations import Wait
from penstock.core.values.ids import parse_id
from penstock.core.values.partitions import partition_of
from penstock.errors import (
    BadArgument,
    NodesUnavailable,
    QueueClosed,
    QueueFull,
    WrongQueue,
)
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys, queue_crcs

if TYPE_CHECKING:
    from penstock.client._sync.nodes.federation import Federation

__all__ = ["NodeAnswers", "PartsRoute"]

T = TypeVar("T")
ACK_INTENT = Intent("ack")
NOT_ADDED = Enqueued("", "missing", action="refused")
"""The result of a body of a bulk that was not added, or perhaps not, while others were."""


class NodeAnswers(NamedTuple):
    """The answers of the parts to a question.

    Attributes:
        of_nodes: the answers of the parts on each node.
        missed: the address of each node that did not answer, with the reason.
    """

    of_nodes: list[tuple[Node, list[Any]]]
    missed: dict[str, str]


class PartsRoute(LookingRoute, ABC):
    """The route of a queue on several nodes, or in several partitions, or both.

    A call adds to one part, takes from all, calls the part that has a job, or asks every part and
    merges the answers. Bounds, settings and a pause apply to each part: `max_length` is the most
    jobs that wait in one part.

    Args:
        topology: the nodes of the client.
        nodes: the only node, or the federation.
        queue: the queue.

    Attributes:
        topology: the argument.
        ops: operations of no part: they have the queue's name, its codec and its object.
        part: None, as there are several.
        numbers: of the partitions; only None = the queue has none.
    """

    part: Part | None = None

    def __init__(self, topology: QueueTopology, nodes: Node | Federation, queue: Routed) -> None:
        config, name = topology.config, queue.name
        self._nodes = nodes
        self.name, self.partitions = name, queue.partitions
        keys = QueueKeys(name, config.prefix)
        self.ops = QueueOps(keys, config.owner, (), queue=queue, codec=config.codec)
        self.topology = topology
        self._queue = queue
        count = self.partitions
        self.numbers: Sequence[int | None] = [None] if count is None else range(count)
        self._crcs = queue_crcs(name, count)
        self._turn = random.randrange(count or 1)
        self._poll_order = state.PollOrder()
        self._by_ops: dict[QueueOps, Part] = {}

    @property
    def address(self) -> str:
        """Return the addresses of the nodes, for people."""
        return self._nodes.address

    # -- parts -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """Each partition on each node."""

    @property
    def operations(self) -> list[QueueOps]:
        """Return the operations of each part."""
        return [part.ops for part in self.parts]

    @abstractmethod
    def _find_by_id(self, node_id: str, number: int | None, name: object) -> Part:
        """Return a part by an id of its node.

        Raises:
            WrongNode: no node has this id.
        """

    def _find_part(self, name: object) -> Part:
        if not isinstance(name, Delivery):
            parsed = parse_id(name)
            if parsed.crc in self._crcs:
                return self._find_by_id(parsed.node, self._crcs[parsed.crc], name)
            self._find_by_id(parsed.node, self.numbers[0], name)
            raise WrongQueue("id", name, f"belongs to another queue than {self.name!r}")
        part = self._by_ops.get(ops_of(name))
        if part is not None:
            return part
        place = reservation_of(name).place
        crc = int.from_bytes(place.packed[:4], "big")
        if name.queue_name != self.name or crc not in self._crcs:
            raise WrongQueue("job", name.id, f"belongs to another queue than {self.name!r}")
        return self._find_by_id(place.node, self._crcs[crc], name.id)

    # -- producing -------------------------------------------------------------------------

    def add(self, record: bytes, options: Prepared) -> Enqueued:
        """Add a job to one part."""
        return self._place(options, lambda part, options: part.add(record, options))

    def add_many(self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued) -> None:
        """Add jobs in chunks; append the results, also of those before a failure."""
        if self.partitions is None or not options.is_keyed:
            for chunk, own in chunks(bodies, options, parted=self.partitions is not None):
                self.add_chunk(chunk, own, results)
            return
        for window in windows(bodies, options, self.partitions):
            self._add_window(window, results)

    def add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        """Add the jobs of a chunk to one part; append the results."""
        self._place(options, _adding(chunk, results))

    def _add_window(self, window: Window, results: BulkEnqueued) -> None:
        """Add the bodies of a window, each to its partition; append the results in body order."""
        answers: list[Enqueued] = [NOT_ADDED] * window.count
        try:
            for number, chunk in window.chunks.items():
                own = BulkEnqueued(self.ops.queue)
                try:
                    self._offer(number, window.options, _adding(chunk, own))
                finally:
                    for at, answer in zip(window.places[number], own, strict=False):
                        answers[at] = answer
        finally:
            while answers and answers[-1] is NOT_ADDED:
                answers.pop()
            results.append(answers)

    def _place(self, options: Prepared, attempt: Callable[[Part, Prepared], T]) -> T:
        """Add to the partition of the key or dedup id; without both, to the next with room."""
        if self.partitions is None:
            return self._offer(None, options, attempt)
        if options.is_keyed:
            number = partition_of(options.chooser(None), self.partitions)
            return self._offer(number, options, attempt)
        first = self._turn = (self._turn + 1) % self.partitions
        order = [*range(first, self.partitions), *range(first)]
        at_once = options if options.block == 0 else replace(options, block=0.0)
        for number in order:
            try:
                return self._offer(number, at_once, attempt)
            except QueueFull:  # noqa: PERF203  # as many tries as there are partitions
                if options.block == 0 and number == order[-1]:
                    raise
        return self._offer(first, options, attempt)

    @abstractmethod
    def _offer(
        self,
        number: int | None,
        options: Prepared,
        attempt: Callable[[Part, Prepared], T],
    ) -> T:
        """Add to this partition on a node that takes jobs."""

    def open_batch(self, record: bytes, on: str) -> OpenedBatch:
        """Open a batch on one node, in one partition."""
        return self._place(prepared(), lambda part, _: part.open_batch(record, on))

    # -- consuming -------------------------------------------------------------------------

    def order_parts(self) -> tuple[list[QueueOps], int]:
        """Return the parts in the order to ask them for jobs, and how many may have some."""
        return self._poll_order.order(self.operations, monotonic())

    def note_poll(self, ops: QueueOps, count: int | None) -> None:
        """Note how many jobs a part gave; None = it did not answer."""
        self._poll_order.gave(ops, count, monotonic())

    def exchange(
        self, names: list[JobName], n: int, *, block: float | None
    ) -> tuple[Settled, list[Any]]:
        """Finish jobs, then take up to n others."""
        outcomes = self.settle(names, QueueOps.ack, resent_code=Code.GONE, intent=ACK_INTENT)
        try:
            return outcomes, self.reserve(ReserveRequest(n, block))
        except (NodesUnavailable, QueueClosed):  # the next call raises it: these jobs are finished
            return outcomes, []

    # -- settling --------------------------------------------------------------------------

    def ack_one(self, job: Delivery) -> Outcome:
        """Finish one delivery."""
        settled = self.settle([job], QueueOps.ack, resent_code=Code.GONE, intent=ACK_INTENT)
        return settled[0]

    def settle(
        self,
        jobs: Iterable[JobName],
        build: BuildCall,
        *,
        resent_code: int = Code.ENDED,
        wait: Wait | None = None,
        intent: Intent | None = None,
    ) -> Settled:
        """Run a script on jobs, each in its part; see `settle_each`.

        Raises:
            As `call_parts`.
        """
        names = check_jobs("jobs", jobs)
        if not names:
            return Settled(names)
        confirmed: list[int] = []

        def settle_own(part: Part, own: list[JobName]) -> Settled:
            settled = settle_each(part, own, build, resent_code=resent_code, wait=wait)
            confirmed.append(settled.replicas)
            return settled

        with with_outcomes(names):
            outcomes = self.call_parts(names, settle_own, Outcome.UNKNOWN, intent=intent)
        whole = outcomes if isinstance(outcomes, Settled) else Settled(names, outcomes)
        whole.replicas = min(confirmed, default=0)
        return whole

    def read_receipt(self, job: Delivery) -> str | None:
        """Return the receipt of the delivery that holds a job; None = it is not known."""
        return self._find_part(job).read_receipt(job)

    # -- calls to parts --------------------------------------------------------------------

    def call_parts(
        self, names: list[JobName], call: CallPart[T], unknown: T, intent: Intent | None = None
    ) -> Sequence[T]:
        """Call each part with its jobs; return an answer for each job, in order.

        Args:
            names: deliveries or ids.
            call: calls a part.
            unknown: the answer for a job whose node can't be reached.
            intent: hint to keep on another node then; None = keep nothing.

        Raises:
            NodesMissed: some nodes did not answer; its results have `unknown` for their jobs. Its
                cause is an AckNotReplicated if replicas of the others did not confirm.
            IncompleteSettle: some servers of a cluster did not answer.
        """
        self._nodes.connect()
        places: dict[Part, list[int]] = {}
        for at, name in enumerate(names):
            places.setdefault(self._find_part(name), []).append(at)
        if len(places) == 1:
            [part] = places
            return self._call_part(part, names, call, intent=intent)
        answers = Answers(len(names), unknown)
        for part, where in places.items():
            try:
                own = self._call_part(part, [names[at] for at in where], call, intent=intent)
            except Exception as error:  # noqa: PERF203  # part after part; some are borne
                own, unconfirmed, failure = split_error(error)
                answers.note(where, own)
                answers.short = unconfirmed or answers.short
                if failure is None:
                    continue
                if self._can_do_without(part, failure):
                    answers.missed[part.node.address] = part.node.state.reason
                    continue
                if part.number is None or not passing(failure):
                    raise
                answers.failure = failure
                if not self._nodes.is_apart:
                    break
            else:
                answers.note(where, own)
        return answers.checked(names)

    @abstractmethod
    def _can_do_without(self, part: Part, failure: BaseException) -> bool:
        """Note a failure; return True if the parts on other nodes are called all the same."""

    @abstractmethod
    def _call_part(
        self, part: Part, names: list[JobName], call: CallPart[T], intent: Intent | None
    ) -> Sequence[T]:
        """Call one part, or keep a hint if its node is down."""

    def ask_parts(self, ask: AskPart[T]) -> tuple[list[T], dict[str, str]]:
        """Ask every part; return the answers, and by address why a node has not answered."""
        answers = self._ask_nodes(ask)
        return [answer for _, own in answers.of_nodes for answer in own], answers.missed

    @abstractmethod
    def _ask_nodes(self, ask: AskPart[Any]) -> NodeAnswers:
        """Ask every part; return the answers of each node."""

    def read_page(self, cursor: str, check: Callable[[str], object], ask: ReadPart) -> ScanPage:
        """Return the next page of a scan, which passes part after part."""
        position = merging.split_cursor(cursor)
        check(position[1])
        self._nodes.connect()
        places = [
            ScannedPlace(
                f"{part.node.id}-{part.ops.crc:08x}", part.node, partial(self._read_part, part, ask)
            )
            for part in self.parts
        ]
        _, page = read_next_page(position, places, ScanPage("0", [], []))
        return page

    @abstractmethod
    def _read_part(self, part: Part, ask: ReadPart, cursor: str) -> ScanPage | None:
        """Return the page of a part; None = its node can't be reached."""

    # -- the whole queue -------------------------------------------------------------------

    def read_stats(self) -> QueueStats:
        """Return the counts of all parts that answer; `unreachable` names the others."""
        answers = self._ask_nodes(lambda part: part.read_stats())
        return replace(self._merge_stats(answers), partitions=self.partitions)

    @abstractmethod
    def _merge_stats(self, answers: NodeAnswers) -> QueueStats:
        """Return the counts of all parts."""

    def peek(self, state: StateName, start: int, n: int, *, newest: bool) -> list[JobView]:
        """Return jobs without taking them, merged by time."""
        if start + n > BATCH:
            raise BadArgument("start", start, f"n and start together must be at most {BATCH}")
        most, backwards = (-start if start < 0 else start + n), newest or start < 0
        views, missed = self.ask_parts(lambda part: part.peek(state, 0, most, newest=backwards))
        return Partial(merging.merged_peek(views, state, start=start, n=n, newest=newest), missed)


def _adding(chunk: list[bytes], results: BulkEnqueued) -> Callable[[Part, Prepared], None]:
    """Return a function that adds records to a part, without those that another one has taken."""
    start = len(results)

    def attempt(part: Part, options: Prepared) -> None:
        # A part that waits for room may have taken some before it failed.
        part.add_chunk(chunk[len(results) - start :], options, results)

    return attempt
