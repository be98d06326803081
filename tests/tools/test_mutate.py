"""The faults that tools/mutate.py finds in a file."""

from __future__ import annotations

from pathlib import Path

import penstock
from tools.mutate import EQUIVALENT, lua_faults, python_faults

PYTHON = b'''
from typing import Literal

def pick(ids: Literal[1], most: int = 2) -> int | None:
    """Text 1."""
    assert most > 0
    if not ids and most < 5:
        logger.info("none of %d", 3)
        send(ids, most, "\xc3\xbc")
    self.count += most
    return ids
'''
LUA = b"""--- KEYS  a 1
if left > 0 and not done then -- more than 1
  call('HSET', meta, 'v', '3')
  left = other
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
        "self.count += most -> pass",
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
    for path, described in EQUIVALENT:
        source = (Path(penstock.__file__).parent / path).read_bytes()
        assert described in {fault.described(source) for fault in python_faults(path, source)}
