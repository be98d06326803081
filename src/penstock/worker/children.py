"""A process of a supervisor, and the line between the two.

The line is a socket pair. The process sends reports, one JSON document a line: the first before the
worker runs, the others a second apart. The supervisor sends nothing. When the line breaks the
supervisor is dead, whatever the reason, and the process ends.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.worker.health import Probed, document

__all__ = ["LAST_WORD", "LINE", "NUMBER", "Child", "SupervisorSocket", "Terms"]

NUMBER = "PENSTOCK_PROCESS"
"""The environment variable with a child's number, from 1. A replacement has the same number."""
LINE = "PENSTOCK_LINE"
"""The environment variable with the file descriptor of a child's end of the line."""
LAST_WORD = 10.0
"""Seconds after its worker's grace at which a process is killed."""
EVERY = 1.0
"""Seconds between reports."""
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of a worker by which its supervisor judges the end of the process.

    Args:
        grace: seconds that it may take to stop.
        burst: whether it ends with 0 when nothing is left to do.
        limited: whether it ends with 0 after a number of jobs.
    """

    grace: float = 25.0
    burst: bool = False
    limited: bool = False


class SupervisorSocket:
    """A child's end of the line. It ends the process when the line breaks.

    First by SIGTERM, then by SIGKILL when the grace and `LAST_WORD` have passed.

    Args:
        descriptor: the file descriptor of the socket.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # programs that a handler starts must not inherit it
        self._socket = socket.socket(fileno=descriptor)
        self._terms = Terms()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._watch)

    @classmethod
    def of_this_process(cls) -> SupervisorSocket | None:
        """Return the line that the environment names; None if this process has no supervisor.

        The name is removed from the environment: it is not for this process's own children.
        """
        descriptor = os.environ.pop(LINE, None)
        return None if descriptor is None else cls(int(descriptor))

    def report(self, probed: Probed, terms: Terms) -> None:
        """Report the worker's status to the supervisor, now and every second from now on."""
        self._terms = terms
        with contextlib.suppress(OSError):  # it has broken, which `_watch` handles
            self._tell(probed)
        self._start(self._report, probed)

    def close(self) -> None:
        """Close the line; the process goes on."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _start(self, target: Callable[..., None], *args: Probed) -> None:
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
        except Exception as error:  # noqa: BLE001 - the supervisor has to hear of any error
            status = {"healthy": False, "error": repr(error)}
        text = json.dumps({"terms": asdict(self._terms), "status": status}, default=str)
        self._socket.sendall(f"{text}\n".encode())


class Child:
    """A process from the supervisor's side. Construction starts it.

    Args:
        command: the program and its arguments.
        number: for its environment.

    Attributes:
        started: the time of its start, by the monotonic clock.
        pid: its process id.
        leaving: why it was asked to end; empty = it was not.
        kill_at: when to kill it, by the monotonic clock; None = it may stay.
        reported: the time of its last report.
        status: its last report.
        terms: the options by which to judge its end.

    Raises:
        OSError: the process can't be started.
    """

    def __init__(self, command: Sequence[str], number: int) -> None:
        self.number = number
        self.leaving = ""
        self.reported: float | None = None
        self.status: Mapping[str, Any] = {}
        self.terms = Terms()
        self.kill_at: float | None = None
        self._buffer = b""
        self.line, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, NUMBER: str(number), LINE: str(theirs.fileno())},
                    start_new_session=True,  # Ctrl-C is for the supervisor alone
                )
        except BaseException:
            self.line.close()
            raise
        self.line.setblocking(False)
        self.pid = self._process.pid
        self.started = time.monotonic()

    @property
    def code(self) -> int | None:
        """Its exit code as in `subprocess`; None = it has not ended."""
        return self._process.poll()

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.started

    def terminate(self, why: str) -> None:
        """Ask it to end (SIGTERM). The second time it has to end at once."""
        patience = LAST_WORD if self.leaving else self.terms.grace + LAST_WORD
        deadline = time.monotonic() + patience
        self.kill_at = min(deadline, self.kill_at or deadline)
        self.leaving = self.leaving or why
        self._process.terminate()

    def kill(self) -> None:
        """Kill it and the programs in its process group (SIGKILL)."""
        self.kill_at = None
        if self._process.poll() is None:  # else its id may belong to another process by now
            os.killpg(self.pid, signal.SIGKILL)

    def read(self) -> bool:
        """Read its reports; return False when there will be no more."""
        return self._receive() != b""

    def close(self) -> None:
        """Read the last reports of a process that has ended; kill a running one first."""
        self.kill()
        self._process.wait()
        while self._receive():
            pass
        self.line.close()

    def _receive(self) -> bytes | None:
        """Return the bytes that were read; empty = the connection broke, None = nothing yet."""
        try:
            chunk = self.line.recv(CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        *complete, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in complete:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not a report: ignored
                report = json.loads(line)
                self.terms, self.status = Terms(**report["terms"]), report["status"]
                self.reported = time.monotonic()
        return chunk
