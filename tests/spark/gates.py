"""Tasks that stop half way until they are let go on, and slots that move meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.support import wait_for
from tests.support.cluster import Cluster, Member

__all__ = ["Gate", "move"]


@dataclass(frozen=True)
class Gate:
    """Where tasks stop; it can be pickled, and the processes meet in a directory.

    Args:
        directory: an empty one.
    """

    directory: Path

    def pass_by(self, who: object) -> None:
        """In a task: say that it has come, and wait there."""
        (self.directory / f"came-{who}").touch()
        wait_for((self.directory / "open").exists)

    def batches(self) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """A function for mapInArrow that gives what comes, and stops behind the first batch."""

        def passed(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            for number, batch in enumerate(batches):
                yield batch
                if number == 0:
                    self.pass_by(context.partitionId())

        return passed

    def wait_for(self, count: int) -> None:
        """In the test: until so many have come."""
        wait_for(lambda: len([*self.directory.glob("came-*")]) >= count)

    def open(self) -> None:
        """Let them go on, and all that come later."""
        (self.directory / "open").touch()


def move(cluster: Cluster, gate: Gate, *slots: int) -> None:
    """Beside two tasks, which stop: slots are half moved when they go on, and arrive when a call
    has been redirected from each.

    Raises:
        TimeoutError: no task has met one on its way.
    """
    gate.wait_for(2)
    try:
        ways = [_halved(cluster, slot) for slot in slots]
        met = [_met(source) for source, _ in ways]
    finally:
        gate.open()
    for slot, (source, target), before in zip(slots, ways, met, strict=True):
        wait_for(lambda at=source, count=before: _met(at) > count)
        while cluster.move_keys(slot, source, target):
            pass
        cluster.end_move(slot, target)


def _halved(cluster: Cluster, slot: int) -> tuple[Member, Member]:
    """Begin to move a slot: from where, and where to."""
    target = cluster.other(slot)
    source = cluster.begin_move(slot, target)
    assert cluster.move_keys(slot, source, target, most=1) == 1
    assert source.cluster("COUNTKEYSINSLOT", slot) > 0
    return source, target


def _met(member: Member) -> int:
    """How often one has redirected a task from a slot that is on its way."""
    return member.errors("TRYAGAIN") + member.errors("ASK")
