"""The Lua scripts: read, headers parsed, includes resolved.

A script is one file under `wire/lua/`. Its header names the keys and arguments, and the loader
turns that header into the `local` lines that bind them: names in the body are those of the header.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["Script", "all_scripts", "pressure_scripts", "script"]

NAMES = (
    "ack", "acquire", "assign", "assigned", "bury", "claim", "clear", "commit", "configure",
    "delete", "dequeue", "dismiss", "enqueue", "evict", "extend", "fetch", "lookup", "nack", "peek",
    "pending", "promote", "publish", "purge", "recover", "redrive", "release", "reserve", "resign",
    "retime", "scan", "settle", "show", "stage", "stats", "survey", "sweep", "unstage", "withdraw",
)  # fmt: skip
PRESSURE = ("close", "create", "delete", "free", "get", "leave", "peek_reverse", "put", "show")


@dataclass(frozen=True, slots=True)
class Script:
    """One transition, ready for SCRIPT LOAD.

    Attributes:
        name: the file's name without `.lua`.
        purpose: the first header line.
        keys: the key kinds, in the order of KEYS.
        args: the names of the fixed arguments, in the order of ARGV.
        rest: the names of the repeated arguments at the end of ARGV, empty if there are none.
        header: the whole header, without its `---`.
        source: the assembled Lua.
        sha: SHA-1 of the source, as EVALSHA wants it.
    """

    name: str
    purpose: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    rest: tuple[str, ...]
    header: str
    source: str
    sha: str


def _read(path: str) -> str:
    place = resources.files("penstock.wire") / "lua"
    for part in path.split("/"):
        place = place / part
    return place.read_text(encoding="ascii")


def _include(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        indent, name = match.groups()
        body = _include(_read(f"{name}.lua"))
        return "".join(indent + line if line.strip() else line for line in body.splitlines(True))

    return re.sub(r"^([ \t]*)--@include (\S+)\n", replace, text, flags=re.MULTILINE)


def _header_field(header: str, field: str) -> str:
    found = re.search(rf"^{field}\s+(.*)$", header, flags=re.MULTILINE)
    return found.group(1) if found else ""


def _bind(names: tuple[str, ...], table: str) -> str:
    if not names:
        return ""
    values = ", ".join(f"{table}[{i}]" for i in range(1, len(names) + 1))
    return f"local {', '.join(names)} = {values}\n"


@cache
def script(name: str) -> Script:
    """The script of this name, assembled once per process."""
    text = _read(f"{name}.lua")
    lines = text.splitlines(True)
    head = [line for line in lines if line.startswith("---")]
    header = "".join(line[4:] if line.startswith("--- ") else line[3:] for line in head)
    keys = tuple(_header_field(header, "KEYS").split())
    arguments = _header_field(header, "ARGV").partition("[")
    args = tuple(arguments[0].split())
    rest = tuple(arguments[2].replace("...]", "").split())
    body = _include("".join(lines[len(head) :]))
    source = "".join(head) + _bind(keys, "KEYS") + _bind(args, "ARGV") + body
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, head[0][4:].strip(), keys, args, rest, header, source, sha)


def all_scripts() -> tuple[Script, ...]:
    """Every script of the protocol, by name."""
    return tuple(script(name) for name in NAMES)


def pressure_scripts() -> tuple[Script, ...]:
    """Every script with which `penstock.pressure` speaks the protocol of that name."""
    return tuple(script(f"pressure/{name}") for name in PRESSURE)
