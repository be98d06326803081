"""Text that tries to control the terminal, in the output of all commands."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest
from hypothesis import given

from penstock import Penstock
from penstock.cli import output
from tests.cli.support import Cli
from tests.support.hostile import HOSTILE, is_harmless

EVIL = "a\x1b]0;x\x07\x9b2J\x7f\u202e\u2066\u200f\r\nforged"


@given(HOSTILE)
def test_every_way_to_print(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A line stays one line, and a table has as many lines as with harmless text."""
    for show, count in [
        (lambda: output.write(text), 1),
        (lambda: output.write_lines([text, text]), 2),
        (lambda: output.complain(text), 1),
        (lambda: output.note(text), 1),
        (lambda: output.confirm(text), 0),
        (lambda: output.table(["name"], [[text]]), 3),
    ]:
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        with contextlib.suppress(output.Failed):
            show()
        lines = out.getvalue().split("\n")
        assert len(lines) == count + 1
        assert all(map(is_harmless, lines))


@pytest.mark.parametrize(
    "argv",
    [
        ["healthy", EVIL],
        [EVIL],
        ["stats", f"--{EVIL}"],
        ["enqueue", "q", "x", "--header", EVIL],
        ["worker", EVIL],
        ["worker", "app:worker", "--queues", EVIL],
        ["worker", "app:worker", "--max-memory", EVIL],
        ["stats", "--url", f"redis://{EVIL}"],
    ],
    ids=lambda argv: " ".join(argv).replace(EVIL, "EVIL"),
)
def test_arguments_that_are_quoted_in_errors(run_cli: Cli, argv: list[str]) -> None:
    """Wrong arguments are printed escaped, each in one line."""
    result = run_cli(*argv)
    assert result.code in (1, 2)
    lines = (result.out + result.err).split("\n")
    assert all(map(is_harmless, lines))
    assert not [line for line in lines if line.startswith("forged")]


@pytest.mark.parametrize(
    "argv",
    [
        ["queues"],
        ["stats"],
        ["peek", EVIL],
        ["peek", EVIL, "--state", "active"],
        ["peek", EVIL, "--state", "dead"],
        ["scan", EVIL],
        ["doctor"],
        ["pause", EVIL],
        ["close", EVIL],
        ["purge", EVIL],
    ],
    ids=lambda argv: " ".join(argv).replace(EVIL, "EVIL"),
)
def test_hostile_text_on_the_server(cli: Cli, client: Penstock, argv: list[str]) -> None:
    """Names, headers, errors and bodies are escaped, in tables and in lines."""
    queue = client.queue(EVIL)
    queue.enqueue_many([EVIL.encode()] * 3, headers={"handler": EVIL})
    queue.reserve(1)[0].bury(EVIL)
    queue.reserve(1)
    result = cli(*argv, stdin=b"n\n")
    lines = (result.out + result.err).split("\n")
    assert all(map(is_harmless, lines))
    assert not [line for line in lines if line.startswith("forged")]
    assert argv == ["doctor"] or r"\x1b" in result.out + result.err
