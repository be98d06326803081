"""Time limits and cancellation of handlers: exceptions that are raised in their threads.

`PyThreadState_SetAsyncExc` makes an exception pending in a thread; the interpreter raises it before
one of the next bytecodes. So a run is armed just before its handler and disarmed just after it,
and an exception that is still pending then is raised and dropped. The thread of a handler takes no
lock while it is armed: an exception between the acquisition and the `with` block would leave the
lock taken.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.client._acompat import async_timeout
from penstock.core.jobs.job import Delivery
from penstock.core.jobs.logs import get_logger
from penstock.worker.registered import AnyHandler

__all__ = ["NO_LIMITS", "CancelledRun", "Item", "Limits", "TimeLimit", "within"]

logger = get_logger("penstock")

Item = tuple[AnyHandler, Sequence[Delivery]]
"""A handler, and the jobs of one run of it."""
NOT_RAISED_TEXT = "%s can't be raised in a handler: the interpreter has no thread with the id %d"
IDLE_THREAD_SECONDS = 10.0
"""Seconds without a run with a limit after which the thread that watches them ends."""
T = TypeVar("T")
_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)


class TimeLimit(BaseException):
    """The handler has run for longer than its time limit; the attempt has failed.

    It is no `Exception`, so `except Exception` in a handler does not catch it.
    """


class CancelledRun(BaseException):
    """The job was cancelled while its handler ran in a thread. It is no `Exception`, as above.

    A chunk handler gets it when all its jobs are cancelled.
    """


class _ThreadRun:
    """The run of a handler in a thread. Each thread has one of these, for one run after another.

    Attributes:
        item: the handler and its jobs; None = none is running.
    """

    __slots__ = ("_fired", "_firing", "_ident", "_is_shielded", "_late", "_lock", "item")

    def __init__(self) -> None:
        self.item: Any = None
        self._ident = threading.get_ident()
        self._lock = threading.Lock()  # of the threads that raise exceptions in this one
        self._firing = False
        self._fired: set[type[BaseException]] = set()
        self._is_shielded = False
        self._late: type[BaseException] | None = None

    def fire(self, item: Any, error: type[BaseException]) -> bool:
        """Raise an exception in the thread, if it still runs this item.

        Returns:
            False if this exception was raised before, and the handler still runs.
        """
        with self._lock:
            self._firing = True  # from here on the end of the run waits for this call
            try:
                if self.item is not item:
                    return True
                if error in self._fired:
                    return False
                self._fired.add(error)
                if self._is_shielded:
                    self._late = error
                    return True
                is_raised = _set_async_exc(self._ident, error) == 1
            finally:
                self._firing = False
        if not is_raised:
            with suppress(Exception):  # a filter or a handler of the user's log
                logger.error(NOT_RAISED_TEXT, error.__name__, self._ident)
        return True

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Raise exceptions for this run behind the block, and not in it."""
        self._is_shielded = True
        self._end_firing()
        try:
            yield
        finally:
            self._is_shielded = False
            self._end_firing()
            late, self._late = self._late, None
        if late is not None:
            raise late

    def _end_firing(self) -> None:
        while self._firing:
            time.sleep(0)  # lets the thread go on that raises the exception

    def disarm(self, before: Any) -> None:
        """Let no exception be raised for this run from now on; `before` = the run around it.

        A pending one is raised here, in a loop, as the interpreter checks for it after each turn.
        To clear it by PyThreadState_SetAsyncExc would leave the interpreter checking for ever.
        """
        self.item = before
        self._is_shielded, self._late = False, None
        while self._firing:  # as in `_end_firing`, which would cost each job a call
            time.sleep(0)
        if self._fired:
            with suppress(TimeLimit, CancelledRun):
                for _ in range(100):
                    pass
            self._fired.clear()


@dataclass(eq=False, slots=True)
class _Watched:
    """A run with a limit: when it ends, by the monotonic clock, its thread, and its item."""

    until: float
    run: _ThreadRun
    item: Any


class Limits:
    """Ends runs of a worker's handlers that take too long, or whose jobs are cancelled.

    Its thread starts with the first run that has a limit, and ends some time after the last one.
    While it can't be started, runs with a limit fail.

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
        self._runs: dict[int, _ThreadRun] = {}
        self._watched: dict[_Watched, None] = {}
        self._thread: threading.Thread | None = None

    def run(
        self,
        limit: float | None,
        item: Item,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a handler in this thread; after so many seconds raise `TimeLimit` in it.

        Raises:
            TimeLimit: it took longer.
            CancelledRun: `cancel` was called for its jobs.
        """
        ident = threading.get_ident()
        run = self._runs.get(ident)
        if run is None:
            run = self._runs[ident] = _ThreadRun()
        before, watched = run.item, None
        try:
            try:
                if limit is not None:
                    watched = _Watched(time.monotonic() + limit, run, item)
                    self._watch(watched)
                run.item = item
                return item[0].function(*args, **kwargs)
            finally:
                run.disarm(before)
        except (TimeLimit, CancelledRun) as error:
            run.disarm(before)  # the first call may have been interrupted
            if limit is not None and isinstance(error, TimeLimit):
                error.args = (limit_text(limit),)
            raise
        finally:
            if watched is not None:
                self._watched.pop(watched, None)

    def cancel(self, job: Delivery) -> bool:
        """Raise `CancelledRun` in the thread of this job's handler, if all its jobs are cancelled.

        Returns:
            False if no thread runs it.
        """
        for run in list(self._runs.values()):
            item = run.item
            if item is not None and job in item[1]:
                if all(other.cancelled for other in item[1]):
                    run.fire(item, CancelledRun)
                return True
        return False

    def shield(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is raised in this thread: it may use a connection."""
        run = self._runs.get(threading.get_ident())
        return nullcontext() if run is None else run.shield()

    def busy_threads(self) -> list[int]:
        """Return the ids of the threads that run handlers."""
        return [ident for ident, run in list(self._runs.items()) if run.item is not None]

    def _watch(self, watched: _Watched) -> None:
        with self._changed:
            is_next = all(watched.until < other.until for other in list(self._watched))
            self._watched[watched] = None
            if self._thread is None or not self._thread.is_alive():  # its start has failed
                name = "penstock-limits"
                self._thread = threading.Thread(target=self._main, name=name, daemon=True)
                self._thread.start()
            elif is_next:
                self._changed.notify()

    def _main(self) -> None:
        while True:
            with self._changed:
                nearest = min((watched.until for watched in list(self._watched)), default=None)
                if nearest is None:
                    if not self._changed.wait(IDLE_THREAD_SECONDS) and not self._watched:
                        self._thread = None
                        return
                elif nearest > time.monotonic():
                    self._changed.wait(nearest - time.monotonic())
            for watched in list(self._watched):
                if watched.until <= time.monotonic():
                    self._end(watched)

    def _end(self, watched: _Watched) -> None:
        if watched.run.fire(watched.item, TimeLimit):
            watched.until = time.monotonic() + self._grace
        else:
            self._watched.pop(watched, None)
            self._is_stuck(watched.item)


async def within(limit: float, awaited: Awaitable[T]) -> T:
    """Await a coroutine; cancel it after so many seconds.

    Raises:
        TimeLimit: it took longer.
    """
    timer = async_timeout(limit)
    try:
        async with timer:
            return await awaited
    except asyncio.TimeoutError:
        expired: Any = timer.expired  # a method; before Python 3.11 a property
        if expired() if callable(expired) else expired:
            raise TimeLimit(limit_text(limit)) from None
        raise  # it is the handler's own


def limit_text(limit: float) -> str:
    """Return the text of the error."""
    return f"longer than {limit:g} s"


NO_LIMITS = Limits(None, 0.0, lambda _: None)
"""For runners without a worker: only handlers may have limits."""
