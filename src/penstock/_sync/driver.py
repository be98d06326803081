# Generated from src/penstock/_async/driver.py by tools/unasync.py; do not edit.
"""Drives flows: answers their effects with connections of a node."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from penstock._acompat import Signal, sleep
from penstock._sync.cluster import Waiters
from penstock._sync.connection import Waiter, monotonic, passing
from penstock._sync.node import Node
from penstock.core import flows
from penstock.core.calls import Call
from penstock.core.operations import DAMAGED, QueueOps, Taken
from penstock.core.partitions import mark, read_mark
from penstock.errors import QueuePartitioned
from penstock.wire.keys import QueueKeys, registry_key


class Driver:
    """Runs flows and operations on one node.

    Args:
        node: where.
        prefix: prefix of all keys.
    """

    def __init__(self, node: Node, prefix: str) -> None:
        self.node = node
        self._prefix = prefix
        self._registry = registry_key(prefix)

    def run(self, ops: QueueOps, call: Call) -> tuple[list[Any], float]:
        """Run a script, with lost meta restored first; the reply, and when it was resent, or 0."""
        reply, resent = self.node.run(call)
        if reply[0] == DAMAGED:
            self.drive(flows.restore(ops))
            reply, resent = self.node.run(call)
        return reply, resent

    def reserve(self, ops: QueueOps, n: int, *, idle: bool, brief: bool = False) -> Taken:
        """Reserve up to n jobs of a queue, in one trip."""
        call, tag = ops.reserve(n, idle=idle)
        reply, _ = self.node.run(call, brief=brief)
        return ops.taken(reply, tag, self.node.id)

    def drive(self, flow: Generator[Any, Any, Any], signal: Signal | None = None) -> Any:
        """Run a flow to its end; its result. A failure is thrown into it: it may bear that.

        Args:
            flow: what to do.
            signal: ends a wait of the flow early when it is set.
        """
        wait = _Wait(self.node, signal)
        try:
            effect = next(flow)
            while True:
                answer, error = self._tried(effect, wait)
                effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            wait.drop()

    def _tried(self, effect: flows.Effect, wait: _Wait) -> tuple[Any, Exception | None]:
        try:
            return self._answer(effect, wait), None
        except Exception as error:  # noqa: BLE001  # the flow decides; most let it pass
            return None, error

    def _answer(self, effect: flows.Effect, wait: _Wait) -> Any:
        if isinstance(effect, flows.Pop):
            return wait.pop(effect)
        if isinstance(effect, flows.Quit):
            return wait.quit()
        if isinstance(effect, flows.Rest):
            return wait.rest(effect)
        if isinstance(effect, flows.Drop):
            wait.drop()
        return self.answer(effect)

    def answer(self, effect: flows.Effect) -> Any:
        """Carry out an effect that is no wait."""
        if isinstance(effect, flows.Reserve):
            return self.reserve(effect.ops, effect.n, idle=effect.idle, brief=effect.brief)
        if isinstance(effect, flows.Run):
            answer = self.node.run(effect.call, brief=effect.brief)
            return answer if effect.told else answer[0]
        if isinstance(effect, flows.Cede):
            return sleep(0)
        if isinstance(effect, flows.Drop):
            return self.node.close()
        if isinstance(effect, flows.Hurry):
            return self.node.hurry()
        assert isinstance(effect, (flows.Register, flows.Lookup))
        return self._registered(effect)

    def _registered(self, effect: flows.Register | flows.Lookup) -> str | None:
        ops = effect.ops
        if isinstance(effect, flows.Register):
            if ops.partitions is not None:  # as after a `clear`
                self.declare(ops.keys, ops.partitions)
            field = f"{ops.crc:08x}{effect.epoch}"
            self.node.command("HSET", self._registry, field, ops.keys.name)
            self.node.identify()
            return None
        for name, epoch in self.registry():
            if name == ops.keys.name:
                return epoch
        return None

    def declare(self, keys: QueueKeys, count: int) -> None:
        """Note how many partitions a queue has, or see that it has so many.

        Raises:
            QueuePartitioned: it has another number of them, or is an ordinary queue.
        """
        whole = QueueKeys(keys.whole, keys.prefix)
        meta = whole["meta"]
        version = self.node.command("HGET", meta, "v")
        if version is None:
            if self.node.command("EXISTS", whole["ready"], whole["held"]):  # it has lost its meta
                raise QueuePartitioned(whole.name, None, count)
            self.node.command("HSETNX", meta, "v", mark(count))
            version = self.node.command("HGET", meta, "v")
        found = read_mark(version)
        if found != count:
            raise QueuePartitioned(whole.name, found, count)

    def partitions(self, name: str) -> int | None:
        """How many partitions a queue has; 0 = it is an ordinary queue, None = it is not there."""
        meta = QueueKeys(name, self._prefix)["meta"]
        version = self.node.command("HGET", meta, "v")
        return None if version is None else read_mark(version) or 0

    def undeclare(self, name: str, count: int) -> None:
        """A queue has no partitions any more: its name is free."""
        if self.partitions(name) == count:
            self.node.command("HDEL", QueueKeys(name, self._prefix)["meta"], "v")

    def registry(self) -> list[tuple[str, str]]:
        """Name and epoch of every queue that the registry lists."""
        flat = self.node.command("HGETALL", self._registry)
        return [
            (flat[i + 1].decode("utf-8", "replace"), flat[i].decode()[8:])
            for i in range(0, len(flat), 2)
        ]

    def registry_page(self, cursor: str, n: int) -> tuple[str, list[tuple[str, str]]]:
        """One step through the registry: the next cursor, names and epochs."""
        after, flat = self.node.command("HSCAN", self._registry, cursor, "COUNT", n)
        found = [
            (flat[i + 1].decode("utf-8", "replace"), flat[i].decode()[8:])
            for i in range(0, len(flat), 2)
        ]
        return after.decode(), found

    def unregister(self, ops: QueueOps, epoch: str) -> None:
        """Take a removed queue's epoch out of the registry; that epoch never returns."""
        self.node.command("HDEL", self._registry, f"{ops.crc:08x}{epoch}")


class _Wait:
    """The blocking half of one flow; a connection that fails is one more reason to look around."""

    def __init__(self, node: Node, signal: Signal | None) -> None:
        self._node = node
        self._signal = signal
        self._waiter: Waiter | Waiters | None = None
        self._failures = 0

    def pop(self, effect: flows.Pop) -> bytes | object | None:
        """The key of a token, None at the time given, or `flows.LOST`."""
        if self._waiter is None:
            self._waiter = self._node.waiter()
        try:
            key = self._waiter.pop(effect.keys, effect.until - monotonic(), self._signal)
        except Exception as error:
            if not passing(error):
                raise
            self.drop()
            self._failures += 1
            pause = min(0.02 * 2**self._failures, 1.0)
            self.rest(flows.Rest(min(monotonic() + pause, effect.until)))
            return flows.LOST
        self._failures = 0
        return key

    def rest(self, effect: flows.Rest) -> None:
        """Wait without a connection."""
        span = max(0.0, effect.until - monotonic())
        (sleep(span) if self._signal is None else self._signal.wait(span))

    def quit(self) -> tuple[bytes, ...]:
        """End what is pending and keep the connections; the keys of tokens that were taken."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return ()
        try:
            keys = waiter.quit()
        except Exception as error:
            if not passing(error):
                raise
            return ()
        self._node.rest(waiter)
        return keys

    def drop(self) -> None:
        """Close the connection, whatever is pending on it."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.drop()
