"""Flows about schedules on several nodes (protocol/schedules.md, Several nodes and partitions)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.calls.operations import QueueOps
from penstock.core.flows.effects import Effect, Run
from penstock.core.flows.producing import create_and_run

if TYPE_CHECKING:
    from penstock.core.enqueuing.schedules import NewSchedule

__all__ = [
    "SCHEDULE_OUTDATED",
    "SCHEDULE_REPLACED",
    "SCHEDULE_UNCHANGED",
    "StoreOutcome",
    "schedule",
    "schedule_on",
]

SCHEDULE_UNCHANGED, SCHEDULE_REPLACED, SCHEDULE_OUTDATED = 0, 2, 3
"""Results of `schedule`: it has this value already; it had another value; this value was replaced
before."""


def schedule(
    ops: QueueOps, new: NewSchedule, *, force: bool = False
) -> Generator[Effect, Any, int]:
    """Create a schedule, or replace its value; make the queue first if need be.

    Returns:
        `SCHEDULE_UNCHANGED` = it has this value already; `SCHEDULE_OUTDATED` = this value was
        replaced before, and nothing changed; `SCHEDULE_REPLACED` = it had another value; 1 = it is
        new.

    Raises:
        UnsupportedVersion, QueueDamaged.
    """
    listed = yield Run(ops.schedules(names=[new.name]))
    first = new.spec.after(listed.now_ms)
    if listed.entries:
        first = replace(listed.entries[0], spec=new.spec).first_tick(listed.now_ms)
    _, reply = yield from create_and_run(ops, partial(ops.schedule, new, first, force=force))
    return reply.what


class StoreOutcome(NamedTuple):
    """The result of storing a schedule on one of several nodes.

    Attributes:
        code: as `schedule` returns it; None = the schedule is new, and some nodes are down.
        ops: the part in which it lies; None = on none of the nodes that are up.
    """

    code: int | None
    ops: QueueOps | None


def schedule_on(
    parts: Sequence[QueueOps], new: NewSchedule, *, force: bool = False, is_whole: bool = True
) -> Generator[Effect, Any, StoreOutcome]:
    """Create a schedule on one of several nodes, or replace it where it lies.

    Two clients that know different nodes may create it at once on two of them. Each looks again
    behind its write. So at least one of them finds both, and all keep the same one.

    Args:
        parts: operations of the part of the queue to which it belongs, on each node that is up.
        new: the schedule.
        force: as in `schedule`.
        is_whole: whether these are all nodes. Otherwise it is not created: it may lie on another.
    """
    holder = yield from _keep_one_copy(parts, new.name)
    if holder is not None:
        code = yield from schedule(holder, new, force=force)
        return StoreOutcome(code, holder)
    if not is_whole:
        return StoreOutcome(None, None)
    chosen = _ranked(parts, new.name)[0]
    code = yield from schedule(chosen, new, force=force)
    holder = yield from _keep_one_copy(parts, new.name)
    return StoreOutcome(code, holder or chosen)


def _keep_one_copy(parts: Sequence[QueueOps], name: str) -> Generator[Effect, Any, QueueOps | None]:
    """Return the part that keeps a schedule, and remove it from all others.

    Returns:
        None if no part has it, or if there is one part only.
    """
    keepers = list[QueueOps]()
    for ops in parts if len(parts) > 1 else ():
        listed = yield Run(ops.schedules(names=[name]))
        if listed.entries or listed.unread:
            keepers.append(ops)
    ranked = _ranked(keepers, name)
    for other in ranked[1:]:
        yield Run(other.unschedule(name, is_duplicate=True))
    return ranked[0] if ranked else None


def _ranked(parts: Sequence[QueueOps], name: str) -> list[QueueOps]:
    """Return parts on several nodes, first the one that a new schedule of this name lies in."""
    if len(parts) < 2:
        return [*parts]
    return sorted(parts, key=lambda ops: sha1(f"{ops.whole_node_id} {name}".encode()).digest())
