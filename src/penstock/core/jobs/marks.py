"""Marks: what the server keeps beside a job while it lives (protocol/marks.md).

Its failures with the last traceback, its progress, its snoozes, and whether it is cancelled. And
what the headers of a follow-up tell of the death of another job (protocol/follow-ups.md).
"""

from __future__ import annotations

import os
import re
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.core.values.checks import check_text
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id, ttl_code
from penstock.errors import BadArgument

__all__ = [
    "MAX_TRACE_BYTES",
    "Death",
    "Failure",
    "LogLine",
    "Progress",
    "Unsent",
    "check_trace",
    "follow_up_id",
    "progress_text",
    "read_death",
    "read_failures",
    "read_log",
    "read_progress",
    "trace_of",
]

MAX_TRACE_BYTES = 8192
"""Most bytes of a trace that the scripts keep."""
MOST_LOG_LINES = 100
"""Lines of the log of a job that the server keeps."""
LONGEST_LOG_LINE = 500
"""Bytes of a line; more are cut."""
MAX_NOTE_LENGTH = 200
"""Most bytes of the note of a progress; more are cut."""
DEAD_JOB = re.compile(r"(\d{13,15}-\d{10})(?: (\d{1,15}))?")
"""The header `dead`: the number of the job that died, and its ttl in ms if it has one."""
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


@dataclass(frozen=True, slots=True)
class Death:
    """The death of a job, for the job that was added after it.

    Attributes:
        id: the id of the dead letter.
        handler: the name of its handler; "" = it has none.
        error: why it is dead, at most 1024 bytes.
        failures: its failures and crashes until then.
        left_out: bytes of its body, if the added job did not get it; 0 = it has the body.
    """

    id: str
    handler: str
    error: str
    failures: int
    left_out: int


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


class Unsent:
    """What the handler of a job has told, and the server does not know yet.

    Attributes:
        progress: as the script `beat` takes it; "" = none.
        lines: of its log.
    """

    __slots__ = ("lines", "progress")

    def __init__(self) -> None:
        self.progress = ""
        self.lines: deque[str] = deque(maxlen=MOST_LOG_LINES)

    def __bool__(self) -> bool:
        return bool(self.progress or self.lines)

    def add_lines(self, text: str) -> None:
        """Add the lines of a text.

        Raises:
            BadArgument: it is no text.
        """
        longest = MOST_LOG_LINES * LONGEST_LOG_LINE
        for line in check_text("text", text, limit=longest).splitlines():
            shown = "".join(one if one.isprintable() else " " for one in line).rstrip()
            cut = shown.encode("utf-8", "replace")[:LONGEST_LOG_LINE].decode("utf-8", "ignore")
            if cut:
                self.lines.append(cut)

    def texts(self) -> Iterator[str]:
        """Yield the lines that the script `beat` takes, behind the place of the job."""
        if self.progress:
            yield f" {self.progress}"
        yield from (f"+{line}" for line in self.lines)

    def take(self) -> Unsent:
        """Remove what is there, and return it: other threads may add more meanwhile."""
        taken = Unsent()
        taken.progress, self.progress = self.progress, ""
        while self.lines:
            taken.lines.append(self.lines.popleft())
        return taken

    def put_back(self, unsent: Unsent) -> None:
        """Add what could not be sent, as far as there is nothing newer and room for it."""
        self.progress = self.progress or unsent.progress
        room = MOST_LOG_LINES - len(self.lines)
        self.lines.extendleft(reversed(list(unsent.lines)[-room:] if room else []))


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a handler has logged with its job.

    Attributes:
        at: when the server got it, about a second later at most; seconds since 1970 by its clock.
        text: the line.
    """

    at: float
    text: str


def read_log(mark: bytes) -> list[LogLine]:
    """Parse the mark `l`: return the lines, the oldest first; other lines are left out."""
    lines = []
    for line in mark.decode("utf-8", "replace").split("\n"):
        at, blank, text = line.partition(" ")
        if blank and re.fullmatch("[0-9]{1,15}", at):
            lines.append(LogLine(int(at) / 1000, text))
    return lines


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


def read_death(headers: Mapping[str, str], node: str, packed: bytes) -> Death | None:
    """Return the death that the headers of a job tell of; None = they tell of none.

    Args:
        headers: of the job.
        node, packed: the part of the queue in its id, as `encode_id` takes it.
    """
    dead = DEAD_JOB.fullmatch(headers.get("dead", ""))
    if dead is None:
        return None
    ttl = ttl_code(None if dead[2] is None else int(dead[2]))
    return Death(
        id=encode_id(node, packed, dead[1].encode(), ttl),
        handler=headers.get("dead_handler", ""),
        error=headers.get("dead_error", ""),
        failures=_count(headers.get("dead_failures", "")),
        left_out=_count(headers.get("dead_bytes", "")),
    )


def follow_up_id(number: str, node: str, packed: bytes) -> str | None:
    """Return the id of the job that was added after a death; None = none was.

    Args:
        number: the number of the added job, or "".
        node, packed: as of `read_death`.
    """
    if DEAD_JOB.fullmatch(number) is None:
        return None
    return encode_id(node, packed, number.encode(), AT_LEAST_ONCE_FOREVER)


def _count(text: str) -> int:
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else 0


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
