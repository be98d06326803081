# Generated from src/penstock/_async/driver.py by tools/unasync.py; do not edit.
"""Drives flows: answers their effects with connections of a node."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from penstock._sync.connection import Node, Waiter, monotonic
from penstock.core import flows
from penstock.core.operations import QueueOps, Taken
from penstock.wire.keys import registry_key


class Driver:
    """Runs flows and operations on one node.

    Args:
        node: where.
        prefix: prefix of all keys.
    """

    def __init__(self, node: Node, prefix: str) -> None:
        self.node = node
        self._registry = registry_key(prefix)

    def reserve(self, ops: QueueOps, n: int, *, idle: bool) -> Taken:
        """Reserve up to n jobs of a queue, in one trip."""
        call, tag = ops.reserve(n, idle=idle)
        reply, _ = self.node.run(call)
        return ops.taken(reply, tag, self.node.id)

    def drive(self, flow: Generator[flows.Effect, Any, Any]) -> Any:
        """Run a flow to its end; its result."""
        waiter: Waiter | None = None
        try:
            effect = next(flow)
            while True:
                answer: Any = None
                if isinstance(effect, flows.Reserve):
                    answer = self.reserve(effect.ops, effect.n, idle=effect.idle)
                elif isinstance(effect, flows.Run):
                    answer, _ = self.node.run(effect.call)
                elif isinstance(effect, flows.Pop):
                    waiter = waiter or self.node.waiter()
                    answer = waiter.pop(effect.keys, effect.until - monotonic())
                elif isinstance(effect, flows.Quit):
                    if waiter is not None:
                        answer = waiter.quit()
                        self.node.rest(waiter)
                        waiter = None
                else:
                    answer = self._registered(effect)
                effect = flow.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            if waiter is not None:
                waiter.drop()

    def _registered(self, effect: flows.Register | flows.Lookup) -> str | None:
        ops = effect.ops
        if isinstance(effect, flows.Register):
            field = f"{ops.crc:08x}{effect.epoch}"
            self.node.command("HSET", self._registry, field, ops.name)
            self.node.identify()
            return None
        for name, epoch in self.registry():
            if name == ops.name:
                return epoch
        return None

    def registry(self) -> list[tuple[str, str]]:
        """Name and epoch of every queue that the registry lists."""
        flat = self.node.command("HGETALL", self._registry)
        return [
            (flat[i + 1].decode("utf-8", "replace"), flat[i].decode()[8:])
            for i in range(0, len(flat), 2)
        ]

    def unregister(self, ops: QueueOps, epoch: str) -> None:
        """Take a removed queue's epoch out of the registry; that epoch never returns."""
        self.node.command("HDEL", self._registry, f"{ops.crc:08x}{epoch}")
