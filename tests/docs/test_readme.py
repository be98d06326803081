"""The code in README.md runs unchanged on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Penstock
from tests.support.backends import Backend

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
URL = "redis://localhost:6379/0"


def python(code: str, url: str, directory: Path | None = None) -> subprocess.Popen[str]:
    """Run a block of the README in its own process, with the test's server URL."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", code.replace(URL, url)],
        env=env,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """Return the output; the exit code must be 0."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


@pytest.fixture
def url(real_backend: Backend) -> str:
    """The URL of a real server."""
    assert real_backend.url is not None
    return real_backend.url


def test_the_readme_opens_with_a_worker_and_a_producer(url: str, tmp_path: Path) -> None:
    """The worker of the first block handles the jobs of the second until it is stopped."""
    assert BLOCKS[0].startswith("# app.py\n")
    (tmp_path / "app.py").write_text(BLOCKS[0].replace(URL, url))
    finished(python(BLOCKS[1], url, tmp_path))
    worker = python(BLOCKS[0], url)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "welcome ada\n"
        worker.terminate()
        finished(worker)
        with Penstock(url) as ps:
            stats = ps.queue("emails").stats()
            assert (stats.acked, stats.scheduled, stats.active) == (1, 1, 0)
    finally:
        worker.kill()
        worker.communicate()


def test_the_readme_has_no_other_code() -> None:
    """An additional block needs a test."""
    assert len(BLOCKS) == 2


def test_the_readme_is_short() -> None:
    """It fits on three screens: at most 1,100 words, code and tables included."""
    assert len(README.split()) <= 1100


@pytest.mark.parametrize("word", ["fencing", "hint", "staged", "trip", "federation"])
def test_words_of_the_trade_stay_off_the_first_page(word: str) -> None:
    """They are explained where they are used."""
    assert not re.search(rf"\b{word}s?\b", README)


def test_links_of_the_readme_lead_somewhere() -> None:
    """Each relative link names a file or directory of the repository."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []
