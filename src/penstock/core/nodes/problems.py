"""The rules by which something is wrong with queues, workers, schedules and nodes now."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from penstock.core.enqueuing.schedules import ScheduleView
from penstock.core.jobs.logs import byte_size, counted, span
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.workers import WorkerView
from penstock.core.nodes.node_views import NodeView, PrimaryView

__all__ = ["Problem", "ProblemBounds", "ProblemKind", "find_problems"]

ProblemKind = Literal[
    "node", "memory", "full", "worker", "handler", "wait", "schedule", "dead", "paused"
]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong now.

    Attributes:
        kind: node (it does not answer), memory (nearly full), full (a queue refuses jobs), worker
            (none takes the jobs of a queue), handler (a worker gives jobs back, as it has no such
            handler), wait (jobs wait for too long), schedule (a tick is late or waits for a handler
            that was removed, or the last job is dead), dead (there are dead letters), paused (jobs
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
        longest_wait: seconds that a job may wait, and a tick be late.
        most_dead: dead letters that a queue may have.
    """

    longest_wait: float
    most_dead: int


def find_problems(
    queues: Iterable[QueueStats],
    workers: Sequence[WorkerView],
    nodes: Iterable[NodeView],
    schedules: Mapping[str, Sequence[ScheduleView]],
    bounds: ProblemBounds,
    now: float,
) -> list[Problem]:
    """Return what is wrong, the most urgent kind first.

    Args:
        queues: the figures of the queues.
        workers: those that run.
        nodes: as the client sees them.
        schedules: those of queues that have some, by the name of the queue.
        bounds: of waits and dead letters.
        now: time of the server.
    """
    worked = {name for one in workers for name in one.queues}
    problems = [problem for node in nodes for problem in _problems_of_node(node)]
    for stats in queues:
        problems += _problems_of_queue(stats, bounds, has_worker=stats.name in worked)
        problems += _problems_of_handlers(stats.name, workers)
        for schedule in schedules.get(stats.name, ()):
            problems += _problems_of_schedule(stats.name, schedule, bounds, now)
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
    stats: QueueStats, bounds: ProblemBounds, *, has_worker: bool
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
    elif wait > bounds.longest_wait:
        text = f"{ready} could be delivered, the first one since {span(wait)}"
        if stats.held is not None:
            text = f"{ready} wait, the first one since {span(wait)}: the queue is held for "
            yield Problem("wait", text + span(stats.held), stats.name, f"penstock hold {name} 0")
        elif stats.slots is not None and stats.active >= stats.slots:
            text = f"{ready} wait for a slot, the first one since {span(wait)}: "
            text += f"{stats.active:,} of {stats.slots:,} run (max_active)"
            yield Problem("wait", text, stats.name, f"penstock stats {name}")
        elif has_worker:
            yield Problem("wait", text, stats.name, f"penstock stats {name}")
        else:
            text = f"no worker: {text}"
            yield Problem(
                "worker", text, stats.name, f"penstock worker MODULE:NAME --queues {name}"
            )
    if stats.dead > bounds.most_dead:
        text = counted(stats.dead, "dead letter")
        remedy = f"penstock errors {name}"
        yield Problem("dead", text, stats.name, remedy)


def _problems_of_handlers(queue: str, workers: Sequence[WorkerView]) -> Iterator[Problem]:
    names = dict.fromkeys(name for one in workers for name in one.unknown.get(queue, ()))
    for name in names:
        lacking = [one.name for one in workers if name in one.unknown.get(queue, ())]
        jobs = f"jobs of handler {name!r}" if name else "jobs without a handler's name"
        others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        text = f"{jobs} are given back by {lacking[0]}{others}: no such handler"
        yield Problem("handler", text, queue, "penstock workers")


def _problems_of_schedule(
    queue: str, schedule: ScheduleView, bounds: ProblemBounds, now: float
) -> Iterator[Problem]:
    remedy = f"penstock schedules {shlex.quote(queue)}"
    late = 0.0 if schedule.next is None else now - schedule.next
    if late > bounds.longest_wait:
        text = f"schedule {schedule.name!r} is {span(late)} late: no worker of the queue runs"
        yield Problem("schedule", text, queue, remedy)
    elif schedule.orphaned:
        text = f"schedule {schedule.name!r} waits: app {schedule.app!r} runs without its handler"
        remove = f"{remedy} remove {shlex.quote(schedule.name)}"
        yield Problem("schedule", text, queue, remove)
    elif schedule.last_state == "dead":
        text = f"the last job of schedule {schedule.name!r} is dead"
        yield Problem("schedule", text, queue, remedy)
