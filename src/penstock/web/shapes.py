"""Figures, times and bodies as text and SVG for the templates."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from penstock.core.jobs.logs import byte_size, counted, policy_text, printable, span
from penstock.core.jobs.views import JobView

__all__ = [
    "TEMPLATE_FILTERS",
    "bars",
    "body_text",
    "job_path",
    "preview",
    "queue_path",
    "rate",
    "sparkline",
    "when",
]

SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 120, 28
MAX_WHOLE_WORD = 24
"""Characters of a word in a narrow cell that are not broken."""
MAX_SHOWN_BYTES = 65_536
"""The most characters of a body that a page shows."""


def count(number: int | None) -> str:
    """Format a count with its thousands apart; None = a dash."""
    return "-" if number is None else f"{number:,}"


def rate(value: float | None) -> str:
    """Format a number per second; None = a dash."""
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.2f}" if value < 1 else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Format a duration; None = a dash."""
    return "-" if seconds is None else span(seconds)


def size(number: int | None) -> str:
    """Format a number of bytes; None = a dash."""
    return "-" if number is None else byte_size(number)


def when(at: float | None, now: float) -> Markup:
    """Format a time as a duration from now, with the exact time as its title."""
    if at is None:
        return Markup("-")
    exact = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
    left = at - now
    text = f"in {span(left)}" if left > 0 else f"{span(-left)} ago"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, text)


def sparkline(points: Sequence[tuple[float, float]], seconds: float) -> Markup:
    """Draw values with their times as a line in SVG.

    Args:
        points: time and value, the oldest first.
        seconds: the time that the label names.
    """
    if len(points) < 2:
        return Markup('<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true"></svg>').format(
            SPARKLINE_WIDTH, SPARKLINE_HEIGHT
        )
    values, (first, _), (last, _) = [value for _, value in points], points[0], points[-1]
    top, whole = max(*values, 0.001), max(last - first, 0.001)
    line = " ".join(
        f"{(at - first) * SPARKLINE_WIDTH / whole:.1f},"
        f"{SPARKLINE_HEIGHT - 2 - value / top * (SPARKLINE_HEIGHT - 4):.1f}"
        for at, value in points
    )
    label = f"{rate(min(values))} to {rate(max(values))} per second in the last {span(seconds)}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><polyline points="{}"></polyline></svg>'
    ).format(SPARKLINE_WIDTH, SPARKLINE_HEIGHT, label, line)


def bars(counts: Sequence[int], label: str) -> Markup:
    """Draw counts as bars in SVG, side by side; one above zero is always seen."""
    top, width = max(*counts, 1), SPARKLINE_WIDTH / len(counts)
    drawn = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"></rect>').format(
            at * width, SPARKLINE_HEIGHT - height, width - 1, height
        )
        for at, number in enumerate(counts)
        if (height := max(2.0, number / top * SPARKLINE_HEIGHT) if number else 0.0)
    )
    return Markup(
        '<svg class="spark bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{label}"><title>{label}</title>{}</svg>'
    ).format(SPARKLINE_WIDTH, SPARKLINE_HEIGHT, drawn, label=label)


def preview(job: JobView) -> str:
    """Return the start of a body in one line."""
    return printable(job.raw.decode("utf-8", "replace"))


def body_text(raw: bytes, codec: str) -> str:
    """Return a body for people: JSON indented, other text as it is, bytes as a literal."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _cut(repr(raw[:MAX_SHOWN_BYTES])[2:-1], len(raw) > MAX_SHOWN_BYTES)
    if codec == "json" and len(raw) <= MAX_SHOWN_BYTES:
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return _cut(printable(text[:MAX_SHOWN_BYTES], keep="\n\t"), len(text) > MAX_SHOWN_BYTES)


def _cut(text: str, more: bool) -> str:
    return f"{text}\n… the rest is not shown" if more else text


def queue_path(name: str, **query: object) -> str:
    """Return the path of the page of a queue."""
    if name in (".", ".."):  # browsers resolve these in paths
        return f"/queues/?{urlencode({'name': name, **_given(query)})}"
    given = _given(query)
    return f"/queues/{quote(name, safe='')}" + (f"?{urlencode(given)}" if given else "")


def job_path(job_id: str) -> str:
    """Return the path of the page of a job."""
    return f"/jobs/{quote(job_id, safe='')}"


def _given(query: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in query.items() if value not in (None, "")}


def lines(text: str) -> str:
    """Return text of several lines without characters that do not show."""
    return printable(text, keep="\n\t")


def wrapped(text: str) -> Markup:
    """Return printable text of a narrow cell: words that are too long may be broken anywhere."""
    shown = printable(text)
    pieces = re.findall(rf"\S{{{MAX_WHOLE_WORD}}}(?=\S)|.", shown)
    return Markup("").join(
        escape(piece) + Markup("<wbr>") if len(piece) > 1 else escape(piece) for piece in pieces
    )


TEMPLATE_FILTERS = {
    "lines": lines,
    "count": count,
    "counted": counted,
    "rate": rate,
    "duration": duration,
    "size": size,
    "wrapped": wrapped,
    "policy": policy_text,
    "printable": printable,
}
"""Filters of the templates."""
