"""Scripts check their whole numbers, and how many jobs a call names, before anything is written."""

from __future__ import annotations

import pytest

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import Bound, Script, all_scripts
from tests.protocol.keyspace import dump
from tests.protocol.scenes import Scene, plain_scene
from tests.protocol.seeds import EPOCH
from tests.support.backends import Backend

KEYS = QueueKeys("bounds")
BOUNDED = [found for found in all_scripts() if found.bounds]


def refused(scene: Scene, script: Script, bound: Bound, value: object) -> bool:
    """Tell if the script refuses the value of this argument; the others are as low as can be."""
    lowest = {one.name: one.least for one in script.bounds}
    given = {name: lowest.get(name, "") for name in script.args if name != "producer"}
    reply = scene.run(script.name, *(given | {"nonce": 8, bound.name: value}).values())
    return reply == [Code.MALFORMED, b"8", bound.name.encode(), str(value).encode()]


@pytest.mark.parametrize("script", BOUNDED, ids=lambda script: script.name)
def test_a_number_beyond_its_bounds_is_refused(script: Script, backend: Backend) -> None:
    """No script takes a number that its header does not allow, and nothing changes."""
    scene = plain_scene(backend.sync_client(), KEYS)
    before = dump(scene.raw)
    for bound in script.bounds:
        wrong = [bound.least - 1, bound.most + 1, "inf", "nan", "1e2", "0x1", " 1", "1.5"]
        for value in wrong if bound.may_lack else [*wrong, ""]:
            assert refused(scene, script, bound, value), (bound.name, value)
    assert dump(scene.raw) == before


@pytest.mark.parametrize("name", ["ack", "nack", "delete", "redrive", "settle"])
def test_a_call_names_at_most_1000_jobs(name: str, backend: Backend) -> None:
    """The 1001st number is refused, with a receipt or without, and nothing changes."""
    scene = plain_scene(backend.sync_client(), KEYS)
    before = dump(scene.raw)
    numbers = [b"1800000000000-%d" % (1_000_000_000 + i) for i in range(1001)]
    args = {
        "ack": ("1-abc", ""),
        "nack": ("", 0, 1, "broke", ""),
        "delete": (),
        "redrive": ("", ""),
        "settle": ("", 1, 7, "eve", ""),
    }[name]
    reply = scene.run(name, 8, EPOCH, *args, *numbers)
    assert reply == [Code.MALFORMED, b"8", b"number", numbers[-1]]
    assert dump(scene.raw) == before
