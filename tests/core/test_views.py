"""Views: what the fields of meta tell about the holder of a role."""

from __future__ import annotations

import pytest

from penstock.core.jobs.queue_stats import read_stats
from penstock.wire.replies import Stats

NOW = 1_800_000_000_000
DAY = 86_400_000


@pytest.mark.parametrize(
    "ends, is_held", [(NOW + 30_000, True), (NOW, False), (NOW + 31 * DAY, False)]
)
def test_the_holder_of_a_role(ends: int, is_held: bool) -> None:
    """A lease has ended at its end, and if a wrong clock has put that far behind the lease."""
    field = b"1799999999999000-0a0b %d 30000 host:42" % ends
    counts = [0] * 11
    stats = read_stats("q", Stats((1, b"1", NOW, *counts, [(b"producer", field)])))
    assert (stats.producer is not None) is is_held
    if stats.producer is not None:
        assert (stats.producer.owner, stats.producer.left) == ("host:42", 30)
