"""Free names of Lua code, read from the bytecode of Lua 5.1."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from penstock.wire.scripts import Script, header_field, parts, script

__all__ = [
    "GLOBALS",
    "LUA",
    "Include",
    "Names",
    "body_of",
    "free_names",
    "include",
    "names_of_include",
    "names_of_script",
    "with_stubs",
    "words",
]

GLOBALS = {
    "ARGV", "KEYS", "ipairs", "math", "pairs", "redis", "string", "table", "tonumber", "unpack",
}  # fmt: skip
LUA = Path(str(resources.files("penstock.wire"))) / "lua"
LAST = "last_statement_of_the_chunk"
GET_GLOBAL, SET_GLOBAL, JUMP, RETURN, CLOSURE = 5, 7, 22, 30, 36
JUMP_BASE = 131_071  # of the distance of a jump, which has 18 bits


@dataclass(frozen=True, slots=True)
class Names:
    """The names that connect a chunk of Lua with the code around it.

    Attributes:
        read: free names that it reads.
        assigned: free names that it assigns.
        declared: its own locals that are in scope at its end.
        most_locals: the most locals that are in scope at once, in one function.
        most_upvalues: the most locals of outer functions that one function uses.
        returns: whether it can end by a `return` of its own, outside of functions.
        closures: functions with upvalues that every run makes which gets to the end, outside of
            other functions. Creating one takes the server about as long as a short command.
    """

    read: frozenset[str]
    assigned: frozenset[str]
    declared: frozenset[str]
    most_locals: int
    most_upvalues: int
    returns: bool
    closures: int


@dataclass(frozen=True, slots=True)
class Include:
    """A part of scripts.

    Attributes:
        keys: kinds of keys that it reads.
        needs: other names that it reads.
        sets: names that it assigns.
        gives: locals that it declares for the code behind it.
        body: its Lua, includes not resolved.
    """

    keys: tuple[str, ...]
    needs: tuple[str, ...]
    sets: tuple[str, ...]
    gives: tuple[str, ...]
    body: str


def include(name: str) -> Include:
    """Return the include of this name, as it stands in `--@include` lines."""
    _, header, body = parts(name)
    header = re.sub(r"\n +", " ", header)
    keys, needs, sets, gives = (
        tuple(header_field(header, field).split()) for field in ("KEYS", "NEEDS", "SETS", "GIVES")
    )
    return Include(keys, needs, sets, gives, body)


class _Dump:
    """A reader of precompiled Lua 5.1 (`string.dump`) from 64-bit machines."""

    def __init__(self, data: bytes) -> None:
        assert data[:12] == b"\x1bLuaQ\x00\x01\x04\x08\x04\x08\x00"
        self._data, self._at = data, 12
        self.read: set[str] = set()
        self.assigned: set[str] = set()
        self.most_locals = self.most_upvalues = 0
        self.returns = False
        self.closures = 0
        self.declared, _ = self._function()

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._take("Q")
        return str(self._take(f"{size}s")[:-1], "latin-1") if size else ""

    def _constant(self) -> str:
        kind = self._take("B")
        if kind == 4:
            return self._text()
        self._at += {0: 0, 1: 1, 3: 8}[kind]
        return ""

    def _function(self) -> tuple[set[str], int]:
        """Read a function; return its locals that are in scope at its end, and its upvalues."""
        self._text()
        self._at += 8
        upvalues = self._take("B")
        self.most_upvalues = max(self.most_upvalues, upvalues)
        self._at += 3
        code = [self._take("I") for _ in range(self._take("I"))]
        constants = [self._constant() for _ in range(self._take("I"))]
        for instruction in code:
            if instruction & 63 == GET_GLOBAL:
                self.read.add(constants[instruction >> 14])
            elif instruction & 63 == SET_GLOBAL:
                self.assigned.add(constants[instruction >> 14])
        inner = [self._function()[1] for _ in range(self._take("I"))]
        self.closures = sum(inner[place] > 0 for place in _made_always(code))
        self.returns = sum(instruction & 63 == RETURN for instruction in code) > 1
        for _ in range(self._take("I")):
            self._take("I")
        scopes = [(self._text(), self._take("I"), self._take("I")) for _ in range(self._take("I"))]
        for _ in range(self._take("I")):
            self._text()
        self.most_locals = max(
            self.most_locals, *(sum(s <= at < e for _, s, e in scopes) for _, at, _ in scopes), 0, 0
        )
        return {name for name, _, end in scopes if end >= len(code) - 1}, upvalues


def _made_always(code: list[int]) -> Iterator[int]:
    """Yield the places of the functions that no jump skips: those of branches are left out."""
    reached = 0  # the target of the longest jump so far
    for at, instruction in enumerate(code):
        if instruction & 63 == JUMP:
            reached = max(reached, at + 1 + (instruction >> 14) - JUMP_BASE)
        elif instruction & 63 == CLOSURE and at >= reached:
            yield instruction >> 14


@cache
def _compiler() -> Any:
    lupa = __import__("lupa.lua51", fromlist=["LuaRuntime"])  # comes with fakeredis
    return lupa.LuaRuntime(encoding=None).eval(
        b"function(source) return string.dump(assert(loadstring(source))) end"
    )


def free_names(source: str) -> Names:
    """Compile Lua and read its names."""
    ends = re.search(r"^return ", source, flags=re.MULTILINE)  # a script: nothing follows it
    found = _Dump(_compiler()(f"{source}\n{'' if ends else LAST + '()'}\n".encode()))
    return Names(
        frozenset(found.read - GLOBALS - {LAST}),
        frozenset(found.assigned),
        frozenset(found.declared),
        found.most_locals,
        found.most_upvalues,
        found.returns,
        found.closures,
    )


def _stub(name: str, hidden: str) -> str:
    """Return Lua that uses, assigns and declares the declared names of an include."""
    one = include(name)
    gives = [given for given in one.gives if given != hidden]
    read = (*one.keys, *one.needs)
    lines = [f"local _ = {{{', '.join(read)}}}"] if read else []
    lines += [f"{target} = nil" for target in one.sets]
    lines += [f"local {', '.join(gives)} = nil"] if gives else []
    return " ".join(lines)


def with_stubs(text: str, hidden: tuple[str, str] = ("", "")) -> str:
    """Replace each include by its declared interface.

    `hidden` is an include and a name of its GIVES that is left out.
    """
    return re.sub(
        r"^[ \t]*--@include (\S+).*$",
        lambda match: _stub(match[1], hidden[1] if match[1] == hidden[0] else ""),
        text,
        flags=re.MULTILINE,
    )


def names_of_include(name: str) -> Names:
    """Return the names of an include; includes inside it count with their declarations."""
    return free_names(with_stubs(include(name).body))


def names_of_script(name: str) -> Names:
    """Return the names of a script, after the bindings of its header."""
    found = script(name)
    return free_names(found.bindings + with_stubs(found.body))


def words(text: str) -> set[str]:
    """Return every name in the code of a file, without comments, strings and fields."""
    code = re.sub(r"--.*", "", re.sub(r"'(?:[^'\\\n]|\\.)*'", "''", text))
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code))


def body_of(script: Script) -> str:
    """Return the Lua of a script without comments; functions of includes name keys, too."""
    bindings, behind = script.source.split(script.bindings, 1)
    named = re.sub(r"\bKEYS\[(\d+)\]", lambda place: script.keys[int(place[1]) - 1], behind)
    return re.sub(r"--.*", "", bindings + script.bindings + named)
