"""`penstock top` on a pseudo-terminal, and its board without one."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from rich.cells import cell_len as width_of

from penstock import Penstock
from penstock.cli.grid import Medium
from penstock.cli.top import Board
from tests.cli.support import TIMEOUT, Cli, environment
from tests.cli.test_hostile import EVIL
from tests.support.backends import Backend
from tests.support.hostile import is_harmless
from tests.support.keyspace import Raw, advance
from tests.worker.test_history import measure, noted

END = "\x1b[J"
SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def raw(real_backend: Backend) -> Raw:
    """A plain client of the server."""
    return real_backend.sync_client()


class Terminal:
    """A pseudo-terminal with a program on it.

    Args:
        fd: the end that a person sees.
        program: the process.
    """

    def __init__(self, fd: int, program: subprocess.Popen[bytes]) -> None:
        self.fd = fd
        self.program = program
        self._seen = ""
        self._decoder = getincrementaldecoder("utf-8")()

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self.fd, keys.encode())

    def wait(self, reached: Callable[[str], object]) -> str:
        """Read new frames until one fulfils a condition; return it without colours."""
        while True:
            frame, ended, left = self._seen.partition(END)
            if not ended:
                self._seen += self._decoder.decode(os.read(self.fd, 65536))
                continue
            self._seen = left
            plain = SEQUENCE.sub("", frame)
            if reached(plain):
                return plain


@contextmanager
def running_top(url: str | None, *, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    """Run `penstock top` on a pseudo-terminal of its own."""
    assert url
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "top", "--interval", "0.1"],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment(
            PENSTOCK_URL=url, TERM="xterm", COLUMNS=str(columns), LINES=str(lines)
        ),
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(ours, program)
    finally:
        program.kill()
        program.wait(TIMEOUT)
        os.close(ours)


def test_it_shows_and_steers_queues(client: Penstock, real_backend: Backend) -> None:
    """Keys choose a queue and resume it, and ask before they pause it or redrive dead letters."""
    client.queue("emails").enqueue_many(range(3))
    reports = client.queue("reports")
    reports.enqueue("x")
    reports.reserve()[0].bury("no")
    with running_top(real_backend.url) as terminal:
        frame = terminal.wait(lambda frame: "reports" in frame)
        assert re.search(r"▸\s+emails\s+open\s+3\s+0", frame)
        terminal.press("\x1b[B")
        terminal.wait(lambda frame: re.search(r"▸\s+reports", frame))
        terminal.press("pn")
        terminal.wait(lambda frame: "nothing changed" in frame)
        assert reports.stats().settings.paused is None
        terminal.press("p")
        terminal.wait(lambda frame: "reports: deliver no jobs until a resume?" in frame)
        terminal.press("y")
        terminal.wait(lambda frame: re.search(r"reports\s+paused out", frame))
        assert reports.stats().settings.paused == "out"
        assert client.queue("emails").stats().settings.paused is None
        terminal.press("r")
        terminal.wait(lambda frame: "reports: not paused" in frame)
        assert reports.stats().settings.paused is None
        terminal.press("dn")
        terminal.wait(lambda frame: "nothing changed" in frame)
        assert reports.stats().dead == 1
        terminal.press("d")
        terminal.wait(lambda frame: "redrive 1 dead letter?" in frame)
        terminal.press("y")
        terminal.wait(lambda frame: "reports: 1 redriven" in frame)
        assert (reports.stats().dead, reports.stats().ready) == (0, 1)
        client.queue("new").enqueue(1)
        terminal.wait(lambda frame: "new" in frame)
        terminal.press("q")
        while True:  # the program may have to write its last bytes
            try:
                left = os.read(terminal.fd, 65536)
            except OSError:
                break
            if not left:
                break
        assert terminal.program.wait(TIMEOUT) == 0


def test_hostile_names_and_a_small_screen(client: Penstock, real_backend: Backend) -> None:
    """No name controls the terminal, and no frame is larger than it."""
    client.queue(EVIL * 5).enqueue(1)
    for number in range(30):
        client.queue(f"q{number}").enqueue(1)
    with running_top(real_backend.url, columns=60, lines=10) as terminal:
        frame = terminal.wait(lambda frame: "▸" in frame)
        lines = frame.replace("\r", "").split("\n")
        assert len(lines) <= 10
        assert all(map(is_harmless, lines))
        assert max(map(width_of, lines)) <= 60


@pytest.mark.parametrize("width, height", [(40, 24), (60, 10), (80, 24), (200, 8)])
def test_a_line_for_each_queue(client: Penstock, width: int, height: int) -> None:
    """On a narrow screen too, title and choice are there, and a long name is cut."""
    board = Board()
    for number in range(30):
        client.queue(f"{number:02} {'漢字 of tenants and ' * 5}").enqueue(1)
    board.show(list(client.scan_queues_iter()), 1.0)
    for step in range(30):
        frame = [SEQUENCE.sub("", line) for line in board.frame("title", Medium(width), height)]
        assert len(frame) <= height
        assert max(map(width_of, frame)) <= width
        assert frame[0] == "title"
        [chosen] = [line for line in frame if "▸" in line]
        assert re.match(rf"▸ +{step:02} 漢.*…", chosen)
        assert chosen.split()[-1]
        assert "ready" in frame[1]
        assert "dead" in frame[1]
        assert len([line for line in frame if "漢" in line]) == min(30, height - 5)
        board.move(1)


def test_it_needs_a_terminal(cli: Cli) -> None:
    """In a pipe it is bad usage, with advice."""
    result = cli("top")
    assert (result.code, result.out) == (2, "")
    assert "penstock stats" in result.err


def test_what_is_wrong(client: Penstock, real_backend: Backend) -> None:
    """The first problem is shown until a key has a message."""
    for name in ("a", "b"):
        client.queue(name).enqueue(1)
        client.queue(name).reserve()[0].bury("no")
    with running_top(real_backend.url) as terminal:
        terminal.wait(
            lambda frame: (
                "! a: 1 dead letter, the last one just now; 1 more: penstock check" in frame
            )
        )
        terminal.press("p")
        terminal.wait(lambda frame: "deliver no jobs until a resume?" in frame)


def test_the_last_hour(client: Penstock, raw: Raw, real_backend: Backend) -> None:
    """The history of the chosen queue, as its workers noted it, is there at the first look."""
    queue = client.queue("emails")
    queue.enqueue_many(range(1200))
    measure(queue)  # the work begins
    queue.ack(queue.reserve(1000))
    queue.reserve(1)[0].bury("no")
    advance(raw, queue.ops, 60)
    measure(queue, noted(*[("resize", 0.02, 0.2)] * 20))
    client.queue("other").enqueue(1)
    with running_top(real_backend.url, columns=100) as terminal:
        text = "last hour: 1,000 done, 1 dead; slowest: resize p95 480 ms"
        frame = terminal.wait(lambda frame: text in frame)
        assert "█" in frame
        terminal.press("j")
        terminal.wait(lambda frame: re.search(r"▸ +other", frame) and "last hour" not in frame)


def test_rates(client: Penstock) -> None:
    """They are those between two looks; a queue that is new has none."""
    board = Board()
    queue = client.queue("q")
    queue.enqueue_many(range(4))
    board.show(list(client.scan_queues_iter()), 10.0)
    queue.enqueue_many(range(30))
    queue.ack(queue.reserve(10))
    board.show(list(client.scan_queues_iter()), 12.0)
    row = board.frame("t", Medium(), 24)[3].split()
    assert row[:3] == ["▸", "q", "open"]
    assert row[7:9] == ["15", "5"]


def test_parked_jobs_have_a_column(client: Penstock) -> None:
    """It is there while a queue has some."""
    board, medium = Board(), Medium(120)
    queue = client.queue("q")
    queue.configure(per_key=1)
    for _ in range(2):
        queue.enqueue("x", key="k")
        board.show(list(client.scan_queues_iter()), 1.0)
        heads, _, row = (line.split() for line in board.frame("t", medium, 24)[1:4])
        assert ("parked" in heads) == (queue.stats().parked > 0)
    assert row[3:7] == ["1", "0", "1", "0"]


def test_holds_are_a_state(client: Penstock) -> None:
    """Of a key while the queue is open, and of the queue."""
    queue, board = client.queue("q"), Board()
    queue.enqueue("x", key="a")
    queue.hold(60, key="a")
    board.show(list(client.scan_queues_iter()), 1.0)
    assert "1 key held" in board.frame("t", Medium(120), 24)[3]
    queue.hold(3600)
    board.show(list(client.scan_queues_iter()), 2.0)
    assert "held " in board.frame("t", Medium(120), 24)[3]


def test_slots_are_beside_the_active_jobs(client: Penstock) -> None:
    """A queue with slots shows how many are taken."""
    board = Board()
    queue = client.queue("q")
    queue.configure(max_active=2)
    queue.enqueue_many(range(3))
    queue.reserve(1, block=0)
    board.show(list(client.scan_queues_iter()), 1.0)
    assert board.frame("t", Medium(120), 24)[3].split()[3:5] == ["2", "1/2"]


@pytest.mark.parametrize(
    "steps, chosen", [([1], "b"), ([1, 1, 1], "c"), ([1, 1, -1], "b"), ([-1], "a")]
)
def test_choosing(client: Penstock, steps: list[int], chosen: str) -> None:
    """The choice stops at both ends, and survives new figures."""
    board = Board()
    board.move(1)
    for name in "cab":
        client.queue(name).enqueue(1)
    board.show(list(client.scan_queues_iter()), 1.0)
    for step in steps:
        board.move(step)
    board.show(list(client.scan_queues_iter()), 2.0)
    assert board.chosen == chosen
