"""Clients and queues of the conformance tests, and the checks after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock import Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.support.backends import Backend
from tests.support.keyspace import Raw, check_invariant


@pytest.fixture
def raw(backend: Backend) -> Raw:
    """A plain client of `backend`."""
    return backend.sync_client()


@pytest.fixture
def ps(backend: Backend) -> Iterator[Penstock]:
    """A penstock client of `backend`."""
    with Penstock(backend.sync_client(), owner="tester") as client:
        yield client


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue that does not exist yet."""
    return ps.queue("q")


@pytest.fixture
def real_raw(real_backend: Backend) -> Raw:
    """A plain client of `real_backend`."""
    return real_backend.sync_client()


@pytest.fixture
def real_ps(real_backend: Backend) -> Iterator[Penstock]:
    """A penstock client of `real_backend`."""
    with Penstock(real_backend.sync_client(), owner="tester") as client:
        yield client


@pytest.fixture
def real_q(real_ps: Penstock) -> Queue:
    """A queue on `real_backend` that does not exist yet."""
    return real_ps.queue("q")


@pytest.fixture
def durable(make_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server that has every answered write on disk."""
    return make_server(tcp=True, appendonly=True, args=("--appendfsync", "always"))


@pytest.fixture
def damage() -> None:
    """Skip the check of the layout at the end, for tests that damage keys themselves."""


@pytest.fixture(autouse=True)
def _sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test that every record lies in one place and each held job in one index."""
    names = {"backend", "real_backend"} & set(request.fixturenames)
    backends: list[Backend] = [request.getfixturevalue(name) for name in names]
    yield
    if "damage" not in request.fixturenames:
        for one in backends:
            check_invariant(one.sync_client())
