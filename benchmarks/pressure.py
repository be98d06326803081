"""Queues of the protocol pressure: one script per operation, compared with single commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.bed import Bed
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.plan import BODY, Plan
from penstock.pressure import PressureQueue

__all__ = ["Literal", "pressure"]

FASTER = 8.0
ROUNDS = 5
BOTH = "put_nowait + get_nowait"


class Literal:
    """The protocol's steps as its Python client sends them, one command per trip.

    Args:
        redis: where the queue is.
        base: the name that its keys begin with.
        bound: of the queue; that client reads it once.
    """

    def __init__(self, redis: Any, base: str, bound: int) -> None:
        self._redis = redis
        self._base = base
        self._bound = bound

    def _key(self, suffix: str) -> str:
        return f"{self._base}:{suffix}"

    def put_nowait(self, message: bytes) -> None:
        """Put a message: twelve commands."""
        redis, key = self._redis, self._key
        redis.exists(key("bound"))
        redis.exists(key("bound"))
        redis.rpop(key("producer_free"))
        redis.set(key("producer"), "host_pid1")
        redis.exists(key("closed"))
        redis.rpop(key("not_full"))
        if redis.lpush(self._base, message) < self._bound:
            self._room()
        self._count("produced", message)
        redis.lpush(key("producer_free"), 0)

    def get_nowait(self) -> bytes:
        """Take a message: ten commands."""
        redis, key = self._redis, self._key
        redis.exists(key("bound"))
        redis.rpop(key("consumer_free"))
        redis.set(key("consumer"), "host_pid1")
        message = bytes(redis.rpop(self._base))
        if redis.llen(self._base) < self._bound:
            self._room()
        self._count("consumed", message)
        redis.lpush(key("consumer_free"), 0)
        return message

    def _room(self) -> None:
        self._redis.lpush(self._key("not_full"), 0)
        self._redis.ltrim(self._key("not_full"), 0, 0)

    def _count(self, what: str, message: bytes) -> None:
        self._redis.incr(self._key(f"stats:{what}_messages"))
        self._redis.incrby(self._key(f"stats:{what}_bytes"), len(message))


def pressure(bed: Bed, plan: Plan) -> Table:
    """Measure messages/s of one process that puts and takes."""
    table = Table(
        "pressure",
        "Queues of the protocol pressure 0.15: one process puts, then takes",
        ("operation", "penstock/s", "step by step/s", "x base", "server us CPU", "base us CPU"),
        "The base sends each step of the protocol as a command of its own, twelve to put and ten to"
        " take, as the clients of that protocol do; both use redis-py with hiredis.",
    )
    messages = plan.single
    with PressureQueue("bench", bed.url, prefix=bed.key("pressure")) as queue:
        queue.create(bound=messages + 1)
        literal = Literal(bed.redis, f"{queue.prefix}:{queue.name}", messages + 1)
        _round(bed, queue, max(messages // 10, 1))
        rounds = [
            (_round(bed, queue, messages), _round(bed, literal, messages))
            for _ in range(min(plan.rounds, ROUNDS))
        ]
        queue.delete()
    for name in ("put_nowait", "get_nowait", BOTH):
        ours, base = ([one[side][name] for one in rounds] for side in (0, 1))
        ratio = pairwise([s.rate for s in ours], [s.rate for s in base])
        budget = None
        if name == BOTH:
            budget = Budget(f"pressure: {BOTH}, x step by step", ratio, FASTER, least=True)
        table.add(
            name,
            median(s.rate for s in ours),
            median(s.rate for s in base),
            ratio,
            median(s.server_us for s in ours),
            median(s.server_us for s in base),
            budget=budget,
        )
        table.rounds[f"{name}/s"] = [s.rate for s in ours]
        table.rounds[f"{name}, step by step/s"] = [s.rate for s in base]
    return table


def _round(bed: Bed, queue: PressureQueue | Literal, messages: int) -> dict[str, Sample]:
    put = bed.measure(_repeated(lambda: queue.put_nowait(BODY), messages))
    got = bed.measure(_repeated(queue.get_nowait, messages))
    both = Sample(messages, put.server + got.server, put.client + got.client, put.wall + got.wall)
    return {"put_nowait": put, "get_nowait": got, BOTH: both}


def _repeated(call: Callable[[], object], times: int) -> Callable[[], int]:
    def work() -> int:
        for _ in range(times):
            call()
        return times

    return work
