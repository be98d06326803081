"""Tenants with keys of their own share a queue fairly."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from penstock import AsyncJob, AsyncPenstock, AsyncQueue, AsyncWorker, Dedup
from penstock.client._acompat import asleep
from tests.support.keyspace import Raw, advance
from tests.support.twins import await_for

SLOTS = 8
ROUND = 20
"""Most deliveries before the job of a new tenant: the jobs of the others that have a ticket, twice,
and a few of them in the millisecond of its enqueue."""
LIMITS: Any = [({"per_key": 2}, 4), ({"ordered": True}, 10)]

BROKE_A_DRAFT = [21, 29, 34, 49, 75, 99, 118]
"""Seeds that broke the order: with each fourth job a due one, whatever its number, and where only a
job that is due since its creation passes its ticket on."""


async def fill(q: AsyncQueue, tenants: int) -> list[AsyncJob]:
    """Add 50 jobs of each tenant, and take as many as there are slots."""
    for tenant in range(tenants):
        await q.enqueue_many([f"{tenant} {i}" for i in range(50)], key=f"tenant {tenant}")
    return await q.reserve(SLOTS, block=0)


@pytest.mark.parametrize("limit, tenants", LIMITS)
async def test_a_small_tenant_beside_busy_ones(q: AsyncQueue, limit: Any, tenants: int) -> None:
    """The only job of a tenant that comes later runs within a round, not behind all others."""
    await q.configure(**limit)
    held, ran = await fill(q, tenants), list[Any]()
    await q.enqueue("small", key="small")
    while "small" not in ran:
        job = held.pop(0)
        ran.append(job.body)
        await job.ack()
        held += await q.reserve(SLOTS - len(held), block=0)
    assert len(ran) <= ROUND


@pytest.mark.parametrize("end", ["nack", "release"])
@pytest.mark.parametrize("limit, tenants", LIMITS)
async def test_a_small_tenant_beside_those_that_fail(
    q: AsyncQueue, limit: Any, tenants: int, end: str
) -> None:
    """A job that is put back at once comes behind those that wait, not before all of them."""
    await q.configure(**limit)
    held, ran = await fill(q, tenants), list[Any]()
    await q.enqueue("small", key="small")
    while "small" not in ran and len(ran) < 2 * ROUND:
        job = held.pop(0)
        ran.append(job.body)
        await getattr(job, end)(delay=0)
        held += await q.reserve(SLOTS - len(held), block=0)
    assert len(ran) <= ROUND


async def test_a_tenant_beside_a_backlog_without_keys(q: AsyncQueue) -> None:
    """Each fourth job is the first due one: a follow-up does not wait for the whole backlog."""
    await q.configure(per_key=2)
    await q.enqueue_many(["plain"] * 200)
    await q.enqueue_many([f"{i}" for i in range(10)], key="tenant")
    await q.enqueue_many(["plain"] * 200)
    held, places = list[AsyncJob](), list[int]()
    for place in range(400):
        held += await q.reserve(SLOTS - len(held), block=0)
        job = held.pop(0)
        if job.body != "plain":
            places.append(place)
        await job.ack()
        await q.enqueue("plain")
    assert len(places) == 10
    assert places[-1] - places[1] <= 60


async def test_a_job_that_was_not_begun_keeps_its_place(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A worker that stops gives it back: it comes before younger jobs, as it had no turn."""
    await q.configure(per_key=1)
    await q.enqueue_many(["begun", "held", "later"], key=str)
    began, gate = list[str](), list[bool]()

    async def handler(job: AsyncJob) -> None:
        began.append(job.body)
        while not gate:
            await asleep(0.005)

    worker = AsyncWorker(ps, "q", handler, concurrency=1, prefetch=1)
    await worker.start()
    await await_for(lambda: worker.status().held == 2 and bool(began))
    worker.stop()
    await await_for(lambda: worker.status().held == 1)
    assert [job.body for job in await q.reserve(2, block=0)] == ["held", "later"]
    gate.append(True)
    assert await worker.join(20)


@pytest.mark.parametrize("seed", [1, 2, *BROKE_A_DRAFT])
async def test_the_order_of_keys(q: AsyncQueue, raw: Raw, seed: int) -> None:
    """On an ordered queue one job of a key runs at a time, and the first deliveries are in order,
    whatever ends, comes back or comes in addition; also jobs from before the setting.
    """
    dice = random.Random(seed)
    program = Program(q, raw, dice)
    for _ in range(dice.choice([0, 10])):
        await program.enqueue()
    await q.configure(ordered=True, lease=3600)
    for _ in range(80):
        await program.step()
    await program.finish()


class Program:
    """Random calls on an ordered queue, and what they have delivered.

    Args:
        q, raw: the queue, and a client of its server.
        dice: draws the calls.

    Attributes:
        held: the jobs that are delivered.
        begun: numbers of the jobs of each key that were delivered, in order.
        late: ids of jobs that have lost their place: they were delayed, or dead.
    """

    def __init__(self, q: AsyncQueue, raw: Raw, dice: random.Random) -> None:
        self.q, self.raw, self.dice = q, raw, dice
        self.held: list[AsyncJob] = []
        self.begun: defaultdict[str, list[str]] = defaultdict(list)
        self.waiting: defaultdict[str, set[str]] = defaultdict(set)
        self.names = 0

    async def enqueue(self) -> None:
        """Add a few jobs; some without a key, some with a dedup id."""
        key = self.dice.choice(["a", "a", "b", "", "", ""])
        for _ in range(self.dice.choice([1, 1, 3])):
            self.names += 1
            options: Any = {"key": key} if key else {}
            if self.dice.random() < 0.3:
                options["dedup"] = Dedup(f"{self.names}")
            added = await self.q.enqueue(key, **options)
            self.waiting[key].add(added.id)

    async def reserve(self) -> None:
        """Take jobs; each comes before those of its key that have a higher number."""
        for job in await self.q.reserve(self.dice.randint(1, 3), block=0):
            key = job.body
            if key:
                assert key not in [one.body for one in self.held]
                if job.id in self.waiting[key]:
                    assert job.id == min(self.waiting[key])
            self.waiting[key].discard(job.id)
            self.held.append(job)

    async def step(self) -> None:
        """Make one of the calls."""
        draw = self.dice.random()
        if draw < 0.25:
            await self.enqueue()
        elif draw < 0.6 or not self.held:
            await self.reserve()
        elif draw < 0.63:
            advance(self.raw, self.q.ops, 5)
            await self.q.redrive()
        else:
            await self.end(self.held.pop(self.dice.randrange(len(self.held))))

    async def end(self, job: AsyncJob) -> None:
        """End a delivery."""
        draw = self.dice.random()
        if draw < 0.6:
            await job.ack()
        elif draw < 0.7:
            await job.nack(delay=0)
        elif draw < 0.8:
            await job.nack(delay=4)
        elif draw < 0.9:
            await job.release()
        else:
            await job.bury("no use")

    async def finish(self) -> None:
        """Finish all jobs: none is left behind."""
        for _ in range(300):
            for job in self.held:
                await job.ack()
            self.held = []
            await self.reserve()
            if not self.held:
                advance(self.raw, self.q.ops, 5)
                await self.reserve()
            if not self.held:
                break
        stats = await self.q.stats()
        assert (stats.ready, stats.scheduled, stats.active, stats.parked) == (0, 0, 0, 0)
