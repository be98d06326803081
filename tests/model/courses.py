"""Sequences of events that single rules seldom produce."""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.machine import QueueMachine
from tests.model.side import STATES
from tests.model.waiting import TAGS

__all__ = ["CoursesMachine", "KeysMachine"]


class CoursesMachine(QueueMachine):
    """Each sequence begins with a queue without jobs, and adds some."""

    def begin_empty(self) -> None:
        """Remove all jobs; adding and delivering is possible."""
        self.open_up()
        self.tokens_are_there()
        self.purge(fault="", states=list(STATES))

    def add_one(self, delay: int = 0, lease: int | None = None, ttl: int | None = None) -> None:
        """Add a job to the model and the queue."""
        self.add([self.body()], delay, None, lease, ttl, None, None, many=False)
        self.tokens_are_there()

    @rule(
        lease=st.sampled_from([1_000, 3_000]),
        delay=st.sampled_from([1_100, 3_500]),
        told=st.booleans(),
        tag=TAGS,
    )
    def event_is_gone(self, lease: int, delay: int, told: bool, tag: int) -> None:
        """Acknowledge a job early: its lease hides no later event from a waiting consumer."""
        self.begin_empty()
        self.add_one(lease=lease)
        self.reserve_some(1, tag)
        self.tokens_are_there()
        self.ack(fault="", picks=[(0, "receipt")], among=("active",), window=None)
        if not told:  # another consumer, which is gone, knew of the lease
            self.raw.lpop(self.ops.keys["wake"])
            self.timer = None
        self.begin_to_wait(tag)
        self.tokens_are_there()
        self.wake_up(1, tag)
        self.tokens_are_there()
        self.add_one(delay=delay)
        self.clock.set(self.clock.ms + delay)
        self.no_consumer_misses_a_job()
        self.wake_up(1, tag)

    @rule(expired=st.integers(1, 7), live=st.integers(0, 2), n=st.integers(1, 3), tag=TAGS)
    def expired_are_in_the_way(self, expired: int, live: int, n: int, tag: int) -> None:
        """Put more expired jobs than a call lists before live ones, which it still delivers."""
        self.begin_empty()
        for _ in range(expired):
            self.add_one(ttl=60)
        self.clock.set(self.clock.ms + 100)
        for _ in range(live):
            self.add_one()
        self.timer = None
        self.look_for_jobs(n, tag, idle=False)

    @rule(
        span=st.sampled_from([59_000, 61_000, 900_000]),
        window=st.sampled_from([None, None, 3_000, 90_000]),
    )
    def leave_unused(self, span: int, window: int | None) -> None:
        """Leave a queue unused: it is removed, but not while one of its windows is open."""
        self.configure(fault="", values=dict.fromkeys(self.model.settings))
        self.begin_empty()
        if window:
            self.claim(
                fault="", names=[0], many=False, how="refuse", until="enqueued", window=window,
                delay=0, lease=None, ttl=None, bound=None, retry=None, key="",
            )  # fmt: skip
            self.purge(fault="", states=list(STATES))
        self.clock.set(self.clock.ms + span)
        self.sweep(fault="")

    def compacted_after_a_wrong_clock(self, span: int, delay: int) -> None:
        """Compact jobs of a wrong time: they are due at once, not at their creation."""
        self.open_up()
        self.tokens_are_there()
        self.clock_jumps(span)
        self.add_one(delay=delay)
        self.clock_jumps(-span)
        self.add_one()
        self.sweep(fault="", compacts=True)
        self.structures_agree()
        self.jobs_agree()

    def window_of_a_wrong_clock(self, span: int, ended: bool) -> None:
        """Open a window at a time years ahead: it is open when the clock is right."""
        self.begin_empty()
        self.clock_jumps(span)
        self.claim_one()
        self.purge(fault="", states=list(STATES))
        self.ids_agree()
        if ended:
            self.clock.set(self.clock.ms + 61_000)
        self.clock_jumps(-span)
        self.ids_agree()
        self.claim_one()

    def claim_one(self) -> None:
        """Add a job whose id is taken for a minute from now."""
        self.claim(
            fault="", names=[0], many=False, how="refuse", until="enqueued", window=60_000,
            delay=0, lease=None, ttl=None, bound=None, retry=None, key="",
        )  # fmt: skip
        self.tokens_are_there()


class KeysMachine(CoursesMachine):
    """Runs whose jobs have keys, on a queue with a limit."""

    has_keys = True

    def teardown(self) -> None:
        """Deliver and finish all jobs: no key is blocked."""
        if sys.exc_info()[0] is None and self.model.exists:
            self.queue.reopen()
            self.queue.resume()
            self.queue.configure(rate=None, max_crashes=0, max_attempts=0)
            ends = ("parked", "tickets", "turns", "paces")  # paces by a call after the last job
            kinds = ("ready", "scheduled", "active", "once", *ends)
            for _ in range(50):
                self.clock.set(self.clock.latest + 1_000_000)
                if taken := self.queue.reserve(100, block=0):
                    self.queue.ack(taken)
                if not self.raw.exists(*(self.ops.keys[kind] for kind in kinds)):
                    break
            assert not self.raw.exists(*(self.ops.keys[kind] for kind in ends))
            self.queue.clear()
            self.model.clear()
        super().teardown()

    @initialize(
        limit=st.sampled_from(["per_key", "share", "ordered", "key_rate"]),
        most=st.integers(1, 2),
        early=st.booleans(),
    )
    def begin_with_keys(self, limit: str, most: int, early: bool) -> None:
        """Set a limit; jobs from before it have no tickets, and come first."""
        self.open_up()
        for has_limit in (False, True) if early else (True,):
            value = {"ordered": 1, "key_rate": 1_000 * most}.get(limit, most)
            self.configure(fault="", values={limit: value if has_limit else None})
            self.add([self.body() for _ in range(3)], 0, None, None, None, None, None, many=True)
        self.reserve_some(2, 5)
        self.jobs_agree()
