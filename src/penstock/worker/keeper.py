"""A helper process that renews leases, for handlers that never let the interpreter go.

The worker tells it what it holds and what it has done with, one JSON message a line; it extends
leases a little earlier than the worker's own thread would, and tells until when they hold. So the
thread has nothing left to do as long as the helper lives, and takes over when it does not. The
helper ends when its worker does, and extends nothing while its worker is stopped (SIGSTOP): a
process that does not run holds no job.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock._sync.connection import Node, monotonic
from penstock._sync.driver import Driver
from penstock.core.job import Batch, Delivery, Place
from penstock.core.operations import QueueOps
from penstock.core.options import BATCH
from penstock.errors import BadArgument
from penstock.wire.keys import QueueKeys, queue_crc
from penstock.wire.scripts import script
from penstock.worker.terms import Term

__all__ = ["Keeper"]

logger = logging.getLogger("penstock")

FRACTION = 3 / 4
"""What is left of a lease when the helper extends it; the worker's thread waits until 2/3."""
PAUSE = 10.0
READY = b"ready"


class Keeper:
    """The worker's side: starts the helper, tells it what is held, and reads what it has done.

    Args:
        source: a URL.
        prefix: prefix of all keys.
        owner: of the worker.

    Raises:
        BadArgument: the source is not a URL, which could be told to another process.
    """

    def __init__(self, source: object, *, prefix: str, owner: str) -> None:
        if not isinstance(source, str):
            raise BadArgument("heartbeat", "process", "needs a URL as the worker's source")
        self._config = {"source": source, "prefix": prefix, "owner": owner}
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._read = b""
        self._jobs: dict[str, Any] = {}
        self._started = 0.0
        self._is_ready = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the helper."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        self._started = monotonic()
        ours, its = socket.socketpair()
        program = f"import sys; sys.path[:] = {sys.path!r}; import penstock.worker.keeper as k; "
        self._process = subprocess.Popen(
            [sys.executable, "-c", program + f"k.main({its.fileno()}, {os.getpid()})"],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
        )
        its.close()
        ours.setblocking(False)
        self._socket, self._read = ours, b""
        self._send({"config": self._config})
        self._hold(list(self._jobs.values()))

    @property
    def pid(self) -> int | None:
        """Of the helper, while it lives."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def is_ready(self) -> bool:
        """Whether the helper has reached the server: from then on it is quick."""
        self.news()
        return self._is_ready

    def hold(self, jobs: Sequence[Any]) -> None:
        """These jobs were taken."""
        with self._lock:
            self._hold(jobs)

    def _hold(self, jobs: Sequence[Any]) -> None:
        lines = []
        for job in jobs:
            if job.term.lease:
                key = f"{id(job):x}"
                self._jobs[key] = job
                batch, term = job.batch, job.term
                place = [batch.place.queue, batch.place.node, batch.place.epoch]
                number, counts = job.number.decode(), _short(job._counts)
                lines.append([key, place, batch.tag, number, counts, term.until, term.lease])
        if lines:
            self._send({"hold": lines})

    def drop(self, jobs: Iterable[Any]) -> None:
        """These jobs are not held any more."""
        with self._lock:
            keys = [key for key in (f"{id(job):x}" for job in jobs) if self._jobs.pop(key, None)]
            if keys:
                self._send({"drop": keys})

    def news(self) -> list[Any]:
        """Note until when jobs are held; those that are lost. A helper that died is replaced."""
        with self._lock:
            return self._news()

    def _news(self) -> list[Any]:
        if self.pid is None and monotonic() > self._started + 1:
            logger.warning("the helper that renews leases has died; starting another")
            self._close()
            self._start()
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

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # full, as it does not read, or gone: a part of a line may be on its way
            logger.warning("the helper that renews leases does not listen; it is ended")
            if self._process is not None:
                self._process.kill()
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _short(counts: bytes) -> str:
    """Counters without the text behind them."""
    return b" ".join(counts.split(b" ", 4)[:4]).decode()


class _Held(NamedTuple):
    job: Delivery
    until: float
    lease: float


class _Helper:
    """The helper's side."""

    def __init__(self, sock: socket.socket, parent: int) -> None:
        self._socket = sock
        self._parent = parent
        self._held: dict[str, _Held] = {}
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
        nearest = min(
            (held.until - held.lease * FRACTION for held in self._held.values() if held.lease),
            default=monotonic() + PAUSE,
        )
        return min(max(nearest - monotonic(), 0.01), PAUSE)

    def _listen(self) -> bool:
        """Read what there is; whether the worker lives."""
        with suppress(BlockingIOError):
            while True:
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
            place = Place(queue, node_id, queue_crc(queue), epoch)
            batch = Batch(None, place, self._config["owner"], tag=tag, now=0, lease_ms=0)
            job = Delivery(batch, number.encode(), counts.encode(), b"1\n")
            self._held[key] = _Held(job, until, lease)

    def _is_stopped(self) -> bool:
        """Whether the worker's process is stopped; where that can't be told, it is not."""
        try:
            state = Path(f"/proc/{self._parent}/stat").read_text().rpartition(") ")[2][:1]
        except OSError:
            return False
        return state in ("T", "t")

    def _beat(self) -> None:
        now, due = monotonic(), dict[tuple[str, float], list[str]]()
        for key, held in self._held.items():
            if held.lease and held.until - now <= held.lease * FRACTION:
                due.setdefault((held.job.queue_name, held.lease), []).append(key)
        for (queue, lease), keys in due.items():
            for start in range(0, len(keys), BATCH):
                self._extend(queue, lease, keys[start : start + BATCH])

    def _extend(self, queue: str, lease: float, keys: list[str]) -> None:
        ops = self._ops.get(queue)
        if ops is None:
            names = QueueKeys(queue, self._config["prefix"])
            ops = self._ops[queue] = QueueOps(names, self._config["owner"], ())
        assert self._driver is not None
        sent, jobs = monotonic(), [self._held[key].job for key in keys]
        try:
            reply, _ = self._driver.run(ops, ops.extend(jobs, round(lease * 1000), late=True))
            ops.check(reply)
        except Exception as error:  # noqa: BLE001  # tried again, and the worker's thread is there
            logger.warning("leases can't be renewed: %s", error)
            self._driver.node.close()
            for key in keys:  # not at once
                held = self._held[key]
                self._held[key] = held._replace(until=held.until + 0.2)
            return
        for key, code in zip(keys, reply[3:], strict=True):
            if code <= 3:
                del self._held[key]
                self._report(key, None, 0.0)
                continue
            left = (code - reply[2]) / 1000
            kept = lease if left >= lease else 0.0
            self._held[key] = self._held[key]._replace(until=sent + left, lease=kept)
            self._report(key, sent + left, kept)

    def _report(self, key: str, until: float | None, lease: float) -> None:
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
