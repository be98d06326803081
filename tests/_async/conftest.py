"""A client, a queue, and a plain connection beside them to look with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue
from penstock.client._async.transport.blocking import AsyncBlockingConnection
from penstock.client._async.transport.cluster import AsyncBlockingConnections
from penstock.core import flows, nodes
from penstock.worker import loop, state
from tests.support.backends import Backend
from tests.support.keyspace import Raw, check_invariant
from tests.support.twins import PATIENCE, await_for

# The scripts are the same for both clients: the twin's tests run on two back ends.
# sync only: @pytest.fixture
# sync only: def backend(brief_backend: Backend) -> Backend:
# sync only:     """Two back ends."""
# sync only:     return brief_backend


@pytest.fixture
def raw(backend: Backend) -> Raw:
    """A plain client of `backend`."""
    return backend.sync_client()


@pytest.fixture
async def ps(backend: Backend) -> AsyncIterator[AsyncPenstock]:
    """A penstock client of `backend`."""
    async with backend.async_client() as lent, AsyncPenstock(lent, owner="tester") as client:
        yield client


@pytest.fixture
def q(ps: AsyncPenstock) -> AsyncQueue:
    """A queue that does not exist yet."""
    return ps.queue("q")


@pytest.fixture
def real_raw(real_backend: Backend) -> Raw:
    """A plain client of `real_backend`."""
    return real_backend.sync_client()


@pytest.fixture
async def real_ps(real_backend: Backend) -> AsyncIterator[AsyncPenstock]:
    """A penstock client of `real_backend`."""
    async with real_backend.async_client() as lent, AsyncPenstock(lent, owner="tester") as client:
        yield client


@pytest.fixture
def real_q(real_ps: AsyncPenstock) -> AsyncQueue:
    """A queue on `real_backend` that does not exist yet."""
    return real_ps.queue("q")


class AsyncWaits:
    """Which consumers and producers wait for a token at this moment.

    Args:
        backends: where they may wait.
    """

    def __init__(self, backends: list[Backend]) -> None:
        self.pending: list[object] = []
        self._servers = [one.sync_client() for one in backends if not one.is_fake]

    def are(self, count: int) -> bool:
        """Whether so many wait, here and as the server sees it."""
        blocked = sum(_connections(waiter) for waiter in self.pending)
        return len(self.pending) == count and all(
            server.info("clients")["blocked_clients"] == blocked for server in self._servers
        )

    async def reach(self, count: int) -> None:
        """Return when so many wait."""
        await await_for(lambda: self.are(count))


def _connections(waiter: object) -> int:
    """On how many one waits: in a cluster there is one for each slot."""
    return len(waiter._waiters) if isinstance(waiter, AsyncBlockingConnections) else 1


@pytest.fixture
def waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncWaits:
    """Tells when a call beside the test has begun to wait for a token."""
    names = {"backend", "real_backend"} & set(request.fixturenames)
    found = AsyncWaits([request.getfixturevalue(name) for name in names])
    for kind in (AsyncBlockingConnection, AsyncBlockingConnections):
        monkeypatch.setattr(kind, "pop", _counted(kind, found.pending))
    return found


def _counted(kind: Any, pending: list[object]) -> Any:
    pop = kind.pop

    async def counted(waiter: Any, *args: Any) -> bytes | None:
        pending.append(waiter)
        try:
            found: bytes | None = await pop(waiter, *args)
        finally:
            pending.remove(waiter)
        return found

    return counted


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the periodic look of waiting calls: a call that goes on was woken."""
    for module in (flows, nodes, state, loop):
        monkeypatch.setattr(module, "TICK", 3 * PATIENCE)


@pytest.fixture
def damage() -> None:
    """For tests that damage keys themselves: the layout is not checked at their end."""


@pytest.fixture(autouse=True)
def _sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test every record lies in one place, each held job in one index."""
    names = {"backend", "real_backend"} & set(request.fixturenames)
    backends: list[Backend] = [request.getfixturevalue(name) for name in names]
    yield
    if "damage" not in request.fixturenames:
        for one in backends:
            check_invariant(one.sync_client())
