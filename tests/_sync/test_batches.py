# From tests/_async/test_batches.py by tools/unasync.py; do not edit.
"""Batches: jobs that a callback follows, whatever becomes of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    BadArgument,
    BatchClosed,
    BatchFailure,
    Done,
    Handlers,
    Job,
    Penstock,
    Queue,
    Reject,
    Worker,
)
from penstock.client._sync.client import twin_of
from tests.support.keyspace import Raw, check_invariant


@pytest.fixture
def q(ps: Penstock, raw: Raw) -> Any:
    """A queue; the layout of its keys, and the counters of its batches, are checked at the end."""
    yield ps.queue("q")
    check_invariant(raw)


def figures(q: Queue, batch: str) -> Any:
    """Return state, total, done, failed and dead of a batch; None = its callback has ended."""
    status = q.batches.get(batch)
    if status is None:
        return None
    return status.state, status.total, status.done, status.failed, status.dead


def taken(q: Queue) -> Any:
    """Reserve the only job that can be taken now."""
    (job,) = q.reserve(1, block=0)
    return job


def test_a_batch_from_begin_to_end(ps: Penstock, q: Queue) -> None:
    """The callback runs once, after all jobs; then the batch is gone."""
    ran: list[Any] = []
    handlers = Handlers()

    @handlers.handler("resize")
    def resize(number: int) -> None:
        ran.append(number)

    @handlers.handler("summary")
    def summary(name: str) -> None:
        ran.append(name)

    with q.batch(then=summary.job("b1")) as batch:
        batch.enqueue(resize.job(0))
        batch.enqueue_many(resize.jobs([1, 2]))
        resize.enqueue(batch.queue, 3)
        resize.enqueue(q, 4)  # no member
        assert figures(q, batch.id) == ("open", 4, 0, 0, 0)
    assert figures(q, batch.id) == ("waiting", 4, 0, 0, 0)
    views = q.peek(10)
    shown = [q.show(view.id) for view in views]
    assert [view.batch for view in views] == [batch.id] * 4 + [None]
    assert [view and view.batch for view in shown] == [batch.id] * 4 + [None]
    assert q.stats().batches == 1
    (listed,) = q.batches.list()
    assert (listed.id, listed.on, listed.open, listed.progress) == (batch.id, "success", 4, 0.0)
    Worker(ps, q, handlers, burst=True, concurrency=1).run()
    assert ran == [0, 1, 2, 3, 4, "b1"]
    assert figures(q, batch.id) is None
    assert q.batches.list() == []
    assert q.stats().batches == 0


def test_the_first_call_of_a_client_reads_a_batch(ps: Penstock, q: Queue) -> None:
    """Its answer has the id of the batch, with the node that the client has not met before."""
    with q.batch(then="end") as batch:
        pass
    other = twin_of(ps, federation=False)
    status = other.queue("q").batches.get(batch.id)
    other.close()
    assert status is not None
    assert status.id == batch.id


@pytest.mark.parametrize("on", ["success", "finished"])
def test_dead_members(q: Queue, on: Any) -> None:
    """They are no progress while the callback waits for them; a search finds them."""
    with q.batch(then="callback", on=on) as batch:
        batch.enqueue_many([b"a", b"b", b"c", b"d"])
    jobs = q.reserve(4)
    jobs[0].ack()
    jobs[1].bury("broken")
    waits = on == "success"
    [status] = q.batches.list()
    assert (status.awaited, status.is_stuck) == (3 if waits else 2, False)
    q.ack(jobs[2:])
    [status] = q.batches.list()
    assert (status.progress, status.is_stuck) == (0.75 if waits else 1.0, waits)
    dead = [view.raw for view in q.jobs("dead", batch=batch.id)]
    assert dead == [b"b"]
    assert status.failures == ()
    status = batch.status()
    assert status is not None
    assert status.failures == (BatchFailure(jobs[1].id, "", "broken"),)
    q.redrive([jobs[1].id])
    status = q.batches.get(batch.id)
    assert status is not None
    assert (status.is_stuck, status.failures) == (False, ())
    again = {job.raw: job for job in q.reserve(2)}
    again[b"b"].ack()
    [status] = q.batches.list()
    assert (status.state, status.progress) == ("called", 1.0)


def test_the_first_dead_letters_are_named(q: Queue) -> None:
    """Of many there are 20, the oldest first, with handler and error; others are left out."""
    handlers = Handlers()

    @handlers.handler("resize", result_ttl=60)
    def resize(number: int) -> None: ...

    q.enqueue_many([b"other"] * 3)
    q.bury(q.reserve(3), "not of the batch")
    with q.batch(then="callback") as batch:
        added = batch.enqueue_many(resize.options(ttl=3600).jobs(range(25)))
    for number, job in enumerate(q.reserve(25)):
        job.bury(f"reason {number}")
    status = q.batches.get(batch.id)
    assert status is not None
    assert (status.dead, status.is_stuck, status.progress) == (25, True, 0.0)
    assert status.failures == tuple(
        BatchFailure(added[number].id, "resize", f"reason {number}") for number in range(20)
    )


@pytest.mark.parametrize("on", ["success", "finished"])
def test_an_empty_batch(q: Queue, on: Any) -> None:
    """Its callback is due at once."""
    with q.batch(then="callback", on=on) as batch:
        assert q.reserve(1, block=0) == []
    assert figures(q, batch.id) == ("called", 0, 0, 0, 0)
    job = taken(q)
    assert (job.id, job.body) == (batch.id, "callback")
    assert q.batches.list()[0].progress == 1.0
    assert job.ack()
    assert figures(q, batch.id) is None


def ack(q: Queue, _: Raw) -> None:
    taken(q).ack()


def settle(q: Queue, _: Raw) -> None:
    q.route.node.executor.run(q.ops.settle([taken(q)], 0))


def hand_over(q: Queue, _: Raw) -> None:
    call = q.ops.hand_over([taken(q)], [(0, b"1\nnext")])
    assert q.route.node.executor.run(call).all_done
    (batch,) = q.batches.list()
    assert (batch.state, batch.total, batch.done) == ("waiting", 2, 1)
    taken(q).ack()


def bury(q: Queue, _: Raw) -> None:
    taken(q).bury("no use")


def delete(q: Queue, _: Raw) -> None:
    q.delete([q.peek(1)[0].id])


def withdraw(q: Queue, _: Raw) -> None:
    q.delete([q.peek(1)[0].id], if_undelivered=True)


def cancel(q: Queue, _: Raw) -> None:
    q.cancel([q.peek(1)[0].id])


def cancel_active(q: Queue, _: Raw) -> None:
    job = taken(q)
    q.cancel([job.id])
    q.nack([job])


def purge(q: Queue, _: Raw) -> None:
    q.route.node.executor.run(q.ops.purge("ready", "", 0))


def expire(q: Queue, raw: Raw) -> None:
    raw.zadd(q.ops.keys["expiry"], {raw.zrange(q.ops.keys["expiry"], 0, 0)[0]: 1})
    q.sweep()


def evict(q: Queue, _: Raw) -> None:
    taken(q)
    q.sweep(evict=1)


def crash(q: Queue, raw: Raw) -> None:
    q.configure(max_crashes=1)
    taken(q)
    raw.zadd(q.ops.keys["active"], {raw.zrange(q.ops.keys["active"], 0, 0)[0]: 4096})
    q.route.node.executor.run(q.ops.reserve(1))


def trim(q: Queue, _: Raw) -> None:
    bury(q, _)
    q.enqueue("other", delay=60)
    q.bury([q.peek(5, state="scheduled")[0].id])
    q.configure(dead_max=1)
    q.sweep()


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
def test_each_way_to_end(q: Queue, raw: Raw, end: Any, on: Any) -> None:
    """Each end of a job counts once, and decides about the callback."""
    options, counts = ENDS[end]
    with q.batch(then="callback", on=on) as batch:
        batch.enqueue("member", **options)
    end(q, raw)
    total, done, failed, _ = counts
    called = on == "finished" or done == total
    state = "called" if called else "failed" if failed else "waiting"
    assert figures(q, batch.id) == (state, *counts)
    found = [job.body for job in q.reserve(5, block=0)]
    assert found == (["callback"] if called else [])
    if state == "failed":
        (view,) = [view for view in q.peek(10, state="dead") if view.id == batch.id]
        assert view.error == f"batch: 1 of {total} jobs have failed"
        assert q.redrive([batch.id]) == 1
        assert [job.body for job in q.reserve(5, block=0)] == ["callback"]


def test_a_dead_member_that_comes_back(q: Queue) -> None:
    """With success, the callback waits for the redrive of a dead letter, and for its ack."""
    with q.batch(then="callback") as batch:
        batch.enqueue("member")
    taken(q).bury("not now")
    assert figures(q, batch.id) == ("waiting", 1, 0, 0, 1)
    assert q.redrive() == 1
    assert figures(q, batch.id) == ("waiting", 1, 0, 0, 0)
    taken(q).ack()
    assert taken(q).body == "callback"


def test_a_batch_that_fails_adds_a_job_once(ps: Penstock, q: Queue) -> None:
    """It comes when only dead letters are left, with the body of the callback; not once more when
    these are deleted. The callback runs if they come back and are done.
    """
    ran: list[Any] = []
    handlers = Handlers()

    @handlers.handler
    def part(number: int) -> None:
        if number == 1 and not ran:
            raise Reject("broken")

    @handlers.handler
    def publish(gallery: str) -> None:
        ran.append(("published", gallery))

    @handlers.handler
    def apologize(job: Job, gallery: str) -> None:
        assert job.death is not None
        dead = [one.body["number"] for one in q.jobs("dead", batch=job.death.id)]
        ran.append((gallery, job.death.error, job.death.id, dead))

    def finish() -> str:
        ran.clear()
        with q.batch(then=publish.job("summer"), on_failure=apologize) as batch:
            batch.enqueue_many(part.jobs(range(3)))
        Worker(ps, q, handlers, concurrency=1, burst=True).run()
        assert ran == [("summer", "batch: 1 of 3 jobs are dead letters", batch.id, [1])]
        status = q.batches.get(batch.id)
        assert status is not None
        assert (status.on, status.state, status.is_stuck) == ("success", "waiting", True)
        return batch.id

    finish()
    q.redrive()
    Worker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran[1:] == [("published", "summer")]
    batch = finish()
    q.delete([one.id for one in q.jobs("dead", batch=batch)])
    Worker(ps, q, handlers, concurrency=1, burst=True).run()
    assert len(ran) == 1
    assert figures(q, batch)[0] == "failed"


def test_a_job_that_hands_over_to_a_batch(ps: Penstock, q: Queue) -> None:
    """The ack adds the batch with its callback; a delivery that fails before adds none."""
    ran: list[Any] = []
    handlers = Handlers()
    q.configure(backoff_base=0.001, backoff_cap=0.001)

    @handlers.handler
    def resize(path: str) -> None:
        ran.append(path)

    @handlers.handler
    def publish(name: str) -> None:
        ran.append(name)

    @handlers.handler
    def upload(job: Job, name: str) -> Any:
        found = Done(batch=resize.jobs(["a", "b", "c"]), then=publish.job(name))
        if job.attempt == 1:
            raise OSError("lost the connection behind the batch")
        return found

    upload.enqueue(q, "summer")
    Worker(ps, q, handlers, concurrency=1, burst=True).run()
    q.promote([one.id for one in q.peek(state="scheduled")])
    Worker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran == ["a", "b", "c", "summer"]
    assert q.stats().acked == 5
    assert q.batches.list() == []


@pytest.mark.parametrize("on", ["success", "finished"])
def test_a_batch_in_a_batch(ps: Penstock, q: Queue, on: Any) -> None:
    """A callback that is handed over by a job of a batch belongs to that; so does its death."""
    handlers, ran = Handlers(), list[str]()

    @handlers.handler
    def step(name: str) -> None:
        ran.append(name)

    @handlers.handler
    def spread(name: str) -> Any:
        return Done(batch=[step.job(name), step.job("cancelled")], then=step.job("inner"))

    with q.batch(then=step.job("outer"), on=on) as batch:
        batch.enqueue(spread.job("a"))
    Worker(ps, q, handlers, concurrency=1, max_jobs=1).run()
    found = q.batches.list()
    assert [(one.total, one.done, one.open) for one in found] == [(2, 1, 1), (2, 0, 2)]
    [inner] = [one.id for one in found if one.id != batch.id]
    assert q.show(inner).batch == batch.id  # type: ignore[union-attr]  # it is there
    q.cancel([one.id for one in q.jobs() if one.body == {"name": "cancelled"}])
    Worker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran == (["a", "outer"] if on == "finished" else ["a"])
    if on == "success":
        assert figures(q, batch.id) == ("waiting", 2, 1, 0, 1)


def test_a_batch_of_many_jobs_after_another(ps: Penstock, q: Queue) -> None:
    """A thousand are added, with a large body, some delayed; more, or too large ones, fail."""
    handlers = Handlers()

    @handlers.handler
    def step(number: int, text: str = "") -> None:
        """Do nothing."""

    @handlers.handler
    def spread(count: int, size: int) -> Any:
        jobs = [*step.jobs(range(count - 1)), step.options(delay=60).job(count, "x" * size)]
        return Done(batch=jobs, then=step.job(-1), on="finished")

    spread.enqueue(q, 1000, 10_000)
    Worker(ps, q, handlers, max_jobs=1).run()
    [status] = q.batches.list()
    assert (status.on, status.total, status.open) == ("finished", 1000, 1000)
    q.purge("ready")
    q.promote([one.id for one in q.peek(10, state="scheduled")])
    Worker(ps, q, handlers, burst=True).run()
    assert q.batches.list() == []
    for count, size in ((1001, 1), (2, 1_048_577)):
        added = spread.enqueue(q, count, size)
        Worker(ps, q, handlers, burst=True).run()
        view = q.show(added.id)
        assert view is not None
        assert view.error.startswith("BadArgument: ")
        q.delete([added.id])


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


def test_a_batch_without_jobs_whose_callback_is_elsewhere(ps: Penstock, q: Queue) -> None:
    """It is refused as that of a batch with jobs; in the queue of the job the callback follows."""
    handlers, ran = Handlers(), list[str]()

    @handlers.handler("join", queue="other")
    def other() -> None:
        ran.append("other")

    @handlers.handler("join", queue="q")
    def own() -> None:
        ran.append("own")

    @handlers.handler
    def spread(which: str) -> Any:
        return Done(batch=[], then=(own if which == "own" else other).job())

    for which in ("own", "other"):
        spread.enqueue(q, which)
    Worker(ps, q, handlers, concurrency=1, burst=True).run()
    assert ran == ["own"]
    [failed] = q.peek(state="scheduled")
    assert "a batch that follows a job lies in its queue, 'q'" in failed.error
    assert ps.queue("other").stats().enqueued == 0


def test_a_condition_of_a_newer_client(q: Queue, raw: Raw) -> None:
    """A letter that is unknown reads as `s`."""
    with q.batch(then="report") as batch:
        batch.enqueue(1)
    [number] = raw.hkeys("penstock:{q}:batches")
    raw.hset("penstock:{q}:batches", number, "y 1 0 0 0 0")
    [status] = q.batches.list()
    raw.hset("penstock:{q}:batches", number, "s 1 0 0 0 0")
    assert (status.on, status.state) == ("success", "waiting")


def test_a_batch_without_dead_letters_that_fails(q: Queue) -> None:
    """The death of the callback adds the job, as a member was cancelled."""
    with q.batch(then="report", on_failure="told") as batch:
        added = batch.enqueue(1)
    q.cancel([added.id])
    told = taken(q)
    assert (told.body, told.headers["handler"]) == ("report", "told")
    assert (told.death.id, told.death.error) == (batch.id, "batch: 1 of 1 jobs have failed")
    told.ack()


@pytest.mark.parametrize(
    "on, on_failure, reason",
    [
        ("finished", "told", "that callback runs in any case"),
        ("success", Handlers().handler("told")(lambda: None).job(), "must be a handler, not a job"),
        ("success", 7, "must be a handler, or the name of one"),
    ],
)
def test_bad_handlers_of_a_failure(q: Queue, on: Any, on_failure: Any, reason: str) -> None:
    """Nothing is added."""
    with pytest.raises(BadArgument, match=reason):
        q.batch(then="report", on=on, on_failure=on_failure)


def test_handlers_decide(ps: Penstock, q: Queue) -> None:
    """Jobs that are handed over join; retries wait; a rejected job is dead."""
    ran: list[Any] = []
    handlers = Handlers()

    @handlers.handler("first")
    def first(number: int) -> Any:
        if number == 2:
            raise Reject("two")
        return Done(then=[second.job(number)])

    @handlers.handler("second")
    def second(number: int) -> None:
        ran.append(number)

    @handlers.handler("summary")
    def summary() -> None:
        ran.append("summary")

    with q.batch(then=summary.job(), on="finished") as batch:
        batch.enqueue_many(first.jobs(range(4)))
    Worker(ps, q, handlers, burst=True).run()
    assert sorted(ran[:-1]) == [0, 1, 3]
    assert ran[-1] == "summary"
    assert figures(q, batch.id) is None


def test_a_batch_that_takes_no_more_jobs(q: Queue, raw: Raw) -> None:
    """A closed and an abandoned batch refuse jobs; nothing is added."""
    with q.batch(then="callback") as closed:
        pass
    with pytest.raises(BatchClosed):
        closed.enqueue("late")
    with pytest.raises(BatchClosed):
        closed.enqueue_many(["late"], dedup_id="x")
    open_one = q.batch(then="other").__enter__()
    open_one.enqueue("member")
    number = raw.zrange(q.ops.keys["expiry"], 0, 0)[0]
    for key in ("expiry", "scheduled"):
        raw.zadd(q.ops.keys[key], {number: 1000})
    with pytest.raises(BatchClosed):
        open_one.enqueue("late")
    for _ in range(2):
        assert figures(q, open_one.id) == ("abandoned", 1, 0, 0, 0)
        with pytest.raises(BatchClosed, match="redrive"):
            open_one.close()
        q.sweep()
    (view,) = q.peek(state="dead")
    assert (view.id, view.error) == (open_one.id, "batch: abandoned, as it was not closed in time")
    assert q.redrive([open_one.id]) == 1
    assert {job.body for job in q.reserve(5, block=0)} == {"callback", "other", "member"}


def test_an_error_in_the_block(q: Queue) -> None:
    """The batch stays open, and another client may close it."""

    def fails() -> None:
        with batch:
            batch.enqueue("member")
            raise KeyError("for the test")

    batch = q.batch(then="callback")
    with pytest.raises(KeyError):
        fails()
    assert figures(q, batch.id) == ("open", 1, 0, 0, 0)
    status = q.batches.close(batch.id)
    assert status is not None
    assert status.state == "waiting"
    assert q.batches.close(batch.id) == status


def test_a_purge_leaves_callbacks(q: Queue) -> None:
    """Only a purge of dependent jobs removes callbacks that wait for the jobs of their batches."""
    closed = q.batch(then="closed")
    with closed:
        closed.enqueue("member")
    member = taken(q)
    with q.batch(then="open") as batch:
        q.enqueue("later", delay=60)
        assert q.purge() == 1
        assert figures(q, batch.id) == ("open", 0, 0, 0, 0)
        assert figures(q, closed.id) == ("waiting", 1, 0, 0, 0)
        member.ack()
        assert [job.body for job in q.peek()] == ["closed"]
        assert q.purge("dependent", "scheduled") == 1
        assert figures(q, batch.id) is None


def test_a_callback_that_was_promoted(q: Queue) -> None:
    """It runs at once, and is not due a second time."""
    with q.batch(then="callback") as batch:
        batch.enqueue("member")
    q.promote([batch.id])
    jobs = q.reserve(2, block=0)
    assert {job.body for job in jobs} == {"callback", "member"}
    q.ack(jobs)
    assert q.reserve(1, block=0) == []
    assert q.batches.list() == []
    assert q.stats().batches == 0


def test_a_callback_of_an_open_batch_that_was_promoted(q: Queue, raw: Raw) -> None:
    """It has no deadline any more, and the batch takes no more jobs."""
    batch = q.batch(then="callback").__enter__()
    batch.enqueue("member")
    assert q.promote([batch.id]).all_done
    assert raw.zcard(q.ops.keys["expiry"]) == 0
    assert figures(q, batch.id) == ("called", 1, 0, 0, 0)
    with pytest.raises(BatchClosed):
        batch.enqueue("late")
    jobs = q.reserve(2, block=0)
    assert {job.body for job in jobs} == {"callback", "member"}


def test_duplicates_do_not_join(q: Queue) -> None:
    """A duplicate is no member; an update leaves the job a member."""
    q.enqueue("old", dedup_id="a")
    with q.batch(then="callback") as batch:
        again = batch.enqueue("new", dedup_id="a")
        added = batch.enqueue("new", dedup_id="b")
    assert (again.duplicate, added.duplicate) == (True, False)
    assert figures(q, batch.id) == ("waiting", 1, 0, 0, 0)
    q.ack(q.reserve(2, block=0))
    assert taken(q).body == "callback"


@pytest.mark.parametrize(
    "options, argument",
    [
        ({"then": "x", "on": "done"}, "on"),
        ({"then": object()}, "body"),
    ],
)
def test_bad_input(q: Queue, options: Any, argument: str) -> None:
    """A bad argument is named; nothing is written."""
    with pytest.raises(BadArgument) as caught:
        q.batch(**options)
    assert caught.value.argument == argument
    assert not q.stats().exists


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
def test_options_of_a_callback(q: Queue, name: str, value: Any) -> None:
    """A callback has no delay, ttl, dedup id, key, or confirmations; it has a lease."""
    handlers = Handlers()

    @handlers.handler
    def summary() -> None:
        """Not reached."""

    with pytest.raises(BadArgument) as caught:
        q.batch(then=summary.options(**{name: value}).job())
    assert caught.value.argument == name


def test_many_jobs(q: Queue) -> None:
    """Chunks of a bulk enqueue join, and chunks of acks count."""
    with q.batch(then="callback") as batch:
        batch.enqueue_many(range(2500))
    done = 0
    while jobs := q.reserve(1000, block=0):
        q.ack(jobs)
        done += len(jobs)
    assert done == 2501
    assert figures(q, batch.id) is None


def test_a_block_that_adds_its_jobs_elsewhere(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """A block that ends without a job is told, with the call that adds to the batch."""
    with q.batch(then="full") as batch:
        batch.enqueue("member")
    with q.batch(then="empty") as batch:
        q.enqueue("elsewhere")
    assert [text.partition(": ")[2] for text in caplog.messages if batch.id in text] == [
        "welcome.enqueue(batch.queue, ...) adds to it, welcome.enqueue(queue, ...) does not"
    ]
    assert sum("has no job" in text for text in caplog.messages) == 1
