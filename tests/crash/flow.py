"""Tasks of the child processes of `tests.crash.storm`: producers and workers with all features.

Each writes down what it is about to do, and what was done. The name of a job is unique; `do` of its
body says what its handler does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from penstock import (
    AsyncWorker,
    Dedup,
    Done,
    Handlers,
    Job,
    Penstock,
    PenstockError,
    Queue,
    Reject,
    Snooze,
    Worker,
)
from penstock.client.sockets import AsyncSocket, Socket
from tests.support.workers import Log

__all__ = ["DEEDS", "ORDERS", "TASKS", "produce", "work"]

TASKS, ORDERS = "tasks", "orders"
KEYS = 4
DEEDS = ("ok", "ok", "ok", "nap", "fail", "snooze", "reject", "then")
"""Names of the things that jobs do; a `then` job hands over to one job in each queue."""
RESULT = 600


def break_calls(out: Log) -> None:
    """Break the next call on SIGUSR1, behind its reply, or SIGUSR2, before it is sent."""
    armed: list[str] = []
    signal.signal(signal.SIGUSR1, lambda *_: armed.append("reply"))
    signal.signal(signal.SIGUSR2, lambda *_: armed.append("request"))
    trip, atrip = Socket.trip, AsyncSocket.trip

    def broken(own: Any, packed: bytes = b"") -> Any:
        kind = armed.pop() if packed and armed else ""
        reply = trip(own, packed) if kind != "request" else None
        if kind:
            own._conn.disconnect()
            out.write("struck", kind)
            raise RedisConnectionError(f"the test has lost a {kind}")
        return reply

    async def abroken(own: Any, packed: bytes = b"", **how: Any) -> Any:
        kind = armed.pop() if packed and armed else ""
        reply = await atrip(own, packed, **how) if kind != "request" else None
        if kind:
            await own._conn.disconnect(nowait=True)
            out.write("struck", kind)
            raise RedisConnectionError(f"the test has lost a {kind}")
        return reply

    patched: Any = Socket
    patched.trip = broken
    apatched: Any = AsyncSocket
    apatched.trip = abroken


class Deeds:
    """The handlers of both queues.

    Args:
        out: where they say what they do.
        queue: the queue of the jobs.
        calm: a file; when it is there, no job fails any more.
    """

    def __init__(self, out: Log, queue: Queue, calm: str) -> None:
        self._out, self._queue, self._calm = out, queue, calm
        self.handlers = Handlers()
        self.task = self.handlers.handler("task", result_ttl=RESULT)(self._task)
        self.order = self.handlers.handler("order", queue=ORDERS)(self._order)
        self.summary = self.handlers.handler("summary", result_ttl=RESULT)(self._summary)
        self.nightly = self.handlers.handler("nightly", queue=TASKS, every="1s")(self._nightly)

    def _task(self, job: Job, name: str, do: str) -> Any:
        self._begin(job, name, do)
        if do == "then":
            self._out.write("handing", name)
            then = [self.task.job(f"{name}.a", "ok")]
            key = f"then_{len(name) % KEYS}"
            then.append(self.order.options(key=key).job(f"{name}.o", "ok", key))
            return Done(name, then=then)
        return name

    def _order(self, job: Job, name: str, do: str, key: str) -> None:
        self._begin(job, name, do, key)

    def _begin(self, job: Job, name: str, do: str, key: str = "-") -> None:
        out, delivered = self._out, round(job.delivered * 1000)
        out.write("begun", name, job.id, job.deliveries, delivered, key)
        if do == "nap":
            time.sleep(random.uniform(0, 0.1))  # the work of the handler
        if not Path(self._calm).exists():
            if do == "fail" and job.attempt == 1:
                raise ValueError(name)
            if do == "snooze" and job.deliveries == 1:
                raise Snooze(0.02)
            if do == "reject":
                out.write("rejected", job.id)
                raise Reject(name)
        out.write("done", name, job.id, job.deliveries)

    def _summary(self, job: Job, name: str) -> str:
        status = self._queue.batches.get(job.id)
        if status is None:
            raise RuntimeError("the status of the batch can't be read")
        self._out.write("begun", name, job.id, job.deliveries, 0, "-")
        self._out.write("counted", job.id, status.total, status.done, status.failed, status.dead)
        self._out.write("done", name, job.id, job.deliveries)
        return name

    def _nightly(self, job: Job) -> None:
        tick = round((job.scheduled_for or 0) * 1000)
        self._out.write("tick", job.id, tick, job.deliveries)
        name = f"tick.{tick}.{job.id[-20:]}.{job.deliveries}"
        open_batch(self._out, self._queue, self, name, "finished", ["ok", "fail", "nap"])


def open_batch(out: Log, queue: Queue, deeds: Deeds, name: str, on: Any, does: list[str]) -> None:
    """Open a batch, add its jobs, and close it."""
    out.write("opening", name, on)
    with queue.batch(then=deeds.summary.options(priority=5).job(name), on=on) as batch:
        out.write("opened", name, batch.id)
        half = len(does) // 2
        names = [f"{name}.{i}" for i in range(len(does))]
        jobs = [deeds.task.job(one, do) for one, do in zip(names, does, strict=True)]
        for one in names:
            out.write("member", one, batch.id)
        for job, one in zip(jobs[:half], names, strict=False):
            added = batch.enqueue(job, key=f"k{half}")
            out.write("accepted", one, added.id)
        for added, one in zip(batch.enqueue_many(jobs[half:]), names[half:], strict=True):
            out.write("accepted", one, added.id)
    out.write("closed", name, batch.id)


def _begun(log: str) -> Log:
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    out = Log(log)
    break_calls(out)
    return out


def produce(url: str | list[str], log: str, calm: str, name: str, retry_for: float = 30) -> None:
    """Add jobs of all kinds to both queues, until killed."""
    out = _begun(log)
    client = Penstock(url, retry_for=retry_for)
    tasks, orders = client.queue(TASKS), client.queue(ORDERS)
    deeds = Deeds(out, tasks, calm)
    for serial in itertools.count():
        one = f"{name}.{serial}"
        try:
            _add(out, random.randrange(8), one, tasks, orders, deeds)
            if tasks.stats().ready > 500:
                time.sleep(0.2)  # the workers are behind: wait for them
        except (RedisError, PenstockError) as error:
            out.write("error", type(error).__name__)
        time.sleep(random.uniform(0, 0.03))  # the pace of the producer


def _add(out: Log, kind: int, name: str, tasks: Queue, orders: Queue, deeds: Deeds) -> None:
    do = random.choice(DEEDS)
    key = f"{name.split('.', 1)[0]}_{random.randrange(KEYS)}"
    if kind < 2:
        names = [f"{name}.{i}" for i in range(random.choice((1, 1, 6)))]
        jobs = [deeds.order.job(one, random.choice(DEEDS[:-1]), key) for one in names]
        _told(out, names, lambda: list(orders.enqueue_many(jobs, key=key)))
    elif kind == 2:
        does = [random.choice(DEEDS) for _ in range(random.randrange(7))]
        open_batch(out, tasks, deeds, name, random.choice(("success", "finished")), does)
    elif kind == 3:
        job = deeds.task.job(name, "ok" if do == "reject" else do)  # a dead letter frees its id
        dedup = Dedup(name, window=60)
        for _ in range(2):
            _told(out, [name], lambda: [tasks.enqueue(job, dedup=dedup, key=key)])
    elif kind == 4:
        out.write("mortal", name)
        ttl = random.choice((0.3, 60))
        _told(out, [name], lambda: [tasks.enqueue(deeds.task.job(name, do), ttl=ttl, key=key)])
    elif kind == 5:
        out.write("mortal", name)
        added = tasks.enqueue(deeds.task.job(name, do), delay=random.choice((0, 0.05)))
        out.write("accepted", name, added.id)
        tasks.cancel([added.id])
    else:
        options: dict[str, Any] = {"priority": random.choice((0, 0, 3, 9)), "key": key}
        options["delay"] = random.choice((0, 0, 0.05))
        job = deeds.task.job(name, do)
        _told(out, [name], lambda: [tasks.enqueue(job, **options)])


def _told(out: Log, names: list[str], add: Callable[[], list[Any]]) -> None:
    out.write("attempted", *names)
    for name, added in zip(names, add(), strict=True):
        if added.state != "window":  # a duplicate of a job that is done has no id
            out.write("accepted", name, added.id)


def work(url: str | list[str], log: str, calm: str, kind: str, retry_for: float = 30) -> None:
    """Work on both queues until killed."""
    out = _begun(log)
    client = Penstock(url, retry_for=retry_for)
    handlers = Deeds(out, client.queue(TASKS), calm).handlers
    if kind == "thread":
        Worker(url, [TASKS, ORDERS], handlers, concurrency=4).run()
    else:

        async def main() -> None:
            await AsyncWorker(url, [TASKS, ORDERS], handlers, concurrency=4).run()

        asyncio.run(main())
