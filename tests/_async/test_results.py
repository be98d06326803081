"""Results: kept for jobs that ask for it, read by id, bounded; nothing is kept of other jobs."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import (
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    Done,
    Handlers,
    JobExpired,
    JobFailed,
    Middleware,
    PenstockError,
    ResultGone,
    ResultTimeout,
    RetryPolicy,
    RunEvent,
    Snooze,
)
from penstock.client._acompat import asleep
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance
from tests.support.twins import aspawn


async def work(ps: AsyncPenstock, handlers: Any, **options: Any) -> None:
    """Work until no job is left."""
    await AsyncWorker(ps, "q", handlers, burst=True, **options).run()


async def outcome(q: AsyncQueue, job_id: str) -> Any:
    """Return the result of a job that has ended, or the error in its place."""
    try:
        return await q.result(job_id, timeout=0)
    except PenstockError as error:
        return type(error)


@pytest.mark.parametrize(
    "value", [{"to": ["ada", 1.5, None, True]}, "näïve\n", 0, None, [], ""], ids=repr
)
async def test_a_value_comes_back(ps: AsyncPenstock, q: AsyncQueue, value: Any) -> None:
    """The return value of a handler is the result of its job, for as long as it is kept."""
    handlers = Handlers()

    @handlers.handler("echo", result_ttl=60)
    async def echo(what: Any) -> Any:
        return what

    job = await echo.enqueue(q, value)
    await work(ps, handlers)
    assert await job.result(timeout=10) == value
    assert await q.result(job.id) == value
    assert await ps.result(job.id) == value
    view = await q.show(job.id)
    assert view is not None
    assert (view.id, view.state, view.attempts, view.raw) == (job.id, "done", 1, b"")
    assert view.finished is not None


async def test_of_a_kept_job_the_attempt_is_known(q: AsyncQueue) -> None:
    """A view has the number of the last attempt, 0 without one, and no other counters."""
    failed, waiting = await q.enqueue(b"1", result_ttl=60), await q.enqueue(b"2", result_ttl=60)
    for _ in range(2):
        await q.nack(await q.reserve(block=0), delay=0)
    await q.ack(await q.reserve(block=0))
    await q.cancel([waiting.id])
    views = [await q.show(job.id) for job in (failed, waiting)]
    found = [(one.state, one.attempts, one.nacks, one.redeliveries) for one in views if one]
    assert found == [("done", 3, 0, 0), ("cancelled", 0, 0, 0)]


async def test_nothing_is_kept_of_other_jobs(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A job without `result_ttl` leaves nothing, also beside jobs that have one."""
    plain, kept = await q.enqueue(1), await q.enqueue(2, result_ttl=60)

    async def double(job: Any) -> Any:
        return 2 * job.body

    await work(ps, double)
    assert await outcome(q, plain.id) is ResultGone
    assert await outcome(q, kept.id) == 4
    assert (await q.stats()).kept == 1
    assert raw.hlen(q.ops.keys["held"]) == 1


async def test_a_queue_without_results_stays_a_queue_of_version_2(q: AsyncQueue, raw: Raw) -> None:
    """The first job whose result is kept makes older clients refuse the queue."""
    await q.enqueue(1, result_ttl=0)
    assert raw.hmget(q.ops.keys["meta"], "v", "uses") == [b"2", b""]
    await q.enqueue(1, result_ttl=1)
    await q.enqueue(1, lease=5, result_ttl=1)
    assert raw.hmget(q.ops.keys["meta"], "v", "uses") == [b"3", b"k"]


async def test_results_by_an_ack(q: AsyncQueue) -> None:
    """An ack leaves a state without a value: with a receipt, by id, of several, one by one."""
    jobs = await q.enqueue_many([1, 2, 3], result_ttl=60)
    one, two = await q.reserve(2, block=0)
    await one.ack()
    await q.ack([two.id, jobs[2].id])
    assert [await outcome(q, job_id) for job_id in jobs.ids] == [None, None, None]
    views = [await q.show(job_id) for job_id in jobs.ids]
    assert [view and (view.state, view.attempts) for view in views] == [
        ("done", 1),
        ("done", 1),
        ("done", 0),
    ]
    assert await jobs[0].result(timeout=0) is None


async def test_many_results_share_blocks(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """Results of jobs with neighbouring numbers that end together lie in a few fields."""
    texts = ["x" * 300 if i % 50 == 7 else f"text {i}" for i in range(230)]
    handlers = Handlers()

    @handlers.chunk("echo", size=100, result_ttl=60)
    async def echo(jobs: list[Any]) -> list[Any]:
        return [job.body for job in jobs]

    added = [await echo.enqueue_many(q, texts[:115]), await echo.enqueue_many(q, texts[115:])]
    await work(ps, handlers)
    ids = [job_id for one in added for job_id in one.ids]
    assert [await outcome(q, job_id) for job_id in ids] == texts
    assert raw.hlen(q.ops.keys["held"]) <= 6 + 5  # blocks of hundreds, and long results
    assert (await q.stats()).kept == 230
    await q.configure(results_max=115)
    for _ in range(2):  # a call removes about a hundred
        last = await q.enqueue(1, result_ttl=1)
        await q.ack([last.id])
    assert (await q.stats()).kept <= 115


async def test_a_dead_letter_is_its_own_result(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """`result` raises the stored error; after a redrive it waits again."""
    handlers = Handlers()

    @handlers.handler("fail", result_ttl=60, retry=RetryPolicy(max_attempts=1))
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.enqueue(q)
    await work(ps, handlers)
    with pytest.raises(JobFailed, match="after 1 attempts: ValueError: no") as caught:
        await job.result(timeout=1)
    assert (caught.value.error, caught.value.attempts) == ("ValueError: no", 1)
    assert copy.copy(caught.value).error == "ValueError: no"
    await q.redrive([job.id])
    assert await outcome(q, job.id) is ResultTimeout


async def test_an_expired_job(q: AsyncQueue, raw: Raw) -> None:
    """A job that expires leaves that; a deleted, purged or withdrawn one leaves nothing."""
    late = await q.enqueue(1, ttl=5, result_ttl=60)
    other = await q.enqueue(2, ttl=5)
    advance(raw, q.ops, 10)
    assert [await outcome(q, job.id) for job in (late, other)] == [JobExpired] * 2
    assert await q.reserve(block=0) == []  # this removes them
    assert [await outcome(q, job.id) for job in (late, other)] == [JobExpired, ResultGone]
    removed = await q.enqueue_many([1, 2, 3], result_ttl=60)
    await q.delete([removed[0].id])
    await q.delete([removed[1].id], if_undelivered=True)
    await q.purge()
    assert [await outcome(q, job_id) for job_id in removed.ids] == [ResultGone] * 3
    assert await outcome(q, late.id) is JobExpired


async def test_a_job_that_is_done_after_its_ttl(q: AsyncQueue, raw: Raw) -> None:
    """It is expired until its consumer acknowledges it, if no call has removed it by then."""
    late, removed = await q.enqueue_many([1, 2], ttl=5, result_ttl=60)
    jobs = await q.reserve(2, block=0)
    advance(raw, q.ops, 10)
    assert [await outcome(q, job.id) for job in (late, removed)] == [JobExpired] * 2
    view = await q.show(late.id)
    assert (view and view.state, (await q.stats()).unswept) == ("expired", 2)
    assert await jobs[0].ack()
    assert await outcome(q, late.id) is None
    await q.sweep()
    assert not await jobs[1].ack()
    assert await outcome(q, removed.id) is JobExpired


async def test_results_are_kept_for_their_time(q: AsyncQueue, raw: Raw) -> None:
    """A result whose time is over is gone at once; `sweep` frees its memory, then the queue."""
    job = await q.enqueue(1, result_ttl=60)
    await (await q.reserve(block=0))[0].ack()
    await q.sweep()
    assert await outcome(q, job.id) is None
    advance(raw, q.ops, 61)
    assert await outcome(q, job.id) is ResultGone
    assert await q.show(job.id) is None
    assert raw.hlen(q.ops.keys["held"]) == 1
    await q.sweep()
    assert not raw.exists(q.ops.keys["held"], q.ops.keys["expiry"])
    assert (await q.stats()).kept == 0


async def test_the_bounds_of_results(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """More results than `results_max`, or bytes than `results_bytes`: the soonest to end go."""

    async def echo(job: Any) -> Any:
        return job.body

    await q.configure(results_max=3)
    jobs = [await q.enqueue(i, result_ttl=100 + i) for i in range(5)]
    await work(ps, echo)
    assert [await outcome(q, job.id) for job in jobs] == [ResultGone, ResultGone, 2, 3, 4]
    await q.configure(results_max=None, results_bytes=300)
    big = await q.enqueue("x" * 200, result_ttl=1000)
    await work(ps, echo)
    assert await outcome(q, big.id) == "x" * 200
    assert (await q.stats()).kept < 4
    assert (await q.stats()).settings.results_bytes == 300


@pytest.mark.parametrize(
    "value, level, why",
    [
        ("x" * 70_000, logging.WARNING, "larger than the queue's result_size"),
        (object(), logging.ERROR, "not be written as JSON"),
        (b"bytes", logging.ERROR, "not be written as JSON"),
        ({1: 2}, logging.ERROR, "not be written as JSON"),
        (float("nan"), logging.ERROR, "not be written as JSON"),
    ],
    ids=["large", "object", "bytes", "keys", "nan"],
)
async def test_a_value_that_is_not_kept(
    ps: AsyncPenstock,
    q: AsyncQueue,
    caplog: pytest.LogCaptureFixture,
    value: object,
    level: int,
    why: str,
) -> None:
    """The job is done all the same; the log and the reader are told that its value is missing."""
    job = await q.enqueue(1, result_ttl=60)

    async def give(_: Any) -> object:
        return value

    with caplog.at_level(logging.WARNING, "penstock"):
        await work(ps, give)
    assert [(r.levelno, job.id in r.getMessage()) for r in caplog.records] == [(level, True)]
    with pytest.raises(ResultGone, match=why):
        await job.result(timeout=1)
    stats = await q.stats()
    assert (stats.acked, stats.died, stats.kept) == (1, 0, 1)


async def test_result_size_of_the_queue(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """The queue's `result_size` replaces 64 KiB; the script checks it, too."""
    await q.configure(result_size=100_000)
    large = await q.enqueue("x" * 70_000, result_ttl=60)
    small = await q.enqueue("y", result_ttl=60)

    async def echo(job: Any) -> Any:
        return job.body

    await work(ps, echo)
    assert await outcome(q, large.id) == "x" * 70_000
    assert await outcome(q, small.id) == "y"
    assert int(raw.hget(q.ops.keys["meta"], "kept_bytes") or 0) > 70_000


async def test_the_result_ttl_of_the_queue(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A job's own `result_ttl` decides before that of its handler, and this before the queue's."""
    handlers = Handlers()

    @handlers.handler("usual")
    async def usual(what: Any) -> Any:
        return what

    @handlers.handler("never", result_ttl=0)
    async def never(what: Any) -> Any:
        return what

    before = await usual.enqueue(q, 0)
    assert (await q.configure(result_ttl=60)).result_ttl == 60
    jobs = [
        await usual.enqueue(q, 1),
        await usual.options(dedup_id="a", lease=9).enqueue(q, 2),
        await usual.options(delay=0.05, ttl=60).enqueue(q, 3),
        (await q.enqueue_many([usual.job("x" * 5000)]))[0],
        await never.options(result_ttl=60).enqueue(q, 4),
    ]
    none = [before, await never.enqueue(q, 5), await usual.options(result_ttl=0).enqueue(q, 6)]
    async with AsyncWorker(ps, "q", handlers):
        assert [await job.result(timeout=20) for job in jobs] == [1, 2, 3, "x" * 5000, 4]
        assert [await outcome(q, job.id) for job in none] == [ResultGone] * 3
    await q.configure(result_ttl=None)
    after = await usual.enqueue(q, 7)
    await work(ps, handlers)
    assert await outcome(q, after.id) is ResultGone


async def test_results_after_the_letter_was_removed(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw
) -> None:
    """`sweep` removes the letter of results from a queue without jobs; the next job sets it."""
    await q.configure(result_ttl=1)
    for number in range(2):
        job = await q.enqueue(number)
        await work(ps, lambda job: job.body)
        assert await outcome(q, job.id) == number
        advance(raw, q.ops, 10)
        await q.sweep()  # removes the result
        await q.sweep()  # removes the letter, as nothing else is left to remove
        assert b"k" not in raw.hget(q.ops.keys["meta"], "uses")


async def test_a_result_that_comes_later(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """`result` waits for a job that has not ended; other waiters get it, too."""
    job = await q.enqueue(20, result_ttl=60)
    waiting = [aspawn(q.result, job.id, timeout=20) for _ in range(3)]
    await asleep(0)

    async def double(job: Any) -> Any:
        return 2 * job.body

    await work(ps, double)
    assert [await one.result() for one in waiting] == [40, 40, 40]


async def test_timeouts_and_bad_input(q: AsyncQueue) -> None:
    """A timeout is a TimeoutError; bad arguments are refused before anything is sent."""
    job = await q.enqueue(1, result_ttl=60)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.02 s"):
        await q.result(job.id, timeout=0.02)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("timeout", lambda: q.result(job.id, timeout=-1)),
        ("id", lambda: q.result("nonsense")),
        ("result_ttl", lambda: q.enqueue(1, result_ttl=-1)),
        ("result_ttl", lambda: q.enqueue(1, result_ttl="60")),  # type: ignore[arg-type]  # wrong on purpose
        ("result_ttl", lambda: q.enqueue_many([1], result_ttl=float("nan"))),
        ("results_max", lambda: q.configure(results_max=-1)),
    ]
    for name, call in calls:
        with pytest.raises(BadArgument) as caught:
            await call()
        assert caught.value.argument == name
    with pytest.raises(BadArgument, match="result_ttl"):
        Handlers().handler("x", result_ttl=-1)(work)
    with pytest.raises(BadArgument, match=r"call queue.result\(id\)"):
        await copy.copy(job).result()


async def test_batches_and_results(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A list that a chunk handler returns has the value of each job; another value is of none."""
    handlers = Handlers()

    @handlers.chunk("pairs", size=3, result_ttl=60)
    async def pairs(jobs: list[Any]) -> Any:
        if jobs[0].body == "one":
            return "for all"
        return [Snooze(3600) if job.body == "later" else [job.body] for job in jobs]

    added = [await q.enqueue(pairs.job(body)) for body in ("a", "later", "b")]
    await work(ps, handlers)
    assert [await outcome(q, job.id) for job in added] == [["a"], ResultTimeout, ["b"]]
    alone = await q.enqueue(pairs.job("one"))
    await work(ps, handlers)
    assert await outcome(q, alone.id) is None


async def test_done_has_no_value(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """`Done` ends the job without a value, and a job that its handler acks has none."""
    first, second = [await q.enqueue(i, result_ttl=60) for i in (1, 2)]

    async def end(job: Any) -> Any:
        if job.body == 1:
            return Done()
        await job.ack()
        return "too late"

    await work(ps, end)
    assert [await outcome(q, job.id) for job in (first, second)] == [None, None]


async def test_middleware_sees_the_value(backend: Backend) -> None:
    """`RunEvent.value` is the return value, whether or not it is kept."""
    values: list[Any] = []

    class Seeing(Middleware):
        @contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            yield
            values.append(event.value)

    async def echo(job: Any) -> Any:
        return job.body

    async with backend.async_client() as lent, AsyncPenstock(lent, middleware=[Seeing()]) as ps:
        kept = await ps.queue("q").enqueue([1], result_ttl=60)
        await ps.queue("q").enqueue([2])
        await work(ps, echo)
        assert values == [[1], [2]]
        assert await kept.result(timeout=1) == [1]


async def test_results_of_duplicates_and_updates(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A duplicate answers with the result of the existing job; an update keeps its time."""
    first = await q.enqueue(1, dedup_id="a", result_ttl=60)
    second = await q.enqueue(2, dedup_id="a")

    async def echo(job: Any) -> Any:
        return job.body

    await work(ps, echo)
    assert second.id == first.id
    assert await second.result(timeout=1) == 1


async def test_partitions_and_results(ps: AsyncPenstock) -> None:
    """A result lies in the partition of its job; the id finds it."""
    q = ps.queue("q", partitions=4)
    jobs = [await q.enqueue(i, result_ttl=60, key=str(i)) for i in range(8)]

    async def echo(job: Any) -> Any:
        return job.body

    await work(ps, echo)
    assert [await job.result(timeout=1) for job in jobs] == list(range(8))
    assert (await q.stats()).kept == 8


async def test_results_and_a_clear(q: AsyncQueue, raw: Raw) -> None:
    """`clear` removes results; listings do not show them."""
    await q.enqueue_many([1, 2], result_ttl=60)
    await q.ack(await q.reserve(2, block=0))
    page = await q.jobs().page()
    assert page.ids == []
    assert await q.peek() == []
    await q.clear()
    assert not raw.exists(q.ops.keys["held"])


async def test_a_result_of_a_queue_that_is_gone(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The client finds the queue of an id in the registry, unless it was cleared."""
    job = await q.enqueue(1, result_ttl=60)
    await q.clear()
    with pytest.raises(ResultGone, match="its queue was deleted"):
        await ps.result(job.id)
    with pytest.raises(BadArgument, match="id="):
        await ps.result("nonsense")


async def test_copies_of_answers_have_no_queue(q: AsyncQueue) -> None:
    """Answers to an enqueue can be pickled; a copy names the jobs, and `Queue.result` asks."""
    plain = await q.enqueue_many([1, 2], result_ttl=60)
    named = await q.enqueue_many([3, 4], result_ttl=60, dedup_id=str)
    for many in (plain, named):
        copied = pickle.loads(pickle.dumps(many))
        assert copied.ids == many.ids
        with pytest.raises(BadArgument, match=r"call queue.result\(id\)"):
            await copied[1].result()
        await q.ack(many.ids)
        assert [await one.result(timeout=10) for one in many] == [None, None]
