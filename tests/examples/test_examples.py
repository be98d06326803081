"""Each example runs, and prints its documented output."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock import Penstock
from tests.cli.support import environment
from tests.support.backends import Backend

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBERED = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))
OF_SPARK = {"18_spark_pipeline.py"}
"""Run by tests/spark."""
PROGRAMS = [path for path in NUMBERED if "tests" not in path.name and path.name not in OF_SPARK]
TESTS = [path for path in NUMBERED if "tests" in path.name]
OF_PRESSURE = {"15_pressure.py"}
"""Examples with queues of that protocol."""
TIMEOUT = 120


def promised(path: Path) -> str:
    """Return the documented output: the indented lines after "It prints:"."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    before, _, after = text.partition("It prints:\n\n")
    assert before, path.name
    assert after, path.name
    return textwrap.dedent(after) + "\n"


def run(*command: str, **changes: str) -> str:
    """Return the output of a program; it must succeed without warnings."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        capture_output=True,
        text=True,
        cwd=EXAMPLES.parent,
        env=environment(**changes),
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_prints_its_documented_output(path: Path, one_server: Backend) -> None:
    """It runs on a server, and a second time, as it leaves no jobs or settings."""
    assert one_server.url
    assert run(str(path), PENSTOCK_URL=one_server.url) == promised(path)
    if path.name in OF_PRESSURE:
        assert one_server.sync_client().keys() == []
        return
    with Penstock(one_server.url) as client:
        [name] = client.queues()
        stats = client.open(name).stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (0, 0, 0, 0)
    assert not any(getattr(stats.settings, field) for field in stats.settings.__slots__)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_needs_no_server(path: Path, tmp_path: Path) -> None:
    """Without PENSTOCK_URL it starts its own server, which ends with it."""
    assert run(str(path), TMPDIR=str(tmp_path)) == promised(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_tests_among_the_examples_pass(path: Path, tmp_path: Path) -> None:
    """They run with a user's plugins: penstock's and one for asyncio."""
    plugins = ["-p", "pytest_penstock", "-p", "pytest_asyncio.plugin"]
    out = run(
        *("-m", "pytest", *plugins, "-c", "/dev/null", "--rootdir", str(tmp_path)),
        *("-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider"),
        str(path),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PYTEST_ADDOPTS="",
        PENSTOCK_URL="redis://127.0.0.1:1",
    )
    summary = re.search(r"=+ (.*) in [\d.]+s =+\n$", out)
    assert summary
    assert summary[1] + "\n" == promised(path)


def test_examples_are_numbered_and_short() -> None:
    """Each has at most 100 lines, and no number is missing."""
    assert [int(path.name[:2]) for path in NUMBERED] == list(range(1, len(NUMBERED) + 1))
    assert {path.name for path in EXAMPLES.glob("*.py")} - {p.name for p in NUMBERED} == {
        "server.py"
    }
    assert [path.name for path in NUMBERED if len(path.read_text().splitlines()) > 100] == []
