"""Differences of plain data as JSON merge patches (RFC 7396), and files of vectors made of them.

It imports nothing of the package, so that it also reads files of another version.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["apply", "difference", "written"]

WIDTH = 100
"""Longest line, in characters, of a state that stands on one line."""


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


def written(document: dict[str, Any]) -> str:
    """Return a document as its file has it: a part of a case a line, and a key a line."""
    lines = ["{"]
    for name, value in document.items():
        if name != "cases":
            lines.append(f"  {json.dumps(name)}: {json.dumps(value)},")
    lines.append('  "cases": {')
    cases = [_case(name, case) for name, case in document["cases"].items()]
    return "\n".join([*lines, ",\n".join(cases), "  }", "}"]) + "\n"


def _case(name: str, case: dict[str, Any]) -> str:
    parts = ",\n".join(_part(part, value) for part, value in case.items())
    return f"    {json.dumps(name)}: {{\n{parts}\n    }}"


def _part(name: str, value: Any) -> str:
    line = f"      {json.dumps(name)}: {json.dumps(value)}"
    if len(line) < WIDTH or name not in ("before", "after"):
        return line
    keys = [f"        {json.dumps(key)}: {json.dumps(content)}" for key, content in value.items()]
    return f"      {json.dumps(name)}: {{\n" + ",\n".join(keys) + "\n      }"
