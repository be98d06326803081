"""A wait on several nodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client._acompat import AsyncSignal
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.waiting import AsyncTokenWait

if TYPE_CHECKING:
    from penstock.client._async.sharded.federation import AsyncFederation

__all__ = ["AsyncMultiNodeWait"]

GLANCE = 0.1
"""Seconds after which a waiting consumer looks again for a node that was down."""


class AsyncMultiNodeWait(AsyncTokenWait):
    """A wait on several nodes that ends in time for the client to check them.

    Args:
        federation: the nodes.
        signal: ends a wait early when it is set.
    """

    def __init__(self, federation: AsyncFederation, signal: AsyncSignal | None) -> None:
        super().__init__(None, signal)
        self._federation = federation

    def _until(self, until: float) -> float:
        self._federation.tend()
        until = min(until, self._federation.learn_at)
        return until if self._federation.is_whole else min(until, monotonic() + GLANCE)
