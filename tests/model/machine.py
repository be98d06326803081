"""Hypothesis drives a queue and its model side by side, and compares all that can be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from penstock import BulkEnqueued, Enqueued, Outcome, QueueFull, QueuePaused, WrongEpoch
from penstock.core.operations import FULL, SETTING_KINDS
from tests.model.faults import Fault
from tests.model.model import ModelJob, Name
from tests.model.side import STATES, SideBySide

__all__ = ["QueueMachine"]

TICK_MS = 4_000

DELAYS = st.sampled_from([0, 0, 0, 1, 50, 3_000, 4_000, 60_000])
TTLS = st.sampled_from([None, None, None, 1, 60, 2_000, 70_000])
LEASES = st.sampled_from([None, None, 0, 1, 1_000, 5_000])
TAGS = st.sampled_from([0, 1, 0x7FF, 0xFFF])
SPANS = st.sampled_from([1, 9, 100, 999, 1_000, 1_001, 3_000, 10_000, 40_000, 900_000])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "lease": st.sampled_from([None, 1, 2_000, 60_000]),
        "max_length": st.sampled_from([None, None, 1, 3, 6]),
        "max_attempts": st.sampled_from([None, 1, 2, 4]),
        "max_crashes": st.sampled_from([None, 1, 2]),
        "max_releases": st.sampled_from([None, 1, 2]),
        "backoff_base": st.sampled_from([None, 1, 100]),
        "backoff_cap": st.sampled_from([None, 1, 300]),
        "dead_max": st.sampled_from([None, 0, 1, 3]),
        "dead_age": st.sampled_from([None, 1, 5_000]),
    },
)
FAULTS: st.SearchStrategy[Fault] = st.sampled_from(["", "", "", "", "before", "after", "flushed"])
PICKS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from(["receipt", "receipt", "old receipt", "id"])),
    min_size=1,
    max_size=4,
    unique_by=lambda pick: pick[0],
)
"""Jobs to name: which of those known, and how."""


def call(**arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule whose call may meet a connection that fails, or a server that lost its scripts."""

    def made(method: Callable[..., None]) -> Any:
        def with_fault(self: Any, fault: Fault, **values: Any) -> None:
            self.fault = fault
            method(self, **values)

        with_fault.__name__, with_fault.__doc__ = method.__name__, method.__doc__
        make: Any = rule(fault=FAULTS, **arguments)
        return make(with_fault)

    return made


class QueueMachine(SideBySide):
    """Everything that can be done to a queue, and everything that can happen to it."""

    # -- adding ----------------------------------------------------------------------------

    @initialize(lives=st.lists(TTLS, max_size=4), n=st.integers(0, 3))
    def begin(self, lives: list[int | None], n: int) -> None:
        """Most queues have jobs, and some of them are held."""
        self.begin_with(lives, n, 5)

    def begin_with(self, lives: list[int | None], n: int, tag: int) -> None:
        """Add jobs, and take some."""
        for ttl in lives:
            self.add([self.body()], 0, None, None, ttl, None, many=False)
        if lives and n:
            self.reserve_some(n, tag)

    def body(self) -> bytes:
        """A body like no other."""
        self.bodies += 1
        return b"body %d" % self.bodies

    @call(
        count=st.sampled_from([1, 1, 1, 2, 3, 120]),
        many=st.booleans(),
        delay=DELAYS,
        at=st.sampled_from([None, None, None, -500, 0, 1, 3_000]),
        lease=LEASES,
        ttl=TTLS,
        bound=st.sampled_from([None, None, None, 1, 4]),
    )
    def enqueue(
        self,
        count: int,
        many: bool,
        delay: int,
        at: int | None,
        lease: int | None,
        ttl: int | None,
        bound: int | None,
    ) -> None:
        """Add one job, or several."""
        count = count if many else 1
        if lease == 0 and count > 100:
            lease = None  # one script removes 100 of them
        if lease == 0 and ttl is None:
            ttl = 50_000
        if at is not None:
            delay = max(at, 0)
        elif ttl is not None and ttl <= delay:
            delay = 0
        self.add([self.body() for _ in range(count)], delay, at, lease, ttl, bound, many=many)

    def add(
        self,
        bodies: list[bytes],
        delay: int,
        at: int | None,
        lease: int | None,
        ttl: int | None,
        bound: int | None,
        *,
        many: bool,
    ) -> None:
        """Add jobs to both."""
        options: dict[str, Any] = {
            "delay": delay / 1000 if at is None else 0,
            "at": None if at is None else (self.clock.ms + at) / 1000,
            "lease": None if lease is None else lease / 1000,
            "ttl": None if ttl is None else ttl / 1000,
            "max_length": bound,
        }
        answers: list[Any] = []

        def model() -> Any:
            if not answers:
                answers.append(
                    self.model.enqueue(bodies, delay=delay, lease=lease, ttl=ttl, bound=bound)
                )
            return answers[0]

        def queue() -> Sequence[Enqueued] | str:
            try:
                if many:
                    return self.queue.enqueue_many(bodies, **options)
                return [self.queue.enqueue(bodies[0], **options)]
            except QueueFull:
                return "full"
            except QueuePaused:
                return "paused"

        wanted, got, _ = self.both(model, queue)
        if isinstance(wanted, str):
            assert got == wanted
            return
        assert isinstance(got, (list, BulkEnqueued))
        assert [self.learn(result.id).number for result in got] == [job.number for job in wanted]
        assert {result.state for result in got} == {"scheduled" if delay else "ready"}
        if self.model.paused != "out" and not delay:
            self.must_wake = "jobs were added"

    @precondition(lambda self: self.model.exists)
    @rule()
    def wait_for_room(self) -> None:
        """A producer that waits takes the token of room, and tries to add a job."""
        self.raw.lpop(self.ops.keys["space"])
        body = self.body()

        def queue() -> int:
            call = self.ops.enqueue([b"1\n" + body], wait_ms=8_000)
            while True:
                reply, _ = self.client._node.run(call)
                if reply[0] != FULL or not reply[4]:
                    break
            if reply[0] == 1:
                place = self.ops.place(self.client._node.id, reply[4])
                self.learn(self.ops.id_of(place, reply[2], "ffff"))
            return int(reply[0])

        self.fault = ""
        wanted, got, _ = self.both(lambda: self.model.enqueue([body]), queue)
        assert got == {"full": -3, "paused": -4}.get(str(wanted), 1)

    # -- delivering ------------------------------------------------------------------------

    @rule(lives=st.lists(TTLS, min_size=1, max_size=4), n=st.integers(1, 4), tag=TAGS)
    def produce_and_consume(self, lives: list[int | None], n: int, tag: int) -> None:
        """Some jobs more, and some of them held."""
        self.begin_with(lives, n, tag)

    @call(n=st.sampled_from([1, 1, 2, 3, 10, 200]), tag=TAGS)
    def reserve(self, n: int, tag: int) -> None:
        """Take jobs."""
        self.reserve_some(n, tag)

    def reserve_some(self, n: int, tag: int) -> None:
        """Take jobs from both."""
        self.bench.dice.tag = tag

        def model() -> list[ModelJob]:
            while True:
                taken, more = self.model.reserve(n, tag)
                if taken or not more:
                    return taken

        def unseen() -> list[ModelJob]:
            return self.model.reserve(n, tag)[0]  # leased, and nobody knows

        first = unseen if self.fault == "after" else model
        wanted, got, _ = self.both(first, lambda: self.queue.reserve(n, block=0), model)
        self.received(wanted, got)
        self.check_rearmed("reserve left something")

    def check_rearmed(self, why: str) -> None:
        """A reserve that leaves something to take leaves a token."""
        if self.model.paused == "in":
            left = any(job.place == "ready" for job in self.model.jobs.values())
        else:
            left = not self.model.paused and bool(self.model.listed("ready"))
        if left:
            self.must_wake = why

    @rule(n=st.sampled_from([0, 1, 2]), tag=TAGS)
    def wake_up(self, n: int, tag: int) -> None:
        """A consumer takes the wake token and reserves."""
        if not self.raw.lpop(self.ops.keys["wake"]):
            return
        self.bench.dice.tag = tag
        self.fault = ""
        (wanted, more), got, _ = self.both(
            lambda: self.model.reserve(n, tag),
            lambda: self.client._driver.reserve(self.ops, n, idle=True),
        )
        self.received(wanted, got.deliveries)
        self.check_rearmed("whoever was woken left something")
        events = [
            job.at - self.model.now
            for job in self.model.jobs.values()
            if job.place in ("scheduled", "active")
        ]
        if self.model.paused in ("out", "all"):
            assert got.next_ms == -1
        elif not self.model.paused:
            assert got.next_ms == (0 if more else min(events, default=-1))
            if (wanted or n == 0) and events and min(events) <= TICK_MS:
                self.must_wake = "whoever was told of an event leaves the wait"

    # -- settling --------------------------------------------------------------------------

    def settle_with(
        self,
        picks: Iterable[tuple[int, str]],
        model: Callable[[list[Name]], Sequence[Any]],
        queue: Callable[[list[Any]], Sequence[Any]],
        gone: bool = False,
    ) -> list[Any]:
        """Name jobs in a call, and compare the outcome of each; what the (last) sending did."""
        names, jobs, current = self.named(picks)
        if not jobs:
            return []
        if not current:
            with pytest.raises(WrongEpoch):
                queue(jobs)
            return []
        plain, got, resent = self.both(lambda: list(model(names)), lambda: list(queue(jobs)))
        mine = Outcome.GONE if gone else Outcome.ENDED
        told = [Outcome.DONE if resent and outcome is mine else outcome for outcome in plain]
        assert got == told
        return plain

    @call(picks=PICKS)
    def ack(self, picks: list[tuple[int, str]]) -> None:
        """Finish jobs."""
        self.settle_with(picks, self.model.ack, self.queue.ack, gone=True)

    @call(picks=PICKS, n=st.sampled_from([1, 2, 10]), tag=TAGS)
    def settle(self, picks: list[tuple[int, str]], n: int, tag: int) -> None:
        """Finish jobs and take others."""
        names, jobs, current = self.named(picks)
        self.bench.dice.tag = tag
        if not current:
            with pytest.raises(WrongEpoch):
                self.queue.settle(jobs, n)
            return

        (outcomes, wanted), (settled, got), resent = self.both(
            lambda: self.model.settle(names, n, tag), lambda: self.queue.settle(jobs, n)
        )
        if resent:
            outcomes = [Outcome.DONE if o is Outcome.GONE else o for o in outcomes]
        assert list(settled) == outcomes
        self.received(wanted, got)
        self.check_rearmed("settle left something")

    @call(
        picks=PICKS, delay=st.one_of(st.none(), DELAYS), error=st.sampled_from(["", "no", "a\nb"])
    )
    def nack(self, picks: list[tuple[int, str]], delay: int | None, error: str) -> None:
        """Report failures."""
        seconds = None if delay is None else delay / 1000
        done = self.settle_with(
            picks,
            lambda names: self.model.nack(names, delay, error),
            lambda jobs: self.queue.nack(jobs, delay=seconds, error=error),
        )
        self.take_over_drawn()
        if Outcome.DONE in done and delay == 0 and not self.model.paused:
            self.must_wake = "a job was nacked"

    @call(picks=PICKS, delay=DELAYS)
    def release(self, picks: list[tuple[int, str]], delay: int) -> None:
        """Give jobs back."""
        done = self.settle_with(
            picks,
            lambda names: self.model.release(names, delay),
            lambda jobs: self.queue.release(jobs, delay=delay / 1000),
        )
        if Outcome.DONE in done and delay == 0 and not self.model.paused:
            self.must_wake = "a job was released"

    @call(picks=PICKS, reason=st.sampled_from(["", "poison", "é" * 600]))
    def bury(self, picks: list[tuple[int, str]], reason: str) -> None:
        """Give jobs up."""
        kept = reason.encode()[:1024].decode()
        self.settle_with(
            picks,
            lambda names: self.model.bury(names, kept),
            lambda jobs: self.queue.bury(jobs, reason),
        )

    @call(picks=PICKS, lease=st.sampled_from([None, 1, 3_000, 80_000]))
    def extend(self, picks: list[tuple[int, str]], lease: int | None) -> None:
        """Renew leases."""

        def model(names: list[Name]) -> list[Any]:
            found = self.model.extend(names, lease)
            return [x if isinstance(x, Outcome) else x / 1000 for x in found]

        names, jobs, current = self.named(picks)
        if not current:
            return
        seconds = None if lease is None else lease / 1000
        wanted, got, _ = self.both(lambda: model(names), lambda: self.queue.extend(jobs, seconds))
        assert got == wanted

    def take_over_drawn(self) -> None:
        """Due times that were drawn by lot: within their bounds, and from now on the model's."""
        for job in self.model.jobs.values():
            if job.drawn is not None:
                number = b"%d-%d" % job.number
                due = int(self.raw.zscore(self.ops.keys["scheduled"], number) or 0)
                assert due in job.drawn
                job.at, job.drawn = due, None

    # -- removing, bringing back -----------------------------------------------------------

    @call(picks=st.one_of(st.none(), PICKS), limit=st.sampled_from([None, 1, 2]))
    def redrive(self, picks: list[tuple[int, str]] | None, limit: int | None) -> None:
        """Bring dead letters back: by name, or the oldest."""
        names, jobs, current = self.named(picks or [])
        if picks is None:
            wanted, got, _ = self.both(
                lambda: self.model.redrive(None, limit), lambda: self.queue.redrive(limit=limit)
            )
        elif current:
            named = [number for number, _ in names]
            wanted, got, resent = self.both(
                lambda: self.model.redrive(named), lambda: self.queue.redrive(jobs)
            )
            if resent:  # whatever is alive now may be so by the first sending
                alive = {number for number, job in self.model.jobs.items() if job.place != "dead"}
                wanted = len(alive.intersection(named))
        else:
            with pytest.raises(WrongEpoch):
                self.queue.redrive(jobs)
            return
        self.redriven(wanted, got)

    def redriven(self, wanted: int, got: int) -> None:
        """Compare, and expect a token."""
        assert got == wanted
        if got and not self.model.paused:
            self.must_wake = "dead letters were brought back"

    @call(picks=PICKS)
    def delete(self, picks: list[tuple[int, str]]) -> None:
        """Remove jobs by name."""
        self.settle_with(
            picks,
            lambda names: self.model.delete(number for number, _ in names),
            self.queue.delete,
            gone=True,
        )

    @call(states=st.lists(st.sampled_from(STATES), unique=True, max_size=4))
    def purge(self, states: list[str]) -> None:
        """Remove all jobs of some states."""
        chosen = states or ["ready", "scheduled"]
        first = 0 if self.fault == "after" else None  # only the first step is run twice
        wanted, got, _ = self.both(
            lambda: self.model.purge(chosen, first),
            lambda: self.queue.purge(*states),
            lambda: self.model.purge(chosen),
        )
        assert got == wanted

    @call()
    def sweep(self) -> None:
        """Give back what has ended."""
        existed = self.model.exists

        quiet = self.meta("seen")[0]

        def step() -> tuple[int, bool]:
            return self.model.sweep(self.model.now - quiet)

        def model() -> int:
            total, more = 0, True
            while more:
                removed, more = step()
                total += removed
            return total

        first: Callable[[], Any] = step if self.fault == "after" else model
        wanted, got, _ = self.both(first, self.queue.sweep, model)
        self.has_changed = False  # a sweep that keeps a queue alive would never end its life
        assert got == wanted
        if existed and not self.model.exists:
            self.life += 1
            self.by_number.clear()
            self.latest_seen = 0

    # -- settings --------------------------------------------------------------------------

    @call(values=SETTINGS)
    def configure(self, values: dict[str, int | None]) -> None:
        """Change settings."""
        given: dict[str, Any] = {
            name: value / 1000 if value is not None and SETTING_KINDS[name] != "count" else value
            for name, value in values.items()
        }
        _, got, _ = self.both(
            lambda: self.model.configure(values), lambda: self.queue.configure(**given)
        )
        assert got == self.settings()
        self.check_rearmed("the queue was configured")

    @call(side=st.sampled_from(["in", "out", "all", "", "", "", ""]))
    def pause(self, side: str) -> None:
        """Pause a side, or resume."""
        if side:
            self.both(lambda: self.model.pause(side), lambda: self.queue.pause(side))
        else:
            self.both(lambda: self.model.pause(""), self.queue.resume)
            self.must_wake = "the queue was resumed"

    # -- time and failures -----------------------------------------------------------------

    @rule(span=SPANS)
    def time_passes(self, span: int) -> None:
        """The clock goes on."""
        self.clock.set(self.clock.ms + span)

    @rule(pick=st.integers(0, 9), early=st.sampled_from([0, 0, 1]))
    def time_comes(self, pick: int, early: int) -> None:
        """The clock goes on to the time of an event, or 1 ms before it."""
        self.set_model_clock()
        times = {job.at for job in self.model.jobs.values()}
        times |= {job.expires for job in self.model.jobs.values() if job.expires is not None}
        future = sorted(at for at in times if at - early > self.model.now)
        if pick < len(future):
            self.clock.set(self.clock.ms + future[pick] - early - self.model.now)

    @rule(span=st.sampled_from([1, 300, 999, 5_000, 100_000]))
    def clock_steps_back(self, span: int) -> None:
        """The server's clock is set back."""
        self.clock.set(self.clock.ms - span)

    @rule(state=st.sampled_from(STATES), n=st.integers(1, 5), start=st.integers(0, 4))
    def peek(self, state: str, n: int, start: int) -> None:
        """A part of a list."""
        self.set_model_clock()
        views = self.queue.peek(n, state=state, start=start)
        assert [view.id for view in views] == [
            self.by_number[job.number].id for job in self.model.listed(state)[start : start + n]
        ]
