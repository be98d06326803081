"""How many jobs a reply of a queue may have: fewer after replies that were lost for their size.

A reply can be larger than what the server (client-output-buffer-limit), a proxy or a slow line lets
through. The same call would lose it again, and each lost reserve keeps its jobs until their leases
have ended. So a repeat, and later calls of the queue for a while, ask for a quarter.

Connections also fail for other reasons. So a loss counts only if the same call has lost a reply
before, or if an earlier loss is not explained: no reply of that size has come since. (The repeat of
a reserve takes other jobs. The lost ones come back later, and may be lost again.)
"""

from __future__ import annotations

import math
from typing import Any

from penstock.core.calls.call import Call
from penstock.core.values.checks import BATCH

__all__ = ["ReplyLimit", "resize", "size_of"]

COUNT_ARGUMENT = {
    "reserve": "n", "settle": "n", "peek": "count", "scan": "count", "browse": "count",
    "survey": "count", "fetch": "count", "assigned": "count",
}  # fmt: skip
"""The argument that bounds the reply of a script."""
TAKING_ARGUMENT = "n"
"""That argument of the scripts that take jobs."""
ARGS_PER_JOB = {"show": 1, "recover": 2}
"""The number of arguments for each job that these scripts are about."""
LOSS_DIVISOR = 4
"""A loss divides the number of jobs by this."""
FIRST_GROWTH_PAUSE = 60.0
"""Seconds after a loss until twice as many are asked for; twice as long if a larger size is lost
again."""
LONGEST_GROWTH_PAUSE = 240.0
ONE_EVENT_SECONDS = 5.0
"""Seconds in which the losses of several calls are one event, such as a restart of the server."""
SECOND_LOSS_WINDOW = 600.0
"""Seconds after a loss in which another event may point at the size."""
EXCUSED_LOSSES = 2
"""Losses in a row of windows that replies of the same size excuse. A third one may be that of a
single large job, which comes back each time its lease has ended."""
LOG_PAUSE = 60.0
"""Fewest seconds between two log records about a queue: of one job, of several."""


class ReplyLimit:
    """The limit of one queue.

    Attributes:
        most: how many jobs a reply may have; 0 = as many as a call asks for.
        suspected_size: how many jobs the lost reply could have; 0 = no loss is unexplained.
    """

    def __init__(self) -> None:
        self.most = 0
        self.suspected_size = 0
        self._lost_kind = ""
        self._lost_at = -math.inf
        self._excused = 0
        self._pause = FIRST_GROWTH_PAUSE
        self._slowed_at = -math.inf
        self._grow_at = 0.0
        self._silent_until = {True: 0.0, False: 0.0}

    def note_loss(self, call: Call[object], now: float) -> bool:
        """Ask for less, in this call and in later ones, if the loss points at the size.

        Args:
            call: its repeat asks for less.
            now: a time of the monotonic clock.

        Returns:
            should_log: True if the limit applies and the log has not said so lately.
        """
        size = size_of(call)
        if not size:
            return False
        is_repeated, call.losses = call.losses > 0, call.losses + 1
        if not (self._is_suspicious(call, size, now) or is_repeated):
            return False
        if is_repeated and now > self._slowed_at + ONE_EVENT_SECONDS:
            self._slowed_at = now
            if self.most:  # it has grown since, and the size is too large again
                self._pause = min(2 * self._pause, LONGEST_GROWTH_PAUSE)
        self._grow_at = now + self._pause
        self.most = min(max(1, size // LOSS_DIVISOR), self.most or size)
        resize(call, self.most)
        is_one = size == 1
        if now < self._silent_until[is_one]:
            return False
        self._silent_until[is_one] = now + LOG_PAUSE
        return True

    def _is_suspicious(self, call: Call[object], size: int, now: float) -> bool:
        """Note a loss; return True if losses of earlier events make it suspicious."""
        since = now - self._lost_at
        if since < ONE_EVENT_SECONDS:
            return False
        if since > SECOND_LOSS_WINDOW:
            self.suspected_size = self._excused = 0
        is_suspicious = self.suspected_size > 0 or self._excused >= EXCUSED_LOSSES
        self._lost_at, self._lost_kind, self.suspected_size = now, _kind_of(call), size
        return is_suspicious

    def note_reply(self, call: Call[object], result: Any) -> None:
        """Excuse the last loss if a reply of the lost size has come.

        A reserve can return fewer jobs than it has asked for, so its jobs are counted.
        """
        if _kind_of(call) != self._lost_kind:
            return
        size = size_of(call)
        if self._lost_kind == TAKING_ARGUMENT:
            size = len(getattr(result, "taken", result).deliveries)
        if size >= self.suspected_size > 0:
            self.suspected_size = 0
            self._excused += 1

    def apply(self, call: Call[object], now: float) -> None:
        """Let a call ask for no more than the limit, which grows with the time."""
        while self.most and now >= self._grow_at:
            self.most *= 2
            self._grow_at += self._pause
            if self.most > BATCH:
                self.most, self._pause = 0, FIRST_GROWTH_PAUSE
        if self.most:
            resize(call, self.most)


def size_of(call: Call[object]) -> int:
    """Return how many jobs a reply may have; 0 = it has no such size."""
    name = call.script.name
    if name in COUNT_ARGUMENT:
        return abs(int(call.args[_place_of(call)]))
    if name in ARGS_PER_JOB:
        return (len(call.args) - _first_name(call)) // ARGS_PER_JOB[name]
    return 0


def resize(call: Call[object], most: int) -> None:
    """Let a call ask for at most so many jobs."""
    if size_of(call) == 0:
        return
    if call.script.name in COUNT_ARGUMENT:
        at = _place_of(call)
        asked = int(call.args[at])
        # With one job, reserve plainly: repeated losses must end in a dead letter.
        count = -min(-asked, most) if asked < 0 and most > 1 else min(abs(asked), most)
        call.args = (*call.args[:at], b"%d" % count, *call.args[at + 1 :])
    else:
        call.args = call.args[: _first_name(call) + most * ARGS_PER_JOB[call.script.name]]


def _kind_of(call: Call[object]) -> str:
    """Return what bounds its reply, which is the same for calls whose replies are alike."""
    return COUNT_ARGUMENT.get(call.script.name, call.script.name)


def _place_of(call: Call[object]) -> int:
    return (
        call.script.args.index(COUNT_ARGUMENT[call.script.name]) - 1
    )  # the nonce is not in the arguments


def _first_name(call: Call[object]) -> int:
    return len(call.script.args) - 1
