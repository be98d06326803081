"""The history of a queue, as `penstock stats --history` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime

from penstock import HandlerHistory, HistoryPoint, JobTimes, QueueHistory
from penstock.cli import output
from penstock.cli.app import Session

__all__ = ["show_history"]

ROWS_OF_MINUTES = 15
"""Minutes that are shown; the document of --json has all."""
HOUR_SECONDS, SHOWN_HOURS = 3600.0, 12
"""An hour, and how many of them are shown."""
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
