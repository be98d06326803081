"""A failing system shrinks to what its failure needs, and its story is told in words."""

from __future__ import annotations

import pytest

from tests.simulation.plan import draw_plan
from tests.simulation.plants import PLANTS
from tests.simulation.shrink import Failure, fail_by, shrink
from tests.simulation.story import tell
from tests.simulation.system import find

A_FAILURE_IS_AN_ACK = next(plant for plant in PLANTS if plant.name == "a failure is an ack")


@pytest.mark.slow
def test_a_failure_shrinks_to_the_parts_that_it_needs() -> None:
    """This fault needs no other fault, and no feature."""
    seed = find(A_FAILURE_IS_AN_ACK, 40)
    assert seed is not None
    failure = fail_by(seed, draw_plan(seed), A_FAILURE_IS_AN_ACK)
    assert isinstance(failure, Failure)
    shrunk = shrink(failure, A_FAILURE_IS_AN_ACK)
    assert shrunk.kind == failure.kind
    assert shrunk.plan.parts == ()


@pytest.mark.slow
def test_a_story_tells_calls_by_their_names() -> None:
    """Each line has the time, the client, the effect and the answer."""
    log: list[str] = []
    seed = find(A_FAILURE_IS_AN_ACK, 40)
    assert seed is not None
    fail_by(seed, draw_plan(seed).keep(()), log=log)
    lines = list(tell(log))
    assert any("p0 → a  enqueue " in line and "⇒" in line for line in lines)
    assert any("w0 → a  reserve " in line and "⇒" in line for line in lines)
    assert not any("EVALSHA" in line for line in lines)
