"""The queue agrees with a plain model of its rules, whatever happens in whatever order."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.core import operations
from tests.model.clock import use_test_clock
from tests.model.faults import Faults
from tests.model.machine import Bench, QueueMachine
from tests.support.backends import Backend

LONG = int(os.environ.get("PENSTOCK_MODEL_EXAMPLES", "0"))
PROFILE = settings(
    derandomize=not LONG,
    max_examples=LONG or 60,
    stateful_step_count=int(os.environ.get("F_STEPS","50")),
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate]+([Phase.shrink] if "F_SHRINK" in os.environ else []),
)


def test_queue_agrees_with_its_model(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer, every figure and every structure is what the rules say, after each step."""
    use_test_clock(monkeypatch)
    tags = [0]
    monkeypatch.setattr(operations.random, "getrandbits", lambda bits: tags[0])
    bench = Bench(backend.sync_client(), Faults(monkeypatch), tags)

    class Machine(QueueMachine):
        pass

    Machine.bench = bench
    run_state_machine_as_test(Machine, settings=PROFILE)
