"""The Lua scripts: read, headers parsed, includes resolved.

A script is one file under `wire/lua/`. Its header names the keys, the arguments and the fields of
`meta` that it reads. The loader turns that header into the `local` lines that bind them, so a body
uses the names of the header and no index:

    KEYS a b             local a, b = KEYS[1], KEYS[2], of those that the code uses
    KEYS @queue c        the same, of QUEUE_KINDS and c
    ARGV c [number...]   local c = ARGV[1], and `numbers`, a table of the others
    ARGV c (d) [e...]    d is left out of a call with the keys of the fast lane: it is nil there
    META seen lease=old  local seen, old = ..., from one HMGET of `meta`, with DEFAULTS
    META @a=note         the same, of the field `@` and the value of `a`
    MORE off             fields of `meta` that are read behind the fast lane
    BOUNDS c 1 9  e? 0 1 refuse (-19) an argument that is not a whole number, or is out of bounds,
                         before anything is read; with `?` it may also be empty

A script may begin with a fast lane: it does the usual call with the first keys alone, and returns.
The line `--@full` behind it becomes the refusal (-20) of a call without the other keys, and the
HMGET of MORE.

`--@include lib/meta/now` puts a file into the body. The header of that file declares the names
through which it meets the body; tests/protocol/test_includes.py compares them with its code:

    KEYS     keys that it reads; in its functions the loader writes their places: `KEYS[2]`
    NEEDS    other names that it reads, local where it is included
    SETS     names that it assigns
    GIVES    locals that it declares for the code behind it

The line that includes it lists those that are used there: `--@include lib/meta/now (gives: now)`.

The letters of the field `uses` have names (LETTERS), which the loader replaces:

    uses_any('dedup ttls')  (uses ~= '' and string.find(uses, '[dt]'))
    use('dedup')            use('d')
    letters('dedup ttls')   'dt'
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from textwrap import indent
from typing import NamedTuple

from penstock.wire.keys import QUEUE_KINDS

__all__ = ["Bound", "Script", "all_scripts", "header_field", "parts", "script"]

META_DEFAULTS = {
    **dict.fromkeys(
        (
            "alarm",
            "configured",
            "full",
            "made",
            "off",
            "replicas",
            "seen",
            "surveyed",
            "unscheduled",
        ),
        "tonumber({}) or 0",
    ),
    **dict.fromkeys(("acked", "delivered", "enqueued"), "{} or 0"),
    "uses": "{} or ''",
    "lease": "tonumber({}) or 30000",
    "backoff_base": "tonumber({}) or 5000",
    "backoff_cap": "tonumber({}) or 21600000",
}
"""Values of fields that `meta` lacks; any other field is a string, or false."""
LETTERS = {
    "awaited": "w",
    "batches": "g",
    "closed": "c",
    "counters": "r",
    "dedup": "d",
    "holds": "h",
    "key_holds": "y",
    "large_bodies": "b",
    "limits": "l",
    "marks": "m",
    "max_active": "f",
    "notes": "n",
    "once": "o",
    "policies": "p",
    "priorities": "u",
    "rate": "a",
    "results": "k",
    "roles": "x",
    "schedules": "e",
    "tickets": "q",
    "ttls": "t",
    "until_start": "s",
}
"""Names of the letters of `uses`, as Lua files write them (protocol/storage.md, Fields of meta)."""
STRING_OR_COMMENT = r"--.*|'(?:[^'\\\n]|\\.)*'"


class Bound(NamedTuple):
    """The bounds of an argument that is a whole number.

    Attributes:
        name: of the argument.
        least, most: the lowest and the highest value.
        may_be_empty: whether it may be empty.
    """

    name: str
    least: int
    most: int
    may_be_empty: bool


@dataclass(frozen=True, slots=True)
class Script:
    """A transition, ready for SCRIPT LOAD.

    Attributes:
        name: the file's name without `.lua`.
        purpose: the text of the header before its fields.
        keys: the key kinds, in the order of KEYS.
        used: those that the code uses.
        lane: how many of the first keys are enough for the fast lane; 0 = there is none.
        args: the names of the fixed arguments, in the order of ARGV.
        lane_args: how many of the first of them a call with the keys of the fast lane has.
        rest: the names of the repeated arguments at the end of ARGV, empty if there are none.
        bounds: bounds of whole-number arguments; the script checks them first.
        meta: the fields of `meta` that the script reads, each with its local name.
        header: the whole header, without its `---`.
        bindings: Lua that declares the names of the header.
        body: the Lua behind the header, includes not resolved.
        source: the assembled Lua.
        sha: SHA-1 of the source, as EVALSHA wants it.
    """

    name: str
    purpose: str
    keys: tuple[str, ...]
    used: tuple[str, ...]
    lane: int
    args: tuple[str, ...]
    lane_args: int
    rest: tuple[str, ...]
    bounds: tuple[Bound, ...]
    meta: tuple[tuple[str, str], ...]
    header: str
    bindings: str
    body: str
    source: str
    sha: str


@cache
def parts(name: str) -> tuple[list[str], str, str]:
    """Return the lines of a file's header, the header without its `---`, and the body.

    Raises:
        KeyError: the body names an unknown letter of `uses`.
    """
    place = resources.files("penstock.wire") / "lua"
    for part in f"{name}.lua".split("/"):
        place = place / part
    lines = place.read_text(encoding="ascii").splitlines(True)
    head = [line for line in lines if line.startswith("---")]
    header = "".join(line[4:] if line.startswith("--- ") else line[3:] for line in head)
    body = "".join(line for line in lines if not line.startswith("---"))
    return head, header, re.sub(r"\b(uses_any|use|letters)\('([^']*)'\)", _replace_letters, body)


def _replace_letters(match: re.Match[str]) -> str:
    function, names = match.groups()
    letters = "".join(LETTERS[name] for name in names.split())
    if function == "letters":
        return f"'{letters}'"
    if function == "use":
        return f"use('{letters}')"
    pattern = f"'{letters}', 1, true" if len(letters) == 1 else f"'[{letters}]'"
    return f"(uses ~= '' and string.find(uses, {pattern}))"


def header_field(header: str, field: str) -> str:
    """Return the text of a field of a header; '' if it has none of this name."""
    found = re.search(rf"^{field}\s+(.*)$", header, flags=re.MULTILINE)
    return found.group(1) if found else ""


def _resolve(text: str, keys: tuple[str, ...]) -> str:
    def replace(match: re.Match[str]) -> str:
        indent, name = match.groups()
        _, header, body = parts(name)
        names = header_field(re.sub(r"\n +", " ", header), "KEYS").split()
        body = _resolve(_place_keys(body, names, keys), keys)
        return "".join(indent + line if line.strip() else line for line in body.splitlines(True))

    return re.sub(r"^([ \t]*)--@include (\S+).*\n", replace, text, flags=re.MULTILINE)


def _place_keys(body: str, names: list[str], keys: tuple[str, ...]) -> str:
    """Name keys by their places in the functions of an include: a captured local costs more."""
    if not names:
        return body
    name = re.compile(rf"{STRING_OR_COMMENT}|(?<![\w.])(?:{'|'.join(names)})\b(?! = )")

    def place(match: re.Match[str]) -> str:
        found = match.group()
        return f"KEYS[{keys.index(found) + 1}]" if found in keys else found

    return re.sub(
        r"^local function (?:.*\n)*?end\n",
        lambda function: name.sub(place, function.group()),
        body,
        flags=re.MULTILINE,
    )


def _bind(names: Sequence[str], table: str, used: Sequence[str]) -> str:
    if not used:
        return ""
    values = ", ".join(f"{table}[{names.index(name) + 1}]" for name in used)
    return f"local {', '.join(used)} = {values}\n"


def _bind_args(
    args: tuple[str, ...], lane_args: int, rest: tuple[str, ...], bounds: Iterable[Bound], keys: int
) -> str:
    """Bind the arguments, and check their bounds.

    Args:
        args, lane_args, rest: as in `Script`.
        bounds: those of whole numbers.
        keys: the number of all keys.
    """
    always, others = args[:lane_args], args[lane_args:]
    lines, at = _bind(args, "ARGV", always), f"{len(args) + 1}"
    if others:
        lines += f"local {', '.join(others)}\n"
        at = f"#KEYS < {keys} and {lane_args + 1} or {at}"
    if rest:
        lines += f"local {rest[0]}s = {{unpack(ARGV, {at})}}\n"
    lines += _check_bounds(bound for bound in bounds if bound.name in always)
    if others:
        values = ", ".join(f"ARGV[{place}]" for place in range(lane_args + 1, len(args) + 1))
        inner = f"{', '.join(others)} = {values}\n"
        inner += _check_bounds(bound for bound in bounds if bound.name in others)
        lines += f"if #KEYS >= {keys} then\n{indent(inner, '  ')}end\n"
    return lines


def _keys_in(code: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that Lua code names, outside of comments, strings and fields, or places."""
    code = re.sub(STRING_OR_COMMENT, "", code)
    named = {*re.findall(r"(?<![\w.])[a-z_]\w*", code)}
    named |= {keys[int(place) - 1] for place in re.findall(r"\bKEYS\[(\d+)\]", code)}
    return tuple(kind for kind in keys if kind in named)


def _meta_fields(header: str, name: str) -> tuple[tuple[str, str], ...]:
    parts = (part.partition("=") for part in header_field(header, name).split())
    return tuple((field, local or field) for field, _, local in parts)


def _check_bounds(bounds: Iterable[Bound]) -> str:
    lines = ""
    for name, least, most, may_be_empty in bounds:
        given = f"{name} ~= '' and " if may_be_empty else ""
        digits = "^%-?%d+$" if least < 0 else "^%d+$"
        low = f"{name} + 0 >= {least} and " if least else ""  # quicker than tonumber
        lines += (
            f"if {given}not (string.find({name}, '{digits}') and {low}{name} + 0 <= {most}) then\n"
            f"  return {{-19, nonce, '{name}', string.sub({name}, 1, 200)}}\nend\n"
        )
    return lines


def _bind_meta(fields: tuple[tuple[str, str], ...]) -> str:
    if not fields:
        return ""
    names = ", ".join(name for _, name in fields)
    quoted = ", ".join(
        f"'@' .. {field[1:]}" if field.startswith("@") else f"'{field}'" for field, _ in fields
    )
    lines = f"local {names} = unpack(redis.call('HMGET', meta, {quoted}))\n"
    defaults = {
        name: META_DEFAULTS[field].format(name) for field, name in fields if field in META_DEFAULTS
    }
    if defaults:
        lines += f"{', '.join(defaults)} = {', '.join(defaults.values())}\n"
    return lines


@cache
def script(name: str) -> Script:
    """Return the script of this name, assembled once per process."""
    head, header, body = parts(name)
    keys = tuple(
        kind
        for name in header_field(header, "KEYS").split()
        for kind in (QUEUE_KINDS if name == "@queue" else (name,))
    )
    fixed, _, repeated = header_field(header, "ARGV").partition("[")
    args, rest = tuple(re.findall(r"\w+", fixed)), tuple(repeated.replace("...]", "").split())
    lane_args = len(fixed.partition("(")[0].split())
    meta, more = _meta_fields(header, "META"), _meta_fields(header, "MORE")
    listed = re.findall(r"(\w+)(\??) (-?\d+) (-?\d+)", header_field(header, "BOUNDS"))
    bounds = tuple(Bound(arg, int(low), int(high), bool(mark)) for arg, mark, low, high in listed)
    inner = _bind_args(args, lane_args, rest, bounds, len(keys)) + _bind_meta(meta)
    lane, mark, full = body.partition("--@full\n")
    used = _keys_in(inner + _resolve(body, keys) + _bind_meta(more), keys)
    first = _keys_in(inner + _resolve(lane, keys), keys) if mark else used
    if mark:
        body = (
            f"{lane}if #KEYS < {len(keys)} then\n  return {{-20, nonce}}\nend\n"
            + _bind(keys, "KEYS", [kind for kind in used if kind not in first])
            + _bind_meta(more)
            + full
        )
    bindings = _bind(keys, "KEYS", first) + inner
    source = "".join(head) + bindings + _resolve(body, keys)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    purpose = " ".join(re.split(r"^KEYS", header, flags=re.MULTILINE)[0].split())
    return Script(
        name=name,
        purpose=purpose,
        keys=keys,
        used=used,
        lane=max(keys.index(kind) + 1 for kind in first) if mark else 0,
        args=args,
        lane_args=lane_args,
        rest=rest,
        bounds=bounds,
        meta=meta + more,
        header=header,
        bindings=bindings,
        body=body,
        source=source,
        sha=sha,
    )


def all_scripts(folder: str = "") -> tuple[Script, ...]:
    """Return every script of the protocol, by name; of the folder "pressure/" those of pressure."""
    place = resources.files("penstock.wire") / "lua"
    files = (place / folder if folder else place).iterdir()
    names = sorted(path.name[:-4] for path in files if path.name.endswith(".lua"))
    return tuple(script(folder + name) for name in names)
