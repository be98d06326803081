"""Several processes of one app: start, watch, replace and stop them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from penstock.core.logs import get_logger
from penstock.worker.children import Child

__all__ = ["BROKEN", "DRAINED", "ProcessStatus", "Supervisor", "SupervisorStatus"]

LOG = get_logger(__name__)

BROKEN = 2
"""The exit code of an app that can't be loaded."""
DRAINED = 81
"""The exit code of a process whose queues are closed and drained, for its supervisor alone."""
EARLY = 5.0
"""Seconds after its start; a process that ends earlier is replaced after a pause."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
STALE = 15.0
"""Seconds without a report after which a process is not healthy."""
BETWEEN_LOOKS = 1.0
"""Seconds between two looks at the memory."""
RECYCLED = "memory"
ENDED_WELL = (0, DRAINED, -signal.SIGTERM)  # the last: asked to end before it had begun

Memory = Callable[[Sequence[int]], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The status of one process.

    Args:
        number: from 1; a replacement has the same number.
        pid: its process id; None while there is no process.
        healthy: whether it reports that it is healthy, or is being replaced on purpose.
        age: seconds since its start.
        starts: how many processes there have been with this number.
        leaving: why it was asked to end; empty = it was not.
        worker: its last report.
    """

    number: int
    pid: int | None
    healthy: bool
    age: float | None
    starts: int
    leaving: str
    worker: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The status of a supervisor and its processes.

    Args:
        pid: its own process id.
        healthy: whether all processes are healthy.
        stopping: whether it was asked to end.
        processes: one for each number.
    """

    pid: int
    healthy: bool
    stopping: bool
    processes: tuple[ProcessStatus, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON takes it."""
        return asdict(self)


class ChildSlot:
    """One of the processes to keep running, with its replacements.

    Attributes:
        child: the process; None = there is none now.
        due: when to start the next one, by the monotonic clock.
        early: how many in a row have ended soon after their start.
        starts: how many there have been.
        done: whether no more are to be started.
        excused: until when it counts as healthy in any case, as it is being replaced.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.due = 0.0
        self.early = 0
        self.starts = 0
        self.done = False
        self.excused = 0.0

    def start(self, command: Sequence[str]) -> Child:
        """Start a process."""
        self.starts += 1
        self.child = child = Child(command, self.number)
        return child

    def postpone(self) -> float:
        """Delay the next process, longer each time; return the seconds."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.early, 20))
        self.early += 1
        self.due = time.monotonic() + pause
        return pause

    def renew(self) -> None:
        """Let the next process start at once."""
        self.early, self.due = 0, 0.0

    def healthy(self, now: float) -> bool:
        """Return whether its process is healthy, or it needs none."""
        if self.done or now < self.excused:
            return True
        child = self.child
        if child is None or child.reported is None or now - child.reported > STALE:
            return False
        return child.status.get("healthy") is True

    def status(self, now: float) -> ProcessStatus:
        """Return the status of its process."""
        child = self.child
        return ProcessStatus(
            number=self.number,
            pid=None if child is None else child.pid,
            healthy=self.healthy(now),
            age=None if child is None else round(child.age, 3),
            starts=self.starts,
            leaving=child.leaving if child else "",
            worker=child.status if child else {},
        )


class Supervisor:
    """Keeps processes running until SIGTERM or SIGINT.

    A process that dies is replaced: at once, or after a pause that doubles up to 30 s while each
    ends within 5 s of its start. A process that ends with 0 after `max_jobs` is replaced at once.
    One that ends with 0 in a burst is not replaced, and neither is one whose queues are closed and
    drained. When none is left the supervisor ends. A process that does not end when it is asked to
    is killed 10 s after its worker's grace.

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
        self._code: int | None = None
        self._trial: Child | None = None
        self._then: Callable[[], None] = self._begin
        self._begun = False
        self._rolling: list[tuple[ChildSlot, Child]] = []
        self._next_look = 0.0
        self._signals: list[int] = []
        self._has_ended = False
        self._reload = threading.Event()
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ, None)

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
        self._reload.set()
        with contextlib.suppress(OSError):  # it is set already, or the supervisor has ended
            self._bell.send(b"!")

    # The loop

    def run(self) -> int:
        """Keep the processes running. Call it once, in the main thread.

        Returns:
            The exit code: 0 = all ended well, 1 = one did not, 2 = the app can't be loaded.
        """
        with self._listening():
            try:
                self._try_then(self._begin)
                while not self._over():
                    self._wait()
                    self._step()
            finally:
                self._close()
        return self._code or 0

    def _step(self) -> None:
        while self._signals:
            self._obey(self._signals.pop(0))
        if self._reload.is_set() and not self._stopping:
            self._reload.clear()
            self._try_then(self._replace_all)
        if self._has_ended:
            self._has_ended = False
            self._end_trial()
            for slot in self._slots:
                if slot.child is not None and slot.child.code is not None:
                    self._ended(slot, slot.child)
        self._kill_the_late()
        self._look_at_memory()
        self._roll_on()
        self._fill()

    def _over(self) -> bool:
        if self._code is not None and not self._begun:
            return True
        if self._stopping:
            return all(slot.child is None for slot in self._slots)
        return self._begun and all(slot.done for slot in self._slots)

    def _wait(self) -> None:
        deadline = min(self._deadlines(), default=None)
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout):
            child: Child | None = key.data
            if child is None:
                with contextlib.suppress(BlockingIOError):
                    while self._ear.recv(4096):
                        pass
            elif not child.read():
                self._selector.unregister(child.line)

    def _deadlines(self) -> Iterator[float]:
        for slot in self._slots:
            if slot.child is None:
                if self._begun and not slot.done and not self._stopping:
                    yield slot.due
            elif slot.child.kill_at is not None:
                yield slot.child.kill_at
        if self._max_memory is not None and self._begun:
            yield self._next_look

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Collect signals. They end the wait, and are handled after it."""
        heard = [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            heard.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._hear) for number in heard}
        bell = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(bell)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            self._has_ended = True
        else:
            self._signals.append(number)

    def _obey(self, number: int) -> None:
        if number == signal.SIGHUP and not self._development:
            if not self._stopping:
                LOG.info("replacing the processes one by one")
                self._try_then(self._begin if not self._begun else self._roll)
            return
        self._stopping, self._rolling = True, []
        LOG.info("%s: stopping", signal.Signals(number).name)
        self._drop_trial()
        for slot in self._slots:
            if slot.child is not None:
                self._terminate(slot, slot.child, "stop")

    # The trial

    def _try_then(self, action: Callable[[], None]) -> None:
        self._drop_trial()
        self._then = action
        try:
            self._trial = Child(self._command(0), 0)
        except OSError as error:
            self._not_loaded(f"no process: {error}", 1)
        else:
            self._watch(self._trial)

    def _end_trial(self) -> None:
        trial = self._trial
        if trial is None or trial.code is None:
            return
        code = trial.code
        self._drop_trial()
        if code == 0:
            self._then()
        else:
            self._not_loaded(_how(code), BROKEN)

    def _not_loaded(self, why: str, code: int) -> None:
        if self._begun:
            LOG.error("the app can't be loaded (%s): everything stays as it is", why)
        elif self._development:
            LOG.error("the app can't be loaded (%s): waiting for a change", why)
        else:
            LOG.error("the app can't be loaded (%s)", why)
            self._code = code

    def _drop_trial(self) -> None:
        if self._trial is not None:
            self._forget(self._trial)
            self._trial = None

    def _begin(self) -> None:
        self._begun = True

    # Replacing

    def _fill(self) -> None:
        if not self._begun or self._stopping:
            return
        for slot in self._slots:
            if slot.child is None and not slot.done and slot.due <= time.monotonic():
                try:
                    child = slot.start(self._command(slot.number))
                except OSError as error:
                    pause = slot.postpone()
                    told = (slot.number, error, pause)
                    LOG.error("process %d can't be started: %s; again in %.1f s", *told)  # noqa: TRY400
                else:
                    self._watch(child)
                    LOG.info("process %d has started, pid %d", slot.number, child.pid)

    def _ended(self, slot: ChildSlot, child: Child) -> None:
        slot.child = None
        self._forget(child)
        code = child.code
        assert code is not None
        told = (slot.number, child.pid, _how(code))
        if self._stopping:
            LOG.info("process %d, pid %d, %s", *told)
            if code not in ENDED_WELL:
                self._code = 1
        elif (code == DRAINED or (child.terms.burst and code == 0)) and not child.leaving:
            LOG.info("process %d, pid %d, %s: nothing is left to do", *told)
            slot.done = True
        elif child.leaving not in ("", RECYCLED) or (code == 0 and child.terms.limited):
            LOG.info("process %d, pid %d, %s: it is replaced", *told)
            slot.excused = time.monotonic() + STALE
            slot.renew()
        else:
            self._ended_unasked(slot, child, told)

    def _ended_unasked(self, slot: ChildSlot, child: Child, told: tuple[int, int, str]) -> None:
        slot.excused = time.monotonic() + STALE if child.leaving else 0.0
        if child.age < EARLY:
            pause = slot.postpone()
            LOG.warning(
                "process %d, pid %d, %s, %.1f s after its start: it is replaced in %.1f s",
                *(*told, child.age, pause),
            )
        else:
            slot.renew()
            LOG.warning("process %d, pid %d, %s: it is replaced", *told)

    def _replace_all(self) -> None:
        self._begin()
        self._rolling = []
        for slot in self._slots:
            slot.renew()
            if slot.child is not None and not slot.child.leaving:
                self._terminate(slot, slot.child, "reload")

    def _roll(self) -> None:
        self._rolling = [(slot, slot.child) for slot in self._slots if slot.child]
        for slot in self._slots:
            slot.renew()

    def _roll_on(self) -> None:
        """Stop the next process once the replacement of the previous one has loaded the app."""
        while self._rolling and not self._stopping:
            slot, old = self._rolling[0]
            if slot.child is old:
                if not old.leaving:
                    self._terminate(slot, old, "restart")
                return
            if slot.early:
                LOG.error("process %d ends after its start: the others stay", slot.number)
                self._rolling = []
                return
            if not slot.done and (slot.child is None or slot.child.reported is None):
                return
            self._rolling.pop(0)

    def _terminate(self, slot: ChildSlot, child: Child, why: str) -> None:
        child.terminate(why)
        slot.excused = child.kill_at or 0.0

    def _kill_the_late(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            child = slot.child
            if child is not None and child.kill_at is not None and child.kill_at <= now:
                LOG.error("process %d, pid %d, does not stop: killed", slot.number, child.pid)
                child.kill()

    def _look_at_memory(self) -> None:
        now = time.monotonic()
        limit, memory = self._max_memory, self._memory
        if limit is None or memory is None or now < self._next_look:
            return
        self._next_look = now + BETWEEN_LOOKS
        there = {p.child.pid: (p, p.child) for p in self._slots if p.child and not p.child.leaving}
        for pid, size in memory(list(there)).items():
            if size > limit:
                slot, child = there[pid]
                told = (slot.number, pid, size >> 20, limit >> 20)
                LOG.warning("process %d, pid %d, holds %d MiB, more than %d: recycled", *told)
                self._terminate(slot, child, RECYCLED)

    # Processes and their lines

    def _watch(self, child: Child) -> None:
        self._selector.register(child.line, selectors.EVENT_READ, child)

    def _forget(self, child: Child) -> None:
        with contextlib.suppress(KeyError):  # its line had broken before
            self._selector.unregister(child.line)
        child.close()

    def _close(self) -> None:
        self._drop_trial()
        for slot in self._slots:
            if slot.child is not None:  # only after an error in this class
                self._forget(slot.child)
        self._selector.close()
        self._ear.close()
        self._bell.close()


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
