"""`penstock worker` in processes of its own, with an app that the tests steer through Redis.

The app's jobs are words on the list `jobs`, what became of them is on the list `told`.
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

from tests.cli.support import environment

__all__ = ["APP", "STARTED", "Program", "ask", "running", "wait_until"]

TIMEOUT = 60.0
STARTED = r"process (\d+) has started, pid (\d+)"

APP = '''
import os, signal, time
from dataclasses import asdict, dataclass
from penstock import BadArgument
import redis

@dataclass(frozen=True)
class Status:
    name: str
    options: dict

    def as_dict(self):
        return asdict(self)

class Standin:
    """What the command needs of a worker, and no more."""

    def __init__(self, **options):
        self.options = {"name": "app", **options}
        self.well = True
        self.signals = 0
        self.held = []

    def change(self, **options):
        if options.get("concurrency", 1) > 99:
            raise BadArgument("concurrency", options["concurrency"], "at most 99")
        self.options.update(options)

    def healthy(self):
        return self.well

    def status(self):
        return Status(self.options["name"], self.options)

    def stop(self):
        self.signals = 1

    def heard(self, number, frame):
        self.signals += 1

    def run(self):
        signal.signal(signal.SIGTERM, self.heard)
        signal.signal(signal.SIGINT, self.heard)
        self.redis = redis.Redis.from_url(os.environ["APP_REDIS"])
        self.tell("up")
        jobs = 0
        while not self.signals and jobs != self.options.get("max_jobs"):
            got = self.redis.blpop("jobs", 0.1)
            if got:
                jobs += 1
                self.handle(got[1].decode())
            elif self.options.get("burst"):
                break
        self.tell("down")
        self.redis.close()

    def tell(self, what):
        number = os.environ.get("PENSTOCK_PROCESS", "-")
        self.redis.rpush("told", f"{number} {os.getpid()} {self.options['name']} {what}")

    def handle(self, job):
        self.tell(job)
        if job == "grow":
            self.held.append(b"x" * (300 << 20))
        if job == "ill":
            self.well = False
        while job == "long" and self.signals < 2 or job == "deaf":
            time.sleep(0.01)

worker = Standin()
'''


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
        psutil.wait_procs(children, TIMEOUT)

    def children(self) -> list[psutil.Process]:
        """Its own processes, and theirs."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def _read(self, deadline: float) -> bool:
        stream = self.process.stderr
        assert stream
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more was written:\n{self.seen}"
        text = os.read(stream.fileno(), 65536).decode()
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
        self._redis = redis.Redis.from_url(url)

    def do(self, *jobs: str) -> None:
        """Give them work."""
        self._redis.rpush("jobs", *jobs)

    def next(self) -> tuple[str, int, str, str]:
        """The number, pid, and name of a process, and what it told."""
        got = self._redis.blpop(["told"], TIMEOUT)
        assert isinstance(got, (list, tuple)), "nothing was told"
        number, pid, name, what = got[1].decode().split(" ")
        return number, int(pid), name, what

    def until(self, what: str) -> tuple[str, int, str]:
        """The next process that told this; what was told before it is forgotten."""
        while True:
            *who, told = self.next()
            if told == what:
                return who[0], who[1], who[2]

    def close(self) -> None:
        """Leave."""
        self._redis.close()


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
