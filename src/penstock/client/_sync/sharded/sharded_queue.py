# From src/penstock/client/_async/sharded/sharded_queue.py by tools/unasync.py; do not edit.
"""A queue that is made of parts, each an ordinary queue: on several nodes, in partitions, or both.

Every method of a queue is here, by what becomes of it: it adds to one part, takes from all, goes to
the part that a job is in, or asks every part and makes one answer of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.client._sync.admin import Named
from penstock.client._sync.job import Job
from penstock.client._sync.observed import ObservedQueue
from penstock.client._sync.queue import Queue
from penstock.client._sync.role import Role
from penstock.client._sync.sharded.shard import AnyNode, Shard
from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.failures import passing
from penstock.core import nodes
from penstock.core.answers import Answers, hinted, told
from penstock.core.bulk import Prepared, Window, windows
from penstock.core.hints import Intent, is_once
from penstock.core.ids import parse_id
from penstock.core.job import BulkEnqueued, Delivery, Enqueued, Outcome, Settled
from penstock.core.logs import get_logger
from penstock.core.nodes import Partial
from penstock.core.operations import QueueOps
from penstock.core.operations.managing import check_state, check_states
from penstock.core.options import (
    BATCH,
    JOB_CURSOR,
    Duration,
    check_block,
    check_count,
    check_cursor,
    check_text,
    duration_ms,
)
from penstock.core.partitions import PartitionRotation, partition_of
from penstock.core.views import DedupStatus, JobView, QueueStats, ScanPage, Settings
from penstock.errors import (
    BadArgument,
    ConfigurationError,
    IncompleteSettle,
    NodesMissed,
    NodesUnavailable,
    QueueClosed,
    QueueFull,
    WrongQueue,
)
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys, queue_crc

if TYPE_CHECKING:
    from penstock.client._sync.sharded.alone import Alone
    from penstock.client._sync.sharded.federation import Federation

__all__ = ["ObservedShardedQueue", "ShardedQueue"]

T = TypeVar("T")
logger = get_logger("penstock")
MISSING = Enqueued("", "missing", action="refused")
"""The answer to a body of a bulk that was not added, or not for certain, while others were."""


class ShardedQueue(Queue):
    """A queue on several nodes, or in several partitions, or both: each partition on each node.

    Bounds, settings and a pause are those of each part: `max_length` is the most that wait in it. A
    dedup id is kept apart from its like on the node that the producer uses. What changes the whole
    queue (`configure`, `pause`, `resume`, `purge`, `sweep`, `clear`) is done on every node that can
    be reached; if there are others it raises `NodesMissed`, which names them. What looks at the
    whole queue names them as `unreachable` in its answer.

    Args:
        federation: the nodes, or the only one.
        name: any non-empty text.
        partitions: how many; None = none.

    Attributes:
        partitions: the same.
    """

    def __init__(
        self,
        federation: Federation | Alone,
        name: str,
        partitions: int | None = None,
    ) -> None:
        self.become(federation, name, partitions)

    def become(self, federation: Federation | Alone, name: str, partitions: int | None) -> None:
        """Lie on these nodes from now on."""
        self._client: Any = federation
        self._federation: Any = federation
        self.partitions = partitions
        keys, codec = QueueKeys(name, federation.prefix), federation.terms.codec
        self.ops = QueueOps(keys, federation.owner, (), self, codec=codec)
        self._numbers: Sequence[int | None] = [None] if partitions is None else range(partitions)
        self._crcs = {
            queue_crc(QueueKeys(name, federation.prefix, number).name): number
            for number in self._numbers
        }
        self._turns = PartitionRotation(partitions or 1)
        self._poll_order = nodes.PollOrder()
        self._parts: dict[tuple[AnyNode, int | None], Shard] = {}
        self._briefs: dict[tuple[AnyNode, int | None], Shard] = {}
        self._prompts: dict[tuple[AnyNode, int | None], Shard] = {}
        self._by_ops: dict[QueueOps, Shard] = {}
        self._declared: set[AnyNode] = set()
        self._is_agreed = not federation.is_several

    # -- parts -----------------------------------------------------------------------------

    @property
    def parts(self) -> list[Shard]:
        """The parts: each partition on each node."""
        return [self._part(home, i) for home in self._federation.homes for i in self._numbers]

    @property
    def operations(self) -> list[QueueOps]:
        """The operations of the parts."""
        return [part.ops for part in self.parts]

    def _part(self, home: AnyNode, number: int | None) -> Shard:
        found = self._parts.get((home, number))
        if found is None:
            found = self._parts[home, number] = Shard(self, home, home.patient, number)
            self._by_ops[found.ops] = found
        return found

    def adopt(self, ops: QueueOps, home: AnyNode, number: int | None = None) -> None:
        """Have a part with these operations, by which jobs were delivered before."""
        part = ShardedQueue._part(self, home, number)  # it may not be of this class yet
        del self._by_ops[part.ops]
        ops.home, ops.partitions, ops.queue = home, self.partitions, self
        part.ops, self._by_ops[ops] = ops, part

    def _brief(self, home: AnyNode, number: int | None) -> Shard:
        """A part by connections on which a call fails soon."""
        found = self._briefs.get((home, number))
        if found is None:
            found = self._briefs[home, number] = Shard(self, home, home.brief, number)
        return found

    def _preferred(self, number: int | None) -> list[Shard]:
        """The parts in the order in which the jobs of a partition are offered to them."""
        return [self._part(home, number) for home in self._federation.preferred()]

    def asked(self, now: float) -> tuple[list[QueueOps], int]:
        """Whom a consumer asks, in this order; and how many of them also if it has some jobs."""
        return self._poll_order.order(self.operations, now), self._poll_order.eager

    def noted(self, part: QueueOps, count: int | None) -> None:
        """A part was asked, and gave so many; None = it did not answer."""
        if count is None:
            self._poll_order.failed(part, monotonic())
        else:
            self._poll_order.gave(part, count, monotonic())

    def declare(self) -> None:
        """See to it that the nodes that are up know its settings, and how many partitions it has.

        Raises:
            QueuePartitioned: one of them knows of another number.
        """
        if not self._is_agreed:
            self.agree()
        if self.partitions is None:
            return
        for home in list(self._federation.homes):
            if home not in self._declared and home.state.is_up:
                self._federation.tried(home, partial(self._declare, home))

    def _declare(self, home: AnyNode) -> bool:
        """The same on one node; always true."""
        if self.partitions is not None and home not in self._declared:
            home.connect()
            home.brief._driver.declare(self.ops.keys, self.partitions)
            self._declared.add(home)
        return True

    def _part_of(self, name: object) -> Shard:
        """The part that a job is in.

        Raises:
            BadJobId: malformed.
            WrongQueue, WrongNode: of another queue, or a node this client does not know.
        """
        if not isinstance(name, Delivery):
            parsed = parse_id(name)
            home = self._federation.home_of(parsed.node, name)
            if parsed.crc not in self._crcs:
                raise WrongQueue("id", name, f"belongs to another queue than {self.name!r}")
            return self._part(home, self._crcs[parsed.crc])
        found = self._by_ops.get(name.batch.ops)
        if found is not None:
            return found
        crc = int.from_bytes(name.batch.place.packed[:4], "big")
        if name.queue_name != self.name or crc not in self._crcs:
            raise WrongQueue("job", name.id, f"belongs to another queue than {self.name!r}")
        home = self._federation.home_of(name.batch.place.node, name.id)
        return self._part(home, self._crcs[crc])

    def _routed(
        self,
        names: list[Any],
        call: Callable[[Shard, list[Any]], Sequence[T]],
        unknown: T,
        intent: Intent | None = None,
    ) -> Sequence[T]:
        """Call each job's part with the jobs in it; an answer for each, in order.

        Args:
            names: deliveries or ids.
            call: calls a part.
            unknown: the answer for a job whose node can't be reached.
            intent: what is kept on another node then; None = nothing.

        Raises:
            NodesMissed: some nodes did not answer; its results have `unknown` for their jobs. Its
                cause is an AckNotReplicated where others answered, and that was not confirmed.
            IncompleteSettle: the same of some servers of a cluster.
        """
        self._federation.connect()
        places: dict[Shard, list[int]] = {}
        for at, name in enumerate(names):
            places.setdefault(self._part_of(name), []).append(at)
        if len(places) == 1:
            [part] = places
            return self._called(part, names, call, intent)
        answers = Answers(len(names), unknown)
        for part, where in places.items():
            try:
                found = self._called(part, [names[at] for at in where], call, intent)
            except Exception as error:  # noqa: PERF203  # part after part; some are borne
                found, unconfirmed, failure = told(error)
                answers.note(where, found)
                answers.short = unconfirmed or answers.short
                if failure is None:
                    continue
                if self._federation.bears(part.home, failure):
                    answers.missed[part.home.address] = part.home.state.reason
                    continue
                if part.number is None or not passing(failure):
                    raise
                answers.failure = failure
                if not self._federation.is_apart:
                    break
            else:
                answers.note(where, found)
        return answers.checked(names)

    def _called(
        self,
        part: Shard,
        names: list[Any],
        call: Callable[[Shard, list[Any]], Sequence[T]],
        intent: Intent | None,
    ) -> Sequence[T]:
        """Call one part; that its node fails is noted, and perhaps what was to be done there."""
        place, queue = part.home, part.ops.keys.name
        if intent is not None and place.id and not place.state.is_up:
            kept = self._federation.keep(place, queue, names, intent)
            if any(kept):
                return cast("Sequence[T]", hinted(kept))
        # Where another node can keep the call, this one is asked once and not for long.
        may_keep = intent is not None and not intent.waits and not all(map(is_once, names))
        is_prompt = may_keep and place.is_one_of_several and bool(self._federation.up(place))
        try:
            self._declare(place)
            return call(self._prompt(part) if is_prompt else part, names)
        except Exception as error:
            found, unconfirmed, failure = told(error)
            is_down = failure is not None and self._federation.bears(place, failure)
            left = names[len(found) :]  # of many, the first may be done
            if is_down and unconfirmed is None and intent is not None:
                kept = self._federation.keep(place, queue, left, intent)
                if any(kept):
                    return cast("Sequence[T]", [*found, *hinted(kept)])
            if not is_down or not is_prompt:
                raise
        try:
            rest = call(part, left)
        except Exception as error:
            more, _, failure = told(error)
            if found:
                raise IncompleteSettle([*found, *more]) from failure
            raise
        ended = Code.ENDED if intent is not None and intent.kind == "bury" else Code.GONE
        if isinstance(rest, Settled):  # the first call may have got through
            rest = cast("Sequence[T]", rest.after_resend(ended))
        return cast("Sequence[T]", [*found, *rest])

    def _prompt(self, part: Shard) -> Shard:
        """A part by connections on which a call fails at once."""
        place = (part.home, part.number)
        found = self._prompts.get(place)
        if found is None:
            found = self._prompts[place] = Shard(self, part.home, part.home.prompt, part.number)
        return found

    def _settled(
        self,
        jobs: Iterable[Named],
        call: Callable[[Shard, list[Any]], Settled],
        intent: Intent | None = None,
    ) -> Settled:
        """As `_routed`, of outcomes."""
        names = self._listed("jobs", jobs)
        if not names:
            return Settled(names, None)
        confirmed: list[int] = []

        def counted(part: Shard, own: list[Any]) -> Settled:
            settled = call(part, own)
            confirmed.append(settled.replicas)
            return settled

        try:
            found = self._routed(names, counted, Outcome.UNKNOWN, intent)
        except NodesMissed as error:
            error.results = Settled.of(names, error.results)
            raise
        except IncompleteSettle as error:
            if not isinstance(error.outcomes, Settled):
                error.outcomes = Settled.of(names, error.outcomes)
            raise
        whole = found if isinstance(found, Settled) else Settled.of(names, found)
        whole.replicas = min(confirmed, default=0)
        return whole

    def _everywhere(self, ask: Callable[[Shard], T]) -> list[T]:
        """Ask every part; the answers.

        Raises:
            NodesMissed: some nodes did not answer; its results are the answers of the others.
        """
        found, missed = self._asked(ask)
        if missed:
            raise NodesMissed(missed, found)
        return found

    def _asked(self, ask: Callable[[Shard], T]) -> tuple[list[T], dict[str, str]]:
        """Ask every part; the answers, and why others have none, by address."""

        def ask_all(home: AnyNode) -> list[T]:
            self._declare(home)
            return [ask(self._brief(home, number)) for number in self._numbers]

        found, missed = self._federation.each(ask_all)
        return [answer for _, answers in found for answer in answers], missed

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
        """Add to the partition that is meant, or to the next one that has room."""
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
        """Add to a partition, on the first node that takes it."""

        def on_part(part: Shard) -> T:
            if not self._is_agreed:
                self.agree()
            self._declare(part.home)
            return attempt(part, options)

        site: Federation | Alone = self._federation
        return site.produce(partial(self._preferred, number), on_part)

    def _add_all(self, bodies: Iterable[Any], options: Prepared, results: BulkEnqueued) -> None:
        if self.partitions is None or not options.is_keyed:
            super()._add_all(bodies, options, results)
            return
        for window in windows(bodies, options, self.partitions):
            self._add_window(window, options, results)

    def _add_window(self, window: Window, options: Prepared, results: BulkEnqueued) -> None:
        """Add the bodies of a window, each to its partition; the answers stand in their order."""
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
        role: str,  # noqa: ARG002  # the form of `Queue.exclusive`
        *,
        lease: Duration = 30,  # noqa: ARG002  # same
        block: Duration | None = None,  # noqa: ARG002  # same
    ) -> Role:
        """Not over several nodes or partitions: there a role would be several roles.

        Raises:
            ConfigurationError: always.
        """
        if self.partitions is not None:
            raise ConfigurationError("a queue with partitions has no exclusive roles")
        raise ConfigurationError("a role is held on one node: make a client of that node alone")

    # -- consuming -------------------------------------------------------------------------

    def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[Job]:
        """Take up to n jobs under a lease, from any node; wait on all of them.

        Args, returns: as `Queue.reserve`.

        Raises:
            NodesUnavailable: no node answered.
        """
        check_count("n", n)
        site: Federation | Alone = self._federation
        return site.reserve([self], n, check_block(block))

    def settle(
        self, done: Iterable[Named], n: int, *, block: Duration | None = 0
    ) -> tuple[Settled, list[Job]]:
        """Finish jobs and take up to n more.

        Args, returns: as `Queue.settle`.
        """
        names = self._listed("done", done, most=BATCH)
        check_count("n", n, high=BATCH)
        wait = check_block(block)
        outcomes = self.ack(names)
        try:
            return outcomes, self._federation.reserve([self], n, wait)
        except (
            NodesUnavailable,
            QueueClosed,
        ):  # the finished are finished: this is the next call's news
            return outcomes, []

    def recover(self, n: int = 1, *, idle: Duration) -> list[Job]:
        """Take over deliveries of consumers that have fallen silent, on any node.

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
        self, jobs: Iterable[Named], *, dedup_window: Duration | None = None, **options: Any
    ) -> Settled:
        """Finish jobs, each on its node. Args, returns, raises: as `Queue.ack`.

        While a node can't be reached the call is kept on another one (`Outcome.HINTED`) and made up
        for when it is back; so it is with `delete` and `bury`. Not of jobs delivered at most once.
        """
        window = None if dedup_window is None else duration_ms("dedup_window", dedup_window)
        return self._settled(
            jobs,
            lambda part, names: part.ack(names, dedup_window=dedup_window, **options),
            Intent("ack", window, waits=bool(options)),
        )

    def _ack_one(self, job: Delivery) -> Outcome:
        return self.ack([job])[0]

    def nack(
        self, jobs: Iterable[Named], *, delay: Duration | None = None, error: str = ""
    ) -> Settled:
        """Report failed attempts. Args, returns, raises: as `Queue.nack`."""
        return self._settled(jobs, lambda part, names: part.nack(names, delay=delay, error=error))

    def release(self, jobs: Iterable[Named], *, delay: Duration = 0) -> Settled:
        """Give jobs back. Args, returns, raises: as `Queue.release`."""
        return self._settled(jobs, lambda part, names: part.release(names, delay=delay))

    def bury(self, jobs: Iterable[Named], reason: str = "") -> Settled:
        """Give jobs up. Args, returns, raises: as `Queue.bury`."""
        text = check_text("reason", reason, limit=1024)
        intent = Intent("bury", reason=text)
        return self._settled(jobs, lambda part, names: part.bury(names, text), intent)

    def extend(
        self, jobs: Iterable[Named], lease: Duration | None = None, *, late: bool = False
    ) -> list[float | Outcome]:
        """Renew leases. Args, returns, raises: as `Queue.extend`."""
        names = self._listed("jobs", jobs)
        unknown: float | Outcome = Outcome.UNKNOWN
        call = partial(_extended, lease=lease, late=late)
        return list(self._routed(names, call, unknown)) if names else []

    # -- moving ----------------------------------------------------------------------------

    def redrive(self, jobs: Iterable[Named] | None = None, *, limit: int | None = None) -> int:
        """Bring dead letters back: these, or the oldest of each node in turn.

        Args, returns: as `Queue.redrive`.
        """
        left = check_count("limit", limit) if limit is not None else None
        if jobs is not None:
            names = self._listed("jobs", jobs)

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

    def promote(self, jobs: Iterable[Named]) -> Settled:
        """Bring jobs forward. Args, returns: as `Queue.promote`."""
        return self._settled(jobs, lambda part, names: part.promote(names))

    def dequeue(self, jobs: Iterable[Named]) -> Settled:
        """Take jobs out for their lease. Args, returns: as `Queue.dequeue`."""
        return self._settled(jobs, lambda part, names: part.dequeue(names))

    def withdraw(self, jobs: Iterable[Named]) -> Settled:
        """Remove jobs that nobody has been given. Args, returns: as `Queue.withdraw`."""
        return self._settled(jobs, lambda part, names: part.withdraw(names))

    # -- removing --------------------------------------------------------------------------

    def delete(self, jobs: Iterable[Named]) -> Settled:
        """Remove jobs in any state. Args, returns: as `Queue.delete`."""
        return self._settled(jobs, lambda part, names: part.delete(names), Intent("delete"))

    def purge(self, *states: str) -> int:
        """Remove the jobs that exist now, on every node. Args, returns: as `Queue.purge`."""
        for state in states:
            check_state("states", state)
        return sum(self._everywhere(lambda part: part.purge(*states)))

    def sweep(self) -> int:
        """Sweep every node. Returns: as `Queue.sweep`."""
        return sum(self._everywhere(lambda part: part.sweep()))

    def _clear(self) -> tuple[bool, int]:
        def cleared(home: AnyNode) -> tuple[bool, int]:
            self._declare(home)
            found = [self._brief(home, number)._clear() for number in self._numbers]
            if self.partitions is not None:
                home.brief._driver.undeclare(self.name, self.partitions)
                self._declared.discard(home)
            return any(there for there, _ in found), sum(count for _, count in found)

        found, missed = self._federation.each(cleared)
        if missed:
            raise NodesMissed(missed, [answer for _, answer in found])
        answers = [answer for _, answer in found]
        return any(there for there, _ in answers), sum(count for _, count in answers)

    def evict(self, n: int = 100, *, dead: bool = True) -> int:
        """Make room on each node that is there: at most n jobs of each part.

        Args, returns: as `Queue.evict`.
        """
        check_count("n", n, high=BATCH)
        return sum(self._everywhere(lambda part: part.evict(n, dead=dead)))

    # -- looking ---------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        """Count the jobs on all nodes that answer; `unreachable` names the others.

        Settings are those that were stored last; `differing` names nodes that have others, and
        `nodes` has the figures of each.
        """

        def counted(home: AnyNode) -> list[QueueStats]:
            self._declare(home)
            return [self._brief(home, number).stats() for number in self._numbers]

        found, missed = self._federation.each(counted)
        of_nodes = {home.address: answers for home, answers in found}
        if found[0][0].is_one_of_several:
            whole = nodes.stats_of_nodes(of_nodes, missed)
        else:
            whole = nodes.merged_stats(found[0][1])
        return replace(whole, partitions=self.partitions)

    def peek(
        self, n: int = 10, *, state: str = "ready", start: int = 0, newest: bool = False
    ) -> list[JobView]:
        """Look at jobs of all nodes that answer, merged by time.

        Between nodes there is no order: consumers take from each as they come.

        Args:
            n, state, newest: as in `Queue.peek`.
            start: the same; n and start together at most 1000.

        Returns:
            The jobs; `unreachable` of the list names the nodes that did not answer.
        """
        check_count("n", n, high=BATCH)
        check_count("start", start, low=0 if newest else -BATCH, high=BATCH)
        check_state("state", state)
        if start + n > BATCH:
            raise BadArgument("start", start, f"n and start together must be at most {BATCH}")
        most = -start if start < 0 else start + n
        found, missed = self._asked(
            lambda part: part.peek(most, state=state, newest=newest or start < 0)
        )
        return Partial(nodes.merged_peek(found, state, start, n, newest=newest), missed)

    def show(self, job: Named) -> JobView | None:
        """Everything about one job. Returns, raises: as `Queue.show`."""

        def shown(part: Shard, names: list[Any]) -> list[JobView | None]:
            return [part.show(names[0])]

        [view] = self._routed(self._listed("job", [job]), shown, None)
        return view

    def status(self, dedup_id: str) -> DedupStatus | None:
        """Who has a dedup id, on the first node that knows of it.

        Returns: as `Queue.status`.

        Raises:
            NodesMissed: nobody has it on the nodes that answered, and others did not.
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
        states: Iterable[str] | None = None,
        full: bool = True,
    ) -> ScanPage:
        """One bounded step through all jobs, node after node.

        Args, returns: as `Queue.scan`; `unreachable` names the nodes that were passed over.
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
        """What the cursors of a scan call a part: node, and checksum of its name."""
        return f"{part.home.id}-{part.ops.crc:08x}"

    # -- settings --------------------------------------------------------------------------

    def _configured(self, fields: list[Any]) -> Settings:
        return self._everywhere(lambda part: part._configured(fields))[0]

    def agree(self, *more: AnyNode) -> None:
        """Give the settings that were stored last to the nodes that have others.

        A node that can't be reached, or refuses them, is passed over: it is asked again when it is
        back, and every 30 s.

        Args:
            more: nodes that are about to be up, besides those that are.
        """
        homes = [home for home in list(self._federation.homes) if home.state.is_up]
        homes = list(dict.fromkeys([*homes, *more]))
        self._is_agreed = True
        if len(homes) < 2:
            return
        for number in self._numbers:
            found = {}
            for home in homes:
                part = self._brief(home, number)
                stored = self._best_effort(home, part._stored)
                if stored is not None:
                    found[home] = stored
            for home, fields in nodes.to_store(found).items() if found else ():
                part = self._brief(home, number)
                self._best_effort(home, partial(part._configured, fields))
                logger.info("settings of %r: now stored on %s, too", self.name, home.address)

    def _best_effort(self, home: AnyNode, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001  # as `agree` says
            if not self._federation.bears(home, error):
                logger.warning(
                    "settings of %r were not stored on %s: %s", self.name, home.address, error
                )
            return None

    def _receipt_of(self, job: Delivery) -> str | None:
        return self._part_of(job)._receipt_of(job)


def _extended(
    part: Shard, names: list[Any], lease: Duration | None, late: bool
) -> Sequence[float | Outcome]:
    return part.extend(names, lease, late=late)


class ObservedShardedQueue(ObservedQueue, ShardedQueue):
    """A queue of several parts whose enqueues pass through the middleware of its client."""
