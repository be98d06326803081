"""Threads and tasks of workers; a program that ends stops those that still run."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # before `_end_main`: its threads are joined after that
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

__all__ = [
    "EXIT_WAIT",
    "Activity",
    "AsyncActivity",
    "ain_thread",
    "end_activities",
    "in_thread",
    "main_has_ended",
]

EXIT_WAIT = 3.0
"""Seconds for which a program that ends waits for its workers, and for handlers given up."""
main_has_ended = threading.Event()
"""Set when the main thread has executed the program's code, and begins to join threads."""


def in_thread(main: Callable[[], None], name: str) -> threading.Thread:
    """Run a function in a daemon thread."""
    thread = threading.Thread(target=main, name=name, daemon=True)
    thread.start()
    return thread


def ain_thread(main: Callable[[], Coroutine[Any, Any, None]], name: str) -> threading.Thread:
    """Run a coroutine in a daemon thread with an event loop of its own."""
    return in_thread(lambda: asyncio.run(main()), name)


class Activity:
    """A function that runs in a thread of its own.

    Its thread is a daemon, so at the program's end `stop` is called and the thread is joined for
    `EXIT_WAIT` seconds: see `end_activities`.

    Args:
        main: the function.
        name: the name of the thread.
        stop: makes it return soon.
    """

    def __init__(self, main: Callable[[], None], name: str, stop: Callable[[], None]) -> None:
        self._main = main
        self.stop = stop
        self.error: BaseException | None = None
        self._thread = in_thread(self._run, name)

    def _run(self) -> None:
        _activities.add(self)
        try:
            self._main()
        except BaseException as error:  # noqa: BLE001  # it is raised where it is joined
            self.error = error
        finally:
            _activities.discard(self)

    def wait(self, until: float) -> None:
        """Wait until it has ended, or until a point in time of the monotonic clock."""
        self._thread.join(max(0.0, until - time.monotonic()))

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return not self._thread.is_alive()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; return whether it has. Raises the exception that ended it."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self.error is not None:
            raise self.error
        return True


class AsyncActivity:
    """A coroutine that runs in a task of its own.

    Args:
        main: the coroutine function.
        name: the name of the task.
    """

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(main(), name=name)

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return self._task.done()

    async def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; return whether it has. Raises the exception that ended it."""
        await asyncio.wait({self._task}, timeout=timeout)
        if not self._task.done():
            return False
        self._task.result()
        return True


_activities = set[Activity]()
"""Those that run."""


def end_activities() -> None:
    """Stop all activities, then wait for all of them together."""
    running = [
        activity for activity in list(_activities) if not activity.is_over
    ]  # none in a forked child
    until = time.monotonic() + EXIT_WAIT
    for activity in running:
        activity.stop()
    for activity in running:
        activity.wait(until)


def _end_main() -> None:
    """End the activities before executors refuse calls, unless the program goes on in threads."""
    main_has_ended.set()
    apart = {threading.main_thread(), *list(concurrent.futures.thread._threads_queues)}
    if all(thread.daemon or thread in apart for thread in threading.enumerate()):
        with suppress(Exception):  # else the interpreter would not join the program's threads
            end_activities()


atexit.register(end_activities)
with suppress(RuntimeError):  # the interpreter ends already
    # Functions of `atexit` are called after threads were joined.
    getattr(threading, "_register_atexit", atexit.register)(_end_main)
