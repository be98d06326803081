"""The simulation sees: each fault that is planted into the product is found."""

from __future__ import annotations

from importlib.resources import files

import pytest

import penstock.wire
from penstock.wire.scripts import script
from tests.simulation.plants import PLANTS, Plant, ScriptPlant
from tests.simulation.system import find

MOST_SEEDS = 40
"""Seeds within which each of these faults is found; most need one to five."""


def name_of(plant: Plant) -> str:
    """Return the name of a test."""
    return plant.name.replace(" ", "-")


@pytest.mark.slow
@pytest.mark.parametrize("plant", [one for one in PLANTS if not one.is_rare], ids=name_of)
def test_a_fault_is_found(plant: Plant) -> None:
    """A fault that shows itself in many systems; `nox -s simulate -- --plants` finds the others."""
    assert find(plant, MOST_SEEDS) is not None


@pytest.mark.parametrize(
    "plant", [one for one in PLANTS if isinstance(one, ScriptPlant)], ids=name_of
)
def test_a_planted_text_is_in_a_script(plant: ScriptPlant) -> None:
    """A fault in a text that the scripts have no more would be planted nowhere."""
    folder = files(penstock.wire) / "lua"
    names = [entry.name[:-4] for entry in folder.iterdir() if entry.name.endswith(".lua")]
    assert any(plant.pattern.search(script(name).source) for name in names)
