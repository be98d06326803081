"""`penstock worker` in processes of its own, with an app that the tests steer through Redis.

The app's jobs are words in the queue `jobs`; what its processes tell is on the list `told`.
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
    if job.body == "long":
        while not worker.stopping:
            time.sleep(0.01)
        tell("heard")
        while not job.lost:
            time.sleep(0.01)

worker = Told(URL, "jobs", handle, concurrency=1, name="app")
"""


class Program:
    """A supervisor, or a worker alone; what it writes to stderr is read as it comes.

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
        """Wait for a line like this among those not looked at yet."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            found = re.search(f"^.*{pattern}.*$", self._unread, flags=re.MULTILINE)
            if found:
                self._unread = self._unread[found.end() :]
                return found
            assert self._read(deadline), f"no line like {pattern!r}:\n{self.seen}"

    def send(self, number: signal.Signals) -> None:
        """A signal to it alone."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, when it has ended and written its last line."""
        deadline = time.monotonic() + TIMEOUT
        while self._read(deadline):
            pass
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        """End it, whatever it does, and wait for its children to see that."""
        children = self.children()
        self.process.kill()
        self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()
        wait_until(lambda: all(map(ended, children)), "the children have ended")

    def children(self) -> list[psutil.Process]:
        """Its own processes, and theirs."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def has_more(self, seconds: float) -> bool:
        """Whether it writes, or ends, within this time."""
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
    """A program that ends with the block."""
    program = Program(directory, url, *argv, **options)
    try:
        yield program
    finally:
        program.close()


class Told:
    """What the app's processes tell, in the order in which it happened.

    Args:
        url: of the app's server.
    """

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=2 * TIMEOUT)
        self._client = Penstock(url)

    def do(self, *jobs: str, queue: str = "jobs") -> None:
        """Give them work."""
        self._client.queue(queue).enqueue_many(jobs)

    def next(self) -> tuple[str, int, str, str]:
        """The number, pid, and name of a process, and what it told."""
        got = self._redis.blpop(["told"], TIMEOUT)
        assert isinstance(got, (list, tuple)), "nothing was told"
        number, pid, name, what = got[1].decode().split(" ", 3)
        return number, int(pid), name, what

    def until(self, what: str) -> tuple[str, int, str]:
        """The next process that told this; what was told before it is forgotten."""
        while True:
            *who, told = self.next()
            if told == what:
                return who[0], who[1], who[2]

    def close(self) -> None:
        """Leave."""
        self._client.close()
        self._redis.close()


def ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or is a zombie that its parent has not reaped."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def ask(url: str) -> tuple[int, Any]:
    """Status and document of an HTTP answer."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def wait_until(condition: Any, what: str) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
