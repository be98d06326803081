# From tests/_async/test_hand_over.py by tools/unasync.py; do not edit.
"""Hand-over: `Done(then=[...])` acknowledges a job and adds the jobs that follow it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Done, Handlers, Penstock, Queue, Worker
from penstock.core.enqueuing.next_jobs import next_jobs, records_of
from penstock.core.jobs.outcomes import Outcome
from penstock.worker._sync.hand_over import hand_over


def work(ps: Penstock, handlers: Any, *queues: str, **options: Any) -> Worker:
    """Work until no job is left."""
    worker = Worker(ps, list(queues or ("q",)), handlers, burst=True, **options)
    worker.run()
    return worker


class Chain:
    """Handlers of which each hands over to the next: `fetch`, `resize` twice, and `notify`."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.handlers = handlers = Handlers()

        @handlers.handler("fetch", result_ttl=60)
        def fetch(path: str) -> Any:
            self.ran.append(("fetch", path))
            return Done(len(path), then=[resize.job(path, width) for width in (100, 200)])

        @handlers.handler("resize")
        def resize(path: str, width: int) -> Any:
            self.ran.append(("resize", width))
            if width == 200:
                raise Done(then=[self.notify.job(path)])

        @handlers.handler("notify")
        def notify(path: str) -> None:
            self.ran.append(("notify", path))

        self.fetch, self.resize, self.notify = fetch, resize, notify


def test_a_chain_of_jobs(ps: Penstock, q: Queue) -> None:
    """The next jobs run, the value is the result, and raising `Done` is as good as returning it."""
    chain = Chain()
    first = chain.fetch.enqueue(q, "a.png")
    worker = work(ps, chain.handlers)
    assert chain.ran == [
        ("fetch", "a.png"), ("resize", 100), ("resize", 200), ("notify", "a.png"),
    ]  # fmt: skip
    assert worker.status().stats.counts == {"done": 4}
    assert q.result(first.id, timeout=5) == 5
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.enqueued) == (0, 0, 0, 4)


def test_options_of_the_next_jobs(ps: Penstock, q: Queue) -> None:
    """Delay, lease, ttl, headers and kept results of a handler apply."""
    handlers = Handlers()

    @handlers.handler("later", lease=7, result_ttl=60)
    def later(number: int) -> None:
        """Stay in the queue."""

    @handlers.handler("now")
    def now() -> Any:
        timed = later.options(delay=60, ttl=3600, headers={"trace": "abc"})
        return Done(then=[timed.job(1)])

    now.enqueue(q)
    work(ps, handlers)
    (view,) = q.peek(state="scheduled")
    assert (view.body, view.headers) == (
        {"number": 1},
        {"handler": "later", "trace": "abc"},
    )
    assert view.lease == 7
    assert view.ttl == pytest.approx(3600, abs=5)


def test_a_queue_that_takes_no_jobs(ps: Penstock, q: Queue) -> None:
    """A full, paused and closed queue takes the next jobs, and is drained by them."""
    chain = Chain()
    chain.fetch.enqueue(q, "a.png")
    q.configure(max_length=1)
    q.pause("in")
    q.close()
    work(ps, chain.handlers)
    assert len(chain.ran) == 4
    assert q.stats().ready == 0


def test_another_queue(ps: Penstock, q: Queue) -> None:
    """A handler that names its queue gets the job there, once however often the ack is tried."""
    handlers = Handlers()
    other = ps.queue("other")

    @handlers.handler("notify", queue="other")
    def notify(name: str) -> None:
        """Stay in the queue."""

    @handlers.handler("sign_up")
    def sign_up(name: str) -> Any:
        return Done(then=[notify.job(name), sign_up.options(delay=60).job(name)])

    sign_up.enqueue(q, "ada")
    (job,) = q.reserve()
    then = next_jobs([notify.job("ada")])
    assert then is not None
    assert hand_over(ps, job, then) == ()
    assert hand_over(ps, job, then) == ()  # as if the worker had died before the ack
    job.release()
    work(ps, handlers, "q")
    assert [view.body for view in other.peek(10)] == [{"name": "ada"}]
    assert q.stats().scheduled == 1


def test_a_hand_over_that_fails(ps: Penstock, q: Queue) -> None:
    """Jobs that are too large, or can't be encoded, fail the job; nothing is added."""
    handlers = Handlers()

    @handlers.handler("big")
    def big(text: str) -> None:
        """Not reached."""

    @handlers.handler("start", retry=None)
    def start(size: int) -> Any:
        return Done(then=[big.job("x" * size)] * 2)

    start.enqueue(q, 40_000)
    start.enqueue(q, 20_000)
    worker = work(ps, handlers)
    assert worker.status().stats.counts == {"retried": 1, "done": 3}
    (view,) = q.peek(state="scheduled")
    assert "at most 65536 bytes" in view.error


def test_a_lost_job_hands_nothing_over(ps: Penstock, q: Queue) -> None:
    """A stale receipt, and a repeat of the call, add nothing."""
    chain = Chain()
    chain.fetch.enqueue(q, "a.png")
    (job,) = q.reserve()
    records = records_of([chain.notify.job("a.png")], None, most=1000)
    q.release([job.id])
    (again,) = q.reserve()
    stale = q.ops.hand_over([job], records)
    assert [*q.route.node.executor.run(stale)] == [Outcome.STALE]
    call = q.ops.hand_over([again], records)
    assert [*q.route.node.executor.run(call)] == [Outcome.DONE]
    assert [*q.route.node.executor.run(q.ops.hand_over([again], records))] == [Outcome.GONE]
    assert q.stats().ready == 1


def test_chunks_hand_over(ps: Penstock, q: Queue) -> None:
    """Each job of a chunk has its own next jobs; one `Done` for all of them has them once."""
    handlers, ran = Handlers(), list[Any]()

    @handlers.handler("note")
    def note(text: str) -> None:
        ran.append(text)

    @handlers.chunk("each", size=2)
    def each(jobs: list[Any]) -> Any:
        return [Done(then=[note.job(job.body)]) for job in jobs]

    @handlers.chunk("all", size=2)
    def together(jobs: list[Any]) -> Any:
        return Done(then=[note.job("once")])

    q.enqueue_many(["a", "b"], headers=each.headers)
    q.enqueue_many(["c", "d"], headers=together.headers)
    worker = work(ps, handlers)
    assert sorted(ran) == ["a", "b", "once"]
    assert worker.status().stats.counts == {"done": 7}


def test_a_dedup_window_with_next_jobs(ps: Penstock, q: Queue) -> None:
    """The window of `Done` holds, too."""
    handlers = Handlers()

    @handlers.handler("end")
    def end() -> None:
        """Do nothing."""

    @handlers.handler("start")
    def start() -> Any:
        return Done(then=[end.job()], dedup_window=60)

    start.options(dedup_id="one").enqueue(q)
    work(ps, handlers)
    again = start.options(dedup_id="one").enqueue(q)
    assert again.duplicate
