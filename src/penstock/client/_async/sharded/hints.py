"""Calls whose node is down: kept on another one, and made up for (protocol/nodes.md, Hints)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.client._async.queue import AsyncQueue
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
from penstock.core import hints
from penstock.core.hints import Hint, Intent
from penstock.core.logs import get_logger
from penstock.errors import WrongEpoch
from penstock.wire.keys import hints_key, split_name

if TYPE_CHECKING:
    from penstock.client._async.sharded.federated_node import AsyncFederatedNode
    from penstock.client._async.sharded.federation import AsyncFederation

__all__ = ["AsyncHints"]

logger = get_logger("penstock")


class AsyncHints:
    """What the nodes of a client keep for each other.

    Args:
        federation: the nodes.
    """

    def __init__(self, federation: AsyncFederation) -> None:
        self._federation = federation

    async def make_up(self, home: AsyncFederatedNode) -> None:
        """Do what other nodes have kept for one that is back, and what it keeps for others."""
        others = self._federation.up(home)
        for other in others:
            lost = None
            try:
                lost = await self.make_up_from(other, [home])
            except Exception as error:  # noqa: BLE001  # not this node's failure
                if not self._federation.bears(other, error):
                    logger.warning("hints on %s: %s", other.address, error)
            if lost is not None:
                raise lost
        await self.make_up_from(home, others)

    async def make_up_from(
        self, keeper: AsyncFederatedNode, homes: Sequence[AsyncFederatedNode]
    ) -> Exception | None:
        """Do what one node keeps for others; the failure of one of these, which is noted."""
        lost: Exception | None = None
        key = hints_key(self._federation.prefix)
        if not homes or not await keeper.ear.command("HLEN", key):
            return None
        cursor = b"0"
        while True:
            cursor, flat = await keeper.ear.command("HSCAN", key, cursor, "COUNT", 500)
            kept, foreign = hints.read_hints(flat)
            seconds, _ = await keeper.ear.command("TIME")
            over = [hint.field for hint in kept if hint.until < int(seconds) * 1000]
            for home in homes:
                own = [hint for hint in kept if hint.node in home.known and home is not keeper]
                try:
                    for batch in hints.batches(own):
                        over += await self._done(home, batch)
                except Exception as error:
                    if not self._federation.bears(home, error):
                        raise
                    lost = error
            if over:
                await keeper.ear.command("HDEL", key, *dict.fromkeys(over))
            if foreign:
                logger.warning("%s keeps %d hints of an unknown kind", keeper.address, len(foreign))
            if cursor == b"0" or lost is not None:
                return lost

    async def _done(self, home: AsyncFederatedNode, batch: Sequence[Hint]) -> list[str]:
        """Make up for calls about jobs of one queue; the fields that are done with."""
        first = batch[0]
        ops = AsyncQueue(home.brief, *split_name(first.queue)).ops
        call = ops.hinted(
            first.kind, first.epoch, first.window, first.reason, hints.pairs_of(batch)
        )
        try:
            await home.brief._node.run(call)
        except WrongEpoch:
            pass  # the queue has been made anew: there is nothing more to do about these jobs
        except Exception as error:  # it is kept until it can be done
            logger.warning("%d hints for %s: %s", len(batch), home.address, error)
            if passing(error):
                raise
            return []
        text = "late %s on %s: %d jobs of %r"
        logger.info(text, first.kind, home.address, len(batch), first.queue)
        return [hint.field for hint in batch]

    async def keep(
        self, home: AsyncFederatedNode, queue: str, names: Sequence[Any], intent: Intent
    ) -> list[bool]:
        """Keep a call about jobs of a node that can't be reached, on another one; of which jobs."""
        for keeper in self._federation.sticky.order(self._federation.homes):
            state = keeper.state
            if keeper is home or not state.is_up:
                continue
            try:
                if state.is_stale(monotonic()):
                    await keeper.look()
                if state.leaving or state.crowded:
                    continue
                found = await self._kept(keeper, home.id, queue, names, intent)
            except Exception as error:  # noqa: BLE001  # the next one, then
                self._federation.bears(keeper, error)
                continue
            if found is not None:
                if any(found) and home.state.is_up:  # it was found to be back meanwhile
                    with suppress(Exception):  # it is done when the list is read again
                        await self.make_up_from(keeper, [home])
                return found
        return [False] * len(names)

    async def _kept(
        self,
        keeper: AsyncFederatedNode,
        node: str,
        queue: str,
        names: Sequence[Any],
        intent: Intent,
    ) -> list[bool] | None:
        """Of which jobs a node keeps the call; None = it has too much of that."""
        key, command = hints_key(self._federation.prefix), keeper.ear.command
        seconds, micros = await command("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        found = [hints.hint_of(name, node, queue, intent, now) for name in names]
        kept = [hint for hint in found if hint is not None]
        if not kept:
            return [False] * len(names)
        if await command("HLEN", key) + len(kept) > hints.MOST:
            return None
        flat = [text for pair in hints.fields_of(kept).items() for text in pair]
        await command("HSET", key, *flat)
        life = hints.longest(kept) - now
        if await command("PTTL", key) < life:
            await command("PEXPIRE", key, life)
        return [hint is not None for hint in found]
