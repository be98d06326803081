"""How many jobs a reply of a queue may have: fewer after a reply that was lost.

A reply can be larger than what the server (client-output-buffer-limit), a proxy or a slow line lets
through. The same call would lose it again, and each lost reserve keeps its jobs until their leases
have ended. So after the second loss a repeat asks for a quarter, and so do later calls of the queue
for a while.
"""

from __future__ import annotations

from penstock.core.calls import Call
from penstock.core.options import BATCH

__all__ = ["ReplyLimit", "resize", "size_of"]

COUNTS = {
    "reserve": "n", "reserve_plain": "n", "settle": "n", "settle_plain": "n",
    "peek": "count", "scan": "count", "browse": "count", "survey": "count", "fetch": "count",
    "assigned": "count",
}  # fmt: skip
"""The argument that bounds the reply of a script."""
NAMES = {"show": 1, "recover": 2}
"""The number of arguments for each job that these scripts are about."""
LESS = 4
"""The part of the jobs that is asked for after a loss: one in so many."""
FIRST_PAUSE = 60.0
"""Seconds after the first loss until twice as many are asked for; twice as long after each further
loss."""
LONGEST_PAUSE = 3600.0
SUSPICION = 3600.0
"""Seconds after a lost reply for which another one is no accident."""
COMPLAINT = 60.0
"""Fewest seconds between two log records about a queue: of one job, of several."""


class ReplyLimit:
    """The limit of one queue.

    Attributes:
        most: how many jobs a reply may have; 0 = as many as a call asks for.
    """

    def __init__(self) -> None:
        self.most = 0
        self._suspected_until = 0.0
        self._pause = FIRST_PAUSE / 2
        self._grow_at = 0.0
        self._silent_until = {True: 0.0, False: 0.0}

    def lose(self, call: Call[object], now: float) -> bool:
        """Ask for less after a second lost reply, in this call and in later ones.

        The first one may be that of a server which has restarted, or of a network which has
        forgotten an idle connection.

        Args:
            call: its repeat asks for less.
            now: a time of the monotonic clock.

        Returns:
            Whether to log that.
        """
        size = size_of(call)
        if not size:
            return False
        is_second, self._suspected_until = now < self._suspected_until, now + SUSPICION
        if not is_second:
            return False
        if now > self._grow_at + LONGEST_PAUSE:
            self._pause = FIRST_PAUSE / 2
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._grow_at = now + self._pause
        self.most = max(1, size // LESS)
        resize(call, self.most)
        is_one = size == 1
        if now < self._silent_until[is_one]:
            return False
        self._silent_until[is_one] = now + COMPLAINT
        return True

    def apply(self, call: Call[object], now: float) -> None:
        """Let a call ask for no more than the limit, which grows with the time."""
        while self.most and now >= self._grow_at:
            self.most = 0 if self.most * 2 > BATCH else self.most * 2
            self._grow_at += self._pause
        if self.most:
            resize(call, self.most)


def size_of(call: Call[object]) -> int:
    """Return how many jobs a reply may have; 0 = it has no such size."""
    name = call.script.name
    if name in COUNTS:
        return abs(int(call.args[_place_of(call)]))
    if name in NAMES:
        return (len(call.args) - _first_name(call)) // NAMES[name]
    return 0


def resize(call: Call[object], most: int) -> None:
    """Let a call ask for at most so many jobs.

    A reserve of one job counts the end of its lease as a crash even if the job is a suspect: if its
    reply is lost each time, it becomes a dead letter.
    """
    if size_of(call) == 0:
        return
    if call.script.name in COUNTS:
        at = _place_of(call)
        given = int(call.args[at])
        count = -min(-given, most) if given < 0 and most > 1 else min(abs(given), most)
        call.args = (*call.args[:at], b"%d" % count, *call.args[at + 1 :])
    else:
        call.args = call.args[: _first_name(call) + most * NAMES[call.script.name]]


def _place_of(call: Call[object]) -> int:
    return call.script.args.index(COUNTS[call.script.name]) - 1  # the nonce is not in the arguments


def _first_name(call: Call[object]) -> int:
    return len(call.script.args) - 1
