"""Commands about queues: queues, stats, pause, close, clear, and what moves or removes jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from penstock import Outcome, Penstock, QueueDamaged, QueueStats, Settled, StateName
from penstock.cli import output
from penstock.cli.app import Failed, Session, command
from penstock.cli.jobs import QueueArgument, StateChoice, hint_if_missing

__all__ = [
    "clear", "close", "dequeue", "evict", "pause", "promote", "purge", "queues", "redrive",
    "reopen", "resume", "stats", "sweep",
]  # fmt: skip

QueuesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUEUE]...", help="Default: every queue.", show_default=False),
]


class Side(str, Enum):
    """The side that a pause stops."""

    IN = "in"
    OUT = "out"
    ALL = "all"


IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)]


@command("queues")
def queues(
    session: Session,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="[PATTERN]",
            help="Only names that match: * any text, ? any character, [abc] one of these.",
            show_default=False,
        ),
    ] = "*",
    min_length: Annotated[
        int | None,
        typer.Option(help="Only queues with at least this many ready jobs.", show_default=False),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="Only queues with at most this many ready jobs.", show_default=False),
    ] = None,
    max_idle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Only queues written to in this time.", show_default=False
        ),
    ] = None,
) -> None:
    """List the queues that exist, or those that pattern and options choose."""
    bounds: dict[str, Any] = {
        "min_length": min_length,
        "max_length": max_length,
        "max_idle": max_idle,
    }
    with session.client() as client:
        if all(bound is None for bound in bounds.values()):
            names = client.queues(pattern)
        else:
            chosen = {one.name for one in client.scan_queues_iter(**bounds)}
            names = sorted(name for name in chosen if fnmatchcase(name, pattern))
    session.answer({"queues": names}, lambda: output.write_lines(names))


@command("stats")
def stats(session: Session, queues: QueuesArgument = None) -> None:
    """Count the jobs of queues, exactly."""
    with session.client() as client:
        names = queues or client.queues()
        counts = list(_counted(client, names))
    document = {"queues": [output.stats_document(one) for one in counts]}
    session.answer(document, lambda: _print_stats(counts))
    if len(counts) < len(names):
        raise typer.Exit(1)


def _counted(client: Penstock, names: Sequence[str]) -> Iterator[QueueStats]:
    """Count each queue. Of several, a damaged one is reported and the others are counted."""
    for name in names:
        try:
            yield client.open(name).stats()
        except QueueDamaged as error:  # noqa: PERF203  # each may be damaged
            if len(names) == 1:
                raise
            output.complain(f"queue {name!r} is not shown: {error}; see `penstock doctor`")


COUNTS = ("ready", "scheduled", "active", "dead", "expired", "enqueued", "acked", "nacked")
RARE = ("promoted", "dequeued", "withdrawn", "evicted", "expired_active")
"""Totals that most queues never have; a column of nothing but zeros is left out."""
SPANS = ("oldest", "age", "idle")


def _print_stats(counts: list[QueueStats]) -> None:
    numbers = (*COUNTS, *(rare for rare in RARE if any(getattr(one, rare) for one in counts)))
    held = ("roles",) if any(map(_roles, counts)) else ()
    output.table(
        ("queue", *numbers, *SPANS, *held, "settings"),
        [
            (
                name,
                *(getattr(one, number) for number in numbers),
                *(output.span(getattr(one, span)) for span in SPANS),
                *(_roles(one) for _ in held),
                _settings(one),
            )
            for whole in counts
            for name, one in _rows(whole)
        ],
        right=" ".join((*numbers, *SPANS)),
    )


def _rows(one: QueueStats) -> list[tuple[str, QueueStats]]:
    """The queue, and its part on each node, with what they are called."""
    parts = one.nodes.items() if len(one.nodes) > 1 else ()
    return [(one.name, one), *((f"{one.name} on {address}", part) for address, part in parts)]


def _roles(one: QueueStats) -> str:
    """Describe the holders of the exclusive roles, since when and until when."""
    holders = (("producer", one.producer), ("consumer", one.consumer))
    return ", ".join(
        f"{role}={holder} (for {output.span(holder.age)}, {output.span(holder.left)} left)"
        for role, holder in holders
        if holder is not None
    )


def _settings(one: QueueStats) -> str:
    if not one.exists:
        return "does not exist"
    chosen = output.stats_document(one)["settings"]
    shown = [f"{name}={value}" for name, value in chosen.items() if value is not None]
    differing = [f"(others on {', '.join(one.differing)})"] if one.differing else []
    return " ".join(["closed"] * one.closed + shown + differing)


@command("pause")
def pause(
    session: Session,
    queue: QueueArgument,
    side: Annotated[
        Side, typer.Option(help="in = refuse new jobs; out = deliver nothing; all = both.")
    ] = Side.ALL,
) -> None:
    """Stop a side of a queue; it stays stopped until `resume`."""
    with session.client() as client:
        client.open(queue).pause(side.value)
    session.answer(
        {"queue": queue, "paused": side.value},
        lambda: output.write(f"{queue}: paused ({side.value})"),
    )


@command("resume")
def resume(session: Session, queue: QueueArgument) -> None:
    """End a pause."""
    with session.client() as client:
        target = client.open(queue)
        if target.stats().exists:  # or it would be made
            target.resume()
        else:
            hint_if_missing(client, queue)
    session.answer(
        {"queue": queue, "paused": None},
        lambda: output.write(f"{queue}: not paused"),
    )


@command("close")
def close(session: Session, queue: QueueArgument) -> None:
    """Take no more jobs; consumers finish what is there, and then end. Until `reopen`."""
    with session.client() as client:
        client.open(queue).close()
    session.answer(
        {"queue": queue, "closed": True},
        lambda: output.write(f"{queue}: closed"),
    )


@command("reopen")
def reopen(session: Session, queue: QueueArgument) -> None:
    """Take jobs again after a `close`."""
    with session.client() as client:
        target = client.open(queue)
        if target.stats().exists:  # or it would be made
            target.reopen()
        else:
            hint_if_missing(client, queue)
    session.answer(
        {"queue": queue, "closed": False},
        lambda: output.write(f"{queue}: open"),
    )


@command("redrive")
def redrive(
    session: Session,
    queue: QueueArgument,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="Default: all dead letters, oldest first.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most this many, oldest first.", show_default=False)
    ] = None,
) -> None:
    """Bring dead letters back; their attempts start anew.

    One whose dedup id is another job's by now stays dead.
    """
    if ids and limit is not None:
        raise typer.BadParameter("--limit can't be combined with ids")
    with session.client() as client:
        count = client.open(queue).redrive(ids or None, limit=limit)
        if not count:
            hint_if_missing(client, queue)
    session.answer(
        {"queue": queue, "redriven": count},
        lambda: output.write(f"{count} dead letters redriven"),
    )
    if ids and count < len(ids):
        raise Failed(
            f"{len(ids) - count} of {len(ids)} could not be redriven: see `penstock show ID`"
        )


@command("promote")
def promote(session: Session, queue: QueueArgument, ids: IdsArgument) -> None:
    """Let jobs be delivered at once: delayed, backing off, or held by a consumer."""
    _move(session, queue, ids, "promote", "promoted", "brought forward")


@command("dequeue")
def dequeue(session: Session, queue: QueueArgument, ids: IdsArgument) -> None:
    """Take jobs out of a queue for the time of their lease; then they come back."""
    _move(session, queue, ids, "dequeue", "dequeued", "taken out")


def _move(
    session: Session, queue: str, ids: list[str], method: str, counted: str, words: str
) -> None:
    names = list(dict.fromkeys(ids))
    with session.client() as client:
        settled: Settled = getattr(client.open(queue), method)(names)
        if not settled.done:
            hint_if_missing(client, queue)
    outcomes = dict(zip(names, settled, strict=True))
    document = {
        "queue": queue,
        counted: settled.done,
        "jobs": [{"id": name, "outcome": outcome.value} for name, outcome in outcomes.items()],
    }
    session.answer(document, lambda: output.write(f"{settled.done} jobs {words}"))
    failed = {name: outcome for name, outcome in outcomes.items() if outcome is not Outcome.DONE}
    if failed:
        told = ", ".join(f"{name} {outcome}" for name, outcome in failed.items())
        raise Failed(f"{len(failed)} of {len(names)} could not be {words}: {told}")


@command("evict")
def evict(
    session: Session,
    queue: QueueArgument,
    count: Annotated[int, typer.Option(metavar="N", help="Most jobs to remove.")] = 100,
    keep_dead: Annotated[bool, typer.Option("--keep-dead", help="Keep dead letters.")] = False,
) -> None:
    """Make room on a full server: remove jobs that are never delivered again.

    First those delivered at most once, nearest end of ttl first; then dead letters, oldest first.
    """
    with session.client() as client:
        target = client.open(queue)
        removed = step = target.evict(min(count, STEP), dead=not keep_dead)
        while step and removed < count:
            step = target.evict(min(count - removed, STEP), dead=not keep_dead)
            removed += step
        if not removed:
            hint_if_missing(client, queue)
    session.answer(
        {"queue": queue, "evicted": removed}, lambda: output.write(f"{removed} jobs removed")
    )


STEP = 1000
"""Most that one call removes."""


@command("purge")
def purge(
    session: Session,
    queue: QueueArgument,
    state: Annotated[
        list[StateChoice] | None,
        typer.Option(
            help="State of the jobs to remove; may be repeated. Default: ready and scheduled."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove the jobs that a queue holds now."""
    states: list[StateName] = [
        one.value for one in dict.fromkeys(state or (StateChoice.READY, StateChoice.SCHEDULED))
    ]
    with session.client() as client:
        target = client.open(queue)
        before = target.stats()
        if not before.exists:
            hint_if_missing(client, queue)
        elif not yes:
            counts = ", ".join(f"{getattr(before, one)} {one}" for one in states)
            if not output.agreed(f"Remove these jobs of {queue}: {counts}?"):
                raise Failed("nothing was removed")
        count = target.purge(*states)  # promises of staged writes outlive an idle queue
    document: dict[str, Any] = {"queue": queue, "states": states, "purged": count}
    session.answer(document, lambda: output.write(f"{count} jobs removed"))


@command("clear")
def clear(
    session: Session,
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="[QUEUE]...", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove every queue of the prefix.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove whole queues: jobs in every state, dedup ids, settings, a pause."""
    if every == bool(queues):
        raise typer.BadParameter("give QUEUE names, or --all")
    with session.client() as client:
        names = client.queues() if every else _existing(client, queues or [])
        if names and not yes and not output.agreed(_sure(client, names)):
            raise Failed("nothing was removed")
        cleared = [(name, client.open(name).clear()) for name in names]
        client.clear(name for name in queues or () if name not in names)  # as above: promises
    total = sum(count for _, count in cleared)
    document = {
        "jobs": total,
        "queues": [{"queue": name, "jobs": count} for name, count in cleared],
    }
    session.answer(
        document, lambda: output.write(f"{len(cleared)} queues removed, {total} jobs with them")
    )


def _existing(client: Penstock, names: list[str]) -> list[str]:
    """Those that are there, each once; the others are named on stderr."""
    found = []
    for name in dict.fromkeys(names):
        if client.open(name).stats().exists:
            found.append(name)
        else:
            hint_if_missing(client, name)
    return found


def _sure(client: Penstock, names: list[str]) -> str:
    told = []
    for name in names[:SHOWN]:
        one = client.open(name).stats()
        jobs = one.ready + one.scheduled + one.active + one.dead + one.expired
        told.append(f"{name} ({jobs} jobs)")
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"Remove these queues with all their jobs: {', '.join(told)}{more}?"


SHOWN = 10
"""Most queues that a question names."""


@command("sweep")
def sweep(session: Session, queues: QueuesArgument = None) -> None:
    """Give back what expired jobs, old dead letters and idle queues take."""
    with session.client() as client:
        swept = [(name, client.open(name).sweep()) for name in queues or client.queues()]
    total = sum(count for _, count in swept)
    document = {
        "removed": total,
        "queues": [{"queue": name, "removed": count} for name, count in swept],
    }
    session.answer(document, lambda: output.table(("queue", "removed"), swept, right="removed"))
