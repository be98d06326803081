"""The rules by which something is wrong with queues, workers, schedules and nodes now."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from penstock.core.enqueuing.batches import BatchStatus
from penstock.core.enqueuing.schedules import ScheduleView
from penstock.core.jobs.logs import byte_size, counted, span
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.workers import WorkerView
from penstock.core.nodes.node_views import NodeView, PrimaryView
from penstock.core.values.near import MISSPELLED, nearest

LONGEST_REASON = 120
"""Characters of an error that the text of a problem has."""
FAILURES_OF_SCHEDULE = 2
"""Failures of the last job from which its schedule is a problem: one may pass."""
__all__ = ["Problem", "ProblemBounds", "ProblemKind", "find_problems"]

ProblemKind = Literal[
    "node", "memory", "full", "worker", "handler", "wait", "schedule", "batch", "dead", "paused"
]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong now.

    Attributes:
        kind: node (it does not answer), memory (nearly full), full (a queue refuses jobs), worker
            (none takes the jobs of a queue), handler (a worker gives jobs back, as it has no such
            handler), wait (jobs wait for too long), schedule (a tick is late or waits for a handler
            that was removed, or the last job fails or is dead), batch (it can't end: it waits for
            dead letters only, or its callback is one), dead (there are dead letters), paused (jobs
            wait in a paused queue).
        text: what is wrong, for people.
        queue: its queue, or None.
        remedy: the command that mends it or tells more.
    """

    kind: ProblemKind
    text: str
    queue: str | None
    remedy: str


class ProblemBounds(NamedTuple):
    """The bounds beyond which something is wrong.

    Attributes:
        longest_wait: seconds that a job may wait, and a tick be late; the queue's setting wins.
        most_dead: dead letters that a queue may have.
        dead_since: seconds for which a death is a problem; None = for ever.
    """

    longest_wait: float
    most_dead: int
    dead_since: float | None = None


def find_problems(
    queues: Sequence[QueueStats],
    workers: Sequence[WorkerView],
    nodes: Iterable[NodeView],
    schedules: Mapping[str, Sequence[ScheduleView]],
    batches: Mapping[str, Sequence[BatchStatus]],
    bounds: ProblemBounds,
    now: float,
) -> list[Problem]:
    """Return what is wrong, the most urgent kind first.

    Args:
        queues: the figures of the queues.
        workers: those that run.
        nodes: as the client sees them.
        schedules: those of queues that have some, by the name of the queue.
        batches: the first ones of queues that have some, and dead letters.
        bounds: of waits and dead letters.
        now: time of the server.
    """
    worked = {name for one in workers for name in one.queues}
    unused = worked - {stats.name for stats in queues}
    problems = [problem for node in nodes for problem in _problems_of_node(node)]
    for stats in queues:
        own = stats.settings.longest_wait
        longest = bounds.longest_wait if own is None else own
        is_worked = stats.name in worked
        similar = None if is_worked else nearest(stats.name, sorted(unused), MISSPELLED)
        problems += _problems_of_queue(stats, longest, has_worker=is_worked, similar=similar)
        problems += _problems_of_deaths(stats, bounds)
        problems += _problems_of_handlers(stats.name, workers)
        for schedule in schedules.get(stats.name, ()):
            problems += _problems_of_schedule(stats.name, schedule, longest, now)
        problems += _problems_of_batches(stats.name, batches.get(stats.name, ()))
    order = get_args(ProblemKind)
    return sorted(problems, key=lambda one: (order.index(one.kind), one.queue or "", one.text))


def _problems_of_node(node: NodeView) -> Iterator[Problem]:
    parts: Sequence[NodeView | PrimaryView] = node.primaries or (node,)
    for part in parts:
        if part.error:
            text = f"{part.address} does not answer: {part.error}"
            yield Problem("node", text, None, "penstock doctor")
        elif part.used_memory and part.max_memory and part.used_memory * 4 > part.max_memory * 3:
            used, most = byte_size(part.used_memory), byte_size(part.max_memory)
            text = f"{part.address} uses {used} of its {most}"
            yield Problem("memory", text, None, "penstock doctor")


def _problems_of_queue(
    stats: QueueStats, longest_wait: float, *, has_worker: bool, similar: str | None
) -> Iterator[Problem]:
    name, settings = shlex.quote(stats.name), stats.settings
    waiting = stats.ready + stats.scheduled + stats.parked - stats.dependent
    ready = counted(stats.ready, "job")
    if settings.max_length is not None and waiting >= settings.max_length:
        text = f"full: {counted(waiting, 'job')} wait, the limit is {settings.max_length:,}"
        yield Problem("full", text, stats.name, f"penstock configure {name} max_length=default")
    wait = stats.oldest or 0.0
    if settings.paused in ("out", "all"):
        if stats.ready:
            text = f"deliveries are paused, and {ready} could be delivered"
            yield Problem("paused", text, stats.name, f"penstock resume {name}")
    elif wait > longest_wait:
        text = f"{ready} could be delivered, the first one for {span(wait)}"
        if stats.held is not None:
            text = f"{ready} wait, the first one for {span(wait)}: the queue is held for "
            yield Problem("wait", text + span(stats.held), stats.name, f"penstock hold {name} 0")
        elif stats.slots is not None and stats.active >= stats.slots:
            text = f"{ready} wait for a slot, the first one for {span(wait)}: "
            text += f"{stats.active:,} of {stats.slots:,} run (max_active)"
            yield Problem("wait", text, stats.name, f"penstock stats {name}")
        elif has_worker:
            yield Problem("wait", text, stats.name, f"penstock stats {name}")
        else:
            text = f"no worker: {text}"
            if similar is not None:
                text += f"; workers take those of {similar!r}"
            yield Problem(
                "worker", text, stats.name, f"penstock worker MODULE:NAME --queues {name}"
            )


def _problems_of_deaths(stats: QueueStats, bounds: ProblemBounds) -> Iterator[Problem]:
    age = stats.last_death
    is_recent = bounds.dead_since is None or age is None or age <= bounds.dead_since
    if stats.dead > bounds.most_dead and is_recent:
        text = counted(stats.dead, "dead letter")
        if age is not None:
            text += f", the last one {'just now' if age < 60 else span(age) + ' ago'}"
        yield Problem("dead", text, stats.name, f"penstock errors {shlex.quote(stats.name)}")


def _problems_of_handlers(queue: str, workers: Sequence[WorkerView]) -> Iterator[Problem]:
    names = dict.fromkeys(name for one in workers for name in one.unknown.get(queue, ()))
    for name in names:
        lacking = [one.name for one in workers if name in one.unknown.get(queue, ())]
        jobs = f"jobs of handler {name!r}" if name else "jobs without a handler's name"
        others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        text = f"{jobs} are given back by {lacking[0]}{others}: no such handler"
        yield Problem("handler", text, queue, "penstock workers")


def _problems_of_schedule(
    queue: str, schedule: ScheduleView, longest_wait: float, now: float
) -> Iterator[Problem]:
    remedy = f"penstock schedules {shlex.quote(queue)}"
    late = 0.0 if schedule.next is None else now - schedule.next
    if late > longest_wait:
        text = f"schedule {schedule.name!r} is {span(late)} late: no worker of the queue runs"
        yield Problem("schedule", text, queue, remedy)
    elif schedule.orphaned:
        text = f"schedule {schedule.name!r} waits: app {schedule.app!r} runs without its handler"
        remove = f"{remedy} remove {shlex.quote(schedule.name)}"
        yield Problem("schedule", text, queue, remove)
    elif schedule.last_state == "dead":
        text = f"the last job of schedule {schedule.name!r} is dead"
        yield Problem("schedule", text + _reason(schedule.last_error), queue, remedy)
    elif schedule.last_failures >= FAILURES_OF_SCHEDULE:
        text = f"the last job of schedule {schedule.name!r} has failed "
        text += f"{schedule.last_failures} times" + _reason(schedule.last_error)
        yield Problem("schedule", text, queue, remedy)


def _reason(error: str | None) -> str:
    """Return the first line of an error behind a colon."""
    line = (error or "").strip().partition("\n")[0]
    return f": {line[:LONGEST_REASON]}" if line else ""


def _problems_of_batches(queue: str, batches: Sequence[BatchStatus]) -> Iterator[Problem]:
    name = shlex.quote(queue)
    for batch in batches:
        if batch.is_stuck:
            text = f"batch {batch.id} waits only for {counted(batch.dead, 'dead letter')}"
            yield Problem("batch", text, queue, f"penstock redrive {name} --batch {batch.id}")
        elif batch.state in ("failed", "abandoned"):
            why = "was not closed" if batch.state == "abandoned" else "has failed"
            text = f"batch {batch.id} {why}: its callback is a dead letter"
            yield Problem("batch", text, queue, f"penstock batches {name}")
