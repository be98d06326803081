"""The vectors of tests/vectors: loaded, run and compared (protocol/core.md, Vectors)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from penstock.core.jobs.history import base36
from penstock.wire.keys import PRIORITY_SPAN, QUEUE_KINDS, SCORE_ORIGIN_MS, end_of, score_of
from penstock.wire.scripts import Script, script
from tests.protocol.clock import frozen
from tests.protocol.differences import apply, shortened
from tests.protocol.keyspace import Raw, Space, dump, load, text

__all__ = [
    "FOLDER",
    "Outcome",
    "Vector",
    "all_files",
    "all_vectors",
    "parsed",
    "placed",
    "resolved",
    "run_vector",
    "scripts_with_vectors",
    "unplaced",
    "vectors_in",
    "vectors_of",
    "wanted",
]

FOLDER = Path(__file__).resolve().parent.parent / "vectors"
MARK = re.compile(r"<T0([+-]\d+)?(?:\|([0-9a-f]{3}|[-*][1-9])|(\.\d{3})|/(\d+))?>")
WHOLE = re.compile(r":(<T0(?:[+-]\d+)?(?:\.\d{3})?>)")
REPEAT = re.compile(r"<(\d+)\*(.)>")
NEAR = 10**12
"""In recorded expectations, numbers at most this many ms from T0 are times."""
LAST_SCORE_MS = SCORE_ORIGIN_MS + 2**41 - 1
"""No score of `once` is later; it does not depend on T0."""
LATE_SCORES = (2**51, 2**52)
"""Scores of kept results, and of marks of awaited jobs, are times behind one of these."""


@dataclass(frozen=True)
class Vector:
    """One case.

    Attributes:
        name: behaviour that it shows.
        script: name of the script.
        returns: the line of RETURNS that it shows; empty for the first one that its reply fits.
        now: when it runs, as text.
        keys, args: KEYS and ARGV.
        before: the whole key space at the start.
        reply, after: expectations; `after` is a whole key space.
    """

    name: str
    script: str
    returns: str
    now: str
    keys: tuple[str, ...]
    args: tuple[Any, ...]
    before: Space
    reply: Any
    after: Space

    @property
    def source(self) -> Script:
        """The script to run."""
        return script(self.script)

    @property
    def is_pressure(self) -> bool:
        """Tell if it is for a queue of the protocol pressure."""
        return self.script.startswith("pressure/")


def all_files() -> list[str]:
    """Return the names of all files."""
    return sorted(
        path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.json")
    )


def scripts_with_vectors() -> list[str]:
    """Return the names of the files with cases."""
    return [name for name in all_files() if "cases" in _read(FOLDER / f"{name}.json")]


@cache
def _read(path: Path) -> dict[str, Any]:
    return parsed(path.read_text("utf-8"))


def parsed(text: str) -> dict[str, Any]:
    """Return a document; refuse a name that an object has twice."""
    found: dict[str, Any] = json.loads(text, object_pairs_hook=_unique)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"twice in one object: {', '.join(sorted(twice))}")
    return dict(pairs)


def resolved(cases: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a case with what it takes from the case that it names in `from`."""
    case = {"now": "<T0>", "before": {}, **cases[name]}
    if "from" not in case:
        return case
    other = resolved(cases, case.pop("from"))
    taken = {part: other[part] for part in ("keys", "now", "args", "reply") if part in other}
    return {**taken, **cases[name], "before": apply(other["before"], case["before"])}


def vectors_of(name: str) -> list[Vector]:
    """Return the cases of a script."""
    return vectors_in(_read(FOLDER / f"{name}.json"))


def vectors_in(document: dict[str, Any]) -> list[Vector]:
    """Return the cases of a document."""
    return [_vector(document, name) for name in document["cases"]]


def _vector(document: dict[str, Any], name: str) -> Vector:
    case = resolved(document["cases"], name)
    spaces = (case["before"], apply(case["before"], case.get("after", {})))
    before, after = (
        {document["prefix"] + key: value for key, value in space.items()} for space in spaces
    )
    kinds = () if document["script"].startswith("pressure/") else QUEUE_KINDS
    keys = tuple(document["prefix"] + kind for kind in kinds)
    if case.get("lane"):
        keys = keys[: script(document["script"]).lane]
    else:
        keys += tuple(case.get("keys", document.get("keys", ())))
    return Vector(
        name=name,
        script=document["script"],
        returns=case.get("returns", ""),
        now=case["now"],
        keys=keys,
        args=tuple(case["args"]),
        before=before,
        reply=case["reply"],
        after=after,
    )


def all_vectors() -> list[Vector]:
    """Return every case of every script."""
    return [vector for name in scripts_with_vectors() for vector in vectors_of(name)]


def placed(value: Any, t0: int) -> Any:
    """Return a value with its times and long bodies inserted."""
    if isinstance(value, str):
        whole = WHOLE.fullmatch(value)
        if whole:
            return int(placed(whole.group(1), t0))
        value = REPEAT.sub(lambda found: found.group(2) * int(found.group(1)), value)
        return MARK.sub(lambda found: _time(found, t0), value)
    if isinstance(value, dict):
        return {placed(name, t0): placed(part, t0) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [placed(part, t0) for part in value]
    return value


def _time(found: re.Match[str], t0: int) -> str:
    ms = t0 + int(found.group(1) or 0)
    if found.group(4):
        return base36(ms // int(found.group(4)))
    if found.group(3):
        return str(ms * 1000 + int(found.group(3)[1:]))
    sign, priority = (found.group(2) or "  ")[0], (found.group(2) or "  ")[1:]
    if sign == "-":
        return str(ms - int(priority) * PRIORITY_SPAN)
    if sign == "*":
        return str(ms * 16 + int(priority))
    return str(ms if found.group(2) is None else score_of(ms, int(found.group(2), 16)))


def unplaced(value: Any, t0: int, *, scored: bool = False) -> Any:
    """Return a recorded value with placeholders for its times and long bodies."""
    if isinstance(value, dict):
        return {
            unplaced(name, t0): unplaced(part, t0, scored=scored) for name, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [unplaced(part, t0) for part in value]
    if isinstance(value, int) and abs(value - t0) < NEAR:
        return f":{_mark(value, t0)}"
    if not isinstance(value, str):
        return value
    if value.isdigit() and any(abs(int(value) - late - t0) < NEAR for late in LATE_SCORES):
        return _mark(int(value), t0)
    if value.isdigit() and len(value) == 16 and not scored and abs(int(value) // 1000 - t0) < NEAR:
        return f"{_mark(int(value) // 1000, t0)[:-1]}.{value[-3:]}>"  # in us
    if value.isdigit() and len(value) > 14 and _is_score(end_of(int(value)), t0, scored):
        return _mark(end_of(int(value)), t0)[:-1] + f"|{int(value) % 4096:03x}>"
    if (priority := _priority(value, t0)) is not None:
        return priority
    value = shortened(value)
    return re.sub(r"(?<!\d)(\d{13})(\d{3})?(?!\d)", lambda m: _near(m, t0), value)


def _priority(value: str, t0: int) -> str | None:
    """Return the placeholder of a score of a job with a priority, in `scheduled` or `urgent`."""
    if not re.fullmatch(r"-?\d{13,14}", value):
        return None
    score = int(value)
    priority = -(score // PRIORITY_SPAN) if score < 0 else score % 16
    ms = score % PRIORITY_SPAN if score < 0 else score // 16
    if abs(ms - t0) >= NEAR or not 1 <= priority <= 9:
        return None
    return f"{_mark(ms, t0)[:-1]}|{'-' if score < 0 else '*'}{priority}>"


def _is_score(ms: int, t0: int, scored: bool) -> bool:
    """Tell if this is the time of a score; a cursor in a reply may be one."""
    return ms < LAST_SCORE_MS and (scored or abs(ms - t0) < NEAR)


def _near(found: re.Match[str], t0: int) -> str:
    ms = int(found.group(1))
    if abs(ms - t0) >= NEAR:
        return found.group()
    return _mark(ms, t0) if found.group(2) is None else f"{_mark(ms, t0)[:-1]}.{found.group(2)}>"


def _mark(ms: int, t0: int) -> str:
    return f"<T0{ms - t0:+d}>" if ms != t0 else "<T0>"


def as_bytes(value: Any) -> Any:
    """Return an argument as sent: the character U+00nn is the byte nn."""
    return value.encode("latin-1") if isinstance(value, str) else value


def as_text(reply: Any) -> Any:
    """Return a reply in the form of vectors."""
    if isinstance(reply, bytes):
        return text(reply)
    return [as_text(part) for part in reply] if isinstance(reply, list) else reply


@dataclass(frozen=True)
class Outcome:
    """The reply and the whole key space after a run."""

    reply: Any
    after: Space


def run_vector(raw: Raw, vector: Vector, t0: int) -> Outcome:
    """Load `before` into an empty database, run the script, dump."""
    load(raw, placed(vector.before, t0))
    now = placed(vector.now, t0)
    source = frozen(vector.source.source, int(now))
    keys = [as_bytes(key) for key in vector.keys]
    args = [as_bytes(arg) for arg in placed(vector.args, t0)]
    reply = raw.execute_command("EVAL", source, len(keys), *keys, *args)
    return Outcome(as_text(reply), dump(raw))


def wanted(vector: Vector, t0: int) -> Outcome:
    """Return the expected outcome."""
    return Outcome(placed(vector.reply, t0), placed(vector.after, t0))
