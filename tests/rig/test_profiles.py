"""The examples that Hypothesis draws in a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRAWING = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_drawn(number):
    print("drawn", number)
    assert not number or {passes}
"""


def draw(
    tmp_path: Path, *args: str, passes: bool = True, beside: str = ""
) -> tuple[list[str], str]:
    """Run a test that draws numbers; return them, and the header's line.

    Args:
        tmp_path: a directory.
        args: for pytest.
        passes: if False, the test fails with every number but 0.
        beside: code of a module that the test's module imports.
    """
    file = tmp_path / "test_drawing.py"
    file.write_text("import beside\n" + DRAWING.format(passes=passes))
    (tmp_path / "beside.py").write_text(beside)
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest"]
    command += ["-o", f"pythonpath=. {tmp_path}", "-p", "no:cacheprovider", "-s"]
    ended = subprocess.run(
        [*command, *args, str(file)],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == (0 if passes else 1), ended.stdout + ended.stderr
    [header] = re.findall(r"^hypothesis: (.*)", ended.stdout, re.MULTILINE)
    return re.findall(r"drawn (-?\d+)", ended.stdout), header


@pytest.mark.slow
def test_a_short_run_draws_the_same_and_shrinks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI, too: what fails there fails for a newcomer."""
    monkeypatch.delenv("CI", raising=False)
    drawn, header = draw(tmp_path)
    assert (len(drawn), header) == (5, "profile short, the same examples in each run")
    monkeypatch.setenv("CI", "true")
    assert draw(tmp_path) == (drawn, header)
    failed = draw(tmp_path, passes=False)[0]
    shrunk = draw(tmp_path, "--hypothesis-profile", "shrunk", passes=False)[0]
    assert len(failed) < len(shrunk)
    assert failed[:2] == shrunk[:2]
    assert shrunk[-1] == "1"


@pytest.mark.slow
def test_a_whole_run_draws_others_and_names_its_seed(tmp_path: Path) -> None:
    """The seed of the header repeats the run, whatever constants the loaded modules have."""
    drawn, header = draw(tmp_path, "--whole")
    assert len(drawn) == 100
    assert header.startswith("profile long, --hypothesis-seed=")
    constants = f"CONSTANTS = {list(range(10_000, 10_300))}"
    again = draw(tmp_path, "--whole", header.partition(", ")[2], beside=constants)
    assert again == (drawn, header)
    assert draw(tmp_path, "--whole")[0] != drawn
