"""Background work of a test: a task in asyncio, a thread in the synchronous version.

tools/unasync.py turns `aspawn` into `spawn`, `await_for` into `wait_for`, and `AsyncBeside` into
`Beside`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = [
    "PATIENCE",
    "WRONG_CLIENTS",
    "AsyncBeside",
    "Beside",
    "aspawn",
    "await_for",
    "spawn",
    "wait_for",
]

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE = 20.0
"""Seconds until the test gives up its background work."""

WRONG_CLIENTS = {"AsyncPenstock": "sync_client", "Penstock": "async_client"}
"""The method of `Backend` that makes a redis-py client of the other kind."""


class AsyncBeside(Generic[T]):
    """A coroutine that runs in the background of a test.

    Args:
        task: its task.
    """

    def __init__(self, task: asyncio.Task[T]) -> None:
        self._task = task

    @property
    def is_done(self) -> bool:
        """Tell if it has returned or raised."""
        return self._task.done()

    async def result(self, timeout: float = PATIENCE) -> T:
        """Return its result.

        Raises:
            TimeoutError: it has not returned in that time.
        """
        done, _ = await asyncio.wait({self._task}, timeout=timeout)
        if not done:
            raise TimeoutError(f"still running after {timeout} s")
        return self._task.result()

    async def end(self) -> None:
        """Cancel it if it still runs; drop its result or error."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Beside(Generic[T]):
    """A function that runs in a background thread of a test.

    Args:
        work: the function, its arguments bound.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001  # raised again by `result`
            self._error = error

    @property
    def is_done(self) -> bool:
        """Tell if it has returned or raised."""
        return not self._thread.is_alive()

    def result(self, timeout: float = PATIENCE) -> T:
        """Return its result.

        Raises:
            TimeoutError: it has not returned in that time.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"still running after {timeout} s")
        if self._error is not None:
            raise self._error
        return self._results[0]

    def end(self, timeout: float = PATIENCE) -> None:
        """Wait until it has ended by itself, as no thread can be cancelled; drop what it returned.

        Raises:
            TimeoutError: it has not ended in that time.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"still running after {timeout} s")


def aspawn(
    function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
) -> AsyncBeside[T]:
    """Run a coroutine function in the background."""
    return AsyncBeside(asyncio.ensure_future(function(*args, **kwargs)))


def spawn(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Beside[T]:
    """Run a function in a background thread."""
    return Beside(lambda: function(*args, **kwargs))


async def await_for(reached: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Poll until a condition holds, if no event reports it.

    Raises:
        TimeoutError: it was not in that time.
    """
    end = time.monotonic() + timeout
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(f"not reached within {timeout} s")
        await asyncio.sleep(0.002)


def wait_for(reached: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Poll until a condition holds, in tests with threads.

    Raises:
        TimeoutError: it was not in that time.
    """
    end = time.monotonic() + timeout
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(f"not reached within {timeout} s")
        time.sleep(0.002)


async def coroutine_function(job: object) -> None:
    """Handle a job in a coroutine, which threads can't run."""
    del job


__all__ += ["coroutine_function"]
