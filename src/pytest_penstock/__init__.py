"""The pytest plugin of penstock: fixtures for tests without a server (docs/testing.md).

pytest imports this module in every run, so it is outside the package `penstock`, and imports
nothing of it until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fakeredis import FakeServer

    from penstock.testing import AsyncPenstockKit, PenstockKit

__all__ = ["apenstock", "penstock", "penstock_server"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    text = "penstock(replicas=n): n replicas of the fixtures' server confirm every write"
    config.addinivalue_line("markers", text)


@pytest.fixture
def penstock_server() -> FakeServer:
    """Provide the server behind `penstock` and `apenstock`, empty.

    Use it with a plain client: `fakeredis.FakeRedis(server=penstock_server)`.
    """
    from penstock import testing

    return testing.fake_server()


@pytest.fixture
def penstock(penstock_server: FakeServer, request: pytest.FixtureRequest) -> Iterator[PenstockKit]:
    """Provide a `Penstock` on a server of the test's own, with helpers for tests."""
    from penstock import testing

    with testing.sync_kit(penstock_server, request) as client:
        yield client


@pytest.fixture
def apenstock(
    penstock_server: FakeServer, request: pytest.FixtureRequest
) -> Iterator[AsyncPenstockKit]:
    """Provide an `AsyncPenstock` on the same server, for tests run by pytest-asyncio, say."""
    from penstock import testing

    with testing.async_kit(penstock_server, request) as client:
        yield client
