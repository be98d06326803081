"""Output of commands: tables for people, JSON for programs.

All text goes through `printable`, so that a name, a body or an error can't control the terminal.

In JSON, times are seconds since 1970 and spans are seconds. A job's `codec` says how to read its
`body`. With "json" it is the value. With "bytes" it is a string if the bytes are UTF-8, else
{"base64": "..."}.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta, timezone
from typing import Any

from penstock import JobView
from penstock.cli.grid import Medium, grid
from penstock.core.jobs.logs import byte_size, printable
from penstock.core.jobs.logs import span as span_of
from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.record import parse_json
from penstock.core.values.urls import redacted

__all__ = [
    "DURATION_FIELDS",
    "MOMENT_FIELDS",
    "Failed",
    "body_value",
    "complain",
    "confirm",
    "facts",
    "job_cell",
    "job_document",
    "job_table",
    "limit",
    "moment",
    "note",
    "short_body",
    "size",
    "span",
    "table",
    "write",
    "write_json",
    "write_lines",
]


MOMENT_FIELDS = (
    "created",
    "due",
    "expires",
    "delivered",
    "cancelled",
    "lease_until",
    "died",
    "finished",
)
NUMBER_PART = slice(12, 25)
"""The part of an id that no other job of its queue has on this node: the number of the job."""
DURATION_FIELDS = ("age", "next_in", "idle", "ttl_left")


class Failed(Exception):
    """The error of a command; its text is the line that the user reads."""


def write(text: str) -> None:
    """Write a line to stdout."""
    write_lines([text])


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


def complain(text: str, hide: Callable[[str], str] = redacted) -> None:
    """Write a line to stderr, with the name of the program before it; `hide` as of `note`."""
    note(f"penstock: {text}", hide)


def note(text: str, hide: Callable[[str], str] = redacted) -> None:
    """Write a line to stderr: it is for people, not part of the result.

    Args:
        text: the line.
        hide: hides passwords in it.
    """
    sys.stderr.write(f"{printable(hide(text))}\n")


def confirm(question: str, done: str = "removed") -> None:
    """Ask on stderr.

    Args:
        question: what is asked.
        done: what a yes does, after "nothing was".

    Raises:
        Failed: the line on stdin does not say yes.
    """
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failed(f"nothing was {done}")


def write_json(document: object) -> None:
    """Write a JSON document to stdout, in ASCII, which any terminal and pipe can carry."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = "", spare: str = ""
) -> None:
    """Print a table. On a terminal it fits the width, and columns without a value are left out.

    Args:
        columns: the headings; _ is printed as a space.
        rows: a cell for each column; None stays empty.
        right: headings of the columns of numbers, separated by spaces.
        spare: headings of columns that a narrow terminal leaves out, the first one first.
    """
    medium = Medium.of(sys.stdout)
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    lines = grid(columns, cells, right=right.split(), spare=spare.split(), medium=medium)
    sys.stdout.writelines(f"{line}\n" for line in lines)


def facts(figures: Mapping[str, object]) -> None:
    """Print a line for each name with its value; leave out values that are None or empty."""
    table(("", ""), [fact for fact in figures.items() if fact[1] not in ("", None)])


def job_table(views: Sequence[JobView], attributes: Sequence[str], kind: str = "jobs") -> None:
    """Print a row for each job with these attributes of `JobView`; without a job, say so."""
    if views:
        rows = [[job_cell(view, name) for name in attributes] for view in views]
        if sys.stdout.isatty():
            at = attributes.index("id")
            for row, view in zip(rows, views, strict=True):
                row[at] = view.id[NUMBER_PART]
        table(attributes, rows, right="attempts", spare="owner attempts created")
    else:
        note(f"no {kind}")


def job_cell(view: JobView, name: str) -> object:
    """Return an attribute of a job as people read it."""
    if name == "body":
        return short_body(view)
    if name == "handler":
        return view.headers.get(HANDLER, "")
    value = getattr(view, name)
    if name in MOMENT_FIELDS:
        return moment(value)
    return span(value) if name in DURATION_FIELDS else value


def moment(seconds: float | None) -> str:
    """Format a time in UTC, to the millisecond."""
    if seconds is None:
        return ""
    at = datetime.fromtimestamp(seconds, timezone.utc)
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def span(seconds: float | timedelta | None) -> str:
    """Format a duration in the largest unit of which it has two."""
    if seconds is None:
        return ""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return span_of(seconds)


def size(count: int | None) -> str:
    """Format a number of bytes; None = empty."""
    return "" if count is None else byte_size(count)


def limit(count: int | None) -> str:
    """Format the most bytes that a server may use; 0 = no limit."""
    return "no limit" if count == 0 else size(count)


def body_value(view: JobView) -> tuple[str, Any]:
    """Return codec and body for JSON; a body that its codec can't read is shown as bytes."""
    if view.codec == "json":
        try:
            return "json", parse_json(view.raw)
        except ValueError:
            pass
    codec = "bytes" if view.codec in ("", "json") else view.codec
    try:
        return codec, view.raw.decode()
    except UnicodeDecodeError:
        return codec, {"base64": base64.b64encode(view.raw).decode()}


def short_body(view: JobView, limit: int = 60) -> str:
    """Return the beginning of a body, for a cell."""
    text = printable(view.raw[: 4 * limit].decode("utf-8", "backslashreplace"))
    return text if len(text) <= limit else text[: limit - 1] + "…"


RETRY_FIELDS = ("max_attempts", "base", "cap")
DERIVED_FIELDS = ("attempts", "redeliveries", "age", "ttl", "ttl_left", "idle", "next_in")


def job_document(view: JobView) -> dict[str, Any]:
    """Return a job for JSON: the attributes of `JobView`, with codec and body as said above."""
    codec, body = body_value(view)
    names = [*(one.name for one in fields(view) if one.repr), *DERIVED_FIELDS]
    policy = view.retry and {name: getattr(view.retry, name) for name in RETRY_FIELDS}
    told = {
        "headers": dict(view.headers),
        "retry": policy,
        "death": view.death and asdict(view.death),
        "progress": view.progress and asdict(view.progress),
        "codec": codec,
        "body": body,
    }
    return {**{name: getattr(view, name) for name in names}, **told}
