"""Time limits of handlers: a watchdog raises `TimeLimit` in a thread that takes too long.

`PyThreadState_SetAsyncExc` makes an exception pending in a thread; the interpreter raises it before
one of the next bytecodes. So a run is armed just before its handler and disarmed just after it,
under a lock of its own, and an exception that is still pending then is taken back.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

__all__ = ["NO_LIMITS", "Limits", "TimeLimit", "within"]

T = TypeVar("T")
_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING = ctypes.py_object()


class TimeLimit(BaseException):
    """The handler has run for longer than its time limit; the attempt has failed.

    It is no `Exception`, so `except Exception` in a handler does not catch it.
    """


class _LimitedRun:
    """One run of a handler in a thread.

    Args:
        limit: seconds.
        item: the handler and its jobs.
    """

    __slots__ = ("_has_fired", "_ident", "_is_armed", "_lock", "item", "until")

    def __init__(self, limit: float, item: Any) -> None:
        self.until = time.monotonic() + limit
        self.item = item
        self._ident = threading.get_ident()
        self._lock = threading.Lock()
        self._is_armed = True
        self._has_fired = False

    def fire(self) -> bool:
        """Raise the exception in the run's thread, if the handler still runs.

        Returns:
            False if the exception was raised before, and the handler still runs.
        """
        with self._lock:
            if self._is_armed and self._has_fired:
                return False
            if self._is_armed:
                self._has_fired = True
                _set_async_exc(self._ident, TimeLimit)
            return True

    def disarm(self) -> None:
        """Let no exception be raised from now on."""
        with self._lock:
            self._is_armed = False
            if self._has_fired:  # it may be pending still
                _set_async_exc(self._ident, _NOTHING)


class Limits:
    """The time limits of a worker; ends runs in threads that take too long.

    Its thread starts with the first run that has a limit.

    Args:
        default: seconds, for handlers without a limit of their own; None = no limit.
        grace: seconds after the limit in which a handler has to end.
        is_stuck: called with a handler that has not, and its jobs.
    """

    def __init__(
        self, default: float | None, grace: float, is_stuck: Callable[[Any], None]
    ) -> None:
        self.default = default
        self._grace = grace
        self._is_stuck = is_stuck
        self._changed = threading.Condition()
        self._runs: dict[_LimitedRun, None] = {}
        self._thread: threading.Thread | None = None

    def run(self, limit: float, function: Callable[[], T], item: Any) -> T:
        """Call a handler; raise `TimeLimit` in it after so many seconds.

        Raises:
            TimeLimit: it took longer.
        """
        run = _LimitedRun(limit, item)
        try:
            try:
                self._watch(run)
                return function()
            finally:
                run.disarm()
        except TimeLimit as error:
            run.disarm()  # the first call may have been interrupted
            error.args = (exceeded(limit),)
            raise
        finally:
            self._runs.pop(run, None)

    def _watch(self, run: _LimitedRun) -> None:
        with self._changed:
            is_next = all(run.until < other.until for other in list(self._runs))
            self._runs[run] = None
            if self._thread is None:
                name = "penstock-limits"
                self._thread = threading.Thread(target=self._main, name=name, daemon=True)
                self._thread.start()
            elif is_next:
                self._changed.notify()

    def _main(self) -> None:
        while True:
            with self._changed:
                nearest = min((run.until for run in list(self._runs)), default=None)
                if nearest is None or nearest > time.monotonic():
                    self._changed.wait(None if nearest is None else nearest - time.monotonic())
            for run in list(self._runs):
                if run.until <= time.monotonic():
                    self._end(run)

    def _end(self, run: _LimitedRun) -> None:
        if run.fire():
            run.until = time.monotonic() + self._grace
        else:
            self._runs.pop(run, None)
            self._is_stuck(run.item)


async def within(limit: float, awaited: Awaitable[T]) -> T:
    """Await a coroutine; cancel it after so many seconds.

    Raises:
        TimeLimit: it took longer.
    """
    task = asyncio.current_task()
    assert task is not None
    has_expired = False

    def expire() -> None:
        nonlocal has_expired
        has_expired = True
        task.cancel(exceeded(limit))

    timer = asyncio.get_running_loop().call_later(limit, expire)
    try:
        return await awaited
    except asyncio.CancelledError:
        if has_expired:
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise TimeLimit(exceeded(limit)) from None
        raise
    finally:
        timer.cancel()


def exceeded(limit: float) -> str:
    """Return the text of the error."""
    return f"longer than {limit:g} s"


NO_LIMITS = Limits(None, 0.0, lambda _: None)
"""For runners without a worker: only handlers may have limits."""
