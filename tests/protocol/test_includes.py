"""Includes of scripts declare the names that they share with the code around them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.wire.keys import KEY_KINDS, LASTING_KINDS
from penstock.wire.scripts import all_scripts, parts, script
from tests.protocol.lua import (
    LUA,
    Names,
    free_names,
    include,
    names_of_include,
    names_of_script,
    with_stubs,
    words,
)

INCLUDES = [
    file.relative_to(LUA).with_suffix("").as_posix()
    for folder in ("lib", "pressure/lib")
    for file in sorted((LUA / folder).rglob("*.lua"))
]
SCRIPTS = [found.name for found in (*all_scripts(), *all_scripts("pressure/"))]
NAMES = 12
"""The most names that an include may read from outside, besides keys, `now` and `nonce`."""
LOCALS, UPVALUES = 200, 60  # limits of Lua 5.1 for a function
CLOSURES = 25
"""The most functions with upvalues that each call of a script creates; 60 take 3.4 us. Functions of
structures that a queue lacks are in branches, and do not count; nor do those without upvalues."""


def test_names_are_read_from_compiled_code() -> None:
    """Free names are distinguished from locals, upvalues, fields and words in strings."""
    found = free_names(
        """
        local a, b = given, 'word'
        local function f(c)
          local inner = a.field + c + deep
          outer = {key = inner}
          return inner
        end
        do
          local hidden = 1
        end
        if a then
          local hidden = string.len(b)
          local function rare() return a end
        end
        """
    )
    assert found.read == {"given", "deep"}
    assert found.assigned == {"outer"}
    assert found.declared == {"a", "b", "f"}
    assert found.closures == 1


@pytest.mark.parametrize("name", INCLUDES)
def test_an_include_declares_its_names(name: str) -> None:
    """KEYS, NEEDS and SETS are exactly its free names; GIVES are its own locals."""
    one, found = include(name), names_of_include(name)
    keys = {*KEY_KINDS, *LASTING_KINDS} if name.startswith("lib/") else set()
    expected = f"NEEDS {' '.join(sorted(found.read))}  SETS {' '.join(sorted(found.assigned))}"
    assert set(one.keys) == found.read & keys, expected
    assert set(one.needs) == found.read - keys, expected
    assert set(one.sets) == found.assigned, expected
    assert set(one.gives) <= found.declared


def test_an_include_reads_few_names() -> None:
    """An include reads few names from outside, besides keys and the time."""
    read = {name: len({*include(name).needs} - {"now", "nonce"}) for name in INCLUDES}
    assert {name: count for name, count in read.items() if count > NAMES} == {}


def test_an_include_that_ends_the_script_is_a_check() -> None:
    """Only the name `check_...` stands for a possible `return`."""
    ends = {name for name in INCLUDES if names_of_include(name).returns}
    assert {name for name in ends if "/check_" not in name} == set()
    assert "lib/checks/check_epoch" in ends


@pytest.mark.parametrize("name", INCLUDES)
def test_an_include_gives_only_what_is_used(name: str) -> None:
    """Each name that an include gives is needed where it is included."""
    users = [script(each).bindings + script(each).body for each in SCRIPTS]
    users += [include(each).body for each in INCLUDES]
    bodies = [text for text in users if re.search(rf"--@include {name}\b", text)]
    assert bodies
    for given in include(name).gives:
        assert any(_is_used(given, name, text) for text in bodies), given


def _is_used(given: str, name: str, text: str) -> bool:
    """Tell if the text needs the name that the include gives."""
    had, has = (free_names(with_stubs(text, hidden)) for hidden in (("", ""), (name, given)))
    return _free(had) != _free(has) or given in had.declared - has.declared


def _free(names: Names) -> frozenset[str]:
    return names.read | names.assigned


@pytest.mark.parametrize("name", [*SCRIPTS, *INCLUDES])
def test_letters_of_uses_have_names(name: str) -> None:
    """No file writes a letter itself, and the loader has replaced each name."""
    written = (LUA / f"{name}.lua").read_text()
    assert not re.search(r"string\.(find|g?match|gsub)\(uses, '(?!%a')", written)
    assert not re.search(r"\b(uses_any|letters)\(", parts(name)[2])


@pytest.mark.parametrize("call", ["uses_any('dedups')", "use('d')", "letters('ttls x')"])
def test_a_misspelled_letter_of_uses_is_an_error(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that names an unknown letter is not assembled."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"return {call}\n")
    with pytest.raises(KeyError):
        parts.__wrapped__("ack")


@pytest.mark.parametrize("name", [*SCRIPTS, *INCLUDES])
def test_an_include_line_lists_its_names(name: str) -> None:
    """The line lists the names that the file uses, except an include's function name."""
    body = script(name).body if name in SCRIPTS else include(name).body
    used = words(body)
    for line, included in re.findall(r"(--@include (\S+).*)", body):
        given = [each for each in include(included).gives if each in used]
        shown = [each for each in given if each != included.rpartition("/")[2]]
        listed = f" (gives: {', '.join(shown)})" if shown else ""
        assert line == f"--@include {included}{listed}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_no_undeclared_name(name: str) -> None:
    """Each name is from the header, declared in the script, or given by a named include."""
    found = names_of_script(name)
    assert not found.read | found.assigned


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_assembled_script_has_no_free_name(name: str) -> None:
    """It is complete, and below Lua's limits of locals in a function."""
    found = free_names(script(name).source)
    assert not found.read | found.assigned
    assert found.most_locals <= LOCALS * 0.9
    assert found.most_upvalues <= UPVALUES * 3 / 4


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_call_creates_few_functions(name: str) -> None:
    """Creating functions takes time in each call, whether they are called or not."""
    assert free_names(script(name).source).closures <= CLOSURES
