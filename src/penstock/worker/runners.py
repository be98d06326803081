"""Runners of handlers: threads, or tasks of the event loop.

The two are written by hand, as they share little.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.core.jobs.job import Delivery
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.middleware import HANDLER
from penstock.core.values.caught import caught
from penstock.errors import ConfigurationError
from penstock.worker.activities import in_thread
from penstock.worker.limits import NO_LIMITS, CancelledRun, Item, within
from penstock.worker.registered import AnyHandler
from penstock.worker.step_run import RunEnded

__all__ = [
    "AsyncRunners",
    "Item",
    "Runners",
    "origin",
]

logger = get_logger("penstock")

origin: contextvars.ContextVar[object] = contextvars.ContextVar("penstock_origin")
"""In contexts of handlers that are coroutines: the mark of their runners."""

T = TypeVar("T")

BLOCKED_LOOP_SECONDS = 1.0
"""Seconds for which a handler may keep the event loop without a warning."""

process_id = [os.getpid()]
"""The id of this process. It is kept, as to ask for it is a system call."""
os.register_at_fork(after_in_child=lambda: process_id.__setitem__(0, os.getpid()))


def end_fork(pid: int) -> None:
    """End this process if it is a child of the worker's process, which has this id.

    A child that a handler forks and that returns from the handler would go on as a second worker,
    with the connections and the jobs of the first. It ends with exit code 0 if the handler
    returned, that of `sys.exit`, or 1 after any other exception.
    """
    if process_id[0] == pid:
        return
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        os._exit(error.code or 0)
    os._exit(0 if error is None else 1)


def refuse_greenlets() -> None:
    """Raise an error if gevent or eventlet has replaced the threads of this program.

    A greenlet that computes lets no other one renew leases, and no exception can be raised in it.
    The ids of greenlets are not those of the interpreter's threads.

    Raises:
        ConfigurationError: it has.
    """
    package = threading.get_ident.__module__.partition(".")[0]
    if package != "_thread":
        raise ConfigurationError(
            f"{package} has replaced the threads of this program, and a worker needs real ones: to "
            "renew leases while a handler computes, and to end handlers at their time limits. Run "
            f"the worker in a process that {package} does not patch; producers may be patched"
        )


class DaemonThreads(Generic[T]):
    """Threads that take items from an inbox. They are daemons: the process ends beside them.

    Those of an executor would keep the process until the last function returns.

    Args:
        count: most threads.
        name: the beginning of their names.
        execute: runs one item.

    Attributes:
        put: queues an item; the next free thread runs it.
        is_empty: returns whether no item waits for a thread.
        waiting: returns how many items wait for one.

    Raises:
        ConfigurationError: the program has no threads of the operating system.
    """

    def __init__(self, count: int, name: str, execute: Callable[[T], None]) -> None:
        refuse_greenlets()
        self._count = count
        self._name = name
        self._execute = execute
        self._pid = os.getpid()
        self._inbox: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self.put: Callable[[T], None] = self._inbox.put
        self.is_empty = self._inbox.empty
        self.waiting = self._inbox.qsize
        self._threads: list[threading.Thread] = []
        self._context = contextvars.Context()

    def grow(self) -> None:
        """Start another thread, unless there are enough."""
        if len(self._threads) < self._count:
            self._threads.append(in_thread(self._run, f"{self._name}-{len(self._threads) + 1}"))

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            try:
                self._context.copy().run(self._execute, item)
            except BaseException as error:  # noqa: BLE001  # a runner outlives everything
                _complain(error)
            del item  # else its jobs live until the next one comes

    def end(self) -> None:
        """End each thread after its item."""
        for _ in self._threads:
            self._inbox.put(None)


class Runners(DaemonThreads[Item]):
    """Threads that run handlers: `execute` of an item must not raise.

    Each run has its own copy of the context in which the threads were started.

    Attributes:
        limits: the time limits of the worker.
    """

    limits = NO_LIMITS

    def start(self) -> None:
        """Start the threads."""
        self._context = contextvars.copy_context()
        for _ in range(self._count):
            self.grow()

    def drain(self) -> list[Item]:
        """Remove and return the items that no thread has begun."""
        found = []
        with suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if item is not None:
                    found.append(item)
        return found

    def lose(self, jobs: Sequence[Delivery]) -> None:
        """Mark jobs as lost. Their handlers see it only if they look at `job.lost`."""
        for job in jobs:
            job.lost = True

    def call(
        self,
        handler: AnyHandler,
        jobs: Sequence[Delivery],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the handler."""
        limit = handler.time_limit or self.limits.default
        try:
            return self.limits.run(limit, (handler, jobs), args, kwargs)
        finally:
            if process_id[0] != self._pid:
                end_fork(self._pid)

    def cancel(self, jobs: Sequence[Delivery]) -> None:
        """Mark jobs as cancelled, and raise `CancelledRun` in the threads of their handlers.

        A chunk handler goes on until all its jobs are cancelled.
        """
        for job in jobs:
            job.cancelled = True
            self.limits.cancel(job)

    def has_ended(self, jobs: Sequence[Delivery], error: BaseException) -> bool:
        """Return whether the worker has ended the run of these jobs, as they are cancelled."""
        return isinstance(error, CancelledRun) and jobs[0].cancelled

    def mark_of_running(self) -> None:
        """Return None: handlers are no coroutines."""

    def warn_of_block(self, now: float) -> None:
        """Do nothing: no handler runs in an event loop."""

    def unfinished(self) -> Sequence[asyncio.Task[None]]:
        """Return nothing: handlers are no tasks."""
        return ()

    def close(self, timeout: float) -> bool:
        """End each thread after its handler; wait at most so many seconds for all of them.

        Returns:
            Whether the process can end now.
        """
        self.end()
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return True


class _ThreadCall:
    """A plain function that a thread runs for a task, in the context of that task.

    Args:
        function: the function.
        pid: the id of this process.
    """

    __slots__ = ("_context", "_ended", "_function", "_has_raised", "_loop", "_pid", "_value")

    def __init__(self, function: Callable[[], Any], pid: int) -> None:
        self._function = function
        self._pid = pid
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        # A future takes no StopIteration, and its task would wait for ever.
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._value: list[Any] = []  # or the exception, until the task takes it: see `caught`
        self._has_raised = False

    def run(self) -> None:
        """Run the function, in the thread."""
        if self._ended.cancelled():
            return
        try:
            try:
                self._value.append(self._context.run(self._function))
            finally:
                end_fork(self._pid)
        except BaseException:  # noqa: BLE001  # it is raised in the task
            self._value.append(caught())
            self._has_raised = True
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:  # the loop is closed: no task waits
            self._value.clear()

    def _tell(self) -> None:
        if self._ended.done():  # the task was cancelled
            self._value.clear()
        else:
            self._ended.set_result(None)

    async def end(self) -> Any:
        """Wait for the end of the function; return its value, or raise its exception."""
        try:
            await self._ended
            if self._has_raised:
                raise self._value.pop()
            return self._value.pop()
        finally:
            self._value.clear()


class AsyncRunners:
    """Runs handlers in tasks, one for each item; plain functions run in threads beside them.

    Args:
        count: most tasks at once.
        name: the name of the worker, for the tasks' and threads' names.
        execute: runs one item; it must not raise.

    Attributes:
        limits: the time limits of the worker.

    An event loop that ends cancels every task, also `_watch`. This task only waits, and no other
    code knows it. So if it is cancelled, the event loop ends.
    """

    def __init__(self, count: int, name: str, execute: Callable[[Item], Awaitable[None]]) -> None:
        self._count = count
        self._name = name
        self._execute = execute
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Item] = deque()
        self._task_of: dict[Delivery, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._watch: asyncio.Task[None] | None = None
        self._mark = object()
        self._asked_at: float | None = None  # when the loop was asked to answer
        self._blocking = set[str]()
        self._threads: DaemonThreads[_ThreadCall] = DaemonThreads(
            count, f"{name}-thread", _ThreadCall.run
        )
        self.limits = NO_LIMITS

    def start(self) -> None:
        """Watch for the end of the event loop."""
        origin.set(self._mark)
        self._watch = self._loop.create_task(self._wait(), name=f"{self._name}-end")

    async def _wait(self) -> None:
        await self._end

    def _is_over(self) -> bool:
        return self._end.done() or self._watch is None or self._watch.done()

    def put(self, item: Item) -> None:
        """Run an item, at once or when a task has ended."""
        if len(self._tasks) < self._count:
            self._begin(item)
        else:
            self._inbox.append(item)

    def is_empty(self) -> bool:
        """Return whether no item waits for a task."""
        return not self._inbox

    def waiting(self) -> int:
        """Return how many items wait for a task."""
        return len(self._inbox)

    def _begin(self, item: Item) -> None:
        task = self._loop.create_task(self._run(item), name=self._name)
        self._tasks[task] = None
        task.add_done_callback(self._begin_next)

    async def _run(self, item: Item) -> None:
        try:
            await self._execute(item)
        except Exception as error:  # noqa: BLE001  # the next item runs all the same
            _complain(error)

    def _begin_next(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._inbox and not self._is_over():
            self._begin(self._inbox.popleft())

    def drain(self) -> list[Item]:
        """Remove and return the items that no task has begun."""
        found, self._inbox = list(self._inbox), deque()
        return found

    def lose(self, jobs: Sequence[Delivery]) -> None:
        """Mark jobs as lost and cancel their handlers; callable from any thread."""
        for job in jobs:
            job.lost = True
        with suppress(RuntimeError):  # the loop is closed: nothing runs
            self._loop.call_soon_threadsafe(self._cancel, jobs)

    def _cancel(self, jobs: Sequence[Delivery]) -> None:
        for task in dict.fromkeys(self._task_of[job] for job in jobs if job in self._task_of):
            task.cancel("the lease was lost")

    def cancel(self, jobs: Sequence[Delivery]) -> None:
        """Mark jobs as cancelled, and cancel their handlers; callable from any thread.

        A chunk handler goes on until all its jobs are cancelled.
        """
        for job in jobs:
            job.cancelled = True
        with suppress(RuntimeError):  # as above
            self._loop.call_soon_threadsafe(self._cancel_runs, jobs)

    def _cancel_runs(self, jobs: Sequence[Delivery]) -> None:
        goes_on = {task for job, task in self._task_of.items() if not job.cancelled}
        ended = {self._task_of[job]: job for job in jobs if job in self._task_of}
        for task, job in ended.items():
            if task not in goes_on and not self.limits.cancel(job):
                task.cancel("the job was cancelled")

    async def call(
        self,
        handler: AnyHandler,
        jobs: Sequence[Delivery],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the handler. It is cancelled when one of the jobs is lost."""
        task = asyncio.current_task()
        assert task is not None
        limit = handler.time_limit or self.limits.default
        for job in jobs:
            self._task_of[job] = task
        try:
            if handler.is_async:
                try:
                    awaited = handler.function(*args, **kwargs)
                    return await (awaited if limit is None else within(limit, awaited))
                finally:
                    end_fork(self._pid)
            self._threads.grow()
            function = partial(self.limits.run, limit, (handler, jobs), args, kwargs)
            call = _ThreadCall(function, self._pid)
            self._threads.put(call)
            return await call.end()
        finally:
            for job in jobs:
                del self._task_of[job]

    def has_ended(self, jobs: Sequence[Delivery], error: BaseException) -> bool:
        """Return whether the worker, or the end of its event loop, has ended the run of these jobs.

        Otherwise the handler is the cause: it has cancelled a task of its own, or has given its
        task to other code.
        """
        if isinstance(error, CancelledRun):
            return jobs[0].cancelled
        if not isinstance(error, (asyncio.CancelledError, RunEnded)):
            return False
        return self._is_over() or any(job.lost or job.cancelled for job in jobs)

    def mark_of_running(self) -> object | None:
        """Return the value of `origin` in handlers, if some run or the loop has cancelled them."""
        return self._mark if self._task_of or self._is_over() else None

    def warn_of_block(self, now: float) -> None:
        """Warn, once for each handler, if it has not let the event loop run for a second.

        The thread of the heartbeat calls it again and again while there are jobs: that costs
        handlers nothing. Each call asks the loop for an answer, and looks if the last one has come.
        """
        if self._asked_at is None:
            self._asked_at = now
            with suppress(RuntimeError):  # the loop is closed: nothing runs
                self._loop.call_soon_threadsafe(self._answer)
        elif now - self._asked_at >= BLOCKED_LOOP_SECONDS:
            task = asyncio.current_task(self._loop)
            jobs = [job for job, own in self._task_of.copy().items() if own is task]
            names = {job.headers.get(HANDLER) or "of a job without a name" for job in jobs}
            for name in names - self._blocking:
                self._blocking.add(name)
                text = (
                    "handler %s keeps the event loop for more than %.1f s: the other handlers of "
                    "this worker wait. Make it a plain function, which runs in a thread, or await "
                    "asyncio.to_thread(...) where it computes or blocks"
                )
                logger.warning(text, name, now - self._asked_at)

    def _answer(self) -> None:
        self._asked_at = None

    def unfinished(self) -> Sequence[asyncio.Task[None]]:
        """Return the tasks of handlers that have not ended."""
        return list(self._tasks)

    async def close(self, timeout: float) -> bool:
        """End the tasks; wait for them at most so many seconds.

        Returns:
            Whether the process can end now. A coroutine that refuses to be cancelled prevents it.
        """
        if not self._end.done():
            self._end.set_result(None)
        for task in self._tasks:
            task.cancel("the worker ends")
        self._threads.end()
        left = {*self._tasks} if self._watch is None else {*self._tasks, self._watch}
        return not left or not (await asyncio.wait(left, timeout=timeout))[1]


def _complain(error: BaseException) -> None:
    with suppress(Exception):  # a filter or a handler of the user's log
        logger.critical(
            "a handler's run failed in the worker itself; its jobs come back when their leases end",
            exc_info=error,
        )
