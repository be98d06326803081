# From tests/_async/test_fair.py by tools/unasync.py; do not edit.
"""Tenants with keys of their own share a queue fairly."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from penstock import Dedup, Job, Penstock, Queue, Worker
from penstock.client._acompat import sleep
from tests.support.keyspace import Raw, advance
from tests.support.twins import wait_for

SLOTS = 8
ROUND = 20
"""Most deliveries before the job of a new tenant: the jobs of the others that have a ticket, twice,
and a few of them in the millisecond of its enqueue."""
LIMITS: Any = [({"per_key": 2}, 4), ({"ordered": True}, 10)]

BROKE_A_DRAFT = [21, 29, 34, 49, 75, 99, 118]
"""Seeds that broke the order: with each fourth job a due one, whatever its number, and where only a
job that is due since its creation passes its ticket on."""


def fill(q: Queue, tenants: int) -> list[Job]:
    """Add 50 jobs of each tenant, and take as many as there are slots."""
    for tenant in range(tenants):
        q.enqueue_many([f"{tenant} {i}" for i in range(50)], key=f"tenant {tenant}")
    return q.reserve(SLOTS, block=0)


@pytest.mark.parametrize("limit, tenants", LIMITS)
def test_a_small_tenant_beside_busy_ones(q: Queue, limit: Any, tenants: int) -> None:
    """The only job of a tenant that comes later runs within a round, not behind all others."""
    q.configure(**limit)
    held, ran = fill(q, tenants), list[Any]()
    q.enqueue("small", key="small")
    while "small" not in ran:
        job = held.pop(0)
        ran.append(job.body)
        job.ack()
        held += q.reserve(SLOTS - len(held), block=0)
    assert len(ran) <= ROUND


@pytest.mark.parametrize("end", ["nack", "release"])
@pytest.mark.parametrize("limit, tenants", LIMITS)
def test_a_small_tenant_beside_those_that_fail(
    q: Queue, limit: Any, tenants: int, end: str
) -> None:
    """A job that is put back at once comes behind those that wait, not before all of them."""
    q.configure(**limit)
    held, ran = fill(q, tenants), list[Any]()
    q.enqueue("small", key="small")
    while "small" not in ran and len(ran) < 2 * ROUND:
        job = held.pop(0)
        ran.append(job.body)
        getattr(job, end)(delay=0)
        held += q.reserve(SLOTS - len(held), block=0)
    assert len(ran) <= ROUND


def test_a_tenant_beside_a_backlog_without_keys(q: Queue) -> None:
    """Each fourth job is the first due one: a follow-up does not wait for the whole backlog."""
    q.configure(per_key=2)
    q.enqueue_many(["plain"] * 200)
    q.enqueue_many([f"{i}" for i in range(10)], key="tenant")
    q.enqueue_many(["plain"] * 200)
    held, places = list[Job](), list[int]()
    for place in range(400):
        held += q.reserve(SLOTS - len(held), block=0)
        job = held.pop(0)
        if job.body != "plain":
            places.append(place)
        job.ack()
        q.enqueue("plain")
    assert len(places) == 10
    assert places[-1] - places[1] <= 60


def test_a_job_that_was_not_begun_keeps_its_place(ps: Penstock, q: Queue) -> None:
    """A worker that stops gives it back: it comes before younger jobs, as it had no turn."""
    q.configure(per_key=1)
    q.enqueue_many(["begun", "held", "later"], key=str)
    began, gate = list[str](), list[bool]()

    def handler(job: Job) -> None:
        began.append(job.body)
        while not gate:
            sleep(0.005)

    worker = Worker(ps, "q", handler, concurrency=1, prefetch=1)
    worker.start()
    wait_for(lambda: worker.status().held == 2 and bool(began))
    worker.stop()
    wait_for(lambda: worker.status().held == 1)
    assert [job.body for job in q.reserve(2, block=0)] == ["held", "later"]
    gate.append(True)
    assert worker.join(20)


@pytest.mark.parametrize("seed", [1, 2, *BROKE_A_DRAFT])
def test_the_order_of_keys(q: Queue, raw: Raw, seed: int) -> None:
    """On an ordered queue one job of a key runs at a time, and the first deliveries are in order,
    whatever ends, comes back or comes in addition; also jobs from before the setting.
    """
    dice = random.Random(seed)
    program = Program(q, raw, dice)
    for _ in range(dice.choice([0, 10])):
        program.enqueue()
    q.configure(ordered=True, lease=3600)
    for _ in range(80):
        program.step()
    program.finish()


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

    def __init__(self, q: Queue, raw: Raw, dice: random.Random) -> None:
        self.q, self.raw, self.dice = q, raw, dice
        self.held: list[Job] = []
        self.begun: defaultdict[str, list[str]] = defaultdict(list)
        self.waiting: defaultdict[str, set[str]] = defaultdict(set)
        self.names = 0

    def enqueue(self) -> None:
        """Add a few jobs; some without a key, some with a dedup id."""
        key = self.dice.choice(["a", "a", "b", "", "", ""])
        for _ in range(self.dice.choice([1, 1, 3])):
            self.names += 1
            options: Any = {"key": key} if key else {}
            if self.dice.random() < 0.3:
                options["dedup"] = Dedup(f"{self.names}")
            added = self.q.enqueue(key, **options)
            self.waiting[key].add(added.id)

    def reserve(self) -> None:
        """Take jobs; each comes before those of its key that have a higher number."""
        for job in self.q.reserve(self.dice.randint(1, 3), block=0):
            key = job.body
            if key:
                assert key not in [one.body for one in self.held]
                if job.id in self.waiting[key]:
                    assert job.id == min(self.waiting[key])
            self.waiting[key].discard(job.id)
            self.held.append(job)

    def step(self) -> None:
        """Make one of the calls."""
        draw = self.dice.random()
        if draw < 0.25:
            self.enqueue()
        elif draw < 0.6 or not self.held:
            self.reserve()
        elif draw < 0.63:
            advance(self.raw, self.q.ops, 5)
            self.q.redrive()
        else:
            self.end(self.held.pop(self.dice.randrange(len(self.held))))

    def end(self, job: Job) -> None:
        """End a delivery."""
        draw = self.dice.random()
        if draw < 0.6:
            job.ack()
        elif draw < 0.7:
            job.nack(delay=0)
        elif draw < 0.8:
            job.nack(delay=4)
        elif draw < 0.9:
            job.release()
        else:
            job.bury("no use")

    def finish(self) -> None:
        """Finish all jobs: none is left behind."""
        for _ in range(300):
            for job in self.held:
                job.ack()
            self.held = []
            self.reserve()
            if not self.held:
                advance(self.raw, self.q.ops, 5)
                self.reserve()
            if not self.held:
                break
        stats = self.q.stats()
        assert (stats.ready, stats.scheduled, stats.active, stats.parked) == (0, 0, 0, 0)
