"""The command `top`: an overview of all queues that refreshes itself, with keys to manage them."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated

from redis.exceptions import RedisError

from penstock import NotPermitted, Penstock, PenstockError, Problem, QueueStats
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.grid import Medium, grid
from penstock.cli.history import last_hour
from penstock.cli.parameters import BadUsage, Option
from penstock.core.jobs.logs import counted, printable

__all__ = ["Board", "top"]

NUMBER_COLUMNS = ("ready", "active", "parked", "scheduled", "dead", "in/s", "done/s", "oldest")
BOARD_COLUMNS = ("", "queue", "state", *NUMBER_COLUMNS)
SPARE_BOARD_COLUMNS = ("scheduled", "in/s", "oldest", "parked", "done/s", "active", "state")
MIN_NAME_WIDTH = 10
NAME_SHARE = 0.4
"""The part of the screen's width that names of queues take at most."""
KEYS_HELP = "↑↓ choose   p pause   r resume   d redrive   q quit"
QUESTIONS = {
    "p": "deliver no jobs until a resume?",
    "d": "redrive {dead}?",
}
"""Key -> the question that `top` asks before it acts."""
STEP_OF_KEY = {"j": 1, "\x1b[B": 1, "k": -1, "\x1b[A": -1}
"""Keys that choose another queue."""
OTHER_LINES = 5
"""Lines of the screen that are no queues: title, headings, rule, message, keys."""
PAST_INTERVAL = 10.0
"""Seconds between two looks at the history of the chosen queue."""


@command("top")
def top(session: Session, interval: Annotated[float, Option(low=0.1, high=3600)] = 2) -> None:
    """Show all queues, with their rates, on a screen that refreshes itself.

    Keys pause and resume the chosen queue, and redrive its dead letters. It needs a terminal.

    Args:
        interval: time between two looks.

    Examples:
        penstock top
        penstock top --interval 10
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadUsage("top needs a terminal; `penstock stats` prints the figures once")
    with session.client() as client, _screen() as terminal:
        _watch(client, Board(), terminal, interval)


@dataclass
class Board:
    """The contents of the screen.

    Attributes:
        rows: the queues, by name.
        chosen: name of the chosen queue.
        message: the outcome of the last key.
        problems: what is wrong now: the first one is shown while there is no message.
        past: the last hour of the chosen queue, from its history.
        asked: key of the action that the message asks about; "" = the message is no question.
    """

    rows: Sequence[QueueStats] = ()
    chosen: str = ""
    message: str = ""
    problems: Sequence[Problem] = ()
    past: str = ""
    asked: str = ""
    _past_of: tuple[str, float] = ("", 0.0)
    _rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    _at: float = 0.0

    def show(self, rows: Sequence[QueueStats], at: float) -> None:
        """Take new figures, read at this point of the clock."""
        before = {one.name: one for one in self.rows}
        span = max(at - self._at, 1e-3)
        self._rates = {
            one.name: ((one.enqueued - old.enqueued) / span, (one.acked - old.acked) / span)
            for one in rows
            if (old := before.get(one.name)) is not None
        }
        self.rows, self._at = sorted(rows, key=lambda one: one.name), at
        if self.rows and self.chosen not in {one.name for one in self.rows}:
            self.chosen = self.rows[0].name

    def move(self, step: int) -> None:
        """Choose a queue above or below."""
        names = [one.name for one in self.rows]
        if names:
            at = names.index(self.chosen) + step
            self.chosen = names[min(max(at, 0), len(names) - 1)]

    def needs_past(self, now: float) -> bool:
        """Return True if the history of the chosen queue is to be read; forget that of another."""
        name, read_at = self._past_of
        if name == self.chosen and now < read_at + PAST_INTERVAL:
            return False
        self.past = self.past if name == self.chosen else ""
        self._past_of = (self.chosen, now)
        return bool(self.chosen)

    def frame(self, title: str, medium: Medium, height: int) -> list[str]:
        """Return the lines of the screen."""
        foot = [printable(self.message or self._wrong()), KEYS_HELP]
        if self.past and height > OTHER_LINES + 1:
            foot = [self.past, *foot]
        room = max(1, height - OTHER_LINES - len(foot) + 2)
        at = next((n for n, one in enumerate(self.rows) if one.name == self.chosen), 0)
        first = max(0, min(at - room // 2, len(self.rows) - room))
        cells = [self._cells(one) for one in self.rows[first : first + room]]
        width = medium.width
        lines = grid(
            BOARD_COLUMNS,
            cells,
            right=NUMBER_COLUMNS,
            spare=SPARE_BOARD_COLUMNS,
            cut={} if width is None else {"queue": max(MIN_NAME_WIDTH, int(width * NAME_SHARE))},
            medium=medium,
        )
        body = lines if self.rows else ["no queues"]
        return [printable(title)[:width], *body, *(line[:width] for line in foot)]

    def _wrong(self) -> str:
        if not self.problems:
            return ""
        first, more = self.problems[0], len(self.problems) - 1
        of = f"{first.queue}: " if first.queue is not None else ""
        return f"! {of}{first.text}" + (f"; {more} more: penstock check" if more else "")

    def _cells(self, one: QueueStats) -> list[str]:
        paused = one.settings.paused
        state = "closed" if one.closed else f"paused {paused}" if paused else "open"
        if one.held is not None and paused not in ("out", "all"):
            state = f"held {output.span(one.held)}"
        elif one.held_keys and state == "open":
            state = f"{counted(one.held_keys, 'key')} held"
        added, done = self._rates.get(one.name, (0.0, 0.0))
        mark = "▸" if one.name == self.chosen else " "
        active = one.active if one.slots is None else f"{one.active}/{one.slots}"
        counts = map(str, (one.ready, active, one.parked or "", one.scheduled, one.dead))
        rates = f"{max(added, 0):.0f}", f"{max(done, 0):.0f}"
        return [mark, printable(one.name), state, *counts, *rates, output.span(one.oldest)]


def _watch(client: Penstock, board: Board, terminal: int, interval: float) -> None:
    title = "penstock top  " + ", ".join(one.address for one in client.hello().nodes)
    while True:
        _look(client, board)
        due = time.monotonic() + interval
        while (left := due - time.monotonic()) > 0:
            _draw(board.frame(title, Medium.of(sys.stdout), shutil.get_terminal_size().lines))
            if not select.select([terminal], [], [], left)[0]:
                break
            for key in _keys(terminal):
                if key in ("q", "\x04"):
                    return
                if _handle_key(client, board, key):
                    _look(client, board)


def _look(client: Penstock, board: Board) -> None:
    try:
        rows = list(client.scan_queues_iter())
        board.show(rows, time.monotonic())
        with suppress(NotPermitted):  # the user may read queues only
            board.problems = client.find_problems(rows)
        if board.needs_past(time.monotonic()):
            board.past = last_hour(client.open(board.chosen).history())
    except (PenstockError, RedisError, OSError) as error:
        board.message = f"{type(error).__name__}: {error}"


def _keys(terminal: int) -> list[str]:
    """Return the keys that were pressed; an arrow is one."""
    typed = os.read(terminal, 64)
    return re.findall(r"\x1b\[[A-D]|.", typed.decode("utf-8", "replace")) if typed else ["q"]


def _handle_key(client: Penstock, board: Board, key: str) -> bool:
    if key in STEP_OF_KEY:
        board.move(STEP_OF_KEY[key])
        board.asked, board.message = "", ""
        return False
    try:
        return _act(client, board, key)
    except (PenstockError, RedisError, OSError) as error:
        board.message = f"{type(error).__name__}: {error}"
        return False


def _act(client: Penstock, board: Board, key: str) -> bool:
    stats = next((one for one in board.rows if one.name == board.chosen), None)
    if stats is None:
        return False
    asked, board.asked = board.asked, ""
    name = stats.name
    queue = client.open(name)
    if key == "r":
        queue.resume()
        board.message = f"{name}: not paused"
    elif key == "d" and not stats.dead:
        board.message = f"{name} has no dead letters"
        return False
    elif key in QUESTIONS:
        board.asked = key
        question = QUESTIONS[key].format(dead=counted(stats.dead, "dead letter"))
        board.message = f"{name}: {question} y = yes, another key = no"
        return False
    elif not asked:
        return False
    elif key != "y":
        board.message = "nothing changed"
    elif asked == "p":
        queue.pause()
        board.message = f"{name}: paused"
    else:
        board.message = f"{name}: {queue.redrive()} redriven"
    return True


def _draw(lines: Sequence[str]) -> None:
    sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[J")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[int]:
    """Use the whole terminal, and get each key at once; yield where keys are read."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    sys.stdout.write("\x1b[?1049h\x1b[?25l")  # another screen, no cursor
    try:
        tty.setcbreak(terminal)
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
