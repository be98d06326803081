"""The queue agrees with a plain model of its rules for any sequence of calls and events."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.wire.scripts import all_scripts
from tests.model.clock import REAL, USUAL_REACH, USUAL_ROOM, USUAL_SWEEP, use_test_clock
from tests.model.courses import CoursesMachine, KeysMachine
from tests.model.draws import WRONG
from tests.model.faults import Faults
from tests.model.machine import IdsMachine
from tests.model.side import Bench, Dice
from tests.support.backends import Backend
from tests.support.profiles import at_most

EXAMPLES = int(os.environ.get("PENSTOCK_MODEL_EXAMPLES", "0"))
STEPS = int(os.environ.get("PENSTOCK_MODEL_STEPS", "50"))


def test_the_bounds_of_scripts_are_found() -> None:
    """The constants lowered by the model exist in the scripts."""
    for text in (REAL, USUAL_REACH, USUAL_ROOM, USUAL_SWEEP):
        assert any(text in script.source for script in all_scripts())


def profile(usual: int, steps: int) -> settings:
    """Return the settings of a machine with so many examples in a whole run."""
    return settings(
        at_most(usual),
        **{"max_examples": EXAMPLES, "derandomize": False} if EXAMPLES else {},
        stateful_step_count=steps,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def _run(
    kind: type[Any],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fake: int,
    real: int,
    steps: int = STEPS,
) -> None:
    """Run a machine with so many examples on fakeredis, which is the slowest, or on a server."""
    use_test_clock(monkeypatch)
    dice = Dice()
    monkeypatch.setattr("penstock.core.calls.operations.consuming.random", dice)
    faults = Faults(monkeypatch)
    bench = Bench(backend.sync_client(), faults, dice, backend.is_fake)
    machine = type("Machine", (kind,), {"bench": bench})
    count = fake if backend.is_fake else real
    run_state_machine_as_test(machine, settings=profile(count, steps))


def test_queue_agrees_with_its_model(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step answers, stats and structures agree with the model."""
    _run(CoursesMachine, backend, monkeypatch, fake=25, real=40)


def test_dedup_ids_agree_with_their_model(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holders of dedup ids and outcomes of duplicates agree, however jobs end."""
    _run(IdsMachine, backend, monkeypatch, fake=20, real=30, steps=12)


def test_keys_agree_with_their_model(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets and parked jobs agree, and no key is blocked, whatever happens to its jobs."""
    _run(KeysMachine, backend, monkeypatch, fake=15, real=25, steps=25)


def test_an_expired_job_takes_no_turn(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call does not list it, but meets it among the parked jobs of its key."""
    use_test_clock(monkeypatch)
    dice = Dice()
    monkeypatch.setattr("penstock.core.calls.operations.consuming.random", dice)

    class Machine(KeysMachine):
        bench = Bench(backend.sync_client(), Faults(monkeypatch), dice, backend.is_fake)

    machine = Machine()
    try:
        machine.begin_with_keys(limit="share", most=1, early=False)
        machine.begin(shape=[], limits={}, tag=0, side="", acts=[])
        machine.expired_are_in_the_way(expired=3, live=0, n=1, tag=0)
        machine.structures_agree()
    finally:
        machine.teardown()


@pytest.mark.parametrize("limits", [{}, {"rate": 20_000}])
def test_a_successor_of_a_held_queue_wakes_nobody(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    """An `enqueue` finds that the owner has expired, while nothing is delivered for long."""
    use_test_clock(monkeypatch)
    dice = Dice()
    monkeypatch.setattr("penstock.core.calls.operations.consuming.random", dice)

    class Machine(CoursesMachine):
        bench = Bench(backend.sync_client(), Faults(monkeypatch), dice, backend.is_fake)

    machine = Machine()
    plain = {"fault": "", "many": False, "delay": 0, "bound": 6, "retry": None, "key": ""}
    owned = {**plain, "names": [0], "how": "requeue", "until": "finished", "window": None}
    try:
        machine.configure(fault="", values=limits)
        machine.claim(**owned, lease=1_000, ttl=60)
        machine.reserve(fault="", n=1, tag=0)
        machine.claim(**owned, lease=None, ttl=None)
        if not limits:
            machine.hold(fault="", span=10_000)
        machine.tokens_are_there()
        machine.raw.delete(machine.ops.keys["wake"])
        machine.time_passes(span=100)
        machine.enqueue(**plain, count=1, at=None, lease=None, ttl=None)
        assert any(job and job.dedup_id for job in map(machine.model.jobs.get, machine.model.freed))
        machine.tokens_are_there()
        assert not machine.raw.llen(machine.ops.keys["wake"])
        machine.structures_agree()
    finally:
        machine.teardown()


@pytest.mark.parametrize("span", [-WRONG, WRONG])
def test_after_a_wrong_clock(backend: Backend, monkeypatch: pytest.MonkeyPatch, span: int) -> None:
    """Compacted jobs, and windows of a wrong time, behave well when the clock is right again."""
    use_test_clock(monkeypatch)
    dice = Dice()
    monkeypatch.setattr("penstock.core.calls.operations.consuming.random", dice)

    class Machine(CoursesMachine):
        bench = Bench(backend.sync_client(), Faults(monkeypatch), dice, backend.is_fake)

    machine = Machine()
    try:
        for delay in (0, 3_000):
            machine.compacted_after_a_wrong_clock(span, delay)
        for ended in (False, True):
            machine.window_of_a_wrong_clock(span, ended=ended)
    finally:
        machine.teardown()
