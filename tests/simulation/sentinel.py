"""Simulated Sentinels, and the servers behind them, of which one is the primary."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from fakeredis._helpers import SimpleError

from tests.simulation.server import Server, Session

__all__ = ["SERVICE", "Sentinels"]

SERVICE = "primary"
OF_REPLICAS = frozenset(b"CLIENT HELLO INFO PING SELECT".split())
"""Commands that a replica runs as a primary does. Others are of no use to the product there."""
LONGEST_DELAY = 1.0
"""Most seconds after which a Sentinel knows of a failover."""


class Sentinels:
    """Sentinels of one service.

    Args:
        sentinels: the servers that act as Sentinels.
        servers: those that they watch, the primary first.
        draws: the source of randomness.
    """

    def __init__(
        self, sentinels: Sequence[Server], servers: Sequence[Server], draws: random.Random
    ) -> None:
        self._primary, *_ = servers
        self._epoch = 0
        self._draws = draws
        self._views = dict.fromkeys(sentinels, (self._epoch, self._primary))
        for sentinel in sentinels:
            sentinel.answer = partial(self._tell, sentinel)
        for server in servers:
            server.answer = partial(self._answer, server)

    def replace(self, new: Server) -> None:
        """Let another server be the primary."""
        self._primary = new
        self._epoch += 1

    async def learn(self) -> None:
        """Let the Sentinels learn which server is the primary, one after the other."""
        for sentinel in self._views:
            self._views[sentinel] = (self._epoch, self._primary)
            await asyncio.sleep(self._draws.uniform(0.0, LONGEST_DELAY))

    def _tell(self, sentinel: Server, session: Session, command: Sequence[bytes]) -> Any:
        del session
        if command[0].upper() != b"SENTINEL":
            return None
        epoch, primary = self._views[sentinel]
        if command[1].upper() == b"GET-MASTER-ADDR-BY-NAME":
            return [primary.name.encode(), b"6379"]
        others = len(self._views) - 1
        return [b"num-other-sentinels", b"%d" % others, b"config-epoch", b"%d" % epoch]

    def _answer(self, server: Server, session: Session, command: Sequence[bytes]) -> Any:
        del session
        name, is_primary = command[0].upper(), server is self._primary
        if name == b"ROLE":
            return [b"master" if is_primary else b"slave"]
        if is_primary or name in OF_REPLICAS:
            return None
        return SimpleError("READONLY You can't write against a read only replica.")
