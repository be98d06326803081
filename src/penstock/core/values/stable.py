"""Stable ids: one for each enqueue, also when its call is repeated (protocol/core.md, Record)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from itertools import chain, product, repeat
from operator import attrgetter

from penstock.core.values.ids import ORDERED_ALPHABET

__all__ = ["next_id"]

DIGIT_PAIRS = [bytes((one, other)) for one in ORDERED_ALPHABET for other in ORDERED_ALPHABET]
ALPHABET_TURNS = [
    bytes.maketrans(ORDERED_ALPHABET, ORDERED_ALPHABET[i:] + ORDERED_ALPHABET[:i])
    for i in range(len(ORDERED_ALPHABET))
]
"""Tables that replace each character by the one that is i places behind it."""
RANDOM_PAIRS = 5
"""Pairs of random characters, 12 bits each: 60 bits name the process."""


def ids() -> Iterator[bytes]:
    """Return ids that no other process makes: 12 characters, from the 4097th on 14, then 16.

    Random characters, and a count. All of it runs in C, so threads may share it. The last digit of
    the count turns all characters, as Redis 6.2 tells long texts apart by some of theirs: records
    of equal length that differed in one character alone cost that server 1.4 times the work.
    """
    prefix = b"".join(secrets.choice(DIGIT_PAIRS) for _ in range(RANDOM_PAIRS))
    first = DIGIT_PAIRS[:: len(ORDERED_ALPHABET)]  # those whose last digit is 0
    counts = (product(DIGIT_PAIRS[1:], *[DIGIT_PAIRS] * more, first) for more in (0, 1))
    stems = map(prefix.__add__, chain(first, map(b"".join, chain.from_iterable(counts))))
    return chain.from_iterable(
        map(map, map(attrgetter("translate"), stems), repeat(ALPHABET_TURNS))
    )


def _renew() -> None:
    """Begin new ids: a forked child must not repeat those of its parent."""
    global next_id  # noqa: PLW0603  # calls of it must not pass through a function of Python
    next_id = ids().__next__


next_id = ids().__next__
"""Returns an id that no other record has. Read it from this module: a fork replaces it."""
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_renew)
