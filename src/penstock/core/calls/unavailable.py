"""Commands of waits that a server or a proxy refuses, and the pause until each is tried again."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.jobs.logs import RateLimit

__all__ = ["UnavailableCommands"]

FIRST_COMMAND_PAUSE = 4.0
"""Seconds after the first refusal; twice as long after each further one."""
LONGEST_COMMAND_PAUSE = 3600.0
"""Most seconds between two tries of a refused command, and fewest between two warnings."""


class UnavailableCommands:
    """The commands that one server refuses, whatever their arguments.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pauses: dict[str, tuple[float, float]] = {}
        """Length and end of the last pause of each command."""
        self._complaints = RateLimit(LONGEST_COMMAND_PAUSE, clock)

    def __contains__(self, command: str) -> bool:
        return command in self._pauses and self._clock() < self._pauses[command][1]

    def note(self, command: str) -> bool:
        """Leave a refused command alone for a while; return whether to log that.

        A refusal an hour after the last pause is a first one: in between, the command was accepted,
        or was not needed.
        """
        now, (pause, end) = self._clock(), self._pauses.get(command, (0.0, -math.inf))
        if now >= end:  # else the command was sent before the pause, on another connection
            pause = (
                min(2 * pause, LONGEST_COMMAND_PAUSE)
                if now < end + LONGEST_COMMAND_PAUSE
                else FIRST_COMMAND_PAUSE
            )
            self._pauses[command] = pause, now + pause
        return self._complaints.allows(command)
