"""Drives flows: answers their effects with connections of a node."""

from __future__ import annotations

import asyncio  # async only
import math
import random
import re
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

from penstock.client._acompat import AsyncSignal, ashield, asleep
from penstock.client._async.transport.blocking import AsyncBlockingConnection
from penstock.client._async.transport.cluster import AsyncBlockingConnections
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
from penstock.client._async.transport.node import AsyncNode
from penstock.core import flows
from penstock.core.operations import QueueOps, Taken
from penstock.core.partitions import mark, read_mark
from penstock.core.sweeping import IDLE_MS, SweepSchedule
from penstock.errors import PenstockError, QueuePartitioned
from penstock.wire.keys import QueueKeys, registry_key, split_name

STEPS = 10
"""Most steps of one sweep that a client makes beside its waiting, 1,000 of each kind a step."""


ENTRY = re.compile(rb"[0-9a-f]{16}")
"""A field of the registry: checksum of the queue's name, and epoch."""


# [async only
async def leave(
    flow: Generator[Any, Any, Any], answer: Callable[[Any], Coroutine[Any, Any, Any]]
) -> None:
    """Let a cancelled flow hand on to other consumers what it was told or has taken.

    Args:
        flow: the flow.
        answer: carries out an effect of it.
    """
    with suppress(Exception, flows.Cancelled):
        effect = flow.throw(flows.Cancelled())
        while True:
            try:
                told = await answer(effect)
            except Exception as error:  # noqa: BLE001, PERF203  # the flow decides about it
                effect = flow.throw(error)
            else:
                effect = flow.send(told)


# async only]
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
        self._turns = SweepSchedule()
        self._listed: list[tuple[str, str]] = []
        self._cursor = "0"

    async def reserve(self, ops: QueueOps, n: int, *, idle: bool, brief: bool = False) -> Taken:
        """Reserve up to n jobs of a queue, in one trip."""
        return await self.node.run(ops.reserve(n, idle=idle), brief=brief)

    async def drive(self, flow: Generator[Any, Any, Any], signal: AsyncSignal | None = None) -> Any:
        """Run a flow to its end; its result. A failure is thrown into it: it may bear that.

        Args:
            flow: what to do.
            signal: ends a wait of the flow early when it is set.
        """
        wait = _TokenWait(self.node, signal)
        try:
            effect = next(flow)
            while True:
                try:
                    if isinstance(effect, flows.Run):
                        answer = await self.node.run(effect.call, brief=effect.brief)
                    elif isinstance(effect, flows.Rest):
                        answer = None
                        await wait.rest(effect)
                    else:
                        answer = await self._answer(effect, wait)
                except Exception as error:  # noqa: BLE001, PERF203  # the flow decides about it
                    effect = flow.throw(error)
                else:
                    effect = flow.send(answer)
        except StopIteration as end:
            return end.value
        # [async only
        except asyncio.CancelledError:
            await ashield(leave(flow, lambda effect: self._answer(effect, wait)))
            raise
        # async only]
        finally:
            await wait.drop()

    async def _answer(self, effect: flows.Effect, wait: _TokenWait) -> Any:
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
        if isinstance(effect, flows.ReserveJobs):
            return await self.reserve(effect.ops, effect.n, idle=effect.idle, brief=effect.brief)
        if isinstance(effect, flows.Run):
            return await self.node.run(effect.call, brief=effect.brief)
        if isinstance(effect, flows.Cede):
            return await asleep(0)
        if isinstance(effect, flows.Drop):
            return await self.node.close()
        if isinstance(effect, flows.Hurry):
            return await self.node.hurry()
        if isinstance(effect, flows.Tidy):
            return await self.tidy(effect)
        if isinstance(effect, flows.Unregister):
            return await self.unregister(effect.ops, effect.epoch)
        assert isinstance(effect, flows.Register)
        return await self._register(effect)

    async def _register(self, effect: flows.Register) -> None:
        ops = effect.ops
        if ops.partitions is not None:  # as after a `clear`
            await self.declare(ops.keys, ops.partitions)
        field = f"{ops.crc:08x}{effect.epoch}"
        await self.node.command("HSET", self._registry, field, ops.keys.name)
        await self.node.identify()

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
        return await self.node.registry()

    async def registry_page(self, cursor: str, n: int) -> tuple[str, list[tuple[str, str]]]:
        """At most n entries of the registry: the next cursor, names and epochs.

        HSCAN answers a small hash as a whole. So its pages are cut: a cursor is that of HSCAN, and
        after a dot the last field that was answered of that page, in the order of the fields.
        """
        at, _, behind = cursor.partition(".")
        after, flat = await self.node.command("HSCAN", self._registry, at, "COUNT", n)
        entries = sorted(zip(flat[::2], flat[1::2], strict=True))
        known = [(key.decode(), name) for key, name in entries if ENTRY.fullmatch(key)]
        left = [entry for entry in known if entry[0] > behind]
        found = [(name.decode("utf-8", "replace"), key[8:]) for key, name in left[:n]]
        return (f"{at}.{left[n - 1][0]}" if len(left) > n else after.decode()), found

    async def unregister(self, ops: QueueOps, epoch: str) -> None:
        """Take a removed queue's epoch out of the registry; that epoch never returns."""
        await self.node.command("HDEL", self._registry, f"{ops.crc:08x}{epoch}")

    # -- sweeping --------------------------------------------------------------------------

    async def sweep(self, ops: QueueOps, most: float = math.inf) -> tuple[int, bool]:
        """Sweep a queue in bounded steps: how many jobs were removed, and whether more are left.

        Args:
            ops: the queue.
            most: at most so many steps.
        """
        total, more, steps = 0, True, 0
        while more and steps < most:
            reply = await self.node.run(ops.sweep(IDLE_MS))
            total, more, steps = total + reply.expired + reply.trimmed, bool(reply.more), steps + 1
            if reply.removed:
                await self.unregister(ops, reply.removed.decode())
        return total, more

    async def tidy(self, effect: flows.Tidy) -> None:
        """Sweep the queues whose turn it is, and a few of those that the registry lists."""
        for ops in effect.sources:
            name = ops.keys.name
            if self._turns.is_due(name, monotonic()) and (await self.sweep(ops, STEPS))[1]:
                self._turns.again(name, monotonic())
        count = self._turns.made() if effect.made else self._turns.listed(monotonic())
        if count:
            self._turns.found(await self.sweep_listed(count), monotonic())

    async def sweep_listed(self, count: int) -> int:
        """Sweep so many of the queues that the registry lists, one step each.

        The registry is gone through round and round. An entry of another life of a queue that
        exists goes as well.

        Returns:
            How many queues were removed.
        """
        removed = 0
        for _ in range(count):
            if not self._listed:
                self._cursor, self._listed = await self.registry_page(self._cursor, 10)
                random.shuffle(self._listed)
            if not self._listed:
                break
            listed, epoch = self._listed.pop()
            name, number = split_name(listed)
            with suppress(PenstockError):  # a newer protocol, damage, or not a queue's name
                ops = QueueOps(QueueKeys(name, self._prefix, number), "", ())
                reply = await self.node.run(ops.sweep(IDLE_MS))
                if reply.removed or (reply.epoch and reply.epoch.decode() != epoch):
                    await self.unregister(ops, reply.removed.decode() or epoch)
                    removed += bool(reply.removed)
        return removed


class _TokenWait:
    """The blocking half of one flow; a connection that fails is one more reason to look around."""

    def __init__(self, node: AsyncNode, signal: AsyncSignal | None) -> None:
        self._node = node
        self._signal = signal
        self._waiter: AsyncBlockingConnection | AsyncBlockingConnections | None = None
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
