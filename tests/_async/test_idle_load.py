"""Consumers that can't take what waits: they sleep, whatever holds it back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from penstock import AsyncJob, AsyncPenstock, AsyncQueue, AsyncWorker
from penstock.client._acompat import asleep
from penstock.wire.scripts import script
from tests.support.backends import Backend
from tests.support.keyspace import load_scripts
from tests.support.twins import aspawn, await_for

State: TypeAlias = Callable[[AsyncQueue], Awaitable[object]]
JOBS = 20
"""Number of jobs that come to each queue while its consumers wait."""
WAIT_SECONDS = 2
MOST = 20
"""Most looks and waits of two consumers that begin on a queue, and sleep until its next event."""
COUNTED = {script("reserve").sha, "BLPOP"}
"""The commands by which a consumer looks for jobs and waits."""


async def add(q: AsyncQueue, key: str | None = None) -> None:
    """Add a job that is due soon, one whose lease ends soon, and some that are ready."""
    await q.enqueue("lost", lease=0.01, key=key)
    await q.enqueue_many(range(5), key=key)
    await q.enqueue("due", delay=0.01, key=key)
    assert len(await q.reserve(1, block=0)) == 1


async def held(q: AsyncQueue) -> None:
    """The queue has a hold."""
    await add(q)
    await q.hold(600)


async def key_held(q: AsyncQueue) -> None:
    """The only key has a hold."""
    await add(q, "a")
    await q.hold(600, key="a")


async def limited_key_held(q: AsyncQueue) -> None:
    """The only key has a hold, and a limit."""
    await q.configure(per_key=2)
    await key_held(q)


async def both_held(q: AsyncQueue) -> None:
    """Everything that may hold a job does."""
    await q.configure(rate="1/h", max_active=1, key_rate="1/h", per_key=1)
    await key_held(q)
    await q.hold(600)


async def paused_out(q: AsyncQueue) -> None:
    """Nothing is delivered."""
    await add(q)
    await q.pause()


async def paused_in(q: AsyncQueue) -> None:
    """Retries, due jobs and ended leases wait."""
    await q.enqueue("lost", lease=0.01)
    await q.enqueue("due", delay=0.01)
    assert len(await q.reserve(1, block=0)) == 1
    await q.pause("in")


async def paused_all(q: AsyncQueue) -> None:
    """Both."""
    await add(q)
    await q.pause("all")


def limited(*, taken: int = 1, **limit: Any) -> State:
    """Return a state in which jobs of one key take all that a limit of the queue allows."""

    async def prepare(q: AsyncQueue) -> None:
        await q.configure(**limit)
        await q.enqueue_many(range(5), key="a")
        await q.enqueue("due", delay=0.01, key="a")
        assert len(await q.reserve(9, block=0)) == taken

    return prepare


async def head_waits(q: AsyncQueue) -> None:
    """The first job of the only key of an ordered queue is retried later."""
    await q.configure(ordered=True)
    await q.enqueue_many(range(5), key="a")
    [job] = await q.reserve(9, block=0)
    await job.nack(delay=600)


STATES: dict[str, State] = {
    "held": held,
    "key-held": key_held,
    "limited-key-held": limited_key_held,
    "all-held": both_held,
    "paused-out": paused_out,
    "paused-in": paused_in,
    "paused-all": paused_all,
    "max-active": limited(max_active=1),
    "rate": limited(rate="1/h"),
    "rate-soon": limited(rate="1/3s"),
    "key-rate": limited(key_rate="1/h"),
    "key-rate-at-limit": limited(key_rate="1/h", per_key=1),
    "per-key": limited(per_key=1),
    "share-at-limit": limited(share=1, per_key=2, taken=2),
    "share-without-slot": limited(share=1, max_active=1),
    "ordered": limited(ordered=True),
    "ordered-head": head_waits,
}


@pytest.fixture
async def ps(one_server: Backend) -> AsyncIterator[AsyncPenstock]:
    """A client of one server."""
    async with one_server.async_client() as lent, AsyncPenstock(lent, owner="tester") as client:
        yield client


async def ignore(_: AsyncJob) -> None:
    """Do nothing."""


async def test_what_is_held_back_keeps_no_consumer_busy(
    one_server: Backend, ps: AsyncPenstock
) -> None:
    """A worker and a blocked `reserve` on a queue whose jobs can't be delivered look for jobs when
    they begin and at their polls; nor does a job that comes wake one of them each time.
    """
    raw = one_server.sync_client()
    load_scripts(raw)
    queues = {name: ps.queue(name) for name in STATES}
    for name, queue in queues.items():
        await STATES[name](queue)
    workers = [AsyncWorker(ps, queue, ignore) for queue in queues.values()]
    began = time.monotonic()
    with one_server.sync_client().monitor() as monitor:
        running = [aspawn(worker.run) for worker in workers]
        consumers = [aspawn(queue.reserve, 1, block=WAIT_SECONDS) for queue in queues.values()]
        await await_for(lambda: raw.info("clients")["blocked_clients"] >= len(queues))
        for number in range(JOBS):
            for name, queue in queues.items():
                if name not in {"paused-in", "paused-all"}:
                    await queue.enqueue(number, key="a")
            await asleep(WAIT_SECONDS / JOBS / 2)
        for one in consumers:
            await one.result()
        seconds = time.monotonic() - began
        for worker in workers:
            worker.stop()
        for ended in running:
            await ended.result()
        raw.echo("that is all")
        counts: Counter[str] = Counter()
        while "that is all" not in (seen := monitor.next_command())["command"]:
            command = seen["command"]
            if not COUNTED.isdisjoint(command.split(" ", 2)[:2]):
                counts[command.partition("{")[2].partition("}")[0]] += 1
    assert counts.keys() == queues.keys()
    assert {name: n for name, n in counts.items() if n > MOST + seconds} == {}
