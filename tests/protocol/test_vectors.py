"""Every vector on every back end: the reply and the whole key space (protocol/core.md, Vectors)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.pressure.keys import PressureKeys, Role
from penstock.wire.codes import Code
from penstock.wire.keys import KEY_KINDS, KINDS_PER_CALL, LASTING_KINDS
from penstock.wire.scripts import Script, all_scripts
from tests.protocol.clock import T0, TIME, lane_args
from tests.protocol.differences import LINE_WIDTH, apply, difference, written
from tests.protocol.headers import codes_of, returns_of
from tests.protocol.keyspace import Space, same, without_px
from tests.protocol.lua import body_of
from tests.protocol.record import fill
from tests.protocol.vectors import (
    FOLDER,
    Outcome,
    Vector,
    all_files,
    all_vectors,
    parsed,
    placed,
    resolved,
    run_vector,
    scripts_with_vectors,
    vectors_in,
    vectors_of,
    wanted,
)
from tests.support.backends import Backend

VECTORS = [vector for vector in all_vectors() if not vector.is_pressure]
OTHER_T0 = 1_712_345_678_901
MANY = re.compile(r":(stage|commit|checkpoint|emitted):.*")
"""Keys of which a queue has many."""
RECORDED = 8
"""Cases of a script that are recorded again."""
MOST_LINES_OF_A_CASE = 9.5
"""On average."""
ONE_STRING = re.compile(r' *("[^"]*": )?"([^"\\]|\\.)*",?')
"""A line with one string, and its name."""
WITH_FAULTS = 8
"""Vectors of a script whose expectations are made wrong, those with the smallest states."""
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
    _compare(run_vector(backend.sync_client(), vector, t0), wanted(vector, t0), vector.script)


def _compare(found: Outcome, expected: Outcome, script: str) -> None:
    found, expected = _plain(found, script), _plain(expected, script)
    assert found.reply == expected.reply
    assert without_px(found.after) == without_px(expected.after)
    assert same(found.after, expected.after), "a time to live"


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


@SCRIPTS
def test_the_keys_of_the_lane_are_enough_or_refused(script: Script, backend: Backend) -> None:
    """With the first keys only, each case holds, or the answer is -20 and nothing changes."""
    raw = backend.sync_client()
    for vector in vectors_of(script.name) if script.lane else ():
        raw.flushdb()
        is_whole = len(vector.keys) > script.lane
        args = lane_args(script, vector.args) if is_whole else [*vector.args]
        if args is None:  # the lane leaves out what this call passes
            continue
        given = replace(vector, keys=vector.keys[: script.lane], args=tuple(args))
        if run_vector(raw, given, T0).reply[0] == Code.KEYS_MISSING:
            assert vector.reply[0] != Code.LANE, vector.name
            given = replace(given, reply=[-20, placed(vector.args[0], T0)], after=given.before)
        raw.flushdb()
        _check(given, backend, T0)


@EVERY
def test_a_token_that_is_there_is_not_doubled(script: Script, backend: Backend) -> None:
    """A call that adds a token to `wake` or `space` leaves the one that it finds."""
    raw = backend.sync_client()
    for vector in vectors_of(script.name):
        for key in _added_tokens(vector):
            raw.flushdb()
            found = replace(vector, before={**vector.before, key: vector.after[key]})
            _compare(run_vector(raw, found, T0), wanted(found, T0), script.name)


@SCRIPTS
def test_a_producer_whose_wait_ends_now_gets_no_token(script: Script, backend: Backend) -> None:
    """It waits up to the time in `full`, and not in this ms."""
    raw = backend.sync_client()
    for vector in vectors_of(script.name):
        meta = next((key for key in vector.before if key.endswith(":meta")), "")
        spaces = [key for key in _added_tokens(vector) if key.endswith(":space")]
        for space in spaces if meta else ():
            raw.flushdb()
            before = apply(vector.before, {meta: {"fields": {"full": vector.now}}})
            assert space not in run_vector(raw, replace(vector, before=before), T0).after


def _added_tokens(vector: Vector) -> list[str]:
    """Return those of the lists of tokens that the call of a vector makes."""
    tokens = [key for key in vector.after if key.endswith((":wake", ":space"))]
    return [key for key in tokens if key not in vector.before]


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
    shown = set()
    for vector in vectors_of(script.name):
        first, *others = [line.shape for line in returns_of(script) if line.fits(vector.reply)]
        assert vector.returns in ("", *others), vector.name
        shown.add(vector.returns or first)
    assert shown == {line.shape for line in returns_of(script)}


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
    """A name that an object has twice is refused; so no case hides another one."""
    with pytest.raises(ValueError, match="twice in one object: a"):
        parsed('{"cases": {"a": {}, "b": {}, "a": {}}}')
    assert all(vector.name for vector in all_vectors())


@SCRIPTS
def test_cases_name_the_keys_of_their_script(script: Script) -> None:
    """The own keys of a file are those of its script, and of the queue."""
    for vector in vectors_of(script.name):
        kinds = [MANY.sub(r":\1", key) for key in vector.keys]
        named = tuple(kind.rpartition(":")[2] for kind in kinds)
        assert named in (script.keys, script.keys[: script.lane or None])
        assert len({kind.rpartition(":")[0] for kind in kinds}) == 1


@PRESSURE
def test_cases_of_pressure_name_the_keys_of_their_script(script: Script) -> None:
    """KEYS are in the order of the header and of one queue; a script of a role has one."""
    keys = PressureKeys("jobs", "__pressure__")
    roles: tuple[Role | None, ...] = (None, "producer", "consumer")
    rows = [keys.of(script, role) for role in roles if role or "free" not in script.keys]
    for vector in vectors_of(script.name):
        assert tuple(key.encode() for key in vector.keys) in rows


def test_every_key_of_pressure_appears() -> None:
    """Each key is read and removed in some case, and written except the Go client's."""
    named = {name.decode() for name in PressureKeys("jobs", "__pressure__").names.values()}
    came, went, was = set(), set(), set()
    for script in all_scripts("pressure/"):
        for vector in vectors_of(script.name):
            was |= set(vector.before)
            came |= set(vector.after) - set(vector.before)
            went |= set(vector.before) - set(vector.after)
    assert was == went == named
    assert came == {name for name in named if ":stats_" not in name}


def test_every_kind_of_key_appears() -> None:
    """Each key of the layout is read in some case and written in some case."""
    before, changed = set(), set()
    for vector in VECTORS:
        before |= {_kind(key) for key in vector.before}
        changed |= {_kind(key) for key in difference(vector.before, vector.after)}
    assert before == {*KEY_KINDS, *LASTING_KINDS, *KINDS_PER_CALL}
    assert changed == {*KEY_KINDS, *LASTING_KINDS, *KINDS_PER_CALL}


def _kind(key: str) -> str:
    return MANY.sub(r":\1", key).rpartition(":")[2]


PASSED_ON = {"longest_wait"}
"""Fields of meta that scripts only store and answer, whatever they are."""


def known_meta_fields() -> set[str]:
    """Return all fields of meta: those that a script names, and those that they pass on."""
    named = set.union(*(meta_fields(script) for script in all_scripts()))
    assert not named & PASSED_ON
    return named | PASSED_ON


def meta_fields(script: Script) -> set[str]:
    """Return the fields of meta that a script reads or writes."""
    body = body_of(script)
    fields: set[str] = set()
    for listed in re.findall(r"call\('HMGET', meta, ([^)]*)\)", body):
        fields |= set(re.findall(r"'(\w+)'", listed))
    fields |= set(re.findall(r"call\('(?:HINCRBY|HSET|HGET)', meta, '(\w+)'", body))
    fields |= set(re.findall(r"change\('(\w+)'", body))
    fields |= set(re.findall(r"(?:remove_waiting|return_jobs)\([\w, ]+, '(\w+)'\)", body))
    return fields


def test_every_field_of_meta_appears() -> None:
    """Each field of meta in a script is in some case, before or after it."""
    known = known_meta_fields()
    shown: set[str] = set()
    for vector in VECTORS:
        for space in (vector.before, vector.after):
            for key, value in space.items():
                if key.endswith(":meta"):
                    shown |= {name for name in value["fields"] if name[0] != "@"}
    assert shown == known


def test_files_are_plain_data() -> None:
    """Bytes are characters up to U+00FF, and a case has only documented parts."""
    optional = {"from", "returns", "keys", "lane", "now", "before", "after"}
    for name in scripts_with_vectors():
        found = _document(name)
        assert set(found) - {"keys"} == {"script", "queue", "prefix", "cases"}
        assert found["script"] == name
        for case in found["cases"].values():
            own = set(case) - optional
            assert own == {"args", "reply"} or ("from" in case and own <= {"args", "reply"})
            assert max(json.dumps(case, ensure_ascii=False)) <= "\u00ff"


def test_files_can_be_read_by_a_person() -> None:
    """They are as the recorder writes them: no line is too long but for one string, and few."""
    lines, cases = [], 0
    for name in all_files():
        text = (FOLDER / f"{name}.json").read_text("utf-8")
        assert text == written(parsed(text)), f"run: python -m tests.protocol.record {name}"
        lines += text.splitlines()
        cases += len(json.loads(text).get("cases", ()))
    assert len(lines) < MOST_LINES_OF_A_CASE * cases
    long = [line for line in lines if len(line) > LINE_WIDTH]
    assert [line for line in long if not ONE_STRING.fullmatch(line)] == []


def test_a_file_has_what_fits_on_a_line_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases, and parts of a document, begin lines; neighbours within a case share them."""
    monkeypatch.setattr("tests.protocol.differences.LINE_WIDTH", 60)
    args, reply = ["8", "x" * 200], [1, "8"]
    before = {"meta": {"fields": {"last": "<T0-5000>-1000000000", "acked": "1", "uses": "r"}}}
    long = {"before": before, "args": args, "reply": reply, "after": {"meta": None}}
    cases = {"short": {"args": ["8"], "reply": reply}, "long": long}
    assert (
        written({"script": "ack", "cases": cases})
        == """{
  "script": "ack",
  "cases": {
    "short": {"args": ["8"], "reply": [1, "8"]},
    "long": {
      "before": {
        "meta": {
          "fields": {
            "last": "<T0-5000>-1000000000", "acked": "1",
            "uses": "r"
          }
        }
      },
      "args": ["8", "<200*x>"], "reply": [1, "8"],
      "after": {"meta": null}
    }
  }
}
"""
    )


def test_cases_say_only_what_differs() -> None:
    """Nothing that a case says is so without it; it builds on a whole case above it."""
    for name in scripts_with_vectors():
        found = _document(name)
        whole: dict[str, Any] = {}
        for title, case in found["cases"].items():
            if "from" in case:
                other = {"now": "<T0>", "before": {}, **whole[case["from"]]}
            else:
                other, whole[title] = {"now": "<T0>", "before": {}}, case
            assert all(
                case.get(part) != other.get(part)
                for part in ("keys", "now", "args", "reply")
                if part in case
            ), title
            before = resolved(found["cases"], title)["before"]
            for old, part in ((other["before"], "before"), (before, "after")):
                patch = placed(case.get(part, {}), T0)
                old = placed(old, T0)
                assert patch == difference(old, apply(old, patch)), f"{name}: {title}"
                assert case.get(part) != {}, f"{name}: {title}"


def _document(name: str) -> dict[str, Any]:
    return parsed((FOLDER / f"{name}.json").read_text("utf-8"))


def _without(patch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a patch without one of its changes, for each of them."""
    for name, part in patch.items():
        rest = {other: inner for other, inner in patch.items() if other != name}
        if isinstance(part, dict):
            yield from ({**rest, name: less} for less in _without(part))
        else:
            yield rest


def _equals(found: Outcome, expected: Outcome, script: str) -> bool:
    try:
        _compare(found, expected, script)
    except AssertionError:
        return False
    return True


def _wrong(before: Space, after: Space) -> Iterator[tuple[str, Space]]:
    """Yield key spaces that differ in one thing from that after a call, with the thing."""
    for patch in _without(difference(before, after)):
        yield "a change is not named", apply(before, patch)
    yield "a key is not there", {**after, "penstock:{q}:other": {"value": "1"}}
    for key, value in after.items():
        yield f"{key} has been removed", apply(after, {key: None})
        for part in {"fields", "members", "entries"} & value.keys():
            yield f"{key} has not one more", apply(after, {key: {part: {"9-9": "9"}}})
            for name in value[part]:
                yield f"{key} has {name}", apply(after, {key: {part: {name: None}}})
                yield f"{name} is other", apply(after, {key: {part: {name: "other"}}})
        for part in {"items", "value", "last", "px"} & value.keys():
            yield f"{part} is other", apply(after, {key: {part: 999_999_999}})


@EVERY
def test_a_wrong_expectation_fails(script: Script, backend: Backend) -> None:
    """A change that is not named, or named and not made, fails: of a key and of each part."""
    raw = backend.sync_client()
    changing = [vector for vector in vectors_of(script.name) if vector.before != vector.after]
    for vector in sorted(changing, key=lambda one: len(str(one.before)))[:WITH_FAULTS]:
        raw.flushdb()
        found, expected = run_vector(raw, vector, T0), wanted(vector, T0)
        _compare(found, expected, script.name)
        for thing, after in _wrong(placed(vector.before, T0), expected.after):
            wrong = Outcome(expected.reply, after)
            assert not _equals(found, wrong, script.name), f"{vector.name}: {thing}"


@EVERY
def test_the_recorder_writes_the_file(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases whose reply is a question mark get their reply and changes back."""
    document = _document(script.name)
    for case in [*document["cases"].values()][:RECORDED]:
        case["reply"] = "?"
        case.pop("after", None)
    path = tmp_path / f"{script.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(written(document), "utf-8")
    monkeypatch.setattr("tests.protocol.record.FOLDER", tmp_path)
    assert len(list(fill(script.name))) == min(RECORDED, len(document["cases"]))
    recorded = vectors_in(parsed(path.read_text("utf-8")))
    for vector, old in zip(recorded, vectors_of(script.name), strict=True):
        _compare(wanted(vector, T0), wanted(old, T0), script.name)
