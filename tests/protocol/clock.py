"""Scripts with a fixed clock: `redis.call('TIME')` is replaced by a constant (tests/vectors)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import Script, script
from tests.protocol.keyspace import Raw

__all__ = [
    "PRODUCER", "STAGED", "T0", "frozen", "full_form", "keys_of", "named", "promise", "run",
    "with_producer",
]  # fmt: skip

T0 = 1_800_000_000_000
TIME = "redis.call('TIME')"
PRODUCER = "00000000445566ff"
NO_OPTIONS = ["", "0", "", "0", ""]
"""create, delay, bound, wait and role of an enqueue without options, which its lane leaves out."""
STAGED = ("ffee", 4)
"""Writer and batch of staged jobs."""
CHECKPOINT = "ff66554433221100"
EMITTING = b"%d-1000000000" % T0
"""A job that is watched."""


def frozen(source: str, now_ms: int) -> str:
    """Return the script with the clock fixed at this time and 789 microseconds."""
    seconds, ms = divmod(now_ms, 1000)
    return source.replace(TIME, f"{{'{seconds}', '{ms * 1000 + 789}'}}")


def named(keys: QueueKeys, found: Script) -> list[tuple[str, bytes]]:
    """Return the kinds of a script's KEYS, each with its key."""
    return list(zip(found.keys, keys_of(keys, found), strict=True))


def keys_of(keys: QueueKeys, found: Script) -> list[bytes]:
    """Return the KEYS of a script for a queue."""
    many = {
        "stage": keys.stage(*STAGED),
        "commit": keys.commit(STAGED[0]),
        "checkpoint": keys.checkpoint(CHECKPOINT),
        "emitted": keys.emitted(EMITTING)[0],
        "emitters": keys.emitted(EMITTING)[1],
    }
    return [many.get(kind) or keys[kind] for kind in found.keys]


def promise(raw: Raw, keys: QueueKeys) -> None:
    """Promise the staged jobs, as `commit` does."""
    era = f"{T0} a"
    raw.hset(keys.commit(STAGED[0]), mapping={"batch": STAGED[1], "state": "promised", "era": era})
    raw.set(keys["writes"], era)


def with_producer(found: Script, args: Sequence[Any]) -> Sequence[Any]:
    """Return ARGV of a script with the producer's id, if it takes one."""
    return (args[0], PRODUCER, *args[1:]) if "producer" in found.args else args


def lane_args(found: Script, args: Sequence[Any]) -> list[Any] | None:
    """Return the ARGV of a call with the keys of the fast lane; None = it would be another call."""
    if found.lane_args == len(found.args):
        return [*args]
    omitted = [*map(str, args[found.lane_args : len(found.args)])]
    is_usual = omitted == NO_OPTIONS
    return [*args[: found.lane_args], *args[len(found.args) :]] if is_usual else None


def run(
    raw: Raw, keys: QueueKeys, name: str, args: Sequence[Any], *, now_ms: int = T0
) -> list[Any]:
    """Run a script at a fixed time, and return its reply; one of a fast lane in the full form.

    Args:
        args: without the producer's id, which follows the number of the call.
    """
    found = script(name)
    names = keys_of(keys, found)
    args = with_producer(found, args)
    source = frozen(found.source, now_ms)
    reply: list[Any] = raw.execute_command("EVAL", source, len(names), *names, *args)
    return full_form(found, args, reply) if reply[0] == Code.LANE else reply


def full_form(found: Script, args: Sequence[Any], reply: list[Any]) -> list[Any]:
    """Return a reply of a fast lane as the full form of the script gives it."""
    _, nonce, *rest = reply
    if found.name in ("enqueue", "ack"):
        return [Code.DONE, nonce, *rest]
    told = [len(args) - len(found.args), b""] if found.name == "settle" else []
    pairs = zip(rest[4::2], rest[5::2], strict=True)
    jobs = [part for number, record in pairs for part in (number, b"", record)]
    return [Code.DONE, nonce, *rest[:4], *told, *jobs]
