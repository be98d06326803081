"""The page of benchmarks is that of the stored results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import benchmarks
from benchmarks import page, peers
from benchmarks.bed import Bed
from benchmarks.plan import QUICK
from penstock.embedded import EmbeddedServer

RESULTS = json.loads(page.RESULTS.read_text(encoding="utf-8"))


def test_the_page_and_its_charts_are_those_of_the_results() -> None:
    """`python -m benchmarks.page` would change nothing."""
    assert page.main(["--check"]) == 0


def test_the_results_have_each_table_of_the_page() -> None:
    """They are of one run, with the machine and its load; single rounds are left out."""
    assert {table["name"] for table in RESULTS["tables"]} == set(page.SECTIONS)
    assert {"machine", "server", "client", "load before", "took"} <= RESULTS["facts"].keys()
    assert not any("rounds" in table for table in RESULTS["tables"])


def test_a_table_without_results_is_an_error() -> None:
    """A page never shows the figures of an earlier run."""
    with pytest.raises(KeyError, match="spark"):
        page.filled("<!-- figures: spark -->\nold\n<!-- end -->\n", RESULTS)


def test_a_table_is_replaced_as_a_whole() -> None:
    """The old text between the marks is removed."""
    text = page.filled("a\n<!-- figures: peers -->\nold\n<!-- end -->\nb\n", RESULTS)
    assert text.startswith("a\n<!-- figures: peers -->\n\n100-byte bodies")
    assert "| system | version | worker | enqueue jobs/s | worker jobs/s |\n" in text
    assert text.endswith("|\n\n<!-- end -->\nb\n")
    assert "old" not in text


def test_results_are_stored_without_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The medians are enough for the page."""
    monkeypatch.setattr(page, "RESULTS", tmp_path / "r")
    page.keep({"facts": {}, "tables": [{"name": "a", "rounds": {"x": [1.0]}}]})
    assert json.loads((tmp_path / "r").read_text()) == {"facts": {}, "tables": [{"name": "a"}]}


@pytest.mark.slow
def test_a_run_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures the sections of the page, and fills in their tables."""
    shown = tmp_path / "page.md"
    shown.write_text("before\n<!-- figures: memory -->\n<!-- end -->\n")
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(page, "PAGE", shown)
    monkeypatch.setattr(page, "SECTIONS", ("memory",))
    monkeypatch.setattr(page, "CHARTS", {})
    monkeypatch.setattr(peers, "is_there", lambda: True)
    assert benchmarks.main(["--quick", "--rounds", "1", "--scale", "0.001", "--page"]) == 0
    assert "| used_memory | " in shown.read_text()
    assert page.main(["--check"]) == 0


def test_a_run_of_other_sections_writes_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The page is of one run."""
    assert benchmarks.main(["--quick", "--page", "--only", "memory"]) == 2
    assert "--page needs all of its sections" in capsys.readouterr().err


def test_bars_are_as_long_as_their_values() -> None:
    """The longest has the whole width; the colour is for ours."""
    picture = ET.fromstring(page.chart("t", {"penstock": 200.0, "rq": 50.0}, ["n"], "penstock"))
    bars = list(picture.iter("{http://www.w3.org/2000/svg}rect"))
    assert [int(bar.get("width") or 0) for bar in bars] == [page.WIDE, page.WIDE // 4]
    assert [bar.get("class") for bar in bars] == ["o", "b"]
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["t", "penstock", "200", "rq", "50", "n"]


@pytest.mark.slow
def test_systems_that_are_not_installed_are_left_out(server: EmbeddedServer) -> None:
    """The others are measured, each in a process of its own; the note names the missing ones."""
    missing = peers.Peer("no-such-package", "-", peers.PEERS[0].open)
    plan = QUICK.scaled(0.01)
    bed = Bed(server.url, server.pid, "")
    table = peers.peers(bed, plan, (peers.PEERS[0], missing))
    bed.clean()
    [row] = table.rows
    assert row.cells[0] == "penstock"
    assert all(isinstance(rate, float) and rate > 0 for rate in row.cells[3:])
    assert table.note.endswith("Left out, not installed: no-such-package.")
