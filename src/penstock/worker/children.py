"""A process of a supervisor, seen from both ends of the line between them.

The line is a socket pair. Reports go up, one JSON document a line, the first before the worker
runs, the others a second apart. Nothing goes down; but when the line breaks the supervisor is dead,
however it died, and the child ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.worker.health import Probed, document

__all__ = ["LAST_WORD", "LINE", "NUMBER", "Child", "SupervisorSocket", "Terms"]

NUMBER = "PENSTOCK_PROCESS"
"""In a child's environment: its number, from 1; it stays the same when the child is replaced."""
LINE = "PENSTOCK_LINE"
"""In a child's environment: the file descriptor of its end."""
LAST_WORD = 10.0
"""Seconds that a process gets beyond its worker's grace, before it is killed."""
EVERY = 1.0
"""Seconds between reports."""
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Terms:
    """How a worker will end, as its options say; a supervisor judges its process by that.

    Args:
        grace: seconds that it takes to stop.
        burst: it ends with 0 when nothing is left to do.
        limited: it ends with 0 when it has done so many jobs.
    """

    grace: float = 25.0
    burst: bool = False
    limited: bool = False


class SupervisorSocket:
    """A child's end of the line. From construction on it ends the process when it breaks.

    It does so as a person would: SIGTERM, then SIGKILL when the grace and `LAST_WORD` have passed.

    Args:
        descriptor: of the socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # a program that a handler starts has no part in it
        self._socket = socket.socket(fileno=descriptor)
        self._terms = Terms()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._watch)

    @classmethod
    def of_this_process(cls) -> SupervisorSocket | None:
        """The line that the environment names; None if this process has no supervisor.

        The name is removed from the environment: it means nothing to this process's own children.
        """
        descriptor = os.environ.pop(LINE, None)
        return None if descriptor is None else cls(int(descriptor))

    def report(self, probed: Probed, terms: Terms) -> None:
        """Tell the supervisor how the worker is, now and every second from now on."""
        self._terms = terms
        with contextlib.suppress(OSError):  # it has broken; `_watch` does what there is to do
            self._tell(probed)
        self._start(self._report, probed)

    def close(self) -> None:
        """Let go of the line; the process goes on."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="penstock-line", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(CHUNK):
                pass
        if self._closed.is_set():
            return
        os.kill(os.getpid(), signal.SIGTERM)
        if not self._closed.wait(self._terms.grace + LAST_WORD):
            os.kill(os.getpid(), signal.SIGKILL)

    def _report(self, probed: Probed) -> None:
        with contextlib.suppress(OSError):  # as above
            while not self._closed.wait(EVERY):
                self._tell(probed)

    def _tell(self, probed: Probed) -> None:
        try:
            status = document(probed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor is to hear of it
            status = {"healthy": False, "error": repr(error)}
        text = json.dumps({"terms": asdict(self._terms), "status": status}, default=str)
        self._socket.sendall(f"{text}\n".encode())


class Child:
    """A process from the supervisor's side: started by construction.

    Args:
        command: what to run.
        number: for its environment.

    Attributes:
        started: when, by the monotonic clock.
        leaving: why it was asked to end; empty = it was not.
        reported: when it last reported.
        status: what it last said.
        terms: how it will end, as it says itself.

    Raises:
        OSError: the process can't be started.
    """

    def __init__(self, command: Sequence[str], number: int) -> None:
        self.number = number
        self.leaving = ""
        self.reported: float | None = None
        self.status: Mapping[str, Any] = {}
        self.terms = Terms()
        self._kill_at: float | None = None
        self._buffer = b""
        self.line, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, NUMBER: str(number), LINE: str(theirs.fileno())},
                    start_new_session=True,  # Ctrl-C is for the supervisor, which then ends us
                )
        except BaseException:
            self.line.close()
            raise
        self.line.setblocking(False)
        self.started = time.monotonic()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended, as `subprocess` says it; None = it has not."""
        return self._process.poll()

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.started

    @property
    def kill_at(self) -> float | None:
        """When it will have had the time to stop, by the monotonic clock; None = it may stay."""
        return self._kill_at

    def terminate(self, why: str) -> None:
        """Ask it to end: SIGTERM. The second time means at once, to it and to us."""
        patience = LAST_WORD if self.leaving else self.terms.grace + LAST_WORD
        deadline = time.monotonic() + patience
        self._kill_at = min(deadline, self._kill_at or deadline)
        self.leaving = self.leaving or why
        self._process.terminate()

    def kill(self) -> None:
        """End it, and what it has started and left in its process group: SIGKILL."""
        self._kill_at = None
        if self._process.poll() is None:  # else its id may be another's by now
            os.killpg(self.pid, signal.SIGKILL)

    def read(self) -> bool:
        """Take in what it reported; False when it will report no more."""
        return self._receive() != b""

    def close(self) -> None:
        """Hear the last of a process that has ended; a running one is killed first."""
        self.kill()
        self._process.wait()
        while self._receive():
            pass
        self.line.close()

    def _receive(self) -> bytes | None:
        """Return what has come; nothing = the line has broken, None = nothing yet."""
        try:
            chunk = self.line.recv(CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        *complete, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in complete:
            self._hear(line)
        return chunk

    def _hear(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # not ours: it goes unheard
            report = json.loads(line)
            self.terms, self.status = Terms(**report["terms"]), report["status"]
            self.reported = time.monotonic()
