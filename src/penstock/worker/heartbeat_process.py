"""A helper process that renews leases, for handlers that never let another thread run.

The worker sends the jobs that it holds and those that it has finished. The helper renews leases a
little earlier than the worker's own thread would, and sends their new ends.
So the thread has nothing to do while the helper lives, and takes over when it dies. The helper ends
when its worker ends. It renews nothing while its worker is stopped (SIGSTOP): a process that does
not run holds no job.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from penstock.client._sync.transport.executor import Executor
from penstock.client.clock import monotonic
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.job import Delivery, ops_of, set_term, term_of
from penstock.core.jobs.logs import get_logger
from penstock.core.values.checks import BATCH
from penstock.errors import BadArgument
from penstock.wire.keys import QueueKeys, split_name
from penstock.wire.scripts import script
from penstock.worker._sync.heartbeat import CANNOT_RENEW_TEXT, renew_each
from penstock.worker.packing import packed, unpacked
from penstock.worker.processes import Line, Process, reason_against_processes
from penstock.worker.put_off import PutOff
from penstock.worker.signals import GROUP_SIGNALS
from penstock.worker.terms import LEASE_LOOK_INTERVAL, Term, due, next_renewal

__all__ = ["HeartbeatProcess"]

logger = get_logger("penstock")

HELPER_RENEWAL_SHARE = 3 / 4
"""The part of a lease that is left when the helper renews it; more than for the worker's thread."""
HELPER_RETRY_PAUSE = 0.2
"""Seconds until another attempt at leases that could not be renewed."""
HELPER_START_INTERVAL = 1.0
"""Fewest seconds between two starts of a helper."""
HELPER_STUCK_SECONDS = 5.0
"""Seconds after which a helper that reads nothing of what was sent is replaced."""
HELPER_START_SECONDS = 60.0
"""Seconds after which such a helper is replaced if it has not reached the server yet."""
HELPER_END_SECONDS = 2.0
"""Seconds in which a helper has to end."""
MOST_UNSENT_BYTES = 64 << 20
"""Most bytes that may wait for the helper."""
HELPER_FLUSH_SECONDS = 0.1
"""Most seconds for which new jobs wait until the helper knows all of them."""


class HeartbeatProcess:
    """The worker's side: starts the helper, sends it the held jobs, and reads what it has done.

    Args:
        source: the URL of the server.
        prefix: prefix of all keys.
        owner: the name of the worker.

    Raises:
        BadArgument: the source is not a URL, which the other process needs; or this program can't
            start processes.
    """

    def __init__(self, source: object, *, prefix: str, owner: str) -> None:
        if not isinstance(source, str):
            raise BadArgument(
                "heartbeat", "process", "needs a URL as the worker's source, or heartbeat='thread'"
            )
        if reason := reason_against_processes():
            raise BadArgument("heartbeat", "process", f"{reason}: use heartbeat='thread'")
        self._config = {"source": source, "prefix": prefix, "owner": owner}
        self._process: Process | None = None
        self._numbers = itertools.count(1)  # never used again, as the address of a job would be
        self._keys: dict[Delivery, int] = {}
        self._jobs: dict[int, Delivery] = {}
        self._started = 0.0
        self._is_ready = False
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the helper."""
        with self._lock:
            self._started, self._is_ready = monotonic(), False
            self._process = Process.of_module("heartbeat_process")
            self._send({"config": self._config})
            self._hold(list(self._jobs.values()))

    @property
    def pid(self) -> int | None:
        """Process id of the helper; None while no helper can receive messages."""
        process = self._process
        if process is None or process.line.is_broken or process.code is not None:
            return None
        return process.pid

    def is_ready(self) -> bool:
        """Return whether the helper has reached the server: from then on it renews in time."""
        self.news()
        return self._is_ready

    def hold(self, jobs: Sequence[Delivery]) -> None:
        """Renew the leases of these jobs, too."""
        with self._lock:
            process = self._process
            is_behind = process is not None and bool(process.line.unsent)
            self._hold(jobs)
            if process is not None and not is_behind:
                process.line.flush(HELPER_FLUSH_SECONDS)  # handlers may soon block other threads

    def _hold(self, jobs: Sequence[Delivery]) -> None:
        lines = []
        for job in jobs:
            if term_of(job).lease:
                key = self._keys.get(job)
                if key is None:
                    key = self._keys[job] = next(self._numbers)
                    self._jobs[key] = job
                lines.append([key, ops_of(job).keys.name, packed(job, whole=False)])
        for start in range(0, len(lines), BATCH):
            self._send({"hold": lines[start : start + BATCH]})

    def drop(self, jobs: Iterable[Delivery]) -> None:
        """Renew the leases of these jobs no more."""
        with self._lock:
            keys = [key for job in jobs if (key := self._keys.pop(job, None)) is not None]
            for key in keys:
                del self._jobs[key]
            if keys:
                self._send({"drop": keys})

    def news(self) -> list[Delivery]:
        """Note the renewals, replace a helper that has died, and return the jobs that are lost."""
        with self._lock:
            self._replace_stuck()
            if self.pid is None and monotonic() > self._started + HELPER_START_INTERVAL:
                self._replace()
            lost = []
            for message in self._process.line.receive() if self._process is not None else ():
                self._is_ready = True
                for key, until, lease in message:
                    job = self._jobs.get(key)
                    if job is not None and until is None:
                        lost.append(job)
                    elif job is not None:
                        set_term(job, Term(until, lease))
            return lost

    def _replace(self) -> None:
        logger.warning("the helper that renews leases has died; starting another")
        self.close()
        try:
            self.start()
        except OSError as error:  # too many files or processes: the worker's thread goes on
            logger.warning(
                "the helper that renews leases can't be started: %s; it is tried again", error
            )

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None:
            self._process.line.send(message)
            self._replace_stuck()

    def _replace_stuck(self) -> None:
        if self._process is None:
            return
        line, patience = (
            self._process.line,
            HELPER_STUCK_SECONDS if self._is_ready else HELPER_START_SECONDS,
        )
        line.flush()
        if len(line.unsent) > MOST_UNSENT_BYTES or (
            line.unsent and monotonic() > line.accepted + patience
        ):
            if not line.is_broken:
                logger.warning("the helper that renews leases takes no messages; it is replaced")
            self._process.kill()
            line.close()

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.close(HELPER_END_SECONDS)


class _Helper:
    """The helper's side: holds jobs as the worker sends them, and renews their leases."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._parent = os.getppid()
        self._held: dict[int, Delivery] = {}
        self._next = 0.0  # no attempt before: the server did not answer
        self._put_off = PutOff(monotonic)
        self._ops: dict[str, QueueOps] = {}
        self._config: dict[str, str] = {}
        self._executor: Executor | None = None

    def run(self) -> None:
        """Renew leases until the worker has ended."""
        while True:
            self._line.wait(self._pause())
            for message in self._line.receive():
                self._take(message)
            self._line.flush()
            if self._line.is_broken:
                return
            if not self._is_stopped() and monotonic() >= self._next:
                self._beat()

    def _pause(self) -> float:
        ready = self._put_off.ready(self._held.values())
        nearest = max(
            min(next_renewal(ready, HELPER_RENEWAL_SHARE), self._put_off.next_at()), self._next
        )
        longest = HELPER_RETRY_PAUSE if self._line.unsent else LEASE_LOOK_INTERVAL
        return min(max(nearest - monotonic(), 0.01), longest)

    def _take(self, message: dict[str, Any]) -> None:
        if "config" in message:
            config = self._config = message["config"]
            self._executor = Executor(config["source"], prefix=config["prefix"], retry_for=1)
            with suppress(Exception):  # the first renewal tries again
                self._executor.command("SCRIPT", "LOAD", script("extend").source)
            self._line.send([])  # ready
        for key in message.get("drop", ()):
            self._held.pop(key, None)
        for key, queue, job in message.get("hold", ()):
            self._held[key] = unpacked(job, self._ops_of(queue))

    def _ops_of(self, queue: str) -> QueueOps:
        if queue not in self._ops:
            name, number = split_name(queue)
            keys = QueueKeys(name, self._config["prefix"], number)
            self._ops[queue] = QueueOps(keys, self._config["owner"], ())
        return self._ops[queue]

    def _is_stopped(self) -> bool:
        """Return True if the worker's process is stopped; False if that is not known."""
        try:
            state = Path(f"/proc/{self._parent}/stat").read_text().rpartition(") ")[2][:1]
        except OSError:
            return False
        return state in ("T", "t")

    def _beat(self) -> None:
        assert self._executor is not None
        keys = {job: key for key, job in self._held.items()}
        self._put_off.keep(keys)
        first, again = self._put_off.ready_apart(keys)
        now = monotonic()
        for lease, jobs in chain(
            due(first, now, HELPER_RENEWAL_SHARE), due(again, now, HELPER_RENEWAL_SHARE)
        ):
            ops = ops_of(jobs[0])
            renewal = renew_each(self._executor, lease, jobs)
            if self._put_off.note(ops, renewal):
                logger.warning(CANNOT_RENEW_TEXT, ops.name, renewal.why)
            if not renewal.is_reached:
                self._next = monotonic() + HELPER_RETRY_PAUSE
            lost = dict.fromkeys(renewal.lost, (None, 0.0))
            self._line.send([[keys[job], *lost.get(job, term_of(job))] for job in renewal.answered])
            for job in renewal.lost:
                del self._held[keys[job]]


def main(line: Line) -> None:
    """Run the helper process.

    Args:
        line: its end of the line to the worker.
    """
    for number in GROUP_SIGNALS:  # for the worker; the helper ends with it
        signal.signal(number, signal.SIG_IGN)
    _Helper(line).run()
