"""The history of a queue, as `penstock stats --history` and `penstock top` show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime

from penstock import HandlerHistory, HistoryPoint, JobTimes, QueueHistory
from penstock.cli import output
from penstock.cli.app import Session
from penstock.core.jobs.logs import printable

__all__ = ["last_hour", "show_history"]

ROWS_OF_MINUTES = 15
"""Minutes that are shown; the document of --json has all."""
HOUR_SECONDS, SHOWN_HOURS = 3600.0, 12
"""An hour, and how many of them are shown."""
SUMMED_FIGURES = (("enqueued", "added"), ("done", "done"), ("failed", "failed"), ("died", "dead"))
COLUMNS = ("until", "added", "done", "failed", "dead", "waiting")
TIME_COLUMNS = ("handler", "jobs", "waiting_p50", "waiting_p95", "running_p50", "running_p95")


def show_history(session: Session, name: str) -> None:
    """Print the history of a queue: the last minutes, the last hours, and times by handler.

    It may be there although the queue is not: an empty queue is removed after a while.
    """
    with session.client() as client:
        history = client.open(name).history()
    document = {"queue": name, "history": asdict(history) | {"handlers": _times(history)}}
    session.answer(document, lambda: _print(name, history))


BARS = " ▁▂▃▄▅▆▇█"
MINUTES_PER_BAR, BARS_OF_HOUR = 3, 20


def last_hour(history: QueueHistory) -> str:
    """Return a line about the last hour: jobs done, as bars, sums, and the slowest handler."""
    since = history.now - HOUR_SECONDS
    points = [one for one in history.minutes if one.at >= since]
    if not points:
        return ""
    done = [0] * BARS_OF_HOUR
    for one in points:
        bar = int((one.at - since) // (MINUTES_PER_BAR * 60))
        done[min(bar, BARS_OF_HOUR - 1)] += one.done
    top = max(*done, 1)
    bars = "".join(BARS[-(-count * (len(BARS) - 1) // top)] for count in done)
    sums = ((sum(getattr(one, name) for one in points), word) for name, word in SUMMED_FIGURES)
    text = ", ".join(f"{count:,} {word}" for count, word in sums if count)
    times = [(one.since(since).running.p95 or 0.0, one.name) for one in history.handlers]
    slowest, name = max(times, key=lambda one: one[0], default=(0.0, None))
    slow = f"; slowest: {printable(name)} p95 {_seconds(slowest)}" if slowest and name else ""
    return f"last hour: {text or 'nothing'}{slow}  {bars}"


def _times(history: QueueHistory) -> list[dict[str, object]]:
    return [
        {
            "name": one.name,
            "waiting": _figures(one.waiting),
            "running": _figures(one.running),
            "points": [asdict(point) for point in one.points],
        }
        for one in history.handlers
    ]


def _figures(times: JobTimes) -> dict[str, object]:
    return {"count": times.count, "p50": times.p50, "p95": times.p95}


def _print(name: str, history: QueueHistory) -> None:
    if not history.ten_minutes and not history.minutes and not history.handlers:
        output.write(f"queue {name!r} has no history: its workers write it, once a minute")
        return
    minutes, hours = history.minutes[-ROWS_OF_MINUTES:], list(_hours(history.ten_minutes))
    for points in (hours[-SHOWN_HOURS:], minutes):
        if points:
            numbers = " ".join(COLUMNS[1:])
            output.table(COLUMNS, (_row(point, history.now) for point in points), right=numbers)
            output.write("")
    if history.handlers:
        rows = (_row_of_times(one) for one in history.handlers)
        output.table(TIME_COLUMNS, rows, right=" ".join(TIME_COLUMNS[1:]))


def _hours(points: Sequence[HistoryPoint]) -> Iterator[HistoryPoint]:
    """Yield the sums of each hour, with the jobs that waited at its end."""
    by_hour = dict[float, list[HistoryPoint]]()
    for point in points:
        by_hour.setdefault(point.at // HOUR_SECONDS * HOUR_SECONDS, []).append(point)
    for at, parts in by_hour.items():
        yield HistoryPoint(
            at=at,
            seconds=HOUR_SECONDS,
            enqueued=sum(one.enqueued for one in parts),
            done=sum(one.done for one in parts),
            failed=sum(one.failed for one in parts),
            died=sum(one.died for one in parts),
            waiting=parts[-1].waiting,
        )


def _row(point: HistoryPoint, now: float) -> list[object]:
    ends = datetime.fromtimestamp(point.at + point.seconds).astimezone()
    is_today = ends.date() == datetime.fromtimestamp(now).astimezone().date()
    shown = f"{ends:%H:%M}" if is_today else f"{ends:%Y-%m-%d %H:%M}"
    return [shown, point.enqueued, point.done, point.failed, point.died, point.waiting]


def _row_of_times(one: HandlerHistory) -> list[object]:
    name = "(others)" if one.name is None else one.name or "(default)"
    waiting, running = one.waiting, one.running
    times = (waiting.p50, waiting.p95, running.p50, running.p95)
    return [name, running.count, *(map(_seconds, times))]


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
