"""Processes that handlers keep from ending after their worker was stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import Penstock, Queue

START = """
import asyncio, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from penstock import AsyncWorker, Worker
from penstock.worker import process_end

process_end.EXIT_WAIT = 0.1
url, pool, never = sys.argv[1], ThreadPoolExecutor(), threading.Event()

def stop(*_):
    os.kill(os.getpid(), signal.SIGTERM)

def block(_=None):
    stop()
    never.wait(20)

def do_own():
    time.sleep(0.6)
    print("done", flush=True)

def handle(job):
    pool.submit(block).result()

async def handle_async(job):
    await asyncio.to_thread(block)
"""

KEPT = {
    "submit": """
Worker(url, "work", handle, grace=0).run()
print("done")
""",
    "map": """
def handle(job):
    with ThreadPoolExecutor() as own:
        list(own.map(block, range(2)))
Worker(url, "work", handle, grace=0).run()
print("done")
""",
    "pool": """
async def handle(job):
    await asyncio.get_running_loop().run_in_executor(pool, block)
asyncio.run(AsyncWorker(url, "work", handle, grace=0).run())
print("done")
""",
    "to_thread": """
async def main():
    await AsyncWorker(url, "work", handle_async, grace=0).run()
    print("done")
asyncio.run(main())
""",
    "gather": """
async def handle(job):
    await asyncio.gather(asyncio.to_thread(block), asyncio.sleep(20))
async def main():
    await AsyncWorker(url, "work", handle, grace=0).run()
    print("done")
asyncio.run(main())
""",
    "refuse": """
async def handle(job):
    stop()
    for _ in range(400):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
async def main():
    await AsyncWorker(url, "work", handle, grace=0).run()
    print("done")
asyncio.run(main())
""",
    "the loop ends": """
async def handle(job):
    never.set()
    await asyncio.to_thread(time.sleep, 20)
async def main():
    running = asyncio.ensure_future(AsyncWorker(url, "work", handle).run())
    await asyncio.to_thread(never.wait, 20)
    print("done")
asyncio.run(main())
""",
    # The program's own work goes on beside the handler that was given up.
    "own call": """
began = threading.Event()
def own():
    began.set()
    do_own()
Worker(url, "work", lambda job: (ThreadPoolExecutor().submit(own), handle(job)), grace=0).run()
""",
    "own thread": """
threading.Thread(target=do_own).start()
Worker(url, "work", handle, grace=0).run()
""",
    "own process": """
import multiprocessing
def own():
    time.sleep(1.5)
    do_own()
multiprocessing.get_context("fork").Process(target=own).start()
Worker(url, "work", handle, grace=0).run()
""",
    "own task": """
async def own():
    try:
        await asyncio.sleep(20)
    finally:
        await asyncio.sleep(0.6)
        print("done", flush=True)
async def main():
    task = asyncio.ensure_future(own())
    await AsyncWorker(url, "work", handle_async, grace=0).run()
asyncio.run(main())
""",
    "own main": """
async def main():
    await AsyncWorker(url, "work", handle_async, grace=0).run()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
    await asyncio.sleep(0.6)
    print("done", flush=True)
asyncio.run(main())
""",
    "own lines": """
Worker(url, "work", handle, grace=0).run()
do_own()
""",
}
"""Programs whose stopped workers have given up a handler that goes on for 20 seconds."""

FREE = {
    "own call": """
worker = Worker(url, "none", handle, grace=0)
worker.on_start(stop)
worker.run()
pool.submit(do_own)
""",
    "own task": """
async def own():
    try:
        await asyncio.sleep(20)
    finally:
        await asyncio.sleep(0.6)
        print("done", flush=True)
async def main():
    task = asyncio.ensure_future(own())
    await asyncio.to_thread(int)
    worker = AsyncWorker(url, "none", handle_async, grace=0)
    worker.on_start(stop)
    await worker.run()
asyncio.run(main())
""",
    "handler ends": """
def handle(job):
    pool.submit(stop).result()
    time.sleep(0.2)
Worker(url, "work", handle, grace=0).run()
pool.submit(do_own)
""",
    "a worker in a thread": """
began = threading.Event()
def handle(job):
    began.set()
    time.sleep(2)  # for a second, a worker that ends waits for its threads
    print("done", flush=True)
    worker.stop()
worker = Worker(url, "work", handle)
threading.Thread(target=worker.run).start()
began.wait(20)
""",
    "own thread at the end": """
worker = Worker(url, "none", handle, grace=0)
worker.on_start(stop)
worker.run()
threading.Thread(target=do_own).start()
""",
}
"""Programs whose workers leave nothing behind that keeps the process."""

BESIDE = """
began = threading.Event()
def wait(job):
    began.set()
    never.wait(20)
Worker(url, "beside", wait).start()
began.wait(20)
"""

RAISES = """
begun = threading.Event()

def handle(job):
    begun.set()
    never.wait(20)

worker = Worker(url, "work", handle)
worker.start()
begun.wait(20)
raise RuntimeError("the program's own")
"""

LOCKED = """
process_end.LAST_STEPS_SECONDS = 0.5
process_end.end_activities = {"locked": never.wait, "raises": sys.exit}[sys.argv[2]]
process_end.end_process()
"""

pytestmark = pytest.mark.slow


def ran(program: str, url: str) -> subprocess.CompletedProcess[str]:
    """Return the end of a program."""
    command = [sys.executable, "-c", START + program, url]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("case", KEPT)
def test_a_given_up_handler_does_not_keep_the_process(
    case: str, queue: Queue, worker_url: str
) -> None:
    """The process ends, but not before its own work; the job is given back."""
    queue.enqueue(1)
    ended = ran(KEPT[case], worker_url)
    assert (ended.returncode, ended.stdout) == (1, "done\n"), ended.stderr
    assert "a worker did not end in time" in ended.stderr
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.nacked) == (1, 0, 0)


@pytest.mark.parametrize("case", FREE)
def test_the_work_of_the_program_goes_on(case: str, queue: Queue, worker_url: str) -> None:
    """Without a handler that keeps the process, the program ends by itself."""
    queue.enqueue(1)
    ended = ran(FREE[case], worker_url)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert "did not end in time" not in ended.stderr


@pytest.mark.parametrize("case", ["submit", "to_thread"])
def test_another_worker_gives_its_jobs_back(case: str, queue: Queue, worker_url: str) -> None:
    """A worker in the background gives its jobs back before the process is ended."""
    queue.enqueue(1)
    with Penstock(worker_url) as client:
        beside = client.queue("beside")
        beside.enqueue(1)
        ended = ran(BESIDE + KEPT[case], worker_url)
        assert (ended.returncode, ended.stdout) == (1, "done\n"), ended.stderr
        assert "a worker did not end in time" in ended.stderr
        for one in (queue, beside):
            stats = one.stats()
            assert (stats.ready, stats.active, stats.nacked) == (1, 0, 0)


def test_a_program_ends_around_its_worker(queue: Queue, worker_url: str) -> None:
    """If the program raises while a worker runs in the background, its jobs are given back."""
    queue.enqueue(1)
    ended = ran(RAISES, worker_url)
    assert ended.returncode == 1
    assert "RuntimeError: the program's own" in ended.stderr
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.nacked) == (1, 0, 0)


@pytest.mark.parametrize("kind", ["locked", "raises"])
def test_the_process_ends_although_a_step_fails(kind: str) -> None:
    """Neither a lock of a handler nor an exception keeps a process that is to end."""
    command = [sys.executable, "-c", START + LOCKED, "url", kind]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended.stderr


COLLECTING = """
import gc, os, sys, threading, time
from penstock import Worker
from penstock.worker.process_end import find_stacks

class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0.0001)  # another thread goes on

def start_threads():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

def wait(depth):
    wait(depth - 1) if depth else threading.Event().wait()

for target, args in ((start_threads, ()), *[(wait, (3,))] * 5):
    threading.Thread(target=target, args=args, daemon=True).start()
gc.set_threshold(1, 1000, 1000)
for _ in range(20):
    Cycle()
    find_stacks()
    Cycle()
    Worker(sys.argv[1], "none", print, burst=True).run()
print(gc.isenabled(), flush=True)
os._exit(0)
"""


def test_no_garbage_is_collected_during_a_look_at_threads(worker_url: str) -> None:
    """CPython before 3.11.9 would wait for itself: a worker would hang as it starts or ends."""
    command = [sys.executable, "-c", COLLECTING, worker_url]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "True\n")
