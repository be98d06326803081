# From src/penstock/client/_async/nodes/interfaces.py by tools/unasync.py; do not edit.
"""The types of nodes and parts for the modules that those import themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.client._sync.nodes.node_client import NodeClient
from penstock.core.calls.config import ClientConfig
from penstock.core.calls.operations import QueueOps
from penstock.core.nodes.state import Sticky

if TYPE_CHECKING:
    from penstock.client._sync.nodes.federated_node import FederatedNode

__all__ = ["NodeGroup", "OnePart", "SettingsKeeper"]


class OnePart(Protocol):
    """A queue on one node, or one of its partitions there."""

    @property
    def ops(self) -> QueueOps:
        """Return its operations."""

    @property
    def backend(self) -> NodeClient:
        """Return the client that runs its calls."""


class SettingsKeeper(Protocol):
    """A queue on several nodes, which keeps its settings there the same."""

    def agree(self, *more: FederatedNode) -> None:
        """Store the latest settings on the nodes that have others."""


class NodeGroup(Protocol):
    """The nodes of a federation; see `Federation`."""

    config: ClientConfig
    homes: list[FederatedNode]
    sticky: Sticky

    def connect(self) -> None:
        """Reach one node at least."""

    def await_looks(self) -> None:
        """Wait for looks at nodes."""

    def check_id(self, home: FederatedNode) -> None:
        """Check that no two nodes have one id."""

    def preferred(self) -> list[FederatedNode]:
        """Return the nodes in the order in which jobs are offered to them."""

    def up(self, but: FederatedNode) -> Sequence[FederatedNode]:
        """Return the nodes that are up, except one."""

    def note_failure(self, home: FederatedNode, error: BaseException) -> bool:
        """Note the failure of a node; return True if other nodes may make up for it."""
