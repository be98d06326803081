"""Workers of several queues: weights, damage, pauses, and jobs removed during their run."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import redis

from penstock import BadArgument, Penstock, Worker
from penstock.worker import Handlers, LoopEvent, size_monitor
from tests.support.twins import wait_for
from tests.worker.faults import KINDS, Seen, at_work, sent, wait_idle

kinds = pytest.mark.parametrize("kind", KINDS)


# -- order -------------------------------------------------------------------------------------


@kinds
def test_strict_order(url: str, ps: Penstock, kind: str) -> None:
    """The first queue is served while it has jobs; with weights all of them are served."""
    names = ["high", "middle", "low"]
    for order in ("strict", "weighted"):
        for name in names:
            ps.queue(name).enqueue_many([name] * 20)
        seen = Seen()
        with at_work(kind, url, names, seen, concurrency=1, burst=True, order=order):
            wait_for(lambda: len(seen.bodies) == 60)  # noqa: B023  # it is called in this round
        if order == "strict":
            assert seen.bodies == [name for name in names for _ in range(20)]
        else:
            assert Counter(seen.bodies[:30]) == dict.fromkeys(names, 10)


@kinds
def test_strict_order_of_jobs_that_come_later(url: str, ps: Penstock, kind: str) -> None:
    """A worker that is busy with a later queue goes back to the first one when it has a job."""
    ps.queue("low").enqueue_many(["low"] * 50)
    bodies: list[str] = []

    def handle(job: Any) -> None:
        bodies.append(job.body)
        if len(bodies) == 3:
            ps.queue("high").enqueue("high")
        if "high" not in bodies:
            threading.Event().wait(0.05)  # the first queue is asked again after 0.25 s at most

    with at_work(kind, url, ["high", "low"], handle, concurrency=1, order="strict", burst=True):
        wait_for(lambda: len(bodies) == 51)
    assert bodies.index("high") < 40


def test_strict_order_has_no_weights(url: str) -> None:
    """Weights would say nothing, so they are refused."""
    with pytest.raises(BadArgument, match="needs queues without weights"):
        Worker(url, {"high": 8, "low": 1}, print, order="strict")
    with pytest.raises(BadArgument, match="order"):
        Worker(url, "high", print, order="random")  # type: ignore[arg-type]  # the mistake


def test_strict_order_of_partitions(ps: Penstock) -> None:
    """All partitions of the first queue come before the second queue."""
    parts = ps.queue("parts", partitions=4)
    parts.enqueue_many(["parts"] * 20)
    ps.queue("low").enqueue_many(["low"] * 5)
    seen = Seen()
    Worker(ps, ["parts", "low"], seen, concurrency=1, order="strict", burst=True).run()
    assert seen.bodies == ["parts"] * 20 + ["low"] * 5


# -- weights -----------------------------------------------------------------------------------


TWO, THREE = {"h": 8, "l": 2}, {"h": 8, "m": 3, "l": 1}


@pytest.mark.parametrize(
    "kind, weights, prefetch",
    [("threads", TWO, 0), ("asyncio", TWO, 5000), ("threads", THREE, 100), ("asyncio", THREE, 0)],
)
def test_weights(url: str, ps: Penstock, kind: str, weights: dict[str, int], prefetch: int) -> None:
    """Of 10,000 jobs each queue gets its share, and none waits long."""
    names: list[str] = []
    for name in weights:
        ps.queue(name).enqueue_many(range(10_000))
    with at_work(kind, url, weights, lambda job: names.append(job.queue_name), prefetch=prefetch):
        wait_for(lambda: len(names) >= 10_000, 60)
    counts = Counter(names[:10_000])
    for name, weight in weights.items():
        share = 10_000 * weight / sum(weights.values())
        assert abs(counts[name] - share) <= 500
    for name in weights:
        places = [-1, *(i for i, one in enumerate(names[:10_000]) if one == name), 10_000]
        assert max(b - a for a, b in pairwise(places)) <= 1000


@kinds
def test_a_queue_that_was_empty_is_noticed(url: str, ps: Penstock, kind: str) -> None:
    """A queue that was empty is checked within a second although the other one is always busy."""
    ps.queue("busy").enqueue_many(range(40_000))
    ps.queue("rare").enqueue("first")
    rare, waits = Seen(), []

    def handle(job: Any) -> None:
        if job.queue_name == "rare":
            rare(job)
        else:
            time.sleep(0.0005)

    with at_work(kind, url, {"busy": 8, "rare": 2}, handle, grace=1):
        rare.wait("first")
        for serial in range(3):
            time.sleep(0.3)  # longer than the longest pause between two checks
            ps.queue("rare").enqueue(serial)
            waits.append(rare.wait(serial))
        assert ps.queue("busy").stats().ready > 0
    assert sorted(waits)[1] < 1


# -- damage, pauses ----------------------------------------------------------------------------


@kinds
def test_a_damaged_queue_does_not_hold_up_the_others(
    url: str, ps: Penstock, raw: redis.Redis, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged queue is logged once, checked now and then, and used again when repaired."""
    seen = Seen()
    for name in "abc":
        ps.queue(name).enqueue(name)
    good = raw.dump("penstock:{b}:ready")
    raw.delete("penstock:{b}:ready")
    raw.set("penstock:{b}:ready", "of another type")
    with at_work(kind, url, ["a", "b", "c"], seen) as worker:
        seen.wait("a", "c")
        wait_idle(raw)
        before, began = sent(raw)["evalsha"], time.monotonic()
        for serial in range(3):
            ps.queue("c").enqueue(serial)
            assert seen.wait(serial) < 3
        time.sleep(1)
        asked = sent(raw)["evalsha"] - before
        assert asked < 40 * (time.monotonic() - began)
        assert worker.healthy()
        assert len([text for text in caplog.messages if "queue 'b' can't be used" in text]) == 1
        raw.delete("penstock:{b}:ready")
        raw.restore("penstock:{b}:ready", 0, good)
        assert seen.wait("b") < 10


@pytest.mark.slow
@kinds
def test_a_queue_is_damaged_while_its_handlers_run(
    url: str, ps: Penstock, raw: redis.Redis, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other queue's leases are renewed; finished jobs are reported when possible."""
    begun, calls = Seen(), Counter[str]()
    go = threading.Event()
    handlers = Handlers()

    @handlers.handler(None)
    async def slow(job: Any) -> None:
        calls[job.body] += 1
        begun(job)
        await asyncio.to_thread(go.wait, 20)

    def slow_in_a_thread(job: Any) -> None:
        calls[job.body] += 1
        begun(job)
        go.wait(20)

    for name in ("bad", "good"):
        ps.queue(name).enqueue(name, lease=4)

    def lease_until() -> float:
        (view,) = ps.queue("good").peek(state="active")
        assert view.lease_until is not None
        return view.lease_until

    handle = slow_in_a_thread if kind == "threads" else handlers
    with at_work(kind, url, ["bad", "good"], handle):
        begun.wait("bad", "good")
        good = raw.dump("penstock:{bad}:active")
        raw.set("penstock:{bad}:active", "of another type")
        end = lease_until()
        wait_for(lambda: lease_until() > end + 4)
        go.set()
        wait_for(lambda: ps.queue("good").stats().acked == 1)
        raw.restore("penstock:{bad}:active", 0, good, replace=True)
        wait_for(lambda: ps.queue("bad").stats().acked == 1)
    assert calls["good"] == 1
    assert len(caplog.messages) < 40


@kinds
def test_a_paused_queue(url: str, ps: Penstock, raw: redis.Redis, kind: str) -> None:
    """A paused queue is rarely asked; after resume its jobs start at once."""
    q, seen = ps.queue("q"), Seen()
    q.pause("out")
    q.enqueue_many(range(100))
    with at_work(kind, url, "q", seen):
        wait_idle(raw)
        before, began = sent(raw)["evalsha"], time.monotonic()
        time.sleep(1)
        asked = sent(raw)["evalsha"] - before
        assert asked <= 5 * (time.monotonic() - began)
        assert seen.bodies == []
        q.resume()
        assert seen.wait(*range(100)) < 3


@kinds
def test_a_pause_gives_back_jobs_that_have_not_begun(url: str, ps: Penstock, kind: str) -> None:
    """A prefetched job of a queue that is paused is not run; those of other queues are."""
    began, go, numbers = threading.Event(), threading.Event(), list[int]()
    handlers = Handlers()

    @handlers.handler("slow")
    def slow(number: int) -> None:
        numbers.append(number)
        began.set()
        assert go.wait(60)

    q, other = ps.queue("q"), ps.queue("other")
    for number in range(20):
        slow.enqueue(q, number)
    with at_work(kind, url, ["q", "other"], handlers, concurrency=1, prefetch=60):
        assert began.wait(60)
        wait_for(lambda: q.stats().active == 20)
        slow.enqueue(other, 99)
        wait_for(lambda: other.stats().active == 1)
        q.pause()
        wait_for(lambda: (q.stats().active, q.stats().ready) == (1, 19))
        go.set()
        wait_for(lambda: (q.stats().acked, other.stats().acked) == (1, 1))
        assert numbers == [0, 99]
        assert {view.attempts for view in q.peek(20)} == {0}
        q.resume()
        wait_for(lambda: q.stats().acked == 20)


# -- jobs that end while a handler runs --------------------------------------------------------


class Long:
    """Handlers that run until their job is lost, and record it."""

    def __init__(self, kind: str) -> None:
        self.begun = threading.Event()
        self.lost: list[float] = []
        self.handlers = Handlers()
        if kind == "threads":
            self.handlers.handler(None)(self._thread)
        else:
            self.handlers.handler(None)(self._task)

    def _thread(self, job: Any) -> None:
        self.begun.set()
        wait_for(lambda: job.lost)
        self.lost.append(time.monotonic())

    async def _task(self, job: Any) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            assert job.lost
            self.lost.append(time.monotonic())
            raise


@pytest.mark.parametrize("kind, how", [("threads", "delete"), ("asyncio", "purge")])
def test_a_job_is_removed_while_its_handler_runs(
    url: str, ps: Penstock, kind: str, how: str
) -> None:
    """The handler learns at the next renewal that its job was removed; no data of it comes back."""
    q, long = ps.queue("q"), Long(kind)
    job = q.enqueue("x", lease=4)
    with at_work(kind, url, "q", long.handlers) as worker:
        assert long.begun.wait(20)
        if how == "delete":
            q.delete([job.id])
        else:
            q.purge("active")
        wait_for(lambda: bool(long.lost))
        wait_for(lambda: worker.status().held == 0)
        stats = q.stats()
        assert (stats.ready, stats.active, stats.scheduled, stats.dead) == (0, 0, 0, 0)


@pytest.mark.slow
@kinds
def test_a_ttl_ends_while_the_handler_runs(url: str, ps: Penstock, kind: str) -> None:
    """The lease is renewed until the ttl ends; then the handler is told."""
    q, long = ps.queue("q"), Long(kind)
    with at_work(kind, url, "q", long.handlers) as worker:
        began = time.monotonic()
        q.enqueue("x", lease=2.5, ttl=6)
        wait_for(lambda: bool(long.lost))
        assert long.lost[0] - began > 5.5
        wait_for(lambda: worker.status().held == 0)
        wait_for(lambda: q.stats().expired == 1)
    stats = q.stats()
    assert (stats.deliveries, stats.crashed, stats.acked) == (1, 0, 0)


# -- throttle and monitor ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, throttle, seconds",
    [
        ("threads", 0, 0.0),
        ("threads", 0.05, 0.45),
        ("asyncio", timedelta(milliseconds=50), 0.45),
        ("asyncio", lambda size: 0.05 if size >= 0 else None, 0.45),
        ("threads", lambda _: timedelta(milliseconds=50), 0.45),
        ("asyncio", lambda _: None, 0.0),
    ],
    ids=["none", "seconds", "timedelta", "function", "function of timedelta", "function of None"],
)
def test_throttle(url: str, ps: Penstock, kind: str, throttle: Any, seconds: float) -> None:
    """After each loop the queues are not asked for this long; 0 and None mean no pause."""
    ps.queue("q").enqueue_many(range(10))
    seen = Seen()
    with at_work(kind, url, "q", seen, concurrency=1, throttle=throttle):
        seen.wait(*range(10))
    assert seen.times[-1] - seen.times[0] >= seconds - 0.01
    assert seconds or seen.times[-1] - seen.times[0] < 2


def test_a_throttle_of_the_queue_s_size(url: str, ps: Penstock) -> None:
    """The throttle gets the number of waiting jobs of all queues."""
    sizes: list[int] = []
    for name in "ab":
        ps.queue(name).enqueue_many(range(50))
    with at_work(
        "threads",
        url,
        ["a", "b"],
        lambda _: time.sleep(0.001),
        concurrency=1,
        throttle=sizes.append,
    ):
        wait_for(lambda: max(sizes, default=0) > 90)


@pytest.mark.parametrize(
    "kind, wrong", [("threads", "raises"), ("asyncio", "negative"), ("threads", "a text")]
)
def test_a_throttle_that_fails(
    url: str, ps: Penstock, kind: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing throttle is logged once and counts as one second."""
    answers = {"negative": -1, "a text": "soon"}

    def throttle(size: int) -> Any:
        if wrong == "raises":
            raise RuntimeError("no size")
        return answers[wrong]

    ps.queue("q").enqueue_many(range(3))
    seen = Seen()
    with at_work(kind, url, "q", seen, throttle=throttle, concurrency=2):
        seen.wait(*range(3))
    assert [text for text in caplog.messages if "throttle" in text] == [
        "throttle failed; the worker goes on"
    ]


@kinds
def test_a_monitor(url: str, ps: Penstock, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The monitor is called for each loop; its error is logged once."""
    events: list[LoopEvent] = []

    def monitor(event: LoopEvent) -> None:
        events.append(event)
        raise RuntimeError("not now")

    q, seen = ps.queue("q"), Seen()
    q.enqueue_many(range(20))
    with at_work(kind, url, "q", seen, monitor=monitor, concurrency=4, prefetch=0) as worker:
        seen.wait(*range(20))
        wait_for(lambda: worker.status().idle_rounds > 2)
    assert sum(event.jobs for event in events) == 20
    assert {tuple(event.sizes) for event in events} == {("q",)}
    assert max(event.jobs for event in events) <= 4
    assert all((event.idle_rounds == 0) == (event.jobs > 0) for event in events)
    assert caplog.messages.count("monitor failed; the worker goes on") == 1


def test_a_size_monitor(url: str, ps: Penstock, caplog: pytest.LogCaptureFixture) -> None:
    """The size monitor warns once of a queue that is too long."""
    caplog.set_level(logging.WARNING, "penstock")
    q = ps.queue("q")
    q.pause("out")
    q.enqueue_many(range(50))
    with at_work("threads", url, "q", Seen(), monitor=size_monitor(40)) as worker:
        wait_for(lambda: worker.status().queues == {"q": 50})
        wait_for(lambda: bool(caplog.messages))
        q.enqueue("one more")
    assert caplog.messages == ["queue 'q' holds 50 jobs, more than 40"]


@kinds
def test_a_misspelled_queue(
    url: str, ps: Penstock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker warns of a queue that never had a job, if one with a similar name had some."""
    caplog.set_level(logging.WARNING, "penstock")
    ps.queue("emails").enqueue(0)
    for _ in range(2):  # a worker does not make the queue
        for names in (["emials", "emails"], "reports", "emails", "emials"):
            with at_work(kind, url, names, Seen(), burst=True, name="w") as worker:
                wait_for(lambda: worker.state == "stopped")  # it is called in this round
        assert caplog.messages == ["w: queue 'emials' has never had a job (did you mean 'emails'?)"]
        caplog.clear()
    ps.queue("emials").enqueue(0)
    with at_work(kind, url, "emials", Seen(), burst=True, name="w") as worker:
        wait_for(lambda: worker.state == "stopped")
    assert caplog.messages == []
