# From tests/_async/test_batch_values.py by tools/unasync.py; do not edit.
"""Values of batches: the callback reads what the jobs have returned, in order."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    BadArgument,
    Done,
    Handlers,
    Job,
    JobCancelled,
    JobExpired,
    JobFailed,
    Penstock,
    Queue,
    Reject,
    ResultGone,
    ResultTimeout,
    Retry,
    Worker,
    chain,
)
from tests.support.keyspace import Raw, check_invariant

handlers = Handlers()


@handlers.handler("square")
def square(number: int) -> int:
    return number**2


@pytest.fixture
def q(ps: Penstock, raw: Raw) -> Any:
    """A queue; the layout of its keys, and the counters of its batches, are checked at the end."""
    yield ps.queue("q")
    check_invariant(raw)


def ended(q: Queue, raw: Raw) -> None:
    """Check that batches, their members and their values have left nothing."""
    q.sweep()
    for kind in ("tally", "members", "batches", "held", "expiry"):
        assert not raw.exists(q.ops.keys[kind]), kind


def acked(q: Queue, job: Job, value: bytes) -> Any:
    """Acknowledge a job with a value, as a worker does."""
    from penstock.core.jobs.job import set_result
    from penstock.core.jobs.results import results_of

    set_result(job, (value, ""))
    part = q.route.refresh().part
    assert part is not None
    return part.executor.run(q.ops.ack([job], results=results_of([job], [0.1])))


def test_the_callback_reads_the_values_in_order(ps: Penstock, q: Queue, raw: Raw) -> None:
    """In the order in which the jobs have joined, also in a retry; then nothing is left."""
    read: list[Any] = []
    own = Handlers()
    own.include(handlers)

    @own.handler("sum")
    def total(job: Job, name: str) -> int:
        read.append(job.batch_results())
        if job.attempt == 1:
            raise Retry(after=0)
        return sum(read[-1])

    with q.batch(then=total.options(result_ttl=60).job("b1"), results=True) as batch:
        batch.enqueue_many(square.jobs([3, 1]))
        batch.enqueue(square.options(priority=9).job(2))
        with pytest.raises(ResultTimeout):
            q.batches.results(batch.id)
    first = q.batches.results(batch.id, return_exceptions=True)
    assert [type(one) for one in first] == [ResultTimeout] * 3
    Worker(ps, q, own, burst=True, concurrency=1).run()
    assert read == [[9, 1, 4]] * 2
    assert q.result(batch.id, timeout=10) == 14
    with pytest.raises(ResultGone, match="has no values"):
        q.batches.results(batch.id)
    q.configure(results_max=0)
    q.sweep()
    ended(q, raw)


def test_a_batch_without_values_pays_nothing(q: Queue, raw: Raw) -> None:
    """Its jobs have no time of keeping, no place, and nothing is noted."""
    with q.batch(then="sum") as batch:
        batch.enqueue_many([b"a", b"b"])
    assert set(raw.hvals(q.ops.keys["members"])) == {raw.hkeys(q.ops.keys["batches"])[0]}
    assert not raw.exists(q.ops.keys["tally"])
    with pytest.raises(ResultGone, match="results=True"):
        q.batches.results(batch.id)
    assert b"k" not in raw.hget(q.ops.keys["meta"], "uses")


def test_an_ack_whose_answer_was_lost(q: Queue) -> None:
    """Its repeat changes nothing; the value is that of the first."""
    with q.batch(then="sum", results=True) as batch:
        batch.enqueue_many([b"a", b"b"])
    one, two = q.reserve(2)
    assert [str(outcome) for outcome in acked(q, one, b"1")] == ["done"]
    assert [str(outcome) for outcome in acked(q, one, b"2")] != ["done"]
    two.ack()  # without a value
    assert q.batches.results(batch.id) == [1, None]
    assert q.batches.results(q.reserve()[0]) == [1, None]


def test_other_ends_of_jobs(q: Queue, raw: Raw) -> None:
    """Each has its error, in its place; the first one is raised."""
    with q.batch(then="sum", on="finished", results=True) as batch:
        added = [batch.enqueue(name, ttl=60) for name in "abcde"]
        brief = batch.enqueue("f", ttl=0.001)
    jobs = {job.body: job for job in q.reserve(5)}
    acked(q, jobs["a"], b"[1]")
    jobs["b"].bury("broken")
    q.cancel([added[2].id])
    jobs["c"].release()
    q.delete([added[3].id])
    acked(q, jobs["e"], b"5")
    while q.show(brief.id) is not None:
        q.sweep()
    found = q.batches.results(batch.id, return_exceptions=True)
    kinds = [type(one) for one in found]
    assert kinds == [list, JobFailed, JobCancelled, ResultGone, int, JobExpired]
    assert "broken" in str(found[1])
    with pytest.raises(JobFailed):
        q.batches.results(batch.id)
    q.redrive([added[1].id])
    (again,) = [job for job in q.reserve(2) if job.body == "b"]
    acked(q, again, b"2")
    assert q.batches.results(batch.id, return_exceptions=True)[:2] == [[1], 2]
    q.ack([batch.id])
    ended(q, raw)


@pytest.mark.parametrize("way", ["delete", "cancel", "clear"])
def test_a_callback_that_ends_before_its_jobs(q: Queue, raw: Raw, way: str) -> None:
    """Values go with it, and those of jobs that end later are not kept."""
    with q.batch(then="sum", results=True) as batch:
        batch.enqueue_many([b"a", b"b"])
    one, two = q.reserve(2)
    acked(q, one, b"1")
    if way == "clear":
        q.clear()
    else:
        getattr(q, way)([batch.id])
        acked(q, two, b"2")
    ended(q, raw)


def test_jobs_that_hand_over(ps: Penstock, q: Queue, raw: Raw) -> None:
    """One next job takes the place of its job, and so does a batch; several get places behind."""
    own = Handlers()
    own.include(handlers)

    @own.handler("one")
    def one(number: int) -> Done:
        return Done("unread", then=[square.job(number)])

    @own.handler("two")
    def two(number: int) -> Done:
        return Done("kept", then=[square.job(number), square.job(number + 1)])

    @own.handler("inner")
    def inner(job: Job) -> Any:
        return job.batch_results()

    @own.handler("nested")
    def nested() -> Done:
        return Done(batch=square.jobs([5, 6]), then=inner.job(), results=True)

    read: list[Any] = []

    @own.handler("sum")
    def total(job: Job) -> None:
        read.append(job.batch_results())

    with q.batch(then=total.job(), results=True) as batch:
        for job in (two.job(3), one.job(7), nested.job(), square.job(9)):
            batch.enqueue(job)
    Worker(ps, q, own, burst=True, concurrency=1).run()
    assert read == [["kept", 49, [25, 36], 81, 9, 16]]
    ended(q, raw)


def test_values_that_do_not_fit(q: Queue, raw: Raw) -> None:
    """Each has its reason; the batch goes on."""
    q.configure(result_size=10)
    with q.batch(then="sum", on="finished", results=True) as batch:
        batch.enqueue_many([b"a", b"b", b"c", b"d"])
    jobs = {job.raw: job for job in q.reserve(4)}
    acked(q, jobs[b"a"], b'"' + b"x" * 9 + b'"')
    acked(q, jobs[b"b"], b"!json")
    acked(q, jobs[b"c"], b'"' + b"x" * 8 + b'"')
    head = b"nb" + raw.hkeys(q.ops.keys["batches"])[0]
    count, size = map(int, raw.hget(q.ops.keys["tally"], head).split())
    raw.hset(q.ops.keys["tally"], head, f"{count} {16 * 2**20 - 5}")
    acked(q, jobs[b"d"], b'"xxxxx"')
    raw.hset(q.ops.keys["tally"], head, f"{count} {size + len(b' done !room')}")
    found = q.batches.results(batch.id, return_exceptions=True)
    assert [type(one) for one in found] == [ResultGone, ResultGone, str, ResultGone]
    for place, reason in ((0, "result_size"), (1, "JSON"), (3, "16 MiB")):
        assert reason in str(found[place])


def test_a_batch_of_more_jobs_than_have_values(q: Queue, raw: Raw) -> None:
    """Those beyond 10,000 have none; a call removes 2,000 values, and sweep the others."""
    with q.batch(then="sum", on="finished", results=True) as batch:
        batch.enqueue_many([b"x"] * 2500)
        callback = raw.hkeys(q.ops.keys["batches"])[0]
        head = b"nb" + callback
        assert raw.hget(q.ops.keys["tally"], head).startswith(b"2500 ")
    jobs = q.reserve(1000)
    for place in range(0, 1000, 250):
        q.ack(jobs[place : place + 250])
    assert len(q.batches.results(batch.id, return_exceptions=True)) == 2500
    q.delete([batch.id])
    q.purge("ready")
    ended(q, raw)
    with q.batch(then="sum", on="finished", results=True) as batch:
        callback = raw.hkeys(q.ops.keys["batches"])[0]
        batch.enqueue_many([b"x"] * 3)
        values = raw.hgetall(q.ops.keys["tally"])
        raw.hset(q.ops.keys["tally"], b"nb" + callback, b"9999 0")
        batch.enqueue_many([b"x"] * 3)
        found = q.batches.results(batch.id, return_exceptions=True)
        assert len(found) == 10002
        assert "first 10,000" in str(found[10001])
        assert "has not ended" in str(found[9999])
        raw.delete(q.ops.keys["tally"])
        raw.hset(q.ops.keys["tally"], mapping=values)
    q.clear()


def test_places_beyond_those_that_are_kept(ps: Penstock, q: Queue, raw: Raw) -> None:
    """Jobs beside the next link have no field there, and a call looks for none."""
    own, tally = Handlers(), q.ops.keys["tally"]
    own.include(handlers)

    @own.handler("more")
    def more() -> Done:
        return Done(3, then=[square.job(1), square.job(2)])

    with q.batch(then="sum", on="finished", results=True) as batch:
        batch.enqueue(chain(more.job(), square, result_ttl=0.001))
        head = b"nb" + raw.hkeys(q.ops.keys["batches"])[0]
        raw.hset(tally, head, b"1000000 " + raw.hget(tally, head).split()[1])
    Worker(ps, q, own, max_jobs=4).run()
    count, size = raw.hget(tally, head).split()
    assert (count, raw.hlen(tally)) == (b"1000002", 2)
    assert int(size) == len(raw.hget(tally, head + b":1"))
    q.delete([batch.id])
    assert raw.hget(tally, "n:1").split()[1] == b"8000"
    for _ in range(5):
        q.sweep()
    ended(q, raw)


def test_a_result_that_the_producer_asked_for(ps: Penstock, q: Queue) -> None:
    """It is kept for its time besides, and that of the other jobs is not."""
    with q.batch(then=square.job(1), results=True) as batch:
        added = batch.enqueue(square.options(result_ttl=60).job(2))
        other = batch.enqueue(square.job(3))
    Worker(ps, q, handlers, burst=True, concurrency=1).run()
    assert q.result(added.id, timeout=10) == 4
    with pytest.raises(ResultGone):
        q.result(other.id, timeout=10)
    assert q.stats().kept == 1


def test_the_failed_callback_is_redriven(ps: Penstock, q: Queue) -> None:
    """Its values stay while it is a dead letter."""
    own, read = Handlers(), list[Any]()
    own.include(handlers)

    @own.handler("sum")
    def total(job: Job) -> None:
        read.append(job.batch_results())
        if len(read) == 1:
            raise Reject("not today")

    with q.batch(then=total.job(), results=True) as batch:
        batch.enqueue_many(square.jobs([1, 2]))
    Worker(ps, q, own, burst=True).run()
    assert q.batches.results(batch.id) == [1, 4]
    q.redrive([batch.id])
    Worker(ps, q, own, burst=True).run()
    assert read == [[1, 4]] * 2


@pytest.mark.parametrize("on", ["success", "finished"])
def test_a_batch_without_jobs_follows(ps: Penstock, q: Queue, raw: Raw, on: Any) -> None:
    """Its callback is due at once, and reads no values."""
    own, read = Handlers(), list[Any]()

    @own.handler("none")
    def none() -> Done:
        return Done(batch=[], then=total.job(), on=on, results=True)

    @own.handler("total")
    def total(job: Job) -> str:
        read.append(job.batch_results())
        return "total"

    with q.batch(then=total.job(), results=True) as batch:
        batch.enqueue(none.job())
    Worker(ps, q, own, burst=True).run()
    assert read == [[], ["total"]]
    ended(q, raw)


@pytest.mark.parametrize("default", [None, 60])
@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"dedup_id": "a"}, {"lease": 60}])
def test_a_member_that_keeps_no_result(
    ps: Penstock, q: Queue, default: int | None, options: Any
) -> None:
    """Its value is kept for the callback all the same."""
    own = Handlers()
    own.include(handlers)

    @own.handler("more")
    def more() -> Done:
        follow = [square.options(result_ttl=0).job(3)]
        return Done(batch=follow, then=join.options(result_ttl=0).job(), results=True)

    @own.handler("join")
    def join(job: Job) -> Any:
        return job.batch_results()

    q.configure(result_ttl=default)
    with q.batch(then="sum", results=True) as batch:
        batch.enqueue(square.job(2), result_ttl=0, **options)
        batch.enqueue(more.job(), result_ttl=0)
    Worker(ps, q, own, max_jobs=4).run()
    assert q.batches.results(batch.id) == [4, [9]]


def test_bad_input(q: Queue) -> None:
    """The error names the argument; nothing is added."""
    with pytest.raises(BadArgument, match="results"):
        q.batch(then="sum", results=1)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="results"):
        Done(results=True)
    with pytest.raises(BadArgument, match="return_exceptions"):
        q.batches.results("x", return_exceptions=2)  # type: ignore[arg-type]
