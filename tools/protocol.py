"""Write the generated parts of the protocol pages: states, codes, access rules, scripts.

    python tools/protocol.py            # bring PROTOCOL.md and protocol/*.md up to date
    python tools/protocol.py --check    # only compare; exit status 1 if a page is stale

A generated part stands between `<!-- generated: name -->` and `<!-- end -->`; the rest is written
by hand. `tools/states.py` and the headers of the Lua files are the source of the generated parts.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # the scripts of this checkout, installed or not
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from penstock.wire.codes import Code  # noqa: E402 - behind the path
from penstock.wire.keys import QUEUE_KINDS  # noqa: E402 - behind the path
from penstock.wire.scripts import (  # noqa: E402 - behind the path
    Script,
    all_scripts,
    script,
)
from tools.states import (  # noqa: E402 - behind the path
    TABLE,
    Cell,
    Condition,
    Event,
    JobState,
    StateCase,
    edges,
)

__all__ = ["Reply", "arguments", "commands", "main", "replies", "updated"]

WIDTH = 160
"""Length of the longest line of a page."""
PART = re.compile(r"<!-- generated: ([\w-]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
CONNECTION_COMMANDS = (
    "blpop", "client|id", "client|unblock", "evalsha", "info", "ping", "script|load", "xread",
)  # fmt: skip
CLIENT_COMMANDS = (
    "del", "hdel", "hget", "hgetall", "hlen", "hmget", "hscan", "hset", "hsetnx", "mget",
    "pexpire", "pttl", "set", "time", "wait", "zadd", "zrange", "zrem", "zremrangebyscore",
)  # fmt: skip
PRESSURE_COMMANDS = (
    "blmove", "brpop", "evalsha", "exec", "get", "info", "llen", "multi", "ping", "script|load",
    "unwatch", "wait", "watch",
)  # fmt: skip
ENDED = (Condition.LEASE_ENDED, Condition.DELIVERY_ENDED, Condition.TTL_ENDED)
CURRENT = [place for place in StateCase if place.condition not in ENDED]
LAPSED = [place for place in StateCase if place.condition in ENDED]


class StaleError(Exception):
    """The pages lack a generated part, or name an unknown one."""


@dataclass(frozen=True)
class Reply:
    """One RETURNS line of a header.

    Attributes:
        shape: `{1, nonce, acked}`.
        cause: its text in the header.
    """

    shape: str
    cause: str


def _field(found: Script, name: str) -> list[str]:
    """Return the lines of one part of a header, the first without its name."""
    lines = found.header.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split(" ")[0] == name)
    taken = [lines[start].removeprefix(name)]
    for line in lines[start + 1 :]:
        if line[:1] not in ("", " "):
            break
        taken.append(line)
    return taken


def arguments(found: Script) -> list[tuple[str, str]]:
    """Return the ARGV of a header in order: names (or none) and meaning."""
    described: list[list[str]] = []
    for line in _field(found, "ARGV")[1:]:
        named = re.match(r" {9}(\S.*?) {2,}(\S.*)", line)
        if named:
            described.append([named.group(1), named.group(2)])
        elif described:
            described[-1][1] += " " + line.strip()
        else:
            described.append(["", line.strip()])
    return [(name, text) for name, text in described]


def replies(found: Script) -> list[Reply]:
    """Return the RETURNS lines of a script's header, in order."""
    described: list[list[str]] = []
    for line in _field(found, "RETURNS"):
        text = line.strip()
        if text.startswith("{"):
            end = _closing(text) + 1
            described.append([text[:end], text[end:].strip()])
        elif text:
            described[-1][1] += " " + text
    return [Reply(shape, cause.strip()) for shape, cause in described]


def _closing(text: str) -> int:
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return i
    raise ValueError(f"a brace is missing: {text}")


def commands() -> list[str]:
    """Return every command that a client needs, in the form of an ACL rule without its sign."""
    inner = {"xinfo|stream" if name == "xinfo" else name for name in _inner(all_scripts())}
    return sorted(inner | {*CONNECTION_COMMANDS, *CLIENT_COMMANDS})


def _inner(scripts: Sequence[Script]) -> set[str]:
    """Return the commands inside scripts."""
    bodies = "\n".join(re.sub(r"--.*", "", found.source) for found in scripts)
    return {name.lower() for name in re.findall(r"\bcall\('(\w+)'", bodies)}


def _diagram() -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    for edge in edges():
        verbs = dict.fromkeys(event.script for event in edge.events)
        start, end = ("[*]" if s is JobState.NONE else s.value for s in (edge.start, edge.end))
        yield f"  {start} --> {end}: {', '.join(verbs)}"
    yield "```"


def _cell(cell: Cell | None, here: StateCase) -> str:
    if cell is None:
        return "-"
    usual = _outcome(cell.code, cell.next, here)
    if cell.once_code == cell.code:
        return usual if cell.once is cell.next else f"{usual} ({cell.once.title})"
    return f"{usual} ({_outcome(cell.once_code, cell.once, here)})"


def _outcome(code: int | None, target: StateCase, here: StateCase) -> str:
    shown = "" if code is None else str(code)
    if target is here:
        return shown or "·"
    same_state = target.state is here.state
    title = (same_state and target.condition.value) or target.title
    return f"{shown} → {title}".strip()


def _table(places: Sequence[StateCase]) -> Iterator[str]:
    yield "| event | " + " | ".join(place.title for place in places) + " |"
    yield "|---|" + "---|" * len(places)
    for event in Event:
        cells = [_cell(TABLE[event][place], place) for place in places]
        if not all(cell == "-" for cell in cells):
            yield f"| {event.value} | " + " | ".join(cells) + " |"


def _keys() -> Iterator[str]:
    return iter(_wrapped(" ".join(f"`{kind}`" for kind in QUEUE_KINDS)))


def _codes() -> Iterator[str]:
    yield "| code | meaning |"
    yield "|---|---|"
    for code in Code:
        yield f"| {int(code)} | {code.meaning} |"


def _script(found: Script) -> Iterator[str]:
    yield from _wrapped(found.purpose)
    yield ""
    if found.keys[:1] == QUEUE_KINDS[:1]:
        own = "".join(f", `{key}`" for key in found.keys[len(QUEUE_KINDS) :])
        yield from _wrapped(f"KEYS ({len(found.keys)}): those of the queue{own}")
    else:
        keys = " ".join(f"`{key}`" for key in found.keys)
        yield from _wrapped(f"KEYS ({len(found.keys)}): {keys}")
    rest = f" `[{' '.join(found.rest)}...]`" if found.rest else ""
    yield ""
    args = [f"`{name}`" for name in found.args]
    if found.lane_args < len(args):
        args[found.lane_args] = f"({args[found.lane_args]}"
        args[-1] += ")"
    yield f"ARGV: {' '.join(args)}{rest}"
    yield ""
    for name, text in arguments(found):
        names = ", ".join(f"`{part}`" for part in name.split(", "))
        yield from _item(f"{names}: {text}" if name else text)
    if arguments(found):
        yield ""
    if found.bounds:
        pairs = (f"`{name}` {least} to {most}" for name, least, most, _ in found.bounds)
        yield f"Bounds: {', '.join(pairs)}"
        yield ""
    yield "Replies:"
    yield ""
    for reply in replies(found):
        yield from _item(f"`{reply.shape}`: {reply.cause}")


def _item(text: str) -> list[str]:
    return _wrapped(f"- {text}", indent="  ")


def _wrapped(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """Return the lines of a paragraph or of an item of a list."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _hashes() -> Iterator[str]:
    yield "```"
    for found in all_scripts():
        yield f"{found.sha}  {found.name}.lua"
    yield "```"


WORKER_KEYS = " ".join(
    (
        "~penstock:{*",
        *(f"~penstock:{name}" for name in ("node", "queues", "hints", "workers", "worker:*")),
        "%R~penstock:nodes",
    )
)
"""Commands on keys of queues, of the node and of workers; the list of nodes is read-only."""


def _acl(user: str, keys: str, allowed: Sequence[str]) -> Iterator[str]:
    """Yield several commands, since a command is one line: each adds rules to those before it."""
    start = f"ACL SETUSER {user} "
    yield "```"
    rules = f"on >secret resetkeys {keys} resetchannels -@all "
    rules += " ".join(f"+{name}" for name in allowed)
    yield from (start + line for line in _wrapped(rules, width=WIDTH - len(start)))
    yield "```"


def _pressure_acl() -> Iterator[str]:
    allowed = sorted(_inner(all_scripts("pressure/")) | {*PRESSURE_COMMANDS})
    return _acl("party", "~__pressure__:*", allowed)


def _pressure() -> Iterator[str]:
    for found in all_scripts("pressure/"):
        yield f"**{found.name}.lua** `{found.sha}`"
        yield ""
        yield from _script(found)
        yield ""


PARTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "diagram": _diagram,
    "keys": _keys,
    "table": lambda: _table(CURRENT),
    "table-ended": lambda: _table(LAPSED),
    "codes": _codes,
    "acl": lambda: _acl("worker", WORKER_KEYS, commands()),
    "hashes": _hashes,
    "pressure": _pressure,
    "pressure-acl": _pressure_acl,
}


def _part(name: str) -> str:
    lines = PARTS[name]() if name in PARTS else _script(script(name.removeprefix("script-")))
    return "".join(f"{line}\n" for line in lines)


def updated(pages: Mapping[str, str]) -> dict[str, str]:
    """Return the pages with current generated parts.

    Raises:
        StaleError: a part is missing, or is not known.
    """
    found = {match.group(1) for text in pages.values() for match in PART.finditer(text)}
    wrong = sorted(found ^ {*PARTS, *(f"script-{known.name}" for known in all_scripts())})
    if wrong:
        raise StaleError(f"generated parts that are missing, or not known: {wrong}")
    return {
        name: PART.sub(
            lambda m: f"<!-- generated: {m.group(1)} -->\n{_part(m.group(1))}<!-- end -->\n", text
        )
        for name, text in pages.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of PROTOCOL.md")
    options = parser.parse_args(arguments)
    paths = [options.root / "PROTOCOL.md", *sorted(options.root.glob("protocol/*.md"))]
    old = {str(path.relative_to(options.root)): path.read_text("utf-8") for path in paths}
    try:
        new = updated(old)
    except StaleError as error:
        print(error, file=sys.stderr)
        return 2
    stale = [name for name in old if old[name] != new[name]]
    if not stale:
        print("the protocol pages are up to date")
        return 0
    if options.check:
        print(f"{', '.join(stale)}: stale, run tools/protocol.py", file=sys.stderr)
        return 1
    for name in stale:
        (options.root / name).write_text(new[name], "utf-8")
        print(f"{name} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
