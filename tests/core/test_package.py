"""The effects of `import penstock`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock

NAMES = """
import sys
from penstock import {}
print(*sorted(name for name in sys.modules if name.startswith("penstock.")))
"""


@pytest.mark.parametrize("name, other", [("Penstock", "_async"), ("AsyncPenstock", "_sync")])
def test_the_other_client_and_workers_are_imported_when_they_are_asked_for(
    name: str, other: str
) -> None:
    """An enqueueing program imports neither the other client nor the worker nor extras."""
    code = NAMES.format(name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "penstock.core.calls" in loaded
    assert len(loaded) < 100
    apart = (f"penstock.client.{other}", "penstock.worker", "penstock.spark", "penstock.cli.")
    assert [name for name in loaded if name.startswith(apart)] == []


def test_every_name_is_there() -> None:
    """Every name is available, whether it is imported at once or on access."""
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert not hasattr(penstock, "AsyncNothing")


def test_dir_has_every_name() -> None:
    """`dir` has every name, also names not yet imported."""
    code = "import penstock; print(*dir(penstock))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(penstock.__all__) <= set(done.stdout.split())
    assert "__version__" in done.stdout.split()
