"""Whole systems, each from a seed: no promise is broken, whatever happens to them."""

from __future__ import annotations

import pytest

from tests.simulation.system import simulate

SEEDS = range(20)
"""Seeds of each run of the tests; `nox -s simulate` runs others."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_system_keeps_its_promises(seed: int) -> None:
    """Nothing is lost, doubled, stuck or out of order, and the counts are right."""
    simulate(seed)
