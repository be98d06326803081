"""Processes that handlers keep from ending after their worker was stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from penstock import Queue
from penstock.worker.process_end import ProcessEnd

PROGRAM = """
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
from penstock import AsyncWorker, Worker
from penstock.worker import process_end

process_end.PATIENCE = 0.1
url, kind = sys.argv[1:]
pool, never = ThreadPoolExecutor(), threading.Event()

def block():
    print("begun", flush=True)
    never.wait(20)

def handle(job):
    pool.submit(block).result()

async def handle_async(job):
    await asyncio.get_running_loop().run_in_executor(pool, block)

if kind == "coroutine":
    asyncio.run(AsyncWorker(url, "work", handle_async, grace=0).run())
else:
    Worker(url, "work", handle, grace=0).run()
print("returned", flush=True)
"""


RAISES = """
import sys, threading
from penstock import Worker

begun = threading.Event()

def handle(job):
    begun.set()
    threading.Event().wait(20)

worker = Worker(sys.argv[1], "work", handle)
worker.start()
begun.wait(20)
raise RuntimeError("the program's own")
"""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event in the place of the end of the process."""
    event = threading.Event()
    monkeypatch.setattr("penstock.worker.process_end.end_process", event.set)
    monkeypatch.setattr("penstock.worker.process_end.PATIENCE", 0.02)
    monkeypatch.setattr("threading._register_atexit", lambda _: None)
    return event


@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "not asked"])
def test_an_executor_keeps_the_event_loop(ended: threading.Event, is_asked: bool) -> None:
    """After a stop, a call in `asyncio.to_thread` does not keep the process.

    If neither the process was asked to end nor a job was given up, it is a call of the program.
    """

    async def main() -> None:
        end = ProcessEnd()
        asyncio.get_running_loop().run_in_executor(None, ended.wait, 30 if is_asked else 0.1)
        end.finish(time.monotonic() if is_asked else None)

    asyncio.run(main())
    assert ended.is_set() == is_asked


def test_a_coroutine_keeps_the_event_loop(ended: threading.Event) -> None:
    """A coroutine that refuses to be cancelled does not keep the process either.

    The time counts from the end of the loop, also if that has ended the worker.
    """

    async def refuse() -> None:
        while not ended.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def work() -> None:
        end = ProcessEnd()
        try:
            await asyncio.sleep(60)
        finally:
            end.has_tasks = True
            end.finish(None)

    async def main() -> None:
        tasks = [asyncio.create_task(work()), asyncio.create_task(refuse())]
        await asyncio.wait(tasks, timeout=0.01)

    asyncio.run(main())
    assert ended.is_set()


def test_nothing_keeps_the_process(ended: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no task is left that waits for its end."""
    monkeypatch.setattr("threading.enumerate", lambda: [threading.main_thread()])

    async def main() -> None:
        before = asyncio.all_tasks()
        end = ProcessEnd()
        await asyncio.sleep(0)
        end.finish(time.monotonic())
        _, left = await asyncio.wait(asyncio.all_tasks() - before, timeout=30)
        assert not left

    asyncio.run(main())
    assert not ended.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_the_interpreter_is_kept(kind: str, queue: Queue, worker_url: str) -> None:
    """A stopped worker does not wait for a handler's call in an executor; its job is given back."""
    queue.enqueue(1)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, worker_url, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (1, "returned\n")
    assert "a worker did not end in time" in err
    assert "ThreadPoolExecutor-0_0" in err
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.nacked) == (1, 0, 0)


@pytest.mark.slow
def test_a_program_ends_around_its_worker(queue: Queue, worker_url: str) -> None:
    """If the program raises while a worker runs in the background, its jobs are given back."""
    queue.enqueue(1)
    program = [sys.executable, "-c", RAISES, worker_url]
    ended = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "RuntimeError: the program's own" in ended.stderr
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.nacked) == (1, 0, 0)
