# From src/penstock/client/_async/transport/driver.py by tools/unasync.py; do not edit.
"""Drives flows: carries out their effects on a node."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from penstock.client._acompat import Wakeup
from penstock.client._sync.transport.executor import Executor
from penstock.client._sync.transport.flow_run import FlowRun
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.deliveries import check_deliveries
from penstock.core.calls.failures import about_server
from penstock.core.calls.operations import QueueOps
from penstock.core.flows.sweeping import IDLE_MS, SweepSchedule
from penstock.core.jobs.logs import get_logger
from penstock.core.values.partitions import count_field, read_count
from penstock.errors import PenstockError, QueuePartitioned
from penstock.wire.keys import QueueKeys, registry_entry, registry_key, split_name

logger = get_logger("penstock")
T = TypeVar("T")

MOST_SWEEP_STEPS = 10
"""Limit of the steps of one sweep by a waiting client; a step removes up to 1,000 of each kind."""


class Driver:
    """Runs flows on one node, and keeps its registry of queues.

    Args:
        executor: runs the calls.
        prefix: prefix of all keys.
    """

    def __init__(self, executor: Executor, prefix: str) -> None:
        self.executor = executor
        self._prefix = prefix
        self._registry = registry_key(prefix)
        self._turns = SweepSchedule()
        self._listed: list[tuple[str, str]] = []
        self._cursor = "0"

    def drive(self, flow: Generator[Any, Any, T], signal: Wakeup | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: not started yet.
            signal: ends a wait of the flow early when it is set.
        """
        return FlowRun(flow, self.answer, signal, executor=self.executor).run()

    def drive_each(self, each: Sequence[Generator[Any, Any, T]]) -> list[T | Exception]:
        """Run flows of different queues side by side, with the calls of a step in one trip.

        They do not wait. Return the result, or the error, of each.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: the node can't be reached.
        """
        ends: dict[int, T | Exception] = {}
        steps = {at: partial(next, flow) for at, flow in enumerate(each)}
        while steps:
            effects = {}
            for at, step in steps.items():
                try:
                    effects[at] = step()
                except StopIteration as end:  # noqa: PERF203  # of each flow once
                    ends[at] = end.value
                except Exception as error:  # noqa: BLE001  # the caller decides about it
                    ends[at] = error
            answers = self._answer_each(list(effects.values()))
            steps = {
                at: partial(
                    each[at].throw if isinstance(answer, Exception) else each[at].send, answer
                )
                for at, answer in zip(effects, answers, strict=True)
            }
        return [ends[at] for at in range(len(each))]

    def _answer_each(self, effects: Sequence[flows.Effect]) -> list[Any]:
        """Carry out effects of different queues; return the answer, or the error, of each."""
        calls = [effect.call for effect in effects if isinstance(effect, flows.Run)]
        results = iter(self.executor.run_each(calls) if calls else ())
        self._register([one for one in effects if isinstance(one, flows.Register)])
        self.unregister(
            *[(one.ops, one.epoch) for one in effects if isinstance(one, flows.Unregister)]
        )
        return [
            next(results)
            if isinstance(effect, flows.Run)
            else None
            if isinstance(effect, (flows.Register, flows.Unregister))
            else self.answer(effect)
            for effect in effects
        ]

    def answer(self, effect: flows.Effect) -> Any:
        """Carry out an effect other than a wait and return the answer."""
        if isinstance(effect, flows.Run):
            return self.executor.run(effect.call, brief=effect.brief)
        if isinstance(effect, flows.ReserveJobs):
            call = effect.ops.reserve(effect.n, idle=effect.idle)
            call.wait = effect.wait
            taken = self.executor.run(call, brief=effect.brief)
            if effect.wait is not None and (error := check_deliveries(call, taken)) is not None:
                raise error
            return taken
        if isinstance(effect, flows.CloseConnections):
            return self.executor.close()
        if isinstance(effect, flows.GiveUpSoon):
            return self.executor.connections.give_up_soon()
        if isinstance(effect, flows.SweepDue):
            return self.sweep_due(effect)
        if isinstance(effect, flows.Unregister):
            return self.unregister((effect.ops, effect.epoch))
        assert isinstance(effect, flows.Register)
        return self._register([effect])

    def _register(self, effects: Sequence[flows.Register]) -> None:
        fields: list[str] = []
        for effect in effects:
            ops = effect.ops
            if ops.partitions is not None:  # a `clear` has removed the number
                self.declare(ops.keys, ops.partitions)
            fields += (f"{ops.crc:08x}{effect.epoch}", ops.keys.name)
        if fields:
            self.executor.command("HSET", self._registry, *fields)
            self.executor.identify()

    def declare(self, keys: QueueKeys, count: int) -> None:
        """Store the number of partitions of a queue, or check that it is the stored one.

        Raises:
            QueuePartitioned: it has another number of them, or is an ordinary queue.
        """
        whole = QueueKeys(keys.whole, keys.prefix)
        meta = whole["meta"]
        version = self.executor.command("HGET", meta, "v")
        if version is None:
            if self.executor.command("EXISTS", whole["ready"], whole["held"]):
                raise QueuePartitioned(whole.name, None, count)  # it has lost its meta
            version = self.executor.set_absent(meta, "v", count_field(count))
        stored = read_count(version)
        if stored != count:
            raise QueuePartitioned(whole.name, stored, count)

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions of a queue: 0 = it has none, None = no such queue."""
        return self.partitions_of([name])[0]

    def partitions_of(self, names: Iterable[str]) -> list[int | None]:
        """Return the number of partitions of each queue."""
        metas = [QueueKeys(name, self._prefix)["meta"] for name in names]
        versions = self.executor.commands([("HGET", meta, "v") for meta in metas])
        return [None if one is None else read_count(one) or 0 for one in versions]

    def undeclare(self, name: str, count: int) -> None:
        """Remove the stored number of partitions, which frees the name of the queue."""
        if self.partitions(name) == count:
            self.executor.command("HDEL", QueueKeys(name, self._prefix)["meta"], "v")

    def registry_page(self, cursor: str, n: int) -> tuple[str, list[tuple[str, str]]]:
        """Return the next cursor and at most n entries of the registry, as name and epoch.

        HSCAN returns a small hash as a whole, so its pages are cut. A cursor is that of HSCAN;
        after a dot it has the last field that was returned of that page, in the order of the
        fields.
        """
        at, _, behind = cursor.partition(".")
        after, flat = self.executor.command("HSCAN", self._registry, at, "COUNT", n)
        fields = sorted(zip(flat[::2], flat[1::2], strict=True))
        left = [
            (field, entry)
            for field, name in fields
            if field > behind.encode() and (entry := registry_entry(field, name))
        ]
        cursor = f"{at}.{left[n - 1][0].decode()}" if len(left) > n else after.decode()
        return cursor, [entry for _, entry in left[:n]]

    def unregister(self, *removed: tuple[QueueOps, str]) -> None:
        """Remove the epochs of removed queues from the registry; they are never used again."""
        if removed:
            fields = [f"{ops.crc:08x}{epoch}" for ops, epoch in removed]
            self.executor.command("HDEL", self._registry, *fields)

    # -- sweeping --------------------------------------------------------------------------

    def sweep(self, ops: QueueOps, most: float = math.inf) -> tuple[int, bool]:
        """Sweep a queue in bounded steps; return the number of removed jobs, and if more are left.

        Args:
            ops: the queue.
            most: limit of the steps.
        """
        total, more, steps = 0, True, 0
        while more and steps < most:
            reply = self.executor.run(ops.sweep(IDLE_MS))
            total, more, steps = total + reply.expired + reply.trimmed, bool(reply.more), steps + 1
            if reply.removed:
                self.unregister((ops, reply.removed.decode()))
        return total, more

    def sweep_due(self, effect: flows.SweepDue) -> None:
        """Sweep those of the queues that are due, and a few of the registry."""
        for ops in effect.queues:
            name = ops.keys.name
            if not self._turns.is_due(name, monotonic()):
                continue
            try:
                if self.sweep(ops, MOST_SWEEP_STEPS)[1]:
                    self._turns.again(name, monotonic())
            except Exception as error:
                if about_server(error):
                    raise
                logger.debug("queue %r can't be swept: %s", name, error)
        count = self._turns.made() if effect.is_new else self._turns.listed(monotonic())
        if count:
            self._turns.found(self.sweep_listed(count), monotonic())

    def sweep_listed(self, count: int) -> int:
        """Sweep some queues of the registry, one step each; return how many were removed.

        Successive calls go through the registry again and again. An entry with another epoch than
        its queue has is removed, too.
        """
        chosen = dict[str, tuple[QueueOps, str]]()
        for _ in range(count):
            if not self._listed:
                self._cursor, self._listed = self.registry_page(self._cursor, 10)
                random.shuffle(self._listed)
            if not self._listed:
                break
            listed, epoch = self._listed.pop()
            name, number = split_name(listed)
            with suppress(PenstockError):  # not a queue's name
                keys = QueueKeys(name, self._prefix, number)
                chosen[listed] = (QueueOps(keys, "", ()), epoch)
        replies = self.executor.run_each([ops.sweep(IDLE_MS) for ops, _ in chosen.values()])
        removed, old = 0, list[tuple[QueueOps, str]]()
        for (ops, epoch), reply in zip(chosen.values(), replies, strict=True):
            if isinstance(reply, Exception):
                continue  # a newer protocol, or damage
            if reply.removed or (reply.epoch and reply.epoch.decode() != epoch):
                old.append((ops, reply.removed.decode() or epoch))
                removed += bool(reply.removed)
        self.unregister(*old)
        return removed
