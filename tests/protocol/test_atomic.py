"""An error in a script leaves no half of a transition (PROTOCOL.md, Scripts)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import all_scripts, script
from tests.protocol.clock import named
from tests.protocol.keyspace import Raw, dump, load, same
from tests.protocol.scenes import (
    CALLS,
    CLOSED,
    ROLES,
    Act,
    Scene,
    dedup_scene,
    expired_scene,
    plain_scene,
    rich_scene,
    spent_scene,
)
from tests.support.backends import Backend

KEYS = QueueKeys("atomic")
REMOVING = (
    "enqueue", "claim", "publish", "reserve", "assign", "settle", "stats", "peek", "sweep",
)  # fmt: skip
"""Scripts that remove, beside their work, what has expired."""
CASES = [
    *((build, act) for build in (plain_scene, rich_scene) for act in CALLS),
    *CLOSED,
    *ROLES,
    *((dedup_scene, act) for act in CALLS if "dedup" in script(act.script).keys),
    *((b, act) for b in (expired_scene, spent_scene) for act in CALLS if act.script in REMOVING),
]


def test_every_script_is_called() -> None:
    """The calls below leave no script out."""
    assert {act.script for act in CALLS} == {found.name for found in all_scripts()}


@pytest.mark.parametrize(
    "build, act", CASES, ids=[f"{act.name}-{build.__name__}" for build, act in CASES]
)
def test_a_key_of_another_type_stops_the_call_before_it_writes(
    build: Callable[[Raw, QueueKeys], Scene], act: Act, backend: Backend
) -> None:
    """Whichever key holds another type, a call either does not need it or changes nothing."""
    raw = backend.sync_client()
    scene = build(raw, KEYS)
    act.prepare(scene)
    whole = dump(raw)
    halves = []
    for kind, key in named(KEYS, script(act.script)):
        raw.flushdb()
        load(raw, whole)
        raw.delete(key)
        if kind in ("wake", "space", "checkpoint"):
            raw.set(key, "x")
        else:
            raw.rpush(key, "x")
        before = dump(raw)
        try:
            act.happen(scene)
        except redis.ResponseError:
            if not same(dump(raw), before):
                halves.append(kind)
    assert not halves, f"{act.name} had written before it found these keys of another type"
