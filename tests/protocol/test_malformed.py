"""Every script with malformed values in every argument: a call that is refused changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from penstock.wire.codes import Code
from penstock.wire.scripts import Script, all_scripts
from tests.protocol.clock import T0, frozen
from tests.protocol.keyspace import Raw, Space, dump, load, same
from tests.protocol.vectors import Vector, as_bytes, placed, vectors_of
from tests.support.backends import Backend

VALUES = (
    b"", b"nan", b"inf", b"-inf", b"-1", b"-0", b"+1", b"1.5", b"1e3", b"1e400", b"0x10", b" 1",
    b"1 ", b"1\n", b"1\0", b"1\x002", b"\xff\xfe", b"9007199254740993", b"9" * 25, b"-" + b"9" * 25,
    b"1,2", b"one",
)  # fmt: skip
FREE = {
    "emit text": "a text that is kept",
    **dict.fromkeys(("owner", "error", "reason", "trace", "value", "name"), "texts that are kept"),
    **dict.fromkeys(("record", "chunk"), "test_bounds has their parts; a body is free"),
    **dict.fromkeys(("common", "role", "attempt", "field"), "what no earlier call returned"),
    **dict.fromkeys(("resign token", "orphan_schedules app"), "what no earlier call returned"),
    **dict.fromkeys(("from", "to", "scan cursor"), "places, in calls that only read"),
    **dict.fromkeys(
        ("mode", "on", "part", "retime place", "state", "step"),
        "other words count as the usual one",
    ),
    **dict.fromkeys(("id", "mark", "message"), "texts of the protocol pressure"),
    "measure handler": "a name; '' = jobs without a handler",
    **dict.fromkeys(
        (
            "await",
            "duplicate",
            "force",
            "full",
            "held",
            "idle",
            "late",
            "letters",
            "lost",
            "newest",
            "overfill",
            "wait",
            "write",
        ),
        "flags: other words count as not set, or as set",
    ),
}
"""Arguments that may have any value, and why."""
FORMS = {
    "create": rb"|[0-9a-f]{8}",
    "hash": rb"[0-9a-f]{16}",
    "parts": rb"|1",
    "print": rb"-|[0-9a-fA-F]{1,16}",
    "key": rb"|[0-9a-fA-F]{13}",
    "app": rb"\S{0,600}",
    "producer": rb"[0-9a-f]{16}",
    "token": rb"[0-9a-f]{16}",
    "window": rb"",  # of the plain form
    "wanted": rb"",
    "asked": rb"|\d+",
    "cursor": rb"|\+?\d+",
    "score": rb"-inf|-?\d+",
    "delay": rb"\d+(,\d+)*",
    "delays": rb"[ \d]*",
    **dict.fromkeys(("waiting", "running"), rb"|[0-9a-d](\.[0-9a-z]{1,7}){1,14}"),  # of measure
    "fence": rb"",  # of purge; those of checkpoints and roles are whole numbers
    "progress": rb"",
}
"""Valid values of arguments that are neither free nor in BOUNDS. All others have none here."""
STARTS = 3
"""Valid calls of a script from which its cases begin."""


class Case(NamedTuple):
    """A valid call with one malformed value."""

    vector: Vector
    argument: str
    value: bytes
    args: list[Any]


def starts(script: Script) -> list[Vector]:
    """Return valid calls that differ in which arguments they give, the writing ones first."""
    every = [one for one in vectors_of(script.name) if one.reply[0] == 1 and not _is_repeat(one)]
    done = [one for one in every if _has_queue(one) or "create" in script.args] or every
    done.sort(key=lambda one: (one.after == one.before, len(str(one.before))))
    forms = {(len(one.args), *(arg == "" for arg in one.args)): one for one in reversed(done)}
    return [one for one in done if one in forms.values()][:STARTS]


def _has_queue(vector: Vector) -> bool:
    return any("epoch" in key.get("fields", {}) for key in vector.before.values())


def _is_repeat(vector: Vector) -> bool:
    """Tell if the call is answered from the note of its producer, whatever else it passes."""
    return "producer" in vector.source.args and vector.reply[6:7] == [1]


def cases(vector: Vector) -> Iterator[Case]:
    """Yield a call for each argument, and for the first of the repeated ones, with each value."""
    script = vector.source
    names = [*script.args, *script.rest][: len(vector.args)]
    for place, name in enumerate(names):
        for value in VALUES:
            args = [as_bytes(arg) for arg in placed(vector.args, T0)]
            args[place] = value
            yield Case(vector, name, value, args)


def is_valid(case: Case) -> bool:
    """Tell if the specification allows the value, so that the call may be done."""
    script, name, value = case.vector.source, case.argument, case.value
    for bound in script.bounds:
        if bound.name == name:
            if value == b"":
                return bound.may_be_empty
            return bool(re.fullmatch(rb"-?\d+", value)) and bound.least <= int(value) <= bound.most
    if name in FREE or f"{script.name} {name}" in FREE or name == "nonce":  # is only answered
        return True
    if name == "create" and _has_queue(case.vector):  # no epoch is needed
        return True
    return name in FORMS and re.fullmatch(FORMS[name], value) is not None


def outcome(raw: Raw, case: Case) -> Any:
    """Run the call, and return its reply."""
    vector = case.vector
    source = frozen(vector.source.source, int(placed(vector.now, T0)))
    keys = [as_bytes(key) for key in vector.keys]
    return raw.execute_command("EVAL", source, len(keys), *keys, *case.args)


def without_tokens(space: Space) -> Space:
    """Return the keys but those of tokens: a client that lost its role wakes the next one."""
    return {name: value for name, value in space.items() if not name.endswith((":wake", ":space"))}


@pytest.mark.parametrize(
    "script", [*all_scripts(), *all_scripts("pressure/")], ids=lambda script: script.name
)
def test_a_refused_call_changes_nothing(script: Script, backend: Backend) -> None:
    """A malformed value ends in a code below 1, not in an error; every key is as it was."""
    raw = backend.sync_client()
    for vector in starts(script):
        before: Space | None = None
        for case in cases(vector):
            if before is None:
                raw.flushdb()
                load(raw, placed(vector.before, T0))
                before = dump(raw)
            code = outcome(raw, case)[0]
            after = dump(raw)
            told = vector.name, case.argument, case.value, code
            is_refused = code < 1
            assert is_refused or is_valid(case), told
            if not is_refused:
                before = None if not same(after, before) else before
            elif code == Code.ROLE_LOST:
                assert same(without_tokens(after), without_tokens(before)), told
                before = None
            else:
                assert same(after, before), told
