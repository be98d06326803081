"""Failures of a connection, at a chosen call: before the server runs it, or after."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.client._sync.transport.connection import ProducerConnection
from penstock.wire.codes import Code

__all__ = ["Fault", "Faults"]

Fault = Literal["", "before", "after", "flushed", "token lost"]


class Faults:
    """A fault for the next sent script: `before` it reaches the server, or `after` it ran.

    The client then sends the same call again, with the same number. A plain form that refused has
    not run: the fault strikes the full script that the client calls next.

    Attributes:
        armed: what is to happen.
        spared: scripts that pass before it does.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed: Fault = ""
        self.spared = 0
        exchange = ProducerConnection.exchange

        def broken(connection: ProducerConnection, call: Any, caller: Any) -> Any:
            fault, is_spared = self.armed, self.spared > 0
            if fault and is_spared:
                self.spared -= 1
            elif fault == "before":
                self.armed = ""
                raise RedisConnectionError("reset before the call was sent")
            reply = exchange(connection, call, caller)
            if fault == "after" and not is_spared and reply[0] != Code.KEYS_MISSING:
                self.armed = ""
                raise RedisConnectionError("reset before the reply came")
            return reply

        monkeypatch.setattr(ProducerConnection, "exchange", broken)
