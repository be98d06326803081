"""One server on loopback and one nursery for all crash tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.crash.tasks import QUEUE
from tests.support.binaries import first_binary
from tests.support.workers import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The nursery for clients to be killed."""
    with Nursery("tests.crash.tasks") as made:
        yield made


@pytest.fixture(scope="session")
def crash_server() -> Iterator[EmbeddedServer]:
    """A server on loopback that exists longer than its clients."""
    with EmbeddedServer(first_binary(), tcp=True) as server:
        yield server


@pytest.fixture
def raw(crash_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of the empty server."""
    with redis.Redis.from_url(crash_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def client(crash_server: EmbeddedServer, raw: redis.Redis) -> Iterator[Penstock]:
    """A client that survives; the queue exists, and the server knows all scripts."""
    with Penstock(crash_server.url) as made:
        queue = made.queue(QUEUE)
        queue.enqueue(b"first")
        (job,) = queue.reserve(1, block=0)
        queue.ack_and_reserve([job], 1)
        queue.enqueue(b"second")
        queue.ack(queue.reserve(1, block=0))
        queue.stats()
        yield made
