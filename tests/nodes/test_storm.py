"""All features of a queue at once, while the servers of each topology fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.storm import storm


@pytest.mark.slow
@pytest.mark.parametrize("site", ["federation", "cluster", "sentinel"])
def test_a_storm_on_several_servers(site: str, tmp_path: Path) -> None:
    """As on one server; in a federation, batches, keys and rates are those of each node."""
    storm(site, tmp_path, faults=45, seed=1).check_that_it_was_hard()
