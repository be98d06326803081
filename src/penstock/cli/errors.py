"""The command `errors`: dead letters, counted by handler and error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from penstock import ErrorGroups, StateName
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.jobs import QueueArgument
from penstock.cli.parameters import Option
from penstock.core.jobs.logs import counted

__all__ = ["errors"]

JOBS_PER_COUNT_STEP = 1000
TREND_LEVELS = " ▁▂▃▄▅▆▇█"


@command("errors")
def errors(
    session: Session,
    queue: QueueArgument,
    state: StateName = "dead",
    n: Annotated[int, Option(("--n", "-n"), low=1)] = 20,
    limit: Annotated[int, Option(low=1)] = 250_000,
) -> None:
    """Count the dead letters of a queue by handler and error, the most frequent first.

    Errors that differ only in numbers, ids and quoted parts are one group. The column "trend" has
    the jobs of 24 equal parts of the time from the first death to the last. `redrive`,
    `delete`, `peek` and `scan` take the id of a group.

    Args:
        state: count jobs in this state instead, by their last error.
        n: show at most this many groups.
        limit: count about this many jobs, the newest ones.

    Examples:
        penstock errors emails
        penstock errors emails --limit 10000 --json
    """
    with session.queue(queue) as target:
        search = target.jobs(state, newest=True, body=0, n=JOBS_PER_COUNT_STEP)
        found = search.error_groups(limit=limit)
    document = {"queue": queue, "state": state, **asdict(found)}
    document["groups"] = document["groups"][:n]
    session.answer(document, lambda: _print_groups(found, n))
    if not session.as_json:
        _print_rest(found, n, state)


def _print_groups(found: ErrorGroups, n: int) -> None:
    columns = ("group", "jobs", "trend", "first", "last", "handler", "error")
    rows = [
        (
            group.id,
            group.jobs,
            _trend_text(group.trend),
            output.moment(group.first)[:19],
            output.moment(group.last)[:19],
            group.handler,
            group.error,
        )
        for group in found.groups[:n]
    ]
    if rows:
        output.table(columns, rows, right="jobs", spare="first trend last")


def _print_rest(found: ErrorGroups, n: int, state: str) -> None:
    if not found.looked:
        output.note(f"no {state} jobs")
    if len(found.groups) > n:
        left = sum(group.jobs for group in found.groups[n:])
        output.note(f"{counted(left, 'job')} in {len(found.groups) - n} more groups")
    if found.others:
        output.note(f"{counted(found.others, 'job')} of groups that are too many to tell apart")
    if not found.is_complete:
        output.note(f"only the newest {found.looked:,} are counted: see --limit")
    if found.unreachable:
        output.note(f"not counted, as they do not answer: {', '.join(found.unreachable)}")


def _trend_text(trend: Sequence[int]) -> str:
    """Return counts as a line of bars; one above zero is always seen."""
    top, levels = max(*trend, 1), len(TREND_LEVELS) - 1
    return "".join(TREND_LEVELS[-(-number * levels // top)] for number in trend)
