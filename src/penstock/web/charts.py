"""Charts of the history of a queue, in SVG, with numbers on their axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from penstock.core.jobs.history import HandlerHistory, HistoryPoint, QueueHistory

__all__ = ["Chart", "HandlerTimes", "charts_of", "handler_times"]

CHART_WIDTH, CHART_HEIGHT = 360, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 352, 8, 126
"""Edges of the area of the lines."""
HOURS_OF_MINUTES, HOURS_OF_TEN_MINUTES = 2, 48
SECONDS_PER_HOUR = 3600.0


class Chart(NamedTuple):
    """A chart for the page.

    Attributes:
        title: what it shows.
        keys: the name of each line, which is also its class, and its last value.
        drawing: the SVG.
    """

    title: str
    keys: Sequence[tuple[str, str]]
    drawing: Markup


class HandlerTimes(NamedTuple):
    """Times of a handler for the page: of two days, and in the end of the last two hours."""

    name: str
    history: HandlerHistory
    recent: HandlerHistory


def charts_of(history: QueueHistory) -> list[Chart]:
    """Return the charts of a queue; none without history."""
    charts = list[Chart]()
    for points, hours in (
        (history.minutes, HOURS_OF_MINUTES),
        (history.ten_minutes, HOURS_OF_TEN_MINUTES),
    ):
        if not points:
            continue
        start = history.now - hours * SECONDS_PER_HOUR
        counts = {
            "added": _rates(points, "enqueued", start=start, end=history.now),
            "done": _rates(points, "done", start=start, end=history.now),
            "failed": _rates(points, "failed", start=start, end=history.now),
            "dead": _rates(points, "died", start=start, end=history.now),
        }
        waiting = {"waiting": [(one.at + one.seconds, float(one.waiting)) for one in points]}
        for title, lines in (("Jobs per minute", counts), ("Jobs that wait", waiting)):
            charts.append(_chart(f"{title}, last {hours} hours", lines, start=start, hours=hours))
    return charts


def handler_times(history: QueueHistory) -> list[HandlerTimes]:
    """Return the times of each handler."""
    since = history.now - HOURS_OF_MINUTES * SECONDS_PER_HOUR
    return [
        HandlerTimes(
            "others" if one.name is None else one.name or "(default)", one, one.since(since)
        )
        for one in history.handlers
    ]


def _rates(
    points: Sequence[HistoryPoint], name: str, *, start: float, end: float
) -> list[tuple[float, float]]:
    """Return a value per minute for each period; one without a point has changed nothing."""
    span = points[0].seconds
    found = {one.at: getattr(one, name) * 60 / span for one in points}
    first = max(points[0].at, math.floor(start / span) * span)
    count = max(0, round((end - first) // span))
    return [(first + (i + 1) * span, found.get(first + i * span, 0.0)) for i in range(count)]


def _chart(
    title: str, lines: dict[str, list[tuple[float, float]]], *, start: float, hours: int
) -> Chart:
    top = _round_up(max((value for line in lines.values() for _, value in line), default=0))
    end = start + hours * SECONDS_PER_HOUR
    parts = [_grid(top, hours)]
    for name, line in lines.items():
        shown = [
            f"{_across(at, start, end):.1f},{_down(value, top):.1f}"
            for at, value in line
            if start <= at <= end + 1
        ]
        drawn = Markup('<polyline class="{}" points="{}"></polyline>')
        parts.append(drawn.format(name, " ".join(shown)))
    last = {name: _number(line[-1][1]) if line else "-" for name, line in lines.items()}
    label = f"{title}: " + ", ".join(f"{name} {value} at the end" for name, value in last.items())
    drawing = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return Chart(
        title,
        list(last.items()),
        drawing.format(CHART_WIDTH, CHART_HEIGHT, label, Markup("").join(parts)),
    )


def _grid(top: float, hours: int) -> Markup:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _down(share * top, top)
        row = Markup(
            '<line x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"></line>'
            '<text class="amount" x="{}" y="{:.1f}">{}</text>'
        )
        parts.append(row.format(LEFT, RIGHT, LEFT - 6, y + 4, _number(share * top), y=y))
    for quarter in range(5):
        x = LEFT + (RIGHT - LEFT) * quarter / 4
        left = hours * (4 - quarter) / 4
        text = "now" if not left else f"-{left:g} h"
        edge = {0: "first", 4: "last"}.get(quarter, "middle")
        mark = Markup('<text class="{}" x="{:.1f}" y="{}">{}</text>')
        parts.append(mark.format(edge, x, BOTTOM + 18, text))
    return Markup("").join(parts)


def _across(at: float, start: float, end: float) -> float:
    return LEFT + (RIGHT - LEFT) * (at - start) / (end - start)


def _down(value: float, top: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value / top


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 10, 20, 40, …; its half is a short number too."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 10) if value <= step * power)


def _number(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (limit if unit != 'k' else 1e3):.3g}{unit}"
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
