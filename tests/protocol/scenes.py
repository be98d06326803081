"""Queues with a job in every place, and calls of every script that affect them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script
from tests.protocol.clock import STAGED, T0, promise, run
from tests.protocol.keyspace import Raw
from tests.protocol.seeds import AT, EPOCH

__all__ = [
    "CALLS",
    "CLOSED",
    "LONG",
    "ROLES",
    "Act",
    "Scene",
    "abandoned_scene",
    "borne_scene",
    "closed_scene",
    "closing_scene",
    "crowded_scene",
    "dangling_scene",
    "dedup_scene",
    "expired_scene",
    "keyed_scene",
    "leaving_scene",
    "plain_scene",
    "rich_scene",
    "spent_scene",
]

TAG = 0xABC
RECEIPT = "1-abc"
TOKEN = "0123456789abcdef"
BRIEF, LONG = 200, 600_000
"""Ttls in ms: one ends before `AT`, the other later."""
BATCH_DEADLINE = 3_600_000
"""Time in ms for which a batch may be open."""
FENCE = T0 * 1000 + 789
BORNE = f"{FENCE}-{TOKEN}"
"""Number and token of the held roles in `borne_scene`."""


@dataclass
class Scene:
    """A queue and its jobs.

    Attributes:
        numbers: purpose of the jobs -> their numbers.
        call: number of the last enqueue.
        is_mixed: whether every second job has a large body.
    """

    raw: Raw
    keys: QueueKeys
    numbers: dict[str, list[bytes]]
    call: int = 10
    is_mixed: bool = False

    def run(self, name: str, *args: Any, at: int = T0) -> list[Any]:
        """Run a script on the queue."""
        return run(self.raw, self.keys, name, args, now_ms=at)

    @property
    def every(self) -> list[bytes]:
        """Return the numbers of all jobs."""
        return [number for numbers in self.numbers.values() for number in numbers]


def _add(scene: Scene, name: str, record: str, count: int = 2, delay: int = 0) -> list[bytes]:
    scene.call += 1
    records = [record + "y" * (5000 if scene.is_mixed and i % 2 else 0) for i in range(count)]
    first = scene.run("enqueue", scene.call, EPOCH, delay, "", 0, "", *records)[2]
    ms, _, seq = first.partition(b"-")
    numbers = [b"%s-%d" % (ms, int(seq) + i) for i in range(count)]
    scene.numbers[name] = numbers
    return numbers


def _deliver(scene: Scene, name: str, record: str, count: int = 2) -> list[bytes]:
    numbers = _add(scene, name, record, count)
    assert len(scene.run("reserve", 2, count, TAG, "ada", 0, "")) == 6 + 3 * count
    return numbers


def plain_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a queue with ready and active jobs only, without optional structures."""
    scene = Scene(raw, keys, {})
    _deliver(scene, "active", "1\nbody", 3)
    _add(scene, "ready", "1\nbody", 3)
    return scene


def rich_scene(raw: Raw, keys: QueueKeys, ttl: int = BRIEF) -> Scene:
    """Make a queue with jobs in every place, large ones too; at `AT` due times,
    leases and ttls end.
    """
    scene = Scene(raw, keys, {}, is_mixed=True)
    _deliver(scene, "active", "1\nbody", 3)
    _deliver(scene, "lease ended", "1;l=100\nbody")
    _deliver(scene, "own policy", "1;l=100;p=1,9,9\nbody")
    _deliver(scene, "active expired", f"1;t={ttl}\nbody")
    _deliver(scene, "once", "1;l=0;t=60000\nbody")
    _deliver(scene, "once expired", f"1;l=0;t={ttl}\nbody")
    for number in _deliver(scene, "dead", "1\nbody"):
        scene.run("bury", 3, EPOCH, RECEIPT, "no use", "", number)
    for number in _deliver(scene, "backing off", "1\nbody"):
        scene.run("nack", 3, EPOCH, RECEIPT, 10_000, 1, "broke", "", number)
    for number in _deliver(scene, "due", "1;t=60000\nbody"):
        scene.run("nack", 3, EPOCH, RECEIPT, 100, 1, "broke", "", number)
    _add(scene, "delayed", "1\nbody", delay=20_000)
    _add(scene, "ready expired", f"1;t={ttl}\nbody")
    _add(scene, "ready", "1\nbody", 3)
    return scene


def expired_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a `plain_scene` with jobs whose ttl has ended at `AT`, without other structures."""
    scene = plain_scene(raw, keys)
    _add(scene, "ready expired", "1;t=200\nbody")
    return scene


def closed_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a closed queue with held jobs: ending them all drains it."""
    scene = Scene(raw, keys, {})
    _deliver(scene, "active", "1\nbody", 3)
    _deliver(scene, "once", "1;l=0;t=60000\nbody")
    return _closed(scene)


def closing_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a closed queue with waiting jobs, whose ttl has ended at `AT`."""
    scene = Scene(raw, keys, {})
    _add(scene, "ready", "1;t=200\nbody")
    return _closed(scene)


def _closed(scene: Scene) -> Scene:
    scene.run("configure", 3, "", "closed", 1)
    scene.raw.delete(scene.keys["wake"])
    return scene


def borne_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a queue with both exclusive roles held, for calls with them."""
    scene = plain_scene(raw, keys)
    for kind in ("producer", "consumer"):
        reply = scene.run("acquire", 3, "", kind, TOKEN, "", 60_000, "ada")
        assert b"%s-%s" % (reply[2], TOKEN.encode()) == BORNE.encode()
    return scene


def dedup_scene(raw: Raw, keys: QueueKeys, ttl: int = BRIEF) -> Scene:
    """Make a queue with dedup ids, successors, windows; at `AT` some ttls and
    windows have ended.
    """
    scene = plain_scene(raw, keys)
    _claim(scene, "owner", "1;d=owner\nbody")
    _claim(scene, "mortal", f"1;t={ttl};d=mortal\nbody")
    _claim(scene, "once owner", f"1;l=0;t={ttl};d=once\nbody")
    _claim(scene, "lapsing", "1;l=100;d=lapsing\nbody")
    _claim(scene, "windowed", "1;d=windowed;w=60000\nbody")
    for name in ("past", "open", "awaited", "due"):
        _claim(scene, name, f"1;d={name};w={60_000 if name in ('open', 'awaited') else 200}\nbody")
    every = scene.run("reserve", 2, 100, TAG, "ada", 0, "")[6::3]
    scene.numbers["active"] = every[:3]
    scene.numbers.pop("ready")
    for name in ("past", "open", "awaited", "due"):
        scene.run("ack", 3, EPOCH, RECEIPT, "", *scene.numbers.pop(name))
    for name in ("owner", "mortal", "once", "lapsing", "windowed", "awaited", "due"):
        _claim(scene, f"after {name}", f"1;d={name}\nheir", "q")
    _claim(scene, "waiting", "1;d=waiting\nbody")
    _claim(scene, "starting", "1;d=starting;u=s\nbody", "s")
    _claim(scene, "brief", f"1;t={ttl};d=brief\nbody")
    _add(scene, "ready", "1\nbody")
    return scene


def _claim(scene: Scene, name: str, record: str, mode: str = "") -> None:
    scene.call += 1
    record += "y" * (5000 if scene.call % 2 else 0)
    reply = scene.run("claim", scene.call, EPOCH, 0, "", 0, "", mode, record)
    assert reply[3] == 1, name
    scene.numbers[name] = [reply[2]]


def crowded_scene(raw: Raw, keys: QueueKeys, ttl: int = BRIEF) -> Scene:
    """Make a `rich_scene` with jobs that have dedup ids, and a waiting producer."""
    scene = rich_scene(raw, keys, ttl)
    _claim(scene, "owner", "1;d=owner;w=60000\nbody")
    _claim(scene, "waiting", "1;d=waiting;w=60000\nbody")
    assert len(scene.run("reserve", 2, 6, TAG, "ada", 0, "")) == 6 + 3 * 6
    _claim(scene, "successor", "1;d=owner\nheir", "q")
    _add(scene, "ready", "1\nbody")
    assert scene.run("enqueue", 89, "", 0, 1, 60_000, "", "1\nbody")[0] == -3
    raw.delete(keys["space"], keys["wake"])
    return scene


def keyed_scene(raw: Raw, keys: QueueKeys, ttl: int = BRIEF) -> Scene:
    """Make a queue with a limit per key, with active, ready, due and parked jobs."""
    scene = Scene(raw, keys, {})
    scene.run("configure", 1, EPOCH, "per_key", 1)
    hot, cold, other = (f"1;q={'0' * 12}{digit}" for digit in "123")
    _deliver(scene, "active", f"{hot}\nbody", 1)
    _deliver(scene, "lease ended", f"1;l=100{cold[1:]}\nbody", 1)
    _deliver(scene, "once", f"1;l=0;t=60000{other[1:]}\nbody", 1)
    _add(scene, "parked", f"{hot}\nbody", 3)
    _add(scene, "parked behind", f"{cold}\nbody", 1)
    _add(scene, "parked, expired", f"1;t={ttl}{other[1:]}\nbody", 2)
    _add(scene, "delayed", f"{hot}\nbody", 2, delay=100)
    _claim(scene, "owner", f"{cold};d=owner\nbody")
    _add(scene, "ready", "1;q=0000000000004\nbody", 2)
    return scene


def spent_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a `plain_scene` with jobs of lease 0 whose ttl has ended at `AT`."""
    scene = Scene(raw, keys, {})
    _deliver(scene, "once expired", "1;l=0;t=200\nbody")
    _deliver(scene, "active", "1\nbody", 3)
    _add(scene, "ready", "1\nbody", 3)
    return scene


def leaving_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a queue without ttls; at `AT` leases of jobs end that die of it, or were cancelled."""
    scene = Scene(raw, keys, {})
    _deliver(scene, "dying", "1;l=100;p=1,9,9\nbody")
    for number in _deliver(scene, "cancelled", "1;l=100\nbody"):
        scene.run("cancel", 3, EPOCH, number)
    _add(scene, "ready", "1\nbody", 3)
    return scene


def dangling_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a queue with entries of indexes whose records are gone, as after a damaged restore."""
    scene = Scene(raw, keys, {})
    lost = [*_deliver(scene, "lost", "1;l=100\nbody"), *_add(scene, "lost, due", "1\nx", delay=100)]
    raw.hdel(keys["held"], *lost)
    _add(scene, "ready", "1\nbody", 3)
    return scene


def abandoned_scene(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a queue with an open batch whose deadline has come at `AT`."""
    scene = Scene(raw, keys, {})
    opened = T0 + BRIEF - BATCH_DEADLINE
    reply = scene.run("open_batch", 1, EPOCH, "", "success", "1\nlast", at=opened)
    scene.numbers["batch"] = [reply[2]]
    _add(scene, "ready", "1\nbody", 3)
    return scene


@dataclass(frozen=True)
class Act:
    """A call of a script on a scene.

    Attributes:
        name: for test ids.
        script: name of the script.
        args: ARGV; `*name` stands for the numbers of that name, `**` for all, `?` for the number of
            the last enqueue.
        settings: configured before.
        batch: how many jobs the checkpoint's first batch gets before, taken as number `T0`.
    """

    name: str
    script: str
    args: tuple[Any, ...]
    settings: tuple[Any, ...] = ()
    batch: int = 0

    def prepare(self, scene: Scene) -> None:
        """Store the settings; stage jobs, fill or open a batch, or create a schedule, for a call
        about them.
        """
        if "stage" in script(self.script).keys:
            two = "0 11 11\n1;d=x\nnew 11;d=y\nnew 2"
            taken = "500 13 14\n1;d=owner\nnew1;d=mortal\nnew"
            scene.raw.hset(scene.keys.stage(*STAGED), mapping={"a:0": two, "b:0": taken})
            entry = f"{STAGED[0]}:{STAGED[1]}"
            scene.raw.hset(scene.keys["staged"], entry, f"{T0 + 60_000} 4")
        if self.script == "publish" or self.name == "unstage, promised":
            promise(scene.raw, scene.keys)
        if "ticks" in script(self.script).used:
            value = '{"every":9000}\n1\nbody'
            scene.run("schedule", 4, EPOCH, "hourly", T0, "f" * 16, "", value, "shop")
        if self.script in ("close_batch", "read_batch"):
            reply = scene.run("open_batch", 89, EPOCH, "", "success", "1\nlast")
            scene.numbers["batch"] = [reply[2]]
        if self.settings:
            scene.run("configure", 4, "", *self.settings)
        if self.batch:
            assert scene.run("assign", 4, "", 1, 100, self.batch, 7, "eve", 60_000)[2] == b"%d" % T0

    def arguments(self, scene: Scene) -> list[Any]:
        """Return ARGV with the numbers inserted."""
        return [part for arg in self.args for part in self._spread(arg, scene)]

    def _spread(self, arg: Any, scene: Scene) -> list[Any]:
        if arg == "**":
            return list(scene.every)
        if arg == "?":
            return [scene.call]
        if isinstance(arg, str) and arg.endswith(" pairs"):
            numbers = scene.numbers.get(arg[1:].removesuffix(" pairs"), [])
            return [part for number in numbers for part in (number, RECEIPT)]
        if arg == "*one":  # the first of the active jobs, or any job
            return [*scene.numbers.get("active", []), *scene.every][:1]
        if isinstance(arg, str) and arg.startswith("*") and len(arg) > 1:
            return list(scene.numbers.get(arg[1:], []))
        return [arg]

    def happen(self, scene: Scene) -> list[Any]:
        """Run it at `AT`."""
        return scene.run(self.script, *self.arguments(scene), at=AT)


def _calls() -> Iterator[Act]:
    record, short = "1\nnew", "1;t=5000\nnew"
    yield Act("enqueue", "enqueue", (90, "", 0, "", 0, "", record, record))
    yield Act("enqueue, delayed", "enqueue", (90, "", 500, "", 0, "", record, short))
    yield Act("enqueue, ttl", "enqueue", (90, "", 0, "", 0, "", short))
    yield Act("enqueue, repeated", "enqueue", ("?", "", 0, "", 0, "", record))
    yield Act("enqueue, full", "enqueue", (90, "", 0, 1, 8000, "", record))
    yield Act("enqueue, token", "enqueue", (90, "", 0, 1000, 0, ""), ())
    for mode in ("", "u", "ud", "q", "uq", "udq", "s", "e"):
        until = f";u={mode}" if mode in ("s", "e") else ""
        names = ("new", "owner", "mortal", "once", "windowed", "past", "open", "awaited", "waiting")
        many = [f"1;d={name};w=900{until}\nnew" for name in names]
        yield Act(f"claim, mode {mode!r}", "claim", (90, "", 0, "", 0, "", mode, *many))
        if mode in ("", "ud"):
            yield Act(
                f"claim, mode {mode!r}, delayed", "claim", (90, "", 500, "", 0, "", mode, *many)
            )
    yield Act("claim, free", "claim", (90, "", 0, "", 0, "", "", "1;d=x\nnew", "1;t=900;d=y\nnew"))
    yield Act(
        "claim, due", "claim", (90, "", 0, "", 0, "", "u", "1;d=due\nnew", "1;d=waiting\nnew")
    )
    yield Act(
        "claim, update", "claim", (90, "", 0, "", 0, "", "ud", "1;d=waiting\nnew", "1;d=x\nnew")
    )
    yield Act("claim, delayed", "claim", (90, "", 500, "", 0, "", "", "1;d=x\nnew"))
    yield Act("claim, full", "claim", (90, "", 0, 1, 8000, "", "", "1;d=x\nnew"))
    yield Act("claim, refused", "claim", (90, "", 0, "", 0, "", "", "1;d=owner\nnew"))
    staged = "0 9\n1;d=z\nnew"
    yield Act("stage", "stage", (90, 4, "c:0", 60_000, staged))
    yield Act("commit", "commit", (90, 4, 60_000, 4, "a", 1, "b", 1))
    for attempt in ("a", "b", "c"):
        act = (90, "", "", 0, "", f"{attempt}:0", 1000)
        yield Act(f"publish, {attempt}", "publish", act)
    yield Act("publish, some", "publish", (90, "", "", 0, "", "a:0", 1))
    yield Act("publish, full", "publish", (90, "", 1, 8000, "", "a:0", 1000))
    yield Act("unstage", "unstage", (90, 4, ""))
    yield Act("unstage, done", "unstage", (90, 4, 1000))
    yield Act("unstage, promised", "unstage", (90, 4, 1000))
    yield Act("lookup", "lookup", (90, "owner"))
    yield Act("lookup, window", "lookup", (90, "awaited"))
    yield Act("clear", "clear", (90,))
    yield Act("reserve", "reserve", (90, 100, 7, "eve", 0, ""))
    yield Act("reserve, two", "reserve", (90, 2, 7, "eve", 1, ""))
    yield Act("reserve, crash", "reserve", (90, 100, 7, "eve", 0, ""),
              ("max_crashes", 1, "dead_max", 1))  # fmt: skip
    yield Act("reserve, none", "reserve", (90, 0, 7, "eve", 1, ""))
    yield Act("assign", "assign", (90, "", 1, 100, 100, 7, "eve", 3000))
    yield Act("assign, two", "assign", (90, T0, 1, 2, 2, 7, "eve", 60_000))
    yield Act("assign, crash", "assign", (90, "", 1, 100, 100, 7, "eve", 60_000),
              ("max_crashes", 1, "dead_max", 1))  # fmt: skip
    yield Act("assign, none", "assign", (90, "", 1, 100, 0, 7, "eve", 60_000))
    yield Act("assign, more", "assign", (90, T0, 1, 100, 100, 7, "eve", 60_000), (), 1)
    yield Act("assign, the next", "assign", (90, T0, 2, 100, 1, 7, "eve", 60_000), (), 1)
    yield Act("assigned", "assigned", (90, T0, 1, 0, 100), (), 2)
    yield Act("fetch", "fetch", (90, 1, 0, 100, 2), (), 2)
    yield Act("dismiss", "dismiss", (90, T0, 1), (), 2)
    yield Act("ack", "ack", (90, EPOCH, RECEIPT, "", "*active"))
    yield Act("ack, waiting", "ack", (90, EPOCH, "", "", "*delayed", "*ready"))
    yield Act("ack, by id", "ack", (90, EPOCH, "", "", "**"))
    yield Act(
        "hand_over", "hand_over", (90, EPOCH, RECEIPT, "", "*one", "", "0 500", record, short)
    )
    yield Act("hand_over, by id", "hand_over", (90, EPOCH, "", "", "*one", "", "", record))
    yield Act("settle", "settle", (90, EPOCH, RECEIPT, 100, 7, "eve", "", "*active"))
    yield Act("settle, none", "settle", (90, EPOCH, RECEIPT, 0, 7, "eve", "", "*active"))
    yield Act("settle, one", "settle", (90, EPOCH, RECEIPT, 1, 7, "eve", "", "*active"))
    yield Act("settle, by id", "settle", (90, EPOCH, "", 100, 7, "eve", "", "**"))
    yield Act("settle, crash", "settle", (90, EPOCH, RECEIPT, 100, 7, "eve", "", "*active"),
              ("max_crashes", 1, "dead_max", 1))  # fmt: skip
    yield Act("nack", "nack", (90, EPOCH, RECEIPT, -1, 1, "broke", "", "*active"))
    yield Act("nack, own policy", "nack", (90, EPOCH, "", -1, 1, "broke", "", "*own policy"))
    yield Act("nack, last", "nack", (90, EPOCH, "", 0, 1, "broke", "", "**"),
              ("max_attempts", 1, "dead_max", 1))  # fmt: skip
    yield Act("release", "release", (90, EPOCH, RECEIPT, 0, "*active"))
    yield Act("release, last", "release", (90, EPOCH, "", 0, "**"), ("max_releases", 1))
    yield Act("suspend", "suspend", (90, EPOCH, RECEIPT, 1, "a day", 86_400_000, "*active"))
    yield Act("suspend, by id", "suspend", (90, EPOCH, "", 1, "a", 0, "**"))
    yield Act(
        "call_jobs",
        "call_jobs",
        (90, EPOCH, RECEIPT, "*one", 1, "ship", 2, "", "-", "0 500", record, short),
    )
    yield Act("bury", "bury", (90, EPOCH, RECEIPT, "no use", "", "*active"))
    yield Act("bury, by id", "bury", (90, EPOCH, "", "no use", "", "**"))
    yield Act("extend", "extend", (90, EPOCH, RECEIPT, 0, 0, "*active"))
    yield Act("extend, by id", "extend", (90, EPOCH, "", 3000, 1, "**"))
    yield Act("recover", "recover", (90, EPOCH, "*", 7, "eve", "", "*active pairs"))
    yield Act("recover, crash", "recover", (90, EPOCH, "*", 7, "eve", "", "*active pairs"),
              ("max_crashes", 1, "dead_max", 1))  # fmt: skip
    yield Act("recover, owner", "recover", (90, EPOCH, "*", 7, "eve", "", "*owner pairs"),
              ("max_crashes", 1, "dead_max", 1))  # fmt: skip
    yield Act("promote", "promote", (90, EPOCH, "**"))
    yield Act("dequeue", "dequeue", (90, EPOCH, "**"))
    yield Act("withdraw", "withdraw", (90, EPOCH, "**"))
    yield Act("evict", "evict", (90, 100, 1))
    yield Act("pending", "pending", (90, "-inf", 0, 0))
    yield Act("scan", "scan", (90, "0", 100, 1))
    yield Act("scan, some", "scan", (90, "0", 100, 0, "active", "dead"))
    for part in ("ended", "due", "ready", "scheduled", "active", "parked", "once", "dead"):
        yield Act(f"browse, {part}", "browse", (90, part, "", 100, 0, 200))
    for place in ("ready", "scheduled", "active", "parked", "once", "dead"):
        yield Act(f"survey, {place}", "survey", (90, EPOCH, place, "", "", 100, 2))
    yield Act("cancel", "cancel", (90, EPOCH, "**"))
    yield Act("cancel, ready", "cancel", (90, EPOCH, "*ready"))
    yield Act("beat", "beat", (90, EPOCH, RECEIPT, "1 3 10 nearly", "*active"))
    yield Act("suspend, a wait", "suspend", (90, EPOCH, RECEIPT, 0, "a", 86_400_000, "*active"))
    yield Act("signal", "signal", (90, EPOCH, "*one", "a", "1"))
    yield Act("note", "note", (90, EPOCH, RECEIPT, "*one", 1, "stock", "1"))
    yield Act("emit", "emit", (90, EPOCH, RECEIPT, "*one", "", "t1", "a", "p2", "3 10 "))
    yield Act("emit, kept", "emit", (90, EPOCH, RECEIPT, "*one", 60_000, "t1", "a", "p2", "3 10 "))
    yield Act("watch", "watch", (90, EPOCH, "*one", "0-0", 1))
    yield Act("read_notes", "read_notes", (90, EPOCH, RECEIPT, "*one"))
    yield Act("redrive", "redrive", (90, "", 100, 0))
    yield Act("redrive, by id", "redrive", (90, EPOCH, 0, 0, "**"))
    yield Act("delete, active", "delete", (90, EPOCH, "*active"))
    yield Act("delete, ready", "delete", (90, EPOCH, "*ready"))
    yield Act("delete", "delete", (90, EPOCH, "**"))
    for state in (
        "parked",
        "ready",
        "due",
        "scheduled",
        "dependent",
        "ended",
        "active",
        "once",
        "dead",
    ):
        yield Act(f"purge, {state}", "purge", (90, state, "", 0))
    yield Act("sweep", "sweep", (90, 600_000), ("dead_max", 1))
    yield Act("measure", "measure", (90, "resize", "2.1", "3.z"))
    yield Act("hold", "hold", (90, 5000))
    yield Act("hold, ended", "hold", (90, 0))
    yield Act("configure", "configure", (90, "", "lease", 5000, "paused", "out", "max_length", ""))
    yield Act("acquire", "acquire", (90, "", "producer", TOKEN, "", 5000, "eve"))
    yield Act("acquire, consumer", "acquire", (90, "", "consumer", TOKEN, "", 5000, "eve"))
    yield Act("resign", "resign", (90, "producer", TOKEN))
    for place in ("active", "scheduled", "once", "dead", "expiry", "windows", "meta"):
        yield Act(f"retime, {place}", "retime", (90, place, 0, 0, 1))
    yield Act("stats", "stats", (90,))
    for state in ("ready", "scheduled", "parked", "active", "dead"):
        yield Act(f"peek, {state}", "peek", (90, state, 0, 100, 0))
        yield Act(f"peek, {state}, backwards", "peek", (90, state, -2, 100, 0))
    yield Act("show", "show", (90, EPOCH, "**"))
    yield Act("results", "results", (90, EPOCH, "**"))
    yield Act("open_batch", "open_batch", (90, "", "", "success", record))
    yield Act("close_batch", "close_batch", (90, EPOCH, "*batch"))
    yield Act("list_batches", "list_batches", (90, EPOCH, "", "**"))
    yield Act("read_batch", "read_batch", (90, EPOCH, "*batch", "dead", 0))
    yield Act("list_batches, all", "list_batches", (90, "", "0"))
    # of a schedule that `prepare` has created
    value, mark, record = '{"every":9000}\n1\nbody', "f" * 16, "1\nnew"
    yield Act("schedule", "schedule", (90, "", "hourly", AT + 9000, "e" * 16, "", value))
    yield Act("schedule, new", "schedule", (90, "", "daily", AT + 9000, mark, "", value))
    yield Act("unschedule", "unschedule", (90, "hourly"))
    yield Act("pause_schedule", "pause_schedule", (90, "hourly", ""))
    yield Act("schedule, declared", "schedule", (90, "", "hourly", AT, mark, "", value, "shop"))
    yield Act("keep_schedules", "keep_schedules", (90, "hourly"))
    yield Act("orphan_schedules", "orphan_schedules", (90, "shop", 60_000, "hourly"))
    yield Act("schedules", "schedules", (90, "+9000"))
    yield Act("schedules, a page", "schedules", (90, "0"))
    yield Act("tick", "tick", (90, "hourly", mark, T0, AT + 9000, "run", "", record))
    yield Act("tick, alone", "tick", (90, "hourly", mark, T0, AT + 9000, "alone", "", record))
    yield Act("tick, skipped", "tick", (90, "hourly", mark, T0, AT + 9000, "skip", "", ""))
    yield Act("tick, now", "tick", (90, "hourly", mark, "", "", "run", "", record))


CALLS = tuple(_calls())
CLOSED = tuple(
    (build, act)
    for build, names in (
        (
            closed_scene,
            ("ack, by id", "settle, by id", "nack, last", "release, last", "bury, by id", "delete",
             "purge, active", "recover, crash", "configure"),
        ),
        (
            closing_scene,
            ("reserve", "sweep", "stats", "peek, ready", "withdraw", "purge, ready",
             "enqueue, repeated"),
        ),
    )
    for act in CALLS
    if act.name in names
)  # fmt: skip
"""Scenes of closed queues, and calls after which they are drained."""
ROLES = tuple(
    (borne_scene, act)
    for act in (
        Act("enqueue, borne", "enqueue", (90, "", 0, "", 0, BORNE, "1\nnew")),
        Act("enqueue, borne, full", "enqueue", (90, "", 0, 1, 0, BORNE, "1\nnew")),
        Act("enqueue, borne, none", "enqueue", (90, "", 0, "", 0, BORNE)),
        Act("claim, borne", "claim", (90, "", 0, "", 0, BORNE, "", "1;d=x\nnew")),
        Act("reserve, borne", "reserve", (90, 2, 7, "ada", 0, BORNE)),
        Act("reserve, borne, none", "reserve", (90, 0, 7, "ada", 0, BORNE)),
        Act("settle, borne", "settle", (90, EPOCH, RECEIPT, 2, 7, "ada", BORNE, "*active")),
        Act("recover, borne", "recover", (90, EPOCH, "*", 7, "ada", BORNE, "*active pairs")),
        Act("recover, borne, none", "recover", (90, EPOCH, "*", 7, "ada", BORNE)),
        Act("acquire, again", "acquire", (90, "", "producer", TOKEN, FENCE, 5000, "ada")),
        Act("resign, held", "resign", (90, "consumer", TOKEN)),
    )
)
"""Calls with exclusive roles, or about them."""
