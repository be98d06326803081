"""Output on a terminal: tables that fit it, colours, short ids, and hostile text."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len as width_of

from penstock import Penstock
from penstock.cli.grid import Medium, grid
from tests.cli.support import TIMEOUT, Cli, environment
from tests.cli.test_demo import read_all
from tests.cli.test_hostile import EVIL
from tests.support.backends import Backend
from tests.support.hostile import is_harmless

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(url: str | None, *argv: str, columns: int = 80, **changes: str) -> list[str]:
    """Run a command on a pseudo-terminal; return the lines that it shows, with their colours."""
    assert url
    ours, theirs = pty.openpty()
    more = {"COLUMNS": str(columns), "TERM": "xterm", "PENSTOCK_URL": url, **changes}
    shown = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**more),
    )
    os.close(theirs)
    seen = b"".join(read_all(ours)).decode()
    shown.wait(TIMEOUT)
    return seen.replace("\r\n", "\n").splitlines()


@pytest.fixture
def real_backend(one_server: Backend) -> Backend:
    """One server, as a terminal shows the same of all."""
    return one_server


@pytest.fixture
def busy(client: Penstock) -> Penstock:
    """A queue with a long name and jobs with a handler, in each state; one has a long error."""
    queue = client.queue("a-queue-with-a-long-name")
    queue.configure(lease=60, max_attempts=7, max_length=10_000, dead_max=500)
    queue.enqueue_many([b"x" * 200] * 9, headers={"handler": "shop.tasks.send_the_invoice"})
    queue.enqueue(b"later", delay=60)
    queue.reserve(1)[0].bury("TimeoutError: " + "the server did not answer " * 9)
    queue.reserve(1)
    return client


@pytest.mark.parametrize(
    "argv",
    [
        ["stats"],
        ["peek", "a-queue-with-a-long-name"],
        ["peek", "a-queue-with-a-long-name", "--state", "dead"],
        ["peek", "a-queue-with-a-long-name", "--state", "active"],
        ["scan", "a-queue-with-a-long-name"],
        ["scan"],
        ["info"],
        ["scripts"],
        ["configure", "a-queue-with-a-long-name"],
    ],
    ids=" ".join,
)
def test_tables_fit_80_columns(busy: Penstock, real_backend: Backend, argv: list[str]) -> None:
    """No line is wider; each column has a value; a heading is never broken by a narrow column."""
    lines = [COLOUR.sub("", line) for line in on_terminal(real_backend.url, *argv)]
    assert len(lines) > 2
    assert max(map(width_of, lines)) <= 80
    if argv[0] == "scan":
        assert "handler" in lines[0]
        assert any("shop.tas" in line for line in lines)


def test_short_ids_name_jobs(busy: Penstock, cli: Cli, real_backend: Backend) -> None:
    """An id that a table shows on a terminal is accepted by commands."""
    name = "a-queue-with-a-long-name"
    lines = on_terminal(real_backend.url, "peek", name, "--state", "dead", NO_COLOR="1")
    short = lines[2].split()[0]
    assert len(short) == 13
    [letter] = busy.queue(name).peek(state="dead")
    assert cli("show", short, "--json").document["id"] == letter.id
    assert cli("show", name, letter.id[:33], "--json").document["id"] == letter.id
    assert cli("redrive", name, short).out == "1 dead letter redriven\n"
    assert cli("delete", name, short, "--json").document == {
        "queue": name, "deleted": 1, "jobs": [{"id": letter.id, "outcome": "done"}],
    }  # fmt: skip


def test_the_beginning_of_several_ids(cli: Cli, client: Penstock) -> None:
    """It is refused, with some of the ids; so is one of no id, and one that is too short."""
    queue = client.queue("q")
    ids = queue.enqueue_many(range(8)).ids
    for argv in (["show", ids[0][:12]], ["cancel", "q", ids[0][:20]]):
        result = cli(*argv)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith(f"penstock: 8 jobs have ids that begin with '{argv[-1]}'")
        assert sum(one in result.err for one in ids) == 5
    for text in ("zzzzzzzz", "D-"):
        assert f"queue 'q' has no job whose id begins with '{text}'" in cli("delete", "q", text).err
        assert f"no queue has a job whose id begins with '{text}'" in cli("show", text).err
    assert queue.stats().ready == 8


def test_delete_only_what_was_never_delivered(cli: Cli, client: Penstock) -> None:
    """Other jobs are named, and stay; the exit code is 1."""
    queue = client.queue("q")
    held, new = queue.enqueue_many(["a", "b"]).ids
    queue.reserve(1)
    result = cli("delete", "q", held, new, "--if-undelivered")
    assert (result.code, result.out) == (1, "1 job deleted\n")
    assert f"1 of 2 could not be deleted: {held} refused" in result.err
    assert cli("delete", "q", held).code == 0


def test_configure(cli: Cli, client: Penstock) -> None:
    """Settings are stored, shown and removed; a wrong name or value changes nothing."""
    queue = client.queue("q")
    queue.enqueue("x")
    assert cli("configure", "q", "lease=20", "max-length=7").code == 0
    assert (queue.stats().settings.lease, queue.stats().settings.max_length) == (20, 7)
    assert cli("configure", "q", "--json").document["settings"]["lease"] == 20
    cli("configure", "q", "lease=default")
    assert queue.stats().settings.lease is None
    wrong = cli("configure", "q", "max_lenght=3")
    assert wrong.code == 2
    assert "(did you mean 'max_length'?)" in wrong.err
    assert "BadArgument: max_length=" in cli("configure", "q", "max_length=many").err
    assert queue.stats().settings.max_length == 7


@pytest.mark.slow
def test_colours(busy: Penstock, real_backend: Backend) -> None:
    """A terminal has some; with NO_COLOR or TERM=dumb, and in a pipe, there are none."""
    coloured = "\n".join(on_terminal(real_backend.url, "scan", "a-queue-with-a-long-name"))
    assert "\x1b[31mdead" in coloured
    for changes in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = "\n".join(on_terminal(real_backend.url, "scan", **changes))
        assert "dead" in plain
        assert "\x1b" not in plain


@pytest.mark.parametrize(
    "argv",
    [["stats"], ["queues"], ["scan"], ["peek", EVIL, "--state", "dead"], ["configure", EVIL]],
    ids=lambda argv: " ".join(argv).replace(EVIL, "EVIL"),
)
def test_hostile_text_on_a_terminal(
    client: Penstock, real_backend: Backend, argv: list[str]
) -> None:
    """Bodies, headers, names and errors send no control sequence, also where they are wrapped."""
    queue = client.queue(EVIL)
    queue.enqueue_many([EVIL.encode() * 9] * 3, headers={"handler": EVIL})
    queue.reserve(1)[0].bury(EVIL * 9)
    for line in on_terminal(real_backend.url, *argv):
        assert is_harmless(COLOUR.sub("", line))
        assert width_of(COLOUR.sub("", line)) <= 80 or argv[0] == "queues"


def test_wide_characters() -> None:
    """A character of two cells takes two, and a combining one none."""
    lines = grid(["name", "body"], [["日本語", "e\u0301" * 30]], medium=Medium(width=30))
    assert lines[2] == "日本語  " + "e\u0301" * 22
    assert lines[3] == "        " + "e\u0301" * 8


def test_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are those of a pipe: nothing is wrapped or left out."""
    table: tuple[list[str], list[list[str]]] = ["name", "b"], [["x" * 50, ""]]
    monkeypatch.setattr("penstock.cli.grid.find_spec", lambda _: None)
    assert grid(*table, medium=Medium(width=30, colours=True)) == grid(*table, medium=Medium())


def test_spare_columns_are_left_out() -> None:
    """The first named one goes first, and only as long as the table is too wide."""
    columns, row = ["a", "b", "c"], ["x" * 10, "y" * 10, "z" * 10]
    for width, left in ((34, "abc"), (33, "ac"), (22, "ac"), (21, "c")):
        head, *_ = grid(columns, [row], spare=["b", "a"], medium=Medium(width=width))
        assert head.split() == list(left)
