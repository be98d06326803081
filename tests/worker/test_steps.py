"""Steps in real workers: killed processes, lost replies, threads with time limits, and suspects."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, AsyncSteps, AsyncWorker, Handlers, Penstock, Steps, Worker
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from penstock.worker import TimeLimit
from tests.support.backends import Backend
from tests.support.keyspace import advance, check_invariant
from tests.support.proxy import Proxy

PROGRAM = """
import os, signal, sys
import redis
from penstock import AsyncSteps, AsyncWorker, Handlers, Penstock, AsyncPenstock, Steps, Worker
url, kind, fatal = sys.argv[1:]
raw = redis.Redis.from_url(url)
handlers = Handlers(queue="q")

def reach(place):
    raw.rpush("reached", place)
    if place == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

def effect(number):
    reach(f"{number} begins")
    raw.rpush(f"effects {number}", os.getpid())
    reach(f"{number} ends")
    return os.getpid()

def see(number, value):
    raw.rpush(f"seen {number}", value)
    reach(f"{number} is noted")

if kind == "thread":
    @handlers.handler
    def order(steps: Steps):
        for number in range(5):
            see(number, steps.run(f"step {number}", effect, number))
            if number % 2:
                steps.sleep(f"sleep {number}", 0)
            else:
                raw.rpush("signals", steps.wait(f"wait {number}"))
    Worker(Penstock(url), handlers=handlers, burst=True).run()
else:
    import asyncio

    @handlers.handler
    async def order(steps: AsyncSteps):
        for number in range(5):
            see(number, await steps.run(f"step {number}", effect, number))
            if number % 2:
                await steps.sleep(f"sleep {number}", 0)
            else:
                raw.rpush("signals", await steps.wait(f"wait {number}"))
    asyncio.run(AsyncWorker(AsyncPenstock(url), handlers=handlers, burst=True).run())
"""
PLACES = [f"{number} {place}" for number in range(5) for place in ("begins", "ends", "is noted")]


@pytest.fixture
def ps(real_backend: Backend) -> Iterator[Penstock]:
    """A client of a server."""
    with Penstock(real_backend.sync_client()) as client:
        yield client


@pytest.fixture
def handlers() -> Handlers:
    """A set of handlers for the queue q."""
    return Handlers(queue="q")


def counts_of(worker: Worker) -> dict[str, int]:
    """Return the outcomes of a worker's jobs."""
    return dict(worker.status().stats.counts)


def run_until(url: str, kind: str, fatal: str) -> int:
    """Run a worker in a process that kills itself at a place; return the exit code."""
    program = [sys.executable, "-c", PROGRAM, url, kind, fatal]
    return subprocess.run(program, timeout=60, check=False, env={**os.environ}).returncode


@pytest.mark.parametrize(
    "kind, places",
    [
        pytest.param("thread", ["1 ends"], id="thread-one"),
        pytest.param("thread", PLACES, id="thread-all", marks=pytest.mark.slow),
        pytest.param("asyncio", PLACES, id="asyncio-all", marks=pytest.mark.slow),
    ],
)
def test_kill_9_at_each_place(server: EmbeddedServer, kind: str, places: list[str]) -> None:
    """Each value is noted once, each effect happens at least once, and in order."""
    raw = redis.Redis.from_url(server.url)
    with Penstock(server.url) as client:
        q = client.queue("q")
        q.configure(max_crashes=100)
        added = q.enqueue({}, headers={"handler": "order"})
        assert all(q.signal(added.id, f"wait {number}", number) for number in (0, 2, 4))
        for place in places:
            assert run_until(server.url, kind, place) == -signal.SIGKILL
            advance(raw, q.ops, 31)
        assert run_until(server.url, kind, "") == 0
        assert q.stats().acked == 1
    kills = {place: places.count(f"{place} ends") for place in map(str, range(5))}
    for number in map(str, range(5)):
        effects, seen = (raw.lrange(f"{name} {number}", 0, -1) for name in ("effects", "seen"))
        assert len(effects) == 1 + kills[number]
        assert set(seen) == {effects[-1]}
    order = [place.split()[0] for place in raw.lrange("reached", 0, -1) if b"ends" in place]
    assert order == sorted(order)
    assert set(raw.lrange("signals", 0, -1)) == {b"0", b"2", b"4"}
    check_invariant(raw)
    assert not raw.exists(q.ops.keys["tally"])


@pytest.mark.parametrize("name", ["note", "read_notes"])
def test_a_lost_reply(name: str, server: EmbeddedServer, handlers: Handlers) -> None:
    """The call is repeated, and the note is there once."""
    seen: list[int] = []

    @handlers.handler
    def order(steps: Steps) -> None:
        seen.extend(steps.run(f"step {number}", int, number) for number in range(3))
        if len(seen) == 3:
            raise LookupError

    raw = redis.Redis.from_url(server.url)
    with Proxy(server.address) as proxy, Penstock(proxy.url) as client:
        q = client.queue("q")
        q.configure(backoff_base=0.001, backoff_cap=0.001)
        order.enqueue(q)
        fault = proxy.eat_reply(after=script(name).sha.encode())
        worker = Worker(client, handlers=handlers)
        worker.start()
        fault.wait(20)
        while q.stats().acked == 0:
            time.sleep(0.01)  # the worker does not end by itself
        worker.stop()
        assert worker.join(20)
    assert seen == [0, 1, 2] * 2
    check_invariant(raw)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_lost_reply_of_a_signal(server: EmbeddedServer, *, is_first: bool) -> None:
    """The call is repeated; the answer tells whether it is this signal that the job has."""
    with Proxy(server.address) as proxy, Penstock(proxy.url) as client:
        q = client.queue("q")
        job = q.enqueue({}).id
        if not is_first:
            assert q.signal(job, "approval", "another")
        fault = proxy.eat_reply(after=script("signal").sha.encode())
        assert bool(q.signal(job, "approval", "mine")) == is_first
        fault.wait(20)
        assert not q.signal(job, "approval", "a third")


def test_a_time_limit_strikes_beside_the_trip(ps: Penstock, handlers: Handlers) -> None:
    """A limit that ends while a note is on its way is raised behind it: the note is there."""
    effects: list[str] = []

    @handlers.handler(time_limit=0.2)
    def order(steps: Steps) -> None:
        def slow() -> None:
            effects.append("slow")

        ask = steps._ask

        def ask_late(*args: Any) -> Any:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:  # an exception would strike here
                pass
            effects.append("sent")
            return ask(*args)

        if len(effects) == 0:
            steps._ask = ask_late
        try:
            steps.run("slow", slow)
        except TimeLimit:
            effects.append("limit")
            raise

    q = ps.queue("q")
    q.configure(backoff_base=0.001, backoff_cap=0.001)
    order.enqueue(q)
    worker = Worker(ps, handlers=handlers)
    worker.start()
    while q.stats().acked == 0:
        time.sleep(0.01)  # the worker does not end by itself
    worker.stop()
    worker.join(20)
    assert effects == ["slow", "sent", "limit"]


def test_a_plain_function_beside_an_event_loop(real_backend: Backend, handlers: Handlers) -> None:
    """Its steps are noted in the event loop, whose threads run it."""
    effects: list[Any] = []

    @handlers.handler
    def order(steps: Steps, number: int) -> None:
        effects.append(steps.run("a", lambda: (number, threading.current_thread().name)))
        steps.run("b", str)
        if len(effects) == 2:
            raise OSError

    @handlers.handler
    async def later(steps: AsyncSteps) -> None:
        effects.append(await steps.run("a", asyncio.sleep, 0, "slept"))

    async def work() -> dict[str, int]:
        async with real_backend.async_client() as lent, AsyncPenstock(lent) as client:
            q = client.queue("q")
            await q.configure(backoff_base=0.001, backoff_cap=0.001)
            await later.enqueue(q)
            await order.enqueue(q, 7)
            worker = AsyncWorker(client, handlers=handlers, concurrency=1)
            await worker.start()
            while (await q.stats()).acked < 2:  # noqa: ASYNC110  # the worker does not end by itself
                await asyncio.sleep(0.01)
            worker.stop()
            await worker.join(20)
            return dict(worker.status().stats.counts)

    assert asyncio.run(work()) == {"retried": 1, "done": 2}
    assert effects[0] == "slept"
    assert effects[1] == effects[2]
    assert effects[1][0] == 7
    assert "thread" in effects[1][1]


def test_two_threads_at_once(ps: Penstock, handlers: Handlers) -> None:
    """A second thread takes no step while one runs."""
    errors: list[str] = []

    @handlers.handler
    def order(steps: Steps) -> None:
        def take() -> None:
            try:
                steps.run("inner", str)
            except Exception as error:  # noqa: BLE001  # its class is compared
                errors.append(type(error).__name__)

        def outer() -> None:
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()

        steps.run("outer", outer)

    order.enqueue(ps.queue("q"))
    worker = Worker(ps, handlers=handlers, burst=True)
    worker.run()
    assert counts_of(worker) == {"done": 1}
    assert errors == ["StepOverlap"]


def test_a_coroutine_function_in_a_thread(ps: Penstock, handlers: Handlers) -> None:
    """A plain handler can't await a step: its job fails, and nothing is noted."""

    async def fetch() -> None: ...

    @handlers.handler
    def order(steps: Steps) -> None:
        steps.run("a", fetch)

    q = ps.queue("q")
    q.configure(max_attempts=1)
    order.enqueue(q)
    Worker(ps, handlers=handlers, burst=True).run()
    [letter] = q.peek(state="dead")
    assert "annotate AsyncSteps" in letter.error


@pytest.mark.parametrize("servers, partitions", [(1, 3), (2, None)])
def test_a_queue_of_several_parts(
    servers: int,
    partitions: int | None,
    make_server: Callable[..., EmbeddedServer],
    handlers: Handlers,
) -> None:
    """A note or signal goes to the part that has the job: a partition, or one of several nodes."""
    effects: list[tuple[int, str]] = []

    @handlers.handler
    def order(steps: Steps, number: int) -> None:
        steps.run("a", effects.append, (number, "a"))
        steps.sleep("a moment", 0)
        assert steps.wait("go") == number
        steps.run("b", effects.append, (number, "b"))

    with Penstock([make_server().url for _ in range(servers)]) as client:
        q = client.queue("q", partitions=partitions)
        ids = order.enqueue_many(q, range(6)).ids
        worker = Worker(client, [q], handlers, burst=True)
        worker.run()
        assert counts_of(worker) == {"suspended": 12}
        assert all(q.signal(one, "go", number) for number, one in enumerate(ids))
        worker = Worker(client, [q], handlers, burst=True)
        worker.run()
    assert counts_of(worker) == {"done": 6}
    assert sorted(effects) == [(number, step) for number in range(6) for step in "ab"]
