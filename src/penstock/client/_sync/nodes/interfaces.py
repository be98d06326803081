# From src/penstock/client/_async/nodes/interfaces.py by tools/unasync.py; do not edit.
"""The types of nodes and parts for the modules that those import themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.client._sync.nodes.node import Node
from penstock.client._sync.transport.driver import Driver
from penstock.client._sync.transport.executor import Executor
from penstock.core.calls.config import ClientConfig
from penstock.core.calls.operations import QueueOps
from penstock.core.nodes.state import Sticky

if TYPE_CHECKING:
    from penstock.client._sync.nodes.federated_node import FederatedNode

__all__ = ["NodeGroup", "OnePart", "ShardedQueue"]


class OnePart(Protocol):
    """A queue on one node, or one of its partitions there."""

    @property
    def ops(self) -> QueueOps:
        """Return its operations."""

    @property
    def node(self) -> Node:
        """Return the node."""

    @property
    def executor(self) -> Executor:
        """Return what runs its calls."""

    @property
    def driver(self) -> Driver:
        """Return what runs its flows."""

    def connect(self) -> None:
        """Reach the node, unless that was done."""


class ShardedQueue(Protocol):
    """A queue on several nodes, which keeps its settings there the same."""

    def agree(self, *more: FederatedNode) -> None:
        """Store the latest settings on the nodes that have others."""


class NodeGroup(Protocol):
    """The nodes of a federation; see `Federation`."""

    config: ClientConfig
    nodes: list[FederatedNode]
    sticky: Sticky

    def connect(self) -> None:
        """Reach one node at least."""

    def await_looks(self) -> None:
        """Wait for looks at nodes."""

    def check_id(self, node: FederatedNode) -> None:
        """Check that no two nodes have one id."""

    def preferred(self) -> list[FederatedNode]:
        """Return the nodes in the order in which jobs are offered to them."""

    def up(self, but: FederatedNode) -> Sequence[FederatedNode]:
        """Return the nodes that are up, except one."""

    def note_failure(self, node: FederatedNode, error: BaseException) -> bool:
        """Note the failure of a node; return True if other nodes may make up for it."""
