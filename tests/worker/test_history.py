"""The history of a queue: written by its workers, read by anyone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import Handlers, JobTimes, Penstock, Queue, Reject, Worker
from penstock.client._sync.admin import ask_all
from penstock.core.jobs.history import TimesNote, base36, read_history
from penstock.wire.keys import QueueKeys
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance
from tests.worker.programs import wait_until

MOST_BYTES = 40_960
MINUTES_OF_TWO_DAYS = 2 * 24 * 60


@pytest.fixture
def raw(real_backend: Backend) -> Raw:
    """A connection to an empty server."""
    return real_backend.sync_client()


@pytest.fixture
def ps(raw: Raw) -> Iterator[Penstock]:
    """A client of it."""
    with Penstock(raw) as client:
        yield client


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue."""
    return ps.queue("mail")


def measure(q: Queue, note: TimesNote | None = None) -> None:
    """Write the history as a worker does."""
    note = note or TimesNote()
    run(q, note.take())
    while note:
        run(q, note.take())


def run(q: Queue, times: list[str]) -> None:
    """Run the script on each part."""
    ask_all(q, lambda part: part.executor.run(part.ops.measure(times)))


def noted(*runs: tuple[str, float, float]) -> TimesNote:
    """Return times of jobs: handler, waiting and running seconds."""
    note = TimesNote()
    note.runs += [(name, waited, [ran]) for name, waited, ran in runs]
    return note


def test_a_worker_writes_what_it_has_run(q: Queue, raw: Raw) -> None:
    """Counters of the minute, and times by handler: also of one that ends at once."""
    handlers = Handlers()

    @handlers.handler
    def fine(at: int) -> None:
        pass

    @handlers.handler
    def bad(at: int) -> Any:
        raise Reject("no")

    measure(q)  # no queue, no history
    assert raw.exists(q.ops.keys["history"]) == 0
    q.enqueue("before")
    measure(q)
    advance(raw, q.ops, 60)
    for i in range(3):
        fine.enqueue(q, i)
    bad.enqueue(q, 1)
    q.enqueue({}, headers={"handler": "gone"})
    Worker(Penstock(raw), "mail", handlers, burst=True).run()
    advance(raw, q.ops, 60)
    measure(q)
    history = q.history()
    assert sum(point.enqueued for point in history.minutes) == 5
    assert sum(point.done for point in history.minutes) == 3
    assert sum(point.died for point in history.minutes) == 1
    assert history.minutes[-1].seconds == 60
    times = {one.name: one for one in history.handlers}
    assert times.keys() == {"fine", "bad"}
    assert times["fine"].running.count == times["fine"].waiting.count == 3
    assert 0 < (times["fine"].running.p95 or 0) <= 3600
    assert times["bad"].running.count == 1


def test_several_workers_write_one_row(q: Queue, raw: Raw) -> None:
    """The first one of a minute writes it; times of all are added up."""
    q.enqueue(1)
    measure(q)
    advance(raw, q.ops, 60)
    q.enqueue(2)
    for _ in range(3):
        measure(q, noted(("resize", 0.02, 0.2), ("", 0.002, 4000.0)))
    history = q.history()
    assert [point.enqueued for point in history.minutes] == [1]
    assert history.minutes[0].waiting == 2
    other, resize = history.handlers
    assert (other.name, resize.name) == ("", "resize")
    assert resize.waiting.count == resize.running.count == 3
    assert 0.01 < (resize.waiting.p50 or 0) < 0.05
    assert 0.1 < (resize.running.p50 or 0) < 0.5
    assert other.running.p95 == 3600
    assert resize.since(history.now + 1).running == JobTimes()
    assert JobTimes().p95 is None


def test_two_days_of_traffic_with_twenty_handlers(q: Queue, raw: Raw) -> None:
    """The history has at most 40 KB, and every period of two hours and of two days."""
    q.enqueue(1)
    draw = random.Random(7)
    names = [f"app.tasks.handler_{i}" for i in range(20)]
    key, most = q.ops.keys["history"], 0
    for minute in range(MINUTES_OF_TWO_DAYS + 20):
        raw.hincrby(q.ops.keys["meta"], "enqueued", draw.randrange(2_000))
        raw.hincrby(q.ops.keys["meta"], "acked", draw.randrange(2_000))
        advance(raw, q.ops, 60)
        if minute % 10 and minute < MINUTES_OF_TWO_DAYS - 100:
            measure(q)
            continue
        measure(
            q,
            noted(
                *(
                    (name, draw.lognormvariate(-2, 1.5), 0.02 * draw.lognormvariate(i % 7, 0.8))
                    for i, name in enumerate(names)
                    for _ in range(60)
                )
            ),
        )
        if not minute % 100:
            most = max(most, raw.memory_usage(key, samples=0))
    most = max(most, raw.memory_usage(key, samples=0))
    assert 20_000 < most <= MOST_BYTES
    history = q.history()
    assert len(history.minutes) >= 110
    assert len(history.ten_minutes) >= 250
    assert {one.name for one in history.handlers} == {*names}
    for one in history.handlers:
        assert history.now - one.points[0].at > 40 * 3600
        assert sum(point.at > history.now - 7200 for point in one.points) >= 10
    assert 0 < raw.pttl(key) <= 173_400_000


def test_many_handlers(q: Queue, raw: Raw) -> None:
    """The first 32 have times of their own; the others are added up, and nothing is lost."""
    q.enqueue(1)
    for _ in range(40):
        measure(q, noted(*((f"handler_{i}", 0.02, 0.2) for i in range(60))))
        advance(raw, q.ops, 600)
    history = q.history()
    assert len(history.handlers) == 33
    assert history.handlers[-1].name is None
    assert history.handlers[-1].running.count == 40 * 28
    assert raw.memory_usage(q.ops.keys["history"], samples=0) <= MOST_BYTES


def test_a_queue_without_history(q: Queue, raw: Raw) -> None:
    """A setting turns it off, and removes what was written; the queue is kept for the setting."""
    q.enqueue(1)
    measure(q)
    assert raw.exists(q.ops.keys["history"])
    assert q.configure(history=False).history is False
    measure(q, noted(("resize", 1, 1)))
    assert not raw.exists(q.ops.keys["history"])
    assert q.history().minutes == []
    assert q.configure(history=None).history is None
    measure(q)
    assert raw.exists(q.ops.keys["history"])


def test_clearing_a_queue_removes_its_history(q: Queue, ps: Penstock, raw: Raw) -> None:
    """An idle queue leaves it behind, for its two days; `clear` does not."""
    q.enqueue(1)
    measure(q)
    ps.clear([q])
    assert list(raw.scan_iter("penstock:{*")) == []


def test_an_idle_queue_leaves_its_history(q: Queue, raw: Raw) -> None:
    """It is there on the next morning; a queue that is created again goes on with it."""
    q.enqueue(1)
    measure(q)
    q.ack(q.reserve(1))
    advance(raw, q.ops, 660)
    measure(q)
    q.sweep()
    assert not q.stats().exists
    assert [point.done for point in q.history().minutes] == [1]
    q.enqueue(2)
    advance(raw, q.ops, 2000)  # its clock is that of the server again
    measure(q)
    history = q.history()
    assert [point.enqueued for point in history.minutes] == [0, 1]
    assert history.ten_minutes[0].done == 1


def test_work_is_in_its_own_ten_minutes(q: Queue, raw: Raw) -> None:
    """Ten minutes are the sum of their minutes, also when they begin with a pause."""

    def go_to(minute: int) -> None:
        seconds, us = raw.time()
        now = seconds + us / 1e6 + float(raw.hget(q.ops.keys["meta"], "off") or 0) / 1000
        advance(raw, q.ops, (minute * 60 + 30 - now) % 600)  # the middle of the minute

    q.enqueue(0)
    go_to(2)
    measure(q)
    for minute, jobs in ((5, 1), (6, 2), (7, 4), (6, 8), (7, 16)):  # the last two: of the next ten
        for i in range(jobs):
            q.enqueue(i)
        go_to(minute)
        measure(q, noted(*[("resize", 0.02, 0.2)] * jobs))
    go_to(1)
    measure(q)
    history = q.history()
    assert [point.enqueued for point in history.minutes] == [1, 2, 4, 8, 16, 0]
    first, second = history.ten_minutes
    assert (first.enqueued, second.enqueued) == (7, 24)
    assert (first.waiting, second.waiting) == (8, 32)
    assert [point.running.count for point in history.handlers[0].points] == [7, 24]
    assert [point.at for point in history.handlers[0].points] == [first.at, second.at]
    assert {point.at // 600 for point in history.minutes[:3]} == {first.at // 600}
    assert {point.at // 600 for point in history.minutes[3:5]} == {second.at // 600}


def test_work_behind_a_pause_is_written_when_its_minute_has_ended() -> None:
    """The first look that finds something waits for the end of this minute."""
    note = TimesNote()
    note.seen, note.due_at = [1], 60.0
    assert not note.look(100.0, [1], has_ready=False)
    assert not note.look(330.0, [1], has_ready=False)
    assert note.look(340.0, [2], has_ready=False)
    assert note.due_at == 360
    assert note.look(361.0, [2], has_ready=False)
    assert note.due_at == 360
    note.seen = [2]
    assert note.look(362.0, [2], has_ready=True)


def test_times_of_more_than_two_days_ago_are_not_shown() -> None:
    """A handler without jobs since then is not there, although its row is."""
    now = 3_000_000
    stored = {
        b"n:a": f"{base36(now - 289)},,3.1".encode(), b"n:b": f"{base36(now - 290)},,3.1".encode(),
        b"h:a": f"{base36(now - 500)},,3.9 {base36(now - 290)},,3.9".encode(),
    }  # fmt: skip
    history = read_history([stored], now * 600.0)
    assert [(one.name, one.running.count) for one in history.handlers] == [("a", 1)]


def test_parts_are_added_up(ps: Penstock, raw: Raw) -> None:
    """The rows of partitions count together."""
    q = ps.queue("parts", partitions=2)
    for i in range(20):
        q.enqueue(i)
    measure(q, noted(("resize", 0.02, 0.2)))
    for number in range(2):
        part = SimpleNamespace(keys=QueueKeys("parts", partition=number))
        advance(raw, cast("Any", part), 120)
    for i in range(10):
        q.enqueue(i)
    measure(q)
    history = q.history()
    assert sum(point.enqueued for point in history.minutes) == 10
    assert history.handlers[0].running.count == 2


def test_an_idle_worker_writes_nothing(q: Queue, raw: Raw) -> None:
    """A worker of an empty queue writes no history."""
    with Worker(Penstock(raw), "mail", print):
        wait_until(lambda: raw.info("clients")["blocked_clients"], "it waits")
    assert not raw.exists(q.ops.keys["history"])


def test_damaged_rows_are_ignored() -> None:
    """What has another form than ours counts as nothing."""
    minute = 30_000_000
    good = f"{base36(minute)},1,2,3,4,5"
    stored = {
        b"m": f"x {good} !,1,2,3,4,5 {base36(minute)},1 {base36(minute - 500)},9,9,9,9,9".encode(),
        b"n:a": b"zz", b"h:a": b"\xff,1.1,1.1 1satc,2.1.!,0.1.1", b"atm": b"",
    }  # fmt: skip
    history = read_history([stored], minute * 60.0 + 60)
    assert [(point.enqueued, point.waiting) for point in history.minutes] == [(1, 5)]
    assert history.handlers[0].points[0].waiting.counts[2:4] == (1, 0)
