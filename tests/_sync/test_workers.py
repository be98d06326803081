# From tests/_async/test_workers.py by tools/unasync.py; do not edit.
"""The list of workers: pages, entries that can't be read, and the jobs of each worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Job, Penstock, ResultTimeout, Worker
from penstock.core.jobs.workers import worker_entry
from penstock.wire.keys import worker_key, workers_key
from penstock.worker._sync import registration
from tests.support.keyspace import Raw
from tests.support.twins import wait_for

LIST = workers_key("penstock")
IDS = [f"{number:016x}" for number in range(250)]


def store(raw: Raw, worker_id: str, seen: int, **changes: object) -> None:
    """Store an entry as a worker does."""
    text = worker_entry(
        name=f"w-{worker_id}",
        kind="Worker",
        host="host",
        version="1",
        queues=["q"],
        concurrency=8,
        since_ms=1000,
        seen_ms=seen,
    )
    for name, value in changes.items():
        text = text.replace(name, str(value))
    raw.set(worker_key("penstock", worker_id), text)
    raw.zadd(LIST, {worker_id: seen})


@pytest.mark.parametrize("seen", [lambda n: n, lambda _: 5, lambda n: n // 120], ids="abc")
def test_pages(ps: Penstock, raw: Raw, seen: Callable[[int], int]) -> None:
    """All workers are found, also if many of them wrote in the same ms."""
    for number, worker_id in enumerate(IDS):
        store(raw, worker_id, seen(number))
    assert [view.id for view in ps.workers()] == IDS
    assert [view.name for view in ps.workers()] == [f"w-{one}" for one in IDS]


def test_workers_that_are_gone(ps: Penstock, raw: Raw) -> None:
    """An id without an entry is that of a worker that was killed."""
    for worker_id in IDS[:3]:
        store(raw, worker_id, 5)
    raw.delete(worker_key("penstock", IDS[1]))
    assert [view.id for view in ps.workers()] == [IDS[0], IDS[2]]


def test_who_waits_is_told_of_no_worker(ps: Penstock, raw: Raw) -> None:
    """A time-out of `result` tells the state of the job, and whether a worker could take it."""
    q = ps.queue("q")
    job = q.enqueue(1, result_ttl=60)
    with pytest.raises(ResultTimeout, match=r"it is ready, and no worker of queue 'q' is listed$"):
        q.result(job.id, timeout=0.02)
    store(raw, IDS[0], 5)
    with pytest.raises(ResultTimeout, match=r"it is ready$"):
        q.result(job.id, timeout=0.02)
    q.reserve()
    with pytest.raises(ResultTimeout, match=r"it is active$"):
        job.result(timeout=0.02)
    with pytest.raises(ResultTimeout, match=r"within 0\.0 s$"):  # it looks once, at the result
        q.result(job.id, timeout=0)


def test_entries_that_can_not_be_read(ps: Penstock, raw: Raw) -> None:
    """Those of another version, and of strangers, are left out."""
    assert ps.workers() == []
    store(raw, IDS[0], 5)
    for worker_id, name, value in [
        (IDS[1], '"pid"', '"process"'),
        (IDS[2], '"q"', '""'),
        (IDS[3], '"since":1000', '"since":"soon"'),
        (IDS[4], "{", "["),
        (IDS[5], '["q"]', "1e999"),
    ]:
        store(raw, worker_id, 5, **{name: value})
    raw.zadd(LIST, {"stranger": 1, b"\xff": 2})
    assert [view.id for view in ps.workers()] == [IDS[0]]


def test_a_worker_is_listed(ps: Penstock, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs, a worker is listed with the jobs that it holds; then nothing is left."""
    monkeypatch.setattr(registration, "REGISTRATION_DELAY", 0.0)
    held: list[str] = []

    def handle(job: Job) -> None:
        held.append(job.id)
        worker.stop()
        (view,) = ps.workers(jobs=True)
        assert (view.name, view.queues, view.concurrency) == ("w", ("q", "r"), 3)
        assert view.kind == Worker.__name__
        assert [(one.id, one.attempts) for one in view.jobs] == [(job.id, 1)]
        assert view.since <= view.seen < view.since + 60
        (plain,) = ps.workers()
        assert plain.jobs == ()

    worker = Worker(ps, ["q", "r"], handle, concurrency=3, name="w")
    worker.start()
    wait_for(lambda: bool(raw.exists(LIST)))
    ps.queue("q").enqueue("x")
    worker.join(20)
    assert held
    assert ps.queue("q").stats().acked == 1
    assert raw.exists(LIST, *raw.keys("penstock:worker:*")) == 0
