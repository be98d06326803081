"""Take an exclusive role."""

from __future__ import annotations

import math
from collections.abc import Generator
from functools import partial
from typing import Any

from penstock.core.calls.operations import QueueOps
from penstock.core.flows.effects import Cancelled, Clock, Effect, Rest, Run
from penstock.core.flows.producing import create_and_run
from penstock.core.values.roles import RoleLease
from penstock.errors import QueueInUse

__all__ = ["acquire"]

FIRST_ROLE_PAUSE, LONGEST_ROLE_PAUSE = 0.1, 2.5
"""Seconds between two tries to take a role that another client holds: the first, the longest."""


def acquire(
    ops: QueueOps, role_lease: RoleLease, *, block: float | None, clock: Clock
) -> Generator[Effect, Any, int]:
    """Take an exclusive role; make the queue first if need be; wait until it is free if asked to.

    The end of the holder's lease is waited for exactly. A role that is given back before is found
    by tries: soon at first, then every few seconds.

    Args:
        block: seconds to wait, 0 = not at all, None = for ever.

    Returns:
        The fence of the role.

    Raises:
        QueueInUse: another client holds it.
    """
    deadline = math.inf if block is None else clock() + block
    pause = FIRST_ROLE_PAUSE
    try:
        while True:
            try:
                _, reply = yield from create_and_run(ops, partial(ops.acquire, role_lease))
                return int(reply.fence)
            except QueueInUse as taken:
                if clock() >= deadline:
                    raise
                left = taken.left
            yield Rest(min(deadline, clock() + min(pause, left)))
            pause = min(pause * 2, LONGEST_ROLE_PAUSE)
    except Cancelled:  # the role may be taken, and the reply lost
        yield Run(ops.resign(role_lease))
        raise
