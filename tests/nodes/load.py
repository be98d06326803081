"""Producers and consumers of every kind on one service, and the results for each job.

Two queues: `called` is drained by consumers that reserve and acknowledge themselves, `worked` by
workers. What is checked at the end is that of a total queue: every job whose enqueue returned was
delivered, nothing else was, and what was acknowledged comes back only where the protocol says so.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from redis.exceptions import RedisError

from penstock import AsyncPenstock, Durable, NotReplicated, Penstock, StaleReceipt, parse_id
from penstock.worker import AsyncWorker, Worker
from tests.support.twins import wait_for

__all__ = ["QUEUES", "Load"]

QUEUES = ("called", "worked")
LEASE = 3.0
LATE = 5.0
"""Seconds from an unreplicated acknowledgement until the fault is noticed."""


class Load:
    """Producers, consumers and workers that run from construction to `drain`.

    Args:
        url: of the service.
        replicas: how many have to confirm each enqueue.
        retry_for: of all clients.
        partitions: of the queues; None = they have none.
    """

    def __init__(
        self, url: str, *, replicas: int, retry_for: float = 30, partitions: int | None = None
    ) -> None:
        self.url = url
        self._partitions = partitions
        self._replicas = replicas
        self._retry_for = retry_for
        self._serial = itertools.count()
        self._producing = True
        self._consuming = True
        self.attempted: set[int] = set()
        self.confirmed: dict[int, str] = {}
        self.refused: list[NotReplicated] = []
        self.failed: list[BaseException] = []
        self.broken: list[BaseException] = []
        self.ids: dict[str, list[str]] = defaultdict(list)
        self.delivered: dict[int, list[float]] = defaultdict(list)
        self.made: dict[int, float] = defaultdict(float)
        self.acked: dict[int, tuple[float, float]] = {}
        self.faults: list[tuple[float, float]] = []
        self._stack = ExitStack()
        self._watch()
        self._connected = self._stack.enter_context(self._client())
        for name in QUEUES:
            self._queue(self._connected, name).configure(lease=LEASE)
        for work in (self._produce, self._produce, self._consume, self._live):
            self._run(work)
        worker = Worker(self._client(), "worked", self._seen, concurrency=2)
        self._stack.enter_context(worker)

    def _watch(self) -> None:
        """Watch for a new primary, which is a fault too: a slow machine may cause one."""
        noting = _Noting(self.faults)
        logger = logging.getLogger("penstock")
        before = logger.level
        logger.addHandler(noting)
        logger.setLevel(logging.INFO)
        self._stack.callback(logger.setLevel, before)
        self._stack.callback(logger.removeHandler, noting)

    def _queue(self, ps: Any, name: str) -> Any:
        return ps.queue(name, partitions=self._partitions)

    def _client(self) -> Penstock:
        return Penstock(self.url, retry_for=self._retry_for)

    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # raised by `check`
                self.broken.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self._stack.callback(thread.join)

    # -- producers -------------------------------------------------------------------------

    def _next(self) -> tuple[str, int]:
        serial = next(self._serial)
        self.attempted.add(serial)
        return QUEUES[serial % 2], serial

    def _added(self, producer: str, serial: int, job_id: str) -> None:
        self.confirmed[serial] = job_id
        self.ids[f"{producer} {parse_id(job_id).crc}"].append(job_id)

    def _produce(self) -> None:
        producer = threading.current_thread().name
        with self._client() as ps:
            while self._producing:
                name, serial = self._next()
                try:
                    done = self._queue(ps, name).enqueue(
                        serial, durable=Durable(self._replicas, timeout=0.5)
                    )
                except (NotReplicated, RedisError) as error:
                    self._not_added(error)
                else:
                    self._added(f"{producer} {name}", serial, done.id)

    async def _aproduce(self, producer: str) -> None:
        async with AsyncPenstock(self.url, retry_for=self._retry_for) as ps:
            while self._producing:
                name, serial = self._next()
                try:
                    queue = self._queue(ps, name)
                    done = await queue.enqueue(serial, durable=Durable(self._replicas, timeout=0.5))
                except (NotReplicated, RedisError) as error:
                    self._not_added(error)
                else:
                    self._added(f"{producer} {name}", serial, done.id)

    def _not_added(self, error: NotReplicated | RedisError) -> None:
        if isinstance(error, NotReplicated):
            self.refused.append(error)
        else:
            self.failed.append(error)

    # -- consumers -------------------------------------------------------------------------

    def _seen(self, job: Any) -> None:
        self.delivered[job.body].append(time.monotonic())
        self.made[job.body] = max(self.made[job.body], job.delivered)

    def _done(self, job: Any) -> None:
        """Record the latest acknowledged delivery, as an older one may be acknowledged too."""
        _, made = self.acked.get(job.body, (0.0, 0.0))
        self.acked[job.body] = (time.monotonic(), max(made, job.delivered))

    async def _aseen(self, job: Any) -> None:
        self._seen(job)

    def _consume(self) -> None:
        with self._client() as ps:
            while self._consuming:
                for job in self._queue(ps, "called").reserve(10, block=0.5):
                    self._seen(job)
                    # A lost delivery, or one whose lease has ended, has another holder by now.
                    with suppress(StaleReceipt):
                        if job.ack():
                            self._done(job)

    async def _aconsume(self) -> None:
        async with AsyncPenstock(self.url, retry_for=self._retry_for) as ps:
            while self._consuming:
                for job in await self._queue(ps, "called").reserve(10, block=0.5):
                    self._seen(job)
                    with suppress(StaleReceipt):
                        if await job.ack():
                            self._done(job)

    def _live(self) -> None:
        asyncio.run(self._aio())

    async def _aio(self) -> None:
        """Run tasks of every kind and a worker in one event loop."""
        ps = AsyncPenstock(self.url, retry_for=self._retry_for)
        async with AsyncWorker(ps, "worked", self._aseen):
            tasks = (self._aproduce("task 1"), self._aproduce("task 2"), self._aconsume())
            await asyncio.gather(*tasks)

    # -- control of the test ---------------------------------------------------------------

    def strike(self, fault: Callable[[], Any]) -> Any:
        """Cause a fault, and record its begin and end."""
        began = time.monotonic()
        try:
            return fault()
        finally:
            self.faults.append((began, time.monotonic()))

    def wait_more(self, count: int = 200, timeout: float = 30) -> float:
        """Wait until this many more jobs are confirmed and delivered; return the seconds."""
        began, before = time.monotonic(), (len(self.confirmed), len(self.delivered))
        wait_for(lambda: len(self.confirmed) >= before[0] + count, timeout)
        wait_for(lambda: len(self.delivered) >= before[1] + count, timeout)
        return time.monotonic() - began

    def wait_delivery(self, timeout: float = 30) -> float:
        """Wait until each queue delivers a new job; return the seconds.

        The job needs no replica, as there may be too few. A replaced primary may lose it, so
        another one is added every second.
        """
        began = time.monotonic()
        for name in QUEUES:
            tried: set[int] = set()
            while not tried & self.delivered.keys():
                if time.monotonic() > began + timeout:
                    raise TimeoutError(f"{name} delivered none of {tried} in {timeout} s")
                tried.add(self._add(name))
                with suppress(TimeoutError):
                    wait_for(lambda: tried & self.delivered.keys(), 1)  # noqa: B023
        return time.monotonic() - began

    def _add(self, name: str) -> int:
        chosen = ""
        while chosen != name:
            chosen, serial = self._next()
        self._queue(self._connected, name).enqueue(serial)
        return serial

    def drain(self) -> None:
        """Stop adding jobs, and wait until none is left."""
        self._producing = False
        for name in QUEUES:
            wait_for(lambda: _left(self._queue(self._connected, name)) == 0, 60)  # noqa: B023
        self._consuming = False

    def check(self) -> dict[str, int]:
        """Check the rules of a total queue, and return counts."""
        assert not self.broken, self.broken
        seen = set(self.delivered)
        lost = self.confirmed.keys() - seen
        assert not lost, (sorted(lost), [self.confirmed[serial] for serial in lost])
        assert seen <= self.attempted
        assert not self.failed, self.failed
        self._check_order()
        again = self._again()
        return {
            "confirmed": len(self.confirmed),
            "refused": len(self.refused),
            "again": len(again),
            "recovered": len(seen - self.confirmed.keys()),
        }

    def _check_order(self) -> None:
        """Check that the ids of one producer in one queue rise, on whatever server."""
        for producer, ids in self.ids.items():
            assert ids == sorted(set(ids)), producer

    def _again(self) -> list[int]:
        """Return jobs delivered again after their acknowledgement; only faults may cause that.

        A replaced primary loses the acknowledgements of its last `LATE` seconds, and those made
        until it learns of its successor.

        The server's time of the delivery counts: a delayed consumer may come late to jobs of its
        batch whose leases have ended and which others have done.
        """
        found = []
        for serial, (acked, made) in self.acked.items():
            if self.made[serial] > made:
                near = [one for one in self.faults if one[0] - LATE <= acked <= one[1]]
                assert near, (serial, acked, self.delivered[serial], self.faults)
                found.append(serial)
        return found

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producing = self._consuming = False
        self._stack.close()


class _Noting(logging.Handler):
    """A log handler that records when a client finds another primary."""

    def __init__(self, times: list[tuple[float, float]]) -> None:
        super().__init__()
        self._times = times

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("the primary of"):
            now = time.monotonic()
            self._times.append((now, now))


def _left(queue: Any) -> int:
    stats = queue.stats()
    return stats.ready + stats.active + stats.scheduled
