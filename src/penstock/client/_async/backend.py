"""The connections of a client: one node, or several."""

from __future__ import annotations

from typing import Any

from penstock.client._async.sharded.federation import AsyncFederation
from penstock.client._async.sharded.node_client import AsyncNodeClient
from penstock.client._async.sharded.single import AsyncSingle
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.driver import AsyncDriver
from penstock.client._async.transport.node import AsyncNode
from penstock.core.config import ClientConfig, check_sources
from penstock.errors import BadArgument, ConfigurationError
from penstock.wire.keys import registry_key, split_name

__all__ = ["AsyncBackend"]


class AsyncBackend:
    """The connections of a client. Internal: for the worker, Spark and the command line.

    Args:
        source: a URL or a redis-py client, or a list of these.
        terms: the settings of the client.
        federation: whether a client of one source joins the nodes that this one lists.

    Attributes:
        source, terms: the arguments.
        joins: the argument `federation`.
        root: runs the calls of the client.

    Raises:
        BadArgument: the source can't be used, or needs another value of `federation`.
    """

    def __init__(self, source: Any, terms: ClientConfig, *, federation: bool) -> None:
        if federation not in (True, False):
            raise BadArgument("federation", federation, "must be True or False")
        self.source = source
        self.terms = terms
        self.joins = federation
        sources = check_sources(source)
        self.root: AsyncNodeClient | AsyncSingle | AsyncFederation
        if sources is None:
            self.root = (AsyncSingle if federation else AsyncNodeClient)(source, terms)
        elif federation:
            self.root = AsyncFederation(sources, terms)
        else:
            reason = "a list of nodes needs federation=True: pass one URL without it"
            raise BadArgument("federation", False, reason)

    @property
    def home(self) -> AsyncNodeClient | AsyncFederation:
        """Return the node, or all nodes, as known now."""
        return self.root.now if isinstance(self.root, AsyncSingle) else self.root

    async def current(self) -> AsyncNodeClient | AsyncFederation:
        """Return the node, or all nodes. Read the node's list first if the last read is old."""
        root = self.root
        return await root.current() if isinstance(root, AsyncSingle) else root

    @property
    def is_look_due(self) -> bool:
        """Return True if the node's list must be read again."""
        root = self.root
        return isinstance(root, AsyncSingle) and not root.federation and monotonic() >= root.look_at

    async def has_others(self) -> bool:
        """Read the node's list; return True if there are nodes to join."""
        return isinstance(self.root, AsyncSingle) and await self.root.has_others()

    def join(self) -> AsyncNodeClient | AsyncFederation:
        """Become a client of several nodes, unless `federation` is False. Nothing is sent."""
        return self.root.join() if isinstance(self.root, AsyncSingle) else self.root

    @property
    def member(self) -> AsyncNodeClient:
        """Return the node of a client of one source.

        Raises:
            ConfigurationError: the client was made from a list of nodes.
        """
        if isinstance(self.root, AsyncFederation):
            raise ConfigurationError("this call needs a client of one node alone")
        return self.root.member if isinstance(self.root, AsyncSingle) else self.root

    @property
    def node(self) -> AsyncNode:
        """Return the connections to the node of a client of one source."""
        return self.member.node

    @property
    def driver(self) -> AsyncDriver:
        """Return the driver of the node of a client of one source."""
        return self.member.driver

    async def queue_at(self, field: str) -> str | None:
        """Return the name of the queue with this field in the registry of any node."""
        key = registry_key(self.terms.prefix)
        home = await self.current()
        if isinstance(home, AsyncFederation):
            answers, _ = await home.each(lambda one: one.brief.node.command("HGET", key, field))
            found = next((name for _, name in answers if name is not None), None)
        else:
            found = await home.node.command("HGET", key, field)
        return None if found is None else split_name(found.decode("utf-8", "replace"))[0]
