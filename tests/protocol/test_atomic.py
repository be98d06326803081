"""An error in a script leaves no half of a transition (PROTOCOL.md, Scripts)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import all_scripts, script
from tests.protocol.clock import PRODUCER
from tests.protocol.keyspace import Raw, dump, load, same
from tests.protocol.scenes import CALLS, Act, Scene, plain_scene, rich_scene
from tests.support.backends import Backend

KEYS = QueueKeys("atomic")
SCENES = (plain_scene, rich_scene)


def test_every_script_is_called() -> None:
    """The calls below leave no script out."""
    assert {act.script for act in CALLS} == {found.name for found in all_scripts()}


@pytest.mark.parametrize("build", SCENES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("act", CALLS, ids=lambda act: act.name)
def test_a_key_of_another_type_stops_the_call_before_it_writes(
    act: Act, build: Callable[[Raw, QueueKeys], Scene], backend: Backend
) -> None:
    """Whichever key holds another type, a call either does not need it or changes nothing."""
    raw = backend.sync_client()
    scene = build(raw, KEYS)
    act.prepare(scene)
    whole = dump(raw)
    halves = []
    for kind in script(act.script).keys:
        raw.flushdb()
        load(raw, whole)
        key = KEYS.producer(PRODUCER) if kind == "producer" else KEYS[kind]
        raw.delete(key)
        if kind in ("wake", "space"):
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
