"""The contenders: Streams and lists as a good engineer writes them by hand, and penstock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from penstock._sync.client import Penstock
from penstock._sync.job import Job
from penstock.bench.plan import BODY

__all__ = ["Jobs", "Lists", "Streams"]

GROUP, CONSUMER = "g", "c"


class Streams:
    """XADD, XREADGROUP, XACK + XDEL with redis-py: pipelined when there is more than one.

    No delay, retry, ttl, receipt, bound, or answer to a lost reply.

    Attributes:
        trips: round trips so far.
    """

    def __init__(self, redis: Redis, key: str) -> None:
        self.redis: Any = redis  # its replies are typed as awaitable or not
        self.key = key
        self.trips = 0
        self.redis.xgroup_create(key, GROUP, id="0", mkstream=True)

    def add(self, n: int) -> None:
        """Add n jobs in one trip."""
        self.trips += 1
        if n == 1:
            self.redis.xadd(self.key, {b"b": BODY})
            return
        pipe = self.redis.pipeline(transaction=False)
        for _ in range(n):
            pipe.xadd(self.key, {b"b": BODY})
        pipe.execute()

    def reserve(self, n: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Take up to n jobs in one trip."""
        self.trips += 1
        found = self.redis.xreadgroup(GROUP, CONSUMER, {self.key: ">"}, count=n)
        entries: list[tuple[bytes, dict[bytes, bytes]]] = found[0][1] if found else []
        return entries

    def ack(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Finish and remove jobs in one trip."""
        self.trips += 1
        ids = [entry[0] for entry in entries]
        pipe = self.redis.pipeline(transaction=False)
        pipe.xack(self.key, GROUP, *ids)
        pipe.xdel(self.key, *ids)
        pipe.execute()

    def work(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> int:
        """Look at every body, as a handler would."""
        return sum(len(fields[b"b"]) for _, fields in entries)

    def keys(self) -> list[bytes]:
        """The keys that hold its jobs."""
        return [self.key.encode()]


class Lists:
    """LPUSH, BLMOVE to a list of work in progress, LREM from it."""

    def __init__(self, redis: Redis, key: str) -> None:
        self.redis: Any = redis
        self.key = key
        self.busy = f"{key}:busy"

    def add(self) -> None:
        """Add one job."""
        self.redis.lpush(self.key, BODY)

    def fill(self, n: int) -> None:
        """Add n jobs, not measured."""
        for start in range(0, n, 1000):
            self.redis.lpush(self.key, *[BODY] * min(1000, n - start))

    def cycle(self) -> int:
        """Take one job and finish it: two trips."""
        body: bytes = self.redis.blmove(self.key, self.busy, 5, "RIGHT", "LEFT")
        self.redis.lrem(self.busy, 1, body)
        return len(body)


class Jobs:
    """The same with penstock.

    Attributes:
        trips: round trips so far.
    """

    def __init__(self, client: Penstock, name: str) -> None:
        self.queue = client.queue(name)
        self.trips = 0

    def add(self, n: int) -> None:
        """Add n jobs in one trip."""
        self.trips += 1
        if n == 1:
            self.queue.enqueue(BODY)
        else:
            self.queue.enqueue_many([BODY] * n)

    def fill(self, n: int) -> None:
        """Add n jobs, in chunks of 1,000."""
        self.queue.enqueue_many(BODY for _ in range(n))

    def reserve(self, n: int) -> list[Job]:
        """Take up to n jobs in one trip."""
        self.trips += 1
        return self.queue.reserve(n, block=0)

    def ack(self, jobs: Sequence[Job]) -> None:
        """Finish jobs in one trip."""
        self.trips += 1
        self.queue.ack(jobs)

    def settle(self, jobs: Sequence[Job], n: int) -> list[Job]:
        """Finish jobs and take up to n more in one trip."""
        self.trips += 1
        return self.queue.settle(jobs, n)[1]

    def work(self, jobs: Sequence[Job]) -> int:
        """Look at every body, as a handler would."""
        return sum(len(job.raw) for job in jobs)

    def keys(self) -> list[bytes]:
        """The keys that hold its jobs."""
        return list(self.queue.ops.keys.names.values())
