"""The ends of replies of a Redis server (RESP2 and RESP3)."""

from __future__ import annotations

END = b"\r\n"
STRINGS = b"$!="
AGGREGATES = {b"*": (1, 0), b"~": (1, 0), b">": (1, 0), b"%": (2, 0), b"|": (2, 1)}
PUSH = b">"


def end_of_value(data: bytes, position: int = 0) -> int | None:
    """Return the index after the value at `position`, or None if bytes are missing."""
    wanted = 1
    while wanted:
        end = data.find(END, position)
        if end < 0:
            return None
        kind, rest = data[position : position + 1], data[position + 1 : end]
        position = end + len(END)
        wanted -= 1
        if kind in STRINGS and int(rest) >= 0:
            position += int(rest) + len(END)
        elif kind in AGGREGATES:
            factor, extra = AGGREGATES[kind]  # an attribute (|) comes before its value
            wanted += factor * max(0, int(rest)) + extra
    return position if position <= len(data) else None


class ReplyCounter:
    """A counter of whole replies in a stream of bytes, without pushes.

    Args:
        replies: how many are waited for.
    """

    def __init__(self, replies: int) -> None:
        self.left = replies
        self._pending = b""

    def feed(self, data: bytes) -> bool:
        """Process new bytes, and tell if all replies have ended."""
        self._pending += data
        while self.left > 0 and (end := end_of_value(self._pending)) is not None:
            if not self._pending.startswith(PUSH):
                self.left -= 1
            self._pending = self._pending[end:]
        return self.left <= 0
