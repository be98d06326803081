"""Processes beside a worker or supervisor, and the line to each of them.

A line is a socket pair that carries JSON messages, each followed by a newline. When the process on
one side ends, for any reason, the line breaks, and the other side notices.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.worker.activities import in_thread

__all__ = ["LINE_VARIABLE", "Line", "Process", "ending", "reason_against_processes"]

LINE_VARIABLE = "PENSTOCK_LINE"
"""The environment variable with the file descriptor of a process's end of the line."""
READS_PER_RECEIVE = 64
"""Most reads of one `receive`."""


class Line:
    """One end of a line.

    Sending and receiving don't block; what the other side does not accept now waits in `unsent`.

    Args:
        end: a connected socket.

    Attributes:
        socket: the socket.
        unsent: the bytes that wait for the other side.
        accepted: when nothing was unsent, or the other side accepted something, for the last time.
        is_broken: whether the other side has ended, or the line is closed.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self.unsent = bytearray()
        self.accepted = 0.0
        self.is_broken = False
        self._unread = b""

    @classmethod
    def inherit(cls) -> Line | None:
        """Return this process's end of the line to the process that has started it, if any.

        Its name is removed from the environment: it is not for this process's own children.
        """
        descriptor = os.environ.pop(LINE_VARIABLE, None)
        if descriptor is None:
            return None
        os.set_inheritable(int(descriptor), False)
        return cls(socket.socket(fileno=int(descriptor)))

    def send(self, message: Any, timeout: float = 0.0) -> None:
        """Send a message, as `flush`."""
        if not self.unsent:
            self.accepted = time.monotonic()
        self.unsent += json.dumps(message, default=str).encode() + b"\n"
        self.flush(timeout)

    def flush(self, timeout: float = 0.0) -> None:
        """Send as much as the other side accepts in so many seconds."""
        until = time.monotonic() + timeout
        while self.unsent and not self.is_broken:
            sent = self._attempt(self.socket.send, self.unsent)
            if sent is not None:
                del self.unsent[:sent]
                self.accepted = time.monotonic()
            elif not self._wait(select.POLLOUT, until - time.monotonic()):
                return

    def receive(self) -> list[Any]:
        """Return the messages that have come."""
        for _ in range(READS_PER_RECEIVE):
            chunk = self._attempt(self.socket.recv, 1 << 16)
            if not chunk:
                self.is_broken |= chunk == b""
                break
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def _attempt(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Return the result of a call of the socket; None = it would block, or has failed."""
        try:
            return call(argument)
        except BlockingIOError:
            return None
        except OSError:
            self.is_broken = True
            return None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a message or the end of the other side; return False after `timeout` seconds."""
        return self._wait(select.POLLIN, timeout)

    def _wait(self, event: int, timeout: float | None) -> bool:
        if timeout is not None and timeout <= 0:
            return False
        poll = select.poll()
        with suppress(OSError, ValueError):  # it is closed
            poll.register(self.socket, event)
            return bool(poll.poll(None if timeout is None else timeout * 1000))
        return True

    def listen(self, hear: Callable[[list[Any]], None], name: str) -> None:
        """Pass messages to a function as they come, in a thread of its own; at the end `[None]`."""

        def run() -> None:
            while not self.is_broken:
                self.wait()
                hear(self.receive())
            hear([None])

        in_thread(run, name)

    def close(self) -> None:
        """Close the line; the other side notices, and so does a thread that waits."""
        self.is_broken = True
        self.unsent.clear()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Process:
    """A process beside this one. Construction starts it.

    Args:
        command: the program and its arguments.
        environment: variables that it gets in addition.
        files: descriptors that it inherits.
        **options: as of `subprocess.Popen`.

    Attributes:
        line: this side's end of the line to it.
        pid: its process id.

    Raises:
        OSError: the process can't be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        files: Sequence[int] = (),
        **options: Any,
    ) -> None:
        ours, theirs = socket.socketpair()
        self.line = Line(ours)
        variables = {**os.environ, **(environment or {}), LINE_VARIABLE: str(theirs.fileno())}
        try:
            with theirs:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *files],
                    env=variables,
                    **options,
                )
        except BaseException:
            self.line.close()
            raise
        self.pid = self._popen.pid

    @classmethod
    def of_module(cls, module: str, *arguments: Any) -> Process:
        """Start a process that runs `main(line, *arguments)` of a module of this package.

        Raises:
            OSError: the process can't be started.
        """
        program = f"import sys; sys.path[:] = {sys.path!r}; "
        program += f"from penstock.worker import {module} as m, processes as p; "
        program += f"m.main(p.Line.inherit(), *{arguments!r})"
        warnings = [f"-W{option}" for option in sys.warnoptions]
        return cls([sys.executable, *warnings, "-c", program])

    def listen(self, hear: Callable[[list[Any]], None], name: str) -> None:
        """Pass its messages to a function, as `Line.listen`; end it if no thread can be started."""
        try:
            self.line.listen(hear, name)
        except RuntimeError:
            self.close()
            raise

    @property
    def code(self) -> int | None:
        """Its exit code as in `subprocess`; None = it has not ended."""
        return self._popen.poll()

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self._popen.kill()

    def close(self, patience: float = 0.0) -> int:
        """Close the line, and return the exit code; kill it if it does not end in time."""
        self.line.close()
        try:
            return self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._popen.wait()


def reason_against_processes() -> str:
    """Return the reason why this program can't start processes; empty = it can.

    The text follows a subject: "the demo needs a Unix".

    In a frozen program `sys.executable` is the program itself, so each process would be a copy of
    it, and start others. If the variable is still set, this process was started as a helper but
    runs the program: it is such a copy.
    """
    if os.name != "posix":  # a process inherits one end of a socket
        return "needs a Unix"
    if getattr(sys, "frozen", False) or "__compiled__" in globals() or LINE_VARIABLE in os.environ:
        return "needs a Python interpreter, and this program is frozen"
    if not sys.executable:
        return "needs a Python interpreter, and sys.executable names none"
    return ""


def ending(code: int) -> str:
    """Return a text about the end of a process with this code of `subprocess`."""
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
