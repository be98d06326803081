"""Fixtures of the whole suite: the back ends, and servers to break."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
import redis
import redis.asyncio

from penstock.embedded import EmbeddedServer
from tests.support import backends, profiles, tiers, touched
from tests.support.backends import Backend, Running, Spec
from tests.support.binaries import first_binary

SPECS = backends.all_specs()
RUNNABLE = [spec for spec in SPECS if spec.runs]
REAL = [spec for spec in RUNNABLE if not spec.is_fake]
DREW = pytest.StashKey[str]()
"""How many cases the run has drawn, for its last line."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--whole`: see tests/support/tiers.py."""
    parser.addoption("--whole", action="store_true", help="run every case, slow ones too")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose what Hypothesis draws, and collect no garbage while tests are collected: that takes
    half the time.
    """
    gc.disable()
    profiles.choose_profile(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist which tests the change touches: all workers have the same tests."""
    node.workerinput["touched"] = _find_touched()


@cache
def _find_touched() -> tuple[list[str], list[str]]:
    """Return the files, and the scripts, of the tests that the change touches."""
    found = touched.find_touched(touched.list_changed_files())
    return sorted(found.files), sorted(found.scripts)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are not in this run, of those that `-k` and `-m` have chosen."""
    whole, count = config.getoption("--whole"), len(items)
    known = touched.NOTHING
    if not whole:
        told = getattr(config, "workerinput", {}).get("touched") or _find_touched()
        known = touched.Touched(*map(frozenset, told))
    left = dict.fromkeys(tiers.left_out(items, whole=whole, touched=known))
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=[*left])
    config.stash[DREW] = f"drew {len(items)} of {count} cases"
    getattr(config, "workeroutput", {})["drew"] = config.stash[DREW]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Note how many cases a worker of xdist has drawn: all draw the same."""
    if drew := getattr(node, "workeroutput", {}).get("drew"):
        node.config.stash[DREW] = drew


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Say in the last line of a short run that it was one."""
    yield
    drew = session.config.stash.get(DREW, None)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if drew and reporter and not session.config.getoption("--whole"):
        reporter.write_line(f"short run: {drew}; --whole runs all")


def pytest_collection_finish() -> None:
    """Collect garbage again, but not among the collected tests."""
    gc.freeze()
    gc.enable()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return each back end with its version, the absent ones with the reason, and the seed."""
    return [*backends.header(SPECS), profiles.header(config)]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Restore SIGINT, which a shell ignores for background processes but tests send."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest) -> None:
    """Seed `random` with the test's name, so that each run draws the same, for backoffs too."""
    random.seed(request.node.nodeid)


@pytest.fixture(scope="session")
def running_backends() -> Iterator[Running]:
    """The back ends of this process; each is started for the first test that needs it."""
    running = Running()
    yield running
    running.close()


@pytest.fixture(params=RUNNABLE, ids=lambda spec: spec.name)
def backend(request: pytest.FixtureRequest, running_backends: Running) -> Iterator[Backend]:
    """Every back end in turn, empty."""
    spec: Spec = request.param
    with running_backends.get(spec).acquired() as acquired:
        yield acquired


@pytest.fixture(params=REAL, ids=lambda spec: spec.name)
def real_backend(request: pytest.FixtureRequest, running_backends: Running) -> Iterator[Backend]:
    """Every back end with a server in turn, empty."""
    spec: Spec = request.param
    with running_backends.get(spec).acquired() as acquired:
        yield acquired


@pytest.fixture
def one_server(running_backends: Running) -> Iterator[Backend]:
    """One back end with a server, empty: for tests that do not depend on scripts."""
    if not REAL:
        pytest.skip("none of the chosen back ends has a server behind it")
    with running_backends.get(REAL[0]).acquired() as acquired:
        yield acquired


@pytest.fixture(params=dict.fromkeys([*RUNNABLE[:1], *REAL[:1]]), ids=lambda spec: spec.name)
def brief_backend(request: pytest.FixtureRequest, running_backends: Running) -> Iterator[Backend]:
    """Fakeredis and one server in turn, empty: for behaviour that is equal on all servers."""
    spec: Spec = request.param
    with running_backends.get(spec).acquired() as acquired:
        yield acquired


@pytest.fixture
def sync_client(backend: Backend) -> Any:
    """A client of `backend`."""
    return backend.sync_client()


@pytest.fixture
async def async_client(backend: Backend) -> AsyncIterator[redis.asyncio.Redis]:
    """An asyncio client of `backend`."""
    async with backend.async_client() as client:
        yield client


@pytest.fixture
def make_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Start servers for the test: `make_server(tcp=True, appendonly=True, args=(...))`."""
    with ExitStack() as stack:

        def make(**options: Any) -> EmbeddedServer:
            binary = options.pop("binary", None) or first_binary()
            return stack.enter_context(EmbeddedServer(binary, **options))

        yield make


@pytest.fixture
def server(make_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A fresh server to kill, pause and disconnect, with an append-only file, on loopback."""
    return make_server(tcp=True, appendonly=True)
