"""Keys of another type than the protocol's: the call raises and changes nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, Dedup, QueueDamaged
from penstock.core.calls.troubles import KEY_TYPES
from penstock.wire.keys import KEY_KINDS
from tests.support.keyspace import Raw, advance, dump

# Of the keys that a script declares, these are the ones that its call needs.
NEEDS = {
    "enqueue": ["ready", "meta", "wake"],
    "enqueue later": ["held", "scheduled", "meta", "wake"],
    "enqueue urgent": ["held", "scheduled", "urgent", "meta", "wake"],
    "enqueue with ttl": ["ready", "expiry", "meta", "wake"],
    "enqueue bounded": ["ready", "scheduled", "meta", "space"],
    "enqueue named": ["ready", "dedup", "windows", "meta", "wake"],
    "enqueue named later": ["ready", "held", "dedup", "windows", "scheduled", "meta", "wake"],
    "status": ["dedup", "meta"],
    "clear": list(KEY_KINDS),
    "reserve": ["ready", "held", "active", "scheduled", "urgent", "meta", "wake"],
    "settle": ["ready", "held", "active", "scheduled", "urgent", "meta", "wake"],
    "ack": ["held", "active", "meta"],
    "nack": ["held", "active", "scheduled", "dead", "tally", "meta", "wake"],
    "release": ["held", "active", "scheduled", "dead", "tally", "meta", "wake"],
    "bury": ["held", "active", "scheduled", "dead", "tally", "meta", "wake"],
    "extend": ["held", "active", "meta", "wake"],
    "redrive": ["held", "scheduled", "dead", "expiry", "meta", "wake"],
    "delete": ["ready", "held", "active", "scheduled", "once", "dead", "tally", "expiry", "meta"],
    "purge ready": ["ready", "held", "meta"],
    "purge active": ["held", "active", "once", "meta"],
    "purge scheduled": ["held", "scheduled", "meta"],
    "purge dead": ["held", "dead", "meta"],
    "sweep": ["held", "once", "dead", "tally", "expiry", "meta"],
    "stats": ["ready", "active", "scheduled", "once", "dead", "expiry", "meta"],
    "peek": ["ready", "held", "active", "scheduled", "meta"],
    "show": ["held", "active", "scheduled", "once", "dead", "tally", "expiry", "meta"],
    "configure": ["held", "meta", "wake", "space"],
    "pause": ["held", "meta", "wake", "space"],
    "schedule": ["meta", "wake", "ticks", "schedules"],
}


NO_LIMITS: Mapping[str, Any] = MappingProxyType({})
LIMITS: list[dict[str, Any]] = [
    {"per_key": 1},
    {"share": 1, "per_key": 1},
    {"key_rate": "10/s"},
    {"ordered": True},
]


async def fill(q: AsyncQueue, raw: Raw, settings: Mapping[str, Any] = NO_LIMITS) -> list[Any]:
    """Create every structure; the first held job is the one to settle.

    With limits per key, a parked job is behind each of the held ones.
    """
    if settings:
        await q.configure(**settings)
        keys = iter("abcde" * 2)
        await q.enqueue_many(range(10), ttl=1000, key=lambda _: next(keys))
    else:
        await q.enqueue_many(range(5), ttl=1000)
    jobs = await q.reserve(5, block=0)
    await jobs[4].bury()
    await jobs[3].nack(delay=0)
    await jobs[2].extend(5)
    await q.enqueue("once", lease=0, ttl=500)
    await q.enqueue("expired", ttl=5)
    await q.enqueue("due", delay=5)
    await q.enqueue("later", delay=500)
    if not settings.get("ordered"):
        await q.enqueue("urgent", delay=5, priority=1)
    await q.enqueue("named", delay=500, dedup=Dedup("a", window=60))
    await q.enqueue_many(["a", "b"])
    await q.reserve(2, block=0)
    advance(raw, q.ops, 6)
    return jobs


def calls(q: AsyncQueue, jobs: list[Any]) -> dict[str, Callable[[], Any]]:
    """Return the calls by name."""
    return {
        "enqueue": lambda: q.enqueue("x"),
        "enqueue later": lambda: q.enqueue("x", delay=60),
        "enqueue urgent": lambda: q.enqueue("x", delay=60, priority=1),
        "enqueue with ttl": lambda: q.enqueue_many(["x", "y"], ttl=60),
        "enqueue bounded": lambda: q.enqueue("x", max_length=1000),
        "enqueue named": lambda: q.enqueue("x", dedup_id="b"),
        "enqueue named later": lambda: q.enqueue("x", delay=60, dedup_id="b"),
        "status": lambda: q.dedup_status("a"),
        "clear": q.clear,
        "reserve": lambda: q.reserve(10, block=0),
        "settle": lambda: q.ack_and_reserve(jobs[:2], 10),
        "ack": lambda: q.ack(jobs[:2]),
        "nack": lambda: q.nack(jobs[:2]),
        "release": lambda: q.release(jobs[:2]),
        "bury": lambda: q.bury(jobs[:2]),
        "extend": lambda: q.extend(jobs[:2]),
        "redrive": q.redrive,
        "delete": lambda: q.delete([jobs[0].id, jobs[4].id]),
        "purge ready": lambda: q.purge("ready"),
        "purge active": lambda: q.purge("active"),
        "purge scheduled": lambda: q.purge("scheduled"),
        "purge dead": lambda: q.purge("dead"),
        "sweep": q.sweep,
        "stats": q.stats,
        "peek": lambda: q.peek(100),
        "show": lambda: q.show(jobs[0]),
        "configure": lambda: q.configure(lease=40),
        "pause": q.pause,
        "schedule": lambda: q.schedules.add("s", every=60, job="x"),
    }


def test_the_table_has_every_call(q: AsyncQueue) -> None:
    """The table has every call, and every key that some call needs."""
    assert set(calls(q, [None] * 5)) == set(NEEDS)
    assert {kind for kinds in NEEDS.values() for kind in kinds} == set(KEY_KINDS)


ASIDE = "aside:{q}"


async def met(call: Callable[[], Any]) -> Exception | None:
    """Return the error of a call that finds the key."""
    try:
        await call()
    except Exception as error:  # noqa: BLE001  # any other error than the expected one is a finding
        return error
    return None


@pytest.mark.parametrize("name", NEEDS)
async def test_a_key_of_another_type(ps: AsyncPenstock, raw: Raw, damage: None, name: str) -> None:
    """The call raises QueueDamaged without a change, or works if it does not need the key."""
    found = await find_changes(ps, raw, name, NO_LIMITS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "name, settings",
    [
        pytest.param(name, settings, id=f"{name} {' '.join(settings)}")
        for name in NEEDS
        for settings in LIMITS
        if name != "enqueue urgent" or not settings.get("ordered")
    ],
)
async def test_a_key_of_another_type_with_limits_per_key(
    ps: AsyncPenstock, raw: Raw, damage: None, name: str, settings: dict[str, Any]
) -> None:
    """A wrong type of a key is refused on a queue with limits per key, too."""
    found = await find_changes(ps, raw, name, settings)
    assert not found, "\n".join(found)


async def find_changes(
    ps: AsyncPenstock, raw: Raw, name: str, settings: Mapping[str, Any]
) -> list[str]:
    """Return what a call has changed before its error, for each key of another type."""
    found = []
    q = ps.queue("q")
    jobs: list[Any] = []
    for kind in KEY_KINDS:
        jobs = jobs or await fill(q, raw, settings)
        key = q.ops.keys[kind]
        raw.copy(key, ASIDE)
        raw.delete(key)
        raw.set(key, "not what it should be")
        before = dump(raw)
        error = await met(calls(q, jobs)[name])
        after = dump(raw)
        if error is None and kind in NEEDS[name] and not settings:
            found.append(f"{kind}: not noticed")
        elif error is None and after[key] != before[key]:
            found.append(f"{kind}: written over")
        elif error is not None and not isinstance(error, QueueDamaged):
            found.append(f"{kind}: {error!r}")
        elif error is not None and after != before:
            changed = {one for one in before.keys() | after if before.get(one) != after.get(one)}
            found.append(f"{kind}: {sorted(changed)} changed before the error")
        if after == before:  # only the one key differs
            raw.delete(key)
            raw.copy(ASIDE, key)
        else:
            raw.delete(*raw.scan_iter("penstock:{*"))
            jobs = []
        raw.delete(ASIDE)
    return found


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KEY_KINDS if kind not in ("once", "dead", "tally", "ticks", "schedules")],
)
@pytest.mark.parametrize("delay", [0, 5])
async def test_the_first_job_meets_another_type(
    q: AsyncQueue, raw: Raw, damage: None, kind: str, delay: int
) -> None:
    """A key of a wrong type existed before the queue: the first job is refused."""
    raw.set(q.ops.keys[kind], "a foreign value")
    error = await met(lambda: q.enqueue("x", ttl=60, max_length=5, delay=delay))
    assert raw.get(q.ops.keys[kind]) == b"a foreign value"
    if error is not None:
        assert isinstance(error, QueueDamaged)
        told = f"{q.ops.keys[kind].decode()!r} has the wrong type: it is a string, not a "
        assert told + KEY_TYPES[kind] in str(error)
        assert [key for key in raw.scan_iter() if b"{q}" in key] == [q.ops.keys[kind]]
    else:
        others = (
            "active",
            "urgent",
            "dedup",
            "windows",
            "finished",
            "tickets",
            "turns",
            "paces",
            "holds",
            "members",
            "batches",
        )
        assert kind in others or (kind, delay) == ("scheduled", 0)


@pytest.mark.parametrize("kind", ["ready", "held", "scheduled", "dedup"])
async def test_the_first_named_job_meets_another_type(
    q: AsyncQueue, raw: Raw, damage: None, kind: str
) -> None:
    """A delayed job with a dedup id is refused before anything is written."""
    raw.set(q.ops.keys[kind], "a foreign value")
    with pytest.raises(QueueDamaged):
        await q.enqueue("x", delay=5, dedup_id="a")
    assert [key for key in raw.scan_iter() if b"{q}" in key] == [q.ops.keys[kind]]


async def test_a_refused_call_leaves_its_producer(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, damage: None
) -> None:
    """The server has answered, so later calls go on with the same producer id."""
    await q.enqueue("make the queue")
    (caller,) = ps.topology.executor.connections.idle
    raw.delete(q.ops.keys["ready"])
    raw.set(q.ops.keys["ready"], "a foreign value")
    with pytest.raises(QueueDamaged):
        await q.enqueue("refused")
    (later,) = ps.topology.executor.connections.idle
    assert later.producer == caller.producer


async def test_the_registry_of_another_type(q: AsyncQueue, raw: Raw, damage: None) -> None:
    """With a registry of another type no job is added, as the queue can't be listed."""
    raw.set("penstock:queues", "not a hash")
    with pytest.raises(QueueDamaged):
        await q.enqueue("x")
    assert [key for key in raw.scan_iter() if b"{q}" in key] == []
