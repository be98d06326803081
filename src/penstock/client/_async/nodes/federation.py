"""Several nodes as one: their state, their list, and calls to all of them.

`core.nodes` decides; this module carries it out (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar, cast

from penstock.client._acompat import AsyncBackgroundTask, AsyncWakeup, asleep
from penstock.client._async.nodes import hints
from penstock.client._async.nodes.federated_node import (
    BRIEF_SECONDS,
    AsyncBackgroundTasks,
    AsyncFederatedNode,
)
from penstock.client._async.nodes.interfaces import AsyncAgreedRoute
from penstock.client._async.nodes.scanning import AsyncScannedPlace, read_next_page
from penstock.client._async.transport.flow_run import AsyncFlowRun
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.config import ClientConfig, QueueFilter
from penstock.core.calls.failures import passing
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.queue_stats import QueuePage, QueueStats
from penstock.core.nodes import merging
from penstock.core.nodes.merging import Partial
from penstock.core.nodes.node_list import Entry, address_of, learned, merged_members
from penstock.core.nodes.node_views import Hello, Info, NodeView, merged_info
from penstock.core.nodes.servers import PROTOCOL_VERSION
from penstock.core.nodes.state import NODE_LIST_MAX_AGE, Sticky
from penstock.core.values.checks import QUEUE_CURSOR, check_cursor
from penstock.errors import (
    BadArgument,
    ConfigurationError,
    NodesUnavailable,
    PenstockError,
    WrongNode,
)

__all__ = ["AsyncFederation"]

logger = get_logger("penstock")

T = TypeVar("T")

OTHER_NODES_SECONDS = 0.5
"""Seconds that a connect waits for the other nodes when one has answered."""
DOWN_NODE_LOOK_SECONDS = 0.1
"""Seconds after which a waiting consumer looks again for a node that was down."""


class AsyncFederation:
    """The nodes of one client.

    Args:
        sources: a URL or a redis-py client of each.
        config: configuration of the client.
        nodes: the nodes of these sources; None = make them.

    Attributes:
        nodes: the nodes.
        unused: nodes of the list that can't be used: id -> address and reason.
        learn_at: time of the clock when the lists of nodes are read again.
        sticky: the order in which new jobs are offered to them.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        config: ClientConfig,
        nodes: Sequence[AsyncFederatedNode] | None = None,
    ) -> None:
        self.config = config
        self._given = [*sources]
        self.nodes = list(nodes or [AsyncFederatedNode(source, config) for source in sources])
        self.unused: dict[str, tuple[str, str]] = {}
        self.sticky = Sticky(random.randrange(1 << 16))
        self._entries: dict[str, Entry] = {}
        self._gone: list[AsyncFederatedNode] = []
        self._routes: weakref.WeakSet[AsyncAgreedRoute] = weakref.WeakSet()
        self._learning = AsyncBackgroundTasks()
        self.learn_at = 0.0

    @property
    def address(self) -> str:
        """Addresses of the nodes; one that could not be reached is marked as down."""
        marks = [" (down)" if node.state.failures else "" for node in self.nodes]
        return ", ".join(node.address + mark for node, mark in zip(self.nodes, marks, strict=True))

    @property
    def down(self) -> list[str]:
        """Addresses of the nodes that could not be reached."""
        return [node.address for node in self.nodes if node.state.failures]

    is_apart = True
    """Parts of a queue lie on several servers, each of which may fail by itself."""

    def watch(self, route: AsyncAgreedRoute) -> None:
        """Keep the settings of a queue the same on all nodes from now on."""
        self._routes.add(route)

    async def partitions(self, name: str) -> int | None:
        """Return the number of partitions on the first node that has the queue.

        0 = it has none, None = no such queue.
        """
        counts, _ = await self.each(lambda node: node.brief.driver.partitions(name))
        return next((count for _, count in counts if count is not None), None)

    def preferred(self) -> list[AsyncFederatedNode]:
        """Return the nodes in the order in which jobs are offered to them."""
        return self.sticky.order(self.nodes)

    # -- the state of the nodes ------------------------------------------------------------

    async def connect(self) -> None:
        """Reach one node at least, and learn of the others.

        Raises:
            ConfigurationError: two nodes have one id.
            NodesUnavailable: none was reached within `retry_for`.
        """
        until = monotonic() + self.config.retry_for
        while True:
            self.start_due_looks()
            is_reached = any(node.state.is_up for node in self.nodes)
            if not is_reached or not all(
                node.state.met or node.state.failures for node in self.nodes
            ):
                await self.await_looks()
            for node in self.nodes:
                if node.fault is not None:
                    raise node.fault
            if is_reached or any(node.state.is_up for node in self.nodes):
                return
            if monotonic() >= until:
                raise self.unavailable()
            await asleep(0.02)

    async def await_looks(self) -> None:
        """Wait for looks at nodes, 2 s at most; if one has answered, only for a moment."""
        until = monotonic() + BRIEF_SECONDS
        while True:
            self.start_due_looks()  # nodes may have been learned just now
            under_way = [task for node in list(self.nodes) for task in node.tasks.under_way]
            if any(node.state.is_up for node in self.nodes):
                until = min(until, monotonic() + OTHER_NODES_SECONDS)
            left = until - monotonic()
            if not under_way or left <= 0:
                return
            await AsyncBackgroundTask.wait(under_way, left)

    def start_due_looks(self) -> None:
        """Start background looks at nodes that are down, and at the lists, when they are due."""
        now = monotonic()
        for node in list(self.nodes):
            is_due = not node.state.is_up and now >= node.state.until
            if is_due and not node.tasks.under_way:
                node.tasks.begin(partial(self.look_after, node))
        if now >= self.learn_at and not self._learning.under_way:
            if self.learn_at:
                self._learning.begin(self._learn)
            self.learn_at = now + NODE_LIST_MAX_AGE

    @property
    def is_whole(self) -> bool:
        """True if every node is up, and no list is being read."""
        is_learning = bool(self._learning.under_way)
        return not is_learning and all(node.state.is_up for node in list(self.nodes))

    @property
    def missed(self) -> dict[str, str]:
        """Nodes that are down or can't be used: address -> reason."""
        down = [node for node in list(self.nodes) if not node.state.is_up]
        return {node.address: node.state.reason or "not reached yet" for node in down} | dict(
            self.unused.values()
        )

    async def look_after(self, node: AsyncFederatedNode) -> None:
        """Try to reach a node; never raises."""
        try:
            was = node.state.failures
            await node.brief.executor.reach()
            await self._meet_again(node)
            if was and node.state.is_up:
                logger.warning("node %s is back", node.address)
        except ConfigurationError as error:
            node.note_refusal(error)
        except Exception as error:  # noqa: BLE001  # tried again after a while
            node.fault = None  # it is checked again before it is used
            node.note_failure(error)
            with suppress(Exception):
                await node.brief.executor.close()
        finally:
            if node not in self.nodes:  # it was removed meanwhile
                await node.close_connections()

    async def _meet_again(self, node: AsyncFederatedNode) -> None:
        facts = await node.read_state()
        await self.check_id(node)
        if node not in self.nodes:
            return
        node.fault = None
        self._merge_list(await node.brief.executor.read_node_list())
        # Before a job is taken from it: other nodes may keep acks of its jobs.
        await hints.replay(self, node)
        for route in list(self._routes):
            await route.agree(node)
        if node in self.nodes:
            node.state.note_answer(**facts)

    async def check_id(self, node: AsyncFederatedNode) -> None:
        """Check that no two nodes have one id; remove one that was learned twice.

        Raises:
            ConfigurationError: two nodes have one id.
        """
        nodes = list(self.nodes)
        for other in nodes:
            if other is not node and other.fault is None and other.id and other.id == node.id:
                if other.is_learned or node.is_learned:  # by two addresses, or learned twice
                    await self._leave_out(node if _is_spare(node, other, nodes) else other)
                    continue
                if not other.is_known or (node.state.is_up and not other.state.is_up):
                    continue  # the other one is checked when it is back
                raise ConfigurationError(
                    f"{other.address} and {node.address} have the same node id, {node.id}: drop"
                    " one of the two addresses, or clear the server with copied data"
                )

    async def _leave_out(self, node: AsyncFederatedNode) -> None:
        """Remove a learned node that is known by another address."""
        self._remove(node)
        for gone in tuple(self._gone):
            if not (gone is node or gone.state.met or gone.tasks.under_way):
                with suppress(ValueError):  # another thread has removed it
                    self._gone.remove(gone)
        await node.close_connections()

    def _remove(self, node: AsyncFederatedNode) -> None:
        """Remove a node. Until `close` it is kept: calls may be under way, jobs may be settled."""
        with suppress(ValueError):  # another thread has removed it
            self.nodes.remove(node)
            self._gone.append(node)

    async def _learn(self) -> None:
        """Read the ids and lists of all nodes again; never raises."""
        for node in list(self.nodes):
            if node.state.is_up:
                try:
                    await node.recognise()
                    await self.check_id(node)
                    self._merge_list(await node.brief.executor.read_node_list())
                    await hints.replay_from(self, node, self.up(node))
                except ConfigurationError as error:
                    node.note_refusal(error)
                except Exception as error:  # noqa: BLE001  # tried again when it is due
                    if not self.note_failure(node, error):
                        logger.warning("node %s: %s", node.address, error)
        for route in list(self._routes):
            await route.agree()

    def up(self, but: AsyncFederatedNode) -> list[AsyncFederatedNode]:
        """Return the nodes that are up, except one."""
        return [node for node in list(self.nodes) if node is not but and node.state.is_up]

    def _merge_list(self, entries: Mapping[str, str]) -> None:
        known = {node_id: str(entry) for node_id, entry in self._entries.items()}
        self._entries = merged_members([known, entries])
        for node_id, entry in sorted(self._entries.items(), key=itemgetter(1)):
            nodes = [node for node in list(self.nodes) if node.whole_id == node_id]
            if nodes or not entry.address:
                self.unused.pop(node_id, None)
            if not entry.address:
                for node in nodes:
                    if len(self.nodes) > 1:  # the last node stays, even if it was forgotten
                        self._remove(node)
            elif not nodes:
                self._use_listed(node_id, entry.address)

    def _use_listed(self, node_id: str, address: str) -> None:
        for node in list(self.nodes):
            if address_of(node.source) == address:
                if not node.state.met:  # else the entry is older than the node there
                    node.note_id(node_id)
                return
        if self.unused.get(node_id, ("", ""))[0] == address:
            return
        try:
            source = learned(address, self._given, self.config.node_hosts)
            self.nodes.append(AsyncFederatedNode(source, self.config, node_id))
        except (PenstockError, ValueError) as error:
            reason = error.reason if isinstance(error, BadArgument) else str(error)
            logger.warning("node %s at %r is not used: %s", node_id[:8], address, reason)
            self.unused[node_id] = (address, reason)
        else:
            self.unused.pop(node_id, None)

    async def entries(self) -> dict[str, Entry]:
        """Return the lists of all nodes, merged."""
        lists, _ = await self.each(lambda node: node.brief.executor.read_node_list())
        return merged_members(entries for _, entries in lists)

    async def admit(self, url: str) -> AsyncFederatedNode:
        """Add a node and return it.

        Raises:
            ConfigurationError: it has the id of another node.
        """
        await self.connect()
        node = AsyncFederatedNode(url, self.config)
        try:
            await node.look()
            for other in list(self.nodes):
                if other.id == node.id and address_of(other.source) == address_of(url):
                    await node.close()
                    return other
            await self.check_id(node)
        except BaseException:
            await node.close()
            raise
        self.nodes.append(node)
        return node

    async def dismiss(self, node: AsyncFederatedNode) -> None:
        """Remove a node and close its connections."""
        self._remove(node)
        await node.close()

    def unavailable(self, what: str = "no node can be reached") -> NodesUnavailable:
        """Return the error of a call that no node could run, with the reason of each."""
        reasons = {node.address: node.state.reason or "not asked" for node in self.nodes}
        return NodesUnavailable(what, reasons)

    def find_node(self, node_id: str, name: object) -> AsyncFederatedNode:
        """Return the node with this prefix of an id.

        Raises:
            WrongNode: there is none.
        """
        for node in list(self.nodes):
            if node_id in node.known:
                return node
        known = ", ".join(node.id for node in self.nodes if node.id)
        unmet = ", ".join(node.address for node in self.nodes if not node.id)
        text = f"node {node_id} is unknown, this client knows {known}: add its URL"
        for whole_id, (address, reason) in self.unused.items():
            if whole_id.startswith(node_id):
                text = f"node {node_id} at {address!r} is not used: {reason}"
        raise WrongNode("id", name, f"{text}; not reached: {unmet}" if unmet else text)

    def note_failure(self, node: AsyncFederatedNode, error: BaseException) -> bool:
        """Note the failure of a node; return True if other nodes may make up for it."""
        if not passing(error):
            return False
        node.note_failure(error)
        return True

    async def try_node(self, node: AsyncFederatedNode, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask one node; None = it can't be reached."""
        try:
            return await self._ask(node, ask)
        except Exception as error:
            if not passing(error):
                raise
            return None

    async def _ask(self, node: AsyncFederatedNode, ask: Callable[[], Awaitable[T]]) -> T:
        if not node.state.is_up:
            raise self.unavailable(f"{node.address} is down")
        try:
            if await node.brief.executor.reach():  # it closed its connections: was it away?
                await self._meet_again(node)
            return await ask()
        except Exception as error:
            self.note_failure(node, error)
            raise

    async def close(self) -> None:
        """Close the connections."""
        await self._learning.close()
        gone, self._gone = self._gone, []
        for node in [*self.nodes, *gone]:
            await node.close()

    # -- every node ------------------------------------------------------------------------

    async def each(
        self, ask: Callable[[AsyncFederatedNode], Awaitable[T]]
    ) -> tuple[list[tuple[AsyncFederatedNode, T]], dict[str, str]]:
        """Ask every node that is up.

        Returns:
            The answers, and the address of each node without an answer with the reason.

        Raises:
            NodesUnavailable: no node has answered.
        """
        await self.connect()
        answers: list[tuple[AsyncFederatedNode, T]] = []
        missed: dict[str, str] = {}
        for node in list(self.nodes):
            try:
                answers.append((node, await self._ask(node, partial(ask, node))))
            except Exception as error:  # noqa: PERF203  # node after node
                if not passing(error):
                    raise
                missed[node.address] = node.state.reason
        if not answers:
            raise NodesUnavailable("no node has answered", missed)
        return answers, missed

    async def queues(self, pattern: str) -> list[str]:
        """Return the names of the queues that exist on any node, sorted."""
        answers, missed = await self.each(lambda node: node.brief.queues(pattern))
        return Partial(sorted({name for _, names in answers for name in names}), missed)

    async def scan_queues(
        self, cursor: str, n: int, is_wanted: QueueFilter, pattern: str
    ) -> QueuePage:
        """Return one page of the registries, node by node; a queue is on the first that has it."""
        at = merging.split_cursor(cursor)
        check_cursor("cursor", at[1], QUEUE_CURSOR)
        await self.connect()

        async def scan(node: AsyncFederatedNode, at: str) -> QueuePage | None:
            ask = partial(node.brief.scan_queues, at, n, lambda _: True, pattern)
            return await self.try_node(node, ask)

        places = [AsyncScannedPlace(node.id, node, partial(scan, node)) for node in self.nodes]
        node, page = await read_next_page(at, places, QueuePage("0", []))
        chosen = [] if node is None else await self._choose_first_met(node, page.queues)
        return replace(page, queues=[stats for stats in chosen if is_wanted(stats)])

    async def _choose_first_met(
        self, node: AsyncFederatedNode, listed: Sequence[QueueStats]
    ) -> list[QueueStats]:
        """Return the merged figures of the queues that exist on no node before this one."""
        chosen = []
        for queue in listed:
            parts, missed = await self.each(partial(_read_stats, queue=queue))
            if not any(stats.exists and other.id < node.id for other, stats in parts):
                chosen.append(merging.merged_stats([stats for _, stats in parts], missed))
        return chosen

    async def hello(self) -> Hello:
        """Return every node: those that answer, then the others with the last known state."""
        views, _ = await self.each(lambda node: node.read_view())
        seen = dict(views)
        silent = [
            NodeView(one.whole_id, one.address, leaving=one.state.leaving, error=one.state.reason)
            for one in self.nodes
            if one not in seen
        ]
        silent += [
            NodeView(node_id, address, error=reason)
            for node_id, (address, reason) in self.unused.items()
        ]
        return Hello(PROTOCOL_VERSION, views[0][1].id, (*seen.values(), *silent))

    async def info(self) -> Info:
        """Return the state of all nodes together."""
        answers, _ = await self.each(lambda node: node.brief.info())
        return merged_info([info for _, info in answers])

    # -- consuming -------------------------------------------------------------------------

    async def drive(self, flow: Generator[Any, Any, T], signal: AsyncWakeup | None = None) -> T:
        """Run a flow over several nodes to its end and return its result."""
        return await AsyncFlowRun(flow, self._answer, signal, shorten=self._until).run()

    def _until(self, until: float) -> float:
        """Shorten a wait, so that the client checks its nodes in time."""
        self.start_due_looks()
        until = min(until, self.learn_at)
        return until if self.is_whole else min(until, monotonic() + DOWN_NODE_LOOK_SECONDS)

    async def _answer(self, effect: flows.Effect) -> Any:
        if isinstance(effect, (flows.Run, flows.ReserveJobs, flows.Register, flows.Unregister)):
            node = cast("AsyncFederatedNode", effect.ops.node)
            return await self._ask(node, partial(node.brief.driver.answer, effect))
        if isinstance(effect, flows.SweepDue):
            return await self._sweep_due(effect)
        if isinstance(effect, flows.StoreHint):
            ops = effect.ops
            node = cast("AsyncFederatedNode", ops.node)
            return await hints.keep(
                self, node, ops.keys.name, names=effect.jobs, intent=effect.intent
            )
        if isinstance(effect, flows.CloseConnections):
            return None
        assert isinstance(effect, flows.GiveUpSoon)
        for node in list(self.nodes):
            await node.brief.executor.connections.give_up_soon()
        return None

    async def _sweep_due(self, effect: flows.SweepDue) -> None:
        for node in list(self.nodes):
            own = tuple(ops for ops in effect.queues if ops.node is node)
            if own and node.state.is_up:
                answer = partial(node.brief.driver.sweep_due, flows.SweepDue(own))
                with suppress(Exception):  # it has been noted; other clients sweep as well
                    await self._ask(node, answer)


async def _read_stats(node: AsyncFederatedNode, queue: QueueStats) -> QueueStats:
    return await node.brief.read_stats(queue.name, queue.partitions)


def _is_spare(
    node: AsyncFederatedNode, other: AsyncFederatedNode, nodes: Sequence[AsyncFederatedNode]
) -> bool:
    """Return True if, of two objects for one node, `node` is removed and not `other`.

    Two threads may ask at the same time, each about one of them: exactly one must stay.
    """
    if not (node.is_learned and other.is_learned):
        return node.is_learned
    if node not in nodes:  # it was removed
        return True
    is_one_place = address_of(node.source) == address_of(other.source)
    return nodes.index(other) < nodes.index(node) and (is_one_place or other.state.is_up)
