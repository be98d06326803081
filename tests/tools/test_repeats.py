"""The record of tests that passed only when they were repeated."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

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


class CommandFailed(Exception):
    """The error of nox, which is not installed beside the tests."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def test_only_failed_tests_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of pytest that has failed for another reason is not taken for one with bad luck."""
    monkeypatch.setitem(sys.modules, "nox", MagicMock())
    monkeypatch.setitem(sys.modules, "nox.command", MagicMock(CommandFailed=CommandFailed))
    monkeypatch.setenv("PENSTOCK_REPEAT_FAILED", "1")
    run_tests = runpy.run_path(str(TOOL.parents[1] / "noxfile.py"))["run_tests"]
    session = MagicMock()
    session.run.side_effect = [CommandFailed("Returned code 1"), True]
    run_tests(session)
    assert session.run.call_args.args[-1] == "--last-failed"
    # Interrupted; an error of pytest or in its arguments; no tests; no pytest.
    for reason in (*(f"Returned code {code}" for code in range(2, 6)), "Program pytest not found"):
        session.run.side_effect = [CommandFailed(reason)]
        with pytest.raises(CommandFailed, match=reason):
            run_tests(session)
