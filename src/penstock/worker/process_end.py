"""The end of a process that handlers keep from ending after its worker was stopped.

`asyncio.run` waits for coroutines that refuse to be cancelled, and for the threads of
`asyncio.to_thread`. The interpreter waits for the threads of all executors, also for daemons, and
for other threads that are no daemons. A handler whose blocking call runs there was given up with
its job, but it would keep the process for as long as the call takes.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.core.logs import get_logger
from penstock.worker.runners import in_thread

__all__ = ["ProcessEnd", "end_process"]

logger = get_logger("penstock")

PATIENCE = 2.0
"""Seconds in which the process has to end after the program and the grace have ended."""
_waiting = set[asyncio.Task[None]]()
"""Tasks that wait for the end of their event loop, which does not keep them."""


class ProcessEnd:
    """Ends the process if handlers of a stopped worker keep it, with exit code 1.

    The program may go on for long after its worker. So the time counts from the end of its event
    loop, which cancels all tasks, or from the moment when the interpreter begins to join threads.

    Attributes:
        has_tasks: whether coroutines have refused to be cancelled.
    """

    def __init__(self) -> None:
        self.has_tasks = False
        self._pid = os.getpid()
        self._threads: list[threading.Thread] = []
        self._until: float | None = None
        self._is_loop_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        with suppress(RuntimeError):  # there is none
            self._loop = asyncio.get_running_loop()
        if self._loop is not None:
            self._task = self._loop.create_task(self._wait(self._loop), name="penstock-end")
            _waiting.add(self._task)
            self._task.add_done_callback(_waiting.discard)

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await loop.create_future()
        except asyncio.CancelledError:  # no other code knows this task
            self._is_loop_over = True
            self._watch(self._keep_loop)
            raise

    def finish(self, deadline: float | None) -> None:
        """Prepare for the end of the program, after that of its worker.

        Args:
            deadline: when the grace ends by the monotonic clock, if the process was asked to end or
                handlers were given up; None = threads that still run are the program's own.
        """
        if deadline is not None:
            # Those of the loop's executor were started in the main thread, so they are no daemons.
            found = [one for one in threading.enumerate() if not one.daemon]
            self._threads = [one for one in found if one is not threading.main_thread()]
            # It has no public name. Functions of `atexit` are called after threads were joined.
            register: Callable[..., object] = getattr(threading, "_register_atexit", _ignore)
            register(self._watch_exit)
        if deadline is not None or self.has_tasks:
            self._until = deadline or 0.0
        if self._task is not None and not (self._threads or self.has_tasks):
            self._task.cancel()
        if self._is_loop_over:
            self._watch(self._keep_loop)

    def _keep_loop(self) -> bool:
        is_open = self._loop is not None and not self._loop.is_closed()
        return is_open and (self.has_tasks or any(one.is_alive() for one in self._threads))

    def _watch_exit(self) -> None:
        if self._pid == os.getpid():
            are_joined = threading.Event()
            atexit.register(are_joined.set)
            self._watch(lambda: not are_joined.is_set())

    def _watch(self, is_kept: Callable[[], bool]) -> None:
        if self._until is not None and is_kept():
            until = max(self._until, time.monotonic()) + PATIENCE
            in_thread(lambda: self._end_unless_free(until, is_kept), "penstock-end")

    def _end_unless_free(self, until: float, is_kept: Callable[[], bool]) -> None:
        while is_kept():
            if time.monotonic() > until:
                end_process()
                return
            time.sleep(0.02)


def end_process() -> None:
    """End the process at once, with exit code 1, and the processes of `multiprocessing` with it."""
    own = (threading.main_thread(), threading.current_thread())
    names = ", ".join(one.name for one in threading.enumerate() if one not in own)
    text = "a worker did not end in time; the process is ended with exit code 1. Its threads: %s"
    logger.error(text, names)
    multiprocessing: Any = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        child.kill()  # forked ones have the signal handlers of the worker
    logging.shutdown()
    os._exit(1)


def _ignore(*_: object) -> None:
    """Stand in for a function that this interpreter does not have."""
