"""Administration of nodes: add one, empty one, forget one."""

from __future__ import annotations

from penstock.client._async.nodes.agreement import agree
from penstock.client._async.nodes.federated_node import AsyncFederatedNode
from penstock.client._async.nodes.federation import AsyncFederation
from penstock.client._async.nodes.node import AsyncNode
from penstock.core.nodes.node_list import Entry, address_of
from penstock.core.nodes.node_views import Drain, NodeView
from penstock.core.values.urls import check_url, shown
from penstock.errors import BadArgument, ConfigurationError, NodesMissed, OutOfMemory
from penstock.wire.keys import hints_key, node_key, nodes_key

__all__ = ["AsyncNodes"]


class AsyncNodes:
    """Lists, adds and removes the nodes of a federation.

    A node is named by its id (the first 8 digits are enough), its address, or its `NodeView`.

    Args:
        nodes: the federation.

    Raises:
        ConfigurationError: the client was made with `federation=False`.
    """

    def __init__(self, nodes: AsyncFederation | AsyncNode) -> None:
        if not isinstance(nodes, AsyncFederation):
            raise ConfigurationError("this client uses one node: make it without federation=False")
        self._federation = nodes

    async def list(self) -> tuple[NodeView, ...]:
        """Return every node of this client; those that can't be reached come last."""
        return (await self._federation.hello()).nodes

    async def add(self, url: str) -> NodeView:
        """Add a node to the list that every node keeps; clients learn of it within 30 s.

        The node gets the settings and pauses of all queues. Nodes that this client knows and the
        list does not are added, too. User names and passwords are not stored.

        Raises:
            BadArgument: not a URL.
            ConfigurationError: it has the id of another node.
            redis.exceptions.ConnectionError: it can't be reached.
            NodesMissed: some nodes can't be reached and don't have the new list.
        """
        check_url("url", url)
        node = await self._federation.admit(url)
        await self._note(node.whole_id, address_of(node.source))
        for name in await self._federation.queues("*"):
            partitions = await self._federation.partitions(name) or None
            await agree(self._federation, name, partitions)
        return await node.read_view()

    async def forget(self, node: str | NodeView) -> None:
        """Remove a node from the list: clients that can reach another node stop using it.

        Its jobs stay on it: empty it first (`leave`, `check_drained`). `add` brings it back.

        Raises:
            BadArgument: no such node, or the only one.
            NodesMissed: some of the others can't be reached, and don't have the new list.
        """
        unused = await self._find_unused(node)
        if unused:
            await self._note(unused, "")
            self._federation.unused.pop(unused, None)
            return
        named_node = await self._find(node)
        if len(self._federation.nodes) == 1:
            raise BadArgument("node", _shown(node), "is the only node, so it can't be removed")
        if not named_node.whole_id:
            raise BadArgument("node", _shown(node), "was never reached, so its id is not known")
        try:
            await self._note(named_node.whole_id, "", but=named_node)
        finally:
            await self._federation.dismiss(named_node)

    async def leave(self, node: str | NodeView) -> None:
        """Add no more jobs to a node, so that consumers empty it. Producers notice within 1 s.

        Raises:
            BadArgument: no such node.
            redis.exceptions.ConnectionError: it can't be reached.
        """
        named_node = await self._find(node)
        await named_node.executor.command(
            "HSET", node_key(named_node.config.prefix), "leaving", "1"
        )
        await self._federation.look_after(named_node)

    async def join(self, node: str | NodeView) -> None:
        """Add jobs to a node again, after `leave`.

        Raises:
            As `leave`.
        """
        named_node = await self._find(node)
        await named_node.executor.command("HDEL", node_key(named_node.config.prefix), "leaving")
        await self._federation.look_after(named_node)

    async def check_drained(self, node: str | NodeView) -> Drain:
        """Count the jobs left on a node. The result is true if none is waiting or leased.

        Dead letters don't count. Delivered jobs of lease 0 do, until their ttl. So do rows of
        staged writes, if their queue exists.

        Raises:
            As `leave`.
        """
        named_node = await self._find(node)
        queues = await named_node.living()
        kept = await named_node.executor.command("HLEN", hints_key(named_node.config.prefix))
        return Drain(
            waiting=sum(one.ready + one.scheduled + one.parked for one in queues),
            active=sum(one.active for one in queues),
            hints=kept,
            rows=sum(one.staged + one.promised for one in queues),
            dead=sum(one.dead for one in queues),
        )

    async def _find_unused(self, node: object) -> str:
        """Return the id of a listed node that can't be used; '' if `node` is not one of them."""
        await self._federation.connect()
        unused = self._federation.unused.items()
        named = [one for one, (address, _) in unused if _is_named(node, address, one)]
        return named[0] if len(named) == 1 else ""

    async def _find(self, node: object) -> AsyncFederatedNode:
        await self._federation.connect()
        if not isinstance(node, (str, NodeView)) or not node:
            raise BadArgument("node", _shown(node), "must be an id, an address or a NodeView")
        nodes = self._federation.nodes
        named = [one for one in nodes if _is_named(node, one.address, one.whole_id)]
        if len(named) != 1:
            known = ", ".join(f"{one.id} ({one.address})" for one in nodes)
            raise BadArgument("node", _shown(node), f"must be one of {known}")
        return named[0]

    async def _note(
        self, node_id: str, address: str, but: AsyncFederatedNode | None = None
    ) -> None:
        """Write the list, with one changed entry, to every node.

        Raises:
            NodesMissed: some nodes don't have it.
        """
        federation = self._federation
        clocks, _ = await federation.each(lambda node: node.brief.executor.time_ms())
        now = clocks[0][1]
        entries = await federation.entries()
        for node in federation.nodes:
            where = address_of(node.source)
            if node.whole_id and node.whole_id not in entries and where:
                entries[node.whole_id] = Entry(now, where)
        last = entries[node_id].changed if node_id in entries else 0
        entries[node_id] = Entry(max(now, last + 1), address)
        flat = [text for name, entry in entries.items() for text in (name, str(entry))]
        key = nodes_key(federation.config.prefix)

        async def write(node: AsyncFederatedNode) -> str:
            try:
                await node.brief.executor.command("HSET", key, *flat)
            except OutOfMemory as error:
                return str(error)
            return ""

        reasons, missed = await federation.each(write)
        missed.update({node.address: why for node, why in reasons if why})
        if but is not None:
            missed.pop(but.address, None)
        if missed:
            raise NodesMissed(missed)


def _is_named(node: object, address: str, whole_id: str) -> bool:
    name = node.id or node.address if isinstance(node, NodeView) else node
    if not isinstance(name, str):
        return False
    return name == address or (len(name) >= 8 and whole_id.startswith(name))


def _shown(node: object) -> object:
    """Return the text for an error message; remove the password of a URL."""
    return shown(node) if isinstance(node, str) and "://" in node else node
