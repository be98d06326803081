"""A class name is used once in the whole package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).parent
TWIN = re.compile(r"^_*(Async)?(?=[A-Z])")


def _classes() -> Iterator[tuple[str, str]]:
    """Return name and file of each class, without generated files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_sync" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        found = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        names = {TWIN.sub("", name) for name in found}
        yield from ((name, str(path.relative_to(PACKAGE))) for name in names)
        plain = [name for name in found if not name.startswith(("Async", "_Async"))]
        yield from ((name, f"{path}, again") for name in set(plain) if plain.count(name) > 1)


def test_a_class_name_is_defined_once() -> None:
    """`Place`, `_Place` and `AsyncPlace` in two files count as one name with two meanings."""
    places = defaultdict(list)
    for name, path in _classes():
        places[name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
