"""Hand-over: `Done(then=[...])` acknowledges a job and adds the jobs that follow it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, AsyncWorker, Done, Handlers
from penstock.core.enqueuing.next_jobs import next_jobs, records_of
from penstock.core.jobs.outcomes import Outcome
from penstock.worker._async.hand_over import hand_over


async def work(ps: AsyncPenstock, handlers: Any, *queues: str, **options: Any) -> AsyncWorker:
    """Work until no job is left."""
    worker = AsyncWorker(ps, list(queues or ("q",)), handlers, burst=True, **options)
    await worker.run()
    return worker


class Chain:
    """Handlers of which each hands over to the next: `fetch`, `resize` twice, and `notify`."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.handlers = handlers = Handlers()

        @handlers.handler("fetch", result_ttl=60)
        async def fetch(path: str) -> Any:
            self.ran.append(("fetch", path))
            return Done(len(path), then=[resize.job(path, width) for width in (100, 200)])

        @handlers.handler("resize")
        async def resize(path: str, width: int) -> Any:
            self.ran.append(("resize", width))
            if width == 200:
                raise Done(then=[self.notify.job(path)])

        @handlers.handler("notify")
        async def notify(path: str) -> None:
            self.ran.append(("notify", path))

        self.fetch, self.resize, self.notify = fetch, resize, notify


async def test_a_chain_of_jobs(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The next jobs run, the value is the result, and raising `Done` is as good as returning it."""
    chain = Chain()
    first = await chain.fetch.enqueue(q, "a.png")
    worker = await work(ps, chain.handlers)
    assert chain.ran == [
        ("fetch", "a.png"), ("resize", 100), ("resize", 200), ("notify", "a.png"),
    ]  # fmt: skip
    assert worker.status().stats.counts == {"done": 4}
    assert await q.result(first.id, timeout=5) == 5
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.enqueued) == (0, 0, 0, 4)


async def test_options_of_the_next_jobs(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Delay, lease, ttl, headers and kept results of a handler apply."""
    handlers = Handlers()

    @handlers.handler("later", lease=7, result_ttl=60)
    async def later(number: int) -> None:
        """Stay in the queue."""

    @handlers.handler("now")
    async def now() -> Any:
        timed = later.options(delay=60, ttl=3600, headers={"trace": "abc"})
        return Done(then=[timed.job(1)])

    await now.enqueue(q)
    await work(ps, handlers)
    (view,) = await q.peek(state="scheduled")
    assert (view.body, view.headers) == (
        {"number": 1},
        {"handler": "later", "trace": "abc"},
    )
    assert view.lease == 7
    assert view.ttl == pytest.approx(3600, abs=5)


async def test_a_queue_that_takes_no_jobs(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A full, paused and closed queue takes the next jobs, and is drained by them."""
    chain = Chain()
    await chain.fetch.enqueue(q, "a.png")
    await q.configure(max_length=1)
    await q.pause("in")
    await q.close()
    await work(ps, chain.handlers)
    assert len(chain.ran) == 4
    assert (await q.stats()).ready == 0


async def test_another_queue(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A handler that names its queue gets the job there, once however often the ack is tried."""
    handlers = Handlers()
    other = ps.queue("other")

    @handlers.handler("notify", queue="other")
    async def notify(name: str) -> None:
        """Stay in the queue."""

    @handlers.handler("sign_up")
    async def sign_up(name: str) -> Any:
        return Done(then=[notify.job(name), sign_up.options(delay=60).job(name)])

    await sign_up.enqueue(q, "ada")
    (job,) = await q.reserve()
    then = next_jobs([notify.job("ada")])
    assert then is not None
    assert await hand_over(ps, job, then) == ()
    assert await hand_over(ps, job, then) == ()  # as if the worker had died before the ack
    await job.release()
    await work(ps, handlers, "q")
    assert [view.body for view in await other.peek(10)] == [{"name": "ada"}]
    assert (await q.stats()).scheduled == 1


async def test_a_hand_over_that_fails(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Jobs that are too large, or can't be encoded, fail the job; nothing is added."""
    handlers = Handlers()

    @handlers.handler("big")
    async def big(text: str) -> None:
        """Not reached."""

    @handlers.handler("start", retry=None)
    async def start(size: int) -> Any:
        return Done(then=[big.job("x" * size)] * 2)

    await start.enqueue(q, 40_000)
    await start.enqueue(q, 20_000)
    worker = await work(ps, handlers)
    assert worker.status().stats.counts == {"retried": 1, "done": 3}
    (view,) = await q.peek(state="scheduled")
    assert "at most 65536 bytes" in view.error


async def test_a_lost_job_hands_nothing_over(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A stale receipt, and a repeat of the call, add nothing."""
    chain = Chain()
    await chain.fetch.enqueue(q, "a.png")
    (job,) = await q.reserve()
    records = records_of([chain.notify.job("a.png")], None, most=1000)
    await q.release([job.id])
    (again,) = await q.reserve()
    stale = q.ops.hand_over([job], records)
    assert [*await q.route.node.executor.run(stale)] == [Outcome.STALE]
    call = q.ops.hand_over([again], records)
    assert [*await q.route.node.executor.run(call)] == [Outcome.DONE]
    assert [*await q.route.node.executor.run(q.ops.hand_over([again], records))] == [Outcome.GONE]
    assert (await q.stats()).ready == 1


async def test_chunks_hand_over(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Each job of a chunk has its own next jobs; one `Done` for all of them has them once."""
    handlers, ran = Handlers(), list[Any]()

    @handlers.handler("note")
    async def note(text: str) -> None:
        ran.append(text)

    @handlers.chunk("each", size=2)
    async def each(jobs: list[Any]) -> Any:
        return [Done(then=[note.job(job.body)]) for job in jobs]

    @handlers.chunk("all", size=2)
    async def together(jobs: list[Any]) -> Any:
        return Done(then=[note.job("once")])

    await q.enqueue_many(["a", "b"], headers=each.headers)
    await q.enqueue_many(["c", "d"], headers=together.headers)
    worker = await work(ps, handlers)
    assert sorted(ran) == ["a", "b", "once"]
    assert worker.status().stats.counts == {"done": 7}


async def test_a_dedup_window_with_next_jobs(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The window of `Done` holds, too."""
    handlers = Handlers()

    @handlers.handler("end")
    async def end() -> None:
        """Do nothing."""

    @handlers.handler("start")
    async def start() -> Any:
        return Done(then=[end.job()], dedup_window=60)

    await start.options(dedup_id="one").enqueue(q)
    await work(ps, handlers)
    again = await start.options(dedup_id="one").enqueue(q)
    assert again.duplicate
