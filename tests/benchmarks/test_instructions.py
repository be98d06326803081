"""The counts of instructions and their history, with a stand-in for valgrind."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import command, instructions

VALGRIND = """#!/bin/sh
for word; do case "$word" in --callgrind-out-file=*) echo "${word#*=}" > "$0.out";; esac; done
shift 3
exec "$@"
"""
CONTROL = """#!/bin/sh
folder=$(dirname "$0")
[ "$1" = --dump ] || exit 0
echo x >> "$folder/dumps"
number=$(wc -l < "$folder/dumps")
echo "totals: $(cat "$folder/total")" > "$(cat "$folder/valgrind.out").$number"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-ins are, and the history."""
    for name, text in (("valgrind", VALGRIND), ("callgrind_control", CONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(instructions, "HISTORY", tmp_path / "history.csv")
    monkeypatch.setattr(instructions, "CALLS", {1: 3, 10: 2})
    return tmp_path


def measure(folder: Path, total: int, *options: str) -> int:
    """Run the section; each step costs `total` instructions."""
    (folder / "total").write_text(f"{total}\n")
    (folder / "dumps").unlink(missing_ok=True)
    return command.run(["--only", "instructions", *options])


def test_a_count_above_the_last_record_is_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each count is compared with the last line of the history."""
    assert measure(folder, 60_000, "--check", "--record", "c1") == 0
    assert measure(folder, 61_000, "--check", "--record", "c2") == 0
    assert measure(folder, 63_000, "--check") == 1
    assert "instructions of reserve by 10, x the last record" in capsys.readouterr().out
    with (folder / "history.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["commit"], line["add by 1"], line["ack by 10"]) for line in lines] == [
        ("c1", "20000", "3000"),
        ("c2", "20333", "3050"),
    ]


def test_without_valgrind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The section says what is missing."""
    monkeypatch.setattr(instructions, "is_there", lambda: False)
    assert command.run(["--only", "instructions"]) == 2
    assert "apt-get install valgrind" in capsys.readouterr().err


def test_a_record_of_another_section(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is measured."""
    assert command.run(["--only", "memory", "--record", "c1"]) == 2
    assert "--only instructions" in capsys.readouterr().err
