"""A wait on several nodes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client._acompat import AsyncSignal, afirst_ready, asleep
from penstock.client._async.transport.blocking import AsyncBlockingConnection
from penstock.client._async.transport.cluster import AsyncBlockingConnections
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
from penstock.core.effects import Heard, Listen
from penstock.core.operations import QueueOps

if TYPE_CHECKING:
    from penstock.client._async.sharded.federated_node import AsyncFederatedNode
    from penstock.client._async.sharded.federation import AsyncFederation

__all__ = ["AsyncMultiNodeWait"]

SLICE = 0.02
"""Seconds of a wait on one node, where a wait on several at once is impossible (fakeredis)."""
GLANCE = 0.1
"""Seconds after which a waiting consumer looks again for a node that was down."""


class AsyncMultiNodeWait:
    """The blocking connections of a call on several nodes: a pending BLPOP on each of them.

    Args:
        federation: the nodes.
        signal: ends a wait early when it is set.
    """

    def __init__(self, federation: AsyncFederation, signal: AsyncSignal | None) -> None:
        self._federation = federation
        self._signal = signal
        self._waiters: dict[
            AsyncFederatedNode, AsyncBlockingConnection | AsyncBlockingConnections
        ] = {}
        self._sources: dict[AsyncFederatedNode, dict[bytes, QueueOps]] = {}

    async def listen(self, effect: Listen) -> Heard:
        """Wait on all nodes; return the tokens, and the queues whose connection failed."""
        told: list[QueueOps] = []
        lost: list[QueueOps] = []
        wanted = _by_home(effect)
        for home in [home for home in self._waiters if home not in wanted]:
            await self._waiters.pop(home).drop()
        for home, sources in wanted.items():
            waiter = self._waiters.get(home)
            if waiter is None:
                waiter = self._waiters[home] = home.brief.node.link.waiter()
            if waiter.is_sliced:
                continue
            try:
                told += await self._armed(home, waiter, sources)
            except Exception as error:  # noqa: BLE001  # `_lose` raises what is none of the node's
                await self._lose(home, error)
                lost += sources.values()
        if not told and not lost:
            await self._rest(effect)
            for home, sources in wanted.items():
                try:
                    found = await _popped(self._waiters[home], tuple(sources))
                except Exception as error:  # noqa: BLE001, PERF203  # `_lose` decides
                    await self._lose(home, error)
                    lost += sources.values()
                else:
                    told += [sources[key] for key in found]
        return Heard(tuple(told), tuple(lost))

    async def _armed(
        self,
        home: AsyncFederatedNode,
        waiter: AsyncBlockingConnection | AsyncBlockingConnections,
        sources: dict[bytes, QueueOps],
    ) -> list[QueueOps]:
        """Ensure a pending BLPOP for these queues; return those whose tokens were taken before."""
        before, self._sources[home] = self._sources.get(home, sources), sources
        found = await waiter.quit() if before.keys() != sources.keys() else ()
        key = await waiter.begin(tuple(sources)) if not found else None
        return [(before | sources)[one] for one in (found if key is None else (key,))]

    def _until(self, until: float) -> float:
        """Shorten a wait, so that the client checks its nodes in time."""
        self._federation.tend()
        until = min(until, self._federation.learn_at)
        return until if self._federation.is_whole else min(until, monotonic() + GLANCE)

    async def rest(self, until: float) -> None:
        """Wait without listening."""
        span = max(0.0, self._until(until) - monotonic())
        await (asleep(span) if self._signal is None else self._signal.wait(span))

    async def _rest(self, effect: Listen) -> None:
        until = self._until(effect.until)
        if any(waiter.is_sliced for waiter in self._waiters.values()):
            if self._signal is not None:
                self._signal.take()
            return
        readers = [reader for waiter in self._waiters.values() for reader in waiter.readers]
        if readers:
            await afirst_ready(readers, until - monotonic(), self._signal)
        else:
            await self.rest(until)

    async def _lose(self, home: AsyncFederatedNode, error: Exception) -> None:
        """Close a connection whose wait failed. The next call shows if the node is down."""
        await self._waiters.pop(home).drop()
        if not passing(error):
            raise error

    async def quit(self) -> Heard:
        """End the waits and keep the connections; return the tokens taken meanwhile."""
        told = []
        for home, waiter in list(self._waiters.items()):
            del self._waiters[home]
            if not home.state.is_up:
                await waiter.drop()
                continue
            try:
                keys = await waiter.quit()
            except Exception as error:
                if not passing(error):
                    raise
                home.failed(error)
                continue
            waiter.rest()
            told += [self._sources[home][key] for key in keys]
        return Heard(tuple(told))

    async def drop(self) -> None:
        """Close the connections, with pending BLPOPs or without."""
        while self._waiters:
            await self._waiters.popitem()[1].drop()


def _by_home(effect: Listen) -> dict[AsyncFederatedNode, dict[bytes, QueueOps]]:
    """Return the keys of the tokens with their queues, for each node."""
    found: dict[AsyncFederatedNode, dict[bytes, QueueOps]] = {}
    for ops in effect.sources:
        found.setdefault(ops.home, {})[ops.keys[effect.kind]] = ops
    return found


async def _popped(
    waiter: AsyncBlockingConnection | AsyncBlockingConnections, keys: tuple[bytes, ...]
) -> list[bytes]:
    if not waiter.is_sliced:
        return await waiter.taken()
    key = await waiter.pop(keys, SLICE)
    return [] if key is None else [key]
