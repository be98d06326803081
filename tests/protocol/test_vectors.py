"""Every vector on every back end: the reply and the whole key space (protocol/core.md, Vectors)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from penstock.pressure.keys import PressureKeys, Role
from penstock.wire.keys import KEY_KINDS, STAGING_KINDS
from penstock.wire.scripts import Script, all_scripts
from tests.protocol.clock import T0, TIME
from tests.protocol.headers import codes_of, returns_of
from tests.protocol.lua import body_of
from tests.protocol.vectors import (
    FOLDER,
    Outcome,
    Vector,
    all_vectors,
    run_vector,
    scripts_with_vectors,
    vectors_of,
    wanted,
)
from tests.support.backends import Backend

VECTORS = [vector for vector in all_vectors() if not vector.is_pressure]
OTHER_T0 = 1_712_345_678_901
MANY = re.compile(r":(stage|commit|checkpoint):.*")
"""Keys of which a queue has many."""
SCRIPTS = pytest.mark.parametrize("script", all_scripts(), ids=lambda script: script.name)
PRESSURE = pytest.mark.parametrize(
    "script", all_scripts("pressure/"), ids=lambda script: script.name
)
EVERY = pytest.mark.parametrize(
    "script", [*all_scripts(), *all_scripts("pressure/")], ids=lambda script: script.name
)
CODES_AT = {
    "ack": 3, "bury": 3, "delete": 3, "dequeue": 3, "extend": 3, "nack": 3, "promote": 3,
    "redrive": 5, "release": 3, "withdraw": 3,
}  # fmt: skip
"""The place in a reply where the codes of single jobs begin."""


def _named(vector: Vector) -> str:
    return f"{vector.script}: {vector.name}"


def _plain(outcome: Outcome, script: str) -> Outcome:
    """Sort a reply's fields of meta and held jobs, whose order is the server's own."""
    if script == "scan" and outcome.reply[0] == 1:
        return Outcome([*outcome.reply[:6], *sorted(outcome.reply[6:])], outcome.after)
    start = {"stats": 14, "configure": 4}.get(script, 0)
    if not start or outcome.reply[0] != 1:
        return outcome
    fields = sorted(zip(outcome.reply[start::2], outcome.reply[start + 1 :: 2], strict=True))
    return Outcome([*outcome.reply[:start], fields], outcome.after)


def _check(vector: Vector, backend: Backend, t0: int) -> None:
    raw = backend.sync_client()
    found = _plain(run_vector(raw, vector, t0), vector.script)
    expected = _plain(wanted(vector, t0), vector.script)
    assert found.reply == expected.reply
    for key in sorted({*found.after, *expected.after}):
        lives = [space.get(key, {}).pop("px", 0) for space in (found.after, expected.after)]
        assert found.after.get(key) == expected.after.get(key)
        assert abs(lives[0] - lives[1]) < 60_000, f"time to live of {key}"


@pytest.mark.parametrize("vector", VECTORS, ids=_named)
def test_a_vector_holds(vector: Vector, backend: Backend) -> None:
    """Reply and keys equal those of the file on every back end."""
    _check(vector, backend, T0)


@SCRIPTS
def test_vectors_hold_at_any_time(script: Script, backend: Backend) -> None:
    """The files hold for another value of T0 too."""
    for vector in vectors_of(script.name):
        backend.sync_client().flushdb()
        _check(vector, backend, OTHER_T0)


@PRESSURE
def test_vectors_of_pressure_hold(script: Script, backend: Backend) -> None:
    """Reply and keys equal those of the file on every back end; these scripts read no clock."""
    assert TIME not in script.source
    raw = backend.sync_client()
    for vector in vectors_of(script.name):
        raw.flushdb()
        assert run_vector(raw, vector, T0) == wanted(vector, T0), vector.name


@EVERY
def test_every_reply_of_a_header_has_a_vector(script: Script) -> None:
    """Each RETURNS line has a case with a reply of its form, and no case has another form."""
    shown = {vector.returns for vector in vectors_of(script.name)}
    assert shown == {line.shape for line in returns_of(script)}
    for vector in vectors_of(script.name):
        line = next(line for line in returns_of(script) if line.shape == vector.returns)
        assert line.fits(vector.reply), vector.name


@pytest.mark.parametrize("name", [*CODES_AT, "settle"])
def test_every_code_of_a_header_has_a_vector(name: str) -> None:
    """Each code for a single job in a header is in the reply of some case."""
    shown: set[int] = set()
    for vector in vectors_of(name):
        if vector.reply[0] != 1:
            continue
        listed = vector.reply[7].split() if name == "settle" else vector.reply[CODES_AT[name] :]
        shown |= {int(code) for code in listed if not str(code).startswith(":")}
    said = codes_of(name) - ({1} if name == "extend" else set())
    said -= codes_of("reserve") - codes_of("ack") if name == "settle" else set()
    if name == "settle":  # its ack part is that of ack, which has a case for each
        assert shown <= said
    else:
        assert shown == said


def test_names_of_cases_are_unique() -> None:
    """A script's cases have different names."""
    for name in scripts_with_vectors():
        names = [vector.name for vector in vectors_of(name)]
        assert len(names) == len(set(names))
        assert len(names) == len([case for case in names if case])


@SCRIPTS
def test_cases_name_the_keys_of_their_script(script: Script) -> None:
    """KEYS are in the order of the header and of one queue."""
    for vector in vectors_of(script.name):
        kinds = [MANY.sub(r":\1", key) for key in vector.keys]
        assert tuple(kind.rpartition(":")[2] for kind in kinds) == script.keys
        assert len({kind.rpartition(":")[0] for kind in kinds}) == 1


@PRESSURE
def test_cases_of_pressure_name_the_keys_of_their_script(script: Script) -> None:
    """KEYS are in the order of the header and of one queue; a script of a role has one."""
    keys = PressureKeys("jobs", "__pressure__")
    roles: tuple[Role | None, ...] = (None, "producer", "consumer")
    rows = [keys.head(script, role)[1:] for role in roles if role or "free" not in script.keys]
    for vector in vectors_of(script.name):
        assert tuple(key.encode() for key in vector.keys) in rows


def test_every_key_of_pressure_appears() -> None:
    """Each key is read and removed in some case, and written except the Go client's."""
    named = {name.decode() for name in PressureKeys("jobs", "__pressure__").names.values()}
    came, went, was = set(), set(), set()
    for script in all_scripts("pressure/"):
        for vector in vectors_of(script.name):
            was |= set(vector.before)
            if vector.after != "unchanged":
                came |= set(vector.after) - set(vector.before)
                went |= set(vector.before) - set(vector.after)
    assert was == went == named
    assert came == {name for name in named if ":stats_" not in name}


def test_every_kind_of_key_appears() -> None:
    """Each key of the layout is read in some case and written in some case."""
    before, changed = set(), set()
    for vector in VECTORS:
        before |= {_kind(key) for key in vector.before}
        if vector.after != "unchanged":
            changed |= {
                _kind(key)
                for key in {*vector.before, *vector.after}
                if vector.before.get(key) != vector.after.get(key)
            }
    assert before == {*KEY_KINDS, *STAGING_KINDS, "stage", "commit", "checkpoint"}
    assert changed == {*KEY_KINDS, *STAGING_KINDS, "stage", "commit", "checkpoint"}


def _kind(key: str) -> str:
    return MANY.sub(r":\1", key).rpartition(":")[2]


def meta_fields(script: Script) -> set[str]:
    """Return the fields of meta that a script reads or writes."""
    body = body_of(script)
    fields: set[str] = set()
    for listed in re.findall(r"call\('HMGET', meta, ([^)]*)\)", body):
        fields |= set(re.findall(r"'(\w+)'", listed))
    fields |= set(re.findall(r"call\('(?:HINCRBY|HSET|HGET)', meta, '(\w+)'", body))
    fields |= set(re.findall(r"change\('(\w+)'", body))
    fields |= set(re.findall(r"(?:remove_waiting|return_jobs)\(\w+, '(\w+)'\)", body))
    return fields


def test_every_field_of_meta_appears() -> None:
    """Each field of meta in a script is in some case, before or after it."""
    known = set.union(*(meta_fields(script) for script in all_scripts()))
    shown: set[str] = set()
    for vector in VECTORS:
        for space in (vector.before, {} if vector.after == "unchanged" else vector.after):
            for key, value in space.items():
                if key.endswith(":meta"):
                    shown |= {name for name in value["fields"] if name[0] != "@"}
    assert shown == known


def test_files_are_plain_data() -> None:
    """Bytes are characters up to U+00FF, and a case has only documented parts."""
    parts = {"name", "returns", "now", "before", "args", "reply", "after"}
    for name in scripts_with_vectors():
        found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
        assert set(found) == {"script", "queue", "keys", "cases"}
        assert found["script"] == name
        for case in found["cases"]:
            assert set(case) - {"keys"} == parts
            assert max(json.dumps(case, ensure_ascii=False)) <= "\u00ff"
