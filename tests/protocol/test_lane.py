"""The fast lane of a script does what the full form does, or refuses and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import LETTERS, all_scripts, script
from tests.protocol.clock import (
    NO_OPTIONS,
    frozen,
    full_form,
    keys_of,
    lane_args,
    with_producer,
)
from tests.protocol.keyspace import Raw, Space, dump, load, same
from tests.protocol.pages import PAGES
from tests.protocol.scenes import (
    CLOSED,
    RECEIPT,
    Act,
    Scene,
    borne_scene,
    closed_scene,
    crowded_scene,
    dedup_scene,
    expired_scene,
    keyed_scene,
    plain_scene,
    rich_scene,
    spent_scene,
)
from tests.protocol.seeds import AT, EPOCH
from tests.support.backends import Backend

KEYS = QueueKeys("lane")
SCRIPTS = [found.name for found in all_scripts() if found.lane]
LANE = re.compile(r"^repeat -- the fast lane.*?^until true\n", re.MULTILINE | re.DOTALL)
SCENES = (
    plain_scene, rich_scene, dedup_scene, crowded_scene, expired_scene, spent_scene, borne_scene,
    closed_scene, keyed_scene,
)  # fmt: skip
SETTINGS: list[tuple[Any, ...]] = [(), ("lease", 2000), ("max_length", 100), ("paused", "in")]
RECORDS = ("1;i=a\nbody", "1;l=5000;i=a\nbody", "1;c=json;i=a\n1", "1\nbody", "1\nt=5")
MALFORMED = (
    "1;l=5000;;t=900\nbody",
    "1;l=5000;5;p=,,,3\nbody",
    "1;l=5000;l=7;t=900;i=a\nbody",
    "1;;t=9\nbody",
)
"""Records with what is no field of the protocol."""
REFUSED = (
    "1;t=900;i=a\nbody",
    "1;p=3,,;i=a\nbody",
    "1;l=0;t=9;i=a\nbody",
    "1\n" + "x" * 4096,
    "2\n",
)
ENQUEUES = [
    *((record,) * n for record in RECORDS for n in (1, 12)),
    *((*RECORDS, record) for record in REFUSED),
    *((record,) for record in MALFORMED),
]
CALLS = [
    *(("enqueue", (90, *NO_OPTIONS, *records)) for records in ENQUEUES),
    ("enqueue", (90, "", 500, "", 0, "", RECORDS[0])),
    ("enqueue", (90, "", 0, 100, 0, "", RECORDS[0])),
    ("enqueue", ("?", *NO_OPTIONS, RECORDS[0])),
    *(("reserve", (90, n, 7, "eve", idle, "")) for n in (1, 2, 3, 100, -100) for idle in (0, 1)),
    *(("reserve", (90, 2, 7, "eve", 0, "", asked)) for asked in (500, "", "x", 0)),
    ("reserve", (90, 2, 7, "e" * 201, 0, "")),
    ("ack", (90, EPOCH, RECEIPT, "", "*active")),
    ("ack", (90, EPOCH, RECEIPT, "", "*ready")),
    ("ack", (90, EPOCH, RECEIPT, 500, "*active")),
    ("ack", (90, EPOCH, "1-abd", "", "*active")),
    ("ack", (90, EPOCH, "2-abc", "", "*active")),
    *(("settle", (90, EPOCH, RECEIPT, n, 7, "eve", "", "*active")) for n in (0, 1, 3, 100)),
    ("settle", (90, EPOCH, "1-abd", 1, 7, "eve", "", "*active")),
]
USUAL_CALLS: dict[str, tuple[Any, ...]] = {
    "ack": (90, EPOCH, RECEIPT, "", "*active"),
    "enqueue": (90, *NO_OPTIONS, "1;i=a\nbody"),
    "reserve": (90, 1, 7, "eve", 0, ""),
    "settle": (90, EPOCH, RECEIPT, 1, 7, "eve", "", "*active"),
}
DONE_BY_LANE = {plain_scene: 23, rich_scene: 0}
"""Least number of the calls without settings that the lane does."""
REFUSED_LETTERS = {
    "b": "ack enqueue reserve settle",  # large bodies
    "c": "ack enqueue reserve settle",  # the queue is closed
    "q": "ack enqueue reserve settle",  # limits per key
    "t": "ack enqueue reserve settle",  # jobs expire
    "o": "enqueue reserve settle",  # jobs that are delivered at most once
    "x": "enqueue reserve settle",  # an exclusive role
    "h": "enqueue reserve settle",  # a hold
    "f": "ack enqueue reserve settle",  # a limit of deliveries at once
    "l": "enqueue",  # producers are limited
    "a": "enqueue reserve settle",  # a rate
    "s": "reserve settle",  # a start frees a dedup id
    "d": "ack settle",  # an end frees a dedup id
    "g": "ack settle",  # an end counts in a batch
    "k": "ack settle",  # an end writes a result
    "w": "ack settle",  # an end is awaited
    "y": "",  # holds of keys; "q" is beside it
    "e": "", "m": "", "n": "", "p": "", "r": "", "u": "",
}  # fmt: skip
"""Letters of `uses`, each with the scripts whose lanes refuse a queue that has it."""


class Runner:
    """Runs one call on copies of a queue, in three ways."""

    def __init__(self, scene: Scene, name: str, args: tuple[Any, ...]) -> None:
        self._scene, self._found = scene, script(name)
        self._before = dump(scene.raw)
        self._args = with_producer(self._found, Act(name, name, args).arguments(scene))

    def _run(self, source: str, keys: int, args: Sequence[Any]) -> tuple[list[Any], Space]:
        raw = self._scene.raw
        raw.flushdb()
        load(raw, self._before)
        names = keys_of(self._scene.keys, self._found)[:keys]
        reply: list[Any] = raw.execute_command(
            "EVAL", frozen(source, AT), len(names), *names, *args
        )
        return reply, dump(raw)

    def check(self) -> bool:
        """Compare the lane with the full form; return True if the lane has done the call."""
        found = self._found
        usual, count = LANE.subn("", found.source)
        assert count == 1
        full, changed = self._run(usual, len(found.keys), self._args)
        whole, whole_after = self._run(found.source, len(found.keys), self._args)
        told, args = (found.name, self._args), lane_args(found, self._args)
        if args is None:  # the lane leaves out what this call passes
            assert (whole, same(whole_after, changed)) == (full, True), told
            load_again(self._scene.raw, self._before)
            return False
        short, after = self._run(found.source, found.lane, args)
        is_done = short[0] != Code.KEYS_MISSING
        if is_done:
            assert short == whole, told
            is_lane = short[0] == Code.LANE
            assert (full_form(found, self._args, short) if is_lane else short) == full, told
            assert same(after, changed), told
        else:
            assert short == [Code.KEYS_MISSING, b"%d" % self._args[0]], told
            assert whole == full, told
            assert same(after, self._before), told
        assert same(whole_after, changed), told
        load_again(self._scene.raw, self._before)
        return is_done and full[0] == Code.DONE


def load_again(raw: Raw, before: Space) -> None:
    """Restore the queue for the next call."""
    raw.flushdb()
    load(raw, before)


@pytest.mark.parametrize("build", SCENES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_lane_equals_the_full_form(
    build: Callable[[Raw, QueueKeys], Scene], settings: tuple[Any, ...], backend: Backend
) -> None:
    """Reply and keys are those of the full form; after -20 no key has changed."""
    scene = build(backend.sync_client(), KEYS)
    if settings:
        scene.run("configure", 4, "", *settings)
    done = sum(Runner(scene, name, args).check() for name, args in CALLS)
    if not settings:
        assert done >= DONE_BY_LANE.get(build, 0)


def test_closed_queues_are_left_to_the_full_form(backend: Backend) -> None:
    """In a closed queue an end may have to wake consumers: the lanes refuse."""
    raw = backend.sync_client()
    for build in {build for build, _ in CLOSED}:
        raw.flushdb()
        scene = build(raw, KEYS)
        for name, args in CALLS:
            if args[0] != "?":
                assert not Runner(scene, name, args).check()


@pytest.mark.parametrize("letter", ["", *LETTERS.values()])
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_lane_with_each_letter(name: str, letter: str, backend: Backend) -> None:
    """A lane refuses the letters that concern it, and does what the full form does with others."""
    assert (
        {*re.findall(r"^\| `([a-z])` \|", PAGES["protocol/storage.md"], re.MULTILINE)}
        == {*REFUSED_LETTERS}
        == {*LETTERS.values()}
    )
    scene = plain_scene(backend.sync_client(), KEYS)
    harmless = "".join(one for one, names in REFUSED_LETTERS.items() if name not in names)
    refused = bool(letter) and name in REFUSED_LETTERS[letter]
    for others in ("", harmless):
        scene.raw.hset(KEYS["meta"], "uses", others.replace(letter, "") + letter)
        assert Runner(scene, name, USUAL_CALLS[name]).check() is not refused


def test_every_lane_is_compared() -> None:
    """Each script with a lane has a usual call above, and its lane takes the first keys only."""
    assert {*SCRIPTS} == {*USUAL_CALLS} == {name for name, _ in CALLS}
    assert {name: script(name).lane for name in SCRIPTS} == {
        "ack": 7, "enqueue": 3, "reserve": 6, "settle": 7,
    }  # fmt: skip


def test_only_the_lane_of_an_enqueue_leaves_arguments_out() -> None:
    """Its options; a call with the first keys and all arguments adds nothing."""
    omitted = {name: script(name).args[script(name).lane_args :] for name in SCRIPTS}
    options = ("create", "delay", "bound", "wait", "role")
    assert omitted == {"ack": (), "enqueue": options, "reserve": (), "settle": ()}


def test_a_call_with_the_keys_of_the_lane_and_all_arguments_is_refused(backend: Backend) -> None:
    """No argument is taken for a record, as none of the usual ones begins like one."""
    scene = plain_scene(backend.sync_client(), KEYS)
    found, before = script("enqueue"), dump(scene.raw)
    names = keys_of(scene.keys, found)[: found.lane]
    args = with_producer(found, (90, *NO_OPTIONS, "1\nbody"))
    reply = scene.raw.execute_command("EVAL", frozen(found.source, AT), len(names), *names, *args)
    assert reply == [Code.KEYS_MISSING, b"90"]
    assert same(dump(scene.raw), before)
