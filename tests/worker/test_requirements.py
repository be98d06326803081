"""The worker's requirements by number: R1 to R5, R12, R13, R15.

They run real processes and a real server. The docstring of a test states its requirement.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock, Queue, StaleReceipt
from penstock.worker import AsyncWorker, Worker
from tests.support.keyspace import advance, queue_time_ms
from tests.support.workers import until
from tests.worker.support import Crew, add, runs

KINDS = ("thread", "asyncio")
BLOCKERS = (("asyncio", "block"), ("asyncio", "keep"), ("thread", "keep"))
DAY = 86_400.0
LEASE = 2.0
SLACK = 3.0
"""The second that R3, R13 and R15 allow in addition to the lease, and two for a busy machine.
A poll comes after four.
"""


def active(queue: Queue) -> int:
    """Return the number of active jobs."""
    return queue.stats().active


# -- R1 ------------------------------------------------------------------------------------------


def test_r1_a_delay_longer_than_the_lease(queue: Queue, raw: redis.Redis, worker_url: str) -> None:
    """R1: a job delayed by 24 h with a lease of 5 s, and 20 idle workers: it starts once, and on
    time.

    The queue's clock is set forward hour by hour; and by four leases when the job is done.
    """
    starts: list[Any] = []

    def note(job: Any) -> None:
        starts.append((job.body["n"], job.delivered - job.created, job.deliveries))

    workers = [Worker(worker_url, "work", note, concurrency=1) for _ in range(20)]
    queue.enqueue({"n": 1}, delay=DAY, lease=5)
    (view,) = queue.peek(state="scheduled")
    try:
        for worker in workers:
            worker.start()
        for _ in range(23):
            advance(raw, queue.ops, 3600)
            assert active(queue) == 0
        left = DAY - (queue_time_ms(raw, queue.ops) / 1000 - view.created)
        advance(raw, queue.ops, left - 2)
        until(lambda: queue.stats().acked == 1)
        advance(raw, queue.ops, 20)
        queue.enqueue({"n": 2})
        until(lambda: queue.stats().acked == 2)
    finally:
        for worker in workers:
            worker.stop()
        ended = [worker.join(20) for worker in workers]
    assert all(ended)
    (number, waited, deliveries), (other, _, _) = starts
    assert (number, deliveries, other) == (1, 1, 2)
    assert DAY <= waited < DAY + 20, "a machine that is busy may add some seconds"


# -- R3 ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_r3_an_orphan_starts_again(kind: str, crew: Crew, queue: Queue) -> None:
    """R3: the job of a killed worker starts again within lease + 1 s in an idle worker.

    The queue has no other traffic, and settings are the defaults except for the lease.
    """
    queue.configure(lease=LEASE)
    victim = crew.start(kind, concurrency=1)
    add(queue, 1, "nap", 60)
    crew.diary.wait("start")
    survivor = crew.start(kind)
    until(lambda: bool(crew.diary.events("up", pid=survivor.pid)))
    killed = victim.kill()
    again = crew.diary.wait("start", pid=survivor.pid)
    assert again["t"] - killed <= LEASE + SLACK
    assert again["attempt"] == 2


# -- R4 ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_r4_handlers_that_block_other_work(crew: Crew, queue: Queue) -> None:
    """R4: a handler that blocks the event loop, or holds the interpreter lock in slices, runs once.

    It does so for five leases, while other workers are idle. Slices of 0.1 s with a lease of 3 s
    affect a heartbeat as 1 s with the default of 30 s: it needs about six and starts at half of the
    lease.
    """
    names = [f"{kind} {do}" for kind, do in BLOCKERS]
    for name, (kind, do) in zip(names, BLOCKERS, strict=True):
        busy = crew.start(kind, queues=[name], concurrency=1)
        with Penstock(crew.url) as client:
            job = {"n": name, "do": do, "s": 15.0, "slice": 0.1}
            client.queue(name).enqueue(job, lease=3.0)
        crew.diary.wait("start", pid=busy.pid)
    idle = crew.start("thread", queues=names)
    crew.diary.wait("end", len(names))
    assert crew.diary.events("start", pid=idle.pid) == []
    found = runs(crew.diary.events())
    assert {n: len(one) for n, one in found.items()} == dict.fromkeys(names, 1)
    assert not any(one["lost"] for one in crew.diary.events("end"))


@pytest.mark.slow
async def test_r4_a_finished_job_behind_a_blocked_loop(crew: Crew, queue: Queue) -> None:
    """R4: a job whose handler returned but is not yet reported is not delivered to others.

    Another handler blocks the event loop from that moment on, for five leases.
    """
    begun, go, blocking, returning = (asyncio.Event() for _ in range(4))
    ran: list[int] = []

    async def handle(job: Any) -> None:
        ran.append(job.body["n"])
        if len(ran) == 2:
            begun.set()
        await go.wait()
        if job.body["n"] == 0:
            await blocking.wait()
            returning.set()
        else:
            blocking.set()
            await returning.wait()
            time.sleep(5 * 1.0)  # noqa: ASYNC251  # on purpose

    queue.configure(lease=1.0)
    async with AsyncWorker(crew.url, "work", handle, concurrency=2, max_jobs=2) as worker:
        add(queue, 2)
        await asyncio.wait_for(begun.wait(), 20)
        idle = crew.start("thread")
        go.set()
        await worker.join(20)
    assert sorted(ran) == [0, 1]
    assert crew.diary.events("start", pid=idle.pid) == []
    assert queue.stats().acked == 2


# -- R5 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "bury", "extend"])
def test_r5_a_late_report_changes_nothing(verb: str, queue: Queue, worker_url: str) -> None:
    """R5: a report of a former holder raises StaleReceipt with both receipts, and changes nothing.

    Receipts of one job only grow.
    """
    told: list[Any] = []
    may_end = threading.Event()

    def handle(job: Any) -> None:
        told.append(job)
        may_end.wait(20)

    queue.enqueue({"n": 1}, lease=0.1)
    (former,) = queue.reserve(1)
    with Worker(worker_url, "work", handle):
        until(lambda: bool(told))
        with pytest.raises(StaleReceipt) as caught:
            getattr(former, verb)()
        (view,) = queue.peek(state="active")
        assert (view.id, view.deliveries, view.nacks) == (former.id, 2, 0)
        may_end.set()
    assert caught.value.job_id == former.id
    assert (caught.value.receipt, caught.value.current) == (former.receipt, told[0].receipt)
    assert delivery_number(told[0].receipt) > delivery_number(former.receipt)
    stats = queue.stats()
    assert (stats.acked, stats.active, stats.ready, stats.dead) == (1, 0, 0, 0)


def delivery_number(receipt: str) -> int:
    """Return the part of a receipt that grows."""
    return int(receipt.partition("-")[0])


# -- R12 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_r12_leases_are_bounded(
    kind: str, prefetch: int, crew: Crew, queue: Queue, raw: redis.Redis, tmp_path: Path
) -> None:
    """R12: leases never exceed concurrency plus prefetch.

    This is checked all the time on two queues; delayed jobs are never leased. The last jobs wait
    until the worker was seen to hold as many as it may run.
    """
    concurrency, jobs, gate = 2, 400, tmp_path / "gate"
    with Penstock(crew.url) as client:
        queues = [client.queue("work"), client.queue("more")]
        for one in queues:
            add(one, jobs // 2 - 1, "nap", 0.002)
            one.enqueue({"n": jobs, "do": "gate", "for": str(gate)})
            one.enqueue_many(({"n": n, "do": "nap", "s": 0.0} for n in range(20)), delay=60)
        names = [one.ops.keys["active"] for one in queues]
        crew.start(kind, queues=["work", "more"], concurrency=concurrency, prefetch=prefetch)
        most = 0
        while sum(one.stats().acked for one in queues) < jobs:
            for _ in range(50):
                with raw.pipeline() as pipe:
                    for name in names:
                        pipe.zcard(name)
                    most = max(most, sum(pipe.execute()))
            if most >= concurrency:
                gate.touch()
        assert [one.stats().scheduled for one in queues] == [20, 20]
    assert most <= concurrency + prefetch


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_r12_prefetched_jobs_keep_their_lease(kind: str, crew: Crew, queue: Queue) -> None:
    """R12: a prefetched job that waits for two leases is not delivered to others."""
    queue.configure(lease=3.0)
    busy = crew.start(kind, concurrency=1, prefetch=2)
    queue.enqueue_many([{"n": 0, "do": "nap", "s": 6.5}] + [{"n": n, "do": "no"} for n in (1, 2)])
    crew.diary.wait("start", n=0)
    until(lambda: queue.stats().active == 3)
    crew.start(kind)
    crew.diary.wait("end", 3)
    assert {one["pid"] for one in crew.diary.events("start")} == {busy.pid}
    assert [one["attempt"] for one in crew.diary.events("start")] == [1, 1, 1]


# -- R13 -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "asyncio", "mixed"])
def test_r13_a_deploy(kind: str, crew: Crew, queue: Queue, tmp_path: Path) -> None:
    """R13: at SIGTERM short handlers finish; other jobs are released and start elsewhere within 1
    s.

    Released jobs are charged no attempt, no more jobs are reserved, and the exit code is 0.
    """
    grace, gate = 5.0, tmp_path / "gate"
    old = crew.start(kind, concurrency=3, prefetch=2, grace=grace)
    queue.enqueue({"n": 0, "do": "gate", "for": str(gate)})
    queue.enqueue_many({"n": n, "do": "nap", "s": 60.0} for n in (1, 2))
    queue.enqueue_many({"n": n, "do": "no"} for n in (3, 4))
    crew.diary.wait("start", 3)
    until(lambda: queue.stats().active == 5)
    new = crew.start(kind, concurrency=10)
    told = old.signal(signal.SIGTERM)
    for n in (3, 4):
        assert crew.diary.wait("start", n=n, pid=new.pid)["t"] < told + SLACK
    gate.touch()
    queue.enqueue({"n": 5, "do": "no"})
    for n in (1, 2):
        assert crew.diary.wait("start", n=n, pid=new.pid)["t"] < told + grace + SLACK
    assert old.ended() == 0
    assert crew.diary.wait("end", n=0)["pid"] == old.pid
    assert crew.diary.wait("start", n=5)["pid"] == new.pid
    assert {one["attempt"] for one in crew.diary.events("start")} == {1}


@pytest.mark.parametrize("kind", ["thread", "asyncio", "mixed"])
def test_r13_a_second_signal(kind: str, crew: Crew, queue: Queue) -> None:
    """R13: at the second SIGTERM all jobs are released at once, whatever the grace."""
    old = crew.start(kind, concurrency=2, prefetch=1)
    add(queue, 3, "nap", 60)
    crew.diary.wait("start", 2)
    new = crew.start(kind)
    told = old.signal(signal.SIGTERM)
    crew.diary.wait("start", 1, pid=new.pid)
    assert queue.stats().active == 3
    again = old.signal(signal.SIGTERM)
    assert crew.diary.wait("start", 3, pid=new.pid)["t"] < again + SLACK
    assert old.ended() == 0
    assert told < again
    assert {one["attempt"] for one in crew.diary.events("start")} == {1}


# -- R15 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_r15_the_id_of_a_killed_workers_job(
    kind: str, crew: Crew, queue: Queue, tmp_path: Path
) -> None:
    """R15: within lease + 1 s of a kill the dedup id's job runs in another worker; then the id is
    free.

    Until then it names the killed worker's job.
    """
    queue.configure(lease=LEASE)
    gate = tmp_path / "gate"
    victim = crew.start(kind)
    first = queue.enqueue({"n": 1, "do": "gate", "for": str(gate)}, dedup_id="one")
    crew.diary.wait("start")
    survivor = crew.start(kind)
    killed = victim.kill()
    assert queue.enqueue({"n": 2, "do": "no"}, dedup_id="one").duplicate
    again = crew.diary.wait("start", pid=survivor.pid)
    refused = queue.enqueue({"n": 2, "do": "no"}, dedup_id="one")
    assert (refused.duplicate, refused.id, refused.state) == (True, first.id, "active")
    gate.touch()
    until(lambda: not queue.enqueue({"n": 2, "do": "no"}, dedup_id="one").duplicate)
    crew.diary.wait("end", n=2)
    assert len(crew.diary.events("end", n=1)) == 1
    assert again["t"] < killed + LEASE + SLACK
