"""Log records: printable text, and fields for formatters that write JSON.

This is the one place where text of unknown origin is made printable, in log records and in the
output of the command line, and where the fields of a job have their names; docs/observing.md lists
them.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from textwrap import indent
from types import TracebackType

from penstock.core.jobs.job import Delivery
from penstock.core.jobs.marks import OWN_CODE
from penstock.core.jobs.middleware import HANDLER
from penstock.core.values.checks import duration_ms
from penstock.core.values.policy import RetryPolicy

__all__ = [
    "AT_MOST_ONCE_NOTE",
    "LOG_FIELDS",
    "STANDARD_ATTRIBUTES",
    "TRACE_FIELD",
    "Fields",
    "RateLimit",
    "byte_size",
    "counted",
    "get_logger",
    "indented",
    "log_failure",
    "policy_text",
    "printable",
    "span",
]

LOG_FIELDS = ("job_id", "queue", "handler", "worker", "attempt")
"""The fields that a record about a job has."""
AT_MOST_ONCE_NOTE = "delivered at most once, it is not tried again"
"""Why the failure of such a job is its last one."""
TRACE_FIELD = "traceback"
"""The field for the text of a traceback whose exception is not kept; it becomes `exc_text`."""
STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
}
"""The attributes that every record has; the others were given as `extra`."""
SECRET_PATTERN = re.compile(r"(?<=://)[^\s@/'\"]*:\S*(?=@)|(?<=password=)[^\s&'\"]+")
"""Finds user names and passwords of URLs."""
SECRET_MASK = "***"


def printable(text: str, keep: str = "") -> str:
    """Escape the characters that a terminal would obey or not show, as Python does in a literal.

    These are the control characters (C0, DEL, C1), those that change the direction of text, line
    and paragraph separators, other invisible characters, and lone surrogates. What is left is one
    line.

    Args:
        text: of any origin: a name, a body, the message of an error.
        keep: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def hidden(text: str) -> str:
    """Hide the passwords of URLs in a text."""
    return SECRET_PATTERN.sub(SECRET_MASK, text) if "://" in text else text


def span(seconds: float) -> str:
    """Format a duration in the largest unit of which it has two."""
    for limit, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * limit:
            return f"{seconds / limit:.1f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def counted(count: int, noun: str) -> str:
    """Format a number of things: 1 job, 2 jobs, 1,000 jobs."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def byte_size(count: int) -> str:
    """Format a number of bytes in the largest unit of which it has one."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= limit:
            return f"{count / limit:.2f} {unit}"
    return f"{count} B"


def policy_text(policy: RetryPolicy) -> str:
    """Return the retry policy of a job in words; what it leaves open is the queue's."""
    most, base, cap = policy.max_attempts, policy.base, policy.cap
    parts = (
        "" if most is None else counted(most, "attempt") if most else "unlimited attempts",
        "" if base is None else f"backoff from {span(duration_ms('base', base) / 1000)}",
        "" if cap is None else f"up to {span(duration_ms('cap', cap) / 1000)}",
    )
    return ", ".join(filter(None, parts)) or "the queue's"


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name; its records are printable with any arguments.

    Each module of penstock that logs gets its logger here.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_make_printable)
    return logger


class RateLimit:
    """Allows one record about each subject in so many seconds. Any thread may ask it.

    Args:
        seconds: fewest seconds between two records about one subject.
        clock: returns monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def allows(self, subject: str) -> bool:
        """Return whether a record about this subject may be written now."""
        with self._lock:
            now = self._clock()
            if now < self._last.get(subject, -math.inf) + self._seconds:
                return False
            self._last[subject] = now
            return True


def _make_printable(record: logging.LogRecord) -> bool:
    trace = vars(record).pop(TRACE_FIELD, "")
    if trace:
        record.exc_text = indented(trace)
    record.msg = printable(hidden(str(record.msg)))
    if isinstance(record.args, tuple):
        record.args = tuple(map(_safe, record.args))
    for name, value in list(vars(record).items()):
        if name not in STANDARD_ATTRIBUTES and isinstance(value, str):
            setattr(record, name, printable(hidden(value)))
    if record.exc_info and not record.exc_text:
        text = "".join(traceback.format_exception(*record.exc_info))
        if not _is_plain(text, record.exc_info[1]):  # else the formatter decides how it looks
            record.exc_text = indented(text)
    return True


def indented(text: str) -> str:
    """Indent the lines of a traceback by two blanks, and make them printable.

    No line of the message of an exception can look like a record of its own.
    """
    return indent(printable(hidden(text).rstrip("\n"), keep="\n"), "  ", lambda _: True)


def _is_plain(text: str, error: BaseException | None) -> bool:
    if printable(hidden(text), keep="\n") != text:
        return False
    chain = traceback.TracebackException(type(error), error, None) if error else None
    while chain is not None:
        if len(list(chain.format_exception_only())) > 1 or "\n" in str(chain):
            return False
        chain = chain.__cause__ or chain.__context__
    return True


def _safe(value: object) -> object:
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, str) and value.isprintable() and "://" not in value:
        return value
    return _Shown(value)


class _Shown:
    """A value whose str and repr are printable and show no password."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(hidden(str(self._value)))

    def __repr__(self) -> str:
        return printable(hidden(repr(self._value)))


class Fields(Mapping[str, object]):
    """The fields of a record about a job: `logger.warning("…", extra=Fields(job))`.

    They are built on first use, so a record that is not written costs nothing.

    Args:
        job: the handler of one without a name is None.
        more: others beside them.
    """

    def __init__(self, job: Delivery, **more: object) -> None:
        self._job = job
        self._more = more

    @cached_property
    def _all(self) -> dict[str, object]:
        job = self._job
        handler = job.headers.get(HANDLER)
        own = (job.id, job.queue_name, handler, job.owner, job.attempt)
        return {**dict(zip(LOG_FIELDS, own, strict=True)), **self._more}

    def __getitem__(self, name: str) -> object:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def log_failure(
    job: Delivery, text: str, error: BaseException, *, prospect: str = "", ending: str = ""
) -> None:
    """Log that a job has failed.

    A failure that is tried again is one line of level WARNING, with its traceback at DEBUG. The
    last one is an ERROR with its traceback.

    Args:
        job: the job.
        text: the description of the error in the line.
        error: for the traceback, which begins with the first frame that is not of penstock.
        prospect: the number of the attempt, and when the next one is; empty = not known.
        ending: why it is not tried again; empty = it is, as far as is known.
    """
    extra = Fields(job)
    shown = type(error), error, _after_own_frames(error.__traceback__)
    if prospect:
        ending, text = ending and f"{prospect}: {ending}", text if ending else f"{text}; {prospect}"
    if ending:
        _logger.error("%r failed: %s; %s", job, text, ending, exc_info=shown, extra=extra)
    else:
        _logger.warning("%r failed: %s", job, text, extra=extra)
        _logger.debug("%r failed with", job, exc_info=shown, extra=extra)


def _after_own_frames(trace: TracebackType | None) -> TracebackType | None:
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(OWN_CODE):
        first = first.tb_next
    return first or trace


_logger = get_logger("penstock")
