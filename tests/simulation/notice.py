"""How long a worker may take to notice the end of a lease, while servers are slow or not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.loop import Clock
from tests.simulation.server import MOST_SECONDS_BEHIND

__all__ = ["Notice"]

NOTICE_SECONDS = 8.0
"""Most seconds after which a worker notices that a lease has ended. Its heartbeat may wait for a
silent server meanwhile: two calls, each with 2 s to connect and 2 s to reply."""
REQUESTS_OF_NOTICE = 12
"""Most requests of these two calls: on a new connection, to a server without the script."""


@dataclass
class Slowness:
    """A time in which a server takes so many seconds for a request.

    Attributes:
        seconds: these seconds.
        until: when all requests of that time are done.
    """

    seconds: float
    until: float = math.inf


class Notice:
    """The bound, by what has happened to the servers.

    Args:
        clock: the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slow: list[Slowness] = []

    @contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Note that a server takes so long for a request."""
        slowness = Slowness(seconds)
        self._slow.append(slowness)
        try:
            yield
        finally:
            slowness.until = self._clock.now + MOST_SECONDS_BEHIND

    def seconds_since(self, ended_at: float) -> float:
        """Return the most seconds after the end of a lease in which a worker notices it."""
        slow = [one.seconds for one in self._slow if one.until >= ended_at]
        return NOTICE_SECONDS + REQUESTS_OF_NOTICE * max(slow, default=0.0)
