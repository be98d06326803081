"""The tests that know the files of a change: a short run has all their cases.

A change is what differs from the main branch, committed or not. A test file knows a module that it
imports, or whose name it has; a vector of a script knows the Lua files of that.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NOTHING", "Touched", "find_scripts", "find_touched", "list_changed_files"]

ROOT = Path(__file__).resolve().parent.parent.parent
LUA = "src/penstock/wire/lua/"
VECTORS = "tests/vectors/"
MAIN = ("origin/main", "main")
"""Names of the branch that a change is compared with; the first one that is there."""


@dataclass(frozen=True)
class Touched:
    """The tests that know the files of a change.

    Attributes:
        files: paths of test files, from the root of the repository.
        scripts: names of scripts whose vectors know them.
    """

    files: frozenset[str] = frozenset()
    scripts: frozenset[str] = frozenset()


NOTHING = Touched()


def list_changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the main branch; empty without git or a change."""
    if not (root / ".git").exists():  # perhaps it lies in another repository
        return []
    base = next(filter(None, (_git(root, "merge-base", "HEAD", name) for name in MAIN)), ["HEAD"])
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({*_git(root, "diff", "--name-only", *base), *new})


def _git(root: Path, *args: str) -> list[str]:
    """Return the lines that git prints; none if it fails."""
    try:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.splitlines()


def find_touched(changed: Iterable[str], root: Path = ROOT) -> Touched:
    """Return the tests that know these files, which are paths from the root."""
    python, scripts, files = list[str](), set[str](), set[str]()
    for path in changed:
        if path.startswith(LUA):
            scripts |= find_scripts(path, root)
        elif path.startswith(VECTORS):
            scripts.add(path.removeprefix(VECTORS).removesuffix(".json"))
        elif path.endswith(".py") and path.startswith(("src/", "tests/")):
            python.append(path)
    names = {f"test_{Path(path).stem}.py" for path in python}
    for test in root.glob("tests/**/test_*.py") if python else ():
        path, text = test.relative_to(root).as_posix(), test.read_text("utf-8")
        if path in python or test.name in names or any(_imports(text, one) for one in python):
            files.add(path)
    return Touched(frozenset(files), frozenset(scripts))


def _imports(text: str, path: str) -> bool:
    """Return True if a test imports or patches a module; that of a package itself counts not."""
    package, _, name = (
        path.removeprefix("src/").removesuffix(".py").replace("/", ".").rpartition(".")
    )
    whole, listed = f"{package}.{name}", f"from {package} import "
    if whole not in text and listed not in text:  # quicker than a pattern
        return False
    return bool(re.search(rf"{re.escape(whole)}\b|{re.escape(listed)}[^\n]*\b{name}\b", text))


def find_scripts(path: str, root: Path = ROOT) -> set[str]:
    """Return the names of the scripts that consist of a Lua file or include it."""
    folder = root / LUA
    texts = {
        file.relative_to(folder).with_suffix("").as_posix(): file.read_text("ascii")
        for file in folder.rglob("*.lua")
    }
    found, fresh = set[str](), {path.removeprefix(LUA).removesuffix(".lua")}
    while fresh:
        found |= fresh
        included = re.compile(rf"--@include (?:{'|'.join(map(re.escape, fresh))})\b(?!/)")
        fresh = {name for name, text in texts.items() if included.search(text)} - found
    return {name for name in found if (root / VECTORS / f"{name}.json").exists()}
