"""Batches: jobs that a callback follows, whatever becomes of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    BatchClosed,
    BatchFailure,
    Done,
    Handlers,
    Reject,
)
from penstock.client._async.client import twin_of
from tests.support.keyspace import Raw, check_invariant


@pytest.fixture
async def q(ps: AsyncPenstock, raw: Raw) -> Any:
    """A queue; the layout of its keys, and the counters of its batches, are checked at the end."""
    yield ps.queue("q")
    check_invariant(raw)


async def figures(q: AsyncQueue, batch: str) -> Any:
    """Return state, total, done, failed and dead of a batch; None = its callback has ended."""
    status = await q.batches.get(batch)
    if status is None:
        return None
    return status.state, status.total, status.done, status.failed, status.dead


async def taken(q: AsyncQueue) -> Any:
    """Reserve the only job that can be taken now."""
    (job,) = await q.reserve(1, block=0)
    return job


async def test_a_batch_from_begin_to_end(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The callback runs once, after all jobs; then the batch is gone."""
    ran: list[Any] = []
    handlers = Handlers()

    @handlers.handler("resize")
    async def resize(number: int) -> None:
        ran.append(number)

    @handlers.handler("summary")
    async def summary(name: str) -> None:
        ran.append(name)

    async with q.batch(then=summary.job("b1")) as batch:
        await batch.enqueue(resize.job(0))
        await batch.enqueue_many(resize.jobs([1, 2]))
        await resize.enqueue(batch.queue, 3)
        await resize.enqueue(q, 4)  # no member
        assert await figures(q, batch.id) == ("open", 4, 0, 0, 0)
    assert await figures(q, batch.id) == ("waiting", 4, 0, 0, 0)
    views = await q.peek(10)
    shown = [await q.show(view.id) for view in views]
    assert [view.batch for view in views] == [batch.id] * 4 + [None]
    assert [view and view.batch for view in shown] == [batch.id] * 4 + [None]
    assert (await q.stats()).batches == 1
    (listed,) = await q.batches.list()
    assert (listed.id, listed.on, listed.open, listed.progress) == (batch.id, "success", 4, 0.0)
    await AsyncWorker(ps, q, handlers, burst=True, concurrency=1).run()
    assert ran == [0, 1, 2, 3, 4, "b1"]
    assert await figures(q, batch.id) is None
    assert await q.batches.list() == []
    assert (await q.stats()).batches == 0


async def test_the_first_call_of_a_client_reads_a_batch(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Its answer has the id of the batch, with the node that the client has not met before."""
    async with q.batch(then="end") as batch:
        pass
    other = twin_of(ps, federation=False)
    status = await other.queue("q").batches.get(batch.id)
    await other.close()
    assert status is not None
    assert status.id == batch.id


@pytest.mark.parametrize("on", ["success", "finished"])
async def test_dead_members(q: AsyncQueue, on: Any) -> None:
    """They are no progress while the callback waits for them; a search finds them."""
    async with q.batch(then="callback", on=on) as batch:
        await batch.enqueue_many([b"a", b"b", b"c", b"d"])
    jobs = await q.reserve(4)
    await jobs[0].ack()
    await jobs[1].bury("broken")
    waits = on == "success"
    [status] = await q.batches.list()
    assert (status.awaited, status.is_stuck) == (3 if waits else 2, False)
    await q.ack(jobs[2:])
    [status] = await q.batches.list()
    assert (status.progress, status.is_stuck) == (0.75 if waits else 1.0, waits)
    dead = [view.raw async for view in q.jobs("dead", batch=batch.id)]
    assert dead == [b"b"]
    assert status.failures == ()
    status = await batch.status()
    assert status is not None
    assert status.failures == (BatchFailure(jobs[1].id, "", "broken"),)
    await q.redrive([jobs[1].id])
    status = await q.batches.get(batch.id)
    assert status is not None
    assert (status.is_stuck, status.failures) == (False, ())
    again = {job.raw: job for job in await q.reserve(2)}
    await again[b"b"].ack()
    [status] = await q.batches.list()
    assert (status.state, status.progress) == ("called", 1.0)


async def test_the_first_dead_letters_are_named(q: AsyncQueue) -> None:
    """Of many there are 20, the oldest first, with handler and error; others are left out."""
    handlers = Handlers()

    @handlers.handler("resize", result_ttl=60)
    async def resize(number: int) -> None: ...

    await q.enqueue_many([b"other"] * 3)
    await q.bury(await q.reserve(3), "not of the batch")
    async with q.batch(then="callback") as batch:
        added = await batch.enqueue_many(resize.options(ttl=3600).jobs(range(25)))
    for number, job in enumerate(await q.reserve(25)):
        await job.bury(f"reason {number}")
    status = await q.batches.get(batch.id)
    assert status is not None
    assert (status.dead, status.is_stuck, status.progress) == (25, True, 0.0)
    assert status.failures == tuple(
        BatchFailure(added[number].id, "resize", f"reason {number}") for number in range(20)
    )


@pytest.mark.parametrize("on", ["success", "finished"])
async def test_an_empty_batch(q: AsyncQueue, on: Any) -> None:
    """Its callback is due at once."""
    async with q.batch(then="callback", on=on) as batch:
        assert await q.reserve(1, block=0) == []
    assert await figures(q, batch.id) == ("called", 0, 0, 0, 0)
    job = await taken(q)
    assert (job.id, job.body) == (batch.id, "callback")
    assert (await q.batches.list())[0].progress == 1.0
    assert await job.ack()
    assert await figures(q, batch.id) is None


async def ack(q: AsyncQueue, _: Raw) -> None:
    await (await taken(q)).ack()


async def settle(q: AsyncQueue, _: Raw) -> None:
    await q.route.node.executor.run(q.ops.settle([await taken(q)], 0))


async def hand_over(q: AsyncQueue, _: Raw) -> None:
    call = q.ops.hand_over([await taken(q)], [(0, b"1\nnext")])
    assert (await q.route.node.executor.run(call)).all_done
    (batch,) = await q.batches.list()
    assert (batch.state, batch.total, batch.done) == ("waiting", 2, 1)
    await (await taken(q)).ack()


async def bury(q: AsyncQueue, _: Raw) -> None:
    await (await taken(q)).bury("no use")


async def delete(q: AsyncQueue, _: Raw) -> None:
    await q.delete([(await q.peek(1))[0].id])


async def withdraw(q: AsyncQueue, _: Raw) -> None:
    await q.delete([(await q.peek(1))[0].id], if_undelivered=True)


async def cancel(q: AsyncQueue, _: Raw) -> None:
    await q.cancel([(await q.peek(1))[0].id])


async def cancel_active(q: AsyncQueue, _: Raw) -> None:
    job = await taken(q)
    await q.cancel([job.id])
    await q.nack([job])


async def purge(q: AsyncQueue, _: Raw) -> None:
    await q.route.node.executor.run(q.ops.purge("ready", "", 0))


async def expire(q: AsyncQueue, raw: Raw) -> None:
    raw.zadd(q.ops.keys["expiry"], {raw.zrange(q.ops.keys["expiry"], 0, 0)[0]: 1})
    await q.sweep()


async def evict(q: AsyncQueue, _: Raw) -> None:
    await taken(q)
    await q.sweep(evict=1)


async def crash(q: AsyncQueue, raw: Raw) -> None:
    await q.configure(max_crashes=1)
    await taken(q)
    raw.zadd(q.ops.keys["active"], {raw.zrange(q.ops.keys["active"], 0, 0)[0]: 4096})
    await q.route.node.executor.run(q.ops.reserve(1))


async def trim(q: AsyncQueue, _: Raw) -> None:
    await bury(q, _)
    await q.enqueue("other", delay=60)
    await q.bury([(await q.peek(5, state="scheduled"))[0].id])
    await q.configure(dead_max=1)
    await q.sweep()


ENDS: dict[Any, tuple[dict[str, Any], tuple[int, int, int, int]]] = {
    ack: ({}, (1, 1, 0, 0)),
    settle: ({}, (1, 1, 0, 0)),
    hand_over: ({}, (2, 2, 0, 0)),
    bury: ({}, (1, 0, 0, 1)),
    crash: ({}, (1, 0, 0, 1)),
    delete: ({}, (1, 0, 1, 0)),
    withdraw: ({}, (1, 0, 1, 0)),
    cancel: ({}, (1, 0, 1, 0)),
    cancel_active: ({}, (1, 0, 1, 0)),
    purge: ({}, (1, 0, 1, 0)),
    expire: ({"ttl": 60}, (1, 0, 1, 0)),
    evict: ({"lease": 0, "ttl": 60}, (1, 0, 1, 0)),
    trim: ({}, (1, 0, 1, 0)),
}
"""Ways to end the only job of a batch: its options, and total, done, failed and dead then."""


@pytest.mark.parametrize("on", ["success", "finished"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_each_way_to_end(q: AsyncQueue, raw: Raw, end: Any, on: Any) -> None:
    """Each end of a job counts once, and decides about the callback."""
    options, counts = ENDS[end]
    async with q.batch(then="callback", on=on) as batch:
        await batch.enqueue("member", **options)
    await end(q, raw)
    total, done, failed, _ = counts
    called = on == "finished" or done == total
    state = "called" if called else "failed" if failed else "waiting"
    assert await figures(q, batch.id) == (state, *counts)
    found = [job.body for job in await q.reserve(5, block=0)]
    assert found == (["callback"] if called else [])
    if state == "failed":
        (view,) = [view for view in await q.peek(10, state="dead") if view.id == batch.id]
        assert view.error == f"batch: 1 of {total} jobs have failed"
        assert await q.redrive([batch.id]) == 1
        assert [job.body for job in await q.reserve(5, block=0)] == ["callback"]


async def test_a_dead_member_that_comes_back(q: AsyncQueue) -> None:
    """With success, the callback waits for the redrive of a dead letter, and for its ack."""
    async with q.batch(then="callback") as batch:
        await batch.enqueue("member")
    await (await taken(q)).bury("not now")
    assert await figures(q, batch.id) == ("waiting", 1, 0, 0, 1)
    assert await q.redrive() == 1
    assert await figures(q, batch.id) == ("waiting", 1, 0, 0, 0)
    await (await taken(q)).ack()
    assert (await taken(q)).body == "callback"


async def test_a_batch_that_fails_adds_a_job_once(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """It comes when only dead letters are left, with the body of the callback; not once more when
    these are deleted. The callback runs if they come back and are done.
    """
    ran: list[Any] = []
    handlers = Handlers()

    @handlers.handler
    async def part(number: int) -> None:
        if number == 1 and not ran:
            raise Reject("broken")

    @handlers.handler
    async def publish(gallery: str) -> None:
        ran.append(("published", gallery))

    @handlers.handler
    async def apologize(job: AsyncJob, gallery: str) -> None:
        assert job.death is not None
        dead = [one.body["number"] async for one in q.jobs("dead", batch=job.death.id)]
        ran.append((gallery, job.death.error, job.death.id, dead))

    async def finish() -> str:
        ran.clear()
        async with q.batch(then=publish.job("summer"), on_failure=apologize) as batch:
            await batch.enqueue_many(part.jobs(range(3)))
        await AsyncWorker(ps, q, handlers, concurrency=1, burst=True).run()
        assert ran == [("summer", "batch: 1 of 3 jobs are dead letters", batch.id, [1])]
        status = await q.batches.get(batch.id)
        assert status is not None
        assert (status.on, status.state, status.is_stuck) == ("success", "waiting", True)
        return batch.id

    await finish()
    await q.redrive()
    await AsyncWorker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran[1:] == [("published", "summer")]
    batch = await finish()
    await q.delete([one.id async for one in q.jobs("dead", batch=batch)])
    await AsyncWorker(ps, q, handlers, concurrency=1, burst=True).run()
    assert len(ran) == 1
    assert (await figures(q, batch))[0] == "failed"


async def test_a_job_that_hands_over_to_a_batch(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The ack adds the batch with its callback; a delivery that fails before adds none."""
    ran: list[Any] = []
    handlers = Handlers()
    await q.configure(backoff_base=0.001, backoff_cap=0.001)

    @handlers.handler
    async def resize(path: str) -> None:
        ran.append(path)

    @handlers.handler
    async def publish(name: str) -> None:
        ran.append(name)

    @handlers.handler
    async def upload(job: AsyncJob, name: str) -> Any:
        found = Done(batch=resize.jobs(["a", "b", "c"]), then=publish.job(name))
        if job.attempt == 1:
            raise OSError("lost the connection behind the batch")
        return found

    await upload.enqueue(q, "summer")
    await AsyncWorker(ps, q, handlers, concurrency=1, burst=True).run()
    await q.promote([one.id for one in await q.peek(state="scheduled")])
    await AsyncWorker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran == ["a", "b", "c", "summer"]
    assert (await q.stats()).acked == 5
    assert await q.batches.list() == []


@pytest.mark.parametrize("on", ["success", "finished"])
async def test_a_batch_in_a_batch(ps: AsyncPenstock, q: AsyncQueue, on: Any) -> None:
    """A callback that is handed over by a job of a batch belongs to that; so does its death."""
    handlers, ran = Handlers(), list[str]()

    @handlers.handler
    async def step(name: str) -> None:
        ran.append(name)

    @handlers.handler
    async def spread(name: str) -> Any:
        return Done(batch=[step.job(name), step.job("cancelled")], then=step.job("inner"))

    async with q.batch(then=step.job("outer"), on=on) as batch:
        await batch.enqueue(spread.job("a"))
    await AsyncWorker(ps, q, handlers, concurrency=1, max_jobs=1).run()
    found = await q.batches.list()
    assert [(one.total, one.done, one.open) for one in found] == [(2, 1, 1), (2, 0, 2)]
    [inner] = [one.id for one in found if one.id != batch.id]
    assert (await q.show(inner)).batch == batch.id  # type: ignore[union-attr]  # it is there
    await q.cancel([one.id async for one in q.jobs() if one.body == {"name": "cancelled"}])
    await AsyncWorker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran == (["a", "outer"] if on == "finished" else ["a"])
    if on == "success":
        assert await figures(q, batch.id) == ("waiting", 2, 1, 0, 1)


async def test_a_batch_of_many_jobs_after_another(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """A thousand are added, with a large body, some delayed; more, or too large ones, fail."""
    handlers = Handlers()

    @handlers.handler
    async def step(number: int, text: str = "") -> None:
        """Do nothing."""

    @handlers.handler
    async def spread(count: int, size: int) -> Any:
        jobs = [*step.jobs(range(count - 1)), step.options(delay=60).job(count, "x" * size)]
        return Done(batch=jobs, then=step.job(-1), on="finished")

    await spread.enqueue(q, 1000, 10_000)
    await AsyncWorker(ps, q, handlers, max_jobs=1).run()
    [status] = await q.batches.list()
    assert (status.on, status.total, status.open) == ("finished", 1000, 1000)
    await q.purge("ready")
    await q.promote([one.id for one in await q.peek(10, state="scheduled")])
    await AsyncWorker(ps, q, handlers, burst=True).run()
    assert await q.batches.list() == []
    for count, size in ((1001, 1), (2, 1_048_577)):
        added = await spread.enqueue(q, count, size)
        await AsyncWorker(ps, q, handlers, burst=True).run()
        view = await q.show(added.id)
        assert view is not None
        assert view.error.startswith("BadArgument: ")
        await q.delete([added.id])


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"batch": ["a"], "then": Handlers().handler("x")(lambda: None).job()}, "list of jobs"),
        ({"batch": []}, "must be the callback"),
        ({"batch": [], "then": Handlers().handler("x")(lambda: None).job(), "on": "x"}, "on='x'"),
        ({"on_failure": "told"}, "on_failure='told': is of a batch: pass batch="),
        ({"on": "finished"}, "on='finished': is of a batch: pass batch="),
    ],
)
def test_bad_batches_of_a_result(options: Any, reason: str) -> None:
    """The error names the argument."""
    with pytest.raises(BadArgument, match=reason):
        Done(**options)


async def test_a_batch_without_jobs_whose_callback_is_elsewhere(
    ps: AsyncPenstock, q: AsyncQueue
) -> None:
    """It is refused as that of a batch with jobs; in the queue of the job the callback follows."""
    handlers, ran = Handlers(), list[str]()

    @handlers.handler("join", queue="other")
    async def other() -> None:
        ran.append("other")

    @handlers.handler("join", queue="q")
    async def own() -> None:
        ran.append("own")

    @handlers.handler
    async def spread(which: str) -> Any:
        return Done(batch=[], then=(own if which == "own" else other).job())

    for which in ("own", "other"):
        await spread.enqueue(q, which)
    await AsyncWorker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran == ["own"]
    [failed] = await q.peek(state="scheduled")
    assert "a batch that follows a job lies in its queue, 'q'" in failed.error
    assert (await ps.queue("other").stats()).enqueued == 0


async def test_a_condition_of_a_newer_client(q: AsyncQueue, raw: Raw) -> None:
    """A letter that is unknown reads as `s`."""
    async with q.batch(then="report") as batch:
        await batch.enqueue(1)
    [number] = raw.hkeys("penstock:{q}:batches")
    raw.hset("penstock:{q}:batches", number, "y 1 0 0 0 0")
    [status] = await q.batches.list()
    raw.hset("penstock:{q}:batches", number, "s 1 0 0 0 0")
    assert (status.on, status.state) == ("success", "waiting")


async def test_a_batch_without_dead_letters_that_fails(q: AsyncQueue) -> None:
    """The death of the callback adds the job, as a member was cancelled."""
    async with q.batch(then="report", on_failure="told") as batch:
        added = await batch.enqueue(1)
    await q.cancel([added.id])
    told = await taken(q)
    assert (told.body, told.headers["handler"]) == ("report", "told")
    assert (told.death.id, told.death.error) == (batch.id, "batch: 1 of 1 jobs have failed")
    await told.ack()


@pytest.mark.parametrize(
    "on, on_failure, reason",
    [
        ("finished", "told", "that callback runs in any case"),
        ("success", Handlers().handler("told")(lambda: None).job(), "must be a handler, not a job"),
        ("success", 7, "must be a handler, or the name of one"),
    ],
)
async def test_bad_handlers_of_a_failure(
    q: AsyncQueue, on: Any, on_failure: Any, reason: str
) -> None:
    """Nothing is added."""
    with pytest.raises(BadArgument, match=reason):
        q.batch(then="report", on=on, on_failure=on_failure)


async def test_handlers_decide(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Jobs that are handed over join; retries wait; a rejected job is dead."""
    ran: list[Any] = []
    handlers = Handlers()

    @handlers.handler("first")
    async def first(number: int) -> Any:
        if number == 2:
            raise Reject("two")
        return Done(then=[second.job(number)])

    @handlers.handler("second")
    async def second(number: int) -> None:
        ran.append(number)

    @handlers.handler("summary")
    async def summary() -> None:
        ran.append("summary")

    async with q.batch(then=summary.job(), on="finished") as batch:
        await batch.enqueue_many(first.jobs(range(4)))
    await AsyncWorker(ps, q, handlers, burst=True).run()
    assert sorted(ran[:-1]) == [0, 1, 3]
    assert ran[-1] == "summary"
    assert await figures(q, batch.id) is None


async def test_a_batch_that_takes_no_more_jobs(q: AsyncQueue, raw: Raw) -> None:
    """A closed and an abandoned batch refuse jobs; nothing is added."""
    async with q.batch(then="callback") as closed:
        pass
    with pytest.raises(BatchClosed):
        await closed.enqueue("late")
    with pytest.raises(BatchClosed):
        await closed.enqueue_many(["late"], dedup_id="x")
    open_one = await q.batch(then="other").__aenter__()
    await open_one.enqueue("member")
    number = raw.zrange(q.ops.keys["expiry"], 0, 0)[0]
    for key in ("expiry", "scheduled"):
        raw.zadd(q.ops.keys[key], {number: 1000})
    with pytest.raises(BatchClosed):
        await open_one.enqueue("late")
    for _ in range(2):
        assert await figures(q, open_one.id) == ("abandoned", 1, 0, 0, 0)
        with pytest.raises(BatchClosed, match="redrive"):
            await open_one.close()
        await q.sweep()
    (view,) = await q.peek(state="dead")
    assert (view.id, view.error) == (open_one.id, "batch: abandoned, as it was not closed in time")
    assert await q.redrive([open_one.id]) == 1
    assert {job.body for job in await q.reserve(5, block=0)} == {"callback", "other", "member"}


async def test_an_error_in_the_block(q: AsyncQueue) -> None:
    """The batch stays open, and another client may close it."""

    async def fails() -> None:
        async with batch:
            await batch.enqueue("member")
            raise KeyError("for the test")

    batch = q.batch(then="callback")
    with pytest.raises(KeyError):
        await fails()
    assert await figures(q, batch.id) == ("open", 1, 0, 0, 0)
    status = await q.batches.close(batch.id)
    assert status is not None
    assert status.state == "waiting"
    assert await q.batches.close(batch.id) == status


async def test_a_purge_leaves_callbacks(q: AsyncQueue) -> None:
    """Only a purge of dependent jobs removes callbacks that wait for the jobs of their batches."""
    closed = q.batch(then="closed")
    async with closed:
        await closed.enqueue("member")
    member = await taken(q)
    async with q.batch(then="open") as batch:
        await q.enqueue("later", delay=60)
        assert await q.purge() == 1
        assert await figures(q, batch.id) == ("open", 0, 0, 0, 0)
        assert await figures(q, closed.id) == ("waiting", 1, 0, 0, 0)
        await member.ack()
        assert [job.body for job in await q.peek()] == ["closed"]
        assert await q.purge("dependent", "scheduled") == 1
        assert await figures(q, batch.id) is None


async def test_a_callback_that_was_promoted(q: AsyncQueue) -> None:
    """It runs at once, and is not due a second time."""
    async with q.batch(then="callback") as batch:
        await batch.enqueue("member")
    await q.promote([batch.id])
    jobs = await q.reserve(2, block=0)
    assert {job.body for job in jobs} == {"callback", "member"}
    await q.ack(jobs)
    assert await q.reserve(1, block=0) == []
    assert await q.batches.list() == []
    assert (await q.stats()).batches == 0


async def test_a_callback_of_an_open_batch_that_was_promoted(q: AsyncQueue, raw: Raw) -> None:
    """It has no deadline any more, and the batch takes no more jobs."""
    batch = await q.batch(then="callback").__aenter__()
    await batch.enqueue("member")
    assert (await q.promote([batch.id])).all_done
    assert raw.zcard(q.ops.keys["expiry"]) == 0
    assert await figures(q, batch.id) == ("called", 1, 0, 0, 0)
    with pytest.raises(BatchClosed):
        await batch.enqueue("late")
    jobs = await q.reserve(2, block=0)
    assert {job.body for job in jobs} == {"callback", "member"}


async def test_duplicates_do_not_join(q: AsyncQueue) -> None:
    """A duplicate is no member; an update leaves the job a member."""
    await q.enqueue("old", dedup_id="a")
    async with q.batch(then="callback") as batch:
        again = await batch.enqueue("new", dedup_id="a")
        added = await batch.enqueue("new", dedup_id="b")
    assert (again.duplicate, added.duplicate) == (True, False)
    assert await figures(q, batch.id) == ("waiting", 1, 0, 0, 0)
    await q.ack(await q.reserve(2, block=0))
    assert (await taken(q)).body == "callback"


@pytest.mark.parametrize(
    "options, argument",
    [
        ({"then": "x", "on": "done"}, "on"),
        ({"then": object()}, "body"),
    ],
)
async def test_bad_input(q: AsyncQueue, options: Any, argument: str) -> None:
    """A bad argument is named; nothing is written."""
    with pytest.raises(BadArgument) as caught:
        q.batch(**options)
    assert caught.value.argument == argument
    assert not (await q.stats()).exists


@pytest.mark.parametrize(
    "name, value",
    [
        ("delay", 5),
        ("ttl", 5),
        ("dedup_id", "x"),
        ("replicas", 5),
        ("key", "x"),
        ("lease", 0),
        ("lease", timedelta(0)),
    ],
)
async def test_options_of_a_callback(q: AsyncQueue, name: str, value: Any) -> None:
    """A callback has no delay, ttl, dedup id, key, or confirmations; it has a lease."""
    handlers = Handlers()

    @handlers.handler
    async def summary() -> None:
        """Not reached."""

    with pytest.raises(BadArgument) as caught:
        q.batch(then=summary.options(**{name: value}).job())
    assert caught.value.argument == name


async def test_many_jobs(q: AsyncQueue) -> None:
    """Chunks of a bulk enqueue join, and chunks of acks count."""
    async with q.batch(then="callback") as batch:
        await batch.enqueue_many(range(2500))
    done = 0
    while jobs := await q.reserve(1000, block=0):
        await q.ack(jobs)
        done += len(jobs)
    assert done == 2501
    assert await figures(q, batch.id) is None


async def test_a_block_that_adds_its_jobs_elsewhere(
    q: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A block that ends without a job is told, with the call that adds to the batch."""
    async with q.batch(then="full") as batch:
        await batch.enqueue("member")
    async with q.batch(then="empty") as batch:
        await q.enqueue("elsewhere")
    assert [text.partition(": ")[2] for text in caplog.messages if batch.id in text] == [
        "welcome.enqueue(batch.queue, ...) adds to it, welcome.enqueue(queue, ...) does not"
    ]
    assert sum("has no job" in text for text in caplog.messages) == 1
