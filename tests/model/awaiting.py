"""Clients that wait for results are told the ends of the jobs that they await, and no others."""

from __future__ import annotations

from typing import Any

from hypothesis.stateful import invariant

from tests.model.draws import PICKS, call
from tests.model.jobs import Number
from tests.model.side import SideBySide, as_number

__all__ = ["Awaiting"]

LIFE_MS = 30_000
"""A client that has not looked for so long is told perhaps."""


class Awaiting(SideBySide):
    """Rules for clients that wait for results."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited: dict[Number, int | None] = {}  # a client looked then; None: too long ago
        self.read: set[bytes] = set()  # entries of the stream

    def set_model_clock(self) -> None:
        """Set the model's clock; marks that lapse now may be gone even if the clock steps back."""
        super().set_model_clock()
        for number, looked_at in self.awaited.items():
            if looked_at is not None and self.model.now - looked_at >= LIFE_MS:
                self.awaited[number] = None

    def unended(self) -> set[Number]:
        """Return the jobs that have not ended, on the server."""
        dead = self.raw.zrange(self.ops.keys["dead"], 0, -1)
        return self.present() - {as_number(name) for name in dead}

    def has_lapsed(self, number: Number) -> bool:
        """Return True if the ttl of a job that is still there has ended."""
        job = self.model.jobs[number]
        ends = job.at if job.place == "once" else job.ends
        return ends is not None and ends <= self.model.now

    @call(picks=PICKS)
    def await_results(self, picks: list[tuple[int, str]]) -> None:
        """Look at jobs, and wait for those that have not ended."""
        named, given, current = self.named(picks, ("ready", "scheduled", "active"))
        if not (named and current and self.model.exists):
            return
        waiting = self.unended()
        looked: Any
        _, looked, _ = self.both(
            lambda: None,
            lambda: self.client.topology.executor.run(self.ops.results(given, awaited=True)),
        )
        self.set_model_clock()
        waiting -= {number for number in waiting if self.has_lapsed(number)}
        for (number, _), found in zip(named, looked.jobs, strict=True):
            assert (found is not None and found.state == "waiting") == (number in waiting)
            if number in waiting:
                self.awaited[number] = self.model.now

    @invariant()
    def ends_are_told(self) -> None:
        """Compare the entries since the last step with the awaited jobs that have ended."""
        told, unended = set[Number](), self.unended()
        for name, fields in self.raw.xrange(self.ops.keys["finished"]):
            if name not in self.read:
                self.read.add(name)
                is_cleared = fields[b"j"] == b"*"
                told |= {*self.awaited} if is_cleared else set(map(as_number, fields[b"j"].split()))
        assert told <= {*self.awaited}, "a job is told that no client awaits"
        self.set_model_clock()
        ended = {number for number in self.awaited if number not in unended}
        lately = {number for number in ended if self.awaited[number] is not None}
        assert lately <= told, "the end of an awaited job is not told"
        for number in told | ended:
            del self.awaited[number]
