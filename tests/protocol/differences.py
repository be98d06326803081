"""Differences of plain data as JSON merge patches (RFC 7396), and files of vectors made of them.

It imports nothing of the package, so that it also reads files of another version.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["LINE_WIDTH", "apply", "difference", "shortened", "written"]

LINE_WIDTH = 160
"""Longest line of a file, in characters. Only a string that has no place on it is longer."""
SHARED_INDENT = 6
"""Parts indented by so much or more share lines; those of a document, and cases, begin them."""
RUN = re.compile(r"(.)\1{99,}")
"""Characters that are written as their number and one of them."""


def apply(value: Any, patch: Any) -> Any:
    """Return a value as a merge patch changes it; neither of them is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, part in patch.items():
        if part is None:
            result.pop(name, None)
        else:
            result[name] = apply(result.get(name), part)
    return result


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest merge patch that makes the new value of the old one."""
    patch: dict[str, Any] = {}
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        both = isinstance(before, dict) and isinstance(after, dict)
        patch[name] = difference(before, after) if both else after
    return patch


def shortened(text: str) -> str:
    """Return a text with a mark for each run of a character (protocol/core.md, Vectors)."""
    return RUN.sub(lambda run: f"<{len(run.group())}*{run.group(1)}>", text)


def written(document: dict[str, Any]) -> str:
    """Return a document as its file has it: what has place on a line stands on one line."""
    return "\n".join(_lines("", _shortened(document), "", 0)) + "\n"


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {_shortened(name): _shortened(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part) for part in value]
    return shortened(value) if isinstance(value, str) else value


def _lines(name: str, value: Any, comma: str, indent: int) -> list[str]:
    """Return the lines of a value behind its name: one, or its parts between brackets."""
    margin = " " * indent
    line = f"{margin}{name}{json.dumps(value)}{comma}"
    if not value or not isinstance(value, (dict, list)) or (indent and len(line) <= LINE_WIDTH):
        return [line]
    parts, (start, end) = _parts(value), "{}" if isinstance(value, dict) else "[]"
    lines = [f"{margin}{name}{start}"]
    is_open = False
    for number, (part, content) in enumerate(parts, 1):
        own = _lines(part, content, "," if number < len(parts) else "", indent + 2)
        both = f"{lines[-1]} {own[0].lstrip()}"
        if is_open and len(own) == 1 and len(both) <= LINE_WIDTH:
            lines[-1] = both
        else:
            lines += own
        is_open = len(own) == 1 and indent + 2 >= SHARED_INDENT
    return [*lines, f"{margin}{end}{comma}"]


def _parts(value: dict[str, Any] | list[Any]) -> list[tuple[str, Any]]:
    """Return the parts of a value, each with the name before it."""
    if isinstance(value, list):
        return [("", part) for part in value]
    return [(f"{json.dumps(name)}: ", part) for name, part in value.items()]
