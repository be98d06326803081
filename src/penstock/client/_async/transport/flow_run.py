"""One run of a flow. It waits for tokens by a pending BLPOP on each server that may have some."""

from __future__ import annotations

import asyncio  # async only
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.client._acompat import AsyncWakeup, afirst_ready, ashield, asleep
from penstock.client._async.transport.blocking import FAKE_BLPOP_SECONDS, AsyncBlockingConnection
from penstock.client._async.transport.cluster import AsyncCluster, is_elsewhere
from penstock.client._async.transport.executor import AsyncExecutor
from penstock.client._async.transport.server import AsyncServer
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.calls.operations import OwnNode, QueueOps, Taken
from penstock.core.flows.effects import (
    Cancelled,
    CloseConnections,
    Effect,
    EndWait,
    LetRunnersStart,
    Listen,
    Rest,
    Run,
    WaitResult,
)

__all__ = ["AsyncFlowRun"]

T = TypeVar("T")
ByKey = dict[bytes, QueueOps]
"""Key of a token -> its queue."""


class _AsyncWithExecutor(Protocol):
    executor: AsyncExecutor


class _AsyncListenedNode(OwnNode, Protocol):
    """One of several nodes, as a wait there sees it; see `AsyncFederatedNode`."""

    @property
    def brief(self) -> _AsyncWithExecutor:
        """Return the node by connections on which a call fails soon."""

    def note_failure(self, error: BaseException) -> None:
        """Note that it could not be reached."""


ListenedNode = _AsyncListenedNode | None
"""None = the only node."""


class _WaitPlace(NamedTuple):
    """A place where one BLPOP is pending: a server, or a slot of a cluster."""

    node: ListenedNode
    server: AsyncServer
    slot: int | None


class _PendingPop(NamedTuple):
    waiter: AsyncBlockingConnection
    queues: ByKey


class AsyncFlowRun(Generic[T]):
    """One run of a flow: carries out its effects, the waits by blocking connections of its own.

    After a failure of a node the flow looks at all its queues there.

    Args:
        flow: not started yet. The failure of an effect is thrown into it.
        answer: carries out the effects that are no waits.
        signal: ends a wait early when it is set.
        executor: of the only node; None = each queue names its own node.
        shorten: returns an earlier end of a wait; None = waits are not shortened.
    """

    def __init__(
        self,
        flow: Generator[Any, Any, T],
        answer: Callable[[Effect], Awaitable[Any]],
        signal: AsyncWakeup | None,
        executor: AsyncExecutor | None = None,
        shorten: Callable[[float], float] | None = None,
    ) -> None:
        self._flow = flow
        self._answer = answer
        self._signal = signal
        self._executor = executor
        self._shorten = shorten
        self._pending: dict[_WaitPlace, _PendingPop] = {}
        self._taken: Taken | None = None
        self._failures = 0

    async def run(self) -> T:
        """Run the flow to its end and return its result.

        A cancelled flow hands its tokens and jobs on to other consumers first.
        """
        try:
            return await self._carry_out(partial(next, self._flow))
        # [async only
        except asyncio.CancelledError:
            await ashield(self._leave())
            raise
        # async only]
        finally:
            await self.drop()

    # [async only
    async def _leave(self) -> None:
        with suppress(Exception, Cancelled):
            await self._carry_out(partial(self._flow.throw, Cancelled()))

    # async only]
    async def _carry_out(self, begin: Callable[[], Effect]) -> T:
        """Carry out the effects from the one that `begin` returns; return the flow's result."""
        try:
            effect = begin()
            while True:
                try:
                    answer = await self.answer(effect)
                except Exception as error:  # noqa: BLE001, PERF203  # the flow decides about it
                    effect = self._flow.throw(error)
                else:
                    effect = self._flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def answer(self, effect: Effect) -> Any:
        """Carry out an effect and return the answer."""
        if isinstance(effect, Run) and self._executor is not None:
            return await self._executor.run(effect.call, brief=effect.brief)
        if isinstance(effect, Rest):
            until = effect.until if self._shorten is None else self._shorten(effect.until)
            span = max(0.0, until - monotonic())
            return await (asleep(span) if self._signal is None else self._signal.wait(span))
        if isinstance(effect, LetRunnersStart):
            return await asleep(0)
        if isinstance(effect, Listen):
            return await self.listen(effect)
        if isinstance(effect, EndWait):
            return await self.end_wait()
        if isinstance(effect, CloseConnections):
            await self.drop()
        return await self._answer(effect)

    async def listen(self, effect: Listen) -> WaitResult:
        """Wait for tokens; return them, and the queues whose connection failed."""
        wanted: dict[ListenedNode, ByKey] = {}
        for ops in effect.queues:
            node = None
            if self._executor is None:
                node = cast("_AsyncListenedNode", ops.node)
            wanted.setdefault(node, {})[ops.keys[effect.kind]] = ops
        await self._drop([place for place in self._pending if place.node not in wanted])
        lost: list[QueueOps] = []
        woken = await self._ask_all_nodes(wanted, partial(self._arm, effect), lost)
        while not (woken or lost or self._taken):
            until = effect.until if self._shorten is None else self._shorten(effect.until)
            timeout = await self._await_reply(until)
            woken = await self._ask_all_nodes(wanted, partial(self._pop, timeout), lost)
            is_over = not self._is_sliced or monotonic() >= until
            if is_over or (self._signal is not None and self._signal.take()):
                break
        if len(lost) < len(effect.queues):
            self._failures = 0
        elif lost:
            self._failures += 1
            pause = min(0.02 * 2**self._failures, 1.0)
            await self.answer(Rest(min(monotonic() + pause, effect.until)))
        return WaitResult(tuple(woken), tuple(lost), self._take())

    async def _ask_all_nodes(
        self,
        wanted: dict[ListenedNode, ByKey],
        ask: Callable[[ListenedNode, ByKey], Awaitable[list[QueueOps]]],
        lost: list[QueueOps],
    ) -> list[QueueOps]:
        """Return the queues whose tokens were taken on any node; `lost` gets those of a failed one.

        The next call shows if that node is down.
        """
        woken: list[QueueOps] = []
        for node, queues in wanted.items():
            try:
                woken += await ask(node, queues)
            except Exception as error:  # noqa: PERF203  # node after node
                await self._drop(self._places_at(node))
                if not passing(error):
                    raise
                lost += queues.values()
        return woken

    async def _arm(self, effect: Listen, node: ListenedNode, queues: ByKey) -> list[QueueOps]:
        """Ensure that BLPOPs for these tokens are pending; return what earlier ones have taken."""
        woken: list[QueueOps] = []
        places = await self._connections(node).locate_keys(tuple(queues))
        for place in self._places_at(node):
            if self._has_moved(place):
                raise RedisConnectionError(f"{place.server.address} is not the right server now")
            if self._pending[place].queues.keys() != set(places.get(place[1:], ())):
                woken += await self._end([place])
        if woken or self._taken:
            return woken
        for (server, slot), keys in places.items():
            place = _WaitPlace(node, server, slot)
            if "BLPOP" in server.unavailable:
                await self._drop([place] if place in self._pending else ())
                continue
            if place not in self._pending:
                own = {key: queues[key] for key in keys}
                waiter = server.waiter()
                await waiter.close_if_dead()
                self._pending[place] = _PendingPop(waiter, own)
            waiter = self._pending[place].waiter
            if not waiter.is_sliced:
                follow = None if self._executor is None or slot is not None else effect.follow
                woken += [queues[key] for key in await waiter.begin(keys, follow)]
                self._taken = self._taken or waiter.take()
        return woken

    async def _await_reply(self, until: float) -> float:
        """Wait until one of several BLPOPs has a reply; return the time to wait for each."""
        timeout = until - monotonic()
        if not self._pending:
            await self.answer(Rest(until))
        elif self._is_sliced:
            is_alone = len(self._pending) == 1 and self._signal is None
            return timeout if is_alone else min(timeout, FAKE_BLPOP_SECONDS)
        elif len(self._pending) == 1:
            return timeout
        else:
            readers = [one.waiter.reader for one in self._pending.values() if one.waiter.reader]
            await afirst_ready(readers, timeout, self._signal)
        return 0.0

    async def _pop(self, timeout: float, node: ListenedNode, queues: ByKey) -> list[QueueOps]:
        woken = []
        for place in self._places_at(node):
            waiter, own = self._pending[place]
            if waiter.is_sliced:
                key = await waiter.slice(tuple(own), timeout)
            else:
                key = await waiter.read(timeout, self._signal)
                self._taken = self._taken or waiter.take()
            woken += [] if key is None else [queues[key]]
        return woken

    @property
    def _is_sliced(self) -> bool:
        return any(one.waiter.is_sliced for one in self._pending.values())

    def _places_at(self, node: ListenedNode) -> list[_WaitPlace]:
        return [place for place in self._pending if place.node is node]

    def _connections(self, node: ListenedNode) -> AsyncServer | AsyncCluster:
        if self._executor is not None:
            return self._executor.connections
        assert node is not None
        return node.brief.executor.connections

    def _has_moved(self, place: _WaitPlace) -> bool:
        return is_elsewhere(self._connections(place.node), place[1:], self._pending[place].waiter)

    def _take(self) -> Taken | None:
        taken, self._taken = self._taken, None
        return taken

    async def end_wait(self) -> WaitResult:
        """End the waits and keep the connections; return the tokens taken meanwhile."""
        woken: list[QueueOps] = []
        for node in {place.node: None for place in self._pending}:
            if node is not None and not node.state.is_up:
                await self._drop(self._places_at(node))
                continue
            try:
                woken += await self._end(self._places_at(node))
            except Exception as error:
                if not passing(error):
                    raise
                if node is not None:
                    node.note_failure(error)
        return WaitResult(tuple(woken), taken=self._take())

    async def _end(self, places: Iterable[_WaitPlace]) -> list[QueueOps]:
        """End the BLPOPs at these places; return the queues whose tokens they took."""
        woken: list[QueueOps] = []
        by_server: dict[AsyncServer, list[_WaitPlace]] = {}
        for place in places:
            if self._has_moved(place):
                await self._drop([place])
            else:
                by_server.setdefault(place.server, []).append(place)
        errors: list[Exception] = []
        try:
            for server, these in by_server.items():
                pending = [self._pending[place] for place in these]
                try:
                    await server.unblock([one.waiter for one in pending])
                    for waiter, queues in pending:
                        woken += [queues[key] for key in await waiter.read_end()]
                        self._taken = self._taken or waiter.take()
                except Exception as error:  # noqa: BLE001  # the other servers are told first
                    await self._drop(these)
                    errors.append(error)
                else:
                    for place in these:
                        server.rest(self._pending.pop(place).waiter)
            if errors and not (woken and passing(errors[0])):
                raise errors.pop(0)
            return woken
        finally:
            errors.clear()  # see `caught`

    async def drop(self) -> None:
        """Close the connections, with pending BLPOPs or without."""
        await self._drop(list(self._pending))

    async def _drop(self, places: Iterable[_WaitPlace]) -> None:
        for place in places:
            await self._pending.pop(place).waiter.drop()
