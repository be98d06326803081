"""Schedules against a plain model: workers that tick, crash and are late, in any order.

Several workers run their flows (`worker/schedules.py`) on one server whose clock the test sets.
A worker may be killed before or after any of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fakeredis
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.core import flows
from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.core.calls.refusals import refusal
from penstock.core.enqueuing.schedules import MISSED_MS, NewSchedule, Spec, check_spec, new_schedule
from penstock.core.jobs.logs import get_logger
from penstock.errors import PenstockError
from penstock.wire.keys import QueueKeys
from penstock.worker.schedules import SCHEDULE_CHECK_INTERVAL, TICK_LOOK_INTERVAL, Ticker, TickRun
from tests.protocol.clock import T0, frozen
from tests.support.profiles import at_most

PRODUCER = b"00000000445566ff"
LOG = get_logger("penstock.tests")
NAMES = ("a", "b")
SPECS = [
    check_spec(every=every, overlap=overlap, missed=missed)  # type: ignore[arg-type]  # a choice
    for every, overlap, missed in [
        (1, True, "one"), (7, True, "one"), (30, False, "one"), (90, True, "skip"),
        (3600, False, "skip"),
    ]
]  # fmt: skip
CRON = check_spec("*/2 * * * *", tz="Europe/Berlin", overlap=True)


class Server:
    """A server with a clock of its own, and the calls that reach it."""

    def __init__(self) -> None:
        self.raw: Any = fakeredis.FakeRedis(protocol=2)
        self.now_ms = T0
        self.ops = QueueOps(QueueKeys("q"), "tester", ())
        self._nonce = 0

    def run(self, call: Call[Any]) -> Any:
        """Run a call at the server's time.

        Raises:
            PenstockError: the script refuses it.
        """
        self._nonce += 1
        args = call.args if call.adds_to is None else (PRODUCER, *call.args)
        source = frozen(call.script.source, self.now_ms)
        reply = self.raw.execute_command("EVAL", source, *call.head, self._nonce, *args)
        if reply[0] < 0:
            raise refusal("q", reply, ())
        return call.parse(reply)

    def drive(self, flow: Any) -> Any:
        """Run a flow that has no effects but calls and entries of the registry."""
        try:
            effect = next(flow)
            while True:
                try:
                    told = self.run(effect.call) if isinstance(effect, flows.Run) else None
                except PenstockError as error:  # noqa: PERF203  # the flow decides about it
                    effect = flow.throw(error)
                else:
                    effect = flow.send(told)
        except StopIteration as end:
            return end.value


class Worker:
    """One worker: its ticker, and a clock that stands while the flow runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.ticker = Ticker(look_at=0.0)
        self.clock = 1000.0

    def steps(self) -> Iterator[Call[Any]]:
        """Yield each call of one turn before it is run."""

        def run(call: Call[Any]) -> Any:
            return (yield call)

        ops = self._server.ops
        ticks = TickRun(
            ticker=self.ticker,
            ops=ops,
            parts={ops: self.ticker},
            run_call=run,
            clock=lambda: self.clock,
            log=LOG,
        )
        flow: Any = ticks.run()
        told = None
        try:
            while True:
                call = flow.send(told)
                yield call
                told = self._server.run(call)
        except StopIteration:
            return

    def turn(self) -> None:
        """Make a whole turn."""
        for _ in self.steps():
            pass


class Model:
    """One schedule as the specification describes it."""

    def __init__(self, new: NewSchedule, now_ms: int) -> None:
        self.new = new
        self.next: int | None = new.spec.after(now_ms)
        self.ran: list[int] = []
        self.last = 0
        self.skipped = 0

    def first_tick(self, now_ms: int) -> int:
        """Return the first tick that has not run."""
        has_run = self.last if self.last <= now_ms + MISSED_MS else 0
        return self.new.spec.after(max(now_ms, has_run))


class ScheduleMachine(RuleBasedStateMachine):
    """Random interleavings."""

    @initialize(count=st.integers(2, 3), spec=st.sampled_from(SPECS))
    def begin(self, count: int, spec: Spec) -> None:
        """Start workers of a queue with a schedule."""
        self.server = Server()
        self.workers = [Worker(self.server) for _ in range(count)]
        self.model: dict[str, Model] = {}
        self.seen: set[bytes] = set()
        self.latest = T0
        """The highest time of the server's clock since it last went back far."""
        self.store("a", spec, False)

    def _spec(self, name: str) -> Spec:
        return self.model[name].new.spec

    # -- rules -----------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), spec=st.sampled_from([*SPECS, CRON]), force=st.booleans())
    def store(self, name: str, spec: Spec, force: bool) -> None:
        """Create or replace a schedule."""
        new = new_schedule(name, name, spec, None)
        what = self.server.drive(flows.schedule(self.server.ops, new, force=force))
        if name not in self.model:
            self.model[name] = Model(new, self.server.now_ms)
            assert what == 1
        elif what == 2:
            self.model[name].new = new
            if self.model[name].next is not None:
                self.model[name].next = self.model[name].first_tick(self.server.now_ms)
        else:
            assert what == (
                flows.SCHEDULE_UNCHANGED if self.model[name].new == new else flows.SCHEDULE_OUTDATED
            )
            assert not (what == flows.SCHEDULE_OUTDATED and force)

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        """Remove a schedule."""
        reply = self.server.run(self.server.ops.unschedule(name))
        assert bool(reply.code) == (self.model.pop(name, None) is not None)

    @rule(name=st.sampled_from(NAMES), resume=st.booleans())
    def pause(self, name: str, resume: bool) -> None:
        """Pause or resume a schedule."""
        ops, now, one = self.server.ops, self.server.now_ms, self.model.get(name)
        listed = self.server.run(ops.schedules(names=[name]))
        next_ms = listed.entries[0].first_tick(now) if listed.entries else now + 1000
        call = ops.resume_schedule(name, next_ms) if resume else ops.pause_schedule(name)
        assert bool(self.server.run(call).code) == (one is not None)
        if one is not None and resume and one.next is None:
            one.next = one.first_tick(now)
        elif one is not None and not resume:
            one.next = None

    @rule(ms=st.one_of(st.integers(1, 3000), st.integers(1, 200_000)))
    def time_passes(self, ms: int) -> None:
        """Let the clocks of the server and of the workers go on; no worker acts meanwhile."""
        self._pass(ms)

    def _pass(self, ms: int) -> None:
        self._set_clock(self.server.now_ms + ms)
        for worker in self.workers:
            worker.clock += ms / 1000

    @rule(ms=st.one_of(st.integers(-20_000, 20_000), st.integers(-(10**9), 10**9)))
    def the_clock_jumps(self, ms: int) -> None:
        """The server's clock is set; those of the workers are not."""
        self._set_clock(max(T0 - 10**9, self.server.now_ms + ms))

    def _set_clock(self, now_ms: int) -> None:
        self.server.now_ms = now_ms
        if now_ms < self.latest - MISSED_MS:
            self.latest = now_ms
            for one in self.model.values():
                one.ran.clear()  # after a large step back the times may come again
        self.latest = max(self.latest, now_ms)

    @rule(at=st.integers(0, 2))
    def a_worker_acts(self, at: int) -> None:
        """A worker makes a turn."""
        self._turn(self.workers[at % len(self.workers)], None, after=False)

    @rule(at=st.integers(0, 2), stop=st.integers(0, 5), after=st.booleans())
    def a_worker_is_killed(self, at: int, stop: int, after: bool) -> None:
        """A worker dies before or after a call; another one starts in its place."""
        at %= len(self.workers)
        self._turn(self.workers[at], stop, after=after)
        self.workers[at] = self._fresh(self.workers[at])

    def _fresh(self, dead: Worker) -> Worker:
        fresh = Worker(self.server)
        fresh.clock = dead.clock
        return fresh

    @rule(
        ms=st.integers(0, 2500),
        order=st.lists(st.integers(0, 2), max_size=12),
        dies=st.booleans(),
    )
    def workers_act_at_once(self, ms: int, order: list[int], dies: bool) -> None:
        """The calls of all workers are run in any order; one of them may stop half way."""
        self._pass(ms)
        turns = [worker.steps() for worker in self.workers]
        for which in order:
            next(turns[which % len(turns)], None)
            self._check()
        for turn in turns[dies:]:
            for _ in turn:
                self._check()
        if dies:
            self.workers[0] = self._fresh(self.workers[0])
        self._check()

    @rule()
    def the_last_jobs_end(self) -> None:
        """All jobs are finished."""
        self._check()
        self.server.raw.delete(self.server.ops.keys["ready"])

    def _turn(self, worker: Worker, stop: int | None, *, after: bool) -> None:
        for at, _ in enumerate(worker.steps()):
            self._check()
            if at == stop and not after:
                return
            if stop is not None and at == stop + 1:
                return
        self._check()

    # -- checks ----------------------------------------------------------------------------

    def _check(self) -> None:
        """Compare jobs and ticks with the model."""
        raw, keys = self.server.raw, self.server.ops.keys
        for number, fields in raw.xrange(keys["ready"]):
            if number not in self.seen:
                self.seen.add(number)
                head, _, body = fields[b"j"].partition(b"\n")
                tick = int(head.partition(b";h.scheduled_for=")[2].partition(b";")[0])
                self._ran(body.decode().strip('"'), tick)
        ticks = dict(raw.zrange(keys["ticks"], 0, -1, withscores=True))
        for name, one in self.model.items():
            stored = ticks.get(name.encode())
            if one.next is not None and stored != one.next:
                self._moved(one, int(stored or 0))
        wanted = {name.encode() for name, one in self.model.items() if one.next is not None}
        assert ticks.keys() == wanted

    def _ran(self, name: str, tick: int) -> None:
        one = self.model[name]
        assert tick not in one.ran, "a tick ran twice"
        assert tick == one.next, "a tick ran that was not the next one"
        assert tick <= self.server.now_ms, "a tick ran too early"
        one.ran.append(tick)
        one.last = tick
        self._following(one)

    def _moved(self, one: Model, stored: int) -> None:
        """The tick was skipped, or brought forward."""
        assert one.next is not None
        if stored < one.next:
            assert one.next > self.server.now_ms + MISSED_MS
            one.next = stored
            return
        one.skipped, one.last = one.skipped + 1, one.next
        assert not one.new.spec.overlap or one.new.spec.missed == "skip"
        self._following(one)
        assert one.next == stored

    def _following(self, one: Model) -> None:
        """Move the model's tick: to the next one, or past an outage that a worker has seen."""
        assert one.next is not None
        stored = self.server.raw.zscore(self.server.ops.keys["ticks"], one.new.name)
        tick, spec = one.next, one.new.spec
        believed = [worker.ticker.server_ms(worker.clock) for worker in self.workers]
        assert stored in {
            spec.after(now_ms if now_ms - tick > MISSED_MS else tick) for now_ms in believed
        }
        one.next = int(stored)

    @invariant()
    def jobs_and_ticks_are_those_of_the_model(self) -> None:
        """After each rule."""
        if hasattr(self, "server"):
            self._check()

    @precondition(lambda self: self.model)
    @rule(at=st.integers(0, 2))
    def a_worker_that_goes_on_loses_no_tick(self, at: int) -> None:
        """One worker acts for a minute: then no tick is due and none lies beyond its spec."""
        worker = self.workers[at % len(self.workers)]
        self._pass(int(SCHEDULE_CHECK_INTERVAL * 1000) + 1)
        self.go_on(worker)
        self.no_tick_lies_too_late()

    def go_on(self, worker: Worker) -> None:
        """Let one worker act for three looks."""
        for _ in range(3):
            self._pass(int(TICK_LOOK_INTERVAL * 1000) + 1)
            while worker.ticker.due_at <= worker.clock:
                self._turn(worker, None, after=False)

    def no_tick_lies_too_late(self) -> None:
        """No tick is due, and none lies beyond its spec."""
        for one in self.model.values():
            now_ms = self.server.now_ms
            assert one.next is None or one.next > now_ms
            assert one.next is None or one.next <= one.new.spec.after(now_ms + MISSED_MS)


def test_schedules_hold_against_the_model() -> None:
    """No interleaving of workers, changes, kills and clocks runs a tick twice, or loses one."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]  # of Hypothesis
        ScheduleMachine, settings=settings(at_most(40), stateful_step_count=25)
    )


def started(spec: Spec) -> ScheduleMachine:
    """Return a queue with a schedule and two workers; the second one has looked at it."""
    machine = ScheduleMachine()
    machine.begin(count=2, spec=spec)
    machine.a_worker_acts(1)
    return machine


@pytest.mark.parametrize("spec", [*SPECS, CRON], ids=lambda spec: spec.text)
@pytest.mark.parametrize("at", [0, 1])
def test_a_clock_that_steps_forward_and_back_by_less(at: int, spec: Spec) -> None:
    """Each worker brings the tick forward with its next look. The second one has only seen that
    the clock steps forward.
    """
    machine = started(spec)
    machine.the_clock_jumps(707_327)
    machine.a_worker_acts(0)
    machine.time_passes(1)
    machine.the_clock_jumps(-348_921)
    machine.go_on(machine.workers[at])
    machine.no_tick_lies_too_late()


def act(machine: ScheduleMachine) -> None:
    """The first worker looks at the ticks."""
    machine.a_worker_acts(0)


def pause_and_resume(machine: ScheduleMachine) -> None:
    """A client pauses the schedule and resumes it."""
    machine.pause("a", resume=False)
    machine.pause("a", resume=True)


def replace(machine: ScheduleMachine) -> None:
    """A client replaces the schedule."""
    machine.store("a", check_spec(every=2), force=False)


@pytest.mark.parametrize("change", [pause_and_resume, replace])
def test_a_change_after_a_small_step_back_repeats_no_tick(
    change: Callable[[ScheduleMachine], None],
) -> None:
    """The next tick of a schedule that is resumed or replaced is later than those that have run."""
    machine = started(check_spec(every=1, overlap=True))
    machine.go_on(machine.workers[1])
    machine.the_clock_jumps(-8_000)
    change(machine)
    machine.go_on(machine.workers[1])
    assert len(machine.model["a"].ran) > 8


@pytest.mark.parametrize("steps", [(700_000, -700_000), (700_000, *[-28_000] * 25)], ids=len)
@pytest.mark.parametrize("meanwhile", [act, pause_and_resume, replace])
def test_a_tick_that_was_stored_by_a_wrong_time(
    meanwhile: Callable[[ScheduleMachine], None], steps: Sequence[int]
) -> None:
    """A worker that has not seen this time, or no step of more than 28 s since, brings the tick
    forward within a minute.
    """
    machine = started(check_spec(every=1, overlap=True))
    machine.the_clock_jumps(steps[0])
    meanwhile(machine)
    for step in steps[1:]:
        machine.the_clock_jumps(step)
        if len(steps) > 2:
            machine.a_worker_acts(0)
            machine.time_passes(int(TICK_LOOK_INTERVAL * 1000) + 1)
    machine.a_worker_that_goes_on_loses_no_tick(1)


def test_a_check_of_many_schedules() -> None:
    """A worker compares all schedules at once when it starts and after a step of the clock.
    Otherwise it begins a minute later, and reads one page with each look.
    """
    machine = started(check_spec(every=3600))
    for n in range(50):
        new = new_schedule(f"s{n}", "", check_spec(every=3600), None)
        machine.server.drive(flows.schedule(machine.server.ops, new))
    worker = machine._fresh(machine.workers[0])

    def pages(ms: int) -> int:
        """Return how many pages the worker reads with its look after this time."""
        machine.server.now_ms += ms
        worker.clock += ms / 1000
        cursors = [call.args[0] for call in worker.steps() if call.script.name == "schedules"]
        return sum(not str(cursor).startswith("+") for cursor in cursors)

    look_ms = int(TICK_LOOK_INTERVAL * 1000)
    a_round = pages(0)
    assert a_round >= 3
    assert pages(look_ms) == 0
    assert [pages(ms) for ms in [60_000, *[look_ms] * a_round]] == [1] * a_round + [0]
    for step in (31_000, -31_000):
        machine.server.now_ms += step
        assert pages(look_ms) == a_round
