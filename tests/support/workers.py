"""Client processes to kill: one small parent forks a child for each task, in a few milliseconds.

    with Nursery("tests.crash.tasks") as nursery:
        child = nursery.start("enqueue", url=server.url, step="sent")
        for event in child.events():      # what the child has to say, up to its end
            ...
        assert child.killed

The parent is a process of its own, without threads, so that a fork is cheap and safe.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

__all__ = ["Child", "Log", "Nursery", "Slot", "await_word", "die", "tell", "until", "whole_lines"]

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0
EXIT = "exit"
AT = "at"
PID = "pid"
WHOLE = " ."
"""The end of each line of a log."""


class Child:
    """One forked process that runs a task.

    Args:
        nursery: which started it.
        pid: its process id.

    Attributes:
        status: its status from `os.waitpid`; None = it lives, as far as is known.
        ended_at: when, by the monotonic clock.
    """

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.status: int | None = None
        self.ended_at: float | None = None

    def events(self) -> Iterator[Any]:
        """Yield the child's events until it ends."""
        while (event := self.next_event()) is not None:
            yield event

    def next_event(self) -> Any:
        """Return the child's next event, or None when it has ended."""
        if self.status is not None:
            return None
        event = self._nursery.read()
        if isinstance(event, dict) and EXIT in event:
            self.status, self.ended_at = event[EXIT], event[AT]
            return None
        return event

    def wait(self) -> list[Any]:
        """Wait for its end, and return its events."""
        return list(self.events())

    def send(self, word: str) -> None:
        """Send a word to a child that waits for one (`await_word`)."""
        self._nursery.write(word)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def killed(self) -> bool:
        """Tell if SIGKILL ended it."""
        return self.status is not None and os.WIFSIGNALED(self.status)

    @property
    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    @property
    def finished(self) -> bool:
        """Tell if its task returned."""
        return self.status == 0


class Nursery:
    """A process that forks children, one at a time.

    Args:
        module: module of the tasks, imported once before the first fork.
        natural: children end as programs do, with Python's finalization.
    """

    def __init__(self, module: str, *, natural: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, module, *(["natural"] if natural else [])],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._pending = b""
        self._child: Child | None = None

    def start(self, task: str, **arguments: Any) -> Child:
        """Fork a child that runs a function of the module."""
        self.write(json.dumps([task, arguments]))
        self._child = Child(self, self.read()[PID])
        return self._child

    @property
    def is_free(self) -> bool:
        """Tell if its child, if any, has ended."""
        return self._child is None or self._child.status is not None

    def read(self) -> Any:
        """Return the next message.

        Raises:
            TimeoutError: there was none in a long time.
            EOFError: the process has ended.
        """
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
                raise TimeoutError(f"the child says nothing for {PATIENCE} s")
            part = os.read(self._process.stdout.fileno(), 65536)
            if not part:
                raise EOFError("the nursery has ended")
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def write(self, line: str) -> None:
        """Send a line to the process that reads now: the nursery, or its child."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def close(self) -> None:
        """End it and its running child."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Slot:
    """A place for one client: a new client replaces a dead one."""

    def __init__(self, nursery: Nursery, task: str, **arguments: str) -> None:
        self._nursery = nursery
        self._task = task
        self._arguments = arguments
        self._births = 0
        self.is_frozen = False
        self.child = self._born()

    def _born(self) -> Child:
        self._births += 1
        arguments = dict(self._arguments)
        if "name" in arguments:  # unique bodies, also after a restart
            arguments["name"] += f".{self._births}"
        return self._nursery.start(self._task, **arguments)

    def kill(self) -> None:
        """Kill the client with SIGKILL."""
        self.child.signal(signal.SIGKILL)
        assert self.child.wait() == []
        assert self.child.killed
        self.is_frozen = False

    def renew(self) -> None:
        """Kill the client and start another one."""
        self.kill()
        self.child = self._born()

    def freeze(self) -> None:
        """Stop the client, or let it continue."""
        self.child.signal(signal.SIGCONT if self.is_frozen else signal.SIGSTOP)
        self.is_frozen = not self.is_frozen


def until(condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Poll a condition of a process that can't report it.

    Raises:
        TimeoutError: the condition did not hold in that time.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {timeout} s")
        time.sleep(0.005)


def whole_lines(written: bytes) -> list[str]:
    """Return the complete lines of a `Log`.

    A child killed during a write leaves part of a line (the kernel stops between two pages), which
    counts as not written.
    """
    lines = written.decode(errors="replace").split("\n")
    return [line.removesuffix(WHOLE) for line in lines if line.endswith(WHOLE)]


# -- in the child ------------------------------------------------------------------------------


class Log:
    """A file for lines of several processes that may be killed during a write.

    Args:
        path: of the file, which is there.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, *words: object) -> None:
        """Add a line; the write has reached the system when this returns.

        It begins with an end of line, so that part of another line does not spoil it.
        """
        os.write(self._file, f"\n{' '.join(map(str, words))}{WHOLE}\n".encode())


def tell(event: Any) -> None:
    """Send an event to the test; it has left this process when this returns."""
    os.write(1, json.dumps(event).encode() + b"\n")


def await_word() -> str:
    """Wait for a word of the test."""
    return _line()


def die() -> None:
    """End this process by SIGKILL: without handlers and flushes."""
    os.kill(os.getpid(), signal.SIGKILL)


# -- in the nursery ----------------------------------------------------------------------------


def _line() -> str:
    """Read one line byte by byte, as later bytes may be for another process."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(0)
        line += byte
    return line.decode()


def _run(module: str, *, natural: bool) -> None:
    tasks = importlib.import_module(module)
    while True:
        task, arguments = json.loads(_line())
        pid = os.fork()
        if pid == 0 and natural:
            tell({PID: os.getpid()})
            getattr(tasks, task)(**arguments)
            return
        if pid == 0:
            _live(getattr(tasks, task), arguments)
        tell({EXIT: os.waitpid(pid, 0)[1], AT: time.monotonic()})


def _live(task: Callable[..., None], arguments: dict[str, Any]) -> NoReturn:
    tell({PID: os.getpid()})
    try:
        task(**arguments)
    except BaseException:  # noqa: BLE001  # a copy of the nursery must not continue
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _run(sys.argv[1], natural="natural" in sys.argv[2:])
