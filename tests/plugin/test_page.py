"""The page about testing: its files, in a directory of their own, as the reader saves them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.cli.support import environment
from tools.newcomer import FENCE

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
NAMED = re.compile(r"# (\w+\.py)\n")


def test_the_files_of_the_page_pass(tmp_path: Path) -> None:
    """Each block begins with the name of its file; all tests in them pass, without a server."""
    names = []
    for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")):
        named = NAMED.match(fence[2])
        assert named, fence[2]
        names.append(named[1])
        (tmp_path / named[1]).write_text(fence[2], encoding="utf-8")
    assert len(set(names)) == len(names) >= 5
    if sys.version_info < (3, 11):  # the page says so
        (tmp_path / "test_unit.py").unlink()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "pytest_penstock"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS=""),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
