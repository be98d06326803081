"""Several processes of one app: start, watch, replace and stop them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.core.jobs.logs import get_logger
from penstock.worker.children import Child
from penstock.worker.held_file import HeldNote
from penstock.worker.processes import ending
from penstock.worker.signals import hear_hang_up
from penstock.worker.systemd import notify_ready

__all__ = ["BROKEN_APP_CODE", "DRAINED_CODE", "UNSTARTED_CODE", "Supervisor", "SupervisorStatus"]

LOG = get_logger(__name__)

BROKEN_APP_CODE = 2
"""The exit code of an app that can't be loaded."""
UNSTARTED_CODE = 3
"""The exit code of a worker whose lifespan, or hook at the start, has failed."""
DRAINED_CODE = 81
"""The exit code of a process whose queues are closed and drained, for its supervisor alone."""
EARLY_END_SECONDS = 5.0
"""Seconds after its start; a process that ends earlier is replaced after a pause."""
FIRST_START_PAUSE, LONGEST_START_PAUSE = 0.1, 30.0
STALE_REPORT_SECONDS = 15.0
"""Seconds without a report after which a process is not healthy."""
MEMORY_LOOK_INTERVAL = 1.0
"""Seconds between two looks at the memory."""
PASS_SECONDS = 0.2
"""Most seconds for which the supervisor waits until a process reads of the jobs of a dead one."""
RECYCLED = "memory"
GOOD_END_CODES = (0, DRAINED_CODE, -signal.SIGTERM)  # the last: asked to end before it had begun

Memory = Callable[[Sequence[int]], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The status of a supervisor and its processes.

    Args:
        pid: its own process id.
        healthy: whether all processes are healthy.
        stopping: whether it was asked to end.
        processes: the status of each process, as `ChildSlot.status` returns it.
    """

    pid: int
    healthy: bool
    stopping: bool
    processes: tuple[Mapping[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON takes it."""
        return asdict(self)


class ChildSlot:
    """One of the processes to keep running, with its replacements.

    Attributes:
        child: the process; None = there is none now.
        early: how many in a row have ended soon after their start.
        starts: how many there have been.
        done: whether no more are to be started.
        excused: until when it counts as healthy in any case, as it is being replaced.
        changed: set when a process has reported or ended.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.early = 0
        self.starts = 0
        self.done = False
        self.excused = 0.0
        self.changed = asyncio.Event()
        self._hurry = asyncio.Event()

    def start(self, command: Sequence[str]) -> Child:
        """Start a process."""
        self.starts += 1
        self.child = child = Child(command, self.number)
        return child

    def next_pause(self) -> float:
        """Return the seconds until the next start. Each call doubles them."""
        pause = min(LONGEST_START_PAUSE, FIRST_START_PAUSE * 2.0 ** min(self.early, 20))
        self.early += 1
        return pause

    async def rest(self, pause: float) -> None:
        """Wait for so many seconds, or until `renew`."""
        self._hurry.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), pause)

    def renew(self) -> None:
        """Let the next process start at once."""
        self.early = 0
        self._hurry.set()

    @property
    def is_loaded(self) -> bool:
        """True if its process has loaded the app, or it needs none."""
        return self.done or (self.child is not None and self.child.reported is not None)

    def healthy(self, now: float) -> bool:
        """Return whether its process is healthy, or it needs none."""
        if self.done or now < self.excused:
            return True
        child = self.child
        if child is None or child.reported is None or now - child.reported > STALE_REPORT_SECONDS:
            return False
        return child.status.get("healthy") is True

    def status(self, now: float) -> dict[str, Any]:
        """Return the status of its process as JSON takes it.

        `number` is that of the slot, `starts` counts its processes, `age` is in seconds, `leaving`
        says why it was asked to end, and `worker` is its last report. Without a process `pid` and
        `age` are None.
        """
        child = self.child
        return {
            "number": self.number,
            "pid": child and child.pid,
            "healthy": self.healthy(now),
            "age": child and round(child.age, 3),
            "starts": self.starts,
            "leaving": child.leaving if child else "",
            "worker": child.status if child else {},
        }


class Supervisor:
    """Keeps processes running until SIGTERM or SIGINT.

    A process that dies is replaced: at once, or after a pause that doubles up to 30 s while each
    ends within 5 s of its start, or fails in its lifespan's start. A process that ends with 0 after
    `max_jobs` is replaced at once. One that ends with 0 in a burst is not replaced, and neither is
    one whose queues are closed and drained. When none is left the supervisor ends. A process that
    does not end when it is asked to is killed 10 s after its worker's grace.

    SIGHUP replaces one after the other. Before the first start, and before running processes are
    replaced by code that may be new, a trial process loads the app. An app that can't be loaded
    replaces nothing.

    Args:
        command: returns the command of the process with this number; 0 = the trial.
        processes: how many processes to run.
        max_memory: bytes; a process that holds more is asked to end, and replaced.
        memory: returns the bytes that each of these processes holds.
        development: wait for a change (`reload`) if the app can't be loaded at the start; and treat
            SIGHUP, which the terminal sends when it is closed, like SIGTERM.

    Any thread may call `reload`, `status` and `healthy`.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        processes: int,
        *,
        max_memory: int | None = None,
        memory: Memory | None = None,
        development: bool = False,
    ) -> None:
        self._command = command
        self._slots = [ChildSlot(number) for number in range(1, processes + 1)]
        self._max_memory = max_memory
        self._memory = memory
        self._development = development
        self._stopping = False
        self._code = 0
        self._begun = False
        self._is_decided = asyncio.Event()  # whether the processes begin
        self._failed: asyncio.Future[None] | None = None  # gets the error of a task of its own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._children: set[Child] = set()
        self._left: list[HeldNote] = []
        self._trial: asyncio.Task[None] | None = None
        self._change: asyncio.Task[None] | None = None

    # Methods for any thread

    def healthy(self) -> bool:
        """Return whether all processes are there and healthy."""
        now = time.monotonic()
        return self._begun and all(slot.healthy(now) for slot in self._slots)

    def status(self) -> SupervisorStatus:
        """Return the status of the supervisor and its processes."""
        now = time.monotonic()
        return SupervisorStatus(
            pid=os.getpid(),
            healthy=self.healthy(),
            stopping=self._stopping,
            processes=tuple(slot.status(now) for slot in self._slots),
        )

    def reload(self) -> None:
        """Replace all processes at the same time, if the app can be loaded."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the supervisor has ended
                self._loop.call_soon_threadsafe(self._load_then, self._replace_all)

    # Its life

    def run(self) -> int:
        """Keep the processes running. Call it once, in the main thread.

        Returns:
            The exit code: 0 = all ended well, 1 = one did not, 2 = the app can't be loaded.
        """
        return asyncio.run(self._run())

    async def _run(self) -> int:
        self._loop = loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._find_ended)
        has_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for number in (signal.SIGTERM, signal.SIGINT, *(() if has_nohup else (signal.SIGHUP,))):
            loop.add_signal_handler(number, self._on_signal, number)
        hear_hang_up()
        self._failed = loop.create_future()
        life = asyncio.create_task(self._live())
        try:
            await asyncio.wait([life, self._failed], return_when=asyncio.FIRST_COMPLETED)
            await (self._failed if self._failed.done() else life)
        finally:
            self._failed.cancel()
            life.cancel()
            for child in list(self._children):  # the trial, and all after an error in this class
                self._forget(child)
        return self._code

    async def _live(self) -> None:
        self._load_then(self._begin)
        await self._is_decided.wait()
        if self._begun:
            await asyncio.gather(*map(self._keep, self._slots))

    def _start(self, action: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. An error in it ends the supervisor."""
        task = asyncio.create_task(action)
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        assert self._failed is not None
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP and self._stopping:  # a closed terminal sends it twice
            return
        if number == signal.SIGHUP and not self._development:
            LOG.info("replacing the processes one by one")
            self._load_then(self._roll if self._begun else self._begin)
            return
        again = "" if self._stopping else "; a second SIGTERM or Ctrl-C ends the processes at once"
        self._stopping = True
        LOG.info("%s: stopping%s", signal.Signals(number).name, again)
        for task in (self._trial, self._change):
            if task is not None:
                task.cancel()
        self._is_decided.set()
        for slot in self._slots:
            slot.renew()
            if slot.child is not None:
                self._terminate(slot, slot.child, "stop")

    async def _keep(self, slot: ChildSlot) -> None:
        while not (slot.done or self._stopping):
            try:
                child = slot.start(self._command(slot.number))
            except OSError as error:
                pause = slot.next_pause()
                details = (slot.number, error, pause)
                LOG.error("process %d can't be started: %s; again in %.1f s", *details)  # noqa: TRY400  # no trace: the error says all
                slot.changed.set()
            else:
                LOG.info("process %d has started, pid %d", slot.number, child.pid)
                self._watch(child, slot)
                await child.ended.wait()
                if child.code not in GOOD_END_CODES and not self._stopping:
                    self._left += child.held()
                self._forget(child)
                slot.child = None
                pause = self._judge_end(slot, child)
                self._pass_left()
                slot.changed.set()
            if pause:
                await slot.rest(pause)

    def _judge_end(self, slot: ChildSlot, child: Child) -> float:
        """Judge the end of a process; return the seconds until the next one starts."""
        code, options = child.code, child.options
        assert code is not None
        process, now = (slot.number, child.pid, ending(code)), time.monotonic()
        if self._stopping:
            LOG.info("process %d, pid %d, %s", *process)
            if code not in GOOD_END_CODES:
                self._code = 1
            return 0.0
        if (code == DRAINED_CODE or (options.get("burst") and code == 0)) and not child.leaving:
            LOG.info("process %d, pid %d, %s: nothing is left to do", *process)
            slot.done = True
            return 0.0
        is_limited = options.get("max_jobs") is not None
        is_asked = child.leaving not in ("", RECYCLED) or (code == 0 and is_limited)
        slot.excused = now + STALE_REPORT_SECONDS if child.leaving or is_asked else 0.0
        if code == UNSTARTED_CODE or (child.age < EARLY_END_SECONDS and not is_asked):
            pause = slot.next_pause()
            text = "process %d, pid %d, %s, %.1f s after its start: it is replaced in %.1f s"
            LOG.warning(text, *process, child.age, pause)
            return pause
        slot.early = 0
        level = logging.INFO if is_asked else logging.WARNING
        LOG.log(level, "process %d, pid %d, %s: it is replaced", *process)
        return 0.0

    def _pass_left(self) -> None:
        """Let a process that works end the leases of jobs whose process has died.

        If there is none, the next one that reports does it.
        """
        children = [slot.child for slot in self._slots if slot.child is not None]
        working = [one for one in children if one.reported is not None and not one.leaving]
        if self._left and working:
            heir, left = max(working, key=lambda one: one.age), self._left
            self._left = []
            heir.line.send(left, PASS_SECONDS)
            text = "process of pid %d gives back the jobs of the one that died: %d"
            LOG.info(text, heir.pid, len(left))

    # Loading the app

    def _load_then(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do this if a trial process can load the app. Until then a change under way goes on."""
        if self._trial is not None:
            self._trial.cancel()
        if not self._stopping:
            self._trial = self._start(self._try(action))

    async def _try(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            trial = Child(self._command(0), 0)
        except OSError as error:
            self._not_loaded(f"no process: {error}", 1)
            return
        self._children.add(trial)
        try:
            await trial.ended.wait()
        finally:
            self._forget(trial)
        if trial.code:
            self._not_loaded(ending(trial.code), BROKEN_APP_CODE)
            return
        if self._change is not None:
            self._change.cancel()
        self._change = self._start(action())

    def _not_loaded(self, why: str, code: int) -> None:
        if self._begun:
            LOG.error("the app can't be loaded (%s): everything stays as it is", why)
        elif self._development:
            LOG.error("the app can't be loaded (%s): waiting for a change", why)
        else:
            LOG.error("the app can't be loaded (%s)", why)
            self._code = code
            self._is_decided.set()

    async def _begin(self) -> None:
        self._begun = True
        self._is_decided.set()
        notify_ready()
        if self._max_memory is not None:
            self._look_at_memory()

    # Replacing

    async def _replace_all(self) -> None:
        if not self._begun:
            await self._begin()
        for slot in self._slots:
            slot.renew()
            if slot.child is not None and not slot.child.leaving:
                self._terminate(slot, slot.child, "reload")

    async def _roll(self) -> None:
        """Stop each process once the replacement of the one before has loaded the app."""
        rolling = [(slot, slot.child) for slot in self._slots if slot.child]
        for slot in self._slots:
            slot.renew()
        for slot, old in rolling:
            if slot.child is old and not old.leaving:
                self._terminate(slot, old, "restart")
            while slot.child is old or not slot.is_loaded:
                if slot.early:
                    LOG.error("process %d ends after its start: the others stay", slot.number)
                    return
                slot.changed.clear()
                await slot.changed.wait()

    def _terminate(self, slot: ChildSlot, child: Child, why: str) -> None:
        patience = child.terminate(why)
        slot.excused = time.monotonic() + patience
        asyncio.get_running_loop().call_later(patience, self._kill, slot, child)

    def _kill(self, slot: ChildSlot, child: Child) -> None:
        if child.code is None:
            LOG.error("process %d, pid %d, does not stop: killed", slot.number, child.pid)
            child.kill()

    def _look_at_memory(self) -> None:
        limit, memory = self._max_memory, self._memory
        assert limit is not None
        assert memory is not None
        asyncio.get_running_loop().call_later(MEMORY_LOOK_INTERVAL, self._look_at_memory)
        there = {p.child.pid: (p, p.child) for p in self._slots if p.child and not p.child.leaving}
        for pid, size in memory(list(there)).items():
            if size > limit:
                slot, child = there[pid]
                details = (slot.number, pid, size >> 20, limit >> 20)
                LOG.warning("process %d, pid %d, holds %d MiB, more than %d: recycled", *details)
                self._terminate(slot, child, RECYCLED)

    # Processes and their lines

    def _watch(self, child: Child, slot: ChildSlot) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            child.read()
            self._pass_left()
            slot.changed.set()
            if child.line.is_broken:
                loop.remove_reader(child.line.socket)

        self._children.add(child)
        loop.add_reader(child.line.socket, read)

    def _find_ended(self) -> None:
        for child in self._children:
            if child.code is not None:
                child.ended.set()

    def _forget(self, child: Child) -> None:
        if child in self._children:
            self._children.remove(child)
            asyncio.get_running_loop().remove_reader(child.line.socket)
            child.close()
