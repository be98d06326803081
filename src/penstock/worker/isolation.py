"""A process beside a worker that runs its suspects, so that ordinary jobs go on meanwhile.

It is the same app, imported anew, and asks for no jobs: the worker hands it one suspect at a time,
over a socket pair, one JSON message a line. It begins with the job, renews its lease and reports
what became of it on connections of its own, as every worker does. So nothing that happens to one of
the two processes happens to a job of the other.

    worker  -> process   {"job": ...}  {"stop": seconds}
    process -> worker    {"ready": true}  {"outcome": ..., ...}  {"refused": true}

When the line breaks the other one is dead: a worker that dies ends the process as a stop would.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.client._sync.transport.connection import monotonic
from penstock.core.job import Batch, Delivery, QueueIdentity
from penstock.core.logs import Fields, get_logger
from penstock.wire.keys import split_name
from penstock.worker.log import LogFormatter, set_up
from penstock.worker.status import RunningJob
from penstock.worker.suspects import ASIDE, FORGET
from penstock.worker.terms import Term

if TYPE_CHECKING:
    from penstock.worker.polls import QueuePoll
    from penstock.worker.state import WorkerState

__all__ = ["Isolated", "Isolator", "main"]

logger = get_logger("penstock")

AGAIN = 60.0
"""Seconds until a process that could not load the app is started again."""
STARTING = 60.0
"""Seconds that a process has to load the app."""
STUCK = 5
"""Seconds without a byte taken after which a process that is handed a job is ended."""
REFUSALS = 3
"""Jobs that a process may refuse one after the other, while it learns of partitions and nodes."""
LAST_WORD = 1.0
"""Seconds that the process has to end when its worker has ended."""
CHUNK = 1 << 16


class IsolationSocket:
    """One end of the line: messages that came, and those that are told.

    Args:
        end: a connected socket.
        wake: called, by a thread of its own, when a message has come.
    """

    def __init__(self, end: socket.socket, wake: Callable[[], None]) -> None:
        self._socket = end
        self._wake = wake
        self._inbox: deque[dict[str, Any] | None] = deque()
        end.settimeout(None)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STUCK, 0))
        threading.Thread(target=self._listen, name="penstock-isolation", daemon=True).start()

    def _listen(self) -> None:
        rest = b""
        with suppress(OSError):
            while chunk := self._socket.recv(CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                self._inbox.extend(map(json.loads, lines))
                if lines:
                    self._wake()
        self._inbox.append(None)
        self._wake()

    def heard(self) -> dict[str, Any] | None:
        """The next message; None = the other one is gone.

        Raises:
            IndexError: nothing has come.
        """
        return self._inbox.popleft()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come."""
        return not self._inbox

    def tell(self, **message: Any) -> None:
        """Send a message.

        Raises:
            OSError: the other one is gone, or takes nothing.
        """
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Let go of the line."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Isolator:
    """The worker's side. Only the worker's loop calls it; `running` may be read by any thread.

    Args:
        target: `module:name` of the worker, or of a function that makes it.
        config: what the process needs to know beside that.
        wake: ends the wait of the worker's loop; from any thread.
        fields: of log records about the worker.

    Attributes:
        job: the one that the process has.
    """

    def __init__(
        self,
        target: str,
        config: Mapping[str, Any],
        wake: Callable[[], None],
        fields: Mapping[str, str],
    ) -> None:
        self.job: Any = None
        self._target = target
        self._config = config
        self._wake = wake
        self._fields = fields
        self._process: subprocess.Popen[bytes] | None = None
        self._line: IsolationSocket | None = None
        self._is_ready = False
        self._broken_until = -math.inf
        self._since = 0.0  # it was started, has the job, or has none
        self._ends_at = math.inf
        self._refusals = 0  # in a row

    @property
    def is_broken(self) -> bool:
        """Whether the process can't be had: the app could not be loaded there."""
        return monotonic() < self._broken_until

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """The job that it has, for the worker's status."""
        job, since = self.job, self._since
        if job is None:
            return ()
        name = job.headers.get("handler")
        return (RunningJob(job.id, job.queue_name, name, job.attempt, monotonic() - since),)

    def take(self, job: Any) -> bool:
        """Hand a suspect to the process, if it is there and has none; else see that it comes."""
        if self._line is None:
            self._start()
            return False
        if not self._is_ready or self.job is not None:
            return False
        try:
            self._line.tell(job=_packed(job))
        except OSError:
            self._kill()
            return False
        self.job, self._since = job, monotonic()
        return True

    def tend(self, state: WorkerState) -> None:
        """Hear what it has to say, and tell it when to end."""
        while self._line is not None and not self._line.is_quiet:
            message = self._line.heard()
            if message is None:
                self._ended(state)
            elif "ready" in message:
                self._is_ready, self._since = True, monotonic()
            else:
                self._reported(state, message)
        if self._line is None:
            return
        idle = monotonic() - self._since
        if self.job is None and idle > (FORGET if self._is_ready else STARTING):
            self._end_idle()
        elif state.deadline < self._ends_at:
            self._tell_end(state.deadline)

    def _end_idle(self) -> None:
        if self._is_ready:
            self._is_ready, self._since = False, monotonic()
            self._tell_end(monotonic())
        else:
            self._kill()

    def _tell_end(self, at: float) -> None:
        assert self._line is not None
        self._ends_at = at
        try:
            self._line.tell(stop=max(0.0, at - monotonic()))
        except OSError:
            self._kill()

    def _start(self) -> None:
        if self.is_broken:
            return
        ours, its = socket.socketpair()
        config = json.dumps({"options": self._config, "log": _level()})
        program = f"import sys; sys.path[:] = {sys.path!r}; import penstock.worker.isolation as i; "
        program += f"i.main({its.fileno()}, {self._target!r}, {config!r})"
        options = [f"-W{option}" for option in sys.warnoptions]
        with its:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *options, "-c", program],
                    pass_fds=[its.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                self._break(str(error))
                return
        self._is_ready, self._ends_at, self._since = False, math.inf, monotonic()
        self._line = IsolationSocket(ours, self._wake)
        text = "process %d runs suspects apart from other jobs"
        logger.info(text, self._process.pid, extra=self._fields)

    def _break(self, why: str) -> None:
        self._broken_until = monotonic() + AGAIN
        text = (
            "suspects can't run in a process of their own (%s): they run while the worker has no "
            "other job"
        )
        logger.error(text, why, extra=self._fields)

    def _reported(self, state: WorkerState, message: dict[str, Any]) -> None:
        """Handle its report: it has finished its job, or can't begin it."""
        job, self.job, self._since = self.job, None, monotonic()
        if "refused" in message:
            state.put_back(job, ASIDE)
            self._refusals += 1
            if self._refusals > REFUSALS and not state.stopping:
                self._break(f"it does not know queue {job.queue_name!r}")
            return
        self._refusals = 0
        state.statistics.finished(message["outcome"], 1, message["seconds"], message["waited"])
        if message["asked"]:
            state.statistics.backed_off(1)
        if state.options.burst:
            state.look_everywhere()

    def _ended(self, state: WorkerState) -> None:
        code, job = self._reap(), self.job
        was_ready, self._is_ready, self.job = self._is_ready, False, None
        if job is not None and not state.stopping:
            state.statistics.finished("lost", 1, None, None)
            text = "%s: the process that ran it has died (%s)"
            logger.error(text, job.id, _how(code), extra=Fields(job))
        elif job is None and not was_ready and code:
            self._break(_how(code))

    def _reap(self) -> int:
        assert self._process is not None
        if self._line is not None:
            self._line.close()
        self._line = None
        try:
            return self._process.wait(LAST_WORD)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> Any:
        """End the process; the job that it could not give back, if there is one."""
        job, self.job = self.job, None
        if not self._is_ready:  # it may be long in loading the app
            self._kill()
        return job if self._line is not None and self._reap() else None


def _level() -> str | None:
    """Return the log level that `penstock worker` has set; None = the app sets up its own log."""
    root = logging.getLogger()
    ours = any(isinstance(handler.formatter, LogFormatter) for handler in root.handlers)
    return logging.getLevelName(root.level) if ours else None


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _packed(job: Any) -> dict[str, Any]:
    batch, term = job.batch, job.term
    return {
        "place": _place(batch.ops),
        "partitions": batch.ops.partitions,
        "batch": [batch.place.node, batch.place.epoch, batch.tag, batch.now, batch.lease_ms],
        "number": job.number.decode(),
        "counts": b64encode(job.counts).decode(),
        "data": b64encode(job.data).decode(),
        "term": term,
    }


def _place(ops: Any) -> list[str]:
    """Return the name of a queue or partition, and of its node if there are several."""
    return [ops.keys.name, "" if ops.home is None else str(ops.home.id)]


class Isolated:
    """The process's side: what its worker hands it.

    Args:
        end: of the line to the worker.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._line: IsolationSocket | None = None
        self._jobs: deque[dict[str, Any]] = deque()

    def tend(self, state: WorkerState) -> None:
        """Take what has come."""
        if self._line is None:
            self._line = IsolationSocket(self._end, lambda: self._hear(state))
            self._hear(state)  # what came before there was a line
            self._tell(ready=True)
        while self._jobs:
            self._take(state, self._jobs.popleft())

    def _hear(self, state: WorkerState) -> None:
        """End when the worker has gone. In the line's own thread: a handler may block the loop."""
        with suppress(IndexError):  # nothing is left, or the other thread has it
            while self._line is not None:
                message = self._line.heard()
                if message is None:
                    state.stop()
                elif "stop" in message:
                    state.stop(message["stop"])
                else:
                    self._jobs.append(message["job"])
        state.wake()

    def _take(self, state: WorkerState, packed: dict[str, Any]) -> None:
        poll = next((s for s in state.polls if _place(s.ops) == packed["place"]), None)
        if poll is None or state.stopping:
            if packed["partitions"] is not None:  # it knows them the next time
                state.learned[split_name(packed["place"][0])[0]] = packed["partitions"]
            self._tell(refused=True)
            return
        state.take_over(_unpacked(packed, poll))

    def counted(self, outcome: str, seconds: float, waited: float | None, asked: bool) -> None:
        """The job is done with."""
        self._tell(outcome=outcome, seconds=seconds or None, waited=waited, asked=asked)

    def _tell(self, **message: Any) -> None:
        assert self._line is not None
        with suppress(OSError):  # gone, which is heard as well
            self._line.tell(**message)


def _unpacked(packed: dict[str, Any], poll: QueuePoll) -> Delivery:
    node, epoch, tag, now, lease_ms = packed["batch"]
    ops = poll.ops
    place = QueueIdentity(ops.name, node, ops.crc, epoch)
    batch = Batch(ops.queue, place, ops.owner, tag=tag, now=now, lease_ms=lease_ms)
    batch.ops = ops
    counts, data = b64decode(packed["counts"]), b64decode(packed["data"])
    job: Delivery = ops.make(batch, packed["number"].encode(), counts, data)
    job.term = Term(*packed["term"])
    return job


def main(descriptor: int, target: str, text: str) -> None:
    """The process.

    Args:
        descriptor: of its end of the line.
        target: names the worker.
        text: what else it has to know.
    """
    from penstock.worker.target import NoWorker, load  # it imports the workers, which import this

    config = json.loads(text)
    for number in (signal.SIGINT, signal.SIGTERM):  # they are the worker's, which ends this process
        signal.signal(number, lambda *_: None)
    os.set_inheritable(descriptor, False)
    try:
        worker = load(target)
    except NoWorker as error:
        logger.error("%s", "\n".join([str(error), *error.trace]))  # noqa: TRY400  # the app's trace
        sys.exit(2)
    if config["log"]:
        set_up(config["log"])
    isolated = Isolated(socket.socket(fileno=descriptor))
    running = worker._run_isolated(isolated, config["options"])
    if running is not None:
        asyncio.run(running)
