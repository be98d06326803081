"""Queues that a heartbeat leaves alone for a while, as they have refused a renewal."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.operations import QueueOps

__all__ = ["PutOff"]

SHORTEST, LONGEST = 0.25, 4.0
"""Seconds until a queue is asked again: after the first refusal, and at most."""


class PutOff:
    """The queues whose leases can't be renewed now. The others' leases are renewed as usual.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: dict[QueueOps, tuple[int, float]] = {}

    def note(self, ops: QueueOps) -> int:
        """Note a refusal of a queue; return how many there were in a row."""
        times = self._queues.get(ops, (0, 0.0))[0] + 1
        pause = min(SHORTEST * 2.0 ** min(times - 1, 8), LONGEST)
        self._queues[ops] = (times, self._clock() + pause)
        return times

    def holds(self, ops: QueueOps) -> bool:
        """Return whether to leave a queue alone now."""
        return bool(self._queues) and self._queues.get(ops, (0, 0.0))[1] > self._clock()

    def forget(self, ops: QueueOps) -> None:
        """Note that a queue has renewed leases."""
        self._queues.pop(ops, None)
