"""Runs of pytest in a separate directory, as for a user of the plugin.

Not pytest's own `pytester`: a plugin can't be enabled from a conftest below the root.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.support import environment

TIMEOUT = 120


@dataclass(frozen=True)
class Run:
    """The result of a run of pytest.

    Attributes:
        code: its exit code.
        out: its output.
    """

    code: int
    out: str

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts of the last line: "2 passed, 1 failed" is {"passed": 2,
        "failed": 1}.
        """
        last = self.out.strip().splitlines()[-1]
        return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}


@pytest.fixture
def run_pytest(tmp_path: Path) -> Callable[..., Run]:
    """Run pytest on a test file with only the named plugins; warnings are errors."""

    def run(
        source: str,
        *arguments: str,
        plugins: tuple[str, ...] = ("pytest_penstock", "pytest_asyncio.plugin"),
        **changes: str,
    ) -> Run:
        (tmp_path / "test_users.py").write_text(textwrap.dedent(source))
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
            if "pytest_asyncio.plugin" in plugins
            else "[pytest]\nfilterwarnings = error\n"
        )
        given = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", **changes}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
                *(part for plugin in plugins for part in ("-p", plugin)),
                *arguments,
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(**given),
            timeout=TIMEOUT,
            check=False,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    return run
