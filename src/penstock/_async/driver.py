"""Drives flows: answers their effects with connections of a node."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from penstock._async.connection import AsyncNode, AsyncWaiter, monotonic
from penstock.core import flows
from penstock.core.operations import QueueOps, Taken
from penstock.wire.keys import registry_key


class AsyncDriver:
    """Runs flows and operations on one node.

    Args:
        node: where.
        prefix: prefix of all keys.
    """

    def __init__(self, node: AsyncNode, prefix: str) -> None:
        self.node = node
        self._registry = registry_key(prefix)

    async def reserve(self, ops: QueueOps, n: int, *, idle: bool) -> Taken:
        """Reserve up to n jobs of a queue, in one trip."""
        call, tag = ops.reserve(n, idle=idle)
        reply, _ = await self.node.run(call)
        return ops.taken(reply, tag, self.node.id)

    async def drive(self, flow: Generator[flows.Effect, Any, Any]) -> Any:
        """Run a flow to its end; its result."""
        waiter: AsyncWaiter | None = None
        try:
            effect = next(flow)
            while True:
                answer: Any = None
                if isinstance(effect, flows.Reserve):
                    answer = await self.reserve(effect.ops, effect.n, idle=effect.idle)
                elif isinstance(effect, flows.Run):
                    answer, _ = await self.node.run(effect.call)
                elif isinstance(effect, flows.Pop):
                    waiter = waiter or self.node.waiter()
                    answer = await waiter.pop(effect.keys, effect.until - monotonic())
                elif isinstance(effect, flows.Quit):
                    if waiter is not None:
                        answer = await waiter.quit()
                        self.node.rest(waiter)
                        waiter = None
                else:
                    answer = await self._registered(effect)
                effect = flow.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            if waiter is not None:
                await waiter.drop()

    async def _registered(self, effect: flows.Register | flows.Lookup) -> str | None:
        ops = effect.ops
        if isinstance(effect, flows.Register):
            field = f"{ops.crc:08x}{effect.epoch}"
            await self.node.command("HSET", self._registry, field, ops.name)
            await self.node.identify()
            return None
        for name, epoch in await self.registry():
            if name == ops.name:
                return epoch
        return None

    async def registry(self) -> list[tuple[str, str]]:
        """Name and epoch of every queue that the registry lists."""
        flat = await self.node.command("HGETALL", self._registry)
        return [
            (flat[i + 1].decode("utf-8", "replace"), flat[i].decode()[8:])
            for i in range(0, len(flat), 2)
        ]

    async def unregister(self, ops: QueueOps, epoch: str) -> None:
        """Take a removed queue's epoch out of the registry; that epoch never returns."""
        await self.node.command("HDEL", self._registry, f"{ops.crc:08x}{epoch}")
