"""A simulated Redis Cluster: servers that have the slots, and redirect to each other.

A slot moves as CLUSTER SETSLOT and MIGRATE move it, key by key. Until all have moved, a call whose
keys are apart is answered TRYAGAIN, and one that finds none of them ASK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from fakeredis._helpers import SimpleError, SimpleString
from redis.crc import key_slot

from tests.simulation.server import INFO, Server, Session

__all__ = ["Cluster"]

SLOTS = 16384
PORT = 6379
KEYLESS = frozenset(b"CLIENT CONFIG ECHO HELLO PING ROLE SCRIPT SELECT TIME WAIT WAITAOF".split())
"""Commands without a key that clients send."""


class Cluster:
    """A Redis Cluster.

    Args:
        servers: the primaries; each has as many slots.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self._owners = [servers[slot * len(servers) // SLOTS] for slot in range(SLOTS)]
        self._targets: dict[int, Server] = {}
        for server in servers:
            self.join(server)

    def join(self, server: Server) -> None:
        """Let a server be a part of the cluster."""
        server.answer = partial(self._answer, server)

    def replace(self, old: Server, new: Server) -> None:
        """Give the slots of a server to another one, its replica."""
        self._owners = [new if owner is old else owner for owner in self._owners]

    def slots_of(self, server: Server) -> list[int]:
        """Return the slots of the keys that a server has."""
        return sorted({key_slot(key) for key in server.data})

    async def move(
        self, slot: int, target: Server, seconds: float, can_move: Callable[[], bool]
    ) -> None:
        """Move a slot, key by key.

        Args:
            slot: the slot.
            target: the server that gets it.
            seconds: for which that takes.
            can_move: whether both servers work.
        """
        source = self._owners[slot]
        keys = [key for key in source.data if key_slot(key) == slot]
        self._targets[slot] = target
        while keys:
            await asyncio.sleep(seconds / len(keys))
            if can_move():
                target.take_key(keys[0], source)
            keys = [key for key in source.data if key_slot(key) == slot]
        self._owners[slot] = target
        del self._targets[slot]
        source.refuse_blocked(lambda command: self._redirect(source, command))

    # -- answers ---------------------------------------------------------------------------

    def _answer(self, server: Server, session: Session, command: Sequence[bytes]) -> Any:
        """Return the answer of a server that does not run a command; None = it runs it."""
        name = command[0].upper()
        if name == b"INFO":
            return INFO.replace(b"cluster_enabled:0", b"cluster_enabled:1")
        if name == b"CLUSTER":
            return self._describe(server, *command[1:])
        if name == b"ASKING":
            session.is_asking = True
            return SimpleString(b"OK")
        is_asking, session.is_asking = session.is_asking, False
        return self._redirect(server, command, is_asking=is_asking)

    def _describe(self, server: Server, what: bytes, *more: bytes) -> Any:
        if what.upper() == b"COUNTKEYSINSLOT":
            return sum(key_slot(key) == int(more[0]) for key in server.data)
        assert what.upper() == b"SLOTS", what
        ranges = []
        for owner, group in groupby(range(SLOTS), self._owners.__getitem__):
            slots = [*group]
            name = owner.name.encode()
            ranges.append([slots[0], slots[-1], [name, PORT, name.ljust(40, b"0")]])
        return ranges

    def _redirect(
        self, server: Server, command: Sequence[bytes], *, is_asking: bool = False
    ) -> SimpleError | None:
        keys = _keys_of(command)
        if not keys:
            return None
        slot, *others = {key_slot(key) for key in keys}
        if others:
            return SimpleError("CROSSSLOT Keys in request don't hash to the same slot")
        owner, target = self._owners[slot], self._targets.get(slot)
        missing = sum(key not in server.data for key in keys)
        try_again = SimpleError("TRYAGAIN Multiple keys request during rehashing of slot")
        if server is target and is_asking:
            return try_again if missing and len(keys) > 1 else None
        if server is not owner:
            return SimpleError(f"MOVED {slot} {owner.name}:{PORT}")
        if target is None or not missing:
            return None
        return try_again if missing < len(keys) else SimpleError(f"ASK {slot} {target.name}:{PORT}")


def _keys_of(command: Sequence[bytes]) -> Sequence[bytes]:
    """Return the keys of a command that clients send."""
    name, *arguments = command
    match name.upper():
        case b"EVALSHA" | b"EVAL":
            return arguments[2 : 2 + int(arguments[1])]
        case b"BLPOP":
            return arguments[:-1]
        case b"XREAD":
            names = arguments[[word.upper() for word in arguments].index(b"STREAMS") + 1 :]
            return names[: len(names) // 2]
        case other if other in KEYLESS:
            return []
    return arguments[:1]
