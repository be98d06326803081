"""A clock that the test sets: the scripts read it from a key instead of from TIME.

Calls also remove fewer expired jobs and large bodies than they do otherwise, so that some are
always left. Nothing else of a script changes, so this works alike on fakeredis and on a server.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from functools import cache

import pytest

from penstock.core.calls.operations import base
from penstock.core.values import producer
from penstock.wire import scripts
from penstock.wire.scripts import Script
from tests.support.keyspace import Raw

__all__ = ["CLOCK", "REACH", "TestClock", "use_test_clock"]

CLOCK = b"test:clock"
REAL = "redis.call('TIME')"
OURS = f"redis.call('LRANGE', '{CLOCK.decode()}', 0, 1)"
USUAL_REACH, REACH = "local sweep_limit = 100 + 2 * ", 2
"""Number of expired jobs that a call lists, and its value here."""
USUAL_SWEEP, SWEEP = "local sweep_limit = 2000", f"local sweep_limit = {REACH}"
"""Number of expired jobs that a delivering call lists, and its value here."""
USUAL_ROOM, ROOM = "bytes_left, bodies_left = 67108864", "bytes_left, bodies_left = 8000"
"""Bytes of large bodies that a call removes, and its value here: one or two bodies."""
SEED = "tonumber(string.sub(number, -8))"
"""The seed of job numbers in a hand-over."""
COMPACTING = {
    "redis.call('XLEN', ready) >= 64": "redis.call('XLEN', ready) > 0",
    "nodes >= 64 and nodes * 4096 > 2 * jobs * (size + 300)": (
        f"redis.call('LLEN', '{CLOCK.decode()}') == 3"
    ),
}
"""The condition for a sparse stream in a sweep, and its value here: as the test sets it."""


class NoDraws:
    """Producer ids that leave no gaps in job numbers (protocol/core.md, Job number)."""

    @staticmethod
    def token_hex(size: int) -> str:
        """Return an id that begins with eight zeros."""
        return "00000000" + secrets.token_hex(size - 4)


@cache
def clocked(name: str) -> Script:
    """Return a script that reads the test's clock."""
    found = scripts.script(name)
    source = found.source.replace(REAL, OURS).replace(
        USUAL_REACH, f"local sweep_limit = {REACH} + 0 * "
    )
    source = source.replace(USUAL_SWEEP, SWEEP)
    if name != "evict":  # evict removes no more jobs than bodies
        source = source.replace(USUAL_ROOM, ROOM)
    if name == "hand_over":  # no gaps in the numbers
        assert SEED in source
        source = source.replace(SEED, "0")
    if name == "sweep":
        for usual, ours in COMPACTING.items():
            assert usual in source
            source = source.replace(usual, ours)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return dataclasses.replace(found, source=source, sha=sha)


def use_test_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every queue use the test's clock."""
    monkeypatch.setattr(base, "script", clocked)
    monkeypatch.setattr(producer, "secrets", NoDraws)


class TestClock:
    """The clock of one server.

    Args:
        raw: a client of it.
        start: ms since 1970.

    Attributes:
        compacts: treat every stream as sparse in a sweep, from the next `set` on.
    """

    __test__ = False

    def __init__(self, raw: Raw, start: int) -> None:
        self._raw = raw
        self.latest = start
        self.compacts = False
        self.set(start)

    def set(self, ms: int) -> None:
        """Set it, forward or backward."""
        self.ms = ms
        self.latest = max(self.latest, ms)
        with self._raw.pipeline() as pipe:
            pipe.delete(CLOCK)
            # A quarter of a ms, which must be ignored.
            pipe.rpush(CLOCK, ms // 1000, ms % 1000 * 1000 + 250, *["compact"] * self.compacts)
            pipe.execute()
