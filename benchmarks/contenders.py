"""The contenders: Streams and lists as a good engineer writes them by hand, and penstock."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from redis import Redis

from benchmarks.plan import BODY
from penstock.client._sync.client import Penstock
from penstock.client._sync.queue import Job
from penstock.core.calls.call import Call
from penstock.core.jobs.job import set_result
from penstock.core.jobs.results import results_of

__all__ = [
    "Ids",
    "Jobs",
    "KeptJobs",
    "KeyedJobs",
    "Lists",
    "NamedJobs",
    "PipelinedJobs",
    "PipelinedStreams",
    "Streams",
]

GROUP, CONSUMER = "g", "c"
NAME = "order-{:010d}"
"""A dedup id."""
VALUE = b'{"sent":3}'
"""A result."""
NUMBER = "1700000000000-{:010d}"
"""A job number, as long as a true one."""


class Streams:
    """XADD, XREADGROUP, XACK + XDEL with redis-py, pipelined for several jobs.

    No delay, retry, ttl, receipt, bound, or answer to a lost reply.

    Args:
        redis: what sends.
        key: of the stream.
        made: whether it is there already, with its group.

    Attributes:
        trips: round trips so far.
    """

    def __init__(self, redis: Redis, key: str, *, made: bool = False) -> None:
        self.redis: Any = redis  # its replies are typed as awaitable or not
        self.key = key
        self.trips = 0
        if not made:
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
        """Read every body, as a handler would."""
        return sum(len(fields[b"b"]) for _, fields in entries)

    def keys(self) -> list[bytes]:
        """Return the keys of its jobs."""
        return [self.key.encode()]


class PipelinedStreams(Streams):
    """Streams with one command for each job, and one pipeline for all jobs of a call."""

    def reserve(self, n: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Take up to n jobs in one trip."""
        self.trips += 1
        pipe = self.redis.pipeline(transaction=False)
        for _ in range(n):
            pipe.xreadgroup(GROUP, CONSUMER, {self.key: ">"}, count=1)
        return [found[0][1][0] for found in pipe.execute() if found]

    def ack(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Finish and remove jobs in one trip."""
        self.trips += 1
        pipe = self.redis.pipeline(transaction=False)
        for entry in entries:
            pipe.xack(self.key, GROUP, entry[0])
            pipe.xdel(self.key, entry[0])
        pipe.execute()


class Lists:
    """LPUSH, BLMOVE to a list of jobs in progress, LREM from it."""

    def __init__(self, redis: Redis, key: str) -> None:
        self.redis: Any = redis
        self.key = key
        self.busy = f"{key}:busy"

    def add(self) -> None:
        """Add one job."""
        self.redis.lpush(self.key, BODY)

    def fill(self, n: int) -> None:
        """Add n jobs outside the measurement."""
        for start in range(0, n, 1000):
            self.redis.lpush(self.key, *[BODY] * min(1000, n - start))

    def cycle(self) -> int:
        """Reserve one job and finish it: two trips."""
        body: bytes = self.redis.blmove(self.key, self.busy, 5, "RIGHT", "LEFT")
        self.redis.lrem(self.busy, 1, body)
        return len(body)


class Jobs:
    """Operations with penstock.

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
        """Finish jobs and reserve up to n more in one trip."""
        self.trips += 1
        return self.queue.ack_and_reserve(jobs, n)[1]

    def work(self, jobs: Sequence[Job]) -> int:
        """Read every body, as a handler would."""
        return sum(len(job.raw) for job in jobs)

    def keys(self) -> list[bytes]:
        """Return the keys of its jobs."""
        return list(self.queue.ops.keys.names.values())


class KeptJobs(Jobs):
    """Penstock with jobs whose results are kept; a small value goes with each ack.

    A few results are kept at most, so that each ack also removes as many as it keeps.
    """

    def __init__(self, client: Penstock, name: str) -> None:
        super().__init__(client, name)
        self.executor = client.topology.executor
        self.queue.configure(results_max=100)

    def add(self, n: int) -> None:
        """Add n jobs in one trip."""
        self.trips += 1
        self.queue.enqueue_many([BODY] * n, result_ttl=3600)

    def ack(self, jobs: Sequence[Job]) -> None:
        """Finish jobs in one trip, each with its value."""
        self.trips += 1
        for job in jobs:
            set_result(job, (VALUE, ""))
        results = results_of(jobs, [0.001] * len(jobs))
        self.executor.run(self.queue.ops.ack(jobs, results=results))


class NamedJobs(Jobs):
    """Penstock with a different dedup id for each job."""

    def __init__(self, client: Penstock, name: str) -> None:
        super().__init__(client, name)
        self.ids = map(NAME.format, itertools.count())

    def add(self, n: int) -> None:
        """Add n jobs in one trip."""
        self.trips += 1
        if n == 1:
            self.queue.enqueue(BODY, dedup_id=next(self.ids))
        else:
            self.queue.enqueue_many([BODY] * n, dedup_id=self._next)

    def fill(self, n: int) -> None:
        """Add n jobs, in chunks of 1,000."""
        self.queue.enqueue_many((BODY for _ in range(n)), dedup_id=self._next)

    def _next(self, _: bytes) -> str:
        return next(self.ids)


class KeyedJobs(Jobs):
    """Penstock on a queue with a limit per key, with a different key for each job."""

    def __init__(self, client: Penstock, name: str, keys: Iterator[str] | None = None) -> None:
        super().__init__(client, name)
        self.queue.configure(per_key=1)
        self.of_jobs = map("customer:{}".format, itertools.count()) if keys is None else keys

    def add(self, n: int) -> None:
        """Add n jobs in one trip."""
        self.trips += 1
        self.queue.enqueue_many([BODY] * n, key=self._next)

    def fill(self, n: int) -> None:
        """Add n jobs, in chunks of 1,000."""
        self.queue.enqueue_many((BODY for _ in range(n)), key=self._next)

    def _next(self, _: bytes) -> str:
        return next(self.of_jobs)


class Ids:
    """Handwritten ids: a hash with the id of each job and the job's number."""

    def __init__(self, redis: Redis, key: str) -> None:
        self.redis: Any = redis
        self.key = key
        self.held = 0

    def add(self, n: int) -> None:
        """Add n ids in one trip."""
        entries = range(self.held, self.held + n)
        self.redis.hset(self.key, mapping={NAME.format(i): NUMBER.format(i) for i in entries})
        self.held += n

    def keys(self) -> list[bytes]:
        """Return the key of the hash."""
        return [self.key.encode()]


class PipelinedJobs(Jobs):
    """Penstock with one script for each job, and one pipeline for all jobs of a call.

    The client itself sends one call a trip; these are the scripts, as another client might send
    them.

    Args:
        client: for the queue, and the scripts it loads.
        name: the queue's.
        redis: whose connection carries the pipelines.
    """

    def __init__(self, client: Penstock, name: str, redis: Redis) -> None:
        super().__init__(client, name)
        self.redis: Any = redis
        self.ops = self.queue.ops
        self.node = client.hello().node[:8]
        self.calls = 0
        self.producer = secrets.token_hex(8)
        self.queue.enqueue(BODY)
        self.queue.ack(self.queue.reserve(1, block=0))

    def add(self, n: int) -> None:
        """Add n jobs in one trip."""
        self._run([self.ops.enqueue((b"1\n" + BODY,)) for _ in range(n)])

    def reserve(self, n: int) -> list[Job]:
        """Take up to n jobs in one trip."""
        taken = self._run([self.ops.reserve(1) for _ in range(n)])
        return [job for found in taken for job in found.deliveries]

    def ack(self, jobs: Sequence[Job]) -> None:
        """Finish jobs in one trip."""
        self._run([self.ops.ack([job]) for job in jobs])

    def _run(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self.trips += 1
        pipe = self.redis.pipeline(transaction=False)
        for call in calls:
            self.calls += 1
            producer = () if call.adds_to is None else (self.producer,)
            pipe.execute_command(
                "EVALSHA", call.script.sha, *call.head, self.calls, *producer, *call.sent_args
            )
        replies: list[list[Any]] = pipe.execute()
        return [call.parse(reply) for call, reply in zip(calls, replies, strict=True)]
