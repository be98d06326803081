"""A wait on several nodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.client._acompat import AsyncSignal, afirst_ready, asleep
from penstock.client._async.transport.blocking import AsyncBlockingConnection
from penstock.client._async.transport.cluster import AsyncBlockingConnections
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
from penstock.core.nodes import Heard, Listen

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
        self._keys: dict[AsyncFederatedNode, tuple[bytes, ...]] = {}

    async def listen(self, effect: Listen) -> Heard:
        """Wait on all nodes; return the tokens, and the nodes whose connection failed."""
        tokens: list[tuple[Any, bytes]] = []
        lost: list[Any] = []
        for home in [home for home in self._waiters if home not in effect.wanted]:
            await self._waiters.pop(home).drop()
        for home, keys in effect.wanted.items():
            waiter = self._waiters.get(home)
            if waiter is None:
                waiter = self._waiters[home] = home.brief.node.link.waiter()
            if waiter.is_sliced:
                continue
            try:
                found = await self._armed(home, waiter, keys)
            except Exception as error:  # noqa: BLE001  # `_lose` raises what is none of the node's
                await self._lose(home, error)
                lost.append(home)
            else:
                tokens += [(home, key) for key in found]
        if not tokens and not lost:
            await self._rest(effect)
            tokens, lost = await self._taken(effect)
        return Heard(tuple(tokens), tuple(lost))

    async def _armed(
        self,
        home: AsyncFederatedNode,
        waiter: AsyncBlockingConnection | AsyncBlockingConnections,
        keys: tuple[bytes, ...],
    ) -> Sequence[bytes]:
        """Ensure a pending BLPOP on these keys; return the keys of tokens taken before."""
        before, self._keys[home] = self._keys.get(home, keys), keys
        found = await waiter.quit() if before != keys else ()
        key = await waiter.begin(keys) if not found else None
        return found if key is None else (key,)

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

    async def _taken(self, effect: Listen) -> tuple[list[tuple[Any, bytes]], list[Any]]:
        tokens: list[tuple[Any, bytes]] = []
        lost: list[Any] = []
        for home, waiter in list(self._waiters.items()):
            try:
                found = await _popped(waiter, effect.wanted[home])
            except Exception as error:  # noqa: BLE001, PERF203  # `_lose` decides
                await self._lose(home, error)
                lost.append(home)
            else:
                tokens += [(home, key) for key in found]
        return tokens, lost

    async def _lose(self, home: AsyncFederatedNode, error: Exception) -> None:
        """Close a connection whose wait failed. The next call shows if the node is down."""
        await self._waiters.pop(home).drop()
        if not passing(error):
            raise error

    async def quit(self) -> Heard:
        """End the waits and keep the connections; return the tokens taken meanwhile."""
        tokens = []
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
            tokens += [(home, key) for key in keys]
        return Heard(tuple(tokens))

    async def drop(self) -> None:
        """Close the connections, with pending BLPOPs or without."""
        while self._waiters:
            await self._waiters.popitem()[1].drop()


async def _popped(
    waiter: AsyncBlockingConnection | AsyncBlockingConnections, keys: tuple[bytes, ...]
) -> list[bytes]:
    if not waiter.is_sliced:
        return await waiter.taken()
    key = await waiter.pop(keys, SLICE)
    return [] if key is None else [key]
