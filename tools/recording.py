"""Record a command on a terminal of its own, and write it as an animated SVG.

python tools/recording.py docs/images/demo.svg penstock demo
"""

from __future__ import annotations

import fcntl
import html
import itertools
import os
import pty
import struct
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyte

__all__ = ["Frame", "drawn", "recorded"]

COLUMNS, ROWS = 100, 24
LEAST = 0.08
"""Seconds that a frame is shown at least: what comes within them is one frame."""
LAST = 8.0
"""Seconds that the last frame is shown."""
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
COLOURS = {
    "default": "#e6edf3", "black": "#6e7681", "red": "#ff7b72", "green": "#7ee787",
    "brown": "#e3b341", "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea",
    "white": "#f0f6fc",
}  # fmt: skip


class Frame(NamedTuple):
    """The screen at a time.

    Attributes:
        at: seconds from the start.
        lines: spans of text with their colours, by rows.
    """

    at: float
    lines: tuple[tuple[tuple[str, str], ...], ...]


def recorded(command: Sequence[str]) -> list[Frame]:
    """Run a command, and return its screens.

    Raises:
        SystemExit: it ended with another code than 0.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], list(command))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began, frames = time.monotonic(), list[Frame]()
    while True:
        try:
            stream.feed(os.read(terminal, 65536))
        except OSError:  # EIO: the command has ended
            break
        lines = tuple(_spans(screen.buffer[row]) for row in range(ROWS))
        at = time.monotonic() - began
        if frames and at - frames[-1].at < LEAST:
            at = frames.pop().at
        if not frames or frames[-1].lines != lines:
            frames.append(Frame(at, lines))
    frames = [Frame(frame.at - frames[0].at, frame.lines) for frame in frames]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    return frames


def _spans(row: Any) -> tuple[tuple[str, str], ...]:
    """Return the text of a row, split where its colour changes."""
    cells = [(row[column].fg, row[column].data) for column in range(COLUMNS)]
    spans = [
        ("".join(data for _, data in group), colour)
        for colour, group in itertools.groupby(cells, key=lambda cell: cell[0])
    ]
    while spans and not spans[-1][0].strip():
        spans.pop()
    return tuple(spans)


def drawn(frames: Sequence[Frame], title: str) -> str:
    """Return the frames as an SVG that shows one after the other, again and again.

    It begins with the last one, which is all that is seen where pictures do not move.
    """
    used = max(len(_trimmed(frame.lines)) for frame in frames)
    width, height = COLUMNS * WIDTH + 2 * MARGIN, used * HEIGHT + 2 * MARGIN
    whole = frames[-1].at + LAST
    steps = "".join(
        f"{100 * frame.at / whole:.3f}%{{transform:translateY({-height * i}px)}}"
        for i, frame in enumerate(frames)
    )
    last = frames[-1].at
    style = (
        f"@keyframes film{{{steps}}}.film{{transform:translateY({-height * (len(frames) - 1)}px)}}"
        "@media(prefers-reduced-motion:no-preference)"
        f"{{.film{{animation:film {whole:.2f}s step-end {-last:.2f}s infinite}}}}"
        "text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
    )
    strip = "\n".join(
        f'<g transform="translate(0 {height * i})">{_picture(frame.lines)}</g>'
        for i, frame in enumerate(frames)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img"'
        f' aria-label="{html.escape(title)}">\n<style>{style}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n<g class="film">\n{strip}\n</g>'
        "\n</svg>\n"
    )


def _trimmed(lines: Sequence[Any]) -> list[Any]:
    found = list(lines)
    while found and not found[-1]:
        found.pop()
    return found


def _picture(lines: Iterable[Sequence[tuple[str, str]]]) -> str:
    parts = []
    for row, spans in enumerate(lines):
        column = 0
        for text, colour in spans:
            if text.strip():
                fill = COLOURS.get(colour) or f"#{colour}"
                x, y = MARGIN + column * WIDTH, MARGIN + HEIGHT * row + 13
                size = f'textLength="{len(text) * WIDTH:g}"'
                parts.append(
                    f'<text x="{x:g}" y="{y}" fill="{fill}" {size}>{html.escape(text)}</text>'
                )
            column += len(text)
    return "".join(parts)


if __name__ == "__main__":
    target, *given = sys.argv[1:]
    Path(target).write_text(drawn(recorded(given), " ".join(given)), encoding="utf-8")
