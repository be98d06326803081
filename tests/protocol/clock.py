"""Scripts with a fixed clock: `redis.call('TIME')` is replaced by a constant (tests/vectors)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import Script, script
from tests.protocol.keyspace import Raw

__all__ = ["T0", "frozen", "keys_of", "run"]

T0 = 1_800_000_000_000
TIME = "redis.call('TIME')"
PRODUCER = "00112233445566ff"


def frozen(source: str, now_ms: int) -> str:
    """The script as it runs at this time of the server's clock, and 789 microseconds."""
    seconds, ms = divmod(now_ms, 1000)
    return source.replace(TIME, f"{{'{seconds}', '{ms * 1000 + 789}'}}")


def keys_of(keys: QueueKeys, found: Script, producer: str = PRODUCER) -> list[bytes]:
    """The KEYS of a script for a queue."""
    return [keys.producer(producer) if kind == "producer" else keys[kind] for kind in found.keys]


def run(
    raw: Raw, keys: QueueKeys, name: str, args: Sequence[Any], *, now_ms: int = T0
) -> list[Any]:
    """Run a script at a fixed time; its reply."""
    found = script(name)
    names = keys_of(keys, found)
    source = frozen(found.source, now_ms)
    reply: list[Any] = raw.execute_command("EVAL", source, len(names), *names, *args)
    return reply
