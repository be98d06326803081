"""Schedules whose code is gone, by the flows of workers on a server whose clock the test sets."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import pytest

from penstock.core import flows
from penstock.core.calls.call import Call
from penstock.core.enqueuing.schedules import (
    NewSchedule,
    StoredSchedule,
    check_spec,
    new_schedule,
)
from penstock.core.jobs.logs import get_logger
from penstock.worker.schedules import KEEP_INTERVAL, Ticker, TickRun
from tests.model.test_schedules import Server

MINUTE_MS = 60_000


def declared(*names: str, app: str = "shop", every: str = "1h") -> list[NewSchedule]:
    """Return schedules that the handlers of an app declare."""
    return [new_schedule(name, "x", check_spec(every=every), None, app) for name in names]


class App:
    """A worker of an app: it looks when the test says so."""

    def __init__(
        self, server: Server, own: Iterable[NewSchedule] = (), *, app: str = "shop"
    ) -> None:
        self.server = server
        self.start_ms = server.now_ms
        self.calls = list[str]()
        self.ticker = Ticker(list(own), 0.0, apps=frozenset([app]))

    def clock(self) -> float:
        """Return its time: it passes with that of the server."""
        return 1000.0 + (self.server.now_ms - self.start_ms) / 1000

    def _run(self, call: Call[Any]) -> Generator[Any, Any, Any]:
        self.calls.append(call.script.name)
        return (yield flows.Run(call))

    def turn(self) -> None:
        """Do all that is due now."""
        ops = self.server.ops
        ticks = TickRun(
            ticker=self.ticker,
            ops=ops,
            parts={ops: self.ticker},
            run_call=self._run,
            clock=self.clock,
            log=get_logger("penstock.tests"),
        )
        self.ticker.learn(has_schedules=True)
        while self.ticker.due_at <= self.clock():
            self.server.drive(ticks.run())


@pytest.fixture
def server() -> Server:
    """An empty server."""
    return Server()


def entry(server: Server, name: str) -> StoredSchedule:
    """Return a stored schedule."""
    [found] = server.run(server.ops.schedules(names=[name])).entries
    assert isinstance(found, StoredSchedule)
    return found


def go_on(server: Server, *apps: App, seconds: float = 90) -> None:
    """Let time pass; these workers look every five seconds."""
    for _ in range(int(seconds) // 5):
        server.now_ms += 5000
        for app in apps:
            app.turn()


def waiting(server: Server) -> int:
    """Return how many jobs schedules have added."""
    return int(server.raw.xlen(server.ops.keys["ready"]))


def test_a_schedule_whose_handler_was_removed_waits(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A minute after its last worker has ended. One warning names it, and no job is added."""
    App(server, declared("extra", "other", every="30s")).turn()
    new = App(server, declared("other", every="30s"))
    new.turn()
    assert not entry(server, "extra").is_orphaned
    go_on(server, new, seconds=300)
    assert entry(server, "extra").is_orphaned
    assert entry(server, "extra").runs <= 2
    assert entry(server, "other").runs + entry(server, "other").skipped >= 9
    assert len([text for text in caplog.messages if "extra" in text]) == 1
    assert "schedules.remove(name)" in caplog.text


def test_old_and_new_workers_side_by_side(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A schedule is not touched while a worker runs that declares it, whichever is newer."""
    old, new = App(server, declared("extra")), App(server)
    go_on(server, old, new, seconds=300)
    again = App(server, declared("extra"))
    go_on(server, again, new, seconds=300)
    assert not entry(server, "extra").is_orphaned
    assert not caplog.messages
    go_on(server, new)
    assert entry(server, "extra").is_orphaned
    assert len(caplog.messages) == 1


def test_an_older_worker_leaves_a_new_schedule(server: Server) -> None:
    """As long as a newer one runs."""
    old, new = App(server), App(server, declared("extra"))
    old.turn()
    go_on(server, new, old, seconds=300)
    assert not entry(server, "extra").is_orphaned


@pytest.mark.parametrize("every", ["30s", "2h"])
def test_a_schedule_that_comes_back_with_its_code(server: Server, every: str) -> None:
    """It runs again with its counts, also if it comes back as an older version."""
    App(server, declared("extra", every=every)).turn()
    App(server, declared("extra", every="7h")).turn()
    newest = App(server)
    go_on(server, newest)
    assert entry(server, "extra").is_orphaned
    back = App(server, declared("extra", every=every))
    back.turn()
    found = entry(server, "extra")
    assert not found.is_orphaned
    assert found.spec == check_spec(every=every)
    go_on(server, back, newest, seconds=200)
    assert not entry(server, "extra").is_orphaned


def test_a_tick_that_waited_is_made_up_for(server: Server) -> None:
    """One job stands for all ticks that a schedule has missed while it was orphaned."""
    App(server, declared("extra", every="5m")).turn()
    server.now_ms += 100_000
    other = App(server)
    go_on(server, other, seconds=100)
    server.now_ms += 3_600_000
    assert waiting(server) == 0
    back = App(server, declared("extra", every="5m"))
    go_on(server, back, seconds=5)
    assert (waiting(server), entry(server, "extra").runs) == (1, 1)


@pytest.mark.parametrize("app", ["", "another"])
def test_schedules_of_others_are_left(server: Server, app: str) -> None:
    """Those of another app, and those that no app declares."""
    for new in declared("extra", app=app):
        server.drive(flows.schedule(server.ops, new))
    worker = App(server)
    go_on(server, worker, seconds=200)
    assert not entry(server, "extra").is_orphaned
    assert "orphan_schedules" not in worker.calls


def test_a_pause_stays_a_pause(server: Server) -> None:
    """A schedule that a client has paused is not orphaned, and does not run when it comes back."""
    App(server, declared("extra")).turn()
    server.run(server.ops.pause_schedule("extra"))
    go_on(server, App(server), seconds=200)
    assert (entry(server, "extra").paused, entry(server, "extra").is_orphaned) == (True, False)
    App(server, declared("extra")).turn()
    assert entry(server, "extra").paused


def test_a_schedule_that_a_client_resumes_is_kept(server: Server) -> None:
    """It belongs to no app then: `schedules.resume` says that it is wanted."""
    App(server, declared("extra")).turn()
    worker = App(server)
    go_on(server, worker)
    tick = check_spec(every="1h").after(server.now_ms)
    server.run(server.ops.resume_schedule("extra", tick))
    go_on(server, worker, seconds=200)
    assert (entry(server, "extra").tick, entry(server, "extra").app) == (tick, "")


def test_an_orphaned_schedule_is_taken_back_by_a_worker_that_still_runs(server: Server) -> None:
    """It was stopped for a while, so that it could not say that it declares it."""
    old, new = App(server, declared("extra")), App(server)
    go_on(server, old, new, seconds=20)
    go_on(server, new, seconds=150)
    assert entry(server, "extra").is_orphaned
    go_on(server, old, new, seconds=int(KEEP_INTERVAL) + 5)
    assert not entry(server, "extra").is_orphaned


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000, 10**10])
def test_the_clock_of_the_server_jumps(server: Server, step_ms: int) -> None:
    """A worker first lets others say what they declare."""
    old, new = App(server, declared("extra")), App(server)
    go_on(server, old, new, seconds=20)
    server.now_ms += step_ms
    for app in (old, new):
        app.start_ms += step_ms
    go_on(server, new, old, seconds=100)
    assert not entry(server, "extra").is_orphaned
    assert "orphan_schedules" not in new.calls


def test_a_worker_that_could_not_look_waits_for_the_others(server: Server) -> None:
    """After an outage of the server, for example, all entries are older than a minute."""
    old, new = App(server, declared("extra")), App(server)
    go_on(server, old, new, seconds=20)
    server.now_ms += 10 * MINUTE_MS
    go_on(server, new, old, seconds=100)
    assert not entry(server, "extra").is_orphaned
    assert "orphan_schedules" not in new.calls


@pytest.mark.slow
def test_many_orphans_hold_up_no_other_schedule(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """10,000 are due before one that runs; a call takes 100 of them."""
    raw, keys = server.raw, server.ops.keys
    [mine] = declared("mine", every="5s")
    worker = App(server, [mine])
    worker.turn()
    old = server.now_ms - 10 * MINUTE_MS
    front = f"- 0 0 0 0 {mine.value_hash} @{old} shop\n".encode()
    names = [f"orphan {n}" for n in range(10_000)]
    raw.hset(keys["schedules"], mapping=dict.fromkeys(names, front + mine.value))
    raw.zadd(keys["ticks"], dict.fromkeys(names, server.now_ms - 1))
    worker.ticker.check_at = 10.0**9  # a page would have some of them
    server.now_ms += 6000
    worker.turn()
    assert waiting(server) == 1
    assert len(caplog.messages) == 1
    assert raw.zcard(keys["ticks"]) == 1
    assert worker.calls.count("orphan_schedules") == 100


def test_a_first_check_finds_orphans_whose_tick_is_far(server: Server) -> None:
    """So the list shows them at once."""
    App(server, declared("extra", every="7d")).turn()
    server.now_ms += 2 * MINUTE_MS
    App(server).turn()
    assert entry(server, "extra").is_orphaned


def test_more_schedules_than_a_look_reads_run_on_time(server: Server) -> None:
    """A look reads 100 ticks, and the next look comes before the tick that follows them."""
    for new in declared(*(f"s{n}" for n in range(150)), app="", every="60s"):
        server.drive(flows.schedule(server.ops, new))
    worker = App(server)
    go_on(server, worker, seconds=65)
    assert waiting(server) == 150
