"""A pytest plugin: queues for your tests, without a server.

pytest finds it by itself. Ask for a fixture, and the scripts of the protocol run on fakeredis, in
the test's own process; each test has a server of its own:

    def test_a_welcome_is_sent(penstock):
        sign_up("ada", queue=penstock.queue("emails"))
        [job] = penstock.queue("emails").reserve(block=0)
        assert job.body == {"welcome": "ada"}

It needs the extra `testing` (fakeredis with Lua); without it, tests that ask for a fixture fail.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fakeredis import FakeServer

    from penstock import AsyncPenstock, Penstock

__all__ = ["apenstock", "penstock", "penstock_server"]

NEEDED = ("fakeredis", "lupa")


def _fakeredis() -> Any:
    """The package; imported by the first test that needs it, as it takes its time."""
    try:
        importlib.import_module("lupa")  # without it fakeredis has no EVALSHA
        return importlib.import_module("fakeredis")
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        missing = error.name
    pytest.fail(
        f"penstock's fixtures need {missing}: pip install 'penstock[testing]'", pytrace=False
    )


@pytest.fixture
def penstock_server() -> FakeServer:
    """The server behind `penstock` and `apenstock`, empty.

    For a plain client of it: `fakeredis.FakeRedis(server=penstock_server)`.
    """
    server: FakeServer = _fakeredis().FakeServer()
    return server


@pytest.fixture
def penstock(penstock_server: FakeServer) -> Iterator[Penstock]:
    """A `Penstock` on a server of the test's own."""
    from penstock import Penstock

    redis = _fakeredis().FakeRedis(server=penstock_server)
    with Penstock(redis, owner="test") as client:
        yield client
    redis.close()


@pytest.fixture
def apenstock(penstock_server: FakeServer) -> Iterator[AsyncPenstock]:
    """An `AsyncPenstock` on the same server, for tests run by pytest-asyncio, say."""
    from penstock import AsyncPenstock

    redis = _fakeredis().FakeAsyncRedis(server=penstock_server)
    client = AsyncPenstock(redis, owner="test")
    yield client
    # The test's event loop may be gone; nothing of fakeredis's connections belongs to it.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(client.close())
        loop.run_until_complete(redis.aclose())
    finally:
        loop.close()
