"""Values of batches: the callback reads what the jobs have returned, in order."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    Done,
    Handlers,
    JobCancelled,
    JobExpired,
    JobFailed,
    Reject,
    ResultGone,
    ResultTimeout,
    Retry,
    chain,
)
from tests.support.keyspace import Raw, check_invariant

handlers = Handlers()


@handlers.handler("square")
async def square(number: int) -> int:
    return number**2


@pytest.fixture
async def q(ps: AsyncPenstock, raw: Raw) -> Any:
    """A queue; the layout of its keys, and the counters of its batches, are checked at the end."""
    yield ps.queue("q")
    check_invariant(raw)


async def ended(q: AsyncQueue, raw: Raw) -> None:
    """Check that batches, their members and their values have left nothing."""
    await q.sweep()
    for kind in ("tally", "members", "batches", "held", "expiry"):
        assert not raw.exists(q.ops.keys[kind]), kind


async def acked(q: AsyncQueue, job: AsyncJob, value: bytes) -> Any:
    """Acknowledge a job with a value, as a worker does."""
    from penstock.core.jobs.job import set_result
    from penstock.core.jobs.results import results_of

    set_result(job, (value, ""))
    part = (await q.route.refresh()).part
    assert part is not None
    return await part.executor.run(q.ops.ack([job], results=results_of([job], [0.1])))


async def test_the_callback_reads_the_values_in_order(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw
) -> None:
    """In the order in which the jobs have joined, also in a retry; then nothing is left."""
    read: list[Any] = []
    own = Handlers()
    own.include(handlers)

    @own.handler("sum")
    async def total(job: AsyncJob, name: str) -> int:
        read.append(await job.batch_results())
        if job.attempt == 1:
            raise Retry(after=0)
        return sum(read[-1])

    async with q.batch(then=total.options(result_ttl=60).job("b1"), results=True) as batch:
        await batch.enqueue_many(square.jobs([3, 1]))
        await batch.enqueue(square.options(priority=9).job(2))
        with pytest.raises(ResultTimeout):
            await q.batches.results(batch.id)
    first = await q.batches.results(batch.id, return_exceptions=True)
    assert [type(one) for one in first] == [ResultTimeout] * 3
    await AsyncWorker(ps, q, own, burst=True, concurrency=1).run()
    assert read == [[9, 1, 4]] * 2
    assert await q.result(batch.id, timeout=10) == 14
    with pytest.raises(ResultGone, match="has no values"):
        await q.batches.results(batch.id)
    await q.configure(results_max=0)
    await q.sweep()
    await ended(q, raw)


async def test_a_batch_without_values_pays_nothing(q: AsyncQueue, raw: Raw) -> None:
    """Its jobs have no time of keeping, no place, and nothing is noted."""
    async with q.batch(then="sum") as batch:
        await batch.enqueue_many([b"a", b"b"])
    assert set(raw.hvals(q.ops.keys["members"])) == {raw.hkeys(q.ops.keys["batches"])[0]}
    assert not raw.exists(q.ops.keys["tally"])
    with pytest.raises(ResultGone, match="results=True"):
        await q.batches.results(batch.id)
    assert b"k" not in raw.hget(q.ops.keys["meta"], "uses")


async def test_an_ack_whose_answer_was_lost(q: AsyncQueue) -> None:
    """Its repeat changes nothing; the value is that of the first."""
    async with q.batch(then="sum", results=True) as batch:
        await batch.enqueue_many([b"a", b"b"])
    one, two = await q.reserve(2)
    assert [str(outcome) for outcome in await acked(q, one, b"1")] == ["done"]
    assert [str(outcome) for outcome in await acked(q, one, b"2")] != ["done"]
    await two.ack()  # without a value
    assert await q.batches.results(batch.id) == [1, None]
    assert await q.batches.results((await q.reserve())[0]) == [1, None]


async def test_other_ends_of_jobs(q: AsyncQueue, raw: Raw) -> None:
    """Each has its error, in its place; the first one is raised."""
    async with q.batch(then="sum", on="finished", results=True) as batch:
        added = [await batch.enqueue(name, ttl=60) for name in "abcde"]
        brief = await batch.enqueue("f", ttl=0.001)
    jobs = {job.body: job for job in await q.reserve(5)}
    await acked(q, jobs["a"], b"[1]")
    await jobs["b"].bury("broken")
    await q.cancel([added[2].id])
    await jobs["c"].release()
    await q.delete([added[3].id])
    await acked(q, jobs["e"], b"5")
    while await q.show(brief.id) is not None:
        await q.sweep()
    found = await q.batches.results(batch.id, return_exceptions=True)
    kinds = [type(one) for one in found]
    assert kinds == [list, JobFailed, JobCancelled, ResultGone, int, JobExpired]
    assert "broken" in str(found[1])
    with pytest.raises(JobFailed):
        await q.batches.results(batch.id)
    await q.redrive([added[1].id])
    (again,) = [job for job in await q.reserve(2) if job.body == "b"]
    await acked(q, again, b"2")
    assert (await q.batches.results(batch.id, return_exceptions=True))[:2] == [[1], 2]
    await q.ack([batch.id])
    await ended(q, raw)


@pytest.mark.parametrize("way", ["delete", "cancel", "clear"])
async def test_a_callback_that_ends_before_its_jobs(q: AsyncQueue, raw: Raw, way: str) -> None:
    """Values go with it, and those of jobs that end later are not kept."""
    async with q.batch(then="sum", results=True) as batch:
        await batch.enqueue_many([b"a", b"b"])
    one, two = await q.reserve(2)
    await acked(q, one, b"1")
    if way == "clear":
        await q.clear()
    else:
        await getattr(q, way)([batch.id])
        await acked(q, two, b"2")
    await ended(q, raw)


async def test_jobs_that_hand_over(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """One next job takes the place of its job, and so does a batch; several get places behind."""
    own = Handlers()
    own.include(handlers)

    @own.handler("one")
    async def one(number: int) -> Done:
        return Done("unread", then=[square.job(number)])

    @own.handler("two")
    async def two(number: int) -> Done:
        return Done("kept", then=[square.job(number), square.job(number + 1)])

    @own.handler("inner")
    async def inner(job: AsyncJob) -> Any:
        return await job.batch_results()

    @own.handler("nested")
    async def nested() -> Done:
        return Done(batch=square.jobs([5, 6]), then=inner.job(), results=True)

    read: list[Any] = []

    @own.handler("sum")
    async def total(job: AsyncJob) -> None:
        read.append(await job.batch_results())

    async with q.batch(then=total.job(), results=True) as batch:
        for job in (two.job(3), one.job(7), nested.job(), square.job(9)):
            await batch.enqueue(job)
    await AsyncWorker(ps, q, own, burst=True, concurrency=1).run()
    assert read == [["kept", 49, [25, 36], 81, 9, 16]]
    await ended(q, raw)


async def test_values_that_do_not_fit(q: AsyncQueue, raw: Raw) -> None:
    """Each has its reason; the batch goes on."""
    await q.configure(result_size=10)
    async with q.batch(then="sum", on="finished", results=True) as batch:
        await batch.enqueue_many([b"a", b"b", b"c", b"d"])
    jobs = {job.raw: job for job in await q.reserve(4)}
    await acked(q, jobs[b"a"], b'"' + b"x" * 9 + b'"')
    await acked(q, jobs[b"b"], b"!json")
    await acked(q, jobs[b"c"], b'"' + b"x" * 8 + b'"')
    head = b"nb" + raw.hkeys(q.ops.keys["batches"])[0]
    count, size = map(int, raw.hget(q.ops.keys["tally"], head).split())
    raw.hset(q.ops.keys["tally"], head, f"{count} {16 * 2**20 - 5}")
    await acked(q, jobs[b"d"], b'"xxxxx"')
    raw.hset(q.ops.keys["tally"], head, f"{count} {size + len(b' done !room')}")
    found = await q.batches.results(batch.id, return_exceptions=True)
    assert [type(one) for one in found] == [ResultGone, ResultGone, str, ResultGone]
    for place, reason in ((0, "result_size"), (1, "JSON"), (3, "16 MiB")):
        assert reason in str(found[place])


async def test_a_batch_of_more_jobs_than_have_values(q: AsyncQueue, raw: Raw) -> None:
    """Those beyond 10,000 have none; a call removes 2,000 values, and sweep the others."""
    async with q.batch(then="sum", on="finished", results=True) as batch:
        await batch.enqueue_many([b"x"] * 2500)
        callback = raw.hkeys(q.ops.keys["batches"])[0]
        head = b"nb" + callback
        assert raw.hget(q.ops.keys["tally"], head).startswith(b"2500 ")
    jobs = await q.reserve(1000)
    for place in range(0, 1000, 250):
        await q.ack(jobs[place : place + 250])
    assert len(await q.batches.results(batch.id, return_exceptions=True)) == 2500
    await q.delete([batch.id])
    await q.purge("ready")
    await ended(q, raw)
    async with q.batch(then="sum", on="finished", results=True) as batch:
        callback = raw.hkeys(q.ops.keys["batches"])[0]
        await batch.enqueue_many([b"x"] * 3)
        values = raw.hgetall(q.ops.keys["tally"])
        raw.hset(q.ops.keys["tally"], b"nb" + callback, b"9999 0")
        await batch.enqueue_many([b"x"] * 3)
        found = await q.batches.results(batch.id, return_exceptions=True)
        assert len(found) == 10002
        assert "first 10,000" in str(found[10001])
        assert "has not ended" in str(found[9999])
        raw.delete(q.ops.keys["tally"])
        raw.hset(q.ops.keys["tally"], mapping=values)
    await q.clear()


async def test_places_beyond_those_that_are_kept(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw
) -> None:
    """Jobs beside the next link have no field there, and a call looks for none."""
    own, tally = Handlers(), q.ops.keys["tally"]
    own.include(handlers)

    @own.handler("more")
    async def more() -> Done:
        return Done(3, then=[square.job(1), square.job(2)])

    async with q.batch(then="sum", on="finished", results=True) as batch:
        await batch.enqueue(chain(more.job(), square, result_ttl=0.001))
        head = b"nb" + raw.hkeys(q.ops.keys["batches"])[0]
        raw.hset(tally, head, b"1000000 " + raw.hget(tally, head).split()[1])
    await AsyncWorker(ps, q, own, max_jobs=4).run()
    count, size = raw.hget(tally, head).split()
    assert (count, raw.hlen(tally)) == (b"1000002", 2)
    assert int(size) == len(raw.hget(tally, head + b":1"))
    await q.delete([batch.id])
    assert raw.hget(tally, "n:1").split()[1] == b"8000"
    for _ in range(5):
        await q.sweep()
    await ended(q, raw)


async def test_a_result_that_the_producer_asked_for(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """It is kept for its time besides, and that of the other jobs is not."""
    async with q.batch(then=square.job(1), results=True) as batch:
        added = await batch.enqueue(square.options(result_ttl=60).job(2))
        other = await batch.enqueue(square.job(3))
    await AsyncWorker(ps, q, handlers, burst=True, concurrency=1).run()
    assert await q.result(added.id, timeout=10) == 4
    with pytest.raises(ResultGone):
        await q.result(other.id, timeout=10)
    assert (await q.stats()).kept == 1


async def test_the_failed_callback_is_redriven(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Its values stay while it is a dead letter."""
    own, read = Handlers(), list[Any]()
    own.include(handlers)

    @own.handler("sum")
    async def total(job: AsyncJob) -> None:
        read.append(await job.batch_results())
        if len(read) == 1:
            raise Reject("not today")

    async with q.batch(then=total.job(), results=True) as batch:
        await batch.enqueue_many(square.jobs([1, 2]))
    await AsyncWorker(ps, q, own, burst=True).run()
    assert await q.batches.results(batch.id) == [1, 4]
    await q.redrive([batch.id])
    await AsyncWorker(ps, q, own, burst=True).run()
    assert read == [[1, 4]] * 2


@pytest.mark.parametrize("on", ["success", "finished"])
async def test_a_batch_without_jobs_follows(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, on: Any
) -> None:
    """Its callback is due at once, and reads no values."""
    own, read = Handlers(), list[Any]()

    @own.handler("none")
    async def none() -> Done:
        return Done(batch=[], then=total.job(), on=on, results=True)

    @own.handler("total")
    async def total(job: AsyncJob) -> str:
        read.append(await job.batch_results())
        return "total"

    async with q.batch(then=total.job(), results=True) as batch:
        await batch.enqueue(none.job())
    await AsyncWorker(ps, q, own, burst=True).run()
    assert read == [[], ["total"]]
    await ended(q, raw)


@pytest.mark.parametrize("default", [None, 60])
@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"dedup_id": "a"}, {"lease": 60}])
async def test_a_member_that_keeps_no_result(
    ps: AsyncPenstock, q: AsyncQueue, default: int | None, options: Any
) -> None:
    """Its value is kept for the callback all the same."""
    own = Handlers()
    own.include(handlers)

    @own.handler("more")
    async def more() -> Done:
        follow = [square.options(result_ttl=0).job(3)]
        return Done(batch=follow, then=join.options(result_ttl=0).job(), results=True)

    @own.handler("join")
    async def join(job: AsyncJob) -> Any:
        return await job.batch_results()

    await q.configure(result_ttl=default)
    async with q.batch(then="sum", results=True) as batch:
        await batch.enqueue(square.job(2), result_ttl=0, **options)
        await batch.enqueue(more.job(), result_ttl=0)
    await AsyncWorker(ps, q, own, max_jobs=4).run()
    assert await q.batches.results(batch.id) == [4, [9]]


async def test_bad_input(q: AsyncQueue) -> None:
    """The error names the argument; nothing is added."""
    with pytest.raises(BadArgument, match="results"):
        q.batch(then="sum", results=1)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="results"):
        Done(results=True)
    with pytest.raises(BadArgument, match="return_exceptions"):
        await q.batches.results("x", return_exceptions=2)  # type: ignore[arg-type]
