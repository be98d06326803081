"""Tasks that stop halfway until they may continue, while slots move."""

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
    """A barrier for tasks; it can be pickled, and processes meet in a directory.

    Args:
        directory: an empty one.
    """

    directory: Path

    def pass_by(self, task: object) -> None:
        """Report the task, and wait; runs in the task."""
        (self.directory / f"came-{task}").touch()
        wait_for((self.directory / "open").exists)

    def batches(self) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """Return a function for mapInArrow that passes batches and stops after the first."""

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
        """Wait until this many tasks have come; runs in the test."""
        wait_for(lambda: len([*self.directory.glob("came-*")]) >= count)

    def open(self) -> None:
        """Let all tasks continue, also later ones."""
        (self.directory / "open").touch()


def move(cluster: Cluster, gate: Gate, *slots: int) -> None:
    """Stop two tasks and move their slots halfway; complete the moves when a call from each task
    was redirected.

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
    """Move half of a slot, and return its old and new server."""
    target = cluster.other(slot)
    source = cluster.begin_move(slot, target)
    assert cluster.move_keys(slot, source, target, most=1) == 1
    assert source.cluster("COUNTKEYSINSLOT", slot) > 0
    return source, target


def _met(member: Member) -> int:
    """Count the redirections from migrating slots."""
    return member.errors("TRYAGAIN") + member.errors("ASK")
