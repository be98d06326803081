"""A process of a supervisor, and the line between the two.

The process reports the status of its worker, first before the worker runs, then every second. The
supervisor sends notes of the jobs that a dead process held. When the line breaks the supervisor is
dead, whatever the reason, and the process ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.worker.activities import in_thread
from penstock.worker.health import Probed, document
from penstock.worker.held_file import (
    HELD_VARIABLE,
    HeldFile,
    HeldNote,
    make_held_file,
    read_notes,
)
from penstock.worker.processes import Line, Process

__all__ = ["CHILD_END_SECONDS", "NUMBER_VARIABLE", "Child", "SupervisorLine"]

NUMBER_VARIABLE = "PENSTOCK_PROCESS"
"""The environment variable with a child's number, from 1. A replacement has the same number."""
CHILD_END_SECONDS = 10.0
"""Seconds after its worker's grace at which a process is killed."""
UNREPORTED_GRACE_SECONDS = 25.0
"""Seconds of grace of a worker that has not reported its options."""
REPORT_INTERVAL = 1.0
"""Seconds between reports."""


class SupervisorLine:
    """A child's end of the line. It ends the process when the line breaks.

    First by SIGTERM, then by SIGKILL when the grace and `CHILD_END_SECONDS` have passed.

    Args:
        line: the inherited line.
        held_file: of the notes about this process's jobs. It gets those of dead processes, which
            the supervisor sends.
    """

    def __init__(self, line: Line, held_file: HeldFile) -> None:
        self._line = line
        self.held_file = held_file
        self._probed: Probed | None = None
        self._grace = UNREPORTED_GRACE_SECONDS
        self._health_port: int | None = None
        in_thread(self._run, "penstock-line")

    def report(self, probed: Probed, grace: float, health_port: int | None = None) -> None:
        """Report the worker's status to the supervisor, now and every second from now on.

        Args:
            probed: the worker.
            grace: seconds that it gives its jobs at the end.
            health_port: where this process answers for its queues; None = it does not.
        """
        self._grace = grace
        self._health_port = health_port
        self._send(probed)
        self._probed = probed

    def _run(self) -> None:
        while not self._line.is_broken:
            if self._line.wait(REPORT_INTERVAL):
                for left in self._line.receive():
                    self.held_file.add_left(HeldNote(*one) for one in left)
            elif self._probed is not None:
                self._send(self._probed)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace + CHILD_END_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    def _send(self, probed: Probed) -> None:
        try:
            status = document(probed)
            if self._health_port is not None:
                status["health_port"] = self._health_port
        except Exception as error:  # noqa: BLE001 - the supervisor has to hear of any error
            status = {"healthy": False, "error": repr(error)}
        if self._line.unsent:  # the supervisor does not read at present
            self._line.flush()
        else:
            self._line.send(status)


class Child(Process):
    """A process from the supervisor's side. Construction starts it.

    Args:
        command: the program and its arguments.
        number: for its environment.

    Attributes:
        leaving: why it was asked to end; empty = it was not.
        reported: the time of its last report.
        status: its last report.
        options: the options of its worker, from its last report that has some.
        ended: set by the supervisor when the process has ended.

    Raises:
        OSError: the process can't be started.
    """

    def __init__(self, command: Sequence[str], number: int) -> None:
        self.leaving = ""
        self.reported: float | None = None
        self.status: Mapping[str, Any] = {}
        self.options: Mapping[str, Any] = {}
        self.ended = asyncio.Event()
        self._held = make_held_file()
        more = {NUMBER_VARIABLE: str(number), HELD_VARIABLE: str(self._held)}
        try:
            # Ctrl-C is for the supervisor alone.
            super().__init__(command, more, [self._held], start_new_session=True)
        except BaseException:
            os.close(self._held)
            raise
        self._started = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started

    def terminate(self, why: str) -> float:
        """Ask it to end (SIGTERM); return the seconds after which to kill it.

        The second time it has to end at once.
        """
        patience = CHILD_END_SECONDS + (
            0 if self.leaving else self.options.get("grace", UNREPORTED_GRACE_SECONDS)
        )
        self.leaving = self.leaving or why
        self._popen.terminate()
        return patience

    def kill(self) -> None:
        """Kill it and the programs in its process group (SIGKILL)."""
        if self.code is None:  # else its id may belong to another process by now
            os.killpg(self.pid, signal.SIGKILL)

    def read(self) -> None:
        """Read its reports."""
        for report in self.line.receive():
            self.status, self.reported = report, time.monotonic()
            self.options = report.get("options", self.options)

    def held(self) -> list[HeldNote]:
        """Return the jobs that it holds, or held when it died."""
        return read_notes(self._held)

    def close(self, patience: float = 0.0) -> int:
        """Kill it if it runs, read its last reports, and return its exit code."""
        self.kill()
        self._popen.wait()
        self.read()
        os.close(self._held)
        return super().close(patience)
