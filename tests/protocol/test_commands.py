"""The commands that a script runs: their order, their number, and their effect on a full server.

MONITOR shows every inner command; COMMAND INFO shows which of them write or need memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import pytest
import redis

from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from tests.protocol.clock import EMITTING
from tests.protocol.keyspace import Raw, dump, load, same
from tests.protocol.scenes import (
    CALLS,
    CLOSED,
    ROLES,
    Act,
    Scene,
    dedup_scene,
    keyed_scene,
    plain_scene,
    rich_scene,
)
from tests.protocol.seeds import EPOCH
from tests.support.backends import Backend

KEYS = QueueKeys("commands")
SCENES = (plain_scene, rich_scene, dedup_scene, keyed_scene)
EVERY = [*((build, act) for act in CALLS for build in SCENES), *CLOSED, *ROLES]
CASES = pytest.mark.parametrize(
    "build, act", EVERY, ids=[f"{act.name}-{build.__name__}" for build, act in EVERY]
)
NOTHING_NEW = (", full", "publish, c")
"""A full queue; a chunk that was moved before."""
GROWING = ("claim", "publish", "stage", "commit")
ADDING = (
    "enqueue",
    "enqueue, delayed",
    "enqueue, ttl",
    "enqueue, borne",
    "claim, borne",
    "emit, kept",
    "schedule",
    "schedule, new",
    "open_batch",
    "tick",
    "tick, alone",
    "tick, now",
    *(act.name for act in CALLS if act.script in GROWING and not act.name.endswith(NOTHING_NEW)),
)
WATCHED = EMITTING.decode()
NOTHING = ("HDEL", KEYS["held"].decode(), "-")

TRIM = {"HMGET meta", "ZRANGE dead", "ZCARD dead"}
REST = {"ZRANGE active", "ZRANGE scheduled", "XLEN ready"}
INDEXES = ("active", "scheduled", "parked", "once", "dead")
DRAINED = {"XLEN ready", "ZCARD scheduled", "ZCARD active", "ZCARD parked"}
SUCCESSORS = {"ZSCORE scheduled", "ZSCORE expiry", "LLEN wake"} | {
    "ZMSCORE tickets",
    "ZRANGE parked",
    "ZCOUNT tickets",
}
"""Jobs that became due: they waited for the end of a job with their dedup id, or key."""
EXPIRED = {"XRANGE ready"}
"""Those at the head of ready, which can be trimmed."""
DEATHS = {"HMGET held", "HMGET tally", "HGET meta"}
"""The records and the counters of new dead letters, which may name a handler for that."""
READ_LATE: dict[str, set[str]] = {
    "enqueue": SUCCESSORS | EXPIRED | {"HGET meta"},  # the setting replicas, in a repeat
    "claim": SUCCESSORS | EXPIRED,
    "publish": SUCCESSORS | EXPIRED,
    "ack": SUCCESSORS | DRAINED,
    "hand_over": SUCCESSORS,
    "reserve": TRIM | DEATHS | REST | SUCCESSORS | DRAINED | EXPIRED | {"HGET held"},
    "assign": TRIM | DEATHS | REST | SUCCESSORS | DRAINED | EXPIRED,
    "settle": TRIM | DEATHS | REST | SUCCESSORS | DRAINED | EXPIRED | {"HGET held"},
    "nack": TRIM | DEATHS | SUCCESSORS | DRAINED,
    "release": TRIM | DEATHS | SUCCESSORS | DRAINED,
    "suspend": SUCCESSORS | DRAINED,
    "call_jobs": SUCCESSORS | DRAINED,
    "emit": {f"XRANGE {WATCHED}", f"PTTL {WATCHED}", "PTTL emitters"},
    "note": {"HEXISTS tally"},  # notes of ended jobs, which each note helps to remove
    "bury": TRIM | DEATHS | SUCCESSORS | DRAINED,
    "cancel": SUCCESSORS | DRAINED,
    "delete": SUCCESSORS | DRAINED,
    "withdraw": SUCCESSORS | DRAINED,
    "evict": SUCCESSORS,
    "sweep": TRIM
    | DEATHS
    | SUCCESSORS
    | DRAINED
    | EXPIRED
    | {
        "XLEN ready",
        "ZRANGE tickets",
        "ZMSCORE scheduled",
        "ZSCORE dead",
        "ZSCORE parked",
        "HEXISTS held",
        "HGET meta",
        "XRANGE ready",
        "EXISTS parked",
        *(f"EXISTS {key}" for key in ("held", "expiry", "tally", "once", "dedup", "schedules")),
    },
    "purge": {"XRANGE ready", "HMGET held", "HMGET dedup"} | SUCCESSORS | DRAINED,
    "redrive": {"ZCARD dead"},
    "promote": SUCCESSORS,
    "dequeue": SUCCESSORS,
    "recover": TRIM | DEATHS | SUCCESSORS | DRAINED | {"HGET held"},
    "peek": {"XRANGE ready", "XREVRANGE ready", "HGET held", "HGET tally", "HMGET tally"}
    | SUCCESSORS
    | DRAINED
    | {f"ZRANGE {index}" for index in INDEXES}
    | {"HMGET meta", "ZSCORE parked", "ZSCORE turns", "ZCARD holds", "ZSCORE holds"},
    "measure": {"HGET history", "HLEN history", "HKEYS history"},
    "configure": {"HMGET meta"},
    "tick": SUCCESSORS | EXPIRED,
    "open_batch": SUCCESSORS | EXPIRED | {"HMGET batches"},
    "close_batch": {"ZSCORE scheduled", "HGET batches", "HGET held", "ZSCORE expiry"},
    "unschedule": {"HLEN schedules"},
}
"""Reads that a script may make after its first write (protocol/core.md, Calling a script):
bounds, remaining counts, and separately stored bodies; `peek` removes expired jobs and then reads.
None of them can fail, as the types were checked.
"""
SIZES = {"HSTRLEN held", "HLEN tally"}
"""Sizes of separately stored bodies, and if there are marks: every script that ends jobs reads them
for the removal.
"""


class Command(NamedTuple):
    """An inner command: its name and arguments."""

    name: str
    args: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Return the command with its key's kind: `ZRANGE dead`."""
        return f"{self.name} {self.args[0].rpartition(':')[2]}" if self.args else self.name


class Flags(NamedTuple):
    """The server's flags of a command."""

    writes: bool
    needs_memory: bool


def flags_of(raw: Raw, name: str) -> Flags:
    """Return if a command writes, and if a full server refuses it."""
    info = raw.execute_command("COMMAND", "INFO", name)
    found = info[name.lower()]["flags"] if isinstance(info, dict) else info[0][2]
    names = {flag.decode() if isinstance(flag, bytes) else flag for flag in found}
    return Flags("write" in names, "denyoom" in names)


def watched(backend: Backend, happen: Callable[[], Any]) -> list[Command]:
    """Return the inner commands of the scripts run in the block, in order."""
    raw: Raw = backend.sync_client()
    found = []
    with raw.monitor() as monitor:
        happen()
        raw.echo("that is all")
        while "that is all" not in (seen := monitor.next_command())["command"]:
            if seen["client_type"] == "lua":
                found.append(_command(seen["command"]))
    return found


def _command(text: str) -> Command:
    parts = text.split(" ")
    return Command(parts[0].upper(), tuple(parts[1:]))


@CASES
def test_scripts_read_before_they_write(
    act: Act, build: Callable[[Raw, QueueKeys], Scene], real_backend: Backend
) -> None:
    """After its first write a script reads only bounds and remains; it writes only declared keys.

    Scripts that add jobs first run a command that needs memory, others one that does not: so a full
    server refuses them, or not.
    """
    raw = real_backend.sync_client()
    known = cache(lambda name: flags_of(raw, name))
    scene = build(raw, KEYS)
    act.prepare(scene)
    commands = watched(real_backend, lambda: act.happen(scene))
    assert commands
    assert [c.name for c in commands].count("TIME") <= 1
    writing = [c for c in commands if known(c.name).writes]
    if not writing:
        return
    assert known(writing[0].name).needs_memory == (act.name in ADDING)
    begun = commands.index(writing[0])
    if (writing[0].name, *writing[0].args) == NOTHING:  # a check of the type, without a change
        begun = commands.index(writing[1]) if len(writing) > 1 else len(commands)
    late = {c.shown for c in commands[begun:] if not known(c.name).writes}
    assert late <= READ_LATE.get(act.script, set()) | SIZES


@contextmanager
def without_memory(raw: Raw) -> Iterator[None]:
    """Keep the server above its maxmemory during the block, without eviction."""
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", 1)
    try:
        yield
    finally:
        raw.config_set("maxmemory", 0)


@pytest.fixture
def own_client(real_backend: Backend, make_server: Callable[..., EmbeddedServer]) -> Iterator[Raw]:
    """A client of a server whose settings may change: the back end, or another server."""
    if not real_backend.shared:
        yield real_backend.sync_client()
        return
    with redis.Redis.from_url(make_server().url, protocol=2) as client:
        yield client


@CASES
def test_a_full_server_refuses_only_jobs(
    act: Act, build: Callable[[Raw, QueueKeys], Scene], own_client: Raw
) -> None:
    """At maxmemory an enqueue changes nothing; every other call works as usual."""
    raw = own_client
    raw.flushdb()
    scene = build(raw, KEYS)
    act.prepare(scene)
    before = dump(raw)
    reply = act.happen(scene)
    after = dump(raw)
    raw.flushdb()
    load(raw, before)
    with without_memory(raw):
        if act.script == "emit" and act.name in ADDING:  # the entries are refused, not the call
            assert act.happen(scene)[-1] == -1
            assert not raw.exists(*KEYS.emitted(EMITTING))
        elif act.name in ADDING:
            with pytest.raises(redis.ResponseError, match="maxmemory"):
                act.happen(scene)
            assert same(dump(raw), before)
        else:
            assert _ordered(act.happen(scene), act.script) == _ordered(reply, act.script)
            assert same(dump(raw), after)


def _ordered(reply: list[Any], script: str) -> list[Any]:
    """Return a reply with the fields of a hash sorted."""
    start = {"stats": 11, "configure": 4, "scan": 6}.get(script, len(reply))
    return [*reply[:start], *sorted(map(str, reply[start:]))]


def _one_ready(scene: Scene, count: int) -> None:
    scene.run("enqueue", 1, "e0e0e0e0", 0, "", 0, "", *["1\nbody"] * count)


@pytest.mark.parametrize("count, most", [(1, 8), (1000, 1007)])
def test_an_enqueue_runs_few_commands(count: int, most: int, real_backend: Backend) -> None:
    """Eight for one job in an existing queue; a bulk adds one for each further job."""
    scene = Scene(real_backend.sync_client(), KEYS, {})
    _one_ready(scene, 1)
    args = (2, "", 0, "", 0, "", *["1\nbody"] * count)
    assert len(watched(real_backend, lambda: scene.run("enqueue", *args))) <= most


@pytest.mark.parametrize("count, most", [(1, 21), (1000, 1020)])
def test_a_claim_runs_few_commands(count: int, most: int, real_backend: Backend) -> None:
    """Free ids are looked up and stored in one command each."""
    scene = Scene(real_backend.sync_client(), KEYS, {})
    scene.run("claim", 1, "e0e0e0e0", 0, "", 0, "", "", "1;d=first\nbody")
    args = (2, "", 0, "", 0, "", "", *[f"1;d={i}\nbody" for i in range(count)])
    assert len(watched(real_backend, lambda: scene.run("claim", *args))) <= most


@pytest.mark.parametrize("count, most", [(1, 14), (1000, 14)])
def test_a_release_of_ids_runs_few_commands(count: int, most: int, real_backend: Backend) -> None:
    """An ack of jobs with dedup ids reads and frees all of them at once."""
    scene = Scene(real_backend.sync_client(), KEYS, {})
    scene.run("claim", 1, "e0e0e0e0", 0, "", 0, "", "", *[f"1;d={i}\nbody" for i in range(count)])
    taken = scene.run("reserve", 2, count, 5, "ada", 0, "")[6::3]
    ack = watched(real_backend, lambda: scene.run("ack", 3, "e0e0e0e0", "1-005", "", *taken))
    assert len(ack) <= most
    assert not scene.raw.exists(KEYS["dedup"])


@pytest.mark.parametrize("count, most", [(1, 13), (100, 15), (1000, 23)])
def test_a_reserve_runs_few_commands(count: int, most: int, real_backend: Backend) -> None:
    """Thirteen for one job; a batch adds a read of ready per hundred, and one of the index."""
    scene = Scene(real_backend.sync_client(), KEYS, {})
    _one_ready(scene, 1000)
    scene.run("enqueue", 2, "", 0, "", 0, "", "1\nbody")
    reserve = watched(real_backend, lambda: scene.run("reserve", 3, count, 5, "ada", 0, ""))
    assert len(reserve) <= most


@pytest.mark.parametrize("count, most", [(1, 5), (1000, 5)])
def test_an_ack_runs_few_commands(count: int, most: int, real_backend: Backend) -> None:
    """Five, however many first deliveries it ends."""
    scene = Scene(real_backend.sync_client(), KEYS, {})
    _one_ready(scene, count)
    taken = scene.run("reserve", 3, count, 5, "ada", 0, "")[6::3]
    ack = watched(real_backend, lambda: scene.run("ack", 4, "e0e0e0e0", "1-005", "", *taken))
    assert len(ack) <= most


BY_ID: dict[str, tuple[Any, ...]] = {
    "ack": (EPOCH, "", ""),
    "bury": (EPOCH, "", "no use", ""),
    "delete": (EPOCH,),
    "dequeue": (EPOCH,),
    "extend": (EPOCH, "", 0, 1),
    "nack": (EPOCH, "", 0, 1, "broke", ""),
    "promote": (EPOCH,),
    "redrive": (EPOCH, 0, 0),
    "release": (EPOCH, "", 0),
    "withdraw": (EPOCH,),
}


@pytest.mark.parametrize("name", BY_ID)
def test_calls_with_ids_move_no_large_body(name: str, real_backend: Backend) -> None:
    """For jobs in every place, with dedup ids and policies, only headers are read and written."""
    scene = Scene(real_backend.sync_client(), KEYS, {})
    for call, lease in enumerate((";l=60000", ";l=60000", ""), 1):
        records = [f"1{lease};t=90000;p=3,,;d={call}-{i}\n{'x' * 5000}" for i in range(3)]
        scene.run("claim", call, EPOCH, 0, "", 0, "", "", *records)
        if lease:
            taken = scene.run("reserve", 5, 3, 9, "ada", 0, "")[6::3]
            if call == 1:
                scene.run("bury", 6, EPOCH, "1-009", "no use", "", *taken)
    numbers = [n for n in scene.raw.hkeys(KEYS["held"]) if n.startswith(b"=")]
    assert len(numbers) == 9
    named = [number[1:] for number in numbers]
    commands = watched(real_backend, lambda: scene.run(name, 7, *BY_ID[name], *named))
    assert all(len(arg) < 100 for command in commands for arg in command.args)
    touched = {c.name for c in commands if any(arg.startswith('"=') for arg in c.args)}
    assert touched <= {"HDEL"}


def test_a_large_batch_leaves_no_helper_in_the_index(backend: Backend) -> None:
    """The long member that turns the index into a skiplist is removed by the script."""
    scene = Scene(backend.sync_client(), KEYS, {})
    _one_ready(scene, 40)
    taken = scene.run("reserve", 3, 40, 5, "ada", 0, "")[6::3]
    assert scene.raw.zrange(KEYS["active"], 0, -1) == taken
