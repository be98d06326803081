"""The manual's and the example's code runs; option tables equal the code's."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

from penstock import Penstock
from tests.docs.test_coming_from import URL, blocks
from tests.spark.support import ROOT, environment
from tools.spark import PAGE, updated

EXAMPLE = ROOT / "examples" / "18_spark_pipeline.py"


def printed(*command: str, **changes: str) -> str:
    """Return a program's output, and check its exit code. Spark may write to stderr."""
    done = subprocess.run(
        [sys.executable, *command],
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tables_of_options_are_up_to_date() -> None:
    """`python tools/spark.py` writes the tables."""
    text = PAGE.read_text("utf-8")
    assert updated(text) == text
    assert text.count("<!-- options: ") == 4
    assert text.count("| `queue` |") == 1


def test_the_manual_runs(redis_url: str, ps: Penstock) -> None:
    """Each program of the manual runs; only the server is replaced."""
    programs = blocks(PAGE.read_text("utf-8"))
    assert programs
    for program in programs:
        assert program.output
        assert printed("-c", program.code.replace(URL, redis_url)) == program.output
    assert ps.queues() == []


def test_the_example_prints_its_documented_output(
    redis_url: str, ps: Penstock, tmp_path: Path
) -> None:
    """On a given server the example leaves no job, setting or file."""
    text = ast.get_docstring(ast.parse(EXAMPLE.read_text())) or ""
    promised = textwrap.dedent(text.partition("It prints:\n\n")[2]) + "\n"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    out = printed(str(EXAMPLE), PENSTOCK_URL=redis_url, TMPDIR=str(scratch))
    assert out == promised
    assert len(promised.splitlines()) > 5
    for name in ps.queues():
        stats = ps.queue(name).stats()
        assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (0, 0, 0, 0)
    left = [path for path in scratch.iterdir() if not path.name.startswith(("hsperf", "lib"))]
    assert left == []
