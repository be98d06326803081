"""Class names, constants and type aliases mean one thing in the whole package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).parent
VAGUE = frozenset({"found", "given", "made", "one", "told"})
"""Names of locals that say nothing of what they hold."""
FREE = frozenset({"command", "info", "warning", "partial", "with_record"})
"""Calls of Redis commands and of the log, and two that pass arguments on."""
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


def _vague_locals(tree: ast.Module) -> set[str]:
    """Return vague names of locals and parameters. `one` may be the element of a comprehension."""
    elements = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension | ast.Lambda):
            part = node.target if isinstance(node, ast.comprehension) else node.args
            elements |= {id(each) for each in ast.walk(part)}
    return {
        f"{name} in line {node.lineno}"
        for node in ast.walk(tree)
        for name in [getattr(node, "id" if isinstance(node, ast.Name) else "arg", "")]
        if isinstance(node, ast.arg | ast.Name) and name in VAGUE
        if isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store)
        if name != "one" or id(node) not in elements
    }


def _long_calls(tree: ast.Module) -> set[str]:
    """Return calls with more than three arguments by position."""
    return {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and len([arg for arg in node.args if not isinstance(arg, ast.Starred)]) > 3
        and getattr(node.func, "attr", getattr(node.func, "id", "")) not in FREE
    }


def test_locals_of_client_and_core_say_what_they_hold() -> None:
    """A regex match, a queue and a page of jobs do not have one name."""
    paths = [*(PACKAGE / "client").rglob("*.py"), *(PACKAGE / "core").rglob("*.py")]
    vague = {str(path): _vague_locals(ast.parse(path.read_text())) for path in paths}
    assert {path: names for path, names in vague.items() if names} == {}
    assert _vague_locals(ast.parse("found = 1")) == {"found in line 1"}


def test_calls_of_the_client_name_their_arguments() -> None:
    """A call has three arguments by position at most."""
    paths = (PACKAGE / "client/_async").rglob("*.py")
    calls = {str(path): _long_calls(ast.parse(path.read_text())) for path in paths}
    assert {path: each for path, each in calls.items() if each} == {}
    assert _long_calls(ast.parse("f(1, 2, 3, 4)")) == {"f(1, 2, 3, 4)"}
