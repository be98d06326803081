# From src/penstock/client/_async/nodes/interfaces.py by tools/unasync.py; do not edit.
"""The types of a federation, and of what it watches, for modules on either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.core.calls.config import ClientConfig

if TYPE_CHECKING:
    from penstock.client._sync.nodes.federated_node import FederatedNode

__all__ = ["AgreedRoute", "NodeGroup"]


class AgreedRoute(Protocol):
    """The route of a queue whose settings agree on several nodes."""

    def agree(self, *more: FederatedNode) -> None:
        """Store the latest settings on the nodes that have others."""


class NodeGroup(Protocol):
    """The nodes of a federation, as hints see them; see `Federation`."""

    config: ClientConfig

    def await_looks(self) -> None:
        """Wait for looks at nodes."""

    def preferred(self) -> list[FederatedNode]:
        """Return the nodes in the order in which jobs are offered to them."""

    def up(self, but: FederatedNode) -> Sequence[FederatedNode]:
        """Return the nodes that are up, except one."""

    def note_failure(self, node: FederatedNode, error: BaseException) -> bool:
        """Note the failure of a node; return True if other nodes may make up for it."""
