"""Workers in processes of their own; their handlers log events to a file.

The body of a job says what its handler does: `{"n": 7, "do": "nap", "s": 0.5}`.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock import Retry, Snooze
from penstock.worker import AsyncWorker, Handlers, LoopEvent, Worker
from tests.support.workers import Log, await_word, tell

__all__ = ["again", "work"]

LIBC = ctypes.PyDLL(None)
"""The C library, called without releasing the interpreter lock."""


TOLD = "PENSTOCK_TEST_WORKER"
"""Environment variable of an isolated process with the options of its worker."""


class Diary:
    """A log file of handlers for several processes."""

    def __init__(self, path: str) -> None:
        self._log = Log(path)

    def write(self, event: str, job: Any = None, **more: Any) -> None:
        """Add an event; the write has reached the system when this returns."""
        if job is not None:
            body = job.body
            more |= {"n": body.get("n"), "id": job.id, "attempt": job.attempt, "lost": job.lost}
            more |= {"deliveries": job.deliveries, "at": job.delivered, "queue": job.queue_name}
        entry = {"event": event, "pid": os.getpid(), "t": time.monotonic(), **more}
        self._log.write(json.dumps(entry))


def spin() -> None:
    """Never end by itself."""
    while True:
        time.sleep(0.01)


FAULTS: dict[str, Callable[[], object]] = {
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "memory": lambda: bytearray(1 << 62),
    "spin": spin,
}


PUT_OFF: dict[str, Callable[[str], Exception]] = {
    "Retry": lambda hold: Retry(after=600, hold=hold),
    "Snooze": lambda hold: Snooze(600, hold=hold),
}
RAISED: dict[str, Callable[[Any], Exception]] = {
    "boom": lambda _: ValueError("boom"),
    "put off": lambda body: PUT_OFF[body["as"]](body["hold"]),
}


class Deeds:
    """The handlers.

    Args:
        diary: where they say so.
    """

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def plain(self, job: Any) -> dict[str, Any]:
        """Handle a job in a thread."""
        self._begin(job)
        self._do(job)
        self._diary.write("end", job)
        return {"n": job.body["n"], "pid": os.getpid()}

    async def coroutine(self, job: Any) -> dict[str, Any]:
        """Handle a job in a task."""
        self._begin(job)
        try:
            await self._ado(job)
        except asyncio.CancelledError:
            self._diary.write("cancelled", job)
            raise
        self._diary.write("end", job)
        return {"n": job.body["n"], "pid": os.getpid()}

    def _begin(self, job: Any) -> None:
        self._diary.write("start", job)
        if "note" in job.body:
            job.progress(1, 3, job.body["note"])
        if "chunk" in job.body:
            job.emit(job.body["chunk"])

    def batch(self, jobs: list[Any]) -> None:
        """Handle several jobs in a thread."""
        for job in jobs:
            self._diary.write("start", job)
        self._do(jobs[0])
        for job in jobs:
            self._diary.write("end", job)

    async def batch_coroutine(self, jobs: list[Any]) -> None:
        """Handle several jobs in a task."""
        for job in jobs:
            self._diary.write("start", job)
        await self._ado(jobs[0])
        for job in jobs:
            self._diary.write("end", job)

    async def _ado(self, job: Any) -> None:
        body = job.body
        if body["do"] == "nap":
            await asyncio.sleep(body["s"])
        elif body["do"] == "deaf":
            await self._deaf(body["s"])
        elif body["do"] == "executor":
            await asyncio.to_thread(time.sleep, body["s"])
        elif body["do"] == "gate":
            while not os.path.exists(body["for"]):  # noqa: ASYNC110, ASYNC240, PTH110  # as below
                await asyncio.sleep(0.01)
        elif body["do"] in ("watch", "spin"):
            await asyncio.sleep(60)
        else:
            self._do(job)

    async def _deaf(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    def _do(self, job: Any) -> None:
        body = job.body
        do, seconds = body["do"], body.get("s", 0.0)
        if do in ("nap", "block", "deaf", "executor"):
            time.sleep(seconds)
        elif do in ("keep", "seize"):
            self._keep(body)
        elif do in FAULTS:
            FAULTS[do]()
        elif do == "stumble" and job.attempt == 1:
            raise ValueError(f"no luck with {body['n']}")
        elif do in RAISED:
            raise RAISED[do](body)
        elif do == "watch":
            while not job.lost:
                time.sleep(0.01)
        elif do in ("wait", "gate"):  # "wait" blocks the event loop
            while not os.path.exists(body["for"]):  # noqa: PTH110  # a file that the test creates
                time.sleep(0.01)

    def _keep(self, body: Any) -> None:
        """Hold the interpreter lock: in slices with short breaks, or until a file is unlocked."""
        if body["do"] == "seize":
            with open(body["for"]) as file:  # noqa: PTH123
                LIBC.flock(file.fileno(), fcntl.LOCK_EX)
            return
        until = time.monotonic() + body["s"]
        while time.monotonic() < until:
            LIBC.usleep(ctypes.c_uint(round(body["slice"] * 1e6)))


def work(
    kind: str,
    url: str,
    diary: str,
    queues: Any,
    batch: tuple[int, float] | None = None,
    control: bool = False,
    isolate: bool = False,
    trap: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Run a worker until it ends.

    Args:
        kind: "thread"; "asyncio"; "mixed" = plain functions in an AsyncWorker.
        url: of the server.
        diary: where handlers say what they do.
        queues: as for a worker.
        batch: size and wait of a chunk handler in the place of the plain one.
        isolate: run suspects in a process of their own.
        control: let a thread listen to the test: "stop" stops the worker.
        trap: to be killed at a step of a call; see `tests.crash.tasks.struck`.
        options: of the worker.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.CRITICAL)
    out = Diary(diary)
    if trap is not None:
        _spring(trap)
    rounds = itertools.count()

    def look(event: LoopEvent) -> None:
        if next(rounds) == 0:
            out.write("up", kind=kind)

    if isolate:
        os.environ[TOLD] = json.dumps([kind, url, diary, queues, batch, options])
        options["isolate"] = f"{__name__}:again"
    worker = made(kind, url, Deeds(out), queues, batch, monitor=look, **options)
    if control:
        threading.Thread(target=_obey, args=(worker,), daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):  # a signal after the end of the run is harmless
        signal.signal(number, lambda *_: worker.stop())

    async def main() -> None:
        assert isinstance(worker, AsyncWorker)
        await worker.run()
        out.write("returned")

    if isinstance(worker, AsyncWorker):
        asyncio.run(main())
    else:
        worker.run()
        out.write("returned")
    out.write("over")


def again() -> Worker | AsyncWorker:
    """Run another worker of the same process."""
    kind, url, diary, queues, batch, options = json.loads(os.environ[TOLD])
    return made(kind, url, Deeds(Diary(diary)), queues, batch, **options)


def made(
    kind: str, url: str, deeds: Deeds, queues: Any, batch: tuple[int, float] | None, **options: Any
) -> Worker | AsyncWorker:
    """Make a worker of a kind."""
    handlers = Handlers()
    function: Callable[..., Any]
    if batch is not None:
        function = deeds.batch_coroutine if kind == "asyncio" else deeds.batch
        handlers.chunk(None, size=batch[0], wait=batch[1])(function)
    else:
        function = deeds.coroutine if kind == "asyncio" else deeds.plain
        handlers.handler(None)(function)
    if kind == "thread":
        return Worker(url, queues, handlers, **options)
    return AsyncWorker(url, queues, handlers, **options)


def _obey(worker: Worker | AsyncWorker) -> None:
    tell("listening")
    while True:
        word = await_word().split()
        if word[0] == "stop":
            worker.stop(*map(float, word[1:]))
        elif word[0] == "status":
            status = worker.status()
            helper = worker._life.state.helper if worker._life else None
            told = {"state": status.state, "held": status.held, "running": len(status.running)}
            tell({**told, "helper": helper and helper.pid})


def _spring(trap: dict[str, Any]) -> None:
    from penstock.client.sockets import Socket
    from tests.crash.tasks import struck
    from tests.support.workers import die

    patched: Any = Socket
    patched.trip = struck(**trap, halt=lambda: None, strike=die)
