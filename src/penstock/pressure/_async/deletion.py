"""The deletion of a queue: at once, or as soon as both roles are free."""

from __future__ import annotations

import math
import secrets

from penstock.client._acompat import asleep
from penstock.client.clock import monotonic
from penstock.pressure._async.connections import AsyncPressureServer
from penstock.pressure.calls import PressureCalls
from penstock.pressure.keys import KEYS_OF_ROLE, check_role
from penstock.wire.codes import PressureCode
from penstock.wire.replies import PressureDeleteInUse

QUIET_ROLES_SECONDS = 1.0
"""Seconds for which both roles are free before a deletion counts as interrupted."""
STATE_READ_INTERVAL = 0.05
"""Seconds between two reads of the state meanwhile."""


async def delete(server: AsyncPressureServer, calls: PressureCalls, timeout: float | None) -> None:
    """Delete a queue.

    Args:
        server: the server.
        calls: of the queue's scripts.
        timeout: seconds to wait for the roles; None = without an end.

    Raises:
        QueueMissing: there is no queue, or another client has finished its deletion.
        QueueInUse: the time is over.
    """
    until = math.inf if timeout is None else monotonic() + timeout
    mark, step = secrets.token_hex(8), "end"
    reply = await server.run_once(calls.call("delete", step="begin", mark=mark))
    while reply.code != PressureCode.DONE:
        if reply.code == PressureCode.MISSING:
            raise calls.error(reply.code)
        if reply.code == PressureCode.IN_USE:
            await _wait_for_role(server, calls, reply, until=until)
        else:
            step = "adopt"
        if step == "adopt":  # the client that had a role meanwhile may be deleting the queue
            await _wait_until_quiet(server, calls, until)
        reply = await server.run_once(calls.call("delete", step=step, mark=mark))


async def _wait_for_role(
    server: AsyncPressureServer, calls: PressureCalls, refusal: PressureDeleteInUse, *, until: float
) -> None:
    """Wait until the role is free, for the time of one blocking command at most."""
    role = check_role(refusal.role.decode())
    left = until - monotonic()
    if left <= 0:
        raise calls.error(PressureCode.IN_USE, role, refusal.party)
    watched = await server.open_watched()
    try:
        await watched.wait_for_element(calls.keys.free(role), end=b"LEFT", timeout=left)
    except BaseException:
        await watched.close()
        raise
    server.keep(watched)


async def _wait_until_quiet(
    server: AsyncPressureServer, calls: PressureCalls, until: float
) -> None:
    """Wait until both roles have been free for so long that no client can be deleting the queue.

    A living client that deletes waits only while a role is taken. If none is, it ends at once.
    """
    since = math.inf
    while monotonic() < since + QUIET_ROLES_SECONDS:
        seen = calls.parse_state(await server.run_repeatable(calls.call("show")))
        if seen.bound is not None or not seen.left:
            raise calls.error(PressureCode.MISSING)
        taken = [role for role in KEYS_OF_ROLE if role not in seen.free]
        since = math.inf if taken else min(since, monotonic())
        if taken and monotonic() >= until:
            raise calls.error(PressureCode.IN_USE, taken[0])
        await asleep(STATE_READ_INTERVAL)
