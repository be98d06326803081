"""Flows about schedules on several nodes (protocol/schedules.md, Several nodes and partitions)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.effects import Effect, Run
from penstock.core.flows import schedule
from penstock.core.operations import QueueOps

if TYPE_CHECKING:
    from penstock.core.schedules import NewSchedule

__all__ = ["StoreOutcome", "schedule_on"]


class StoreOutcome(NamedTuple):
    """The result of storing a schedule on one of several nodes.

    Attributes:
        code: as `schedule` returns it; None = the schedule is new, and some nodes are down.
        home: where it lies; None = on none of the nodes that are up.
    """

    code: int | None
    home: QueueOps | None


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
    home = yield from _keep_one_home(parts, new.name)
    if home is not None:
        code = yield from schedule(home, new, force=force)
        return StoreOutcome(code, home)
    if not is_whole:
        return StoreOutcome(None, None)
    chosen = _ranked(parts, new.name)[0]
    code = yield from schedule(chosen, new, force=force)
    home = yield from _keep_one_home(parts, new.name)
    return StoreOutcome(code, home or chosen)


def _keep_one_home(parts: Sequence[QueueOps], name: str) -> Generator[Effect, Any, QueueOps | None]:
    """Return the part that keeps a schedule, and remove it from all others.

    Returns:
        None if no part has it, or if there is one part only.
    """
    found = list[QueueOps]()
    for ops in parts if len(parts) > 1 else ():
        listed = yield Run(ops.schedules(names=[name]))
        if listed.entries or listed.unread:
            found.append(ops)
    ranked = _ranked(found, name)
    for other in ranked[1:]:
        yield Run(other.unschedule(name, is_duplicate=True))
    return ranked[0] if ranked else None


def _ranked(parts: Sequence[QueueOps], name: str) -> list[QueueOps]:
    """Return parts on several nodes, the home of a new schedule of this name first."""
    if len(parts) < 2:
        return [*parts]
    return sorted(parts, key=lambda ops: sha1(f"{ops.home.whole_id} {name}".encode()).digest())
