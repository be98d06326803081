"""A minute of pressure queues whose clients are killed at random."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.embedded import EmbeddedServer
from tests.conformance.pressure_crowd import Crowd
from tests.conformance.pressure_storm import Storm

SECONDS = 60.0


def test_a_minute_of_kills(make_server: Callable[..., EmbeddedServer], tmp_path: Path) -> None:
    """Our clients and others put, get, close, delete, create, and are killed at any point.

    No party is stuck beyond `free_role()`, each producer's order is kept, no message is doubled,
    and none is lost but the one that a dead consumer had just taken. Counters are exact, as far as
    foreign deaths allow it. Roles had to be freed, so clients did die inside of waits.
    """
    with Crowd() as crowd:
        sums = Storm(make_server(tcp=True), crowd, tmp_path, seed=60).run(SECONDS)
    assert sums["kills"] >= 30
    assert sums["freed producer"] >= 1
    assert sums["freed consumer"] >= 1
    assert sums["done put"] + sums["done put_nowait"] >= 500
    assert sums["done get"] + sums["done get_nowait"] >= 250
    assert min(sums["done close"], sums["done delete"], sums["done create"]) >= 2
