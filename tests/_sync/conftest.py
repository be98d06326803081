# From tests/_async/conftest.py by tools/unasync.py; do not edit.
"""Fixtures: a penstock client, a queue, and a plain Redis client that inspects the keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.client._sync.transport.flow_run import FlowRun
from penstock.core import flows
from penstock.core.flows import effects
from penstock.worker import idle, state
from tests.support.backends import Backend
from tests.support.keyspace import Raw, check_invariant
from tests.support.twins import PATIENCE, wait_for


# The scripts are the same for both clients, so the synchronous tests run on two back ends only.
@pytest.fixture
def backend(brief_backend: Backend) -> Backend:
    """Two back ends."""
    return brief_backend


@pytest.fixture
def raw(backend: Backend) -> Raw:
    """A plain client of `backend`."""
    return backend.sync_client()


@pytest.fixture
def ps(backend: Backend) -> Iterator[Penstock]:
    """A penstock client of `backend`."""
    with backend.sync_client() as lent, Penstock(lent, owner="tester") as client:
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
    with real_backend.sync_client() as lent, Penstock(lent, owner="tester") as client:
        yield client


@pytest.fixture
def real_q(real_ps: Penstock) -> Queue:
    """A queue on `real_backend` that does not exist yet."""
    return real_ps.queue("q")


class Waits:
    """The consumers and producers that wait for a token at this moment.

    Args:
        backends: where they may wait.
    """

    def __init__(self, backends: list[Backend]) -> None:
        self.pending: list[FlowRun[Any]] = []
        self._servers = [one.sync_client() for one in backends if not one.is_fake]

    def are(self, count: int) -> bool:
        """Tell whether exactly `count` calls wait, both here and according to the server."""
        blocked = sum(len(wait._pending) for wait in self.pending)  # in a cluster, one for a slot
        return len(self.pending) == count and all(
            server.info("clients")["blocked_clients"] == blocked for server in self._servers
        )

    def reach(self, count: int) -> None:
        """Return when exactly `count` calls wait."""
        wait_for(lambda: self.are(count))


@pytest.fixture
def waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Return a helper that tells when a call in another task or thread waits for a token."""
    names = {"backend", "real_backend"} & set(request.fixturenames)
    found = Waits([request.getfixturevalue(name) for name in names])
    listen = FlowRun.listen

    def counted(wait: FlowRun[Any], effect: flows.Listen) -> flows.WaitResult:
        found.pending.append(wait)
        try:
            return listen(wait, effect)
        finally:
            found.pending.remove(wait)

    monkeypatch.setattr(FlowRun, "listen", counted)
    return found


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the periodic look of waiting calls: a call that returns was woken by a token."""
    for module in (effects, state, idle):
        monkeypatch.setattr(module, "POLL_INTERVAL", 3 * PATIENCE)


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
