"""Drives flows: answers their effects with connections of a node."""

from __future__ import annotations

import asyncio  # async only
from collections.abc import Generator
from contextlib import suppress  # async only
from typing import Any

from penstock._acompat import AsyncSignal, ashield, asleep
from penstock._async.cluster import AsyncWaiters
from penstock._async.connection import AsyncWaiter, monotonic, passing
from penstock._async.node import AsyncNode
from penstock.core import flows
from penstock.core.calls import Call
from penstock.core.operations import DAMAGED, QueueOps, Taken
from penstock.core.partitions import mark, read_mark
from penstock.errors import QueuePartitioned
from penstock.wire.keys import QueueKeys, registry_key


class AsyncDriver:
    """Runs flows and operations on one node.

    Args:
        node: where.
        prefix: prefix of all keys.
    """

    def __init__(self, node: AsyncNode, prefix: str) -> None:
        self.node = node
        self._prefix = prefix
        self._registry = registry_key(prefix)

    async def run(self, ops: QueueOps, call: Call) -> tuple[list[Any], float]:
        """Run a script, with lost meta restored first; the reply, and when it was resent, or 0."""
        reply, resent = await self.node.run(call)
        if reply[0] == DAMAGED:
            await self.drive(flows.restore(ops))
            reply, resent = await self.node.run(call)
        return reply, resent

    async def reserve(self, ops: QueueOps, n: int, *, idle: bool, brief: bool = False) -> Taken:
        """Reserve up to n jobs of a queue, in one trip."""
        call, tag = ops.reserve(n, idle=idle)
        reply, _ = await self.node.run(call, brief=brief)
        return ops.taken(reply, tag, self.node.id)

    async def drive(self, flow: Generator[Any, Any, Any], signal: AsyncSignal | None = None) -> Any:
        """Run a flow to its end; its result. A failure is thrown into it: it may bear that.

        Args:
            flow: what to do.
            signal: ends a wait of the flow early when it is set.
        """
        wait = _Wait(self.node, signal)
        try:
            effect = next(flow)
            while True:
                answer, error = await self._tried(effect, wait)
                effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as end:
            return end.value
        # [async only
        except asyncio.CancelledError:
            await ashield(self._leave(flow, wait))
            raise
        # async only]
        finally:
            await wait.drop()

    # [async only
    async def _leave(self, flow: Generator[flows.Effect, Any, Any], wait: _Wait) -> None:
        """A cancelled flow is left in order: what it was told, or has taken, is for others.

        Whoever cancels it again waits for that, as the first one does.
        """
        with suppress(Exception, flows.Cancelled):
            effect = flow.throw(flows.Cancelled())
            while True:
                answer, error = await self._tried(effect, wait)
                effect = flow.send(answer) if error is None else flow.throw(error)

    # async only]

    async def _tried(self, effect: flows.Effect, wait: _Wait) -> tuple[Any, Exception | None]:
        try:
            return await self._answer(effect, wait), None
        except Exception as error:  # noqa: BLE001  # the flow decides; most let it pass
            return None, error

    async def _answer(self, effect: flows.Effect, wait: _Wait) -> Any:
        if isinstance(effect, flows.Pop):
            return await wait.pop(effect)
        if isinstance(effect, flows.Quit):
            return await wait.quit()
        if isinstance(effect, flows.Rest):
            return await wait.rest(effect)
        if isinstance(effect, flows.Drop):
            await wait.drop()
        return await self.answer(effect)

    async def answer(self, effect: flows.Effect) -> Any:
        """Carry out an effect that is no wait."""
        if isinstance(effect, flows.Reserve):
            return await self.reserve(effect.ops, effect.n, idle=effect.idle, brief=effect.brief)
        if isinstance(effect, flows.Run):
            answer = await self.node.run(effect.call, brief=effect.brief)
            return answer if effect.told else answer[0]
        if isinstance(effect, flows.Cede):
            return await asleep(0)
        if isinstance(effect, flows.Drop):
            return await self.node.close()
        if isinstance(effect, flows.Hurry):
            return await self.node.hurry()
        assert isinstance(effect, (flows.Register, flows.Lookup))
        return await self._registered(effect)

    async def _registered(self, effect: flows.Register | flows.Lookup) -> str | None:
        ops = effect.ops
        if isinstance(effect, flows.Register):
            if ops.partitions is not None:  # as after a `clear`
                await self.declare(ops.keys, ops.partitions)
            field = f"{ops.crc:08x}{effect.epoch}"
            await self.node.command("HSET", self._registry, field, ops.keys.name)
            await self.node.identify()
            return None
        for name, epoch in await self.registry():
            if name == ops.keys.name:
                return epoch
        return None

    async def declare(self, keys: QueueKeys, count: int) -> None:
        """Note how many partitions a queue has, or see that it has so many.

        Raises:
            QueuePartitioned: it has another number of them, or is an ordinary queue.
        """
        whole = QueueKeys(keys.whole, keys.prefix)
        meta = whole["meta"]
        version = await self.node.command("HGET", meta, "v")
        if version is None:
            if await self.node.command(
                "EXISTS", whole["ready"], whole["held"]
            ):  # it has lost its meta
                raise QueuePartitioned(whole.name, None, count)
            await self.node.command("HSETNX", meta, "v", mark(count))
            version = await self.node.command("HGET", meta, "v")
        found = read_mark(version)
        if found != count:
            raise QueuePartitioned(whole.name, found, count)

    async def partitions(self, name: str) -> int | None:
        """How many partitions a queue has; 0 = it is an ordinary queue, None = it is not there."""
        meta = QueueKeys(name, self._prefix)["meta"]
        version = await self.node.command("HGET", meta, "v")
        return None if version is None else read_mark(version) or 0

    async def undeclare(self, name: str, count: int) -> None:
        """A queue has no partitions any more: its name is free."""
        if await self.partitions(name) == count:
            await self.node.command("HDEL", QueueKeys(name, self._prefix)["meta"], "v")

    async def registry(self) -> list[tuple[str, str]]:
        """Name and epoch of every queue that the registry lists."""
        flat = await self.node.command("HGETALL", self._registry)
        return [
            (flat[i + 1].decode("utf-8", "replace"), flat[i].decode()[8:])
            for i in range(0, len(flat), 2)
        ]

    async def registry_page(self, cursor: str, n: int) -> tuple[str, list[tuple[str, str]]]:
        """One step through the registry: the next cursor, names and epochs."""
        after, flat = await self.node.command("HSCAN", self._registry, cursor, "COUNT", n)
        found = [
            (flat[i + 1].decode("utf-8", "replace"), flat[i].decode()[8:])
            for i in range(0, len(flat), 2)
        ]
        return after.decode(), found

    async def unregister(self, ops: QueueOps, epoch: str) -> None:
        """Take a removed queue's epoch out of the registry; that epoch never returns."""
        await self.node.command("HDEL", self._registry, f"{ops.crc:08x}{epoch}")


class _Wait:
    """The blocking half of one flow; a connection that fails is one more reason to look around."""

    def __init__(self, node: AsyncNode, signal: AsyncSignal | None) -> None:
        self._node = node
        self._signal = signal
        self._waiter: AsyncWaiter | AsyncWaiters | None = None
        self._failures = 0

    async def pop(self, effect: flows.Pop) -> bytes | object | None:
        """The key of a token, None at the time given, or `flows.LOST`."""
        if self._waiter is None:
            self._waiter = self._node.waiter()
        try:
            key = await self._waiter.pop(effect.keys, effect.until - monotonic(), self._signal)
        except Exception as error:
            if not passing(error):
                raise
            await self.drop()
            self._failures += 1
            pause = min(0.02 * 2**self._failures, 1.0)
            await self.rest(flows.Rest(min(monotonic() + pause, effect.until)))
            return flows.LOST
        self._failures = 0
        return key

    async def rest(self, effect: flows.Rest) -> None:
        """Wait without a connection."""
        span = max(0.0, effect.until - monotonic())
        await (asleep(span) if self._signal is None else self._signal.wait(span))

    async def quit(self) -> tuple[bytes, ...]:
        """End what is pending and keep the connections; the keys of tokens that were taken."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return ()
        try:
            keys = await waiter.quit()
        except Exception as error:
            if not passing(error):
                raise
            return ()
        self._node.rest(waiter)
        return keys

    async def drop(self) -> None:
        """Close the connection, whatever is pending on it."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            await waiter.drop()
