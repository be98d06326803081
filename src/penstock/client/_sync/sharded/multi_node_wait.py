# From src/penstock/client/_async/sharded/multi_node_wait.py by tools/unasync.py; do not edit.
"""A wait on several nodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client._acompat import Signal
from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.waiting import TokenWait

if TYPE_CHECKING:
    from penstock.client._sync.sharded.federation import Federation

__all__ = ["MultiNodeWait"]

GLANCE = 0.1
"""Seconds after which a waiting consumer looks again for a node that was down."""


class MultiNodeWait(TokenWait):
    """A wait on several nodes that ends in time for the client to check them.

    Args:
        federation: the nodes.
        signal: ends a wait early when it is set.
    """

    def __init__(self, federation: Federation, signal: Signal | None) -> None:
        super().__init__(None, signal)
        self._federation = federation

    def _until(self, until: float) -> float:
        self._federation.tend()
        until = min(until, self._federation.learn_at)
        return until if self._federation.is_whole else min(until, monotonic() + GLANCE)
