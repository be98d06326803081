"""A client that dies at any step of a call loses, doubles and leaves nothing."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from penstock import Penstock, Queue
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import node_key, registry_key
from tests.crash.tasks import CHUNK, QUEUE, SCRIPTS, STEPS, STEPS_AFTER_RUN
from tests.support.keyspace import advance, check_invariant, drop_producers, load_scripts
from tests.support.workers import Nursery

KILLS = 50
BULK = 3 * CHUNK
LEFT_BEHIND = 5_000
"""Most bytes of the keys of an empty queue; the server's own memory varies by more."""


class Account:
    """The bodies that were attempted, and their results."""

    def __init__(self, server: EmbeddedServer, nursery: Nursery, queue: Queue) -> None:
        self.server = server
        self.nursery = nursery
        self.queue = queue
        self.living: list[str] = []  # must be in the queue
        self.taken = 0  # deliveries with a dead client or a lost reply
        self.serial = 0

    def names(self, count: int) -> list[str]:
        """Return unique bodies."""
        self.serial += count
        return [f"job {i}" for i in range(self.serial - count, self.serial)]

    def add(self, count: int) -> None:
        """Add jobs with a producer that survives."""
        bodies = self.names(count)
        self.queue.enqueue_many(body.encode() for body in bodies)
        self.living += bodies

    def kill(self, operation: str, step: str) -> None:
        """Kill one client, and record which jobs must exist then."""
        has_run = step in STEPS_AFTER_RUN
        adds = {"enqueue": 1, "enqueue_many": BULK}.get(operation, 0)
        self.add({"reserve": 1, "ack": 1, "settle": 2}.get(operation, 0))
        bodies = self.names(adds)
        child = self.nursery.start(
            "killed", url=self.server.url, operation=operation, step=step, bodies=bodies
        )
        held = child.next_event()["held"]
        if step == "sent":
            self.server.pause()
        try:
            child.send("go")
            assert child.wait() == []
        finally:
            if step == "sent":
                self.server.resume()
        assert child.killed
        self.settle_account(operation, has_run, held, bodies)

    def settle_account(
        self, operation: str, has_run: bool, held: list[str], bodies: list[str]
    ) -> None:
        """Record the effect of the call if the server ran it."""
        if operation == "enqueue":
            self.living += bodies if has_run else []
        elif operation == "enqueue_many":
            self.living += bodies[: 2 * CHUNK if has_run else CHUNK]
        elif operation == "reserve":
            self.taken += has_run
        else:
            assert len(held) == 1
            if has_run:
                self.living.remove(held[0])
            else:
                self.taken += 1
            self.taken += operation == "settle" and has_run


@pytest.fixture
def account(
    crash_server: EmbeddedServer, nursery: Nursery, client: Penstock, raw: redis.Redis
) -> Account:
    """The account of an empty queue whose jobs survive any number of crashes."""
    load_scripts(raw)
    queue = client.queue(QUEUE)
    queue.configure(max_crashes=1_000_000, max_attempts=1_000_000)
    return Account(crash_server, nursery, queue)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("operation", ["enqueue", "enqueue_many", "reserve", "ack", "settle"])
def test_a_client_is_killed(operation: str, step: str, account: Account, raw: redis.Redis) -> None:
    """Fifty clients die at this step; each one's call is done completely or not at all."""
    queue, ops = account.queue, account.queue.ops
    for _ in range(KILLS):
        account.kill(operation, step)
        check_invariant(raw)
        if operation not in SCRIPTS:
            advance(raw, ops, 31)  # leases of dead clients end
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.dead) == (len(account.living), 0, 0)
    assert drained(queue) == Counter(account.living)
    assert queue.stats().crashed == account.taken
    assert set(raw.keys()) - {ops.keys["wake"]} == {
        ops.keys["meta"],
        ops.keys["ready"],
        node_key("penstock"),
        registry_key("penstock"),
    }
    assert raw.xlen(ops.keys["ready"]) == 0
    assert drop_producers(raw, ops)  # new ones do it after 10 minutes
    assert sum(raw.memory_usage(key, samples=0) or 0 for key in raw.scan_iter()) < LEFT_BEHIND


def drained(queue: Queue) -> Counter[str]:
    """Reserve and acknowledge all jobs; count their bodies."""
    bodies: Counter[str] = Counter()
    while jobs := queue.reserve(1000, block=0):
        bodies.update(job.body.decode() for job in jobs)
        assert queue.ack(jobs)
    return bodies
