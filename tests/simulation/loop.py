"""An event loop under a virtual clock, and the simulated processes whose tasks it runs."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = [
    "EPOCH",
    "Clock",
    "HotLoop",
    "Process",
    "SimulatedLoop",
    "Stuck",
    "current_process",
    "outside",
]

STEP_SECONDS = 1e-6
"""Virtual seconds that a callback takes."""
MOST_CALLBACKS_PER_SECOND = 20_000
"""Callbacks in a virtual second above which the system does nothing but run."""
MOST_CALLBACKS = 100_000
"""Callbacks of a whole run: four times what the busiest of 100 systems needs."""
EPOCH = 1_800_000_000.0
"""Seconds since 1970 at which a world begins."""

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Stuck(AssertionError):
    """Nothing is left to happen, and something still waits."""


class HotLoop(AssertionError):
    """Too much happens in a second, or in the whole run."""


class Clock:
    """The virtual clock.

    Attributes:
        now: seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the seconds of the monotonic clock."""
        return self.now


class Process:
    """A simulated process: the tasks that were begun in it.

    Args:
        loop: runs its tasks.
        name: for the trace.

    Attributes:
        is_alive: False once it was killed: none of its code runs any more.
        is_stopped: whether it is stopped, as by SIGSTOP.
        was_stopped: whether it ever was.
        tasks: all tasks that were begun in it. They must not be collected: a coroutine that is
            collected runs its `finally` blocks.
    """

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self.is_alive = True
        self.is_stopped = self.was_stopped = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._held: list[asyncio.Handle] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task in this process."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return context.run(self._loop.create_task, work)

    def kill(self) -> None:
        """End the process at once, as SIGKILL does."""
        self.is_alive = False
        self._held.clear()

    def stop(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.is_stopped = self.was_stopped = True

    def resume(self) -> None:
        """Let a stopped process go on, as SIGCONT does."""
        if self.is_stopped:
            self.is_stopped = False
            held, self._held = self._held, []
            for handle in held:
                if not handle.cancelled():
                    handle._run()

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback until the process goes on."""
        self._held.append(handle)


class _Jump:
    """The selector of the loop: there are no sockets, and waiting moves the clock.

    Args:
        clock: the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def select(self, timeout: float | None) -> list[Any]:
        """Move the clock."""
        if timeout is None:
            raise Stuck("no task can go on, and no timer is set")
        self._clock.now += timeout
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop that runs callbacks in a fixed order and never waits.

    A callback belongs to the process in whose context it was made: it is dropped if the process was
    killed, and held back while it is stopped.

    Args:
        clock: the clock.
        connect: opens a connection to a host; see `create_connection` of asyncio.
    """

    def __init__(self, clock: Clock, connect: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        super().__init__()
        self.clock = clock
        self.create_connection = connect
        self._selector = _Jump(clock)
        self._clock_resolution = 1e-9
        self._second, self._ran, self._ran_before = 0, 0, 0
        self.set_task_factory(_begin_task)

    def time(self) -> float:
        """Return the seconds of the virtual clock."""
        return self.clock.now

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Do nothing: there is one thread."""

    def call_soon(
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call back in the next round, if the process of the context runs then."""
        own: list[asyncio.Handle] = []
        context = contextvars.copy_context() if context is None else context
        handle = super().call_soon(self._call, own, callback, args, context=context)
        own.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a time of the clock, if the process of the context runs then."""
        own: list[asyncio.Handle] = []
        context = contextvars.copy_context() if context is None else context
        handle = super().call_at(when, self._call, own, callback, args, context=context)
        own.append(handle)
        return handle

    def _call(
        self, own: list[asyncio.Handle], callback: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        process = _PROCESS.get()
        if process is not None and process.is_alive and process.is_stopped:
            process.hold(own[0])
            return
        own.clear()  # a circle: the garbage collector is off
        self._count()
        if process is None or process.is_alive:
            callback(*args)

    def _count(self) -> None:
        """Let a little time pass, and end a run in which time hardly does."""
        self.clock.now += STEP_SECONDS
        second = int(self.clock.now)
        if second != self._second:
            self._ran_before += self._ran
            self._second, self._ran = second, 0
        self._ran += 1
        if self._ran > MOST_CALLBACKS_PER_SECOND:
            raise HotLoop(f"more than {MOST_CALLBACKS_PER_SECOND} callbacks in a second")
        if self._ran_before > MOST_CALLBACKS:
            raise HotLoop(f"more than {MOST_CALLBACKS} callbacks in one run")


def current_process() -> Process | None:
    """Return the process whose code runs; None = that of the world itself."""
    return _PROCESS.get()


def outside() -> contextvars.Context:
    """Return a context that belongs to no process."""
    context = contextvars.copy_context()
    context.run(_PROCESS.set, None)
    return context


def _begin_task(loop: asyncio.AbstractEventLoop, work: Any, **kwargs: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **kwargs)
    process = _PROCESS.get()
    if process is not None:
        process.tasks.append(task)
    return task
