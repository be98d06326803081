"""The Lua scripts: read, headers parsed, includes resolved.

A script is one file under `wire/lua/`. Its header names the keys, the arguments and the fields of
`meta` that it reads. The loader turns that header into the `local` lines that bind them, so a body
uses the names of the header and no index:

    KEYS a b             local a, b = KEYS[1], KEYS[2]
    ARGV c [number...]   local c = ARGV[1], and `numbers`, a table of the others
    META seen lease=old  local seen, old = ..., from one HMGET of `meta`, with DEFAULTS

`--@include lib/now` puts a file into the body. The header of that file declares the names through
which it meets the body; tests/protocol/test_includes.py compares them with its code:

    NEEDS    names that it reads, local where it is included
    SETS     names that it assigns
    GIVES    locals that it declares for the code behind it

The line that includes it lists those that are used there: `--@include lib/now (gives: now)`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["Include", "Script", "all_scripts", "include", "pressure_scripts", "script"]

NAMES = (
    "ack", "acquire", "assign", "assigned", "bury", "claim", "clear", "commit", "configure",
    "delete", "dequeue", "dismiss", "enqueue", "evict", "extend", "fetch", "lookup", "nack", "peek",
    "pending", "promote", "publish", "purge", "recover", "redrive", "release", "reserve", "resign",
    "retime", "scan", "settle", "show", "stage", "stats", "survey", "sweep", "unstage", "withdraw",
)  # fmt: skip
DEFAULTS = {
    **dict.fromkeys(
        ("alarm", "configured", "full", "made", "off", "replicas", "seen", "surveyed"),
        "tonumber({}) or 0",
    ),
    **dict.fromkeys(("acked", "delivered", "enqueued"), "{} or 0"),
    "uses": "{} or ''",
    "lease": "tonumber({}) or 30000",
    "backoff_base": "tonumber({}) or 5000",
    "backoff_cap": "tonumber({}) or 21600000",
}
"""Values of fields that `meta` lacks; any other field is a string, or false."""
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
        meta: the fields of `meta` that the script reads first, each with its local name.
        header: the whole header, without its `---`.
        bindings: Lua that declares the names of the header.
        body: the Lua behind the header, includes not resolved.
        source: the assembled Lua.
        sha: SHA-1 of the source, as EVALSHA wants it.
    """

    name: str
    purpose: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    rest: tuple[str, ...]
    meta: tuple[tuple[str, str], ...]
    header: str
    bindings: str
    body: str
    source: str
    sha: str


@dataclass(frozen=True, slots=True)
class Include:
    """A part of scripts.

    Attributes:
        needs: names that it reads.
        sets: names that it assigns.
        gives: locals that it declares for the code behind it.
        body: its Lua, includes not resolved.
    """

    needs: tuple[str, ...]
    sets: tuple[str, ...]
    gives: tuple[str, ...]
    body: str


def _read(path: str) -> str:
    place = resources.files("penstock.wire") / "lua"
    for part in path.split("/"):
        place = place / part
    return place.read_text(encoding="ascii")


def _resolved(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        indent, name = match.groups()
        body = _resolved(include(name).body)
        return "".join(indent + line if line.strip() else line for line in body.splitlines(True))

    return re.sub(r"^([ \t]*)--@include (\S+).*\n", replace, text, flags=re.MULTILINE)


def _parts(text: str) -> tuple[list[str], str, str]:
    """The lines of the header, the header without its `---`, and the body."""
    lines = text.splitlines(True)
    head = [line for line in lines if line.startswith("---")]
    header = "".join(line[4:] if line.startswith("--- ") else line[3:] for line in head)
    return head, header, "".join(line for line in lines if not line.startswith("---"))


def _header_field(header: str, field: str) -> str:
    found = re.search(rf"^{field}\s+(.*)$", header, flags=re.MULTILINE)
    return found.group(1) if found else ""


def _bind(names: tuple[str, ...], table: str) -> str:
    if not names:
        return ""
    values = ", ".join(f"{table}[{i}]" for i in range(1, len(names) + 1))
    return f"local {', '.join(names)} = {values}\n"


def _bind_rest(names: tuple[str, ...], start: int) -> str:
    return f"local {names[0]}s = {{unpack(ARGV, {start})}}\n" if names else ""


def _bind_meta(fields: tuple[tuple[str, str], ...]) -> str:
    if not fields:
        return ""
    names = ", ".join(name for _, name in fields)
    quoted = ", ".join(f"'{field}'" for field, _ in fields)
    lines = f"local {names} = unpack(redis.call('HMGET', meta, {quoted}))\n"
    defaults = {name: DEFAULTS[field].format(name) for field, name in fields if field in DEFAULTS}
    if defaults:
        lines += f"{', '.join(defaults)} = {', '.join(defaults.values())}\n"
    return lines


@cache
def script(name: str) -> Script:
    """The script of this name, assembled once per process."""
    head, header, body = _parts(_read(f"{name}.lua"))
    keys = tuple(_header_field(header, "KEYS").split())
    arguments = _header_field(header, "ARGV").partition("[")
    args = tuple(arguments[0].split())
    rest = tuple(arguments[2].replace("...]", "").split())
    fields = [part.partition("=") for part in _header_field(header, "META").split()]
    meta = tuple((field, local or field) for field, _, local in fields)
    bindings = _bind(keys, "KEYS") + _bind(args, "ARGV")
    bindings += _bind_rest(rest, len(args) + 1) + _bind_meta(meta)
    source = "".join(head) + bindings + _resolved(body)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    purpose = head[0][4:].strip()
    return Script(name, purpose, keys, args, rest, meta, header, bindings, body, source, sha)


@cache
def include(name: str) -> Include:
    """The include of this name, as it stands in `--@include` lines."""
    _, header, body = _parts(_read(f"{name}.lua"))
    header = re.sub(r"\n +", " ", header)
    needs, sets, gives = (
        tuple(_header_field(header, field).split()) for field in ("NEEDS", "SETS", "GIVES")
    )
    return Include(needs, sets, gives, body)


def all_scripts() -> tuple[Script, ...]:
    """Every script of the protocol, by name."""
    return tuple(script(name) for name in NAMES)


def pressure_scripts() -> tuple[Script, ...]:
    """Every script with which `penstock.pressure` speaks the protocol of that name."""
    return tuple(script(f"pressure/{name}") for name in PRESSURE)
