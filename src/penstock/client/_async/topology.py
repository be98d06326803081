"""The connections of a client: one node, or several.

A client that was given one node of a federation must know the other ones, so it reads the list of
that node and joins them (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._async.nodes.node import AsyncNode
from penstock.client._async.queue import AsyncQueue
from penstock.client._async.route.interfaces import AsyncRoute, AsyncRouted
from penstock.client._async.route.one_node import AsyncNodeRoute
from penstock.client._async.route.partitions import AsyncPartitionsRoute
from penstock.client._async.route.reserving import reserve_on_node, reserve_on_nodes
from penstock.client._async.transport.driver import AsyncDriver
from penstock.client._async.transport.executor import AsyncExecutor
from penstock.client.clock import monotonic
from penstock.core.calls.config import ClientConfig, check_sources
from penstock.core.calls.failures import passing
from penstock.core.calls.operations import Taken
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes.state import NODE_LIST_MAX_AGE
from penstock.core.values.checks import check_flag
from penstock.core.values.confirmations import Wait
from penstock.errors import BadArgument, ConfigurationError, NodesMissed
from penstock.wire.keys import registry_key, split_name

if TYPE_CHECKING:  # imported when there are several nodes
    from penstock.client._async.nodes.federated_node import AsyncFederatedNode
    from penstock.client._async.nodes.federation import AsyncFederation
    from penstock.client._async.route.several_nodes import AsyncNodesRoute

__all__ = ["AsyncTopology"]

logger = get_logger("penstock")
T = TypeVar("T")

LIST_RETRY_SECONDS = 1.0
"""Seconds after which the list is read again when that has failed."""


class AsyncTopology:
    """The connections of a client. Internal: for the worker, Spark and the command line.

    Args:
        source: a URL or a redis-py client, or a list of these.
        config: the settings of the client.
        federation: whether a client of one source joins the nodes that this one lists.

    Attributes:
        source, config: the arguments.
        joins: the argument `federation`.
        federation: all nodes; None = no others are known than the only source.
        look_at: time of the clock when the node's list is read again.

    Raises:
        BadArgument: the source can't be used, or needs another value of `federation`.
    """

    def __init__(self, source: Any, config: ClientConfig, *, federation: bool) -> None:
        self.source = source
        self.config = config
        self.joins = check_flag("federation", federation)
        sources = check_sources(source)
        if sources is not None and not federation:
            reason = "a list of nodes needs federation=True: pass one URL without it"
            raise BadArgument("federation", False, reason)
        self._node = AsyncNode(source, config) if sources is None else None
        self.federation: AsyncFederation | None = None
        if sources is not None:
            from penstock.client._async.nodes.federation import AsyncFederation

            self.federation = AsyncFederation(sources, config)
        self.look_at = -math.inf if federation and sources is None else math.inf
        self._queues: weakref.WeakSet[AsyncQueue] = weakref.WeakSet()
        self._joining = threading.Lock()

    @property
    def current(self) -> AsyncNode | AsyncFederation:
        """Return the node, or all nodes, as known now."""
        return self.federation or self.node

    @property
    def is_look_due(self) -> bool:
        """Return True if the node's list must be read again."""
        return self.federation is None and monotonic() >= self.look_at

    @property
    def is_apart(self) -> bool:
        """Return True if queues may lie on several servers; known from the first call on."""
        return self.current.is_apart

    @property
    def node(self) -> AsyncNode:
        """Return the node of a client of one source.

        Raises:
            ConfigurationError: the client was made from a list of nodes.
        """
        if self._node is None:
            raise ConfigurationError("this call needs a client of one node alone")
        return self._node

    @property
    def executor(self) -> AsyncExecutor:
        """Return the connections to the node of a client of one source."""
        return self.node.executor

    @property
    def driver(self) -> AsyncDriver:
        """Return the driver of the node of a client of one source."""
        return self.node.driver

    async def queue_at(self, field: str) -> str | None:
        """Return the name of the queue with this field in the registry of any node, or None.

        Raises:
            NodesMissed: no node has it, and some did not answer.
        """
        key = registry_key(self.config.prefix)
        answers, missed = await self.each(lambda node: node.executor.command("HGET", key, field))
        found = next((name for name in answers if name is not None), None)
        if found is None and missed:
            raise NodesMissed(missed, [])
        return None if found is None else split_name(found.decode("utf-8", "replace"))[0]

    async def name_of(self, crc: int) -> str | None:
        """Return the name with this crc of a queue on a node that is up, or None."""
        assert self.federation is not None  # else the only node has answered, or failed
        key, pattern = registry_key(self.config.prefix), f"{crc:08x}*"

        async def look(node: AsyncFederatedNode) -> bytes | None:
            cursor, found = b"0", list[bytes]()
            while not found:
                page = ("HSCAN", key, cursor, "MATCH", pattern, "COUNT", 1000)
                cursor, found = await node.brief.executor.command(*page)
                if cursor == b"0":
                    break
            return found[1] if found else None

        answers, _ = await self.federation.each(look)
        names = (name for _, name in answers if name is not None)
        return next((split_name(name.decode("utf-8", "replace"))[0] for name in names), None)

    # -- as the node, or all nodes -----------------------------------------------------------

    async def refresh(self) -> AsyncNode | AsyncFederation:
        """Return the node or the federation; read the list if that is due."""
        if self.is_look_due:
            await self.look()
        return self.current

    async def look(self) -> bool:
        """Read the node's list and join the nodes in it; return True if there are some."""
        if self.federation is None and await self.has_others():
            self.join()
        return self.federation is not None

    async def has_others(self) -> bool:
        """Read the node's list; return True if it names other nodes.

        Errors are left to the call that asks: it checks its arguments first, and then waits for the
        server. A server that is down is tried once.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError, ResponseError: the server does not serve
                any command; it was tried for as long as a call is.
        """
        if not self.joins:
            return False
        executor, began = self.executor, monotonic()
        try:
            await executor.connections.reach()
            await self.node.connect()
            found = False
            if told := await executor.read_node_list():
                from penstock.core.nodes.node_list import others

                found = bool(others(told, await executor.whole_id()))
        except Exception as error:
            now = monotonic()
            self.look_at = now + LIST_RETRY_SECONDS
            if passing(error) and now >= began + max(self.config.retry_for, LIST_RETRY_SECONDS):
                raise  # or the call would wait as long again
            logger.debug("the list of nodes can't be read: %s", error)
            return False
        self.look_at = monotonic() + NODE_LIST_MAX_AGE
        return found

    def join(self) -> AsyncNode | AsyncFederation:
        """Become a client of several nodes, unless `federation` is False. Nothing is sent.

        Each queue gets a route to all nodes. Calls that are under way stay on the route to the only
        node; jobs that were delivered are settled on either.
        """
        from penstock.client._async.nodes.federated_node import AsyncFederatedNode
        from penstock.client._async.nodes.federation import AsyncFederation

        with self._joining:
            if self.federation is None and self.joins:
                node = self.node
                member = AsyncFederatedNode(node.source, node.config, executor=node.executor)
                federation = AsyncFederation([node.source], node.config, [member])
                for queue in list(self._queues):
                    route = self._route_to_all(queue, federation)
                    for number, ops in zip(route.numbers, queue.route.operations, strict=True):
                        route.adopt(ops, member, number)
                    queue.route = route
                self.federation, self.look_at = federation, math.inf
        return self.current

    def _route_to_all(self, queue: AsyncQueue, federation: AsyncFederation) -> AsyncNodesRoute:
        from penstock.client._async.route.several_nodes import AsyncNodesRoute

        return AsyncNodesRoute(self, federation, queue)

    def queue(self, name: str, partitions: int | None = None) -> AsyncQueue:
        """Return the queue of this name."""
        queue = AsyncQueue(name, partitions, self.config.middleware)
        if self.federation is None:
            queue.route = self._route_to_one(queue)
            self._queues.add(queue)
        if self.federation is not None:  # before, or another thread has joined meanwhile
            queue.route = self._route_to_all(queue, self.federation)
        return queue

    def _route_to_one(self, queue: AsyncQueue) -> AsyncRoute:
        if queue.partitions is None:
            return AsyncNodeRoute(self, self.node, queue)
        return AsyncPartitionsRoute(self, self.node, queue)

    async def each(
        self, ask: Callable[[AsyncNode], Awaitable[T]]
    ) -> tuple[list[T], dict[str, str]]:
        """Ask the node, or every node by connections on which a call fails soon.

        Returns:
            The answers, and the address of each node without an answer with the reason.
        """
        await self.refresh()
        if self.federation is None:
            await self.node.connect()
            return [await ask(self.node)], {}
        answers, missed = await self.federation.each(lambda node: ask(node.brief))
        return [answer for _, answer in answers], missed

    async def reserve(
        self,
        queues: Sequence[AsyncRouted],
        n: int,
        wait: float | None,
        seen: Taken | None = None,
        confirm: Wait | None = None,
    ) -> list[Any]:
        """Take up to n jobs from several queues; a long wait is interrupted to read the list.

        Args:
            queues: in order of preference.
            n: limit.
            wait: seconds, None = for ever.
            seen: the reply, without jobs, that the only queue gave a moment ago.
            confirm: the confirmations of deliveries at most once.
        """
        until = math.inf if wait is None else monotonic() + wait
        while True:
            await self.refresh()
            left = max(0.0, until - monotonic())
            if self.federation is not None:
                limit = None if wait is None else left
                routes = [queue.route for queue in queues]
                return await reserve_on_nodes(self.federation, routes, n, limit, confirm=confirm)
            span = max(0.0, min(left, self.look_at - monotonic()))
            routes = [queue.route for queue in queues]
            jobs = await reserve_on_node(self.node, routes, n, span, seen=seen, confirm=confirm)
            if jobs or monotonic() >= until:
                return jobs
            seen = None

    async def connect(self) -> None:
        """Reach the node, or one of several."""
        await (await self.refresh()).connect()

    async def close(self) -> None:
        """Close the connections."""
        if self._node is not None:
            await self._node.close()
        if self.federation is not None:
            await self.federation.close()
