"""Script headers agree with their bodies, and scripts run on every server."""

from __future__ import annotations

import re

import pytest

from penstock.core.calls.refusals import ARGUMENT_RULES, refusal
from penstock.pressure.keys import KEYS_OF_ROLE, PressureKeys
from penstock.wire.codes import Code
from penstock.wire.keys import QUEUE_KINDS
from penstock.wire.scripts import META_DEFAULTS, Script, all_scripts
from tests.protocol.headers import returns_of
from tests.protocol.lua import LUA, body_of

OF_STAGES = ("stage", "commit", "unstage")
SCRIPTS = pytest.mark.parametrize("script", all_scripts(), ids=lambda script: script.name)
PRESSURE = pytest.mark.parametrize(
    "script", all_scripts("pressure/"), ids=lambda script: script.name
)
EVERY = pytest.mark.parametrize(
    "script", [*all_scripts(), *all_scripts("pressure/")], ids=lambda script: script.name
)

FORBIDDEN = ("KEYS", "SCAN", "ZSCAN", "RANDOMKEY", "FLUSHDB", "EVAL", "PUBLISH", "WAIT")


def code_of(script: Script) -> str:
    """Return the Lua of a script without comments and strings."""
    return re.sub(r"'(?:[^'\\]|\\.)*'", "''", body_of(script))


@EVERY
def test_every_name_of_the_header_is_used(script: Script) -> None:
    """KEYS, ARGV and META have only names that the body uses."""
    body = body_of(script)
    for name in (*script.used, *script.args, *(f"{name}s" for name in script.rest[:1])):
        uses = len(re.findall(rf"(?<![\w.']){name}(?![\w'])", body))
        assert uses > 1, f"{script.name} declares {name} and does not use it"
    for field, name in script.meta:
        uses = len(re.findall(rf"(?<![\w.']){name}(?![\w'])", body))
        assert uses > (3 if field in META_DEFAULTS else 1), (
            f"{script.name} reads {name} for nothing"
        )


def test_names_are_used_not_numbers() -> None:
    """No file uses a key, an argument or a field of meta by its position."""
    for file in LUA.rglob("*.lua"):
        code = re.sub(r"--.*", "", file.read_text())
        assert not re.search(r"\b(KEYS|ARGV)\b|\bm\[", code), file.name


@SCRIPTS
def test_keys_are_kinds_of_the_layout(script: Script) -> None:
    """Every declared key is one of the queue's."""
    assert script.keys[: len(QUEUE_KINDS)] == QUEUE_KINDS
    own = script.keys[len(QUEUE_KINDS) :]
    assert own in ((), ("checkpoint",), ("stage", "commit"), ("emitted",), ("emitted", "emitters"))
    assert set(own) <= set(script.used)
    assert script.args[0] == "nonce"


@PRESSURE
def test_keys_of_pressure_are_those_of_the_protocol(script: Script) -> None:
    """Every declared key is one of the queue's, or its name in a role."""
    named = set(PressureKeys("q", "p").names)
    assert len(named) == 12 + 4  # the Go client's counters
    assert set(script.keys) <= named.union(*KEYS_OF_ROLE.values())
    assert len(set(script.keys)) == len(script.keys)
    assert script.args[0] == "nonce"


@EVERY
def test_every_command_goes_to_a_declared_key(script: Script) -> None:
    """No key is built in the script or taken from a value."""
    given = set(script.keys)
    loop = r"for _, (\w+) in ipairs\(\{([^}]*)\}\)"
    choice = r"local (\w+) = \(\{([^}]*)\}\)\[\w+\]"
    pairs = r"for \w+, (\w+) in pairs\(\{([^}]*)\}\)"
    body = body_of(script)
    for name, values in [pair for way in (loop, choice, pairs) for pair in re.findall(way, body)]:
        listed = re.split(r",\s+", values.strip())
        assert {value.split(" = ")[-1] for value in listed} <= set(script.keys)
        given.add(name)
    for name in re.findall(r"local function (\w+)\(index", body):
        calls = re.findall(rf"(?<!function ){name}\((\w+)", body)
        assert calls
        assert set(calls) <= {*script.keys, "index"}
        given.add("index")
    for command, key in re.findall(r"\bcall\('(\w+)'(?:, ([^,)]+))?", body_of(script)):
        assert command == "TIME" or key in given or (command, key) == ("XINFO", "'STREAM'")
    for key in re.findall(r"call\('XINFO', 'STREAM', (\w+)\)", body_of(script)):
        assert key in script.keys


@EVERY
def test_only_constant_commands_that_may_be_used(script: Script) -> None:
    """Commands are constants; none of them uses other keys or changes the connection."""
    body = body_of(script)
    commands = re.findall(r"\bcall\('(\w+)'", body)
    assert len(re.findall(r"\bcall\(", body)) == len(commands)
    assert not set(commands) & set(FORBIDDEN)
    assert body.count("redis.call('TIME')") <= 1


@EVERY
def test_scripts_run_on_every_server(script: Script) -> None:
    """No shebang, only ASCII, and no library that fakeredis or an old server lacks."""
    assert not script.source.startswith("#")
    # a full server may refuse the values of results, and what handlers tell; nothing else is tried
    code = re.sub(r"redis\.pcall\('', (held, unpack\(blocks|emitted, '')", "", code_of(script))
    assert not re.search(r"\b(cjson|struct|cmsgpack|bit|pcall|error|loadstring|os)\b\s*[.(]", code)
    assert not re.search(r"redis\.(?!call\b)", code)
    assert script.source.isascii()


@SCRIPTS
def test_replies_begin_with_code_and_nonce(script: Script) -> None:
    """The body's replies are exactly those of the header."""
    said = {line.code for line in returns_of(script)}
    written = {int(code) for code in re.findall(r"return \{(-?\d+), nonce", body_of(script))}
    written |= {int(code) for code in re.findall(r"local reply\b[^=]*= \{(-?\d+), nonce",
                                                 body_of(script))}  # fmt: skip
    assert said == written
    for line in re.findall(r"^return (.*)", body_of(script), flags=re.MULTILINE):
        assert line == "reply" or line.startswith("{1, nonce, ")
    assert said <= {*map(int, Code)}


@PRESSURE
def test_replies_of_pressure_are_those_of_the_header(script: Script) -> None:
    """The body's replies are exactly those of the header."""
    body = body_of(script)
    written = re.findall(r"(?:return|local reply =) \{(-?\d+), nonce", body)
    assert {line.code for line in returns_of(script)} == {*map(int, written)}
    assert len(re.findall(r"\breturn\b(?! reply)", body)) == len(written) - ("reply =" in body)


@SCRIPTS
def test_the_clock_is_read_before_anything_else_but_meta(script: Script) -> None:
    """`now` is read once, from the server."""
    commands = re.findall(r"\bcall\('(\w+)'", body_of(script))
    if script.name in OF_STAGES:  # they use no clock of the queue
        assert commands[0] == "HMGET"
        return
    assert "TIME" in commands
    # EXISTS: checks if meta is lost, which ends the call; publish: the promise, the moved jobs
    # and their entry
    more = ["HGET", "GET", "HGET", "HGET"] if script.name == "publish" else []
    assert commands[: commands.index("TIME")] in (["HMGET", *more], ["HMGET", *more, "EXISTS"])


@pytest.mark.parametrize("folder", ["", "pressure/"])
def test_every_lua_file_is_used(folder: str) -> None:
    """Every file is part of a script."""
    place = LUA / folder
    files = {f"{folder}{file.stem}" for file in place.glob("*.lua")}
    assert files == {script.name for script in all_scripts(folder)}
    includes = sorted((place / "lib").rglob("*.lua"))
    included = "\n".join(file.read_text() for file in (*place.glob("*.lua"), *includes))
    for file in includes:
        name = file.relative_to(LUA).with_suffix("").as_posix()
        assert re.search(rf"--@include {name}\b", included), name


def test_malformed_arguments_have_a_text() -> None:
    """The client has a text for each argument that a script refuses (-19) by other than BOUNDS."""
    found = {
        name
        for one in all_scripts()
        for name in re.findall(r"\{-19, nonce, '(\w+)'", one.source)
        if name not in {bound.name for bound in one.bounds}
    }
    assert found | {"from", "to"} == set(
        ARGUMENT_RULES
    )  # survey takes these two names from a table


def test_the_error_of_a_number_has_its_bounds() -> None:
    """The client takes the bounds from the header of the script that refused the number."""
    for one in all_scripts():
        for bound in one.bounds:
            error = refusal("q", [Code.MALFORMED, b"1", bound.name.encode(), b"x"], one.bounds)
            assert bound.name in ARGUMENT_RULES or f"from {bound.least} to {bound.most}" in str(
                error
            )
