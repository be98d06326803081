"""Waiting consumers: the events that they must be told of, and when."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from penstock import Job, QueueClosed
from penstock.core.calls.operations import Taken
from penstock.core.flows.sweeping import SweepSchedule
from tests.model.awaiting import Awaiting
from tests.model.jobs import NEVER, ModelJob

__all__ = ["TAGS", "Waiting"]

TAGS = st.sampled_from([0, 1, 0x7FF, 0xFFF])
TICK_MS = 4_000


class Waiting(Awaiting):
    """Rules for consumers that wait: for a moment, or until a token or a timer comes."""

    @rule(n=st.sampled_from([1, 2, 10]), tag=TAGS)
    def wait(self, n: int, tag: int) -> None:
        """Let a consumer wait for a moment, and sweep when no job is ready."""
        self.bench.dice.tag, self.fault = tag, ""
        turns = self.client.topology.driver._turns = SweepSchedule(lambda: 0.0)
        turns.is_due(self.queue.name, 0.0)  # due at the second time

        def taken() -> list[ModelJob]:
            while True:
                found, more = self.model.reserve(n, tag)
                if found or not more:
                    return found

        def model() -> list[ModelJob]:
            found = taken()
            if found or self.model.drained:
                return found
            while self.model.sweep(0)[1]:
                pass
            return taken()

        def queue() -> tuple[Sequence[Job], bool]:
            try:
                return self.queue.reserve(n, block=0.001), False
            except QueueClosed:
                return [], True

        wanted, (got, is_over), _ = self.both(model, queue)
        self.received(wanted, got)
        assert is_over == (self.model.drained and not wanted)
        self.check_rearmed("a wait left a job")

    def check_rearmed(self, why: str) -> None:
        """Require a token if a reserve left a job."""
        if self.has_work():
            self.must_wake = why

    def has_work(self, *, allowed: bool = False) -> bool:
        """Return True if a reserve would deliver a job now, or as soon as the rate allows one."""
        if not allowed and self.model.allowed_at > self.model.now:
            return False
        if self.model.free_slots <= 0:
            ended = (job.at <= self.model.now for job in self.model.at("active"))
            return not self.model.paused and any(ended)
        if self.model.paused == "in":
            return any(job.place == "ready" for job in self.model.jobs.values())
        return not self.model.paused and bool(self.model.listed("ready"))

    # -- a consumer that waits for a token ---------------------------------------------------

    @rule(tag=TAGS)
    def begin_to_wait(self, tag: int) -> None:
        """Let a consumer reserve, and wait until its timer ends if there is no job."""
        if self.timer is None:
            self.look_for_jobs(1, tag, idle=False)

    @rule(n=st.sampled_from([0, 1, 2]), tag=TAGS)
    def wake_up(self, n: int, tag: int) -> None:
        """Let a consumer take the wake token, or its timer end: it reserves, and waits again."""
        is_early = self.timer is None or self.clock.ms < self.timer
        if not self.raw.lpop(self.ops.keys["wake"]) and is_early:
            return
        wanted, got = self.look_for_jobs(n, tag, idle=True)
        self.check_rearmed("a woken consumer left a job")
        places = ("scheduled", "active") if self.model.free_slots > 0 else ("once", "active")
        events = [
            job.at - self.model.now
            for job in self.model.jobs.values()
            if job.place in places and job.at != NEVER
        ]
        first_turn = self.model.first_turn if self.model.free_slots > 0 else None
        if first_turn is not None:
            events.append(max(0, first_turn - self.model.now))
        if self.model.drained:
            assert got.next_ms == -2
            self.must_wake = "a consumer told of the end must tell the next one"
        elif self.model.paused in ("out", "all"):
            assert got.next_ms == -1
        elif not self.model.paused:
            held_back = self.model.allowed_at - self.model.now
            events = [max(event, held_back) for event in events]
            events += [held_back] if held_back and self.model.has_due else []
            assert got.next_ms == (0 if self.model.has_more else min(events, default=-1))
            if (wanted or n == 0) and events and min(events) <= TICK_MS:
                self.must_wake = "a consumer told of an event has left the wait"

    def look_for_jobs(self, n: int, tag: int, *, idle: bool) -> tuple[list[ModelJob], Taken]:
        """Reserve; without a job set a timer until the next event, or a tick."""
        self.bench.dice.tag, self.fault = tag, ""
        (wanted, _), got, _ = self.both(
            lambda: self.model.reserve(n, tag),
            lambda: self.client.topology.executor.run(self.ops.reserve(n, idle=idle)),
        )
        self.received(wanted, got.deliveries)
        waits = n > 0 and not wanted and got.next_ms != -2
        span = TICK_MS if got.next_ms < 0 else min(got.next_ms, TICK_MS)
        self.timer = self.clock.ms + span if waits else None
        return wanted, got

    @invariant()
    def no_consumer_misses_a_job(self) -> None:
        """While a job is ready, a waiting consumer has a token or its timer has ended.

        If a rate or a hold delays the job, the timer ends when it is allowed, at the latest.
        """
        self.set_model_clock()
        allowed_at = self.model.allowed_at - self.model.now + self.clock.ms
        if self.timer is not None and allowed_at < self.timer and self.has_work(allowed=True):
            assert self.raw.llen(self.ops.keys["wake"]), (
                "a job is ready, but a waiting consumer has no token"
            )
