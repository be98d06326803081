"""A world: the clock, the network, the servers and the processes, all from one seed."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any
from unittest import mock

import redis.utils

import penstock.client._acompat
import penstock.client._async
import penstock.core
import penstock.worker._async.life
from penstock import AsyncPenstock
from penstock.client._acompat import AsyncWakeup
from penstock.core.jobs import workers
from penstock.core.values import stable
from penstock.worker._async.heartbeat import AsyncHeartbeat
from tests.simulation.loop import Clock, Process, SimulatedLoop
from tests.simulation.network import Network, readable
from tests.simulation.server import Server, use_server_time

__all__ = ["World", "silenced"]

_redis_version = cache(redis.utils.get_lib_version)
"""Returns the version that a connection tells. It is read from a file, and takes long."""
MOST_CLOSINGS = 20
"""Most `finally` blocks with a wait, one around the other."""


def _import_all() -> None:
    """Import what the product imports late: a module that a world imports would keep its clock."""
    for package in (penstock.client._async, penstock.core, penstock.worker):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)


_import_all()


class TaskHeartbeat(AsyncHeartbeat):
    """The heartbeat of a worker as a task: the world has one thread."""

    def start(self) -> None:
        """Start the task."""
        self._signal = AsyncWakeup()
        self._state.poke = self._signal.set
        self._task = asyncio.ensure_future(self._beat_on())

    def close(self) -> None:
        """End the task after a call that is in progress."""
        self._closed = True
        self._signal.set()

    async def _beat_on(self) -> None:
        try:
            await self.prepare()
            while not self._closed:
                await self._signal.wait(await self.beat())
        finally:
            await self.end()


class World:
    """A world. Use it as a context manager; `run` lets time pass.

    Args:
        seed: the seed of everything that is drawn.

    Attributes:
        draws: the only source of randomness.
        clock: the clock.
        network: the network.
        loop: the event loop.
        story: lines of what has happened.
        log: gets each command and each reply, if there is one.
        failures: exceptions that no task has caught.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draws = random.Random(seed)
        self.clock = Clock()
        self.network = Network(self.draws)
        self.loop = SimulatedLoop(self.clock, self.network.connect)
        self.network.loop = self.loop
        self.story: list[str] = []
        self.log: list[str] | None = None
        self.failures: list[BaseException] = []
        self.processes: list[Process] = []
        self._digest = hashlib.sha256()
        self._alter: Callable[[bytes], bytes] = lambda source: source
        self._stack = ExitStack()
        self.loop.set_exception_handler(self._note_failure)

    # -- life ------------------------------------------------------------------------------

    def __enter__(self) -> World:
        self._stack.enter_context(_without_collector())
        self._stack.enter_context(use_server_time())
        self._stack.enter_context(_replaced(self))
        self._stack.enter_context(_logged(self))
        return self

    def __exit__(self, *error: object) -> None:
        with silenced():
            for process in self.processes:
                process.kill()
            self.loop.set_exception_handler(lambda *_: None)
            _close_tasks(self.loop, [task for one in self.processes for task in one.tasks])
            for process in self.processes:
                process.tasks.clear()
            self.network.clear()
            for server in self.network.servers.values():
                server.end()
            self.loop.close()
            gc.collect()
            self._stack.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, and all processes meanwhile.

        Raises:
            BaseException: whatever a process has not caught.
        """
        try:
            return self.loop.run_until_complete(work)
        finally:
            if self.failures:
                raise self.failures[0]

    def _note_failure(self, loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
        error = facts.get("exception") or AssertionError(facts["message"])
        self.failures.append(error)
        self.note("failure", facts["message"], repr(error))
        loop.stop()

    # -- the trace -------------------------------------------------------------------------

    def trace(self, *parts: object) -> None:
        """Add to the digest of all that happens."""
        line = repr((round(self.clock.now, 6), *parts))
        self._digest.update(line.encode())
        if self.log is not None:
            self.log.append(line)

    def note(self, *parts: object) -> None:
        """Add a line to the story."""
        words = [str(part) for part in parts]
        self.trace(*words)
        self.story.append(f"{self.clock.now:10.4f}  {'  '.join(words)}")

    @property
    def digest(self) -> str:
        """The digest of all that has happened."""
        return self._digest.hexdigest()

    # -- parts -----------------------------------------------------------------------------

    def add_server(self, name: str) -> Server:
        """Start a server; `redis://{name}` is its URL."""
        server = Server(name, self.clock, self._call_outside, self.trace)
        server.alter = self._alter
        self.network.servers[name] = server
        return server

    def plant(self, alter: Callable[[bytes], bytes]) -> None:
        """Let the servers that are added from now on run other texts in place of scripts."""
        self._alter = alter

    def _call_outside(self, seconds: float, callback: Callable[..., Any], *args: Any) -> None:
        self.loop.call_later(seconds, callback, *args)

    def process(self, name: str) -> Process:
        """Return a new process."""
        process = Process(self.loop, name)
        self.processes.append(process)
        return process

    def client(self, owner: str, *places: str, **options: Any) -> AsyncPenstock:
        """Return a client of servers, by name or URL; call this in the process that uses it."""
        urls = [name if "://" in name else f"redis://{name}" for name in places]
        return AsyncPenstock(urls[0] if len(urls) == 1 else urls, owner=owner, **options)


class _Secrets:
    """The module `secrets` as the product sees it."""

    def __init__(self, draws: random.Random) -> None:
        self.randbits = draws.getrandbits
        self._draws = draws

    def token_hex(self, size: int) -> str:
        """Return drawn hex digits."""
        return self.token_bytes(size).hex()

    def token_bytes(self, size: int) -> bytes:
        """Return drawn bytes."""
        return self._draws.randbytes(size)

    def choice(self, items: Sequence[Any]) -> Any:
        """Return a drawn item."""
        return self._draws.choice(items)


@contextmanager
def _replaced(world: World) -> Iterator[None]:
    """Give the product the world's clock and draws, where it asks its machine."""
    places = {
        id(time.monotonic): world.clock.monotonic,
        id(time): SimpleNamespace(**vars(time) | {"monotonic": world.clock.monotonic}),
        id(random): world.draws,
        id(secrets): _Secrets(world.draws),
    }
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "penstock":
                for key, value in list(vars(module).items()):
                    if id(value) in places:
                        stack.enter_context(mock.patch.object(module, key, places[id(value)]))
        patch = mock.patch.object
        stack.enter_context(patch(penstock.client._acompat, "_readable", readable))
        stack.enter_context(patch(penstock.worker._async.life, "AsyncHeartbeat", TaskHeartbeat))
        stack.enter_context(patch(penstock.worker._async.life, "gethostname", lambda: "host"))
        stack.enter_context(patch(workers, "os", SimpleNamespace(getpid=lambda: 1)))
        stack.enter_context(patch(stable, "next_id", stable.ids().__next__))
        stack.enter_context(patch(redis.utils, "get_lib_version", _redis_version))
        yield


def _close_tasks(loop: SimulatedLoop, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Close the coroutines of tasks that will never go on.

    Their `finally` blocks run up to the next wait, at which they are closed again. A killed process
    runs none of them, and nothing of the world takes notice any more.
    """
    asyncio._set_running_loop(loop)
    try:
        for task in tasks:
            task._log_destroy_pending = False
            work: Any = task.get_coro()
            for _ in range(MOST_CLOSINGS):
                try:
                    work.close()
                    break
                except BaseException:  # noqa: BLE001  # of no interest to anything
                    continue
    finally:
        asyncio._set_running_loop(None)


class _TraceHandler(logging.Handler):
    """Adds what the product logs to the trace.

    Args:
        world: the world.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record, as text: it would keep what it names alive."""
        self._world.trace("log", record.levelname, record.getMessage())


@contextmanager
def _logged(world: World) -> Iterator[None]:
    """Let the product log into the trace, and nowhere else."""
    logger, handler = logging.getLogger("penstock"), _TraceHandler(world)
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Turn the garbage collector off: it runs `finally` blocks at times that no seed tells.

    What is alive then is never looked at again: in a process that has run other tests a collection
    of all takes seconds, and each seed begins with one.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def silenced() -> Iterator[None]:
    """Let nothing be said about connections that were never closed, and tasks that never ended.

    That is how a killed process looks.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
