"""Failures of a connection, at a chosen call: before the server runs it, or after."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.client._sync.transport.connection import ProducerConnection

__all__ = ["Fault", "Faults"]

Fault = Literal["", "before", "after", "flushed", "token lost"]


class Faults:
    """Strikes the next script that is sent: `before` it reaches the server, or `after` it ran.

    The client then sends the same call again, with the same number.

    Attributes:
        armed: what is to happen.
        spared: scripts that pass before it does.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed: Fault = ""
        self.spared = 0
        roundtrip = ProducerConnection._roundtrip

        def broken(lane: ProducerConnection, packed: Any) -> Any:
            fault: Fault = self.armed if b"EVALSHA" in bytes(packed) else ""
            if fault and self.spared:
                reply = roundtrip(lane, packed)
                self.spared -= 1  # one that the server did not know is sent once more
                return reply
            if fault == "before":
                self.armed = ""
                raise RedisConnectionError("reset before the call was sent")
            reply = roundtrip(lane, packed)
            if fault == "after":
                self.armed = ""
                raise RedisConnectionError("reset before the reply came")
            return reply

        monkeypatch.setattr(ProducerConnection, "_roundtrip", broken)
