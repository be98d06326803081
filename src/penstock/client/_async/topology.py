"""The connections of a client: one node, or several.

A client that was given one node of a federation must know the other ones, so it reads the list of
that node and joins them (protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from redis.asyncio import Redis

from penstock.client import redirection
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
from penstock.core.flows import ReserveRequest
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes.state import NODE_LIST_MAX_AGE
from penstock.core.values.checks import check_flag
from penstock.core.values.methods import refuse_pickle
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


class AsyncDestination(NamedTuple):
    """Where a client and its queues lead: attributes of `AsyncTopology`."""

    source: Any
    node: AsyncNode | None
    federation: AsyncFederation | None
    look_at: float


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
        redis_class: the class of redis-py's clients that it can use as its source.

    Raises:
        BadArgument: the source can't be used, or needs another value of `federation`.
    """

    redis_class: type = Redis

    def __init__(self, source: Any, config: ClientConfig, *, federation: bool) -> None:
        self.source: Any = source
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
        self._home: AsyncDestination | None = None
        redirection.register(self)

    def __reduce__(self) -> NoReturn:
        refuse_pickle()

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
        full_name = next((name for name in answers if name is not None), None)
        if full_name is None and missed:
            raise NodesMissed(missed, [])
        return None if full_name is None else split_name(full_name.decode("utf-8", "replace"))[0]

    async def name_of(self, crc: int) -> str | None:
        """Return the name with this crc of a queue on a node that is up, or None."""
        assert self.federation is not None  # else the only node has answered, or failed
        key, pattern = registry_key(self.config.prefix), f"{crc:08x}*"

        async def look(node: AsyncFederatedNode) -> bytes | None:
            cursor, fields = b"0", list[bytes]()
            while not fields:
                page = ("HSCAN", key, cursor, "MATCH", pattern, "COUNT", 1000)
                cursor, fields = await node.brief.executor.command(*page)
                if cursor == b"0":
                    break
            return fields[1] if fields else None

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
            has_others = False
            if entries := await executor.read_node_list():
                from penstock.core.nodes.node_list import others

                has_others = bool(others(entries, await executor.whole_id()))
        except Exception as error:
            now = monotonic()
            self.look_at = now + LIST_RETRY_SECONDS
            if passing(error) and now >= began + max(self.config.retry_for, LIST_RETRY_SECONDS):
                raise  # or the call would wait as long again
            logger.debug("the list of nodes can't be read: %s", error)
            return False
        self.look_at = monotonic() + NODE_LIST_MAX_AGE
        return has_others

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
        with self._joining:  # a join or a redirection finds every queue with its route
            if self.federation is not None:
                queue.route = self._route_to_all(queue, self.federation)
            else:
                queue.route = self._route_to_one(queue)
            self._queues.add(queue)
        return queue

    def _route_to_one(self, queue: AsyncQueue) -> AsyncRoute:
        if queue.partitions is None:
            return AsyncNodeRoute(self, self.node, queue)
        return AsyncPartitionsRoute(self, self.node, queue)

    # -- to another server and back, see `penstock.client.redirection` --------------------------

    def redirect(self, source: Redis) -> None:
        """Lead the client and its queues to another server. Nothing is sent."""
        if self._home is None:
            self._home = AsyncDestination(
                source=self.source,
                node=self._node,
                federation=self.federation,
                look_at=self.look_at,
            )
        look_at = -math.inf if self.joins else math.inf
        node = AsyncNode(source, self.config)
        self._lead(AsyncDestination(source=source, node=node, federation=None, look_at=look_at))

    def return_home(self) -> None:
        """Lead the client and its queues back to its own server or servers."""
        if self._home is not None:
            self._lead(self._home)
            self._home = None

    def _lead(self, place: AsyncDestination) -> None:
        with self._joining:
            self.source, self._node, self.federation, self.look_at = place
            for queue in list(self._queues):
                if place.federation is None:
                    queue.route = self._route_to_one(queue)
                else:
                    queue.route = self._route_to_all(queue, place.federation)

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
        request: ReserveRequest,
    ) -> list[Any]:
        """Take up to n jobs from several queues; a long wait is interrupted to read the list.

        Args:
            queues: in order of preference.
            request: the jobs that are asked for.
        """
        until = math.inf if request.block is None else monotonic() + request.block
        while True:
            await self.refresh()
            left = max(0.0, until - monotonic())
            routes = [queue.route for queue in queues]
            if self.federation is not None:
                request = request._replace(block=None if until == math.inf else left, seen={})
                return await reserve_on_nodes(self.federation, routes, request)
            request = request._replace(block=max(0.0, min(left, self.look_at - monotonic())))
            jobs = await reserve_on_node(self.node, routes, request)
            if jobs or monotonic() >= until:
                return jobs
            request = request._replace(seen={})

    async def connect(self) -> None:
        """Reach the node, or one of several."""
        await (await self.refresh()).connect()

    async def close(self) -> None:
        """Close the connections."""
        if self._node is not None:
            await self._node.close()
        if self.federation is not None:
            await self.federation.close()
