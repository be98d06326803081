"""Class names, constants and type aliases mean one thing in the whole package."""

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


def _constants() -> Iterator[tuple[str, str]]:
    """Return name and file of each constant and alias of a module, without generated files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_sync" in path.parts:
            continue
        blocks = [ast.parse(path.read_text()).body]
        for body in blocks:
            blocks += [node.body for node in body if isinstance(node, ast.If | ast.Try)]
            for node in body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and not _may_repeat(node):
                    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                    parts = [part for target in targets for part in ast.walk(target)]
                    names = [part.id for part in parts if isinstance(part, ast.Name)]
                    yield from ((name, str(path.relative_to(PACKAGE))) for name in names)


def _may_repeat(node: ast.Assign | ast.AnnAssign) -> bool:
    """Return True for loggers, type variables and `__all__`, which each file has of its own."""
    kind = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
    own = ("get_logger", "ParamSpec", "TypeVar")
    return kind in own or ast.unparse(node).startswith("__all__")


def test_a_constant_is_defined_once() -> None:
    """A constant or type alias of a module has one meaning; files that share it import it."""
    places = defaultdict(set)
    for name, path in _constants():
        places[name.lstrip("_")].add(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
