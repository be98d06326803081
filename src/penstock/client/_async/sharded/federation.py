"""Several nodes as one: who is up, where jobs go, and waiting on all of them at once.

What is decided is in `core.nodes`; here it is carried out (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import asyncio  # async only
import random
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._acompat import AsyncBackgroundTask, AsyncSignal, ashield, asleep
from penstock.client._async.job import AsyncJob
from penstock.client._async.sharded.federated_node import (
    BRIEF,
    AsyncBackgroundTasks,
    AsyncFederatedNode,
)
from penstock.client._async.sharded.hints import AsyncHints
from penstock.client._async.sharded.multi_node_wait import AsyncMultiNodeWait
from penstock.client._async.sharded.placement import AsyncPlacement
from penstock.client._async.sharded.sharded_queue import (
    AsyncObservedShardedQueue,
    AsyncShardedQueue,
)
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.driver import leave  # async only
from penstock.client._async.transport.failures import passing
from penstock.core import flows, nodes
from penstock.core.config import ClientConfig, QueueFilter
from penstock.core.hints import Intent
from penstock.core.logs import get_logger
from penstock.core.node_list import Entry, address_of, learned, merged_members
from penstock.core.nodes import At, Keep, Listen, Partial, PollOrder, Sticky
from penstock.core.options import QUEUE_CURSOR, check_cursor
from penstock.core.servers import PROTOCOL_VERSION
from penstock.core.views import Drain, Hello, Info, NodeView, QueuePage, QueueStats
from penstock.errors import (
    BadArgument,
    ConfigurationError,
    NodesUnavailable,
    PenstockError,
    WrongNode,
)
from penstock.wire.keys import hints_key

if TYPE_CHECKING:
    from penstock.client._async.sharded.shard import AsyncShard

__all__ = ["AsyncFederation"]

logger = get_logger("penstock")

T = TypeVar("T")

GRACE = 0.5
"""Seconds that a connect waits for the rest when one node has answered."""
REFRESH = 30.0
"""Seconds after which the list of nodes is read again."""


class AsyncFederation:
    """The nodes of one client.

    Args:
        sources: a URL or a redis-py client of each.
        terms: what the client was told.
        homes: the nodes of these sources; None = they are made here.

    Attributes:
        homes: they.
        unused: nodes of the list that can't be used: id -> address, and why.
        sticky: which of them is preferred for new jobs.
        hints: what is done about those that are down.
        offers: the way of a job to one of them.
        learn_at: when their lists are read again by the clock.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        terms: ClientConfig,
        homes: Sequence[AsyncFederatedNode] | None = None,
    ) -> None:
        self.terms = terms
        self._given = [*sources]
        self.homes = list(homes or [AsyncFederatedNode(source, terms) for source in sources])
        self.unused: dict[str, tuple[str, str]] = {}
        self.sticky = Sticky(random.randrange(1 << 16))
        self.hints = AsyncHints(self)
        self.offers = AsyncPlacement(self)
        self._poll_order: dict[str, PollOrder] = {}
        self._entries: dict[str, Entry] = {}
        self._gone: list[AsyncFederatedNode] = []
        self._queues: weakref.WeakSet[AsyncShardedQueue] = weakref.WeakSet()
        self._learning = AsyncBackgroundTasks()
        self.learn_at = 0.0

    @property
    def address(self) -> str:
        """Addresses of the nodes; one that could not be reached is marked as down."""
        marks = [" (down)" if home.state.failures else "" for home in self.homes]
        return ", ".join(home.address + mark for home, mark in zip(self.homes, marks, strict=True))

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return self.terms.prefix

    @property
    def owner(self) -> str:
        """Who reserves."""
        return self.terms.owner

    @property
    def middleware(self) -> tuple[Any, ...]:
        """Hooks."""
        return self.terms.middleware

    is_several = True
    is_apart = True
    """Waits on several nodes stand by themselves."""

    def queue(self, name: str, partitions: int | None = None) -> AsyncShardedQueue:
        """The queue of this name, with a part on each node, or one of each partition."""
        made = AsyncObservedShardedQueue if self.middleware else AsyncShardedQueue
        queue = made(self, name, partitions)
        self.watch(queue)
        return queue

    def watch(self, queue: AsyncShardedQueue) -> None:
        """Keep the settings of a queue the same on all nodes from now on."""
        self._queues.add(queue)

    async def partitions(self, name: str) -> int | None:
        """Return the number of partitions of a queue on the first node that knows it."""
        found, _ = await self.each(lambda home: home.brief._driver.partitions(name))
        return next((count for _, count in found if count is not None), None)

    def preferred(self) -> list[AsyncFederatedNode]:
        """The nodes in the order in which jobs are offered to them."""
        return self.sticky.order(self.homes)

    async def produce(
        self,
        parts: Callable[[], Sequence[AsyncShard]],
        attempt: Callable[[AsyncShard], Awaitable[T]],
    ) -> T:
        """Add jobs on the first node that takes them: see `AsyncPlacement.produce`."""
        return await self.offers.produce(parts, attempt)

    async def keep(
        self, home: AsyncFederatedNode, queue: str, names: Sequence[Any], intent: Intent
    ) -> list[bool]:
        """Keep a call about jobs of a node that is down: see `AsyncHints.keep`."""
        return await self.hints.keep(home, queue, names, intent)

    # -- who is there ----------------------------------------------------------------------

    async def connect(self) -> None:
        """Reach one node at least, and learn who the others are.

        Raises:
            ConfigurationError: two nodes have one id.
            NodesUnavailable: none was reached within `retry_for`.
        """
        self.tend()
        if not any(home.state.is_up for home in self.homes):
            await self._await_one()
        elif not all(home.state.met or home.state.failures for home in self.homes):
            await self._await_rest()
        self._raise_fault()

    async def _await_one(self) -> None:
        until = monotonic() + self.terms.retry_for
        while True:
            await self._await_rest()
            self._raise_fault()
            if any(home.state.is_up for home in self.homes):
                return
            if monotonic() >= until:
                raise self.unavailable()
            await asleep(0.02)
            self.tend()

    async def _await_rest(self) -> None:
        """Wait for calls that are under way, only for a moment if one node has answered."""
        until = monotonic() + BRIEF
        while True:
            self.tend()  # for those that were learned just now
            under_way = [errand for home in list(self.homes) for errand in home.errands.under_way]
            if any(home.state.is_up for home in self.homes):
                until = min(until, monotonic() + GRACE)
            left = until - monotonic()
            if not under_way or left <= 0:
                return
            await AsyncBackgroundTask.wait(under_way, left)

    def tend(self) -> None:
        """Look after the nodes that are down, when it is time for it; beside whatever is done."""
        now = monotonic()
        for home in list(self.homes):
            is_due = not home.state.is_up and now >= home.state.until
            if is_due and not home.is_looked_after:
                home.errands.begin(partial(self.look_after, home))
        if now >= self.learn_at and not self._learning.under_way:
            if self.learn_at:
                self._learning.begin(self._learn)
            self.learn_at = now + REFRESH

    @property
    def is_whole(self) -> bool:
        """Whether every node is up, and no news of others is on its way."""
        is_learning = bool(self._learning.under_way)
        return not is_learning and all(home.state.is_up for home in list(self.homes))

    async def look_after(self, home: AsyncFederatedNode) -> None:
        """See whether a node is there; never raises."""
        try:
            await self._looked_after(home)
        finally:
            if home not in self.homes:  # it was left out meanwhile
                await home.hang_up()

    async def _looked_after(self, home: AsyncFederatedNode) -> None:
        try:
            was = home.state.failures
            await home.ear.reach()
            await self._meet_again(home)
            if was and home.state.is_up:
                logger.warning("node %s is back", home.address)
        except ConfigurationError as error:
            home.refused(error)
        except Exception as error:  # noqa: BLE001  # tried again after a while
            home.fault = None  # it is looked at again before it is used
            home.failed(error)
            with suppress(Exception):
                await home.ear.close()

    async def _approach(self, home: AsyncFederatedNode) -> None:
        """Have a connection to a node; one that has closed them may have been away."""
        if await home.ear.reach():
            await self._meet_again(home)

    async def _meet_again(self, home: AsyncFederatedNode) -> None:
        """Make a node that has been away, or may have been, one of those that are up."""
        found = await home.see()
        await self.check_id(home)
        if home not in self.homes:
            return
        home.fault = None
        self._heard(await home.listed())
        # Before anybody takes a job from it: some of them are done.
        await self.hints.make_up(home)
        for queue in list(self._queues):
            await queue.agree(home)
        if home in self.homes:
            home.state.saw(**found)

    async def check_id(self, home: AsyncFederatedNode) -> None:
        """Refuse a node that has the id of another one.

        Raises:
            ConfigurationError: it has.
        """
        homes = list(self.homes)
        for other in homes:
            if other is not home and other.fault is None and other.id and other.id == home.id:
                if other.is_learned or home.is_learned:  # one node by two addresses, or met twice
                    await self._leave_out(home if _is_spare(home, other, homes) else other)
                    continue
                if not other.is_known or (home.state.is_up and not other.state.is_up):
                    continue  # it is checked itself when it is back
                raise ConfigurationError(
                    f"{other.address} and {home.address} have the same node id, {home.id}: drop"
                    " one of the two addresses, or clear the server with copied data"
                )

    async def _leave_out(self, home: AsyncFederatedNode) -> None:
        """A node that was learned is one of those that are known already, by another address."""
        with suppress(ValueError):  # another thread was quicker
            self.homes.remove(home)
            self._gone.append(home)
            for gone in tuple(self._gone):  # some call may be at it; of others nothing is left
                if not (gone is home or gone.state.met or gone.is_looked_after):
                    with suppress(ValueError):
                        self._gone.remove(gone)
        await home.hang_up()

    async def _learn(self) -> None:
        """Read the lists of all nodes again, and who they are; never raises."""
        for home in list(self.homes):
            if home.state.is_up:
                try:
                    await home.recognise()
                    await self.check_id(home)
                    self._heard(await home.listed())
                    await self.hints.make_up_from(home, self.up(home))
                except ConfigurationError as error:
                    home.refused(error)
                except Exception as error:  # noqa: BLE001  # it is looked after
                    if not self.bears(home, error):
                        logger.warning("node %s: %s", home.address, error)
        for queue in list(self._queues):
            await queue.agree()

    def up(self, but: AsyncFederatedNode) -> list[AsyncFederatedNode]:
        """The nodes that are up, except one."""
        return [home for home in list(self.homes) if home is not but and home.state.is_up]

    def _heard(self, told: Mapping[str, str]) -> None:
        """Take in what a node says of others."""
        known = {node: str(entry) for node, entry in self._entries.items()}
        self._entries = merged_members([known, told])
        for node, entry in sorted(self._entries.items(), key=itemgetter(1)):
            found = [home for home in list(self.homes) if home.whole_id == node]
            if found or not entry.address:
                self.unused.pop(node, None)
            if not entry.address:
                # A forgotten node goes, unless it is the only one left.
                for home in found:
                    if len(self.homes) > 1:
                        with suppress(ValueError):  # another thread was quicker
                            self.homes.remove(home)
                            self._gone.append(home)
            elif not found:
                self._meet(node, entry.address)

    def _meet(self, node: str, address: str) -> None:
        """A node of which others tell."""
        for home in list(self.homes):
            if address_of(home.source) == address:
                if not home.state.met:  # else the list is of a time when another one was there
                    home.meet(node)
                return
        if self.unused.get(node, ("", ""))[0] == address:
            return  # nothing has changed
        try:
            source = learned(address, self._given, self.terms.node_hosts)
            self.homes.append(AsyncFederatedNode(source, self.terms, node))
        except (PenstockError, ValueError) as error:
            reason = error.reason if isinstance(error, BadArgument) else str(error)
            logger.warning("node %s at %r is not used: %s", node[:8], address, reason)
            self.unused[node] = (address, reason)
        else:
            self.unused.pop(node, None)

    async def entries(self) -> dict[str, Entry]:
        """The list, as all nodes together have it."""
        found, _ = await self.each(lambda home: home.listed())
        return merged_members(told for _, told in found)

    async def admit(self, url: str) -> AsyncFederatedNode:
        """Make a node one of these.

        Raises:
            ConfigurationError: it has the id of another one.
        """
        await self.connect()
        home = AsyncFederatedNode(url, self.terms)
        try:
            await home.look()
            for other in list(self.homes):
                if other.id == home.id and address_of(other.source) == address_of(url):
                    await home.close()
                    return other
            await self.check_id(home)
        except BaseException:
            await home.close()
            raise
        self.homes.append(home)
        return home

    async def dismiss(self, home: AsyncFederatedNode) -> None:
        """One of these is none any more."""
        with suppress(ValueError):
            self.homes.remove(home)
            self._gone.append(home)  # jobs that were taken there may yet be settled
        await home.close()

    async def rest_of(self, home: AsyncFederatedNode) -> Drain:
        """What is left on a node."""
        totals = await home.totals()
        kept = await home.command("HLEN", hints_key(self.prefix))
        return Drain(totals.waiting, totals.active, kept, totals.dead)

    async def first(self, ask: Callable[[AsyncFederatedNode], Awaitable[T]]) -> T:
        """What the first node answers that can be reached.

        Raises:
            NodesUnavailable: none.
        """
        await self.connect()
        for home in list(self.homes):
            found = await self.tried(home, partial(ask, home))
            if found is not None:
                return found
        raise self.unavailable()

    def _raise_fault(self) -> None:
        for home in self.homes:
            if home.fault is not None:
                raise home.fault

    def unavailable(self, what: str = "no node can be reached") -> NodesUnavailable:
        """The error that says so, with what is known of each."""
        reasons = {home.address: home.state.reason or "not asked" for home in self.homes}
        return NodesUnavailable(what, reasons)

    def home_of(self, node: str, name: object) -> AsyncFederatedNode:
        """The node with this prefix of an id.

        Raises:
            WrongNode: none of these.
        """
        for home in list(self.homes):
            if node in home.known:
                return home
        known = ", ".join(home.id for home in self.homes if home.id)
        unmet = ", ".join(home.address for home in self.homes if not home.id)
        told = f"node {node} is unknown, this client knows {known}: add its URL"
        for whole_id, (address, reason) in self.unused.items():
            if whole_id.startswith(node):
                told = f"node {node} at {address!r} is not used: {reason}"
        raise WrongNode("id", name, f"{told}; not reached: {unmet}" if unmet else told)

    def bears(self, home: AsyncFederatedNode, error: BaseException) -> bool:
        """Whether a failure is that of a node, which the others may make up for; it is noted."""
        if not passing(error):
            return False
        home.failed(error)
        return True

    async def tried(self, home: AsyncFederatedNode, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask one node, or None: it can't be reached."""
        if not home.state.is_up:
            return None
        try:
            await self._approach(home)
            return await ask()
        except Exception as error:
            if not self.bears(home, error):
                raise
            return None

    async def close(self) -> None:
        """Close the connections."""
        await self._learning.close()
        gone, self._gone = self._gone, []
        for home in [*self.homes, *gone]:
            await home.close()

    # -- every node ------------------------------------------------------------------------

    async def each(
        self, ask: Callable[[AsyncFederatedNode], Awaitable[T]]
    ) -> tuple[list[tuple[AsyncFederatedNode, T]], dict[str, str]]:
        """Ask every node that is up; the answers, and why others have none, by address.

        Raises:
            NodesUnavailable: none has answered.
        """
        await self.connect()
        found: list[tuple[AsyncFederatedNode, T]] = []
        missed: dict[str, str] = {}
        for home in list(self.homes):
            if not home.state.is_up:
                missed[home.address] = home.state.reason
                continue
            try:
                await self._approach(home)
                found.append((home, await ask(home)))
            except Exception as error:
                if not self.bears(home, error):
                    raise
                missed[home.address] = home.state.reason
        if not found:
            raise NodesUnavailable("no node has answered", missed)
        return found, missed

    async def queues(self, pattern: str) -> list[str]:
        """The names of the queues that exist on any node, sorted."""
        found, missed = await self.each(lambda home: home.brief.queues(pattern))
        return Partial(sorted({name for _, names in found for name in names}), missed)

    async def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter) -> QueuePage:
        """One step through the registries, node by node; a queue counts where it is met first."""
        key, inner = nodes.split_cursor(cursor)
        check_cursor("cursor", inner, QUEUE_CURSOR)
        await self.connect()
        homes = sorted((home for home in self.homes if home.id), key=lambda home: home.id)
        missed = [home.address for home in self.homes if not home.id]
        left = [home for home in homes if home.id >= key]
        while left:
            home = left.pop(0)
            page = await self._page(home, inner if home.id == key else "0", n)
            if page is None:
                missed.append(home.address)
                continue
            chosen = await self._first_met(home, page.queues)
            after = left[0].id if page.cursor == "0" and left else home.id
            is_last = page.cursor == "0" and not left
            return QueuePage(
                "0" if is_last else f"{after}:{page.cursor}",
                [stats for stats in chosen if is_wanted(stats)],
                tuple(missed),
            )
        return QueuePage("0", [], tuple(missed))

    async def _page(self, home: AsyncFederatedNode, cursor: str, n: int) -> QueuePage | None:
        """A page of one node's registry; None = it can't be reached."""
        return await self.tried(home, partial(home.brief.scan_queues, cursor, n, _any_queue))

    async def _first_met(
        self, home: AsyncFederatedNode, found: Sequence[QueueStats]
    ) -> list[QueueStats]:
        """The figures of those among the queues of a node that were not met on one before it."""
        chosen = []
        for one in found:
            parts, missed = await self.each(partial(_stats, one=one))
            if not any(stats.exists and other.id < home.id for other, stats in parts):
                chosen.append(nodes.merged_stats([stats for _, stats in parts], missed))
        return chosen

    async def hello(self) -> Hello:
        """Every node: those that answer, then the others with what is known of them."""
        found, _ = await self.each(lambda home: home.seen())
        answered = [view for _, view in found]
        silent = [
            NodeView(
                home.whole_id, home.address, 100, None, None, home.state.leaving, home.state.reason
            )
            for home in self.homes
            if all(home is not other for other, _ in found)
        ]
        silent += [
            NodeView(node, address, 100, None, None, False, reason)
            for node, (address, reason) in self.unused.items()
        ]
        return Hello(PROTOCOL_VERSION, answered[0].id, (*answered, *silent))

    async def info(self) -> Info:
        """The nodes taken together."""
        found, _ = await self.each(lambda home: home.brief.info())
        return nodes.merged_info([info for _, info in found])

    # -- consuming -------------------------------------------------------------------------

    async def reserve(self, queues: Sequence[Any], n: int, wait: float | None) -> list[AsyncJob]:
        """Take up to n jobs from several queues on all nodes, the first queue first."""
        await self.connect()
        for queue in queues:
            await queue.declare()
        name = "\0".join(queue.name for queue in queues)
        poll_order = self._poll_order.get(name)
        if poll_order is None:
            if len(self._poll_order) >= 1000:
                self._poll_order.clear()
            poll_order = self._poll_order[name] = PollOrder()
        table = nodes.Table(
            lambda: [queue.operations for queue in queues],
            lambda home: home.state.is_up,
            self.unavailable,
            poll_order,
            monotonic,
        )
        flow = nodes.reserve(table, n, wait, transient=passing)
        jobs: list[AsyncJob] = await self.drive(flow)
        return jobs

    async def drive(self, flow: Generator[Any, Any, Any], signal: AsyncSignal | None = None) -> Any:
        """Run a flow over several nodes to its end; its result."""
        listener = AsyncMultiNodeWait(self, signal)
        try:
            effect = next(flow)
            while True:
                try:
                    answer = await self._answer(effect, listener)
                except Exception as error:  # noqa: BLE001, PERF203  # the flow decides about it
                    effect = flow.throw(error)
                else:
                    effect = flow.send(answer)
        except StopIteration as end:
            return end.value
        # [async only
        except asyncio.CancelledError:
            await ashield(leave(flow, lambda effect: self._answer(effect, listener)))
            raise
        # async only]
        finally:
            await listener.drop()

    async def _answer(self, effect: Any, listener: AsyncMultiNodeWait) -> Any:
        if isinstance(effect, At):
            return await self._answer_at(effect.home, effect.effect)
        if isinstance(effect, Listen):
            return await listener.listen(effect)
        if isinstance(effect, Keep):
            return await self.hints.keep(effect.home, effect.queue, effect.jobs, effect.intent)
        if isinstance(effect, flows.Quit):
            return await listener.quit()
        if isinstance(effect, flows.Rest):
            return await listener.rest(effect.until)
        if isinstance(effect, flows.Cede):
            return await asleep(0)
        if isinstance(effect, flows.Drop):
            return await listener.drop()
        assert isinstance(effect, flows.Hurry)
        for home in list(self.homes):
            await home.ear.hurry()
        return None

    async def _answer_at(self, home: AsyncFederatedNode, effect: flows.Effect) -> Any:
        """Carry out an effect on one node; that it fails is noted."""
        if not home.state.is_up:
            raise self.unavailable(f"{home.address} is down")
        try:
            await self._approach(home)
            return await home.brief._driver.answer(effect)
        except Exception as error:
            self.bears(home, error)
            raise


def _any_queue(stats: QueueStats) -> bool:  # noqa: ARG001  # its form
    return True


async def _stats(home: AsyncFederatedNode, one: QueueStats) -> QueueStats:
    return await home.brief.queue(one.name, one.partitions).stats()


def _is_spare(
    home: AsyncFederatedNode, other: AsyncFederatedNode, homes: Sequence[AsyncFederatedNode]
) -> bool:
    """Whether of two homes of one node it is `home` that goes, not `other`.

    Both may be asked at the same time, by two threads: one of them has to stay.
    """
    if not (home.is_learned and other.is_learned):
        return home.is_learned
    if home not in homes:  # it is out already
        return True
    is_one_place = address_of(home.source) == address_of(other.source)
    return homes.index(other) < homes.index(home) and (is_one_place or other.state.is_up)
