"""An error in a script leaves no partial transition (protocol/core.md, Calling a script)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import all_scripts, script
from tests.protocol.clock import named
from tests.protocol.keyspace import Raw, Space, dump, load, same, text
from tests.protocol.scenes import (
    CALLS,
    CLOSED,
    LONG,
    ROLES,
    Act,
    Scene,
    abandoned_scene,
    crowded_scene,
    dangling_scene,
    dedup_scene,
    expired_scene,
    keyed_scene,
    leaving_scene,
    plain_scene,
    rich_scene,
    spent_scene,
)
from tests.protocol.seeds import AT
from tests.support.backends import Backend

KEYS = QueueKeys("atomic")
TEXT = {"value": "x"}
LIST = {"items": ["x"]}
REMOVING = (
    "enqueue", "claim", "publish", "reserve", "assign", "settle", "peek", "sweep", "open_batch",
)  # fmt: skip
"""Scripts that also remove expired jobs."""
STATES: list[tuple[Any, ...]] = [
    *(("paused", side) for side in ("in", "out", "all")),
    ("closed", 1),
]
"""Settings before a call, and none."""
FIRST = {act.script: act for act in reversed(CALLS)}.values()
"""A call of every script."""
JOBS = [
    "active", "lease ended", "active expired", "once", "dead", "due", "delayed", "ready",
]  # fmt: skip
"""Kinds of jobs of `rich_scene`."""
SINGLE = [
    dataclasses.replace(
        act,
        name=f"{act.name}, {name}",
        args=tuple(f"*{name}" if x == "**" else x for x in act.args),
    )
    for act in CALLS
    if "**" in act.args
    for name in JOBS
]
"""Calls about jobs of one kind, which read no keys of other kinds."""


def lasting_dedup(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a `dedup_scene` without expired jobs: before their removal a call checks many keys."""
    return dedup_scene(raw, keys, LONG)


def lasting_crowded(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a `crowded_scene` without expired jobs."""
    return crowded_scene(raw, keys, LONG)


def lasting_keyed(raw: Raw, keys: QueueKeys) -> Scene:
    """Make a `keyed_scene` without expired jobs."""
    return keyed_scene(raw, keys, LONG)


CASES: list[tuple[Callable[[Raw, QueueKeys], Scene], Act, tuple[Any, ...]]] = [
    *((build, act, ()) for build in (plain_scene, rich_scene, keyed_scene) for act in CALLS),
    *((rich_scene, act, ()) for act in SINGLE),
    *((build, act, ()) for build, act in (*CLOSED, *ROLES)),
    *((rich_scene, act, state) for act in FIRST for state in STATES),
    *((crowded_scene, act, ()) for act in CALLS),
    *(
        (build, act, ("paused", side))
        for build in (dedup_scene, crowded_scene)
        for act in FIRST
        for side in ("in", "out")
    ),
    *((dedup_scene, act, ()) for act in CALLS if "dedup" in script(act.script).used),
    *(
        (b, act, ())
        for b in (
            expired_scene,
            spent_scene,
            lasting_dedup,
            lasting_crowded,
            lasting_keyed,
            leaving_scene,
            abandoned_scene,
            dangling_scene,
        )
        for act in CALLS
        if act.script in REMOVING
    ),
]


def test_every_script_is_called() -> None:
    """The cases cover every script in every state of the queue."""
    every = {found.name for found in all_scripts()}
    for state in ((), *STATES):
        assert {act.script for _, act, of in CASES if of == state} == every


BUILT: dict[Callable[[Raw, QueueKeys], Scene], tuple[Scene, Space]] = {}
"""Scenes and their key spaces, built once per process."""


def built(build: Callable[[Raw, QueueKeys], Scene], raw: Raw) -> Scene:
    """Return a scene on an empty server."""
    if build not in BUILT:
        BUILT[build] = build(raw, KEYS), dump(raw)
        raw.flushdb()
    scene, whole = BUILT[build]
    load(raw, whole)
    return dataclasses.replace(scene, raw=raw)


@pytest.mark.parametrize(
    "build, act, state",
    CASES,
    ids=["-".join([act.name, build.__name__, *map(str, state)]) for build, act, state in CASES],
)
def test_a_key_of_another_type_stops_the_call_before_it_writes(
    build: Callable[[Raw, QueueKeys], Scene], act: Act, state: tuple[Any, ...], backend: Backend
) -> None:
    """With any key of another type a call either does not need it or changes nothing."""
    raw = backend.sync_client()
    scene = built(build, raw)
    act.prepare(scene)
    if state:
        scene.run("configure", 4, "", *state)
    whole = dump(raw)
    halves = []
    for kind, key in named(KEYS, script(act.script)):
        name = text(key)
        spoiled = {**whole, name: TEXT if kind in ("wake", "space", "checkpoint") else LIST}
        raw.delete(key)
        load(raw, {name: spoiled[name]})
        try:
            act.happen(scene)
        except redis.ResponseError:
            if same(dump(raw), spoiled):
                raw.delete(key)
                load(raw, {name: whole[name]} if name in whole else {})
                continue
            halves.append(kind)
        raw.flushdb()
        load(raw, whole)
    assert not halves, f"{act.name} had written before it found these keys of another type"


@pytest.mark.parametrize("name", ["enqueue", "claim"])
def test_more_records_than_a_call_may_have_are_refused(name: str, backend: Backend) -> None:
    """With 1001 records no job is added; with 1000 all are."""
    raw = backend.sync_client()
    scene = plain_scene(raw, KEYS)
    before, added = dump(raw), int(raw.hget(KEYS["meta"], "enqueued"))
    options = ("", 0, "", 0, "") if name == "enqueue" else ("", 0, "", 0, "", "")
    for head in ("1;d=a{};t=9000\n", "1;d=a{}\n"):
        records = [head.format(i) for i in range(1001)]
        assert scene.run(name, 90, *options, *records, at=AT)[::2] == [-10, 1001]
        assert same(dump(raw), before)
    assert scene.run(name, 90, *options, *records[:1000], at=AT)[0] == Code.DONE
    assert int(raw.hget(KEYS["meta"], "enqueued")) == added + 1000
