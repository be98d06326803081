"""The record of tests that passed only when they were repeated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "repeats.py"
A = "FAILED tests/a.py::test_a[x - y] - AssertionError: 1 - [2]\n"
B = "ERROR tests/b.py::test_b\n"


def end_run(record: Path, lines: str) -> tuple[int, str]:
    """Add a run to the record; return exit code and output."""
    ended = subprocess.run(
        [sys.executable, str(TOOL), str(record)],
        input=lines, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


def test_a_test_may_be_repeated_once_in_ten_runs(tmp_path: Path) -> None:
    """The second time fails, whatever its error was; other tests and calm runs do not."""
    record = tmp_path / "cache" / "record"
    assert end_run(record, A + B) == (0, "")
    assert end_run(record, "") == (0, "")
    assert end_run(record, "FAILED tests/c.py::test_c - x\n") == (0, "")
    told = "repeated in two of the last 10 runs: tests/{}\n".format
    assert end_run(record, A.replace("- y", "- z")) == (0, "")  # another case
    assert end_run(record, A) == (1, told("a.py::test_a[x - y]"))
    assert end_run(record, B.strip() + " - OSError: 7\n") == (1, told("b.py::test_b"))
    assert end_run(record, "") == (0, "")  # it was mended


@pytest.mark.parametrize("calm, code", [(8, 1), (9, 0)])
def test_the_record_has_ten_runs(tmp_path: Path, calm: int, code: int) -> None:
    """A run counts until nine others have ended."""
    record = tmp_path / "record"
    end_run(record, B)
    for _ in range(calm):
        end_run(record, "")
    assert end_run(record, B)[0] == code
