"""The pytest plugin of penstock: fixtures for tests without a server (docs/testing.md).

pytest imports this module in every run, so it is outside the package `penstock`, and imports
nothing of it until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fakeredis import FakeServer

    from penstock.testing import AsyncPenstockKit, PenstockKit

__all__ = ["apenstock", "penstock", "penstock_server"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    text = (
        "penstock(replicas=n, redirect=False): n replicas of the fixtures' server confirm every"
        " write; the app's own clients keep their servers"
    )
    config.addinivalue_line("markers", text)


@dataclass(frozen=True)
class _Marked:
    """The arguments of a test's marker."""

    replicas: int = 0
    redirect: bool = True

    @classmethod
    def read(cls, request: pytest.FixtureRequest) -> _Marked:
        """Return the arguments of the nearest marker."""
        mark = request.node.get_closest_marker("penstock")
        if mark is None:
            return cls()
        if mark.args or not mark.kwargs or set(mark.kwargs) - {"replicas", "redirect"}:
            forms = "@pytest.mark.penstock(replicas=1) or @pytest.mark.penstock(redirect=False)"
            pytest.fail(f"write the marker as {forms}", pytrace=False)
        found = cls(**mark.kwargs)
        if type(found.replicas) is not int or not 0 <= found.replicas <= 1000:
            text = f"replicas={found.replicas!r}: must be a number from 0 to 1000"
            pytest.fail(text, pytrace=False)
        if type(found.redirect) is not bool:
            pytest.fail(f"redirect={found.redirect!r}: must be True or False", pytrace=False)
        return found


@pytest.fixture
def penstock_server(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    """Provide the server behind `penstock` and `apenstock`, empty.

    While the test runs, every client of the process leads to it, unless the test is marked with
    `@pytest.mark.penstock(redirect=False)`. Use it with a plain client:
    `fakeredis.FakeRedis(server=penstock_server)`.
    """
    from penstock import testing
    from penstock.errors import ConfigurationError

    marked = _Marked.read(request)
    try:
        server = testing.fake_server()
    except ConfigurationError as error:
        pytest.fail(str(error), pytrace=False)
    redirection = testing.redirect_clients(server, replicas=marked.replicas)
    with redirection if marked.redirect else nullcontext():
        yield server


@pytest.fixture
def penstock(penstock_server: FakeServer, request: pytest.FixtureRequest) -> Iterator[PenstockKit]:
    """Provide a `Penstock` on a server of the test's own, with helpers for tests."""
    from penstock import testing

    with testing.sync_kit(penstock_server, replicas=_Marked.read(request).replicas) as client:
        yield client


@pytest.fixture
def apenstock(
    penstock_server: FakeServer, request: pytest.FixtureRequest
) -> Iterator[AsyncPenstockKit]:
    """Provide an `AsyncPenstock` on the same server, for tests run by pytest-asyncio, say."""
    from penstock import testing

    with testing.async_kit(penstock_server, replicas=_Marked.read(request).replicas) as client:
        yield client
