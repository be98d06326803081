"""One job a call: the cost of an enqueue in units of redis-py's LPUSH."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis.asyncio import Redis as AsyncRedis

from benchmarks.bed import Bed
from benchmarks.contenders import Lists, Streams
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.plan import BODY, Plan
from penstock.client._async.client import AsyncPenstock
from penstock.worker.handlers import Handlers

__all__ = ["single"]

TEXT = BODY.decode()
TURN = 200
"""Calls of a contender until it is the turn of the next, so that all see the same machine."""
CONCURRENT = 100
Work = Callable[[int], None]
"""Adds this many jobs."""

LPUSH, ASYNC_LPUSH, GATHERED = "LPUSH", "await LPUSH", "100 at once: LPUSH"
XADD = "XADD pipelined by 100"
SERVER, BYTES = "server us CPU/job", "bytes to Redis/job"
PAIRS: dict[str, tuple[str, float | None]] = {
    "enqueue(bytes)": (LPUSH, 1.0),
    "enqueue(text)": (LPUSH, None),
    "handler.enqueue(queue, text)": (LPUSH, 0.85),
    "await enqueue(bytes)": (ASYNC_LPUSH, 0.9),
    "await handler.enqueue(queue, text)": (ASYNC_LPUSH, None),
    "100 at once: enqueue(bytes)": (GATHERED, None),
    "handler bodies, enqueue_many by 100": (XADD, 1.0),
}
"""Each call with its base, and the smallest ratio of their jobs/s that is accepted."""
SERVER_BUDGET, BYTES_BUDGET = 1.7, 350.0

handlers = Handlers()


@handlers.handler("welcome")
def welcome(text: str) -> None:
    """Do nothing: it is only enqueued."""


def single(bed: Bed, plan: Plan) -> Table:
    """Measure jobs/s, CPU and bytes of one call for each job."""
    table = Table(
        "single",
        "One job a call",
        (
            "penstock", "base", "figure", "penstock jobs/s", "base jobs/s", "x base",
            "penstock client us", "base client us", SERVER, f"base {SERVER}", BYTES,
        ),
        f"100-byte bodies; {TURN} calls of one, then of the next, and so on. The row `{SERVER}` has"
        " the ratio of the server's CPU.",
    )  # fmt: skip
    with _contenders(bed) as contenders:
        for work in contenders.values():
            work(TURN)  # loads scripts and fills caches
        sent = {name: _bytes(bed, work) for name, work in contenders.items()}
        turns = max(plan.single // TURN, 1)
        rounds = [_round(bed, contenders, turns) for _ in range(plan.rounds)]
    for name, (against, least) in PAIRS.items():
        ours, base = [r[name] for r in rounds], [r[against] for r in rounds]
        ratio = pairwise([s.rate for s in ours], [s.rate for s in base])
        budget = None
        if least is not None:
            budget = Budget(f"{name}, x {against}", ratio, least, least=True)
        _add(table, name, against, "jobs/s", ours, base, ratio, sent[name], budget)
        if name == "enqueue(bytes)":
            ratio = pairwise([s.server_us for s in ours], [s.server_us for s in base])
            budget = Budget(f"server CPU of {name}, x {against}", ratio, SERVER_BUDGET)
            _add(table, name, against, SERVER, ours, base, ratio, sent[name], budget)
            size = sent[name]
            budget = Budget(f"bytes to Redis of {name}", size, BYTES_BUDGET, unit="bytes")
            _add(table, name, against, BYTES, ours, base, size / sent[against], size, budget)
        table.rounds[f"{name} jobs/s"] = [s.rate for s in ours]
        table.rounds[f"{against}, beside {name}, jobs/s"] = [s.rate for s in base]
    return table


def _add(
    table: Table, name: str, against: str, figure: str, ours: list[Sample], base: list[Sample],
    ratio: float, sent: float, budget: Budget | None,
) -> None:  # fmt: skip
    table.add(
        name,
        against,
        figure,
        median(s.rate for s in ours),
        median(s.rate for s in base),
        ratio,
        median(s.client_us for s in ours),
        median(s.client_us for s in base),
        median(s.server_us for s in ours),
        median(s.server_us for s in base),
        sent,
        budget=budget,
    )


def _round(bed: Bed, contenders: dict[str, Work], turns: int) -> dict[str, Sample]:
    found = dict.fromkeys(contenders, Sample())
    for _ in range(turns):
        for name, work in contenders.items():
            found[name] += bed.measure(partial(_turn, work))
    return found


def _turn(work: Work) -> int:
    work(TURN)
    return TURN


def _bytes(bed: Bed, work: Work) -> float:
    """Return the bytes that reach the server for a job."""
    before = bed.redis.info("stats")["total_net_input_bytes"]
    bed.redis.info("stats")
    own = bed.redis.info("stats")["total_net_input_bytes"] - before
    work(TURN)
    after = bed.redis.info("stats")["total_net_input_bytes"]
    return float(after - before - own - own // 2) / TURN


def _repeat(call: Callable[[], object], n: int = 1) -> Work:
    """Return what makes calls of n jobs each."""

    def work(jobs: int) -> None:
        for _ in range(jobs // n):
            call()

    return work


def _awaited(loop: asyncio.AbstractEventLoop, call: Callable[[], Any], n: int = 1) -> Work:
    """Return what makes calls on an event loop, n at a time."""

    async def calls(jobs: int) -> None:
        for _ in range(jobs // n):
            if n == 1:
                await call()
            else:
                await asyncio.gather(*[call() for _ in range(n)])

    return lambda jobs: loop.run_until_complete(calls(jobs))


@contextmanager
def _contenders(bed: Bed) -> Iterator[dict[str, Work]]:
    """Yield what adds jobs; asynchronous ones share an event loop."""
    lists, streams = Lists(bed.redis, bed.key("list")), Streams(bed.redis, bed.key("stream"))
    queue = bed.client.queue("single")
    loop = asyncio.new_event_loop()
    client = AsyncPenstock(bed.url, prefix=bed.prefix)
    own: Any = AsyncRedis.from_url(bed.url)
    waiting, key = client.queue("single"), bed.key("list")

    texts = [TEXT] * 100
    try:
        yield {
            LPUSH: _repeat(lists.add),
            "enqueue(bytes)": _repeat(lambda: queue.enqueue(BODY)),
            "enqueue(text)": _repeat(lambda: queue.enqueue(TEXT)),
            "handler.enqueue(queue, text)": _repeat(lambda: welcome.enqueue(queue, TEXT)),
            ASYNC_LPUSH: _awaited(loop, lambda: own.lpush(key, BODY)),
            "await enqueue(bytes)": _awaited(loop, lambda: waiting.enqueue(BODY)),
            "await handler.enqueue(queue, text)": _awaited(
                loop, lambda: welcome.enqueue(waiting, TEXT)
            ),
            GATHERED: _awaited(loop, lambda: own.lpush(key, BODY), CONCURRENT),
            "100 at once: enqueue(bytes)": _awaited(
                loop, lambda: waiting.enqueue(BODY), CONCURRENT
            ),
            XADD: _repeat(lambda: streams.add(100), 100),
            "handler bodies, enqueue_many by 100": _repeat(
                lambda: queue.enqueue_many(welcome.jobs(texts)), 100
            ),
        }
    finally:
        loop.run_until_complete(client.close())
        loop.run_until_complete(own.aclose())
        loop.close()
        bed.drop([key.encode(), *streams.keys(), *queue.ops.keys.names.values()])
