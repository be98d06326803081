"""A helper process that renews leases, for handlers that never let the interpreter go.

The worker tells it what it holds and what it has done with, one JSON message a line; it extends
leases a little earlier than the worker's own thread would, and tells until when they hold. So the
thread has nothing left to do as long as the helper lives, and takes over when it does not. The
helper ends when its worker does, and extends nothing while its worker is stopped (SIGSTOP): a
process that does not run holds no job.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.client._sync.transport.connection import monotonic
from penstock.client._sync.transport.driver import Driver
from penstock.client._sync.transport.node import Node
from penstock.core.job import Batch, Delivery, QueueIdentity
from penstock.core.logs import get_logger
from penstock.core.operations import QueueOps
from penstock.core.options import BATCH
from penstock.errors import BadArgument, WrongEpoch
from penstock.wire.keys import QueueKeys, queue_crc, split_name
from penstock.wire.scripts import script
from penstock.worker.terms import PAUSE, Term, due, next_renewal, renew

__all__ = ["HeartbeatProcess"]

logger = get_logger("penstock")

LEFT = 3 / 4
"""What is left of a lease when the helper extends it; the worker's thread waits until 2/3."""
RETRY = 0.2
"""Seconds until leases that could not be extended are tried again."""
AGAIN = 1.0
"""Fewest seconds from one start of a helper to the next."""
STUCK = 5.0
"""Seconds without a byte taken after which a helper that is told something is replaced."""
STARTING = 60.0
"""The same for one that has not reached the server yet."""
MOST = 64 << 20
"""Most bytes that wait for the helper."""
MOMENT = 0.1
"""Most seconds that jobs wait until the helper knows of them all."""
READS = 64
"""Most reads of the helper between two looks at the leases."""
READY = b"ready"


class HeartbeatProcess:
    """The worker's side: starts the helper, tells it what is held, and reads what it has done.

    Args:
        source: a URL.
        prefix: prefix of all keys.
        owner: of the worker.

    Raises:
        BadArgument: the source is not a URL, which the other process needs; or this is not a Unix,
            where a process inherits one end of a socket.
    """

    def __init__(self, source: object, *, prefix: str, owner: str) -> None:
        if not isinstance(source, str):
            raise BadArgument("heartbeat", "process", "needs a URL as the worker's source")
        if os.name != "posix":
            raise BadArgument("heartbeat", "process", "needs a Unix")
        self._config = {"source": source, "prefix": prefix, "owner": owner}
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._read = b""
        self._outbox = bytearray()
        self._moved = 0.0  # when the outbox was last empty, or became shorter
        self._numbers = itertools.count(1)  # never used again, as the address of a job would be
        self._keys: dict[Any, int] = {}
        self._jobs: dict[int, Any] = {}
        self._started = 0.0
        self._is_ready = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the helper."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        self._started, self._is_ready, self._read = monotonic(), False, b""
        ours, its = socket.socketpair()
        program = f"import sys; sys.path[:] = {sys.path!r}; from penstock.worker import "
        program += f"heartbeat_process as p; p.main({its.fileno()}, {os.getpid()})"
        with its:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    pass_fds=[its.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours
        self._send({"config": self._config})
        self._hold(list(self._jobs.values()))

    @property
    def pid(self) -> int | None:
        """Of the helper, while it lives and is told."""
        process = self._process
        if process is None or self._socket is None or process.poll() is not None:
            return None
        return process.pid

    def is_ready(self) -> bool:
        """Whether the helper has reached the server: from then on it is quick."""
        self.news()
        return self._is_ready

    def hold(self, jobs: Sequence[Any]) -> None:
        """These jobs were taken."""
        with self._lock:
            is_behind = bool(self._outbox)
            self._hold(jobs)
            if not is_behind:
                self._press()

    def _hold(self, jobs: Sequence[Any]) -> None:
        lines = []
        for job in jobs:
            if job.term.lease:
                key = self._keys.get(job)
                if key is None:
                    key = self._keys[job] = next(self._numbers)
                    self._jobs[key] = job
                batch, term = job.batch, job.term
                place = [batch.ops.keys.name, batch.place.node, batch.place.epoch]
                number, counts = job.number.decode(), _short(job.counts)
                lines.append([key, place, batch.tag, number, counts, term.until, term.lease])
        for start in range(0, len(lines), BATCH):
            self._send({"hold": lines[start : start + BATCH]})

    def drop(self, jobs: Iterable[Any]) -> None:
        """These jobs are not held any more."""
        with self._lock:
            keys = [key for job in jobs if (key := self._keys.pop(job, None)) is not None]
            for key in keys:
                del self._jobs[key]
            if keys:
                self._send({"drop": keys})

    def news(self) -> list[Any]:
        """Note until when jobs are held; those that are lost. A helper that died is replaced."""
        with self._lock:
            return self._news()

    def _news(self) -> list[Any]:
        self._flush()
        if self.pid is None and monotonic() > self._started + AGAIN:
            self._replace()
        with suppress(BlockingIOError, OSError):
            while self._socket is not None and (data := self._socket.recv(65536)):
                self._read += data
        *lines, self._read = self._read.split(b"\n")
        lost = []
        for line in lines:
            if line == READY:
                self._is_ready = True
                continue
            key, until, lease = json.loads(line)
            job = self._jobs.get(key)
            if job is not None and until is None:
                lost.append(job)
            elif job is not None:
                job.term = Term(until, lease)
        return lost

    def _replace(self) -> None:
        logger.warning("the helper that renews leases has died; starting another")
        self._close()
        try:
            self._start()
        except OSError as error:  # too many files or processes: the worker's thread goes on
            logger.warning(
                "the helper that renews leases can't be started: %s; it is tried again", error
            )

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is None:
            return
        if not self._outbox:
            self._moved = monotonic()
        self._outbox += json.dumps(message).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        """Send what the helper has room for; end a helper that has taken nothing for long."""
        if self._socket is None:
            return
        try:
            while self._outbox:
                sent = self._socket.send(self._outbox)
                del self._outbox[:sent]
                self._moved = monotonic()
        except BlockingIOError:
            patience = STUCK if self._is_ready else STARTING
            if len(self._outbox) > MOST or monotonic() > self._moved + patience:
                logger.warning("the helper that renews leases takes no messages; it is replaced")
                self._end()
        except OSError:  # gone
            self._end()

    def _press(self) -> None:
        """Wait a moment until the rest is sent: the handlers of these jobs may let nothing run."""
        until = monotonic() + MOMENT
        while self._outbox and self._socket is not None and (left := until - monotonic()) > 0:
            room = select.poll()
            room.register(self._socket, select.POLLOUT)
            room.poll(left * 1000)
            self._flush()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._disconnect()

    def _disconnect(self) -> None:
        self._outbox.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._disconnect()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@lru_cache(maxsize=1000)
def _identity(queue: str, node_id: str, epoch: str) -> QueueIdentity:
    return QueueIdentity(split_name(queue)[0], node_id, queue_crc(queue), epoch)


def _short(counts: bytes) -> str:
    """Return the counters without the text behind them."""
    return b" ".join(counts.split(b" ", 4)[:4]).decode()


class _Helper:
    """The helper's side."""

    def __init__(self, sock: socket.socket, parent: int) -> None:
        self._socket = sock
        self._parent = parent
        self._held: dict[int, Delivery] = {}
        self._next = 0.0  # not before: the server did not answer
        self._ops: dict[str, QueueOps] = {}
        self._config: dict[str, str] = {}
        self._driver: Driver | None = None
        self._read = b""
        self._unsent = b""

    def run(self) -> None:
        """Until the worker has gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while True:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
                selector.modify(self._socket, events)
                selector.select(self._pause())
                if not self._listen():
                    return
                if not self._is_stopped():
                    self._beat()
                self._tell()

    def _pause(self) -> float:
        nearest = next_renewal(self._held.values(), LEFT)
        return min(max(max(nearest, self._next) - monotonic(), 0.01), PAUSE)

    def _listen(self) -> bool:
        """Read what there is; return whether the worker is alive."""
        with suppress(BlockingIOError):
            for _ in range(READS):  # the rest after a look at the leases
                data = self._socket.recv(65536)
                if not data:
                    return False
                self._read += data
        *lines, self._read = self._read.split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return True

    def _take(self, message: dict[str, Any]) -> None:
        if "config" in message:
            self._config = message["config"]
            node = Node(self._config["source"], prefix=self._config["prefix"], retry_for=1)
            self._driver = Driver(node, self._config["prefix"])
            with suppress(Exception):  # the first extension tries again
                node.command("SCRIPT", "LOAD", script("extend").source)
            self._unsent += READY + b"\n"
        for key in message.get("drop", ()):
            self._held.pop(key, None)
        for key, (queue, node_id, epoch), tag, number, counts, until, lease in message.get(
            "hold", ()
        ):
            place = _identity(queue, node_id, epoch)
            batch = Batch(queue, place, self._config["owner"], tag=tag, now=0, lease_ms=0)
            job = Delivery(batch, number.encode(), counts.encode(), b"1\n")
            job.term = Term(until, lease)
            self._held[key] = job

    def _is_stopped(self) -> bool:
        """Return whether the worker's process is stopped; False where that can't be told."""
        try:
            state = Path(f"/proc/{self._parent}/stat").read_text().rpartition(") ")[2][:1]
        except OSError:
            return False
        return state in ("T", "t")

    def _beat(self) -> None:
        if monotonic() < self._next:
            return
        keys = {job: key for key, job in self._held.items()}
        for lease, jobs in due(keys, monotonic(), LEFT):
            self._extend(lease, {job: keys[job] for job in jobs})

    def _extend(self, lease: float, keys: dict[Delivery, int]) -> None:
        jobs = list(keys)
        queue = jobs[0].batch.queue
        ops = self._ops.get(queue)
        if ops is None:
            name, number = split_name(queue)
            names = QueueKeys(name, self._config["prefix"], number)
            ops = self._ops[queue] = QueueOps(names, self._config["owner"], ())
        assert self._driver is not None
        sent = monotonic()
        try:
            call = ops.extend(jobs, round(lease * 1000), late=True)
            reply = self._driver.node.run(call)
        except WrongEpoch:  # the queue was deleted and made again: none of these is in it
            gone = jobs
        except Exception as error:  # noqa: BLE001  # tried again, and the worker's thread is there
            logger.warning("leases can't be renewed: %s", error)
            self._driver.node.close()
            self._next = monotonic() + RETRY
            return
        else:
            gone = renew(jobs, reply.untils, reply.now, call.resent or sent, monotonic())
        for job, key in keys.items():
            if job in gone:
                self._lose(key)
            else:
                self._report(key, *job.term)

    def _lose(self, key: int) -> None:
        del self._held[key]
        self._report(key, None, 0.0)

    def _report(self, key: int, until: float | None, lease: float) -> None:
        self._unsent += json.dumps([key, until, lease]).encode() + b"\n"

    def _tell(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                sent = self._socket.send(self._unsent)
                self._unsent = self._unsent[sent:]


def main(fd: int, parent: int) -> None:
    """The helper process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the worker's; the helper ends with it
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=fd) as sock:
        sock.setblocking(False)
        _Helper(sock, parent).run()
