"""The deletion of a queue: at once, or as soon as both roles are free."""

from __future__ import annotations

import math
import secrets

from penstock.client._acompat import asleep
from penstock.client._async.transport.connection import monotonic
from penstock.pressure._async.link import AsyncLink
from penstock.pressure.calls import PressureCalls
from penstock.pressure.keys import check_role
from penstock.wire.codes import PressureCode
from penstock.wire.replies import PressureDeleteInUse

QUIET = 1.0
"""Seconds for which both roles are free before a deletion counts as broken off."""
GLANCE = 0.05
"""Seconds between two looks meanwhile."""


class AsyncDeletion:
    """One call of `delete`.

    Args:
        link: the server.
        calls: the operations of the queue.
        timeout: seconds to wait for the roles; None = for ever.
    """

    def __init__(self, link: AsyncLink, calls: PressureCalls, timeout: float | None) -> None:
        self._link = link
        self._calls = calls
        self._until = math.inf if timeout is None else monotonic() + timeout

    async def run(self) -> None:
        """Delete.

        Raises:
            QueueMissing: there is no queue, or another client has finished its deletion.
            QueueInUse: the time is over.
        """
        mark, step = secrets.token_hex(8), "end"
        reply = await self._link.once(self._calls.delete("begin", mark))
        while reply.code != PressureCode.DONE:
            if reply.code == PressureCode.MISSING:
                raise self._calls.error(reply.code)
            if reply.code == PressureCode.IN_USE:
                await self._freed(reply)
            else:
                step = "adopt"
            if step == "adopt":  # who had a role meanwhile may be the one who deletes
                await self._quiet()
            reply = await self._link.once(self._calls.delete(step, mark))

    async def _freed(self, refusal: PressureDeleteInUse) -> None:
        """Wait a slice, or until the role is free."""
        role = check_role(refusal.role.decode())
        left = self._until - monotonic()
        if left <= 0:
            raise self._calls.error(PressureCode.IN_USE, role, refusal.party)
        line = await self._link.line()
        try:
            await line.turned(self._calls.keys.free(role), end=b"LEFT", timeout=left)
        except BaseException:
            await line.close()
            raise
        self._link.keep(line)

    async def _quiet(self) -> None:
        """Wait until both roles have been free for so long that no client can be at work.

        A living party that deletes blocks only where a role is taken, and is done at once where
        none is.
        """
        since = math.inf
        while monotonic() < since + QUIET:
            seen = self._calls.seen(await self._link.repeatable(self._calls.show()))
            if seen.bound is not None or not seen.left:
                raise self._calls.error(PressureCode.MISSING)
            taken = [role for role in ("producer", "consumer") if role not in seen.free]
            since = math.inf if taken else min(since, monotonic())
            if taken and monotonic() >= self._until:
                raise self._calls.error(PressureCode.IN_USE, check_role(taken[0]))
            await asleep(GLANCE)
