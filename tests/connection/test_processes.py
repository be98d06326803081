"""Forks, threads, event loops, and killed consumers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock import AsyncPenstock, Penstock
from penstock.core.flows import effects
from penstock.embedded import EmbeddedServer
from tests.support.backends import Backend
from tests.support.twins import spawn, wait_for

ROOT = Path(__file__).parents[2]

HOLDER = """
import signal, sys
from penstock import Penstock
(job,) = Penstock(sys.argv[1], owner="holder").queue("q").reserve(block=10)
print(job.id, flush=True)
signal.pause()
"""

FORKING = """
import asyncio, os, sys
from penstock import AsyncPenstock, Penstock

ps = Penstock(sys.argv[1])
q = ps.queue("q")
q.enqueue("parent before")
(held,) = q.reserve(block=0)
asynchronous = AsyncPenstock(sys.argv[1])
asyncio.run(asynchronous.queue("q").enqueue("parent before"))
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        for turn in range(20):
            q.enqueue(["child", number, turn])
        asyncio.run(asynchronous.queue("q").enqueue(["child", number, 20]))
        os._exit(0)
    children.append(pid)
for turn in range(20):
    q.enqueue(["parent", turn])
    assert q.stats().exists
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
assert held.ack() is True
assert len(q.reserve(1000, block=0)) == 20 + 3 * 21 + 1
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process that runs this code with the library on its path."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture
def url(real_backend: Backend) -> str:
    """The URL of the server."""
    assert real_backend.url is not None
    return real_backend.url


def test_a_fork_shares_no_connection(url: str) -> None:
    """Parent and children use one client at once: no reply or job is mixed up."""
    with python(FORKING, url) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting calls look only when they were woken, or when a lease ends."""
    monkeypatch.setattr(effects, "POLL_INTERVAL", 60.0)


@pytest.mark.usefixtures("no_polls")
def test_the_job_of_a_killed_consumer(url: str) -> None:
    """Two other consumers wait: one of them gets the job when its lease ends."""
    with Penstock(url) as ps:
        q = ps.queue("q")
        with python(HOLDER, url) as holder:
            q.enqueue("orphan", lease=3)
            assert holder.stdout is not None
            job_id = holder.stdout.readline().strip()
            idle = [spawn(q.reserve, 1, block=30) for _ in range(2)]
            (view,) = q.peek(state="active")
            assert (view.id, view.owner) == (job_id, "holder")
            holder.send_signal(signal.SIGKILL)
        wait_for(lambda: any(one.is_done for one in idle))
        (started,) = [job for one in idle if one.is_done for job in one.result()]
        assert view.delivered is not None
        assert started.id == job_id
        assert started.crashes == 1
        assert 3.0 <= round(started.delivered - view.delivered, 3) < 20.0
        assert started.ack() is True
        q.enqueue("for the other one")
        bodies = sorted(job.body for one in idle for job in one.result())
        assert bodies == ["for the other one", "orphan"]


@pytest.mark.usefixtures("no_polls")
async def test_the_job_of_a_killed_consumer_of_asyncio(url: str) -> None:
    """An asyncio consumer gets the job of a killed process when its lease ends."""
    async with AsyncPenstock(url) as ps:
        q = ps.queue("q")
        with python(HOLDER, url) as holder:
            await q.enqueue("orphan", lease=3)
            assert holder.stdout is not None
            job_id = holder.stdout.readline().strip()
            idle = [asyncio.ensure_future(q.reserve(1, block=30)) for _ in range(2)]
            (view,) = await q.peek(state="active")
            holder.send_signal(signal.SIGKILL)
        done, pending = await asyncio.wait(idle, timeout=20, return_when="FIRST_COMPLETED")
        ((started,),) = [one.result() for one in done]
        assert view.delivered is not None
        assert started.id == job_id
        assert 3.0 <= round(started.delivered - view.delivered, 3) < 20.0
        assert await started.ack() is True
        await q.enqueue("for the other one")
        ((other,),) = await asyncio.gather(*pending)
        assert other.body == "for the other one"


def test_sixteen_threads_share_a_client(url: str) -> None:
    """Every job is done once, whichever threads add and reserve it."""
    with Penstock(url) as ps:
        q = ps.queue("q")
        start = threading.Barrier(16)

        def work(number: int) -> list[object]:
            start.wait()
            done: list[object] = []
            for turn in range(25):
                q.enqueue([number, turn])
                for job in q.reserve(2, block=0):
                    with job:
                        done.append(job.body)
            return done

        threads = [spawn(work, number) for number in range(16)]
        done = [body for one in threads for body in one.result()]
        while jobs := q.reserve(100, block=0):
            done += [job.body for job in jobs]
            q.ack(jobs)
        assert sorted(map(repr, done)) == sorted(
            repr([number, turn]) for number in range(16) for turn in range(25)
        )
        assert q.stats().acked == 400


def test_sixteen_threads_wait_on_a_client(url: str) -> None:
    """Each thread gets one job; none is delivered twice."""
    with Penstock(url) as ps:
        q = ps.queue("q")
        threads = [spawn(q.reserve, 1, block=20) for _ in range(16)]
        for number in range(16):
            q.enqueue(number)
        got = [job.body for one in threads for job in one.result()]
        assert sorted(got) == list(range(16))


async def test_many_tasks_share_a_client(url: str) -> None:
    """Sixteen tasks of one loop get one job each."""
    async with AsyncPenstock(url) as ps:
        q = ps.queue("q")
        consumers = [asyncio.ensure_future(q.reserve(1, block=20)) for _ in range(16)]
        await asyncio.gather(*[q.enqueue(number) for number in range(16)])
        got = [job.body for jobs in await asyncio.gather(*consumers) for job in jobs]
        assert sorted(got) == list(range(16))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # an error here would keep the sockets alive
def test_one_client_in_two_event_loops(url: str) -> None:
    """Connections belong to a loop; the client opens new ones in the next loop."""
    ps = AsyncPenstock(url)
    q = ps.queue("q")

    async def first() -> None:
        await q.enqueue(1)
        assert await q.reserve(block=0.02) != []
        assert await q.reserve(block=0.02) == []  # uses a waiter too

    async def second() -> object:
        await q.enqueue(2)
        (job,) = await q.reserve(block=5)
        assert await q.reserve(block=0.02) == []
        await job.ack()
        await ps.close()
        return job.body

    asyncio.run(first())
    assert asyncio.run(second()) == 2
    gc.collect()  # the sockets of the first loop warn here that they were not closed


async def test_a_cancelled_task_leaves_the_client_usable(url: str) -> None:
    """A task is cancelled during a wait and during a call; the client still works."""
    async with AsyncPenstock(url) as ps:
        q = ps.queue("q")
        await q.enqueue("make the queue")
        await q.purge()
        for _ in range(5):
            task = asyncio.ensure_future(q.reserve(1, block=30))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await q.enqueue("x")
            (job,) = await q.reserve(1, block=5)
            assert await job.ack() is True


def test_a_client_ends_with_its_process(server: EmbeddedServer) -> None:
    """Clients do not keep an interpreter from ending."""
    code = "import sys\nfrom penstock import Penstock\nPenstock(sys.argv[1]).queue('q').enqueue(1)"
    with python(code, server.url) as process:
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
