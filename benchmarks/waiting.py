"""Waiting consumers: hand-over of a new job, delayed jobs, idle traffic, wake-ups."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from redis import Redis

from benchmarks.apart import process
from benchmarks.bed import SENT, Bed
from benchmarks.contenders import KeptJobs
from benchmarks.figures import Budget, Table, median, pairwise, percentile
from benchmarks.plan import Plan
from penstock.client._sync.client import Penstock

__all__ = ["awaited", "delayed", "handover", "idle"]

STOP = b"stop"
WIDTH = 100
GAP = 0.002  # seconds between two hand-overs, so that the server sleeps again
AWAITED_BUDGET = 3.0
HANDOVER_BUDGET, LATE_BUDGET_MS, IDLE_BUDGET = 2.5, 50.0, 1.0
CONSUMERS = 4


def handover(bed: Bed, plan: Plan) -> Table:
    """Measure the time of a new job to a blocked consumer in another process."""
    table = Table(
        "handover",
        "A fresh job reaches a blocked consumer in another process",
        ("pair", "LPUSH to BLPOP ms", "enqueue to reserve ms", "x bare"),
        "From before the producer's call to after the consumer's.",
    )
    key, name = bed.key("handover"), "handover"
    base: list[list[float]] = []
    ours: list[list[float]] = []
    queue = bed.client.queue(name)
    with (
        process(_pop_list, bed.url, key) as listener,
        process(_take_jobs, bed.url, bed.prefix, name) as consumer,
    ):
        for _ in range(plan.rounds):
            pairs = [
                (
                    _hand(bed, listener, lambda body: bed.redis.lpush(key, body)),
                    _hand(bed, consumer, queue.enqueue),
                )
                for _ in range(plan.samples)
            ]
            base.append([pair[0] for pair in pairs])
            ours.append([pair[1] for pair in pairs])
        bed.redis.lpush(key, STOP)
        queue.enqueue(STOP)
    _compare(table, base, ours, "fresh job to a blocked consumer, p50, x bare", HANDOVER_BUDGET)
    table.rounds["LPUSH to BLPOP p50 ms"] = [percentile(r, 0.5) for r in base]
    table.rounds["enqueue to reserve p50 ms"] = [percentile(r, 0.5) for r in ours]
    bed.drop([key.encode(), *queue.ops.keys.names.values()])
    return table


def _compare(
    table: Table, base: list[list[float]], ours: list[list[float]], name: str, limit: float
) -> None:
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        ratio = pairwise([percentile(r, share) for r in ours], [percentile(r, share) for r in base])
        table.add(
            label,
            percentile([t for r in base for t in r], share),
            percentile([t for r in ours for t in r], share),
            ratio,
            budget=Budget(name, ratio, limit) if label == "p50" else None,
        )


def awaited(bed: Bed, plan: Plan) -> Table:
    """Measure the time of a result to a waiting client in another process."""
    table = Table(
        "awaited",
        "A result reaches a waiting client in another process",
        ("pair", "LPUSH to BLPOP ms", "ack to result ms", "x bare"),
        "From before the ack to after the call of result.",
    )
    key, name = bed.key("awaited"), "awaited"
    base: list[list[float]] = []
    ours: list[list[float]] = []
    jobs = KeptJobs(bed.client, name)
    with (
        process(_pop_list, bed.url, key) as listener,
        process(_await_results, bed.url, bed.prefix, name) as waiter,
    ):
        for _ in range(plan.rounds):
            base.append([])
            ours.append([])
            for _ in range(plan.samples):
                jobs.add(1)
                held = jobs.reserve(1)
                waiter.send(held[0].id)
                base[-1].append(_hand(bed, listener, lambda body: bed.redis.lpush(key, body)))
                bed.await_blocked(2)
                sent = time.monotonic_ns()
                jobs.ack(held)
                ours[-1].append((waiter.recv() - sent) / 1e6)
        bed.redis.lpush(key, STOP)
        waiter.send("")
    _compare(table, base, ours, "result to a waiting client, p50, x bare", AWAITED_BUDGET)
    bed.drop([key.encode(), *jobs.queue.ops.keys.names.values()])
    return table


def _await_results(pipe: Connection, url: str, prefix: str, name: str) -> None:
    queue = Penstock(url, prefix=prefix).queue(name)
    while job_id := pipe.recv():
        queue.result(job_id)
        pipe.send(time.monotonic_ns())


def _hand(bed: Bed, consumer: Connection, send: Callable[[bytes], object]) -> float:
    """Pass one job between processes, and return the ms; both consumers wait when it is sent."""
    bed.await_blocked(2)
    time.sleep(GAP)
    send(b"%d" % time.monotonic_ns() + b" " + b"x" * (WIDTH - 20))
    return float(consumer.recv())


def _took_ms(body: bytes) -> float:
    return (time.monotonic_ns() - int(body.split(b" ", 1)[0])) / 1e6


def _pop_list(pipe: Connection, url: str, key: str) -> None:
    client: Any = Redis.from_url(url)
    while True:
        found = client.blpop([key], timeout=0)
        if found[1] == STOP:
            return
        pipe.send(_took_ms(found[1]))


def _take_jobs(pipe: Connection, url: str, prefix: str, name: str) -> None:
    queue = Penstock(url, prefix=prefix).queue(name)
    while True:
        for job in queue.reserve(1, block=None):
            if job.raw == STOP:
                job.ack()
                return
            took = _took_ms(job.raw)
            job.ack()
            pipe.send(took)


def delayed(bed: Bed, plan: Plan) -> Table:
    """Measure the lateness of delayed jobs on an idle server; none may be early."""
    table = Table(
        "delayed",
        "Delayed jobs on an idle server",
        ("figure", "ms"),
        "Delivery by the server's clock less the moment asked for; one blocked consumer.",
    )
    queue = bed.client.queue("delayed")
    queue.enqueue(STOP)  # create the queue before the first delay
    queue.ack(queue.reserve(1))
    delays = [(50 + 40 * i + random.randrange(20)) / 1000 for i in range(plan.delayed)]
    due: dict[str, float] = {}
    for delay in delays:
        due[queue.enqueue(b"x" * WIDTH, delay=delay).id] = delay
    late: list[float] = []
    while due:
        for job in queue.reserve(1, block=10):
            asked = job.created + due.pop(job.id)
            late.append(float(round((job.delivered - asked) * 1000)))  # both are whole ms
            job.ack()
    early = Budget("delayed jobs: earliest start, ms late", min(late), 0.0, least=True, unit="ms")
    worst = Budget("delayed jobs: latest start", max(late), LATE_BUDGET_MS, unit="ms")
    table.add("p50 late", percentile(late, 0.5))
    table.add("most late", max(late), budget=worst)
    table.add("least late (below 0 = early)", min(late), budget=early)
    table.rounds["ms late"] = late
    bed.drop(list(queue.ops.keys.names.values()))
    return table


def idle(bed: Bed, plan: Plan) -> Table:
    """Measure the traffic of idle consumers, and how many of them wake for one new job."""
    table = Table(
        "idle",
        f"{CONSUMERS} idle consumers",
        ("figure", "value"),
        f"Watched for {plan.idle:g} s; then {plan.fresh} fresh jobs, one at a time.",
    )
    queue = bed.client.queue("idle")
    done = threading.Semaphore(0)
    threads = [
        threading.Thread(target=_consume_until_stop, args=(bed, "idle", done), daemon=True)
        for _ in range(CONSUMERS)
    ]
    queue.enqueue(STOP + b"?")
    queue.ack(queue.reserve(1))
    for thread in threads:
        thread.start()
    bed.await_blocked(CONSUMERS)
    sent = bed.count(lambda: time.sleep(plan.idle))
    rate = sent.of(SENT) / plan.idle / CONSUMERS
    woken = [float(_woken(bed, queue.enqueue, done)) for _ in range(plan.fresh)]
    for _ in threads:
        queue.enqueue(STOP)
    for thread in threads:
        thread.join(30)
    table.add(
        "commands/s sent by one of them",
        rate,
        budget=Budget("commands/s of an idle blocked consumer", rate, IDLE_BUDGET, unit="/s"),
    )
    table.add(
        "consumers that wake for a fresh job (median)",
        median(woken),
        budget=Budget("consumers that wake for a fresh job", median(woken), 1.0, unit="of 4"),
    )
    table.add("the same, mean", sum(woken) / len(woken))
    table.rounds["woken"] = woken
    bed.drop(list(queue.ops.keys.names.values()))
    return table


def _consume_until_stop(bed: Bed, name: str, done: threading.Semaphore) -> None:
    with Penstock(bed.url, prefix=bed.prefix) as client:
        queue = client.queue(name)
        while True:
            for job in queue.reserve(1, block=None):
                job.ack()
                if job.raw == STOP:
                    return
                done.release()


def _woken(bed: Bed, enqueue: Callable[[bytes], object], done: threading.Semaphore) -> int:
    """Return how many consumers woke for one job: the server counts a BLPOP when it ends."""
    bed.await_blocked(CONSUMERS)

    def work() -> None:
        enqueue(b"x" * WIDTH)
        done.acquire()
        bed.await_blocked(CONSUMERS)

    return bed.count(work).calls.get("blpop", 0)
