# From src/penstock/client/_async/sharded/multi_node_wait.py by tools/unasync.py; do not edit.
"""A wait on several nodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client._acompat import Signal, first_ready, sleep
from penstock.client._sync.transport.blocking import BlockingConnection
from penstock.client._sync.transport.cluster import BlockingConnections
from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.failures import passing
from penstock.core.effects import Heard, Listen
from penstock.core.operations import QueueOps

if TYPE_CHECKING:
    from penstock.client._sync.sharded.federated_node import FederatedNode
    from penstock.client._sync.sharded.federation import Federation

__all__ = ["MultiNodeWait"]

SLICE = 0.02
"""Seconds of a wait on one node, where a wait on several at once is impossible (fakeredis)."""
GLANCE = 0.1
"""Seconds after which a waiting consumer looks again for a node that was down."""


class MultiNodeWait:
    """The blocking connections of a call on several nodes: a pending BLPOP on each of them.

    Args:
        federation: the nodes.
        signal: ends a wait early when it is set.
    """

    def __init__(self, federation: Federation, signal: Signal | None) -> None:
        self._federation = federation
        self._signal = signal
        self._waiters: dict[FederatedNode, BlockingConnection | BlockingConnections] = {}
        self._sources: dict[FederatedNode, dict[bytes, QueueOps]] = {}

    def listen(self, effect: Listen) -> Heard:
        """Wait on all nodes; return the tokens, and the queues whose connection failed."""
        told: list[QueueOps] = []
        lost: list[QueueOps] = []
        wanted = _by_home(effect)
        for home in [home for home in self._waiters if home not in wanted]:
            self._waiters.pop(home).drop()
        for home, sources in wanted.items():
            waiter = self._waiters.get(home)
            if waiter is None:
                waiter = self._waiters[home] = home.brief.node.link.waiter()
            if waiter.is_sliced:
                continue
            try:
                told += self._armed(home, waiter, sources)
            except Exception as error:  # noqa: BLE001  # `_lose` raises what is none of the node's
                self._lose(home, error)
                lost += sources.values()
        if not told and not lost:
            self._rest(effect)
            for home, sources in wanted.items():
                try:
                    found = _popped(self._waiters[home], tuple(sources))
                except Exception as error:  # noqa: BLE001, PERF203  # `_lose` decides
                    self._lose(home, error)
                    lost += sources.values()
                else:
                    told += [sources[key] for key in found]
        return Heard(tuple(told), tuple(lost))

    def _armed(
        self,
        home: FederatedNode,
        waiter: BlockingConnection | BlockingConnections,
        sources: dict[bytes, QueueOps],
    ) -> list[QueueOps]:
        """Ensure a pending BLPOP for these queues; return those whose tokens were taken before."""
        before, self._sources[home] = self._sources.get(home, sources), sources
        found = waiter.quit() if before.keys() != sources.keys() else ()
        key = waiter.begin(tuple(sources)) if not found else None
        return [(before | sources)[one] for one in (found if key is None else (key,))]

    def _until(self, until: float) -> float:
        """Shorten a wait, so that the client checks its nodes in time."""
        self._federation.tend()
        until = min(until, self._federation.learn_at)
        return until if self._federation.is_whole else min(until, monotonic() + GLANCE)

    def rest(self, until: float) -> None:
        """Wait without listening."""
        span = max(0.0, self._until(until) - monotonic())
        (sleep(span) if self._signal is None else self._signal.wait(span))

    def _rest(self, effect: Listen) -> None:
        until = self._until(effect.until)
        if any(waiter.is_sliced for waiter in self._waiters.values()):
            if self._signal is not None:
                self._signal.take()
            return
        readers = [reader for waiter in self._waiters.values() for reader in waiter.readers]
        if readers:
            first_ready(readers, until - monotonic(), self._signal)
        else:
            self.rest(until)

    def _lose(self, home: FederatedNode, error: Exception) -> None:
        """Close a connection whose wait failed. The next call shows if the node is down."""
        self._waiters.pop(home).drop()
        if not passing(error):
            raise error

    def quit(self) -> Heard:
        """End the waits and keep the connections; return the tokens taken meanwhile."""
        told = []
        for home, waiter in list(self._waiters.items()):
            del self._waiters[home]
            if not home.state.is_up:
                waiter.drop()
                continue
            try:
                keys = waiter.quit()
            except Exception as error:
                if not passing(error):
                    raise
                home.failed(error)
                continue
            waiter.rest()
            told += [self._sources[home][key] for key in keys]
        return Heard(tuple(told))

    def drop(self) -> None:
        """Close the connections, with pending BLPOPs or without."""
        while self._waiters:
            self._waiters.popitem()[1].drop()


def _by_home(effect: Listen) -> dict[FederatedNode, dict[bytes, QueueOps]]:
    """Return the keys of the tokens with their queues, for each node."""
    found: dict[FederatedNode, dict[bytes, QueueOps]] = {}
    for ops in effect.sources:
        found.setdefault(ops.home, {})[ops.keys[effect.kind]] = ops
    return found


def _popped(
    waiter: BlockingConnection | BlockingConnections, keys: tuple[bytes, ...]
) -> list[bytes]:
    if not waiter.is_sliced:
        return waiter.taken()
    key = waiter.pop(keys, SLICE)
    return [] if key is None else [key]
