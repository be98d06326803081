"""Servers and processes for the tests of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.support.binaries import first_binary
from tests.support.keyspace import load_scripts
from tests.support.workers import Nursery
from tests.worker.programs import APP, Program, Told, running
from tests.worker.support import Crew, Diary


@pytest.fixture(scope="session")
def home() -> Iterator[Callable[[], Nursery]]:
    """Yield a function that gives a nursery for one more worker; nurseries are reused."""
    with ExitStack() as stack:
        nurseries: list[Nursery] = []

        def give() -> Nursery:
            for nursery in nurseries:
                if nursery.is_free:
                    return nursery
            nurseries.append(stack.enter_context(Nursery("tests.worker.tasks", natural=True)))
            return nurseries[-1]

        yield give


@pytest.fixture(scope="session")
def worker_server() -> Iterator[EmbeddedServer]:
    """A server on loopback that exists longer than the workers."""
    with EmbeddedServer(first_binary(), tcp=True) as server:
        yield server


@pytest.fixture
def raw(worker_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of the server, which is empty and knows all scripts."""
    with redis.Redis.from_url(worker_server.url) as client:
        client.flushall()
        load_scripts(client)
        yield client


@pytest.fixture
def queue(worker_server: EmbeddedServer, raw: redis.Redis) -> Iterator[Queue]:
    """The queue of the workers."""
    with Penstock(worker_server.url) as client:
        yield client.queue("work")


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    """The log file of the handlers."""
    path = tmp_path / "diary"
    path.touch()
    return Diary(path)


@pytest.fixture
def crew(
    worker_server: EmbeddedServer, diary: Diary, home: Callable[[], Nursery]
) -> Iterator[Crew]:
    """Workers on the server; the test's end kills those that run."""
    made = Crew(worker_server.url, diary, home)
    yield made
    made.close()


@pytest.fixture
def worker_url(worker_server: EmbeddedServer) -> str:
    """The URL of the server."""
    return worker_server.url


@pytest.fixture
def url(worker_url: str, raw: redis.Redis) -> str:
    """The URL of the server, which is empty."""
    return worker_url


@pytest.fixture
def ps(url: str) -> Iterator[Penstock]:
    """A client of it."""
    with Penstock(url) as client:
        yield client


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The file of the app; programs run in its directory."""
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def told(server: EmbeddedServer) -> Iterator[Told]:
    """The events that processes of the app report."""
    told = Told(server.url)
    yield told
    told.close()


@pytest.fixture
def worker(app: Path, server: EmbeddedServer) -> Iterator[Callable[..., Program]]:
    """Run `penstock worker app:worker` with these options, or another target."""
    with ExitStack() as stack:

        def run(*options: str, target: str = "app:worker", **settings: Any) -> Program:
            return stack.enter_context(
                running(app.parent, server.url, target, *options, **settings)
            )

        yield run
