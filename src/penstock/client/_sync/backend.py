# From src/penstock/client/_async/backend.py by tools/unasync.py; do not edit.
"""The connections of a client: one node, or several."""

from __future__ import annotations

from typing import Any

from penstock.client._sync.sharded.federation import Federation
from penstock.client._sync.sharded.node_client import NodeClient
from penstock.client._sync.sharded.single import Single
from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.driver import Driver
from penstock.client._sync.transport.node import Node
from penstock.core.config import ClientConfig, check_sources
from penstock.errors import BadArgument, ConfigurationError
from penstock.wire.keys import registry_key, split_name

__all__ = ["Backend"]


class Backend:
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
        self.root: NodeClient | Single | Federation
        if sources is None:
            self.root = (Single if federation else NodeClient)(source, terms)
        elif federation:
            self.root = Federation(sources, terms)
        else:
            reason = "a list of nodes needs federation=True: pass one URL without it"
            raise BadArgument("federation", False, reason)

    @property
    def home(self) -> NodeClient | Federation:
        """Return the node, or all nodes, as known now."""
        return self.root.now if isinstance(self.root, Single) else self.root

    def current(self) -> NodeClient | Federation:
        """Return the node, or all nodes. Read the node's list first if the last read is old."""
        root = self.root
        return root.current() if isinstance(root, Single) else root

    @property
    def is_look_due(self) -> bool:
        """Return True if the node's list must be read again."""
        root = self.root
        return isinstance(root, Single) and not root.federation and monotonic() >= root.look_at

    def has_others(self) -> bool:
        """Read the node's list; return True if there are nodes to join."""
        return isinstance(self.root, Single) and self.root.has_others()

    def join(self) -> NodeClient | Federation:
        """Become a client of several nodes, unless `federation` is False. Nothing is sent."""
        return self.root.join() if isinstance(self.root, Single) else self.root

    @property
    def member(self) -> NodeClient:
        """Return the node of a client of one source.

        Raises:
            ConfigurationError: the client was made from a list of nodes.
        """
        if isinstance(self.root, Federation):
            raise ConfigurationError("this call needs a client of one node alone")
        return self.root.member if isinstance(self.root, Single) else self.root

    @property
    def node(self) -> Node:
        """Return the connections to the node of a client of one source."""
        return self.member.node

    @property
    def driver(self) -> Driver:
        """Return the driver of the node of a client of one source."""
        return self.member.driver

    def queue_at(self, field: str) -> str | None:
        """Return the name of the queue with this field in the registry of any node."""
        key = registry_key(self.terms.prefix)
        home = self.current()
        if isinstance(home, Federation):
            answers, _ = home.each(lambda one: one.brief.node.command("HGET", key, field))
            found = next((name for _, name in answers if name is not None), None)
        else:
            found = home.node.command("HGET", key, field)
        return None if found is None else split_name(found.decode("utf-8", "replace"))[0]
