"""Commands about queues: list, count, pause, close, purge, clear them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

from penstock import (
    PauseSide,
    Penstock,
    PurgeState,
    QueueDamaged,
    QueueStats,
)
from penstock.cli import output
from penstock.cli.app import Session, command, is_there, no_queue, open_existing
from penstock.cli.chosen import YesOption
from penstock.cli.history import show_history
from penstock.cli.jobs import QueueArgument
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage, Option
from penstock.core.jobs.logs import counted

__all__ = [
    "clear", "close", "evict", "hold", "pause", "purge", "queues", "reopen", "resume", "stats",
    "sweep",
]  # fmt: skip

QueuesArgument = Annotated[list[str] | None, Argument("QUEUE")]


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
                pattern=pattern, min_length=min_length, max_length=max_length, max_idle=max_idle
            )
            names = sorted({one.name for one in found})
    session.answer({"queues": names}, lambda: output.write_lines(names))


@command("stats")
def stats(session: Session, queues: QueuesArgument = None, history: bool = False) -> None:
    """Show how many jobs queues have in each state, and their settings.

    Args:
        queues: names of queues. Default: every queue.
        history: show what has happened in one queue in the last two days, as its workers noted it,
            and how long jobs of each handler have waited and run.

    Examples:
        penstock stats
        penstock stats emails --json
        penstock stats emails --history
    """
    if history:
        if len(queues or ()) != 1:
            raise BadUsage("--history needs the name of one queue")
        show_history(session, (queues or [""])[0])
        return
    with session.client() as client:
        names = queues or client.queues()
        counts = list(_read_stats(client, names, are_given=bool(queues)))
    session.answer({"queues": [asdict(one) for one in counts]}, lambda: _print_stats(counts))
    if len(counts) < len(names):
        raise SystemExit(1)


def _read_stats(client: Penstock, names: Sequence[str], *, are_given: bool) -> Iterator[QueueStats]:
    for name in names:
        try:
            found = client.open(name).stats()
            if are_given and not is_there(found):
                raise no_queue(client, name)
            yield found
        except (QueueDamaged, Failed) as error:  # noqa: PERF203  # each may be damaged or missing
            if len(names) == 1:
                raise
            advice = "; see `penstock doctor`" if isinstance(error, QueueDamaged) else ""
            output.complain(f"queue {name!r} is not shown: {error}{advice}")


COUNT_COLUMNS = ("ready", "scheduled", "active", "dead", "enqueued", "acked", "nacked", "expired")
RARE_COLUMNS = (
    "parked", "batches", "dependent", "staged", "promised", "kept", "cancelled", "promoted",
    "postponed", "withdrawn", "evicted", "trimmed", "expired_active", "unswept",
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
    shown += [] if one.held is None else [f"(held for {output.span(one.held)})"]
    shown += [f"({counted(one.held_keys, 'key')} held)"] if one.held_keys else []
    shown += [] if one.slots is None else [f"({one.active} of {one.slots} running)"]
    differing = [f"(others on {', '.join(one.differing)})"] if one.differing else []
    return " ".join(["closed"] * one.closed + shown + differing)


@command("pause")
def pause(session: Session, queue: QueueArgument, side: PauseSide = "out") -> None:
    """Stop deliveries, refuse new jobs, or both, until `resume`.

    Args:
        side: out = deliver no jobs, and accept new ones; in = refuse new jobs; all = both.

    Examples:
        penstock pause emails
        penstock pause emails --side all
    """
    with session.queue(queue) as target:
        target.pause(side)
    session.answer({"queue": queue, "paused": side}, f"{queue}: paused ({side})")


@command("hold")
def hold(
    session: Session,
    queue: QueueArgument,
    seconds: Annotated[float, Argument("SECONDS")],
    *,
    key: str | None = None,
) -> None:
    """Deliver nothing for a time, which ends by itself. Of two holds the later end counts.

    Args:
        seconds: at most 86400 (a day); 0 = end the hold.
        key: hold only the jobs of this key.

    Examples:
        penstock hold emails 30
        penstock hold emails 0
        penstock hold emails 30 --key customer:7
    """
    with session.queue(queue) as target:
        target.hold(seconds, key=key)
        if key is not None:
            text = f"held for at least {output.span(seconds)}" if seconds else "not held"
            document = {"queue": queue, "key": key, "held": seconds or None}
            session.answer(document, f"{queue}, key {key}: {text}")
            return
        left = target.stats().held
    text = "not held" if left is None else f"held for {output.span(left)}"
    session.answer({"queue": queue, "held": left}, f"{queue}: {text}")


@command("resume")
def resume(session: Session, queue: QueueArgument) -> None:
    """End a pause.

    Examples:
        penstock resume emails
    """
    with session.queue(queue) as target:
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
        target.reopen()
    session.answer({"queue": queue, "closed": False}, f"{queue}: open")


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
    session.answer({"queue": queue, "evicted": removed}, f"{counted(removed, 'job')} removed")


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
        before = target.stats()
        if before.exists and not yes:
            numbers = {one: getattr(before, one) for one in states}
            if "scheduled" in numbers:
                numbers["scheduled"] -= before.dependent
            counts = ", ".join(f"{count} {one}" for one, count in numbers.items())
            output.confirm(f"Remove these jobs of {queue}: {counts}?")
        count = target.purge(*states)  # also of a queue that has staged writes alone
    document = {"queue": queue, "states": states, "purged": count}
    session.answer(document, f"{counted(count, 'job')} removed")


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
        names = _chosen_names(client, queues)
        if names and not yes:
            output.confirm(_question(client, names))
        cleared = [(name, client.open(name).clear()) for name in names]
    document, total = _totals("jobs", cleared)
    text = f"{counted(len(cleared), 'queue')} removed, {counted(total, 'job')} with them"
    session.answer(document, text)


def _chosen_names(client: Penstock, given: Sequence[str] | None) -> list[str]:
    """Return the given names of queues, which must exist, or those of all queues."""
    chosen = dict.fromkeys(given or ())
    return [open_existing(client, name).name for name in chosen] if given else client.queues()


def _totals(kind: str, counts: list[tuple[str, int]]) -> tuple[dict[str, object], int]:
    total = sum(count for _, count in counts)
    return {kind: total, "queues": [{"queue": name, kind: count} for name, count in counts]}, total


def _question(client: Penstock, names: list[str]) -> str:
    told = []
    for name in names[:LISTED_QUEUES]:
        one = client.open(name).stats()
        jobs = one.ready + one.scheduled + one.parked + one.active + one.dead + one.unswept
        told.append(f"{name} ({counted(jobs, 'job')})")
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
        swept = [(name, client.open(name).sweep()) for name in _chosen_names(client, queues)]
    document, _ = _totals("removed", swept)
    session.answer(document, lambda: output.table(("queue", "removed"), swept, right="removed"))
