# From src/penstock/client/_async/sharded/federation.py by tools/unasync.py; do not edit.
"""Several nodes as one: who is up, where jobs go, and waiting on all of them at once.

What is decided is in `core.nodes`; here it is carried out (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._acompat import BackgroundTask, Signal, sleep
from penstock.client._sync.job import Job
from penstock.client._sync.sharded.federated_node import (
    BRIEF,
    BackgroundTasks,
    FederatedNode,
)
from penstock.client._sync.sharded.hints import Hints
from penstock.client._sync.sharded.multi_node_wait import MultiNodeWait
from penstock.client._sync.sharded.placement import Placement
from penstock.client._sync.sharded.sharded_queue import (
    ObservedShardedQueue,
    ShardedQueue,
)
from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.failures import passing
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
    from penstock.client._sync.sharded.shard import Shard

__all__ = ["Federation"]

logger = get_logger("penstock")

T = TypeVar("T")

GRACE = 0.5
"""Seconds that a connect waits for the rest when one node has answered."""
REFRESH = 30.0
"""Seconds after which the list of nodes is read again."""


class Federation:
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
        homes: Sequence[FederatedNode] | None = None,
    ) -> None:
        self.terms = terms
        self._given = [*sources]
        self.homes = list(homes or [FederatedNode(source, terms) for source in sources])
        self.unused: dict[str, tuple[str, str]] = {}
        self.sticky = Sticky(random.randrange(1 << 16))
        self.hints = Hints(self)
        self.offers = Placement(self)
        self._poll_order: dict[str, PollOrder] = {}
        self._entries: dict[str, Entry] = {}
        self._gone: list[FederatedNode] = []
        self._queues: weakref.WeakSet[ShardedQueue] = weakref.WeakSet()
        self._learning = BackgroundTasks()
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

    def queue(self, name: str, partitions: int | None = None) -> ShardedQueue:
        """The queue of this name, with a part on each node, or one of each partition."""
        made = ObservedShardedQueue if self.middleware else ShardedQueue
        queue = made(self, name, partitions)
        self.watch(queue)
        return queue

    def watch(self, queue: ShardedQueue) -> None:
        """Keep the settings of a queue the same on all nodes from now on."""
        self._queues.add(queue)

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions of a queue on the first node that knows it."""
        found, _ = self.each(lambda home: home.brief._driver.partitions(name))
        return next((count for _, count in found if count is not None), None)

    def preferred(self) -> list[FederatedNode]:
        """The nodes in the order in which jobs are offered to them."""
        return self.sticky.order(self.homes)

    def produce(
        self,
        parts: Callable[[], Sequence[Shard]],
        attempt: Callable[[Shard], T],
    ) -> T:
        """Add jobs on the first node that takes them: see `Placement.produce`."""
        return self.offers.produce(parts, attempt)

    def keep(
        self, home: FederatedNode, queue: str, names: Sequence[Any], intent: Intent
    ) -> list[bool]:
        """Keep a call about jobs of a node that is down: see `Hints.keep`."""
        return self.hints.keep(home, queue, names, intent)

    # -- who is there ----------------------------------------------------------------------

    def connect(self) -> None:
        """Reach one node at least, and learn who the others are.

        Raises:
            ConfigurationError: two nodes have one id.
            NodesUnavailable: none was reached within `retry_for`.
        """
        self.tend()
        if not any(home.state.is_up for home in self.homes):
            self._await_one()
        elif not all(home.state.met or home.state.failures for home in self.homes):
            self._await_rest()
        self._raise_fault()

    def _await_one(self) -> None:
        until = monotonic() + self.terms.retry_for
        while True:
            self._await_rest()
            self._raise_fault()
            if any(home.state.is_up for home in self.homes):
                return
            if monotonic() >= until:
                raise self.unavailable()
            sleep(0.02)
            self.tend()

    def _await_rest(self) -> None:
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
            BackgroundTask.wait(under_way, left)

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

    def look_after(self, home: FederatedNode) -> None:
        """See whether a node is there; never raises."""
        try:
            self._looked_after(home)
        finally:
            if home not in self.homes:  # it was left out meanwhile
                home.hang_up()

    def _looked_after(self, home: FederatedNode) -> None:
        try:
            was = home.state.failures
            home.ear.reach()
            self._meet_again(home)
            if was and home.state.is_up:
                logger.warning("node %s is back", home.address)
        except ConfigurationError as error:
            home.refused(error)
        except Exception as error:  # noqa: BLE001  # tried again after a while
            home.fault = None  # it is looked at again before it is used
            home.failed(error)
            with suppress(Exception):
                home.ear.close()

    def _approach(self, home: FederatedNode) -> None:
        """Have a connection to a node; one that has closed them may have been away."""
        if home.ear.reach():
            self._meet_again(home)

    def _meet_again(self, home: FederatedNode) -> None:
        """Make a node that has been away, or may have been, one of those that are up."""
        found = home.see()
        self.check_id(home)
        if home not in self.homes:
            return
        home.fault = None
        self._heard(home.listed())
        # Before anybody takes a job from it: some of them are done.
        self.hints.make_up(home)
        for queue in list(self._queues):
            queue.agree(home)
        if home in self.homes:
            home.state.saw(**found)

    def check_id(self, home: FederatedNode) -> None:
        """Refuse a node that has the id of another one.

        Raises:
            ConfigurationError: it has.
        """
        homes = list(self.homes)
        for other in homes:
            if other is not home and other.fault is None and other.id and other.id == home.id:
                if other.is_learned or home.is_learned:  # one node by two addresses, or met twice
                    self._leave_out(home if _is_spare(home, other, homes) else other)
                    continue
                if not other.is_known or (home.state.is_up and not other.state.is_up):
                    continue  # it is checked itself when it is back
                raise ConfigurationError(
                    f"{other.address} and {home.address} have the same node id, {home.id}: drop"
                    " one of the two addresses, or clear the server with copied data"
                )

    def _leave_out(self, home: FederatedNode) -> None:
        """A node that was learned is one of those that are known already, by another address."""
        with suppress(ValueError):  # another thread was quicker
            self.homes.remove(home)
            self._gone.append(home)
            for gone in tuple(self._gone):  # some call may be at it; of others nothing is left
                if not (gone is home or gone.state.met or gone.is_looked_after):
                    with suppress(ValueError):
                        self._gone.remove(gone)
        home.hang_up()

    def _learn(self) -> None:
        """Read the lists of all nodes again, and who they are; never raises."""
        for home in list(self.homes):
            if home.state.is_up:
                try:
                    home.recognise()
                    self.check_id(home)
                    self._heard(home.listed())
                    self.hints.make_up_from(home, self.up(home))
                except ConfigurationError as error:
                    home.refused(error)
                except Exception as error:  # noqa: BLE001  # it is looked after
                    if not self.bears(home, error):
                        logger.warning("node %s: %s", home.address, error)
        for queue in list(self._queues):
            queue.agree()

    def up(self, but: FederatedNode) -> list[FederatedNode]:
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
            self.homes.append(FederatedNode(source, self.terms, node))
        except (PenstockError, ValueError) as error:
            reason = error.reason if isinstance(error, BadArgument) else str(error)
            logger.warning("node %s at %r is not used: %s", node[:8], address, reason)
            self.unused[node] = (address, reason)
        else:
            self.unused.pop(node, None)

    def entries(self) -> dict[str, Entry]:
        """The list, as all nodes together have it."""
        found, _ = self.each(lambda home: home.listed())
        return merged_members(told for _, told in found)

    def admit(self, url: str) -> FederatedNode:
        """Make a node one of these.

        Raises:
            ConfigurationError: it has the id of another one.
        """
        self.connect()
        home = FederatedNode(url, self.terms)
        try:
            home.look()
            for other in list(self.homes):
                if other.id == home.id and address_of(other.source) == address_of(url):
                    home.close()
                    return other
            self.check_id(home)
        except BaseException:
            home.close()
            raise
        self.homes.append(home)
        return home

    def dismiss(self, home: FederatedNode) -> None:
        """One of these is none any more."""
        with suppress(ValueError):
            self.homes.remove(home)
            self._gone.append(home)  # jobs that were taken there may yet be settled
        home.close()

    def rest_of(self, home: FederatedNode) -> Drain:
        """What is left on a node."""
        totals = home.totals()
        kept = home.command("HLEN", hints_key(self.prefix))
        return Drain(totals.waiting, totals.active, kept, totals.dead)

    def first(self, ask: Callable[[FederatedNode], T]) -> T:
        """What the first node answers that can be reached.

        Raises:
            NodesUnavailable: none.
        """
        self.connect()
        for home in list(self.homes):
            found = self.tried(home, partial(ask, home))
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

    def home_of(self, node: str, name: object) -> FederatedNode:
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

    def bears(self, home: FederatedNode, error: BaseException) -> bool:
        """Whether a failure is that of a node, which the others may make up for; it is noted."""
        if not passing(error):
            return False
        home.failed(error)
        return True

    def tried(self, home: FederatedNode, ask: Callable[[], T]) -> T | None:
        """Ask one node, or None: it can't be reached."""
        if not home.state.is_up:
            return None
        try:
            self._approach(home)
            return ask()
        except Exception as error:
            if not self.bears(home, error):
                raise
            return None

    def close(self) -> None:
        """Close the connections."""
        self._learning.close()
        gone, self._gone = self._gone, []
        for home in [*self.homes, *gone]:
            home.close()

    # -- every node ------------------------------------------------------------------------

    def each(
        self, ask: Callable[[FederatedNode], T]
    ) -> tuple[list[tuple[FederatedNode, T]], dict[str, str]]:
        """Ask every node that is up; the answers, and why others have none, by address.

        Raises:
            NodesUnavailable: none has answered.
        """
        self.connect()
        found: list[tuple[FederatedNode, T]] = []
        missed: dict[str, str] = {}
        for home in list(self.homes):
            if not home.state.is_up:
                missed[home.address] = home.state.reason
                continue
            try:
                self._approach(home)
                found.append((home, ask(home)))
            except Exception as error:
                if not self.bears(home, error):
                    raise
                missed[home.address] = home.state.reason
        if not found:
            raise NodesUnavailable("no node has answered", missed)
        return found, missed

    def queues(self, pattern: str) -> list[str]:
        """The names of the queues that exist on any node, sorted."""
        found, missed = self.each(lambda home: home.brief.queues(pattern))
        return Partial(sorted({name for _, names in found for name in names}), missed)

    def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter) -> QueuePage:
        """One step through the registries, node by node; a queue counts where it is met first."""
        key, inner = nodes.split_cursor(cursor)
        check_cursor("cursor", inner, QUEUE_CURSOR)
        self.connect()
        homes = sorted((home for home in self.homes if home.id), key=lambda home: home.id)
        missed = [home.address for home in self.homes if not home.id]
        left = [home for home in homes if home.id >= key]
        while left:
            home = left.pop(0)
            page = self._page(home, inner if home.id == key else "0", n)
            if page is None:
                missed.append(home.address)
                continue
            chosen = self._first_met(home, page.queues)
            after = left[0].id if page.cursor == "0" and left else home.id
            is_last = page.cursor == "0" and not left
            return QueuePage(
                "0" if is_last else f"{after}:{page.cursor}",
                [stats for stats in chosen if is_wanted(stats)],
                tuple(missed),
            )
        return QueuePage("0", [], tuple(missed))

    def _page(self, home: FederatedNode, cursor: str, n: int) -> QueuePage | None:
        """A page of one node's registry; None = it can't be reached."""
        return self.tried(home, partial(home.brief.scan_queues, cursor, n, _any_queue))

    def _first_met(self, home: FederatedNode, found: Sequence[QueueStats]) -> list[QueueStats]:
        """The figures of those among the queues of a node that were not met on one before it."""
        chosen = []
        for one in found:
            parts, missed = self.each(partial(_stats, one=one))
            if not any(stats.exists and other.id < home.id for other, stats in parts):
                chosen.append(nodes.merged_stats([stats for _, stats in parts], missed))
        return chosen

    def hello(self) -> Hello:
        """Every node: those that answer, then the others with what is known of them."""
        found, _ = self.each(lambda home: home.seen())
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

    def info(self) -> Info:
        """The nodes taken together."""
        found, _ = self.each(lambda home: home.brief.info())
        return nodes.merged_info([info for _, info in found])

    # -- consuming -------------------------------------------------------------------------

    def reserve(self, queues: Sequence[Any], n: int, wait: float | None) -> list[Job]:
        """Take up to n jobs from several queues on all nodes, the first queue first."""
        self.connect()
        for queue in queues:
            queue.declare()
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
        jobs: list[Job] = self.drive(flow)
        return jobs

    def drive(self, flow: Generator[Any, Any, Any], signal: Signal | None = None) -> Any:
        """Run a flow over several nodes to its end; its result."""
        listener = MultiNodeWait(self, signal)
        try:
            effect = next(flow)
            while True:
                try:
                    answer = self._answer(effect, listener)
                except Exception as error:  # noqa: BLE001, PERF203  # the flow decides about it
                    effect = flow.throw(error)
                else:
                    effect = flow.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            listener.drop()

    def _answer(self, effect: Any, listener: MultiNodeWait) -> Any:
        if isinstance(effect, At):
            return self._answer_at(effect.home, effect.effect)
        if isinstance(effect, Listen):
            return listener.listen(effect)
        if isinstance(effect, Keep):
            return self.hints.keep(effect.home, effect.queue, effect.jobs, effect.intent)
        if isinstance(effect, flows.Quit):
            return listener.quit()
        if isinstance(effect, flows.Rest):
            return listener.rest(effect.until)
        if isinstance(effect, flows.Cede):
            return sleep(0)
        if isinstance(effect, flows.Drop):
            return listener.drop()
        assert isinstance(effect, flows.Hurry)
        for home in list(self.homes):
            home.ear.hurry()
        return None

    def _answer_at(self, home: FederatedNode, effect: flows.Effect) -> Any:
        """Carry out an effect on one node; that it fails is noted."""
        if not home.state.is_up:
            raise self.unavailable(f"{home.address} is down")
        try:
            self._approach(home)
            return home.brief._driver.answer(effect)
        except Exception as error:
            self.bears(home, error)
            raise


def _any_queue(stats: QueueStats) -> bool:  # noqa: ARG001  # its form
    return True


def _stats(home: FederatedNode, one: QueueStats) -> QueueStats:
    return home.brief.queue(one.name, one.partitions).stats()


def _is_spare(home: FederatedNode, other: FederatedNode, homes: Sequence[FederatedNode]) -> bool:
    """Whether of two homes of one node it is `home` that goes, not `other`.

    Both may be asked at the same time, by two threads: one of them has to stay.
    """
    if not (home.is_learned and other.is_learned):
        return home.is_learned
    if home not in homes:  # it is out already
        return True
    is_one_place = address_of(home.source) == address_of(other.source)
    return homes.index(other) < homes.index(home) and (is_one_place or other.state.is_up)
