"""Ends a process that handlers would keep alive after its worker has stopped.

`asyncio.run` waits for coroutines that refuse to be cancelled, and for the threads of
`asyncio.to_thread`. The interpreter waits for the threads of all executors. The worker has given
the job of such a handler back, but the blocking call would keep the process for as long as it
takes.

A program may do work of its own after its worker, so only a call that is known to be a handler's
counts, and the process ends only when nothing else in it works any more.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.thread import _threads_queues, _WorkItem
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.core.jobs.logs import get_logger
from penstock.worker.activities import EXIT_WAIT, end_activities, in_thread, main_has_ended
from penstock.worker.runners import AsyncRunners, Runners, origin

__all__ = ["ProcessEnd", "end_process"]

logger = get_logger("penstock")

CALL_LOOK_INTERVAL = 0.1
"""Seconds between two looks at calls of handlers that were given up."""
LAST_STEPS_SECONDS = 10.0
"""Most seconds for the steps before the end: a handler may hold a lock that one of them needs."""


class ProcessEnd:
    """Ends the process if nothing but given-up handlers keeps it, with exit code 1.

    It does nothing until a running handler is given up that may keep the process. Then a thread
    watches this handler until it ends.
    """

    def __init__(self) -> None:
        self._calls: dict[threading.Thread, _WorkItem[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_disowned = False
        with suppress(RuntimeError):  # there is none
            self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """End the process at once, unless its program goes on after `run`."""
        if not self._is_disowned:
            end_process()

    def disown(self) -> None:
        """Let the program go on: only given-up handlers may keep it from its end."""
        self._is_disowned = True

    def note_calls(self, runners: Runners | AsyncRunners) -> None:
        """Watch the calls in executors of handlers that are given up now.

        They are calls that a coroutine has made, or for whose futures a thread waits.
        """
        with suppress(Exception):  # it reads what other versions of Python may not have
            self._calls.update(_calls_of(runners))
        self._watch()

    def note_tasks(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Watch the tasks of handlers that refuse to be cancelled."""
        self._tasks.update(tasks)
        self._watch()

    def _watch(self) -> None:
        if (self._calls or self._tasks) and (self._thread is None or not self._thread.is_alive()):
            with suppress(RuntimeError):  # no thread starts while the interpreter ends
                self._thread = in_thread(self._end_process_if_kept, "penstock-end")

    def _end_process_if_kept(self) -> None:
        since = time.monotonic()
        while self._do_handlers_go_on():
            if not self._has_all_else_ended():
                since = time.monotonic()
            elif time.monotonic() >= since + EXIT_WAIT:
                end_process()
            time.sleep(CALL_LOOK_INTERVAL)

    def _do_handlers_go_on(self) -> bool:
        stacks = find_stacks()
        for thread, item in list(self._calls.items()):
            if _item_of(stacks.get(thread.ident or 0)) is not item:
                del self._calls[thread]
        if self._loop is None or self._loop.is_closed():
            self._tasks.clear()
        self._tasks.difference_update([task for task in list(self._tasks) if task.done()])
        return bool(self._calls or self._tasks)

    def _has_all_else_ended(self) -> bool:
        stacks = find_stacks()
        if not (main_has_ended.is_set() or self._is_loop_ending(stacks)):
            return False
        for thread in threading.enumerate():
            frame = stacks.get(thread.ident or 0)
            if thread in _threads_queues:
                item = _item_of(frame)
                if item is not None and item is not self._calls.get(thread):
                    return False
            elif not (thread.daemon or thread is threading.main_thread() or _is_joining(frame)):
                return False
        return all(child.daemon for child in _children())

    def _is_loop_ending(self, stacks: dict[int, FrameType]) -> bool:
        """Return whether `asyncio.run` waits for given-up handlers, and for nothing else."""
        if self._loop is None or self._loop.is_closed():
            return False
        try:
            left = asyncio.all_tasks(self._loop) - self._tasks
        except RuntimeError:  # it changes too quickly
            return False
        names = [getattr(task.get_coro(), "__name__", "") for task in left]
        if names:
            return names == ["shutdown_default_executor"]
        frames = _frames(stacks.get(threading.main_thread().ident or 0))
        return any(frame.f_code.co_name == "_cancel_all_tasks" for frame in frames)


_look_lock = threading.Lock()


def find_stacks() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's id.

    Before Python 3.11.9, a collection of garbage during the look can wait for a lock that the
    look holds, for ever (CPython's issue 106883). So nothing is collected meanwhile.
    """
    with _look_lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()


def end_process() -> None:
    """End the process at once, with exit code 1. First end other workers.

    As at the end of any program, processes of `multiprocessing` that are daemons end with it.
    """
    try:
        with Path(os.devnull).open("w") as nowhere:
            faulthandler.dump_traceback_later(LAST_STEPS_SECONDS, exit=True, file=nowhere)
            for step in (end_activities, _say_end, _kill_daemons, logging.shutdown, _flush):
                with suppress(Exception):
                    step()
    finally:
        os._exit(1)


def _say_end() -> None:
    own = (threading.main_thread(), threading.current_thread())
    names = ", ".join(thread.name for thread in threading.enumerate() if thread not in own)
    text = "a worker did not end in time; the process is ended with exit code 1. Its threads: %s"
    logger.error(text, names)


def _kill_daemons() -> None:
    for child in _children():
        if child.daemon:
            child.kill()  # forked ones have the signal handlers of the worker


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _children() -> list[Any]:
    multiprocessing: Any = sys.modules.get("multiprocessing")
    return multiprocessing.active_children() if multiprocessing else []


def _calls_of(runners: Runners | AsyncRunners) -> dict[threading.Thread, _WorkItem[Any]]:
    calls = dict[threading.Thread, _WorkItem[Any]]()
    mark, stacks = runners.mark_of_running(), find_stacks()
    waiting = [stacks[ident] for ident in runners.limits.busy_threads() if ident in stacks]
    if mark is None and not waiting:
        return calls
    awaited = {id(one) for frame in waiting for one in _find_awaited(frame)}
    for thread in list(_threads_queues):
        item = _item_of(stacks.get(thread.ident or 0))
        if item is not None and (
            awaited.intersection((id(thread), id(item.future)))
            or (mark is not None and any(one.get(origin) is mark for one in _contexts(item)))
        ):
            calls[thread] = item
    return calls


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _item_of(frame: FrameType | None) -> _WorkItem[Any] | None:
    """Return the call that a thread of an executor runs; None = it is idle."""
    for caller in _frames(frame):
        if caller.f_code is _WorkItem.run.__code__:
            item: _WorkItem[Any] | None = caller.f_locals.get("self")
            return item
    return None


def _find_awaited(frame: FrameType) -> Iterator[object]:
    """Yield the futures and the threads of executors for which a thread waits."""
    for caller in _frames(frame):
        if str(caller.f_globals.get("__name__")).startswith("concurrent.futures."):
            for value in list(caller.f_locals.values()):
                if isinstance(value, (list, set, tuple)):
                    yield from list(value)
                elif isinstance(value, Future):
                    yield value
                elif caller.f_code.co_name == "shutdown":
                    yield from list(getattr(value, "_threads", ()))


def _contexts(item: Any) -> Iterator[Context]:
    """Yield the contexts in which a call was made: of `to_thread`, of `run_in_executor`."""
    function = item.fn if hasattr(item, "fn") else item.task[0]
    context = getattr(getattr(function, "func", None), "__self__", None)
    if isinstance(context, Context):
        yield context
    for callback in list(item.future._done_callbacks):
        for cell in getattr(callback, "__closure__", None) or ():
            if asyncio.isfuture(cell.cell_contents):
                for _, made_in in list(getattr(cell.cell_contents, "_callbacks", None) or ()):
                    yield made_in


def _is_joining(frame: FrameType | None) -> bool:
    """Return whether a thread only waits for the end of an executor of an event loop."""
    run = threading.Thread.run.__code__
    return any(
        caller.f_back is not None
        and caller.f_back.f_code is run
        and caller.f_code.co_name in ("_do_shutdown", "shutdown")
        for caller in _frames(frame)
    )
