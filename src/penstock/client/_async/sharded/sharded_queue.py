"""A queue that is made of parts, each an ordinary queue: on several nodes, in partitions, or both.

Every method of a queue is here, by what becomes of it: it adds to one part, takes from all, goes to
the part that a job is in, or asks every part and makes one answer of theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.client._async.admin import Named
from penstock.client._async.job import AsyncJob
from penstock.client._async.observed import AsyncObservedQueue
from penstock.client._async.queue import AsyncQueue
from penstock.client._async.role import AsyncRole
from penstock.client._async.sharded.shard import AnyNode, AsyncShard
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
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
    from penstock.client._async.sharded.alone import AsyncAlone
    from penstock.client._async.sharded.federation import AsyncFederation

__all__ = ["AsyncObservedShardedQueue", "AsyncShardedQueue"]

T = TypeVar("T")
logger = get_logger("penstock")
MISSING = Enqueued("", "missing", action="refused")
"""The answer to a body of a bulk that was not added, or not for certain, while others were."""


class AsyncShardedQueue(AsyncQueue):
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
        federation: AsyncFederation | AsyncAlone,
        name: str,
        partitions: int | None = None,
    ) -> None:
        self.become(federation, name, partitions)

    def become(
        self, federation: AsyncFederation | AsyncAlone, name: str, partitions: int | None
    ) -> None:
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
        self._parts: dict[tuple[AnyNode, int | None], AsyncShard] = {}
        self._briefs: dict[tuple[AnyNode, int | None], AsyncShard] = {}
        self._prompts: dict[tuple[AnyNode, int | None], AsyncShard] = {}
        self._by_ops: dict[QueueOps, AsyncShard] = {}
        self._declared: set[AnyNode] = set()
        self._is_agreed = not federation.is_several

    # -- parts -----------------------------------------------------------------------------

    @property
    def parts(self) -> list[AsyncShard]:
        """The parts: each partition on each node."""
        return [self._part(home, i) for home in self._federation.homes for i in self._numbers]

    @property
    def operations(self) -> list[QueueOps]:
        """The operations of the parts."""
        return [part.ops for part in self.parts]

    def _part(self, home: AnyNode, number: int | None) -> AsyncShard:
        found = self._parts.get((home, number))
        if found is None:
            found = self._parts[home, number] = AsyncShard(self, home, home.patient, number)
            self._by_ops[found.ops] = found
        return found

    def adopt(self, ops: QueueOps, home: AnyNode, number: int | None = None) -> None:
        """Have a part with these operations, by which jobs were delivered before."""
        part = AsyncShardedQueue._part(self, home, number)  # it may not be of this class yet
        del self._by_ops[part.ops]
        ops.home, ops.partitions, ops.queue = home, self.partitions, self
        part.ops, self._by_ops[ops] = ops, part

    def _brief(self, home: AnyNode, number: int | None) -> AsyncShard:
        """A part by connections on which a call fails soon."""
        found = self._briefs.get((home, number))
        if found is None:
            found = self._briefs[home, number] = AsyncShard(self, home, home.brief, number)
        return found

    def _preferred(self, number: int | None) -> list[AsyncShard]:
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

    async def declare(self) -> None:
        """See to it that the nodes that are up know its settings, and how many partitions it has.

        Raises:
            QueuePartitioned: one of them knows of another number.
        """
        if not self._is_agreed:
            await self.agree()
        if self.partitions is None:
            return
        for home in list(self._federation.homes):
            if home not in self._declared and home.state.is_up:
                await self._federation.tried(home, partial(self._declare, home))

    async def _declare(self, home: AnyNode) -> bool:
        """The same on one node; always true."""
        if self.partitions is not None and home not in self._declared:
            await home.connect()
            await home.brief._driver.declare(self.ops.keys, self.partitions)
            self._declared.add(home)
        return True

    def _part_of(self, name: object) -> AsyncShard:
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

    async def _routed(
        self,
        names: list[Any],
        call: Callable[[AsyncShard, list[Any]], Awaitable[Sequence[T]]],
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
        await self._federation.connect()
        places: dict[AsyncShard, list[int]] = {}
        for at, name in enumerate(names):
            places.setdefault(self._part_of(name), []).append(at)
        if len(places) == 1:
            [part] = places
            return await self._called(part, names, call, intent)
        answers = Answers(len(names), unknown)
        for part, where in places.items():
            try:
                found = await self._called(part, [names[at] for at in where], call, intent)
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

    async def _called(
        self,
        part: AsyncShard,
        names: list[Any],
        call: Callable[[AsyncShard, list[Any]], Awaitable[Sequence[T]]],
        intent: Intent | None,
    ) -> Sequence[T]:
        """Call one part; that its node fails is noted, and perhaps what was to be done there."""
        place, queue = part.home, part.ops.keys.name
        if intent is not None and place.id and not place.state.is_up:
            kept = await self._federation.keep(place, queue, names, intent)
            if any(kept):
                return cast("Sequence[T]", hinted(kept))
        # Where another node can keep the call, this one is asked once and not for long.
        may_keep = intent is not None and not intent.waits and not all(map(is_once, names))
        is_prompt = may_keep and place.is_one_of_several and bool(self._federation.up(place))
        try:
            await self._declare(place)
            return await call(self._prompt(part) if is_prompt else part, names)
        except Exception as error:
            found, unconfirmed, failure = told(error)
            is_down = failure is not None and self._federation.bears(place, failure)
            left = names[len(found) :]  # of many, the first may be done
            if is_down and unconfirmed is None and intent is not None:
                kept = await self._federation.keep(place, queue, left, intent)
                if any(kept):
                    return cast("Sequence[T]", [*found, *hinted(kept)])
            if not is_down or not is_prompt:
                raise
        try:
            rest = await call(part, left)
        except Exception as error:
            more, _, failure = told(error)
            if found:
                raise IncompleteSettle([*found, *more]) from failure
            raise
        ended = Code.ENDED if intent is not None and intent.kind == "bury" else Code.GONE
        if isinstance(rest, Settled):  # the first call may have got through
            rest = cast("Sequence[T]", rest.after_resend(ended))
        return cast("Sequence[T]", [*found, *rest])

    def _prompt(self, part: AsyncShard) -> AsyncShard:
        """A part by connections on which a call fails at once."""
        place = (part.home, part.number)
        found = self._prompts.get(place)
        if found is None:
            found = self._prompts[place] = AsyncShard(
                self, part.home, part.home.prompt, part.number
            )
        return found

    async def _settled(
        self,
        jobs: Iterable[Named],
        call: Callable[[AsyncShard, list[Any]], Awaitable[Settled]],
        intent: Intent | None = None,
    ) -> Settled:
        """As `_routed`, of outcomes."""
        names = self._listed("jobs", jobs)
        if not names:
            return Settled(names, None)
        confirmed: list[int] = []

        async def counted(part: AsyncShard, own: list[Any]) -> Settled:
            settled = await call(part, own)
            confirmed.append(settled.replicas)
            return settled

        try:
            found = await self._routed(names, counted, Outcome.UNKNOWN, intent)
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

    async def _everywhere(self, ask: Callable[[AsyncShard], Awaitable[T]]) -> list[T]:
        """Ask every part; the answers.

        Raises:
            NodesMissed: some nodes did not answer; its results are the answers of the others.
        """
        found, missed = await self._asked(ask)
        if missed:
            raise NodesMissed(missed, found)
        return found

    async def _asked(
        self, ask: Callable[[AsyncShard], Awaitable[T]]
    ) -> tuple[list[T], dict[str, str]]:
        """Ask every part; the answers, and why others have none, by address."""

        async def ask_all(home: AnyNode) -> list[T]:
            await self._declare(home)
            return [await ask(self._brief(home, number)) for number in self._numbers]

        found, missed = await self._federation.each(ask_all)
        return [answer for _, answers in found for answer in answers], missed

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
        """Add to the partition that is meant, or to the next one that has room."""
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
        """Add to a partition, on the first node that takes it."""

        async def on_part(part: AsyncShard) -> T:
            if not self._is_agreed:
                await self.agree()
            await self._declare(part.home)
            return await attempt(part, options)

        site: AsyncFederation | AsyncAlone = self._federation
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
        """Add the bodies of a window, each to its partition; the answers stand in their order."""
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
        role: str,  # noqa: ARG002  # the form of `AsyncQueue.exclusive`
        *,
        lease: Duration = 30,  # noqa: ARG002  # same
        block: Duration | None = None,  # noqa: ARG002  # same
    ) -> AsyncRole:
        """Not over several nodes or partitions: there a role would be several roles.

        Raises:
            ConfigurationError: always.
        """
        if self.partitions is not None:
            raise ConfigurationError("a queue with partitions has no exclusive roles")
        raise ConfigurationError("a role is held on one node: make a client of that node alone")

    # -- consuming -------------------------------------------------------------------------

    async def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[AsyncJob]:
        """Take up to n jobs under a lease, from any node; wait on all of them.

        Args, returns: as `AsyncQueue.reserve`.

        Raises:
            NodesUnavailable: no node answered.
        """
        check_count("n", n)
        site: AsyncFederation | AsyncAlone = self._federation
        return await site.reserve([self], n, check_block(block))

    async def settle(
        self, done: Iterable[Named], n: int, *, block: Duration | None = 0
    ) -> tuple[Settled, list[AsyncJob]]:
        """Finish jobs and take up to n more.

        Args, returns: as `AsyncQueue.settle`.
        """
        names = self._listed("done", done, most=BATCH)
        check_count("n", n, high=BATCH)
        wait = check_block(block)
        outcomes = await self.ack(names)
        try:
            return outcomes, await self._federation.reserve([self], n, wait)
        except (
            NodesUnavailable,
            QueueClosed,
        ):  # the finished are finished: this is the next call's news
            return outcomes, []

    async def recover(self, n: int = 1, *, idle: Duration) -> list[AsyncJob]:
        """Take over deliveries of consumers that have fallen silent, on any node.

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
        self, jobs: Iterable[Named], *, dedup_window: Duration | None = None, **options: Any
    ) -> Settled:
        """Finish jobs, each on its node. Args, returns, raises: as `AsyncQueue.ack`.

        While a node can't be reached the call is kept on another one (`Outcome.HINTED`) and made up
        for when it is back; so it is with `delete` and `bury`. Not of jobs delivered at most once.
        """
        window = None if dedup_window is None else duration_ms("dedup_window", dedup_window)
        return await self._settled(
            jobs,
            lambda part, names: part.ack(names, dedup_window=dedup_window, **options),
            Intent("ack", window, waits=bool(options)),
        )

    async def _ack_one(self, job: Delivery) -> Outcome:
        return (await self.ack([job]))[0]

    async def nack(
        self, jobs: Iterable[Named], *, delay: Duration | None = None, error: str = ""
    ) -> Settled:
        """Report failed attempts. Args, returns, raises: as `AsyncQueue.nack`."""
        return await self._settled(
            jobs, lambda part, names: part.nack(names, delay=delay, error=error)
        )

    async def release(self, jobs: Iterable[Named], *, delay: Duration = 0) -> Settled:
        """Give jobs back. Args, returns, raises: as `AsyncQueue.release`."""
        return await self._settled(jobs, lambda part, names: part.release(names, delay=delay))

    async def bury(self, jobs: Iterable[Named], reason: str = "") -> Settled:
        """Give jobs up. Args, returns, raises: as `AsyncQueue.bury`."""
        text = check_text("reason", reason, limit=1024)
        intent = Intent("bury", reason=text)
        return await self._settled(jobs, lambda part, names: part.bury(names, text), intent)

    async def extend(
        self, jobs: Iterable[Named], lease: Duration | None = None, *, late: bool = False
    ) -> list[float | Outcome]:
        """Renew leases. Args, returns, raises: as `AsyncQueue.extend`."""
        names = self._listed("jobs", jobs)
        unknown: float | Outcome = Outcome.UNKNOWN
        call = partial(_extended, lease=lease, late=late)
        return list(await self._routed(names, call, unknown)) if names else []

    # -- moving ----------------------------------------------------------------------------

    async def redrive(
        self, jobs: Iterable[Named] | None = None, *, limit: int | None = None
    ) -> int:
        """Bring dead letters back: these, or the oldest of each node in turn.

        Args, returns: as `AsyncQueue.redrive`.
        """
        left = check_count("limit", limit) if limit is not None else None
        if jobs is not None:
            names = self._listed("jobs", jobs)

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

    async def promote(self, jobs: Iterable[Named]) -> Settled:
        """Bring jobs forward. Args, returns: as `AsyncQueue.promote`."""
        return await self._settled(jobs, lambda part, names: part.promote(names))

    async def dequeue(self, jobs: Iterable[Named]) -> Settled:
        """Take jobs out for their lease. Args, returns: as `AsyncQueue.dequeue`."""
        return await self._settled(jobs, lambda part, names: part.dequeue(names))

    async def withdraw(self, jobs: Iterable[Named]) -> Settled:
        """Remove jobs that nobody has been given. Args, returns: as `AsyncQueue.withdraw`."""
        return await self._settled(jobs, lambda part, names: part.withdraw(names))

    # -- removing --------------------------------------------------------------------------

    async def delete(self, jobs: Iterable[Named]) -> Settled:
        """Remove jobs in any state. Args, returns: as `AsyncQueue.delete`."""
        return await self._settled(jobs, lambda part, names: part.delete(names), Intent("delete"))

    async def purge(self, *states: str) -> int:
        """Remove the jobs that exist now, on every node. Args, returns: as `AsyncQueue.purge`."""
        for state in states:
            check_state("states", state)
        return sum(await self._everywhere(lambda part: part.purge(*states)))

    async def sweep(self) -> int:
        """Sweep every node. Returns: as `AsyncQueue.sweep`."""
        return sum(await self._everywhere(lambda part: part.sweep()))

    async def _clear(self) -> tuple[bool, int]:
        async def cleared(home: AnyNode) -> tuple[bool, int]:
            await self._declare(home)
            found = [await self._brief(home, number)._clear() for number in self._numbers]
            if self.partitions is not None:
                await home.brief._driver.undeclare(self.name, self.partitions)
                self._declared.discard(home)
            return any(there for there, _ in found), sum(count for _, count in found)

        found, missed = await self._federation.each(cleared)
        if missed:
            raise NodesMissed(missed, [answer for _, answer in found])
        answers = [answer for _, answer in found]
        return any(there for there, _ in answers), sum(count for _, count in answers)

    async def evict(self, n: int = 100, *, dead: bool = True) -> int:
        """Make room on each node that is there: at most n jobs of each part.

        Args, returns: as `AsyncQueue.evict`.
        """
        check_count("n", n, high=BATCH)
        return sum(await self._everywhere(lambda part: part.evict(n, dead=dead)))

    # -- looking ---------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """Count the jobs on all nodes that answer; `unreachable` names the others.

        Settings are those that were stored last; `differing` names nodes that have others, and
        `nodes` has the figures of each.
        """

        async def counted(home: AnyNode) -> list[QueueStats]:
            await self._declare(home)
            return [await self._brief(home, number).stats() for number in self._numbers]

        found, missed = await self._federation.each(counted)
        of_nodes = {home.address: answers for home, answers in found}
        if found[0][0].is_one_of_several:
            whole = nodes.stats_of_nodes(of_nodes, missed)
        else:
            whole = nodes.merged_stats(found[0][1])
        return replace(whole, partitions=self.partitions)

    async def peek(
        self, n: int = 10, *, state: str = "ready", start: int = 0, newest: bool = False
    ) -> list[JobView]:
        """Look at jobs of all nodes that answer, merged by time.

        Between nodes there is no order: consumers take from each as they come.

        Args:
            n, state, newest: as in `AsyncQueue.peek`.
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
        found, missed = await self._asked(
            lambda part: part.peek(most, state=state, newest=newest or start < 0)
        )
        return Partial(nodes.merged_peek(found, state, start, n, newest=newest), missed)

    async def show(self, job: Named) -> JobView | None:
        """Everything about one job. Returns, raises: as `AsyncQueue.show`."""

        async def shown(part: AsyncShard, names: list[Any]) -> list[JobView | None]:
            return [await part.show(names[0])]

        [view] = await self._routed(self._listed("job", [job]), shown, None)
        return view

    async def status(self, dedup_id: str) -> DedupStatus | None:
        """Who has a dedup id, on the first node that knows of it.

        Returns: as `AsyncQueue.status`.

        Raises:
            NodesMissed: nobody has it on the nodes that answered, and others did not.
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
        states: Iterable[str] | None = None,
        full: bool = True,
    ) -> ScanPage:
        """One bounded step through all jobs, node after node.

        Args, returns: as `AsyncQueue.scan`; `unreachable` names the nodes that were passed over.
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
        """What the cursors of a scan call a part: node, and checksum of its name."""
        return f"{part.home.id}-{part.ops.crc:08x}"

    # -- settings --------------------------------------------------------------------------

    async def _configured(self, fields: list[Any]) -> Settings:
        return (await self._everywhere(lambda part: part._configured(fields)))[0]

    async def agree(self, *more: AnyNode) -> None:
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
                stored = await self._best_effort(home, part._stored)
                if stored is not None:
                    found[home] = stored
            for home, fields in nodes.to_store(found).items() if found else ():
                part = self._brief(home, number)
                await self._best_effort(home, partial(part._configured, fields))
                logger.info("settings of %r: now stored on %s, too", self.name, home.address)

    async def _best_effort(self, home: AnyNode, ask: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await ask()
        except Exception as error:  # noqa: BLE001  # as `agree` says
            if not self._federation.bears(home, error):
                logger.warning(
                    "settings of %r were not stored on %s: %s", self.name, home.address, error
                )
            return None

    async def _receipt_of(self, job: Delivery) -> str | None:
        return await self._part_of(job)._receipt_of(job)


async def _extended(
    part: AsyncShard, names: list[Any], lease: Duration | None, late: bool
) -> Sequence[float | Outcome]:
    return await part.extend(names, lease, late=late)


class AsyncObservedShardedQueue(AsyncObservedQueue, AsyncShardedQueue):
    """A queue of several parts whose enqueues pass through the middleware of its client."""
