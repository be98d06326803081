"""The types of nodes and parts for the modules that those import themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.client._async.nodes.node import AsyncNode
from penstock.client._async.transport.driver import AsyncDriver
from penstock.client._async.transport.executor import AsyncExecutor
from penstock.core.calls.config import ClientConfig
from penstock.core.calls.operations import QueueOps
from penstock.core.nodes.state import Sticky

if TYPE_CHECKING:
    from penstock.client._async.nodes.federated_node import AsyncFederatedNode

__all__ = ["AsyncNodeGroup", "AsyncOnePart", "AsyncShardedQueue"]


class AsyncOnePart(Protocol):
    """A queue on one node, or one of its partitions there."""

    @property
    def ops(self) -> QueueOps:
        """Return its operations."""

    @property
    def node(self) -> AsyncNode:
        """Return the node."""

    @property
    def executor(self) -> AsyncExecutor:
        """Return what runs its calls."""

    @property
    def driver(self) -> AsyncDriver:
        """Return what runs its flows."""

    async def connect(self) -> None:
        """Reach the node, unless that was done."""


class AsyncShardedQueue(Protocol):
    """A queue on several nodes, which keeps its settings there the same."""

    async def agree(self, *more: AsyncFederatedNode) -> None:
        """Store the latest settings on the nodes that have others."""


class AsyncNodeGroup(Protocol):
    """The nodes of a federation; see `AsyncFederation`."""

    config: ClientConfig
    nodes: list[AsyncFederatedNode]
    sticky: Sticky

    async def connect(self) -> None:
        """Reach one node at least."""

    async def await_looks(self) -> None:
        """Wait for looks at nodes."""

    async def check_id(self, node: AsyncFederatedNode) -> None:
        """Check that no two nodes have one id."""

    def preferred(self) -> list[AsyncFederatedNode]:
        """Return the nodes in the order in which jobs are offered to them."""

    def up(self, but: AsyncFederatedNode) -> Sequence[AsyncFederatedNode]:
        """Return the nodes that are up, except one."""

    def note_failure(self, node: AsyncFederatedNode, error: BaseException) -> bool:
        """Note the failure of a node; return True if other nodes may make up for it."""
