"""Workers of both kinds with one interface, and helpers for the tests of faults."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
import redis.asyncio

from penstock import AsyncPenstock, Penstock
from penstock.worker import AsyncWorker, Handlers, Worker
from tests.support.twins import wait_for

__all__ = ["KINDS", "Seen", "at_work", "both", "sent", "wait_idle"]

KINDS = ("threads", "asyncio")
"""Ways to run handlers."""
INNER = ("evalsha", "blpop", "hget", "client", "info", "script", "ping", "select")
"""Commands that a worker sends; other commands are those of scripts."""

Handle = Callable[[Any], Any]


class Seen:
    """The jobs that handlers received: bodies in order, and times."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.times: list[float] = []

    def __call__(self, job: Any) -> None:
        """Record a job."""
        self.times.append(time.monotonic())
        self.bodies.append(job.body)

    def wait(self, *bodies: Any, timeout: float = 20.0) -> float:
        """Wait until all these jobs have come, and return the seconds."""
        began = time.monotonic()
        wait_for(lambda: set(bodies) <= set(self.bodies), timeout)
        return time.monotonic() - began


@contextmanager
def at_work(
    kind: str,
    url: str,
    queues: Any,
    handle: Handle | Handlers,
    *,
    client: Any = None,
    **options: Any,
) -> Iterator[Worker | AsyncWorker]:
    """Run a worker in the background, in threads or in an event loop of its own thread.

    Args:
        kind: one of `KINDS`.
        url: of the server.
        queues: as a worker takes them.
        handle: a plain function, which the event loop calls itself; or handlers.
        client: options of the redis-py client.
        options: of the worker.
    """
    if kind == "threads":
        with redis.Redis.from_url(url, **(client or {})) as given:
            worker = Worker(Penstock(given, retry_for=1), queues, handle, **options)
            with worker:
                yield worker
        return
    with _looping(url, queues, handle, client or {}, options) as looping:
        yield looping


@contextmanager
def _looping(
    url: str, queues: Any, handle: Any, client: dict[str, Any], options: dict[str, Any]
) -> Iterator[AsyncWorker]:
    made: list[AsyncWorker] = []
    errors: list[BaseException] = []
    started = threading.Event()

    async def call(job: Any) -> Any:
        return handle(job)

    async def main() -> None:
        async with redis.asyncio.Redis.from_url(url, **client) as given:
            handler = handle if isinstance(handle, Handlers) else call
            worker = AsyncWorker(AsyncPenstock(given, retry_for=1), queues, handler, **options)
            async with worker:
                made.append(worker)
                started.set()
                await worker.join()

    def live() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  # raised where the test waits for it
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        started.wait(10)
        if errors:
            raise errors[0]
        yield made[0]
    finally:
        if made:
            made[0].stop()
        thread.join(40)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def both(url: str, **options: Any) -> Iterator[dict[str, tuple[Seen, Worker | AsyncWorker]]]:
    """Run a worker of each kind at once, each with a queue named after its kind."""
    with ExitStack() as stack:
        found = {}
        for kind in KINDS:
            seen = Seen()
            worker = stack.enter_context(at_work(kind, url, kind, seen, **options))
            found[kind] = (seen, worker)
        yield found


def wait_idle(raw: redis.Redis, workers: int = 1) -> None:
    """Wait until this many workers wait for a token."""
    wait_for(lambda: raw.info("clients")["blocked_clients"] >= workers, 20)


def sent(raw: redis.Redis) -> dict[str, int]:
    """Count the commands of clients by name, without those of scripts."""
    stats = raw.info("commandstats")
    found: dict[str, int] = {}
    for name, value in stats.items():
        command = name.removeprefix("cmdstat_").partition("|")[0]
        if command in INNER:
            found[command] = found.get(command, 0) + value["calls"]
    return found
