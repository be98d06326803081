"""Hypothesis runs a queue and its model with the same calls, and compares everything visible."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock import Outcome, WrongEpoch
from penstock.core.jobs.queue_stats import SETTING_KINDS
from tests.model.consuming import Consuming
from tests.model.draws import (
    ACTIONS,
    ACTS,
    ID_ACTIONS,
    ID_START,
    LIMITS,
    PICKS,
    SETTINGS,
    SHAPES,
    SIDES,
    SPANS,
    UNDISTURBED,
    WAITING,
    WRONG,
    Acts,
    Shape,
    call,
)
from tests.model.jobs import NEVER, ModelJob, Number
from tests.model.side import STATES
from tests.model.waiting import TAGS

__all__ = ["IdsMachine", "QueueMachine"]


class QueueMachine(Consuming):
    """All calls on a queue, and all events."""

    # -- several calls
    # ------------------------------------------------------------------------------

    @initialize(shape=SHAPES, limits=LIMITS, tag=TAGS, side=SIDES, acts=ACTS)
    def begin(
        self, shape: Shape, limits: dict[str, int | None], tag: int, side: str, acts: Acts
    ) -> None:
        """Start most queues with jobs in several places; some allow few failures."""
        if limits:
            self.configure(fault="", values=limits)
        self.fill(shape, tag, side, acts)

    @rule(shape=SHAPES, tag=TAGS, side=SIDES, acts=ACTS)
    def fill_and_act(self, shape: Shape, tag: int, side: str, acts: Acts) -> None:
        """Add some more jobs in several places, and make a call about them."""
        self.fill(shape, tag, side, acts)

    @rule(seed=st.integers(0, 1 << 32), count=st.sampled_from([5, 20, 60, 60]))
    def ids_and_act(self, seed: int, count: int) -> None:
        """Let jobs with dedup ids meet each other and their ends, chosen at random."""
        lot = random.Random(seed)
        self.open_up()
        hows = ("receipt", "receipt", "old receipt", "id")
        for at in range(count):
            if at % 15 == 0:  # one is held, another one waits, and time decides between them
                self.act([(name, [(0, "id")], lot.randrange(1 << 30)) for name in ID_START])
            picks = [(lot.choice([0, 0, 0, 1, 1, 2, 5]), lot.choice(hows))]
            picks += picks if lot.random() < 0.1 else [(1, "id")] if lot.random() < 0.2 else []
            self.act([(lot.choice(ID_ACTIONS), picks, lot.randrange(1 << 30))])

    def fill(self, shape: Shape, tag: int, side: str, acts: Acts) -> None:
        """Add jobs, perhaps pause, and make several calls."""
        self.open_up()
        self.fill_with(shape, tag)
        if side == "drained":
            self.purge(fault="", states=["ready", "scheduled"])
        if side in ("closed", "drained"):
            self.close(fault="", closed=True)
        elif side:
            self.pause(fault="", side=side)
        self.act(acts)

    def open_up(self) -> None:
        """Make adding and delivering possible."""
        if self.model.paused:
            self.pause(fault="", side="")
        if self.model.closed:
            self.close(fault="", closed=False)

    def act(self, acts: Acts) -> None:
        """Make several calls, all with equal probability, as rules are drawn unevenly."""
        for name, picks, k in acts:
            values = {}
            for key, choices in ACTIONS[name].items():
                k, at = divmod(k, len(choices))
                values[key] = choices[at]
            if "picks" in values and values["picks"] is not None:
                values["picks"] = picks
            if name not in UNDISTURBED:
                values["fault"] = ""
            getattr(self, name)(**values)
            self.jobs_agree()
            self.ids_agree()
            self.tokens_are_there()
            self.no_consumer_misses_a_job()
            self.ends_are_told()

    def fill_with(self, shape: Shape, tag: int) -> None:
        """Add jobs, each with a lease, a ttl and a fate; delivered ones come first."""
        for fate, lease, ttl, retry in sorted(shape, key=lambda part: part[0] in WAITING):
            own = {"once": 0, "ended": 1}.get(fate, lease)
            life = 50_000 if own == 0 and ttl is None else ttl
            delay = WAITING.get(fate, 0)
            self.add([self.body()], delay, None, own, life, None, retry, many=False)
            if fate not in WAITING:
                self.reserve_some(1, tag)
                self.end_last(fate)
        self.tokens_are_there()
        self.clock.set(self.clock.ms + 2)  # a job due in 1 ms becomes due

    def end_last(self, fate: str) -> None:
        """End the last delivery, if its job has that fate."""
        job = self.model.jobs.get(self.known[-1].number) if self.known else None
        if job is None or job.place != "active" or not self.known[-1].deliveries:
            return
        delivery = self.known[-1].deliveries[-1]
        name = (job.number, (job.deliveries, job.tag))
        if fate == "dead":
            self.both(lambda: self.model.bury([name], "why"), lambda: delivery.bury("why"))
        elif fate == "failed":
            self.both(
                lambda: self.model.nack([name], 3_000, "no"),
                lambda: delivery.nack(delay=3, error="no"),
            )
        elif fate == "returned":
            self.both(lambda: self.model.release([name], 0), delivery.release)

    # -- moving ----------------------------------------------------------------------------

    def move_with(
        self,
        picks: Iterable[tuple[int, str]],
        model: Callable[[Iterable[Number]], list[Outcome]],
        queue: Callable[[list[Any]], Sequence[Outcome]],
        mine: Outcome | None,
        fit: Sequence[str],
    ) -> list[Outcome]:
        """Name jobs in a call that needs no receipt.

        Args:
            picks: which.
            model, queue: the call.
            mine: outcome of a second sending for jobs that the first one changed.
            fit: which jobs to pick first.
        """
        names, jobs, current = self.named(picks, fit)
        if not jobs:
            return []
        if not current:
            with pytest.raises(WrongEpoch):
                queue(jobs)
            return []
        wanted, got, resent = self.both(
            lambda: model(number for number, _ in names), lambda: list(queue(jobs))
        )
        assert got == [Outcome.DONE if resent and x is mine else x for x in wanted]
        return wanted

    @call(picks=PICKS)
    def promote(self, picks: list[tuple[int, str]]) -> None:
        """Promote jobs."""
        done = self.move_with(
            picks, self.model.promote, self.queue.promote, Outcome.REFUSED, ["scheduled", "active"]
        )
        if Outcome.DONE in done and not self.model.paused:
            self.must_wake = "a job was brought forward"

    @call(picks=PICKS)
    def postpone(self, picks: list[tuple[int, str]]) -> None:
        """Set jobs aside for their lease."""
        self.move_with(picks, self.model.dequeue, self.queue.postpone, Outcome.REFUSED, ["ready"])

    @call(picks=PICKS)
    def withdraw(self, picks: list[tuple[int, str]]) -> None:
        """Withdraw jobs that were never delivered."""
        self.move_with(
            picks,
            self.model.withdraw,
            partial(self.queue.delete, if_undelivered=True),
            Outcome.GONE,
            ["scheduled", "ready"],
        )

    @call(n=st.sampled_from([1, 1, 2, 3, 100]), dead=st.booleans())
    def evict(self, n: int, dead: bool) -> None:
        """Evict jobs."""

        def evict() -> int:  # only the script: `Queue.sweep` sweeps before
            reply = self.client.topology.executor.run(self.ops.evict(n, letters=dead))
            return reply.once + reply.dead

        wanted, got, _ = self.both(lambda: self.model.evict(n, dead), evict)
        assert got == wanted

    # -- removing, redriving ---------------------------------------------------------------

    @call(picks=st.one_of(st.none(), PICKS), limit=st.sampled_from([None, 1, 2]))
    def redrive(self, picks: list[tuple[int, str]] | None, limit: int | None) -> None:
        """Redrive dead letters: by name, or the oldest."""
        names, jobs, current = self.named(picks or [], ["dead"])
        if picks is None:
            lost = self.fault == "after"
            wanted, got, resent = self.both(
                lambda: self.model.redrive(limit, step=lost),
                lambda: self.queue.redrive(limit=limit),
                lambda: self.model.redrive(limit),
            )
        elif current:
            outcomes, got, resent = self.both(
                lambda: self.model.redrive_these(number for number, _ in names),
                lambda: self.queue.redrive(jobs),
            )
            wanted = outcomes.count(Outcome.DONE)
            if resent:  # the first sending may have redriven the others
                wanted += outcomes.count(Outcome.REFUSED)
        else:
            with pytest.raises(WrongEpoch):
                self.queue.redrive(jobs)
            return
        assert got == wanted
        if got and not resent and not self.model.paused:
            self.must_wake = "dead letters were brought back"

    @call(picks=PICKS)
    def delete(self, picks: list[tuple[int, str]]) -> None:
        """Remove jobs by name."""
        self.move_with(picks, self.model.delete, self.queue.delete, Outcome.GONE, ["active"])

    @call(picks=PICKS)
    def cancel(self, picks: list[tuple[int, str]]) -> None:
        """Cancel jobs by name."""
        self.move_with(picks, self.model.cancel, self.queue.cancel, Outcome.GONE, ["active"])

    @call(states=st.lists(st.sampled_from([*STATES, "dependent"]), unique=True, max_size=5))
    def purge(self, states: list[str]) -> None:
        """Remove all jobs of some states."""
        chosen = states or ["ready", "scheduled", "parked"]
        first = 0 if self.fault == "after" else None  # only the first step is run twice
        wanted, got, _ = self.both(
            lambda: self.model.purge(chosen, first),
            lambda: self.queue.purge(*states),
            lambda: self.model.purge(chosen),
        )
        while admitted := self.model.purge_admitted(self.present()):
            wanted += admitted
        assert got == wanted

    @call(compacts=st.sampled_from([False, False, True]))
    def sweep(self, compacts: bool = False) -> None:
        """Sweep, and perhaps compact a sparse stream."""
        existed = self.model.exists
        self.clock.compacts = compacts
        self.clock.set(self.clock.ms)

        quiet = self.meta("seen")[0]
        self.set_model_clock()
        windows = self.raw.zcount(self.ops.keys["windows"], "-inf", self.model.now)

        def step() -> tuple[int, bool]:
            nonlocal windows
            closed, windows = windows, 0
            return self.model.sweep(self.model.now - quiet, compacts=compacts, closed=closed)

        def model() -> int:
            total, more = 0, True
            while more:
                removed, more = step()
                total += removed
            return total

        first: Callable[[], Any] = step if self.fault == "after" else model
        wanted, got, _ = self.both(first, self.queue.sweep, model)
        self.clock.compacts = False
        self.clock.set(self.clock.ms)
        self.has_changed = False  # a sweep that keeps a queue alive would prevent its removal
        assert got == wanted
        self.nothing_is_left()
        if existed and not self.model.exists:
            self.reset_after_removal()

    @call()
    def clear(self) -> None:
        """Remove the queue with all its data."""
        existed = self.model.exists
        wanted, got, _ = self.both(self.model.clear, self.queue.clear)
        assert got == wanted
        names = {*self.ops.keys.names} - {"finished"}
        assert not self.raw.exists(*(self.ops.keys[kind] for kind in names))
        # It ends by itself: until then it tells clients that wait for results.
        assert self.raw.pttl(self.ops.keys["finished"]) in (-2, *range(1, 60_001))
        self.has_changed, self.had = False, (0, 0)
        if existed:
            self.reset_after_removal()

    def reset_after_removal(self) -> None:
        """Reset the state after a removal: later jobs have another epoch."""
        self.life += 1
        self.is_prioritised = False
        self.by_number.clear()
        self.latest_seen = 0

    # -- settings --------------------------------------------------------------------------

    @call(values=SETTINGS)
    def configure(self, values: dict[str, int | None]) -> None:
        """Change settings."""
        if self.is_prioritised:  # then an order of keys is refused
            values = {name: value for name, value in values.items() if name != "ordered"}
        given: dict[str, Any] = {
            name: value / 1000 if value and SETTING_KINDS[name] in ("lease", "duration") else value
            for name, value in values.items()
        }
        for name in ("rate", "key_rate"):
            if given.get(name):
                given[name] = f"1/{values[name]}ms"
        if given.get("ordered"):
            given["ordered"] = True
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

    @call(span=st.sampled_from([0, 0, 1, 500, 3_000, 20_000]))
    def hold(self, span: int) -> None:
        """Hold the queue, or end a hold."""
        before = self.model.held_until
        wanted, got, _ = self.both(
            lambda: self.model.hold(span), lambda: self.queue.hold(span / 1000)
        )
        assert got == wanted
        if before > self.model.now:
            self.check_rearmed("a hold was ended")

    @call(closed=st.sampled_from([True, False, False]))
    def close(self, closed: bool) -> None:
        """Close the queue, or reopen it, and check if it is drained."""
        call = self.queue.close if closed else self.queue.reopen
        self.both(lambda: self.model.close(closed), call)
        self.tokens_are_there()
        self.reserve_some(1, 5)
        self.tokens_are_there()

    # -- time and failures -----------------------------------------------------------------

    @rule(span=SPANS)
    def time_passes(self, span: int) -> None:
        """Advance the clock."""
        self.clock.set(self.clock.ms + span)

    @rule(pick=st.integers(0, 9), early=st.sampled_from([0, 0, 1]))
    def time_comes(self, pick: int, early: int) -> None:
        """Advance the clock to the time of an event, or 1 ms before it."""
        self.set_model_clock()
        times = {job.at for job in self.model.jobs.values() if job.at != NEVER}
        times |= {one.end for one in self.model.ids.values()}
        lives = [(job.number[0], job.ttl) for job in self.model.jobs.values() if job.ttl]
        times |= {created + ttl for created, ttl in lives}
        times |= {created + ttl // 2 for created, ttl in lives}  # later an extend is too late
        future = sorted(at for at in times if at - early > self.model.now)
        if pick < len(future):
            self.clock.set(self.clock.ms + future[pick] - early - self.model.now)

    @rule(span=st.sampled_from([1, 300, 999, 5_000, 100_000]))
    def clock_steps_back(self, span: int) -> None:
        """Set the server's clock back."""
        self.timer = None
        self.clock.set(self.clock.ms - span)

    @rule(span=st.sampled_from([-WRONG, -4_000_000, 4_000_000, WRONG]), acts=ACTS)
    def clock_is_wrong(self, span: int, acts: Acts) -> None:
        """Set the server's clock to a wrong time, and then back."""
        self.clock_jumps(span)
        self.act(acts)
        self.clock_jumps(-span)

    # -- reading -----------------------------------------------------------------------------

    @call()
    def look(self) -> None:
        """Read all stats, which changes nothing, and the lists of all states."""
        _, stats, _ = self.both(lambda: None, self.queue.stats)
        self.has_changed = False  # reading stores no time, as it would keep an unused queue alive
        self.counted(stats)
        assert stats.closed == self.model.closed
        for state in STATES:
            self.look_at(state, 1000, 0, newest=False)
            self.look_at(state, 1000, 0, newest=True)
            self.look_at(state, 2, -2, newest=False)

    @call(
        state=st.sampled_from(STATES),
        n=st.integers(1, 5),
        start=st.integers(-6, 4),
        newest=st.booleans(),
    )
    def peek(self, state: str, n: int, start: int, newest: bool) -> None:
        """Read a part of a list, from either end."""
        self.look_at(state, n, abs(start) if newest else start, newest=newest)

    def look_at(self, state: str, n: int, start: int, *, newest: bool) -> None:
        """Read a part of a list."""

        def model() -> list[ModelJob]:
            self.model.expire()
            jobs = self.model.listed(state)
            if newest:
                return jobs[::-1][start : start + n]
            if start < 0:
                return jobs[start:][:n] if -start <= len(jobs) else []
            return jobs[start : start + n]

        wanted, got, _ = self.both(
            model, lambda: self.queue.peek(n, state=state, start=start, newest=newest)
        )
        self.has_changed = False
        self.peeked(got, wanted)

    @rule(
        n=st.sampled_from([1, 2, 7, 100]),
        states=st.lists(st.sampled_from(STATES), unique=True, min_size=1),
        full=st.booleans(),
    )
    def scan(self, n: int, states: list[str], full: bool) -> None:
        """Scan every job of some states, in steps of any size."""
        self.set_model_clock()
        self.scanned(n, states, full=full)


class IdsMachine(QueueMachine):
    """Runs that begin with jobs with few dedup ids, and their ends."""

    @initialize(seed=st.integers(0, 1 << 32))
    def begin_with_ids(self, seed: int) -> None:
        """Begin with many such events, perhaps after some jobs without ids."""
        self.ids_and_act(seed=seed, count=60)
