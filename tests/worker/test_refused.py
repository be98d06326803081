"""Jobs, schedules and leases that one queue refuses: everything else of the worker goes on."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
import redis

from penstock import Done, Penstock, QueueDamaged, Reject, Worker
from penstock.worker import Handlers
from tests.support.twins import wait_for
from tests.worker.faults import KINDS, Seen, at_work, sent, wait_idle

kinds = pytest.mark.parametrize("kind", KINDS)
LONG = 60
"""A grace that no test waits for."""


def break_key(raw: redis.Redis, ps: Penstock, kind: str) -> None:
    """Give a key of queue a another type."""
    raw.set(ps.queue("a").ops.keys[kind], "of another type")


class Handler:
    """A handler that hands over, is rejected, or runs, as the body of its job says.

    Args:
        seen: gets the other jobs.
    """

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.began = threading.Event()
        self.go = threading.Event()
        self._next = Handlers()

        @self._next.handler("next")
        def follow() -> None:
            pass

        self._follow = follow

    def __call__(self, job: Any) -> Any:
        """Handle a job."""
        if job.body == "hand over":
            return Done(then=[self._follow.options(priority=5).job()])
        if job.body == "reject":
            return Reject("bad")
        if job.body == "wait":
            self.began.set()
            assert self.go.wait(30)
        self.seen(job)
        return None


@kinds
def test_a_hand_over_that_is_refused(
    url: str, ps: Penstock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The job fails with the error; the other jobs of its queue, and other queues, go on."""
    a, b, seen = ps.queue("a"), ps.queue("b"), Seen()
    a.configure(ordered=True)
    with at_work(kind, url, ["a", "b"], Handler(seen), concurrency=2, grace=LONG) as worker:
        a.enqueue("hand over")
        wait_for(lambda: a.stats().scheduled == 1)
        for number in range(5):
            a.enqueue(f"a{number}")
            b.enqueue(f"b{number}")
        seen.wait(*(f"{name}{number}" for name in "ab" for number in range(5)))
        wait_for(lambda: b.stats().acked == 5)
        (view,) = a.peek(state="scheduled")
        assert view.nacks == 1
        assert view.error is not None
        assert view.error.startswith("BadArgument: priority='5': can't be used with ordered=True")
        assert worker.status().stats.counts["retried"] == 1
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert not [text for text in caplog.messages if "is tried again" in text or "is back" in text]
    assert len([text for text in caplog.messages if "can't be used with ordered" in text]) == 1


@kinds
def test_the_last_attempt_of_a_refused_hand_over(url: str, ps: Penstock, kind: str) -> None:
    """The job becomes a dead letter, and a burst ends."""
    a, seen = ps.queue("a"), Seen()
    a.configure(ordered=True, max_attempts=1)
    a.enqueue("hand over")
    a.enqueue("other")
    with at_work(kind, url, "a", Handler(seen), burst=True):
        seen.wait("other")
        wait_for(lambda: a.stats().dead == 1)
    (letter,) = a.peek(state="dead")
    assert letter.error is not None
    assert letter.error.startswith("BadArgument: priority=")
    assert a.stats().active == 0


@kinds
def test_an_error_of_a_script(
    url: str, ps: Penstock, raw: redis.Redis, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The job whose report stops a script fails after a few attempts; the others go on."""
    a, b, seen = ps.queue("a"), ps.queue("b"), Seen()
    handler = Handler(seen)
    a.enqueue("hand over")
    raw.hset(a.ops.keys["meta"], "last", "no number")
    with at_work(kind, url, ["a", "b"], handler, concurrency=2, grace=LONG):
        for number in range(5):
            b.enqueue(f"b{number}")
        seen.wait(*(f"b{number}" for number in range(5)), timeout=5)
        wait_for(lambda: a.stats().scheduled == 1)
        (view,) = a.peek(state="scheduled")
        assert view.error is not None
        assert view.error.startswith("ResponseError: ")
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert len([text for text in caplog.messages if "queue 'a' can't be used" in text]) == 1
    assert not [text for text in caplog.messages if "is back" in text]


@kinds
def test_a_stop_during_damage(url: str, ps: Penstock, raw: redis.Redis, kind: str) -> None:
    """A worker that can't report a job ends at once; the job is left to its lease."""
    a, b, seen = ps.queue("a"), ps.queue("b"), Seen()
    break_key(raw, ps, "dead")
    a.enqueue("reject")
    with at_work(kind, url, ["a", "b"], Handler(seen), grace=LONG) as worker:
        b.enqueue(1)
        seen.wait(1)
        wait_for(lambda: worker.status().held == 1 and not worker.status().running)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert worker.abandoned == 1


def test_a_burst_during_damage(url: str, ps: Penstock, raw: redis.Redis) -> None:
    """A burst that can't report a job ends with the error of the queue; the others are empty."""
    a, b, seen = ps.queue("a"), ps.queue("b"), Seen()
    break_key(raw, ps, "dead")
    a.configure(max_attempts=1)
    a.enqueue("reject")
    b.enqueue_many(range(5))
    worker = Worker(url, ["a", "b"], Handler(seen), burst=True, grace=LONG)
    worker.start()
    with pytest.raises(QueueDamaged, match=r"'penstock:\{a\}:dead' has the wrong type"):
        worker.join(20)
    assert sorted(seen.bodies) == list(range(5))


@kinds
@pytest.mark.parametrize("key", ["ready", "wake", "meta"])
def test_a_damaged_key_makes_no_flood(
    url: str, ps: Penstock, raw: redis.Redis, kind: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line tells of it, few calls are made, and the queue is used again after a repair."""
    a, b, seen = ps.queue("a"), ps.queue("b"), Seen()
    a.enqueue("before")
    with at_work(kind, url, ["a", "b"], seen) as worker:
        seen.wait("before")
        wait_idle(raw)
        good = raw.dump(a.ops.keys[key])
        break_key(raw, ps, key)
        b.enqueue("b")
        assert seen.wait("b") < 3
        wait_for(lambda: [text for text in caplog.messages if "queue 'a' can't" in text])
        before = sent(raw)
        for number in range(10):
            b.enqueue(number)
            assert seen.wait(number) < 3
            time.sleep(0.1)  # calls are counted for a second
        after = sent(raw)
        assert after["evalsha"] - before["evalsha"] < 60
        assert after["blpop"] - before["blpop"] < 60
        told = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert [one.getMessage()[:23] for one in told] == ["queue 'a' can't be used"]
        assert worker.healthy()
        raw.delete(a.ops.keys[key])
        if good:
            raw.restore(a.ops.keys[key], 0, good)
        a.enqueue("after")
        assert seen.wait("after") < 10


@kinds
def test_a_queue_whose_keys_are_deleted(
    url: str, ps: Penstock, raw: redis.Redis, kind: str
) -> None:
    """The job that ran is lost with them, and the queue goes on."""
    a, b, seen = ps.queue("a"), ps.queue("b"), Seen()
    handler = Handler(seen)
    a.enqueue("wait")
    with at_work(kind, url, ["a", "b"], handler, concurrency=2) as worker:
        if kind == "threads":
            assert handler.began.wait(20)
        raw.delete(*raw.keys("penstock:{a}:*"))
        handler.go.set()
        a.enqueue("after")
        b.enqueue("b")
        seen.wait("after", "b")
        wait_for(lambda: worker.status().held == 0)


def test_a_schedule_that_a_queue_refuses(
    url: str, ps: Penstock, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names schedule and queue, the other schedules run, and so does the other queue."""
    a, b, seen = ps.queue("a"), ps.queue("b"), Seen()
    task = Handlers()

    @task.handler("task")
    def urgent() -> None:
        pass

    a.schedules.add("urgent", every=3600, job=urgent.options(priority=5).job())
    a.schedules.add("usual", every=3600, job="usual")
    a.configure(ordered=True)
    seconds, _ = raw.time()
    raw.zadd(a.ops.keys["ticks"], {"urgent": (seconds - 5) * 1000, "usual": (seconds - 5) * 1000})
    caplog.set_level(logging.INFO, "penstock")
    with Worker(url, ["a", "b"], Handler(seen), concurrency=2):
        b.enqueue("b")
        seen.wait("usual", "b")
        wait_for(lambda: [text for text in caplog.messages if "'urgent' of queue 'a'" in text])
    assert not [text for text in caplog.messages if "is back" in text or "tried again" in text]
    told = [text for text in caplog.messages if "'urgent' of queue 'a' is refused" in text]
    assert len(told) == 1
    assert "can't be used with ordered=True" in told[0]
    assert raw.zscore(a.ops.keys["ticks"], "urgent") == (seconds - 5) * 1000


def test_jobs_are_cancelled_while_another_queue_refuses_leases(
    url: str, ps: Penstock, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The heartbeat goes on with the jobs of the other queues."""
    a, b, began, go = ps.queue("a"), ps.queue("b"), Seen(), threading.Event()

    def handle(job: Any) -> None:
        began(job)
        wait_for(go.is_set, 30)

    with Worker(url, ["a", "b"], handle, concurrency=2):
        a.enqueue("a", lease=9)  # its first renewal is due after 3 s
        job = b.enqueue("b")
        began.wait("a", "b")
        break_key(raw, ps, "active")
        wait_for(lambda: [text for text in caplog.messages if "can't be renewed" in text])
        b.cancel([job.id])
        wait_for(lambda: b.stats().active == 0, 4)
        go.set()
