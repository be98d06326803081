"""Schedules against a plain model: workers that tick, crash and are late, in any order.

Several workers run their flows (`worker/schedules.py`) on one server whose clock the test sets.
A worker may be killed before or after any of its calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakeredis
import hypothesis.strategies as st
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
from penstock.core.calls import Call
from penstock.core.logs import get_logger
from penstock.core.operations import QueueOps
from penstock.core.refusals import refusal
from penstock.core.schedules import MISSED_MS, NewSchedule, Spec, check_spec, new_schedule
from penstock.errors import PenstockError
from penstock.wire.keys import QueueKeys
from penstock.worker.schedules import LOOK, Ticker, run_ticks
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
        args = call.args if call.queue is None else (PRODUCER, *call.args)
        source = frozen(call.script.source, self.now_ms)
        reply = self.raw.execute_command("EVAL", source, *call.head, self._nonce, *args)
        if reply[0] < 0:
            raise refusal("q", reply)
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
        flow: Any = run_ticks(self.ticker, ops, [ops], run, lambda: self.clock, LOG)
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
        self.skipped = 0


class ScheduleMachine(RuleBasedStateMachine):
    """Random interleavings."""

    @initialize(count=st.integers(2, 3), spec=st.sampled_from(SPECS))
    def begin(self, count: int, spec: Spec) -> None:
        """Start workers of a queue with a schedule."""
        self.server = Server()
        self.workers = [Worker(self.server) for _ in range(count)]
        self.model: dict[str, Model] = {}
        self.seen: set[bytes] = set()
        self.steady = True
        """Return True if the server's clock has never gone back."""
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
                self.model[name].next = spec.after(self.server.now_ms)
        else:
            assert what == (flows.SAME if self.model[name].new == new else flows.REPLACED)
            assert not (what == flows.REPLACED and force)

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        """Remove a schedule."""
        reply = self.server.run(self.server.ops.unschedule(name))
        assert bool(reply.code) == (self.model.pop(name, None) is not None)

    @rule(name=st.sampled_from(NAMES), resume=st.booleans())
    def pause(self, name: str, resume: bool) -> None:
        """Pause or resume a schedule."""
        ops, now, one = self.server.ops, self.server.now_ms, self.model.get(name)
        next_ms = one.new.spec.after(now) if one is not None and resume else now + 1000
        call = ops.resume_schedule(name, next_ms) if resume else ops.pause_schedule(name)
        assert bool(self.server.run(call).code) == (one is not None)
        if one is not None and resume and one.next is None:
            one.next = next_ms
        elif one is not None and not resume:
            one.next = None

    @rule(ms=st.one_of(st.integers(1, 3000), st.integers(1, 200_000)))
    def time_passes(self, ms: int) -> None:
        """Let the clocks of the server and of the workers go on; no worker acts meanwhile."""
        self._pass(ms)

    def _pass(self, ms: int) -> None:
        self.server.now_ms += ms
        for worker in self.workers:
            worker.clock += ms / 1000

    @rule(ms=st.one_of(st.integers(-20_000, 20_000), st.integers(-(10**9), 10**9)))
    def the_clock_jumps(self, ms: int) -> None:
        """The server's clock is set; those of the workers are not."""
        self.server.now_ms = max(T0 - 10**9, self.server.now_ms + ms)
        if ms < 0:
            self.steady = False
            for one in self.model.values():
                one.ran.clear()  # after a jump back the times may come again

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
        self._following(one)

    def _moved(self, one: Model, stored: int) -> None:
        """The tick was skipped, or brought forward."""
        assert one.next is not None
        if stored < one.next:
            assert not self.steady or one.next > self.server.now_ms
            one.next = stored
            return
        one.skipped += 1
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
        """One worker acts for two looks: then no tick is due and none lies beyond its spec."""
        worker = self.workers[at % len(self.workers)]
        for _ in range(3):
            self._pass(int(LOOK * 1000) + 1)
            while worker.ticker.due_at <= worker.clock:
                self._turn(worker, None, after=False)
        for one in self.model.values():
            now_ms = self.server.now_ms
            assert one.next is None or one.next > now_ms
            assert one.next is None or one.next <= one.new.spec.after(now_ms + MISSED_MS)


def test_schedules_hold_against_the_model() -> None:
    """No interleaving of workers, changes, kills and clocks runs a tick twice, or loses one."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]  # of Hypothesis
        ScheduleMachine, settings=settings(at_most(40), stateful_step_count=25)
    )
