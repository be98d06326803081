"""`penstock worker` as a process of its own, with an app that tests control through Redis.

The jobs of the app are words in the queue `jobs`; its processes report events to the list `told`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import redis

from penstock import Penstock
from tests.cli.support import environment, hear_signals

__all__ = ["APP", "STARTED", "Program", "Told", "ask", "ended", "running", "wait_until"]

TIMEOUT = 60.0
STARTED = r"process (\d+) has started, pid (\d+)"

APP = """
import os, threading, time
from penstock import Penstock, Worker
import redis

URL = os.environ["APP_REDIS"]
raw = redis.Redis.from_url(URL)
held = []

def tell(what):
    number = os.environ.get("PENSTOCK_PROCESS", "-")
    raw.rpush("told", f"{number} {os.getpid()} {worker.name} {what}")

class Told(Worker):
    well = True

    def start(self):
        super().start()
        tell("up")

    def run(self, **options):
        super().run(**options)
        tell("down")
        while "deaf" in held:
            time.sleep(1)

    def healthy(self):
        return self.well and super().healthy()

def handle(job):
    tell(job.body)
    if job.body == "options":
        tell(worker.options)
    if job.body == "grow":
        held.append(b"x" * (300 << 20))
    if job.body == "ill":
        Told.well = False
    if job.body == "deaf":
        held.append("deaf")
    if job.body == "long once" and job.attempt == 1:
        threading.Event().wait()
    if job.body == "long":
        while not worker.stopping:
            time.sleep(0.01)
        tell("heard")
        while not job.lost:
            time.sleep(0.01)

worker = Told(URL, "jobs", handle, concurrency=1, name="app")
"""


class Program:
    """A supervisor or a single worker whose stderr is read as it is written.

    Args:
        directory: where it runs, with the app in it.
        url: of the server of its app.
        argv: after `penstock worker`.
        before: Python to run first.
    """

    def __init__(self, directory: Path, url: str, *argv: str, before: str = "") -> None:
        code = f"import sys; {before}; from penstock.cli import main; sys.exit(main())"
        command = ["-c", code] if before else ["-m", "penstock.cli"]
        self.process = subprocess.Popen(
            [sys.executable, *command, "worker", *argv],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(APP_REDIS=url, PYTHONDONTWRITEBYTECODE="1"),
            start_new_session=True,
            preexec_fn=hear_signals,  # noqa: PLW1509  # it takes no lock
        )
        self.seen = ""
        self._unread = ""

    def line(self, pattern: str) -> re.Match[str]:
        """Wait for an unread line that matches."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            found = re.search(f"^.*{pattern}.*$", self._unread, flags=re.MULTILINE)
            if found:
                self._unread = self._unread[found.end() :]
                return found
            assert self._read(deadline), f"no line like {pattern!r}:\n{self.seen}"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code after the process has ended and written its last line."""
        deadline = time.monotonic() + TIMEOUT
        while self._read(deadline):
            pass
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        """End the process and wait for its children to end."""
        children = self.children()
        self.process.kill()
        self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()
        wait_until(lambda: all(map(ended, children)), "the children have ended")

    def children(self) -> list[psutil.Process]:
        """Return its child processes and their children."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def has_more(self, seconds: float) -> bool:
        """Tell if it writes or ends within this time."""
        assert self.process.stderr
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stderr, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def _read(self, deadline: float) -> bool:
        assert self.process.stderr
        more = self.has_more(max(0.0, deadline - time.monotonic()))
        assert more, f"nothing more was written:\n{self.seen}"
        text = os.read(self.process.stderr.fileno(), 65536).decode()
        self.seen += text
        self._unread += text
        return bool(text)


@contextlib.contextmanager
def running(directory: Path, url: str, *argv: str, **options: Any) -> Iterator[Program]:
    """Run a program until the end of the block."""
    program = Program(directory, url, *argv, **options)
    try:
        yield program
    finally:
        program.close()


class Told:
    """The events that processes of the app report, in order.

    Args:
        url: of the app's server.
    """

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=2 * TIMEOUT)
        self._client = Penstock(url)

    def do(self, *jobs: str, queue: str = "jobs") -> None:
        """Enqueue jobs for the app."""
        self._client.queue(queue).enqueue_many(jobs)

    def next(self) -> tuple[str, int, str, str]:
        """Return the number, pid and name of a process, and its event."""
        got = self._redis.blpop(["told"], TIMEOUT)
        assert isinstance(got, (list, tuple)), "nothing was told"
        number, pid, name, what = got[1].decode().split(" ", 3)
        return number, int(pid), name, what

    def until(self, what: str) -> tuple[str, int, str]:
        """Return the next process with this event; earlier events are skipped."""
        while True:
            *process, told = self.next()
            if told == what:
                return process[0], process[1], process[2]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._redis.close()


def ended(process: psutil.Process) -> bool:
    """Tell if a process is gone, or is a zombie."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def ask(url: str) -> tuple[int, Any]:
    """Return status and document of an HTTP answer."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def wait_until(condition: Any, what: str) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
