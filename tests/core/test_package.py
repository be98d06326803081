"""The effects of `import penstock`."""

from __future__ import annotations

import subprocess
import sys

import penstock

NAMES = """
import sys
import penstock
print(*sorted(name for name in sys.modules if name.startswith("penstock.")))
"""


def test_asyncio_and_workers_are_imported_when_they_are_asked_for() -> None:
    """An enqueueing program imports neither asyncio nor the worker nor extras."""
    done = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "penstock.client._sync.client" in loaded
    apart = ("penstock.client._async", "penstock.worker", "penstock.spark", "penstock.cli.")
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
