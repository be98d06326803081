"""The producer id and the call numbers of a client (protocol/core.md, Repeats)."""

from __future__ import annotations

import secrets

__all__ = ["Producer"]


class Producer:
    """A producer id and a call counter; one call at a time.

    The counter is the nonce of every call and the call number of every enqueue.

    Args:
        calls: the first number.
        producer: the id; empty = a new one.
    """

    __slots__ = ("calls", "producer")

    def __init__(self, calls: int = 0, producer: bytes = b"") -> None:
        self.producer = producer or secrets.token_hex(8).encode()
        self.calls = calls
