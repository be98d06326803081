"""Fixtures with several nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.nodes.federation import Servers

LONG = ("test_storm", "test_pressure_kills")
"""Files with tests of up to a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests, so that none of them runs alone at the end."""
    items.sort(key=lambda item: item.path.stem not in LONG)


@contextmanager
def soon(count: int) -> Iterator[Servers]:
    """Return this many servers, started within 10 seconds."""
    began = time.monotonic()
    with Servers(count) as servers:
        assert time.monotonic() - began < 10
        yield servers


@pytest.fixture
def three() -> Iterator[Servers]:
    """Three nodes."""
    with soon(3) as servers:
        yield servers


@pytest.fixture
def five() -> Iterator[Servers]:
    """Five nodes."""
    with soon(5) as servers:
        yield servers
