"""The interval at which waiting clients look again without a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from penstock.core.calls.operations import QueueOps

__all__ = ["POLL_INTERVAL", "Clock", "poll_interval"]

Clock: TypeAlias = Callable[[], float]
"""Returns monotonic seconds."""
POLL_INTERVAL = 4.0
"""Seconds after which an idle consumer or producer calls again, without a token."""


def poll_interval(queues: Sequence[QueueOps], role: str) -> float:
    """Return the seconds until a waiting client calls again, few enough to keep its roles."""
    thirds = [ops.role_leases[role].lease_ms / 3000 for ops in queues if role in ops.role_leases]
    return min([POLL_INTERVAL, *thirds])
