"""Commands about queues: list, count, pause, close, clear them; move or remove their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Annotated

from penstock import (
    Outcome,
    PauseSide,
    Penstock,
    PurgeState,
    Queue,
    QueueDamaged,
    QueueStats,
    Settled,
)
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.ids import whole_ids
from penstock.cli.jobs import QueueArgument, existing
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage, Option

__all__ = [
    "cancel", "clear", "close", "delete", "evict", "pause", "postpone", "promote", "purge",
    "queues", "redrive", "reopen", "resume", "stats", "sweep",
]  # fmt: skip

QueuesArgument = Annotated[list[str] | None, Argument("QUEUE")]
IdsArgument = Annotated[list[str], Argument("ID")]
YesOption = Annotated[bool, Option(("--yes", "-y"))]


@command("queues")
def queues(
    session: Session,
    pattern: Annotated[str, Argument("PATTERN")] = "*",
    min_length: int | None = None,
    max_length: int | None = None,
    max_idle: float | None = None,
) -> None:
    """List all queues, or those that match the pattern and the options.

    Args:
        pattern: only names that match: * any text, ? any character, [abc] one of these.
        min_length: only queues with at least this many ready jobs.
        max_length: only queues with at most this many ready jobs.
        max_idle: only queues that were written to in this time.

    Examples:
        penstock queues 'mail*' --min-length 1
    """
    with session.client() as client:
        if min_length is max_length is max_idle is None:
            names = client.queues(pattern)
        else:
            found = client.scan_queues_iter(
                min_length=min_length, max_length=max_length, max_idle=max_idle
            )
            names = sorted({one.name for one in found if fnmatchcase(one.name, pattern)})
    session.answer({"queues": names}, lambda: output.write_lines(names))


@command("stats")
def stats(session: Session, queues: QueuesArgument = None) -> None:
    """Show how many jobs queues have in each state, and their settings.

    Args:
        queues: names of queues. Default: every queue.

    Examples:
        penstock stats
        penstock stats emails --json
    """
    with session.client() as client:
        names = queues or client.queues()
        counts = list(_read_stats(client, names))
    session.answer({"queues": [asdict(one) for one in counts]}, lambda: _print_stats(counts))
    if len(counts) < len(names):
        raise SystemExit(1)


def _read_stats(client: Penstock, names: Sequence[str]) -> Iterator[QueueStats]:
    for name in names:
        try:
            yield client.open(name).stats()
        except QueueDamaged as error:  # noqa: PERF203  # each may be damaged
            if len(names) == 1:
                raise
            output.complain(f"queue {name!r} is not shown: {error}; see `penstock doctor`")


COUNT_COLUMNS = ("ready", "scheduled", "active", "dead", "enqueued", "acked", "nacked", "expired")
RARE_COLUMNS = (
    "parked", "batches", "dependent", "staged", "promised", "kept", "cancelled", "promoted",
    "postponed", "withdrawn", "evicted", "expired_active", "unswept",
)  # fmt: skip
DURATION_COLUMNS = ("oldest", "age", "idle")
QUEUE_COLUMNS = ("queue", *COUNT_COLUMNS, *RARE_COLUMNS, *DURATION_COLUMNS, "roles", "settings")
SPARE_QUEUE_COLUMNS = (
    "idle",
    "age",
    "nacked",
    "acked",
    "enqueued",
    "expired",
    *RARE_COLUMNS,
    "roles",
    "oldest",
)
"""Columns that a narrow terminal leaves out, the first one first."""
OPTIONAL_COLUMNS = (*RARE_COLUMNS, "roles")
"""Columns that are left out when they are empty or zero for every queue."""


def _print_stats(counts: Sequence[QueueStats]) -> None:
    rows = []
    for whole in counts:
        rows.append(_row(whole.name, whole))
        if len(whole.nodes) > 1:
            rows += [_row(f"{whole.name} on {node}", part) for node, part in whole.nodes.items()]
    empty = [name for name in OPTIONAL_COLUMNS if not any(row[name] for row in rows)]
    columns = [name for name in QUEUE_COLUMNS if name not in empty]
    cells = ([row[name] for name in columns] for row in rows)
    numbers = " ".join((*COUNT_COLUMNS, *RARE_COLUMNS, *DURATION_COLUMNS))
    output.table(columns, cells, right=numbers, spare=" ".join(SPARE_QUEUE_COLUMNS))


def _row(name: str, one: QueueStats) -> dict[str, object]:
    numbers = {column: getattr(one, column) for column in (*COUNT_COLUMNS, *RARE_COLUMNS)}
    spans = {column: output.span(getattr(one, column)) for column in DURATION_COLUMNS}
    return {"queue": name, **numbers, **spans, "roles": _roles(one), "settings": _settings(one)}


def _roles(one: QueueStats) -> str:
    holders = (("producer", one.producer), ("consumer", one.consumer))
    return ", ".join(
        f"{role}={holder} (for {output.span(holder.age)}, {output.span(holder.left)} left)"
        for role, holder in holders
        if holder is not None
    )


def _settings(one: QueueStats) -> str:
    if not one.exists:
        return "does not exist"
    chosen = asdict(one.settings).items()
    shown = [f"{name}={value}" for name, value in chosen if value is not None]
    differing = [f"(others on {', '.join(one.differing)})"] if one.differing else []
    return " ".join(["closed"] * one.closed + shown + differing)


@command("pause")
def pause(session: Session, queue: QueueArgument, side: PauseSide = "all") -> None:
    """Refuse new jobs, stop deliveries, or both, until `resume`.

    Args:
        side: in = refuse new jobs; out = deliver no jobs; all = both.

    Examples:
        penstock pause emails --side out
    """
    with session.queue(queue) as target:
        target.pause(side)
    session.answer({"queue": queue, "paused": side}, f"{queue}: paused ({side})")


@command("resume")
def resume(session: Session, queue: QueueArgument) -> None:
    """End a pause.

    Examples:
        penstock resume emails
    """
    with session.queue(queue) as target:
        if existing(target):  # resume() would create it
            target.resume()
    session.answer({"queue": queue, "paused": None}, f"{queue}: not paused")


@command("close")
def close(session: Session, queue: QueueArgument) -> None:
    """Refuse new jobs until `reopen`.

    Consumers finish the jobs that are there, and then end.

    Examples:
        penstock close emails
    """
    with session.queue(queue) as target:
        target.close()
    session.answer({"queue": queue, "closed": True}, f"{queue}: closed")


@command("reopen")
def reopen(session: Session, queue: QueueArgument) -> None:
    """Accept jobs again after a `close`.

    Examples:
        penstock reopen emails
    """
    with session.queue(queue) as target:
        if existing(target):  # reopen() would create it
            target.reopen()
    session.answer({"queue": queue, "closed": False}, f"{queue}: open")


@command("redrive")
def redrive(
    session: Session,
    queue: QueueArgument,
    ids: Annotated[list[str] | None, Argument("ID")] = None,
    limit: int | None = None,
    handler: str | None = None,
    error: str | None = None,
) -> None:
    """Make dead letters ready jobs again.

    Their attempts are counted from zero again. A dead letter stays dead if another job has its
    dedup id now.

    Args:
        ids: ids of dead letters. Default: all, oldest first.
        limit: at most this many, the oldest first; with --handler or --error, the newest.
        handler: only jobs of this handler.
        error: only jobs with this text in their last error, in any case of its letters.

    Examples:
        penstock redrive emails --limit 100
        penstock redrive emails --error TimeoutError
        penstock redrive emails P7DpjNzE-53DE
    """
    chosen = handler is not None or error is not None
    if ids and (limit is not None or chosen):
        raise BadUsage(
            "--limit, --handler and --error choose among all dead letters: give them, or ids"
        )
    with session.queue(queue) as target:
        if chosen:
            count = _redrive_chosen(target, handler, error, limit)
        else:
            count = target.redrive(whole_ids(target, ids) if ids else None, limit=limit)
        if not count:
            existing(target)
    session.answer({"queue": queue, "redriven": count}, f"{count} dead letters redriven")
    if ids and count < len(ids):
        failed = f"{len(ids) - count} of {len(ids)} could not be redriven"
        raise Failed(f"{failed}: `penstock show ID` shows the state of a job")


def _redrive_chosen(queue: Queue, handler: str | None, error: str | None, limit: int | None) -> int:
    """Redrive the dead letters of a handler, or with a text in their error; return how many."""
    chosen = queue.jobs("dead", handler=handler, error=error, newest=True, body=0)
    count, left = 0, islice((view.id for view in chosen), limit)
    while ids := list(islice(left, REMOVED_PER_CALL)):
        count += queue.redrive(ids)
    return count


@command("cancel")
def cancel(session: Session, queue: QueueArgument, ids: IdsArgument) -> None:
    """Cancel jobs. Waiting jobs are removed at once; the workers of active jobs end them.

    Args:
        ids: ids of jobs; the beginning of an id is enough.

    Examples:
        penstock cancel emails P7DpjNzE-53DE
    """
    _settle(session, queue, ids, Queue.cancel, "cancelled", "cancelled")


@command("delete")
def delete(
    session: Session, queue: QueueArgument, ids: IdsArgument, if_undelivered: bool = False
) -> None:
    """Remove jobs in any state, without a trace. A worker that runs one can't finish it.

    Args:
        ids: ids of jobs; the beginning of an id is enough.
        if_undelivered: remove only jobs that were never delivered.

    Examples:
        penstock delete emails P7DpjNzE-53DE --if-undelivered
    """
    act = partial(Queue.delete, if_undelivered=if_undelivered)
    _settle(session, queue, ids, act, "deleted", "deleted")


@command("promote")
def promote(session: Session, queue: QueueArgument, ids: IdsArgument) -> None:
    """Make jobs ready to be delivered now.

    Use it for jobs that are delayed, wait for their next attempt, or are held by a consumer.

    Args:
        ids: ids of jobs; the beginning of an id is enough.

    Examples:
        penstock promote emails P7DpjNzE-53DE
    """
    _settle(session, queue, ids, Queue.promote, "promoted", "brought forward")


@command("postpone")
def postpone(session: Session, queue: QueueArgument, ids: IdsArgument) -> None:
    """Set ready jobs aside. They come back when their lease time is over.

    Args:
        ids: ids of jobs; the beginning of an id is enough.

    Examples:
        penstock postpone emails P7DpjNzE-53DE
    """
    _settle(session, queue, ids, Queue.postpone, "postponed", "postponed")


def _settle(
    session: Session,
    queue: str,
    ids: Sequence[str],
    act: Callable[[Queue, list[str]], Settled],
    key: str,
    words: str,
) -> None:
    """Act on jobs, and print the outcomes: the number of changed jobs has this key and words."""
    with session.queue(queue) as target:
        names = list(dict.fromkeys(whole_ids(target, ids)))
        settled = act(target, names)
        if not settled.done:
            existing(target)
    outcomes = dict(zip(names, settled, strict=True))
    document = {
        "queue": queue,
        key: settled.done,
        "jobs": [{"id": name, "outcome": outcome.value} for name, outcome in outcomes.items()],
    }
    session.answer(document, f"{settled.done} jobs {words}")
    changed = (Outcome.DONE, Outcome.CANCELLED)
    failed = [f"{name} {one}" for name, one in outcomes.items() if one not in changed]
    if failed:
        raise Failed(f"{len(failed)} of {len(names)} could not be {words}: {', '.join(failed)}")


@command("evict")
def evict(
    session: Session,
    queue: QueueArgument,
    count: Annotated[int, Option(low=1)] = 100,
    keep_dead: bool = False,
) -> None:
    """Make room on a full server: remove jobs that are never delivered again.

    Delivered jobs with lease 0 are removed first, in the order in which their ttl ends. Then dead
    letters are removed, the oldest first.

    Args:
        count: most jobs to remove.
        keep_dead: keep dead letters.

    Examples:
        penstock evict emails --count 1000 --keep-dead
    """
    removed, step = 0, 1
    with session.queue(queue) as target:
        while step and removed < count:
            step = target.sweep(evict=min(count - removed, REMOVED_PER_CALL), dead=not keep_dead)
            removed += step
        if not removed:
            existing(target)
    session.answer({"queue": queue, "evicted": removed}, f"{removed} jobs removed")


REMOVED_PER_CALL = 1000
"""Most jobs that one call removes."""


@command("purge")
def purge(
    session: Session,
    queue: QueueArgument,
    state: list[PurgeState] | None = None,
    yes: YesOption = False,
) -> None:
    """Remove jobs from a queue, by state.

    Args:
        state: state of the jobs to remove; may be repeated. Default: ready, scheduled and parked.
            dependent: jobs that wait for other jobs, which scheduled leaves.
        yes: do not ask for confirmation.

    Examples:
        penstock purge emails --state dead --yes
    """
    given: list[PurgeState] = list(dict.fromkeys(state or ()))
    states: list[PurgeState] = given or ["ready", "scheduled", "parked"]
    with session.queue(queue) as target:
        if existing(target) and not yes:
            before = target.stats()
            numbers = {one: getattr(before, one) for one in states}
            if "scheduled" in numbers:
                numbers["scheduled"] -= before.dependent
            counts = ", ".join(f"{count} {one}" for one, count in numbers.items())
            output.confirm(f"Remove these jobs of {queue}: {counts}?")
        count = target.purge(*states)  # also of a queue that has staged writes alone
    document = {"queue": queue, "states": states, "purged": count}
    session.answer(document, f"{count} jobs removed")


@command("clear")
def clear(
    session: Session,
    queues: QueuesArgument = None,
    every: Annotated[bool, Option(("--all",))] = False,
    yes: YesOption = False,
) -> None:
    """Remove whole queues: jobs in every state, dedup ids, settings, a pause.

    Args:
        queues: names of the queues.
        every: remove all queues under the prefix.
        yes: do not ask for confirmation.

    Examples:
        penstock clear emails
        penstock clear --all --yes
    """
    if every == bool(queues):
        raise BadUsage("give QUEUE names, or --all")
    with session.client() as client:
        asked = client.queues() if every else list(dict.fromkeys(queues or ()))
        names = [name for name in asked if every or existing(client.open(name))]
        if names and not yes:
            output.confirm(_question(client, names))
        cleared = [(name, client.open(name).clear()) for name in names]
        client.clear(name for name in asked if name not in names)  # they may have staged writes
    document, total = _totals("jobs", cleared)
    session.answer(document, f"{len(cleared)} queues removed, {total} jobs with them")


def _totals(kind: str, counts: list[tuple[str, int]]) -> tuple[dict[str, object], int]:
    total = sum(count for _, count in counts)
    return {kind: total, "queues": [{"queue": name, kind: count} for name, count in counts]}, total


def _question(client: Penstock, names: list[str]) -> str:
    told = []
    for name in names[:LISTED_QUEUES]:
        one = client.open(name).stats()
        jobs = one.ready + one.scheduled + one.parked + one.active + one.dead + one.unswept
        told.append(f"{name} ({jobs} jobs)")
    more = f" and {len(names) - LISTED_QUEUES} more" if len(names) > LISTED_QUEUES else ""
    return f"Remove these queues with all their jobs: {', '.join(told)}{more}?"


LISTED_QUEUES = 10
"""Most queues that the question names."""


@command("sweep")
def sweep(session: Session, queues: QueuesArgument = None) -> None:
    """Remove expired jobs, old dead letters and idle queues.

    Args:
        queues: names of queues. Default: every queue.

    Examples:
        penstock sweep
        penstock sweep emails
    """
    with session.client() as client:
        swept = [(name, client.open(name).sweep()) for name in queues or client.queues()]
    document, _ = _totals("removed", swept)
    session.answer(document, lambda: output.table(("queue", "removed"), swept, right="removed"))
