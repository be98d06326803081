"""The oracle accuses nothing that the documentation allows. Each story was drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.worker.terms import OVER
from tests.simulation import ledger as ledgers
from tests.simulation.ledger import Entry, Ledger, Rate
from tests.simulation.loop import EPOCH
from tests.simulation.server import MOST_SECONDS_BEHIND
from tests.simulation.world import World


class StubJob(SimpleNamespace):
    """A delivery as the ledger reads it."""

    def __init__(self, job_id: str, **more: Any) -> None:
        usual = {"at_most_once": False, "lost": False, "lease": 3.0, "delivered": EPOCH + 1000.0}
        counts = {"deliveries": 1, "crashes": 0, "created": EPOCH + 1000.0}
        super().__init__(id=f"D-00000000-{job_id}", **{**usual, **counts, **more})


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """Return a ledger; `term` of a stub is its term."""
    monkeypatch.setattr(ledgers, "term_of", lambda job: job.term)
    with World(1) as world:
        yield Ledger(world)


def attempt(ledger: Ledger, name: str, **more: Any) -> Entry:
    """Return a job that a producer is about to add."""
    entry = Entry(name, "ok", **more)
    ledger.attempt(entry)
    return entry


def test_a_worker_that_has_noticed_a_lost_job_does_not_hold_its_key(ledger: Ledger) -> None:
    """The term of a lost job has no end, as nothing renews it. Its key is free."""
    process: Any = SimpleNamespace(name="w0", is_alive=True, was_stopped=False)
    term = SimpleNamespace(until=math.inf, lease=3.0)
    for name in ("first", "second"):
        attempt(ledger, name, key="k")
        job: Any = StubJob(name, term=term)
        ledger.begin(name, job.id, job, process)
        job.lost, job.term = True, OVER
    assert ledger.broken == []
    attempt(ledger, "third", key="k")
    held: Any = StubJob("third", term=term)
    ledger.begin("third", held.id, held, process)
    attempt(ledger, "fourth", key="k")
    beside: Any = StubJob("fourth", term=term)
    ledger.begin("fourth", beside.id, beside, process)
    assert ledger.broken == ["fourth runs beside third of its key"]


def test_ticks_run_again_behind_a_clock_that_was_set_back(ledger: Ledger) -> None:
    """Those up to the time that the clock had shown run once more; a later one runs once."""
    before = EPOCH + 1020.0
    ledger.tick(EPOCH + 1015.0, StubJob("one"), "often")  # type: ignore[arg-type]
    ledger.step_clock(-100.0, before)
    ledger.tick(EPOCH + 1015.0, StubJob("two"), "often")  # type: ignore[arg-type]
    assert ledger.broken == []
    ledger.tick(EPOCH + 1015.0, StubJob("again"), "often")  # type: ignore[arg-type]
    assert len(ledger.broken) == 1
    ledger.broken.clear()
    for name in ("three", "four"):
        ledger.tick(EPOCH + 1025.0, StubJob(name), "often")  # type: ignore[arg-type]
    assert len(ledger.broken) == 1


def test_a_tick_runs_again_behind_a_loss(ledger: Ledger) -> None:
    """A power cut loses that it has run, also if the clock had been set forward before."""
    clock = ledger._world.clock
    at = EPOCH + clock.now + 1000.0
    ledger.tick(at, StubJob("one"), "often")  # type: ignore[arg-type]
    ledger.lose_since(clock.now)
    ledger.tick(at, StubJob("two"), "often")  # type: ignore[arg-type]
    assert ledger.broken == []
    clock.now += 1.0
    for name in ("three", "four"):
        ledger.tick(at + 5.0, StubJob(name), "often")  # type: ignore[arg-type]
    assert len(ledger.broken) == 1


def test_a_rate_behind_a_clock_that_was_set_back(ledger: Ledger) -> None:
    """The time of the queue goes back by less than a second, and a rate is exceeded by as much."""
    rate = Rate(6, 1.0, 4)
    ledger.deliveries += [EPOCH] * 4 + [EPOCH + 0.1] * 6
    ledger.step_clock(-100.0, EPOCH)
    ledger.check_rate(*rate)
    assert ledger.broken == []
    ledger.deliveries += [EPOCH + 0.1]
    ledger.check_rate(*rate)
    assert len(ledger.broken) == 1


def test_a_repeat_that_tells_of_a_job_which_has_ended(ledger: Ledger) -> None:
    """Its dedup id is free meanwhile, and another job may have it."""
    late, other = attempt(ledger, "late", dedup_id="x"), attempt(ledger, "other", dedup_id="x")
    late.done = 1
    ledger.accept(other, "D-00000000-other")
    ledger.accept(late, "D-00000000-late")
    assert ledger.broken == []
    ledger.accept(attempt(ledger, "third", dedup_id="x"), "D-00000000-third")
    assert ledger.broken == ["third was added beside other of its dedup id"]


def test_a_hold_of_a_key_outlives_the_loss_of_later_calls(ledger: Ledger) -> None:
    """A power cut that loses the calls since a time leaves the holds that were told before."""
    process: Any = SimpleNamespace(name="w0", is_alive=True, was_stopped=False)
    now = ledger._world.clock.now
    ledger.hold_key("k", EPOCH + 999.0, EPOCH + 1005.0)
    ledger.lose_since(now + 1.0)
    attempt(ledger, "early", any_key="k")
    job: Any = StubJob("early", term=SimpleNamespace(until=now + 3.0, lease=3.0))
    ledger.begin("early", job.id, job, process)
    assert ledger.broken == ["early was delivered during a hold of its key"]
    ledger.lose_since(now)
    assert not ledger.held_keys["k"]


def test_a_renewal_behind_a_clock_that_was_set_back(ledger: Ledger) -> None:
    """It leaves a longer lease as it is, by as much as the time of the queue went back.

    So it may be older than the end of the lease tells. A step forward ends the lease.
    """
    clock = ledger._world.clock
    holders: list[Any] = [
        SimpleNamespace(name=name, is_alive=True, was_stopped=False) for name in ("w0", "w1")
    ]

    def begin_in(process: Any, until: float) -> None:
        job: Any = StubJob("one", term=SimpleNamespace(until=until, lease=3.0))
        ledger.begin("one", job.id, job, process)

    attempt(ledger, "one")
    ledger.step_clock(-100.0, EPOCH)
    begin_in(holders[0], until=clock.now + 3.4)
    clock.now += 0.3
    ledger.step_clock(2000.0, EPOCH)
    clock.now += 1.1
    begin_in(holders[1], until=clock.now + 3.0)
    assert ledger.broken == []
    begin_in(holders[0], until=clock.now + 3.0)
    assert ledger.broken == ["one runs in w0 while w1 holds it"]


def test_a_slow_server_excuses_no_later_leases(ledger: Ledger) -> None:
    """A worker may notice late that a lease has ended while its server was slow, or before."""
    clock = ledger._world.clock
    usual = ledger.notice.seconds_since(clock.now)
    with ledger.notice.slowed(0.4):
        clock.now += 5.0
        ended_at = clock.now
    assert ledger.notice.seconds_since(ended_at) > usual
    assert ledger.notice.seconds_since(ended_at + MOST_SECONDS_BEHIND + 1.0) == usual
