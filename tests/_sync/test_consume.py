# From tests/_async/test_consume.py by tools/unasync.py; do not edit.
"""The `consume` loop: which jobs it yields, and when it acknowledges them."""

from __future__ import annotations

import logging

import pytest

from penstock import BadArgument, Queue
from tests.support.keyspace import Raw, advance, evalshas, load_scripts
from tests.support.twins import spawn, wait_for

from .conftest import Waits


def test_consume_hands_jobs_out_one_by_one(q: Queue) -> None:
    """The loop reserves in batches, yields single jobs, and ends after `block`
    seconds without one.
    """
    q.enqueue_many(range(5))
    seen = []
    for job in q.consume(batch=2, block=0):
        seen.append(job.body)
        job.ack()
    assert seen == list(range(5))
    assert q.stats().acked == 5


def test_consume_waits_for_jobs(q: Queue, waits: Waits) -> None:
    """The loop waits for new jobs, and the caller may leave it at any time."""

    def first_two() -> list[object]:
        seen = []
        for job in q.consume():
            seen.append(job.body)
            job.ack()
            if len(seen) == 2:
                break
        return seen

    consumer = spawn(first_two)
    waits.reach(1)
    q.enqueue("a")
    waits.reach(1)
    q.enqueue("b")
    assert consumer.result() == ["a", "b"]


def test_consume_acknowledges_jobs_whose_block_succeeded(q: Queue) -> None:
    """When the loop ends, every job whose block raised no error is acknowledged."""
    q.enqueue_many(range(7))
    seen = []
    for job in q.consume(batch=3, block=0):
        with job:
            seen.append(job.body)
    assert seen == list(range(7))
    stats = q.stats()
    assert (stats.acked, stats.active, stats.ready) == (7, 0, 0)


def test_consume_needs_a_trip_a_job(real_q: Queue, real_raw: Raw) -> None:
    """A finished job is acknowledged in the call that reserves the next one."""
    load_scripts(real_raw)
    real_q.enqueue_many(range(20))
    before = evalshas(real_raw)
    for job in real_q.consume(block=0):
        with job:
            pass
    assert evalshas(real_raw) - before <= 21
    assert real_q.stats().acked == 20


def test_a_failure_in_a_batch_is_that_jobs_alone(q: Queue) -> None:
    """A failed job of a batch is reported at once; the other jobs are done."""
    q.configure(backoff_base=3600)  # no draw of the jitter brings it back into this loop
    q.enqueue_many(range(6))
    for job in q.consume(batch=6, block=0):
        with job:
            if job.body in (1, 4):
                raise ValueError(f"no {job.body}")
    stats = q.stats()
    assert (stats.acked, stats.nacked, stats.active) == (4, 2, 0)


def test_jobs_settled_by_the_caller_are_settled_once(q: Queue) -> None:
    """A job that the caller settles is not settled again by the loop."""
    q.enqueue_many(range(4))
    for job in q.consume(batch=4, block=0):
        with job:
            if job.body == 1:
                job.ack()
            elif job.body == 2:
                job.bury("enough")
    stats = q.stats()
    assert (stats.acked, stats.dead, stats.active) == (3, 1, 0)


def first_job(q: Queue) -> object:
    """Leave the loop after the first job, and return its body."""
    for job in q.consume(batch=2, block=5):
        with job:
            return job.body
    return None


def test_leaving_the_loop_acknowledges(q: Queue, raw: Raw) -> None:
    """Leaving the loop acknowledges the finished jobs; a job that was not yielded
    keeps its lease.
    """
    q.enqueue_many(range(2))
    assert first_job(q) == 0
    wait_for(lambda: int(raw.hget(q.ops.keys["meta"], "acked") or 0) == 1)
    (held,) = q.peek(state="active")
    assert held.body == 1


def test_an_error_that_leaves_the_loop(q: Queue, raw: Raw) -> None:
    """An error that leaves the loop gives the current job back; finished jobs are acknowledged."""

    def work() -> None:
        for job in q.consume(batch=2, block=0):
            with job:
                if job.body == 1:
                    raise KeyboardInterrupt

    q.enqueue_many(range(2))
    with pytest.raises(KeyboardInterrupt):
        work()
    wait_for(lambda: int(raw.hget(q.ops.keys["meta"], "acked") or 0) == 1)
    (again,) = q.reserve(block=0)
    assert (again.body, again.attempt) == (1, 1)


def test_done_after_the_lease_has_ended(
    q: Queue, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """An ack after the lease has ended is logged as stale, and the loop continues."""
    q.enqueue_many(["late", "next"], lease=10)
    others = []
    with caplog.at_level(logging.WARNING, "penstock"):
        for job in q.consume(block=0):
            with job:
                if job.body == "late":
                    advance(raw, q.ops, 11)
                    others += q.reserve(block=0)
    assert [job.body for job in others] == ["late"]
    assert others[0].id in caplog.text
    assert others[0].ack() is True
    assert q.stats().acked == 2


def test_a_job_that_is_done_does_not_wait_for_a_slow_one(q: Queue, waits: Waits) -> None:
    """The first job of a batch is acknowledged in time, although the second outlasts a lease."""
    q.enqueue_many(["quick", "slow"], lease=0.3)
    again = []
    for job in q.consume(batch=2, block=0):
        with job:
            if job.body == "slow":
                job.extend(30)
                again += q.reserve(block=0.8)
    assert [job.body for job in again] == []


@pytest.mark.parametrize("batch", [0, -1, 1001, 1.5, None, True])
def test_batches(q: Queue, batch: int) -> None:
    """From 1 to 1000."""
    with pytest.raises(BadArgument, match="batch="):
        next(iter(q.consume(batch=batch, block=0)))
