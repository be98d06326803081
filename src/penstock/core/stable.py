"""Stable ids: one for each enqueue, also when its call is repeated (protocol/core.md, Record)."""

from __future__ import annotations

import os
import secrets
from itertools import count

from penstock.core.ids import ORDERED

__all__ = ["next_stable_id"]

_PAIRS = [bytes((one, other)) for one in ORDERED for other in ORDERED]
RANDOM = 5
"""Pairs of random characters, 12 bits each: 60 bits name the process."""


class _Source:
    """The ids of one process: random characters, and a count."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw new random characters: a forked child must not repeat the ids of its parent."""
        self._prefix = b"".join(secrets.choice(_PAIRS) for _ in range(RANDOM))
        self._counter = count()

    def next(self) -> bytes:
        """Return an id that no other record has: 12 characters, from the 4097th on 14, then 16."""
        serial = next(self._counter)
        text = _PAIRS[serial & 4095]
        while serial := serial >> 12:
            text = _PAIRS[serial & 4095] + text
        return self._prefix + text


_source = _Source()
next_stable_id = _source.next
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_source.renew)
