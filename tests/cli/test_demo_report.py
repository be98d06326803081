"""The check of the results against the directory, and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.demo.files import Listing, digest, list_files, path_of, standard_library
from penstock.cli.demo.report import (
    DemoReport,
    DemoVerdict,
    Kill,
    Memory,
    check,
    print_report,
)
from penstock.worker.statistics import summary

FINE = DemoVerdict([], [], [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}\n")
    return tmp_path


def true_results(folder: Path, listing: Listing) -> dict[str, dict[str, Any]]:
    """Return the results of correct workers."""
    return {name: digest(path_of(folder, name)) for name in listing}


def test_complete_results_are_fine(folder: Path) -> None:
    """Each file has a matching result."""
    listing = list_files(folder)
    assert check(folder, listing, true_results(folder, listing)) == FINE


def test_a_missing_result_is_found(folder: Path) -> None:
    """A file without a result is lost."""
    listing = list_files(folder)
    results = true_results(folder, listing)
    del results["b"]
    verdict = check(folder, listing, results)
    assert verdict == DemoVerdict(["b"], [], [])


@pytest.mark.parametrize("field, value", [("size", 3), ("lines", 0), ("sha256", "0" * 64)])
def test_a_wrong_result_is_found(folder: Path, field: str, value: Any) -> None:
    """The file is read again and compared."""
    listing = list_files(folder)
    results = true_results(folder, listing)
    results["c"][field] = value
    verdict = check(folder, listing, results)
    assert verdict == DemoVerdict([], ["c"], [])


def test_a_changed_file_is_not_compared(folder: Path) -> None:
    """If it was rewritten or removed since the listing, its result is accepted."""
    listing = list_files(folder)
    results = true_results(folder, listing)
    (folder / "a").write_text("longer than before\n")
    (folder / "b").unlink()
    assert check(folder, listing, results) == FINE


def test_an_unreadable_file_is_not_lost(folder: Path) -> None:
    """It is reported as unreadable, as a worker has tried."""
    listing = list_files(folder)
    results = true_results(folder, listing)
    results["a"] = {"path": "a", "error": "PermissionError: Permission denied"}
    verdict = check(folder, listing, results)
    assert verdict == DemoVerdict([], [], ["a"])


MEMORY: dict[Any, Memory] = {
    "before": Memory(keys=10, key_bytes=2000, server_bytes=1_000_000),
    "full": Memory(keys=10, key_bytes=300_000, server_bytes=1_500_000),
    "after": Memory(keys=11, key_bytes=2500, server_bytes=1_010_000),
}
REPORT = DemoReport(
    server="Redis 7.0.15",
    path="/somewhere",
    workers=3,
    files=3,
    acked=3,
    redelivered=1,
    verdict=FINE,
    killed=Kill("worker-1", 1, 1),
    seconds=2.5,
    recovered_after=2.0,
    jobs_per_second=100.0,
    pace=0.0,
    pickup=summary([1.0, 2.0, 3.0]),
    memory=MEMORY,
)


@pytest.mark.parametrize(
    "changes, ok",
    [
        ({}, True),
        ({"verdict": DemoVerdict(["b"], [], [])}, False),
        ({"verdict": DemoVerdict([], ["b"], [])}, False),
        ({"verdict": DemoVerdict([], [], ["b"])}, True),
        ({"killed": None}, False),
        ({"memory": {**MEMORY, "after": replace(MEMORY["after"], keys=20)}}, False),
        ({"memory": {**MEMORY, "after": replace(MEMORY["after"], key_bytes=10_000)}}, False),
        ({"memory": {**MEMORY, "after": replace(MEMORY["after"], server_bytes=9 << 20)}}, True),
    ],
)
def test_failures_of_a_run(changes: dict[str, Any], ok: bool) -> None:
    """A lost or wrong file, no kill, or keys that stay are failures; the server's memory is not."""
    report = replace(REPORT, **changes)
    assert report.document()["pickup_ms"] == {"p50": 2.0, "p99": 2.98, "samples": 3}
    assert (report.ok, report.document()["ok"]) == (ok, ok)


def test_the_files_that_are_missing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """They are named in the document and below the table, at most twenty."""
    names = [f"file-{number:02}" for number in range(25)]
    report = replace(
        REPORT, verdict=DemoVerdict(names, ["w"], []), killed=None, recovered_after=None
    )
    assert report.document()["missing"] == names[:20]
    assert (report.document()["lost"], report.document()["killed"]) == (25, None)
    print_report(report)
    out = capsys.readouterr().out
    assert f"missing (25): {', '.join(names[:20])}, ...\n" in out
    assert "wrong (1): w\n" in out
    assert "no worker was killed" in out
    assert "2.44 KiB  in 11 keys: came back; server: 986.33 KiB" in out


def test_there_are_thousands_of_files_by_default() -> None:
    """The default is the interpreter's own sources without installed packages."""
    listing = list_files(standard_library(), ".py")
    assert "json/decoder.py" in listing
    assert len(listing) > 500
    assert not any("site-packages/" in name for name in listing)
