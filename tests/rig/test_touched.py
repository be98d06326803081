"""The tests that a change touches, and the last line of a short run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.touched import NOTHING, ROOT, Touched, find_touched, list_changed_files

FILES = {
    "src/penstock/wire/lua/add.lua": "--@include lib/deep",
    "src/penstock/wire/lua/take.lua": "--@include lib/deeper",
    "src/penstock/wire/lua/lib/deep.lua": "--@include lib/far (gives: x)",
    "src/penstock/wire/lua/lib/deeper.lua": "",
    "src/penstock/wire/lua/lib/far.lua": "",
    "tests/vectors/add.json": "{}",
    "tests/vectors/take.json": "{}",
    "src/penstock/core/ids.py": "",
    "tests/core/test_ids.py": "",
    "tests/a/test_one.py": "from penstock.core.ids import parse\n",
    "tests/a/test_two.py": "from penstock.core import checks, ids\n",
    "tests/a/test_three.py": 'patch("penstock.core.ids.now")\n',
    "tests/a/test_other.py": "from penstock.core.ids_more import parse\n",
    "tests/a/test_public.py": "from penstock import Queue\n",
    "tests/support/rig.py": "",
    "tests/a/test_rig_user.py": "from tests.support.rig import x\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository on its main branch, where all is committed."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *args: str) -> None:
    """Run git with an identity of its own."""
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *args], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    """Commit all that has changed."""
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "text")


def test_the_files_of_a_change(root: Path) -> None:
    """They are those committed since the main branch, changed since, or new."""
    assert list_changed_files(root) == []
    git(root, "checkout", "-q", "-b", "topic")
    (root / "committed.py").write_text("1")
    commit(root)
    (root / "src/penstock/core/ids.py").write_text("2")
    (root / "new.py").write_text("3")
    assert list_changed_files(root) == ["committed.py", "new.py", "src/penstock/core/ids.py"]
    git(root, "branch", "-D", "main")  # as in a shallow clone
    assert list_changed_files(root) == ["new.py", "src/penstock/core/ids.py"]


def test_without_git_nothing_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source package has no repository, or lies in another one, or there is no git."""
    git(tmp_path, "init", "-q")
    package = tmp_path / "package"
    package.mkdir()
    (package / "new.py").write_text("1")
    assert list_changed_files(package) == []
    monkeypatch.setenv("PATH", "")
    assert list_changed_files(tmp_path) == []


@pytest.mark.parametrize(
    "changed, files, scripts",
    [
        ("README.md", "", ""),
        ("src/penstock/core/ids.py", "a/one a/three a/two core/ids", ""),
        ("src/penstock/__init__.py", "", ""),
        ("tests/a/test_one.py", "a/one", ""),
        ("tests/support/rig.py", "a/rig_user", ""),
        ("src/penstock/wire/lua/lib/far.lua", "", "add"),
        ("src/penstock/wire/lua/lib/deeper.lua", "", "take"),
        ("src/penstock/wire/lua/take.lua", "", "take"),
        ("tests/vectors/take.json", "", "take"),
    ],
)
def test_tests_that_know_a_file(root: Path, changed: str, files: str, scripts: str) -> None:
    """They import it, have its name, or are vectors of a script that includes it."""
    folders_and_names = [name.split("/") for name in files.split()]
    wanted = {f"tests/{folder}/test_{name}.py" for folder, name in folders_and_names}
    assert find_touched([changed], root) == Touched(frozenset(wanted), frozenset(scripts.split()))
    assert find_touched([], root) == NOTHING


@pytest.mark.slow
def test_the_last_line_of_a_short_run_tells_that_it_was_one() -> None:
    """It has the number of cases drawn and of all, also if workers of xdist have drawn them."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "tests/core/test_codec.py",
    ]
    printed = {
        args: subprocess.run(
            [*command, *args], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()[-1]
        for args in [("-n", "1"), ("-n", "0", "--whole")]
    }  # fmt: skip
    short, whole = printed.values()
    assert short.startswith("short run: drew ")
    assert short.endswith(" cases; --whole runs all")
    assert " passed in " in whole
