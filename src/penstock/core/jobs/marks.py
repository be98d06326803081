"""Marks: what the server keeps beside a job while it lives (protocol/marks.md).

Its failures with the last traceback, its progress, its snoozes, and whether it is cancelled.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path

from penstock.core.values.checks import check_text
from penstock.errors import BadArgument

__all__ = [
    "MAX_TRACE_BYTES",
    "Failure",
    "Progress",
    "check_trace",
    "progress_text",
    "read_failures",
    "read_progress",
    "trace_of",
]

MAX_TRACE_BYTES = 8192
"""Most bytes of a trace that the scripts keep."""
MAX_NOTE_LENGTH = 200
"""Most bytes of the note of a progress; more are cut."""
OWN_CODE = str(Path(__file__).parents[2]) + os.sep
"""The beginning of the file names of the package."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a handler has told last.

    Attributes:
        at: when the server stored it, seconds since 1970.
        done: the part that is done, in the handler's own unit.
        total: the whole; None = not known.
        note: text, or "".
    """

    at: float
    done: float
    total: float | None
    note: str

    @property
    def part(self) -> float | None:
        """The done part of the whole, 0 to 1; None = the whole is not known, or 0."""
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None

    def __str__(self) -> str:
        whole = "" if self.total is None else f" of {self.total:g}"
        share = "" if self.part is None else f" ({self.part:.0%})"
        return f"{self.done:g}{whole}{share}{self.note and ', '}{self.note}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt: a report of its worker, or a lease that ended without one.

    Attributes:
        at: when the server counted it, seconds since 1970.
        seconds: time since the delivery; None = it is not known.
        owner: the worker or client that had the job.
        text: the first 200 bytes of the error, in one line.
    """

    at: float
    seconds: float | None
    owner: str
    text: str


def check_trace(trace: object) -> str:
    """Return the end of a trace, at most 8192 bytes of UTF-8.

    Raises:
        BadArgument: not a str.
    """
    if not isinstance(trace, str):
        raise BadArgument("trace", trace, "must be a str")
    return trace.encode("utf-8", "replace")[-MAX_TRACE_BYTES:].decode("utf-8", "ignore")


def progress_text(done: float, total: float | None, note: str) -> str:
    """Return progress as the script `beat` takes it: done, total and note, separated by blanks.

    Raises:
        BadArgument: a number is not finite, or the note is no text.
    """
    for name, value in (("done", done), ("total", total)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (value is None and name == "total") and not (is_number and abs(value or 0) < 1e15):
            raise BadArgument(name, value, "must be a number below 1e15")
    text = " ".join(check_text("note", note, limit=MAX_NOTE_LENGTH).split())
    return f"{done:.15g} {'-' if total is None else format(total, '.15g')} {text}"


def read_progress(mark: bytes) -> Progress | None:
    """Parse the mark `p`: time, done, total and note; None = there is none of this form."""
    try:
        at, done, total, note = mark.decode("utf-8", "replace").split(" ", 3)
        return Progress(int(at) / 1000, float(done), None if total == "-" else float(total), note)
    except ValueError:  # clients store what they like
        return None


def read_failures(mark: bytes) -> tuple[tuple[Failure, ...], str]:
    """Parse the mark `e`: return the failures, the oldest first, and the last trace."""
    if not mark:
        return (), ""
    lines, _, trace = mark.decode("utf-8", "replace").partition("\n\n")
    failures = []
    for line in lines.split("\n"):
        at, took, owner, text = line.split("\t", 3)
        failures.append(Failure(int(at) / 1000, int(took) / 1000 if took else None, owner, text))
    return tuple(failures), trace


def trace_of(error: BaseException | None) -> str:
    """Return the end of a traceback, without the frames of penstock, at most 8 KiB of UTF-8."""
    if error is None:
        return ""
    try:
        shown = traceback.TracebackException.from_exception(error, compact=True)
        _drop_own_frames(shown)
        text = "".join(shown.format())
    except BaseException:  # noqa: BLE001  # one that can't be formatted still has its type
        text = type(error).__qualname__
    return check_trace(text).strip("\n")


def _drop_own_frames(shown: traceback.TracebackException | None) -> None:
    while shown is not None:
        others = [frame for frame in shown.stack if not frame.filename.startswith(OWN_CODE)]
        shown.stack = traceback.StackSummary.from_list(others)
        shown = shown.__cause__ or shown.__context__
