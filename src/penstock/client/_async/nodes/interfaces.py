"""The types of nodes and parts for the modules that those import themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.client._async.nodes.node_client import AsyncNodeClient
from penstock.core.calls.config import ClientConfig
from penstock.core.calls.operations import QueueOps
from penstock.core.nodes.state import Sticky

if TYPE_CHECKING:
    from penstock.client._async.nodes.federated_node import AsyncFederatedNode

__all__ = ["AsyncNodeGroup", "AsyncOnePart", "AsyncSettingsKeeper"]


class AsyncOnePart(Protocol):
    """A queue on one node, or one of its partitions there."""

    @property
    def ops(self) -> QueueOps:
        """Return its operations."""

    @property
    def backend(self) -> AsyncNodeClient:
        """Return the client that runs its calls."""


class AsyncSettingsKeeper(Protocol):
    """A queue on several nodes, which keeps its settings there the same."""

    async def agree(self, *more: AsyncFederatedNode) -> None:
        """Store the latest settings on the nodes that have others."""


class AsyncNodeGroup(Protocol):
    """The nodes of a federation; see `AsyncFederation`."""

    config: ClientConfig
    homes: list[AsyncFederatedNode]
    sticky: Sticky

    async def connect(self) -> None:
        """Reach one node at least."""

    async def await_looks(self) -> None:
        """Wait for looks at nodes."""

    async def check_id(self, home: AsyncFederatedNode) -> None:
        """Check that no two nodes have one id."""

    def preferred(self) -> list[AsyncFederatedNode]:
        """Return the nodes in the order in which jobs are offered to them."""

    def up(self, but: AsyncFederatedNode) -> Sequence[AsyncFederatedNode]:
        """Return the nodes that are up, except one."""

    def note_failure(self, home: AsyncFederatedNode, error: BaseException) -> bool:
        """Note the failure of a node; return True if other nodes may make up for it."""
