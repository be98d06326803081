"""The types of a federation, and of what it watches, for modules on either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.core.calls.config import ClientConfig

if TYPE_CHECKING:
    from penstock.client._async.nodes.federated_node import AsyncFederatedNode

__all__ = ["AsyncAgreedRoute", "AsyncNodeGroup"]


class AsyncAgreedRoute(Protocol):
    """The route of a queue whose settings agree on several nodes."""

    async def agree(self, *more: AsyncFederatedNode) -> None:
        """Store the latest settings on the nodes that have others."""


class AsyncNodeGroup(Protocol):
    """The nodes of a federation, as hints see them; see `AsyncFederation`."""

    config: ClientConfig

    async def await_looks(self) -> None:
        """Wait for looks at nodes."""

    def preferred(self) -> list[AsyncFederatedNode]:
        """Return the nodes in the order in which jobs are offered to them."""

    def up(self, but: AsyncFederatedNode) -> Sequence[AsyncFederatedNode]:
        """Return the nodes that are up, except one."""

    def note_failure(self, node: AsyncFederatedNode, error: BaseException) -> bool:
        """Note the failure of a node; return True if other nodes may make up for it."""
