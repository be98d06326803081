"""The plain forms of scripts do what the full scripts do, or refuse and change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from tests.protocol.keyspace import Raw, dump, load, same
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

KEYS = QueueKeys("plain")
SCENES = (
    plain_scene, rich_scene, dedup_scene, crowded_scene, expired_scene, spent_scene, borne_scene,
    closed_scene, keyed_scene,
)  # fmt: skip
SETTINGS: list[tuple[Any, ...]] = [(), ("lease", 2000), ("max_length", 100), ("paused", "in")]
CALLS = [
    *(("reserve", (90, n, 7, "eve", idle, "")) for n in (1, 2, 3, 100, -100) for idle in (0, 1)),
    ("ack", (90, EPOCH, RECEIPT, "", "*active")),
    ("ack", (90, EPOCH, RECEIPT, "", "*ready")),
    ("ack", (90, EPOCH, "1-abd", "", "*active")),
    ("ack", (90, EPOCH, "2-abc", "", "*active")),
    *(("settle", (90, EPOCH, RECEIPT, n, 7, "eve", "", "*active")) for n in (0, 1, 3, 100)),
    ("settle", (90, EPOCH, "1-abd", 1, 7, "eve", "", "*active")),
]
FIRST_JOBS = {"reserve": 6, "settle": 8}
DONE_BY_PLAIN = {plain_scene: 13, rich_scene: 0}
"""Least number of the calls without settings that the plain forms do."""


def _shown(name: str, reply: list[Any]) -> list[Any]:
    """Return the reply of a full script in the form of the plain one."""
    if name not in FIRST_JOBS:
        return reply
    jobs = reply[FIRST_JOBS[name] :]
    assert not any(jobs[1::3]), "a plain form delivers no job again"
    return [*reply[:6], *(part for i, part in enumerate(jobs) if i % 3 != 1)]


@pytest.mark.parametrize("build", SCENES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_plain_form_equals_the_full_script(
    build: Callable[[Raw, QueueKeys], Scene], settings: tuple[Any, ...], backend: Backend
) -> None:
    """Reply and keys are those of the full script; after -20 no key has changed."""
    raw = backend.sync_client()
    scene = build(raw, KEYS)
    if settings:
        scene.run("configure", 4, "", *settings)
    before, done = dump(raw), 0
    for name, args in CALLS:
        replies = {}
        for form in (name, f"{name}_plain"):
            raw.flushdb()
            load(raw, before)
            replies[form] = Act(form, form, args).happen(scene), dump(raw)
        (full, changed), (plain, after) = replies.values()
        if plain[0] == Code.NOT_PLAIN:
            assert same(after, before), (name, args)
        else:
            assert plain == _shown(name, full), (name, args)
            assert same(after, changed), (name, args)
            done += 1
    if not settings:
        assert done >= DONE_BY_PLAIN.get(build, 0)


def test_closed_queues_are_left_to_the_full_scripts(backend: Backend) -> None:
    """In a closed queue an end may have to wake consumers: the plain forms refuse."""
    raw = backend.sync_client()
    for build in {build for build, _ in CLOSED}:
        raw.flushdb()
        scene = build(raw, KEYS)
        for name, args in CALLS:
            assert Act(name, f"{name}_plain", args).happen(scene)[0] == Code.NOT_PLAIN


LETTERS = {
    "b": "ack enqueue reserve settle",  # large bodies
    "c": "ack enqueue reserve settle",  # the queue is closed
    "q": "ack enqueue reserve settle",  # limits per key
    "t": "ack enqueue reserve settle",  # jobs expire
    "o": "enqueue reserve settle",  # jobs that are delivered at most once
    "x": "enqueue reserve settle",  # an exclusive role
    "l": "enqueue",  # producers are limited
    "a": "reserve settle",  # a rate
    "s": "reserve settle",  # a start frees a dedup id
    "d": "ack settle",  # an end frees a dedup id
    "g": "ack settle",  # an end counts in a batch
    "k": "ack settle",  # an end writes a result
    "w": "ack settle",  # an end is awaited
    "e": "", "m": "", "p": "", "r": "", "u": "",
}  # fmt: skip
"""Letters of `uses`, each with the scripts whose plain forms refuse a queue that has it."""
PLAIN_CALLS: dict[str, tuple[Any, ...]] = {
    "ack": (90, EPOCH, RECEIPT, "", "*active"),
    "enqueue": (90, "1;i=a\nbody"),
    "reserve": (90, 1, 7, "eve", 0, ""),
    "settle": (90, EPOCH, RECEIPT, 1, 7, "eve", "", "*active"),
}


def test_letters_that_the_plain_forms_refuse(backend: Backend) -> None:
    """Each plain form refuses the letters that concern it, and no others."""
    letters = re.findall(r"^\| `([a-z])` \|", PAGES["protocol/storage.md"], re.MULTILINE)
    assert {*letters} == {*LETTERS}
    raw = backend.sync_client()
    scene = plain_scene(raw, KEYS)
    before = dump(raw)
    for name, args in PLAIN_CALLS.items():
        harmless = "".join(letter for letter, names in LETTERS.items() if name not in names)
        for letter in ["", *LETTERS]:
            raw.flushdb()
            load(raw, before)
            raw.hset(KEYS["meta"], "uses", harmless + letter)
            seeded = dump(raw)
            reply = Act(name, f"{name}_plain", args).happen(scene)
            if letter and letter not in harmless:
                assert reply == [Code.NOT_PLAIN, b"90"], (name, letter)
                assert same(dump(raw), seeded), (name, letter)
            else:
                assert reply[0] == Code.DONE, (name, letter)


RECORDS = ("1;i=a\nbody", "1;l=5000;i=a\nbody", "1;c=json;i=a\n1", "1\nbody", "1\nt=5")
REFUSED = (
    "1;t=900;i=a\nbody",
    "1;p=3,,;i=a\nbody",
    "1;l=0;t=9;i=a\nbody",
    "1\n" + "x" * 4096,
    "2\n",
)


@pytest.mark.parametrize("build", SCENES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_plain_enqueue_equals_the_full_one(
    build: Callable[[Raw, QueueKeys], Scene], settings: tuple[Any, ...], backend: Backend
) -> None:
    """Numbers and keys are those of `enqueue`; after -20 no key has changed."""
    raw = backend.sync_client()
    scene = build(raw, KEYS)
    if settings:
        scene.run("configure", 4, "", *settings)
    before = dump(raw)
    given = [
        *((record,) * n for record in RECORDS for n in (1, 2, 12)),
        *((*RECORDS, record) for record in REFUSED),
    ]
    for records in given:
        plain = scene.run("enqueue_plain", 90, *records, at=AT)
        after = dump(raw)
        raw.flushdb()
        load(raw, before)
        if plain[0] == Code.NOT_PLAIN:
            assert same(after, before), records
            is_limited = bool({"max_length", "paused"}.intersection(settings))
            assert build is not plain_scene or is_limited or records[-1] in REFUSED
            continue
        full = scene.run("enqueue", 90, "", 0, "", 0, "", *records, at=AT)
        assert plain == [1, full[1], full[2], full[4]], records
        assert same(after, dump(raw)), records
        raw.flushdb()
        load(raw, before)
