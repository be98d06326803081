"""The producer id and the call numbers of a client (protocol/core.md, Repeats)."""

from __future__ import annotations

import secrets

from penstock.wire.keys import QueueKeys

__all__ = ["Producer"]

KEYS = 1000
"""Most queues whose keys are kept."""


class Producer:
    """A producer id and a call counter; one call at a time.

    The counter is the nonce of every call and the call number of every enqueue.

    Args:
        calls: the first number.
    """

    __slots__ = ("calls", "keys", "producer")

    def __init__(self, calls: int = 0) -> None:
        self.producer = secrets.token_hex(8)
        self.calls = calls
        self.keys: dict[str, bytes] = {}

    def key(self, queue: QueueKeys) -> bytes:
        """Return the key under which a queue keeps this producer's last call."""
        key = self.keys.get(queue.name)
        if key is None:
            if len(self.keys) > KEYS:
                self.keys.clear()
            key = self.keys[queue.name] = queue.producer(self.producer)
        return key
