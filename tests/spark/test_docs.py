"""The manual's and the example's code runs; option tables equal the code's."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from tests.docs.test_coming_from import URL, blocks
from tests.spark.support import ROOT, environment
from tools.spark import PAGE, updated

EXAMPLE = ROOT / "examples" / "18_spark_pipeline.py"


def test_the_tables_of_options_are_up_to_date() -> None:
    """`python tools/spark.py` writes names and defaults; each option has a text."""
    text = PAGE.read_text("utf-8")
    assert updated(text) == text
    assert text.count("<!-- options: ") == 4
    assert text.count("| `queue` |") == 1
    assert "|  |\n" not in text


def test_the_manual_runs(redis_url: str, ps: Penstock) -> None:
    """The manual's program runs; only the server is replaced."""
    [program] = blocks(PAGE.read_text("utf-8"))
    done = subprocess.run(
        [sys.executable, "-c", program.code.replace(URL, redis_url)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == program.output
    assert ps.queues() == []


def test_the_example_prints_its_documented_output(
    spark: Any,
    redis_url: str,
    ps: Penstock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a given server and in a given session the example leaves no job, setting or file."""
    text = ast.get_docstring(ast.parse(EXAMPLE.read_text())) or ""
    promised = textwrap.dedent(text.partition("It prints:\n\n")[2]) + "\n"
    monkeypatch.setenv("PENSTOCK_URL", redis_url)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    with monkeypatch.context() as patch:
        patch.setattr(type(spark), "stop", lambda _: None)
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == promised
    assert len(promised.splitlines()) > 5
    for name in ps.queues():
        stats = ps.queue(name).stats()
        assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (0, 0, 0, 0)
    assert list(tmp_path.iterdir()) == []
