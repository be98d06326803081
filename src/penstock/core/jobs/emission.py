"""What the handler of a delivery tells those that watch its job, until it is sent.

Progress, and chunks of text or JSON (protocol/watching.md). The thread of the handler adds entries;
a heartbeat takes them. One that is sent twice is stored once, as entries have rising indexes.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.values.checks import Duration, duration_ms
from penstock.errors import BadArgument

__all__ = ["KEPT_REFUSALS", "Emission", "ToldEntry", "emit_ttl_ms", "encoded_chunk"]

MAX_CHUNK_BYTES = 65_536
"""Most bytes of one chunk."""
MAX_EMIT_TTL_MS = 86_400_000
"""Most ms for which chunks are kept after the last one."""
MOST_WAITING_ENTRIES = 1000
"""Most entries that wait to be sent; the oldest are dropped."""
MOST_WAITING_BYTES = 1_048_576
"""Most bytes of them."""
BYTES_PER_EMIT = 262_144
"""About the most bytes that one call sends."""

KEPT_REFUSALS = {
    -1: "the server's memory is full",
    -2: "1000 jobs of the queue have chunks already",
}
"""Why entries were not stored, by the field `kept` of the reply of `emit`."""


class ToldEntry(NamedTuple):
    """A progress, a chunk, or the begin of a delivery.

    Attributes:
        kind: `p` progress, `t` text, `j` JSON, `s` the delivery has begun.
        number: its place in the delivery, from 1; of a begin that of the entry before it, or 0.
        text: its content.
        size: bytes.
    """

    kind: str
    number: int
    text: str
    size: int


class Emission:
    """The entries of a delivery that are not sent yet.

    Attributes:
        is_watched: whether a client watches the job, as the server has answered last; None = it was
            not asked.
        ttl_ms: for how long entries are kept if no client watches; 0 = they are dropped.
        dropped: number of entries that were dropped because they came faster than they were sent.
        has_chunks: whether a chunk was added.
    """

    def __init__(self) -> None:
        self.is_watched: bool | None = None
        self.ttl_ms = 0
        self.dropped = 0
        self.has_chunks = False
        self._entries = deque[ToldEntry]()
        self._bytes = 0
        self._count = 0
        self._lock = threading.Lock()

    def add(self, kind: str, text: str) -> None:
        """Add an entry; drop the oldest ones if too many wait."""
        size = len(text.encode())
        with self._lock:
            self._count += kind != "s"  # a gap tells a reader what was dropped
            self._entries.append(ToldEntry(kind, self._count, text, size))
            self._bytes += size
            while len(self._entries) > MOST_WAITING_ENTRIES or self._bytes > MOST_WAITING_BYTES:
                self._bytes -= self._entries.popleft().size
                self.dropped += self.is_wanted
        self.has_chunks = self.has_chunks or kind in "tj"

    @property
    def is_wanted(self) -> bool:
        """True if entries are to be sent at once, as far as is known."""
        if self.is_watched is None and self.has_chunks:
            return True
        return bool(self.is_watched or self.ttl_ms)

    @property
    def must_go(self) -> bool:
        """True if there are entries to send."""
        return bool(self._entries) and self.is_wanted

    def first_part(self) -> Sequence[ToldEntry]:
        """Return the first entries, as many as one call sends."""
        part, left = list[ToldEntry](), BYTES_PER_EMIT
        with self._lock:
            for entry in self._entries:
                if part and left < entry.size:
                    break
                part.append(entry)
                left -= entry.size
        return part

    def drop_to(self, number: int) -> None:
        """Drop the entries up to this one: they were sent."""
        with self._lock:
            while self._entries and self._entries[0].number <= number:
                self._bytes -= self._entries.popleft().size

    def note_watched(self, is_watched: bool) -> None:
        """Note if a client watches. If none does, entries that nobody waits for are dropped."""
        self.is_watched = is_watched
        if not self.is_wanted:
            self.drop_to(self._count)


def encoded_chunk(data: object) -> tuple[str, str]:
    """Return the kind and the text of a chunk: text as it is, anything else as JSON.

    Raises:
        BadArgument: it can't be written as JSON, or is too large.
    """
    kind, text = "t", data
    if not isinstance(text, str):
        try:
            kind, text = "j", json.dumps(data, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"must be text, or fit in JSON ({error}): pass bytes as text"
            raise BadArgument("data", data, reason) from None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadArgument("data", data, "must be encodable as UTF-8") from None
    if size > MAX_CHUNK_BYTES:
        reason = f"has {size} bytes, and a chunk at most {MAX_CHUNK_BYTES}: emit it in parts"
        raise BadArgument("data", data, reason)
    return kind, text


def emit_ttl_ms(ttl: Duration | None) -> int:
    """Return the time for which chunks are kept if no client watches, in ms; None = 0.

    Raises:
        BadArgument: no duration, or more than a day.
    """
    span = 0 if ttl is None else duration_ms("ttl", ttl)
    if span > MAX_EMIT_TTL_MS:
        raise BadArgument("ttl", ttl, "must be at most 86400 seconds, a day")
    return span
