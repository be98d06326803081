"""A node: the failure domain that a client may choose, with its id; a server or a cluster."""

from __future__ import annotations

import os
import secrets
import warnings
import weakref
from typing import Any, TypeVar

from redis.exceptions import NoPermissionError, ResponseError

from penstock.client._acompat import alock, aloop
from penstock.client._async.transport.blocking import AsyncBlockingConnection
from penstock.client._async.transport.cluster import AsyncBlockingConnections, AsyncCluster
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import transient
from penstock.client._async.transport.server import AsyncServer
from penstock.client._async.transport.settings import connection_factory
from penstock.core.calls import Call
from penstock.core.logs import get_logger
from penstock.core.operations.base import Operations
from penstock.core.refusals import refusal
from penstock.core.servers import EvictionWarning, ServerFacts, parse_info, together
from penstock.wire.codes import Code
from penstock.wire.keys import node_key, nodes_key, registry_key

__all__ = ["AsyncNode", "forget_after_fork"]

logger = get_logger("penstock")
R = TypeVar("R")

SECTIONS = ("server", "clients", "memory", "persistence", "replication", "stats")
"""Of INFO."""


class AsyncNode:
    """Where queues live, as the client sees it: who it is, and the way of calls to it.

    Args:
        source: URL or redis-py client.
        prefix: prefix of all keys.
        retry_for: seconds for which a call is tried again when the connection fails.
    """

    def __init__(self, source: object, *, prefix: str, retry_for: float) -> None:
        self._source = source
        self._prefix = prefix
        self._retry_for = retry_for
        cluster = AsyncCluster.lent(source, retry_for)
        self._is_settled = cluster is not None
        self._link: AsyncServer | AsyncCluster = cluster or AsyncServer(
            *connection_factory(source), retry_for
        )
        self._lock = alock()
        self._bound: object = None
        self.id = ""
        self.known: list[str] = []
        self.facts = ServerFacts({})
        forget_after_fork(self)

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return self._link.address

    def twin(self, *, retry_for: float, socket_timeout: float) -> AsyncNode:
        """The same node by connections of its own, for another thread or event loop.

        Args:
            retry_for: seconds for which a call is tried again.
            socket_timeout: seconds for a reply, and for connecting.
        """
        node = AsyncNode(self._source, prefix=self._prefix, retry_for=retry_for)
        node._link.adjust(socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout)
        return node

    def send_once(self) -> None:
        """From now on don't repeat a failed call: another node may do it."""
        self._link.send_once()

    async def hurry(self) -> None:
        """From now on a call that does not get through within a second is tried once more."""
        await self._link.hurry()

    def forget(self) -> None:
        """Forget all connections without closing them: another process or loop has them."""
        self._link.forget()
        self._lock = alock()

    # -- who it is -------------------------------------------------------------------------

    @property
    def is_cluster(self) -> bool:
        """Whether it is a Redis Cluster; known from the first call on."""
        return isinstance(self._link, AsyncCluster)

    async def _settle(self) -> None:
        """Learn whether the server is a part of a cluster, before anything is sent to it."""
        async with self._own_lock():
            if self._is_settled:
                return
            server = self._link
            assert isinstance(server, AsyncServer)
            cluster = await AsyncCluster.behind(server, self._retry_for)
            if cluster is not None:
                self._link = cluster
                await server.close()
            self._is_settled = True

    async def prepare(self) -> None:
        """Learn the node's id and check the server, once.

        Raises:
            UnsupportedServer: older than Redis 6.2.
        """
        if not self._is_settled:
            await self._settle()
        async with self._own_lock():
            if not self.known:
                self.facts = await self.server_facts()
                self.facts.check()
                for text in self.facts.warnings():
                    logger.warning(text)
                    warnings.warn(text, EvictionWarning, stacklevel=4)
                await self.identify()

    def _own_lock(self) -> Any:
        """The lock, which is one event loop's."""
        bound = aloop()
        if bound is not self._bound:
            self._lock, self._bound = alock(), bound
        return self._lock

    async def identify(self) -> None:
        """Learn the node's id, or give it one; again when a queue is made, as after a FLUSHALL."""
        key = node_key(self._prefix)
        found = await self.command("HGET", key, "id")
        if found is None:  # only then is anything written: a full server can still be drained
            await self.command("HSETNX", key, "id", secrets.token_hex(20))
            found = await self.command("HGET", key, "id")
        self.id = found.decode()[:8]
        self.known[:] = [self.id]

    async def whole_id(self) -> str:
        """The node's id, all 40 digits."""
        found = await self.command("HGET", node_key(self._prefix), "id")
        return str(found.decode()) if found else ""

    async def listed(self) -> dict[str, str]:
        """The list of nodes that it keeps: id -> entry; empty if this user may not read it."""
        try:
            flat = await self.command("HGETALL", nodes_key(self._prefix))
        except NoPermissionError as error:
            logger.info("%s: the list of nodes: %s", self.address, error)
            return {}
        texts = [text.decode("utf-8", "replace") for text in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    async def server_facts(self) -> ServerFacts:
        """INFO, if the server has it and allows it; of a cluster, that of all its primaries."""
        if not self._is_settled:
            await self._settle()
        try:
            told = await self._link.everywhere([("INFO", name) for name in SECTIONS])
        except ResponseError as error:
            if transient(error):
                raise
            logger.info("INFO failed (%s); the server's settings are not checked", error)
            return ServerFacts({})
        return together([parse_info(b"\n".join(parts)) for parts in told])

    # -- the way to it ---------------------------------------------------------------------

    async def run(self, call: Call[R], *, brief: bool = False) -> R:
        """Run a script and return its result; the call is told how that went.

        It is sent again when the connection fails, and after a repair when the queue has lost its
        meta.

        Args:
            call: which.
            brief: whether to try it twice at most.

        Raises:
            OutOfMemory, QueueDamaged: what the server refused, typed.
            MetaLost: the queue has lost its meta, and its epoch is not known.
            As `refusal`: the script has refused the call.
            redis.exceptions.ConnectionError, TimeoutError: still failing after `retry_for` seconds.
        """
        if not self._is_settled:
            await self._settle()
        sent = 0.0 if call.bearer is None else monotonic()
        raw = await self._link.run(call, brief=brief)
        if raw[0] < 0 or call.bearer is not None:
            raw = await self._judged(call, raw, sent, brief=brief)
        return call.parse(raw)

    async def _judged(
        self, call: Call[Any], raw: list[Any], sent: float, *, brief: bool
    ) -> list[Any]:
        """Repair lost meta, tell the role of the answer, and raise what was refused."""
        ops, bearer = call.ops, call.bearer
        assert ops is not None
        if raw[0] == Code.DAMAGED:
            await self._repair(ops, call)
            call.resent, sent = 0.0, monotonic()
            raw = await self._link.run(call, brief=brief)
        code = raw[0]
        if bearer is not None:
            is_adding = call.queue is not None and code == Code.DONE
            repeated = is_adding and call.parse(raw).repeat == 1
            bearer.answered(code, call.resent or sent, repeated=repeated)
        if code < 0:
            raise refusal(ops.name, raw)
        return raw

    async def _repair(self, ops: Operations, call: Call[Any]) -> None:
        """Make the lost meta of a queue anew (protocol/maintenance.md, Repairing meta).

        Raises:
            MetaLost: the epoch of the queue is not known.
        """
        listed = [epoch for name, epoch in await self.registry() if name == ops.keys.name]
        repair = ops.repair(listed, call)
        raw = await self._link.run(repair)
        if raw[0] < 0:
            raise refusal(ops.name, raw)
        made = repair.parse(raw).epoch.decode()
        leftovers = [f"{ops.crc:08x}{epoch}" for epoch in listed if epoch != made]
        if leftovers:
            await self.command("HDEL", registry_key(self._prefix), *leftovers)
        logger.warning(
            "the meta key of queue %r was lost; it was restored with epoch %s", ops.name, made
        )

    async def registry(self) -> list[tuple[str, str]]:
        """Name and epoch of every queue that the registry lists."""
        flat = await self.command("HGETALL", registry_key(self._prefix))
        return [
            (flat[i + 1].decode("utf-8", "replace"), flat[i].decode()[8:])
            for i in range(0, len(flat), 2)
        ]

    async def reach(self) -> bool:
        """Have an open connection, as far as can be seen; of all that fails nothing was sent.

        Returns:
            Whether it had to be opened.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: at the first attempt.
        """
        if not self._is_settled:
            await self._settle()
        return await self._link.reach()

    async def command(self, *args: Any) -> Any:
        """A plain command that may be repeated, its reply undecoded."""
        if not self._is_settled:
            await self._settle()
        return await self._link.command(*args)

    def waiter(self) -> AsyncBlockingConnection | AsyncBlockingConnections:
        """A waiter for one wait; give it back with `rest`."""
        return self._link.waiter()

    def rest(self, waiter: Any) -> None:
        """Keep a waiter with nothing pending for the next wait."""
        self._link.rest(waiter)

    async def close(self) -> None:
        """Close all connections that are not in use."""
        await self._link.close()


_nodes: weakref.WeakSet[AsyncNode | AsyncServer] = weakref.WeakSet()


def forget_after_fork(node: AsyncNode | AsyncServer) -> None:
    """In a forked child the parent's connections and producer ids are the parent's."""
    _nodes.add(node)


def _after_fork() -> None:
    for node in list(_nodes):
        node.forget()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_after_fork)
