"""The runner of pages: README and tutorial as they are, and pages that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.embedded import EmbeddedServer
from tools import newcomer
from tools.newcomer import FENCE, URL, Failed, type_page, type_pages

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_first_page_and_the_tutorial_run() -> None:
    """Their programs and commands run in one directory, one after the other."""
    type_pages([ROOT / "README.md", ROOT / "docs" / "tutorial.md"])


@pytest.mark.slow
def test_the_saved_program_is_a_worker_that_must_greet(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """One that prints something else until it is killed, or ends by itself, has failed."""
    worker, producer = [block[2] for block in FENCE.finditer(README) if block[1] == "python"]
    page = f"```python\n{worker}```\n```python\n{producer}```\n"
    type_page(page, server.url, tmp_path)
    broken = page.replace("worker.run()", "print('bye')")
    with pytest.raises(Failed, match=r"app\.py\nended with exit code 0:\nbye"):
        type_page(broken, server.url, tmp_path)


@pytest.mark.parametrize(
    "page, complaint",
    [
        (f"```python\nprint('{URL}', '{{url}}')\n```\n\n```text\n{{url}} {{url}}\n```\n", None),
        (
            "```python\nprint(1)\n```\n```text\n2\n```\n",
            "print\\(1\\)\n\nprinted:\n1\n\nand not:\n2",
        ),
        ("```python\nprint(1)\n```\nor\n```text\n2\n```\n", None),
        (
            "```python\nprint(1)\n1 / 0\n```\n",
            "ended with exit code 1:\n1\n(.|\n)*ZeroDivisionError",
        ),
        ("```python\nopen('a', 'x')\n```\n```python\nopen('a')\n```\n", None),
        ("```sh\npenstock stats\n```\n", None),
        ("```sh\npenstock peek\n```\n", "penstock peek\nended with exit code 2:\n.*QUEUE"),
        ("```sh\npenstock worker nosuch:w\n```\n", "ended with exit code 2:(.|\n)*nosuch"),
        ("```sh\npenstock web --port 1x\n```\n", "ended with exit code 2:(.|\n)*--port"),
        ("```sh\npip install 'penstock[web]'\nredis-server --save '' &\n```\n", None),
        ("```sh\nrm -rf *\n```\n", r"rm -rf \*\n.* does not know"),
        ("```python title='a'\nprint(1)\n```\n", "python title='a'\n.* does not know"),
        ("```\nprint(1)\n```\n", "a block without a language"),
        (" ```python\n1 / 0\n ```\n", "line 1: .* begins no block that ends"),
        ("~~~python\n1 / 0\n~~~\n", "line 1: .* begins no block that ends"),
        ("text\n\n```python\n1 / 0\n", "line 3: .* begins no block that ends"),
        ("```console\n$ penstock stats\n```\n", "console\n.* does not know"),
    ],
)
def test_programs_and_commands(
    server: EmbeddedServer, tmp_path: Path, page: str, complaint: str | None
) -> None:
    """A failure names the program or command, and shows its output."""
    page = page.replace("{url}", server.url)
    if complaint is None:
        type_page(page, server.url, tmp_path)
    else:
        with pytest.raises(Failed, match=complaint):
            type_page(page, server.url, tmp_path)


def test_a_program_that_does_not_end(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has failed; the text names it."""
    monkeypatch.setattr(newcomer, "TIMEOUT", 0.1)
    page = "```python\nimport time\ntime.sleep(600)\n```\n"
    with pytest.raises(Failed, match=r"time\.sleep(.|\n)*did not end in 0\.1 s:\n"):
        type_page(page, server.url, tmp_path)
