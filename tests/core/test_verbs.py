"""Functions that act are named by verbs: participles are names of values."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import penstock

PACKAGE = Path(penstock.__file__).parent
IRREGULAR = """
beaten begun bought broken brought built caught chosen done drawn driven fallen forgotten found
frozen given gone got heard held hidden kept known left lent lost made meant met paid risen said
seen sent shown sold sought spent spoken stolen stood sunk taken taught thought thrown told torn
understood woken won worn written
"""
VERBS = frozenset(("embed", "exceed", "feed", "need", "proceed", "seed", "shed", "succeed"))
"""Verbs that end like a participle."""
DRIVERS = frozenset({"command", "drive", "exchange", "run_call"})
"""Methods and functions that run a call or a command of the server."""
PUBLIC = {"pressure/_async/queue.py": {"closed"}}
"""The names of pressure 0.15, whose clients know this question by this name."""


def _is_participle(name: str) -> bool:
    word = name.strip("_").split("_")[0]
    return word in IRREGULAR.split() or (word.endswith("ed") and word not in VERBS)


def _own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions in it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _acts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(function, ast.AsyncFunctionDef) or any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) or _called(node) in DRIVERS
        for node in _own_nodes(function)
    )


def _misnamed(tree: ast.AST) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {each.name for each in functions if _is_participle(each.name) and _acts(each)}


def test_what_acts_is_named_by_a_verb() -> None:
    """Coroutines, generators, and functions that run a call; generated twins have these names."""
    misnamed = defaultdict[str, set[str]](set)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_sync" not in path.parts and (names := _misnamed(ast.parse(path.read_text()))):
            misnamed[str(path.relative_to(PACKAGE))] = names
    assert misnamed == PUBLIC


def test_the_rule_tells_verbs_from_participles() -> None:
    """Each kind of function that acts is found, and values and verbs are not."""
    source = """
async def renewed(): ...
def _heard(): yield
def watched(): return self._node.command("PING")
def _embed(): yield
def weighed(): return 1
async def _send_told(): ...
def outer():
    def taken(): yield
"""
    assert _misnamed(ast.parse(source)) == {"renewed", "_heard", "watched", "taken"}
