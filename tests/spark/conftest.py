"""Fixtures: one Spark session, an empty server, and a cluster to break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock
from penstock.embedded import EmbeddedServer, find_server
from tests.spark.support import Driver, StandaloneCluster, new_session

SPARKS_OWN = (
    "ignore:unclosed <socket.socket:ResourceWarning",  # py4j does not close its sockets
    "ignore:unclosed file <_io.:ResourceWarning",  # and the pipes of its JVM
    "ignore:subprocess [0-9]+ is still running:ResourceWarning",
    "ignore::DeprecationWarning:pyspark.*",
    "ignore::FutureWarning:pyspark.*",
)
"""Warnings of PySpark about itself, by category or text; those of penstock stay errors."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for line in SPARKS_OWN:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session")
def spark_server() -> Iterator[EmbeddedServer]:
    """A server for the whole session, over TCP for executors."""
    with EmbeddedServer(find_server(), tcp=True) as server:
        yield server


@pytest.fixture(scope="session")
def whole_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def spark(whole_spark: Any) -> Iterator[Any]:
    """The session: `local[2,4]`, four attempts a task. A test's queries and views are removed."""
    yield whole_spark
    for query in whole_spark.streams.active:
        query.stop()
    whole_spark.streams.resetTerminated()
    for view in whole_spark.catalog.listTables():
        if view.isTemporary:
            whole_spark.catalog.dropTempView(view.name)


@pytest.fixture
def redis_url(spark_server: EmbeddedServer) -> str:
    """The server's URL; the server is empty, without scripts or a node id."""
    with redis.Redis.from_url(spark_server.url) as client:
        client.flushall()
        client.script_flush()
    return spark_server.url


@pytest.fixture
def ps(redis_url: str) -> Iterator[Penstock]:
    """A client of the server."""
    with Penstock(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def cluster() -> Iterator[StandaloneCluster]:
    """A master and two workers of one core each, for a test's own driver."""
    with StandaloneCluster() as started:
        yield started


@pytest.fixture
def driver() -> Iterator[Callable[..., Driver]]:
    """Start drivers in their own processes: `driver("tests.spark.programs:load", url=…)`."""
    with ExitStack() as stack:

        def start(function: str, **options: Any) -> Driver:
            return stack.enter_context(Driver(function, **options))

        yield start


@pytest.fixture
def options(redis_url: str) -> Callable[..., dict[str, str]]:
    """Return options of a write into `mail`, as Spark passes them."""

    def make(**more: object) -> dict[str, str]:
        given = {"queue": "mail", "url": redis_url, **more}
        return {name.lower(): str(value) for name, value in given.items()}

    return make
