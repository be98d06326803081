"""The faults that tools/mutate.py finds in a file, and how its tests meet them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import penstock
from tools.mutate import (
    TIME_LIMIT,
    Forks,
    Unloadable,
    Verdicts,
    lua_faults,
    python_faults,
    table,
)
from tools.mutate_equivalent import EQUIVALENT
from tools.mutate_plugin import changed_functions
from tools.mutate_record import Record

PYTHON = b'''
from typing import Literal

def pick(ids: Literal[1], most: int = 2) -> int | None:
    """Text 1."""
    assert most > 0
    if not ids and most < 5:
        logger.info("none of %d", 3)
        send(ids, most, "\xc3\xbc")
    self.count += max(most, ids)
    return ids
'''
LUA = b"""--- KEYS  a 1
if left > 0 and not done then -- more than 1
  call('HSET', meta, 'v', '3')
  left = other -- math.max(left, other)
  send(math.max(left, other), id)
end
return find(key, id)
"""


def test_faults_of_python() -> None:
    """No fault lies in types, assertions, log records and texts."""
    assert {fault.described(PYTHON) for fault in python_faults("a.py", PYTHON)} == {
        "2 -> 3",
        "2 -> 1",
        "not ids and most < 5 -> True",
        "not ids and most < 5 -> False",
        "not ids and most < 5 -> (not ids or most < 5)",
        "not ids -> (ids)",
        "most < 5 -> (most <= 5)",
        "5 -> 6",
        "5 -> 4",
        'send(ids, most, "\u00fc") -> pass',
        "send(ids, most, \"\u00fc\") -> (send(most, ids, '\u00fc'))",
        "self.count += max(most, ids) -> pass",
        "ids -> None",
    }
    [fault] = [one for one in python_faults("a.py", PYTHON) if one.text == b"(most <= 5)"]
    assert fault.applied(PYTHON) == PYTHON.replace(b"most < 5", b"(most <= 5)")
    assert (fault.line, fault.kind) == (7, "comparison")


def test_faults_of_lua() -> None:
    """No fault lies in the header and in comments."""
    assert {fault.described(LUA) for fault in lua_faults("a.lua", LUA)} == {
        "> -> >=",
        "0 -> 1",
        "and -> or",
        "not -> (nothing)",
        "left > 0 and not done -> true",
        "left > 0 and not done -> false",
        "call('HSET', meta, 'v', '3') -> (nothing)",
        "left = other -> (nothing)",
        "find(key, id) -> nil",
        "key, id -> id, key",
    }


def test_faults_that_change_nothing_exist() -> None:
    """Each fault of the list is one that the tool would try."""
    for key in EQUIVALENT:
        path = key[0]
        source = (Path(penstock.__file__).parent / path).read_bytes()
        make = lua_faults if path.endswith(".lua") else python_faults
        assert key in {fault.named(source) for fault in make(path, source)}


def test_a_first_character_may_have_the_number_0() -> None:
    """The numbers 1 and 0 name the same character to Lua, as the first of several."""
    source = b"x = string.sub(f(id), 1, 200)\ny = string.find(id, ' ', 1, true)\nz = max(id, 1)\n"
    faults = [one for one in lua_faults("a.lua", source) if one.described(source) == "1 -> 0"]
    assert [bool(one.reason(source)) for one in faults] == [True, True, False]


def test_tests_that_call_a_script_are_those_of_a_lua_file() -> None:
    """Tests of the protocol run scripts without a client, so they are among them."""
    tests = {"tests/core/a": 2.0, "tests/core/b": 1.0, "tests/protocol/c": 3.0}
    record = Record({}, tests, {"tests/core/a": ["ack", "nack"], "tests/core/b": ["peek"]})
    assert record.find_calling({"nack", "bury"}) == ["tests/core/a", "tests/protocol/c"]


def _code(text: str) -> CodeType:
    return compile(text, "a.py", "exec")


def test_changed_functions() -> None:
    """A change inside functions is the code of those; another one is None."""
    text = "def a(n=1):\n    return [lambda: n]\nclass B:\n    def c(self):\n        return 2\n"
    for old, new, names in (
        ("return 2", "return 3", ["c"]),
        ("lambda: n", "lambda: 4", ["a"]),  # with another closure
        ("lambda: n", "lambda: n + 1", ["a", "<lambda>"]),
        ("n=1", "n=2", None),
        ("class B", "class D", None),
    ):
        pairs = changed_functions(_code(text), _code(text.replace(old, new)))
        assert (pairs and [code.co_name for code, _ in pairs]) == names


CONFTEST = """
from hypothesis import settings
settings.register_profile("short")
def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true")
"""
TESTS = """
from penstock.small import two
def test_one(): assert two() == 2
def test_other(): assert two() < 3
"""


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    """Two tests of a package with one function."""
    for path, text in {
        "tools/__init__.py": "",
        "conftest.py": CONFTEST,
        "test_small.py": TESTS,
        "src/penstock/__init__.py": "",
        "src/penstock/wire/__init__.py": "",
        "src/penstock/wire/scripts.py": "class Script: pass\nscript = 0",
        "src/penstock/small.py": "def two():\n    return 2\n",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    plugin = Path(sys.modules[changed_functions.__module__].__file__ or "")
    (tmp_path / "tools/mutate_plugin.py").write_bytes(plugin.read_bytes())
    forks = Forks(tmp_path, ["-pno:penstock", "test_small.py"])
    yield forks
    forks.close()


def test_a_fork_runs_tests_with_a_fault(forks: Forks, tmp_path: Path) -> None:
    """A fault in a function is there for one request; one in a module is for a new process."""
    one, other = "test_small.py::test_one", "test_small.py::test_other"
    assert forks.tests == [one, other]
    file, path = tmp_path / "src/penstock/small.py", "src/penstock/small.py"
    for text, failed in (("return 2", ""), ("return 1", one), ("return 3", other)):
        file.write_text(f"def two():\n    {text}\n", encoding="utf-8")
        assert forks.find_failure([path], [other, one], {}) == failed
    assert forks.find_failure([], [other, one], {}) == ""
    file.write_text("def two(n=1):\n    return 2\n", encoding="utf-8")
    with pytest.raises(Unloadable):
        forks.find_failure([path], [one], {})


def test_a_fork_that_hangs_is_ended(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that ends an endless loop has failed, and the next request is answered."""
    monkeypatch.setattr("tools.mutate.TEST_LIMIT", 2)
    path, one = "src/penstock/small.py", "test_small.py::test_one"
    (tmp_path / path).write_text("def two():\n    while True: pass\n", encoding="utf-8")
    assert forks.find_failure([path], [one], {}) in {one, TIME_LIMIT}
    assert forks.find_failure([], [one], {}) == ""


def test_tests_that_execute_a_line_come_first_by_time(tmp_path: Path) -> None:
    """A line without an entry has the tests of the line above; that of a `def` has none."""
    contexts = {"a.py": {1: [""], 3: ["slow", "quick"], 5: ["quick"]}}
    record = Record(contexts, {"slow": 2.0, "quick": 0.1})
    found = [record.find_executing("a.py", line, tmp_path) for line in (2, 3, 4, 5)]
    assert found == [[], ["quick", "slow"], ["quick", "slow"], ["quick"]]


def test_tests_of_the_generated_file_execute_a_line_too(tmp_path: Path) -> None:
    """A short run has one of two twins of a test."""
    texts = {
        "_async": "import asyncio\n\nasync def go(it):\n    await it()\n    return 2\n",
        "_sync": "def go(it):\n    it()\n    return 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(text, encoding="utf-8")
    record = Record({"x/_sync/a.py": {2: ["one"], 3: ["one", "two"]}}, {})
    (tmp_path / "x").symlink_to(tmp_path)
    found = [record.find_executing("x/_async/a.py", line, tmp_path) for line in (3, 4, 5)]
    assert found == [[], ["one"], ["one", "two"]]


def test_verdicts_are_kept(tmp_path: Path) -> None:
    """A later run finds what an earlier one has added."""
    row = {"place": "src/penstock/core/a.py:1:9", "kind": "not", "change": "a -> b"}
    Verdicts(tmp_path / "a").add({**row, "stage": "survived", "test": ""})
    later = Verdicts(tmp_path / "a")
    later.read()
    assert later.find(row) == {**row, "stage": "survived", "test": ""}
    assert later.find({**row, "kind": "return"}) is None


def test_the_table_counts_by_folder_and_kind() -> None:
    """Equivalent faults count neither as noticed nor as missed."""
    rows = [
        {"place": f"src/penstock/core/a.py:{at}:9", "kind": "not", "stage": stage}
        for at, stage in enumerate(("touched", "short", "survived", "equivalent"))
    ]
    line = "1 | 1 | 0 | 1 | 1 | 2 of 3"
    assert list(table(rows))[1:] == [f"core | {line}", f"not | {line}", f"all | {line}"]
