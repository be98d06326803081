"""Chains: each job gets the value of the one before."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
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
    JobFailed,
    Outcome,
    Reject,
    ResultGone,
    Retry,
    chain,
)
from tests.support.keyspace import Raw, check_invariant

handlers = Handlers()


@handlers.handler("add")
async def add(a: int, b: int) -> int:
    return a + b


@handlers.handler("double")
async def double(number: int) -> int:
    return 2 * number


@pytest.fixture
async def q(ps: AsyncPenstock, raw: Raw) -> Any:
    """A queue; the layout of its keys is checked at the end."""
    yield ps.queue("q")
    check_invariant(raw)


async def run(ps: AsyncPenstock, q: AsyncQueue, *others: Handlers, **options: Any) -> None:
    """Run the jobs that there are, and those that follow."""
    own = Handlers()
    for some in (handlers, *others):
        own.include(some)
    await AsyncWorker(ps, q, own, burst=True, **options).run()


def states(status: Any) -> Any:
    """Return state, number of jobs that are done, and of those that follow."""
    return status.state, status.done, status.left


async def test_each_job_gets_the_value_of_the_one_before(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The handle has the state of the whole, and the result of the last job."""
    job = await q.enqueue(chain(add.job(1, 2), double, partial(add, b=4), add.job(20, 30)))
    assert states(await job.status()) == ("ready", 0, 3)
    read: list[Any] = []
    own = Handlers()

    @own.handler("stop")
    async def stop(value: int) -> None:
        read.append(value)

    other = await q.enqueue(chain(add.job(1, 2), double, partial(add, b=4), stop))
    await run(ps, q, own)
    assert await job.result(timeout=10) == 50
    assert states(await job.status()) == ("done", 4, 0)
    assert (await other.result(timeout=10), read) == (None, [10])
    assert (await q.chains.status((await job.status()).id)).done == 1


async def test_a_result_is_waited_for_along_the_chain(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The waiting call is told of each end."""
    job = await q.enqueue(chain(add.job(1, 2), *[double] * 5))
    async with AsyncWorker(ps, q, handlers):
        assert await job.result(timeout=30) == 96


async def test_options_of_links(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """Each has its own: delay, priority, lease, ttl, headers, and how long the result is kept."""
    last = double.options(delay=0.001, priority=3, lease=60, headers={"who": "ada"}, result_ttl=5)
    job = await q.enqueue(chain(add.job(1, 2), double.options(ttl=60), last))
    views: list[Any] = []
    own = Handlers()

    @own.default
    async def look(held: AsyncJob) -> int:
        views.append(held)
        return 1

    async with AsyncWorker(ps, q, own):
        assert await job.result(timeout=30) == 1
    assert [view.headers["handler"] for view in views] == ["add", "double", "double"]
    assert [view.ttl for view in views] == [None, 60, None]
    assert (views[2].priority, views[2].lease, views[2].headers["who"]) == (3, 60, "ada")
    assert (views[1].body, views[2].body) == ({"number": 1}, {"number": 1})
    assert "chain" not in views[2].headers


async def test_a_dead_link_is_redriven(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The result is its failure until then; the chain goes on."""
    own, runs = Handlers(), list[int]()

    @own.handler("flaky")
    async def flaky(job: AsyncJob, number: int) -> int:
        runs.append(job.attempt)
        if len(runs) == 1:
            raise Retry(after=0)
        if len(runs) == 2:
            raise Reject("not today")
        return number + 1

    job = await q.enqueue(chain(add.job(1, 2), flaky, double))
    await run(ps, q, own)
    with pytest.raises(JobFailed, match="not today"):
        await job.result(timeout=10)
    status = await job.status()
    assert (*states(status), status.error) == ("dead", 1, 1, "not today")
    await q.redrive([status.id])
    await run(ps, q, own)
    assert await job.result(timeout=10) == 8


async def test_a_report_that_is_repeated(q: AsyncQueue, raw: Raw) -> None:
    """A link hands over once, however often its ack is sent, and a late one changes nothing."""
    from penstock.core.jobs.job import set_result
    from penstock.core.jobs.results import results_of

    handle = await q.enqueue(b"first", result_ttl=60)
    [job] = await q.reserve(block=0)
    set_result(job, (b"", "next"))
    part = (await q.route.refresh()).part
    assert part is not None
    for expected in (True, False):
        call = q.ops.hand_over([job], [(0, b"1;k=60000\nsecond")], results=results_of([job], [0.1]))
        assert (await part.executor.run(call)).all_done is expected
    assert [view.raw for view in await q.peek()] == [b"second"]
    assert states(await handle.status()) == ("ready", 1, 0)


@pytest.mark.parametrize("when", ["waiting", "active", "between", "dead", "done"])
async def test_a_chain_that_is_cancelled(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, when: str
) -> None:
    """Its present job ends, whichever it is, and no other follows."""
    own, ran = Handlers(), list[str]()
    handles: list[Any] = []

    @own.handler("second")
    async def second(number: int) -> int:
        ran.append("second")
        if when == "active":  # it is marked, and finishes before its worker learns of it
            assert await handles[0].cancel() is Outcome.CANCELLED
        if when == "dead":
            raise Reject("no")
        return number

    @own.handler("third")
    async def third(number: int) -> int:
        ran.append("third")
        return number

    handles.append(await q.enqueue(chain(add.job(1, 2), second, third)))
    [job] = handles
    if when == "waiting":
        assert await job.cancel() is Outcome.DONE
    elif when == "between":
        await run(ps, q, max_jobs=1)
        assert states(await job.status()) == ("ready", 1, 1)
        assert await job.cancel() is Outcome.DONE
    await run(ps, q, own)
    if when == "dead":
        assert await job.cancel() is Outcome.REFUSED
        assert ran == ["second"]
        return
    if when == "done":
        assert await job.cancel() is Outcome.GONE
        assert ran == ["second", "third"]
        return
    assert ran == (["second"] if when == "active" else [])
    with pytest.raises(JobCancelled):
        await job.result(timeout=10)
    assert (await job.status()).state == "cancelled"


async def test_chains_in_a_batch(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The callback follows the last jobs, and gets their values."""
    own, read = Handlers(), list[Any]()

    @own.handler("sum")
    async def total(job: AsyncJob) -> None:
        read.append(await job.batch_results())

    async with q.batch(then=total.job(), results=True) as batch:
        for number in (1, 2, 3):
            await batch.enqueue(chain(add.job(number, 0), double, double))
        await batch.enqueue(add.job(1, 1))
    await run(ps, q, own, concurrency=1)
    assert read == [[4, 8, 12, 2]]


async def test_links_that_hand_over(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Jobs that a link asks for are added besides; the callback of a batch takes its place."""
    own, ran = Handlers(), list[Any]()

    @own.handler("also")
    async def also(number: int) -> None:
        ran.append(number)

    @own.handler("both")
    async def both(number: int) -> Done:
        return Done(number + 1, then=[also.job(number)])

    @own.handler("many")
    async def many(number: int) -> Done:
        return Done(batch=[add.job(number, 1), add.job(number, 2)], then=joined.job(), results=True)

    @own.handler("joined")
    async def joined(job: AsyncJob) -> int:
        return sum(await job.batch_results())

    job = await q.enqueue(chain(add.job(1, 2), both, many, double))
    await run(ps, q, own, concurrency=1)
    assert (await job.result(timeout=10), ran) == (2 * (5 + 6), [3])


async def test_a_chunk_of_links(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Each job has its own next one, with its own value."""
    own = Handlers()

    @own.chunk("many", size=10)
    async def many(jobs: list[AsyncJob]) -> list[int]:
        return [job.body + 1 for job in jobs]

    async with q.batch(then="sum", results=True) as batch:
        await batch.enqueue_many([chain(many.job(number), many, double) for number in range(3)])
    await run(ps, q, own, max_jobs=9)
    assert await q.batches.results(batch.id) == [4, 6, 8]


async def test_a_chain_in_partitions(ps: AsyncPenstock) -> None:
    """Its jobs stay in the partition of the first one, whatever their keys."""
    q = ps.queue("parted", partitions=2)
    jobs = [
        await q.enqueue(chain(add.options(key=f"k{one}").job(one, 1), double.options(key="x")))
        for one in range(4)
    ]
    await AsyncWorker(ps, q, handlers, burst=True).run()
    assert [await job.result(timeout=10) for job in jobs] == [2, 4, 6, 8]
    assert [states(await job.status()) for job in jobs] == [("done", 2, 0)] * 4


async def test_a_schedule_of_chains(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Each tick adds one."""
    await q.schedules.add("nightly", every=3600, job=chain(add.job(1, 2), double))
    job = await q.schedules.run("nightly")
    await run(ps, q)
    assert await q.result(job.id, timeout=10) == 6


async def test_a_value_that_can_not_be_passed(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """It fails the job, as nothing could follow it."""
    own = Handlers()

    @own.handler("broken")
    async def broken() -> Any:
        return object()

    @own.handler("long")
    async def long(size: int) -> str:
        return "x" * size

    await q.configure(result_size=2_000_000)
    job = await q.enqueue(chain(broken.job(), double))
    other = await q.enqueue(chain(long.job(1_048_576), long))
    await run(ps, q, own)
    with pytest.raises(JobFailed, match="next job of a chain"):
        await job.result(timeout=10)
    with pytest.raises(JobFailed, match="at most 1048576 bytes"):
        await other.result(timeout=10)
    assert [view.deliveries for view in await q.peek(2, state="dead")] == [1, 1]


@pytest.mark.parametrize("size", [65_534, 1_000_000])
async def test_a_long_value(ps: AsyncPenstock, q: AsyncQueue, size: int) -> None:
    """It may have `result_size` bytes, whatever follows in the chain."""
    own = Handlers()

    @own.handler("long")
    async def long(size: int) -> str:
        return "x" * size

    @own.handler("count")
    async def count(text: str, name: str) -> int:
        return len(text)

    if size > 65_534:
        await q.configure(result_size=size + 2)
    job = await q.enqueue(chain(long.job(size), partial(count, name="y" * 3000), double))
    await run(ps, q, own)
    assert await job.result(timeout=10) == 2 * size


async def test_a_link_with_many_next_jobs(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """It may hand over to 16 jobs besides the next link."""
    own, ran = Handlers(), list[int]()

    @own.handler("also")
    async def also(number: int) -> None:
        ran.append(number)

    @own.handler("many")
    async def many() -> Done:
        return Done(3, then=[also.job(number) for number in range(16)])

    job = await q.enqueue(chain(many.job(), double))
    await run(ps, q, own, concurrency=1)
    assert (await job.result(timeout=10), sorted(ran)) == (6, list(range(16)))


async def test_the_way_is_kept_for_a_time(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Then the chain is lost for its handle, and goes on."""
    job = await q.enqueue(chain(add.job(1, 2), double, result_ttl=0.001))
    await run(ps, q)
    with pytest.raises(ResultGone):
        await job.result(timeout=10)
    assert (await job.status()).state == "gone"
    assert await job.cancel() is Outcome.GONE


@handlers.handler("bare")
async def bare() -> None: ...


@handlers.handler("elsewhere", queue="other")
async def elsewhere(value: int) -> None: ...


@handlers.handler("here", queue="q")
async def here(value: int) -> None: ...


@pytest.mark.parametrize(
    "jobs, reason",
    [
        ([add, double], "first one must be a job"),
        ([add.job(1, 2)], "2 to 100 jobs"),
        ([add.job(1, 2), *[double] * 100], "2 to 100 jobs"),
        ([add.job(1, 2), "double"], "must be a handler"),
        ([add.job(1, 2), partial(print)], "must be a handler"),
        ([add.job(1, 2), bare], "takes no argument"),
        ([add.job(1, 2), add], "missing"),
        ([add.job(1, 2), partial(add, b=1, c=1)], "unexpected"),
        ([add.job(1, 2), partial(add, b="x")], "must be int"),
        ([add.job(1, 2), double.options(lease=0)], "at least once"),
        ([add.options(lease=0).job(1, 2), double], "at least once"),
        ([add.job(1, 2), double.options(max_length=5)], "can't have it"),
        ([add.job(1, 2), partial(add, b=10**4000), *[partial(add, b=10**4000)] * 3], "12288"),
        ([add.job(1, 2), double.options(lease=timedelta(0))], "at least once"),
        ([here.job(1), elsewhere], "one queue"),
        ([add.job(1, 2), elsewhere], "one queue"),
    ],
)
def test_bad_input(jobs: Any, reason: str) -> None:
    """The error names the argument and the way out."""
    with pytest.raises(BadArgument, match=reason):
        chain(*jobs)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"result_ttl": 0}, "which one follows"),
        ({"result_ttl": timedelta(seconds=59)}, "which one follows"),
        ({"lease": 0}, "at least once"),
        ({"headers": {"chain": "[]"}}, "omit it"),
    ],
)
async def test_options_of_an_enqueue(q: AsyncQueue, options: Any, reason: str) -> None:
    """Those that would end the chain are refused, and nothing is added."""
    job = chain(add.job(1, 2), double, result_ttl=60)
    with pytest.raises(BadArgument, match=reason):
        await q.enqueue(job, **options)
    with pytest.raises(BadArgument, match=reason):
        await q.enqueue_many([job, job], **options)
    assert await q.peek() == []
    assert (await q.enqueue(job, result_ttl=90, lease=60, headers={"who": "ada"})).id


async def test_a_chain_goes_on_whatever_is_kept(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A job with the header alone, as another client may add it, is a link all the same."""
    following = chain(add.job(1, 2), double, double).options.headers["chain"]
    own, read = Handlers(), list[int]()

    @own.handler("double")
    async def look(number: int) -> int:
        read.append(number)
        return 2 * number

    @own.handler("add")
    async def first(a: int, b: int) -> int:
        return a + b

    await q.enqueue(add.job(1, 2), headers={"chain": following})
    await AsyncWorker(ps, q, own, burst=True).run()
    assert read == [3, 6]
    job = await q.enqueue(add.job(2, 2), headers={"chain": following})
    await AsyncWorker(ps, q, own, max_jobs=1).run()
    assert (await q.peek())[0].body == {"number": 4}
    assert await job.cancel() is Outcome.GONE


@pytest.mark.parametrize("way", ["job", "durable", "queue"])
async def test_a_link_that_acknowledges_itself(ps: AsyncPenstock, q: AsyncQueue, way: str) -> None:
    """It is refused, as no job would follow: the handler returns its value."""
    own = Handlers()

    @own.handler("first")
    async def first(job: AsyncJob) -> int:
        options: Any = {"dedup_window": 5} if way == "durable" else {}
        with pytest.raises(BadArgument, match="return the value"):
            await (q.ack([job]) if way == "queue" else job.ack(**options))
        return 4

    job = await q.enqueue(chain(first.job(), double))
    await run(ps, q, own)
    assert await job.result(timeout=10) == 8


async def test_a_header_of_the_user(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A header with the name that chains use, and another text, changes nothing."""
    job = await q.enqueue(add.job(1, 2), headers={"chain": "gold"}, result_ttl=60)
    await run(ps, q)
    assert await job.result(timeout=10) == 3
