"""All features of a queue at once, while clients and their server are killed or stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.storm import storm


@pytest.mark.slow
def test_a_storm_on_one_server(tmp_path: Path) -> None:
    """Nothing is lost, added twice, out of order, or stuck, and batches have counted exactly."""
    storm("server", tmp_path, faults=45, seed=1).check_that_it_was_hard()
